//! flannel: takes the first address of the default route's interface, always the guest address, unless annotations
//! of the Node say otherwise.

use std::collections::BTreeMap;

use crate::{cluster::node::NodeView, datapath::settings::DualAddress};

/// "true" on the Node of a flannel that keeps its leases there; peers look at no other Node.
const SUBNET_MANAGER: &str = "flannel.alpha.coreos.com/kube-subnet-manager";
const BACKEND: &str = "flannel.alpha.coreos.com/backend-type";
const BACKEND_V6_DATA: &str = "flannel.alpha.coreos.com/backend-v6-data";
const PUBLIC_IP: &str = "flannel.alpha.coreos.com/public-ip";
const PUBLIC_IP_OVERWRITE: &str = "flannel.alpha.coreos.com/public-ip-overwrite";
const PUBLIC_IPV6: &str = "flannel.alpha.coreos.com/public-ipv6";
const PUBLIC_IPV6_OVERWRITE: &str = "flannel.alpha.coreos.com/public-ipv6-overwrite";

/// Whether flannel has taken its lease on the Node, or is about to.
#[must_use]
pub fn is_there(node: &NodeView) -> bool {
    node.annotation(SUBNET_MANAGER) == Some("true")
}

/// The annotations that make flannel advertise `address`; none if it does, and none before flannel is there.
///
/// `public-ip` is what the peers send to: they follow a change of it at once, without a restart. But flannel writes
/// it again when it starts, from `public-ip-overwrite` if that is there
/// (<https://github.com/flannel-io/flannel/blob/master/Documentation/kubernetes.md>). So it takes both. IPv6 only
/// where flannel has a lease for it: else the annotation would announce a tunnel that is not there.
#[must_use]
pub fn changes(node: &NodeView, address: &DualAddress) -> BTreeMap<String, String> {
    let mut changes = BTreeMap::new();
    if !is_there(node) {
        return changes;
    }
    let v4 = address
        .v4
        .filter(|_| node.annotation(PUBLIC_IP).is_some())
        .map(|v4| ([PUBLIC_IP, PUBLIC_IP_OVERWRITE], v4.to_string()));
    let has_v6 = [PUBLIC_IPV6, BACKEND_V6_DATA]
        .into_iter()
        .any(|key| node.annotation(key).is_some());
    let v6 = address
        .v6
        .filter(|_| has_v6)
        .map(|v6| ([PUBLIC_IPV6, PUBLIC_IPV6_OVERWRITE], v6.to_string()));
    for (keys, value) in v4.into_iter().chain(v6) {
        for key in keys {
            if node.annotation(key) != Some(&value) {
                changes.insert(key.to_owned(), value.clone());
            }
        }
    }
    changes
}

/// What no annotation makes right.
#[must_use]
pub fn advice(node: &NodeView) -> Option<String> {
    (node.annotation(BACKEND) == Some("host-gw")).then(|| {
        "flannel's backend is host-gw, which needs the nodes on one link, and VMs on masquerade are not: \
         use the backend vxlan"
            .to_owned()
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::cluster::testing::node;

    const V4: [(&str, &str); 2] = [
        (PUBLIC_IP, "10.244.1.5"),
        (PUBLIC_IP_OVERWRITE, "10.244.1.5"),
    ];
    const V6: [(&str, &str); 2] = [
        (PUBLIC_IPV6, "fd00:10:244::5"),
        (PUBLIC_IPV6_OVERWRITE, "fd00:10:244::5"),
    ];

    type Pairs = Vec<(&'static str, &'static str)>;

    fn with(more: &Value) -> NodeView {
        let mut annotations = json!({
            SUBNET_MANAGER: "true",
            BACKEND: "vxlan",
            "flannel.alpha.coreos.com/backend-data": r#"{"VNI":1,"VtepMAC":"8e:5b:0e:17:3c:9a"}"#,
        });
        if let (Some(all), Some(more)) = (annotations.as_object_mut(), more.as_object()) {
            all.extend(more.clone());
        }
        node(&annotations, &["10.0.2.2"])
    }

    #[test]
    fn both_annotations_of_a_family_that_flannel_has() {
        let guest = json!({PUBLIC_IP: "10.0.2.2"});
        let dual = json!({PUBLIC_IP: "10.0.2.2", PUBLIC_IPV6: "fd10:0:2::2"});
        let both = [V4, V6].concat();
        let table: [(NodeView, &str, Pairs); 10] = [
            // No flannel, or another kind of it.
            (node(&json!({}), &["10.0.2.2"]), "10.244.1.5", vec![]),
            (node(&guest, &["10.0.2.2"]), "10.244.1.5", vec![]),
            // Not before flannel has written its own.
            (with(&json!({})), "10.244.1.5", vec![]),
            (with(&guest), "10.244.1.5", V4.to_vec()),
            // As flannel leaves it when it starts without the overwrite, and with one that was right before.
            (
                with(&json!({PUBLIC_IP: "10.0.2.2", PUBLIC_IP_OVERWRITE: "10.244.1.5"})),
                "10.244.1.5",
                vec![(PUBLIC_IP, "10.244.1.5")],
            ),
            (
                with(&json!({PUBLIC_IP: "10.244.1.5"})),
                "10.244.1.5",
                vec![(PUBLIC_IP_OVERWRITE, "10.244.1.5")],
            ),
            // Moved.
            (
                with(&json!({PUBLIC_IP: "10.244.9.9", PUBLIC_IP_OVERWRITE: "10.244.9.9"})),
                "10.244.1.5",
                V4.to_vec(),
            ),
            (with(&dual), "10.244.1.5,fd00:10:244::5", both.clone()),
            // An address of a family that flannel does not have, and the other way round.
            (with(&guest), "10.244.1.5,fd00:10:244::5", V4.to_vec()),
            (with(&dual), "fd00:10:244::5", V6.to_vec()),
        ];
        for (node, address, expected) in table {
            let address = DualAddress::parse("", address).unwrap();
            let changes = changes(&node, &address);
            let expected: BTreeMap<_, _> = expected
                .into_iter()
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .collect();
            assert_eq!(changes, expected, "{node:?}");
        }
    }

    #[test]
    fn host_gw_can_not_be_made_right() {
        assert_eq!(advice(&with(&json!({}))), None);
        assert!(advice(&with(&json!({BACKEND: "host-gw"}))).is_some());
    }
}
