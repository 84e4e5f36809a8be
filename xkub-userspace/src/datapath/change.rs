//! One change of a datapath: programs put into their places, to be taken back as a whole or made to last.
//!
//! New programs stand before old ones go, so that no packet ever meets none.

use std::{
    fs, io,
    net::IpAddr,
    os::fd::{AsFd as _, OwnedFd},
    path::{Path, PathBuf},
};

use aya::programs::{SchedClassifier, Xdp};
use tracing::{debug, warn};
use xkub_common::counter::Place;

use super::{
    chain::{self, Attachment, Entry, is_in_place},
    clsact::{self, Slot},
    error::{Error, io_error},
    hook::{Direction, Hook, PlaceExt as _},
    object::Instance,
    pins::{self, Pins},
    sys::{self, LinkTarget, ProgramInfo},
    tcx, xdp,
};
use crate::{
    netlink::Netlink,
    node::{address_device::AddressDevice, blocked_source, uplink::Uplink},
};

/// What takes a step back. Carried out in reverse order.
enum Undo {
    UpdateLink {
        link: OwnedFd,
        program: OwnedFd,
    },
    DropLink(PathBuf),
    RemovePin(PathBuf),
    ReplaceFilter {
        program: Box<SchedClassifier>,
        slot: Slot,
    },
    DeleteFilter(Slot),
    DeleteQdisc,
    RemoveAddress {
        device: AddressDevice,
        address: IpAddr,
    },
    AddAddress {
        device: AddressDevice,
        address: IpAddr,
    },
    Unblock(IpAddr),
    RemoveDevice(AddressDevice),
}

/// What makes a step last, or clears away what it replaced. Carried out in order.
enum Finish {
    /// Something new takes the place of a pin.
    Rename(PathBuf),
    /// A place has a new link, and the one that was there is detached.
    RenameLink(Place),
    /// A place has a filter instead of a link.
    DropLink(Place),
    DeleteFilter(Slot),
}

pub(super) struct Change<'a> {
    netlink: &'a Netlink,
    uplink: &'a Uplink,
    pins: &'a Pins,
    undo: Vec<Undo>,
    finish: Vec<Finish>,
    /// What of ours shall stand when this is done.
    standing: Vec<Attachment>,
}

impl<'a> Change<'a> {
    pub fn new(netlink: &'a Netlink, uplink: &'a Uplink, pins: &'a Pins) -> Self {
        Self {
            netlink,
            uplink,
            pins,
            undo: Vec::new(),
            finish: Vec::new(),
            standing: Vec::new(),
        }
    }

    /// The path for something that shall take a pin's place in the end.
    pub fn replacement(&mut self, path: PathBuf) -> Result<PathBuf, Error> {
        let new = pins::new_name(&path);
        // Of a process that was killed.
        pins::remove(&new)?;
        self.undo.push(Undo::RemovePin(new.clone()));
        self.finish.push(Finish::Rename(path));
        Ok(new)
    }

    /// Puts an address on a device, unless it is there, in which case it is not ours to remove.
    pub fn add_address(&mut self, device: &AddressDevice, address: IpAddr) -> Result<(), Error> {
        // It may have been an old one until now.
        blocked_source::unblock(self.netlink, address)?;
        if device.has(self.netlink, address)? {
            return Ok(());
        }
        // The mark first: a process that is killed in between must not leave an address that nobody takes away.
        self.undo.push(Undo::RemoveAddress {
            device: device.clone(),
            address,
        });
        self.pins.mark_address(&device.name, address)?;
        device.add(self.netlink, address)?;
        Ok(())
    }

    /// Takes an address of ours from a device; its mark stays until the change has come to its end.
    pub fn withdraw_address(
        &mut self,
        device: &AddressDevice,
        address: IpAddr,
    ) -> Result<(), Error> {
        if device.remove(self.netlink, address)? {
            self.undo.push(Undo::AddAddress {
                device: device.clone(),
                address,
            });
        }
        Ok(())
    }

