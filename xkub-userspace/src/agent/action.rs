//! What a plan consists of: each action says what it changes, and why.

use std::{collections::BTreeMap, fmt, net::IpAddr, path::PathBuf};

use serde::{Serialize, Serializer, ser::SerializeStruct as _};

use crate::{datapath::Settings, join, node::file_change::FileChange};

/// One step. Applied twice it changes nothing the second time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Attaches a datapath, or swaps its programs for others, with the node address on its device.
    Attach {
        /// All there is to say.
        settings: Box<Settings>,
        /// What for.
        why: String,
    },
    /// Takes places on the uplink's hooks again.
    TakePlaces {
        /// The uplink.
        uplink: String,
        /// Where and why.
        faults: Vec<String>,
    },
    /// Makes the address device what it should be, with the node address on it.
    PutAddress {
        /// The uplink whose node address it is.
        uplink: String,
        /// The device.
        device: String,
        /// Its MTU, bytes.
        mtu: u32,
        /// Every address that it has to hold.
        addresses: Vec<IpAddr>,
        /// What for.
        why: String,
    },
    /// Sets annotations on this node's Node.
    Annotate {
        /// What they shall be.
        annotations: BTreeMap<String, String>,
        /// What for.
        why: String,
    },
    /// Points a join file to the join endpoint.
    RewriteJoin {
        /// The file.
        path: PathBuf,
        /// What kind of file.
        kind: join::Kind,
        /// What changes in it.
        changes: Vec<String>,
    },
    /// Writes what gives the kubelet its `--node-ip` at its next start.
    SetNodeIp {
        /// The worker's unit.
        unit: String,
        /// The files.
        changes: Vec<FileChange>,
    },
    /// Restarts the worker.
    Restart {
        /// Its unit.
        unit: String,
        /// What for.
        why: String,
    },
    /// Takes an address that is not the node's any more from its device.
    RemoveAddress {
        /// The uplink whose node address it was.
        uplink: String,
        /// The device.
        device: String,
        /// The address.
        address: IpAddr,
        /// What for.
        why: String,
    },
}

/// The kinds of [`Action`], as metrics name them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// [`Action::Attach`].
    Attach,
    /// [`Action::TakePlaces`].
    TakePlaces,
    /// [`Action::PutAddress`].
    PutAddress,
    /// [`Action::Annotate`].
    Annotate,
    /// [`Action::RewriteJoin`].
    RewriteJoin,
    /// [`Action::SetNodeIp`].
    SetNodeIp,
    /// [`Action::Restart`].
    Restart,
    /// [`Action::RemoveAddress`].
    RemoveAddress,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 8] = [
        Self::Attach,
        Self::TakePlaces,
        Self::PutAddress,
        Self::Annotate,
        Self::RewriteJoin,
        Self::SetNodeIp,
        Self::Restart,
        Self::RemoveAddress,
    ];

    /// As metrics and documents have it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Attach => "attach",
            Self::TakePlaces => "take-places",
            Self::PutAddress => "put-address",
            Self::Annotate => "annotate",
            Self::RewriteJoin => "rewrite-join",
            Self::SetNodeIp => "set-node-ip",
            Self::Restart => "restart",
            Self::RemoveAddress => "remove-address",
        }
    }

    /// What has to have worked in the same plan: a kubelet refuses a `--node-ip` that no interface has, and peers
    /// must not be sent to an address that nothing translates.
    #[must_use]
    pub const fn needs(self) -> &'static [Self] {
        match self {
            Self::Attach | Self::TakePlaces | Self::PutAddress | Self::RewriteJoin => &[],
            Self::Annotate | Self::SetNodeIp | Self::RemoveAddress => {
                &[Self::Attach, Self::PutAddress]
            }
            Self::Restart => &[Self::Attach, Self::PutAddress, Self::SetNodeIp],
        }
    }
}

impl Action {
    /// Its kind.
    #[must_use]
    pub const fn kind(&self) -> Kind {
        match self {
            Self::Attach { .. } => Kind::Attach,
            Self::TakePlaces { .. } => Kind::TakePlaces,
            Self::PutAddress { .. } => Kind::PutAddress,
            Self::Annotate { .. } => Kind::Annotate,
            Self::RewriteJoin { .. } => Kind::RewriteJoin,
            Self::SetNodeIp { .. } => Kind::SetNodeIp,
            Self::Restart { .. } => Kind::Restart,
            Self::RemoveAddress { .. } => Kind::RemoveAddress,
        }
    }

    /// What tells it from others of its kind, whatever the reason: a failed one is retried less and less often.
    #[must_use]
    pub fn key(&self) -> (Kind, String) {
        let object = match self {
            Self::Attach { settings, .. } => settings.uplink.clone(),
            Self::TakePlaces { uplink, .. } => uplink.clone(),
            Self::PutAddress { device, .. } => device.clone(),
            Self::Annotate { .. } => String::new(),
            Self::RewriteJoin { path, .. } => path.display().to_string(),
            Self::SetNodeIp { unit, .. } | Self::Restart { unit, .. } => unit.clone(),
            Self::RemoveAddress { address, .. } => address.to_string(),
        };
        (self.kind(), object)
    }

    /// What it is for.
    #[must_use]
    pub fn why(&self) -> String {
        match self {
            Self::Attach { why, .. }
            | Self::PutAddress { why, .. }
            | Self::Annotate { why, .. }
            | Self::Restart { why, .. }
            | Self::RemoveAddress { why, .. } => why.clone(),
            Self::TakePlaces { faults, .. } => faults.join(", "),
            Self::RewriteJoin { changes, .. } => changes.join(", "),
            Self::SetNodeIp { changes, .. } => {
                let whys: Vec<&str> = changes.iter().map(|change| change.why.as_str()).collect();
                whys.join(", ")
            }
        }
    }

    /// What it does.
    fn what(&self) -> String {
        match self {
            Self::Attach { settings, .. } => {
                let nodes: Vec<String> = settings
                    .node_address
                    .iter()
                    .map(|address| address.to_string())
                    .collect();
                format!(
                    "attach the datapath to {} for {}",
                    settings.uplink,
                    nodes.join(" and ")
                )
            }
            Self::TakePlaces { uplink, .. } => format!("take our places on {uplink} again"),
            Self::PutAddress {
                device,
                mtu,
                addresses,
                ..
            } => {
                let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
                format!("put {} on {device}, MTU {mtu}", addresses.join(" and "))
            }
            Self::Annotate { annotations, .. } => {
                let words: Vec<String> = annotations
                    .iter()
                    .map(|(key, value)| format!("{key}={value}"))
                    .collect();
                format!("annotate this node's Node with {}", words.join(" and "))
            }
            Self::RewriteJoin { path, .. } => {
                format!("point {} to the join endpoint", path.display())
            }
            Self::SetNodeIp { unit, changes } => {
                let paths: Vec<String> = changes
                    .iter()
                    .map(|change| change.path.display().to_string())
                    .collect();
                format!("change --node-ip of {unit} in {}", paths.join(" and "))
            }
            Self::Restart { unit, .. } => format!("restart {unit}"),
            Self::RemoveAddress {
                device, address, ..
            } => format!("remove {address} from {device}"),
        }
    }
}

/// What and why, on one line.
impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what(), self.why())
    }
}

impl Serialize for Action {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut document = serializer.serialize_struct("Action", 3)?;
        document.serialize_field("kind", self.kind().name())?;
        document.serialize_field("what", &self.what())?;
        document.serialize_field("why", &self.why())?;
        document.end()
    }
}
