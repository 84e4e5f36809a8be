//! Where the `xkub` binary under test is.

use std::{
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, bail, ensure};

/// Names the binary to test; without it, the one beside the running test or xtask is taken.
pub const BINARY_VARIABLE: &str = "XKUB";

/// The `xkub` binary that labs run.
///
/// # Errors
/// When there is none; the error says how to build it. A test must then fail, not skip.
pub fn binary() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os(BINARY_VARIABLE) {
        let path = PathBuf::from(path);
        return path
            .canonicalize()
            .with_context(|| format!("{BINARY_VARIABLE} names {}", path.display()));
    }
    let executable = std::env::current_exe().context("where is the running program?")?;
    // A test lies in target/<profile>/deps, an example in target/<profile>/examples, xtask in target/<profile>.
    for folder in executable.ancestors().skip(1).take(2) {
        let candidate = folder.join("xkub");
        if candidate.is_file() {
            return Ok(candidate);
        }
    }
    bail!(
        "no xkub binary near {}: run `cargo build --package xkub-userspace`, or set {BINARY_VARIABLE}",
        executable.display()
    )
}

/// Writes a program to `path`, so that it can be run at once.
///
/// Another process does the writing: a file that is open for writing can't be run ("text file busy"), and what a
/// thread of ours has open, a child that another thread has just forked has open, too, until it runs its own program.
///
/// # Errors
/// When it can't be written.
pub fn write_program(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut writer = Command::new("sh")
        .args(["-c", r#"cat > "$0" && chmod 0755 "$0""#])
        .arg(path)
        .stdin(Stdio::piped())
        .spawn()
        .context("start sh")?;
    writer
        .stdin
        .take()
        .context("no standard input")?
        .write_all(bytes)
        .with_context(|| format!("write {}", path.display()))?;
    ensure!(writer.wait()?.success(), "can't write {}", path.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{process::Command, thread};

    use super::*;

    #[test]
    fn a_program_runs_as_soon_as_it_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let bytes = std::fs::read("/bin/true").unwrap();
        thread::scope(|scope| {
            for thread in 0..8 {
                let (path, bytes) = (folder.path().join(thread.to_string()), &bytes);
                scope.spawn(move || {
                    for _ in 0..25 {
                        write_program(&path, bytes).unwrap();
                        assert!(Command::new(&path).status().unwrap().success());
                    }
                });
            }
        });
    }
}
