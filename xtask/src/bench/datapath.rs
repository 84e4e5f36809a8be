//! `bench datapath`: VXLAN between two guests, with every way to make it work in a lab of its own, measured in turn.
//!
//! Every variant has its own lab, and all labs are built alike. One lab for all would not be the same lab for all:
//! what iptables leaves behind (connection tracking, registered hooks) would slow down whoever comes next.

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::ValueEnum;
use xkub_tests::masquerade::{
    Family, GATEWAY_V4, GUEST_V4, Masquerade, OVERLAY_PORT, Overlay, UPLINK, nft_stateless,
};
use xkub_tests::traffic::{IperfServer, Ping};

use super::{Datapath, test_run};
use crate::shell::say;
use crate::{prepare, setup, table};
use xkub_tests::row::{Case, Row, Samples};

/// Payload of the small datagrams, in bytes.
const SMALL: u32 = 64;
/// iperf3's own default.
const IPERF_PORT: u16 = 5201;

const TCP: Case = Case {
    name: "tcp-over-vxlan",
    metric: "throughput",
    unit: "Gbit/s",
};
const UDP: Case = Case {
    name: "udp-64-byte-over-vxlan",
    metric: "packets-received",
    unit: "packets/s",
};

/// A way to make the overlay work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Variant {
    /// Source by route: works without any fix, because the VXLAN socket is a wildcard one.
    Reference,
    /// DNAT and SNAT in the guest.
    Iptables,
    /// A stateless rewrite in netdev hooks.
    Nft,
    /// xkub on TCX.
    Tcx,
    /// xkub with native XDP at ingress.
    Xdp,
}

impl Variant {
    const ALL: [Self; 5] = [
        Self::Reference,
        Self::Iptables,
        Self::Nft,
        Self::Tcx,
        Self::Xdp,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Reference => "reference",
            Self::Iptables => "iptables",
            Self::Nft => "nft",
            Self::Tcx => "tcx",
            Self::Xdp => "xdp",
        }
    }

    fn build(self) -> Result<Masquerade> {
        let lab = Masquerade::builder().ipv6(false).build()?;
        let overlay = if self == Self::Reference {
            Overlay::V4.by_route()
        } else {
            Overlay::V4
        };
        lab.add_overlay(&overlay)?;
        for node in lab.nodes() {
            // None but xkub translates ARP, so the gateway must be known.
            Ping::to(GATEWAY_V4).run(&node.guest)?;
            let address = node.node_v4().to_string();
            match self {
                Self::Reference => {}
                Self::Iptables => {
                    let port = OVERLAY_PORT.to_string();
                    let dnat = [
                        "PREROUTING",
                        "-i",
                        UPLINK,
                        "-p",
                        "udp",
                        "--dport",
                        &port,
                        "-j",
                        "DNAT",
                    ];
                    let guest = GUEST_V4.to_string();
                    let snat = ["POSTROUTING", "-o", UPLINK, "-s", &address, "-j", "SNAT"];
                    let rule = |rule: &[&str], target: [&str; 2]| {
                        let words = ["iptables", "-t", "nat", "-A"];
                        node.guest
                            .check(words.iter().chain(rule).chain(&target))
                            .map(drop)
                    };
                    rule(&dnat, ["--to-destination", &address])?;
                    rule(&snat, ["--to-source", &guest])?;
                }
                Self::Nft => node.guest.nft(&nft_stateless(node, Family::V4))?,
                Self::Tcx | Self::Xdp => {
                    let arguments = [
                        "datapath",
                        "attach",
                        "--uplink",
                        UPLINK,
                        "--node-address",
                        &address,
                    ];
                    let hook = ["--ingress-hook", self.name()];
                    node.xkub(&[&arguments[..], &hook].concat())?.success()?;
                }
            }
        }
        Ok(lab)
    }
}

/// A variant, its lab and what was measured in it.
struct Contestant {
    variant: Variant,
    lab: Masquerade,
    server: IperfServer,
    tcp: Samples,
    udp: Samples,
}

/// Measures, prints a table and how the goals were met, and writes JSON if asked.
pub fn run(arguments: &Datapath) -> Result<()> {
    let binary = prepare::binary(arguments.prepared.as_deref(), setup::Purpose::Lab)?;
    let example = test_run::build()?;
    prepare::go_on_as_root(&binary)?;
    let mut rows = if arguments.test_run_only {
        Vec::new()
    } else {
        lab_rows(arguments)?
    };
    if let Some(example) = example {
        rows.extend(test_run::run(&example)?);
    }
    print!("{}", text(&rows));
    for goal in GOALS {
        if let Some(line) = goal.judge(&rows) {
            println!("{line}");
        }
    }
    for budget in BUDGETS {
        if let Some(line) = judge_budget(&rows, budget) {
            println!("{line}");
        }
    }
    if let Some(file) = &arguments.json {
        fs::write(file, serde_json::to_string_pretty(&rows)? + "\n")
            .with_context(|| format!("write {}", file.display()))?;
        say(format_args!("rows are in {}", file.display()));
    }
    Ok(())
}

