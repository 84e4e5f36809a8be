//! A VXLAN tunnel whose local address is the node address carries everything, over IPv4 and IPv6.

use anyhow::{Result, ensure};
use xkub_tests::masquerade::{Family, GUEST_V4, GUEST_V6, Masquerade, NODE_V4, NODE_V6, Overlay};
use xkub_tests::traffic::{Capture, Client, EchoServer, Frame, Ping};
use xkub_tests::wait::PATIENCE;

/// More than a window, so that many full-size and GSO packets are among it.
const BULK: usize = 2_000_000;
/// Outer headers before the UDP header: Ethernet and IP.
const UDP_V4: usize = 14 + 20;
const UDP_V6: usize = 14 + 40;

fn everything_passes(lab: &Masquerade, overlay: &Overlay) -> Result<()> {
    let payload: Vec<u8> = (0..BULK).map(|index| index.to_le_bytes()[0]).collect();
    for (here, there) in [(0, 1), (1, 0)] {
        let (here, there) = (lab.node(here), lab.node(there));
        let (source, target) = (overlay.address(here), overlay.address(there));
        ensure!(
            Ping::to(target).count(5).run(&here.guest)?.complete(),
            "ping from {source}"
        );
        let full = lab.mtu()
            - if overlay.underlay == Family::V4 {
                50
            } else {
                70
            }
            - 28;
        ensure!(
            Ping::to(target)
                .payload(full)
                .dont_fragment()
                .run(&here.guest)?
                .complete(),
            "full size from {source}"
        );
        let server = EchoServer::tcp(&there.guest, (target, 0))?;
        Client::to(server.address()).tcp(&here.guest, &payload)?;
        let server = EchoServer::udp(&there.guest, (target, 0))?;
        for length in [1, 100, 1400] {
            Client::to(server.address())
                .udp(&here.guest, payload.get(..length).unwrap_or_default())?;
        }
        for counter in ["UdpInCsumErrors", "Udp6InCsumErrors", "TcpInCsumErrors"] {
            ensure!(
                there.guest.counter(counter)? == 0,
                "{counter} in {}",
                there.guest.name()
            );
        }
    }
    Ok(())
}

/// Whether a frame is IPv4 VXLAN on the lab's port with these outer addresses.
fn is_vxlan_v4(frame: &Frame, source: std::net::Ipv4Addr, target: std::net::Ipv4Addr) -> bool {
    let part =
        |from: usize, length: usize| frame.bytes.get(from..from + length).unwrap_or_default();
    part(12, 2) == [8, 0]
        && part(23, 1) == [17]
        && part(26, 4) == source.octets()
        && part(30, 4) == target.octets()
        && part(UDP_V4 + 2, 2) == Overlay::V4.port.to_be_bytes()
}

fn is_vxlan_v6(frame: &Frame, source: std::net::Ipv6Addr, target: std::net::Ipv6Addr) -> bool {
    let part =
        |from: usize, length: usize| frame.bytes.get(from..from + length).unwrap_or_default();
    part(12, 2) == [0x86, 0xdd]
        && part(20, 1) == [17]
        && part(22, 16) == source.octets()
        && part(38, 16) == target.octets()
        && part(UDP_V6 + 2, 2) == Overlay::V6.port.to_be_bytes()
}

#[test]
fn ipv4_underlay() {
    let lab = Masquerade::builder().build().unwrap();
    lab.add_overlay(&Overlay::V4).unwrap();
    lab.attach(&[]).unwrap();
    everything_passes(&lab, &Overlay::V4).unwrap();
}

#[test]
fn ipv6_underlay() {
    let lab = Masquerade::builder().build().unwrap();
    lab.add_overlay(&Overlay::V6).unwrap();
    lab.attach(&[]).unwrap();
    everything_passes(&lab, &Overlay::V6).unwrap();
}

#[test]
fn both_underlays_beside_each_other() {
    let lab = Masquerade::builder().build().unwrap();
    lab.add_overlay(&Overlay::V4).unwrap();
    lab.add_overlay(&Overlay::V6).unwrap();
    lab.attach(&[]).unwrap();
    everything_passes(&lab, &Overlay::V4).unwrap();
    everything_passes(&lab, &Overlay::V6).unwrap();
}

/// Between guest and launcher there is only the guest address; the tunnel itself sees only node addresses.
#[test]
fn the_wire_sees_the_guest_address_and_the_tunnel_the_node_address() {
    let lab = Masquerade::builder().build().unwrap();
    lab.add_overlay(&Overlay::V4).unwrap();
    lab.add_overlay(&Overlay::V6).unwrap();
    lab.attach(&[]).unwrap();
    let wire = Capture::start(&lab.node(0).launcher, "tap0").unwrap();
    assert!(
        Ping::to(Overlay::V4.address(lab.node(1)))
            .run(&lab.node(0).guest)
            .unwrap()
            .complete()
    );
    assert!(
        Ping::to(Overlay::V6.address(lab.node(1)))
            .run(&lab.node(0).guest)
            .unwrap()
            .complete()
    );
    wire.wait("VXLAN out", PATIENCE, |frame| {
        is_vxlan_v4(frame, GUEST_V4, NODE_V4[1])
    })
    .unwrap();
    wire.wait("VXLAN in", PATIENCE, |frame| {
        is_vxlan_v4(frame, NODE_V4[1], GUEST_V4)
    })
    .unwrap();
    wire.wait("VXLAN out", PATIENCE, |frame| {
        is_vxlan_v6(frame, GUEST_V6, NODE_V6[1])
    })
    .unwrap();
    wire.wait("VXLAN in", PATIENCE, |frame| {
        is_vxlan_v6(frame, NODE_V6[1], GUEST_V6)
    })
    .unwrap();
    let untranslated = wire.frames().iter().any(|frame| {
        frame.bytes.get(26..30) == Some(&NODE_V4[0].octets())
            || frame.bytes.get(22..38) == Some(&NODE_V6[0].octets())
    });
    assert!(!untranslated);
    let translated = |place, family| {
        lab.node(0)
            .packets(place, Some(family), "translated")
            .unwrap()
    };
    for family in [Family::V4, Family::V6] {
        assert!(translated("ingress", family) > 0);
        assert!(translated("egress-first", family) > 0);
        // The last place found nothing to do.
        assert_eq!(translated("egress-last", family), 0);
    }
}

/// A port that is not in the default service set is one attach away.
#[test]
fn another_overlay_port() {
    let lab = Masquerade::builder().build().unwrap();
    let overlay = Overlay {
        port: 9999,
        ..Overlay::V4
    };
    lab.add_overlay(&overlay).unwrap();
    lab.attach(&["--overlay-port", "9999"]).unwrap();
    let peer = overlay.address(lab.node(1));
    assert!(
        Ping::to(peer)
            .count(3)
            .run(&lab.node(0).guest)
            .unwrap()
            .complete()
    );
    for node in lab.nodes() {
        assert!(
            node.packets("ingress", Some(Family::V4), "translated")
                .unwrap()
                >= 3
        );
    }
}
