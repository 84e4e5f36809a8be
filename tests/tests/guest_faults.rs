//! What goes wrong on real nodes, in real guests: each fault leaves the overlay working, or is reported and mended.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::time::Duration;

use serde_json::Value;
use xkub_tests::guest::lab::LabBuilder;
use xkub_tests::guest::{GuestNode, Kernel, Lab, Series, alone, wanted};
use xkub_tests::masquerade::{GATEWAY_V4, GUEST_V4, NODE_V4, Overlay, UPLINK};
use xkub_tests::skip_test;
use xkub_tests::traffic::Capture;
use xkub_tests::wait::wait_for;

/// What a plain run has time for: a kernel with TCX where that makes no difference,
const USUAL: [Series; 1] = [Series::V6_12];
/// one without where that is the harder case,
const CLSACT_ALONE: [Series; 1] = [Series::V6_1];
/// and both where they go different ways.
const BOTH: [Series; 2] = [Series::V6_1, Series::V6_12];
/// Left to a run of all kernels: namespaces show the same, or time is short.
const NOWHERE: [Series; 0] = [];
const TCX: [Series; 2] = [Series::V6_12, Series::V7_2];
const CLSACT: [Series; 2] = [Series::V5_10, Series::V6_1];
/// Emulated guests on a busy machine are slow.
const PATIENCE: Duration = Duration::from_secs(40);
/// A tunnel as Flannel and Calico make it.
const OVERLAY: Overlay = Overlay {
    checksum: true,
    ..Overlay::V4
};

/// Runs `test` on every kernel that is wanted out of `possible`, with a lab built by `build`.
macro_rules! on_kernels {
    ($possible:expr, $usual:expr, $build:expr, $test:expr) => {{
        let kernels = wanted(&$possible, &$usual).unwrap();
        if kernels.is_empty() {
            skip_test!(
                "left to `cargo xtask test --vm`, or not for the kernels that were asked for"
            );
        }
        let _alone = alone();
        for series in kernels {
            println!("kernel {series}");
            let builder = Lab::builder(Kernel::obtain(series).unwrap())
                .program(env!("CARGO_BIN_EXE_xkub-foreign"));
            let build: fn(LabBuilder) -> LabBuilder = $build;
            let test: fn(Lab) = $test;
            test(build(builder).build().unwrap());
        }
    }};
}

/// An overlay, and xkub attached in both guests.
fn attach(lab: &Lab) {
    lab.attach("").unwrap();
    lab.add_overlay(&OVERLAY).unwrap();
    assert_works(lab);
}

fn ping(lab: &Lab, count: u32) -> bool {
    let peer = OVERLAY.address_of(2);
    let command = format!("ping -n -q -c {count} -i 0.05 -W 2 {peer}");
    lab.node(0).guest.run(&command).unwrap().status.success()
}

/// Small and full-size packets arrive both ways, and no checksum is wrong.
fn assert_works(lab: &Lab) {
    lab.check_overlay(&OVERLAY, PATIENCE).unwrap();
}

fn warnings(node: &GuestNode) -> Vec<String> {
    let show = node.show().unwrap();
    let warnings = show.get("warnings").and_then(Value::as_array).unwrap();
    warnings.iter().map(ToString::to_string).collect()
}

/// How many programs of ours hang on the uplink, and how many there are at all.
fn programs(node: &GuestNode) -> (usize, usize) {
    let chain = node.show().unwrap();
    let ours = ["ingress", "egress"]
        .iter()
        .filter_map(|direction| chain.pointer(&format!("/chain/{direction}")))
        .filter_map(Value::as_array)
        .flatten()
        .filter(|entry| entry.get("ours") == Some(&Value::Bool(true)))
        .count();
    let loaded = node.guest.check("bpftool prog show").unwrap();
    (ours, loaded.matches("name xkub_").count())
}

#[test]
fn somebody_ends_the_chain_behind_us() {
    on_kernels!(TCX, [Series::V6_12], |lab| lab, |lab| {
        attach(&lab);
        let node = lab.node(0);
        let foreign = node
            .guest
            .spawn(&format!("exec xkub-foreign {UPLINK} egress end-chain"))
            .unwrap();
        foreign.wait_output("attached", PATIENCE).unwrap();
        assert_works(&lab);
        // Last again, behind somebody who lets nobody run: of no use, and said so.
        let watch = node.guest.spawn("exec xkub datapath watch").unwrap();
        watch.wait_output("back in its place", PATIENCE).unwrap();
        assert_works(&lab);
        assert!(ping(&lab, 40));
        let warnings = warnings(node);
        assert!(
            warnings.iter().any(|warning| warning.contains("foreign")),
            "{warnings:?}"
        );
    });
}

