//! The faults that xkub cures, reproduced without it: a lab that does not show them proves nothing.

use std::net::SocketAddr;
use std::time::Duration;

use xkub_tests::foreign::{Behaviour, Direction, Foreign};
use xkub_tests::masquerade::{
    CLIENT_V4, CLIENT_V6, Family, GATEWAY_V4, GATEWAY_V6, GUEST_V4, Masquerade, NODE_V4, NODE_V6,
    NodeAddress, Overlay,
};
use xkub_tests::traffic::{Capture, Client, EchoServer, Ping};
use xkub_tests::wait::PATIENCE;

/// Long enough for an answer in a lab, short enough to wait for one that must not come.
const SILENCE: Duration = Duration::from_millis(500);

#[test]
fn guest_reaches_the_world_from_the_guest_address() {
    let lab = Masquerade::builder().build().unwrap();
    for node in lab.nodes() {
        assert!(Ping::to(GATEWAY_V4).run(&node.guest).unwrap().complete());
        assert!(Ping::to(GATEWAY_V6).run(&node.guest).unwrap().complete());
        assert!(Ping::to(CLIENT_V4).run(&node.guest).unwrap().complete());
        assert!(Ping::to(CLIENT_V6).run(&node.guest).unwrap().complete());
    }
    // From outside, the guest is its pod.
    let server = EchoServer::tcp(&lab.client, (CLIENT_V4, 0)).unwrap();
    Client::to(server.address())
        .tcp(&lab.node(0).guest, b"who am I?")
        .unwrap();
    wait_seen(&server, NODE_V4[0].into()).unwrap();
    let server = EchoServer::tcp(&lab.client, (CLIENT_V6, 0)).unwrap();
    Client::to(server.address())
        .tcp(&lab.node(1).guest, b"who am I?")
        .unwrap();
    wait_seen(&server, NODE_V6[1].into()).unwrap();
}

fn wait_seen(server: &EchoServer, peer: std::net::IpAddr) -> anyhow::Result<()> {
    xkub_tests::wait::wait_until("the server to have seen its client", PATIENCE, || {
        Ok(server.seen().iter().any(|seen| seen.peer.ip() == peer))
    })
}

#[test]
fn wildcard_and_guest_address_servers_are_reached_at_the_pod_address() {
    let lab = Masquerade::builder().build().unwrap();
    let guest = &lab.node(0).guest;
    let wildcard = EchoServer::tcp(guest, (std::net::Ipv4Addr::UNSPECIFIED, 0)).unwrap();
    let bound = EchoServer::tcp(guest, (GUEST_V4, 0)).unwrap();
    for server in [&wildcard, &bound] {
        let target = SocketAddr::from((NODE_V4[0], server.port()));
        Client::to(target)
            .tcp(&lab.client, b"from outside")
            .unwrap();
        Client::to(target)
            .tcp(&lab.node(1).guest, b"from the other guest")
            .unwrap();
    }
}

#[test]
fn server_on_the_node_address_is_not_reached() {
    let lab = Masquerade::builder().build().unwrap();
    let guest = &lab.node(0).guest;
    let server = EchoServer::tcp(guest, (NODE_V4[0], 10250)).unwrap();
    Client::to(server.address())
        .patience(SILENCE)
        .tcp(&lab.client, b"anyone?")
        .unwrap_err();
    let server = EchoServer::tcp(guest, (NODE_V6[0], 10250)).unwrap();
    Client::to(server.address())
        .patience(SILENCE)
        .tcp(&lab.client, b"anyone?")
        .unwrap_err();
}

#[test]
fn flows_from_the_node_address_die() {
    let lab = Masquerade::builder().build().unwrap();
    let guest = &lab.node(0).guest;
    // The neighbour entry exists: it is the launcher that drops packets from its own address.
    assert!(Ping::to(GATEWAY_V4).run(guest).unwrap().complete());
    assert!(Ping::to(GATEWAY_V6).run(guest).unwrap().complete());
    assert_eq!(
        Ping::to(CLIENT_V4)
            .from(NODE_V4[0])
            .run(guest)
            .unwrap()
            .received,
        0
    );
    assert_eq!(
        Ping::to(CLIENT_V6)
            .from(NODE_V6[0])
            .run(guest)
            .unwrap()
            .received,
        0
    );
    let server = EchoServer::tcp(&lab.client, (CLIENT_V4, 0)).unwrap();
    Client::to(server.address())
        .from(NODE_V4[0])
        .patience(SILENCE)
        .tcp(guest, b"dead")
        .unwrap_err();
}