fn lab_rows(arguments: &Datapath) -> Result<Vec<Row>> {
    let mut contestants = Vec::new();
    for variant in Variant::ALL {
        let wanted = variant == Variant::Reference
            || arguments.only.is_empty()
            || arguments.only.contains(&variant);
        if !wanted {
            continue;
        }
        say(format_args!("lab for {}", variant.name()));
        let lab = variant
            .build()
            .with_context(|| format!("lab for {}", variant.name()))?;
        let server = IperfServer::start(
            &lab.node(1).guest,
            Overlay::V4.address(lab.node(1)),
            IPERF_PORT,
        )?;
        contestants.push(Contestant {
            variant,
            lab,
            server,
            tcp: Samples::default(),
            udp: Samples::default(),
        });
    }
    let duration = Duration::from_secs(arguments.seconds);
    let count = contestants.len();
    for round in 0..arguments.rounds {
        say(format_args!("round {} of {}", round + 1, arguments.rounds));
        // Each round begins with another variant, so that none always runs after the same one.
        contestants.rotate_left(1 % count);
        for Contestant {
            variant,
            lab,
            server,
            tcp,
            udp,
        } in &mut contestants
        {
            let guest = &lab.node(0).guest;
            let client = server.client().duration(duration);
            let measured = client
                .run(guest)
                .with_context(|| format!("TCP with {}", variant.name()))?;
            tcp.0.push(measured.bits_per_second / 1e9);
            let client = client.udp(SMALL, "0");
            let measured = client
                .run(guest)
                .with_context(|| format!("UDP with {}", variant.name()))?;
            udp.0.push(measured.packets_per_second);
        }
    }
    contestants.sort_by_key(|contestant| {
        Variant::ALL
            .iter()
            .position(|&variant| variant == contestant.variant)
    });
    let mut rows = Vec::new();
    for case in [TCP, UDP] {
        let samples = |contestant: &Contestant| {
            if case.name == TCP.name {
                contestant.tcp.clone()
            } else {
                contestant.udp.clone()
            }
        };
        for contestant in &contestants {
            let row = samples(contestant).row(&case, contestant.variant.name());
            for other in &contestants {
                if !compared(contestant.variant, other.variant) {
                    continue;
                }
                let ratio = row.median / samples(other).median();
                rows.push(Row {
                    ratio_to: Some(other.variant.name().to_owned()),
                    ratio: Some(ratio),
                    ..row.clone()
                });
            }
        }
    }
    Ok(rows)
}

/// Everybody is compared with the reference, xkub with its rivals as well.
fn compared(variant: Variant, other: Variant) -> bool {
    match other {
        Variant::Reference => true,
        Variant::Iptables | Variant::Nft => matches!(variant, Variant::Tcx | Variant::Xdp),
        Variant::Tcx | Variant::Xdp => false,
    }
}

/// What a ratio is to be at least.
struct Goal {
    case: Case,
    variant: Variant,
    over: Variant,
    at_least: f64,
}

const GOALS: [Goal; 4] = [
    Goal {
        case: TCP,
        variant: Variant::Tcx,
        over: Variant::Reference,
        at_least: 0.98,
    },
    Goal {
        case: TCP,
        variant: Variant::Tcx,
        over: Variant::Iptables,
        at_least: 1.10,
    },
    Goal {
        case: UDP,
        variant: Variant::Tcx,
        over: Variant::Iptables,
        at_least: 1.05,
    },
    Goal {
        case: UDP,
        variant: Variant::Tcx,
        over: Variant::Nft,
        at_least: 1.0,
    },
];

impl Goal {
    /// A line for a person; nothing when it was not measured.
    fn judge(&self, rows: &[Row]) -> Option<String> {
        let Self {
            case,
            variant,
            over,
            at_least,
        } = self;
        let row = rows.iter().find(|row| {
            row.case == case.name
                && row.variant == variant.name()
                && row.ratio_to.as_deref() == Some(over.name())
        })?;
        let ratio = row.ratio?;
        let verdict = if ratio >= *at_least {
            "met".to_owned()
        } else {
            format!("missed by {:.3}", at_least - ratio)
        };
        Some(format!(
            "goal: {} of {} ≥ {at_least:.2} × {}: {ratio:.3}, {verdict}",
            case.name,
            variant.name(),
            over.name()
        ))
    }
}

/// How many nanoseconds a packet may cost above an empty program on the same hook.
const BUDGETS: [(&str, Variant, f64); 5] = [
    ("vxlan-arrives-xdp", Variant::Xdp, 8.0),
    ("vxlan-arrives-tc", Variant::Tcx, 18.0),
    ("vxlan-leaves-tc", Variant::Tcx, 18.0),
    ("guest-tcp-arrives-tc", Variant::Tcx, 15.0),
    ("guest-tcp-leaves-tc", Variant::Tcx, 5.0),
];

/// A line for a person; nothing when it was not measured.
fn judge_budget(rows: &[Row], (case, variant, budget): (&str, Variant, f64)) -> Option<String> {
    let median = |variant: &str| {
        rows.iter()
            .find(|row| row.case == case && row.variant == variant)
            .map(|row| row.median)
    };
    let cost = median(variant.name())? - median("empty")?;
    let verdict = if cost <= budget {
        "met".to_owned()
    } else {
        format!("missed by {:.0} ns", cost - budget)
    };
    Some(format!(
        "goal: {case} of {} ≤ empty + {budget:.0} ns: + {cost:.0} ns, {verdict}",
        variant.name()
    ))
}

/// Rows as a table for a person.
pub fn text(rows: &[Row]) -> String {
    let head = [
        "case", "variant", "median", "min", "max", "unit", "rounds", "ratio", "to",
    ];
    let mut cells = vec![head.map(str::to_owned).to_vec()];
    for row in rows {
        let number = |value: f64| {
            if value.abs() < 1000.0 {
                format!("{value:.2}")
            } else {
                format!("{value:.0}")
            }
        };
        cells.push(vec![
            row.case.clone(),
            row.variant.clone(),
            number(row.median),
            number(row.min),
            number(row.max),
            row.unit.clone(),
            row.rounds.to_string(),
            row.ratio
                .map_or(String::new(), |ratio| format!("{ratio:.3}")),
            row.ratio_to.clone().unwrap_or_default(),
        ]);
    }
    table::render(&cells)
}
