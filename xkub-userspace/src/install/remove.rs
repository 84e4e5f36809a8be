//! What `xkub uninstall` takes away: all that was installed, and all that the agent wrote since.

use std::path::{Path, PathBuf};

use super::{
    InstallError, config,
    plan::{BINARY, network_files, unit_path, wants_path},
    step::Step,
};
use crate::node::{
    boot_order,
    distribution::{self, Distribution},
    file_change::FileChange,
    node_ip::{self, drop_in_path},
};

/// What the agent keeps until the next boot.
const STATE: &str = "/run/xkub";

/// What there is to remove.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Removal {
    /// In this order.
    pub steps: Vec<Step>,
    /// Whether a worker has a `--node-ip` of ours until its next start.
    pub has_node_ip: bool,
}

/// What is still to be removed below `root`; with `purge`, the configuration too.
///
/// # Errors
/// [`InstallError`]: nothing has changed then.
pub fn remove(root: &Path, purge: bool) -> Result<Removal, InstallError> {
    let tree = distribution::read(root)?;
    let node_ip = node_ip::remove_node_ip(&tree);
    let mut folders: Vec<PathBuf> = Vec::new();
    for change in &node_ip {
        // Not a folder of others: /etc/default, /etc/sysconfig.
        folders.extend(
            change
                .path
                .parent()
                .filter(|folder| folder.extension().is_some_and(|end| end == "d"))
                .map(Path::to_owned),
        );
    }
    let has_node_ip = !node_ip.is_empty();
    // First, so that nothing is enabled that is no longer complete.
    let mut steps = vec![Step::Unlink(wants_path())];
    let mut files = vec![unit_path(), PathBuf::from(BINARY)];
    for distribution in Distribution::ALL {
        let path = drop_in_path(distribution.unit(), boot_order::DROP_IN);
        folders.extend(path.parent().map(Path::to_owned));
        files.push(path);
    }
    files.extend(network_files().map(|(path, _)| PathBuf::from(path)));
    if purge {
        files.push(PathBuf::from(config::PATH));
    }
    steps.extend(node_ip.into_iter().map(Step::File));
    steps.extend(
        files
            .into_iter()
            .map(|path| Step::File(FileChange::remove(path, "xkub is not installed any more"))),
    );
    steps.push(Step::Folder(PathBuf::from(STATE)));
    let mut due = Vec::new();
    for step in steps {
        if step.is_due(root)? {
            due.push(step);
        }
    }
    // Whether they are empty shows only afterwards; only where something of ours goes, or nothing was ever in them.
    folders.extend(Path::new(config::PATH).parent().map(Path::to_owned));
    folders.sort();
    folders.dedup();
    let emptied = folders
        .into_iter()
        .filter(|folder| due.iter().any(|step| step.path().parent() == Some(folder)))
        .map(Step::EmptyFolder)
        .collect::<Vec<_>>();
    due.extend(emptied);
    Ok(Removal {
        steps: due,
        has_node_ip,
    })
}
