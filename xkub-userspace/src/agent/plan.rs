//! From what is and what should be to what has to be done: a pure function.
//!
//! The order is that of a changed address: datapath, CNI, join files, kubelet; the old address goes when the Node
//! shows the new one. Whoever applies the plan may stop after any action: the next plan begins where it stopped.

use std::{net::IpAddr, time::Duration};

use serde::Serialize;

use super::{
    action::Action,
    observe::{Attached, Device, JoinState, NodeState, Observation, Worker},
};
use crate::{
    cluster::token,
    config::{Config, NodePorts},
    datapath::{
        Hook,
        settings::{
            AddressPair, AddressPairs, DualAddress, GuestAddress, IngressHook, Service, Settings,
            compact, service_set,
        },
    },
    node::uplink::Uplink,
};

/// How long an old address is kept for a Node that does not show the new one: four of the kubelet's periods for its
/// status (`nodeStatusUpdateFrequency`, 10 s), and a restart.
pub const OLD_ADDRESS_LIMIT: Duration = Duration::from_secs(120);

/// What is known from before.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// The node address that was last applied, since the last boot.
    pub last_good: DualAddress,
    /// For how long there have been old addresses on devices.
    pub old_addresses_for: Duration,
    /// How long the worker may not be restarted yet.
    pub restart_wait: Option<Duration>,
}

/// What has to be done, in this order, and what a person should know.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Plan {
    /// The actions.
    pub actions: Vec<Action>,
    /// What is waited for: nothing is wrong, and nothing can be done about it now.
    pub waiting: Vec<String>,
    /// What is wrong, and what to do about it.
    pub problems: Vec<String>,
}

/// Makes a plan.
#[must_use]
pub fn plan(config: &Config, observation: &Observation, memory: &Memory) -> Plan {
    let mut plan = Plan::default();
    plan.address_problems(observation);
    plan.problems
        .extend(observation.node_port_addresses.as_ref().err().cloned());
    if config.join.endpoint.is_some() && config.join.replace.is_empty() {
        plan.problems.push(
            "join.endpoint is set, and join.replace does not say which addresses become it: join files stay as they are"
                .to_owned(),
        );
    }
    let settings = plan.datapath(config, observation, memory);
    plan.cni(config, observation);
    plan.join_files(observation);
    plan.token(observation);
    plan.worker(config, observation, memory);
    if let Some(settings) = &settings {
        plan.old_addresses(config, observation, memory, settings);
    }
    plan
}

/// The node address to apply, per family: what the sources say, else what is attached, else what was last applied.
/// A source that falls silent changes nothing.
#[must_use]
pub fn wanted_address(
    config: &Config,
    discovered: &DualAddress,
    attached: Option<&Attached>,
    memory: &Memory,
) -> DualAddress {
    // Who says it himself says it all.
    if config.address.fixed.iter().next().is_some() && discovered == &config.address.fixed {
        return *discovered;
    }
    let attached = attached.map(attached_pairs).unwrap_or_default().node();
    DualAddress {
        v4: discovered.v4.or(attached.v4).or(memory.last_good.v4),
        v6: discovered.v6.or(attached.v6).or(memory.last_good.v6),
    }
}

fn attached_pairs(attached: &Attached) -> AddressPairs {
    let mut pairs = AddressPairs::default();
    for line in &attached.shown.addresses {
        match (line.guest, line.node) {
            (IpAddr::V4(guest), IpAddr::V4(node)) => pairs.v4 = Some(AddressPair { guest, node }),
            (IpAddr::V6(guest), IpAddr::V6(node)) => pairs.v6 = Some(AddressPair { guest, node }),
            _ => {}
        }
    }
    pairs
}

impl Plan {
    fn address_problems(&mut self, observation: &Observation) {
        let discovered = &observation.address;
        let refusals = discovered.refusals.iter();
        self.problems
            .extend(refusals.map(|refusal| format!("refused the address {refusal}")));
        if discovered.address == DualAddress::default() {
            self.waiting
                .push("no source has told the node address yet".to_owned());
        }
        self.waiting.extend(discovered.silent.iter().cloned());
    }

