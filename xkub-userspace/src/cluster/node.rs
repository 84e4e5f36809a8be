//! This node's own Node object: what of it matters here, how it is read, and how its annotations are changed.

use std::{collections::BTreeMap, net::IpAddr};

use ipnet::IpNet;
use kube::core::{
    Request,
    params::{GetParams, Patch, PatchParams},
};
use serde::Deserialize;
use serde_json::json;
use thiserror::Error;

use super::client::{ClusterError, Connection};
use crate::datapath::settings::{DualAddress, SettingsError};

/// The path of the collection of Nodes.
pub(super) const NODES: &str = "/api/v1/nodes";
/// Where the controller writes the node address: `A`, `A6` or `A,A6`.
pub const NODE_ADDRESS_ANNOTATION: &str = "xkub.io/node-address";
/// Where a kubelet with `--cloud-provider=external` writes its `--node-ip`, for the provider to agree with
/// (KEP-3705).
pub const PROVIDED_NODE_IP_ANNOTATION: &str = "alpha.kubernetes.io/provided-node-ip";
/// On a Node until an external cloud provider has seen it.
pub const UNINITIALIZED_TAINT: &str = "node.cloudprovider.kubernetes.io/uninitialized";
/// Who changes the Node, as its `managedFields` tell.
pub const FIELD_MANAGER: &str = "xkub-agent";

/// A Node, without what nobody here needs: its images alone are most of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "wire::Node")]
pub struct NodeView {
    /// Its name.
    pub name: String,
    /// Which version of it this is; opaque.
    pub resource_version: String,
    /// Its annotations.
    pub annotations: BTreeMap<String, String>,
    /// The keys of its taints.
    pub taints: Vec<String>,
    /// Its addresses, in its order.
    pub addresses: Vec<NodeAddress>,
    /// What its pods get their addresses from.
    pub pod_cidrs: Vec<IpNet>,
    /// Its condition Ready; none: unknown, or never said.
    pub is_ready: Option<bool>,
    /// The reason of its condition `NetworkUnavailable`, which its CNI sets: `FlannelIsUp`, `CiliumIsUp`, …
    pub network_reason: Option<String>,
}

/// One of a Node's addresses.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct NodeAddress {
    /// `InternalIP`, `Hostname`, …
    #[serde(rename = "type")]
    pub kind: String,
    /// The address, or the name.
    pub address: String,
}

impl NodeView {
    /// An annotation, if it is there and not empty.
    #[must_use]
    pub fn annotation(&self, key: &str) -> Option<&str> {
        self.annotations
            .get(key)
            .map(|value| value.trim())
            .filter(|value| !value.is_empty())
    }
}

/// The Node as the API sends it (`k8s.io/api/core/v1`).
mod wire {
    use super::{BTreeMap, Deserialize, NodeAddress, NodeView};

    #[derive(Deserialize)]
    pub(super) struct Node {
        metadata: Metadata,
        #[serde(default)]
        spec: Spec,
        #[serde(default)]
        status: Status,
    }

    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Metadata {
        name: String,
        #[serde(default)]
        resource_version: String,
        #[serde(default)]
        annotations: BTreeMap<String, String>,
    }

    #[derive(Default, Deserialize)]
    struct Spec {
        #[serde(default, rename = "podCIDRs")]
        pod_cidrs: Vec<String>,
        #[serde(default)]
        taints: Vec<Taint>,
    }

    #[derive(Deserialize)]
    struct Taint {
        key: String,
    }

    #[derive(Default, Deserialize)]
    struct Status {
        #[serde(default)]
        addresses: Vec<NodeAddress>,
        #[serde(default)]
        conditions: Vec<Condition>,
    }

    #[derive(Deserialize)]
    struct Condition {
        #[serde(rename = "type")]
        kind: String,
        status: String,
        #[serde(default)]
        reason: String,
    }

