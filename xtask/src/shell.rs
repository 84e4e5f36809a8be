//! Running programs, and finding them.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

/// Where Debian keeps `ip`, `nft` and the like, which a user's PATH leaves out.
const SYSTEM_FOLDERS: [&str; 3] = ["/usr/local/sbin", "/usr/sbin", "/sbin"];

/// Progress for a person; results go to standard output.
pub fn say(line: impl std::fmt::Display) {
    eprintln!("xtask: {line}");
}

/// Appends the system folders and cargo's own to PATH, so that what is installed is also found.
pub fn find_system_programs() {
    let path = env::var_os("PATH").unwrap_or_default();
    let mut folders: Vec<PathBuf> = env::split_paths(&path).collect();
    for folder in SYSTEM_FOLDERS
        .into_iter()
        .map(PathBuf::from)
        .chain(cargo_bin())
    {
        if !folders.contains(&folder) {
            folders.push(folder);
        }
    }
    if let Ok(path) = env::join_paths(folders) {
        // SAFETY: called first thing in main, before there is a second thread.
        unsafe { env::set_var("PATH", path) };
    }
}

/// Where `cargo install` puts programs.
fn cargo_bin() -> Option<PathBuf> {
    let home = env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(Path::new(&env::var_os("HOME")?).join(".cargo")))?;
    Some(home.join("bin"))
}

/// The full path of `program`, if it is in PATH.
pub fn find(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path)
        .map(|folder| folder.join(program))
        .find(|candidate| candidate.is_file())
}

/// A `cargo` of the toolchain that runs xtask.
pub fn cargo() -> Command {
    Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// The command as one would type it.
pub fn line(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words
        .map(|word| word.to_string_lossy())
        .collect::<Vec<_>>()
        .join(" ")
}

/// Runs a command whose output is only for a person: all of it goes to standard error.
pub fn run(command: &mut Command) -> Result<()> {
    let line = line(command);
    let status = command
        .stdout(std::io::stderr())
        .stdin(Stdio::null())
        .status()
        .with_context(|| format!("start `{line}`"))?;
    if !status.success() {
        bail!("`{line}`: {status}");
    }
    Ok(())
}
