//! Where programs stand: directions, hooks, and the three places of ours.

use serde::Serialize;
use xkub_common::{counter::Place, program};

/// Which way packets go, seen from the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// From the wire.
    Ingress,
    /// To the wire.
    Egress,
}

impl Direction {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Ingress, Self::Egress];

    /// The direction's name, as tc says it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ingress => "ingress",
            Self::Egress => "egress",
        }
    }
}

/// A kernel hook, in the order in which a packet from the wire meets them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Hook {
    /// Native XDP, in the driver.
    Xdp,
    /// TCX, Linux 6.6 or newer.
    Tcx,
    /// A filter on the clsact qdisc.
    Clsact,
}

impl Hook {
    /// The hook's name, as in output.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Xdp => "xdp",
            Self::Tcx => "tcx",
            Self::Clsact => "clsact",
        }
    }
}

/// What the datapath adds to a [`Place`].
pub trait PlaceExt {
    /// The direction it is in.
    fn direction(self) -> Direction;
    /// Whether it stands behind all others; if not, it stands before them.
    fn stands_last(self) -> bool;
    /// The program that stands there on this hook.
    fn program(self, hook: Hook) -> &'static str;
}

impl PlaceExt for Place {
    fn direction(self) -> Direction {
        match self {
            Self::Ingress => Direction::Ingress,
            Self::EgressFirst | Self::EgressLast => Direction::Egress,
        }
    }

    fn stands_last(self) -> bool {
        matches!(self, Self::EgressLast)
    }

    fn program(self, hook: Hook) -> &'static str {
        match (self, hook) {
            (Self::Ingress, Hook::Xdp) => program::XDP,
            (Self::Ingress, Hook::Tcx | Hook::Clsact) => program::INGRESS,
            (Self::EgressFirst | Self::EgressLast, _) => program::EGRESS,
        }
    }
}
