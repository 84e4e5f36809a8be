//! What must not be touched: whatever uses G and has nothing to do with N.

use xkub_common::{
    config::{AddressesV4, AddressesV6},
    counter::{Event, Place},
};

use crate::{
    harness::{At, Datapath, INGRESS, dual},
    packets::{ACK, BOTH, GATEWAY4, Payload, SYN, Side, V4, V6, frame},
};

/// Runs packets through, in order, either way.
fn conversation(
    datapath: &mut Datapath,
    at: At,
    side: Side,
    what: &str,
    packets: &[(bool, Payload)],
) {
    for (leaves, payload) in packets {
        if *leaves {
            datapath.expect_unchanged(
                At::EgressFirst,
                &frame(side.guest, side.peer, payload),
                what,
            );
            datapath.expect_unchanged(At::EgressLast, &frame(side.guest, side.peer, payload), what);
        } else {
            datapath.expect_unchanged(at, &frame(side.peer, side.guest, payload), what);
        }
    }
}

#[test]
fn the_guests_own_connections() {
    for at in INGRESS {
        let mut datapath = Datapath::new(&dual());
        for side in BOTH {
            conversation(
                &mut datapath,
                at,
                side,
                "the API server",
                &[
                    (true, Payload::tcp(50_000, 6443, SYN)),
                    (false, Payload::tcp(6443, 50_000, SYN | ACK)),
                    (true, Payload::tcp(50_000, 6443, ACK)),
                    (false, Payload::tcp(6443, 50_000, ACK)),
                    (false, Payload::tcp(6443, 50_000, ACK)),
                ],
            );
            conversation(
                &mut datapath,
                at,
                side,
                "another node's kubelet",
                &[
                    (true, Payload::tcp(50_001, 10_250, SYN)),
                    (false, Payload::tcp(10_250, 50_001, SYN | ACK)),
                    (true, Payload::tcp(50_001, 10_250, ACK)),
                ],
            );
            conversation(
                &mut datapath,
                at,
                side,
                "DNS",
                &[
                    (true, Payload::udp(50_002, 53)),
                    (false, Payload::udp(53, 50_002)),
                ],
            );
            conversation(
                &mut datapath,
                at,
                side,
                "ping",
                &[
                    (true, Payload::echo(side, true, 4)),
                    (false, Payload::echo(side, false, 4)),
                ],
            );
            conversation(
                &mut datapath,
                at,
                side,
                "SSH to the guest address",
                &[
                    (false, Payload::tcp(60_000, 22, SYN)),
                    (true, Payload::tcp(22, 60_000, SYN | ACK)),
                    (false, Payload::tcp(60_000, 22, ACK)),
                    (false, Payload::tcp(60_000, 22, ACK)),
                ],
            );
            conversation(
                &mut datapath,
                at,
                side,
                "a ping of the guest",
                &[
                    (false, Payload::echo(side, true, 5)),
                    (true, Payload::echo(side, false, 5)),
                ],
            );
        }
    }
}

#[test]
fn dhcp() {
    for at in INGRESS {
        let mut datapath = Datapath::new(&dual());
        let (client, server) = (Payload::udp(68, 67), Payload::udp(67, 68));
        let gateway = GATEWAY4.into();
        let broadcast = "255.255.255.255".parse().unwrap();
        for (source, destination) in [
            ("0.0.0.0".parse().unwrap(), broadcast),
            (V4.guest, gateway),
            (V4.guest, broadcast),
        ] {
            datapath.expect_unchanged(
                At::EgressFirst,
                &frame(source, destination, &client),
                "DHCP, to the server",
            );
        }
        for destination in [V4.guest, broadcast] {
            datapath.expect_unchanged(
                at,
                &frame(gateway, destination, &server),
                "DHCP, to the client",
            );
        }
        let (client, server) = (Payload::udp(546, 547), Payload::udp(547, 546));
        datapath.expect_unchanged(
            At::EgressFirst,
            &frame(
                "fe80::2".parse().unwrap(),
                "ff02::1:2".parse().unwrap(),
                &client,
            ),
            "DHCPv6",
        );
        datapath.expect_unchanged(
            at,
            &frame("fe80::1".parse().unwrap(), V6.guest, &server),
            "DHCPv6",
        );
    }
}

/// Zeroes, which an address that is not configured holds, are an address too.
#[test]
fn a_client_without_an_address_where_its_family_is_not_configured() {
    for side in BOTH {
        let mut config = dual();
        let (source, destination, client) = if side.node.is_ipv4() {
            config.v4 = AddressesV4::NONE;
            ("0.0.0.0", "255.255.255.255", Payload::udp(68, 67))
        } else {
            config.v6 = AddressesV6::NONE;
            ("::", "ff02::1", Payload::udp(546, 547))
        };
        let mut datapath = Datapath::new(&config);
        let packet = frame(
            source.parse().unwrap(),
            destination.parse().unwrap(),
            &client,
        );
        datapath.expect_unchanged(At::EgressFirst, &packet, "a client without an address");
        for (event, expected) in [
            (Event::Passed, 1),
            (Event::Translated, 0),
            (Event::Remembered, 0),
        ] {
            assert_eq!(datapath.events(Place::EgressFirst, event), expected);
        }
    }
}

#[test]
fn other_ethertypes() {
    let mut datapath = Datapath::new(&dual());
    // LLDP, MPLS, 802.3 with a length, three VLAN tags.
    for ethertype in [[0x88, 0xcc], [0x88, 0x47], [0x00, 0x40]] {
        let mut frame = frame(V4.node, V4.peer, &Payload::vxlan(true));
        frame[12..14].copy_from_slice(&ethertype);
        for at in [At::EgressFirst, At::Ingress, At::Xdp] {
            datapath.expect_unchanged(at, &frame, "another EtherType");
        }
    }
}
