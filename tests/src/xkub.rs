//! Where the `xkub` binary under test is.

use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};

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
