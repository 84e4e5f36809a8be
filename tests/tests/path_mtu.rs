//! Path-MTU discovery works end to end: errors that a router sends for packets of the node address reach the socket
//! that sent them, and errors that the guest sends reach its peer.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};

use anyhow::{Result, ensure};
use xkub_tests::Namespace;
use xkub_tests::masquerade::{Masquerade, NODE_V4, NODE_V6, Overlay};
use xkub_tests::traffic::{Client, EchoServer, Ping};

/// What the way between the pods carries; the uplinks carry 1500.
const HOP: u32 = 1400;
/// Many full segments, in both directions.
const BULK: usize = 500_000;

fn lab() -> Result<Masquerade> {
    let lab = Masquerade::builder().hop_mtu(HOP).build()?;
    lab.attach(&[])?;
    Ok(lab)
}

/// What the guest has learnt about the way to `target`; zero for nothing.
fn learnt(guest: &Namespace, target: IpAddr, source: IpAddr) -> Result<u32> {
    let (target, source) = (target.to_string(), source.to_string());
    let route = guest.check(["ip", "route", "get", &target, "from", &source])?;
    let mut words = route.split_whitespace().skip_while(|word| *word != "mtu");
    Ok(words.nth(1).map_or(Ok(0), str::parse)?)
}

#[test]
fn tcp_between_node_addresses_finds_the_smaller_hop() {
    let lab = lab().unwrap();
    for (here, there) in [(0, 1), (1, 0)] {
        for (source, target) in [
            (IpAddr::from(NODE_V4[here]), IpAddr::from(NODE_V4[there])),
            (NODE_V6[here].into(), NODE_V6[there].into()),
        ] {
            // A port of the service set, and one whose flow is remembered.
            for port in [10250, 9443] {
                let server = EchoServer::tcp(&lab.node(there).guest, (target, port)).unwrap();
                // The echo needs the hop's size in both directions.
                Client::to(server.address())
                    .from(source)
                    .tcp(&lab.node(here).guest, &vec![1; BULK])
                    .unwrap();
            }
            assert_eq!(learnt(&lab.node(here).guest, target, source).unwrap(), HOP);
        }
    }
}

#[test]
fn what_is_too_big_is_told_to_the_node_address() {
    let lab = lab().unwrap();
    for (source, target, payload) in [
        (IpAddr::from(NODE_V4[0]), IpAddr::from(NODE_V4[1]), 1472),
        (NODE_V6[0].into(), NODE_V6[1].into(), 1452),
    ] {
        let guest = &lab.node(0).guest;
        assert_eq!(learnt(guest, target, source).unwrap(), 0);
        let big = Ping::to(target)
            .from(source)
            .payload(payload)
            .dont_fragment();
        assert_eq!(big.run(guest).unwrap().received, 0);
        assert_eq!(learnt(guest, target, source).unwrap(), HOP);
        let fits = Ping::to(target)
            .from(source)
            .payload(payload - 100)
            .dont_fragment();
        assert!(fits.run(guest).unwrap().complete());
    }
}

/// The guest's own flows from the guest address learn it as they always did.
#[test]
fn what_is_too_big_is_told_to_the_guest_address() {
    let lab = lab().unwrap();
    let guest = &lab.node(0).guest;
    let server = EchoServer::tcp(&lab.node(1).guest, (NODE_V4[1], 10250)).unwrap();
    Client::to(server.address())
        .tcp(guest, &vec![1; BULK])
        .unwrap();
    let server = EchoServer::tcp(&lab.node(1).guest, (NODE_V6[1], 10250)).unwrap();
    Client::to(server.address())
        .tcp(guest, &vec![1; BULK])
        .unwrap();
}

/// The outer packets of a tunnel may be fragmented: full-size inner ones pass the smaller hop in pieces.
#[test]
fn full_size_overlay_packets_pass_the_smaller_hop() {
    let lab = lab().unwrap();
    lab.add_overlay(&Overlay::V4).unwrap();
    let (guest, peer) = (&lab.node(0).guest, Overlay::V4.address(lab.node(1)));
    assert!(
        Ping::to(peer)
            .payload(1422)
            .dont_fragment()
            .count(5)
            .run(guest)
            .unwrap()
            .complete()
    );
    let server = EchoServer::tcp(&lab.node(1).guest, (peer, 0)).unwrap();
    Client::to(server.address())
        .tcp(guest, &vec![1; BULK])
        .unwrap();
}

/// Nobody listens on a port of the service set: the guest says so in an error that quotes the node address, and the
/// peer must find its own packet in that quote.
fn refusal_arrives(from: &Namespace, target: SocketAddr) -> Result<()> {
    let socket = Client::to(target).udp_socket(from)?;
    socket.send(b"is anybody there?")?;
    let error = socket.recv(&mut [0; 16]).err().map(|error| error.kind());
    ensure!(
        error == Some(ErrorKind::ConnectionRefused),
        "{target}: {error:?}"
    );
    Ok(())
}

#[test]
fn errors_that_the_guest_sends_arrive() {
    let lab = Masquerade::builder().build().unwrap();
    lab.attach(&["--service", "udp/9000"]).unwrap();
    for target in [IpAddr::from(NODE_V4[0]), NODE_V6[0].into()] {
        let target = SocketAddr::new(target, 9000);
        refusal_arrives(&lab.client, target).unwrap();
        refusal_arrives(&lab.node(1).guest, target).unwrap();
    }
}

/// The other way: the node address asks, and the error that comes back quotes what was translated on the way out.
#[test]
fn errors_for_the_node_address_arrive() {
    let lab = lab().unwrap();
    for (source, target) in [
        (
            IpAddr::from(NODE_V4[0]),
            IpAddr::from(xkub_tests::masquerade::CLIENT_V4),
        ),
        (NODE_V6[0].into(), xkub_tests::masquerade::CLIENT_V6.into()),
    ] {
        let client = Client::to((target, 9)).from(source);
        let socket = client.udp_socket(&lab.node(0).guest).unwrap();
        socket.send(b"is anybody there?").unwrap();
        let error = socket.recv(&mut [0; 16]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    }
}
