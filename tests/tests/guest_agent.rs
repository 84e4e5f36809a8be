//! The node agent on a whole node: systemd, networkd with DHCP, a worker that is installed as k0s installs it, a reflector
//! outside; from the first boot to the uninstallation, with a live migration in between.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use serde_json::Value;
use xkub_tests::guest::api::NodeApi;
use xkub_tests::guest::k0s::{self, Start};
use xkub_tests::guest::{Disk, GuestNode, Kernel, Lab, Series, alone, initramfs};
use xkub_tests::masquerade::{CLIENT_V4, CLIENT_V6, Family, GUEST_V4, NODE_V4, Overlay, UPLINK};
use xkub_tests::program;
use xkub_tests::traffic::{Capture, Client};
use xkub_tests::wait::wait_for;

/// Emulated guests on a busy machine are slow.
const PATIENCE: Duration = Duration::from_secs(180);
/// A tunnel as Flannel and Calico make it.
const OVERLAY: Overlay = Overlay {
    checksum: true,
    ..Overlay::V4
};
/// The pod's addresses after the migration.
const NEW_V4: Ipv4Addr = Ipv4Addr::new(10, 244, 9, 9);
const NEW_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x244, 9, 0, 0, 0, 0, 9);
/// The address device.
const DEVICE: &str = "xkub0";
/// Where the token says that the API is: a pod of the infra cluster, which guests do not reach.
const IN_TOKEN: &str = "http://10.100.7.1:6443";
/// Where it can be reached.
const ENDPOINT: (Ipv4Addr, u16) = (CLIENT_V4, 6443);

