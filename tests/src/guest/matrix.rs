//! The matrix: every traffic through every combination of hook, host offloads and tunnel checksum.
//!
//! Two guests boot once for each kernel and are reconfigured between the cells.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use serde_json::Value;

use super::counters::Counters;
use super::kernel::{Kernel, Series};
use super::lab::{HostMode, Lab};
use super::machine::Background;
use crate::masquerade::{Family, Overlay, node_address};
use crate::traffic::{Measured, parse_iperf, parse_ping};
use crate::wait::{PATIENCE, wait_until};

/// The hook at ingress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hook {
    /// What xkub takes by itself: TCX, else clsact.
    Best,
    /// Native XDP.
    Xdp,
}

impl Hook {
    fn argument(self) -> &'static str {
        match self {
            Self::Best => "--ingress-hook auto",
            Self::Xdp => "--ingress-hook xdp",
        }
    }
}

/// How everything around the traffic is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// At ingress.
    pub hook: Hook,
    /// Offloads of the pod's device.
    pub host: HostMode,
    /// Whether `k6t-eth0` lets pending checksums through.
    pub bridge_checksum: bool,
    /// Whether the VXLAN device sends an outer checksum.
    pub tunnel_checksum: bool,
    /// What the tunnel runs over.
    pub underlay: Family,
}

impl Config {
    /// All of them, in an order in which little has to be changed between neighbours.
    #[must_use]
    pub fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for hook in [Hook::Best, Hook::Xdp] {
            for tunnel_checksum in [true, false] {
                for host in [HostMode::SameHost, HostMode::Wire] {
                    for bridge_checksum in [true, false] {
                        for underlay in [Family::V4, Family::V6] {
                            all.push(Self {
                                hook,
                                host,
                                bridge_checksum,
                                tunnel_checksum,
                                underlay,
                            });
                        }
                    }
                }
            }
        }
        all
    }

    /// A choice in which every value of every column meets every hook: what CI has time for.
    #[must_use]
    pub fn subset() -> Vec<Self> {
        let config = |hook, host, bridge_checksum, tunnel_checksum, underlay| Self {
            hook,
            host,
            bridge_checksum,
            tunnel_checksum,
            underlay,
        };
        vec![
            config(Hook::Best, HostMode::Wire, true, true, Family::V4),
            config(Hook::Best, HostMode::SameHost, false, true, Family::V6),
            config(Hook::Best, HostMode::SameHost, true, false, Family::V4),
            config(Hook::Xdp, HostMode::SameHost, false, true, Family::V4),
            config(Hook::Xdp, HostMode::Wire, true, false, Family::V6),
        ]
    }

    fn overlay(self) -> Overlay {
        let overlay = match self.underlay {
            Family::V4 => Overlay::V4,
            Family::V6 => Overlay::V6,
        };
        Overlay {
            checksum: self.tunnel_checksum,
            ..overlay
        }
    }
}

impl fmt::Display for Config {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            hook,
            host,
            bridge_checksum,
            tunnel_checksum,
            underlay,
        } = self;
        let words = [
            match hook {
                Hook::Best => "best",
                Hook::Xdp => "xdp",
            },
            match host {
                HostMode::SameHost => "same-host",
                HostMode::Wire => "wire",
            },
            if *bridge_checksum {
                "k6t-csum"
            } else {
                "k6t-nocsum"
            },
            if *tunnel_checksum {
                "udpcsum"
            } else {
                "noudpcsum"
            },
            match underlay {
                Family::V4 => "ipv4",
                Family::V6 => "ipv6",
            },
        ];
        formatter.write_str(&words.join(" "))
    }
}

/// What is sent from guest 1 to guest 2.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Traffic {
    /// Small and large pings over the tunnel.
    Ping,
    /// As fast as it goes, over the tunnel.
    TcpBulk,
    /// Writes of 200 bytes, each a segment, over the tunnel.
    TcpSmall,
    /// Datagrams of 64 bytes over the tunnel.
    Udp64,
    /// Datagrams of 1400 bytes over the tunnel.
    Udp1400,
    /// Datagrams of 3000 bytes: fragments inside the tunnel, and fragments between the node addresses.
    Udp3000,
    /// TCP between the node addresses and over the tunnel, with a smaller MTU on the way.
    PathMtu,
    /// TCP to the kubelet's port on the node address, from the guest's own address and from the node address.
    Kubelet,
    /// Ping and TCP over an IPIP tunnel (4in6 over IPv6) between the node addresses.
    Ipip,
}

