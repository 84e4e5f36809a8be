//! `xkub agent` and `xkub status`.

use std::path::PathBuf;

use anyhow::bail;
use clap::{Args, ValueEnum};
use serde::Serialize;
use xkub_userspace::agent::{
    self, Once,
    action::Action,
    plan::Plan,
    status::{self, Ask, Status},
};

use super::{
    output::{Format, print},
    settings::Settings,
    table::table,
};

/// Arguments of `xkub agent`.
#[derive(Debug, Args)]
pub struct Agent {
    /// Look once, apply one plan, and end
    #[arg(long)]
    once: bool,
    /// Print the plan and change nothing
    #[arg(long, requires = "once")]
    dry_run: bool,
    /// Apply at most so many actions
    #[arg(long, requires = "once", conflicts_with = "dry_run", hide = true)]
    max_actions: Option<usize>,
    #[command(flatten)]
    settings: Settings,
}

/// Does what the command says.
pub fn run(arguments: &Agent, format: Format) -> anyhow::Result<()> {
    let config = arguments.settings.load()?.config;
    if !arguments.once {
        return Ok(agent::run(config)?);
    }
    let once = if arguments.dry_run {
        Once::DryRun
    } else {
        Once::Apply(arguments.max_actions.unwrap_or(usize::MAX))
    };
    let report = agent::once(config, once)?;
    print(format, "Plan", &report.plan, plan_text)?;
    if let Some(first) = report.failed.first() {
        bail!("{first}");
    }
    Ok(())
}

fn plan_text(plan: &Plan) -> String {
    let Plan {
        actions,
        waiting,
        problems,
    } = plan;
    let mut rows: Vec<Vec<String>> = Vec::new();
    let mut add = |name: &str, lines: Vec<String>| {
        rows.extend(lines.into_iter().map(|line| vec![name.to_owned(), line]));
    };
    if actions.is_empty() {
        add("plan", vec!["nothing to do".to_owned()]);
    }
    add("action", actions.iter().map(Action::to_string).collect());
    add("waiting", waiting.clone());
    add("problem", problems.clone());
    table(&rows, 0)
}

/// Arguments of `xkub status`.
#[derive(Debug, Args)]
pub struct StatusArguments {
    /// Print nothing but what is wrong, and exit with 1 if the agent is not
    #[arg(long, value_enum, value_name = "WHAT")]
    check: Option<Check>,
    /// Make the agent look at the node first, and wait until it has done what there is to do
    #[arg(long)]
    look: bool,
    /// The agent's state directory
    #[arg(
        long,
        value_name = "PATH",
        default_value = "/run/xkub",
        env = "XKUB_STATE_DIRECTORY"
    )]
    state_directory: PathBuf,
}

/// Values of `--check`.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Check {
    /// Its loop turns
    Live,
    /// There is a node address, and all that was planned for it is done
    Ready,
}

#[derive(Debug, Serialize)]
#[serde(transparent)]
struct Document(Status);

/// Asks the running agent.
pub fn status(arguments: &StatusArguments, format: Format) -> anyhow::Result<()> {
    let when = if arguments.look {
        Ask::AfterLook
    } else {
        Ask::Now
    };
    let status = status::ask(&arguments.state_directory, when)?;
    match arguments.check {
        None => print(format, "AgentStatus", &Document(status), |document| {
            status_text(&document.0)
        }),
        Some(Check::Live) if status.live => Ok(()),
        Some(Check::Live) => bail!("the agent's loop hangs"),
        Some(Check::Ready) if status.ready => Ok(()),
        Some(Check::Ready) => {
            let mut why = status
                .problems
                .into_iter()
                .chain(status.waiting)
                .chain(status.pending);
            bail!(
                "not ready: {}",
                why.next().unwrap_or_else(|| "it has just begun".to_owned())
            )
        }
    }
}

fn status_text(status: &Status) -> String {
    let Status {
        version,
        live,
        ready,
        uplink,
        node_addresses,
        sources,
        refusals,
        worker,
        node,
        pending,
        waiting,
        problems,
        reconciles,
    } = status;
    let row = |name: &str, value: String| vec![name.to_owned(), value];
    let state = match (live, ready) {
        (false, _) => "hangs",
        (true, false) => "not ready",
        (true, true) => "ready",
    };
    let mut rows = vec![
        row(
            "agent",
            format!("{state} ({version}, looked {reconciles} times)"),
        ),
        row(
            "uplink",
            uplink.clone().unwrap_or_else(|| "none".to_owned()),
        ),
    ];
    for address in node_addresses {
        let family = if address.is_ipv4() { "ipv4" } else { "ipv6" };
        let source = sources.get(family).map_or_else(
            || "no source tells it at the moment".to_owned(),
            |source| format!("from {source}"),
        );
        rows.push(row("node address", format!("{address}, {source}")));
    }
    if node_addresses.is_empty() {
        rows.push(row("node address", "none yet".to_owned()));
    }
    for refusal in refusals {
        let line = format!(
            "{} from {}: {}",
            refusal.address, refusal.source, refusal.message
        );
        rows.push(row("refused", line));
    }
    rows.push(row(
        "worker",
        worker.clone().unwrap_or_else(|| "none".to_owned()),
    ));
    rows.push(row("node", node.clone()));
    for (name, lines) in [
        ("pending", pending),
        ("waiting", waiting),
        ("problem", problems),
    ] {
        // A refusal has a line of its own.
        let lines = lines
            .iter()
            .filter(|line| !line.starts_with("refused the address"));
        rows.extend(lines.map(|line| row(name, line.clone())));
    }
    table(&rows, 0)
}
