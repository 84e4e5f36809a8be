//! The guest lab: the masquerade lab with QEMU guests where that has namespaces.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::counters::Counters;
use super::dhcp::Dhcp;
use super::image::Disk;
use super::kernel::{Kernel, Series};
use super::machine::{Guest, Hardware};
use crate::masquerade::{
    self, DEFAULT_MTU, Family, GATEWAY_V4, GATEWAY_V6, GUEST_V4, GUEST_V6, Masquerade, NODE_V4,
    NODE_V6, Overlay, Pods, UPLINK, node_address,
};
use crate::namespace::{Namespace, Output, Running};
use crate::wait::{PATIENCE, wait_until};
use crate::xkub;

/// How packets leave a launcher pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostMode {
    /// To a pod on the same host: pending checksums and unsegmented packets stay so.
    SameHost,
    /// Over a real NIC: the pod's device finishes checksums and segments.
    Wire,
}

/// How the lab is to be.
#[derive(Debug, Clone)]
pub struct LabBuilder {
    kernel: Kernel,
    mtu: u32,
    cpus: u32,
    queues: u32,
    offloads_change: bool,
    programs: Vec<PathBuf>,
    disks: [Option<Disk>; 2],
}

impl LabBuilder {
    /// MTU of pods and guests; 1500 unless set.
    #[must_use]
    pub fn mtu(mut self, mtu: u32) -> Self {
        self.mtu = mtu;
        self
    }

    /// Virtual CPUs of each guest; one unless set.
    #[must_use]
    pub fn cpus(mut self, cpus: u32) -> Self {
        self.cpus = cpus;
        self
    }

    /// Pairs of queues of each NIC; one unless set. KubeVirt's `networkInterfaceMultiqueue` makes as many as CPUs.
    #[must_use]
    pub fn queues(mut self, queues: u32) -> Self {
        self.queues = queues;
        self
    }

    /// NICs that do not let the guest change what they do to received packets: virtio-net then refuses XDP.
    #[must_use]
    pub fn fixed_offloads(mut self) -> Self {
        self.offloads_change = false;
        self
    }

    /// A program of ours that guests are to have.
    #[must_use]
    pub fn program(mut self, path: impl Into<PathBuf>) -> Self {
        self.programs.push(path.into());
        self
    }

    /// Node 0 or node 1 goes on from a disk with systemd, and takes its guest address by DHCP.
    ///
    /// # Panics
    /// For any other index.
    #[must_use]
    pub fn disk(mut self, index: usize, disk: Disk) -> Self {
        self.disks[index] = Some(disk);
        self
    }

    /// Builds the lab and boots both guests. One with systemd is still booting then: it serves commands early.
    ///
    /// # Errors
    /// Without root, or when a program is missing, or a guest does not come up.
    pub fn build(self) -> Result<Lab> {
        let Self {
            kernel,
            mtu,
            cpus,
            queues,
            offloads_change,
            programs,
            disks,
        } = self;
        let infra = Masquerade::builder().mtu(mtu);
        let Pods {
            fabric,
            client,
            launchers: [one, two],
        } = infra.pods()?;
        let multi_queue = if queues > 1 { " multi_queue" } else { "" };
        // Started here, because a server ends with the thread that started it.
        let mut servers = [None, None];
        for ((launcher, disk), server) in [&one, &two].iter().zip(&disks).zip(&mut servers) {
            infra.bind(
                launcher,
                &format!("tuntap add tap0 mode tap vnet_hdr{multi_queue}"),
            )?;
            if disk.is_some() {
                *server = Some(Dhcp::start(launcher, &launcher.mac("eth0")?, mtu)?);
            }
        }
        let [server_one, server_two] = servers;
        let node =
            |number: usize, launcher: Namespace, server: Option<Dhcp>| -> Result<GuestNode> {
                let hardware = Hardware {
                    name: format!("guest{number}"),
                    cpus,
                    queues,
                    mtu,
                    mac: launcher.mac("eth0")?,
                    offloads_change,
                    programs: programs.clone(),
                    disk: disks[number - 1].clone(),
                };
                let guest = Guest::start(&launcher, &kernel, hardware)?;
                let node = GuestNode {
                    number,
                    guest,
                    launcher,
                    addresses: Mutex::new((NODE_V4[number - 1], NODE_V6[number - 1])),
                    _dhcp: server,
                };
                if node.guest.hardware().disk.is_none() {
                    node.configure_uplink(UPLINK)?;
                }
                Ok(node)
            };
        let (one, two) = std::thread::scope(|scope| {
            let two = scope.spawn(|| node(2, two, server_two));
            (node(1, one, server_one), two.join())
        });
        let two = match two {
            Ok(node) => node,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        Ok(Lab {
            nodes: [one?, two?],
            fabric,
            client,
            mtu,
        })
    }
}

/// The lab, until it is dropped.
#[derive(Debug)]
pub struct Lab {
    // Before the namespaces, so that guests are gone when their taps go.
    nodes: [GuestNode; 2],
    /// The infra cluster's network: routes between the pods and to the outside.
    pub fabric: Namespace,
    /// A host outside the pod network.
    pub client: Namespace,
    mtu: u32,
}

impl Lab {
    /// Starts describing a lab of two guests with this kernel.
    #[must_use]
    pub fn builder(kernel: Kernel) -> LabBuilder {
        LabBuilder {
            kernel,
            mtu: DEFAULT_MTU,
            cpus: 1,
            queues: 1,
            offloads_change: true,
            programs: Vec::new(),
            disks: [None, None],
        }
    }

