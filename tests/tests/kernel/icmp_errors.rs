//! ICMP and ICMPv6 errors: whoever gets one must know the packet that it quotes.

use crate::{
    harness::{At, Datapath, INGRESS, dual, v4_only},
    packets::{ACK, BOTH, IPIP, Payload, SYN, Shape, Side, V4, error, frame, packet, shaped},
};

/// What every error must quote at least: the header and 8 bytes.
fn shortest(side: Side, shape: &Shape) -> usize {
    8 + if side.node.is_ipv6() {
        40
    } else {
        20 + shape.options.len()
    }
}

fn quotes(
    side: Side,
    from: std::net::IpAddr,
    to: std::net::IpAddr,
    payload: &Payload,
) -> Vec<(String, Vec<u8>)> {
    let mut shapes = vec![Shape::default()];
    if side.node.is_ipv4() {
        shapes.push(Shape {
            options: vec![1; 8],
            ..Shape::default()
        });
        shapes.push(Shape {
            options: vec![1; 40],
            ..Shape::default()
        });
    } else {
        shapes.push(Shape {
            extensions: vec![(60, vec![0; 6])],
            ..Shape::default()
        });
    }
    shapes
        .iter()
        .flat_map(|shape| {
            let whole = packet(from, to, payload, shape);
            let extra = shape
                .extensions
                .iter()
                .map(|(_, rest)| 2 + rest.len())
                .sum::<usize>();
            let cut = whole[..shortest(side, shape) + extra].to_vec();
            [
                (format!("whole {payload:?} in {shape:?}"), whole),
                (format!("8 bytes of {payload:?} in {shape:?}"), cut),
            ]
        })
        .collect()
}

#[test]
fn an_error_about_a_packet_that_left_from_the_node_address_comes_back_to_it() {
    for at in INGRESS {
        let mut datapath = Datapath::new(&dual());
        for side in BOTH {
            let router = if side.node.is_ipv4() {
                "10.244.0.1"
            } else {
                "fd00:244::1"
            }
            .parse()
            .unwrap();
            let remembered = [
                Payload::tcp(45_000, 443, SYN),
                Payload::udp(45_001, 53),
                Payload::echo(side, true, 9),
            ];
            for payload in &remembered {
                datapath.run(At::EgressFirst, &frame(side.node, side.peer, payload));
            }
            let services = [
                Payload::vxlan(true),
                Payload::vxlan(false),
                Payload::tcp(10_250, 40_000, ACK),
                Payload::Raw {
                    protocol: IPIP,
                    data: vec![0x45; 40],
                },
            ];
            for payload in remembered.iter().chain(&services) {
                let seen_outside = quotes(side, side.guest, side.peer, payload);
                let sent_by_us = quotes(side, side.node, side.peer, payload);
                for ((what, outside), (_, ours)) in seen_outside.into_iter().zip(sent_by_us) {
                    // The quoted transport checksum stays as it was outside.
                    let mut expected_quote = ours;
                    let header = expected_quote.len().min(transport_of(side, &outside));
                    expected_quote[header..].copy_from_slice(&outside[header..]);
                    datapath.expect(
                        at,
                        &frame(router, side.guest, &error(side, &outside)),
                        &frame(router, side.node, &error(side, &expected_quote)),
                        &format!("an error that quotes {what}"),
                    );
                }
            }
        }
    }
}

/// Where a quoted packet's transport header starts.
fn transport_of(side: Side, quote: &[u8]) -> usize {
    if side.node.is_ipv4() {
        usize::from(quote[0] & 0xf) * 4
    } else if quote[6] == 60 {
        48
    } else {
        40
    }
}

#[test]
fn an_error_about_the_guests_own_packet_is_left_alone() {
    for at in INGRESS {
        let mut datapath = Datapath::new(&dual());
        for side in BOTH {
            for payload in [
                Payload::tcp(45_000, 443, SYN),
                Payload::udp(45_001, 53),
                Payload::echo(side, true, 9),
            ] {
                for (what, quote) in quotes(side, side.guest, side.peer, &payload) {
                    datapath.expect_unchanged(
                        at,
                        &frame(side.peer, side.guest, &error(side, &quote)),
                        &what,
                    );
                }
            }
        }
    }
}

#[test]
fn an_error_about_a_packet_of_somebody_elses_is_left_alone() {
    for at in INGRESS {
        let mut datapath = Datapath::new(&dual());
        for side in BOTH {
            for payload in [Payload::vxlan(true), Payload::tcp(10_250, 40_000, ACK)] {
                let quote = packet(side.peer, side.peer, &payload, &Shape::default());
                datapath.expect_unchanged(
                    at,
                    &frame(side.peer, side.guest, &error(side, &quote)),
                    "an error about a packet that the guest did not send",
                );
            }
        }
    }
}

