//! `xkub completions`.

use std::io;

use clap_complete::{Shell, generate};

/// Arguments of `xkub completions`.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// For which shell
    shell: Shell,
}

/// Prints the completions.
#[expect(clippy::unnecessary_wraps, reason = "as all commands")]
pub fn run(arguments: &Arguments, command: &mut clap::Command) -> anyhow::Result<()> {
    generate(arguments.shell, command, "xkub", &mut io::stdout());
    Ok(())
}
