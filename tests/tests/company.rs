//! Others on the same hooks: a CNI that comes later, one that ends the chain, one that chooses the node address itself,
//! one that clears the hooks.

use std::time::Duration;

use anyhow::Result;
use xkub_tests::Node;
use xkub_tests::foreign::{Behaviour, Direction, Foreign, Position};
use xkub_tests::masquerade::{
    CLIENT_V4, GUEST_V4, Masquerade, NODE_V4, OVERLAY_PORT, Overlay, UPLINK,
};
use xkub_tests::namespace::Running;
use xkub_tests::traffic::Ping;
use xkub_tests::wait::{PATIENCE, wait_until};

/// Cilium's names.
const AT_INGRESS: &str = "cil_from_netdev";
const AT_EGRESS: &str = "cil_to_netdev";

fn lab() -> Result<Masquerade> {
    let lab = Masquerade::builder().build()?;
    lab.add_overlay(&Overlay::V4)?;
    Ok(lab)
}

fn overlay_works(lab: &Masquerade) -> Result<bool> {
    let peer = Overlay::V4.address(lab.node(1));
    Ok(Ping::to(peer).count(3).run(&lab.node(0).guest)?.complete())
}

fn node_address_works(node: &Node) -> Result<bool> {
    Ok(Ping::to(CLIENT_V4)
        .from(node.node_v4())
        .count(3)
        .run(&node.guest)?
        .complete())
}

fn guest_address_works(node: &Node) -> Result<bool> {
    Ok(Ping::to(CLIENT_V4).count(3).run(&node.guest)?.complete())
}

/// `xkub datapath watch` in a guest.
fn watch(node: &Node) -> Result<Running> {
    let binary = xkub_tests::xkub::binary()?;
    let binary = binary.to_string_lossy();
    node.guest
        .spawn([binary.as_ref(), "datapath", "watch", "--uplink", UPLINK])
}

#[test]
fn a_cni_attached_later_at_the_tail_sees_translated_packets() {
    let lab = lab().unwrap();
    lab.attach(&[]).unwrap();
    let guest = &lab.node(0).guest;
    // They drop what is not translated when they run.
    let egress = Behaviour::DropFrom(NODE_V4[0]);
    let _egress = Foreign::attach(guest, UPLINK, Direction::Egress, AT_EGRESS, egress).unwrap();
    let ingress = Behaviour::DropUdpTo(GUEST_V4, OVERLAY_PORT);
    let _ingress = Foreign::attach(guest, UPLINK, Direction::Ingress, AT_INGRESS, ingress).unwrap();
    assert!(overlay_works(&lab).unwrap());
    assert!(node_address_works(lab.node(0)).unwrap());
}

#[test]
fn a_cni_that_was_there_before_sees_translated_packets() {
    let lab = lab().unwrap();
    let guest = &lab.node(0).guest;
    let egress = Behaviour::DropFrom(NODE_V4[0]);
    let _egress = Foreign::attach(guest, UPLINK, Direction::Egress, AT_EGRESS, egress).unwrap();
    let ingress = Behaviour::DropUdpTo(GUEST_V4, OVERLAY_PORT);
    let _ingress = Foreign::attach(guest, UPLINK, Direction::Ingress, AT_INGRESS, ingress).unwrap();
    lab.attach(&[]).unwrap();
    assert!(overlay_works(&lab).unwrap());
    assert!(node_address_works(lab.node(0)).unwrap());
}

#[test]
fn one_that_ends_the_chain_does_not_stop_us_and_is_named() {
    let lab = lab().unwrap();
    let (node, guest) = (lab.node(0), &lab.node(0).guest);
    let attach =
        |direction, name| Foreign::attach(guest, UPLINK, direction, name, Behaviour::EndChain);
    let _egress = attach(Direction::Egress, AT_EGRESS).unwrap();
    let _ingress = attach(Direction::Ingress, AT_INGRESS).unwrap();
    lab.attach(&[]).unwrap();
    assert!(overlay_works(&lab).unwrap());
    let many = Ping::to(CLIENT_V4)
        .from(node.node_v4())
        .count(40)
        .run(guest)
        .unwrap();
    assert!(many.complete(), "{many:?}");
    let shown = node.show().unwrap();
    let names = |direction: &str| -> Vec<String> {
        let chain = shown["chain"][direction]
            .as_array()
            .cloned()
            .unwrap_or_default();
        chain
            .iter()
            .map(|entry| entry["name"].as_str().unwrap_or_default().to_owned())
            .collect()
    };
    assert_eq!(names("ingress"), ["xkub_ingress", AT_INGRESS]);
    assert_eq!(names("egress"), ["xkub_egress", AT_EGRESS, "xkub_egress"]);
    let warnings = shown["warnings"].to_string();
    assert!(
        warnings.contains(&format!("{AT_EGRESS} ")) && warnings.contains("ends the chain"),
        "{warnings}"
    );
    assert_eq!(node.packets("egress-last", None, "passed").unwrap(), 0);
}

#[test]
fn one_that_chooses_the_node_address_is_caught_by_the_last_place() {
    let lab = lab().unwrap();
    let node = lab.node(0);
    let masquerade = Behaviour::MasqueradePing {
        guest: GUEST_V4,
        node: NODE_V4[0],
    };
    let _cni = Foreign::attach(
        &node.guest,
        UPLINK,
        Direction::Egress,
        AT_EGRESS,
        masquerade,
    )
    .unwrap();
    node.attach(&[]).unwrap();
    assert!(guest_address_works(node).unwrap());
    assert!(node.packets("egress-last", None, "translated").unwrap() >= 3);
}

