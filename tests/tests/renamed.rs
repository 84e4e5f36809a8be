//! An uplink that gets another name keeps its datapath, and has one and not two afterwards.

use serde_json::Value;
use xkub_tests::Masquerade;
use xkub_tests::masquerade::{GATEWAY_V4, Overlay, UPLINK};
use xkub_tests::traffic::Ping;

#[test]
fn attach_takes_over_what_hangs_on_the_uplink_under_its_old_name() {
    for hook in ["auto", "clsact", "xdp"] {
        let lab = Masquerade::builder().build().unwrap();
        lab.add_overlay(&Overlay::V4).unwrap();
        lab.attach(&["--ingress-hook", hook]).unwrap();
        let node = lab.node(0);
        let ping = || {
            let peer = Overlay::V4.address(lab.node(1));
            assert!(
                Ping::to(peer).run(&node.guest).unwrap().complete(),
                "{hook}"
            );
        };
        ping();
        node.guest
            .ip(&format!(
                "link set {UPLINK} down\nlink set {UPLINK} name uplink.7\nlink set uplink.7 up\n\
                 route add default via {GATEWAY_V4} dev uplink.7\n"
            ))
            .unwrap();
        let attach = [
            "datapath",
            "attach",
            "--uplink",
            "uplink.7",
            "--ingress-hook",
            hook,
        ];
        let address = node.node_v4().to_string();
        node.xkub(&[&attach[..], &["--node-address", &address]].concat())
            .unwrap()
            .success()
            .unwrap();
        ping();
        // Without a name: there is one datapath.
        let show = node
            .xkub(&["datapath", "show", "--output", "json"])
            .unwrap();
        let show: Value = serde_json::from_str(&show.success().unwrap()).unwrap();
        assert_eq!(show.get("uplink"), Some(&Value::from("uplink.7")));
        for (direction, programs) in [("ingress", 1), ("egress", 2)] {
            let chain = show.pointer(&format!("/chain/{direction}"));
            let chain = chain.and_then(Value::as_array).unwrap();
            assert_eq!(chain.len(), programs, "{hook} {show}");
        }
        node.xkub(&["datapath", "detach"])
            .unwrap()
            .success()
            .unwrap();
        let left = node.guest.check(["ls", "/sys/fs/bpf"]).unwrap();
        assert!(!left.contains("xkub"), "{left}");
    }
}
