//! The address device: a dummy interface that holds the node address, so that the kernel takes packets for
//! it as its own.
//!
//! A dummy, because an address on the uplink becomes Cilium's masquerade source, and because kube-router and
//! Felix take over the MTU of the interface that holds it, which on `lo` is 65536.

use std::net::IpAddr;

use netlink_packet_route::{
    address::{AddressHeaderFlags, AddressMessage, AddressScope},
    link::{AfSpecInet6, AfSpecUnspec, In6AddrGenMode, LinkAttribute, LinkFlags, LinkMessage},
};
use rtnetlink::{LinkDummy, LinkUnspec};
use thiserror::Error;
use tracing::debug;

use super::uplink::{address_of, addresses, links, mtu_of, name_of};
use crate::netlink::{Netlink, NetlinkError};

/// The name of the device unless the user says otherwise.
pub const DEFAULT_NAME: &str = "xkub0";
/// What holds the address where the kernel has no dummy device.
pub const LOOPBACK: &str = "lo";
/// How a device that we made is known again, whatever its name.
const ALIAS: &str = "node address (xkub)";

/// Why the node address could not be put on its device, or taken from it.
#[derive(Debug, Error)]
pub enum AddressDeviceError {
    /// A request failed.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    /// The device was made and is not there.
    #[error("interface {0} vanished while it was being set up")]
    Vanished(String),
}

/// The device that holds, or shall hold, the node address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddressDevice {
    /// Its name.
    pub name: String,
    index: u32,
    is_ours: bool,
    is_up: bool,
    mtu: u32,
}

impl AddressDevice {
    /// Looks a device up by name.
    ///
    /// # Errors
    /// [`AddressDeviceError::Netlink`].
    pub fn find(netlink: &Netlink, name: &str) -> Result<Option<Self>, AddressDeviceError> {
        let links = links(netlink)?;
        Ok(links
            .iter()
            .find(|link| name_of(link) == Some(name))
            .map(|link| Self::new(name, link)))
    }

    fn new(name: &str, link: &LinkMessage) -> Self {
        Self {
            name: name.to_owned(),
            index: link.header.index,
            is_ours: link
                .attributes
                .contains(&LinkAttribute::IfAlias(ALIAS.to_owned())),
            is_up: link.header.flags.contains(LinkFlags::Up),
            mtu: mtu_of(link),
        }
    }

