//! Attaching to native XDP. Never to generic XDP, which is slower than TCX and loses offloads besides.

use std::{io, os::fd::OwnedFd};

use aya::programs::{ProgramError, Xdp, XdpMode, links::FdLink, xdp::XdpError};

use xkub_common::counter::Place;

use super::{
    chain,
    error::{Error, io_error},
    sys::{self, LinkTarget, ProgramInfo},
};
use crate::{
    netlink::Netlink,
    node::uplink::{Uplink, xdp_program},
};

/// What attaching came to.
pub(super) enum Attached {
    /// A new link, which detaches the program again when it is dropped unpinned.
    New(FdLink),
    /// The slot holds a program of ours whose pin is gone.
    Orphan { link: OwnedFd, program_id: u32 },
}

/// Attaches in driver mode.
///
/// # Errors
/// [`Error::XdpSlotTaken`], [`Error::XdpRefused`], [`Error::NoXdpLink`].
pub(super) fn attach(
    program: &mut Xdp,
    netlink: &Netlink,
    uplink: &Uplink,
    pinned: &[(Place, ProgramInfo)],
) -> Result<Attached, Error> {
    require_free_slot(netlink, uplink, pinned)?;
    if let Some(program_id) = xdp_program(netlink, uplink)?
        && let Some(link) = link_of(uplink.index, program_id)
    {
        return Ok(Attached::Orphan { link, program_id });
    }
    let id = program
        .attach_to_if_index(uplink.index, XdpMode::Driver)
        .map_err(|error| refusal(uplink, error))?;
    let link = program
        .take_link(id)
        .map_err(|error| refusal(uplink, error))?;
    link.try_into()
        .map(Attached::New)
        .map_err(|_| Error::NoXdpLink)
}

/// Looks whether the slot is free, or ours.
///
/// # Errors
/// [`Error::XdpSlotTaken`].
pub(super) fn require_free_slot(
    netlink: &Netlink,
    uplink: &Uplink,
    pinned: &[(Place, ProgramInfo)],
) -> Result<(), Error> {
    let Some(id) = xdp_program(netlink, uplink)? else {
        return Ok(());
    };
    if pinned.iter().any(|(_, info)| info.id == id) {
        return Ok(());
    }
    let name = chain::program_name(id);
    if name.as_deref().is_some_and(chain::is_our_name) {
        return Ok(());
    }
    Err(Error::XdpSlotTaken {
        uplink: uplink.name.clone(),
        id,
        name: name.unwrap_or_else(|| chain::UNKNOWN.to_owned()),
    })
}

fn refusal(uplink: &Uplink, error: ProgramError) -> Error {
    match error {
        // aya asks again by netlink when the kernel says EINVAL, and there the driver gives its reason.
        ProgramError::XdpError(XdpError::NetlinkError(error)) => Error::XdpRefused {
            uplink: uplink.name.clone(),
            reason: error.to_string(),
        },
        other => refused(uplink, &io_error(other)),
    }
}

/// What a driver's errno means.
pub(super) fn refused(uplink: &Uplink, error: &io::Error) -> Error {
    Error::XdpRefused {
        uplink: uplink.name.clone(),
        reason: match error.raw_os_error() {
            // virtio-net says so, too, when the host does not let it change its offloads.
            Some(libc::EOPNOTSUPP) => {
                "it has none, or none beside offloads that it can't switch off".to_owned()
            }
            Some(libc::ERANGE) => format!("the MTU of {} or its peer is too large", uplink.mtu),
            _ => error.to_string(),
        },
    }
}

/// The link by which a program is in an interface's slot.
fn link_of(ifindex: u32, program_id: u32) -> Option<OwnedFd> {
    sys::link_ids()
        .unwrap_or_default()
        .into_iter()
        .find_map(|id| {
            let link = sys::link_by_id(id).ok()?;
            let info = sys::link_info(&link).ok()?;
            let is_it = info.target == LinkTarget::Xdp { ifindex } && info.program_id == program_id;
            is_it.then_some(link)
        })
}

/// Detaches our program from the slot if it is in there by a link.
pub(super) fn detach(ifindex: u32, program_id: u32) -> io::Result<()> {
    match link_of(ifindex, program_id) {
        Some(link) => sys::link_detach(link),
        None => Ok(()),
    }
}
