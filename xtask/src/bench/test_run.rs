//! Nanoseconds a packet by `BPF_PROG_TEST_RUN`, measured by an example of the test crate that links xkub's library.
//!
//! xtask itself must build before there is an eBPF toolchain, so it can't load programs.

use std::process::Stdio;

use anyhow::{Context as _, Result, bail};

use xkub_tests::row::Row;

use crate::shell::{self, say};
use crate::workspace;

/// The example: `tests/examples/test_run.rs`.
const EXAMPLE: &str = "test_run";

/// Builds the example, as the user.
pub fn build() -> Result<Option<std::path::PathBuf>> {
    let source = workspace::root()?
        .join("tests/examples")
        .join(EXAMPLE)
        .with_extension("rs");
    if !source.exists() {
        say(format_args!(
            "no tests/examples/{EXAMPLE}.rs: nanoseconds a packet are not measured"
        ));
        return Ok(None);
    }
    let mut command = shell::cargo();
    command.current_dir(workspace::root()?);
    command.args([
        "build",
        "--release",
        "--package",
        "xkub-tests",
        "--example",
        EXAMPLE,
    ]);
    say("building the test-run bench");
    shell::run_cargo(&mut command)?;
    Ok(Some(
        workspace::target()?.join("release/examples").join(EXAMPLE),
    ))
}

/// Runs it and returns its rows.
pub fn run(program: &std::path::Path) -> Result<Vec<Row>> {
    say("nanoseconds a packet, by BPF_PROG_TEST_RUN");
    let mut command = std::process::Command::new(program);
    let output = command
        .arg("--json")
        .stderr(Stdio::inherit())
        .output()
        .context("start the test-run bench")?;
    if !output.status.success() {
        bail!("the test-run bench: {}", output.status);
    }
    serde_json::from_slice(&output.stdout).context("the rows of the test-run bench")
}
