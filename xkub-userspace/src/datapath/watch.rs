//! Keeping the datapath in its place, until a signal says otherwise.

use std::{io, time::Duration};

use futures::{StreamExt as _, channel::mpsc::UnboundedReceiver};
use netlink_packet_route::RouteNetlinkMessage;
use rtnetlink::{MulticastGroup, packet_core::NetlinkMessage, sys::SocketAddr};
use tokio::{
    runtime::{Builder, Runtime},
    signal::unix::{Signal, SignalKind, signal},
    time::{Interval, MissedTickBehavior, interval},
};
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

/// How often chains are looked at: the kernel sends no event when a TCX program is attached.
const PERIOD: Duration = Duration::from_secs(1);
/// How many places may be taken again in a row. Two programs that both want to be first would otherwise fight
/// for ever, at the cost of a core.
const PATIENCE: u32 = 12;
/// One more after this many periods.
const PATIENCE_PERIODS: u32 = 10;
/// A chain whose revision has not changed is looked at all the same after this many periods.
const FULL_LOOK_PERIODS: u32 = 30;

/// What a watcher did, or saw.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Watched {
    /// A place was taken again.
    Repaired(Repair),
    /// Something could not be done; it will be tried again.
    Failed(String),
    /// The datapath was detached by somebody, so that there is nothing to watch any more.
    Detached,
    /// A signal ended the watch. The datapath stays.
    Stopped,
}

/// Watches an uplink's datapath until SIGTERM, SIGINT or its detachment. `report` hears of everything.
///
/// # Errors
/// [`Error`]: nothing is attached, or events can't be had.
pub(super) fn watch(name: &str, report: &mut dyn FnMut(Watched)) -> Result<(), Error> {
    capabilities::check()?;
    let pins = Pins::of(name);
    if !bpffs::is_mounted()? || !pins.exist() {
        return Err(Error::NotAttached(name.to_owned()));
    }
    let netlink = Netlink::open()?;
    let mut waiter = Waiter::new().map_err(Error::Wait)?;
    let mut patience = Patience::default();
    let mut revisions = None;
    let mut last_failure = None;
    loop {
        let wake = waiter.wait();
        if wake == Wake::Stop {
            report(Watched::Stopped);
            return Ok(());
        }
        if !pins.exist() {
            report(Watched::Detached);
            return Ok(());
        }
        if wake == Wake::Tick {
            patience.tick();
        }
        match look(&netlink, &pins, name, wake, &mut patience, &mut revisions) {
            Ok(repairs) => {
                last_failure = None;
                for repair in repairs {
                    report(Watched::Repaired(repair));
                }
            }
            Err(error) => {
                // Once is enough for the same fault every second.
                let message = format!("{error}");
                if last_failure.as_ref() != Some(&message) {
                    report(Watched::Failed(message.clone()));
                    last_failure = Some(message);
                }
            }
        }
    }
}

fn look(
    netlink: &Netlink,
    pins: &Pins,
    name: &str,
    wake: Wake,
    patience: &mut Patience,
    revisions: &mut Option<[u64; 2]>,
) -> Result<Vec<Repair>, Error> {
    let uplink = match uplink::find(netlink, name) {
        Ok(uplink) => uplink,
        // It may come back.
        Err(UplinkError::Unknown { .. }) => {
            *revisions = None;
            return Ok(Vec::new());
        }
        Err(error) => return Err(error.into()),
    };
    if wake == Wake::Tick
        && !patience.is_full_look()
        && is_tcx_unchanged(pins, uplink.index, *revisions)?
    {
        return Ok(Vec::new());
    }
    let faults = repair::faults(netlink, &uplink, pins)?;
    let repairs = if faults.is_empty() {
        faults
    } else if patience.take() {
        let lock = pins.lock()?;
        let repairs = if pins.exist() {
            repair::repair(netlink, &uplink, pins)?
        } else {
            Vec::new()
        };
        drop(lock);
        repairs
    } else {
        debug!(?faults, "waiting: places were taken again too often");
        return Ok(Vec::new());
    };
    *revisions = Some(tcx_revisions(uplink.index)?);
    Ok(repairs)
}

/// Whether all is on TCX, and nobody was there since we looked.
fn is_tcx_unchanged(pins: &Pins, ifindex: u32, known: Option<[u64; 2]>) -> Result<bool, Error> {
    for place in Place::ALL {
        if pins.hook(*place)? != Hook::Tcx {
            return Ok(false);
        }
    }
    Ok(known == Some(tcx_revisions(ifindex)?))
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

/// Why a watcher woke up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wake {
    Tick,
    Event,
    Stop,
}

type Events = UnboundedReceiver<(NetlinkMessage<RouteNetlinkMessage>, SocketAddr)>;

struct Waiter {
    runtime: Runtime,
    events: Events,
    ticks: Interval,
    interrupt: Signal,
    terminate: Signal,
}

impl Waiter {
    fn new() -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let guard = runtime.enter();
        // Filters that come, filters and qdiscs that go; uplinks that come back.
        let groups = [MulticastGroup::Tc, MulticastGroup::Link];
        let (connection, _, events) = rtnetlink::new_multicast_connection(&groups)?;
        let mut ticks = interval(PERIOD);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let interrupt = signal(SignalKind::interrupt())?;
        let terminate = signal(SignalKind::terminate())?;
        drop(guard);
        runtime.spawn(connection);
        Ok(Self {
            runtime,
            events,
            ticks,
            interrupt,
            terminate,
        })
    }

    fn wait(&mut self) -> Wake {
        let Self {
            runtime,
            events,
            ticks,
            interrupt,
            terminate,
        } = self;
        runtime.block_on(async {
            let wake = tokio::select! {
                biased;
                _ = interrupt.recv() => Wake::Stop,
                _ = terminate.recv() => Wake::Stop,
                Some(_) = events.next() => Wake::Event,
                _ = ticks.tick() => Wake::Tick,
            };
            // One look answers them all.
            while events.try_recv().is_ok() {}
            wake
        })
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
