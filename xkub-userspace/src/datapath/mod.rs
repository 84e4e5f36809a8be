//! The datapath on the uplink: loading, attaching, looking at it. The only place that knows aya.
//!
//! All functions block. They act in the network namespace and the mount namespace of the calling thread.

mod addresses;
mod announcements;
mod attach;
mod bpffs;
mod capabilities;
mod chain;
mod change;
mod clsact;
mod counters;
mod detach;
mod error;
mod hook;
mod keeper;
mod monitor;
pub mod object;
mod pins;
mod repair;
pub mod settings;
mod show;
mod sys;
mod tcx;
mod watch;
mod xdp;

use std::{num::NonZeroU32, ops::ControlFlow};

use self::pins::Pins;
pub use self::{
    addresses::{marked_addresses, put_addresses, remove_address},
    announcements::Announcements,
    attach::attach,
    bpffs::BpffsError,
    capabilities::CapabilityError,
    chain::Entry,
    counters::{Counter, Flows, Stats, seen},
    detach::Detached,
    error::Error,
    hook::{Direction, Hook, PlaceExt},
    keeper::{Keeper, Look},
    monitor::{Ends, Shown},
    repair::{Cause, Repair},
    settings::Settings,
    show::{AddressLine, Chains, Datapath, Hooks, MapLine, ProgramLine},
    watch::Watched,
};
use crate::{
    netlink::Netlink,
    node::uplink::{self, UplinkError},
};

/// Describes a datapath. Without a name: the only one there is.
///
/// # Errors
/// [`Error::NothingAttached`], [`Error::NotAttached`], [`Error::SeveralAttached`], and whatever the kernel
/// does not tell. Needs `CAP_SYS_ADMIN`, without which the kernel does not say whose programs are whose.
pub fn show(uplink: Option<&str>) -> Result<Datapath, Error> {
    let name = attached(uplink)?;
    let netlink = Netlink::open()?;
    let uplink = uplink::find(&netlink, &name)?;
    show::show(&netlink, &uplink, &Pins::of(&name))
}

/// Reads a datapath's counters. Without a name: the only one there is.
///
/// # Errors
/// As [`show`].
pub fn stats(uplink: Option<&str>) -> Result<Stats, Error> {
    let uplink = attached(uplink)?;
    let pins = Pins::of(&uplink);
    let counters = counters::counters(&pins)?;
    Ok(Stats {
        flows: counters::flows(&pins, &counters)?,
        uplink,
        counters,
    })
}

/// Removes a datapath and all that belongs to it. Without a name: the only one there is. That there is none is
/// no error, since nothing is what was asked for; [`Detached::removed`] is empty then.
///
/// # Errors
/// [`Error::SeveralAttached`] without a name; [`Error::Uplink`] for a name that is no interface; whatever can't
/// be removed.
pub fn detach(uplink: Option<&str>) -> Result<Detached, Error> {
    if let Some(name) = uplink {
        return detach::detach(name);
    }
    match attached(None) {
        Ok(name) => detach::detach(&name),
        Err(Error::NothingAttached) => Ok(Detached {
            uplink: None,
            removed: Vec::new(),
        }),
        Err(error) => Err(error),
    }
}

/// Keeps a datapath in its place until SIGTERM, SIGINT or its detachment: TCX programs are made first and last
/// again, filters and the qdisc put back, the last place moved behind filters that come, and back when they go.
/// `report` hears of everything.
///
/// # Errors
/// As [`show`]; [`Error::Wait`]. What fails later is reported, and tried again.
pub fn watch(uplink: Option<&str>, mut report: impl FnMut(Watched)) -> Result<(), Error> {
    watch::watch(&attached(uplink)?, &mut report)
}

/// Shows every `one_in`-th packet of each counter, as it goes on, until SIGTERM, SIGINT or `report` breaks. Packets that find no room in the
/// ring buffer are not shown.
///
/// # Errors
/// As [`show`]; [`Error::Wait`].
pub fn monitor(
    uplink: Option<&str>,
    one_in: NonZeroU32,
    mut report: impl FnMut(Shown) -> ControlFlow<()>,
) -> Result<(), Error> {
    monitor::monitor(&attached(uplink)?, one_in.get(), &mut report)
}

/// The announcements that leave an uplink. Must be called within a tokio runtime.
///
/// # Errors
/// As [`show`]; [`Error::Wait`].
pub fn announcements(uplink: &str) -> Result<Announcements, Error> {
    Announcements::open(&Pins::of(&attached(Some(uplink))?))
}

/// The uplink that is meant, if it has a datapath.
fn attached(uplink: Option<&str>) -> Result<String, Error> {
    capabilities::check()?;
    let uplinks = if bpffs::is_mounted()? {
        Pins::uplinks()?
    } else {
        Vec::new()
    };
    match (uplink, uplinks.as_slice()) {
        (Some(name), _) if uplinks.iter().any(|uplink| uplink == name) => Ok(name.to_owned()),
        (Some(name), _) => {
            // A name that is no interface at all is the likelier mistake.
            match uplink::find(&Netlink::open()?, name) {
                Err(error @ UplinkError::Unknown { .. }) => Err(error.into()),
                _ => Err(Error::NotAttached(name.to_owned())),
            }
        }
        (None, [only]) => Ok(only.clone()),
        (None, []) => Err(Error::NothingAttached),
        (None, _) => Err(Error::SeveralAttached(uplinks)),
    }
}