    /// A lab with everything as usual.
    ///
    /// # Errors
    /// As [`Kernel::obtain`] and [`LabBuilder::build`].
    pub fn new(series: Series) -> Result<Self> {
        Self::builder(Kernel::obtain(series)?).build()
    }

    /// Node 0 or node 1.
    ///
    /// # Panics
    /// For any other index.
    #[must_use]
    pub fn node(&self, index: usize) -> &GuestNode {
        &self.nodes[index]
    }

    /// As [`Lab::node`], to do more to it.
    ///
    /// # Panics
    /// For any other index.
    pub fn node_mut(&mut self, index: usize) -> &mut GuestNode {
        &mut self.nodes[index]
    }

    /// Both nodes.
    #[must_use]
    pub fn nodes(&self) -> &[GuestNode; 2] {
        &self.nodes
    }

    /// The MTU of the pod network.
    #[must_use]
    pub fn mtu(&self) -> u32 {
        self.mtu
    }

    /// How packets leave both pods.
    ///
    /// # Errors
    /// When `ethtool` fails.
    pub fn set_host_mode(&self, mode: HostMode) -> Result<()> {
        let state = match mode {
            HostMode::SameHost => "on",
            HostMode::Wire => "off",
        };
        for node in &self.nodes {
            node.launcher
                .check(["ethtool", "-K", "eth0", "tx", state, "gso", state])?;
        }
        Ok(())
    }

    /// Whether packets may reach the tap with a pending checksum: KubeVirt 1.8 and later leave that on, earlier ones
    /// switch it off.
    ///
    /// # Errors
    /// When `ethtool` fails.
    pub fn set_bridge_checksum(&self, on: bool) -> Result<()> {
        let state = if on { "on" } else { "off" };
        for node in &self.nodes {
            node.launcher
                .check(["ethtool", "-K", "k6t-eth0", "tx", state])?;
        }
        Ok(())
    }

    /// A smaller MTU on the way between the pods, in both directions; `None` ends that.
    ///
    /// # Errors
    /// When `ip` fails.
    pub fn set_hop_mtu(&self, mtu: Option<u32>) -> Result<()> {
        // Locked: what a forwarding kernel obeys and reports.
        let hop = mtu.map_or(String::new(), |mtu| format!(" mtu lock {mtu}"));
        for number in [1, 2] {
            for family in [Family::V4, Family::V6] {
                let address = node_address(number, family);
                self.fabric
                    .ip(&format!("route replace {address} dev pod{number}{hop}\n"))?;
            }
        }
        // What the guests and their launchers have learned from an earlier, smaller hop.
        for node in &self.nodes {
            for command in ["ip -4 route flush cache", "ip -6 route flush cache"] {
                node.guest.check(command)?;
                node.launcher.check(command.split(' '))?;
            }
        }
        Ok(())
    }