    impl From<Node> for NodeView {
        fn from(node: Node) -> Self {
            let Node {
                metadata,
                spec,
                status,
            } = node;
            let condition = |kind| {
                status
                    .conditions
                    .iter()
                    .find(|condition| condition.kind == kind)
            };
            let is_ready = condition("Ready").and_then(|ready| match ready.status.as_str() {
                "True" => Some(true),
                "False" => Some(false),
                _ => None,
            });
            let network_reason =
                condition("NetworkUnavailable").map(|network| network.reason.clone());
            Self {
                name: metadata.name,
                resource_version: metadata.resource_version,
                annotations: metadata.annotations,
                taints: spec.taints.into_iter().map(|taint| taint.key).collect(),
                pod_cidrs: spec
                    .pod_cidrs
                    .iter()
                    .filter_map(|cidr| cidr.parse().ok())
                    .collect(),
                is_ready,
                network_reason,
                addresses: status.addresses,
            }
        }
    }
}

/// Reads this node's Node. A kubelet may `get` its own and no other.
///
/// # Errors
/// [`ClusterError`]; [`ClusterError::NotFound`] before the kubelet has registered.
pub async fn read(connection: &Connection) -> Result<NodeView, ClusterError> {
    let name = connection.node_name();
    let request = Request::new(NODES).get(name, &GetParams::default());
    connection.ask(&format!("read Node {name}"), request).await
}

/// Changes annotations of this node's Node, if it still is the version that `node` is. Where it is not, it is read
/// again, `changes` are worked out again, and it is tried once more. The Node as it then is; without changes
/// nothing is sent. `NodeRestriction` lets a kubelet patch its own Node, and the annotations are not among what it
/// keeps it from.
///
/// # Errors
/// [`ClusterError`]; [`ClusterError::Conflict`] if someone else was faster twice.
pub async fn annotate(
    connection: &Connection,
    node: &NodeView,
    changes: impl Fn(&NodeView) -> BTreeMap<String, String>,
) -> Result<NodeView, ClusterError> {
    match patch(connection, node, &changes(node)).await {
        Err(ClusterError::Conflict { .. }) => {
            let node = read(connection).await?;
            patch(connection, &node, &changes(&node)).await
        }
        other => other,
    }
}

/// A JSON merge patch (RFC 7396); the resource version in it makes the server refuse it for any other.
async fn patch(
    connection: &Connection,
    node: &NodeView,
    annotations: &BTreeMap<String, String>,
) -> Result<NodeView, ClusterError> {
    if annotations.is_empty() {
        return Ok(node.clone());
    }
    let name = connection.node_name();
    let body = Patch::Merge(json!({
        "metadata": {
            "resourceVersion": node.resource_version,
            "annotations": annotations,
        },
    }));
    let parameters = PatchParams {
        field_manager: Some(FIELD_MANAGER.to_owned()),
        ..PatchParams::default()
    };
    let request = Request::new(NODES).patch(name, &parameters, &body);
    connection
        .ask(&format!("annotate Node {name}"), request)
        .await
}

/// The node address that the controller wrote; none where it wrote none.
///
/// # Errors
/// [`SettingsError`] if the annotation is something else.
pub fn annotated_address(node: &NodeView) -> Result<Option<DualAddress>, SettingsError> {
    node.annotation(NODE_ADDRESS_ANNOTATION)
        .map(|text| DualAddress::parse("annotation xkub.io/node-address", text))
        .transpose()
}

/// The Node's addresses of type `InternalIP`, in its order.
pub fn internal_ips(node: &NodeView) -> impl Iterator<Item = IpAddr> {
    node.addresses
        .iter()
        .filter(|address| address.kind == "InternalIP")
        .filter_map(|address| address.address.parse().ok())
}