    /// Lets nothing leave from an address of ours any more, which stays on its device. Whether the kernel can.
    pub fn block_source(&mut self, address: IpAddr) -> Result<bool, Error> {
        let can = blocked_source::block(self.netlink, address)?;
        if can {
            self.undo.push(Undo::Unblock(address));
        }
        Ok(can)
    }

    /// Notes that a device may have been made for this change.
    pub fn used_device(&mut self, device: &AddressDevice) {
        self.undo.push(Undo::RemoveDevice(device.clone()));
    }

    /// Puts an instance's program into a place, and its pin where it will last.
    ///
    /// [`Error::NoTcx`] tells that the kernel has no TCX, and that nothing was done.
    pub fn place(
        &mut self,
        place: Place,
        hook: Hook,
        instance: &mut Instance,
    ) -> Result<(), Error> {
        match hook {
            Hook::Xdp => {
                let program = self.climb_xdp(place, instance)?;
                let path = self.replacement(self.pins.program(place))?;
                program.pin(&path).map_err(|error| pin_error(path, error))?;
            }
            Hook::Tcx | Hook::Clsact => {
                let program = instance.classifier(place.program(hook))?;
                if hook == Hook::Tcx {
                    self.place_tcx(place, program)?;
                    let filters = filters_in(&self.chain(place.direction())?, place);
                    self.finish
                        .extend(filters.into_iter().map(Finish::DeleteFilter));
                } else {
                    self.place_clsact(place, program)?;
                }
                let path = self.replacement(self.pins.program(place))?;
                program.pin(&path).map_err(|error| pin_error(path, error))?;
            }
        }
        let path = self.replacement(self.pins.constants(place))?;
        Ok(instance.pin_constants(&path)?)
    }

