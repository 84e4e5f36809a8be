//! What a look at the node found: plain data without clocks, so that plans can be tested without a node.

use std::{collections::BTreeMap, fmt, net::IpAddr, path::PathBuf};

use serde::Serialize;

use crate::{
    cluster::token,
    datapath::{Datapath, settings::DualAddress},
    join,
    node::{file_change::FileChange, uplink::Uplink},
};

/// Everything a plan is made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observation {
    /// The uplink, or why there is none.
    pub uplink: Result<Uplink, String>,
    /// What the address sources say.
    pub address: Discovered,
    /// The address device, if it is there.
    pub device: Option<Device>,
    /// The datapath on the uplink, if one is attached.
    pub datapath: Option<Attached>,
    /// Files with the address of the API server in them.
    pub join_files: Vec<JoinFile>,
    /// What the API says to the join token of a worker that has not joined yet; none if it was not asked.
    pub token: Option<token::Answer>,
    /// The worker, if one is installed, or why that can't be told.
    pub worker: Result<Option<Worker>, String>,
    /// This node's Node.
    pub node: NodeState,
    /// What the CNI advertises.
    pub cni: Cni,
    /// Where kube-proxy's nftables accept `NodePorts`, none without such a proxy; or why that can't be told.
    pub node_port_addresses: Result<Option<Vec<IpAddr>>, String>,
}

/// The node address as the sources tell it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Discovered {
    /// What they say, per family; none where no source answers, or none that counts.
    pub address: DualAddress,
    /// Who said it.
    pub source: BTreeMap<&'static str, String>,
    /// Answers that don't count.
    pub refusals: Vec<Refusal>,
    /// Sources that don't answer, and why.
    pub silent: Vec<String>,
}

/// An answer that does not count.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Refusal {
    /// The source.
    pub source: String,
    /// The answer.
    pub address: IpAddr,
    /// In one word, for metrics: `guest-address`.
    pub reason: String,
    /// In a sentence.
    pub message: String,
}

/// The address device as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Its name; `lo` where the kernel has no dummy device.
    pub name: String,
    /// Its index.
    pub index: u32,
    /// Whether we made it: only then its MTU is ours to set.
    pub is_ours: bool,
    /// Whether it is up.
    pub is_up: bool,
    /// Its MTU, bytes.
    pub mtu: u32,
    /// Host addresses on it (/32, /128).
    pub addresses: Vec<IpAddr>,
}

/// A datapath as it is in the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attached {
    /// What `xkub datapath show` says.
    pub shown: Datapath,
    /// Places where we don't stand as we should, each in a few words.
    pub faults: Vec<String>,
    /// Room for remembered flows, per family.
    pub flow_entries: u32,
    /// What we put on devices: its name, and the address.
    pub marks: Vec<(String, IpAddr)>,
}

/// A file that holds the address of the API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinFile {
    /// Where it is.
    pub path: PathBuf,
    /// What kind of file.
    pub kind: join::Kind,
    /// What is to be done about it.
    pub state: JoinState,
}

/// What is to be done about a join file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JoinState {
    /// Nothing.
    Fine,
    /// Its addresses would change like this.
    Due(Vec<String>),
    /// It can't be read as what it should be.
    Broken(String),
}

/// The worker as it is, for the node address of [`Discovered`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Worker {
    /// `k0s`, `kubeadm`, `k3s` or `rke2`.
    pub distribution: String,
    /// Its unit.
    pub unit: String,
    /// Files that its next start has to find changed.
    pub changes: Vec<FileChange>,
    /// Whether it runs.
    pub is_running: bool,
    /// Whether it runs with another `--node-ip` than its next start would have.
    pub is_outdated: bool,
    /// Whether a cloud provider outside sets the Node's addresses.
    pub has_external_cloud_provider: bool,
    /// What a person should know.
    pub warnings: Vec<String>,
    /// What its serving certificate waits for.
    pub certificate: Option<String>,
}

/// What is known of this node's Node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeState {
    /// There is no kubeconfig yet: the node has not joined.
    NotJoined,
    /// The API server does not answer, or not as it should.
    Unknown(String),
    /// Its addresses of type `InternalIP`, in its order.
    Shows(Vec<IpAddr>),
}

/// What the CNI advertises as this node's address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cni {
    /// Annotations on the Node that are not as they should be, with what they should be.
    pub due: BTreeMap<String, String>,
    /// What for.
    pub why: String,
    /// What a person should know.
    pub warnings: Vec<String>,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            source,
            address,
            message,
            reason: _,
        } = self;
        write!(f, "{address} from {source}: {message}")
    }
}
