//! `bench guests`: a tunnel between two QEMU guests without xkub, with it, and with it on XDP, measured in turn.
//!
//! The guests are emulated: their figures say nothing about a real machine, the ratios between them do.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::Args;
use xkub_tests::guest::bench::{Sample, Variant, measure};
use xkub_tests::guest::{Kernel, Lab, Series};
use xkub_tests::row::{Case, Row, Samples};

use super::datapath::text;
use crate::shell::say;
use crate::{prepare, setup};

/// Payload of the small datagrams, in bytes.
const SMALL: u32 = 64;

/// How to measure guests.
#[derive(Debug, Args)]
pub struct Guests {
    /// What they boot: 5.10, 6.1, 6.12 or 7.2.
    #[arg(long, default_value = "6.12")]
    kernel: String,
    /// Also write the rows into this file, as one JSON array.
    #[arg(long)]
    json: Option<PathBuf>,
    /// How often each variant is measured, in turn with the others.
    #[arg(long, default_value_t = 5)]
    rounds: u32,
    /// How long one measurement takes, in seconds.
    #[arg(long, default_value_t = 3)]
    seconds: u64,
    /// Set by a bench that starts itself again as root: everything is installed and built, the binary is this one.
    #[arg(long, hide = true)]
    prepared: Option<PathBuf>,
}

/// A figure of a sample.
type Figure = (Case, fn(&Sample) -> f64);

const TCP: [Figure; 3] = [
    (case("tcp-over-vxlan", "throughput", "Gbit/s"), |sample| {
        sample.gigabits_per_second
    }),
    (
        case("tcp-over-vxlan-host-cpu", "host-cpu", "s/GiB"),
        |sample| sample.host_cpu,
    ),
    (
        case("tcp-over-vxlan-guest-cpu", "guest-cpu", "s/GiB"),
        |sample| sample.guest_cpu,
    ),
];
const UDP: [Figure; 3] = [
    (
        case("udp-64-byte-over-vxlan", "packets-received", "packets/s"),
        |sample| sample.packets_per_second,
    ),
    (
        case("udp-64-byte-over-vxlan-host-cpu", "host-cpu", "s/GiB"),
        |sample| sample.host_cpu,
    ),
    (
        case("udp-64-byte-over-vxlan-guest-cpu", "guest-cpu", "s/GiB"),
        |sample| sample.guest_cpu,
    ),
];

const fn case(name: &'static str, metric: &'static str, unit: &'static str) -> Case {
    Case { name, metric, unit }
}

/// A variant and what was measured of it.
struct Contestant {
    variant: Variant,
    name: &'static str,
    tcp: Vec<Sample>,
    udp: Vec<Sample>,
}

/// Measures, prints a table, and writes JSON if asked.
pub fn run(arguments: &Guests) -> Result<()> {
    let series = Series::parse(&arguments.kernel)?;
    let binary = prepare::binary(arguments.prepared.as_deref(), setup::Purpose::Guests)?;
    prepare::go_on_as_root(&binary)?;
    say(format_args!("booting two guests with kernel {series}"));
    let lab = Lab::builder(Kernel::obtain(series)?).build()?;
    let best = if series.has_tcx() { "tcx" } else { "clsact" };
    let mut contestants = Vec::new();
    for variant in Variant::ALL {
        let name = match variant {
            Variant::Reference => "reference",
            Variant::Best => best,
            Variant::Xdp => "xdp",
        };
        if let Err(error) = variant.set_up(&lab) {
            if variant != Variant::Xdp {
                return Err(error).context(name);
            }
            say(format_args!("{name} is left out: {error:#}"));
            continue;
        }
        contestants.push(Contestant {
            variant,
            name,
            tcp: Vec::new(),
            udp: Vec::new(),
        });
    }
    let duration = Duration::from_secs(arguments.seconds);
    for round in 0..arguments.rounds {
        say(format_args!("round {} of {}", round + 1, arguments.rounds));
        for Contestant {
            variant,
            name,
            tcp,
            udp,
        } in &mut contestants
        {
            variant.set_up(&lab)?;
            tcp.push(measure(&lab, None, duration).with_context(|| format!("TCP with {name}"))?);
            udp.push(
                measure(&lab, Some(SMALL), duration).with_context(|| format!("UDP with {name}"))?,
            );
        }
        // Each round begins with another variant, so that none always runs after the same one.
        contestants.rotate_left(1);
    }
    contestants.sort_by_key(|contestant| {
        Variant::ALL
            .iter()
            .position(|&variant| variant == contestant.variant)
    });
    let rows = rows(&contestants);
    print!("{}", text(&rows));
    if let Some(file) = &arguments.json {
        fs::write(file, serde_json::to_string_pretty(&rows)? + "\n")
            .with_context(|| format!("write {}", file.display()))?;
        say(format_args!("rows are in {}", file.display()));
    }
    Ok(())
}

fn rows(contestants: &[Contestant]) -> Vec<Row> {
    let mut rows = Vec::new();
    let figures = TCP
        .iter()
        .map(|figure| (figure, true))
        .chain(UDP.iter().map(|figure| (figure, false)));
    for ((case, figure), tcp) in figures {
        let samples = |contestant: &Contestant| {
            let samples = if tcp {
                &contestant.tcp
            } else {
                &contestant.udp
            };
            Samples(samples.iter().map(figure).collect())
        };
        for contestant in contestants {
            let row = Row {
                bench: "guests".to_owned(),
                ..samples(contestant).row(case, contestant.name)
            };
            for other in contestants {
                // Everybody is compared with the reference, XDP with the other hook as well.
                let compared = match other.variant {
                    Variant::Reference => true,
                    Variant::Best => contestant.variant == Variant::Xdp,
                    Variant::Xdp => false,
                };
                if compared {
                    rows.push(Row {
                        ratio_to: Some(other.name.to_owned()),
                        ratio: Some(row.median / samples(other).median()),
                        ..row.clone()
                    });
                }
            }
        }
    }
    rows
}
