//! Datagrams in several pieces arrive whole, at the node address and from it.

use std::net::{IpAddr, SocketAddr};

use xkub_tests::masquerade::{
    CLIENT_V4, CLIENT_V6, GUEST_V4, Masquerade, NODE_V4, NODE_V6, UPLINK,
};
use xkub_tests::traffic::{Capture, Client, EchoServer, Frame, Ping};
use xkub_tests::wait::PATIENCE;

/// Three packets of 1500 bytes.
const DATAGRAM: [u8; 3000] = [7; 3000];

/// Whether it is a later fragment: IPv4 with an offset, or IPv6 with a fragment header right behind and an offset.
fn is_later_fragment(frame: &Frame) -> bool {
    let half = |at: usize| {
        frame
            .bytes
            .get(at..at + 2)
            .map_or(0, |bytes| u16::from_be_bytes([bytes[0], bytes[1]]))
    };
    match half(12) {
        0x0800 => half(20) & 0x1fff != 0,
        0x86dd => frame.bytes.get(20) == Some(&44) && half(56) & 0xfff8 != 0,
        _ => false,
    }
}

#[test]
fn to_a_server_on_the_node_address() {
    let lab = Masquerade::builder().build().unwrap();
    lab.attach(&[]).unwrap();
    let wire = Capture::start(&lab.node(0).guest, UPLINK).unwrap();
    for address in [IpAddr::from(NODE_V4[0]), NODE_V6[0].into()] {
        // Of the service set, and found by its socket.
        for port in [8472, 9443] {
            let server = EchoServer::udp(&lab.node(0).guest, (address, port)).unwrap();
            Client::to(server.address())
                .udp(&lab.client, &DATAGRAM)
                .unwrap();
            Client::to(server.address())
                .udp(&lab.node(1).guest, &DATAGRAM)
                .unwrap();
        }
    }
    // The launcher's connection tracking puts datagrams together; what it sends on is in pieces again.
    for outgoing in [false, true] {
        let later = |frame: &Frame| frame.outgoing == outgoing && is_later_fragment(frame);
        wire.wait("a later fragment", PATIENCE, later).unwrap();
    }
}

#[test]
fn from_the_node_address() {
    let lab = Masquerade::builder().build().unwrap();
    lab.attach(&[]).unwrap();
    for (source, target) in [
        (IpAddr::from(NODE_V4[0]), IpAddr::from(CLIENT_V4)),
        (NODE_V6[0].into(), CLIENT_V6.into()),
    ] {
        let server = EchoServer::udp(&lab.client, (target, 0)).unwrap();
        Client::to(server.address())
            .from(source)
            .udp(&lab.node(0).guest, &DATAGRAM)
            .unwrap();
        let ping = Ping::to(target).from(source).payload(3000).count(3);
        assert!(ping.run(&lab.node(0).guest).unwrap().complete());
    }
}

#[test]
fn of_the_guest_address_are_left_alone() {
    let lab = Masquerade::builder().build().unwrap();
    lab.attach(&[]).unwrap();
    let server = EchoServer::udp(&lab.node(0).guest, (GUEST_V4, 9443)).unwrap();
    let target = SocketAddr::from((NODE_V4[0], server.port()));
    Client::to(target).udp(&lab.client, &DATAGRAM).unwrap();
    let server = EchoServer::udp(&lab.client, (CLIENT_V4, 0)).unwrap();
    Client::to(server.address())
        .udp(&lab.node(0).guest, &DATAGRAM)
        .unwrap();
    assert_eq!(lab.node(0).packets("", None, "translated").unwrap(), 0);
}
