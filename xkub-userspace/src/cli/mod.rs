//! The command line: what there is, and what comes of it.
//!
//! Exit codes: 0 fine, 1 something is wrong (one line on stderr says what), 2 usage.

mod agent;
mod completions;
mod config;
mod datapath;
mod install;
mod output;
mod reflector;
mod settings;
mod table;
mod token;

use std::{
    io::{IsTerminal as _, stderr},
    process::ExitCode,
};

use clap::{CommandFactory as _, Parser, Subcommand};
use tracing_subscriber::EnvFilter;

use self::output::Format;

/// The arguments.
#[derive(Debug, Parser)]
#[command(name = "xkub", about, version, propagate_version = true)]
struct Arguments {
    /// How state is printed
    #[arg(
        long,
        short,
        global = true,
        value_enum,
        default_value_t,
        env = "XKUB_OUTPUT"
    )]
    output: Format,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// The eBPF programs on the uplink
    #[command(subcommand)]
    Datapath(Box<datapath::Command>),
    /// Tokens and join files: where they lead to, and pointing them to the join endpoint
    #[command(subcommand)]
    Token(token::Command),
    /// Tell VMs which address they have outside: a STUN server for the infra cluster
    Reflector(reflector::Arguments),
    /// Install the agent, in this system or in an image; what is there already stays
    Install(install::Install),
    /// Remove all that was installed, and all that the agent wrote
    Uninstall(install::Uninstall),
    /// Keep this node in line with its address: the datapath, join files, the kubelet, the CNI
    Agent(Box<agent::Agent>),
    /// Say what the running agent thinks of this node
    Status(agent::StatusArguments),
    /// The agent's configuration
    #[command(subcommand)]
    Config(config::Command),
    /// Completions for a shell
    Completions(completions::Arguments),
}

/// Does what the command line says.
pub fn run() -> ExitCode {
    // clap ends the process with code 2 on bad usage.
    let Arguments { output, command } = Arguments::parse();
    // What an agent does is not on anybody's terminal, and each change to a node belongs into its journal.
    let usual = match command {
        Command::Agent(_) => "warn,xkub_userspace=info",
        _ => "warn",
    };
    tracing_subscriber::fmt()
        .with_env_filter(
            EnvFilter::try_from_env("XKUB_LOG").unwrap_or_else(|_| EnvFilter::new(usual)),
        )
        .with_writer(stderr)
        .with_ansi(stderr().is_terminal())
        .without_time()
        .init();
    let result = match command {
        Command::Datapath(command) => datapath::run(*command, output),
        Command::Token(command) => token::run(command, output),
        Command::Reflector(arguments) => reflector::run(&arguments, output),
        Command::Install(arguments) => install::install(&arguments, output),
        Command::Uninstall(arguments) => install::uninstall(&arguments, output),
        Command::Agent(arguments) => agent::run(&arguments, output),
        Command::Status(arguments) => agent::status(&arguments, output),
        Command::Config(command) => config::run(command, output),
        Command::Completions(arguments) => completions::run(&arguments, &mut Arguments::command()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xkub: {error:#}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arguments_are_consistent() {
        Arguments::command().debug_assert();
    }
}
