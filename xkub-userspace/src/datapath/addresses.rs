//! The node address on its device, apart from any program: put back when somebody takes it away, and taken away when
//! nobody needs it any more.

use std::net::IpAddr;

use super::{bpffs, error::Error, pins::Pins};
use crate::{
    netlink::Netlink,
    node::{address_device::AddressDevice, blocked_source},
};

/// Makes the address device what it should be, with all of an uplink's node addresses on it. What was changed
/// is marked as ours, so that a detach takes it back. The device's name: `lo` where the kernel has no dummy device.
///
/// # Errors
/// [`Error::NotAttached`]; [`Error::AddressDevice`]; [`Error::Busy`].
pub fn put_addresses(
    uplink: &str,
    device: &str,
    mtu: u32,
    addresses: &[IpAddr],
) -> Result<String, Error> {
    let pins = attached(uplink)?;
    let netlink = Netlink::open()?;
    let lock = pins.lock()?;
    let device = AddressDevice::ensure(&netlink, device, mtu)?;
    for address in addresses {
        // It may have been an old one until now.
        blocked_source::unblock(&netlink, *address)?;
        if !device.has(&netlink, *address)? {
            pins.mark_address(&device.name, *address)?;
            device.add(&netlink, *address)?;
        }
    }
    drop(lock);
    Ok(device.name)
}

/// Takes an address that we put on a device away again, and the device if it is ours and holds nothing else. Whether
/// the address was there.
///
/// # Errors
/// [`Error::NotAttached`]; [`Error::AddressDevice`]; [`Error::Busy`].
pub fn remove_address(uplink: &str, device: &str, address: IpAddr) -> Result<bool, Error> {
    let pins = attached(uplink)?;
    let netlink = Netlink::open()?;
    let lock = pins.lock()?;
    let mut was_there = false;
    let is_ours = pins
        .addresses()?
        .iter()
        .any(|(name, marked)| name == device && *marked == address);
    if is_ours {
        if let Some(found) = AddressDevice::find(&netlink, device)? {
            was_there = found.remove(&netlink, address)?;
            found.remove_if_unused(&netlink)?;
        }
        blocked_source::unblock(&netlink, address)?;
        pins.unmark_address(device, address);
    }
    drop(lock);
    Ok(was_there)
}

/// The addresses that we put on devices for an uplink, with the devices.
///
/// # Errors
/// [`Error::Pin`].
pub fn marked_addresses(uplink: &str) -> Result<Vec<(String, IpAddr)>, Error> {
    Pins::of(uplink).addresses()
}

fn attached(uplink: &str) -> Result<Pins, Error> {
    let pins = Pins::of(uplink);
    if bpffs::is_mounted()? && pins.exist() {
        Ok(pins)
    } else {
        Err(Error::NotAttached(uplink.to_owned()))
    }
}