impl Traffic {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Ping,
        Self::TcpBulk,
        Self::TcpSmall,
        Self::Udp64,
        Self::Udp1400,
        Self::Udp3000,
        Self::PathMtu,
        Self::Kubelet,
        Self::Ipip,
    ];

    /// Whether iperf3 measures it with datagrams.
    fn is_udp(self) -> bool {
        matches!(self, Self::Udp64 | Self::Udp1400 | Self::Udp3000)
    }

    /// As in the table's head.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ping => "ping",
            Self::TcpBulk => "tcp-bulk",
            Self::TcpSmall => "tcp-small",
            Self::Udp64 => "udp-64",
            Self::Udp1400 => "udp-1400",
            Self::Udp3000 => "udp-3000",
            Self::PathMtu => "path-mtu",
            Self::Kubelet => "tcp-10250",
            Self::Ipip => "ipip",
        }
    }
}

/// What came of a cell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Everything arrived, no checksum was wrong, next to nothing was sent again.
    Pass,
    /// What went wrong.
    Fail(String),
    /// The kernel or the driver refuses the hook, and xkub said so.
    Refused(String),
}

/// One cell of the matrix.
#[derive(Debug, Clone)]
pub struct Cell {
    /// The row.
    pub config: Config,
    /// The column.
    pub traffic: Traffic,
    /// The outcome.
    pub verdict: Verdict,
    /// Segments sent again by both guests, and all that they sent.
    pub retransmitted: (u64, u64),
    /// Datagrams that did not arrive.
    pub lost: u64,
    /// Whether a first try failed in a way that chance explains, and this is a second: one outer checksum was wrong (a
    /// finished one looks pending once in 65,536 packets, docs/datapath.md), or a UDP measurement never began (iperf3
    /// opens it with one datagram and sends that no second time).
    pub repeated: bool,
}

/// A program as the kernel holds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// Its name.
    pub name: String,
    /// Instructions after the verifier's rewriting.
    pub instructions: u64,
}

/// Everything that one kernel brought.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Which kernel.
    pub kernel: Kernel,
    /// What `uname` says.
    pub release: String,
    /// The hooks that `--ingress-hook auto` gave: ingress, egress first, egress last.
    pub hooks: [String; 3],
    /// The programs that were loaded, with XDP's last.
    pub programs: Vec<Program>,
    /// Row by row.
    pub cells: Vec<Cell>,
    /// How long it took.
    pub duration: Duration,
}

impl Outcome {
    /// One line for each cell that failed.
    #[must_use]
    pub fn failures(&self) -> Vec<String> {
        self.cells
            .iter()
            .filter_map(|cell| match &cell.verdict {
                Verdict::Fail(reason) => Some(format!(
                    "{} {} {}: {reason}",
                    self.kernel.series,
                    cell.config,
                    cell.traffic.name()
                )),
                Verdict::Pass | Verdict::Refused(_) => None,
            })
            .collect()
    }
}

/// What a subset leaves out, for people.
#[must_use]
pub fn left_out() -> Vec<String> {
    let subset = Config::subset();
    let kernels = subset_kernels();
    let others: Vec<&str> = Series::ALL
        .iter()
        .filter(|series| !kernels.contains(series))
        .map(|series| series.name())
        .collect();
    let mut lines = vec![format!("guest matrix: kernels {}", others.join(", "))];
    let rest: Vec<String> = Config::all()
        .into_iter()
        .filter(|config| !subset.contains(config))
        .map(|config| config.to_string())
        .collect();
    let names: Vec<&str> = kernels.iter().map(|series| series.name()).collect();
    lines.push(format!(
        "guest matrix on {}: {} of {} combinations: {}",
        names.join(" and "),
        rest.len(),
        Config::all().len(),
        rest.join("; ")
    ));
    lines.push(
        "faults in guests: kernels 5.10 and 7.2; each fault on 6.1 or on 6.12 alone, the killed attach on both, three (skipped) on none".to_owned(),
    );
    lines
}

/// One kernel with clsact alone, one with TCX.
#[must_use]
pub fn subset_kernels() -> [Series; 2] {
    [Series::V6_1, Series::V6_12]
}

