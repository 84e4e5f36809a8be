//! `bench agent`: what an agent costs that has nothing to do, and whether it grows over many reconciles.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use nix::sys::signal::Signal;
use nix::time::clock_getcpuclockid;
use nix::unistd::{Pid, SysconfVar, sysconf};
use xkub_tests::masquerade::{CLIENT_V4, Masquerade, Node, NodeAddress};
use xkub_tests::namespace::Running;
use xkub_tests::row::{Case, Row, Samples};
use xkub_tests::wait::{PATIENCE, wait_until};

use super::datapath::text;
use crate::shell::say;
use crate::{prepare, setup};

/// What the documentation promises.
const MAX_RESIDENT: f64 = 20.0;
const MAX_CPU: f64 = 0.1;
/// How often a look is asked for: more often than one takes, so that the next always waits.
const HANGUP_PERIOD: Duration = Duration::from_millis(10);
/// How often the agent is asked how far it is.
const PROGRESS_PERIOD: Duration = Duration::from_secs(1);
/// An agent that does not look so long hangs.
const STALL_LIMIT: Duration = Duration::from_secs(20);
/// Looks before memory is compared: what is allocated once is there then.
const WARM_UP: u64 = 200;
/// How long it may do what is left to do after it was asked to look.
const SETTLE: Duration = Duration::from_secs(2);

const IDLE_CPU: Case = case("idle-cpu", "cpu", "% of a core");
const IDLE_WAKEUPS: Case = case("idle-wakeups", "wakeups", "1/s");
const IDLE_RESIDENT: Case = case("idle-resident", "resident", "MiB");
const IDLE_ANONYMOUS: Case = case("idle-anonymous", "anonymous", "MiB");
const LOOK_CPU: Case = case("reconcile-cpu", "cpu", "ms");
const LOOK_RESIDENT: Case = case("reconcile-resident", "resident", "MiB");
const LOOK_ANONYMOUS: Case = case("reconcile-anonymous", "anonymous", "MiB");
const LOOK_DESCRIPTORS: Case = case("reconcile-descriptors", "descriptors", "descriptors");

const fn case(name: &'static str, metric: &'static str, unit: &'static str) -> Case {
    Case { name, metric, unit }
}

/// How to measure the agent.
#[derive(Debug, Args)]
pub struct Agent {
    /// Also write the rows into this file, as one JSON array.
    #[arg(long)]
    json: Option<PathBuf>,
    /// How often its idle cost is measured.
    #[arg(long, default_value_t = 3)]
    rounds: u32,
    /// How long one measurement takes, in seconds.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// How often it reconciles before its memory is looked at again.
    #[arg(long, default_value_t = 10_000)]
    reconciles: u64,
    /// Set by a bench that starts itself again as root: everything is installed and built, the binary is this one.
    #[arg(long, hide = true)]
    prepared: Option<PathBuf>,
}

/// Measures, prints a table and how the goals were met, and writes JSON if asked.
pub fn run(arguments: &Agent) -> Result<()> {
    let binary = prepare::binary(arguments.prepared.as_deref(), setup::Purpose::Lab)?;
    prepare::go_on_as_root(&binary)?;
    let lab = Masquerade::builder()
        .ipv6(false)
        .node_address(NodeAddress::Absent)
        .build()?;
    let mut reflector = lab
        .client
        .spawn([binary.as_os_str(), "reflector".as_ref()])?;
    reflector.wait_output("listening", PATIENCE)?;
    let folder = tempfile::tempdir().context("a folder for the agent's state")?;
    let mut subject = Subject::start(lab.node(0), folder.path(), &binary)?;
    let mut rows = idle(&subject, arguments)?;
    rows.extend(many_looks(&mut subject, arguments)?);
    print!("{}", text(&rows));
    for line in judge(&rows) {
        println!("{line}");
    }
    if let Some(file) = &arguments.json {
        fs::write(file, serde_json::to_string_pretty(&rows)? + "\n")
            .with_context(|| format!("write {}", file.display()))?;
        say(format_args!("rows are in {}", file.display()));
    }
    Ok(())
}

/// An agent with the default configuration, whose only source is a reflector.
struct Subject<'a> {
    node: &'a Node,
    state: PathBuf,
    running: Running,
}

