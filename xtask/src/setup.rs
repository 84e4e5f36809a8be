//! `setup`: finds what is missing, says so and installs it.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Result, bail};

use crate::shell::{self, say};
use crate::{root, workspace};

/// Overrides the choice of the eBPF toolchain: a rustup toolchain's name, or a prefix with `bin/rustc` in it.
pub const TOOLCHAIN_VARIABLE: &str = "XKUB_EBPF_TOOLCHAIN";
/// Where Debian's `rustc-web` is installed; `rustup run` takes a path as well as a name.
const DEBIAN_TOOLCHAIN: &str = "/usr";
/// The sources of `core` below a sysroot: no compiler ships one that is compiled for BPF.
const CORE_SOURCES: &str = "lib/rustlib/src/rust/library/core";
/// The linker's version; older ones can't read the bitcode of a current rustc.
const BPF_LINKER: &str = "0.13.0";
/// The LLVM that Debian 12 has for it.
const LLVM: &str = "/usr/lib/llvm-22";
/// Is there where systemd runs as PID 1 (`sd_booted(3)`).
const SYSTEMD: &str = "/run/systemd/system";
/// The checker of licences and sources.
const CARGO_DENY: &str = "0.20.2";

/// What the machine is wanted for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Building the eBPF object.
    Build,
    /// That, and running labs: demo and benchmarks.
    Lab,
    /// That, and QEMU guests.
    Guests,
    /// That, and what only `cargo xtask test` calls.
    Everything,
}

/// A program that labs and tests call, and the Debian package that brings it.
struct Program {
    name: &'static str,
    package: &'static str,
    purpose: &'static str,
}

const PROGRAMS: [Program; 5] = [
    Program {
        name: "ip",
        package: "iproute2",
        purpose: "builds the lab",
    },
    Program {
        name: "nft",
        package: "nftables",
        purpose: "loads KubeVirt's rules in the lab",
    },
    Program {
        name: "iptables",
        package: "iptables",
        purpose: "is the fix that xkub is compared with",
    },
    Program {
        name: "ping",
        package: "iputils-ping",
        purpose: "tests the lab",
    },
    Program {
        name: "iperf3",
        package: "iperf3",
        purpose: "measures throughput",
    },
];

/// What only tests call, beside [`PROGRAMS`]: a STUN client and server that others wrote.
const TEST_PROGRAMS: [Program; 1] = [Program {
    name: "turnutils_stunclient",
    package: COTURN,
    purpose: "and turnserver talk STUN with the reflector and its client",
}];
/// Its package starts a server on every address. Tests start their own, in namespaces.
const COTURN: &str = "coturn";
const COTURN_UNIT: &str = "coturn.service";

/// What guests are made of, beside [`PROGRAMS`]. cpio is not among them: the initramfs is written by the lab itself.
const GUEST_PROGRAMS: [Program; 8] = [
    Program {
        name: "qemu-system-x86_64",
        package: "qemu-system-x86",
        purpose: "runs guests",
    },
    Program {
        name: "busybox",
        package: "busybox-static",
        purpose: "is the user space of guests",
    },
    Program {
        name: "mmdebstrap",
        package: "mmdebstrap",
        purpose: "makes the image of guests with systemd",
    },
    Program {
        name: "mkfs.ext4",
        package: "e2fsprogs",
        purpose: "makes the disk of guests with systemd",
    },
    Program {
        name: "xz",
        package: "xz-utils",
        purpose: "unpacks kernel modules for guests",
    },
    Program {
        name: "strip",
        package: "binutils",
        purpose: "makes xkub small enough for guests",
    },
    Program {
        name: "ethtool",
        package: "ethtool",
        purpose: "switches offloads in the guest lab",
    },
    Program {
        name: "bpftool",
        package: "bpftool",
        purpose: "counts the instructions of loaded programs in guests",
    },
];

