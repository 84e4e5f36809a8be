//! The DHCP server in a virt-launcher pod, which gives the guest its one address: busybox's, with KubeVirt's answers.

use std::fs;

use anyhow::{Context as _, Result};

use crate::masquerade::{GATEWAY_V4, GUEST_V4};
use crate::namespace::{Namespace, Running};

/// Serves until it is dropped.
#[derive(Debug)]
pub(super) struct Dhcp {
    _server: Running,
    // Last: the server writes into it.
    _folder: tempfile::TempDir,
}

impl Dhcp {
    /// Starts it on the bridge of `launcher`, for the guest with hardware address `mac`.
    ///
    /// It ends with the thread that started it.
    pub(super) fn start(launcher: &Namespace, mac: &str, mtu: u32) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("xkub-").tempdir()?;
        let path = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
        let config = path("udhcpd.conf");
        // The options of pkg/network/dhcp/server: mask, router, MTU, and a lease without end.
        let text = format!(
            "interface k6t-eth0\nstart {GUEST_V4}\nend {GUEST_V4}\nstatic_lease {mac} {GUEST_V4}\n\
             option subnet 255.255.255.0\noption router {GATEWAY_V4}\noption mtu {mtu}\noption lease 4294967295\n\
             lease_file {}\npidfile {}\n",
            path("leases"),
            path("pid"),
        );
        fs::write(&config, text).with_context(|| format!("write {config}"))?;
        fs::write(path("leases"), "")?;
        let server = launcher.spawn(["busybox", "udhcpd", "-f", &config])?;
        Ok(Self {
            _server: server,
            _folder: folder,
        })
    }
}