impl<'a> Subject<'a> {
    /// Starts it, and waits until the node address is in force.
    fn start(node: &'a Node, folder: &Path, binary: &Path) -> Result<Self> {
        let config = folder.join("config.toml");
        fs::write(&config, "").context("write the agent's config")?;
        let state = folder.join("state");
        let reflector = CLIENT_V4.to_string();
        let words = [
            binary.as_os_str(),
            "agent".as_ref(),
            "--config".as_ref(),
            config.as_os_str(),
            "--state-directory".as_ref(),
            state.as_os_str(),
            "--address-sources".as_ref(),
            "reflector".as_ref(),
            "--address-reflectors".as_ref(),
            reflector.as_ref(),
        ];
        let subject = Self {
            node,
            running: node.guest.spawn(words)?,
            state,
        };
        wait_until("the agent to be ready", PATIENCE, || {
            Ok(subject.status().is_ok_and(|status| status["ready"] == true))
        })
        .with_context(|| subject.running.stderr())?;
        Ok(subject)
    }

    fn status(&self) -> Result<serde_json::Value> {
        let state = self.state.to_string_lossy();
        let arguments = ["status", "--output=json", "--state-directory", &state];
        let text = self.node.xkub(&arguments)?.success()?;
        serde_json::from_str(&text).context("the agent's status")
    }

    fn reconciles(&self) -> Result<u64> {
        let status = self.status()?;
        status["reconciles"].as_u64().context("no reconciles")
    }

    fn usage(&self) -> Result<Usage> {
        Usage::of(self.running.pid())
    }

    /// Makes it look so many times, one right after the other.
    fn look(&mut self, times: u64) -> Result<()> {
        let mut last = self.reconciles()?;
        let end = last + times;
        let mut moved = Instant::now();
        while last < end {
            let asked = Instant::now();
            while asked.elapsed() < PROGRESS_PERIOD {
                self.running.signal(Signal::SIGHUP)?;
                sleep(HANGUP_PERIOD);
            }
            let now = self.reconciles()?;
            if now > last {
                moved = Instant::now();
            } else if moved.elapsed() > STALL_LIMIT {
                bail!("the agent hangs\n{}", self.running.stderr());
            }
            last = now;
        }
        sleep(SETTLE);
        Ok(())
    }
}

/// What a process has used so far, and holds.
struct Usage {
    /// Of its threads and of the children that it has waited for.
    cpu: Duration,
    /// How often a thread has waited, which is how often one was woken.
    waits: u64,
    resident: f64,
    anonymous: f64,
    descriptors: usize,
}

impl Usage {
    fn of(pid: u32) -> Result<Self> {
        let process = PathBuf::from(format!("/proc/{pid}"));
        let read = |path: PathBuf| {
            fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))
        };
        let clock = clock_getcpuclockid(Pid::from_raw(i32::try_from(pid)?))?;
        let stat = read(process.join("stat"))?;
        let status = read(process.join("status"))?;
        let mut waits = 0;
        for thread in fs::read_dir(process.join("task"))? {
            let status = read(thread?.path().join("status"))?;
            waits += number(&status, "voluntary_ctxt_switches:")?;
        }
        Ok(Self {
            cpu: Duration::from(clock.now()?) + children(&stat)?,
            waits,
            resident: mebibytes(number(&status, "VmRSS:")?),
            anonymous: mebibytes(number(&status, "RssAnon:")?),
            descriptors: fs::read_dir(process.join("fd"))?.count(),
        })
    }
}

/// The number behind a name (`proc_pid_status(5)`).
fn number(status: &str, name: &str) -> Result<u64> {
    status
        .lines()
        .find_map(|line| line.strip_prefix(name)?.split_whitespace().next())
        .with_context(|| format!("no {name} in the status"))?
        .parse()
        .with_context(|| format!("{name} is no number"))
}

/// The processor time of children: fields 16 and 17 of `proc_pid_stat(5)`, in ticks.
fn children(stat: &str) -> Result<Duration> {
    // The name of the program, field 2, may hold spaces and parentheses.
    let (_, rest) = stat.rsplit_once(')').context("a stat without a name")?;
    let mut ticks = 0;
    for field in rest.split_whitespace().skip(16 - 3).take(2) {
        ticks += field.parse::<u32>().context("ticks are no number")?;
    }
    let per_second = sysconf(SysconfVar::CLK_TCK)?.context("no ticks per second")?;
    Ok(Duration::from_secs(ticks.into()) / u32::try_from(per_second)?)
}

#[expect(
    clippy::cast_precision_loss,
    reason = "a process of 2⁵³ KiB is not awaited"
)]
fn mebibytes(kibibytes: u64) -> f64 {
    kibibytes as f64 / 1024.0
}

