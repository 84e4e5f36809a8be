//! Cilium: takes the Node's `InternalIP`, and only when its agent starts.

use crate::{
    cluster::node::{NodeView, shows},
    datapath::settings::DualAddress,
};

/// What the annotations begin with that an agent with `annotate-k8s-node` writes.
const PREFIX: &str = "network.cilium.io/";
const NOT_READY_TAINT: &str = "node.cilium.io/agent-not-ready";

/// Whether Cilium is on the Node, or is awaited there.
#[must_use]
pub fn is_there(node: &NodeView) -> bool {
    node.network_reason.as_deref() == Some("CiliumIsUp")
        || node.taints.iter().any(|key| key == NOT_READY_TAINT)
        || node.annotations.keys().any(|key| key.starts_with(PREFIX))
}

/// What is still to come while the Node does not show `address`: which address the agent has read can't be seen on
/// the Node, so there is nothing to say afterwards.
#[must_use]
pub fn advice(node: &NodeView, address: &DualAddress) -> Option<String> {
    (is_there(node) && !shows(node, address)).then(|| {
        "Cilium reads the node address only when its agent starts: once the Node shows it, this node's Cilium pod \
         is to be deleted: kubectl delete pod"
            .to_owned()
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cluster::testing::node;

    #[test]
    fn until_the_node_shows_the_address() {
        let address = DualAddress::parse("", "10.244.1.5").unwrap();
        for (shown, is_advised) in [("10.0.2.2", true), ("10.244.1.5", false)] {
            let mut node = node(&json!({}), &[shown]);
            assert_eq!(advice(&node, &address), None);
            node.taints.push(NOT_READY_TAINT.to_owned());
            assert_eq!(advice(&node, &address).is_some(), is_advised);
        }
    }
}
