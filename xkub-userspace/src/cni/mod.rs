//! What a CNI advertises as this node's address, and how that is kept right.
//!
//! kube-router takes the Node's `InternalIP` and follows it, so it needs no file here.

use std::{collections::BTreeMap, net::IpAddr};

use crate::{cluster::node::NodeView, datapath::settings::DualAddress};

pub mod calico;
pub mod cilium;
pub mod flannel;

/// A CNI that has an idea of its own of this node's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cni {
    /// flannel, that of k3s included.
    Flannel,
    /// Calico.
    Calico,
    /// Cilium.
    Cilium,
}

/// What is to be done so that the CNI has the node address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// Annotations of our own Node are to be set.
    Patch {
        /// The annotations and their values.
        annotations: BTreeMap<String, String>,
        /// What for, for a plan and a log.
        why: String,
    },
    /// Something that only a person, or the controller, can or should do.
    Advice(String),
}

/// The CNIs that have left a trace on the Node, in the order of [`Cni`]. Both the annotations that a CNI writes and
/// the reason of the condition `NetworkUnavailable` count, because not every CNI is set up to write both. More than
/// one where one replaces another.
#[must_use]
pub fn detect(node: &NodeView) -> Vec<Cni> {
    [
        (Cni::Flannel, flannel::is_there(node)),
        (Cni::Calico, calico::is_there(node)),
        (Cni::Cilium, cilium::is_there(node)),
    ]
    .into_iter()
    .filter_map(|(cni, is_there)| is_there.then_some(cni))
    .collect()
}

/// What there is to do so that every CNI on the Node advertises `address`. A CNI that appears later changes the
/// Node, so looking at every change of it is enough.
#[must_use]
pub fn look(node: &NodeView, address: &DualAddress) -> Vec<Finding> {
    let mut findings = Vec::new();
    for cni in detect(node) {
        match cni {
            Cni::Flannel => {
                let annotations = flannel::changes(node, address);
                if !annotations.is_empty() {
                    findings.push(Finding::Patch {
                        why: format!("flannel shall advertise {}", list(address)),
                        annotations,
                    });
                }
                findings.extend(flannel::advice(node).map(Finding::Advice));
            }
            Cni::Calico => {
                findings.extend(
                    calico::advice(node, address)
                        .into_iter()
                        .map(Finding::Advice),
                );
            }
            Cni::Cilium => {
                findings.extend(cilium::advice(node, address).map(Finding::Advice));
            }
        }
    }
    findings
}

/// `A`, `A6` or `A and A6`.
fn list(address: &DualAddress) -> String {
    let each: Vec<_> = address
        .iter()
        .map(|each: IpAddr| each.to_string())
        .collect();
    each.join(" and ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::testing::node;

    #[test]
    fn a_cni_is_known_by_its_annotations_or_its_condition() {
        let flannel = serde_json::json!({"flannel.alpha.coreos.com/kube-subnet-manager": "true"});
        let calico = serde_json::json!({"projectcalico.org/IPv4Address": "10.0.2.2/24"});
        let table = [
            (serde_json::json!({}), "", vec![]),
            (serde_json::json!({}), "RouteCreated", vec![]),
            (flannel.clone(), "", vec![Cni::Flannel]),
            (serde_json::json!({}), "CalicoIsUp", vec![Cni::Calico]),
            (calico, "CalicoIsUp", vec![Cni::Calico]),
            (serde_json::json!({}), "CiliumIsUp", vec![Cni::Cilium]),
            (
                serde_json::json!({"network.cilium.io/ipv4-cilium-host": "10.244.1.2"}),
                "",
                vec![Cni::Cilium],
            ),
            // Cilium replaces flannel.
            (flannel, "CiliumIsUp", vec![Cni::Flannel, Cni::Cilium]),
        ];
        for (annotations, reason, expected) in table {
            let mut node = node(&annotations, &["10.0.2.2"]);
            node.network_reason = Some(reason.to_owned());
            assert_eq!(detect(&node), expected, "{annotations} {reason}");
        }
    }

    #[test]
    fn flannel_is_patched_once_and_others_never() {
        let address = DualAddress::parse("", "10.244.1.5").unwrap();
        let mut node = node(
            &serde_json::json!({
                "flannel.alpha.coreos.com/kube-subnet-manager": "true",
                "flannel.alpha.coreos.com/backend-type": "vxlan",
                "flannel.alpha.coreos.com/public-ip": "10.0.2.2",
            }),
            &["10.0.2.2"],
        );
        let findings = look(&node, &address);
        let [Finding::Patch { annotations, why }] = findings.as_slice() else {
            panic!("{findings:?}");
        };
        assert_eq!(why, "flannel shall advertise 10.244.1.5");
        node.annotations.extend(annotations.clone());
        assert_eq!(look(&node, &address), []);

        node.annotations = [("projectcalico.org/IPv4Address", "10.0.2.2/24")]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into();
        let findings = look(&node, &address);
        assert!(
            matches!(findings.as_slice(), [Finding::Advice(_)]),
            "{findings:?}"
        );
    }
}
