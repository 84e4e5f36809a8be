//! What the kernel has to say: uplink, address device, datapath. Blocks.

use std::net::IpAddr;

use super::observe::{Attached, Device};
use crate::{
    datapath::{self, Keeper},
    netlink::Netlink,
    node::{
        address_device::{AddressDevice, AddressDeviceError, LOOPBACK},
        blocked_source,
        uplink::{self, Uplink},
    },
};
use xkub_common::map;

/// The kernel's part of an observation.
#[derive(Debug)]
pub(super) struct Kernel {
    pub uplink: Result<Uplink, String>,
    pub device: Option<Device>,
    pub datapath: Option<Attached>,
}

/// Looks. `name` is the uplink's, or none for that of the default route; `device` the address device's.
///
/// # Errors
/// [`datapath::Error`]: the kernel does not tell. What it does not have is no error.
pub(super) fn look(name: Option<&str>, device: &str) -> Result<Kernel, datapath::Error> {
    let netlink = Netlink::open()?;
    let uplink = find_uplink(&netlink, name);
    let datapath = match &uplink {
        Ok(uplink) => attached(&uplink.name)?,
        Err(_) => None,
    };
    let marks = datapath
        .as_ref()
        .map_or(&[][..], |attached| &attached.marks);
    Ok(Kernel {
        device: find_device(&netlink, device, marks)?,
        uplink,
        datapath,
    })
}

fn find_uplink(netlink: &Netlink, name: Option<&str>) -> Result<Uplink, String> {
    let found = match name {
        Some(name) => name.to_owned(),
        None => super::default_route::find()
            .map_err(|error| format!("the routes can't be read: {error}"))?
            .ok_or(
                "there is no default route to tell the uplink by; wait for DHCP, or set uplink",
            )?,
    };
    uplink::find(netlink, &found).map_err(|error| error.to_string())
}

fn attached(uplink: &str) -> Result<Option<Attached>, datapath::Error> {
    let keeper = Keeper::new(uplink)?;
    if !keeper.is_attached()? {
        return Ok(None);
    }
    let shown = match datapath::show(Some(uplink)) {
        Ok(shown) => shown,
        // An attach that was killed half-way left less than a datapath.
        Err(
            datapath::Error::NotAttached(_)
            | datapath::Error::Incomplete(_)
            | datapath::Error::Object(_),
        ) => return Ok(None),
        Err(error) => return Err(error),
    };
    let faults = keeper.faults()?;
    let flow_entries = shown
        .maps
        .iter()
        .find(|line| line.name == map::FLOWS_V4)
        .map_or(0, |line| line.max_entries);
    Ok(Some(Attached {
        faults: faults
            .iter()
            .map(|fault| format!("{}: {}", fault.place.name(), fault.cause.words()))
            .collect(),
        flow_entries,
        marks: datapath::marked_addresses(uplink)?,
        shown,
    }))
}

/// The device, or `lo` where that had to stand in for it.
fn find_device(
    netlink: &Netlink,
    name: &str,
    marks: &[(String, IpAddr)],
) -> Result<Option<Device>, AddressDeviceError> {
    let stands_in = || marks.iter().any(|(device, _)| device == LOOPBACK);
    let device = match AddressDevice::find(netlink, name)? {
        Some(device) => device,
        None if stands_in() => match AddressDevice::find(netlink, LOOPBACK)? {
            Some(device) => device,
            None => return Ok(None),
        },
        None => return Ok(None),
    };
    let blocked = blocked_source::blocked(netlink)?;
    Ok(Some(Device {
        index: device.index(),
        is_ours: device.is_ours(),
        is_up: device.is_up(),
        mtu: device.mtu(),
        addresses: device
            .host_addresses(netlink)?
            .into_iter()
            // From these nothing leaves, so that they are as good as not there.
            .filter(|address| !blocked.contains(address))
            .collect(),
        name: device.name,
    }))
}
