//! Others on the same hooks: a CNI that comes later, one that ends the chain, one that chooses the node address itself,
//! one that clears the hooks.

use std::time::Duration;

use anyhow::Result;
use xkub_tests::Node;
use xkub_tests::foreign::{Behaviour, Direction, Foreign, Position, add_filter};
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

/// A CNI that chooses the node address as a source.
const MASQUERADE: Behaviour = Behaviour::MasqueradePing {
    guest: GUEST_V4,
    node: NODE_V4[0],
};

/// What Cilium without TCX and Calico in TC mode do at egress.
fn add_egress_filter(node: &Node, behaviour: Behaviour) -> Result<()> {
    add_filter(
        &node.guest,
        UPLINK,
        Direction::Egress,
        1,
        AT_EGRESS,
        behaviour,
    )
}

fn remove_egress_filter(node: &Node) -> Result<()> {
    node.guest
        .check(["tc", "filter", "del", "dev", UPLINK, "egress", "prio", "1"])?;
    Ok(())
}

/// Who stands at egress, as `name@hook`.
fn egress_chain(node: &Node) -> Result<Vec<String>> {
    let shown = node.show()?;
    let chain = shown["chain"]["egress"].as_array();
    let text = |entry: &serde_json::Value, key: &str| entry[key].as_str().map(str::to_owned);
    Ok(chain
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(format!("{}@{}", text(entry, "name")?, text(entry, "hook")?)))
        .collect())
}

/// Both places on TCX, with nobody else.
const ON_TCX: [&str; 2] = ["xkub_egress@tcx", "xkub_egress@tcx"];
/// The last place behind somebody's filter.
const BEHIND_A_FILTER: [&str; 3] = [
    "xkub_egress@tcx",
    "cil_to_netdev@clsact",
    "xkub_egress@clsact",
];

fn qdiscs(node: &Node) -> Result<String> {
    node.guest.check(["tc", "qdisc", "show", "dev", UPLINK])
}

