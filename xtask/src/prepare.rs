//! What every task that runs the labs for a person begins with: set-up, a release build of `xkub`, and root.

use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::{root, setup, workspace};

/// Installs what `purpose` takes and builds `xkub`, as the user; or takes `prepared`, which this program's earlier self has
/// built before it started itself again as root. The binary.
pub fn binary(prepared: Option<&Path>, purpose: setup::Purpose) -> Result<PathBuf> {
    if let Some(binary) = prepared {
        return Ok(binary.to_owned());
    }
    setup::run(purpose)?;
    workspace::build_xkub(workspace::Profile::Release)
}

/// Comes back as root alone, with the labs told to run `binary`.
pub fn go_on_as_root(binary: &Path) -> Result<()> {
    if !root::is_root() {
        let mut again: Vec<String> = std::env::args().skip(1).collect();
        again.extend([
            "--prepared".to_owned(),
            binary.to_string_lossy().into_owned(),
        ]);
        root::start_again(&again.iter().map(String::as_str).collect::<Vec<_>>())?;
    }
    use_binary(binary);
    Ok(())
}

/// Tells the labs which binary to run.
pub fn use_binary(binary: &Path) {
    // SAFETY: xtask has one thread until a lab is built.
    unsafe { std::env::set_var(xkub_tests::xkub::BINARY_VARIABLE, binary) };
}