/// A disk with a worker, and with xkub installed into it as into any image, on which the worker has never run.
fn disk() -> Disk {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("root");
    let credentials = k0s::Credentials {
        authority: &certificate("kubernetes")[0],
        client: &certificate("system:node:guest1").concat(),
    };
    let disk = k0s::install(Disk::new(), IN_TOKEN, credentials).unwrap();
    disk.write(&root).unwrap();
    let binary = folder.path().join("xkub");
    program::write(&binary, &initramfs::stripped_xkub().unwrap()).unwrap();
    let endpoint = format!("join.endpoint={}", SocketAddr::from(ENDPOINT));
    let mut command = Command::new(&binary);
    command.arg("install").arg("--root").arg(&root);
    for setting in [
        &format!("address.reflectors={CLIENT_V4}:3478,[{CLIENT_V6}]:3478"),
        "address.infra-cidrs=10.244.0.0/16,fd00:244::/32",
        "join.replace=10.100.0.0/16",
        &endpoint,
    ] {
        command.args(["--set", setting]);
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    disk.tree(&root).unwrap()
}

/// A certificate for this name, and its key.
fn certificate(common_name: &str) -> [String; 2] {
    let mut parameters = rcgen::CertificateParams::default();
    let mut name = rcgen::DistinguishedName::new();
    name.push(rcgen::DnType::OrganizationName, "system:nodes");
    name.push(rcgen::DnType::CommonName, common_name);
    parameters.distinguished_name = name;
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = parameters.self_signed(&key).unwrap();
    [certificate.pem(), key.serialize_pem()]
}

/// What a failure is explained by.
fn journal(node: &GuestNode) -> String {
    let command = "journalctl --no-pager --output=short-monotonic --unit=xkub-agent --unit=k0sworker | tail -n 100; \
                   systemctl status --no-pager xkub-agent; ip addr show dev xkub0; tail -n 3 /var/log/k0s-starts";
    node.guest
        .run(command)
        .map_or_else(|error| error.to_string(), |output| output.stdout)
}

/// Waits for something on a node; in vain, it says what the node says.
fn wait_on<T>(node: &GuestNode, what: &str, condition: impl FnMut() -> Result<Option<T>>) -> T {
    wait_for(what, PATIENCE, condition)
        .with_context(|| journal(node))
        .unwrap()
}

/// Waits until the worker was started so many times, and no more.
fn starts<const COUNT: usize>(node: &GuestNode) -> [Start; COUNT] {
    let starts = wait_on(node, "the worker's start", || {
        let starts = k0s::starts(&node.guest)?;
        Ok((starts.len() >= COUNT).then_some(starts))
    });
    starts.try_into().unwrap()
}

/// The node addresses that the datapath has; none while it is not attached.
fn attached(node: &GuestNode) -> BTreeSet<IpAddr> {
    let Ok(show) = node.show() else {
        return BTreeSet::new();
    };
    let lines = show.get("addresses").and_then(Value::as_array).unwrap();
    lines
        .iter()
        .map(|line| line.get("node").unwrap().as_str().unwrap().parse().unwrap())
        .collect()
}

/// The host addresses on the address device; none without it.
fn on_device(node: &GuestNode) -> BTreeSet<IpAddr> {
    let command = format!("ip -brief addr show dev {DEVICE} 2> /dev/null");
    let text = node.guest.run(&command).unwrap().stdout;
    text.split_whitespace()
        .filter_map(|word| {
            let (address, length) = word.split_once('/')?;
            matches!(length, "32" | "128").then(|| address.parse().unwrap())
        })
        .collect()
}

/// The node's addresses of both families as the lab has them.
fn node_addresses(node: &GuestNode) -> BTreeSet<IpAddr> {
    [Family::V4, Family::V6]
        .map(|family| node.node_address(family))
        .into()
}

/// Waits until datapath and device have the node's addresses, and no others.
fn settle(node: &GuestNode) {
    let wanted = node_addresses(node);
    wait_on(node, "the node address, everywhere and alone", || {
        let everywhere = attached(node) == wanted && on_device(node) == wanted;
        Ok(everywhere.then_some(()))
    });
}

/// Packets of all sizes and TCP arrive over the tunnel, and no checksum is wrong.
fn assert_overlay_works(lab: &Lab) {
    let checked = lab.check_overlay(&OVERLAY, PATIENCE);
    checked.with_context(|| journal(lab.node(0))).unwrap();
}

/// The source of an IPv4 or IPv6 packet, or the sender of an ARP packet.
fn source(frame: &[u8]) -> Option<IpAddr> {
    let v4 = |bytes: &[u8]| -> Option<IpAddr> { Some(<[u8; 4]>::try_from(bytes).ok()?.into()) };
    match frame.get(12..14)? {
        [0x08, 0x00] => v4(frame.get(26..30)?),
        [0x08, 0x06] => v4(frame.get(28..32)?),
        [0x86, 0xdd] => Some(<[u8; 16]>::try_from(frame.get(22..38)?).ok()?.into()),
        _ => None,
    }
}

/// No frame that was received begins with one of these addresses.
fn assert_no_source(capture: &Capture, from: usize, addresses: &BTreeSet<IpAddr>) {
    let frames = capture.frames();
    let received = frames.iter().skip(from).filter(|frame| !frame.outgoing);
    for frame in received {
        let source = source(&frame.bytes);
        assert!(
            !source.is_some_and(|source| addresses.contains(&source)),
            "{source:?} in {:02x?}",
            frame.bytes
        );
    }
    assert!(!frames.is_empty(), "nothing was captured");
}

#[test]
fn a_node_from_its_first_boot_to_the_uninstallation() {
    let begun = Instant::now();
    let passed = |what: &str| println!("{:6.1} s: {what}", begun.elapsed().as_secs_f64());
    let _alone = alone();
    let lab = Lab::builder(Kernel::obtain(Series::V6_12).unwrap())
        .disk(0, disk())
        .build()
        .unwrap();
    let _reflector = lab.reflector().unwrap();
    let api = NodeApi::start(&lab.client, ENDPOINT.into(), "guest1").unwrap();
    lab.node(1).attach("").unwrap();
    passed("both guests serve commands");

    // The worker's first start finds everything in place.
    let old = node_addresses(lab.node(0));
    let [first] = starts(lab.node(0));
    passed("the worker has started");
    assert_eq!(first.token_server, api.url());
    assert_eq!(first.server, api.url());
    let node_ip = |start: &Start| -> BTreeSet<IpAddr> {
        let value = start.kubelet_argument("node-ip").unwrap_or_default();
        value
            .split(',')
            .filter_map(|word| word.parse().ok())
            .collect()
    };
    assert_eq!(node_ip(&first), old, "{first:?}");
    // What was there is still there.
    assert_eq!(first.kubelet_argument("node-labels"), Some("a=b"));
    assert_eq!(first.argument("labels"), Some("x=y"));
    assert_eq!(first.argument("token-file"), Some(k0s::TOKEN_FILE));
    let mode = lab
        .node(0)
        .guest
        .check(&format!("stat -c %a:%U {}", k0s::TOKEN_FILE));
    assert_eq!(mode.unwrap(), "600:root\n");
    // As its kubelet would have it.
    api.show(&old.iter().copied().collect::<Vec<_>>());
    settle(lab.node(0));
    lab.add_overlay(&OVERLAY).unwrap();
    assert_overlay_works(&lab);
    passed("the overlay works");

    migrate(&lab, &api, &node_ip, &passed);
    passed("migrated");
    repair(&lab);
    passed("repaired");
    let node = lab.node(0);
    // Nothing of all that was a reason to restart anything.
    assert_eq!(k0s::starts(&node.guest).unwrap().len(), 2);
    let restarts = node
        .guest
        .check("systemctl show --property=NRestarts xkub-agent");
    assert_eq!(restarts.unwrap(), "NRestarts=0\n", "{}", journal(node));
    node.guest
        .check("cp /usr/local/bin/xkub /root/installer")
        .unwrap();
    uninstall(node);
    passed("uninstalled");
    join_as_k0smotron_does(&lab, &api, &node_ip);
    passed("joined as k0smotron does it");
}

/// A new machine of k0smotron's: xkub is installed when there is no worker yet; then token and unit are written, and the
/// worker is started at once.
fn join_as_k0smotron_does(lab: &Lab, api: &NodeApi, node_ip: &impl Fn(&Start) -> BTreeSet<IpAddr>) {
    let node = lab.node(0);
    let unit = format!("/etc/systemd/system/{}", k0s::UNIT);
    node.guest
        .check(&format!(
            "systemctl disable --now {} && mv {unit} /root/unit && rm -r /var/lib/k0s /var/log/k0s-starts {}",
            k0s::UNIT,
            k0s::TOKEN_FILE
        ))
        .unwrap();
    let token = k0s::token(IN_TOKEN, &certificate("kubernetes")[0]).unwrap();
    node.guest
        .check(&format!("umask 077; echo '{token}' > /root/token"))
        .unwrap();
    let endpoint = SocketAddr::from(ENDPOINT);
    node.guest
        .check(&format!(
            "systemctl daemon-reload && /root/installer install --distribution=k0s --now \
             --set address.reflectors={CLIENT_V4}:3478,[{CLIENT_V6}]:3478 \
             --set address.infra-cidrs=10.244.0.0/16,fd00:244::/32 --set join.replace=10.100.0.0/16 --set join.endpoint={endpoint}"
        ))
        .with_context(|| journal(node))
        .unwrap();
    settle(node);
    node.guest
        .check(&format!(
            "cp -p /root/token {} && cp /root/unit {unit} && systemctl daemon-reload && systemctl start {}",
            k0s::TOKEN_FILE,
            k0s::UNIT
        ))
        .with_context(|| journal(node))
        .unwrap();
    let [first] = starts(node);
    assert_eq!(first.token_server, api.url(), "{}", journal(node));
    assert_eq!(first.server, api.url());
    assert_eq!(node_ip(&first), node_addresses(node), "{first:?}");
    assert_eq!(first.kubelet_argument("node-labels"), Some("a=b"));
    // Which is why nothing has to be done again: the next look finds nothing.
    let plan = node
        .guest
        .check("xkub status --look --output json")
        .unwrap();
    let status: Value = serde_json::from_str(&plan).unwrap();
    assert_eq!(status["pending"], serde_json::json!([]), "{status}");
    assert_eq!(k0s::starts(&node.guest).unwrap().len(), 1);
}

/// The pod gets other addresses under traffic, and the guest is made to announce itself.
fn migrate(
    lab: &Lab,
    api: &NodeApi,
    node_ip: &impl Fn(&Start) -> BTreeSet<IpAddr>,
    passed: &impl Fn(&str),
) {
    let old = node_addresses(lab.node(0));
    let tap = Capture::start(&lab.node(0).launcher, "tap0").unwrap();
    let out = Capture::start(&lab.fabric, "pod1").unwrap();
    let node = lab.node(0);
    let traffic = node
        .guest
        .spawn(&format!(
            "exec ping -n -i 0.05 -I {} {CLIENT_V4}",
            NODE_V4[0]
        ))
        .unwrap();
    traffic.wait_output("icmp_seq=5", PATIENCE).unwrap();
    lab.migrate(0, NEW_V4, NEW_V6).unwrap();
    let new = node_addresses(node);
    node.guest
        .check("sysctl --write net.ipv4.ip_nonlocal_bind=1")
        .unwrap();
    let server = node
        .guest
        .spawn(&format!(
            "exec iperf3 --server --forceflush --bind {NEW_V4} --port 10250"
        ))
        .unwrap();
    server.wait_output("Server listening", PATIENCE).unwrap();
    let announced = Instant::now();
    node.guest.announce().unwrap();
    // Refused as long as it is translated to the old address.
    let client = Client::to((IpAddr::from(NEW_V4), 10_250));
    wait_on(node, "a connection", || {
        Ok(client.connect(&lab.client).ok())
    });
    println!(
        "from the announcement to the first connection at the new address: {} ms",
        announced.elapsed().as_millis()
    );
    let swapped = out.frames().len();
    drop((server, traffic));

    // The kubelet follows, once; the old address goes when the Node shows the new one.
    let [_, second] = starts(node);
    assert_eq!(node_ip(&second), new, "{second:?}");
    assert_eq!(second.token_server, api.url());
    assert!(on_device(node).is_superset(&old), "{}", journal(node));
    passed("the worker was restarted");
    api.show(&new.iter().copied().collect::<Vec<_>>());
    settle(node);
    // Because the Node showed the new one, and not because time was up.
    let kept = node
        .guest
        .check("journalctl --unit=xkub-agent --grep='and was kept for' || true")
        .unwrap();
    assert!(!kept.contains("and was kept for"), "{}", journal(node));
    passed("the old address is gone");

    // The CNI follows, too, as far as it knows the node address.
    let name = OVERLAY.name;
    node.guest
        .ip(&format!(
            "link set {name} type vxlan id {} local {NEW_V4}",
            OVERLAY.vni
        ))
        .unwrap();
    let mac = node
        .guest
        .check(&format!("cat /sys/class/net/{name}/address"))
        .unwrap();
    let mac = mac.trim();
    lab.node(1)
        .guest
        .check(&format!(
            "bridge fdb del {mac} dev {name} dst {}; bridge fdb append {mac} dev {name} dst {NEW_V4}",
            NODE_V4[0]
        ))
        .unwrap();
    assert_overlay_works(lab);

    // Inside, the guest is 10.0.2.2 on every packet; outside, the old address is history.
    assert_no_source(&tap, 0, &old.union(&new).copied().collect());
    assert_no_source(&out, swapped, &old);
}

/// Whatever takes something away, the agent puts it back.
fn repair(lab: &Lab) {
    let node = lab.node(0);
    let address = node.node_address(Family::V4);
    let mtu = node.guest.hardware().mtu;
    for command in [
        &format!("networkctl reconfigure {UPLINK}"),
        &format!("networkctl renew {UPLINK}"),
        &format!("ip addr del {address}/32 dev {DEVICE}"),
        &format!("ip link set {DEVICE} mtu {}", mtu - 100),
        &format!("ip link set {DEVICE} down"),
        &format!("ip link del {DEVICE}"),
    ] {
        node.guest.check(command).unwrap();
        settle(node);
        let wanted = format!("mtu {mtu} ");
        wait_on(node, "the MTU of the device", || {
            let link = node.guest.check(&format!("ip link show dev {DEVICE} up"))?;
            Ok(link.contains(&wanted).then_some(()))
        });
        println!("repaired after `{command}`");
    }
    // networkd gives the uplink its address again by itself.
    wait_on(node, "the guest address", || {
        let routes = node.guest.check("ip route")?;
        Ok(routes
            .contains(&format!("dev {UPLINK} proto dhcp src {GUEST_V4}"))
            .then_some(()))
    });
    assert_overlay_works(lab);
}

/// Nothing of ours is left, and what is not ours is as it was.
fn uninstall(node: &GuestNode) {
    node.guest.check("xkub uninstall --purge").unwrap();
    for (what, command) in [
        ("files", "find / -xdev -name '*xkub*' -not -path '/proc/*'"),
        ("state", "find /run /sys/fs/bpf -name '*xkub*'"),
        (
            "drop-ins",
            "ls -d /etc/systemd/system/k0sworker.service.d 2> /dev/null",
        ),
        ("devices", "ip -brief link | grep xkub"),
        ("addresses", "ip -brief addr | grep -E '10.244|fd00:244'"),
        ("programs", "bpftool prog show | grep xkub_"),
        (
            "units",
            "systemctl list-units --all --no-legend | grep xkub",
        ),
    ] {
        let left = node.guest.run(command).unwrap().stdout;
        assert_eq!(left, "", "{what} are left");
    }
    // The worker runs on, and starts with its own arguments again.
    node.guest.check("systemctl is-active k0sworker").unwrap();
    let unit = node
        .guest
        .check("systemctl show --property=ExecStart k0sworker")
        .unwrap();
    assert!(!unit.contains("node-ip"), "{unit}");
    let unit_file = Path::new("/etc/systemd/system").join(k0s::UNIT);
    let text = node
        .guest
        .check(&format!("cat {}", unit_file.display()))
        .unwrap();
    assert!(
        text.contains(r"--kubelet-extra-args=--v=2\x20--node-labels=a=b "),
        "{text}"
    );
}