    /// Puts a VXLAN device on both guests that knows the other one.
    ///
    /// # Errors
    /// When `ip` or `bridge` refuses something.
    pub fn add_overlay(&self, overlay: &Overlay) -> Result<()> {
        let [one, two] = &self.nodes;
        let name = overlay.name;
        for node in [one, two] {
            node.guest.ip(&overlay.device(node.number, self.mtu))?;
        }
        for (node, peer) in [(one, two), (two, one)] {
            let mac = peer
                .guest
                .check(&format!("cat /sys/class/net/{name}/address"))?;
            let mac = mac.trim();
            node.guest.ip(&overlay.neighbour(peer.number, mac))?;
            let fdb = overlay.forwarding(peer.number, mac);
            node.guest.check(&format!("bridge {fdb}"))?;
        }
        Ok(())
    }

    /// Takes the overlay away again.
    ///
    /// # Errors
    /// When it is not there.
    pub fn remove_overlay(&self, overlay: &Overlay) -> Result<()> {
        for node in &self.nodes {
            node.guest.ip(&format!("link del {}", overlay.name))?;
        }
        Ok(())
    }

    /// Gives the pod of node 0 or node 1 other addresses, as a live migration does: the guest knows nothing of it until it
    /// is told to announce itself, see [`Guest::announce`].
    ///
    /// # Errors
    /// When `ip` refuses something.
    ///
    /// # Panics
    /// For any other index.
    pub fn migrate(&self, index: usize, v4: Ipv4Addr, v6: Ipv6Addr) -> Result<()> {
        let node = &self.nodes[index];
        let number = node.number;
        let (old4, old6) = node.addresses();
        masquerade::readdress(&self.fabric, &node.launcher, number, (old4, old6), (v4, v6))?;
        *node
            .addresses
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = (v4, v6);
        Ok(())
    }

    /// `xkub reflector` on the host outside the pod network, at the usual port of all its addresses, until it is dropped.
    ///
    /// # Errors
    /// When it does not start; the error carries what it said.
    pub fn reflector(&self) -> Result<Running> {
        let binary = xkub::binary()?;
        let mut reflector = self
            .client
            .spawn([binary.as_os_str(), "reflector".as_ref()])?;
        reflector.wait_output("listening", PATIENCE)?;
        Ok(reflector)
    }

    /// Attaches `xkub` in both guests.
    ///
    /// # Errors
    /// As [`GuestNode::attach`].
    pub fn attach(&self, extra: &str) -> Result<()> {
        for node in &self.nodes {
            node.attach(extra)?;
        }
        Ok(())
    }

    /// Small packets, full-size ones and TCP arrive over the tunnel, and no guest counts a wrong checksum. The first
    /// packet is waited for.
    ///
    /// # Errors
    /// What does not arrive, or was wrong.
    pub fn check_overlay(&self, overlay: &Overlay, patience: Duration) -> Result<()> {
        let before = self.counters()?;
        let peer = overlay.address_of(2);
        let [one, two] = &self.nodes;
        wait_until("the overlay", patience, || {
            let ping = one.guest.run(&format!("ping -n -q -c 1 -W 2 {peer}"))?;
            Ok(ping.status.success())
        })?;
        // What VXLAN and the inner packet's headers leave.
        let full = self.mtu() - 50 - 28;
        one.guest.check(&format!(
            "ping -n -q -c 3 -i 0.05 -W 5 -M do -s {full} {peer}"
        ))?;
        let server = two
            .guest
            .spawn("exec iperf3 --server --one-off --forceflush")?;
        server.wait_output("Server listening", patience)?;
        one.guest
            .check(&format!("iperf3 --client {peer} --bytes 2M"))?;
        for (before, after) in before.iter().zip(&self.counters()?) {
            let errors = after.checksum_errors(before);
            ensure!(errors.is_empty(), "wrong checksums: {errors:?}");
        }
        Ok(())
    }

