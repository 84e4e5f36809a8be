//! What outlives the agent until the next boot: its lock, and the node address that was last applied.

use std::{
    fs::{self, File},
    io,
    net::IpAddr,
    path::{Path, PathBuf},
};

use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};
use tracing::warn;

use super::AgentError;
use crate::{
    datapath::settings::DualAddress,
    files::{self, FileError},
};

const LOCK: &str = "agent.lock";
const STATE: &str = "state.json";
/// The shape of the file. Another one is not read.
const VERSION: u32 = 1;
/// Larger than any state, bytes.
const MAX_STATE: u64 = 4096;
const MODE: u32 = 0o644;

/// Keeps a second agent from this node.
#[derive(Debug)]
pub(super) struct Lock(#[expect(dead_code, reason = "held, not read")] Flock<File>);

/// Takes the lock.
///
/// # Errors
/// [`AgentError::Running`] if another agent has it; [`AgentError::StateDirectory`].
pub(super) fn lock(directory: &Path) -> Result<Lock, AgentError> {
    let failed = |reason: io::Error| AgentError::StateDirectory {
        path: directory.to_owned(),
        reason,
    };
    fs::create_dir_all(directory).map_err(failed)?;
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(directory.join(LOCK))
        .map_err(failed)?;
    match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(lock) => Ok(Lock(lock)),
        Err((_, nix::errno::Errno::EWOULDBLOCK)) => Err(AgentError::Running(directory.to_owned())),
        Err((_, errno)) => Err(failed(errno.into())),
    }
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Document {
    version: u32,
    node_addresses: Vec<IpAddr>,
}

/// The address that was last applied. A file that is torn, or not ours, is as good as none.
pub(super) fn read(directory: &Path) -> DualAddress {
    let path = path(directory);
    let contents = match files::read(&path, MAX_STATE) {
        Ok(Some(contents)) => contents,
        Ok(None) => return DualAddress::default(),
        Err(error) => {
            warn!(%error, "what was last applied is not known");
            return DualAddress::default();
        }
    };
    parse(&contents).unwrap_or_else(|why| {
        warn!(path = %path.display(), why, "what was last applied is not known");
        DualAddress::default()
    })
}

/// Notes the address that was applied.
///
/// # Errors
/// [`FileError`].
pub(super) fn write(directory: &Path, address: &DualAddress) -> Result<(), FileError> {
    let document = Document {
        version: VERSION,
        node_addresses: address.iter().collect(),
    };
    // Addresses and a number always become JSON.
    let contents = serde_json::to_vec(&document).unwrap_or_default();
    files::replace(&path(directory), &contents, MODE)
}

fn path(directory: &Path) -> PathBuf {
    directory.join(STATE)
}

fn parse(contents: &[u8]) -> Result<DualAddress, &'static str> {
    let document: Document =
        serde_json::from_slice(contents).map_err(|_| "it is not a whole state")?;
    if document.version != VERSION {
        return Err("it is of another version");
    }
    let mut both = DualAddress::default();
    for address in document.node_addresses {
        match address {
            IpAddr::V4(address) => both.v4 = Some(address),
            IpAddr::V6(address) => both.v6 = Some(address),
        }
    }
    Ok(both)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read() {
        let folder = tempfile::tempdir().unwrap();
        for text in ["10.244.1.226", "fd00::e2", "10.244.1.226,fd00::e2"] {
            let address = DualAddress::parse("node address", text).unwrap();
            write(folder.path(), &address).unwrap();
            assert_eq!(read(folder.path()), address);
        }
    }

    #[test]
    fn a_file_that_is_no_state_is_as_good_as_none() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(read(folder.path()), DualAddress::default());
        for contents in [
            &b""[..],
            b"{\"version\":1,\"nodeAdd",
            b"{\"version\":2,\"nodeAddresses\":[\"10.244.1.226\"]}",
            b"{\"version\":1,\"nodeAddresses\":[\"x\"]}",
            b"{\"version\":1,\"nodeAddresses\":[],\"more\":1}",
            &[0; 5000],
        ] {
            fs::write(path(folder.path()), contents).unwrap();
            assert_eq!(read(folder.path()), DualAddress::default());
        }
    }

    #[test]
    fn there_is_one_agent() {
        let folder = tempfile::tempdir().unwrap();
        let first = lock(folder.path()).unwrap();
        assert!(matches!(lock(folder.path()), Err(AgentError::Running(_))));
        drop(first);
        lock(folder.path()).unwrap();
    }
}
