//! Attaching to TCX.

use std::io;

use aya::programs::{LinkOrder, SchedClassifier, TcAttachType, links::FdLink, tc::TcAttachOptions};
use xkub_common::counter::Place;

use super::{
    error::io_error,
    hook::{Direction, PlaceExt as _},
};

/// Attaches a program before all others, or behind all, as its place wants it. The link detaches it again when
/// it is dropped unpinned.
///
/// # Errors
/// `EINVAL` is how a kernel without TCX answers: there is no other way to ask.
pub(super) fn attach(
    program: &mut SchedClassifier,
    uplink: &str,
    place: Place,
) -> io::Result<FdLink> {
    let order = if place.stands_last() {
        LinkOrder::last()
    } else {
        LinkOrder::first()
    };
    let id = program
        .attach_with_options(
            uplink,
            attach_type(place.direction()),
            TcAttachOptions::TcxOrder(order),
        )
        .map_err(io_error)?;
    let link = program.take_link(id).map_err(io_error)?;
    link.try_into().map_err(io::Error::other)
}

/// The direction, as aya says it.
pub(super) const fn attach_type(direction: Direction) -> TcAttachType {
    match direction {
        Direction::Ingress => TcAttachType::Ingress,
        Direction::Egress => TcAttachType::Egress,
    }
}
