//! The node address: where it can be learnt, and which answer counts.

pub mod flap;
pub mod limit;
pub mod pick;
pub mod reflector;
pub mod reflector_client;
pub mod stun;

use std::{fmt, net::IpAddr};

use serde::Serialize;

/// An address family: each has a node address of its own, learnt on its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum Family {
    /// IPv4.
    #[serde(rename = "ipv4")]
    V4,
    /// IPv6.
    #[serde(rename = "ipv6")]
    V6,
}

impl Family {
    /// Both.
    pub const ALL: [Self; 2] = [Self::V4, Self::V6];

    /// What an address belongs to. An IPv4 address mapped into IPv6 counts as IPv6: see
    /// [`IpAddr::to_canonical`].
    #[must_use]
    pub const fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(_) => Self::V4,
            IpAddr::V6(_) => Self::V6,
        }
    }

    /// The name that output and metrics use.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::V4 => "ipv4",
            Self::V6 => "ipv6",
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        })
    }
}
