//! Taking everything away again.

use serde::Serialize;
use xkub_common::counter::Place;

use super::{
    attach::orphans_node_address,
    bpffs, capabilities,
    change::{drop_link, sweep},
    clsact,
    error::Error,
    pins::Pins,
};
use crate::{
    netlink::Netlink,
    node::{
        address_device::{AddressDevice, DEFAULT_NAME},
        blocked_source,
        uplink::{self, Uplink, UplinkError},
    },
};

/// What was taken away.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Detached {
    /// The uplink; none when none was named and none had a datapath.
    pub uplink: Option<String>,
    /// One line each; none when nothing was there.
    pub removed: Vec<String>,
}

/// Removes the datapath from an uplink: programs, filters, links, pins, the node address with its device, the
/// clsact qdisc if it was ours and nobody else uses it. That nothing is there is no error.
///
/// # Errors
/// [`Error`]: [`Error::Uplink`] when there is neither such an interface nor a datapath that it left.
pub(super) fn detach(name: &str) -> Result<Detached, Error> {
    capabilities::check()?;
    let netlink = Netlink::open()?;
    let pins = Pins::of(name);
    let is_mounted = bpffs::is_mounted()?;
    let has_pins = is_mounted && pins.exist();
    let uplink = match uplink::find(&netlink, name) {
        Ok(uplink) => Some(uplink),
        // The interface is gone, and its pins can go too.
        Err(UplinkError::Unknown { .. }) if has_pins => None,
        Err(error) => return Err(error.into()),
    };
    let mut removed = Vec::new();
    let lock = if has_pins { Some(pins.lock()?) } else { None };
    // The address first: should something fail, the programs that say what it is are still there.
    remove_addresses(&netlink, uplink.as_ref(), &pins, &mut removed)?;
    for place in Place::ALL {
        let hook = pins.hook(*place)?;
        let path = pins.link(*place);
        if drop_link(&path).map_err(|source| Error::Pin {
            path,
            doing: "removed",
            source,
        })? {
            removed.push(format!("{} ({})", place.name(), hook.name()));
        }
    }
    if let Some(uplink) = &uplink {
        remove_programs(&netlink, uplink, &pins, &mut removed)?;
    }
    if has_pins {
        pins.remove()?;
        removed.push("pins".to_owned());
    }
    drop(lock);
    Ok(Detached {
        uplink: Some(name.to_owned()),
        removed,
    })
}

fn remove_programs(
    netlink: &Netlink,
    uplink: &Uplink,
    pins: &Pins,
    removed: &mut Vec<String>,
) -> Result<(), Error> {
    removed.extend(sweep(netlink, uplink, &pins.programs()?, &[])?);
    if pins.is_clsact_ours() && clsact::remove_qdisc_if_unused(netlink, uplink)? {
        removed.push("clsact qdisc".to_owned());
    }
    Ok(())
}

/// Takes away what we put on devices. Without our marks a device that we made is still ours; on any other, the
/// address is somebody else's.
fn remove_addresses(
    netlink: &Netlink,
    uplink: Option<&Uplink>,
    pins: &Pins,
    removed: &mut Vec<String>,
) -> Result<(), Error> {
    let mut addresses = pins.addresses()?;
    if let Some(uplink) = uplink
        && AddressDevice::find(netlink, DEFAULT_NAME)?.is_some_and(|device| device.is_ours())
    {
        let orphans = orphans_node_address(netlink, uplink, pins);
        addresses.extend(
            orphans
                .iter()
                .map(|address| (DEFAULT_NAME.to_owned(), address)),
        );
    }
    for (name, address) in addresses {
        let Some(device) = AddressDevice::find(netlink, &name)? else {
            continue;
        };
        if device.remove(netlink, address)? {
            removed.push(format!("{address} on {name}"));
        }
        if device.remove_if_unused(netlink)? {
            removed.push(format!("interface {name}"));
        }
    }
    for address in blocked_source::blocked(netlink)? {
        blocked_source::unblock(netlink, address)?;
        removed.push(format!("routing rule for the old address {address}"));
    }
    Ok(())
}
