//! A stand-in for a k0s worker: the files that `k0s install worker` writes, and a program that logs how it was started.

use std::io::Write as _;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

use super::image::Disk;
use super::machine::Guest;

/// The program.
const PROGRAM: &str = include_str!("k0s.sh");
/// Where a guest's token lies.
pub const TOKEN_FILE: &str = "/etc/k0s/k0stoken";
/// The worker's unit.
pub const UNIT: &str = "k0sworker.service";
/// Where the stand-in finds what the cluster would give the kubelet.
const CLIENT_CERTIFICATE: &str = "/usr/lib/lab/kubelet-client.pem";
/// Where each start leaves a line.
const STARTS: &str = "/var/log/k0s-starts";
/// How the worker was started once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Start {
    /// `server:` of the token.
    pub token_server: String,
    /// `server:` of kubelet.conf, which the first start takes from the token.
    pub server: String,
    /// All arguments, `worker` first.
    pub arguments: Vec<String>,
}

impl Start {
    /// The value of an argument `--name=value`.
    #[must_use]
    pub fn argument(&self, name: &str) -> Option<&str> {
        self.arguments.iter().find_map(|argument| {
            argument
                .strip_prefix("--")?
                .strip_prefix(name)?
                .strip_prefix('=')
        })
    }

    /// The value of a kubelet's flag in `--kubelet-extra-args`, which k0s splits at spaces.
    #[must_use]
    pub fn kubelet_argument(&self, name: &str) -> Option<&str> {
        self.argument("kubelet-extra-args")?
            .split(' ')
            .find_map(|argument| {
                argument
                    .strip_prefix("--")?
                    .strip_prefix(name)?
                    .strip_prefix('=')
            })
    }
}

/// The unit as k0s 1.36.3 writes it (`pkg/install/systemd_linux.go`): flags sorted, spaces as `\x20`, nothing else escaped.
fn unit() -> String {
    format!(
        r"[Unit]
Description=k0s - Zero Friction Kubernetes
Documentation=https://docs.k0sproject.io
ConditionFileIsExecutable=/usr/local/bin/k0s

After=network-online.target
Wants=network-online.target

[Service]
StartLimitInterval=5
StartLimitBurst=10
ExecStart=/usr/local/bin/k0s worker --kubelet-extra-args=--v=2\x20--node-labels=a=b --labels=x=y --token-file={TOKEN_FILE}

RestartSec=10
Delegate=yes
KillMode=process
LimitCORE=infinity
TasksMax=infinity
TimeoutStartSec=0
LimitNOFILE=999999
Restart=always

[Install]
WantedBy=multi-user.target
"
    )
}

/// What a cluster gives a worker.
#[derive(Debug, Clone, Copy)]
pub struct Credentials<'a> {
    /// Its authority's certificate, as PEM.
    pub authority: &'a str,
    /// What it would sign for the kubelet at the end of the join: a certificate and its key, as PEM.
    pub client: &'a str,
}

/// A worker's join token (k0s, `pkg/token/joinencode.go`): a kubeconfig as gzip as base64.
///
/// # Errors
/// Without `gzip` or `base64`.
pub fn token(server: &str, authority: &str) -> Result<String> {
    let authority = String::from_utf8(filter("base64", &["--wrap=0"], authority.as_bytes())?)?;
    let kubeconfig = format!(
        "apiVersion: v1\n\
         clusters:\n\
         - cluster:\n    \
             certificate-authority-data: {authority}\n    \
             server: {server}\n  \
           name: k0s\n\
         contexts:\n\
         - context:\n    \
             cluster: k0s\n    \
             user: kubelet-bootstrap\n  \
           name: k0s\n\
         current-context: k0s\n\
         kind: Config\n\
         users:\n\
         - name: kubelet-bootstrap\n  \
           user:\n    \
             token: abcdef.0123456789abcdef\n"
    );
    let packed = filter("gzip", &["--best", "--no-name"], kubeconfig.as_bytes())?;
    let text = filter("base64", &["--wrap=0"], &packed)?;
    Ok(String::from_utf8(text)?)
}

/// A few kilobytes at most: they fit into a pipe.
fn filter(program: &str, arguments: &[&str], input: &[u8]) -> Result<Vec<u8>> {
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("start {program}"))?;
    let mut stdin = child.stdin.take().context("no standard input")?;
    stdin.write_all(input)?;
    drop(stdin);
    let output = child.wait_with_output()?;
    if !output.status.success() {
        bail!("{program}: {}", output.status);
    }
    Ok(output.stdout)
}

/// What `k0s install worker --token-file …` leaves on a disk, enabled, with a token for `server`; and, out of the way, what
/// the cluster would give it.
///
/// # Errors
/// As [`token`].
pub fn install(disk: Disk, server: &str, credentials: Credentials<'_>) -> Result<Disk> {
    let Credentials { authority, client } = credentials;
    let unit_file = format!("/etc/systemd/system/{UNIT}");
    Ok(disk
        .file("/usr/local/bin/k0s", PROGRAM, 0o755)
        .file(TOKEN_FILE, token(server, authority)?, 0o600)
        .file(CLIENT_CERTIFICATE, client, 0o600)
        .file(&unit_file, unit(), 0o644)
        .link(
            &format!("/etc/systemd/system/multi-user.target.wants/{UNIT}"),
            &unit_file,
        ))
}

/// How the worker was started so far, the first time first.
///
/// # Errors
/// When the guest does not answer.
pub fn starts(guest: &Guest) -> Result<Vec<Start>> {
    let text = guest.run(&format!("cat {STARTS} 2> /dev/null"))?.stdout;
    let start = |line: &str| -> Option<Start> {
        let mut fields = line.split('\t').map(str::to_owned);
        Some(Start {
            token_server: fields.next()?,
            server: fields.next()?,
            arguments: fields.collect(),
        })
    };
    // The last line may be half written.
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    whole
        .lines()
        .map(|line| start(line).with_context(|| format!("a start is logged as {line:?}")))
        .collect()
}
