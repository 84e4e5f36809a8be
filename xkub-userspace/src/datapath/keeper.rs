//! Keeping a datapath in its place: a look that costs next to nothing while nobody has touched the hooks, and the
//! repair when somebody has.

use tracing::{debug, warn};
use xkub_common::counter::Place;

use super::{
    bpffs, capabilities,
    error::Error,
    hook::{Direction, Hook},
    pins::Pins,
    repair::{self, Repair},
    sys,
};
use crate::{
    netlink::Netlink,
    node::uplink::{self, UplinkError},
};

/// How many places may be taken again in a row. Two programs that both want to be first would otherwise fight
/// for ever, at the cost of a core.
const PATIENCE: u32 = 12;
/// One more after this many periods.
const PATIENCE_PERIODS: u32 = 10;
/// A chain whose revision has not changed is looked at all the same after this many periods.
const FULL_LOOK_PERIODS: u32 = 30;

/// What a look is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// A period is over: nothing is known to have happened, and TCX tells by its revision that nothing has.
    Period,
    /// Something has happened on the uplink or its hooks.
    Full,
}

/// Keeps one uplink's datapath in its place.
#[derive(Debug)]
pub struct Keeper {
    netlink: Netlink,
    pins: Pins,
    uplink: String,
    patience: Patience,
    /// What the last look saw, if all was on TCX.
    known: Option<Known>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Known {
    ifindex: u32,
    revisions: [u64; 2],
}

impl Keeper {
    /// A keeper for what is attached to an uplink, now or later.
    ///
    /// # Errors
    /// [`Error::Capabilities`], [`Error::Netlink`].
    pub fn new(uplink: &str) -> Result<Self, Error> {
        capabilities::check()?;
        Ok(Self {
            netlink: Netlink::open()?,
            pins: Pins::of(uplink),
            uplink: uplink.to_owned(),
            patience: Patience::default(),
            known: None,
        })
    }

    /// The uplink.
    #[must_use]
    pub fn uplink(&self) -> &str {
        &self.uplink
    }

    /// Whether anything is attached, or was and has left its pins.
    ///
    /// # Errors
    /// [`Error::Bpffs`].
    pub fn is_attached(&self) -> Result<bool, Error> {
        Ok(bpffs::is_mounted()? && self.pins.exist())
    }

    /// Looks, and takes places again where we don't stand as we should. What was done.
    ///
    /// # Errors
    /// [`Error`]: it may be tried again.
    pub fn look(&mut self, why: Look) -> Result<Vec<Repair>, Error> {
        if why == Look::Period {
            self.patience.tick();
            if !self.patience.is_full_look()
                && let Some(known) = self.known
                && known.revisions == tcx_revisions(known.ifindex)?
            {
                return Ok(Vec::new());
            }
        }
        self.known = None;
        if !self.is_attached()? {
            return Ok(Vec::new());
        }
        let uplink = match uplink::find(&self.netlink, &self.uplink) {
            Ok(uplink) => uplink,
            // It may come back.
            Err(UplinkError::Unknown { .. }) => return Ok(Vec::new()),
            Err(error) => return Err(error.into()),
        };
        let faults = repair::faults(&self.netlink, &uplink, &self.pins)?;
        let repairs = if faults.is_empty() {
            faults
        } else if self.patience.take() {
            let lock = self.pins.lock()?;
            let repairs = if self.pins.exist() {
                repair::repair(&self.netlink, &uplink, &self.pins)?
            } else {
                Vec::new()
            };
            drop(lock);
            repairs
        } else {
            debug!(?faults, "waiting: places were taken again too often");
            return Ok(Vec::new());
        };
        if self.is_all_on_tcx()? {
            self.known = Some(Known {
                ifindex: uplink.index,
                revisions: tcx_revisions(uplink.index)?,
            });
        }
        Ok(repairs)
    }

    /// The places where we don't stand as we should; nothing is done about them.
    ///
    /// # Errors
    /// [`Error`].
    pub fn faults(&self) -> Result<Vec<Repair>, Error> {
        if !self.is_attached()? {
            return Ok(Vec::new());
        }
        let uplink = uplink::find(&self.netlink, &self.uplink)?;
        repair::faults(&self.netlink, &uplink, &self.pins)
    }

    fn is_all_on_tcx(&self) -> Result<bool, Error> {
        for place in Place::ALL {
            if self.pins.hook(*place)? != Hook::Tcx {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

fn tcx_revisions(ifindex: u32) -> Result<[u64; 2], Error> {
    let revision = |direction| match sys::tcx_chain(ifindex, direction) {
        Ok(chain) => Ok(chain.revision),
        Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(0),
        Err(error) => Err(Error::Wait(error)),
    };
    Ok([revision(Direction::Ingress)?, revision(Direction::Egress)?])
}

/// How often places may still be taken again.
#[derive(Debug)]
struct Patience {
    left: u32,
    periods: u32,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            left: PATIENCE,
            periods: 0,
        }
    }
}

impl Patience {
    fn tick(&mut self) {
        self.periods = self.periods.wrapping_add(1);
        if self.periods.is_multiple_of(PATIENCE_PERIODS) {
            self.left = (self.left + 1).min(PATIENCE);
        }
    }

    fn is_full_look(&self) -> bool {
        self.periods.is_multiple_of(FULL_LOOK_PERIODS)
    }

    fn take(&mut self) -> bool {
        match self.left.checked_sub(1) {
            Some(left) => {
                self.left = left;
                if left == 0 {
                    warn!(
                        "somebody keeps taking our places; they are taken again more slowly from now on"
                    );
                }
                true
            }
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_runs_out_and_comes_back() {
        let mut patience = Patience::default();
        assert!((0..PATIENCE).all(|_| patience.take()));
        assert!(!patience.take());
        (0..PATIENCE_PERIODS).for_each(|_| patience.tick());
        assert!(patience.take());
        assert!(!patience.take());
        (0..PATIENCE_PERIODS * 100).for_each(|_| patience.tick());
        assert_eq!(patience.left, PATIENCE);
    }
}
