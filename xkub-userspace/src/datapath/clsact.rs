//! Filters on the clsact qdisc, for kernels without TCX, and for the last place behind filters of others.
//!
//! Making and removing the qdisc loses packets that are on their way out at that moment: the kernel deactivates
//! the interface's queues for it (`qdisc_graft`). Changes of filters lose none.

use std::{io, mem};

use aya::programs::{
    SchedClassifier,
    links::Link as _,
    tc::{NlOptions, SchedClassifierLink, TcAttachOptions, TcError, TcHandle, qdisc_add_clsact},
};
use netlink_packet_route::tc::{
    TcAttribute, TcFilterBpfOption, TcHandle as PacketHandle, TcMessage, TcOption,
};
use xkub_common::counter::Place;

use super::{
    error::{Error, io_error},
    hook::{Direction, PlaceExt as _},
    tcx::attach_type,
};
use crate::{
    netlink::{Netlink, NetlinkError},
    node::uplink::Uplink,
};

/// Before all others. 0 is not a priority but the wish to be given one.
const FIRST: u16 = 1;
/// Behind all others.
const LAST: u16 = u16::MAX;
/// Ours, "xk" and the one after it. Others take small numbers (Cilium 1) or let the kernel choose, which counts
/// up from 1. There are two, because a filter that is added stands before the others of its priority, so
/// that the way back to the front is to add the other one and then to remove the one.
pub(super) const HANDLES: [u16; 2] = [0x786b, 0x786c];
/// The qdisc that excludes clsact.
const INGRESS: &str = "ingress";
/// The parent of the filters at ingress. An ingress qdisc lists them for egress too.
const AT_INGRESS: PacketHandle = PacketHandle {
    major: 0xffff,
    minor: PacketHandle::MIN_INGRESS,
};
/// The handle of an ingress or clsact qdisc.
const QDISC_HANDLE: PacketHandle = PacketHandle {
    major: 0xffff,
    minor: 0,
};

/// What names a filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slot {
    pub direction: Direction,
    pub priority: u16,
    pub handle: u32,
}

/// A filter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Filter {
    pub slot: Slot,
    /// "bpf", "flower"…
    pub kind: String,
    /// Of a BPF filter.
    pub program_id: Option<u32>,
}

/// The priority that a place has.
pub(super) fn priority(place: Place) -> u16 {
    if place.stands_last() { LAST } else { FIRST }
}

/// The filters of a direction, in running order. None where there is no clsact qdisc.
pub(super) fn filters(
    netlink: &Netlink,
    uplink: &Uplink,
    direction: Direction,
) -> Result<Vec<Filter>, NetlinkError> {
    let Ok(index) = i32::try_from(uplink.index) else {
        return Ok(Vec::new());
    };
    let request = netlink.handle().traffic_filter(index).get();
    let request = match direction {
        Direction::Ingress => request.ingress(),
        Direction::Egress => request.egress(),
    };
    let messages = netlink.collect(
        || format!("list the filters at {}'s {}", uplink.name, direction.name()),
        request.execute(),
    );
    match messages {
        Ok(messages) => {
            let mut filters: Vec<Filter> = messages
                .iter()
                .filter_map(|message| filter_of(message, direction))
                .collect();
            // u32 lists its hash tables, and flower each of its rules; one of them is enough to be known.
            filters.dedup_by(|filter, previous| {
                filter.program_id.is_none()
                    && filter.kind == previous.kind
                    && filter.slot.priority == previous.slot.priority
            });
            Ok(filters)
        }
        // How a kernel answers that was built without classifiers.
        Err(error) if matches!(error.errno(), Some(libc::EOPNOTSUPP | libc::EINVAL)) => {
            Ok(Vec::new())
        }
        Err(error) => Err(error),
    }
}

fn filter_of(message: &TcMessage, direction: Direction) -> Option<Filter> {
    let handle = u32::from(message.header.handle);
    // Each priority is listed once by itself before its filters.
    if handle == 0 {
        return None;
    }
    if direction == Direction::Egress && message.header.parent == AT_INGRESS {
        return None;
    }
    let kind = message
        .attributes
        .iter()
        .find_map(|attribute| match attribute {
            TcAttribute::Kind(kind) => Some(kind.clone()),
            _ => None,
        })?;
    let program_id = message
        .attributes
        .iter()
        .filter_map(|attribute| match attribute {
            TcAttribute::Options(options) => Some(options),
            _ => None,
        })
        .flatten()
        .find_map(|option| match option {
            TcOption::Bpf(TcFilterBpfOption::ProgId(id)) => Some(*id),
            _ => None,
        });
    Some(Filter {
        slot: Slot {
            direction,
            priority: PacketHandle::from(message.header.info).major,
            handle,
        },
        kind,
        program_id,
    })
}

/// Whether there is a clsact qdisc; an error where there is no room for one.
pub(super) fn has_qdisc(netlink: &Netlink, uplink: &Uplink) -> Result<bool, Error> {
    match qdisc(netlink, uplink)?.as_deref() {
        Some(INGRESS) => Err(Error::IngressQdisc(uplink.name.clone())),
        other => Ok(other.is_some()),
    }
}