/// Runs `configs` on one kernel; `filter` is a word that the row's or the column's name must contain.
///
/// # Errors
/// When the lab itself fails; what the datapath does wrong is in the outcome.
pub fn run(
    series: Series,
    configs: &[Config],
    filter: Option<&str>,
    mut progress: impl FnMut(&Cell),
) -> Result<Outcome> {
    let begin = Instant::now();
    let kernel = Kernel::obtain(series)?;
    let lab = Lab::builder(kernel.clone()).build()?;
    let mut bench = Bench::new(&lab)?;
    let release = lab.node(0).guest.check("uname -r")?.trim().to_owned();
    let show = lab.node(0).show()?;
    let hook = |direction: &str| {
        let name = show.pointer(&format!("/hook/{direction}"));
        name.and_then(Value::as_str).unwrap_or("?").to_owned()
    };
    let hooks = ["ingress", "egressFirst", "egressLast"].map(hook);
    let mut programs = programs(&lab)?;
    let mut cells = Vec::new();
    for &config in configs {
        let wanted: Vec<Traffic> = Traffic::ALL
            .into_iter()
            .filter(|traffic| {
                let name = format!("{config} {}", traffic.name());
                filter.is_none_or(|filter| filter.split(' ').all(|word| name.contains(word)))
            })
            .collect();
        if wanted.is_empty() {
            continue;
        }
        let refused = bench
            .configure(config)
            .with_context(|| format!("{series} {config}"))?;
        if config.hook == Hook::Xdp && refused.is_none() {
            for program in self::programs(&lab)? {
                if !programs.contains(&program) {
                    programs.push(program);
                }
            }
        }
        for traffic in wanted {
            let cell = match &refused {
                Some(reason) => Cell {
                    config,
                    traffic,
                    verdict: Verdict::Refused(reason.clone()),
                    retransmitted: (0, 0),
                    lost: 0,
                    repeated: false,
                },
                None => bench.cell_with_chance(config, traffic)?,
            };
            progress(&cell);
            cells.push(cell);
        }
    }
    Ok(Outcome {
        kernel,
        release,
        hooks,
        programs,
        cells,
        duration: begin.elapsed(),
    })
}

/// What `bpftool` tells about our programs; nothing on machines without one.
fn programs(lab: &Lab) -> Result<Vec<Program>> {
    let output = lab.node(0).guest.run("bpftool --json prog show")?;
    let Ok(Value::Array(list)) = serde_json::from_str(&output.stdout) else {
        return Ok(Vec::new());
    };
    let mut programs: Vec<Program> = list
        .iter()
        .filter_map(|program| {
            let name = program.get("name")?.as_str()?;
            name.starts_with("xkub").then_some(Program {
                name: name.to_owned(),
                // Eight bytes each.
                instructions: program.get("bytes_xlated")?.as_u64()? / 8,
            })
        })
        .collect();
    programs.dedup();
    Ok(programs)
}

/// The ports of the servers in guest 2.
mod port {
    pub(super) const OVERLAY: u16 = 5201;
    pub(super) const NODE_V4: u16 = 5301;
    pub(super) const NODE_V6: u16 = 5302;
    pub(super) const KUBELET: u16 = 10_250;
}

/// The smaller MTU on the way. IPv6 must carry 1280, and a tunnel's headers do not count there.
const HOP_MTU: u32 = 1400;
/// How long one measurement may take.
const TRAFFIC_LIMIT: Duration = Duration::from_secs(30);
/// How long a tunnel may take to work after the lab has changed something.
const SETTLING: Duration = Duration::from_secs(10);
/// What a measurement that ran out of time ends with.
const SILENCE: &str = "nothing more arrives";
/// Segments in a hundred that may be sent again: emulated guests on a busy machine drop some.
const RETRANSMITTED_PERCENT: u64 = 5;
/// Fewer are no sign of anything: the connection that controls a UDP measurement has thirty segments in all.
const RETRANSMITTED_MIN: u64 = 10;
/// Datagrams of one measurement.
const DATAGRAMS: u64 = 200;
/// How many of them may be lost, for the same reason; those that a full socket dropped do not count.
const LOST_MAX: u64 = 4;

/// Two guests with servers, and what they are set to at the moment.
struct Bench<'a> {
    lab: &'a Lab,
    servers: Vec<Background<'a>>,
    /// The overlays that are there.
    tunnel_checksum: Option<bool>,
    hook: Hook,
    refused: Option<String>,
}

