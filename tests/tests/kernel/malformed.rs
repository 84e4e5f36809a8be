//! Packets that contradict themselves or end too early are passed unchanged, and counted.

use xkub_common::counter::{Event, Place};

use crate::{
    harness::{At, Datapath, dual},
    packets::{ACK, BOTH, Payload, Shape, Side, V4, V6, error, frame, packet, shaped},
};

/// What a test run needs at least: an Ethernet header for XDP; for TC also a byte behind it, and all of an IP
/// header right behind it (so that an IP header is cut short for TC only behind a tag).
fn shortest(at: At, frame: &[u8]) -> usize {
    match (at, &frame[12..14]) {
        (At::Xdp, _) => 14,
        (_, [0x08, 0x00]) => 14 + 20,
        (_, [0x86, 0xdd]) => 14 + 40,
        _ => 15,
    }
}

fn hooks(side: Side) -> [(At, std::net::IpAddr, std::net::IpAddr, Place); 4] {
    [
        (At::EgressFirst, side.node, side.peer, Place::EgressFirst),
        (At::EgressLast, side.node, side.peer, Place::EgressLast),
        (At::Ingress, side.peer, side.guest, Place::Ingress),
        (At::Xdp, side.peer, side.guest, Place::Ingress),
    ]
}

#[test]
fn truncated_at_every_byte() {
    let mut datapath = Datapath::new(&dual());
    for side in BOTH {
        let mut shapes = vec![
            Shape::default(),
            Shape {
                tags: vec![(0x88a8, 1), (0x8100, 2)],
                ..Shape::default()
            },
        ];
        if side.node.is_ipv4() {
            shapes.push(Shape {
                options: vec![1; 16],
                ..Shape::default()
            });
        } else {
            shapes.push(Shape {
                extensions: vec![(0, vec![0; 6]), (51, vec![0; 22]), (60, vec![0; 6])],
                ..Shape::default()
            });
        }
        for shape in shapes {
            for payload in [
                Payload::vxlan(true),
                Payload::tcp(40_000, 10_250, ACK),
                Payload::echo(side, true, 1),
                error(
                    side,
                    &packet(
                        side.guest,
                        side.peer,
                        &Payload::vxlan(true),
                        &Shape::default(),
                    ),
                ),
                Payload::Sctp {
                    source: 1,
                    destination: 2,
                    data: vec![0; 8],
                },
            ] {
                for (at, source, destination, place) in hooks(side) {
                    let whole = shaped(source, destination, &payload, &shape);
                    for length in shortest(at, &whole)..whole.len() {
                        let before = datapath.events(place, Event::Malformed);
                        datapath.expect_unchanged(
                            at,
                            &whole[..length],
                            &format!("{length} bytes of {payload:?} in {shape:?}"),
                        );
                        assert_eq!(
                            datapath.events(place, Event::Malformed),
                            before + 1,
                            "{length} bytes of {payload:?} in {shape:?} at {at:?} must be counted",
                        );
                    }
                }
            }
        }
    }
}

/// Where bytes are changed, and what to.
type Changes = [(usize, u8)];

/// A frame with some bytes set, all the others right.
fn broken(mut frame: Vec<u8>, changes: &Changes) -> Vec<u8> {
    for (at, value) in changes {
        frame[*at] = *value;
    }
    frame
}

#[test]
fn contradictions() {
    let mut datapath = Datapath::new(&dual());
    let udp = Payload::vxlan(true);
    let tcp = Payload::tcp(40_000, 10_250, ACK);
    let cases: [(&str, Side, &Payload, &Changes); 16] = [
        ("version 0", V4, &udp, &[(14, 0x05)]),
        ("version 6 in IPv4", V4, &udp, &[(14, 0x65)]),
        ("a header length of zero", V4, &udp, &[(14, 0x40)]),
        ("a header length of 16", V4, &udp, &[(14, 0x44)]),
        (
            "a header longer than the packet",
            V4,
            &udp,
            &[(14, 0x4f), (16, 0), (17, 40)],
        ),
        ("a total length of zero", V4, &udp, &[(16, 0), (17, 0)]),
        (
            "a total length less than the header",
            V4,
            &udp,
            &[(16, 0), (17, 19)],
        ),
        (
            "a total length beyond the frame",
            V4,
            &udp,
            &[(16, 0xff), (17, 0xff)],
        ),
        (
            "a packet that ends in its UDP header",
            V4,
            &udp,
            &[(16, 0), (17, 27)],
        ),
        (
            "a packet that ends in its TCP header",
            V4,
            &tcp,
            &[(16, 0), (17, 39)],
        ),
        ("a UDP length of zero", V4, &udp, &[(38, 0), (39, 0)]),
        (
            "a UDP length beyond the packet",
            V4,
            &udp,
            &[(38, 0x40), (39, 0)],
        ),
        ("a TCP header length of zero", V4, &tcp, &[(46, 0)]),
        (
            "a TCP header longer than the packet",
            V4,
            &tcp,
            &[(46, 0xf0)],
        ),
        ("version 4 in IPv6", V6, &udp, &[(14, 0x40)]),
        (
            "a payload length beyond the frame",
            V6,
            &udp,
            &[(18, 0xff), (19, 0xff)],
        ),
    ];
    for (what, side, payload, changes) in cases {
        for (at, source, destination, place) in hooks(side) {
            let before = datapath.events(place, Event::Malformed);
            datapath.expect_unchanged(
                at,
                &broken(frame(source, destination, payload), changes),
                what,
            );
            assert_eq!(
                datapath.events(place, Event::Malformed),
                before + 1,
                "{what} at {at:?} must be counted"
            );
        }
    }
}

#[test]
fn too_many_extension_headers() {
    let mut datapath = Datapath::new(&dual());
    let shape = Shape {
        extensions: vec![(60, vec![0; 6]); 9],
        ..Shape::default()
    };
    for (at, source, destination, place) in hooks(V6) {
        let before = datapath.events(place, Event::Malformed);
        datapath.expect_unchanged(
            at,
            &shaped(source, destination, &Payload::vxlan(true), &shape),
            "nine of them",
        );
        assert_eq!(datapath.events(place, Event::Malformed), before + 1);
    }
}

#[test]
fn an_extension_header_longer_than_the_packet() {
    let mut datapath = Datapath::new(&dual());
    let shape = Shape {
        extensions: vec![(60, vec![0; 6])],
        ..Shape::default()
    };
    for (at, source, destination, _) in hooks(V6) {
        for length in 1..=255 {
            let frame = broken(
                shaped(source, destination, &Payload::vxlan(true), &shape),
                &[(55, length)],
            );
            let out = datapath.run(at, &frame);
            assert!(out == frame || length < 9, "length {length}");
        }
    }
}

#[test]
fn arp_cut_short() {
    let mut datapath = Datapath::new(&dual());
    let mut arp = vec![0xff; 6];
    arp.extend([
        2, 0, 0, 0, 0, 2, 0x08, 0x06, 0, 1, 0x08, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 2, 10, 244, 1, 226,
        0, 0, 0, 0, 0, 0, 10, 0, 2, 1,
    ]);
    for length in shortest(At::EgressFirst, &arp)..arp.len() {
        let before = datapath.events(Place::EgressFirst, Event::Malformed);
        datapath.expect_unchanged(
            At::EgressFirst,
            &arp[..length],
            &format!("{length} bytes of ARP"),
        );
        assert_eq!(
            datapath.events(Place::EgressFirst, Event::Malformed),
            before + 1,
            "{length}"
        );
    }
}