/// Something that is missing.
#[derive(Debug, PartialEq, Eq)]
enum Missing {
    Package { name: &'static str, why: String },
    BpfLinker,
    CargoDeny,
}

/// Installs what `purpose` needs and is not there; says nothing when nothing is.
///
/// # Errors
/// When something can't be installed: the error says what, and how to do it by hand.
pub fn run(purpose: Purpose) -> Result<()> {
    let missing = missing(purpose);
    if missing.is_empty() {
        if purpose == Purpose::Everything {
            say("everything is there");
        }
        return Ok(());
    }
    for item in &missing {
        match item {
            Missing::Package { name, why } => {
                say(format_args!("missing: Debian package {name}: {why}"));
            }
            Missing::BpfLinker => say(format_args!(
                "missing: bpf-linker {BPF_LINKER}: links the eBPF object"
            )),
            Missing::CargoDeny => say(format_args!(
                "missing: cargo-deny {CARGO_DENY}: checks licences and sources"
            )),
        }
    }
    let packages: Vec<&str> = missing
        .iter()
        .filter_map(|item| match item {
            Missing::Package { name, .. } => Some(*name),
            Missing::BpfLinker | Missing::CargoDeny => None,
        })
        .collect();
    say(format_args!(
        "installing that; elsewhere than on Debian, {}",
        by_hand(&missing)
    ));
    if !packages.is_empty() {
        install_packages(&packages)?;
    }
    for item in &missing {
        match item {
            Missing::Package { .. } => {}
            Missing::BpfLinker => install_bpf_linker()?,
            Missing::CargoDeny => {
                cargo_install(&["cargo-deny", "--version", CARGO_DENY], &[])?;
            }
        }
    }
    Ok(())
}

fn missing(purpose: Purpose) -> Vec<Missing> {
    let mut missing = Vec::new();
    if purpose != Purpose::Build {
        let guests = matches!(purpose, Purpose::Guests | Purpose::Everything);
        let of_guests = GUEST_PROGRAMS.iter().filter(|_| guests);
        let of_tests = TEST_PROGRAMS
            .iter()
            .filter(|_| purpose == Purpose::Everything);
        for &Program {
            name,
            package,
            purpose,
        } in PROGRAMS.iter().chain(of_guests).chain(of_tests)
        {
            if shell::find(name).is_none() {
                missing.push(Missing::Package {
                    name: package,
                    why: format!("`{name}` {purpose}"),
                });
            }
        }
    }
    if ebpf_toolchain().is_none() {
        let why = "compiles eBPF: no installed toolchain has the sources of `core`";
        for name in ["rustc-web", "cargo-web", "rust-web-src"] {
            missing.push(Missing::Package {
                name,
                why: why.to_owned(),
            });
        }
    }
    if !has_bpf_linker() {
        if !Path::new(LLVM).join("bin/llvm-config").exists() {
            let why = "bpf-linker is linked against it".to_owned();
            missing.push(Missing::Package {
                name: "llvm-22-dev",
                why,
            });
        }
        if shell::find("c++").is_none() {
            let why = "bpf-linker links LLVM's C++ libraries".to_owned();
            missing.push(Missing::Package { name: "g++", why });
        }
        missing.push(Missing::BpfLinker);
    }
    if purpose == Purpose::Everything {
        // Debian's compiler has its clippy in a package of its own; rustup's brings it as a component.
        let debian = ebpf_toolchain().is_none_or(|toolchain| toolchain == DEBIAN_TOOLCHAIN);
        if debian
            && !Path::new(DEBIAN_TOOLCHAIN)
                .join("bin/clippy-driver")
                .exists()
        {
            let why = "clippy for the eBPF crate".to_owned();
            missing.push(Missing::Package {
                name: "rust-web-clippy",
                why,
            });
        }
        if shell::find("cargo-deny").is_none() {
            missing.push(Missing::CargoDeny);
        }
    }
    missing
}

/// The toolchain that can build the eBPF crate, as `rustup run` takes it: the same choice as in
/// `xkub-userspace/build.rs`.
///
/// Looks at files only, so that a set-up with nothing to do costs nothing.
pub fn ebpf_toolchain() -> Option<String> {
    if let Ok(chosen) = env::var(TOOLCHAIN_VARIABLE)
        && !chosen.is_empty()
    {
        return Some(chosen);
    }
    let has_sources = |sysroot: &Path| sysroot.join(CORE_SOURCES).is_dir();
    if let Some(toolchains) = rustup_toolchains() {
        let active = env::var("RUSTUP_TOOLCHAIN").ok();
        let mut names: Vec<String> = std::fs::read_dir(toolchains.as_path())
            .into_iter()
            .flatten()
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .filter(|name| has_sources(&toolchains.join(name)))
            .collect();
        // The active one first, then nightlies, then the rest.
        names.sort_by_key(|name| {
            (
                active.as_ref() != Some(name),
                !name.starts_with("nightly"),
                name.clone(),
            )
        });
        if let Some(name) = names.into_iter().next() {
            return Some(name);
        }
    }
    let debian = Path::new(DEBIAN_TOOLCHAIN);
    (debian.join("bin/rustc").exists() && has_sources(debian)).then(|| DEBIAN_TOOLCHAIN.to_owned())
}

fn rustup_toolchains() -> Option<PathBuf> {
    shell::find("rustup")?;
    let home = env::var_os("RUSTUP_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(Path::new(&env::var_os("HOME")?).join(".rustup")))?;
    Some(home.join("toolchains"))
}

/// Whether a linker is there that is new enough.
fn has_bpf_linker() -> bool {
    let output = Command::new("bpf-linker")
        .arg("--version")
        .stderr(Stdio::null())
        .output();
    // "bpf-linker 0.13.0"
    output
        .ok()
        .and_then(|output| String::from_utf8(output.stdout).ok())
        .is_some_and(|text| {
            text.split_whitespace()
                .nth(1)
                .is_some_and(|version| parse_version(version) >= parse_version(BPF_LINKER))
        })
}

fn parse_version(text: &str) -> Vec<u32> {
    text.split('.')
        .map_while(|part| part.parse().ok())
        .collect()
}

fn install_packages(packages: &[&str]) -> Result<()> {
    if shell::find("apt-get").is_none() {
        bail!("this is no Debian, so nothing was installed: see above");
    }
    let run = |program: &[&str]| -> Result<()> {
        let mut command = if root::is_root() {
            Command::new("env")
        } else if shell::find("sudo").is_some() {
            let mut command = Command::new("sudo");
            command.arg("env");
            command
        } else {
            bail!("installing packages needs root, and there is no sudo");
        };
        command.args(program);
        say(shell::line(&command));
        shell::run_quietly(&mut command)
    };
    let apt = ["DEBIAN_FRONTEND=noninteractive", "apt-get", "-qq"];
    run(&[&apt[..], &["update"]].concat())?;
    if packages.contains(&COTURN) && Path::new(SYSTEMD).exists() {
        run(&["systemctl", "mask", COTURN_UNIT])?;
    }
    let install = ["install", "--yes", "--no-install-recommends"];
    run(&[&apt[..], &install, packages].concat())
}

/// How to get the same without apt, as what follows "elsewhere".
fn by_hand(missing: &[Missing]) -> String {
    let package = |wanted: &str| {
        missing
            .iter()
            .any(|item| matches!(item, Missing::Package { name, .. } if *name == wanted))
    };
    let mut lines = vec!["by hand:".to_owned()];
    let programs: Vec<&str> = PROGRAMS
        .iter()
        .chain(&GUEST_PROGRAMS)
        .chain(&TEST_PROGRAMS)
        .filter(|program| package(program.package))
        .map(|program| program.name)
        .collect();
    if !programs.is_empty() {
        lines.push(format!("put {} into PATH", programs.join(", ")));
    }
    if package("rustc-web") {
        lines.push(format!(
            "`rustup component add rust-src` for a toolchain of Rust 1.89 or newer, or set {TOOLCHAIN_VARIABLE} to a \
             prefix with a compiler and the sources of its library"
        ));
    }
    if missing.contains(&Missing::BpfLinker) {
        lines.push(format!(
            "LLVM 22 with its headers and a C++ compiler, then `LLVM_PREFIX=<prefix of LLVM> cargo install bpf-linker \
             --version {BPF_LINKER} --locked --no-default-features --features llvm-22`"
        ));
    }
    if package("rust-web-clippy") {
        lines.push("clippy for the toolchain that compiles eBPF".to_owned());
    }
    if missing.contains(&Missing::CargoDeny) {
        lines.push(format!(
            "`cargo install cargo-deny --version {CARGO_DENY} --locked`"
        ));
    }
    lines.join("\n  * ")
}

fn install_bpf_linker() -> Result<()> {
    cargo_install(
        &[
            "bpf-linker",
            "--version",
            BPF_LINKER,
            "--no-default-features",
            "--features",
            "llvm-22",
        ],
        &[("LLVM_PREFIX", LLVM)],
    )
}

fn cargo_install(arguments: &[&str], environment: &[(&str, &str)]) -> Result<()> {
    let mut command = shell::cargo();
    command
        .args(["install", "--quiet", "--locked", "--force"])
        .args(arguments);
    // Built beside our own things, so that a full disk or a read-only /tmp does not matter.
    command.env("CARGO_TARGET_DIR", workspace::target()?.join("tools"));
    command.envs(environment.iter().copied());
    let variables: Vec<String> = environment
        .iter()
        .map(|(name, value)| format!("{name}={value} "))
        .collect();
    say(format_args!(
        "{}{} (takes a minute or two)",
        variables.concat(),
        shell::line(&command)
    ));
    shell::run(&mut command)
}

#[cfg(test)]
mod tests {
    use super::parse_version;

    #[test]
    fn versions_are_compared_by_number() {
        assert!(parse_version("0.13.0") > parse_version("0.9.15"));
        assert!(parse_version("0.13.0") <= parse_version("0.13.0"));
    }
}
