//! `xkub datapath detach` leaves nothing behind.

use anyhow::Result;
use xkub_tests::Node;
use xkub_tests::masquerade::{GATEWAY_V4, Masquerade, NodeAddress, Overlay, UPLINK};
use xkub_tests::traffic::Ping;

/// Everything of the guest that attaching could have changed.
#[derive(Debug, PartialEq, Eq)]
struct Traces {
    addresses: String,
    links: String,
    qdiscs: String,
    routes: String,
    bpffs: String,
    /// Programs of TCX and XDP, by the links that hold them: the kernel shows them to whoever has a descriptor only,
    /// so this is what the uplink itself says.
    uplink: String,
}

fn traces(node: &Node) -> Result<Traces> {
    let guest = &node.guest;
    Ok(Traces {
        addresses: guest.check(["ip", "-brief", "address"])?,
        links: guest.check(["ip", "-brief", "link"])?,
        qdiscs: guest.check(["tc", "qdisc", "show"])?,
        routes: guest.check([
            "sh",
            "-c",
            "ip route show table all; ip -6 route show table all",
        ])?,
        bpffs: guest.check(["find", "/sys/fs/bpf"])?,
        uplink: guest.check(["ip", "-details", "link", "show", UPLINK])?,
    })
}

fn nothing_is_left(extra: &[&str], place: NodeAddress) -> Result<()> {
    let lab = Masquerade::builder().node_address(place).build()?;
    let node = lab.node(0);
    let before = traces(node)?;
    for _ in 0..2 {
        node.attach(extra)?;
        assert_ne!(traces(node)?, before);
        node.detach()?;
        assert_eq!(traces(node)?, before);
    }
    // Nothing is there: fine. Asking for what is not there is not.
    node.detach()?;
    let shown = node.xkub(&["datapath", "show", "--uplink", UPLINK])?;
    assert_eq!(shown.code(), Some(1), "{shown:?}");
    Ok(())
}

#[test]
fn of_tcx() {
    nothing_is_left(&["--ingress-hook", "tcx"], NodeAddress::Absent).unwrap();
}

#[test]
fn of_clsact() {
    nothing_is_left(&["--ingress-hook", "clsact"], NodeAddress::Absent).unwrap();
}

#[test]
fn of_xdp() {
    nothing_is_left(&["--ingress-hook", "xdp"], NodeAddress::Absent).unwrap();
}

#[test]
fn an_address_that_was_there_before_stays() {
    nothing_is_left(&[], NodeAddress::OnLoopback).unwrap();
    nothing_is_left(&["--no-address"], NodeAddress::OnLoopback).unwrap();
}

/// The programs are really gone: the overlay is as dead as before.
#[test]
fn packets_are_left_alone_again() {
    let lab = Masquerade::builder().build().unwrap();
    lab.add_overlay(&Overlay::V4).unwrap();
    lab.attach(&[]).unwrap();
    let (guest, peer) = (&lab.node(0).guest, Overlay::V4.address(lab.node(1)));
    assert!(Ping::to(peer).run(guest).unwrap().complete());
    for node in lab.nodes() {
        node.detach().unwrap();
    }
    assert_eq!(Ping::to(peer).run(guest).unwrap().received, 0);
    assert!(Ping::to(GATEWAY_V4).run(guest).unwrap().complete());
}

/// Without an uplink, everything of ours is taken away.
#[test]
fn without_naming_the_uplink() {
    let lab = Masquerade::builder()
        .node_address(NodeAddress::Absent)
        .build()
        .unwrap();
    let node = lab.node(0);
    let before = traces(node).unwrap();
    node.attach(&[]).unwrap();
    node.xkub(&["datapath", "detach"])
        .unwrap()
        .success()
        .unwrap();
    assert_eq!(traces(node).unwrap(), before);
}
