//! The agent in a guest behind masquerade: it finds the node address, puts it in place, and keeps it there.

use std::{
    ffi::OsStr,
    net::Ipv4Addr,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use nix::sys::signal::Signal;
use serde_json::Value;
use xkub_tests::{
    Masquerade, Node,
    agent::Agent,
    masquerade::{CLIENT_V4, GUEST_V4, NODE_V4, NodeAddress, UPLINK},
    namespace::Running,
    skip_test,
    wait::{PATIENCE, wait_until},
};

/// What the launcher's pod is called after a migration.
const MOVED: Ipv4Addr = Ipv4Addr::new(10, 244, 3, 61);
/// The address device.
const DEVICE: &str = "xkub0";

/// A lab whose first guest has something to be the address device: where the kernel has no dummy, a bridge with our
/// mark stands in for it.
fn lab() -> Result<Masquerade> {
    let lab = bare_lab()?;
    let guest = &lab.node(0).guest;
    if !has_dummy(lab.node(0))? {
        guest.ip(&format!("link add {DEVICE} type bridge\n"))?;
        guest.check(["ip", "link", "set", DEVICE, "alias", "node address (xkub)"])?;
    }
    Ok(lab)
}

fn bare_lab() -> Result<Masquerade> {
    Masquerade::builder()
        .ipv6(false)
        .node_address(NodeAddress::Absent)
        .build()
}

/// Whether the kernel has dummy devices.
fn has_dummy(node: &Node) -> Result<bool> {
    let made = node
        .guest
        .run(["ip", "link", "add", "probe0", "type", "dummy"])?
        .success()
        .is_ok();
    if made {
        node.guest.ip("link del probe0\n")?;
    }
    Ok(made)
}

/// A reflector outside, as a VM reaches it.
fn reflector(lab: &Masquerade) -> Result<Running> {
    let binary = xkub_tests::xkub::binary()?;
    let mut running = lab.client.spawn([
        binary.as_os_str(),
        "reflector".as_ref(),
        "--output".as_ref(),
        "json".as_ref(),
    ])?;
    running.wait_output("listening", PATIENCE)?;
    Ok(running)
}

/// An agent on a node without a worker.
fn agent<'a>(node: &'a Node, arguments: &[&str]) -> Result<Agent<'a>> {
    let mut all = vec!["--node-distribution=none"];
    all.extend(arguments);
    Agent::new(node, all)
}

/// With the only source being a reflector at the client.
fn with_reflector(node: &Node) -> Result<Agent<'_>> {
    let server = CLIENT_V4.to_string();
    agent(
        node,
        &[
            "--address-reflectors",
            &server,
            "--address-sources",
            "reflector",
            "--address-interval",
            "1s",
        ],
    )
}

/// With the node's address told.
fn fixed(node: &Node) -> Result<Agent<'_>> {
    agent(node, &["--address-static", &node.node_v4().to_string()])
}

/// The host addresses on the address device; none without it.
fn addresses(node: &Node) -> Result<Vec<String>> {
    addresses_on(node, DEVICE)
}

fn addresses_on(node: &Node, device: &str) -> Result<Vec<String>> {
    let output = node
        .guest
        .run(["ip", "-json", "address", "show", "dev", device])?;
    let Ok(text) = output.success() else {
        return Ok(Vec::new());
    };
    let links: Value = serde_json::from_str(&text)?;
    let found = links[0]["addr_info"].as_array().context("no addresses")?;
    Ok(found
        .iter()
        .filter(|address| address["prefixlen"] == 32)
        .filter_map(|address| {
            Some(format!(
                "{}/{}",
                address["local"].as_str()?,
                address["prefixlen"]
            ))
        })
        .collect())
}

/// The ids of the programs in force.
fn programs(node: &Node) -> Result<Vec<Value>> {
    let shown = node.show()?;
    let programs = shown["programs"].as_array().context("no programs")?;
    Ok(programs
        .iter()
        .map(|program| program["id"].clone())
        .collect())
}

fn host(address: Ipv4Addr) -> Vec<String> {
    vec![format!("{address}/32")]
}