#[test]
fn an_error_about_a_flow_that_the_guest_opened_from_a_service_port_is_left_alone() {
    let mut datapath = Datapath::new(&dual());
    let payload = Payload::tcp(10_250, 443, SYN);
    datapath.run(At::EgressFirst, &frame(V4.guest, V4.peer, &payload));
    let quote = packet(V4.guest, V4.peer, &payload, &Shape::default());
    datapath.expect_unchanged(
        At::Ingress,
        &frame(V4.peer, V4.guest, &error(V4, &quote)),
        "the guest's own flow",
    );
}

#[test]
fn an_error_about_a_packet_that_arrived_names_what_was_sent() {
    let mut datapath = Datapath::new(&dual());
    for side in BOTH {
        for payload in [
            Payload::vxlan(true),
            Payload::tcp(40_000, 10_250, ACK),
            Payload::udp(40_000, 8472),
        ] {
            let arrived = quotes(side, side.peer, side.node, &payload);
            let sent = quotes(side, side.peer, side.guest, &payload);
            for ((what, arrived), (_, sent)) in arrived.into_iter().zip(sent) {
                let mut expected_quote = sent;
                let header = expected_quote.len().min(transport_of(side, &arrived));
                expected_quote[header..].copy_from_slice(&arrived[header..]);
                for from in [side.node, side.guest] {
                    for place in [At::EgressFirst, At::EgressLast] {
                        datapath.expect(
                            place,
                            &frame(from, side.peer, &error(side, &arrived)),
                            &frame(side.guest, side.peer, &error(side, &expected_quote)),
                            &format!("an error from {from} that quotes {what}"),
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn an_error_from_the_node_address_about_another_packet_leaves_from_the_guest_address() {
    let mut datapath = Datapath::new(&dual());
    for side in BOTH {
        let pod = if side.node.is_ipv4() {
            "10.42.0.5"
        } else {
            "fd42::5"
        }
        .parse()
        .unwrap();
        let quote = packet(side.peer, pod, &Payload::udp(1, 2), &Shape::default());
        datapath.expect(
            At::EgressFirst,
            &frame(side.node, side.peer, &error(side, &quote)),
            &frame(side.guest, side.peer, &error(side, &quote)),
            "an error about a pod's packet",
        );
    }
}

#[test]
fn an_error_in_an_odd_shape_is_understood() {
    let mut datapath = Datapath::new(&dual());
    let payload = Payload::vxlan(true);
    let quote = |from| {
        let mut quote = packet(from, V4.peer, &payload, &Shape::default())[..28].to_vec();
        // The quoted transport checksum is nobody's business.
        quote[26..].copy_from_slice(&[0xab, 0xcd]);
        quote
    };
    let shape = Shape {
        tags: vec![(0x8100, 3)],
        options: vec![1; 12],
        padding: 4,
        ..Shape::default()
    };
    for at in INGRESS {
        datapath.expect(
            at,
            &shaped(V4.peer, V4.guest, &error(V4, &quote(V4.guest)), &shape),
            &shaped(V4.peer, V4.node, &error(V4, &quote(V4.node)), &shape),
            "a tagged error with options",
        );
    }
}

#[test]
fn a_quote_too_short_to_tell_is_passed() {
    let mut datapath = Datapath::new(&dual());
    for side in BOTH {
        let whole = packet(
            side.guest,
            side.peer,
            &Payload::vxlan(true),
            &Shape::default(),
        );
        let header = if side.node.is_ipv4() { 20 } else { 40 };
        for length in 0..header + 4 {
            for at in INGRESS {
                datapath.expect_unchanged(
                    at,
                    &frame(side.peer, side.guest, &error(side, &whole[..length])),
                    &format!("an error that quotes {length} bytes"),
                );
            }
        }
    }
}

#[test]
fn a_later_fragment_in_a_quote_tells_nothing() {
    let mut datapath = Datapath::new(&v4_only());
    let mut quote = packet(V4.guest, V4.peer, &Payload::vxlan(true), &Shape::default());
    quote[6..8].copy_from_slice(&185u16.to_be_bytes());
    datapath.expect_unchanged(
        At::Ingress,
        &frame(V4.peer, V4.guest, &error(V4, &quote)),
        "a later fragment",
    );
}
