//! `test --vm`: the whole matrix in QEMU guests, and the faults on the kernels that are asked for.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use xkub_tests::guest::matrix::{Config, Verdict, run as run_matrix};
use xkub_tests::guest::report;
use xkub_tests::guest::{KERNELS_VARIABLE, Series};

use crate::prepare::use_binary;
use crate::shell::say;
use crate::test::{Tally, Test, tests};
use crate::{root, setup, workspace};

/// Where the table stands, below the repository's root.
const TABLE: &str = "docs/compatibility.md";
/// The tests that boot guests of their own.
const FAULTS: [&str; 8] = [
    "--package",
    "xkub-tests",
    "--test",
    "guest_itself",
    "--test",
    "guest_faults",
    "--test",
    "guest_agent",
];

/// Runs it.
pub fn run(arguments: &Test) -> Result<ExitCode> {
    let kernels: Vec<Series> = if arguments.kernel.is_empty() {
        Series::ALL.to_vec()
    } else {
        let kernels = arguments.kernel.iter();
        kernels
            .map(|name| Series::parse(name))
            .collect::<Result<_>>()?
    };
    if let (Some(binary), Some(file)) = (&arguments.prepared, &arguments.tally) {
        let tally = matrix(arguments, &kernels, binary)?;
        return tally.save(file).map(|()| ExitCode::SUCCESS);
    }
    setup::run(setup::Purpose::Everything)?;
    let binary = workspace::build_xkub(workspace::Profile::Debug)?;
    let mut all = Tally::default();
    if arguments.filter.is_none() {
        let names: Vec<&str> = kernels.iter().map(|series| series.name()).collect();
        all.add(tests(
            &binary,
            &FAULTS,
            &[(KERNELS_VARIABLE, &names.join(","))],
        )?);
    }
    println!("=== matrix");
    if root::is_root() {
        all.add(matrix(arguments, &kernels, &binary)?);
    } else {
        all.add(matrix_as_root(&binary)?);
    }
    Ok(all.report())
}

/// Everything but this part stays the user's.
fn matrix_as_root(binary: &Path) -> Result<Tally> {
    let file = workspace::target()?.join(format!("matrix-{}.json", std::process::id()));
    let mut again: Vec<String> = std::env::args().skip(1).collect();
    let path = |path: &Path| path.to_string_lossy().into_owned();
    again.extend([
        "--prepared".to_owned(),
        path(binary),
        "--tally".to_owned(),
        path(&file),
    ]);
    let again: Vec<&str> = again.iter().map(String::as_str).collect();
    let status = root::command(&again)?.status().context("start sudo")?;
    if !status.success() {
        bail!("the matrix did not run to its end");
    }
    Tally::load(&file)
}

fn matrix(arguments: &Test, kernels: &[Series], binary: &Path) -> Result<Tally> {
    use_binary(binary);
    let table: PathBuf = workspace::root()?.join(TABLE);
    let configs = Config::all();
    let mut tally = Tally::default();
    for &series in kernels {
        say(format_args!("matrix on kernel {series}"));
        let outcome = run_matrix(series, &configs, arguments.filter.as_deref(), |cell| {
            let verdict = match &cell.verdict {
                Verdict::Pass => "ok".to_owned(),
                Verdict::Fail(reason) => format!("FAILED: {reason}"),
                Verdict::Refused(reason) => format!("can't be had: {reason}"),
            };
            println!(
                "{series} {} {} ... {verdict}",
                cell.config,
                cell.traffic.name()
            );
        });
        let outcome = match outcome {
            Ok(outcome) => outcome,
            Err(error) => {
                say(format_args!("{error:#}"));
                tally
                    .failed
                    .push(format!("guest matrix on {series}: {error:#}"));
                continue;
            }
        };
        for cell in &outcome.cells {
            let name = format!("{series} {} {}", cell.config, cell.traffic.name());
            match &cell.verdict {
                Verdict::Pass => tally.passed += 1,
                Verdict::Fail(reason) => tally.failed.push(format!("{name}: {reason}")),
                Verdict::Refused(reason) => tally.skipped.push((name, reason.clone())),
            }
        }
        // Half a table would replace a whole one.
        if arguments.filter.is_none() {
            report::write(&table, &[outcome])?;
            say(format_args!("{TABLE}: kernel {series} written"));
        }
    }
    Ok(tally)
}
