//! Every traffic through a choice of combinations of hooks and offloads, in real guests; `cargo xtask test --vm` runs
//! all of them.
#![expect(clippy::unwrap_used, reason = "tests")]

use xkub_tests::guest::matrix::{Cell, Config, Verdict, run, subset_kernels};
use xkub_tests::guest::{Series, alone};

fn subset(series: Series) {
    let _alone = alone();
    let outcome = run(series, &Config::subset(), None, |cell| {
        let Cell {
            config,
            traffic,
            verdict,
            retransmitted: (again, sent),
            lost,
            repeated,
        } = cell;
        let repeated = if *repeated { ", at a second try" } else { "" };
        println!(
            "{series} {config} {}: {verdict:?}{repeated}, {again} of {sent} segments sent again, {lost} datagrams lost",
            traffic.name()
        );
    })
    .unwrap();
    println!(
        "{:?} {:?} in {:?}",
        outcome.hooks, outcome.programs, outcome.duration
    );
    let failures = outcome.failures();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    // A row may only be refused where the driver does that: not in these kernels.
    assert!(
        outcome
            .cells
            .iter()
            .all(|cell| !matches!(cell.verdict, Verdict::Refused(_)))
    );
}

#[test]
fn clsact_kernel() {
    subset(subset_kernels()[0]);
}

#[test]
fn tcx_kernel() {
    subset(subset_kernels()[1]);
}
