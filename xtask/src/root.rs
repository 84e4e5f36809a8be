//! Root, which namespaces need and builds do not.

use std::env;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::shell;

/// Whether this process may make network namespaces.
pub fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// Starts this program again with `arguments` through sudo, and does not come back.
///
/// Only the part that needs root runs so; what was built stays the user's.
pub fn start_again(arguments: &[&str]) -> Result<()> {
    Err(command(arguments)?.exec()).context("start sudo")
}

/// This program with `arguments`, through sudo.
pub fn command(arguments: &[&str]) -> Result<Command> {
    if shell::find("sudo").is_none() {
        bail!("network namespaces need root, and there is no sudo: run this as root");
    }
    let program = env::current_exe().context("where is the running program?")?;
    shell::say("network namespaces need root: going on with sudo");
    // sudo replaces PATH and HOME; the programs to run are found through both.
    let mut command = Command::new("sudo");
    command.arg("env");
    for variable in ["PATH", "HOME", "CARGO_HOME", "CARGO_TARGET_DIR", "XKUB"] {
        if let Ok(value) = env::var(variable) {
            command.arg(format!("{variable}={value}"));
        }
    }
    command.arg(program).args(arguments);
    Ok(command)
}
