//! Putting programs back into their places when somebody has removed or overtaken them.

use aya::programs::SchedClassifier;
use serde::Serialize;
use xkub_common::counter::Place;

use super::{
    chain::{self, Attachment, Entry, is_in_place},
    change::{Change, release_clsact},
    error::{Error, io_error},
    hook::{Direction, Hook, PlaceExt as _},
    object,
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
    /// The hook that it is on now.
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
    /// The last place was behind somebody's filters on clsact, and they are gone.
    Alone,
}

impl Cause {
    /// In a few words.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::Removed => "it was removed",
            Self::Overtaken => "somebody had overtaken us",
            Self::Alone => "the filters on clsact that it was behind are gone",
        }
    }
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
        let rung = pins.hook(match place.direction() {
            Direction::Ingress => Place::Ingress,
            Direction::Egress => Place::EgressFirst,
        })?;
        faults.extend(fault(place, rung, &chain, position.filter(|_| is_here)));
    }
    Ok(faults)
}

/// What is wrong with a place, where its program stands being known, and its direction's rung.
fn fault(place: Place, rung: Hook, chain: &[Entry], position: Option<usize>) -> Option<Repair> {
    let hook = chain::hook_of(place, rung, chain);
    let current = position.and_then(|index| Some((index, chain.get(index)?.hook)));
    let cause = match current {
        None => Cause::Removed,
        Some((_, Hook::Clsact)) if hook != Hook::Clsact => Cause::Alone,
        Some((index, current))
            if current == hook && is_in_place(chain, index, place.stands_last()) =>
        {
            return None;
        }
        Some(_) => Cause::Overtaken,
    };
    Some(Repair { place, hook, cause })
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
            Ok(()) => {
                change.finish()?;
                release_clsact(netlink, uplink, pins)?;
            }
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
    let mut instance = object::load(&config, &pins.shared_maps())?;
    change.place(place, hook, &mut instance)
}

#[cfg(test)]
mod tests {
    use super::{super::chain::tests::chain, *};

    #[test]
    fn what_is_wrong_with_a_place_is_told_from_its_chain() {
        let tcx = ["tcx:xkub_egress#1", "tcx:cil#2", "tcx:xkub_egress#3"];
        let beside = ["tcx:xkub_egress#1", "tcx:xkub_egress#3", "clsact:cali#4"];
        let behind = ["tcx:xkub_egress#1", "clsact:cali#4", "clsact:xkub_egress#3"];
        let alone = ["tcx:xkub_egress#1", "clsact:xkub_egress#3"];
        let overtaken = ["tcx:xkub_egress#1", "tcx:xkub_egress#3", "tcx:cil#2"];
        let gone = ["tcx:xkub_egress#1", "tcx:cil#2"];
        let gone_beside = ["tcx:xkub_egress#1", "clsact:cali#4"];
        let old = [
            "clsact:xkub_egress#1",
            "clsact:cali#4",
            "clsact:xkub_egress#3",
        ];
        for (texts, rung, position, expected) in [
            (&tcx[..], Hook::Tcx, Some(2), None),
            (
                &beside,
                Hook::Tcx,
                Some(1),
                Some((Hook::Clsact, Cause::Overtaken)),
            ),
            (&behind, Hook::Tcx, Some(2), None),
            (&alone, Hook::Tcx, Some(1), Some((Hook::Tcx, Cause::Alone))),
            (
                &overtaken,
                Hook::Tcx,
                Some(1),
                Some((Hook::Tcx, Cause::Overtaken)),
            ),
            (&gone, Hook::Tcx, None, Some((Hook::Tcx, Cause::Removed))),
            (
                &gone_beside,
                Hook::Tcx,
                None,
                Some((Hook::Clsact, Cause::Removed)),
            ),
            (&old, Hook::Clsact, Some(2), None),
            (&alone, Hook::Clsact, Some(1), None),
        ] {
            let place = Place::EgressLast;
            let expected = expected.map(|(hook, cause)| Repair { place, hook, cause });
            let fault = fault(place, rung, &chain(texts), position);
            assert_eq!(fault, expected, "{texts:?} {rung:?}");
        }
        // The other places stay where they are.
        for texts in [&beside[..], &behind, &alone] {
            assert_eq!(
                fault(Place::EgressFirst, Hook::Tcx, &chain(texts), Some(0)),
                None
            );
        }
    }
}
