//! `xkub token …`.

use std::{
    fs::File,
    io::{self, Read as _, Write as _, stdin, stdout},
    net::IpAddr,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, anyhow, bail};
use clap::{Args, Subcommand, ValueEnum};
use ipnet::IpNet;
use serde::Serialize;
use xkub_userspace::{
    files,
    join::{self, Change, Expiry, Found, INPUT_LIMIT, Kind, Outcome, Replace, Rewritten},
};

use super::{
    output::{Format, print},
    table::table,
};

/// What stands for stdin.
const STDIN: &str = "-";

/// For files that don't exist; `--in-place` keeps the mode of the one that does.
const SECRET_MODE: u32 = 0o600;

/// Subcommands of `xkub token`.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Say which servers a token or a join file leads to. Shows no secret
    Inspect(Input),
    /// Point a token or a join file to the join endpoint: the file goes to stdout, what was changed to stderr
    Rewrite(Rewrite),
}

/// What is read.
#[derive(Debug, Args)]
pub struct Input {
    /// A k0s token, kubeconfig, kubeadm join configuration, k3s or rke2 file, cloud-init user data or
    /// Ignition configuration; `-` is stdin
    #[arg(value_name = "FILE|-", default_value = STDIN)]
    file: PathBuf,
    /// What it is; `auto` looks
    #[arg(long, value_enum, default_value = "auto", env = "XKUB_TOKEN_KIND")]
    kind: KindChoice,
}

/// Arguments of `xkub token rewrite`.
#[derive(Debug, Args)]
pub struct Rewrite {
    #[command(flatten)]
    input: Input,
    /// Where guests reach the API: HOST:PORT, [IPV6]:PORT or https://HOST:PORT. Without a port, each address keeps
    /// its own
    #[arg(long, value_name = "HOST:PORT", env = "XKUB_JOIN_ENDPOINT")]
    endpoint: String,
    /// Servers whose address is in this network are replaced; may be repeated. Servers with a DNS name never are
    #[arg(
        long,
        value_name = "CIDR",
        value_delimiter = ',',
        required = true,
        env = "XKUB_JOIN_REPLACE"
    )]
    replace: Vec<String>,
    /// Replace the file itself, in one step; mode and owner stay. What was changed goes to stdout
    #[arg(long, env = "XKUB_IN_PLACE")]
    in_place: bool,
}

/// Values of `--kind`.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum KindChoice {
    Auto,
    Kubeconfig,
    K0s,
    Kubeadm,
    K3sConfig,
    K3sEnv,
    CloudInit,
    Ignition,
}

impl KindChoice {
    fn of(self, bytes: &[u8]) -> Kind {
        match self {
            Self::Auto => join::detect(bytes),
            Self::Kubeconfig => Kind::Kubeconfig,
            Self::K0s => Kind::K0s,
            Self::Kubeadm => Kind::Kubeadm,
            Self::K3sConfig => Kind::K3sConfig,
            Self::K3sEnv => Kind::K3sEnv,
            Self::CloudInit => Kind::CloudInit,
            Self::Ignition => Kind::Ignition,
        }
    }
}

impl Input {
    fn is_stdin(&self) -> bool {
        self.file == Path::new(STDIN)
    }

    /// For errors.
    fn name(&self) -> String {
        if self.is_stdin() {
            "stdin".to_owned()
        } else {
            self.file.display().to_string()
        }
    }

    /// All of it. A pipe is as good as a file.
    fn read(&self) -> anyhow::Result<Vec<u8>> {
        let limit = u64::try_from(INPUT_LIMIT)?;
        let mut bytes = Vec::new();
        // One byte more than allowed tells what is too large.
        let read = if self.is_stdin() {
            stdin().lock().take(limit + 1).read_to_end(&mut bytes)
        } else {
            File::open(&self.file).and_then(|file| file.take(limit + 1).read_to_end(&mut bytes))
        };
        read.with_context(|| format!("{} can't be read", self.name()))?;
        Ok(bytes)
    }
}

/// What `inspect` prints.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Inspected {
    /// Not `kind`, which is the document's.
    format: Kind,
    servers: Vec<Found>,
}

/// What `rewrite --in-place` prints.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Done {
    format: Kind,
    changes: Vec<Change>,
    servers: Vec<Found>,
}

