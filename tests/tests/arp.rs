//! A guest whose very first packet comes from the node address reaches its gateway.

use xkub_tests::masquerade::{
    CLIENT_V4, CLIENT_V6, GUEST_V4, Masquerade, NODE_V4, NODE_V6, UPLINK,
};
use xkub_tests::traffic::{Capture, Frame, Ping};
use xkub_tests::wait::PATIENCE;

/// The sender's protocol address in an ARP packet over Ethernet, if it is one.
fn arp_sender(frame: &Frame) -> Option<[u8; 4]> {
    (frame.bytes.get(12..14)? == [8, 6])
        .then(|| frame.bytes.get(28..32)?.try_into().ok())
        .flatten()
}

#[test]
fn first_packet_ever_from_the_node_address() {
    let lab = Masquerade::builder().build().unwrap();
    let node = lab.node(0);
    node.attach(&[]).unwrap();
    let neighbours = || {
        node.guest
            .check(["ip", "-4", "neigh", "show", "dev", UPLINK])
            .unwrap()
    };
    assert_eq!(neighbours(), "");
    let wire = Capture::start(&node.launcher, "tap0").unwrap();
    assert!(
        Ping::to(CLIENT_V4)
            .from(NODE_V4[0])
            .run(&node.guest)
            .unwrap()
            .complete()
    );
    assert!(
        neighbours().contains("10.0.2.1 lladdr 02:00:00:00:00:00"),
        "{}",
        neighbours()
    );
    let asked = |address: std::net::Ipv4Addr| {
        move |frame: &Frame| !frame.outgoing && arp_sender(frame) == Some(address.octets())
    };
    wire.wait(
        "an ARP request from the guest address",
        PATIENCE,
        asked(GUEST_V4),
    )
    .unwrap();
    assert!(!wire.frames().iter().any(asked(NODE_V4[0])));
}

#[test]
fn again_after_the_neighbour_entry_is_gone() {
    let lab = Masquerade::builder().build().unwrap();
    let node = lab.node(0);
    node.attach(&[]).unwrap();
    for _ in 0..2 {
        assert!(
            Ping::to(CLIENT_V4)
                .from(NODE_V4[0])
                .run(&node.guest)
                .unwrap()
                .complete()
        );
        node.guest
            .ip(&format!("neigh flush dev {UPLINK}\n"))
            .unwrap();
    }
}

#[test]
fn first_packet_ever_from_the_ipv6_node_address() {
    let lab = Masquerade::builder().build().unwrap();
    let node = lab.node(0);
    node.attach(&[]).unwrap();
    assert!(
        Ping::to(CLIENT_V6)
            .from(NODE_V6[0])
            .run(&node.guest)
            .unwrap()
            .complete()
    );
}

/// With the address on the uplink itself the solicitation is sent from it.
#[test]
fn neighbour_solicitation_leaves_from_the_guest_address() {
    let lab = Masquerade::builder().build().unwrap();
    let node = lab.node(0);
    let address = node.node_v6();
    node.guest
        .ip(&format!(
            "addr del {address}/128 dev lo\naddr add {address}/128 dev {UPLINK} nodad\n"
        ))
        .unwrap();
    node.attach(&["--no-address"]).unwrap();
    let wire = Capture::start(&node.launcher, "tap0").unwrap();
    assert!(
        Ping::to(CLIENT_V6)
            .from(address)
            .run(&node.guest)
            .unwrap()
            .complete()
    );
    // Ethernet 14, IPv6 40, then ICMPv6 type 135.
    let solicitation = |frame: &Frame| {
        !frame.outgoing && frame.bytes.get(20) == Some(&58) && frame.bytes.get(54) == Some(&135)
    };
    wire.wait("a neighbour solicitation", PATIENCE, solicitation)
        .unwrap();
    let from_node = |frame: &Frame| frame.bytes.get(22..38) == Some(&address.octets());
    assert!(
        !wire
            .frames()
            .iter()
            .any(|frame| solicitation(frame) && from_node(frame))
    );
}
