//! `build-ebpf`: the eBPF object alone, and what is in it.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use object::{Object as _, ObjectSection as _, ObjectSymbol as _, SectionKind, SymbolKind};
use serde::Serialize;

use crate::{setup, shell, table, workspace};

/// Bytes of one eBPF instruction.
const INSTRUCTION: u64 = 8;

/// What is printed.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    path: PathBuf,
    bytes: u64,
    sections: Vec<Section>,
}

/// One section of the object.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Section {
    name: String,
    bytes: u64,
    /// Of sections with code; a 64-bit load counts as two, as the kernel counts it.
    #[serde(skip_serializing_if = "Option::is_none")]
    instructions: Option<u64>,
    /// The functions in a section with code.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    functions: Vec<Function>,
}

/// One function of a section.
#[derive(Debug, Serialize)]
struct Function {
    name: String,
    instructions: u64,
}

/// Builds the object and prints what is in it.
pub fn run(json: bool) -> Result<()> {
    setup::run(setup::Purpose::Build)?;
    let path = build()?;
    let report = inspect(path)?;
    if json {
        println!("{}", serde_json::to_string_pretty(&report)?);
        return Ok(());
    }
    println!("{}: {} bytes", report.path.display(), report.bytes);
    let mut rows = vec![
        ["section", "bytes", "instructions"]
            .map(str::to_owned)
            .to_vec(),
    ];
    for section in &report.sections {
        let instructions = section
            .instructions
            .map_or(String::new(), |count| count.to_string());
        rows.push(vec![
            section.name.clone(),
            section.bytes.to_string(),
            instructions,
        ]);
        for Function { name, instructions } in &section.functions {
            rows.push(vec![
                format!("  {name}"),
                String::new(),
                format!("  {instructions}"),
            ]);
        }
    }
    print!("{}", table::render(&rows));
    Ok(())
}

/// A cargo of the toolchain for BPF, as aya-build calls it, with what every call needs.
pub fn cargo(subcommand: &str) -> Result<Command> {
    let toolchain = setup::ebpf_toolchain()
        .context("no toolchain can compile eBPF: run `cargo xtask setup`")?;
    let mut command = if shell::find("rustup").is_some() {
        let mut command = Command::new("rustup");
        command.args(["run", &toolchain, "cargo"]);
        command
    } else {
        Command::new("cargo")
    };
    command
        .current_dir(workspace::root()?)
        .arg(subcommand)
        .args(["--package", "xkub-ebpf", "--bins", "--release"])
        .args(["--target", "bpfel-unknown-none", "-Z", "build-std=core"])
        // A folder of its own: the outer cargo holds the lock of the usual one.
        .arg("--target-dir")
        .arg(workspace::target()?.join("ebpf"))
        // -Z on a stable compiler.
        .env("RUSTC_BOOTSTRAP", "1")
        .env("CARGO_ENCODED_RUSTFLAGS", rustflags())
        .env_remove("RUSTC")
        .env_remove("RUSTC_WORKSPACE_WRAPPER");
    Ok(command)
}

/// Flags in cargo's own encoding, one after the other with unit separators between.
fn rustflags() -> String {
    let architecture = format!("--cfg=bpf_target_arch=\"{}\"", std::env::consts::ARCH);
    [architecture.as_str(), "-Cdebuginfo=2", "-Clink-arg=--btf"].join("\x1f")
}

fn build() -> Result<PathBuf> {
    shell::say("building the eBPF object");
    shell::run(&mut cargo("build")?)?;
    Ok(workspace::target()?.join("ebpf/bpfel-unknown-none/release/xkub-ebpf"))
}

fn inspect(path: PathBuf) -> Result<Report> {
    let bytes = std::fs::read(&path).with_context(|| format!("read {}", path.display()))?;
    let object = object::File::parse(bytes.as_slice())
        .with_context(|| format!("parse {}", path.display()))?;
    let mut sections = Vec::new();
    for section in object.sections() {
        let name = section.name()?;
        // What stays in user space or is only for the linker says nothing about the programs.
        let bookkeeping = [".debug", ".rel", ".str", ".sym", ".llvm"]
            .iter()
            .any(|prefix| name.starts_with(prefix));
        if section.size() == 0 || bookkeeping {
            continue;
        }
        let code = section.kind() == SectionKind::Text;
        let mut functions = Vec::new();
        if code {
            if section.size() % INSTRUCTION != 0 {
                bail!(
                    "section {name} has {} bytes: no whole number of instructions",
                    section.size()
                );
            }
            for symbol in object.symbols() {
                let function = symbol.kind() == SymbolKind::Text
                    && symbol.section_index() == Some(section.index());
                if function && symbol.size() > 0 {
                    functions.push(Function {
                        // Without the hash of the crate.
                        name: format!("{:#}", rustc_demangle::demangle(symbol.name()?)),
                        instructions: symbol.size() / INSTRUCTION,
                    });
                }
            }
        }
        sections.push(Section {
            name: name.to_owned(),
            bytes: section.size(),
            instructions: code.then(|| section.size() / INSTRUCTION),
            functions,
        });
    }
    let bytes = u64::try_from(bytes.len())?;
    Ok(Report {
        path,
        bytes,
        sections,
    })
}
