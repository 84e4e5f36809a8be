//! `bench migration`: how long a node is not reached at its new address after a live migration, with the announcement that
//! QEMU makes the guest send, and without.
//!
//! In namespaces, so that it is the agent that is measured and not an emulator.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use clap::Args;
use serde_json::Value;
use xkub_tests::masquerade::{
    self, CLIENT_V4, CLIENT_V6, Masquerade, NODE_V4, NODE_V6, NodeAddress,
};
use xkub_tests::row::{Case, Row, Samples};
use xkub_tests::traffic::{Client, EchoServer};
use xkub_tests::wait::{PATIENCE, wait_for, wait_until};
use xkub_tests::xkub;

use super::datapath::text;
use crate::shell::say;
use crate::{prepare, setup};

/// The pod's addresses after the migration.
const NEW: (Ipv4Addr, Ipv6Addr) = (
    Ipv4Addr::new(10, 244, 9, 9),
    Ipv6Addr::new(0xfd00, 0x244, 9, 0, 0, 0, 0, 9),
);
/// A port of the service set: the kubelet's.
const PORT: u16 = 10_250;
const CASE: Case = Case {
    name: "migration-to-first-connection",
    metric: "time",
    unit: "ms",
};

/// How to measure migrations.
#[derive(Debug, Args)]
pub struct Migration {
    /// Also write the rows into this file, as one JSON array.
    #[arg(long)]
    json: Option<PathBuf>,
    /// How often each variant is measured, in turn with the other.
    #[arg(long, default_value_t = 7)]
    rounds: u32,
    /// Set by a bench that starts itself again as root: everything is installed and built, the binary is this one.
    #[arg(long, hide = true)]
    prepared: Option<PathBuf>,
}

/// What tells the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Variant {
    /// Nothing: it asks its reflectors every five seconds.
    Silent,
    /// A gratuitous ARP that leaves the guest.
    Announced,
}

impl Variant {
    fn name(self) -> &'static str {
        match self {
            Self::Silent => "silent",
            Self::Announced => "announced",
        }
    }
}

/// Measures, prints a table, and writes JSON if asked.
pub fn run(arguments: &Migration) -> Result<()> {
    let binary = prepare::binary(arguments.prepared.as_deref(), setup::Purpose::Lab)?;
    prepare::go_on_as_root(&binary)?;
    let mut contestants =
        [Variant::Silent, Variant::Announced].map(|variant| (variant, Vec::new()));
    for round in 0..arguments.rounds {
        say(format_args!("round {} of {}", round + 1, arguments.rounds));
        for (variant, samples) in &mut contestants {
            let took = measure(*variant).with_context(|| variant.name())?;
            samples.push(took.as_secs_f64() * 1e3);
        }
    }
    let [silent, announced] = contestants.map(|(variant, samples)| (variant, Samples(samples)));
    let rows = [&silent, &announced].map(|(variant, samples)| Row {
        bench: "migration".to_owned(),
        ratio_to: Some(silent.0.name().to_owned()),
        ratio: Some(samples.median() / silent.1.median()),
        ..samples.row(&CASE, variant.name())
    });
    print!("{}", text(&rows));
    if let Some(file) = &arguments.json {
        fs::write(file, serde_json::to_string_pretty(&rows)? + "\n")
            .with_context(|| format!("write {}", file.display()))?;
        say(format_args!("rows are in {}", file.display()));
    }
    Ok(())
}

/// From the new address of the pod to the first connection from outside to a server that is bound to it.
///
/// In a lab of its own: an agent that has seen many changes takes its time.
fn measure(variant: Variant) -> Result<Duration> {
    let lab = Masquerade::builder()
        .node_address(NodeAddress::Absent)
        .build()?;
    let node = lab.node(0);
    let binary = xkub::binary()?.to_string_lossy().into_owned();
    let mut reflector = lab.client.spawn([&binary, "reflector"])?;
    reflector.wait_output("listening", PATIENCE)?;
    let reflectors = format!("--address-reflectors={CLIENT_V4},{CLIENT_V6}");
    let _agent = node.guest.spawn([
        &binary,
        "agent",
        &reflectors,
        "--node-distribution=none",
        "--observe-listen=",
    ])?;
    wait_until("the first node address", PATIENCE, || {
        let show = node.show().unwrap_or_default();
        let lines = show.get("addresses").and_then(Value::as_array);
        let both = lines.is_some_and(|lines| lines.len() == 2);
        Ok(both && show.to_string().contains(&NODE_V4[0].to_string()))
    })?;
    node.guest.sysctl("net/ipv4/ip_nonlocal_bind", "1")?;
    let _server = EchoServer::tcp(&node.guest, (NEW.0, PORT))?;
    let client = Client::to((IpAddr::from(NEW.0), PORT));
    let old = (NODE_V4[0], NODE_V6[0]);
    masquerade::readdress(&lab.fabric, &node.launcher, node.number(), old, NEW)?;
    let begin = Instant::now();
    if variant == Variant::Announced {
        node.announce()?;
    }
    // Refused as long as it is translated to the old address.
    wait_for("a connection to the new address", PATIENCE, || {
        Ok(client.connect(&lab.client).ok())
    })?;
    Ok(begin.elapsed())
}
