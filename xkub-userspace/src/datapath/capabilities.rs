//! Whether this process may do what the datapath needs.

use std::{fs, io};

use thiserror::Error;

const STATUS: &str = "/proc/self/status";
// include/uapi/linux/capability.h
const NET_ADMIN: u32 = 12;
const SYS_ADMIN: u32 = 21;
const BPF: u32 = 39;

/// Why not.
#[derive(Debug, Error)]
pub enum CapabilityError {
    /// Some are missing.
    #[error("{} missing; run as root, or give the process {}", missing.join(" and "), missing.join(" and "))]
    Missing {
        /// Their names.
        missing: Vec<&'static str>,
    },
    /// It is not known which there are.
    #[error("{STATUS} can't be read")]
    Status(#[source] io::Error),
}

/// Looks for `CAP_NET_ADMIN`, and for `CAP_BPF` or `CAP_SYS_ADMIN`, which was all there was before Linux 5.8.
///
/// # Errors
/// [`CapabilityError`].
pub fn check() -> Result<(), CapabilityError> {
    let status = fs::read_to_string(STATUS).map_err(CapabilityError::Status)?;
    let missing = missing(effective(&status));
    if missing.is_empty() {
        Ok(())
    } else {
        Err(CapabilityError::Missing { missing })
    }
}

/// The effective set, one bit each (proc(5)).
fn effective(status: &str) -> u64 {
    status
        .lines()
        .find_map(|line| u64::from_str_radix(line.strip_prefix("CapEff:")?.trim(), 16).ok())
        .unwrap_or_default()
}

fn missing(effective: u64) -> Vec<&'static str> {
    let has = |capability: u32| effective >> capability & 1 == 1;
    let mut missing = Vec::new();
    if !has(BPF) && !has(SYS_ADMIN) {
        missing.push("CAP_BPF");
    }
    if !has(NET_ADMIN) {
        missing.push("CAP_NET_ADMIN");
    }
    missing
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sys_admin_replaces_bpf_but_not_net_admin() {
        for (capabilities, expected) in [
            (&[][..], &["CAP_BPF", "CAP_NET_ADMIN"][..]),
            (&[BPF], &["CAP_NET_ADMIN"]),
            (&[SYS_ADMIN], &["CAP_NET_ADMIN"]),
            (&[NET_ADMIN], &["CAP_BPF"]),
            (&[NET_ADMIN, BPF], &[]),
            (&[NET_ADMIN, SYS_ADMIN], &[]),
        ] {
            let set = capabilities
                .iter()
                .fold(0, |set, capability| set | 1 << capability);
            assert_eq!(missing(set), expected, "{capabilities:?}");
        }
    }

    #[test]
    fn the_effective_set_is_read() {
        let status = "Name:\txkub\nCapPrm:\t0000000000000000\nCapEff:\t000001ffffffffff\nCapBnd:\t0000000000000000\n";
        assert_eq!(effective(status), 0x1ff_ffff_ffff);
        assert_eq!(effective("Name:\txkub\n"), 0);
    }
}
