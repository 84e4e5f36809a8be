//! What holds for any input of any kind.

use std::borrow::Cow;

use xkub_userspace::join::{Kind, Replace, detect, inspect, rewrite};

/// No panic; an input with nothing to change comes out as it is; a second pass finds nothing to do.
pub fn check(kind: Kind, input: &[u8]) {
    let _ = detect(input);
    let (Ok(cidr), Ok(endpoint)) = ("0.0.0.0/1".parse(), "192.0.2.10:6443".parse()) else { return };
    let replace = Replace { cidrs: vec![cidr], endpoint };
    let inspected = inspect(kind, input).is_ok();
    let Ok(first) = rewrite(kind, input, &replace) else { return };
    assert!(inspected);
    assert_eq!(first.changes.is_empty(), matches!(first.bytes, Cow::Borrowed(_)));
    let second = rewrite(kind, &first.bytes, &replace);
    assert!(second.is_ok_and(|second| second.changes.is_empty() && second.bytes == first.bytes));
}
