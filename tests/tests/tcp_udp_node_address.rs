//! The node address works like any address: flows opened from it are answered, servers bound to it are reached; and
//! what uses the guest address goes on as if xkub were not there.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use anyhow::{Context as _, Result};
use xkub_tests::masquerade::{
    CLIENT_V4, CLIENT_V6, Family, GUEST_V4, GUEST_V6, Masquerade, NODE_V4, NODE_V6,
};
use xkub_tests::traffic::{Client, EchoServer, Ping, Seen};
use xkub_tests::wait::{PATIENCE, wait_for};

/// In no service set.
const UNCONFIGURED: u16 = 9443;

fn attached() -> Result<Masquerade> {
    let lab = Masquerade::builder().build()?;
    lab.attach(&[])?;
    Ok(lab)
}

fn seen(server: &EchoServer) -> Result<Seen> {
    wait_for("the server to have seen somebody", PATIENCE, || {
        Ok(server.seen().pop())
    })
}

#[test]
fn tcp_from_the_node_address_is_answered() {
    let lab = attached().unwrap();
    for (client, node) in [
        (IpAddr::from(CLIENT_V4), IpAddr::from(NODE_V4[0])),
        (CLIENT_V6.into(), NODE_V6[0].into()),
    ] {
        let server = EchoServer::tcp(&lab.client, (client, 0)).unwrap();
        Client::to(server.address())
            .from(node)
            .tcp(&lab.node(0).guest, &vec![1; 300_000])
            .unwrap();
        assert_eq!(seen(&server).unwrap().peer.ip(), node);
    }
}

#[test]
fn udp_from_the_node_address_is_answered() {
    let lab = attached().unwrap();
    for (client, node) in [
        (IpAddr::from(CLIENT_V4), IpAddr::from(NODE_V4[0])),
        (CLIENT_V6.into(), NODE_V6[0].into()),
    ] {
        let server = EchoServer::udp(&lab.client, (client, 0)).unwrap();
        Client::to(server.address())
            .from(node)
            .udp(&lab.node(0).guest, b"hello")
            .unwrap();
        assert_eq!(seen(&server).unwrap().peer.ip(), node);
    }
}

#[test]
fn ping_from_the_node_address_is_answered() {
    let lab = attached().unwrap();
    let guest = &lab.node(0).guest;
    assert!(
        Ping::to(CLIENT_V4)
            .from(NODE_V4[0])
            .count(5)
            .run(guest)
            .unwrap()
            .complete()
    );
    assert!(
        Ping::to(CLIENT_V6)
            .from(NODE_V6[0])
            .count(5)
            .run(guest)
            .unwrap()
            .complete()
    );
    // Both at once from both addresses: answers don't get mixed up.
    assert!(
        Ping::to(CLIENT_V4)
            .from(GUEST_V4)
            .count(5)
            .run(guest)
            .unwrap()
            .complete()
    );
    assert!(
        Ping::to(CLIENT_V6)
            .from(GUEST_V6)
            .count(5)
            .run(guest)
            .unwrap()
            .complete()
    );
}

#[test]
fn node_to_node_both_ways() {
    let lab = attached().unwrap();
    for (here, there) in [(0, 1), (1, 0)] {
        for (source, target) in [
            (IpAddr::from(NODE_V4[here]), IpAddr::from(NODE_V4[there])),
            (NODE_V6[here].into(), NODE_V6[there].into()),
        ] {
            let server = EchoServer::tcp(&lab.node(there).guest, (target, 179)).unwrap();
            Client::to(server.address())
                .from(source)
                .tcp(&lab.node(here).guest, &vec![1; 300_000])
                .unwrap();
            let seen = seen(&server).unwrap();
            assert_eq!((seen.peer.ip(), seen.local.ip()), (source, target));
        }
    }
}

/// A server in guest 1 is asked at its pod's address, from the other guest and from outside.
fn is_reached(lab: &Masquerade, bound: IpAddr, port: u16) -> Result<()> {
    let guest = &lab.node(0).guest;
    let target = match bound {
        IpAddr::V4(_) => SocketAddr::from((NODE_V4[0], port)),
        IpAddr::V6(_) => SocketAddr::from((NODE_V6[0], port)),
    };
    let tcp = EchoServer::tcp(guest, (bound, port))?;
    let udp = EchoServer::udp(guest, (bound, port))?;
    for from in [&lab.node(1).guest, &lab.client] {
        Client::to(target)
            .tcp(from, &vec![1; 300_000])
            .with_context(|| format!("TCP from {}", from.name()))?;
        Client::to(target)
            .udp(from, b"hello")
            .with_context(|| format!("UDP from {}", from.name()))?;
    }
    drop((tcp, udp));
    Ok(())
}