#[test]
fn somebody_writes_the_node_address_behind_us() {
    on_kernels!(TCX, [Series::V6_12], |lab| lab, |lab| {
        attach(&lab);
        let node = lab.node(0);
        let to_gateway = format!("ping -n -q -c 3 -i 0.05 -W 1 {GATEWAY_V4}");
        node.guest.check(&to_gateway).unwrap();
        let foreign = node
            .guest
            .spawn(&format!(
                "exec xkub-foreign {UPLINK} egress masquerade-ping {GUEST_V4} {}",
                NODE_V4[0]
            ))
            .unwrap();
        foreign.wait_output("attached", PATIENCE).unwrap();
        assert!(
            !node.guest.run(&to_gateway).unwrap().status.success(),
            "the fault does not show"
        );
        let watch = node.guest.spawn("exec xkub datapath watch").unwrap();
        watch.wait_output("back in its place", PATIENCE).unwrap();
        node.guest.check(&to_gateway).unwrap();
        assert!(node.packets("egress-last", None, "translated").unwrap() > 0);
        assert_works(&lab);
    });
}

#[test]
fn attach_is_killed_under_traffic() {
    on_kernels!(Series::ALL, BOTH, |lab| lab, |lab| {
        attach(&lab);
        let node = lab.node(0);
        let peer = OVERLAY.address_of(2);
        let traffic = node
            .guest
            .spawn(&format!("ping -n -q -c 400 -i 0.02 -W 10 {peer}"))
            .unwrap();
        let attach = node.attach_command("");
        // Killed at one moment after the other, from before it has begun until after it has ended.
        node.guest
            .check(&format!(
                "for wait in 0.00 0.02 0.04 0.06 0.08 0.1 0.13 0.16 0.2 0.3 0.5; do \
                 {attach} > /dev/null 2>&1 & process=$!; sleep $wait; kill -KILL $process; wait $process; done; true"
            ))
            .unwrap();
        node.guest.check(&attach).unwrap();
        let output = traffic.wait(PATIENCE).unwrap();
        assert!(
            output
                .stdout
                .contains("400 packets transmitted, 400 received"),
            "{}",
            output.stdout
        );
        assert_works(&lab);
        assert_eq!(programs(node), (3, 3), "{}", node.show().unwrap());
        assert_eq!(warnings(node), Vec::<String>::new());
    });
}

#[test]
fn the_node_address_changes_under_traffic() {
    on_kernels!(Series::ALL, USUAL, |lab| lab, |lab| {
        const NEW: &str = "10.244.9.9";
        let old = NODE_V4[0];
        lab.node(0).attach("").unwrap();
        let node = lab.node(0);
        let client = "192.0.2.10";
        node.guest
            .check(&format!("ping -n -q -c 2 -i 0.05 -W 5 -I {old} {client}"))
            .unwrap();
        let tap = Capture::start(&node.launcher, "tap0").unwrap();
        let out = Capture::start(&lab.fabric, "pod1").unwrap();
        let traffic = node
            .guest
            .spawn(&format!("exec ping -n -i 0.01 -I {old} {client}"))
            .unwrap();
        traffic.wait_output("icmp_seq=20", PATIENCE).unwrap();
        // The pod is another one now.
        lab.fabric
            .ip(&format!("route add {NEW} dev pod1\nroute del {old}\n"))
            .unwrap();
        node.launcher
            .ip(&format!(
                "addr add {NEW}/32 dev eth0\naddr del {old}/32 dev eth0\n"
            ))
            .unwrap();
        node.guest
            .check(&format!(
                "xkub datapath attach --uplink {UPLINK} --node-address {NEW}"
            ))
            .unwrap();
        let swapped = out.frames().len();
        // New flows work, from inside and from outside, from the new address alone.
        wait_for("a flow from the new address", PATIENCE, || {
            let output = node
                .guest
                .run(&format!("ping -n -q -c 1 -W 1 -I {NEW} {client}"))?;
            Ok(output.status.success().then_some(()))
        })
        .unwrap();
        let server = node
            .guest
            .spawn(&format!(
                "exec iperf3 --server --forceflush --bind {NEW} --port 10250"
            ))
            .unwrap();
        server.wait_output("Server listening", PATIENCE).unwrap();
        xkub_tests::traffic::Client::to((NEW.parse::<std::net::IpAddr>().unwrap(), 10_250))
            .patience(PATIENCE)
            .connect(&lab.client)
            .unwrap();
        drop(server);
        drop(traffic);
        let source = |bytes: &[u8]| -> Option<[u8; 4]> {
            (bytes.get(12..14)? == [0x08, 0x00]).then(|| bytes.get(26..30)?.try_into().ok())?
        };
        let new: std::net::Ipv4Addr = NEW.parse().unwrap();
        for frame in tap.frames().iter().filter(|frame| !frame.outgoing) {
            let source = source(&frame.bytes);
            assert!(
                source != Some(old.octets()) && source != Some(new.octets()),
                "a node address left the guest: {:02x?}",
                frame.bytes
            );
        }
        // Outside, the old address is history once the programs are swapped.
        let after = out.frames();
        for frame in after
            .get(swapped..)
            .unwrap()
            .iter()
            .filter(|frame| !frame.outgoing)
        {
            assert_ne!(source(&frame.bytes), Some(old.octets()));
        }
    });
}

