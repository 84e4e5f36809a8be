//! `vm`: two guests for a person, with a shell in each, for as long as the command runs.

use std::fs;
use std::io::{IsTerminal as _, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context as _, Result, bail};
use clap::{Args, Subcommand};
use xkub_tests::guest::{Kernel, Lab, Series};
use xkub_tests::masquerade::Overlay;

use crate::shell::say;
use crate::{prepare, root, setup};

/// Where the shells of running guests are found.
const STATE_FOLDER: &str = "/run/xkub-vm";
/// What leaves the shell of a guest, as in telnet: Ctrl-].
const ESCAPE: u8 = 0x1d;

/// What is wanted.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Vm {
    #[command(subcommand)]
    action: Option<Action>,
    /// What they boot: 5.10, 6.1, 6.12 or 7.2.
    #[arg(long, default_value = "6.12")]
    kernel: String,
    /// MTU of the pod network.
    #[arg(long, default_value_t = 1500)]
    mtu: u32,
    /// Virtual CPUs of each guest, and pairs of queues of its NIC.
    #[arg(long, default_value_t = 1)]
    cpus: u32,
    /// Set by a command that starts itself again as root: everything is installed and built, the binary is this one.
    #[arg(long, hide = true)]
    prepared: Option<PathBuf>,
}

/// What to do with guests that run.
#[derive(Debug, Subcommand)]
enum Action {
    /// Open a shell in a guest that another `cargo xtask vm` runs.
    Enter {
        /// guest1 or guest2.
        #[arg(default_value = "guest1", value_parser = ["guest1", "guest2"])]
        name: String,
    },
}

/// Does what is asked.
pub fn run(arguments: &Vm) -> Result<ExitCode> {
    if let Some(Action::Enter { name }) = &arguments.action {
        if !root::is_root() {
            root::start_again(&["vm", "enter", name])?;
        }
        return enter(name);
    }
    let series = Series::parse(&arguments.kernel)?;
    let binary = prepare::binary(arguments.prepared.as_deref(), setup::Purpose::Guests)?;
    prepare::go_on_as_root(&binary)?;
    if Path::new(STATE_FOLDER).exists() && connect("guest1").is_ok() {
        bail!("guests run already: `cargo xtask vm enter`");
    }
    say(format_args!("booting two guests with kernel {series}"));
    let lab = Lab::builder(Kernel::obtain(series)?)
        .mtu(arguments.mtu)
        .cpus(arguments.cpus)
        .queues(arguments.cpus)
        .build()?;
    let overlay = Overlay {
        checksum: true,
        ..Overlay::V4
    };
    lab.add_overlay(&overlay)?;
    let state = State::write(&lab)?;
    println!(
        "Two guests, both 10.0.2.2, behind virt-launchers at 10.244.1.226 and 10.244.3.60.\n\
         The tunnel {} between 172.31.0.1 and 172.31.0.2 is dead until both have attached xkub:",
        overlay.name
    );
    for node in lab.nodes() {
        println!(
            "  {}    # in {}",
            node.attach_command(""),
            node.guest.name()
        );
    }
    println!(
        "  ping 172.31.0.2    # in guest1\n\
         The other guest's shell: `cargo xtask vm enter guest2`, in another terminal. Ctrl-] leaves a shell; leaving this \
         one switches both guests off."
    );
    let code = enter("guest1")?;
    drop(state);
    drop(lab);
    Ok(code)
}

/// Links to the guests' sockets, under names that others find.
struct State;

impl State {
    fn write(lab: &Lab) -> Result<Self> {
        // What a crash left is nobody's.
        let _ = fs::remove_dir_all(STATE_FOLDER);
        fs::create_dir_all(STATE_FOLDER)?;
        for node in lab.nodes() {
            std::os::unix::fs::symlink(
                node.guest.shell_socket(),
                Path::new(STATE_FOLDER).join(node.guest.name()),
            )?;
        }
        Ok(Self)
    }
}

impl Drop for State {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(STATE_FOLDER);
    }
}

fn connect(name: &str) -> Result<UnixStream> {
    let path = Path::new(STATE_FOLDER).join(name);
    UnixStream::connect(&path)
        .context("no guests run, or somebody is in this shell: `cargo xtask vm`")
}

/// Joins this terminal with a guest's serial port.
fn enter(name: &str) -> Result<ExitCode> {
    let mut guest = connect(name)?;
    let _raw = Raw::new()?;
    let mut output = guest.try_clone()?;
    // Something to answer to: the prompt was printed before anybody listened.
    guest.write_all(b"\n")?;
    std::thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok(length @ 1..) = output.read(&mut buffer) {
            let mut stdout = std::io::stdout();
            let shown = stdout.write_all(buffer.get(..length).unwrap_or_default());
            if shown.and_then(|()| stdout.flush()).is_err() {
                break;
            }
        }
    });
    let mut buffer = [0; 256];
    let mut stdin = std::io::stdin();
    while let Ok(length @ 1..) = stdin.read(&mut buffer) {
        let typed = buffer.get(..length).unwrap_or_default();
        let until = typed.iter().position(|&byte| byte == ESCAPE);
        guest.write_all(typed.get(..until.unwrap_or(length)).unwrap_or_default())?;
        if until.is_some() {
            break;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The terminal in raw mode, so that Ctrl-C goes to the guest; as it was when dropped.
struct Raw(Option<String>);

impl Raw {
    fn new() -> Result<Self> {
        if !std::io::stdin().is_terminal() {
            return Ok(Self(None));
        }
        let output = Command::new("stty")
            .arg("-g")
            .stdin(Stdio::inherit())
            .output()
            .context("start stty")?;
        let before = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        stty(&["raw", "-echo"])?;
        Ok(Self(Some(before)))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        if let Some(before) = &self.0 {
            let _ = stty(&[before]);
            println!();
        }
    }
}

fn stty(arguments: &[&str]) -> Result<()> {
    Command::new("stty")
        .args(arguments)
        .stdin(Stdio::inherit())
        .status()
        .context("start stty")?;
    Ok(())
}
