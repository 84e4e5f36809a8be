//! Egress rule 4 and ingress rule 2: flows that were opened from N, and those that were opened from G.

use xkub_common::{
    counter::{Class, Event, Family, Place},
    flow::Owner,
};

use crate::{
    harness::{At, Datapath, INGRESS, dual},
    packets::{ACK, BOTH, ESP, IPIP, Payload, SCTP, SYN, V4, frame},
};

#[test]
fn answers_to_flows_opened_from_the_node_address_find_it() {
    for at in INGRESS {
        let mut datapath = Datapath::new(&dual());
        for side in BOTH {
            let esp = Payload::Raw {
                protocol: ESP,
                data: vec![3; 32],
            };
            for (what, request, answer) in [
                (
                    "TCP",
                    Payload::tcp(45_000, 443, SYN),
                    Payload::tcp(443, 45_000, SYN | ACK),
                ),
                ("UDP", Payload::udp(45_001, 53), Payload::udp(53, 45_001)),
                (
                    "SCTP",
                    Payload::Sctp {
                        source: 7,
                        destination: 8,
                        data: vec![1; 12],
                    },
                    Payload::Sctp {
                        source: 8,
                        destination: 7,
                        data: vec![2; 12],
                    },
                ),
                (
                    "ping",
                    Payload::echo(side, true, 99),
                    Payload::echo(side, false, 99),
                ),
                ("ESP", esp.clone(), esp),
            ] {
                datapath.expect_unchanged(
                    at,
                    &frame(side.peer, side.guest, &answer),
                    &format!("{what} before it was opened"),
                );
                datapath.expect(
                    At::EgressFirst,
                    &frame(side.node, side.peer, &request),
                    &frame(side.guest, side.peer, &request),
                    what,
                );
                datapath.expect(
                    at,
                    &frame(side.peer, side.guest, &answer),
                    &frame(side.peer, side.node, &answer),
                    &format!("the answer to {what}"),
                );
            }
            let other = Payload::udp(54, 45_001);
            datapath.expect_unchanged(
                at,
                &frame(side.peer, side.guest, &other),
                "another port of the same peer",
            );
        }
    }
}

#[test]
fn a_flow_opened_by_a_program_in_between_is_remembered_in_the_last_place() {
    let mut datapath = Datapath::new(&dual());
    let request = Payload::tcp(45_000, 443, SYN);
    datapath.run(At::EgressLast, &frame(V4.node, V4.peer, &request));
    let answer = Payload::tcp(443, 45_000, SYN | ACK);
    datapath.expect(
        At::Ingress,
        &frame(V4.peer, V4.guest, &answer),
        &frame(V4.peer, V4.node, &answer),
        "the answer",
    );
}

#[test]
fn tunnels_services_and_answers_are_not_remembered() {
    let mut datapath = Datapath::new(&dual());
    for payload in [
        Payload::vxlan(false),
        Payload::vxlan(true),
        Payload::udp(8472, 8472),
        Payload::udp(50_000, 6081),
        Payload::tcp(10_250, 40_000, ACK),
        Payload::Raw {
            protocol: IPIP,
            data: vec![0x45; 20],
        },
        Payload::echo(V4, false, 5),
    ] {
        datapath.run(At::EgressFirst, &frame(V4.node, V4.peer, &payload));
    }
    assert!(datapath.flows_v4().is_empty(), "{:?}", datapath.flows_v4());
    assert_eq!(datapath.events(Place::EgressFirst, Event::Remembered), 0);
}

#[test]
fn a_flow_is_remembered_once() {
    let mut datapath = Datapath::new(&dual());
    for _ in 0..5 {
        datapath.run(
            At::EgressFirst,
            &frame(V4.node, V4.peer, &Payload::tcp(45_000, 443, ACK)),
        );
    }
    assert_eq!(
        datapath.counter(
            Place::EgressFirst,
            Family::V4,
            Class::Tcp,
            Event::Remembered
        ),
        1
    );
    assert_eq!(
        datapath.counter(
            Place::EgressFirst,
            Family::V4,
            Class::Tcp,
            Event::Translated
        ),
        5
    );
}

