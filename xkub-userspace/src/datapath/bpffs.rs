//! The BPF filesystem: found in mountinfo, mounted only where there is none.
//!
//! Never mounted on top of another: Cilium refuses to start when it finds two, and what is pinned below is
//! hidden.

use std::{fs, io, path::Path};

use nix::mount::{MsFlags, mount};
use thiserror::Error;

/// Where everybody expects it.
pub const MOUNT_POINT: &str = "/sys/fs/bpf";
const MOUNTINFO: &str = "/proc/self/mountinfo";

/// Why there is no BPF filesystem.
#[derive(Debug, Error)]
pub enum BpffsError {
    /// It is not known whether there is one.
    #[error("{MOUNTINFO} can't be read")]
    Mountinfo(#[source] io::Error),
    /// There is none, and it can't be mounted.
    #[error(
        "no bpffs is mounted on {MOUNT_POINT}, and mounting it failed ({0}); do it by hand: mount -t bpf bpf {MOUNT_POINT}"
    )]
    NotMountable(io::Error),
    /// Something else is there.
    #[error(
        "{MOUNT_POINT} has a {0} mounted on it, not a bpffs; unmount it, then: mount -t bpf bpf {MOUNT_POINT}"
    )]
    SomethingElse(String),
}

/// Whether a BPF filesystem is on [`MOUNT_POINT`].
///
/// # Errors
/// [`BpffsError::Mountinfo`], [`BpffsError::SomethingElse`].
pub fn is_mounted() -> Result<bool, BpffsError> {
    let mountinfo = fs::read_to_string(MOUNTINFO).map_err(BpffsError::Mountinfo)?;
    match filesystem_on(&mountinfo, MOUNT_POINT) {
        None => Ok(false),
        Some("bpf") => Ok(true),
        Some(other) => Err(BpffsError::SomethingElse(other.to_owned())),
    }
}

/// Mounts one on [`MOUNT_POINT`] unless there is one.
///
/// # Errors
/// [`BpffsError`], one variant per cause.
pub fn ensure_mounted() -> Result<(), BpffsError> {
    if is_mounted()? {
        return Ok(());
    }
    mount(
        Some("bpf"),
        Path::new(MOUNT_POINT),
        Some("bpf"),
        MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC | MsFlags::MS_RELATIME,
        Some("mode=700"),
    )
    .map_err(|errno| BpffsError::NotMountable(errno.into()))
}

/// The type of the filesystem that is on top of `mount_point` (proc(5), `/proc/pid/mountinfo`).
fn filesystem_on<'a>(mountinfo: &'a str, mount_point: &str) -> Option<&'a str> {
    mountinfo
        .lines()
        .filter_map(|line| {
            let (mount, filesystem) = line.split_once(" - ")?;
            (mount.split(' ').nth(4)? == mount_point).then(|| filesystem.split(' ').next())?
        })
        .next_back()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_top_mount_counts() {
        let sysfs = "24 31 0:22 / /sys rw,nosuid shared:7 - sysfs sysfs rw\n";
        let bpf = "35 24 0:32 / /sys/fs/bpf rw,nosuid shared:9 master:1 - bpf bpf rw,mode=700\n";
        let cilium = "36 24 0:33 / /run/cilium/bpf rw - bpf bpf rw\n";
        let tmpfs = "99 35 0:50 / /sys/fs/bpf rw - tmpfs tmpfs rw\n";
        for (mountinfo, expected) in [
            (String::new(), None),
            (sysfs.to_owned(), None),
            ([sysfs, cilium].concat(), None),
            ([sysfs, bpf].concat(), Some("bpf")),
            ([sysfs, bpf, tmpfs].concat(), Some("tmpfs")),
            ([sysfs, tmpfs, bpf].concat(), Some("bpf")),
        ] {
            assert_eq!(
                filesystem_on(&mountinfo, MOUNT_POINT),
                expected,
                "{mountinfo}"
            );
        }
    }
}