/// Does what the command says.
pub fn run(command: Command, format: Format) -> anyhow::Result<()> {
    match command {
        Command::Inspect(input) => {
            let bytes = input.read()?;
            let kind = input.kind.of(&bytes);
            let servers = join::inspect(kind, &bytes).with_context(|| input.name())?;
            let inspected = Inspected {
                format: kind,
                servers,
            };
            print(format, "Token", &inspected, inspected_text)
        }
        Command::Rewrite(arguments) => rewrite(&arguments, format),
    }
}

fn rewrite(arguments: &Rewrite, format: Format) -> anyhow::Result<()> {
    let Rewrite {
        input,
        endpoint,
        replace,
        in_place,
    } = arguments;
    if *in_place && input.is_stdin() {
        bail!("--in-place needs a FILE: stdin can't be replaced");
    }
    let replace = Replace {
        cidrs: replace
            .iter()
            .map(|cidr| network(cidr))
            .collect::<anyhow::Result<_>>()?,
        endpoint: endpoint.parse()?,
    };
    let bytes = input.read()?;
    let kind = input.kind.of(&bytes);
    let Rewritten {
        bytes: new,
        changes,
        found,
    } = join::rewrite(kind, &bytes, &replace).with_context(|| input.name())?;
    let text = done_text(&found);
    if !in_place {
        write(&new)?;
        eprint!("{text}");
        return Ok(());
    }
    if !changes.is_empty() {
        files::replace(&input.file, &new, SECRET_MODE)?;
    }
    let done = Done {
        format: kind,
        changes,
        servers: found,
    };
    print(format, "TokenRewrite", &done, |_| text)
}

/// A network, or a single address.
fn network(text: &str) -> anyhow::Result<IpNet> {
    text.parse()
        .or_else(|_| text.parse::<IpAddr>().map(IpNet::from))
        .map_err(|_| {
            anyhow!("--replace {text:?} is neither a network like 10.244.0.0/16 nor an address")
        })
}

fn write(bytes: &[u8]) -> anyhow::Result<()> {
    let mut stdout = stdout().lock();
    match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        // Whoever reads has seen enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result.context("stdout can't be written"),
    }
}

fn inspected_text(inspected: &Inspected) -> String {
    let Inspected { format, servers } = inspected;
    let mut rows = vec![vec!["format".to_owned(), format.name().to_owned()]];
    if servers.is_empty() {
        rows.push(vec!["server".to_owned(), "none".to_owned()]);
    }
    for found in servers {
        let Found {
            kind,
            place,
            server,
            user,
            token_id,
            expiry,
            outcome: _,
        } = found;
        let mut row = |name: &str, value: String| rows.push(vec![name.to_owned(), value]);
        row("server", format!("{server} ({}, {place})", kind.name()));
        if let Some(user) = user {
            row("  user", format!("{user}{}", role(user)));
        }
        if let Some(id) = token_id {
            row("  token id", id.clone());
            if *expiry == Expiry::OfBootstrapToken {
                row(
                    "  expiry",
                    format!("not in it: see the Secret kube-system/bootstrap-token-{id}"),
                );
            }
        }
    }
    table(&rows, 0)
}

/// What k0s means by a user's name.
fn role(user: &str) -> &'static str {
    match user {
        "kubelet-bootstrap" => " (a worker)",
        "controller-bootstrap" => " (a controller)",
        _ => "",
    }
}

fn done_text(found: &[Found]) -> String {
    if found.is_empty() {
        return "no server address found, nothing changed\n".to_owned();
    }
    let lines = found.iter().map(|found| {
        let Found { place, server, .. } = found;
        let what = match &found.outcome {
            Some(Outcome::Replaced { to }) => format!("{server} → {to}"),
            Some(Outcome::Already) => format!("{server} is the endpoint already"),
            Some(Outcome::ControllerToken) => {
                format!("{server} left alone: it is a controller's token")
            }
            Some(Outcome::Name) => format!("{server} left alone: it is a name"),
            Some(Outcome::OtherAddress) | None => {
                format!("{server} left alone: it is in none of the networks to replace")
            }
        };
        format!("{place}: {what}\n")
    });
    lines.collect::<Vec<_>>().concat()
}
