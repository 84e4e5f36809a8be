//! Observations, and the plans that come of them.

use std::collections::BTreeMap;

use super::*;
use crate::{
    agent::{
        action::Kind,
        observe::{Cni, Discovered, JoinFile, Refusal},
    },
    datapath::{AddressLine, Chains, Datapath, Hooks, settings::DEFAULT_FLOW_ENTRIES},
    node::file_change::FileChange,
};

const NODE: &str = "10.244.1.226";
const OTHER: &str = "10.244.3.7";
const GUEST: &str = "10.0.2.2";

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn dual(text: &str) -> DualAddress {
    DualAddress::parse("node address", text).unwrap()
}

/// A node that is as it should be, with the default configuration.
fn settled() -> Observation {
    Observation {
        uplink: Ok(Uplink {
            name: "eth0".to_owned(),
            index: 2,
            mtu: 1450,
            addresses: vec![address(GUEST)],
        }),
        address: Discovered {
            address: dual(NODE),
            ..Discovered::default()
        },
        device: Some(Device {
            name: "xkub0".to_owned(),
            index: 3,
            is_ours: true,
            is_up: true,
            mtu: 1450,
            addresses: vec![address(NODE)],
        }),
        datapath: Some(attached(NODE)),
        token: None,
        join_files: vec![JoinFile {
            path: "/etc/k0s/k0stoken".into(),
            kind: crate::join::Kind::K0s,
            state: JoinState::Fine,
        }],
        worker: Ok(Some(worker("k0s"))),
        node: NodeState::Shows(vec![address(NODE)]),
        cni: Cni {
            why: "the CNI advertises another address".to_owned(),
            ..Cni::default()
        },
        node_port_addresses: Ok(None),
    }
}

fn attached(node: &str) -> Attached {
    let Config { datapath, .. } = Config::default();
    let set = service_set(&datapath.services, &datapath.overlay_ports);
    Attached {
        shown: Datapath {
            uplink: "eth0".to_owned(),
            ifindex: 2,
            hook: Hooks {
                ingress: Hook::Tcx,
                egress_first: Hook::Tcx,
                egress_last: Hook::Tcx,
            },
            addresses: vec![AddressLine {
                family: "ipv4",
                guest: address(GUEST),
                node: address(node),
            }],
            address_device: Some("xkub0".to_owned()),
            services: compact(&set),
            overlay_ports: set.overlay.iter().collect(),
            programs: Vec::new(),
            maps: Vec::new(),
            chain: Chains::default(),
            is_current_build: true,
            warnings: Vec::new(),
        },
        faults: Vec::new(),
        flow_entries: DEFAULT_FLOW_ENTRIES,
        marks: vec![("xkub0".to_owned(), address(node))],
    }
}

fn worker(distribution: &str) -> Worker {
    Worker {
        distribution: distribution.to_owned(),
        unit: format!("{distribution}.service"),
        changes: Vec::new(),
        is_running: true,
        is_outdated: false,
        has_external_cloud_provider: false,
        warnings: Vec::new(),
        certificate: None,
    }
}

fn change() -> FileChange {
    FileChange::write("/etc/drop-in", "text", 0o644, "the node address is another")
}

/// A worker that would have to be told the address.
fn untold(distribution: &str) -> Worker {
    Worker {
        changes: vec![change()],
        is_outdated: true,
        ..worker(distribution)
    }
}

fn kinds(plan: &Plan) -> Vec<Kind> {
    plan.actions.iter().map(Action::kind).collect()
}

type Edit = fn(&mut Config, &mut Observation, &mut Memory);

fn plan_after(edit: Edit) -> Plan {
    let mut config = Config::default();
    let mut observation = settled();
    let mut memory = Memory::default();
    edit(&mut config, &mut observation, &mut memory);
    plan(&config, &observation, &memory)
}

