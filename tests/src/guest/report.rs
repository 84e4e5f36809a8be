//! The matrix as people read it: `docs/compatibility.md`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};

use super::kernel::run;
use super::lab::HostMode;
use super::machine::QEMU;
use super::matrix::{Cell, Hook, Outcome, Traffic, Verdict};
use crate::masquerade::Family;
use crate::xkub;

/// What a file without sections begins with.
const HEAD: &str = "\
# Compatibility

## What was tested

Written by `cargo xtask test --vm`: two QEMU guests (`-accel tcg`) with virtio-net on a tap, behind the bridge and the nftables
rules that KubeVirt's `masquerade` binding makes; a VXLAN tunnel between the node addresses, xkub attached in both guests. A
cell is ✓ when everything arrived, no guest counted a checksum error, and next to nothing was sent again (5 % of TCP
segments, ten at least; 2 % of datagrams, not counting those that a full socket dropped: emulated guests are slow).

| column or value | meaning |
|---|---|
| hook | `best`: what xkub takes by itself, TCX or else clsact; `xdp`: native XDP at ingress, `best` at egress |
| host | `same host`: the pod's device leaves checksums pending and packets unsegmented; `wire`: it finishes both, as a real NIC does |
| k6t | whether `k6t-eth0` lets pending checksums through: yes since KubeVirt 1.8, no before |
| VXLAN | whether the tunnel sends an outer UDP checksum: Flannel and Calico do, Cilium does not |
| ping, tcp-bulk, tcp-small, udp-64, udp-1400 | over the tunnel; writes of 200 bytes without delay; datagrams of so many bytes |
| udp-3000 | fragments inside the tunnel, and fragments between the node addresses |
| path-mtu | TCP between the node addresses and over the tunnel, 1400 bytes on the way; the guest must learn that |
| tcp-10250 | to the node address, from the guest address and from the node address |
| ipip | ping and TCP over IPIP, 4in6 over IPv6, between the node addresses |
";

/// Replaces the sections of the kernels in `outcomes`, and leaves all others as they are.
///
/// # Errors
/// When the file can't be read or written.
pub fn write(path: &Path, outcomes: &[Outcome]) -> Result<()> {
    let mut text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => HEAD.to_owned(),
        Err(error) => return Err(error).with_context(|| format!("read {}", path.display())),
    };
    for outcome in outcomes {
        text = replace(&text, outcome.kernel.series.name(), &section(outcome)?);
    }
    // In place, so that it stays whose it was.
    fs::write(path, text).with_context(|| format!("write {}", path.display()))
}

/// Replaces what stands between a kernel's marks, or appends it.
fn replace(text: &str, kernel: &str, section: &str) -> String {
    let (begin, end) = (
        format!("<!-- kernel {kernel} -->\n"),
        format!("<!-- end of kernel {kernel} -->\n"),
    );
    let marked = format!("{begin}{section}{end}");
    let found = text
        .split_once(&begin)
        .and_then(|(before, rest)| Some((before, rest.split_once(&end)?.1)));
    match found {
        Some((before, after)) => format!("{before}{marked}{after}"),
        None => format!("{}\n\n{marked}", text.trim_end()),
    }
}

