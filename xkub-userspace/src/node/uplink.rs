//! The uplink: which interface it is, and which addresses DHCP gave it.

use std::net::IpAddr;

use netlink_packet_route::{
    AddressFamily,
    address::{AddressAttribute, AddressHeaderFlags, AddressMessage, AddressScope},
    link::{LinkAttribute, LinkLayerType, LinkMessage, LinkXdp},
};
use thiserror::Error;

use crate::netlink::{Netlink, NetlinkError};

/// Why an interface can't be the uplink.
#[derive(Debug, Error)]
pub enum UplinkError {
    /// No such interface.
    #[error("there is no interface {name}; there are: {}", existing.join(", "))]
    Unknown {
        /// The name that was asked for.
        name: String,
        /// The names that exist.
        existing: Vec<String>,
    },
    /// Not an Ethernet interface: the programs read an Ethernet header.
    #[error("{name} is not an Ethernet interface but {kind}; name the VM's NIC on the pod network")]
    NotEthernet {
        /// The interface.
        name: String,
        /// Its link layer, as the kernel's `ARPHRD_*` calls it.
        kind: String,
    },
    /// The kernel did not say.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
}

/// The uplink as it is now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Uplink {
    /// Its name.
    pub name: String,
    /// Its index.
    pub index: u32,
    /// Its MTU, bytes.
    pub mtu: u32,
    /// Its addresses of global scope, in the kernel's order, without secondary and temporary ones.
    pub addresses: Vec<IpAddr>,
    /// The id of the XDP program in its slot.
    pub xdp_program: Option<u32>,
}

/// Looks an uplink up.
///
/// # Errors
/// [`UplinkError`], one variant per cause.
pub fn find(netlink: &Netlink, name: &str) -> Result<Uplink, UplinkError> {
    let links = links(netlink)?;
    let Some(link) = links.iter().find(|link| name_of(link) == Some(name)) else {
        return Err(UplinkError::Unknown {
            name: name.to_owned(),
            existing: links
                .iter()
                .filter_map(name_of)
                .map(str::to_owned)
                .collect(),
        });
    };
    let kind = link.header.link_layer_type;
    if kind != LinkLayerType::Ether {
        return Err(UplinkError::NotEthernet {
            name: name.to_owned(),
            kind: format!("{kind:?}").to_lowercase(),
        });
    }
    let index = link.header.index;
    Ok(Uplink {
        name: name.to_owned(),
        index,
        mtu: mtu_of(link),
        addresses: addresses(netlink)?
            .iter()
            .filter(|address| address.header.index == index && is_candidate(address))
            .filter_map(address_of)
            .collect(),
        xdp_program: xdp_program_of(link),
    })
}

/// All interfaces.
pub(super) fn links(netlink: &Netlink) -> Result<Vec<LinkMessage>, NetlinkError> {
    netlink.collect(
        || "list interfaces".to_owned(),
        netlink.handle().link().get().execute(),
    )
}

/// All addresses of all interfaces.
pub(super) fn addresses(netlink: &Netlink) -> Result<Vec<AddressMessage>, NetlinkError> {
    netlink.collect(
        || "list addresses".to_owned(),
        netlink.handle().address().get().execute(),
    )
}

pub(super) fn name_of(link: &LinkMessage) -> Option<&str> {
    link.attributes
        .iter()
        .find_map(|attribute| match attribute {
            LinkAttribute::IfName(name) => Some(name.as_str()),
            _ => None,
        })
}

pub(super) fn mtu_of(link: &LinkMessage) -> u32 {
    link.attributes
        .iter()
        .find_map(|attribute| match attribute {
            LinkAttribute::Mtu(mtu) => Some(*mtu),
            _ => None,
        })
        .unwrap_or_default()
}

fn xdp_program_of(link: &LinkMessage) -> Option<u32> {
    link.attributes
        .iter()
        .filter_map(|attribute| match attribute {
            LinkAttribute::Xdp(xdp) => Some(xdp),
            _ => None,
        })
        .flatten()
        .find_map(|xdp| match xdp {
            LinkXdp::ProgId(id)
            | LinkXdp::DrvProgId(id)
            | LinkXdp::SkbProgId(id)
            | LinkXdp::HwProgId(id)
                if *id != 0 =>
            {
                Some(*id)
            }
            _ => None,
        })
}

/// The interface's own address: `IFA_LOCAL` where there is one (on a point-to-point interface
/// `IFA_ADDRESS` is the peer's), else `IFA_ADDRESS`.
pub(super) fn address_of(message: &AddressMessage) -> Option<IpAddr> {
    let mut address = None;
    for attribute in &message.attributes {
        match attribute {
            AddressAttribute::Local(local) => return Some(*local),
            AddressAttribute::Address(other) => address = Some(*other),
            _ => {}
        }
    }
    address
}

/// Whether DHCP may have given this address. `IFA_F_SECONDARY` is `IFA_F_TEMPORARY` on IPv6.
fn is_candidate(message: &AddressMessage) -> bool {
    matches!(
        message.header.family,
        AddressFamily::Inet | AddressFamily::Inet6
    ) && message.header.scope == AddressScope::Universe
        && !message
            .header
            .flags
            .intersects(AddressHeaderFlags::Secondary | AddressHeaderFlags::Dadfailed)
}
