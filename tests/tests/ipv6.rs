//! What is particular to IPv6 in the lab; everything else is tested for both families side by side.

use std::net::SocketAddr;

use xkub_tests::masquerade::{
    CLIENT_V6, Family, GATEWAY_V6, GUEST_V6, Masquerade, NODE_V6, UPLINK,
};
use xkub_tests::traffic::{Client, EchoServer, Ping};

/// A guest in an IPv6-only cluster: no IPv4 node address at all.
#[test]
fn node_address_of_ipv6_alone() {
    let lab = Masquerade::builder().build().unwrap();
    let node = lab.node(0);
    let address = NODE_V6[0].to_string();
    node.xkub(&[
        "datapath",
        "attach",
        "--uplink",
        UPLINK,
        "--node-address",
        &address,
    ])
    .unwrap()
    .success()
    .unwrap();
    assert!(
        Ping::to(CLIENT_V6)
            .from(NODE_V6[0])
            .run(&node.guest)
            .unwrap()
            .complete()
    );
    let server = EchoServer::tcp(&node.guest, (NODE_V6[0], 9443)).unwrap();
    Client::to(server.address())
        .tcp(&lab.client, &vec![1; 100_000])
        .unwrap();
    assert_eq!(node.packets("", Some(Family::V4), "translated").unwrap(), 0);
}

/// Link-local traffic and neighbour discovery of the uplink's own addresses are none of ours.
#[test]
fn link_local_and_gateway_are_left_alone() {
    let lab = Masquerade::builder().build().unwrap();
    let node = lab.node(0);
    node.attach(&[]).unwrap();
    let text = node
        .launcher
        .check([
            "ip", "-6", "-brief", "address", "show", "dev", "k6t-eth0", "scope", "link",
        ])
        .unwrap();
    let gateway = text
        .split_whitespace()
        .find_map(|word| word.strip_suffix("/64"))
        .unwrap()
        .to_owned();
    let target = format!("{gateway}%{UPLINK}");
    let output = node
        .guest
        .run(["ping", "-6", "-n", "-c1", "-W2", &target])
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(Ping::to(GATEWAY_V6).run(&node.guest).unwrap().complete());
    // The gateway finds the guest, too.
    node.launcher.ip("neigh flush dev k6t-eth0\n").unwrap();
    assert!(Ping::to(GUEST_V6).run(&node.launcher).unwrap().complete());
    assert_eq!(node.packets("", Some(Family::V6), "translated").unwrap(), 0);
}

/// UDP over IPv6 has no "no checksum": a wrong one would be dropped and counted.
#[test]
fn udp_checksums_are_right() {
    let lab = Masquerade::builder().build().unwrap();
    lab.attach(&[]).unwrap();
    let guest = &lab.node(0).guest;
    let server = EchoServer::udp(guest, (NODE_V6[0], 9443)).unwrap();
    for length in [0, 1, 2, 3, 1399, 1400, 1452] {
        Client::to(server.address())
            .udp(&lab.client, &vec![0x5a; length])
            .unwrap();
    }
    let server = EchoServer::udp(&lab.client, (CLIENT_V6, 0)).unwrap();
    for length in [0, 1, 2, 3, 1399, 1400, 1452] {
        Client::to(server.address())
            .from(NODE_V6[0])
            .udp(guest, &vec![0x5a; length])
            .unwrap();
    }
    for namespace in lab.namespaces() {
        assert_eq!(
            namespace.counter("Udp6InCsumErrors").unwrap(),
            0,
            "{}",
            namespace.name()
        );
    }
}

/// The wildcard socket of a dual-stack server serves both families as before.
#[test]
fn dual_stack_wildcard_server() {
    let lab = Masquerade::builder().build().unwrap();
    lab.attach(&[]).unwrap();
    let server =
        EchoServer::tcp(&lab.node(0).guest, (std::net::Ipv6Addr::UNSPECIFIED, 10250)).unwrap();
    for address in [
        lab.node(0).node_address(Family::V4),
        lab.node(0).node_address(Family::V6),
    ] {
        let target = SocketAddr::new(address, server.port());
        Client::to(target)
            .tcp(&lab.client, &vec![1; 100_000])
            .unwrap();
        Client::to(target)
            .tcp(&lab.node(1).guest, &vec![1; 100_000])
            .unwrap();
    }
}
