//! Sums that the device delivered with the packet (`CHECKSUM_COMPLETE`) are right after the translation, and a
//! pending checksum is recognised. (Checksums that a device is to finish are judged in guests: no test run has
//! them.)

use crate::{
    harness::{At, Datapath, dual},
    packets::{
        ACK, BOTH, GRE, Payload, Shape, Side, UDP, UDPLITE, V4, error, fragments, frame, packet,
        pending, shaped,
    },
};

fn payloads(side: Side) -> Vec<Payload> {
    vec![
        Payload::vxlan(true),
        Payload::vxlan(false),
        Payload::udp(40_000, 8472),
        Payload::tcp(40_000, 10_250, ACK),
        Payload::LikeUdp {
            protocol: UDPLITE,
            source: 1,
            destination: 2,
            data: vec![1; 30],
        },
        Payload::Sctp {
            source: 1,
            destination: 2,
            data: vec![1; 30],
        },
        Payload::Raw {
            protocol: GRE,
            data: vec![5; 33],
        },
        Payload::echo(side, true, 3),
    ]
}

#[test]
fn a_delivered_sum_stays_right() {
    let mut config = dual();
    for protocol in [GRE, UDPLITE, 132] {
        config.services.protocols.insert(protocol);
    }
    let mut datapath = Datapath::new(&config);
    for side in BOTH {
        for payload in payloads(side) {
            for shape in [
                Shape::default(),
                Shape {
                    options: vec![1; 4],
                    ..Shape::default()
                },
            ] {
                if side.node.is_ipv6() && !shape.options.is_empty() {
                    continue;
                }
                let out = datapath.run_with_sum(
                    At::EgressFirst,
                    &shaped(side.node, side.peer, &payload, &shape),
                );
                assert_eq!(
                    out,
                    shaped(side.guest, side.peer, &payload, &shape),
                    "{payload:?}"
                );
                datapath.run_with_sum(
                    At::Ingress,
                    &shaped(side.peer, side.guest, &payload, &shape),
                );
            }
        }
    }
}

#[test]
fn a_delivered_sum_stays_right_for_fragments_and_errors() {
    let mut datapath = Datapath::new(&dual());
    for side in BOTH {
        let big = Payload::Udp {
            source: 5,
            destination: 8473,
            data: vec![0x77; 2000],
            checksum: true,
        };
        for fragment in fragments(side.peer, side.guest, &big, &Shape::default(), 3, 1024) {
            datapath.run_with_sum(At::Ingress, &fragment);
        }
        for fragment in fragments(side.node, side.peer, &big, &Shape::default(), 3, 1024) {
            datapath.run_with_sum(At::EgressFirst, &fragment);
        }
        let quote = packet(
            side.guest,
            side.peer,
            &Payload::vxlan(true),
            &Shape::default(),
        );
        datapath.run_with_sum(
            At::Ingress,
            &frame(side.peer, side.guest, &error(side, &quote)),
        );
        let quote = packet(
            side.peer,
            side.node,
            &Payload::vxlan(true),
            &Shape::default(),
        );
        datapath.run_with_sum(
            At::EgressFirst,
            &frame(side.node, side.peer, &error(side, &quote)),
        );
    }
}

#[test]
fn a_delivered_sum_stays_right_for_arp() {
    let mut datapath = Datapath::new(&dual());
    let mut arp = vec![0xff; 6];
    arp.extend([
        2, 0, 0, 0, 0, 2, 0x08, 0x06, 0, 1, 0x08, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 2,
    ]);
    arp.extend(crate::packets::N4.octets());
    arp.extend([0; 6]);
    arp.extend(crate::packets::N4.octets());
    datapath.run_with_sum(At::EgressFirst, &arp);
}

#[test]
fn a_pending_checksum_is_told_from_a_finished_one() {
    // XDP has no device to finish it, but a veth pair hands such frames on: the field must hold the new
    // pseudo-header sum, not be updated as a finished one.
    let mut datapath = Datapath::new(&dual());
    for side in BOTH {
        let payload = Payload::vxlan(false);
        let header = if side.node.is_ipv4() { 20 } else { 40 };
        let make = |destination| {
            let mut frame = frame(side.peer, destination, &payload);
            let at = 14 + header + 6;
            let length = frame.len() - 14 - header;
            frame[at..at + 2].copy_from_slice(&pending(side.peer, destination, UDP, length));
            frame
        };
        datapath.expect(
            At::Xdp,
            &make(side.guest),
            &make(side.node),
            "a pending checksum",
        );
    }
}

/// The finished checksum of one packet in 65,536 becomes 0 by the update, which would mean "none".
#[test]
fn an_updated_udp_checksum_is_never_zero() {
    let mut datapath = Datapath::new(&dual());
    let mut seen = 0;
    for word in 0..=u16::MAX {
        let payload = Payload::Udp {
            source: 9,
            destination: 8473,
            data: word.to_be_bytes().to_vec(),
            checksum: true,
        };
        let expected = frame(V4.peer, V4.node, &payload);
        if expected[40..42] == [0xff, 0xff] {
            datapath.expect(
                At::Ingress,
                &frame(V4.peer, V4.guest, &payload),
                &expected,
                "a checksum of 0xffff",
            );
            datapath.expect(
                At::Xdp,
                &frame(V4.peer, V4.guest, &payload),
                &expected,
                "a checksum of 0xffff",
            );
            seen += 1;
        }
    }
    assert!(
        seen > 0,
        "no payload had the checksum that the test is about"
    );
}
