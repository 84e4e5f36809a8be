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

use super::{
    error::Error,
    keeper::{Keeper, Look},
    repair::Repair,
};

/// How often chains are looked at: the kernel sends no event when a TCX program is attached.
const PERIOD: Duration = Duration::from_secs(1);

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
    let mut keeper = Keeper::new(name)?;
    if !keeper.is_attached()? {
        return Err(Error::NotAttached(name.to_owned()));
    }
    let mut waiter = Waiter::new().map_err(Error::Wait)?;
    let mut last_failure = None;
    loop {
        let look = match waiter.wait() {
            Wake::Stop => {
                report(Watched::Stopped);
                return Ok(());
            }
            Wake::Tick => Look::Period,
            Wake::Event => Look::Full,
        };
        let looked = match keeper.is_attached() {
            Ok(false) => {
                report(Watched::Detached);
                return Ok(());
            }
            Ok(true) => keeper.look(look),
            Err(error) => Err(error),
        };
        match looked {
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
