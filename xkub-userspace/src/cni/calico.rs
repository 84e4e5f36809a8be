//! Calico: detects the node's address when it starts and now and then, by a method of its configuration. That is
//! read on the Node, and never changed.

use std::net::IpAddr;

use crate::{cluster::node::NodeView, datapath::settings::DualAddress};

/// The address that peers send to, with a prefix length or without. Only with the Kubernetes datastore.
const IPV4: &str = "projectcalico.org/IPv4Address";
const IPV6: &str = "projectcalico.org/IPv6Address";
const PREFIX: &str = "projectcalico.org/";

/// Whether Calico has been on the Node.
#[must_use]
pub fn is_there(node: &NodeView) -> bool {
    node.network_reason.as_deref() == Some("CalicoIsUp")
        || node.annotations.keys().any(|key| key.starts_with(PREFIX))
}

/// What to change in Calico so that it advertises `address`, one line for each family in which it does not.
///
/// `kubernetes-internal-ip` takes the Node's `InternalIP`
/// (<https://docs.tigera.io/calico/latest/networking/ipam/ip-autodetection>). Which method is set is in the `DaemonSet`,
/// which a kubelet may not read; so what came of it is compared, and where that can't be seen the method is named.
#[must_use]
pub fn advice(node: &NodeView, address: &DualAddress) -> Vec<String> {
    if !is_there(node) {
        return Vec::new();
    }
    let advertised = [IPV4, IPV6].map(|key| node.annotation(key));
    if advertised == [None, None] {
        return vec![format!(
            "Calico's address for this node is not on the Node object; see that its method is \
             kubernetes-internal-ip: {}",
            how("4", "IP")
        )];
    }
    let [v4, v6] = advertised;
    [
        (v4, address.v4.map(IpAddr::V4), how("4", "IP")),
        (v6, address.v6.map(IpAddr::V6), how("6", "IP6")),
    ]
    .into_iter()
    .filter_map(|(advertised, wanted, how)| {
        let (advertised, wanted) = (advertised?, wanted?);
        let bare = advertised.split_once('/').map_or(advertised, |(bare, _)| bare);
        (bare.parse() != Ok(wanted)).then(|| {
            format!(
                "Calico advertises {advertised} as this node's address, and the node address is {wanted}: {how}"
            )
        })
    })
    .collect()
}

fn how(family: &str, variable: &str) -> String {
    format!(
        "set {variable}_AUTODETECTION_METHOD=kubernetes-internal-ip on the DaemonSet calico-node, or with the \
         operator nodeAddressAutodetectionV{family}.kubernetes: NodeInternalIP in the Installation"
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cluster::testing::node;

    #[test]
    fn an_address_that_is_not_the_nodes_is_reported_with_the_method() {
        let table = [
            (json!({}), "10.244.1.5", vec![]),
            (json!({IPV4: "10.244.1.5"}), "10.244.1.5", vec![]),
            (json!({IPV4: "10.244.1.5/32"}), "10.244.1.5", vec![]),
            (
                json!({IPV4: "10.0.2.2/24", "projectcalico.org/IPv4VXLANTunnelAddr": "10.200.1.1"}),
                "10.244.1.5",
                vec![
                    "10.0.2.2/24 as this node's address, and the node address is 10.244.1.5: set IP_AUTO",
                ],
            ),
            (
                json!({IPV4: "10.0.2.2/24", IPV6: "fd10:0:2::2/120"}),
                "10.244.1.5,fd00:10:244::5",
                vec![
                    "10.0.2.2/24",
                    "set IP6_AUTODETECTION_METHOD=kubernetes-internal-ip",
                ],
            ),
            // The same address, written otherwise.
            (
                json!({IPV6: "fd00:10:244:0::5/128"}),
                "10.244.1.5,fd00:10:244::5",
                vec![],
            ),
            // Garbage is no address of the node.
            (
                json!({IPV4: "autodetect"}),
                "10.244.1.5",
                vec!["autodetect"],
            ),
            // A family that one side does not have.
            (json!({IPV4: "10.0.2.2/24"}), "fd00:10:244::5", vec![]),
            // Calico with etcd: only its tunnel address, or nothing.
            (
                json!({"projectcalico.org/IPv4VXLANTunnelAddr": "10.200.1.1"}),
                "10.244.1.5",
                vec!["not on the Node object; see that its method is kubernetes-internal-ip"],
            ),
        ];
        for (annotations, address, expected) in table {
            let address = DualAddress::parse("", address).unwrap();
            let advice = advice(&node(&annotations, &["10.244.1.5"]), &address);
            assert_eq!(advice.len(), expected.len(), "{annotations}: {advice:?}");
            for (line, part) in advice.iter().zip(expected) {
                assert!(line.contains(part), "{line}");
            }
        }
    }
}
