//! The configuration of the node agent: its keys, their defaults, and where each value came from.
//!
//! A value is looked for in the flags, in `XKUB_*` variables and in the file, in this order. All three give the
//! same words to the same parser, one key at a time, so that an error names the key and whoever set it.

mod keys;
mod layers;
mod values;

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use ipnet::IpNet;

pub use self::{
    keys::{KEYS, Key},
    layers::{ConfigError, DEFAULT_PATH, Loaded, Origin, load, of_file, of_text},
};
use crate::{
    address::{pick::Source, reflector_client::Server},
    datapath::settings::{
        DEFAULT_FLOW_ENTRIES, DEFAULT_OVERLAY_PORTS, DEFAULT_SERVICES, DualAddress, GuestAddress,
        IngressHook, PortRange, Service,
    },
    join::Endpoint,
    node::{address_device, distribution},
};

/// The configuration file as it is installed: every key with its meaning and, commented out, its default.
pub const DEFAULT_TEXT: &str = include_str!("default.toml");

/// Everything that can be configured, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The interface on the pod network; none is that of the default route.
    pub uplink: Option<String>,
    /// What the guest knows itself by.
    pub guest_address: GuestAddress,
    /// What is kept until the next boot.
    pub state_directory: PathBuf,
    /// How the node address is found.
    pub address: Address,
    /// What is attached to the uplink.
    pub datapath: Datapath,
    /// What becomes of join files.
    pub join: Join,
    /// The worker on this node.
    pub node: Node,
    /// What others may look at.
    pub observe: Observe,
}

/// `[address]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// The sources, the one that counts most first.
    pub sources: Vec<Source>,
    /// The address of [`Source::Static`].
    pub fixed: DualAddress,
    /// STUN servers of [`Source::Reflector`].
    pub reflectors: Vec<Server>,
    /// Where node addresses lie; empty is anywhere.
    pub infra_cidrs: Vec<IpNet>,
    /// Where they don't.
    pub guest_cidrs: Vec<IpNet>,
    /// How often to ask without a reason.
    pub interval: Duration,
}

/// `[datapath]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Datapath {
    /// The hook for ingress.
    pub ingress_hook: IngressHook,
    /// UDP ports of tunnels.
    pub overlay_ports: Vec<u16>,
    /// What is always reached at the node address, beside overlays and `NodePorts`.
    pub services: Vec<Service>,
    /// Whether `NodePorts` belong to it.
    pub node_ports: NodePorts,
    /// Which ports those are.
    pub node_port_range: PortRange,
    /// The device that holds the node address.
    pub address_device: String,
    /// Room for remembered flows, per family.
    pub flow_entries: u32,
}

/// Whether `NodePorts` are reached at the node address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodePorts {
    /// When the proxy accepts them there alone.
    Auto,
    /// Always.
    On,
    /// Never.
    Off,
}

/// `[join]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Join {
    /// What replaces an address.
    pub endpoint: Option<Endpoint>,
    /// Which addresses are replaced.
    pub replace: Vec<IpNet>,
}

/// `[node]`.
#[expect(clippy::struct_excessive_bools, reason = "each is a key of its own")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// What runs the kubelet.
    pub distribution: Distribution,
    /// The kubeconfig for the own Node; none is the kubelet's.
    pub kubeconfig: Option<PathBuf>,
    /// Whether `--node-ip` is ours to set.
    pub manage_node_ip: bool,
    /// Whether the worker may be restarted for it.
    pub restart: bool,
    /// Whether what the CNI advertises is ours to set.
    pub manage_cni: bool,
    /// Whether the worker may start without a node address.
    pub fail_open: bool,
    /// How long it waits for one.
    pub start_timeout: Duration,
}

/// What runs the kubelet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Distribution {
    /// To be found by looking.
    Auto,
    /// This one.
    Named(distribution::Distribution),
    /// Nothing here is xkub's business.
    None,
}

/// `[observe]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Observe {
    /// Where metrics and health are served; none is nowhere.
    pub listen: Option<SocketAddr>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            uplink: None,
            guest_address: GuestAddress::Auto,
            state_directory: PathBuf::from("/run/xkub"),
            address: Address {
                sources: Source::ALL.to_vec(),
                fixed: DualAddress::default(),
                reflectors: Vec::new(),
                infra_cidrs: Vec::new(),
                guest_cidrs: Vec::new(),
                interval: Duration::from_secs(5),
            },
            datapath: Datapath {
                ingress_hook: IngressHook::Auto,
                overlay_ports: DEFAULT_OVERLAY_PORTS.to_vec(),
                services: DEFAULT_SERVICES.to_vec(),
                node_ports: NodePorts::Auto,
                // kube-apiserver's default for --service-node-port-range.
                node_port_range: PortRange {
                    first: 30_000,
                    last: 32_767,
                },
                address_device: address_device::DEFAULT_NAME.to_owned(),
                flow_entries: DEFAULT_FLOW_ENTRIES,
            },
            join: Join::default(),
            node: Node {
                distribution: Distribution::Auto,
                kubeconfig: None,
                manage_node_ip: true,
                restart: true,
                manage_cni: true,
                fail_open: true,
                start_timeout: Duration::from_secs(30),
            },
            observe: Observe {
                listen: Some(SocketAddr::from(([127, 0, 0, 1], 9969))),
            },
        }
    }
}