#[test]
fn the_uplink_goes_down_and_up() {
    on_kernels!(Series::ALL, USUAL, |lab| lab, |lab| {
        attach(&lab);
        let node = lab.node(0);
        node.guest
            .check(&format!(
                "ip link set {UPLINK} down && ip addr flush dev {UPLINK}"
            ))
            .unwrap();
        assert!(!ping(&lab, 1));
        node.configure_uplink(UPLINK).unwrap();
        assert_works(&lab);
        assert_eq!(warnings(node), Vec::<String>::new());
    });
}

#[test]
fn the_uplink_is_renamed() {
    on_kernels!(Series::ALL, CLSACT_ALONE, |lab| lab, |lab| {
        attach(&lab);
        let node = lab.node(0);
        let addresses = node.node_addresses();
        node.guest
            .check(&format!(
                "ip link set {UPLINK} down && ip link set {UPLINK} name enp1s0 && ip addr flush dev enp1s0"
            ))
            .unwrap();
        node.configure_uplink("enp1s0").unwrap();
        // Programs hang on the device, whatever it is called.
        assert_works(&lab);
        // Under its new name it is one datapath, not two.
        node.guest
            .check(&format!(
                "xkub datapath attach --uplink enp1s0 --node-address {addresses}"
            ))
            .unwrap();
        assert_works(&lab);
        let show = node.show().unwrap();
        assert_eq!(show.get("uplink"), Some(&Value::from("enp1s0")));
        assert_eq!(programs(node), (3, 3), "{show}");
        node.guest.check("xkub datapath detach").unwrap();
        assert_eq!(
            node.guest
                .check("bpftool prog show")
                .unwrap()
                .matches("name xkub_")
                .count(),
            0
        );
    });
}

#[test]
fn the_uplink_is_pulled_out_and_put_back() {
    on_kernels!(Series::ALL, CLSACT_ALONE, |lab| lab, |lab| {
        attach(&lab);
        let node = lab.node(0);
        node.guest.unplug_nic().unwrap();
        assert!(
            !node
                .guest
                .run(&format!("ip link show {UPLINK}"))
                .unwrap()
                .status
                .success()
        );
        // Said, and not a crash.
        let shown = node.xkub("datapath show").unwrap();
        assert_eq!(shown.code(), Some(1), "{shown:?}");
        assert!(!shown.stderr.is_empty());
        node.guest.plug_nic().unwrap();
        wait_for("the NIC", PATIENCE, || {
            let output = node.guest.run(&format!("ip link show {UPLINK}"))?;
            Ok(output.status.success().then_some(()))
        })
        .unwrap();
        node.configure_uplink(UPLINK).unwrap();
        node.attach("").unwrap();
        assert_works(&lab);
        assert_eq!(programs(node), (3, 3), "{}", node.show().unwrap());
    });
}

#[test]
fn clsact_is_deleted_under_us() {
    on_kernels!(CLSACT, [Series::V6_1], |lab| lab, |lab| {
        attach(&lab);
        let node = lab.node(0);
        let watch = node.guest.spawn("exec xkub datapath watch").unwrap();
        // It has looked once when it answers to nothing: the deletion must come later than that.
        assert_works(&lab);
        node.guest
            .check(&format!("tc qdisc del dev {UPLINK} clsact"))
            .unwrap();
        watch.wait_output("back in its place", PATIENCE).unwrap();
        assert_works(&lab);
        wait_for("all three places", PATIENCE, || {
            Ok((programs(node).0 == 3).then_some(()))
        })
        .unwrap();
    });
}