    /// Whether we made it.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        self.is_ours
    }

    /// Its index.
    #[must_use]
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Whether it is up.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.is_up
    }

    /// Its MTU, bytes.
    #[must_use]
    pub fn mtu(&self) -> u32 {
        self.mtu
    }

    /// The addresses on it that stand there as [`Self::add`] would put them.
    ///
    /// # Errors
    /// [`AddressDeviceError::Netlink`].
    pub fn host_addresses(&self, netlink: &Netlink) -> Result<Vec<IpAddr>, AddressDeviceError> {
        Ok(addresses(netlink)?
            .iter()
            .filter_map(|message| {
                let address = address_of(message)?;
                self.holds(message, address).then_some(address)
            })
            .collect())
    }

    /// Finds or makes the device: up, and if it is ours with this MTU (bytes) and without an IPv6 link-local
    /// address. Where the kernel has no dummy device this is [`LOOPBACK`], which the name then tells.
    ///
    /// # Errors
    /// [`AddressDeviceError`], one variant per cause.
    pub fn ensure(netlink: &Netlink, name: &str, mtu: u32) -> Result<Self, AddressDeviceError> {
        let device = match Self::find(netlink, name)? {
            Some(device) => device,
            None => match Self::create(netlink, name, mtu) {
                Err(AddressDeviceError::Netlink(error))
                    if error.errno() == Some(libc::EOPNOTSUPP) =>
                {
                    return Self::ensure(netlink, LOOPBACK, mtu);
                }
                other => other?,
            },
        };
        let mut changes = LinkUnspec::new_with_index(device.index).up();
        if device.is_ours {
            device.forbid_link_local(netlink);
            changes = changes.mtu(mtu);
        }
        if !device.is_up || (device.is_ours && device.mtu != mtu) {
            netlink.wait(
                || format!("set up {name}"),
                netlink.handle().link().set(changes.build()).execute(),
            )?;
        }
        Ok(device)
    }

    fn create(netlink: &Netlink, name: &str, mtu: u32) -> Result<Self, AddressDeviceError> {
        netlink.wait(
            || format!("create the dummy interface {name}"),
            netlink
                .handle()
                .link()
                .add(LinkDummy::new(name).mtu(mtu).build())
                .execute(),
        )?;
        let mut device = Self::find(netlink, name)?
            .ok_or_else(|| AddressDeviceError::Vanished(name.to_owned()))?;
        // The kernel ignores it in the request that creates the device.
        let alias = LinkUnspec::new_with_index(device.index)
            .alias(ALIAS)
            .build();
        netlink.wait(
            || format!("mark {name} as ours"),
            netlink.handle().link().set(alias).execute(),
        )?;
        device.is_ours = true;
        Ok(device)
    }

    /// Must come before the device is up, and after its creation: the kernel ignores the mode there.
    fn forbid_link_local(&self, netlink: &Netlink) {
        let mode = AfSpecInet6::AddrGenMode(In6AddrGenMode::None);
        let message = LinkUnspec::new_with_index(self.index)
            .append_extra_attribute(LinkAttribute::AfSpecUnspec(vec![AfSpecUnspec::Inet6(
                vec![mode],
            )]))
            .build();
        let result = netlink.wait(
            || format!("set the address generation mode of {}", self.name),
            netlink.handle().link().set(message).execute(),
        );
        if let Err(error) = result {
            // Where IPv6 is switched off there is no such address either.
            debug!(%error, "no address generation mode");
        }
    }

    /// Adds an address as a host route would see it: /32 or /128, without duplicate address detection
    /// (RFC 4862 §5.4), because nobody else hears this interface. Whether it was not there before.
    ///
    /// # Errors
    /// [`AddressDeviceError::Netlink`].
    pub fn add(&self, netlink: &Netlink, address: IpAddr) -> Result<bool, AddressDeviceError> {
        let mut request = netlink
            .handle()
            .address()
            .add(self.index, address, host_prefix(address));
        let header = &mut request.message_mut().header;
        header.scope = AddressScope::Universe;
        if address.is_ipv6() {
            header.flags |= AddressHeaderFlags::Nodad;
        }
        let result = netlink.wait(
            || format!("put {address} on {}", self.name),
            request.execute(),
        );
        match result {
            Ok(()) => Ok(true),
            Err(error) if error.errno() == Some(libc::EEXIST) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether the device holds an address as [`Self::add`] would put it there.
    ///
    /// # Errors
    /// [`AddressDeviceError::Netlink`].
    pub fn has(&self, netlink: &Netlink, address: IpAddr) -> Result<bool, AddressDeviceError> {
        Ok(addresses(netlink)?
            .iter()
            .any(|message| self.holds(message, address)))
    }

    /// Removes an address that [`Self::add`] put there. Whether it was there.
    ///
    /// # Errors
    /// [`AddressDeviceError::Netlink`].
    pub fn remove(&self, netlink: &Netlink, address: IpAddr) -> Result<bool, AddressDeviceError> {
        let Some(message) = addresses(netlink)?
            .into_iter()
            .find(|message| self.holds(message, address))
        else {
            return Ok(false);
        };
        netlink.wait(
            || format!("remove {address} from {}", self.name),
            netlink.handle().address().del(message).execute(),
        )?;
        Ok(true)
    }

    fn holds(&self, message: &AddressMessage, address: IpAddr) -> bool {
        message.header.index == self.index
            && message.header.prefix_len == host_prefix(address)
            && address_of(message) == Some(address)
    }

    /// Removes the device if we made it and no address is left on it. Whether it was removed.
    ///
    /// # Errors
    /// [`AddressDeviceError::Netlink`].
    pub fn remove_if_unused(&self, netlink: &Netlink) -> Result<bool, AddressDeviceError> {
        let is_used = addresses(netlink)?.iter().any(|message| {
            message.header.index == self.index && message.header.scope == AddressScope::Universe
        });
        if !self.is_ours || is_used {
            return Ok(false);
        }
        netlink.wait(
            || format!("remove {}", self.name),
            netlink.handle().link().del(self.index).execute(),
        )?;
        Ok(true)
    }
}

/// The names of the interfaces that hold an address, whatever its prefix length.
///
/// # Errors
/// [`NetlinkError`].
pub fn holders(netlink: &Netlink, address: IpAddr) -> Result<Vec<String>, NetlinkError> {
    let links = links(netlink)?;
    Ok(addresses(netlink)?
        .iter()
        .filter(|message| address_of(message) == Some(address))
        .filter_map(|message| {
            let link = links
                .iter()
                .find(|link| link.header.index == message.header.index)?;
            name_of(link).map(str::to_owned)
        })
        .collect())
}

fn host_prefix(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}