    /// The datapath and the address device. What shall be attached, if that is known.
    fn datapath(
        &mut self,
        config: &Config,
        observation: &Observation,
        memory: &Memory,
    ) -> Option<Settings> {
        let uplink = match &observation.uplink {
            Ok(uplink) => uplink,
            Err(why) => {
                // What is pinned stays, and finds the uplink again when it comes back.
                self.problems.push(why.clone());
                return None;
            }
        };
        let attached = observation.datapath.as_ref();
        let wanted = wanted_address(config, &observation.address.address, attached, memory);
        let settings = self.settings(config, observation, uplink, &wanted)?;
        let why = reasons(&settings, attached);
        if !why.is_empty() {
            self.actions.push(Action::Attach {
                settings: Box::new(settings.clone()),
                why: why.join(", "),
            });
            return Some(settings);
        }
        if let Some(attached) = attached {
            if !attached.faults.is_empty() {
                self.actions.push(Action::TakePlaces {
                    uplink: uplink.name.clone(),
                    faults: attached.faults.clone(),
                });
            }
            self.problems.extend(
                attached
                    .shown
                    .warnings
                    .iter()
                    .filter(|_| attached.faults.is_empty())
                    .cloned(),
            );
        }
        let addresses: Vec<IpAddr> = settings.node_address.iter().collect();
        let faults = device_faults(
            &config.datapath.address_device,
            observation.device.as_ref(),
            uplink.mtu,
            &addresses,
        );
        if !faults.is_empty() {
            self.actions.push(Action::PutAddress {
                uplink: uplink.name.clone(),
                device: config.datapath.address_device.clone(),
                mtu: uplink.mtu,
                addresses,
                why: faults.join(", "),
            });
            // Said by the datapath as well, and cured by this.
            self.problems
                .retain(|problem| !problem.starts_with("no interface has the node address"));
        }
        Some(settings)
    }

    fn settings(
        &mut self,
        config: &Config,
        observation: &Observation,
        uplink: &Uplink,
        wanted: &DualAddress,
    ) -> Option<Settings> {
        let attached = observation
            .datapath
            .as_ref()
            .map(attached_pairs)
            .unwrap_or_default();
        let mut node = *wanted;
        let mut guest = DualAddress::default();
        let given = match config.guest_address {
            GuestAddress::Auto => DualAddress::default(),
            GuestAddress::Given(given) => given,
        };
        if let Some(address) = node.v4 {
            let found = uplink.addresses.iter().find_map(|found| match found {
                IpAddr::V4(found) if *found != address => Some(*found),
                _ => None,
            });
            // Between two leases there is none for a moment.
            guest.v4 = given.v4.or(found).or(attached.v4.map(|pair| pair.guest));
            if guest.v4.is_none() {
                node.v4 = None;
                self.waiting.push(format!(
                    "{} has no IPv4 address for {address} to be translated to",
                    uplink.name
                ));
            }
        }
        if let Some(address) = node.v6 {
            let found = uplink.addresses.iter().find_map(|found| match found {
                IpAddr::V6(found) if *found != address => Some(*found),
                _ => None,
            });
            guest.v6 = given.v6.or(found).or(attached.v6.map(|pair| pair.guest));
            if guest.v6.is_none() {
                node.v6 = None;
                self.waiting.push(format!(
                    "{} has no IPv6 address for {address} to be translated to",
                    uplink.name
                ));
            }
        }
        node.iter().next()?;
        let mut services = config.datapath.services.clone();
        if are_node_ports_ours(config, observation, &node, &guest) {
            let range = config.datapath.node_port_range;
            services.extend([Service::Tcp(range), Service::Udp(range)]);
        }
        let settings = Settings {
            guest_address: GuestAddress::Given(guest),
            services,
            overlay_ports: config.datapath.overlay_ports.clone(),
            ingress_hook: config.datapath.ingress_hook,
            address_device: Some(config.datapath.address_device.clone()),
            flow_entries: config.datapath.flow_entries,
            keep_old_addresses: may_worker_need_old(config, observation),
            ..Settings::new(uplink.name.clone(), node)
        };
        match settings.validate() {
            Ok(()) => Some(settings),
            Err(error) => {
                self.problems.push(error.to_string());
                None
            }
        }
    }

    fn cni(&mut self, config: &Config, observation: &Observation) {
        let cni = &observation.cni;
        self.problems.extend(cni.warnings.iter().cloned());
        if cni.due.is_empty() {
            return;
        }
        if config.node.manage_cni {
            self.actions.push(Action::Annotate {
                annotations: cni.due.clone(),
                why: cni.why.clone(),
            });
        } else {
            self.problems
                .push(format!("{}, and manage-cni is false", cni.why));
        }
    }

