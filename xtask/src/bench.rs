//! `bench`: measurements side by side, in interleaved rounds.

mod agent;
mod datapath;
mod guests;
mod migration;
mod test_run;

use std::path::PathBuf;

use anyhow::Result;
use clap::{Args, Subcommand};

/// What to measure.
#[derive(Debug, Subcommand)]
pub enum Bench {
    /// The datapath against no fix, iptables and nft: TCP and 64-byte UDP over VXLAN, and nanoseconds a packet.
    Datapath(Datapath),
    /// Two QEMU guests without xkub, with it and with it on XDP: TCP and 64-byte UDP over VXLAN, and what it costs.
    Guests(guests::Guests),
    /// The agent with nothing to do: processor time, wakeups, memory; and its memory after many reconciles.
    Agent(agent::Agent),
    /// How long a node is not reached at its new address after a live migration.
    Migration(migration::Migration),
}

/// How to measure the datapath.
#[derive(Debug, Args)]
pub struct Datapath {
    /// Also write the rows into this file, as one JSON array.
    #[arg(long)]
    json: Option<PathBuf>,
    /// How often each variant is measured, in turn with the others.
    #[arg(long, default_value_t = 7)]
    rounds: u32,
    /// How long one measurement takes, in seconds.
    #[arg(long, default_value_t = 3)]
    seconds: u64,
    /// Measure these variants only; the reference is always measured.
    #[arg(long, value_delimiter = ',')]
    only: Vec<datapath::Variant>,
    /// Leave the namespaces out: nanoseconds a packet alone.
    #[arg(long)]
    test_run_only: bool,
    /// Set by a bench that starts itself again as root: everything is installed and built, the binary is this one.
    #[arg(long, hide = true)]
    prepared: Option<PathBuf>,
}

/// Measures.
pub fn run(bench: &Bench) -> Result<()> {
    match bench {
        Bench::Datapath(arguments) => datapath::run(arguments),
        Bench::Guests(arguments) => guests::run(arguments),
        Bench::Agent(arguments) => agent::run(arguments),
        Bench::Migration(arguments) => migration::run(arguments),
    }
}
