//! Egress rule 2: ARP and Neighbour Discovery speak for G.

use std::net::Ipv4Addr;

use crate::{
    harness::{At, Datapath, dual},
    packets::{G4, GATEWAY4, N4, Payload, V6, frame},
};

fn arp(operation: u16, sender: Ipv4Addr, target: Ipv4Addr, tagged: bool) -> Vec<u8> {
    let mut frame = vec![0xff; 6];
    frame.extend([2, 0, 0, 0, 0, 2]);
    if tagged {
        frame.extend([0x81, 0, 0, 7]);
    }
    frame.extend([0x08, 0x06, 0, 1, 0x08, 0, 6, 4]);
    frame.extend(operation.to_be_bytes());
    frame.extend([2, 0, 0, 0, 0, 2]);
    frame.extend(sender.octets());
    frame.extend([0; 6]);
    frame.extend(target.octets());
    frame
}

#[test]
fn an_arp_sender_becomes_the_guest_address() {
    let mut datapath = Datapath::new(&dual());
    for place in [At::EgressFirst, At::EgressLast] {
        for tagged in [false, true] {
            for operation in [1, 2] {
                datapath.expect(
                    place,
                    &arp(operation, N4, GATEWAY4, tagged),
                    &arp(operation, G4, GATEWAY4, tagged),
                    "ARP from N",
                );
            }
        }
    }
}

#[test]
fn an_announcement_announces_the_guest_address() {
    let mut datapath = Datapath::new(&dual());
    datapath.expect(
        At::EgressFirst,
        &arp(1, N4, N4, false),
        &arp(1, G4, G4, false),
        "an announcement of N",
    );
}

#[test]
fn other_arp_is_left_alone() {
    let mut datapath = Datapath::new(&dual());
    for (what, message) in [
        ("from the guest address", arp(1, G4, GATEWAY4, false)),
        ("a probe", arp(1, Ipv4Addr::UNSPECIFIED, N4, false)),
        ("a question for N", arp(1, G4, N4, false)),
    ] {
        datapath.expect_unchanged(At::EgressFirst, &message, what);
    }
    let mut infiniband = arp(1, N4, GATEWAY4, false);
    infiniband[15] = 32;
    datapath.expect_unchanged(At::EgressFirst, &infiniband, "not for Ethernet");
    for at in [At::Ingress, At::Xdp] {
        datapath.expect_unchanged(at, &arp(1, N4, G4, false), "at ingress");
    }
}

#[test]
fn a_neighbour_solicitation_comes_from_the_guest_address() {
    let mut datapath = Datapath::new(&dual());
    let gateway: std::net::Ipv6Addr = "fd10:0:2::1".parse().unwrap();
    let solicited = "ff02::1:ff00:1".parse().unwrap();
    let mut rest = vec![0; 4];
    rest.extend(gateway.octets());
    rest.extend([1, 1, 2, 0, 0, 0, 0, 2]);
    for kind in 133..=137 {
        let message = Payload::Icmp {
            kind,
            code: 0,
            rest: rest.clone(),
        };
        datapath.expect(
            At::EgressFirst,
            &frame(V6.node, solicited, &message),
            &frame(V6.guest, solicited, &message),
            "a Neighbour Discovery message",
        );
    }
}

#[test]
fn user_space_hears_of_announcements() {
    let mut datapath = Datapath::new(&dual());
    let gateway: std::net::IpAddr = "fd10:0:2::1".parse().unwrap();
    let all_nodes = "ff02::1".parse().unwrap();
    let advertisement = |source, destination, kind| {
        let payload = Payload::Icmp {
            kind,
            code: 0,
            rest: vec![0; 28],
        };
        frame(source, destination, &payload)
    };
    for (what, message, told) in [
        ("ARP of G", arp(1, G4, G4, false), 1),
        ("an ARP answer of G, tagged", arp(2, G4, G4, true), 1),
        ("ARP of N", arp(1, N4, N4, false), 1),
        ("a question of G", arp(1, G4, GATEWAY4, false), 0),
        ("ARP of somebody", arp(1, GATEWAY4, GATEWAY4, false), 0),
        ("NDP of G", advertisement(V6.guest, all_nodes, 136), 1),
        ("NDP of N", advertisement(V6.node, all_nodes, 136), 1),
        ("an answer of G", advertisement(V6.guest, gateway, 136), 0),
        (
            "a ping of G to all",
            advertisement(V6.guest, all_nodes, 128),
            0,
        ),
        ("NDP of somebody", advertisement(gateway, all_nodes, 136), 0),
    ] {
        datapath.run(At::EgressFirst, &message);
        assert_eq!(datapath.announcements(), told, "{what}");
        // The last place sees them all again.
        datapath.run(At::EgressLast, &message);
        assert_eq!(datapath.announcements(), 0, "{what}");
    }
}