impl<'a> Bench<'a> {
    fn new(lab: &'a Lab) -> Result<Self> {
        lab.attach(Hook::Best.argument())?;
        for (index, node) in lab.nodes().iter().enumerate() {
            let (number, peer) = (index + 1, 2 - index);
            let local = |family| node_address(number, family);
            let remote = |family| node_address(peer, family);
            node.guest.ip(&format!(
                "link add ipip4 type ipip local {} remote {}\n\
                 addr add {}/24 dev ipip4\n\
                 link set ipip4 up\n\
                 link add ipip6 type ip6tnl mode ipip6 encaplimit none local {} remote {}\n\
                 addr add {}/24 dev ipip6\n\
                 link set ipip6 up",
                local(Family::V4),
                remote(Family::V4),
                ipip_address(number, Family::V4),
                local(Family::V6),
                remote(Family::V6),
                ipip_address(number, Family::V6),
            ))?;
        }
        let mut bench = Self {
            lab,
            servers: Vec::new(),
            tunnel_checksum: None,
            hook: Hook::Best,
            refused: None,
        };
        bench.start_servers()?;
        Ok(bench)
    }

    fn start_servers(&mut self) -> Result<()> {
        // One that waits for a client that is gone would refuse the next.
        self.servers.clear();
        for (port, address) in [
            (port::OVERLAY, None),
            (port::KUBELET, None),
            (port::NODE_V4, Some(node_address(2, Family::V4))),
            (port::NODE_V6, Some(node_address(2, Family::V6))),
        ] {
            let bind = address.map_or(String::new(), |address| format!("--bind {address}"));
            let server = self.lab.node(1).guest.spawn(&format!(
                "exec iperf3 --server --forceflush --port {port} {bind}"
            ))?;
            server.wait_output("Server listening", PATIENCE)?;
            self.servers.push(server);
        }
        Ok(())
    }

    /// Sets everything for a row; says why if the hook can't be had.
    fn configure(&mut self, config: Config) -> Result<Option<String>> {
        if self.hook != config.hook {
            self.refused = self.change_hook(config.hook)?;
            self.hook = config.hook;
        }
        if self.refused.is_some() {
            return Ok(self.refused.clone());
        }
        if self.tunnel_checksum != Some(config.tunnel_checksum) {
            for underlay in [Family::V4, Family::V6] {
                let overlay = Config { underlay, ..config }.overlay();
                if self.tunnel_checksum.is_some() {
                    self.lab.remove_overlay(&overlay)?;
                }
                self.lab.add_overlay(&overlay)?;
            }
            self.tunnel_checksum = Some(config.tunnel_checksum);
        }
        self.lab.set_host_mode(config.host)?;
        self.lab.set_bridge_checksum(config.bridge_checksum)?;
        // What the lab itself has just changed must not count: devices whose offloads are switched, tunnels that are new.
        // Should nothing ever arrive, the cells say so.
        let target = config.overlay().address_of(2);
        let settled = wait_until("the tunnel", SETTLING, || {
            let ping = format!("ping -n -q -c 3 -i 0.05 -W 2 {target}");
            Ok(self.lab.node(0).guest.run(&ping)?.status.success())
        });
        drop(settled);
        Ok(None)
    }

    /// Attaches again with another hook. A refusal must come with a reason and leave what was there.
    fn change_hook(&self, hook: Hook) -> Result<Option<String>> {
        let mut refused = None;
        for node in self.lab.nodes() {
            let output = node.guest.run(&node.attach_command(hook.argument()))?;
            if output.status.success() {
                let shown = node.show()?;
                let ingress = shown.pointer("/hook/ingress").and_then(Value::as_str);
                if hook == Hook::Xdp && ingress != Some("xdp") {
                    bail!(
                        "attached with {}, and it is on {ingress:?}",
                        hook.argument()
                    );
                }
                continue;
            }
            let reason = output.stderr.trim().to_owned();
            if reason.is_empty() {
                bail!("refused without a reason: {output:?}");
            }
            // As before, and no program in generic mode.
            node.show()
                .with_context(|| format!("after a refusal ({reason}) nothing is attached"))?;
            let link = node.guest.check("ip -details link show dev eth0")?;
            if link.contains("xdpgeneric") {
                bail!("refused ({reason}), and there is a generic XDP program:\n{link}");
            }
            refused = Some(reason);
        }
        Ok(refused)
    }

