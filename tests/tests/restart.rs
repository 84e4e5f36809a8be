//! The datapath does not depend on the process that attached it, and changing it under traffic loses no packet.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use nix::sys::signal::Signal;
use xkub_tests::masquerade::{
    Family, GUEST_V4, Masquerade, NodeAddress, OVERLAY_PORT, Overlay, UPLINK,
};
use xkub_tests::traffic::{Iperf, IperfServer, Measured, Ping};
use xkub_tests::wait::{PATIENCE, wait_until};
use xkub_tests::{Namespace, Node};

/// iperf3's own default.
const IPERF_PORT: u16 = 5201;
/// Long enough for many changes.
const TRAFFIC: Duration = Duration::from_secs(6);
/// Moments of an attach at which it is killed, from its start to its end.
const MOMENTS: u32 = 24;
/// Changes that a test makes at least, one stream after the other if need be: a busy machine makes few during one.
const CHANGES: u32 = 8;

/// Counts what a translated packet can't be: in the launcher, packets from the node address; in the guest, overlay
/// packets for the guest address that got past the ingress program. One of them is one packet that no program saw.
fn count_untranslated(node: &Node) -> Result<()> {
    let address = node.node_v4();
    node.launcher.nft(&format!(
        "table ip watch {{
            counter untranslated {{ }}
            chain prerouting {{
                type filter hook prerouting priority -300;
                iifname \"k6t-eth0\" ip saddr {address} counter name untranslated
            }}
        }}\n"
    ))?;
    node.guest.nft(&format!(
        "table ip watch {{
            counter untranslated {{ }}
            chain prerouting {{
                type filter hook prerouting priority -300;
                iifname \"{UPLINK}\" ip daddr {GUEST_V4} udp dport {OVERLAY_PORT} counter name untranslated
            }}
        }}\n"
    ))
}

/// The sum of both counters of a node.
fn untranslated(node: &Node) -> Result<u64> {
    let mut sum = 0;
    for namespace in [&node.launcher, &node.guest] {
        let text = namespace.check(["nft", "list", "counter", "ip", "watch", "untranslated"])?;
        let mut words = text
            .split_whitespace()
            .skip_while(|word| *word != "packets");
        sum += words.nth(1).context("no count")?.parse::<u64>()?;
    }
    Ok(sum)
}

fn lab() -> Result<Masquerade> {
    let lab = Masquerade::builder().ipv6(false).build()?;
    lab.add_overlay(&Overlay::V4)?;
    attach(&lab, &[])?;
    for node in lab.nodes() {
        count_untranslated(node)?;
    }
    Ok(lab)
}

fn attach(lab: &Masquerade, extra: &[&str]) -> Result<()> {
    for node in lab.nodes() {
        let address = node.node_v4().to_string();
        let arguments = [
            "datapath",
            "attach",
            "--uplink",
            UPLINK,
            "--node-address",
            &address,
        ];
        node.xkub(&[&arguments[..], extra].concat())?.success()?;
    }
    Ok(())
}

#[track_caller]
fn assert_untranslated_none(lab: &Masquerade) {
    let counts = lab.nodes().each_ref().map(untranslated);
    assert!(
        matches!(counts, [Ok(0), Ok(0)]),
        "packets that no program saw: {counts:?}"
    );
}

/// Runs streams one after the other, and changes something all the while, until there were enough changes.
fn under_traffic(
    stream: &Iperf,
    sender: &Namespace,
    mut change: impl FnMut(u32) -> Result<()>,
) -> Result<Vec<Measured>> {
    let mut changes = 0;
    let mut measured = Vec::new();
    while changes < CHANGES {
        let mut client = stream.start(sender)?;
        while client.is_running()? {
            change(changes)?;
            changes += 1;
        }
        measured.push(stream.finish(client)?);
    }
    Ok(measured)
}

/// How long one attach takes here and now, to choose moments in it.
fn duration_of_attach(lab: &Masquerade) -> Result<Duration> {
    let start = Instant::now();
    attach(lab, &[])?;
    Ok(start.elapsed() / u32::try_from(lab.nodes().len())?)
}

