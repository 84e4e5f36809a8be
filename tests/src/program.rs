//! Programs that tests write and run.

use std::{
    io::Write as _,
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, ensure};

/// Writes a program to `path`, so that it can be run at once.
///
/// Another process does the writing: a file that is open for writing can't be run ("text file busy"), and what a
/// thread of ours has open, a child that another thread has just forked has open, too, until it runs its own program.
///
/// # Errors
/// When it can't be written.
pub fn write(path: &Path, bytes: &[u8]) -> Result<()> {
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
    use std::thread;

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
                        write(&path, bytes).unwrap();
                        assert!(Command::new(&path).status().unwrap().success());
                    }
                });
            }
        });
    }
}