#[test]
fn first_packet_from_the_node_address_dies_in_arp() {
    let lab = Masquerade::builder().build().unwrap();
    let node = lab.node(0);
    let capture = Capture::start(&node.launcher, "tap0").unwrap();
    assert_eq!(
        Ping::to(CLIENT_V4)
            .from(NODE_V4[0])
            .run(&node.guest)
            .unwrap()
            .received,
        0
    );
    // The guest asks in the name of the node address, and nobody answers.
    let node_address = NODE_V4[0].octets();
    capture
        .wait("an ARP request from the node address", PATIENCE, |frame| {
            frame.bytes.get(12..14) == Some(&[8, 6])
                && frame.bytes.get(28..32) == Some(&node_address)
        })
        .unwrap();
    assert!(
        !capture
            .frames()
            .iter()
            .any(|frame| frame.outgoing && frame.bytes.get(12..14) == Some(&[8, 6]))
    );
    let neighbours = node
        .guest
        .check(["ip", "neigh", "show", "dev", "eth0"])
        .unwrap();
    assert!(!neighbours.contains("REACHABLE"), "{neighbours}");
}

#[test]
fn overlay_by_route_needs_no_fix() {
    let lab = Masquerade::builder().build().unwrap();
    for overlay in [Overlay::V4.by_route(), Overlay::V6.by_route()] {
        lab.add_overlay(&overlay).unwrap();
        let peer = overlay.address(lab.node(1));
        assert!(
            Ping::to(peer).run(&lab.node(0).guest).unwrap().complete(),
            "{overlay:?}"
        );
        let server = EchoServer::tcp(&lab.node(1).guest, (peer, 0)).unwrap();
        Client::to(server.address())
            .tcp(&lab.node(0).guest, &vec![7; 200_000])
            .unwrap();
    }
}

#[test]
fn overlay_from_the_node_address_is_dead() {
    let lab = Masquerade::builder().build().unwrap();
    lab.add_overlay(&Overlay::V4).unwrap();
    for (node, peer) in [(0, 1), (1, 0)] {
        assert!(
            Ping::to(GATEWAY_V4)
                .run(&lab.node(node).guest)
                .unwrap()
                .complete()
        );
        let peer = Overlay::V4.address(lab.node(peer));
        assert_eq!(
            Ping::to(peer).run(&lab.node(node).guest).unwrap().received,
            0
        );
    }
}

/// IPv6 forwarding has no counterpart of IPv4's `fib_validate_source`: virt-launcher passes on what claims its own
/// address, untranslated and with the right source. One-way traffic lives by that, anything with an answer does not
/// (`flows_from_the_node_address_die`).
#[test]
fn overlay_over_ipv6_passes_the_launcher_once_the_gateway_is_known() {
    let lab = Masquerade::builder().build().unwrap();
    lab.add_overlay(&Overlay::V6).unwrap();
    for node in lab.nodes() {
        assert!(Ping::to(GATEWAY_V6).run(&node.guest).unwrap().complete());
    }
    let peer = Overlay::V6.address(lab.node(1));
    assert!(Ping::to(peer).run(&lab.node(0).guest).unwrap().complete());
}

#[test]
fn overlay_with_the_ingress_half_of_the_fix_is_still_dead() {
    let lab = Masquerade::builder().ipv6(false).build().unwrap();
    lab.add_overlay(&Overlay::V4).unwrap();
    for node in lab.nodes() {
        // What the blog does: DNAT of the overlay port, nothing on the way out.
        let address = node.node_v4();
        node.guest
            .check([
                "iptables",
                "-t",
                "nat",
                "-A",
                "PREROUTING",
                "-i",
                "eth0",
                "-p",
                "udp",
                "--dport",
                "8473",
                "-j",
                "DNAT",
                "--to-destination",
                &address.to_string(),
            ])
            .unwrap();
        assert!(Ping::to(GATEWAY_V4).run(&node.guest).unwrap().complete());
    }
    let peer = Overlay::V4.address(lab.node(1));
    assert_eq!(Ping::to(peer).run(&lab.node(0).guest).unwrap().received, 0);
}

