//! Where the repository and its build folder are.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// The root of the repository.
pub fn root() -> Result<PathBuf> {
    // Set by `cargo run`; the compiled-in path is for a binary that is called by hand.
    let manifest = env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    manifest
        .parent()
        .map(Path::to_owned)
        .context("xtask's manifest has no parent folder")
}

/// Cargo's target folder: this program lies in `<target>/<profile>`.
pub fn target() -> Result<PathBuf> {
    if let Some(folder) = env::var_os("CARGO_TARGET_DIR") {
        return Ok(root()?.join(folder));
    }
    let program = env::current_exe().context("where is the running program?")?;
    program
        .ancestors()
        .nth(2)
        .map(Path::to_owned)
        .context("xtask does not lie in a target folder")
}

/// Builds `xkub` and returns where it is.
pub fn build_xkub(profile: Profile) -> Result<PathBuf> {
    let mut command = crate::shell::cargo();
    command
        .current_dir(root()?)
        .args(["build", "--package", "xkub-userspace", "--bins"]);
    let folder = match profile {
        Profile::Debug => "debug",
        Profile::Release => {
            command.arg("--release");
            "release"
        }
    };
    crate::shell::say(format_args!("building xkub ({folder})"));
    crate::shell::run_cargo(&mut command)?;
    Ok(target()?.join(folder).join("xkub"))
}

/// Cargo's profiles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Profile {
    /// `dev`: what the tests use, so that dependencies compile once for all of them.
    Debug,
    /// `release`: what is shown and measured.
    Release,
}