#[test]
fn bpffs_is_unmounted_and_mounted_again() {
    on_kernels!(Series::ALL, CLSACT_ALONE, |lab| lab, |lab| {
        attach(&lab);
        let node = lab.node(0);
        node.guest
            .check("umount /sys/fs/bpf && mount -t bpf bpf /sys/fs/bpf")
            .unwrap();
        node.attach("").unwrap();
        assert_works(&lab);
        assert_eq!(programs(node), (3, 3), "{}", node.show().unwrap());
        assert_eq!(
            node.guest
                .check("grep -c ' bpf ' /proc/mounts")
                .unwrap()
                .trim(),
            "1"
        );
    });
}

#[test]
fn a_second_instance_starts() {
    on_kernels!(Series::ALL, NOWHERE, |lab| lab, |lab| {
        attach(&lab);
        let node = lab.node(0);
        let attach = node.attach_command("");
        // At the same time: each ends, and there is one datapath.
        let output = node
            .guest
            .run(&format!(
                "for i in 1 2 3; do {attach} > /dev/null 2> /tmp/$i; done & \
                 for i in 4 5 6; do {attach} > /dev/null 2> /tmp/$i; done; wait; cat /tmp/[1-6]"
            ))
            .unwrap();
        assert!(output.stdout.is_empty(), "{}", output.stdout);
        assert_works(&lab);
        assert_eq!(programs(node), (3, 3), "{}", node.show().unwrap());
        assert_eq!(warnings(node), Vec::<String>::new());
    });
}

#[test]
fn the_guest_reboots() {
    on_kernels!(Series::ALL, NOWHERE, |lab| lab, |mut lab| {
        attach(&lab);
        lab.node_mut(0).reboot().unwrap();
        let node = lab.node(0);
        assert_eq!(node.xkub("datapath show").unwrap().code(), Some(1));
        node.attach("").unwrap();
        // Both know each other's tunnel device by its address, which is a new one.
        lab.node(1)
            .guest
            .ip(&format!("link del {}", OVERLAY.name))
            .unwrap();
        lab.add_overlay(&OVERLAY).unwrap();
        assert_works(&lab);
    });
}

#[test]
fn somebody_has_xdp_on_the_uplink() {
    on_kernels!(
        [Series::V6_1, Series::V6_12, Series::V7_2],
        USUAL,
        |lab| lab,
        |lab| {
            attach(&lab);
            let node = lab.node(0);
            let foreign = node
                .guest
                .spawn(&format!("exec xkub-foreign {UPLINK} xdp"))
                .unwrap();
            foreign.wait_output("attached", PATIENCE).unwrap();
            // Beside us on another hook: fine.
            node.attach("").unwrap();
            assert_works(&lab);
            // On the same hook: refused with a reason, and what was there still works.
            let refused = node
                .guest
                .run(&node.attach_command("--ingress-hook xdp"))
                .unwrap();
            assert_eq!(refused.code(), Some(1), "{refused:?}");
            assert!(!refused.stderr.trim().is_empty());
            println!("refused: {}", refused.stderr.trim());
            assert_works(&lab);
            assert_eq!(programs(node), (3, 3), "{}", node.show().unwrap());
        }
    );
}

#[test]
fn the_driver_refuses_xdp() {
    on_kernels!(Series::ALL, USUAL, LabBuilder::fixed_offloads, |lab| {
        let node = lab.node(0);
        let refused = node
            .guest
            .run(&node.attach_command("--ingress-hook xdp"))
            .unwrap();
        assert_eq!(refused.code(), Some(1), "{refused:?}");
        // The kernel has no words for it (a link's creation returns an errno alone), so xkub names both causes.
        println!("refused: {}", refused.stderr.trim());
        assert!(refused.stderr.contains("offloads"), "{}", refused.stderr);
        let link = node
            .guest
            .check(&format!("ip -details link show {UPLINK}"))
            .unwrap();
        assert!(!link.contains("xdp"), "{link}");
        assert_eq!(
            node.guest
                .check("bpftool prog show")
                .unwrap()
                .matches("name xkub_")
                .count(),
            0,
            "something is left of the refused attach"
        );
        attach(&lab);
    });
}