#[test]
fn server_on_the_node_address_is_reached_at_a_port_nobody_configured() {
    let lab = attached().unwrap();
    is_reached(&lab, NODE_V4[0].into(), UNCONFIGURED).unwrap();
    is_reached(&lab, NODE_V6[0].into(), UNCONFIGURED).unwrap();
}

#[test]
fn server_in_the_service_set_is_reached() {
    let lab = Masquerade::builder().build().unwrap();
    lab.attach(&["--service", "tcp/9443", "--service", "udp/9000-9500"])
        .unwrap();
    is_reached(&lab, NODE_V4[0].into(), UNCONFIGURED).unwrap();
    is_reached(&lab, NODE_V6[0].into(), UNCONFIGURED).unwrap();
    let looked_up = lab.node(0).packets("ingress", None, "lookup").unwrap();
    assert_eq!(looked_up, 0, "what is configured needs no lookup");
}

#[test]
fn wildcard_server_is_reached_as_before() {
    let lab = attached().unwrap();
    is_reached(&lab, Ipv4Addr::UNSPECIFIED.into(), UNCONFIGURED).unwrap();
    is_reached(&lab, Ipv6Addr::UNSPECIFIED.into(), UNCONFIGURED + 1).unwrap();
}

#[test]
fn server_on_the_guest_address_is_reached_as_before() {
    let lab = attached().unwrap();
    // As sshd does.
    is_reached(&lab, GUEST_V4.into(), 22).unwrap();
    is_reached(&lab, GUEST_V6.into(), 22).unwrap();
}

#[test]
fn flows_from_the_guest_address_are_left_alone_also_from_a_service_port() {
    let lab = attached().unwrap();
    let guest = &lab.node(0).guest;
    let tcp = EchoServer::tcp(&lab.client, (CLIENT_V4, 0)).unwrap();
    let udp = EchoServer::udp(&lab.client, (CLIENT_V4, 0)).unwrap();
    for port in [0, 10250] {
        Client::to(tcp.address())
            .from_port(GUEST_V4, port)
            .tcp(guest, b"hello")
            .unwrap();
    }
    for port in [0, 8472, 6081] {
        Client::to(udp.address())
            .from_port(GUEST_V4, port)
            .udp(guest, b"hello")
            .unwrap();
    }
    let tcp = EchoServer::tcp(&lab.client, (CLIENT_V6, 0)).unwrap();
    Client::to(tcp.address())
        .from_port(GUEST_V6, 10250)
        .tcp(guest, b"hello")
        .unwrap();
    let udp = EchoServer::udp(&lab.client, (CLIENT_V6, 0)).unwrap();
    Client::to(udp.address())
        .from_port(GUEST_V6, 8472)
        .udp(guest, b"hello")
        .unwrap();
    assert_eq!(
        lab.node(0).packets("ingress", None, "translated").unwrap(),
        0
    );
}

#[test]
fn a_socket_is_looked_up_once_per_flow() {
    let lab = attached().unwrap();
    let node = lab.node(0);
    for bound in [IpAddr::from(NODE_V4[0]), GUEST_V4.into()] {
        let server = EchoServer::udp(&node.guest, (bound, 0)).unwrap();
        let target = SocketAddr::from((NODE_V4[0], server.port()));
        let before = node.packets("ingress", Some(Family::V4), "lookup").unwrap();
        let socket = Client::to(target).udp_socket(&lab.client).unwrap();
        let mut answer = [0; 16];
        for _ in 0..20 {
            socket.send(b"again").unwrap();
            socket.recv(&mut answer).unwrap();
        }
        assert_eq!(
            node.packets("ingress", Some(Family::V4), "lookup").unwrap() - before,
            1
        );
    }
}

#[test]
fn ipv6_is_untouched_when_only_ipv4_is_configured() {
    let lab = Masquerade::builder().build().unwrap();
    let node = lab.node(0);
    let address = node.node_v4().to_string();
    node.xkub(&[
        "datapath",
        "attach",
        "--uplink",
        "eth0",
        "--node-address",
        &address,
    ])
    .unwrap()
    .success()
    .unwrap();
    assert!(
        Ping::to(CLIENT_V4)
            .from(NODE_V4[0])
            .run(&node.guest)
            .unwrap()
            .complete()
    );
    assert!(Ping::to(CLIENT_V6).run(&node.guest).unwrap().complete());
    let server = EchoServer::tcp(&node.guest, (GUEST_V6, 10250)).unwrap();
    let target = SocketAddr::from((NODE_V6[0], server.port()));
    Client::to(target).tcp(&lab.client, b"hello").unwrap();
    assert_eq!(node.packets("", Some(Family::V6), "translated").unwrap(), 0);
}