/// How many pings from the guest address are lost during `change`.
fn pings_lost(node: &Node, mut change: impl FnMut() -> Result<()>) -> Result<u32> {
    let target = CLIENT_V4.to_string();
    let words = ["ping", "-n", "-i", "0.005", "-W", "1", &target];
    let mut ping = node.guest.spawn(words)?;
    ping.wait_output("icmp_seq=10", PATIENCE)?;
    let changed = change();
    ping.signal(nix::sys::signal::Signal::SIGINT)?;
    let output = ping.wait(PATIENCE)?;
    changed?;
    let numbers: Vec<u32> = output
        .stdout
        .lines()
        .find(|line| line.contains("packets transmitted"))
        .into_iter()
        .flat_map(str::split_whitespace)
        .filter_map(|word| word.parse().ok())
        .collect();
    match numbers.as_slice() {
        [sent, received, ..] => Ok(sent.saturating_sub(*received)),
        _ => anyhow::bail!("no counts: {output:?}"),
    }
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
    let _cni = Foreign::attach(
        &node.guest,
        UPLINK,
        Direction::Egress,
        AT_EGRESS,
        MASQUERADE,
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
    let _cni = Foreign::attach(
        &node.guest,
        UPLINK,
        Direction::Egress,
        AT_EGRESS,
        MASQUERADE,
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
        let _cni =
            Foreign::attach(&node.guest, UPLINK, Direction::Egress, name, MASQUERADE).unwrap();
        wait_until("the last place to be taken again", PATIENCE, || {
            guest_address_works(node)
        })
        .unwrap();
    }
    assert!(watcher.is_running().unwrap());
}

/// All of TCX runs before clsact, so that behind a filter only a filter is last.
#[test]
fn a_filter_that_chooses_the_node_address_is_caught_by_the_last_place() {
    let lab = lab().unwrap();
    let node = lab.node(0);
    add_egress_filter(node, MASQUERADE).unwrap();
    let before = qdiscs(node).unwrap();
    for _ in 0..2 {
        node.attach(&[]).unwrap();
        assert!(guest_address_works(node).unwrap());
        assert!(node_address_works(node).unwrap());
        assert_eq!(egress_chain(node).unwrap(), BEHIND_A_FILTER);
        let shown = node.show().unwrap();
        let hooks = ["ingress", "egressFirst", "egressLast"].map(|place| &shown["hook"][place]);
        assert_eq!(hooks, ["tcx", "tcx", "clsact"]);
        assert_eq!(shown["warnings"], serde_json::json!([]));
    }
    assert!(node.packets("egress-last", None, "translated").unwrap() >= 6);
    node.detach().unwrap();
    assert_eq!(qdiscs(node).unwrap(), before);
    let filters = node
        .guest
        .check(["tc", "filter", "show", "dev", UPLINK, "egress"])
        .unwrap();
    assert!(
        filters.contains(AT_EGRESS) && !filters.contains("xkub"),
        "{filters}"
    );
}

#[test]
fn attaching_again_follows_filters_that_come_and_go() {
    let lab = lab().unwrap();
    let node = lab.node(0);
    let before = qdiscs(node).unwrap();
    node.attach(&[]).unwrap();
    assert_eq!(qdiscs(node).unwrap(), before);
    add_egress_filter(node, MASQUERADE).unwrap();
    assert!(!guest_address_works(node).unwrap());
    let warnings = node.show().unwrap()["warnings"].to_string();
    assert!(warnings.contains("stands behind us"), "{warnings}");
    node.attach(&[]).unwrap();
    assert!(guest_address_works(node).unwrap());
    assert_eq!(egress_chain(node).unwrap(), BEHIND_A_FILTER);
    remove_egress_filter(node).unwrap();
    node.attach(&[]).unwrap();
    assert!(guest_address_works(node).unwrap());
    assert_eq!(egress_chain(node).unwrap(), ON_TCX);
}

#[test]
fn a_watcher_follows_filters_that_come_and_go() {
    let lab = lab().unwrap();
    let node = lab.node(0);
    node.attach(&[]).unwrap();
    let mut watcher = watch(node).unwrap();
    for _ in 0..2 {
        add_egress_filter(node, MASQUERADE).unwrap();
        wait_until("the last place to be behind the filter", PATIENCE, || {
            guest_address_works(node)
        })
        .unwrap();
        assert_eq!(egress_chain(node).unwrap(), BEHIND_A_FILTER);
        remove_egress_filter(node).unwrap();
        wait_until("the last place to be on TCX again", PATIENCE, || {
            Ok(egress_chain(node)? == ON_TCX)
        })
        .unwrap();
        assert!(guest_address_works(node).unwrap());
    }
    assert!(watcher.is_running().unwrap());
}

/// As Cilium does when it is told to use TCX from now on: its programs go to TCX, and every filter is removed.
#[test]
fn a_watcher_follows_a_cni_from_clsact_to_tcx() {
    let lab = lab().unwrap();
    let node = lab.node(0);
    add_egress_filter(node, MASQUERADE).unwrap();
    node.attach(&[]).unwrap();
    assert_eq!(egress_chain(node).unwrap(), BEHIND_A_FILTER);
    let _watcher = watch(node).unwrap();
    let attach = |direction, name, behaviour| {
        Foreign::attach(&node.guest, UPLINK, direction, name, behaviour).unwrap()
    };
    let _egress = attach(Direction::Egress, AT_EGRESS, MASQUERADE);
    node.guest
        .check(["tc", "qdisc", "del", "dev", UPLINK, "clsact"])
        .unwrap();
    wait_until("the last place to be on TCX again", PATIENCE, || {
        guest_address_works(node)
    })
    .unwrap();
    let expected = ["xkub_egress@tcx", "cil_to_netdev@tcx", "xkub_egress@tcx"];
    assert_eq!(egress_chain(node).unwrap(), expected);
    assert!(!qdiscs(node).unwrap().contains("clsact"));
}

/// One on TCX needs the last place all the time, while another's filter makes it move.
#[test]
fn moving_the_last_place_leaves_no_packet_untranslated() {
    let lab = lab().unwrap();
    let node = lab.node(0);
    // Making and removing the qdisc would itself lose packets.
    node.guest
        .check(["tc", "qdisc", "add", "dev", UPLINK, "clsact"])
        .unwrap();
    let _cni = Foreign::attach(
        &node.guest,
        UPLINK,
        Direction::Egress,
        "masquerades",
        MASQUERADE,
    )
    .unwrap();
    node.attach(&[]).unwrap();
    let last_is_on = |hook: &str| {
        wait_until("the last place to move", PATIENCE, || {
            let expected = format!("xkub_egress@{hook}");
            Ok(egress_chain(node)?.last() == Some(&expected))
        })
    };
    let watcher = watch(node).unwrap();
    let lost = pings_lost(node, || {
        for _ in 0..5 {
            add_egress_filter(node, Behaviour::PassOn)?;
            last_is_on("clsact")?;
            remove_egress_filter(node)?;
            last_is_on("tcx")?;
        }
        Ok(())
    });
    assert_eq!(lost.unwrap(), 0, "by a watcher");
    drop(watcher);
    let lost = pings_lost(node, || {
        for _ in 0..3 {
            add_egress_filter(node, Behaviour::PassOn)?;
            node.attach(&[])?;
            node.attach(&["--service", "tcp/9000"])?;
            last_is_on("clsact")?;
            remove_egress_filter(node)?;
            node.attach(&[])?;
            last_is_on("tcx")?;
        }
        Ok(())
    });
    assert_eq!(lost.unwrap(), 0, "by attaching again");
}

/// An ingress qdisc, which leaves no room for clsact, lists its filters for egress as well.
#[test]
fn filters_on_an_ingress_qdisc_are_not_behind_us() {
    let lab = lab().unwrap();
    let node = lab.node(0);
    let tc = |words: &[&str]| node.guest.check([&["tc"], words].concat()).unwrap();
    tc(&["qdisc", "add", "dev", UPLINK, "ingress"]);
    let filter = ["filter", "add", "dev", UPLINK, "ingress", "bpf", "bytecode"];
    tc(&[&filter[..], &["1,6 0 0 0,"]].concat());
    node.attach(&[]).unwrap();
    assert_eq!(egress_chain(node).unwrap(), ON_TCX);
    assert_eq!(node.show().unwrap()["warnings"], serde_json::json!([]));
}

/// A filter that has the last priority leaves no room behind it.
#[test]
fn where_no_filter_can_be_last_the_place_stays_on_tcx_and_says_so() {
    let lab = lab().unwrap();
    let node = lab.node(0);
    let tc = |words: &str| {
        let words = words.replace("UPLINK", UPLINK);
        node.guest
            .check(std::iter::once("tc").chain(words.split(' ')))
            .unwrap()
    };
    tc("qdisc add dev UPLINK clsact");
    tc("filter add dev UPLINK egress prio 65535 protocol ip u32 match u32 0 0 flowid 1:1");
    let attached = node.attach(&[]).unwrap();
    assert!(attached.contains("stands behind us"), "{attached}");
    assert!(attached.contains("the last priority"), "{attached}");
    let chain = egress_chain(node).unwrap();
    assert_eq!(chain, ["xkub_egress@tcx", "xkub_egress@tcx", "u32@clsact"]);
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
