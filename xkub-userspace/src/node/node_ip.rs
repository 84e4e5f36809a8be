//! The kubelet's `--node-ip`: which files have to change so that it is this node's address, and whether the worker
//! has to be restarted for it.
//!
//! With an external cloud provider the kubelet only notes `--node-ip` on its Node and waits for the provider, which
//! refuses a Node whose note is none of the machine's addresses, and the node keeps its taint. Without the flag,
//! the provider's address is taken, and followed when the machine migrates. Therefore xkub sets no `--node-ip`
//! there, takes its own back, and says so when somebody else has set another one.

use std::{
    net::IpAddr,
    path::{Path, PathBuf},
    time::SystemTime,
};

use super::{
    command_line::{self, SplitError},
    distribution::{Distribution, Warning, Worker, WorkerError},
    file_change::FileChange,
    flags, k0s, k3s, kubeadm,
    tree::Tree,
};

/// The name of our drop-ins that carry `--node-ip`.
pub const OWN_DROP_IN: &str = "50-xkub.conf";
/// The flag.
const FLAG: &str = "--node-ip";
/// Readable by all: there is no secret in it.
pub(super) const MODE: u32 = 0o644;

/// What has to be done about `--node-ip`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeIpPlan {
    /// Files that have to change; none where all is as it should be.
    pub changes: Vec<FileChange>,
    /// What stands in the way.
    pub warnings: Vec<Warning>,
}

/// A worker's process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Running {
    /// Its arguments, as `/proc/<pid>/cmdline` has them.
    pub arguments: Vec<String>,
    /// When it was started, by the wall clock.
    pub started: SystemTime,
}

impl Worker {
    /// What makes the kubelet's next start use these addresses, at most one per family, that of the cluster's first
    /// family first.
    ///
    /// # Errors
    /// [`WorkerError`].
    pub fn plan_node_ip(
        &self,
        tree: &Tree,
        addresses: &[IpAddr],
    ) -> Result<NodeIpPlan, WorkerError> {
        if self.has_external_cloud_provider {
            return Ok(self.leave_to_cloud_provider(tree, addresses));
        }
        let mut warnings = self.warnings.clone();
        let change = match self.distribution {
            Distribution::K0s => {
                let (change, warning) = k0s::node_ip(self, &flag(addresses))?;
                warnings.extend(warning);
                Some(change)
            }
            Distribution::Kubeadm => match kubeadm::node_ip(self, tree, &flag(addresses)) {
                Ok(change) => Some(change),
                Err(warning) => {
                    warnings.push(warning);
                    None
                }
            },
            Distribution::K3s | Distribution::Rke2 => {
                Some(k3s::node_ip(self, tree, &joined(addresses)))
            }
        };
        Ok(NodeIpPlan {
            changes: change
                .filter(|change| is_due(tree, change))
                .into_iter()
                .collect(),
            warnings,
        })
    }

    fn leave_to_cloud_provider(&self, tree: &Tree, addresses: &[IpAddr]) -> NodeIpPlan {
        let foreign = self
            .given_node_ip
            .iter()
            .filter(|given| parse(&given.value) != addresses);
        NodeIpPlan {
            changes: remove_node_ip(tree),
            warnings: foreign
                .map(|given| Warning::ForeignNodeIp {
                    value: given.value.clone(),
                    path: given.path.clone(),
                })
                .collect(),
        }
    }

    /// Whether the running worker has another `--node-ip` than its next start would. Looked at with the tree as it
    /// was before `plan`'s changes, or after them.
    pub fn needs_restart(
        &self,
        tree: &Tree,
        plan: &NodeIpPlan,
        running: &Running,
        addresses: &[IpAddr],
    ) -> bool {
        let in_force = match self.distribution {
            Distribution::K0s => k0s::extra_arguments(&running.arguments)
                .iter()
                .filter_map(|field| field.strip_prefix("--node-ip="))
                .next_back()
                .map(str::to_owned),
            Distribution::Kubeadm => flags::value(&running.arguments, FLAG).map(str::to_owned),
            // The flag is in a file, and only the file's age tells whether the process has read it.
            Distribution::K3s | Distribution::Rke2 => {
                let path = k3s::drop_in(self, tree);
                return !plan.changes.is_empty()
                    || tree
                        .modified(path)
                        .is_some_and(|modified| modified > running.started);
            }
        };
        let wanted = if self.has_external_cloud_provider {
            let given = self.given_node_ip.as_ref();
            given.map(|given| parse(&given.value)).unwrap_or_default()
        } else if plan.warnings.iter().any(Warning::keeps_node_ip_away) {
            // A restart would not help.
            return false;
        } else {
            addresses.to_vec()
        };
        in_force.map(|value| parse(&value)).unwrap_or_default() != wanted
    }
}