#[test]
fn stateless_rewrite_by_hand_revives_the_overlay() {
    let lab = Masquerade::builder().build().unwrap();
    lab.add_overlay(&Overlay::V4).unwrap();
    for node in lab.nodes() {
        node.guest
            .nft(&xkub_tests::masquerade::nft_stateless(node, Family::V4))
            .unwrap();
        // nft does not rewrite ARP.
        assert!(Ping::to(GATEWAY_V4).run(&node.guest).unwrap().complete());
    }
    let peer = Overlay::V4.address(lab.node(1));
    assert!(Ping::to(peer).run(&lab.node(0).guest).unwrap().complete());
    let server = EchoServer::tcp(&lab.node(1).guest, (peer, 0)).unwrap();
    Client::to(server.address())
        .tcp(&lab.node(0).guest, &vec![7; 200_000])
        .unwrap();
}

#[test]
fn smaller_hop_reports_itself() {
    let lab = Masquerade::builder().hop_mtu(1400).build().unwrap();
    let guest = &lab.node(0).guest;
    // 1472 + 28 = 1500: fits the uplink, not the hop; what is too big is told, not swallowed.
    let told = guest
        .run([
            "ping",
            "-n",
            "-c3",
            "-i0.05",
            "-W1",
            "-Mdo",
            "-s1472",
            &NODE_V4[1].to_string(),
        ])
        .unwrap();
    assert!(
        told.stdout.contains("mtu = 1400") || told.stderr.contains("mtu=1400"),
        "{told:?}"
    );
    let told = guest
        .run([
            "ping",
            "-n",
            "-c3",
            "-i0.05",
            "-W1",
            "-Mdo",
            "-s1452",
            &NODE_V6[1].to_string(),
        ])
        .unwrap();
    assert!(
        told.stdout.contains("mtu=1400") || told.stderr.contains("mtu=1400"),
        "{told:?}"
    );
    assert!(
        Ping::to(NODE_V4[1])
            .payload(1372)
            .dont_fragment()
            .run(guest)
            .unwrap()
            .complete()
    );
}

#[test]
fn nothing_of_a_lab_is_seen_outside_and_nothing_is_left() {
    let before = std::fs::read_dir("/sys/class/net").unwrap().count();
    let lab = Masquerade::builder()
        .node_address(NodeAddress::Absent)
        .build()
        .unwrap();
    assert_eq!(std::fs::read_dir("/sys/class/net").unwrap().count(), before);
    let pids = lab.namespaces().map(xkub_tests::Namespace::pid);
    let two = Masquerade::builder().build().unwrap();
    assert!(
        Ping::to(GATEWAY_V4)
            .run(&two.node(0).guest)
            .unwrap()
            .complete()
    );
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
        let _lab = lab;
        panic!("a test that fails");
    }));
    assert!(outcome.is_err());
    for pid in pids {
        assert!(
            !std::path::Path::new(&format!("/proc/{pid}")).exists(),
            "holder {pid} is left"
        );
    }
}

#[test]
fn foreign_programs_do_what_they_say() {
    let lab = Masquerade::builder().build().unwrap();
    let guest = &lab.node(0).guest;
    let attach =
        |direction, behaviour| Foreign::attach(guest, "eth0", direction, "cni", behaviour).unwrap();
    let reaches_client = || Ping::to(CLIENT_V4).run(guest).unwrap().complete();
    {
        let _pass = attach(Direction::Egress, Behaviour::PassOn);
        assert!(reaches_client());
        let _drop = attach(Direction::Egress, Behaviour::DropFrom(GUEST_V4));
        assert!(!reaches_client());
    }
    {
        // Whoever stands behind one that ends the chain is never run.
        let _end = attach(Direction::Egress, Behaviour::EndChain);
        let _drop = attach(Direction::Egress, Behaviour::DropFrom(GUEST_V4));
        assert!(reaches_client());
    }
    {
        // The launcher drops what claims its own address.
        let masquerade = Behaviour::MasqueradePing {
            guest: GUEST_V4,
            node: NODE_V4[0],
        };
        let _masquerade = attach(Direction::Egress, masquerade);
        assert!(!reaches_client());
    }
    let server = EchoServer::udp(guest, (GUEST_V4, 8473)).unwrap();
    let ask = || {
        Client::to((NODE_V4[0], server.port()))
            .patience(SILENCE)
            .udp(&lab.client, b"there?")
    };
    ask().unwrap();
    let _drop = attach(Direction::Ingress, Behaviour::DropUdpTo(GUEST_V4, 8473));
    ask().unwrap_err();
    assert!(reaches_client());
}
