//! Nanoseconds a packet, by `BPF_PROG_TEST_RUN`: each program against an empty one on the same hook, in interleaved
//! rounds. With `--json` prints rows as `cargo xtask bench` takes them.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a measurement that can't go on ends"
)]

#[path = "../tests/kernel/harness.rs"]
#[expect(
    dead_code,
    reason = "shared with the kernel tests, which use all of it"
)]
mod harness;
#[path = "../tests/kernel/packets.rs"]
#[expect(
    dead_code,
    reason = "shared with the kernel tests, which use all of it"
)]
mod packets;

use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};

use harness::{At, Datapath, dual, words4};
use packets::{ACK, G4, Payload, Side, V4, frame};
use xkub_common::config::AddressesV4;
use xkub_tests::{
    foreign::{self, Hook},
    row::{Case, Row, Samples},
};

/// Runs that one figure is the mean of.
const REPEAT: u32 = 1_000_000;
/// Figures that one median is taken of.
const ROUNDS: usize = 15;
/// The variant that the others are compared with.
const EMPTY: &str = "empty";

/// One packet on one hook.
struct Measurement {
    case: &'static str,
    at: At,
    packet: Vec<u8>,
    /// Whether it is translated. A test run gives every run the packet that the one before has left, so the constants
    /// must make G of G: the same work, and the next run finds the same packet.
    translated: bool,
}

fn measurements() -> Vec<Measurement> {
    let same = Side {
        node: V4.guest,
        ..V4
    };
    let arriving = |payload: &Payload| frame(same.peer, same.guest, payload);
    let leaving = |payload: &Payload| frame(same.node, same.peer, payload);
    let vxlan = Payload::vxlan(false);
    let kubelet = Payload::tcp(40_000, 10_250, ACK);
    let guest = Payload::tcp(443, 50_000, ACK);
    let mut all = Vec::new();
    for at in [At::Ingress, At::Xdp] {
        for (case, payload, translated) in [
            ("vxlan-arrives", &vxlan, true),
            ("kubelet-arrives", &kubelet, true),
            ("guest-tcp-arrives", &guest, false),
        ] {
            all.push(Measurement {
                case,
                at,
                packet: arriving(payload),
                translated,
            });
        }
    }
    for (case, payload, translated) in [
        ("vxlan-leaves", vxlan.clone(), true),
        ("kubelet-leaves", Payload::tcp(10_250, 40_000, ACK), true),
        ("node-tcp-leaves", Payload::tcp(50_001, 443, ACK), true),
        ("guest-tcp-leaves", Payload::tcp(50_000, 443, ACK), false),
    ] {
        all.push(Measurement {
            case,
            at: At::EgressFirst,
            packet: leaving(&payload),
            translated,
        });
    }
    all
}

/// How long a program takes for a packet, on average.
fn nanoseconds(program: BorrowedFd<'_>, packet: &[u8]) -> f64 {
    let (result, _) = harness::test_runs(program.as_raw_fd(), packet, 0, REPEAT).unwrap();
    f64::from(result.duration)
}

fn main() {
    let mut constants = dual();
    let mut apart = Datapath::new(&constants);
    constants.v4 = AddressesV4::new(words4(G4), words4(G4));
    let mut same = Datapath::new(&constants);
    let empty: [(Hook, OwnedFd); 2] =
        [Hook::Tc, Hook::Xdp].map(|hook| (hook, foreign::load_empty(hook).unwrap()));

    let measurements = measurements();
    let mut ours = vec![Samples::default(); measurements.len()];
    let mut theirs = vec![Samples::default(); measurements.len()];
    for _ in 0..ROUNDS {
        for (
            index,
            Measurement {
                at,
                packet,
                translated,
                ..
            },
        ) in measurements.iter().enumerate()
        {
            let datapath = if *translated { &mut same } else { &mut apart };
            ours[index]
                .0
                .push(nanoseconds(datapath.program(*at).as_fd(), packet));
            let [tc, xdp] = &empty;
            let (_, program) = if *at == At::Xdp { xdp } else { tc };
            theirs[index].0.push(nanoseconds(program.as_fd(), packet));
        }
    }

    let rows: Vec<Row> = measurements
        .iter()
        .zip(ours.iter().zip(&theirs))
        .flat_map(|(measurement, (ours, theirs))| {
            let name = format!(
                "{}-{}",
                measurement.case,
                if measurement.at == At::Xdp {
                    "xdp"
                } else {
                    "tc"
                }
            );
            let case = Case {
                name: name.leak(),
                metric: "time per packet",
                unit: "ns",
            };
            let variant = if measurement.at == At::Xdp {
                "xdp"
            } else {
                "tcx"
            };
            let mut row = ours.row(&case, variant);
            row.ratio_to = Some(EMPTY.to_owned());
            row.ratio = Some(ours.median() / theirs.median());
            [theirs.row(&case, EMPTY), row]
        })
        .collect();
    if std::env::args().any(|argument| argument == "--json") {
        println!("{}", serde_json::to_string(&rows).unwrap());
    } else {
        for pair in rows.chunks(2) {
            let [empty, ours] = pair else {
                panic!("rows come in pairs")
            };
            println!(
                "{:<24} {:>5.0} ns, {:>+4.0} over an empty program",
                ours.case,
                ours.median,
                ours.median - empty.median
            );
        }
    }
}