/// A counter that shows when the test counts nothing.
#[test]
fn the_count_itself_counts() {
    let lab = lab().unwrap();
    let peer = Overlay::V4.address(lab.node(1));
    assert!(
        Ping::to(peer)
            .count(3)
            .run(&lab.node(0).guest)
            .unwrap()
            .complete()
    );
    assert_eq!(
        lab.nodes()
            .each_ref()
            .map(|node| untranslated(node).unwrap()),
        [0, 0]
    );
    lab.node(0).detach().unwrap();
    lab.node(0)
        .guest
        .ip(&format!(
            "addr replace {}/32 dev lo\n",
            lab.node(0).node_v4()
        ))
        .unwrap();
    assert_eq!(
        Ping::to(peer)
            .count(3)
            .run(&lab.node(0).guest)
            .unwrap()
            .received,
        0
    );
    assert!(untranslated(lab.node(0)).unwrap() >= 3);
}

/// A change of settings swaps programs through the pinned links, while datagrams run both through them and past the
/// address that changes nothing: none may be lost.
#[test]
fn swapping_programs_under_udp_loses_no_packet() {
    let lab = lab().unwrap();
    let receiver = &lab.node(1).guest;
    let server =
        IperfServer::start(receiver, Overlay::V4.address(lab.node(1)), IPERF_PORT).unwrap();
    // Some ten thousand datagrams a second: a hundred to each program swap, and no more than a shared machine carries.
    let stream = server.client().duration(TRAFFIC).udp(200, "16M");
    let full_before = receiver.counter("UdpRcvbufErrors").unwrap();
    let translated = || {
        lab.node(0)
            .packets("egress-first", Some(Family::V4), "translated")
            .unwrap()
    };
    let before = translated();
    let measured = under_traffic(&stream, &lab.node(0).guest, |change| {
        let service = format!("tcp/{}", 9000 + change % 2);
        attach(&lab, &["--service", &service])
    })
    .unwrap();
    // What the receiver was too slow to read, the datapath did not lose.
    let full = receiver.counter("UdpRcvbufErrors").unwrap() - full_before;
    assert_untranslated_none(&lab);
    let arrived: u64 = measured.iter().map(|stream| stream.packets_received).sum();
    let lost: u64 = measured.iter().map(|stream| stream.packets_lost).sum();
    assert!(
        arrived > 0 && lost <= full,
        "{full} for want of a buffer, {measured:?}"
    );
    assert!(
        translated() - before >= arrived,
        "the counters live through a swap"
    );
}

#[test]
fn attaching_again_under_tcp_loses_no_packet() {
    let lab = lab().unwrap();
    let server = IperfServer::start(
        &lab.node(1).guest,
        Overlay::V4.address(lab.node(1)),
        IPERF_PORT,
    )
    .unwrap();
    let stream = server.client().duration(TRAFFIC);
    let measured = under_traffic(&stream, &lab.node(0).guest, |change| {
        // The same again, and something else.
        attach(
            &lab,
            [&[][..], &["--service", "udp/30000-32767"]][change as usize % 2],
        )
    })
    .unwrap();
    assert_untranslated_none(&lab);
    assert!(
        measured.iter().all(|stream| stream.bits_per_second > 0.0),
        "{measured:?}"
    );
}

/// From one hook to another and back there is no pinned link to swap: the new one stands before the old one goes.
#[test]
fn changing_the_hook_leaves_no_packet_untranslated() {
    let lab = lab().unwrap();
    let server = IperfServer::start(
        &lab.node(1).guest,
        Overlay::V4.address(lab.node(1)),
        IPERF_PORT,
    )
    .unwrap();
    let stream = server.client().duration(TRAFFIC);
    let _: Vec<Measured> = under_traffic(&stream, &lab.node(0).guest, |change| {
        let hook = ["clsact", "tcx", "xdp", "tcx"][change as usize % 4];
        attach(&lab, &["--ingress-hook", hook])
    })
    .unwrap();
    assert_untranslated_none(&lab);
}

