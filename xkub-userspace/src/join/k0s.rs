//! k0s join tokens: base64 of gzip of a kubeconfig.
//!
//! Format: k0s `pkg/token/joinencode.go`, `joindecode.go` and `kubeconfig.go`.

use zeroize::Zeroizing;

use super::{
    Kind,
    encoding::{self, Run},
    error::{JoinError, Place},
    kubeconfig::Kubeconfig,
    scan::{self, Edit, Scan},
};

/// The user of a worker's token.
pub(super) const WORKER: &str = "kubelet-bootstrap";

/// The user of a controller's token.
pub(super) const CONTROLLER: &str = "controller-bootstrap";

/// Notes the server of a token file, and changes it. White space around and within the base64 is kept.
pub(super) fn scan(
    input: &[u8],
    place: &Place,
    scan: &mut Scan<'_>,
) -> Result<Vec<Edit>, JoinError> {
    let (run, decoded) = unpack(input, place, scan)?;
    let inside = place.inside("base64")?.inside("gzip")?;
    let text = std::str::from_utf8(&decoded).map_err(|_| JoinError::NotText {
        place: inside.clone(),
    })?;
    let config = Kubeconfig::read(text, &inside)?;
    check(&config, &inside)?;
    let mut edits = config.scan(Kind::K0s, text, scan)?;
    if edits.is_empty() {
        return Ok(edits);
    }
    let changed = scan::apply(&decoded, &mut edits, &inside)?;
    Ok(vec![Edit {
        range: run.range(),
        bytes: run.encode(input, &encoding::gzip(&changed)),
    }])
}

/// Where the base64 is, and the kubeconfig in it.
pub(super) fn unpack(
    input: &[u8],
    place: &Place,
    scan: &mut Scan<'_>,
) -> Result<(Run, Zeroizing<Vec<u8>>), JoinError> {
    let not_base64 = || JoinError::NotBase64 {
        place: place.clone(),
    };
    let run = Run::whole(input).ok_or_else(not_base64)?;
    let packed = run.decode(input).ok_or_else(not_base64)?;
    let inside = place.inside("base64")?.inside("gzip")?;
    let decoded = encoding::gunzip(&packed, &inside, scan)?;
    Ok((run, decoded))
}

/// Whether a kubeconfig is what k0s puts into a token.
pub(super) fn is_token(config: &Kubeconfig) -> bool {
    let mut users = config.context_users();
    matches!(
        (users.next(), users.next()),
        (Some(Some(WORKER | CONTROLLER)), None)
    )
}

fn check(config: &Kubeconfig, place: &Place) -> Result<(), JoinError> {
    if is_token(config) {
        return Ok(());
    }
    let why = if config.context_users().count() == 1 {
        "its user is neither kubelet-bootstrap nor controller-bootstrap"
    } else {
        "it has not exactly one context"
    };
    Err(JoinError::NotOfKind {
        place: place.clone(),
        kind: Kind::K0s.with_article(),
        why,
    })
}