fn wait_addresses(node: &Node, expected: &[String]) -> Result<()> {
    let what = format!("{expected:?} on {DEVICE}");
    wait_until(&what, PATIENCE, || Ok(addresses(node)? == expected))
}

/// The launcher's pod gets another address, as that of a VM's next launcher is.
fn readdress(lab: &Masquerade, node: &Node) -> Result<()> {
    let old = node.node_v4();
    let pod = format!("pod{}", node.number());
    lab.fabric.ip(&format!("route add {MOVED} dev {pod}\n"))?;
    node.launcher.ip(&format!(
        "addr add {MOVED}/32 dev eth0\naddr del {old}/32 dev eth0\n"
    ))
}

#[test]
fn a_static_address_is_attached_and_put_on_its_device() {
    // Without a dummy in the kernel, `lo` holds the address.
    let lab = bare_lab().unwrap();
    let node = lab.node(0);
    let setting = fixed(node).unwrap();
    let agent = setting.start().unwrap();
    let shown = node.show().unwrap();
    let device = shown["addressDevice"].as_str().unwrap();
    let expected = if has_dummy(node).unwrap() {
        DEVICE
    } else {
        "lo"
    };
    assert_eq!(device, expected);
    assert_eq!(addresses_on(node, device).unwrap(), host(node.node_v4()));
    assert_eq!(shown["addresses"][0]["node"], node.node_v4().to_string());
    assert_eq!(shown["addresses"][0]["guest"], GUEST_V4.to_string());
    assert_eq!(shown["warnings"], serde_json::json!([]));
    let attached = programs(node).unwrap();
    // The datapath does not need the agent.
    agent.kill().unwrap();
    assert_eq!(programs(node).unwrap(), attached);
    assert_eq!(addresses_on(node, device).unwrap(), host(node.node_v4()));
    // Nor does another agent change what is right.
    let plan = setting.plan().unwrap();
    assert_eq!(plan["actions"], serde_json::json!([]), "{plan}");
    let agent = setting.start().unwrap();
    assert_eq!(programs(node).unwrap(), attached);
    drop(agent);
}

#[test]
fn a_reflector_tells_the_address_and_the_agent_follows_it() {
    let lab = lab().unwrap();
    let node = lab.node(0);
    let setting = with_reflector(node).unwrap();
    // Nobody answers yet, which is no reason to give up.
    let _agent = setting.spawn().unwrap();
    let status = setting
        .wait_status("an agent that waits", |status| status["reconciles"] != 0)
        .unwrap();
    assert_eq!(status["ready"], false);
    let reflector = reflector(&lab).unwrap();
    let status = setting
        .wait_status("the address", |status| status["ready"] == true)
        .unwrap();
    assert_eq!(
        status["nodeAddresses"],
        serde_json::json!([node.node_v4().to_string()])
    );
    assert_eq!(status["sources"]["ipv4"], "reflector");
    wait_addresses(node, &host(node.node_v4())).unwrap();

    readdress(&lab, node).unwrap();
    wait_addresses(node, &host(MOVED)).unwrap();
    setting
        .wait_status("the new address", |status| {
            status["nodeAddresses"] == serde_json::json!([MOVED.to_string()])
                && status["ready"] == true
        })
        .unwrap();
    let shown = node.show().unwrap();
    assert_eq!(shown["addresses"][0]["node"], MOVED.to_string());

    let attached = programs(node).unwrap();
    // A reflector that falls silent changes nothing.
    reflector.kill().unwrap();
    let status = setting
        .wait_status("silence", |status| {
            status["waiting"].to_string().contains("reflector")
        })
        .unwrap();
    assert_eq!(status["ready"], true);
    assert_eq!(programs(node).unwrap(), attached);
}

