//! `xkub install` and `xkub uninstall`.

use std::{
    env,
    fmt::Write as _,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail};
use clap::{Args, ValueEnum};
use serde::Serialize;
use xkub_userspace::{
    config as agent_config, datapath,
    install::{
        self, Options, Removal,
        cloud_init::{self, Manifest},
        config::{self, Setting},
        step::Step,
    },
    node::{
        boot_order::{AGENT_UNIT, Start},
        distribution::Distribution,
        systemd::{self, Systemd},
    },
};

use super::output::{Format, print};

/// Arguments of `xkub install`.
#[derive(Debug, Args)]
pub struct Install {
    /// The system: an image's root folder, or this one
    #[arg(long, value_name = "DIR", default_value = "/", env = "XKUB_ROOT")]
    root: PathBuf,
    /// What runs the kubelet
    #[arg(
        long,
        value_enum,
        default_value = "auto",
        env = "XKUB_NODE_DISTRIBUTION"
    )]
    distribution: Choice,
    /// The worker waits for a node address for as long as it takes
    #[arg(long, env = "XKUB_FAIL_CLOSED")]
    fail_closed: bool,
    /// A key of the configuration file, where there is none yet; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,
    /// Start the agent, or start it again, and wait until it is ready
    #[arg(long)]
    now: bool,
    /// Say what would change, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Print this, and change nothing
    #[arg(long, value_enum, conflicts_with_all = ["now", "dry_run"])]
    print: Option<Printed>,
    /// Whose manifest `--print cloud-init` is for
    #[arg(
        long = "for",
        value_enum,
        default_value = "k0smotron",
        requires = "print"
    )]
    manifest: ManifestChoice,
    /// Where new machines get the binary; without it, it is in their image
    #[arg(long, value_name = "URL", requires = "print")]
    binary_url: Option<String>,
}

/// Arguments of `xkub uninstall`.
#[derive(Debug, Args)]
pub struct Uninstall {
    /// The system: an image's root folder, or this one
    #[arg(long, value_name = "DIR", default_value = "/", env = "XKUB_ROOT")]
    root: PathBuf,
    /// Remove the configuration too
    #[arg(long)]
    purge: bool,
    /// Say what would change, and change nothing
    #[arg(long)]
    dry_run: bool,
}

/// Values of `--distribution`.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Choice {
    Auto,
    #[value(name = "k0s")]
    K0s,
    Kubeadm,
    #[value(name = "k3s")]
    K3s,
    #[value(name = "rke2")]
    Rke2,
}

/// Values of `--print`.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Printed {
    /// Part of a manifest for new machines
    CloudInit,
    /// The agent's unit
    Unit,
    /// The agent's configuration
    Config,
}

/// Values of `--for`.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum ManifestChoice {
    K0smotron,
    Kubeadm,
}

/// What was changed.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    dry_run: bool,
    changes: Vec<Change>,
    /// What is left to a person.
    next: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Change {
    action: &'static str,
    path: PathBuf,
    why: String,
}

impl From<&Step> for Change {
    fn from(step: &Step) -> Self {
        Self {
            action: if step.removes() { "removed" } else { "written" },
            path: step.path().to_owned(),
            why: step.why().to_owned(),
        }
    }
}

