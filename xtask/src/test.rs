//! `test`: sets up, runs everything, and ends with one line of figures over all of it.

use std::io::{BufRead as _, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context as _, Result};
use clap::Args;
use serde::{Deserialize, Serialize};
use xkub_tests::guest::matrix::left_out;
use xkub_tests::skip::LOG_VARIABLE;
use xkub_tests::xkub::BINARY_VARIABLE;

use crate::shell::{self, say};
use crate::{build_ebpf, root, setup, workspace};

/// Packages that build for the host: everything but the eBPF crate.
const HOST_PACKAGES: [&str; 3] = ["--workspace", "--exclude", "xkub-ebpf"];

/// What to test.
#[derive(Debug, Args)]
pub struct Test {
    /// The whole matrix in QEMU guests on every kernel, with docs/compatibility.md written anew, and every fault in guests.
    #[arg(long)]
    pub vm: bool,
    /// With --vm: these kernels alone (5.10, 6.1, 6.12, 7.2).
    #[arg(long, requires = "vm", value_delimiter = ',')]
    pub kernel: Vec<String>,
    /// With --vm: only the cells whose name contains all these words, as `xdp ipv6 udp-3000`; nothing is written then.
    #[arg(long, requires = "vm")]
    pub filter: Option<String>,
    /// Set when this program starts itself again as root: everything is installed and built, the binary is this one.
    #[arg(long, hide = true, requires = "vm")]
    pub prepared: Option<PathBuf>,
    /// As above: where the figures go.
    #[arg(long, hide = true, requires = "vm")]
    pub tally: Option<PathBuf>,
}

/// What came out of one run or of all.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    pub passed: u64,
    pub failed: Vec<String>,
    /// Names and reasons.
    pub skipped: Vec<(String, String)>,
}

impl Tally {
    /// Writes it down for [`Tally::load`].
    pub fn save(&self, path: &Path) -> Result<()> {
        std::fs::write(path, serde_json::to_string(self)?)
            .with_context(|| format!("write {}", path.display()))
    }

    /// Reads what another process wrote, and removes it.
    pub fn load(path: &Path) -> Result<Self> {
        let text =
            std::fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
        // It may be root's, in a folder that is ours.
        let _ = std::fs::remove_file(path);
        Ok(serde_json::from_str(&text)?)
    }

    /// Says what was skipped and what failed, and the figures as the last line.
    pub fn report(&self) -> ExitCode {
        println!();
        for (name, reason) in &self.skipped {
            println!("skipped: {name}: {reason}");
        }
        for name in &self.failed {
            println!("failed: {name}");
        }
        println!(
            "{} passed, {} failed, {} skipped",
            self.passed,
            self.failed.len(),
            self.skipped.len()
        );
        if self.failed.is_empty() {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        }
    }

    pub fn add(&mut self, other: Self) {
        let Self {
            passed,
            failed,
            skipped,
        } = other;
        self.passed += passed;
        self.failed.extend(failed);
        self.skipped.extend(skipped);
    }
}

/// Runs everything.
pub fn run() -> Result<ExitCode> {
    setup::run(setup::Purpose::Everything)?;
    let mut all = Tally::default();

    check(
        &mut all,
        "format",
        shell::cargo().args(["fmt", "--all", "--check"]),
    )?;
    let clippy = |command: &mut Command| {
        command.args(["--", "--deny", "warnings"]);
    };
    let mut host = shell::cargo();
    host.arg("clippy")
        .args(HOST_PACKAGES)
        .args(["--all-targets", "--all-features"]);
    clippy(&mut host);
    check(&mut all, "clippy", &mut host)?;
    let mut ebpf = build_ebpf::cargo("clippy")?;
    clippy(&mut ebpf);
    check(&mut all, "clippy of the eBPF crate", &mut ebpf)?;
    // Advisories are left out: they need a database from the network, and a test must not fail by the day.
    let deny = [
        "deny",
        "--all-features",
        "check",
        "bans",
        "licenses",
        "sources",
    ];
    check(
        &mut all,
        "licences, sources and duplicates (cargo deny)",
        shell::cargo().args(deny),
    )?;

    match workspace::build_xkub(workspace::Profile::Debug) {
        Ok(binary) => all.add(tests(&binary, &HOST_PACKAGES, &[])?),
        Err(error) => {
            say(format_args!("{error:#}"));
            all.failed
                .push("building xkub; so no test was run".to_owned());
        }
    }

    println!();
    for line in left_out() {
        println!("left out, `cargo xtask test --vm` runs it: {line}");
    }
    Ok(all.report())
}

/// A command that counts as one test.
fn check(all: &mut Tally, name: &str, command: &mut Command) -> Result<()> {
    println!("=== {name}");
    match shell::run_cargo(command.current_dir(workspace::root()?)) {
        Ok(()) => all.passed += 1,
        Err(error) => {
            println!("{name}: FAILED: {error:#}");
            all.failed.push(name.to_owned());
        }
    }
    Ok(())
}

