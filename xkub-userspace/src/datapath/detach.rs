//! Taking everything away again.

use serde::Serialize;
use xkub_common::counter::Place;

use super::{
    bpffs, capabilities,
    change::{drop_link, sweep},
    clsact,
    error::Error,
    object,
    pins::Pins,
    settings::address_pairs_of,
};
use crate::{
    netlink::Netlink,
    node::{
        address_device::{AddressDevice, DEFAULT_NAME},
        uplink::{self, Uplink, UplinkError},
    },
};

/// What was taken away.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Detached {
    /// The uplink.
    pub uplink: String,
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
    // The device first: should something fail, the programs and pins that say what was where are still there.
    if has_pins {
        remove_addresses(&netlink, &pins, &mut removed)?;
    }
    if has_pins {
        for place in Place::ALL {
            let path = pins.link(*place);
            if drop_link(&path).map_err(|source| Error::Pin {
                path,
                doing: "removed",
                source,
            })? {
                removed.push(format!("{} ({})", place.name(), pins.hook(*place)?.name()));
            }
        }
    }
    if let Some(uplink) = &uplink {
        remove_programs(&netlink, uplink, &pins, has_pins, &mut removed)?;
    }
    if has_pins {
        pins.remove()?;
        removed.push("pins".to_owned());
    }
    drop(lock);
    Ok(Detached {
        uplink: name.to_owned(),
        removed,
    })
}

fn remove_programs(
    netlink: &Netlink,
    uplink: &Uplink,
    pins: &Pins,
    has_pins: bool,
    removed: &mut Vec<String>,
) -> Result<(), Error> {
    let ids: Vec<u32> = if has_pins {
        pins.programs()?.iter().map(|(_, info)| info.id).collect()
    } else {
        Vec::new()
    };
    removed.extend(sweep(netlink, uplink, &ids, &[])?);
    if has_pins && pins.is_clsact_ours() && clsact::remove_qdisc_if_unused(netlink, uplink)? {
        removed.push("clsact qdisc".to_owned());
    }
    Ok(())
}

fn remove_addresses(
    netlink: &Netlink,
    pins: &Pins,
    removed: &mut Vec<String>,
) -> Result<(), Error> {
    let config = pins
        .programs()?
        .first()
        .and_then(|(place, info)| object::constants(&pins.constants(*place), info).ok());
    for name in pins.address_devices()? {
        let Some(device) = AddressDevice::find(netlink, &name)? else {
            continue;
        };
        for address in config
            .iter()
            .flat_map(|config| address_pairs_of(config).node().iter().collect::<Vec<_>>())
        {
            if device.remove(netlink, address)? {
                removed.push(format!("{address} on {name}"));
            }
        }
        if device.remove_if_unused(netlink)? {
            removed.push(format!("interface {name}"));
        }
    }
    // Ours by its alias, should the mark be gone.
    if let Some(device) = AddressDevice::find(netlink, DEFAULT_NAME)?
        && device.remove_if_unused(netlink)?
    {
        removed.push(format!("interface {DEFAULT_NAME}"));
    }
    Ok(())
}
