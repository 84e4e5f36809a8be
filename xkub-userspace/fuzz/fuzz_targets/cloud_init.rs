//! User data: cloud-init's, and Ignition's where it looks like JSON.
#![no_main]

#[path = "join/mod.rs"]
mod join;

use libfuzzer_sys::fuzz_target;
use xkub_userspace::join::Kind;

fuzz_target!(|input: &[u8]| {
    let kind = if input.starts_with(b"{") { Kind::Ignition } else { Kind::CloudInit };
    join::check(kind, input);
});