    fn place_tcx(&mut self, place: Place, program: &mut SchedClassifier) -> Result<(), Error> {
        let failed = |source| Error::Hook {
            place,
            hook: Hook::Tcx,
            source,
        };
        let direction = place.direction();
        if let Some((link, info)) = self.pins.pinned_link(place)?
            && info.target
                == (LinkTarget::Tcx {
                    ifindex: self.uplink.index,
                    direction,
                })
            && self.stands_right(place, Attachment::Tcx { link_id: info.id })?
        {
            let old = self.program_of(place, info.program_id).map_err(failed)?;
            let new = program.fd().map_err(io_error).map_err(failed)?;
            match sys::link_update(&link, new.as_fd()) {
                Ok(()) => {
                    debug!(place = place.name(), "swapped on TCX");
                    self.standing.push(Attachment::Tcx { link_id: info.id });
                    self.undo.push(Undo::UpdateLink { link, program: old });
                    return Ok(());
                }
                // The interface went away a moment ago.
                Err(error) if error.raw_os_error() == Some(libc::ENOLINK) => {}
                Err(error) => return Err(failed(error)),
            }
        }
        let link = match tcx::attach(program, &self.uplink.name, place) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => return Err(Error::NoTcx),
            other => other.map_err(failed)?,
        };
        let link_id = link.info().map_err(io::Error::other).map_err(failed)?.id();
        debug!(place = place.name(), link_id, "attached to TCX");
        let path = self.replacement_link(place)?;
        link.pin(&path).map_err(|error| pin_error(path, error))?;
        self.standing.push(Attachment::Tcx { link_id });
        Ok(())
    }

    /// Puts a program on clsact; the pin, if it shall have one, is the caller's.
    pub fn place_clsact(
        &mut self,
        place: Place,
        program: &mut SchedClassifier,
    ) -> Result<(), Error> {
        if !clsact::has_qdisc(self.netlink, self.uplink)? {
            // The mark first, as for an address.
            self.undo.push(Undo::DeleteQdisc);
            self.pins.mark_clsact()?;
            clsact::add_qdisc(self.uplink)?;
        }
        let direction = place.direction();
        let chain = self.chain(direction)?;
        let ours = filters_in(&chain, place);
        let kept = ours.iter().copied().find(|slot| {
            is_our_handle(slot.handle) && stands_right_in(&chain, place, Attachment::Clsact(*slot))
        });
        let slot = if let Some(slot) = kept {
            clsact::replace(program, &self.uplink.name, slot)
                .map_err(|error| self.filter_error(place, slot, error))?;
            if let Ok(old) = SchedClassifier::from_pin(self.pins.program(place)) {
                self.undo.push(Undo::ReplaceFilter {
                    program: Box::new(old),
                    slot,
                });
            }
            slot
        } else {
            let handle = clsact::HANDLES
                .map(u32::from)
                .into_iter()
                .find(|handle| ours.iter().all(|slot| slot.handle != *handle))
                .unwrap_or_default();
            let slot = Slot {
                direction,
                priority: clsact::priority(place),
                handle,
            };
            clsact::add(program, &self.uplink.name, slot)
                .map_err(|error| self.filter_error(place, slot, error))?;
            self.undo.push(Undo::DeleteFilter(slot));
            slot
        };
        debug!(place = place.name(), ?slot, "on clsact");
        self.standing.push(Attachment::Clsact(slot));
        self.finish.push(Finish::DropLink(place));
        for old in ours.into_iter().filter(|old| *old != slot) {
            self.finish.push(Finish::DeleteFilter(old));
        }
        Ok(())
    }

    fn filter_error(&self, place: Place, slot: Slot, error: io::Error) -> Error {
        match error.raw_os_error() {
            Some(libc::EEXIST | libc::EINVAL | libc::ENOSPC) => Error::PriorityTaken {
                uplink: self.uplink.name.clone(),
                direction: slot.direction,
                priority: slot.priority,
            },
            // No such classifier, and no module for it.
            Some(libc::ENOENT | libc::EOPNOTSUPP) => Error::NoClsact {
                missing: "BPF classifier (CONFIG_NET_CLS_BPF, module cls_bpf)",
            },
            _ => Error::Hook {
                place,
                hook: Hook::Clsact,
                source: error,
            },
        }
    }

    /// The plain program, and where the driver refuses that (a large MTU), the one for frames in several
    /// buffers, which costs more.
    fn climb_xdp<'b>(
        &mut self,
        place: Place,
        instance: &'b mut Instance,
    ) -> Result<&'b mut Xdp, Error> {
        match self.place_xdp(place, instance.xdp()?) {
            Ok(()) => return instance.xdp().map_err(Into::into),
            Err(refused @ Error::XdpRefused { .. }) => match instance.xdp_frags() {
                Ok(program) => self.place_xdp(place, program)?,
                // Older than Linux 5.18.
                Err(error) => {
                    debug!(%error, "no program for frames in several buffers");
                    return Err(refused);
                }
            },
            Err(error) => return Err(error),
        }
        instance.xdp_frags().map_err(Into::into)
    }

    fn place_xdp(&mut self, place: Place, program: &mut Xdp) -> Result<(), Error> {
        let failed = |source| Error::Hook {
            place,
            hook: Hook::Xdp,
            source,
        };
        if let Some((link, info)) = self.pins.pinned_link(place)?
            && info.target
                == (LinkTarget::Xdp {
                    ifindex: self.uplink.index,
                })
        {
            let old = self.program_of(place, info.program_id).map_err(failed)?;
            let new = program.fd().map_err(io_error).map_err(failed)?;
            match sys::link_update(&link, new.as_fd()) {
                Ok(()) => {
                    debug!("swapped on XDP");
                    self.standing.push(Attachment::Xdp);
                    self.undo.push(Undo::UpdateLink { link, program: old });
                    return Ok(());
                }
                Err(error) if error.raw_os_error() == Some(libc::ENOLINK) => {}
                Err(error) => return Err(xdp::refused(self.uplink, &error)),
            }
        }
        match xdp::attach(program, self.netlink, self.uplink, &self.pins.programs()?)? {
            xdp::Attached::New(link) => {
                let path = self.replacement_link(place)?;
                link.pin(&path).map_err(|error| pin_error(path, error))?;
            }
            xdp::Attached::Orphan { link, program_id } => {
                let old = sys::program_by_id(program_id).map_err(failed)?;
                let new = program.fd().map_err(io_error).map_err(failed)?;
                sys::link_update(&link, new.as_fd())
                    .map_err(|error| xdp::refused(self.uplink, &error))?;
                self.undo.push(Undo::UpdateLink {
                    link: link.try_clone().map_err(failed)?,
                    program: old,
                });
                let new = pins::new_name(&self.pins.link(place));
                pins::remove(&new)?;
                self.undo.push(Undo::RemovePin(new.clone()));
                self.finish.push(Finish::RenameLink(place));
                sys::pin(&link, &new).map_err(failed)?;
            }
        }
        debug!("attached to XDP");
        self.standing.push(Attachment::Xdp);
        Ok(())
    }

    fn replacement_link(&mut self, place: Place) -> Result<PathBuf, Error> {
        let new = pins::new_name(&self.pins.link(place));
        pins::remove(&new)?;
        self.undo.push(Undo::DropLink(new.clone()));
        self.finish.push(Finish::RenameLink(place));
        Ok(new)
    }

    /// The program that is in a place now, by its pin if that is it.
    fn program_of(&self, place: Place, id: u32) -> io::Result<OwnedFd> {
        match self.pins.pinned_program(place) {
            Ok(Some((fd, info))) if info.id == id => Ok(fd),
            _ => sys::program_by_id(id),
        }
    }

    fn chain(&self, direction: Direction) -> Result<Vec<Entry>, Error> {
        chain::read(self.netlink, self.uplink, direction, &self.pins.programs()?)
    }

    fn stands_right(&self, place: Place, attachment: Attachment) -> Result<bool, Error> {
        let chain = self.chain(place.direction())?;
        Ok(stands_right_in(&chain, place, attachment))
    }

    /// Takes everything back. What fails is logged, and the rest goes on.
    pub fn roll_back(self) {
        for step in self.undo.into_iter().rev() {
            let result = match step {
                Undo::UpdateLink { link, program } => sys::link_update(link, program),
                Undo::DropLink(path) => drop_link(&path).map(drop),
                Undo::RemovePin(path) => pins::remove(&path).map_err(io::Error::other),
                Undo::ReplaceFilter { mut program, slot } => {
                    clsact::replace(&mut program, &self.uplink.name, slot)
                }
                Undo::DeleteFilter(slot) => clsact::delete(&self.uplink.name, slot),
                Undo::DeleteQdisc => {
                    self.pins.unmark_clsact();
                    clsact::remove_qdisc_if_unused(self.netlink, self.uplink)
                        .map(drop)
                        .map_err(io::Error::other)
                }
                Undo::RemoveAddress { device, address } => {
                    self.pins.unmark_address(&device.name, address);
                    device
                        .remove(self.netlink, address)
                        .map(drop)
                        .map_err(io::Error::other)
                }
                Undo::AddAddress { device, address } => device
                    .add(self.netlink, address)
                    .map(drop)
                    .map_err(io::Error::other),
                Undo::Unblock(address) => blocked_source::unblock(self.netlink, address)
                    .map(drop)
                    .map_err(io::Error::other),
                Undo::RemoveDevice(device) => device
                    .remove_if_unused(self.netlink)
                    .map(drop)
                    .map_err(io::Error::other),
            };
            if let Err(error) = result {
                warn!(%error, "a step could not be taken back");
            }
        }
    }

    /// Makes everything last, and returns what of ours stands because of this change.
    pub fn finish(self) -> Result<Vec<Attachment>, Error> {
        for step in self.finish {
            match step {
                Finish::Rename(path) => rename_over(&path)?,
                Finish::RenameLink(place) => {
                    rename_link_over(&self.pins.link(place))?;
                    self.pins.mark_filter(place, false)?;
                }
                Finish::DropLink(place) => {
                    self.pins.mark_filter(place, true)?;
                    let path = self.pins.link(place);
                    drop_link(&path).map_err(|source| Error::Pin {
                        path,
                        doing: "removed",
                        source,
                    })?;
                }
                Finish::DeleteFilter(slot) => {
                    if let Err(error) = clsact::delete(&self.uplink.name, slot) {
                        debug!(%error, ?slot, "an old filter was gone already");
                    }
                }
            }
        }
        Ok(self.standing)
    }
}

