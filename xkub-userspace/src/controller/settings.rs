//! What the controller is told at its start.

use std::{collections::BTreeSet, net::SocketAddr, time::Duration};

use ipnet::IpNet;

/// A reconciler that can be switched off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reconciler {
    /// Join tokens lead to the join endpoint.
    Bootstrap,
    /// The guest's Node knows the node address.
    NodeAddress,
    /// `CoreDNS` reaches the API at the join endpoint.
    CoreDns,
    /// Pods that carry an old node address are made anew.
    StalePods,
}

impl Reconciler {
    /// All of them.
    pub const ALL: [Self; 4] = [
        Self::Bootstrap,
        Self::NodeAddress,
        Self::CoreDns,
        Self::StalePods,
    ];

    /// As flags, metrics and logs name it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bootstrap => "bootstrap",
            Self::NodeAddress => "node-address",
            Self::CoreDns => "coredns",
            Self::StalePods => "stale-pods",
        }
    }
}

/// What becomes of a `CoreDNS` on the host network, where it can't resolve what it is there for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostNetwork {
    /// It is put back on the pod network.
    Undo,
    /// An Event says so.
    Warn,
}

/// Everything that can be set, checked.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The controller's own namespace: for its Lease and its certificate.
    pub own_namespace: String,
    /// Namespaces with guest clusters; empty is all.
    pub namespaces: Vec<String>,
    /// Where pod and Service addresses of the infra cluster lie, which guests can't reach the API at.
    pub infra_cidrs: Vec<IpNet>,
    /// What runs.
    pub reconcilers: BTreeSet<Reconciler>,
    /// Nothing is changed; what would be is said.
    pub dry_run: bool,
    /// What becomes of a `CoreDNS` on the host network.
    pub coredns_host_network: HostNetwork,
    /// How long a pod may carry an old address, in case it is corrected by itself.
    pub stale_pods_grace: Duration,
    /// How many pods of a guest cluster are made anew at a time; at least 1.
    pub stale_pods_at_once: usize,
    /// Where metrics and health are served; none is nowhere.
    pub observe: Option<SocketAddr>,
    /// The admission webhook; none is without.
    pub webhook: Option<Webhook>,
    /// Whether replicas agree on one that works; without, this one does.
    pub leader_election: bool,
}

/// The admission webhook.
#[derive(Clone, Debug)]
pub struct Webhook {
    /// Where it is served.
    pub listen: SocketAddr,
    /// The Service that leads there, in the controller's own namespace.
    pub service: String,
    /// The `MutatingWebhookConfiguration` whose CA bundle is kept right.
    pub configuration: String,
}
