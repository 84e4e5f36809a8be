//! The guest lab keeps its promises, and shows the faults that xkub is for.

use std::time::Duration;

use xkub_tests::guest::{Disk, Kernel, Lab, Series, alone, k0s};
use xkub_tests::masquerade::{GATEWAY_V4, GUEST_V4, NODE_V4, Overlay, UPLINK};
use xkub_tests::traffic::Capture;
use xkub_tests::wait::wait_for;

#[test]
fn a_guest_is_a_node_behind_masquerade() {
    let _alone = alone();
    let lab = Lab::new(Series::V6_12).unwrap();
    let guest = &lab.node(0).guest;

    // Status and both outputs come as they are, whatever they look like.
    let output = guest
        .run("printf '\\n:1 0 0 0\\n:ready\\n'; echo no >&2; exit 7")
        .unwrap();
    assert_eq!(output.code(), Some(7));
    assert_eq!(output.stdout, "\n:1 0 0 0\n:ready\n");
    assert_eq!(output.stderr, "no\n");
    let long = guest.check("seq 20000").unwrap();
    assert_eq!(long.lines().count(), 20_000);
    assert!(guest.run("false").unwrap().success().is_err());

    // One that hangs is killed, and the next one is served.
    let hung = guest
        .run_within("echo begun; sleep 1000", Duration::from_secs(1))
        .unwrap();
    assert_eq!(hung.code(), Some(137));
    assert_eq!(hung.stdout, "begun\n");

    // In the background, too.
    let background = guest
        .spawn("echo it\\'s \"$((1 + 1))\"; sleep 1000")
        .unwrap();
    background
        .wait_output("it's 2", Duration::from_secs(20))
        .unwrap();
    background.signal("KILL").unwrap();
    drop(background);
    let ended = guest
        .spawn("exit 3")
        .unwrap()
        .wait(Duration::from_secs(20))
        .unwrap();
    assert_eq!(ended.code(), Some(3));

    // Both believe to be 10.0.2.2 and reach the outside; outside they are their pods.
    for node in lab.nodes() {
        node.guest
            .check(&format!("ping -c 1 -W 5 {GATEWAY_V4}"))
            .unwrap();
        let routed = node.guest.check("ip route get 192.0.2.10").unwrap();
        assert!(routed.contains("src 10.0.2.2"), "{routed}");
        // Nobody but xkub mounts it.
        node.guest.check("! grep -q ' bpf ' /proc/mounts").unwrap();
    }
    assert!(guest.console().unwrap().is_empty() || guest.console().unwrap().is_ascii());

    // The fault: a tunnel from the node address is dead, and alive with xkub.
    for node in lab.nodes() {
        let address = NODE_V4[node.number() - 1];
        node.guest
            .ip(&format!("addr add {address}/32 dev lo"))
            .unwrap();
    }
    let overlay = Overlay {
        checksum: true,
        ..Overlay::V4
    };
    lab.add_overlay(&overlay).unwrap();
    let ping = format!("ping -c 2 -i 0.2 -W 1 {}", overlay.address_of(2));
    assert!(guest.run(&ping).unwrap().success().is_err());
    lab.attach("--no-address").unwrap();
    guest
        .check(&format!("ping -c 2 -i 0.2 -W 5 {}", overlay.address_of(2)))
        .unwrap();
}

#[test]
fn a_guest_with_systemd_is_a_node_with_a_worker() {
    /// Emulated guests on a busy machine are slow.
    const PATIENCE: Duration = Duration::from_secs(180);
    const SERVER: &str = "https://10.244.7.1:6443";
    let _alone = alone();
    let credentials = k0s::Credentials {
        authority: "of nobody",
        client: "of nobody",
    };
    let disk = Disk::new().file("/etc/placed", "by the test", 0o600);
    let disk = k0s::install(disk, SERVER, credentials).unwrap();
    let mut lab = Lab::builder(Kernel::obtain(Series::V6_12).unwrap())
        .disk(0, disk)
        .build()
        .unwrap();
    let worker = |lab: &Lab, count: usize| {
        wait_for("the worker", PATIENCE, || {
            let starts = k0s::starts(&lab.node(0).guest)?;
            Ok((starts.len() == count).then_some(starts))
        })
        .unwrap()
    };
    let [start] = &worker(&lab, 1)[..] else {
        unreachable!("as many as were awaited")
    };
    assert_eq!(
        (&start.token_server[..], &start.server[..]),
        (SERVER, SERVER)
    );
    assert_eq!(start.kubelet_argument("node-labels"), Some("a=b"));
    assert_eq!(start.kubelet_argument("node-ip"), None);
    assert_eq!(start.argument("labels"), Some("x=y"));

    let guest = &lab.node(0).guest;
    assert_eq!(guest.check("stat -c %a /etc/placed").unwrap(), "600\n");
    assert_eq!(guest.check("cat /proc/1/comm").unwrap(), "systemd\n");
    // By DHCP, as from virt-launcher.
    wait_for("the guest address", PATIENCE, || {
        let routes = guest.check("ip route")?;
        let wanted = format!("default via {GATEWAY_V4} dev {UPLINK} proto dhcp src {GUEST_V4}");
        Ok(routes.contains(&wanted).then_some(()))
    })
    .unwrap();
    assert!(
        guest
            .check("ip -6 route")
            .unwrap()
            .contains("default via fd10:0:2::1")
    );
    guest.check("ping -c 1 -W 5 192.0.2.10").unwrap();

    // Told to by QEMU, the guest itself announces its address: what a datapath in the guest can see.
    let tap = Capture::start(&lab.node(0).launcher, "tap0").unwrap();
    guest.announce().unwrap();
    tap.wait("a gratuitous ARP", PATIENCE, |frame| {
        let arp = frame.bytes.get(12..14) == Some(&[0x08, 0x06]);
        let [sender, target] = [28..32, 38..42].map(|range| frame.bytes.get(range));
        arp && !frame.outgoing && sender == target && sender == Some(&GUEST_V4.octets())
    })
    .unwrap();

    // What is on the disk outlives the power.
    guest.check("echo changed > /etc/placed; sync").unwrap();
    lab.node_mut(0).reboot().unwrap();
    worker(&lab, 2);
    assert_eq!(
        lab.node(0).guest.check("cat /etc/placed").unwrap(),
        "changed\n"
    );
}
