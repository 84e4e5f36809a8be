//! Putting programs back into their places when somebody has removed or overtaken them.

use aya::programs::SchedClassifier;
use serde::Serialize;
use xkub_common::{counter::Place, map};

use super::{
    chain::{self, Attachment, is_in_place},
    change::Change,
    error::{Error, io_error},
    hook::{Hook, PlaceExt as _},
    object::{self, Maps},
    pins::Pins,
    sys::LinkTarget,
};
use crate::{netlink::Netlink, node::uplink::Uplink};

/// A place that was taken again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Repair {
    /// The place.
    #[serde(serialize_with = "super::counters::place_name")]
    pub place: Place,
    /// Its hook.
    pub hook: Hook,
    /// What was wrong.
    pub cause: Cause,
}

/// Why a place had to be taken again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Cause {
    /// Nothing of ours stood there.
    Removed,
    /// Somebody stood before us, or behind us at the last place.
    Overtaken,
}

/// Looks at every place. Those where we don't stand as we should.
pub(super) fn faults(
    netlink: &Netlink,
    uplink: &Uplink,
    pins: &Pins,
) -> Result<Vec<Repair>, Error> {
    let programs = pins.programs()?;
    let mut faults = Vec::new();
    for (place, info) in &programs {
        let place = *place;
        let hook = pins.hook(place)?;
        let link = pins.pinned_link(place)?.map(|(_, info)| info);
        let chain = chain::read(netlink, uplink, place.direction(), &programs)?;
        let position = chain.iter().position(|entry| {
            entry.id == Some(info.id)
                && match entry.attachment {
                    Attachment::Xdp => hook == Hook::Xdp,
                    Attachment::Tcx { link_id } => link.is_some_and(|link| link.id == link_id),
                    Attachment::Clsact(_) => hook == Hook::Clsact,
                }
        });
        // The slot is on this interface, and not on one of the same name that is gone.
        let is_here = match link.map(|link| link.target) {
            Some(LinkTarget::Tcx { ifindex, .. } | LinkTarget::Xdp { ifindex }) => {
                ifindex == uplink.index
            }
            Some(LinkTarget::Other) => false,
            None => true,
        };
        let cause = match position {
            Some(index) if is_here => {
                if is_in_place(&chain, index, place.stands_last()) {
                    continue;
                }
                Cause::Overtaken
            }
            _ => Cause::Removed,
        };
        faults.push(Repair { place, hook, cause });
    }
    Ok(faults)
}

/// Takes every place again where we don't stand as we should. What was done.
pub(super) fn repair(
    netlink: &Netlink,
    uplink: &Uplink,
    pins: &Pins,
) -> Result<Vec<Repair>, Error> {
    let faults = faults(netlink, uplink, pins)?;
    for fault in &faults {
        let mut change = Change::new(netlink, uplink, pins);
        match put_back(&mut change, pins, *fault) {
            Ok(()) => drop(change.finish()?),
            Err(error) => {
                change.roll_back();
                return Err(error);
            }
        }
    }
    Ok(faults)
}

fn put_back(change: &mut Change<'_>, pins: &Pins, fault: Repair) -> Result<(), Error> {
    let Repair { place, hook, .. } = fault;
    if hook == Hook::Clsact {
        let mut program =
            SchedClassifier::from_pin(pins.program(place)).map_err(|error| Error::Hook {
                place,
                hook,
                source: io_error(error),
            })?;
        return change.place_clsact(place, &mut program);
    }
    // TCX takes a program once per chain, so that a second place in it needs a second instance.
    let (_, info) = pins
        .pinned_program(place)?
        .ok_or(Error::Incomplete(place))?;
    let config = object::constants(&pins.constants(place), &info)?;
    let maps = Maps {
        pins: map::PINNED
            .into_iter()
            .map(|name| (name, pins.map(name)))
            .collect(),
        ..Maps::default()
    };
    let mut instance = object::load(&config, &maps)?;
    change.place(place, hook, &mut instance)
}
