//! Egress rule 1: whatever has N as its source leaves from G.

use crate::{
    harness::{At, Datapath, dual, v4_only},
    packets::{
        ACK, BOTH, DCCP, ESP, GATEWAY4, GRE, IPIP, Payload, SYN, Shape, UDPLITE, V4, V6, frame,
        packet, shaped,
    },
};

const EGRESS: [At; 2] = [At::EgressFirst, At::EgressLast];

fn payloads() -> Vec<(&'static str, Payload)> {
    vec![
        ("UDP", Payload::udp(5000, 53)),
        (
            "UDP without payload",
            Payload::Udp {
                source: 1,
                destination: 2,
                data: vec![],
                checksum: true,
            },
        ),
        ("VXLAN with a checksum", Payload::vxlan(true)),
        ("TCP", Payload::tcp(45_000, 443, ACK)),
        ("TCP SYN", Payload::tcp(45_000, 443, SYN)),
        (
            "TCP from the service set",
            Payload::tcp(10_250, 40_000, ACK),
        ),
        (
            "UDP-Lite",
            Payload::LikeUdp {
                protocol: UDPLITE,
                source: 1000,
                destination: 2000,
                data: vec![7; 9],
            },
        ),
        (
            "DCCP",
            Payload::LikeUdp {
                protocol: DCCP,
                source: 1000,
                destination: 2000,
                data: vec![7; 12],
            },
        ),
        (
            "SCTP",
            Payload::Sctp {
                source: 1000,
                destination: 2000,
                data: vec![1; 20],
            },
        ),
        (
            "GRE",
            Payload::Raw {
                protocol: GRE,
                data: vec![0; 24],
            },
        ),
        (
            "ESP",
            Payload::Raw {
                protocol: ESP,
                data: vec![9; 40],
            },
        ),
        (
            "a protocol nobody knows",
            Payload::Raw {
                protocol: 253,
                data: vec![1, 2, 3],
            },
        ),
        (
            "no payload at all",
            Payload::Raw {
                protocol: 59,
                data: vec![],
            },
        ),
    ]
}

#[test]
fn every_protocol_leaves_from_the_guest_address() {
    let mut datapath = Datapath::new(&dual());
    for side in BOTH {
        let mut all = payloads();
        all.push(("an echo request", Payload::echo(side, true, 77)));
        all.push(("an echo reply", Payload::echo(side, false, 77)));
        let tunnelled = packet(side.node, side.peer, &Payload::udp(1, 2), &Shape::default());
        all.push((
            "IPIP",
            Payload::Raw {
                protocol: IPIP,
                data: tunnelled,
            },
        ));
        for (what, payload) in all {
            for place in EGRESS {
                datapath.expect(
                    place,
                    &frame(side.node, side.peer, &payload),
                    &frame(side.guest, side.peer, &payload),
                    what,
                );
            }
        }
    }
}

#[test]
fn a_udp_checksum_of_zero_stays_zero() {
    let mut datapath = Datapath::new(&dual());
    for side in BOTH {
        let payload = Payload::vxlan(false);
        datapath.expect(
            At::EgressFirst,
            &frame(side.node, side.peer, &payload),
            &frame(side.guest, side.peer, &payload),
            "VXLAN without a checksum",
        );
    }
}

#[test]
fn tags_options_padding_and_extension_headers_are_looked_behind() {
    let mut datapath = Datapath::new(&dual());
    let tagged = Shape {
        tags: vec![(0x8100, 0x2064)],
        ..Shape::default()
    };
    let twice = Shape {
        tags: vec![(0x88a8, 100), (0x8100, 200)],
        ..Shape::default()
    };
    let options = |words: usize| Shape {
        options: [7, 4, 4, 0].repeat(words),
        ..Shape::default()
    };
    let padded = Shape {
        padding: 18,
        ..Shape::default()
    };
    let extensions = |kinds: &[u8]| Shape {
        extensions: kinds
            .iter()
            .map(|kind| match kind {
                51 => (51, vec![0; 22]),
                _ => (*kind, [0, 0, 1, 4, 0, 0, 0, 0].repeat(2)[..14].to_vec()),
            })
            .collect(),
        ..Shape::default()
    };
    for (what, side, shape) in [
        ("one tag", V4, tagged.clone()),
        ("one tag", V6, tagged),
        ("two tags", V4, twice.clone()),
        ("two tags", V6, twice),
        ("one word of options", V4, options(1)),
        ("as many options as fit", V4, options(10)),
        ("a padded frame", V4, padded.clone()),
        ("a padded frame", V6, padded),
        ("hop-by-hop options", V6, extensions(&[0])),
        (
            "every kind of extension header",
            V6,
            extensions(&[0, 60, 43, 51, 60, 135]),
        ),
        (
            "eight extension headers",
            V6,
            extensions(&[0, 60, 60, 60, 60, 60, 60, 60]),
        ),
    ] {
        for (name, payload) in payloads() {
            datapath.expect(
                At::EgressFirst,
                &shaped(side.node, side.peer, &payload, &shape),
                &shaped(side.guest, side.peer, &payload, &shape),
                &format!("{name} behind {what}"),
            );
        }
    }
}