/// Makes the clsact qdisc, unless there is one by now.
pub(super) fn add_qdisc(uplink: &Uplink) -> Result<(), Error> {
    let error = match qdisc_add_clsact(&uplink.name) {
        Ok(()) => return Ok(()),
        Err(TcError::NetlinkError(error)) => match error.raw_os_error() {
            // Somebody was faster.
            Some(libc::EEXIST) => return Ok(()),
            // No such qdisc, and no module for it.
            Some(libc::ENOENT | libc::EOPNOTSUPP) => {
                return Err(Error::NoClsact {
                    missing: "clsact qdisc (CONFIG_NET_SCH_INGRESS, module sch_ingress)",
                });
            }
            _ => io::Error::other(error),
        },
        Err(error) => io::Error::other(error),
    };
    Err(NetlinkError::Refused {
        doing: format!("add a clsact qdisc to {}", uplink.name),
        source: error,
    }
    .into())
}

/// The kind of qdisc in the place of clsact: that, or "ingress".
fn qdisc(netlink: &Netlink, uplink: &Uplink) -> Result<Option<String>, NetlinkError> {
    let qdiscs = netlink.collect(
        || format!("list the qdiscs of {}", uplink.name),
        netlink.handle().qdisc().get().execute(),
    )?;
    Ok(qdiscs
        .iter()
        .filter(|qdisc| {
            u32::try_from(qdisc.header.index) == Ok(uplink.index)
                && qdisc.header.parent == PacketHandle::CLSACT
        })
        .find_map(|qdisc| {
            qdisc
                .attributes
                .iter()
                .find_map(|attribute| match attribute {
                    TcAttribute::Kind(kind) => Some(kind.clone()),
                    _ => None,
                })
        }))
}

/// Removes the clsact qdisc if no filter is left on it. Whether it was removed.
pub(super) fn remove_qdisc_if_unused(
    netlink: &Netlink,
    uplink: &Uplink,
) -> Result<bool, NetlinkError> {
    for direction in Direction::ALL {
        if !filters(netlink, uplink, direction)?.is_empty() {
            return Ok(false);
        }
    }
    match qdisc(netlink, uplink)?.as_deref() {
        None | Some(INGRESS) => return Ok(false),
        Some(_) => {}
    }
    let Ok(index) = i32::try_from(uplink.index) else {
        return Ok(false);
    };
    let mut request = netlink.handle().qdisc().del(index);
    let header = &mut request.message_mut().header;
    header.parent = PacketHandle::CLSACT;
    header.handle = QDISC_HANDLE;
    netlink.wait(
        || format!("remove the clsact qdisc of {}", uplink.name),
        request.execute(),
    )?;
    Ok(true)
}

/// Adds a filter, direct action, for all protocols.
///
/// # Errors
/// `EEXIST`: the slot is taken. `EINVAL`, `ENOSPC`: its priority has another kind of filter, or one for a
/// single protocol.
pub(super) fn add(program: &mut SchedClassifier, uplink: &str, slot: Slot) -> io::Result<()> {
    let options = NlOptions {
        priority: slot.priority,
        handle: TcHandle::from(slot.handle),
        classid: None,
    };
    let id = program
        .attach_with_options(
            uplink,
            attach_type(slot.direction),
            TcAttachOptions::Netlink(options),
        )
        .map_err(io_error)?;
    keep(program.take_link(id).map_err(io_error)?);
    Ok(())
}

/// Puts another program into an existing filter. No packet misses both.
pub(super) fn replace(program: &mut SchedClassifier, uplink: &str, slot: Slot) -> io::Result<()> {
    let id = program
        .attach_to_link(existing(uplink, slot)?)
        .map_err(io_error)?;
    keep(program.take_link(id).map_err(io_error)?);
    Ok(())
}

/// Removes a filter.
pub(super) fn delete(uplink: &str, slot: Slot) -> io::Result<()> {
    existing(uplink, slot)?.detach().map_err(io_error)
}

fn existing(uplink: &str, slot: Slot) -> io::Result<SchedClassifierLink> {
    SchedClassifierLink::attached(
        uplink,
        attach_type(slot.direction),
        slot.priority,
        TcHandle::from(slot.handle),
        None,
    )
}

/// A filter outlives the process; aya would remove it with the link.
fn keep(link: SchedClassifierLink) {
    mem::forget(link);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(handle: u32, attributes: Vec<TcAttribute>) -> TcMessage {
        let mut message = TcMessage::default();
        message.header.handle = handle.into();
        // Priority 1, for all protocols in network byte order.
        message.header.info = 0x0001_0300;
        message.attributes = attributes;
        message
    }

    #[test]
    fn filters_are_read_and_their_priorities_are_not() {
        let kind = |kind: &str| TcAttribute::Kind(kind.to_owned());
        let id = TcAttribute::Options(vec![TcOption::Bpf(TcFilterBpfOption::ProgId(7))]);
        for (handle, attributes, expected) in [
            (0, vec![kind("bpf")], None),
            (0x786b, vec![kind("bpf"), id], Some(("bpf", Some(7)))),
            (1, vec![kind("flower")], Some(("flower", None))),
        ] {
            let filter = filter_of(&message(handle, attributes), Direction::Egress);
            let expected = expected.map(|(kind, program_id)| Filter {
                slot: Slot {
                    direction: Direction::Egress,
                    priority: 1,
                    handle,
                },
                kind: kind.to_owned(),
                program_id,
            });
            assert_eq!(filter, expected);
        }
    }

    #[test]
    fn filters_on_an_ingress_qdisc_are_not_at_egress() {
        let mut message = message(1, vec![TcAttribute::Kind("bpf".to_owned())]);
        message.header.parent = AT_INGRESS;
        assert_eq!(filter_of(&message, Direction::Egress), None);
        assert!(filter_of(&message, Direction::Ingress).is_some());
    }
}
