//! Fragments, both ways: every piece of a datagram goes the same way.

use xkub_common::counter::{Class, Event, Family, Place};

use crate::{
    harness::{At, Datapath, INGRESS, dual},
    packets::{BOTH, GRE, Payload, Shape, V4, fragments},
};

fn big(source: u16, destination: u16) -> Payload {
    Payload::Udp {
        source,
        destination,
        data: (0..=u8::MAX).cycle().take(3000).collect(),
        checksum: true,
    }
}

#[test]
fn every_fragment_leaves_from_the_guest_address() {
    let mut datapath = Datapath::new(&dual());
    for side in BOTH {
        for shape in [
            Shape::default(),
            Shape {
                tags: vec![(0x8100, 9)],
                ..Shape::default()
            },
        ] {
            let ping = Payload::Icmp {
                kind: if side.node.is_ipv4() { 8 } else { 128 },
                code: 0,
                rest: (0..=u8::MAX).cycle().take(3000).collect(),
            };
            for payload in [big(5000, 6000), ping] {
                let sent = fragments(side.node, side.peer, &payload, &shape, 42, 1024);
                let expected = fragments(side.guest, side.peer, &payload, &shape, 42, 1024);
                assert_eq!(sent.len(), 3);
                // In any order.
                for index in [2, 0, 1] {
                    datapath.expect(
                        At::EgressFirst,
                        &sent[index],
                        &expected[index],
                        "a fragment",
                    );
                }
            }
        }
    }
}

#[test]
fn later_fragments_follow_the_first() {
    for at in INGRESS {
        let mut datapath = Datapath::new(&dual());
        for side in BOTH {
            let payload = big(50_000, 8473);
            let sent = fragments(side.peer, side.guest, &payload, &Shape::default(), 7, 1024);
            let expected = fragments(side.peer, side.node, &payload, &Shape::default(), 7, 1024);
            for index in [0, 2, 1] {
                datapath.expect(
                    at,
                    &sent[index],
                    &expected[index],
                    "a fragment of a service's datagram",
                );
            }
            let payload = big(50_000, 5353);
            for fragment in fragments(side.peer, side.guest, &payload, &Shape::default(), 8, 1024) {
                datapath.expect_unchanged(at, &fragment, "a fragment of another datagram");
            }
        }
    }
}

#[test]
fn fragments_of_another_datagram_do_not_follow() {
    for at in INGRESS {
        let mut datapath = Datapath::new(&dual());
        for side in BOTH {
            let stranger = if side.peer.is_ipv4() {
                "10.244.9.9"
            } else {
                "fd00:244:9::9"
            }
            .parse()
            .unwrap();
            let pieces = |peer, payload: &Payload, identification| {
                fragments(
                    peer,
                    side.guest,
                    payload,
                    &Shape::default(),
                    identification,
                    1024,
                )
            };
            let service = big(50_000, 8473);
            datapath.run(at, &pieces(side.peer, &service, 7)[0]);
            let other_protocol = Payload::Raw {
                protocol: GRE,
                data: vec![1; 3000],
            };
            for (what, pieces) in [
                ("another identification", pieces(side.peer, &service, 8)),
                ("another sender", pieces(stranger, &service, 7)),
                ("another protocol", pieces(side.peer, &other_protocol, 7)),
            ] {
                datapath.expect_unchanged(at, &pieces[1], what);
            }
        }
    }
}

#[test]
fn a_datagram_whose_fragments_come_out_of_order_stays_whole() {
    for at in INGRESS {
        let mut datapath = Datapath::new(&dual());
        for (side, family) in BOTH.into_iter().zip([Family::V4, Family::V6]) {
            let payload = big(50_000, 8473);
            let sent = fragments(side.peer, side.guest, &payload, &Shape::default(), 9, 1024);
            // The first to come decides: all of it goes to G, where a socket on the wildcard has it whole.
            for index in [2, 0, 1] {
                datapath.expect_unchanged(at, &sent[index], "a fragment out of order");
            }
            assert_eq!(
                datapath.counter(Place::Ingress, family, Class::Fragment, Event::Unordered),
                1
            );
            assert_eq!(
                datapath.counter(Place::Ingress, family, Class::Fragment, Event::Passed),
                2
            );
        }
    }
}

#[test]
fn fragments_of_an_answer_find_the_node_address() {
    let mut datapath = Datapath::new(&dual());
    for side in BOTH {
        datapath.run(
            At::EgressFirst,
            &crate::packets::frame(side.node, side.peer, &Payload::udp(45_000, 53)),
        );
        let payload = big(53, 45_000);
        let sent = fragments(side.peer, side.guest, &payload, &Shape::default(), 11, 1024);
        let expected = fragments(side.peer, side.node, &payload, &Shape::default(), 11, 1024);
        for (sent, expected) in sent.iter().zip(&expected) {
            datapath.expect(At::Ingress, sent, expected, "a fragment of an answer");
        }
    }
}

#[test]
fn an_identification_that_is_used_again_is_a_new_datagram() {
    let mut datapath = Datapath::new(&dual());
    for fragment in fragments(
        V4.peer,
        V4.guest,
        &big(50_000, 5353),
        &Shape::default(),
        5,
        1024,
    ) {
        datapath.expect_unchanged(At::Ingress, &fragment, "not a service's");
    }
    let payload = big(50_000, 8473);
    let sent = fragments(V4.peer, V4.guest, &payload, &Shape::default(), 5, 1024);
    let expected = fragments(V4.peer, V4.node, &payload, &Shape::default(), 5, 1024);
    for (sent, expected) in sent.iter().zip(&expected) {
        datapath.expect(
            At::Ingress,
            sent,
            expected,
            "a service's, with the same identification",
        );
    }
}

#[test]
fn an_atomic_fragment_is_a_whole_datagram() {
    let mut datapath = Datapath::new(&dual());
    let side = crate::packets::V6;
    let payload = Payload::vxlan(true);
    let sent = fragments(side.peer, side.guest, &payload, &Shape::default(), 1, 4096);
    let expected = fragments(side.peer, side.node, &payload, &Shape::default(), 1, 4096);
    datapath.expect(At::Ingress, &sent[0], &expected[0], "an atomic fragment");
}