#[test]
fn a_routing_header_with_segments_left_puts_its_last_one_into_the_checksum() {
    let mut datapath = Datapath::new(&dual());
    let hop = "fd00::aaaa".parse().unwrap();
    for kind in [2, 4] {
        let mut routing = vec![kind, 1];
        routing.extend([0; 4]);
        let std::net::IpAddr::V6(last) = V6.peer else {
            unreachable!()
        };
        routing.extend(last.octets());
        let shape = Shape {
            extensions: vec![(43, routing)],
            final_destination: Some(V6.peer),
            ..Shape::default()
        };
        for payload in [Payload::tcp(1, 2, ACK), Payload::udp(3, 4)] {
            datapath.expect(
                At::EgressFirst,
                &shaped(V6.node, hop, &payload, &shape),
                &shaped(V6.guest, hop, &payload, &shape),
                "a routed packet",
            );
        }
    }
}

#[test]
fn other_sources_are_left_alone() {
    let mut datapath = Datapath::new(&dual());
    for (what, source, side) in [
        ("the guest address", V4.guest, V4),
        ("the guest address", V6.guest, V6),
        ("a pod", "10.42.0.7".parse().unwrap(), V4),
        ("a pod", "fd42::7".parse().unwrap(), V6),
        ("no address yet", "0.0.0.0".parse().unwrap(), V4),
        ("no address yet", "::".parse().unwrap(), V6),
    ] {
        for (name, payload) in payloads() {
            for place in EGRESS {
                datapath.expect_unchanged(
                    place,
                    &frame(source, side.peer, &payload),
                    &format!("{name} from {what}"),
                );
            }
        }
    }
}

#[test]
fn the_node_address_as_a_destination_is_left_alone() {
    let mut datapath = Datapath::new(&dual());
    for side in BOTH {
        datapath.expect_unchanged(
            At::EgressFirst,
            &frame(side.guest, side.node, &Payload::udp(1, 2)),
            "to N",
        );
    }
}

#[test]
fn a_family_that_is_not_configured_is_left_alone() {
    let mut datapath = Datapath::new(&v4_only());
    for (name, payload) in payloads() {
        datapath.expect_unchanged(At::EgressFirst, &frame(V6.node, V6.peer, &payload), name);
        datapath.expect_unchanged(At::Ingress, &frame(V6.peer, V6.guest, &payload), name);
        datapath.expect_unchanged(At::Xdp, &frame(V6.peer, V6.guest, &payload), name);
    }
    // Zeroes are what an unconfigured family's constants hold.
    let unspecified = "::".parse().unwrap();
    datapath.expect_unchanged(
        At::EgressFirst,
        &frame(unspecified, V6.peer, &Payload::udp(1, 2)),
        "from ::",
    );
}

#[test]
fn translation_twice_is_translation_once() {
    let mut datapath = Datapath::new(&dual());
    for side in BOTH {
        for (name, payload) in payloads() {
            let once = datapath.run(At::EgressFirst, &frame(side.node, side.peer, &payload));
            datapath.expect_unchanged(At::EgressLast, &once, name);
        }
    }
}

#[test]
fn the_gateway_is_answered_from_the_guest_address() {
    let mut datapath = Datapath::new(&dual());
    let gateway = GATEWAY4.into();
    datapath.expect(
        At::EgressFirst,
        &frame(V4.node, gateway, &Payload::echo(V4, false, 1)),
        &frame(V4.guest, gateway, &Payload::echo(V4, false, 1)),
        "an echo reply to the gateway",
    );
}