    fn join_files(&mut self, observation: &Observation) {
        for file in &observation.join_files {
            match &file.state {
                JoinState::Fine => {}
                JoinState::Due(changes) => self.actions.push(Action::RewriteJoin {
                    path: file.path.clone(),
                    kind: file.kind,
                    changes: changes.clone(),
                }),
                JoinState::Broken(why) => self.problems.push(why.clone()),
            }
        }
    }

    fn token(&mut self, observation: &Observation) {
        match &observation.token {
            None | Some(token::Answer::Known) => {}
            Some(token::Answer::Refused(why)) => self.problems.push(why.clone()),
            Some(token::Answer::Silent(why)) => self.waiting.push(why.clone()),
        }
    }

    fn worker(&mut self, config: &Config, observation: &Observation, memory: &Memory) {
        let worker = match &observation.worker {
            Ok(Some(worker)) => worker,
            Ok(None) => return,
            Err(why) => {
                self.problems.push(why.clone());
                return;
            }
        };
        self.problems.extend(worker.warnings.iter().cloned());
        self.waiting.extend(worker.certificate.iter().cloned());
        if !config.node.manage_node_ip {
            return;
        }
        let Worker {
            unit,
            changes,
            is_running,
            is_outdated,
            ..
        } = worker;
        if !changes.is_empty() {
            self.actions.push(Action::SetNodeIp {
                unit: unit.clone(),
                changes: changes.clone(),
            });
        }
        if !*is_running || !*is_outdated {
            return;
        }
        if !config.node.restart {
            self.problems.push(format!(
                "{unit} runs with another --node-ip, and restart is false: systemctl restart {unit}"
            ));
        } else if let Some(wait) = memory.restart_wait {
            self.waiting.push(format!(
                "{unit} runs with another --node-ip; it was restarted too often, and is again in {} s",
                wait.as_secs().saturating_add(1)
            ));
        } else {
            self.actions.push(Action::Restart {
                unit: unit.clone(),
                why: "it runs with another --node-ip".to_owned(),
            });
        }
    }

    /// What is on devices and is not the node address any more.
    fn old_addresses(
        &mut self,
        config: &Config,
        observation: &Observation,
        memory: &Memory,
        settings: &Settings,
    ) {
        let Some(attached) = &observation.datapath else {
            return;
        };
        // The kernel still translates it.
        let is_attached = |address: &IpAddr| {
            attached
                .shown
                .addresses
                .iter()
                .any(|line| line.node == *address)
        };
        let is_wanted =
            |address: &IpAddr| settings.node_address.iter().any(|node| node == *address);
        let old: Vec<&(String, IpAddr)> = attached
            .marks
            .iter()
            .filter(|(device, address)| {
                let is_here = observation
                    .device
                    .as_ref()
                    .is_none_or(|current| current.name == *device);
                !is_here || !(is_wanted(address) || is_attached(address))
            })
            .collect();
        if old.is_empty() {
            return;
        }
        let waits = waits_for_node(config, observation, settings);
        let is_late = memory.old_addresses_for >= OLD_ADDRESS_LIMIT;
        for (device, address) in old {
            let is_moved = is_wanted(address);
            let why = match (&waits, is_moved) {
                (_, true) => "the node address is on another device now".to_owned(),
                (None, _) => "it is not the node address any more".to_owned(),
                (Some(_), _) if is_late => format!(
                    "it is not the node address any more, and was kept for {} s",
                    memory.old_addresses_for.as_secs()
                ),
                (Some(wait), _) => {
                    self.waiting
                        .push(format!("{address} stays on {device} until {wait}"));
                    continue;
                }
            };
            self.actions.push(Action::RemoveAddress {
                uplink: settings.uplink.clone(),
                device: device.clone(),
                address: *address,
                why,
            });
        }
    }
}

/// Whether a running kubelet has the old address as its `--node-ip`. Where none does, it goes together with its
/// programs, so that nothing leaves untranslated.
fn may_worker_need_old(config: &Config, observation: &Observation) -> bool {
    match &observation.worker {
        Ok(Some(worker)) => config.node.manage_node_ip && worker.is_running,
        Ok(None) => false,
        Err(_) => true,
    }
}

