//! Tokens and join files: the address of the API server in them.
//!
//! All of it is from bytes to bytes. Only the bytes of an address change; an input with nothing to change comes out
//! as it went in. A file per format, and what they share: [`Replace`] and [`Endpoint`], [`Place`] and [`JoinError`].

mod cloud_init;
mod detect;
mod encoding;
mod endpoint;
mod error;
mod ignition;
mod k0s;
mod k3s;
mod kubeadm;
mod kubeconfig;
mod scan;
#[cfg(test)]
mod tests;
mod yaml;

use std::{borrow::Cow, fmt};

use serde::Serialize;
use zeroize::Zeroizing;

use self::scan::{Edit, Scan};
pub use self::{
    detect::detect,
    endpoint::{Endpoint, EndpointError, Replace},
    error::{JoinError, Place},
    kubeadm::discovery_file,
};

/// The largest input, in bytes: what a Secret holds (1 MiB), in base64 and with room.
pub const INPUT_LIMIT: usize = 2 << 20;

/// A format that nodes are told their API server in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A kubeconfig, YAML or JSON.
    Kubeconfig,
    /// A k0s join token: base64 of gzip of a kubeconfig.
    K0s,
    /// kubeadm's `JoinConfiguration`, any number of YAML documents.
    Kubeadm,
    /// `config.yaml` of k3s or rke2.
    K3sConfig,
    /// The environment file of a k3s or rke2 unit.
    K3sEnv,
    /// cloud-init user data, and any other text: searched, not parsed.
    CloudInit,
    /// An Ignition configuration.
    Ignition,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Kubeconfig,
        Self::K0s,
        Self::Kubeadm,
        Self::K3sConfig,
        Self::K3sEnv,
        Self::CloudInit,
        Self::Ignition,
    ];

    /// As it is written in documents and arguments.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Kubeconfig => "kubeconfig",
            Self::K0s => "k0s",
            Self::Kubeadm => "kubeadm",
            Self::K3sConfig => "k3s-config",
            Self::K3sEnv => "k3s-env",
            Self::CloudInit => "cloud-init",
            Self::Ignition => "ignition",
        }
    }

    /// For sentences.
    fn with_article(self) -> &'static str {
        match self {
            Self::Kubeconfig => "a kubeconfig",
            Self::K0s => "a k0s join token",
            Self::Kubeadm => "a kubeadm join configuration",
            Self::K3sConfig => "a k3s configuration",
            Self::K3sEnv => "a k3s environment file",
            Self::CloudInit => "cloud-init user data",
            Self::Ignition => "an Ignition configuration",
        }
    }
}

/// What tells when a token stops to work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Expiry {
    /// It is not in the token: the Secret `kube-system/bootstrap-token-<id>` of the cluster holds it.
    OfBootstrapToken,
    /// Nothing that is known here.
    Unknown,
}

/// What a rewrite does to a server address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// It becomes the endpoint.
    Replaced {
        /// Scheme, host and port.
        to: String,
    },
    /// It is the endpoint.
    Already,
    /// Left alone: a controller's token leads to another controller, not to the API.
    ControllerToken,
    /// Left alone: a DNS name.
    Name,
    /// Left alone: an address in none of the networks.
    OtherAddress,
}

/// A server address in an input. Nothing in it is secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Found {
    /// The innermost format that holds it.
    pub kind: Kind,
    /// Where it is.
    pub place: Place,
    /// Scheme (not where the format has none), host and port.
    pub server: String,
    /// The kubeconfig's name for whoever joins; k0s: `kubelet-bootstrap` is a worker, `controller-bootstrap` a
    /// controller.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// The public half of the bootstrap token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_id: Option<String>,
    /// What tells when the token stops to work.
    pub expiry: Expiry,
    /// What a rewrite does to it; none when only asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Outcome>,
}

