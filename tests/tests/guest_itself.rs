//! The guest lab keeps its promises, and shows the faults that xkub is for.

use std::time::Duration;

use xkub_tests::guest::{Lab, Series};
use xkub_tests::masquerade::{GATEWAY_V4, NODE_V4, Overlay};

#[test]
fn a_guest_is_a_node_behind_masquerade() {
    let lab = Lab::new(Series::V6_12).unwrap();
    let guest = &lab.node(0).guest;

    // Status and both outputs come as they are, whatever they look like.
    let output = guest
        .run("printf '\\n:1 0 0 0\\n:ready\\n'; echo no >&2; exit 7")
        .unwrap();
    assert_eq!(output.code(), Some(7));
    assert_eq!(output.stdout, "\n:1 0 0 0\n:ready\n");
    assert_eq!(output.stderr, "no\n");
    let long = guest.check("seq 20000").unwrap();
    assert_eq!(long.lines().count(), 20_000);
    assert!(guest.run("false").unwrap().success().is_err());

    // One that hangs is killed, and the next one is served.
    let hung = guest
        .run_within("echo begun; sleep 1000", Duration::from_secs(1))
        .unwrap();
    assert_eq!(hung.code(), Some(137));
    assert_eq!(hung.stdout, "begun\n");

    // In the background, too.
    let background = guest
        .spawn("echo it\\'s \"$((1 + 1))\"; sleep 1000")
        .unwrap();
    background
        .wait_output("it's 2", Duration::from_secs(20))
        .unwrap();
    background.signal("KILL").unwrap();
    drop(background);
    let ended = guest
        .spawn("exit 3")
        .unwrap()
        .wait(Duration::from_secs(20))
        .unwrap();
    assert_eq!(ended.code(), Some(3));

    // Both believe to be 10.0.2.2 and reach the outside; outside they are their pods.
    for node in lab.nodes() {
        node.guest
            .check(&format!("ping -c 1 -W 5 {GATEWAY_V4}"))
            .unwrap();
        let routed = node.guest.check("ip route get 192.0.2.10").unwrap();
        assert!(routed.contains("src 10.0.2.2"), "{routed}");
        // Nobody but xkub mounts it.
        node.guest.check("! grep -q ' bpf ' /proc/mounts").unwrap();
    }
    assert!(guest.console().unwrap().is_empty() || guest.console().unwrap().is_ascii());

    // The fault: a tunnel from the node address is dead, and alive with xkub.
    for node in lab.nodes() {
        let address = NODE_V4[node.number() - 1];
        node.guest
            .ip(&format!("addr add {address}/32 dev lo"))
            .unwrap();
    }
    let overlay = Overlay {
        checksum: true,
        ..Overlay::V4
    };
    lab.add_overlay(&overlay).unwrap();
    let ping = format!("ping -c 2 -i 0.2 -W 1 {}", overlay.address_of(2));
    assert!(guest.run(&ping).unwrap().success().is_err());
    lab.attach("--no-address").unwrap();
    guest
        .check(&format!("ping -c 2 -i 0.2 -W 5 {}", overlay.address_of(2)))
        .unwrap();
}