#[test]
fn an_announcement_makes_it_ask_at_once() {
    let lab = lab().unwrap();
    let node = lab.node(0);
    let _reflector = reflector(&lab).unwrap();
    let server = CLIENT_V4.to_string();
    // The timer is no help.
    let setting = agent(
        node,
        &["--address-reflectors", &server, "--address-interval=60m"],
    )
    .unwrap();
    let _agent = setting.start().unwrap();
    wait_addresses(node, &host(node.node_v4())).unwrap();
    readdress(&lab, node).unwrap();
    // Nothing in the guest has changed, so that nobody has noticed.
    assert_eq!(addresses(node).unwrap(), host(node.node_v4()));
    node.announce().unwrap();
    wait_addresses(node, &host(MOVED)).unwrap();
}

/// Does `removals` one after the other, with an agent whose timer is no help.
fn put_back_after(removals: &[String]) -> Result<()> {
    let lab = lab()?;
    let node = lab.node(0);
    let mut setting = fixed(node)?;
    setting.arguments.push("--address-interval=60m".to_owned());
    let _agent = setting.start()?;
    let expected = host(node.node_v4());
    for removal in removals {
        node.guest.ip(removal)?;
        wait_until(removal, PATIENCE, || {
            let links = node.guest.check(["ip", "link", "show", "dev", DEVICE]);
            let is_right = links.is_ok_and(|text| text.contains("UP") && text.contains("mtu 1500"));
            Ok(is_right && addresses(node)? == expected)
        })?;
    }
    Ok(())
}

#[test]
fn what_others_remove_is_put_back() {
    let address = NODE_V4[0];
    put_back_after(&[
        format!("addr del {address}/32 dev {DEVICE}\n"),
        format!("link set {DEVICE} down\n"),
        format!("link set {DEVICE} mtu 1280\n"),
    ])
    .unwrap();
}

#[test]
fn the_address_device_is_made_anew() {
    if !has_dummy(lab().unwrap().node(0)).unwrap() {
        skip_test!("the kernel has no dummy devices; tests/guest_agent.rs removes one in a guest");
    }
    put_back_after(&[format!("link del {DEVICE}\n")]).unwrap();
}

#[test]
fn the_uplinks_mtu_is_followed() {
    let lab = lab().unwrap();
    let node = lab.node(0);
    let mut setting = fixed(node).unwrap();
    setting.arguments.push("--address-interval=60m".to_owned());
    let _agent = setting.start().unwrap();
    node.guest
        .ip(&format!("link set {UPLINK} mtu 1380\n"))
        .unwrap();
    wait_until("the MTU", PATIENCE, || {
        let text = node.guest.check(["ip", "link", "show", "dev", DEVICE])?;
        Ok(text.contains("mtu 1380"))
    })
    .unwrap();
}

#[test]
fn a_second_agent_is_refused() {
    let lab = lab().unwrap();
    let node = lab.node(0);
    let setting = fixed(node).unwrap();
    let mut first = setting.start().unwrap();
    let second = setting.spawn().unwrap().wait(PATIENCE).unwrap();
    assert_eq!(second.code(), Some(1));
    assert!(
        second.stderr.contains("another agent works on this node"),
        "{}",
        second.stderr
    );
    assert!(first.is_running().unwrap());
    // The socket is still the first one's.
    assert!(setting.status().unwrap().is_some());
    // Its end leaves the datapath, and room for another.
    first.signal(Signal::SIGTERM).unwrap();
    assert_eq!(first.wait(PATIENCE).unwrap().code(), Some(0));
    assert!(node.show().is_ok());
    setting.start().unwrap();
}

#[test]
fn wrong_answers_are_refused_and_said() {
    let lab = lab().unwrap();
    let node = lab.node(0);
    let _reflector = reflector(&lab).unwrap();
    let mut setting = with_reflector(node).unwrap();
    setting
        .arguments
        .push("--address-infra-cidrs=10.99.0.0/16".to_owned());
    let _agent = setting.spawn().unwrap();
    let status = setting
        .wait_status("a refusal", |status| status["refusals"][0].is_object())
        .unwrap();
    assert_eq!(status["refusals"][0]["reason"], "outside-infra");
    assert_eq!(status["refusals"][0]["address"], node.node_v4().to_string());
    assert_eq!(status["ready"], false);
    assert_eq!(addresses(node).unwrap(), Vec::<String>::new());
    let state = setting.state();
    let state = state.to_string_lossy();
    let text = node
        .xkub(&["status", "--state-directory", &state])
        .unwrap()
        .success()
        .unwrap();
    assert!(
        text.contains("none of the infra cluster's networks"),
        "{text}"
    );
    let check = ["status", "--check=ready", "--state-directory", &state];
    assert_eq!(node.xkub(&check).unwrap().code(), Some(1));
    let check = ["status", "--check=live", "--state-directory", &state];
    assert_eq!(node.xkub(&check).unwrap().code(), Some(0));
}