/// Removes what is ours on the uplink and not among `standing`. What was removed, by name.
pub(super) fn sweep(
    netlink: &Netlink,
    uplink: &Uplink,
    pinned: &[(Place, ProgramInfo)],
    standing: &[Attachment],
) -> Result<Vec<String>, Error> {
    let mut removed = Vec::new();
    for direction in Direction::ALL {
        for entry in chain::read(netlink, uplink, direction, pinned)? {
            if !entry.ours || standing.contains(&entry.attachment) {
                continue;
            }
            let result = match entry.attachment {
                Attachment::Tcx { link_id } => sys::link_by_id(link_id).and_then(sys::link_detach),
                Attachment::Xdp => xdp::detach(uplink.index, entry.id.unwrap_or_default()),
                Attachment::Clsact(slot) => clsact::delete(&uplink.name, slot),
            };
            match result {
                Ok(()) => removed.push(format!(
                    "{} at {} ({})",
                    entry.name,
                    direction.name(),
                    entry.hook.name()
                )),
                // Removed by the last step's renaming, and gone by now.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    warn!(%error, name = entry.name, "an old program could not be removed");
                }
            }
        }
    }
    Ok(removed)
}

/// Removes the clsact qdisc if it is ours, no place needs it, and nobody else's filters are on it.
pub(super) fn release_clsact(netlink: &Netlink, uplink: &Uplink, pins: &Pins) -> Result<(), Error> {
    if !pins.is_clsact_ours() {
        return Ok(());
    }
    for place in Place::ALL {
        if pins.hook(*place)? == Hook::Clsact {
            return Ok(());
        }
    }
    clsact::remove_qdisc_if_unused(netlink, uplink)?;
    pins.unmark_clsact();
    Ok(())
}