#[test]
fn a_node_that_is_as_it_should_be_is_left_alone() {
    assert_eq!(plan_after(|_, _, _| {}), Plan::default());
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn what_is_seen_leads_to_what_is_done() {
    use Kind::*;
    let table: &[(&str, Edit, &[Kind])] = &[
        (
            "a fresh node: all of it, in order",
            |_, o, _| {
                o.datapath = None;
                o.device = None;
                o.worker = Ok(Some(untold("k0s")));
                o.join_files[0].state = JoinState::Due(vec!["a → b".to_owned()]);
                o.cni.due = BTreeMap::from([("ip".to_owned(), NODE.to_owned())]);
                o.node = NodeState::NotJoined;
            },
            &[Attach, Annotate, RewriteJoin, SetNodeIp, Restart],
        ),
        (
            "boot: the worker has not started",
            |_, o, _| {
                o.datapath = None;
                o.device = None;
                o.worker = Ok(Some(Worker {
                    is_running: false,
                    ..untold("k0s")
                }));
                o.node = NodeState::NotJoined;
            },
            &[Attach, SetNodeIp],
        ),
        (
            "no source answers at boot: join files alone",
            |_, o, _| {
                o.datapath = None;
                o.device = None;
                o.address = Discovered::default();
                o.join_files[0].state = JoinState::Due(vec!["a → b".to_owned()]);
            },
            &[RewriteJoin],
        ),
        (
            "no source answers later: what is attached stays",
            |_, o, _| o.address = Discovered::default(),
            &[],
        ),
        (
            "no source answers after a restart of the agent and a detach: the last good address",
            |_, o, m| {
                o.address = Discovered::default();
                o.datapath = None;
                m.last_good = dual(NODE);
            },
            &[Attach],
        ),
        (
            "a new address: the old one waits for the Node",
            |_, o, _| {
                o.address.address = dual(OTHER);
                o.worker = Ok(Some(untold("k0s")));
            },
            &[Attach, SetNodeIp, Restart],
        ),
        (
            "after the swap, the Node shows the old address",
            |_, o, _| {
                o.address.address = dual(OTHER);
                o.datapath = Some(attached(OTHER));
                moved(o);
            },
            &[],
        ),
        (
            "the Node shows the new one",
            |_, o, _| {
                o.address.address = dual(OTHER);
                o.datapath = Some(attached(OTHER));
                moved(o);
                o.node = NodeState::Shows(vec![address(OTHER)]);
            },
            &[RemoveAddress],
        ),
        (
            "the API server is away for too long",
            |_, o, m| {
                o.address.address = dual(OTHER);
                o.datapath = Some(attached(OTHER));
                moved(o);
                o.node = NodeState::Unknown("refused".to_owned());
                m.old_addresses_for = OLD_ADDRESS_LIMIT;
            },
            &[RemoveAddress],
        ),
        (
            "the worker can't be looked at: it may need the old address",
            |_, o, _| {
                o.address.address = dual(OTHER);
                o.datapath = Some(attached(OTHER));
                moved(o);
                o.worker = Err("the bus is away".to_owned());
            },
            &[],
        ),
        (
            "the address device is another by configuration",
            |c, o, _| {
                c.datapath.address_device = "node0".to_owned();
                let device = o.device.as_mut().unwrap();
                device.name = "node0".to_owned();
            },
            &[RemoveAddress],
        ),
        (
            "no worker here: nobody needs the old address",
            |_, o, _| {
                o.address.address = dual(OTHER);
                o.datapath = Some(attached(OTHER));
                moved(o);
                o.worker = Ok(None);
            },
            &[RemoveAddress],
        ),
        (
            "somebody removed the address",
            |_, o, _| o.device.as_mut().unwrap().addresses.clear(),
            &[PutAddress],
        ),
        (
            "somebody removed the device",
            |_, o, _| o.device = None,
            &[PutAddress],
        ),
        (
            "somebody set the device down",
            |_, o, _| o.device.as_mut().unwrap().is_up = false,
            &[PutAddress],
        ),
        (
            "the uplink's MTU changed",
            |_, o, _| o.uplink.as_mut().unwrap().mtu = 1400,
            &[PutAddress],
        ),
        (
            "on lo there is no MTU to follow",
            |_, o, _| {
                let device = o.device.as_mut().unwrap();
                device.name = "lo".to_owned();
                device.is_ours = false;
                device.mtu = 65536;
                o.datapath.as_mut().unwrap().marks = vec![("lo".to_owned(), address(NODE))];
            },
            &[],
        ),
        (
            "somebody overtook us",
            |_, o, _| o.datapath.as_mut().unwrap().faults = vec!["ingress: overtaken".to_owned()],
            &[TakePlaces],
        ),
        (
            "the uplink is gone",
            |_, o, _| o.uplink = Err("there is no interface eth0".to_owned()),
            &[],
        ),
        (
            "between two leases",
            |_, o, _| o.uplink.as_mut().unwrap().addresses.clear(),
            &[],
        ),
        (
            "another guest address",
            |_, o, _| o.uplink.as_mut().unwrap().addresses = vec![address("192.168.9.2")],
            &[Attach],
        ),
        (
            "a second family",
            |_, o, _| {
                o.uplink
                    .as_mut()
                    .unwrap()
                    .addresses
                    .push(address("fd10:0:2::2"));
                o.address.address = dual("10.244.1.226,fd00::e2");
            },
            &[Attach],
        ),
        (
            "a second family that the uplink does not have",
            |_, o, _| o.address.address = dual("10.244.1.226,fd00::e2"),
            &[],
        ),
        (
            "kube-proxy accepts NodePorts at the node address alone",
            |_, o, _| o.node_port_addresses = Ok(Some(vec![address(NODE)])),
            &[Attach],
        ),
        (
            "kube-proxy accepts NodePorts at the guest address too",
            |_, o, _| o.node_port_addresses = Ok(Some(vec![address(NODE), address(GUEST)])),
            &[],
        ),
        (
            "NodePorts by configuration",
            |c, _, _| c.datapath.node_ports = NodePorts::On,
            &[Attach],
        ),
        (
            "no NodePorts by configuration",
            |c, o, _| {
                c.datapath.node_ports = NodePorts::Off;
                o.node_port_addresses = Ok(Some(vec![address(NODE)]));
            },
            &[],
        ),
        (
            "whether there is a proxy can't be told",
            |_, o, _| o.node_port_addresses = Err("no nft".to_owned()),
            &[],
        ),
        (
            "whether there still is a proxy can't be told",
            |_, o, _| {
                o.node_port_addresses = Err("no nft".to_owned());
                let services = &mut o.datapath.as_mut().unwrap().shown.services;
                services.extend(
                    ["tcp/30000-32767", "udp/30000-32767"]
                        .map(|text| text.parse::<Service>().unwrap()),
                );
                *services = compact(&service_set(services, &[]));
            },
            &[],
        ),
        (
            "the proxy is gone",
            |_, o, _| {
                let services = &mut o.datapath.as_mut().unwrap().shown.services;
                services.push("tcp/30000-32767".parse().unwrap());
            },
            &[Attach],
        ),
        (
            "another hook by configuration",
            |c, _, _| c.datapath.ingress_hook = IngressHook::Clsact,
            &[Attach],
        ),
        (
            "room for more flows",
            |c, _, _| c.datapath.flow_entries = 7,
            &[Attach],
        ),
        (
            "the agent was upgraded",
            |_, o, _| o.datapath.as_mut().unwrap().shown.is_current_build = false,
            &[Attach],
        ),
        (
            "another overlay port",
            |c, _, _| c.datapath.overlay_ports = vec![9999],
            &[Attach],
        ),
        (
            "restart is not allowed",
            |c, o, _| {
                c.node.restart = false;
                o.worker = Ok(Some(untold("kubeadm")));
            },
            &[SetNodeIp],
        ),
        (
            "restarted too often",
            |_, o, m| {
                o.worker = Ok(Some(untold("kubeadm")));
                m.restart_wait = Some(Duration::from_secs(3));
            },
            &[SetNodeIp],
        ),
        (
            "node-ip is not ours",
            |c, o, _| {
                c.node.manage_node_ip = false;
                o.worker = Ok(Some(untold("kubeadm")));
            },
            &[],
        ),
        (
            "the agent was killed after it wrote the drop-in",
            |_, o, _| {
                o.worker = Ok(Some(Worker {
                    changes: Vec::new(),
                    ..untold("k3s")
                }));
            },
            &[Restart],
        ),
        (
            "an external cloud provider: the worker's own rules have nothing to change",
            |_, o, _| {
                o.worker = Ok(Some(Worker {
                    has_external_cloud_provider: true,
                    ..worker("rke2")
                }));
            },
            &[],
        ),
        (
            "flannel advertises another address",
            |_, o, _| o.cni.due = BTreeMap::from([("ip".to_owned(), NODE.to_owned())]),
            &[Annotate],
        ),
        (
            "the CNI is not ours",
            |c, o, _| {
                c.node.manage_cni = false;
                o.cni.due = BTreeMap::from([("ip".to_owned(), NODE.to_owned())]);
            },
            &[],
        ),
        (
            "a join file that can't be read",
            |_, o, _| o.join_files[0].state = JoinState::Broken("no token".to_owned()),
            &[],
        ),
    ];
    for (case, edit, expected) in table {
        let plan = plan_after(*edit);
        assert_eq!(kinds(&plan), *expected, "{case}: {plan:#?}");
        for action in &plan.actions {
            let line = action.to_string();
            assert!(
                !line.contains('\n') && !line.ends_with(": "),
                "{case}: {line}"
            );
        }
    }
}

/// Both addresses are on the device.
fn moved(observation: &mut Observation) {
    observation.device.as_mut().unwrap().addresses = vec![address(NODE), address(OTHER)];
    observation.datapath.as_mut().unwrap().marks = [NODE, OTHER]
        .map(|text| ("xkub0".to_owned(), address(text)))
        .to_vec();
}

#[test]
fn every_distribution_is_told_and_restarted() {
    for distribution in ["k0s", "kubeadm", "k3s", "rke2"] {
        let mut observation = settled();
        observation.worker = Ok(Some(untold(distribution)));
        let plan = plan(&Config::default(), &observation, &Memory::default());
        assert_eq!(kinds(&plan), [Kind::SetNodeIp, Kind::Restart]);
        let unit = format!("restart {distribution}.service: ");
        assert!(plan.actions[1].to_string().starts_with(&unit));
    }
}

#[test]
fn what_cannot_be_helped_is_said() {
    let table: &[(Edit, &str)] = &[
        (
            |_, o, _| {
                o.address.refusals = vec![Refusal {
                    source: "reflector 10.9.9.9:3478".to_owned(),
                    address: address(GUEST),
                    reason: "guest-address".to_owned(),
                    message: "it is the guest address".to_owned(),
                }];
            },
            "refused the address 10.0.2.2 from reflector 10.9.9.9:3478: it is the guest address",
        ),
        (
            |_, o, _| o.uplink = Err("there is no interface eth9".to_owned()),
            "no interface eth9",
        ),
        (
            |c, o, _| {
                c.node.restart = false;
                o.worker = Ok(Some(untold("k0s")));
            },
            "systemctl restart k0s.service",
        ),
        (
            |c, o, _| {
                c.node.manage_cni = false;
                o.cni.due = BTreeMap::from([("ip".to_owned(), NODE.to_owned())]);
            },
            "manage-cni is false",
        ),
        (
            |_, o, _| o.join_files[0].state = JoinState::Broken("/etc/k0s/k0stoken: no".to_owned()),
            "/etc/k0s/k0stoken",
        ),
        (
            |_, o, _| o.worker = Err("several workers".to_owned()),
            "several workers",
        ),
        (
            |_, o, _| o.token = Some(token::Answer::Refused("the token has expired".to_owned())),
            "the token has expired",
        ),
        (
            |_, o, _| o.node_port_addresses = Err("nft can't be run".to_owned()),
            "nft can't be run",
        ),
        (
            |c, _, _| c.join.endpoint = Some("192.0.2.10:6443".parse().unwrap()),
            "join.replace does not say",
        ),
        (|_, o, _| o.address.address = dual("127.0.0.1"), "loopback"),
    ];
    for (edit, expected) in table {
        let plan = plan_after(*edit);
        let said = plan.problems.join("\n");
        assert!(said.contains(expected), "{expected}: {said}");
    }
    let plan = plan_after(|_, o, _| o.address = Discovered::default());
    assert!(plan.waiting[0].contains("no source"), "{plan:?}");
    let plan = plan_after(|_, o, _| o.token = Some(token::Answer::Silent("no answer".to_owned())));
    assert_eq!(plan.waiting, ["no answer"]);
    let plan = plan_after(|_, o, _| o.token = Some(token::Answer::Known));
    assert_eq!(plan, Plan::default());
}

#[test]
fn an_address_that_is_still_translated_is_never_removed() {
    // The attach failed, so that the kernel has the old one.
    let plan = plan_after(|_, o, m| {
        o.address.address = dual(OTHER);
        m.old_addresses_for = OLD_ADDRESS_LIMIT;
        moved(o);
    });
    assert_eq!(kinds(&plan), [Kind::Attach]);
}

#[test]
fn an_old_address_stays_for_a_running_worker_alone() {
    let keeps = |edit: Edit| {
        let plan = plan_after(edit);
        match plan.actions.first() {
            Some(Action::Attach { settings, .. }) => settings.keep_old_addresses,
            other => panic!("{other:?}"),
        }
    };
    assert!(keeps(|_, o, _| o.address.address = dual(OTHER)));
    assert!(keeps(|_, o, _| {
        o.address.address = dual(OTHER);
        o.worker = Err("the bus is away".to_owned());
    }));
    assert!(!keeps(|_, o, _| {
        o.address.address = dual(OTHER);
        o.worker = Ok(None);
    }));
    assert!(!keeps(|c, o, _| {
        o.address.address = dual(OTHER);
        c.node.manage_node_ip = false;
    }));
}

#[test]
fn a_static_address_says_which_families_there_are() {
    let mut config = Config::default();
    config.address.fixed = dual(NODE);
    let memory = Memory {
        last_good: dual("10.244.9.9,fd00::9"),
        ..Memory::default()
    };
    assert_eq!(
        wanted_address(&config, &dual(NODE), None, &memory),
        dual(NODE)
    );
    let config = Config::default();
    assert_eq!(
        wanted_address(&config, &dual(NODE), None, &memory),
        dual("10.244.1.226,fd00::9")
    );
}