#[test]
fn the_guests_own_flows_are_left_alone_even_from_a_port_of_the_service_set() {
    for at in INGRESS {
        let mut config = dual();
        for port in 30_000..=32_767 {
            config.services.udp.insert(port);
            config.services.tcp.insert(port);
        }
        let mut datapath = Datapath::new(&config);
        for side in BOTH {
            for (what, request, answer) in [
                (
                    "TCP",
                    Payload::tcp(31_000, 443, SYN),
                    Payload::tcp(443, 31_000, SYN | ACK),
                ),
                ("UDP", Payload::udp(31_001, 53), Payload::udp(53, 31_001)),
                (
                    "UDP from an overlay port",
                    Payload::udp(8472, 53),
                    Payload::udp(53, 8472),
                ),
            ] {
                datapath.expect_unchanged(
                    At::EgressFirst,
                    &frame(side.guest, side.peer, &request),
                    what,
                );
                datapath.expect_unchanged(
                    at,
                    &frame(side.peer, side.guest, &answer),
                    &format!("the answer to {what}"),
                );
            }
            // Others still reach the services on the same ports.
            let stranger = if side.peer.is_ipv4() {
                "10.244.9.9"
            } else {
                "fd00:244:9::9"
            }
            .parse()
            .unwrap();
            for payload in [
                Payload::tcp(443, 31_000, SYN),
                Payload::tcp(443, 31_000, ACK),
                Payload::udp(53, 31_001),
            ] {
                datapath.expect(
                    at,
                    &frame(stranger, side.guest, &payload),
                    &frame(stranger, side.node, &payload),
                    "a stranger",
                );
            }
            // A new connection with the same ends is the peer's, all of it; and one after that the guest's again.
            for flags in [SYN, ACK, ACK] {
                let again = Payload::tcp(443, 31_000, flags);
                datapath.expect(
                    at,
                    &frame(side.peer, side.guest, &again),
                    &frame(side.peer, side.node, &again),
                    "a connection of the peer's",
                );
            }
            datapath.expect_unchanged(
                At::EgressFirst,
                &frame(side.guest, side.peer, &Payload::tcp(31_000, 443, SYN)),
                "a SYN of the guest's",
            );
            datapath.expect_unchanged(
                at,
                &frame(side.peer, side.guest, &Payload::tcp(443, 31_000, SYN | ACK)),
                "the answer to it",
            );
        }
    }
}