/// A server address that was replaced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Change {
    /// Where it is.
    pub place: Place,
    /// Scheme, host and port.
    pub from: String,
    /// The same, now.
    pub to: String,
}

/// What came of a rewrite. Its `Debug` doesn't show the bytes, which hold secrets.
#[derive(Clone, PartialEq, Eq)]
pub struct Rewritten<'a> {
    /// The file. Borrowed when nothing has changed.
    pub bytes: Cow<'a, [u8]>,
    /// Every address that was replaced.
    pub changes: Vec<Change>,
    /// Every server, with what was done to it: also those that were left alone, and why.
    pub found: Vec<Found>,
}

impl fmt::Debug for Rewritten<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Rewritten")
            .field("changes", &self.changes)
            .field("found", &self.found)
            .finish_non_exhaustive()
    }
}

/// Every server address in an input.
///
/// # Errors
/// [`JoinError`]: the input is not of this kind, broken or too large.
pub fn inspect(kind: Kind, input: &[u8]) -> Result<Vec<Found>, JoinError> {
    let mut scan = Scan::new(None);
    pass(kind, input, &mut scan)?;
    Ok(scan.found)
}

/// Points an input to the join endpoint: server addresses in `replace.cidrs` become `replace.endpoint`. What has
/// been rewritten is left as it is when rewritten again.
///
/// # Errors
/// [`JoinError`]: the input is not of this kind, broken or too large.
pub fn rewrite<'a>(
    kind: Kind,
    input: &'a [u8],
    replace: &Replace,
) -> Result<Rewritten<'a>, JoinError> {
    let mut scan = Scan::new(Some(replace));
    let mut edits = pass(kind, input, &mut scan)?;
    let bytes = if edits.is_empty() {
        Cow::Borrowed(input)
    } else {
        Cow::Owned(scan::apply(input, &mut edits, &Place::default())?)
    };
    let changes = scan.found.iter().filter_map(|found| match &found.outcome {
        Some(Outcome::Replaced { to }) => Some(Change {
            place: found.place.clone(),
            from: found.server.clone(),
            to: to.clone(),
        }),
        _ => None,
    });
    Ok(Rewritten {
        bytes,
        changes: changes.collect(),
        found: scan.found,
    })
}

/// The kubeconfig that an input is or holds, as text; none for other kinds, and where it is broken.
#[must_use]
pub fn kubeconfig(kind: Kind, input: &[u8]) -> Option<Zeroizing<String>> {
    let text = |bytes: &[u8]| std::str::from_utf8(bytes).ok().map(str::to_owned);
    match kind {
        Kind::Kubeconfig => text(input),
        Kind::K0s => {
            let unpacked = k0s::unpack(input, &Place::default(), &mut Scan::new(None));
            text(&unpacked.ok()?.1)
        }
        _ => None,
    }
    .map(Zeroizing::new)
}

fn pass(kind: Kind, input: &[u8], scan: &mut Scan<'_>) -> Result<Vec<Edit>, JoinError> {
    let place = Place::default();
    if input.len() > INPUT_LIMIT {
        return Err(JoinError::TooLarge {
            place,
            limit: INPUT_LIMIT,
        });
    }
    let text = || {
        std::str::from_utf8(input).map_err(|_| JoinError::NotText {
            place: place.clone(),
        })
    };
    match kind {
        Kind::Kubeconfig => {
            let text = text()?;
            kubeconfig::Kubeconfig::read(text, &place)?.scan(kind, text, scan)
        }
        Kind::K0s => k0s::scan(input, &place, scan),
        Kind::Kubeadm => kubeadm::scan(text()?, &place, scan),
        Kind::K3sConfig => k3s::config(text()?, &place, scan),
        Kind::K3sEnv => k3s::environment(text()?, &place, scan),
        Kind::CloudInit => cloud_init::scan(input, &place, scan),
        Kind::Ignition => ignition::scan(text()?, &place, scan),
    }
}