/// Does what `xkub install` says.
pub fn install(arguments: &Install, format: Format) -> anyhow::Result<()> {
    let mut settings = Vec::new();
    if arguments.fail_closed {
        settings.push(Setting::parse("node.fail-open=false")?);
    }
    for text in &arguments.settings {
        settings.push(Setting::parse(text)?);
    }
    // Refused before anything is written; and what is in force decides what the worker waits for.
    let new = agent_config::of_text(Path::new("--set"), &config::text(&settings))?;
    let path = config::PATH.trim_start_matches('/');
    let file = agent_config::of_file(&arguments.root.join(path))?;
    let is_open = match (&file, arguments.print) {
        (Some(file), None) => file.node.fail_open && !arguments.fail_closed,
        _ => new.node.fail_open,
    };
    let start = if is_open {
        Start::FailOpen
    } else {
        Start::FailClosed
    };
    if let Some(printed) = arguments.print {
        print_only(arguments, printed, start, &settings);
        return Ok(());
    }
    let is_live = is_live(&arguments.root);
    if arguments.now && !is_live {
        bail!(
            "--now is for the running system, which {} is not",
            arguments.root.display()
        );
    }
    let given = !arguments.settings.is_empty();
    if file.is_some() && !given {
        // --fail-closed alone is about the units; the file stays as it is.
        settings.clear();
    }
    let options = Options {
        start,
        distribution: match arguments.distribution {
            Choice::Auto => None,
            Choice::K0s => Some(Distribution::K0s),
            Choice::Kubeadm => Some(Distribution::Kubeadm),
            Choice::K3s => Some(Distribution::K3s),
            Choice::Rke2 => Some(Distribution::Rke2),
        },
        settings,
        executable: env::current_exe().context("it is not known where this binary is")?,
    };
    let mut steps = install::plan(&arguments.root, &options)?;
    let mut next = Vec::new();
    if !arguments.dry_run {
        steps = apply(steps, &arguments.root)?;
        if is_live && (arguments.now || !steps.is_empty()) {
            live(async |systemd| {
                systemd.reload().await?;
                if arguments.now {
                    // It may run with a configuration that was written since.
                    systemd.restart(AGENT_UNIT).await?;
                }
                Ok(())
            })?;
        }
        if is_live && !arguments.now && !steps.is_empty() {
            next.push(format!("start it: systemctl restart {AGENT_UNIT}"));
        }
        if is_live
            && steps
                .iter()
                .any(|step| install::is_for_network(step.path()))
        {
            next.push(
                "have the network's manager read its files: networkctl reload, nmcli general reload"
                    .to_owned(),
            );
        }
    }
    if arguments.fail_closed && file.is_some_and(|file| file.node.fail_open) {
        next.push(format!(
            "set fail-open = false under [node] in {}",
            config::PATH
        ));
    }
    report(&steps, arguments.dry_run, next, format)
}

fn print_only(arguments: &Install, printed: Printed, start: Start, settings: &[Setting]) {
    let text = match printed {
        Printed::CloudInit => {
            let manifest = match arguments.manifest {
                ManifestChoice::K0smotron => Manifest::K0smotron,
                ManifestChoice::Kubeadm => Manifest::Kubeadm,
            };
            cloud_init::snippet(manifest, start, settings, arguments.binary_url.as_deref())
        }
        Printed::Unit => install::unit_text(install::BINARY, start),
        Printed::Config => config::text(settings),
    };
    print!("{text}");
}

/// Does what `xkub uninstall` says.
pub fn uninstall(arguments: &Uninstall, format: Format) -> anyhow::Result<()> {
    let is_live = is_live(&arguments.root);
    let Removal {
        mut steps,
        has_node_ip,
    } = install::remove(&arguments.root, arguments.purge)?;
    if !arguments.dry_run {
        if is_live {
            // Before its files go: it would write them again.
            live(async |systemd| {
                if systemd.exists(AGENT_UNIT).await? {
                    systemd.stop(AGENT_UNIT).await?;
                }
                Ok(())
            })?;
            datapath::detach(None)?;
        }
        steps = apply(steps, &arguments.root)?;
        if is_live {
            live(async |systemd| systemd.reload().await)?;
        }
    }
    let mut next = Vec::new();
    if has_node_ip && is_live {
        next.push("restart the worker, which still has xkub's --node-ip".to_owned());
    }
    report(&steps, arguments.dry_run, next, format)
}

/// Whether it is about this system as it runs, and not an image, or a container without systemd.
fn is_live(root: &Path) -> bool {
    root == Path::new("/") && systemd::is_booted()
}

/// Says what was really done.
fn apply(steps: Vec<Step>, root: &Path) -> anyhow::Result<Vec<Step>> {
    let mut done = Vec::new();
    for step in steps {
        // A folder that turns out not to be empty stays.
        if step.is_due(root)? {
            step.apply(root)?;
            done.push(step);
        }
    }
    Ok(done)
}

fn live(
    what: impl AsyncFnOnce(&Systemd) -> Result<(), systemd::SystemdError>,
) -> anyhow::Result<()> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(async {
            let systemd = Systemd::connect().await?;
            what(&systemd).await
        })?;
    Ok(())
}

fn report(steps: &[Step], dry_run: bool, next: Vec<String>, format: Format) -> anyhow::Result<()> {
    let report = Report {
        dry_run,
        changes: steps.iter().map(Change::from).collect(),
        next,
    };
    print(format, "Installation", &report, text)
}

fn text(report: &Report) -> String {
    let mut text = String::new();
    let tense = if report.dry_run { "would be " } else { "" };
    for Change { action, path, why } in &report.changes {
        // Writing to a string never fails.
        let _ = writeln!(text, "{tense}{action}  {}: {why}", path.display());
    }
    if report.changes.is_empty() {
        text += "nothing to change\n";
    }
    for next in &report.next {
        let _ = writeln!(text, "next: {next}");
    }
    text
}