    fn cell_with_chance(&mut self, config: Config, traffic: Traffic) -> Result<Cell> {
        let (cell, by_chance) = self.cell(config, traffic)?;
        if !by_chance {
            return Ok(cell);
        }
        let (cell, _) = self.cell(config, traffic)?;
        Ok(Cell {
            repeated: true,
            ..cell
        })
    }

    /// Runs a cell, and says whether nothing but chance may have spoilt it.
    fn cell(&mut self, config: Config, traffic: Traffic) -> Result<(Cell, bool)> {
        let before = self.lab.counters()?;
        let mut lost = 0;
        let outcome = self.send(config, traffic, &mut lost);
        let after = self.lab.counters()?;
        let mut retransmitted = (0, 0);
        let mut faults = Vec::new();
        let (mut dropped_by_sockets, mut wrong_checksums) = (0, 0);
        for (index, (before, after)) in before.iter().zip(&after).enumerate() {
            retransmitted.0 += after.since(before, "TcpRetransSegs");
            retransmitted.1 += after.since(before, "TcpOutSegs");
            for name in ["UdpRcvbufErrors", "Udp6RcvbufErrors"] {
                dropped_by_sockets += after.since(before, name);
            }
            for (name, errors) in after.checksum_errors(before) {
                wrong_checksums += errors;
                faults.push(format!("guest{}: {name} {errors}", index + 1));
            }
        }
        let failed = outcome.is_err();
        if let Err(error) = outcome {
            faults.insert(0, format!("{error:#}"));
        }
        // Losing a segment is how TCP learns of a smaller MTU.
        if traffic != Traffic::PathMtu
            && retransmitted.0 > RETRANSMITTED_MIN
            && retransmitted.0 * 100 > retransmitted.1 * RETRANSMITTED_PERCENT
        {
            faults.push(format!(
                "{} of {} segments sent again",
                retransmitted.0, retransmitted.1
            ));
        }
        let by_chance = match faults.as_slice() {
            [_] if wrong_checksums > 0 => config.tunnel_checksum && wrong_checksums == 1,
            [only] => traffic.is_udp() && only.ends_with(SILENCE),
            _ => false,
        };
        if lost > LOST_MAX + dropped_by_sockets {
            faults.push(format!("{lost} datagrams lost on the way"));
        }
        if !faults.is_empty() {
            faults.push(drops(&before, &after));
        }
        if failed {
            self.start_servers()?;
        }
        faults.retain(|fault| !fault.is_empty());
        let cell = Cell {
            config,
            traffic,
            verdict: if faults.is_empty() {
                Verdict::Pass
            } else {
                Verdict::Fail(faults.join("; "))
            },
            retransmitted,
            lost,
            repeated: false,
        };
        Ok((cell, by_chance))
    }

    fn send(&self, config: Config, traffic: Traffic, lost: &mut u64) -> Result<()> {
        let overlay = config.overlay().address_of(2).into();
        let node = node_address(2, config.underlay);
        let from_node = format!("--bind {}", node_address(1, config.underlay));
        let node_port = match config.underlay {
            Family::V4 => port::NODE_V4,
            Family::V6 => port::NODE_V6,
        };
        let mut udp = |target, port, length, rate| -> Result<()> {
            let measured = self.iperf(
                target,
                port,
                &format!("--udp --length {length} --bitrate {rate} --blockcount {DATAGRAMS}"),
            )?;
            *lost += measured.packets_lost;
            if measured.packets_received == 0 {
                bail!("{length} bytes to {target}: no datagram arrived");
            }
            Ok(())
        };
        match traffic {
            Traffic::Ping => {
                self.ping(overlay, 56)?;
                self.ping(overlay, 1372)
            }
            Traffic::TcpBulk => self.tcp(overlay, port::OVERLAY, "--bytes 16M"),
            Traffic::TcpSmall => self.tcp(
                overlay,
                port::OVERLAY,
                "--bytes 200K --length 200 --no-delay",
            ),
            Traffic::Udp64 => udp(overlay, port::OVERLAY, 64, "500K"),
            Traffic::Udp1400 => udp(overlay, port::OVERLAY, 1400, "10M"),
            Traffic::Udp3000 => {
                udp(overlay, port::OVERLAY, 3000, "20M")?;
                udp(node, node_port, 3000, "20M")
            }
            Traffic::PathMtu => {
                self.lab.set_hop_mtu(Some(HOP_MTU))?;
                let outcome = self.path_mtu(overlay, node, &from_node);
                self.lab.set_hop_mtu(None)?;
                outcome
            }
            Traffic::Kubelet => {
                self.tcp(node, port::KUBELET, "--bytes 4M")?;
                self.tcp(node, port::KUBELET, &format!("--bytes 4M {from_node}"))
            }
            Traffic::Ipip => {
                let target = ipip_address(2, config.underlay).into();
                self.ping(target, 56)?;
                self.tcp(target, port::OVERLAY, "--bytes 4M")
            }
        }
    }