fn section(outcome: &Outcome) -> Result<String> {
    let Outcome {
        kernel,
        release,
        hooks: [ingress, egress_first, egress_last],
        programs,
        cells,
        duration,
    } = outcome;
    let counts =
        |wanted: fn(&Verdict) -> bool| cells.iter().filter(|cell| wanted(&cell.verdict)).count();
    let mut text = format!(
        "## Linux {release}\n\n\
         {}, {} in {} s: {} cells passed, {} failed, {} can't be had there. Package `{}`; {}; {}; host {}.\n\n\
         `best` is {ingress} at ingress, {egress_first} first and {egress_last} last at egress.\n\n",
        date()?,
        said(Command::new(xkub::binary()?).arg("--version"))?,
        duration.as_secs(),
        counts(|verdict| *verdict == Verdict::Pass),
        counts(|verdict| matches!(verdict, Verdict::Fail(_))),
        counts(|verdict| matches!(verdict, Verdict::Refused(_))),
        kernel.package,
        said(Command::new(QEMU).arg("--version"))?,
        said(Command::new("iperf3").arg("--version"))?,
        said(Command::new("uname").arg("-sr"))?,
    );
    if !programs.is_empty() {
        text += "| program | instructions, as loaded |\n|---|---|\n";
        for program in programs {
            let _ = writeln!(text, "| `{}` | {} |", program.name, program.instructions);
        }
        text.push('\n');
    }
    text += "| hook | host | k6t | VXLAN | underlay |";
    for traffic in Traffic::ALL {
        let _ = write!(text, " {} |", traffic.name());
    }
    text += "\n|---|---|---|---|---|";
    text += &"---|".repeat(Traffic::ALL.len());
    text.push('\n');
    let mut notes = Vec::new();
    for row in cells.chunk_by(|one, other| one.config == other.config) {
        text += &line(row, &mut notes);
    }
    text.push('\n');
    for (index, note) in notes.iter().enumerate() {
        let _ = writeln!(text, "{}. {note}", index + 1);
    }
    let mut worst: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for cell in cells.iter().filter(|cell| cell.traffic != Traffic::PathMtu) {
        let sums = worst.entry(cell.traffic.name()).or_default();
        sums.0 += cell.retransmitted.0;
        sums.1 += cell.retransmitted.1;
    }
    let (again, sent) = worst
        .values()
        .fold((0, 0), |sums, sum| (sums.0 + sum.0, sums.1 + sum.1));
    let lost: u64 = cells.iter().map(|cell| cell.lost).sum();
    let _ = writeln!(
        text,
        "\nIn all cells but path-mtu {again} of {sent} TCP segments were sent again; {lost} datagrams were lost."
    );
    let repeated: Vec<String> = cells
        .iter()
        .filter(|cell| cell.repeated)
        .map(|cell| format!("{} {}", cell.config, cell.traffic.name()))
        .collect();
    if !repeated.is_empty() {
        let _ = writeln!(
            text,
            "Ran a second time, because one outer checksum was wrong (chance brings that once in 65,536 packets, \
             [datapath.md](datapath.md)) or iperf3's one opening datagram was lost: {}.",
            repeated.join("; ")
        );
    }
    text.push('\n');
    Ok(text)
}

fn line(row: &[Cell], notes: &mut Vec<String>) -> String {
    let Some(first) = row.first() else {
        return String::new();
    };
    let config = first.config;
    let mut line = format!(
        "| {} | {} | {} | {} | {} |",
        match config.hook {
            Hook::Best => "best",
            Hook::Xdp => "xdp",
        },
        match config.host {
            HostMode::SameHost => "same host",
            HostMode::Wire => "wire",
        },
        if config.bridge_checksum { "yes" } else { "no" },
        if config.tunnel_checksum { "yes" } else { "no" },
        match config.underlay {
            Family::V4 => "IPv4",
            Family::V6 => "IPv6",
        }
    );
    for traffic in Traffic::ALL {
        let cell = row.iter().find(|cell| cell.traffic == traffic);
        let mut note = |reason: &String| {
            let reason = reason.replace('\n', " ");
            let index = notes.iter().position(|note| *note == reason);
            index.unwrap_or_else(|| {
                notes.push(reason);
                notes.len() - 1
            }) + 1
        };
        let _ = match cell.map(|cell| &cell.verdict) {
            Some(Verdict::Pass) => write!(line, " ✓ |"),
            Some(Verdict::Fail(reason)) => write!(line, " ✗ ({}) |", note(reason)),
            Some(Verdict::Refused(reason)) => write!(line, " – ({}) |", note(reason)),
            None => write!(line, " not run |"),
        };
    }
    line.push('\n');
    line
}

fn date() -> Result<String> {
    said(Command::new("date").args(["--utc", "+%F"]))
}

/// The first line of what a program prints.
fn said(command: &mut Command) -> Result<String> {
    let output = run(command)?;
    let text = String::from_utf8_lossy(&output);
    Ok(text.lines().next().unwrap_or_default().trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::replace;

    #[test]
    fn a_section_replaces_its_own_predecessor_alone() {
        let text = replace("head\n", "6.1", "old\n");
        let text = replace(&text, "6.12", "other\n");
        let text = replace(&text, "6.1", "new\n");
        assert_eq!(
            text,
            "head\n\n<!-- kernel 6.1 -->\nnew\n<!-- end of kernel 6.1 -->\n\n\
             <!-- kernel 6.12 -->\nother\n<!-- end of kernel 6.12 -->\n"
        );
    }
}
