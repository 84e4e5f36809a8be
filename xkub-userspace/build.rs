//! Builds the eBPF object and leaves it in `$OUT_DIR/xkub-ebpf`, where the library embeds it from.

use std::{
    env,
    ffi::OsStr,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};
use aya_build::{Package, Toolchain, build_ebpf};

/// Overrides the choice of toolchain: a rustup toolchain's name, or a prefix with `bin/rustc` in it.
const TOOLCHAIN: &str = "XKUB_EBPF_TOOLCHAIN";
/// Where Debian's `rustc-web`, `cargo-web` and `rust-web-src` are installed.
const DEBIAN: &str = "/usr";
/// `core`'s sources, below a sysroot: the BPF target has no precompiled `core`.
const RUST_SRC: &str = "lib/rustlib/src/rust/library/core";
/// The oldest `1.N` that builds the eBPF crate: `rust-version` of the workspace.
const MINIMUM_MINOR: u32 = 89;

const HELP: &str = "install either
  * a rustup toolchain of Rust 1.89 or newer with its sources: `rustup component add rust-src`, or
  * on Debian 12 the packages `rustc-web cargo-web rust-web-src`, and
  * `bpf-linker` 0.13.0 in PATH (`cargo install bpf-linker --version 0.13.0 --locked --no-default-features --features llvm-22`, with `llvm-22-dev` and LLVM_PREFIX=/usr/lib/llvm-22)
`cargo xtask setup` does this on Debian; XKUB_EBPF_TOOLCHAIN names a toolchain by hand";

fn main() -> Result<()> {
    for variable in [TOOLCHAIN, "PATH", "RUSTUP_TOOLCHAIN", "RUSTUP_HOME"] {
        println!("cargo:rerun-if-env-changed={variable}");
    }
    let workspace =
        PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").context("CARGO_MANIFEST_DIR is not set")?)
            .parent()
            .context("the package is not in a workspace")?
            .to_owned();
    for path in [
        "xkub-common/src",
        "xkub-common/Cargo.toml",
        "Cargo.toml",
        "Cargo.lock",
    ] {
        println!("cargo:rerun-if-changed={}", workspace.join(path).display());
    }

    if !in_path("bpf-linker") {
        bail!("the eBPF object can't be linked: `bpf-linker` is not in PATH; {HELP}");
    }
    let toolchain = toolchain()?;
    let root_dir = workspace.join("xkub-ebpf");
    // SAFETY: the build script has one thread.
    //
    // `-Z build-std=core` needs it on a stable toolchain; aya-build adds that flag when it sees this variable.
    unsafe { env::set_var("RUSTC_BOOTSTRAP", "1") };
    build_ebpf(
        [Package {
            name: "xkub-ebpf",
            root_dir: root_dir
                .to_str()
                .context("the path of the workspace is not UTF-8")?,
            ..Package::default()
        }],
        Toolchain::Custom(&toolchain),
    )
    .with_context(|| format!("the eBPF object doesn't build with toolchain `{toolchain}`"))
}

/// What `rustup run` shall be given, or, without rustup, only that the `cargo` in PATH will do.
fn toolchain() -> Result<String> {
    if let Ok(chosen) = env::var(TOOLCHAIN)
        && !chosen.is_empty()
    {
        return Ok(chosen);
    }
    if !in_path("rustup") {
        let sysroot = sysroot(&mut Command::new("rustc"));
        if sysroot.is_some_and(|sysroot| has_sources(&sysroot))
            && is_new_enough(&mut Command::new("rustc"))
        {
            return Ok(DEBIAN.to_owned());
        }
        bail!("`rustc` in PATH is too old or has no sources for `core`; {HELP}");
    }
    rustup_toolchains()
        .into_iter()
        .chain([DEBIAN.to_owned()])
        .find(|toolchain| {
            sysroot(&mut rustup_rustc(toolchain)).is_some_and(|sysroot| has_sources(&sysroot))
                && is_new_enough(&mut rustup_rustc(toolchain))
        })
        .with_context(|| format!("no toolchain has the sources of `core`; {HELP}"))
}

/// Installed toolchains: the active one first, then nightlies, then the rest.
fn rustup_toolchains() -> Vec<String> {
    let list = stdout(Command::new("rustup").args(["toolchain", "list"])).unwrap_or_default();
    let mut toolchains: Vec<(u8, String)> = list
        .lines()
        .filter_map(|line| {
            let name = line.split_whitespace().next()?;
            let rank = match name {
                _ if line.contains("(active") => 0,
                _ if name.starts_with("nightly") => 1,
                _ => 2,
            };
            // "no installed toolchains" is a sentence, not a name.
            name.contains('-').then(|| (rank, name.to_owned()))
        })
        .collect();
    toolchains.sort();
    toolchains.into_iter().map(|(_, name)| name).collect()
}

fn rustup_rustc(toolchain: &str) -> Command {
    let mut command = Command::new("rustup");
    command.args(["run", toolchain, "rustc"]);
    command
}

fn sysroot(rustc: &mut Command) -> Option<PathBuf> {
    stdout(rustc.args(["--print", "sysroot"])).map(|path| PathBuf::from(path.trim()))
}

fn has_sources(sysroot: &Path) -> bool {
    sysroot.join(RUST_SRC).is_dir()
}

fn is_new_enough(rustc: &mut Command) -> bool {
    // "rustc 1.96.0 (…)"
    stdout(rustc.arg("--version"))
        .and_then(|version| {
            version
                .split_whitespace()
                .nth(1)?
                .split('.')
                .nth(1)?
                .parse::<u32>()
                .ok()
        })
        .is_some_and(|minor| minor >= MINIMUM_MINOR)
}

fn stdout(command: &mut Command) -> Option<String> {
    let output = command.output().ok()?;
    output
        .status
        .success()
        .then(|| String::from_utf8(output.stdout).ok())?
}

fn in_path(program: impl AsRef<OsStr>) -> bool {
    let program = program.as_ref();
    env::var_os("PATH").is_some_and(|path| {
        env::split_paths(&path).any(|directory| directory.join(program).is_file())
    })
}