    fn path_mtu(&self, overlay: IpAddr, node: IpAddr, from_node: &str) -> Result<()> {
        self.tcp(node, port::KUBELET, &format!("--bytes 2M {from_node}"))?;
        let source = from_node.trim_start_matches("--bind ");
        let route = self
            .lab
            .node(0)
            .guest
            .check(&format!("ip route get {node} from {source}"))?;
        if !route.contains(&format!("mtu {HOP_MTU}")) {
            bail!("the guest has not learned the path's MTU: {}", route.trim());
        }
        self.tcp(overlay, port::OVERLAY, "--bytes 2M")
            .context("over the tunnel")
    }

    fn tcp(&self, target: IpAddr, port: u16, arguments: &str) -> Result<()> {
        self.iperf(target, port, arguments).map(drop)
    }

    fn iperf(&self, target: IpAddr, port: u16, arguments: &str) -> Result<Measured> {
        let command = format!(
            "iperf3 --json --client {target} --port {port} --connect-timeout 3000 {arguments}"
        );
        let output = self.lab.node(0).guest.run_within(&command, TRAFFIC_LIMIT)?;
        if output.code() == Some(137) {
            bail!("{target} port {port}: {SILENCE}");
        }
        parse_iperf(&output.stdout).map_err(|error| anyhow!("{target} port {port}: {error:#}"))
    }

    fn ping(&self, target: IpAddr, payload: u32) -> Result<()> {
        let command = format!("ping -n -q -c 5 -i 0.05 -W 2 -s {payload} {target}");
        let output = self.lab.node(0).guest.run_within(&command, TRAFFIC_LIMIT)?;
        let result = parse_ping(&output.stdout)
            .with_context(|| format!("ping {target}: {}", output.stderr))?;
        if !result.complete() {
            bail!(
                "{} of {} pings of {payload} bytes answered",
                result.received,
                result.sent
            );
        }
        Ok(())
    }
}

/// Where a guest is on the IPIP tunnel.
fn ipip_address(number: usize, family: Family) -> Ipv4Addr {
    let third = match family {
        Family::V4 => 4,
        Family::V6 => 6,
    };
    Ipv4Addr::new(172, 30, third, u8::try_from(number).unwrap_or(u8::MAX))
}

/// Why something may not have arrived.
fn drops(before: &[Counters; 2], after: &[Counters; 2]) -> String {
    let mut words = Vec::new();
    for (index, (before, after)) in before.iter().zip(after).enumerate() {
        for name in [
            "UdpNoPorts",
            "UdpInErrors",
            "Udp6NoPorts",
            "Udp6InErrors",
            "IpInAddrErrors",
            "IpReasmFails",
            "Ip6ReasmFails",
            "TcpEstabResets",
        ] {
            let count = after.since(before, name);
            if count > 0 {
                words.push(format!("guest{}: {name} {count}", index + 1));
            }
        }
    }
    words.join(", ")
}

#[cfg(test)]
mod tests {
    use super::{Config, Hook};
    use crate::guest::HostMode;
    use crate::masquerade::Family;

    #[test]
    fn the_subset_meets_every_value_with_every_hook() {
        let all = Config::all();
        assert_eq!(all.len(), 32);
        let subset = Config::subset();
        assert!(subset.iter().all(|config| all.contains(config)));
        for hook in [Hook::Best, Hook::Xdp] {
            let of_hook = || subset.iter().filter(|config| config.hook == hook);
            for value in [true, false] {
                assert!(of_hook().any(|config| config.bridge_checksum == value));
                assert!(of_hook().any(|config| config.tunnel_checksum == value));
            }
            for host in [HostMode::SameHost, HostMode::Wire] {
                assert!(of_hook().any(|config| config.host == host));
            }
            for family in [Family::V4, Family::V6] {
                assert!(of_hook().any(|config| config.underlay == family));
            }
        }
    }
}