#[test]
fn the_last_place_is_taken_again_by_attaching_again() {
    let lab = lab().unwrap();
    let node = lab.node(0);
    node.attach(&[]).unwrap();
    let masquerade = Behaviour::MasqueradePing {
        guest: GUEST_V4,
        node: NODE_V4[0],
    };
    let _cni = Foreign::attach(
        &node.guest,
        UPLINK,
        Direction::Egress,
        AT_EGRESS,
        masquerade,
    )
    .unwrap();
    assert!(!guest_address_works(node).unwrap());
    let warnings = node.show().unwrap()["warnings"].to_string();
    assert!(warnings.contains("stands behind us"), "{warnings}");
    node.attach(&[]).unwrap();
    assert!(guest_address_works(node).unwrap());
}

#[test]
fn a_watcher_takes_the_last_place_again() {
    let lab = lab().unwrap();
    let node = lab.node(0);
    node.attach(&[]).unwrap();
    let mut watcher = watch(node).unwrap();
    for name in [AT_EGRESS, "another"] {
        let masquerade = Behaviour::MasqueradePing {
            guest: GUEST_V4,
            node: NODE_V4[0],
        };
        let _cni =
            Foreign::attach(&node.guest, UPLINK, Direction::Egress, name, masquerade).unwrap();
        wait_until("the last place to be taken again", PATIENCE, || {
            guest_address_works(node)
        })
        .unwrap();
    }
    assert!(watcher.is_running().unwrap());
}

#[test]
fn a_watcher_takes_the_first_place_again() {
    let lab = lab().unwrap();
    lab.attach(&[]).unwrap();
    let node = lab.node(0);
    let end = |direction, name| {
        Foreign::attach_at(
            &node.guest,
            UPLINK,
            direction,
            Position::Head,
            name,
            Behaviour::EndChain,
        )
    };
    let _egress = end(Direction::Egress, AT_EGRESS).unwrap();
    let _ingress = end(Direction::Ingress, AT_INGRESS).unwrap();
    assert!(!overlay_works(&lab).unwrap());
    let warnings = node.show().unwrap()["warnings"].to_string();
    assert!(warnings.contains("stands before us"), "{warnings}");
    let _watcher = watch(node).unwrap();
    wait_until("the first place to be taken again", PATIENCE, || {
        overlay_works(&lab)
    })
    .unwrap();
    let egress = node.show().unwrap()["chain"]["egress"][0]["name"].clone();
    assert_eq!(egress, "xkub_egress");
}

#[test]
fn a_cni_that_removes_clsact_does_not_leave_us_gone() {
    let lab = lab().unwrap();
    lab.attach(&["--ingress-hook", "clsact"]).unwrap();
    let node = lab.node(0);
    assert!(overlay_works(&lab).unwrap());
    let remove = || {
        node.guest
            .check(["tc", "qdisc", "del", "dev", UPLINK, "clsact"])
            .unwrap()
    };
    remove();
    assert!(!overlay_works(&lab).unwrap());
    let mut watcher = watch(node).unwrap();
    for _ in 0..3 {
        wait_until("our filters to be put back", PATIENCE, || {
            overlay_works(&lab)
        })
        .unwrap();
        remove();
    }
    wait_until("our filters to be put back", PATIENCE, || {
        overlay_works(&lab)
    })
    .unwrap();
    assert!(watcher.is_running().unwrap());
    watcher.signal(nix::sys::signal::Signal::SIGTERM).unwrap();
    let output = watcher.wait(Duration::from_secs(10)).unwrap();
    assert_eq!(output.code(), Some(0), "{output:?}");
    assert!(
        overlay_works(&lab).unwrap(),
        "a watcher that is told to stop leaves the datapath"
    );
}

/// A filter behind somebody's TCX program that ends the chain would never run: that is an error, not a silent nothing.
#[test]
fn clsact_behind_tcx_is_refused() {
    let lab = lab().unwrap();
    let node = lab.node(0);
    let pins = || node.guest.check(["find", "/sys/fs/bpf"]).unwrap();
    let before = pins();
    let _cni = Foreign::attach(
        &node.guest,
        UPLINK,
        Direction::Egress,
        AT_EGRESS,
        Behaviour::EndChain,
    )
    .unwrap();
    let arguments = [
        "datapath",
        "attach",
        "--uplink",
        UPLINK,
        "--node-address",
        "10.244.1.226",
    ];
    let output = node
        .xkub(&[&arguments[..], &["--ingress-hook", "clsact"]].concat())
        .unwrap();
    assert_eq!(output.code(), Some(1), "{output:?}");
    assert!(output.stderr.contains(AT_EGRESS), "{output:?}");
    assert_eq!(output.stderr.lines().count(), 1, "{output:?}");
    // Nothing was left half-done.
    assert_eq!(pins(), before);
}

#[test]
fn somebody_in_the_xdp_slot_is_named() {
    let lab = lab().unwrap();
    let node = lab.node(0);
    let other = Foreign::attach_xdp(&node.guest, UPLINK, "other_xdp").unwrap();
    let arguments = [
        "datapath",
        "attach",
        "--uplink",
        UPLINK,
        "--node-address",
        "10.244.1.226",
    ];
    let arguments = [&arguments[..], &["--ingress-hook", "xdp"]].concat();
    let output = node.xkub(&arguments).unwrap();
    assert_eq!(output.code(), Some(1), "{output:?}");
    assert!(output.stderr.contains("other_xdp"), "{output:?}");
    drop(other);
    node.xkub(&arguments).unwrap().success().unwrap();
}