/// Our filters that have a place's priority.
fn filters_in(chain: &[Entry], place: Place) -> Vec<Slot> {
    chain
        .iter()
        .filter(|entry| entry.ours)
        .filter_map(|entry| match entry.attachment {
            Attachment::Clsact(slot) if slot.priority == clsact::priority(place) => Some(slot),
            _ => None,
        })
        .collect()
}

fn stands_right_in(chain: &[Entry], place: Place, attachment: Attachment) -> bool {
    chain
        .iter()
        .position(|entry| entry.attachment == attachment)
        .is_some_and(|index| is_in_place(chain, index, place.stands_last()))
}

fn is_our_handle(handle: u32) -> bool {
    clsact::HANDLES.map(u32::from).contains(&handle)
}

/// Removes a link's pin and detaches the link at once: by the removal alone the kernel does it later. Whether
/// there was one.
pub(super) fn drop_link(path: &Path) -> io::Result<bool> {
    let Some(link) = sys::pinned(path)? else {
        return Ok(false);
    };
    pins::remove(path).map_err(io::Error::other)?;
    match sys::link_detach(link) {
        // The interface is gone.
        Err(error) if error.raw_os_error() == Some(libc::ENOLINK) => {}
        other => other?,
    }
    Ok(true)
}

fn rename_over(path: &Path) -> Result<(), Error> {
    fs::rename(pins::new_name(path), path).map_err(|source| Error::Pin {
        path: path.to_owned(),
        doing: "replaced",
        source,
    })
}

fn rename_link_over(path: &Path) -> Result<(), Error> {
    let old = pins::open(path)?;
    rename_over(path)?;
    if let Some(old) = old
        && let Err(error) = sys::link_detach(old)
    {
        debug!(%error, "the old link was detached already");
    }
    Ok(())
}

fn pin_error(path: PathBuf, error: aya::pin::PinError) -> Error {
    Error::Pin {
        path,
        doing: "pinned",
        source: io::Error::other(error),
    }
}