impl Warning {
    /// Whether the next start has another `--node-ip` in spite of what we write.
    fn keeps_node_ip_away(&self) -> bool {
        match self {
            Self::Overridden { .. } | Self::NoExtraArguments(_) | Self::OpenQuote(_) => true,
            Self::InlineToken(_) | Self::ForeignNodeIp { .. } | Self::SecondNodeIp { .. } => false,
        }
    }
}

/// What takes our `--node-ip` back, whatever distribution it was for: the next start is as if xkub had never been.
#[must_use]
pub fn remove_node_ip(tree: &Tree) -> Vec<FileChange> {
    let mut changes = kubeadm::remove_node_ip(tree);
    for path in [k0s::drop_in()].into_iter().chain(k3s::own_files(tree)) {
        if tree.get(&path).is_some() {
            changes.push(FileChange::remove(
                path,
                "the kubelet's --node-ip is not xkub's any more",
            ));
        }
    }
    changes
}

/// Whether a file is not yet as it should be.
fn is_due(tree: &Tree, change: &FileChange) -> bool {
    change.contents.as_deref() != tree.get(&change.path).map(str::as_bytes)
}

/// Where a drop-in of a unit lies.
pub(crate) fn drop_in_path(unit: &str, name: &str) -> PathBuf {
    Path::new(super::unit::ETC)
        .join(format!("{unit}.d"))
        .join(name)
}

fn joined(addresses: &[IpAddr]) -> String {
    let texts: Vec<_> = addresses.iter().map(IpAddr::to_string).collect();
    texts.join(",")
}

fn flag(addresses: &[IpAddr]) -> String {
    format!("{FLAG}={}", joined(addresses))
}

fn parse(value: &str) -> Vec<IpAddr> {
    value
        .split(',')
        .filter_map(|text| text.trim().parse().ok())
        .collect()
}

/// Arguments with `flag` as the only `--node-ip`, all others as they stand.
///
/// # Errors
/// [`SplitError`].
pub(super) fn merge(arguments: &str, flag: &str) -> Result<String, SplitError> {
    let without = strip(arguments)?;
    Ok(if without.is_empty() {
        flag.to_owned()
    } else {
        format!("{without} {flag}")
    })
}

/// Arguments without `--node-ip`, all others as they stand.
///
/// # Errors
/// [`SplitError`].
pub(super) fn strip(arguments: &str) -> Result<String, SplitError> {
    let mut kept = Vec::new();
    let mut words = command_line::split(arguments)?.into_iter().peekable();
    while let Some(word) = words.next() {
        if word.value == FLAG {
            // `--node-ip 10.0.2.2`.
            words.next_if(|next| !next.value.starts_with('-'));
        } else if !word.value.starts_with("--node-ip=") {
            kept.push(word);
        }
    }
    Ok(command_line::join(&kept))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_ip_is_merged_and_nothing_else_is_lost() {
        for (arguments, merged, stripped) in [
            ("", "--node-ip=N", ""),
            ("--v=2", "--v=2 --node-ip=N", "--v=2"),
            ("--node-ip=10.0.2.2 --v=2", "--v=2 --node-ip=N", "--v=2"),
            (
                "--node-ip 10.0.2.2 --node-labels='a=b c'",
                "--node-labels='a=b c' --node-ip=N",
                "--node-labels='a=b c'",
            ),
            ("--node-ip", "--node-ip=N", ""),
            ("--node-ip --v=2", "--v=2 --node-ip=N", "--v=2"),
            ("--node-ips=x", "--node-ips=x --node-ip=N", "--node-ips=x"),
        ] {
            assert_eq!(merge(arguments, "--node-ip=N").unwrap(), merged);
            assert_eq!(strip(arguments).unwrap(), stripped);
            assert_eq!(merge(merged, "--node-ip=N").unwrap(), merged);
        }
        assert_eq!(merge("'", "--node-ip=N"), Err(SplitError::OpenQuote));
    }
}