/// A kernel built without `CONFIG_DEBUG_INFO_BTF` has no such file.
#[test]
fn the_kernel_tells_no_types() {
    on_kernels!(Series::ALL, USUAL, |lab| lab, |lab| {
        for node in lab.nodes() {
            node.guest
                .check("mount -t tmpfs tmpfs /sys/kernel/btf && ! test -e /sys/kernel/btf/vmlinux")
                .unwrap();
        }
        attach(&lab);
        for node in lab.nodes() {
            assert_eq!(programs(node), (3, 3), "{}", node.show().unwrap());
        }
        xdp_or_reason(&lab);
        assert_works(&lab);
    });
}

#[test]
fn several_queues_and_cpus() {
    on_kernels!(Series::ALL, USUAL, |lab| lab.cpus(2).queues(2), |lab| {
        attach(&lab);
        let node = lab.node(0);
        let channels = node.guest.check(&format!("ethtool -l {UPLINK}")).unwrap();
        assert!(
            channels.contains("Combined:\t2") || channels.contains("Combined:		2"),
            "{channels}"
        );
        for hook in ["auto", "xdp"] {
            let output = node
                .guest
                .run(&node.attach_command(&format!("--ingress-hook {hook}")))
                .unwrap();
            if hook == "xdp" && !output.status.success() {
                // Linux before 5.13 wants a spare queue for each CPU.
                assert_eq!(node.guest.kernel().series, Series::V5_10, "{output:?}");
                println!("refused: {}", output.stderr.trim());
                continue;
            }
            let server = lab
                .node(1)
                .guest
                .spawn("exec iperf3 --server --one-off --forceflush")
                .unwrap();
            server.wait_output("Server listening", PATIENCE).unwrap();
            let before = lab.counters().unwrap();
            node.guest
                .check(&format!(
                    "iperf3 --client {} --bytes 8M --parallel 4",
                    OVERLAY.address_of(2)
                ))
                .unwrap();
            let after = lab.counters().unwrap();
            for (before, after) in before.iter().zip(&after) {
                assert_eq!(after.checksum_errors(before), []);
            }
            assert!(node.packets("ingress", None, "translated").unwrap() > 0);
        }
    });
}

#[test]
fn small_mtu() {
    on_kernels!(Series::ALL, NOWHERE, |lab| lab.mtu(1400), |lab| {
        attach(&lab);
        xdp_or_reason(&lab);
        assert_works(&lab);
    });
}

#[test]
fn large_mtu() {
    on_kernels!(Series::ALL, [Series::V6_12], |lab| lab.mtu(8900), |lab| {
        attach(&lab);
        xdp_or_reason(&lab);
        // virtio-net drops large packets in buffers that it had posted before XDP came: there is no room in front of
        // them (mergeable_xdp_get_buf in drivers/net/virtio_net.c). All of the ring must have been used once.
        let full = lab.mtu() - 50 - 28;
        let peer = OVERLAY.address_of(2);
        let mut lost = 0;
        wait_for("full-size packets", PATIENCE, || {
            let command = format!("ping -n -q -c 20 -i 0.01 -W 1 -M do -s {full} {peer}");
            let arrived = lab.node(0).guest.run(&command)?.status.success();
            lost += u32::from(!arrived);
            Ok(arrived.then_some(()))
        })
        .unwrap();
        if lost > 0 {
            for node in lab.nodes() {
                let counted = format!("ethtool -S {UPLINK} | grep -E ' rx_.*drops'");
                let counted = node.guest.check(&counted).unwrap();
                println!("{}: {lost} lost; {counted}", node.guest.name());
            }
        }
        assert_works(&lab);
    });
}

/// Native XDP in both guests, or a reason; never another hook in silence.
fn xdp_or_reason(lab: &Lab) {
    for node in lab.nodes() {
        let output = node
            .guest
            .run(&node.attach_command("--ingress-hook xdp"))
            .unwrap();
        let show = node.show().unwrap();
        let hook = show.pointer("/hook/ingress").and_then(Value::as_str);
        if output.status.success() {
            assert_eq!(hook, Some("xdp"));
        } else {
            assert_ne!(hook, Some("xdp"));
            assert!(!output.stderr.trim().is_empty());
            println!(
                "{}, MTU {}: {}",
                node.guest.kernel().series,
                lab.mtu(),
                output.stderr.trim()
            );
        }
    }
}