/// The first `InternalIP` of each family: the one that the API server and the CNIs use.
#[must_use]
pub fn internal_address(node: &NodeView) -> DualAddress {
    let mut both = DualAddress::default();
    for address in internal_ips(node) {
        match address {
            IpAddr::V4(v4) => _ = both.v4.get_or_insert(v4),
            IpAddr::V6(v6) => _ = both.v6.get_or_insert(v6),
        }
    }
    both
}

/// Whether the Node shows a node address: it is the first `InternalIP` of each family that it has. False for an
/// address without any family.
#[must_use]
pub fn shows(node: &NodeView, address: &DualAddress) -> bool {
    let shown = internal_address(node);
    address.iter().next().is_some()
        && address.v4.is_none_or(|v4| shown.v4 == Some(v4))
        && address.v6.is_none_or(|v6| shown.v6 == Some(v6))
}

/// Why a Node's `InternalIP` says nothing about where the node is.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NotFromProvider {
    /// The kubelet sets the addresses itself.
    #[error(
        "the kubelet runs without --cloud-provider=external, so the Node's addresses are its own"
    )]
    NotExternal,
    /// The provider has not come by.
    #[error("the cloud provider has not initialised this Node yet (taint {UNINITIALIZED_TAINT})")]
    Uninitialized,
    /// The provider may only agree with what it is told.
    #[error(
        "the kubelet runs with --node-ip={0}, which the cloud provider can only confirm; leave --node-ip to it"
    )]
    Echo(String),
    /// There is no `InternalIP`.
    #[error("the cloud provider has set no InternalIP")]
    Nothing,
}

