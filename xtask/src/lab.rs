//! `lab`: the masquerade lab for a person, which stands until it is taken down.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, bail};
use clap::Subcommand;
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};
use xkub_tests::Masquerade;
use xkub_tests::masquerade::{NODE_V4, Overlay, UPLINK};

use crate::shell::say;
use crate::{root, setup, workspace};

/// Where standing labs are written down.
const STATE_FOLDER: &str = "/run/xkub-lab";
/// The lab's namespaces, in the order of [`Masquerade::namespaces`].
const NAMES: [&str; 6] = [
    "fabric",
    "client",
    "launcher1",
    "guest1",
    "launcher2",
    "guest2",
];

/// What to do with the lab.
#[derive(Debug, Subcommand)]
pub enum Action {
    /// Build it: a VXLAN device in both guests, dead until `xkub datapath attach` runs in both.
    Up,
    /// Take it down.
    Down,
    /// Open a shell in one of its namespaces, or run a command there.
    Enter {
        /// fabric, client, launcher1, guest1, launcher2 or guest2.
        #[arg(default_value = "guest1", value_parser = NAMES)]
        name: String,
        /// The command; a shell without one.
        #[arg(trailing_var_arg = true)]
        command: Vec<String>,
    },
}

/// A standing lab, as written down.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct State {
    namespaces: Vec<Entry>,
}

/// One namespace of it.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    name: String,
    /// The process that holds it.
    pid: i32,
    /// When that process started, in clock ticks since boot: the same number may be somebody else's later.
    started: u64,
}

/// Does what is asked.
pub fn run(action: Action) -> Result<ExitCode> {
    if !root::is_root() {
        let arguments: Vec<String> = std::env::args().skip(1).collect();
        setup::run(setup::Purpose::Lab)?;
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        root::start_again(&arguments)?;
    }
    match action {
        Action::Up => up(),
        Action::Down => down(),
        Action::Enter { name, command } => enter(&name, &command),
    }
}

fn up() -> Result<ExitCode> {
    setup::run(setup::Purpose::Lab)?;
    if read()?.is_some() {
        bail!("the lab stands already: `cargo xtask lab enter`, or `cargo xtask lab down` first");
    }
    let mut lab = Masquerade::builder().standing().build()?;
    lab.add_overlay(&Overlay::V4)?;
    keep(&mut lab)?;
    println!("{}", how_to_use(false));
    Ok(ExitCode::SUCCESS)
}

fn down() -> Result<ExitCode> {
    let Some(state) = read()? else {
        say("no lab stands");
        return Ok(ExitCode::SUCCESS);
    };
    for Entry { name, pid, started } in &state.namespaces {
        if start_time(*pid) != Some(*started) {
            continue;
        }
        match kill(Pid::from_raw(*pid), Signal::SIGKILL) {
            Ok(()) | Err(Errno::ESRCH) => {}
            Err(error) => return Err(error).with_context(|| format!("end {name}, process {pid}")),
        }
    }
    fs::remove_file(state_file())?;
    say("the lab is gone");
    Ok(ExitCode::SUCCESS)
}

fn enter(name: &str, command: &[String]) -> Result<ExitCode> {
    let state = read()?.context("no lab stands: `cargo xtask lab up`")?;
    let entry = state
        .namespaces
        .iter()
        .find(|entry| entry.name == name)
        .context("no such namespace")?;
    let mut nsenter = Command::new("nsenter");
    nsenter.args(["--target", &entry.pid.to_string(), "--net", "--mount", "--"]);
    // So that `xkub` is the one that was built here.
    let mut folders = vec![
        workspace::target()?.join("release"),
        workspace::target()?.join("debug"),
    ];
    folders.extend(std::env::split_paths(
        &std::env::var_os("PATH").unwrap_or_default(),
    ));
    nsenter.env("PATH", std::env::join_paths(folders)?);
    if command.is_empty() {
        nsenter.args([
            "env",
            &format!("PS1=[{name}] \\w # "),
            "bash",
            "--norc",
            "-i",
        ]);
    } else {
        nsenter.args(command);
    }
    Err(nsenter.exec()).context("start nsenter")
}

/// Leaves a lab standing and writes it down, so that later commands find it.
pub fn keep(lab: &mut Masquerade) -> Result<()> {
    let entry = |namespace: &xkub_tests::Namespace| -> Result<Entry> {
        let pid = namespace.pid();
        let started =
            start_time(pid).with_context(|| format!("holder of {} is gone", namespace.name()))?;
        Ok(Entry {
            name: namespace.name().to_owned(),
            pid,
            started,
        })
    };
    let namespaces = lab
        .namespaces()
        .into_iter()
        .map(entry)
        .collect::<Result<_>>()?;
    fs::create_dir_all(STATE_FOLDER)?;
    fs::write(
        state_file(),
        serde_json::to_string_pretty(&State { namespaces })?,
    )
    .with_context(|| format!("write {}", state_file().display()))?;
    lab.leave_standing();
    Ok(())
}

/// Whether a lab stands.
pub fn stands() -> Result<bool> {
    Ok(read()?.is_some())
}

/// What one can do in the lab, for a person.
pub fn how_to_use(attached: bool) -> String {
    let overlay = Overlay::V4.name;
    let state = if attached {
        "works, because xkub is attached in both guests"
    } else {
        "dead until both guests have attached xkub:"
    };
    let mut text = format!(
        "The lab stands: guests behind virt-launchers at 10.244.1.226 and 10.244.3.60, overlay {overlay} (172.31.0.1, 172.31.0.2).\n\
         \x20 cargo xtask lab enter guest1     # or guest2, launcher1, launcher2, fabric, client\n\
         \x20 ping 172.31.0.2                  # {state}\n"
    );
    if !attached {
        for (guest, address) in [("guest1", NODE_V4[0]), ("guest2", NODE_V4[1])] {
            let command =
                format!("xkub datapath attach --uplink {UPLINK} --node-address {address}");
            text += &["  ", &command, "    # in ", guest, "\n"].concat();
        }
    }
    text += "\x20 cargo xtask lab down";
    text
}

fn state_file() -> PathBuf {
    PathBuf::from(STATE_FOLDER).join("lab.json")
}

/// The standing lab; what a crash or a reboot left written down does not count.
fn read() -> Result<Option<State>> {
    let text = match fs::read_to_string(state_file()) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => {
            return Err(error).with_context(|| format!("read {}", state_file().display()));
        }
    };
    let state: State =
        serde_json::from_str(&text).with_context(|| format!("parse {}", state_file().display()))?;
    let alive = state
        .namespaces
        .iter()
        .any(|entry| start_time(entry.pid) == Some(entry.started));
    Ok(alive.then_some(state))
}

/// Field 22 of /proc/PID/stat; the second one, a name in brackets, may contain anything.
fn start_time(pid: i32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, after_name) = text.rsplit_once(')')?;
    after_name.split_whitespace().nth(19)?.parse().ok()
}
