//! `xkub`: one binary for everything.

mod cli;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::run()
}
