//! Which kind of join file an input is.

use serde::Deserialize;
use serde_json::Value;

use super::{
    Kind,
    cloud_init::looks_like_user_data,
    encoding::{self, GZIP_MAGIC_BASE64, Run},
    error::Place,
    k3s,
    scan::Scan,
};

/// The keys of a JSON text that tell its kind.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Head {
    ignition: Option<serde::de::IgnoredAny>,
    kind: Option<Value>,
    clusters: Option<serde::de::IgnoredAny>,
    server: Option<serde::de::IgnoredAny>,
}

/// The kind of an input, by what is typical of it. User data is the kind of all that is no other.
#[must_use]
pub fn detect(input: &[u8]) -> Kind {
    let Ok(text) = std::str::from_utf8(input) else {
        return Kind::CloudInit;
    };
    if text.trim_start().as_bytes().starts_with(GZIP_MAGIC_BASE64) {
        packed(input)
    } else {
        of_text(text)
    }
}

/// base64 of gzip: a k0s token, or user data. What is broken is taken for a token, so that somebody hears of it.
fn packed(input: &[u8]) -> Kind {
    let Some(run) = Run::whole(input) else {
        return Kind::CloudInit;
    };
    let decoded = run
        .decode(input)
        .and_then(|packed| encoding::gunzip(&packed, &Place::default(), &mut Scan::new(None)).ok());
    match decoded
        .as_deref()
        .map(|decoded| std::str::from_utf8(decoded))
    {
        None => Kind::K0s,
        Some(Ok(text)) if of_text(text) == Kind::Kubeconfig => Kind::K0s,
        Some(_) => Kind::CloudInit,
    }
}

/// The same for text that is not encoded.
pub(super) fn of_text(text: &str) -> Kind {
    let text = text.trim_start_matches('\u{feff}');
    let start = text.trim_start();
    if start.starts_with('{')
        && let Ok(head) = serde_json::from_str::<Head>(text)
    {
        return by_head(&head);
    }
    if looks_like_user_data(start) {
        return Kind::CloudInit;
    }
    by_lines(text)
}

fn by_head(head: &Head) -> Kind {
    let kind = head.kind.as_ref().and_then(Value::as_str);
    if head.ignition.is_some() {
        Kind::Ignition
    } else if kind == Some("Config") || head.clusters.is_some() {
        Kind::Kubeconfig
    } else if kind == Some("JoinConfiguration") {
        Kind::Kubeadm
    } else if head.server.is_some() {
        Kind::K3sConfig
    } else {
        Kind::CloudInit
    }
}

/// By lines that begin at the margin.
fn by_lines(text: &str) -> Kind {
    let has = |wanted: &dyn Fn(&str) -> bool| text.lines().any(wanted);
    let key = |line: &str, name: &str| {
        line.strip_prefix(name)
            .is_some_and(|rest| rest.starts_with(':'))
    };
    let is_kind = |line: &str, name: &str| {
        line.strip_prefix("kind:")
            .is_some_and(|value| value.trim().trim_matches(['"', '\'']) == name)
    };
    if has(&|line| is_kind(line, "JoinConfiguration")) {
        Kind::Kubeadm
    } else if has(&|line| key(line, "clusters")) {
        Kind::Kubeconfig
    } else if has(&|line| k3s::assignment(line).is_some()) {
        Kind::K3sEnv
    } else if has(&|line| key(line, "server")) {
        Kind::K3sConfig
    } else {
        Kind::CloudInit
    }
}