#[test]
fn the_guest_address_is_no_node_address() {
    let lab = lab().unwrap();
    let node = lab.node(0);
    let setting = agent(node, &["--address-static", &GUEST_V4.to_string()]).unwrap();
    let plan = setting.plan().unwrap();
    assert_eq!(plan["actions"], serde_json::json!([]));
    assert!(
        plan["problems"]
            .to_string()
            .contains("it is the guest address"),
        "{plan}"
    );
}

#[test]
fn an_agent_that_stops_after_every_action_converges() {
    let lab = lab().unwrap();
    let node = lab.node(0);
    let _reflector = reflector(&lab).unwrap();
    let mut setting = with_reflector(node).unwrap();
    // Agents that live for one action each.
    let converge = |setting: &Agent<'_>| -> Result<usize> {
        for step in 0..20 {
            if setting.plan()?["actions"] == serde_json::json!([]) {
                return Ok(step);
            }
            setting.once(&["--max-actions=1"])?.success()?;
        }
        anyhow::bail!("no end: {}", setting.plan()?)
    };
    assert_eq!(converge(&setting).unwrap(), 1);
    assert_eq!(addresses(node).unwrap(), host(node.node_v4()));
    readdress(&lab, node).unwrap();
    // The swap: no worker needs the old address for a while.
    assert_eq!(converge(&setting).unwrap(), 1);
    assert_eq!(addresses(node).unwrap(), host(MOVED));
    node.guest
        .ip(&format!("addr del {MOVED}/32 dev {DEVICE}\n"))
        .unwrap();
    assert_eq!(converge(&setting).unwrap(), 1);
    assert_eq!(addresses(node).unwrap(), host(MOVED));
    // Another device: there, then here no more.
    node.guest
        .check(["ip", "link", "add", "node0", "type", "bridge"])
        .unwrap();
    setting
        .arguments
        .push("--datapath-address-device=node0".to_owned());
    assert_eq!(converge(&setting).unwrap(), 2);
    assert_eq!(addresses(node).unwrap(), Vec::<String>::new());
    assert_eq!(addresses_on(node, "node0").unwrap(), host(MOVED));
    // Nothing is left of it.
    node.detach().unwrap();
    assert_eq!(addresses_on(node, "node0").unwrap(), Vec::<String>::new());
}

/// A copy of the binary whose eBPF object differs in a byte that nobody reads, as far as programs are concerned.
fn other_build(folder: &Path) -> Result<PathBuf> {
    // ELF64, little endian, version 1, and behind the padding: a relocatable file for eBPF.
    let ident = *b"\x7fELF\x02\x01\x01";
    let kind = [1, 0, 247, 0];
    let mut bytes = std::fs::read(xkub_tests::xkub::binary()?)?;
    let place = bytes
        .windows(20)
        .position(|window| window.starts_with(&ident) && window.ends_with(&kind))
        .context("no eBPF object in the binary")?;
    // The last byte of the padding (`e_ident`, elf(5)).
    bytes[place + 15] ^= 1;
    let path = folder.join("xkub");
    xkub_tests::program::write(&path, &bytes)?;
    Ok(path)
}

#[test]
fn an_upgrade_loads_its_own_programs() {
    let lab = lab().unwrap();
    let node = lab.node(0);
    let setting = fixed(node).unwrap();
    let binary = other_build(setting.folder()).unwrap();
    let address = node.node_v4().to_string();
    let attach = ["datapath", "attach", "--uplink", UPLINK, "--node-address"];
    let mut words = vec![binary.as_os_str()];
    words.extend(attach.iter().map(OsStr::new));
    words.push(address.as_ref());
    node.guest.run(words).unwrap().success().unwrap();
    assert_eq!(node.show().unwrap()["isCurrentBuild"], false);
    let _agent = setting.start().unwrap();
    assert_eq!(node.show().unwrap()["isCurrentBuild"], true);
    // Once is enough.
    assert_eq!(setting.plan().unwrap()["actions"], serde_json::json!([]));
}

