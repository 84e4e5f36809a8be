//! Ingress rule 1: what belongs to the service set is reached at N.

use crate::{
    harness::{At, Datapath, INGRESS, dual},
    packets::{ACK, BOTH, IPIP, Payload, SCTP, SYN, Shape, V4, V6, frame, packet, shaped},
};

fn services() -> Vec<(&'static str, Payload)> {
    let tunnelled = packet(V4.peer, V4.node, &Payload::udp(1, 2), &Shape::default());
    vec![
        ("VXLAN 8473 without a checksum", Payload::vxlan(false)),
        ("VXLAN 8473 with a checksum", Payload::vxlan(true)),
        ("VXLAN 8472", Payload::udp(40_000, 8472)),
        ("VXLAN 4789", Payload::udp(40_000, 4789)),
        ("Geneve", Payload::udp(40_000, 6081)),
        ("the kubelet, SYN", Payload::tcp(40_000, 10_250, SYN)),
        (
            "the kubelet, established",
            Payload::tcp(40_000, 10_250, ACK),
        ),
        (
            "IPIP",
            Payload::Raw {
                protocol: IPIP,
                data: tunnelled,
            },
        ),
    ]
}

#[test]
fn the_default_service_set_is_reached_at_the_node_address() {
    let mut datapath = Datapath::new(&dual());
    for side in BOTH {
        for (what, payload) in services() {
            for at in INGRESS {
                datapath.expect(
                    at,
                    &frame(side.peer, side.guest, &payload),
                    &frame(side.peer, side.node, &payload),
                    what,
                );
            }
        }
    }
}

#[test]
fn ranges_single_ports_and_whole_protocols_can_be_configured() {
    let mut config = dual();
    for port in 30_000..=32_767 {
        config.services.udp.insert(port);
        config.services.tcp.insert(port);
    }
    config.services.tcp.insert(179);
    config.services.protocols.insert(SCTP);
    let mut datapath = Datapath::new(&config);
    for side in BOTH {
        for at in INGRESS {
            for port in [179, 30_000, 31_234, 32_767] {
                let payload = Payload::tcp(50_000, port, ACK);
                datapath.expect(
                    at,
                    &frame(side.peer, side.guest, &payload),
                    &frame(side.peer, side.node, &payload),
                    "a configured TCP port",
                );
            }
            let payload = Payload::udp(50_000, 30_001);
            datapath.expect(
                at,
                &frame(side.peer, side.guest, &payload),
                &frame(side.peer, side.node, &payload),
                "a configured UDP port",
            );
            let payload = Payload::Sctp {
                source: 1,
                destination: 2,
                data: vec![0; 16],
            };
            datapath.expect(
                at,
                &frame(side.peer, side.guest, &payload),
                &frame(side.peer, side.node, &payload),
                "a configured protocol",
            );
            for port in [178, 180, 29_999, 32_768] {
                datapath.expect_unchanged(
                    at,
                    &frame(side.peer, side.guest, &Payload::tcp(50_000, port, ACK)),
                    "a TCP port beside the configured ones",
                );
            }
            datapath.expect_unchanged(
                at,
                &frame(side.peer, side.guest, &Payload::udp(50_000, 179)),
                "a TCP port, by UDP",
            );
        }
    }
}

#[test]
fn tags_options_padding_and_extension_headers_are_looked_behind() {
    let mut datapath = Datapath::new(&dual());
    let tagged = Shape {
        tags: vec![(0x8100, 5)],
        ..Shape::default()
    };
    let options = Shape {
        options: vec![1; 40],
        ..Shape::default()
    };
    let padded = Shape {
        padding: 6,
        ..Shape::default()
    };
    let extensions = Shape {
        extensions: vec![(0, vec![0; 6]), (60, vec![0; 14])],
        ..Shape::default()
    };
    for (side, shape) in [
        (V4, tagged.clone()),
        (V6, tagged),
        (V4, options),
        (V4, padded.clone()),
        (V6, padded),
        (V6, extensions),
    ] {
        for (what, payload) in services() {
            for at in INGRESS {
                datapath.expect(
                    at,
                    &shaped(side.peer, side.guest, &payload, &shape),
                    &shaped(side.peer, side.node, &payload, &shape),
                    &format!("{what} in {shape:?}"),
                );
            }
        }
    }
}

#[test]
fn a_hop_of_a_route_is_not_its_end() {
    let mut datapath = Datapath::new(&dual());
    let mut routing = vec![4, 1, 0, 0, 0, 0];
    routing.extend([0xfd; 16]);
    let shape = Shape {
        extensions: vec![(43, routing)],
        ..Shape::default()
    };
    for at in INGRESS {
        datapath.expect_unchanged(
            at,
            &shaped(V6.peer, V6.guest, &Payload::vxlan(true), &shape),
            "a packet with segments left",
        );
    }
}

#[test]
fn what_is_not_for_the_guest_address_is_left_alone() {
    let mut datapath = Datapath::new(&dual());
    for (side, destination) in [
        (V4, "10.0.2.255"),
        (V4, "255.255.255.255"),
        (V4, "10.42.0.9"),
        (V4, "10.244.1.226"),
        (V6, "ff02::1"),
        (V6, "fd42::9"),
    ] {
        for (what, payload) in services() {
            for at in INGRESS {
                datapath.expect_unchanged(
                    at,
                    &frame(side.peer, destination.parse().unwrap(), &payload),
                    what,
                );
            }
        }
    }
}

#[test]
fn the_way_out_undoes_the_way_in() {
    let mut datapath = Datapath::new(&dual());
    for side in BOTH {
        let request = frame(side.peer, side.guest, &Payload::tcp(40_000, 10_250, ACK));
        assert_eq!(
            datapath.run(At::Ingress, &request),
            frame(side.peer, side.node, &Payload::tcp(40_000, 10_250, ACK))
        );
        datapath.expect(
            At::EgressFirst,
            &frame(side.node, side.peer, &Payload::tcp(10_250, 40_000, ACK)),
            &frame(side.guest, side.peer, &Payload::tcp(10_250, 40_000, ACK)),
            "the answer",
        );
    }
}