#[test]
fn a_killed_watcher_leaves_the_datapath() {
    let lab = lab().unwrap();
    let node = lab.node(0);
    let binary = xkub_tests::xkub::binary().unwrap();
    let binary = binary.to_string_lossy();
    let mut watcher = node
        .guest
        .spawn([binary.as_ref(), "datapath", "watch", "--uplink", UPLINK])
        .unwrap();
    watcher.signal(Signal::SIGKILL).unwrap();
    watcher.wait(PATIENCE).unwrap();
    let peer = Overlay::V4.address(lab.node(1));
    assert!(Ping::to(peer).count(3).run(&node.guest).unwrap().complete());
}

/// Killed at any moment, an attach leaves either the old datapath or the new one, and nothing that a later attach does
/// not adopt or a detach not remove.
#[test]
fn an_attach_killed_half_way_leaves_no_packet_untranslated_and_no_orphan() {
    let lab = lab().unwrap();
    let node = lab.node(0);
    let server = IperfServer::start(
        &lab.node(1).guest,
        Overlay::V4.address(lab.node(1)),
        IPERF_PORT,
    )
    .unwrap();
    let stream = server.client().duration(TRAFFIC).udp(200, "8M");
    let binary = xkub_tests::xkub::binary().unwrap();
    let binary = binary.to_string_lossy();
    let address = node.node_v4().to_string();
    let whole = duration_of_attach(&lab).unwrap();
    let _: Vec<Measured> = under_traffic(&stream, &node.guest, |killed| {
        let service = format!("tcp/{}", 9000 + killed % 7);
        let arguments = [
            "datapath",
            "attach",
            "--uplink",
            UPLINK,
            "--node-address",
            &address,
            "--service",
            &service,
        ];
        let words = std::iter::once(binary.as_ref()).chain(arguments);
        let attaching = node.guest.spawn(words)?;
        // Not a wait for something: another moment of the attach each time, in an order that soon has early and late ones.
        std::thread::sleep(whole * (killed * 7 % MOMENTS) / MOMENTS);
        attaching.kill()?;
        Ok(())
    })
    .unwrap();
    assert_eq!(untranslated(node).unwrap(), 0);
    // What is there is whole again after one attach.
    attach(&lab, &[]).unwrap();
    let shown = node.show().unwrap();
    let warnings = shown["warnings"].to_string();
    assert!(!warnings.contains("stands"), "{warnings}");
    let ours = |direction: &str| {
        let chain = shown["chain"][direction]
            .as_array()
            .cloned()
            .unwrap_or_default();
        chain.iter().filter(|entry| entry["ours"] == true).count()
    };
    assert_eq!((ours("ingress"), ours("egress")), (1, 2), "{shown}");
}

/// After a first attach that was killed at any moment, detach leaves nothing.
#[test]
fn a_first_attach_killed_half_way_is_cleaned_up() {
    let lab = Masquerade::builder()
        .ipv6(false)
        .node_address(NodeAddress::Absent)
        .build()
        .unwrap();
    let node = lab.node(0);
    let binary = xkub_tests::xkub::binary().unwrap();
    let binary = binary.to_string_lossy();
    let address = node.node_v4().to_string();
    let state = || {
        let addresses = node.guest.check(["ip", "-brief", "address"]).unwrap();
        let pins = node.guest.check(["find", "/sys/fs/bpf"]).unwrap();
        let qdiscs = node.guest.check(["tc", "qdisc", "show"]).unwrap();
        (addresses, pins, qdiscs)
    };
    let before = state();
    let whole = duration_of_attach(&lab).unwrap();
    for node in lab.nodes() {
        node.detach().unwrap();
    }
    for moment in 0..MOMENTS {
        let arguments = [
            "datapath",
            "attach",
            "--uplink",
            UPLINK,
            "--node-address",
            &address,
        ];
        let attaching = node
            .guest
            .spawn(std::iter::once(binary.as_ref()).chain(arguments))
            .unwrap();
        // Not a wait for something: another moment of the attach each time.
        std::thread::sleep(whole * moment / MOMENTS);
        attaching.kill().unwrap();
        node.detach().unwrap();
        wait_until("everything to be gone", PATIENCE, || Ok(state() == before))
            .with_context(|| {
                format!(
                    "killed after {moment}/{MOMENTS} of {whole:?}: {:?}",
                    state()
                )
            })
            .unwrap();
    }
}