#[test]
fn a_flow_of_the_guests_is_not_taken_for_an_older_one_from_the_node_address() {
    for at in INGRESS {
        let mut datapath = Datapath::new(&dual());
        for side in BOTH {
            for (what, request, answers) in [
                (
                    "TCP",
                    Payload::tcp(45_000, 443, SYN),
                    [
                        Payload::tcp(443, 45_000, SYN | ACK),
                        Payload::tcp(443, 45_000, ACK),
                    ],
                ),
                (
                    "UDP",
                    Payload::udp(45_001, 53),
                    [Payload::udp(53, 45_001), Payload::udp(53, 45_001)],
                ),
                (
                    "ping",
                    Payload::echo(side, true, 99),
                    [
                        Payload::echo(side, false, 99),
                        Payload::echo(side, false, 99),
                    ],
                ),
            ] {
                // Twice, for each takes it from the other.
                for source in [side.node, side.guest, side.node, side.guest] {
                    datapath.expect(
                        At::EgressFirst,
                        &frame(source, side.peer, &request),
                        &frame(side.guest, side.peer, &request),
                        what,
                    );
                    for answer in &answers {
                        datapath.expect(
                            at,
                            &frame(side.peer, side.guest, answer),
                            &frame(side.peer, source, answer),
                            &format!("the answer to {what} from {source}"),
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn the_guests_own_flows_are_left_alone_though_their_protocol_belongs_to_the_service_set() {
    for at in INGRESS {
        let mut config = dual();
        config.services.protocols.insert(SCTP);
        config.services.protocols.insert(crate::packets::ICMP);
        config.services.protocols.insert(crate::packets::ICMPV6);
        let mut datapath = Datapath::new(&config);
        for side in BOTH {
            datapath.expect_unchanged(
                At::EgressFirst,
                &frame(side.guest, side.peer, &Payload::echo(side, true, 5)),
                "a ping of the guest's",
            );
            datapath.expect_unchanged(
                at,
                &frame(side.peer, side.guest, &Payload::echo(side, false, 5)),
                "the answer to it",
            );
            let sctp = |source, destination| Payload::Sctp {
                source,
                destination,
                data: vec![1; 12],
            };
            datapath.expect_unchanged(
                At::EgressFirst,
                &frame(side.guest, side.peer, &sctp(7, 8)),
                "SCTP of the guest's",
            );
            datapath.expect_unchanged(
                at,
                &frame(side.peer, side.guest, &sctp(8, 7)),
                "the answer to it",
            );
            let ping = Payload::echo(side, true, 6);
            datapath.expect(
                at,
                &frame(side.peer, side.guest, &ping),
                &frame(side.peer, side.node, &ping),
                "a ping of the peer's",
            );
        }
    }
}

#[test]
fn a_tunnel_packet_from_the_guest_address_is_no_flow() {
    let mut datapath = Datapath::new(&dual());
    // VXLAN whose source port happens to be an overlay port, its source chosen by route.
    datapath.expect_unchanged(
        At::EgressFirst,
        &frame(V4.guest, V4.peer, &Payload::udp(8472, 8472)),
        "VXLAN",
    );
    let back = Payload::udp(8472, 8472);
    datapath.expect(
        At::Ingress,
        &frame(V4.peer, V4.guest, &back),
        &frame(V4.peer, V4.node, &back),
        "VXLAN from the peer",
    );
}

#[test]
fn a_connection_translated_in_the_first_place_is_not_the_guests_in_the_last() {
    let mut datapath = Datapath::new(&dual());
    let syn = Payload::tcp(10_250, 443, SYN);
    let leaving = datapath.run(At::EgressFirst, &frame(V4.node, V4.peer, &syn));
    datapath.run(At::EgressLast, &leaving);
    let answer = Payload::tcp(443, 10_250, SYN | ACK);
    datapath.expect(
        At::Ingress,
        &frame(V4.peer, V4.guest, &answer),
        &frame(V4.peer, V4.node, &answer),
        "the answer",
    );
}

#[test]
fn a_full_map_forgets_and_harms_nothing() {
    const ROOM: u32 = 64;
    let mut datapath = Datapath::with_flow_entries(&dual(), ROOM);
    for port in 20_000..20_000 + 8 * u16::try_from(ROOM).unwrap() {
        let payload = Payload::udp(port, 53);
        datapath.expect(
            At::EgressFirst,
            &frame(V4.node, V4.peer, &payload),
            &frame(V4.guest, V4.peer, &payload),
            "a packet that leaves while the map is full",
        );
    }
    let flows = datapath.flows_v4();
    assert!(flows.len() <= usize::try_from(ROOM).unwrap());
    assert!(!flows.is_empty());
    assert!(flows.iter().all(|(_, flow)| flow.is(Owner::Node)));
    assert_eq!(
        datapath.counter(
            Place::EgressFirst,
            Family::V4,
            Class::Udp,
            Event::Remembered
        ),
        u64::from(8 * ROOM)
    );
    // The newest is still there.
    let answer = Payload::udp(53, 20_000 + 8 * u16::try_from(ROOM).unwrap() - 1);
    datapath.expect(
        At::Ingress,
        &frame(V4.peer, V4.guest, &answer),
        &frame(V4.peer, V4.node, &answer),
        "the answer to the newest flow",
    );
}
