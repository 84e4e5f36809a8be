//! Running programs, and finding them.

use std::env;
use std::io::{BufRead as _, BufReader, Read};
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
    succeed(command.stdout(std::io::stderr()))
}

/// Runs a command of whose output only what it says on standard error matters.
pub fn run_quietly(command: &mut Command) -> Result<()> {
    succeed(command.stdout(Stdio::null()))
}

fn succeed(command: &mut Command) -> Result<()> {
    let line = line(command);
    let status = command
        .stdin(Stdio::null())
        .status()
        .with_context(|| format!("start `{line}`"))?;
    if !status.success() {
        bail!("`{line}`: {status}");
    }
    Ok(())
}

/// Runs a cargo command as [`run`] does, without the progress of the cargo that builds the eBPF object inside it.
///
/// aya-build passes that on as warnings of the build script, and cargo repeats them in every later run.
pub fn run_cargo(command: &mut Command) -> Result<()> {
    let line = line(command);
    let mut child = command
        .stdin(Stdio::null())
        .stdout(std::io::stderr())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("start `{line}`"))?;
    if let Some(stderr) = child.stderr.take() {
        pass_on(stderr)?;
    }
    let status = child.wait()?;
    if !status.success() {
        bail!("`{line}`: {status}");
    }
    Ok(())
}

/// Copies cargo's messages to standard error, without the inner cargo's progress.
pub fn pass_on(messages: impl Read) -> Result<()> {
    for line in BufReader::new(messages).split(b'\n') {
        let line = line?;
        let line = String::from_utf8_lossy(&line);
        if !is_inner_progress(&line) {
            eprintln!("{line}");
        }
    }
    Ok(())
}

/// "warning: xkub-userspace@0.1.0:    Compiling core v0.0.0 (…)"
fn is_inner_progress(line: &str) -> bool {
    let message = line.strip_prefix("warning: xkub-userspace@");
    let message = message.and_then(|rest| rest.split_once(':'));
    message.is_some_and(|(_, message)| {
        let message = message.trim_start();
        message.is_empty()
            || ["Compiling ", "Finished ", "Blocking "]
                .iter()
                .any(|word| message.starts_with(word))
    })
}

#[cfg(test)]
mod tests {
    use super::is_inner_progress;

    #[test]
    fn inner_progress_is_told_from_inner_warnings() {
        for (line, hidden) in [
            (
                "warning: xkub-userspace@0.1.0:    Compiling core v0.0.0 (/usr)",
                true,
            ),
            (
                "warning: xkub-userspace@0.1.0:     Finished `release` profile",
                true,
            ),
            ("warning: xkub-userspace@0.1.0: ", true),
            (
                "warning: xkub-userspace@0.1.0: warning: unused variable",
                false,
            ),
            ("   Compiling xkub-userspace v0.1.0", false),
        ] {
            assert_eq!(is_inner_progress(line), hidden, "{line}");
        }
    }
}