#[test]
fn whoever_wants_a_look_gets_one() {
    let lab = lab().unwrap();
    let node = lab.node(0);
    let setting = fixed(node).unwrap();
    let _agent = setting.start().unwrap();
    let looks = || {
        let status = setting.status()?.context("no status")?;
        status["reconciles"].as_u64().context("no reconciles")
    };
    let before = looks().unwrap();
    let state = setting.state();
    let state = state.to_string_lossy();
    let look = [
        "status",
        "--look",
        "--check=live",
        "--state-directory",
        &state,
    ];
    let said = node.xkub(&look).unwrap().success().unwrap();
    assert_eq!(said, "");
    assert!(looks().unwrap() > before);
}

#[test]
fn a_dry_run_changes_nothing() {
    let lab = lab().unwrap();
    let node = lab.node(0);
    let setting = fixed(node).unwrap();
    let plan = setting.plan().unwrap();
    assert_eq!(plan["kind"], "Plan");
    assert_eq!(plan["actions"][0]["kind"], "attach");
    assert_eq!(plan["actions"][0]["why"], "nothing is attached");
    assert!(node.show().is_err());
    assert!(!setting.state().exists());
    let text = setting.once(&["--dry-run"]).unwrap().success().unwrap();
    assert!(
        text.contains("attach the datapath to eth0 for 10.244.1.226"),
        "{text}"
    );
}

#[test]
fn node_ports_follow_the_proxy() {
    let lab = lab().unwrap();
    let node = lab.node(0);
    let setting = fixed(node).unwrap();
    let set = |elements: &str| {
        node.guest
            .nft(&format!(
                "add table ip kube-proxy\nadd set ip kube-proxy nodeport-ips {{ type ipv4_addr; }}\n\
                 flush set ip kube-proxy nodeport-ips\n\
                 add element ip kube-proxy nodeport-ips {{ {elements} }}\n"
            ))
            .unwrap();
        setting.once(&[]).unwrap().success().unwrap();
        let services = node.show().unwrap()["services"].to_string();
        services.contains("tcp/30000-32767") && services.contains("udp/30000-32767")
    };
    let address = node.node_v4();
    assert!(set(&address.to_string()));
    assert!(!set(&format!("{address}, {GUEST_V4}")));
    assert!(set(&address.to_string()));
}

#[test]
fn metrics_and_health_are_served() {
    let lab = lab().unwrap();
    let node = lab.node(0);
    let setting = fixed(node).unwrap();
    let _agent = setting.start().unwrap();
    let client = CLIENT_V4.to_string();
    node.guest.check(["ping", "-c", "1", &client]).unwrap();
    let get = |page: &str| {
        let url = format!("http://127.0.0.1:9969{page}");
        node.guest
            .check(["curl", "--silent", "--show-error", "--fail", &url])
            .unwrap()
    };
    assert_eq!(get("/healthz").trim(), "ok");
    assert_eq!(get("/readyz").trim(), "ok");
    let text = get("/metrics");
    for part in [
        "xkub_node_address_info{address=\"10.244.1.226\",family=\"ipv4\",source=\"static\"} 1",
        "xkub_actions_total{kind=\"attach\",result=\"done\"} 1",
        "xkub_datapath_packets_total{place=\"egress-first\"",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
}

#[test]
fn torn_state_is_no_obstacle() {
    let lab = lab().unwrap();
    let node = lab.node(0);
    let setting = fixed(node).unwrap();
    std::fs::create_dir_all(setting.state()).unwrap();
    std::fs::write(setting.state().join("state.json"), "{\"version\":1,\"nodeA").unwrap();
    setting.start().unwrap();
    assert_eq!(addresses(node).unwrap(), host(node.node_v4()));
}