/// The node address as an external cloud provider set it. `is_external`: whether the kubelet runs with
/// `--cloud-provider=external`.
///
/// Such a kubelet leaves a Node's addresses alone once there are some. But if it has a `--node-ip` too, it sets
/// them when it registers, and the provider keeps only what is equal to it, or keeps what it was: after the node
/// moved that is the old address, so it is no answer (`GetNodeAddressesFromNodeIP`, `k8s.io/cloud-provider`).
///
/// # Errors
/// [`NotFromProvider`], one variant per cause.
pub fn cloud_provider_address(
    node: &NodeView,
    is_external: bool,
) -> Result<DualAddress, NotFromProvider> {
    if !is_external {
        return Err(NotFromProvider::NotExternal);
    }
    if node.taints.iter().any(|key| key == UNINITIALIZED_TAINT) {
        return Err(NotFromProvider::Uninitialized);
    }
    if let Some(told) = node.annotation(PROVIDED_NODE_IP_ANNOTATION) {
        return Err(NotFromProvider::Echo(told.to_owned()));
    }
    let address = internal_address(node);
    if address == DualAddress::default() {
        return Err(NotFromProvider::Nothing);
    }
    Ok(address)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::cluster::testing::{self, Answer, Credentials, Server, node_json};

    #[test]
    fn of_a_node_what_matters_is_kept() {
        // As k0s 1.36 registers a worker whose kubelet has no --node-ip, shortened.
        let node: NodeView = serde_json::from_value(json!({
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": "worker-1",
                "uid": "2f8a0a3e-4f3b-4d0e-8a44-0a4e1d1f6b7c",
                "resourceVersion": "1234",
                "creationTimestamp": "2026-11-30T12:00:00Z",
                "labels": {"kubernetes.io/hostname": "worker-1"},
                "annotations": {"xkub.io/node-address": "10.244.1.5", "node.alpha.kubernetes.io/ttl": "0"},
            },
            "spec": {
                "podCIDR": "10.200.1.0/24",
                "podCIDRs": ["10.200.1.0/24", "fd00:200:1::/64", "nonsense"],
                "taints": [{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}],
            },
            "status": {
                "addresses": [
                    {"type": "InternalIP", "address": "10.0.2.2"},
                    {"type": "Hostname", "address": "worker-1"},
                ],
                "capacity": {"cpu": "2"},
                "conditions": [
                    {"type": "MemoryPressure", "status": "False", "reason": "KubeletHasSufficientMemory"},
                    {"type": "NetworkUnavailable", "status": "False", "reason": "FlannelIsUp"},
                    {"type": "Ready", "status": "True", "reason": "KubeletReady"},
                ],
                "images": [{"names": ["quay.io/k0sproject/kube-router:v2.6.0"], "sizeBytes": 1}],
                "nodeInfo": {"kubeletVersion": "v1.36.3+k0s"},
            },
        }))
        .unwrap();
        assert_eq!(node.name, "worker-1");
        assert_eq!(node.resource_version, "1234");
        assert_eq!(node.annotation(NODE_ADDRESS_ANNOTATION), Some("10.244.1.5"));
        assert_eq!(node.taints, ["node.kubernetes.io/not-ready"]);
        assert_eq!(
            internal_ips(&node).collect::<Vec<_>>(),
            [IpAddr::from([10, 0, 2, 2])]
        );
        let cidrs: Vec<_> = node.pod_cidrs.iter().map(ToString::to_string).collect();
        assert_eq!(cidrs, ["10.200.1.0/24", "fd00:200:1::/64"]);
        assert_eq!(node.is_ready, Some(true));
        assert_eq!(node.network_reason.as_deref(), Some("FlannelIsUp"));
    }

    #[test]
    fn the_controllers_annotation_is_an_address_or_an_error() {
        let parse = |text: &str| {
            annotated_address(&testing::node(&json!({NODE_ADDRESS_ANNOTATION: text}), &[]))
                .map(|found| found.map(|both| both.iter().map(|each| each.to_string()).collect()))
                .map_err(|error| error.to_string())
        };
        let good = |addresses: &[&str]| -> Result<Option<Vec<String>>, String> {
            Ok(Some(
                addresses.iter().map(|&each| each.to_owned()).collect(),
            ))
        };
        assert_eq!(parse("10.244.1.5"), good(&["10.244.1.5"]));
        assert_eq!(parse("fd00:10:244::5"), good(&["fd00:10:244::5"]));
        assert_eq!(
            parse("10.244.1.5, fd00:10:244::5"),
            good(&["10.244.1.5", "fd00:10:244::5"])
        );
        assert_eq!(parse(" "), Ok(None));
        assert!(annotated_address(&NodeView::default()).unwrap().is_none());
        for bad in [
            "10.244.1",
            "10.244.1.5/32",
            "10.244.1.5,10.244.1.6",
            "10.244.1.5,",
            "worker-1",
        ] {
            let error = parse(bad).unwrap_err();
            assert!(error.contains("annotation xkub.io/node-address"), "{error}");
        }
    }

    #[test]
    fn a_node_shows_its_address_when_it_is_the_first_of_its_family() {
        let table: [(&[&str], &str, bool); 8] = [
            (&["10.0.2.2"], "10.244.1.5", false),
            (&["10.244.1.5"], "10.244.1.5", true),
            (&["10.0.2.2", "10.244.1.5"], "10.244.1.5", false),
            (&["10.244.1.5", "fd00::5"], "10.244.1.5", true),
            (&["10.244.1.5"], "10.244.1.5,fd00::5", false),
            (&["fd00::5", "10.244.1.5"], "10.244.1.5,fd00::5", true),
            (&["worker-1", "10.244.1.5"], "10.244.1.5", true),
            (&[], "10.244.1.5", false),
        ];
        for (shown, address, expected) in table {
            let address = DualAddress::parse("", address).unwrap();
            assert_eq!(
                shows(&testing::node(&json!({}), shown), &address),
                expected,
                "{shown:?} {address:?}"
            );
        }
        assert!(!shows(
            &testing::node(&json!({}), &[]),
            &DualAddress::default()
        ));
    }

    #[test]
    fn a_cloud_providers_address_counts_where_nobody_told_it() {
        let told = json!({PROVIDED_NODE_IP_ANNOTATION: "10.0.2.2"});
        let address = DualAddress::parse("", "10.244.1.5,fd00::5").unwrap();
        let shown = ["10.244.1.5", "fd00::5", "10.244.1.6"];
        let nowhere: &[&str] = &[];
        let table = [
            (json!({}), shown.as_slice(), "", true, Ok(address)),
            (
                json!({}),
                &shown,
                "",
                false,
                Err(NotFromProvider::NotExternal),
            ),
            (
                json!({}),
                &shown,
                UNINITIALIZED_TAINT,
                true,
                Err(NotFromProvider::Uninitialized),
            ),
            (
                told,
                &shown,
                "",
                true,
                Err(NotFromProvider::Echo("10.0.2.2".to_owned())),
            ),
            (json!({}), nowhere, "", true, Err(NotFromProvider::Nothing)),
        ];
        for (annotations, shown, taint, is_external, expected) in table {
            let mut node = testing::node(&annotations, shown);
            node.taints.push(taint.to_owned());
            assert_eq!(cloud_provider_address(&node, is_external), expected);
        }
    }

    /// Adds one annotation, whose value tells for which version it was worked out.
    fn mark(node: &NodeView) -> BTreeMap<String, String> {
        [("a".to_owned(), node.resource_version.clone())].into()
    }

    fn read_version(version: &str) -> Answer {
        Answer::Json(200, node_json(version, &json!({}), &[]))
    }

    fn patch_body(version: &str) -> Value {
        json!({"metadata": {"resourceVersion": version, "annotations": {"a": version}}})
    }

    async fn annotate_against(
        answers: Vec<Answer>,
    ) -> (Result<NodeView, ClusterError>, Vec<(String, Value)>) {
        let server = Server::start(answers).await;
        let credentials = Credentials::new(server.address, "system:node:worker-1");
        let connection = credentials.cluster().connection().await.unwrap();
        let node = testing::node(&json!({}), &[]);
        let result = annotate(&connection, &node, mark).await;
        (result, server.asked())
    }

    const PATCH: &str = "PATCH /api/v1/nodes/worker-1?&fieldManager=xkub-agent";
    const GET: &str = "GET /api/v1/nodes/worker-1";

    #[tokio::test]
    async fn a_conflict_is_worked_out_anew_once() {
        let (result, asked) = annotate_against(vec![read_version("2")]).await;
        assert_eq!(result.unwrap().resource_version, "2");
        assert_eq!(asked, [(PATCH.to_owned(), patch_body("1"))]);

        let conflict = || Answer::failure(409, "the object has been modified");
        let (result, asked) =
            annotate_against(vec![conflict(), read_version("5"), read_version("6")]).await;
        assert_eq!(result.unwrap().resource_version, "6");
        let expected = [
            (PATCH.to_owned(), patch_body("1")),
            (GET.to_owned(), Value::Null),
            (PATCH.to_owned(), patch_body("5")),
        ];
        assert_eq!(asked, expected);

        let (result, asked) =
            annotate_against(vec![conflict(), read_version("5"), conflict()]).await;
        assert!(
            matches!(result, Err(ClusterError::Conflict { .. })),
            "{result:?}"
        );
        assert_eq!(asked.len(), 3);

        let (result, asked) = annotate_against(vec![Answer::failure(403, "no")]).await;
        assert!(
            matches!(result, Err(ClusterError::Forbidden { .. })),
            "{result:?}"
        );
        assert_eq!(asked.len(), 1);
    }

    #[tokio::test]
    async fn nothing_to_change_sends_nothing() {
        let server = Server::start(vec![]).await;
        let credentials = Credentials::new(server.address, "system:node:worker-1");
        let connection = credentials.cluster().connection().await.unwrap();
        let node = testing::node(&json!({}), &[]);
        let after = annotate(&connection, &node, |_| BTreeMap::new())
            .await
            .unwrap();
        assert_eq!(after, node);
        assert_eq!(server.asked(), []);
    }
}