/// Nothing happens but what the agent does by itself.
fn idle(subject: &Subject<'_>, arguments: &Agent) -> Result<Vec<Row>> {
    let mut samples: [Samples; 4] = Default::default();
    sleep(SETTLE);
    for round in 0..arguments.rounds {
        say(format_args!(
            "idle, round {} of {}",
            round + 1,
            arguments.rounds
        ));
        let (before, start) = (subject.usage()?, Instant::now());
        sleep(Duration::from_secs(arguments.seconds));
        let (after, seconds) = (subject.usage()?, start.elapsed().as_secs_f64());
        let cpu = after.cpu.saturating_sub(before.cpu).as_secs_f64() / seconds * 100.0;
        // Threads that have ended took their count with them.
        let waits = f64::from(u32::try_from(after.waits.saturating_sub(before.waits))?);
        let values = [cpu, waits / seconds, after.resident, after.anonymous];
        for (samples, value) in samples.iter_mut().zip(values) {
            samples.0.push(value);
        }
    }
    let cases = [IDLE_CPU, IDLE_WAKEUPS, IDLE_RESIDENT, IDLE_ANONYMOUS];
    Ok(samples
        .iter()
        .zip(cases)
        .map(|(samples, case)| row(samples, &case, "agent"))
        .collect())
}

/// It looks again and again.
fn many_looks(subject: &mut Subject<'_>, arguments: &Agent) -> Result<Vec<Row>> {
    say(format_args!("{} reconciles", arguments.reconciles));
    subject.look(WARM_UP)?;
    let (before, first) = (subject.usage()?, subject.reconciles()?);
    subject.look(arguments.reconciles)?;
    let (after, last) = (subject.usage()?, subject.reconciles()?);
    let looks = f64::from(u32::try_from(last - first)?);
    let cpu = after.cpu.saturating_sub(before.cpu).as_secs_f64() * 1000.0 / looks;
    let mut rows = vec![row(&Samples(vec![cpu]), &LOOK_CPU, "agent")];
    let count = |usage: &Usage| u32::try_from(usage.descriptors).map(f64::from);
    for (case, before, after) in [
        (LOOK_RESIDENT, before.resident, after.resident),
        (LOOK_ANONYMOUS, before.anonymous, after.anonymous),
        (LOOK_DESCRIPTORS, count(&before)?, count(&after)?),
    ] {
        rows.push(row(&Samples(vec![before]), &case, "before"));
        rows.push(Row {
            ratio_to: Some("before".to_owned()),
            ratio: Some(after / before),
            ..row(
                &Samples(vec![after]),
                &case,
                &format!("after-{}", arguments.reconciles),
            )
        });
    }
    Ok(rows)
}

fn row(samples: &Samples, case: &Case, variant: &str) -> Row {
    Row {
        bench: "agent".to_owned(),
        ..samples.row(case, variant)
    }
}

/// Lines for a person.
fn judge(rows: &[Row]) -> Vec<String> {
    [(IDLE_RESIDENT, MAX_RESIDENT), (IDLE_CPU, MAX_CPU)]
        .iter()
        .filter_map(|(case, at_most)| {
            let median = rows
                .iter()
                .find(|row| row.case == case.name && row.metric == case.metric)?
                .median;
            let verdict = if median <= *at_most {
                "met".to_owned()
            } else {
                format!("missed by {:.3}", median - at_most)
            };
            Some(format!(
                "goal: {} of an idle agent ≤ {at_most} {}: {median:.3}, {verdict}",
                case.metric, case.unit
            ))
        })
        .collect()
}

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn the_kernels_tables_are_read() {
        let status = "Name:\txkub\nVmRSS:\t   20480 kB\nvoluntary_ctxt_switches:\t7\n\
                      nonvoluntary_ctxt_switches:\t9\n";
        assert_eq!(number(status, "VmRSS:").unwrap(), 20_480);
        assert_eq!(number(status, "voluntary_ctxt_switches:").unwrap(), 7);
        assert!(number(status, "RssAnon:").is_err());
        let stat = "42 (a) b (c) S 1 42 42 0 -1 4194560 9 9 0 0 100 50 30 20 20 0 3 0 99";
        let per_second = sysconf(SysconfVar::CLK_TCK).unwrap().unwrap();
        let expected = Duration::from_secs(50) / u32::try_from(per_second).unwrap();
        assert_eq!(children(stat).unwrap(), expected);
        assert!(children("42").is_err());
    }
}
