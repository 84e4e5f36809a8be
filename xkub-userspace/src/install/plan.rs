//! What `xkub install` makes of a system.

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::{
    InstallError,
    config::{self, Setting, SettingError},
    step::Step,
};
use crate::{
    files::{self, FileError},
    node::{
        boot_order::{self, AGENT_UNIT, Start},
        distribution::{self, Distribution},
        file_change::FileChange,
        rooted,
        unit::ETC,
    },
};

/// Where the binary is put, unless it is where packages put theirs.
pub const BINARY: &str = "/usr/local/bin/xkub";
const PACKAGED: &str = "/usr/bin/xkub";
/// More than our own binary has, bytes.
const BINARY_LIMIT: u64 = 1 << 28;
const NETWORKD: &str = "/etc/systemd/network/10-xkub0.network";
const NETWORK_MANAGER: &str = "/etc/NetworkManager/conf.d/10-xkub.conf";
const UNIT_TEXT: &str = include_str!("agent.service");

/// What is wanted.
#[derive(Clone, Debug)]
pub struct Options {
    /// Whether the worker waits.
    pub start: Start,
    /// Whose worker; none is found by looking.
    pub distribution: Option<Distribution>,
    /// What the configuration file says, where there is none yet.
    pub settings: Vec<Setting>,
    /// The running binary.
    pub executable: PathBuf,
}

/// Where the agent's unit lies.
pub(super) fn unit_path() -> PathBuf {
    Path::new(ETC).join(AGENT_UNIT)
}

/// What enables it.
pub(super) fn wants_path() -> PathBuf {
    Path::new(ETC)
        .join("multi-user.target.wants")
        .join(AGENT_UNIT)
}

/// The agent's unit.
#[must_use]
pub fn unit_text(binary: &str, start: Start) -> String {
    let timeout = match start {
        Start::FailOpen => {
            "# More than start-timeout in [node]. The worker waits for the agent's start, and for no longer than this.\n\
             TimeoutStartSec=90"
        }
        Start::FailClosed => {
            "# The worker waits for as long as it takes.\nTimeoutStartSec=infinity"
        }
    };
    UNIT_TEXT
        .replace("@BINARY@", binary)
        .replace("@START_TIMEOUT@", timeout)
}

/// What is still to be done below `root`; nothing where all is installed.
///
/// # Errors
/// [`InstallError`]: nothing has changed then.
pub fn plan(root: &Path, options: &Options) -> Result<Vec<Step>, InstallError> {
    let mut steps = Vec::new();
    let binary = if options.executable == root.join(PACKAGED.trim_start_matches('/')) {
        PACKAGED
    } else {
        let contents = read_binary(&options.executable)?;
        let why = "the agent";
        steps.push(Step::File(FileChange::write(BINARY, contents, 0o755, why)));
        BINARY
    };
    steps.extend(config_file(root, options)?);
    for (path, text) in network_files() {
        let why = "the address device is left to the agent";
        steps.push(Step::File(FileChange::write(path, text, 0o644, why)));
    }
    for distribution in distributions(root, options)? {
        steps.push(Step::File(boot_order::drop_in(
            distribution,
            options.start,
            binary,
        )));
    }
    let unit = unit_text(binary, options.start);
    let why = "the agent's unit";
    steps.push(Step::File(FileChange::write(unit_path(), unit, 0o644, why)));
    // Last: what is enabled is complete.
    steps.push(Step::Link {
        path: wants_path(),
        target: unit_path(),
        why: "the agent starts at boot".to_owned(),
    });
    let mut due = Vec::new();
    for step in steps {
        if step.is_due(root)? {
            due.push(step);
        }
    }
    Ok(due)
}

fn read_binary(path: &Path) -> Result<Vec<u8>, FileError> {
    files::read(path, BINARY_LIMIT)?.ok_or_else(|| FileError::NotAFile {
        path: path.to_owned(),
    })
}

/// A configuration that is there is never touched.
fn config_file(root: &Path, options: &Options) -> Result<Option<Step>, InstallError> {
    let path = Path::new(config::PATH);
    let exists = rooted::resolve(root, path)
        .and_then(fs::symlink_metadata)
        .is_ok();
    let settings = &options.settings;
    if exists && !settings.is_empty() {
        let keys = settings.iter().map(Setting::path).collect();
        return Err(SettingError::Exists { keys }.into());
    }
    Ok((!exists).then(|| {
        let why = "the agent's configuration";
        Step::File(FileChange::write(path, config::text(settings), 0o644, why))
    }))
}

/// The worker that is named or found. Before there is one, as in an image, it may become any.
fn distributions(root: &Path, options: &Options) -> Result<Vec<Distribution>, InstallError> {
    if let Some(named) = options.distribution {
        return Ok(vec![named]);
    }
    let tree = distribution::read(root)?;
    let found = distribution::find(&tree, None)?;
    Ok(found.map_or_else(
        || Distribution::ALL.to_vec(),
        |worker| vec![worker.distribution],
    ))
}

/// Both, whether they run here or not: they may later. Matched by its name, because their defaults may match every
/// Ethernet device, and a dummy is one.
pub(super) fn network_files() -> [(&'static str, &'static str); 2] {
    [
        (
            NETWORKD,
            "# Written by xkub: this device and its addresses are the agent's.\n\
             [Match]\nName=xkub0\n\n[Link]\nUnmanaged=yes\n",
        ),
        (
            NETWORK_MANAGER,
            "# Written by xkub: this device and its addresses are the agent's.\n\
             [device-xkub0]\nmatch-device=interface-name:xkub0\nmanaged=0\n",
        ),
    ]
}

/// Whether a file is one that the network's manager has to read.
#[must_use]
pub fn is_for_network(path: &Path) -> bool {
    network_files()
        .iter()
        .any(|(ours, _)| path == Path::new(ours))
}
