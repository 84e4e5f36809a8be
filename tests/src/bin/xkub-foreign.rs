//! Somebody else's program on an uplink's hook, inside a guest: attached until this process is killed.
//!
//! `xkub-foreign <device> ingress|egress pass-on|end-chain|drop-from A|masquerade-ping G N`, or `xkub-foreign <device> xdp`.

use std::env;

use anyhow::{Context as _, Result, bail};
use xkub_tests::Namespace;
use xkub_tests::foreign::{Behaviour, Direction, Foreign};

/// What `bpftool` and `xkub` show it as.
const NAME: &str = "foreign";

fn main() -> Result<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let here = Namespace::here()?;
    let attached = match words.as_slice() {
        [device, "xdp"] => Foreign::attach_xdp(&here, device, NAME)?,
        [device, direction, behaviour @ ..] => {
            let direction = match *direction {
                "ingress" => Direction::Ingress,
                "egress" => Direction::Egress,
                other => bail!("no direction {other}"),
            };
            Foreign::attach(&here, device, direction, NAME, parse(behaviour)?)?
        }
        _ => bail!("too few arguments"),
    };
    println!("attached");
    loop {
        std::thread::park();
        // Woken for no reason.
        let _ = &attached;
    }
}

fn parse(words: &[&str]) -> Result<Behaviour> {
    Ok(match *words {
        ["pass-on"] => Behaviour::PassOn,
        ["end-chain"] => Behaviour::EndChain,
        ["drop-from", address] => Behaviour::DropFrom(address.parse()?),
        ["masquerade-ping", guest, node] => Behaviour::MasqueradePing {
            guest: guest.parse().context("guest address")?,
            node: node.parse().context("node address")?,
        },
        _ => bail!("no behaviour {words:?}"),
    })
}