/// Every libtest and doc test of `packages`, with `variables` set.
pub fn tests(binary: &Path, packages: &[&str], variables: &[(&str, &str)]) -> Result<Tally> {
    println!("=== tests");
    let log = SkipLog::new()?;
    let mut command = shell::cargo();
    command
        .current_dir(workspace::root()?)
        .arg("test")
        .args(packages)
        .arg("--no-fail-fast");
    command.envs(variables.iter().copied());
    command
        .env(BINARY_VARIABLE, binary)
        .env(LOG_VARIABLE, &log.0);
    if !root::is_root() {
        // Builds stay the user's; only what was built runs as root.
        let target = format!(
            "CARGO_TARGET_{}_UNKNOWN_LINUX_GNU_RUNNER",
            std::env::consts::ARCH.to_uppercase()
        );
        let path = std::env::var("PATH").unwrap_or_default();
        let mut settings = format!(
            "{BINARY_VARIABLE}={} {LOG_VARIABLE}={}",
            binary.display(),
            log.0.display()
        );
        for (name, value) in variables {
            settings = format!("{settings} {name}={value}");
        }
        command.env(target, format!("sudo env PATH={path} {settings}"));
    }
    // Errors of the compiler and names of test binaries go to standard error, results to standard output.
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("start cargo test")?;
    let stdout = child.stdout.take().context("no output of cargo test")?;
    let stderr = child.stderr.take().context("no messages of cargo test")?;
    let messages = std::thread::spawn(move || shell::pass_on(stderr));
    let mut tally = tally(stdout)?;
    let _ = messages.join();
    let status = child.wait()?;
    if !status.success() && tally.failed.is_empty() {
        // A test binary that did not compile, crashed or was killed has no result to be counted.
        tally.failed.push(format!(
            "cargo test: {status}, though no test reported a failure"
        ));
    }
    let skipped = log.read()?;
    // libtest knows nothing of these and counted them as passed.
    tally.passed = tally.passed.saturating_sub(u64::try_from(skipped.len())?);
    tally.skipped.extend(skipped);
    Ok(tally)
}

/// Reads libtest's output as it comes, and passes it on.
fn tally(output: impl Read) -> Result<Tally> {
    let mut tally = Tally::default();
    for line in BufReader::new(output).split(b'\n') {
        let line = line?;
        let line = String::from_utf8_lossy(&line);
        println!("{line}");
        tally.add(tally_line(&line));
    }
    Ok(tally)
}

/// One line of libtest: `test NAME ... ok`, `… FAILED`, `… ignored, REASON`. With `--nocapture` something else may
/// stand in between, so sums are not taken from here but from `test result: …`, names are.
fn tally_line(line: &str) -> Tally {
    let mut tally = Tally::default();
    if let Some((name, result)) = line
        .strip_prefix("test ")
        .and_then(|rest| rest.rsplit_once(" ... "))
    {
        if result == "FAILED" {
            tally.failed.push(name.to_owned());
        } else if let Some(reason) = result.strip_prefix("ignored") {
            let reason = reason
                .strip_prefix(", ")
                .unwrap_or("marked as ignored, without a reason");
            tally.skipped.push((name.to_owned(), reason.to_owned()));
        }
    } else if let Some(summary) = line.strip_prefix("test result: ") {
        let passed = summary.split(';').find_map(|part| {
            let words: Vec<&str> = part.split_whitespace().collect();
            let at = words.iter().position(|&word| word == "passed")?;
            words.get(at.checked_sub(1)?)?.parse::<u64>().ok()
        });
        tally.passed = passed.unwrap_or_default();
    }
    tally
}

/// The file in which tests note that they could not run.
struct SkipLog(PathBuf);

impl SkipLog {
    fn new() -> Result<Self> {
        let path = workspace::target()?.join(format!("skipped-{}.txt", std::process::id()));
        std::fs::write(&path, "").with_context(|| format!("write {}", path.display()))?;
        Ok(Self(path))
    }

    fn read(&self) -> Result<Vec<(String, String)>> {
        let text = std::fs::read_to_string(&self.0)?;
        let mut skipped: Vec<(String, String)> = text
            .lines()
            .filter_map(|line| line.split_once('\t'))
            .map(|(name, reason)| (name.to_owned(), reason.to_owned()))
            .collect();
        // A test that gives two reasons is still one test.
        skipped.sort();
        skipped.dedup_by(|one, other| one.0 == other.0);
        Ok(skipped)
    }
}

impl Drop for SkipLog {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::{Tally, tally};

    #[test]
    fn libtest_output_is_counted() {
        let output = "\nrunning 4 tests\n\
            test one ... ok\n\
            test two ... FAILED\n\
            test three ... ignored, needs a cluster\n\
            test xkub-common/src/lib.rs - checksum (line 7) ... ok\n\
            failures:\n    two\n\
            test result: FAILED. 2 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s\n\
            test result: ok. 40 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.00s\n";
        let counted = tally(output.as_bytes()).unwrap();
        let skipped = vec![("three".to_owned(), "needs a cluster".to_owned())];
        assert_eq!(
            counted,
            Tally {
                passed: 42,
                failed: vec!["two".to_owned()],
                skipped
            }
        );
    }
}
