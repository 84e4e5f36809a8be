//! `cargo xtask`: everything one does with this repository that is more than one command.

mod bench;
mod build_ebpf;
mod demo;
mod lab;
mod prepare;
mod root;
mod setup;
mod shell;
mod table;
mod test;
mod test_vm;
mod vm;
mod workspace;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Parser, Subcommand};

/// Set-up, demo, tests and benchmarks of xkub.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Install what is missing to build and test xkub, and say what that is.
    Setup,
    /// Build the eBPF object alone; print where it is, its sections, their sizes and instruction counts.
    BuildEbpf {
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// The masquerade lab for a person: two virt-launcher pods with a guest each, in network namespaces.
    Lab {
        #[command(subcommand)]
        action: lab::Action,
    },
    /// Two QEMU guests behind masquerade for a person, with a shell in each.
    Vm(vm::Vm),
    /// Show an overlay dead without xkub and alive with it.
    Demo(Demo),
    /// Format, lints, licences, unit, property, kernel and lab tests, and a choice of those in QEMU guests.
    Test(test::Test),
    /// Measure, side by side.
    Bench {
        #[command(subcommand)]
        bench: bench::Bench,
    },
}

/// What `demo` is asked.
#[derive(Debug, Args)]
struct Demo {
    /// Leave the lab standing afterwards, and say how to enter it.
    #[arg(long)]
    keep: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Set by a demo that starts itself again as root: everything is installed and built, the binary is this one.
    #[arg(long, hide = true)]
    prepared: Option<PathBuf>,
}

fn main() -> ExitCode {
    shell::find_system_programs();
    match run(Arguments::parse().task) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(task: Task) -> Result<ExitCode> {
    match task {
        Task::Setup => setup::run(setup::Purpose::Everything).map(|()| ExitCode::SUCCESS),
        Task::BuildEbpf { json } => build_ebpf::run(json).map(|()| ExitCode::SUCCESS),
        Task::Lab { action } => lab::run(action),
        Task::Vm(vm) => vm::run(&vm),
        Task::Demo(demo) => demo::run(&demo),
        Task::Test(test) if test.vm => test_vm::run(&test),
        Task::Test(_) => test::run(),
        Task::Bench { bench } => bench::run(&bench).map(|()| ExitCode::SUCCESS),
    }
}