    /// The counters of both guests' stacks.
    ///
    /// # Errors
    /// When a guest does not answer.
    pub fn counters(&self) -> Result<[Counters; 2]> {
        let [one, two] = &self.nodes;
        Ok([Counters::read(&one.guest)?, Counters::read(&two.guest)?])
    }
}

/// A virt-launcher pod and the guest in it.
#[derive(Debug)]
pub struct GuestNode {
    number: usize,
    /// The guest.
    pub guest: Guest,
    /// The pod's network namespace.
    pub launcher: Namespace,
    /// The pod's addresses, which change under whatever runs in the lab.
    addresses: Mutex<(Ipv4Addr, Ipv6Addr)>,
    _dhcp: Option<Dhcp>,
}

impl GuestNode {
    /// 1 or 2.
    #[must_use]
    pub fn number(&self) -> usize {
        self.number
    }

    /// The node address of a family: the pod's.
    #[must_use]
    pub fn node_address(&self, family: Family) -> IpAddr {
        let (v4, v6) = self.addresses();
        match family {
            Family::V4 => v4.into(),
            Family::V6 => v6.into(),
        }
    }

    fn addresses(&self) -> (Ipv4Addr, Ipv6Addr) {
        *self
            .addresses
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Both node addresses as `--node-address` takes them.
    #[must_use]
    pub fn node_addresses(&self) -> String {
        let (v4, v6) = self.addresses();
        format!("{v4},{v6}")
    }

    /// What DHCP does in a guest.
    ///
    /// # Errors
    /// When there is no such device.
    pub fn configure_uplink(&self, name: &str) -> Result<()> {
        let mtu = self.guest.hardware().mtu;
        self.guest.ip(&format!(
            "link set {name} mtu {mtu} up\n\
             addr add {GUEST_V4}/24 dev {name}\n\
             addr add {GUEST_V6}/120 dev {name} nodad\n\
             route add default via {GATEWAY_V4} dev {name}\n\
             route add default via {GATEWAY_V6} dev {name}"
        ))
    }

    /// Switches the guest off and on again, and does what DHCP does where there is none.
    ///
    /// # Errors
    /// As [`Guest::reboot`].
    pub fn reboot(&mut self) -> Result<()> {
        self.guest.reboot(&self.launcher)?;
        if self.guest.hardware().disk.is_some() {
            return Ok(());
        }
        self.configure_uplink(UPLINK)
    }

    /// Runs `xkub` in the guest with the words of `arguments`.
    ///
    /// # Errors
    /// When the guest does not answer. A failure of `xkub` itself is in the output.
    pub fn xkub(&self, arguments: &str) -> Result<Output> {
        self.guest.run(&format!("xkub {arguments}"))
    }

    /// The command that attaches `xkub` with both node addresses and `extra`.
    #[must_use]
    pub fn attach_command(&self, extra: &str) -> String {
        format!(
            "xkub datapath attach --uplink {UPLINK} --node-address {} {extra}",
            self.node_addresses()
        )
    }

    /// `xkub datapath attach` with the uplink, both node addresses and `extra`.
    ///
    /// # Errors
    /// When it fails; the error carries what it said.
    pub fn attach(&self, extra: &str) -> Result<String> {
        self.guest.check(&self.attach_command(extra))
    }

    /// `xkub datapath show` as JSON.
    ///
    /// # Errors
    /// When it fails or prints no JSON.
    pub fn show(&self) -> Result<Value> {
        self.json("show")
    }

    /// `xkub datapath stats` as JSON.
    ///
    /// # Errors
    /// When it fails or prints no JSON.
    pub fn stats(&self) -> Result<Value> {
        self.json("stats")
    }

    fn json(&self, what: &str) -> Result<Value> {
        let text = self
            .xkub(&format!("datapath {what} --output json"))?
            .success()?;
        serde_json::from_str(&text)
            .with_context(|| format!("`xkub datapath {what}` printed {text}"))
    }

    /// Sum of the packets that `stats` counts under `event`; see [`masquerade::Node::packets`].
    ///
    /// # Errors
    /// As [`GuestNode::stats`], and when the counters are missing.
    pub fn packets(&self, place: &str, family: Option<Family>, event: &str) -> Result<u64> {
        masquerade::count(&self.stats()?, place, family, event)
    }
}