/// What an old address waits for.
fn waits_for_node(
    config: &Config,
    observation: &Observation,
    settings: &Settings,
) -> Option<String> {
    if observation.worker.is_err() {
        return Some("the worker can be looked at".to_owned());
    }
    if !may_worker_need_old(config, observation) {
        return None;
    }
    let wanted: Vec<IpAddr> = settings.node_address.iter().collect();
    match &observation.node {
        NodeState::NotJoined => None,
        NodeState::Unknown(_) => Some("the API server answers".to_owned()),
        NodeState::Shows(internal) if wanted.iter().all(|address| internal.contains(address)) => {
            None
        }
        NodeState::Shows(_) => Some("this node's Node shows the new one".to_owned()),
    }
}

/// Whether `NodePorts` have to be rewritten: a proxy that accepts them at the guest address needs no help, and Cilium's
/// breaks.
fn are_node_ports_ours(
    config: &Config,
    observation: &Observation,
    node: &DualAddress,
    guest: &DualAddress,
) -> bool {
    match config.datapath.node_ports {
        NodePorts::On => true,
        NodePorts::Off => false,
        NodePorts::Auto => match &observation.node_port_addresses {
            Ok(accepted) => accepted.as_ref().is_some_and(|accepted| {
                node.iter().any(|address| accepted.contains(&address))
                    && !guest.iter().any(|address| accepted.contains(&address))
            }),
            // What nobody can tell is left as it is.
            Err(_) => observation.datapath.as_ref().is_some_and(|attached| {
                let range = Service::Tcp(config.datapath.node_port_range);
                attached.shown.services.contains(&range)
            }),
        },
    }
}

/// What is not attached as it should be.
fn reasons(settings: &Settings, attached: Option<&Attached>) -> Vec<String> {
    let Some(attached) = attached else {
        return vec!["nothing is attached".to_owned()];
    };
    let shown = &attached.shown;
    let pairs = attached_pairs(attached);
    let mut reasons = Vec::new();
    let (old, new) = (pairs.node(), settings.node_address);
    if old != new {
        reasons.push(format!("the node address was {}", joined(&old)));
    }
    let guest = DualAddress {
        v4: pairs.v4.map(|pair| pair.guest),
        v6: pairs.v6.map(|pair| pair.guest),
    };
    if GuestAddress::Given(guest) != settings.guest_address && old == new {
        reasons.push(format!("the guest address was {}", joined(&guest)));
    }
    let set = service_set(&settings.services, &settings.overlay_ports);
    if compact(&set) != shown.services {
        reasons.push("the service set is another".to_owned());
    }
    if set.overlay.iter().collect::<Vec<_>>() != shown.overlay_ports {
        reasons.push("the overlay ports are others".to_owned());
    }
    let hook = shown.hook.ingress;
    let is_right_hook = match settings.ingress_hook {
        IngressHook::Auto => hook != Hook::Xdp,
        IngressHook::Tcx => hook == Hook::Tcx,
        IngressHook::Clsact => hook == Hook::Clsact,
        IngressHook::Xdp => hook == Hook::Xdp,
    };
    if !is_right_hook {
        reasons.push(format!("ingress is on {}", hook.name()));
    }
    if !shown.is_current_build {
        reasons.push("its programs are of another build of xkub".to_owned());
    }
    if attached.flow_entries != settings.flow_entries {
        reasons.push(format!("there is room for {} flows", attached.flow_entries));
    }
    reasons
}

fn joined(addresses: &DualAddress) -> String {
    let words: Vec<String> = addresses
        .iter()
        .map(|address| address.to_string())
        .collect();
    if words.is_empty() {
        "none".to_owned()
    } else {
        words.join(",")
    }
}

/// What is wrong with the address device.
fn device_faults(
    name: &str,
    device: Option<&Device>,
    mtu: u32,
    addresses: &[IpAddr],
) -> Vec<String> {
    let Some(device) = device else {
        return vec![format!("there is no {name}")];
    };
    let mut faults = Vec::new();
    if !device.is_up {
        faults.push("it is down".to_owned());
    }
    if device.is_ours && device.mtu != mtu {
        faults.push(format!("its MTU is {}", device.mtu));
    }
    for address in addresses {
        if !device.addresses.contains(address) {
            faults.push(format!("{address} is not on it"));
        }
    }
    faults
}

#[cfg(test)]
mod tests;
