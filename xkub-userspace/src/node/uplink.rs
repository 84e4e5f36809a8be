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
    })
}

/// The id of the XDP program in an interface's slot, native or generic.
///
/// # Errors
/// [`NetlinkError`].
pub fn xdp_program(netlink: &Netlink, uplink: &Uplink) -> Result<Option<u32>, NetlinkError> {
    let links = netlink.collect(
        || format!("look {} up", uplink.name),
        netlink
            .handle()
            .link()
            .get()
            .match_index(uplink.index)
            .execute(),
    );
    match links {
        Ok(links) => Ok(links.first().and_then(xdp_program_of)),
        // It is gone, and with it what was in its slot.
        Err(error) if error.errno() == Some(libc::ENODEV) => Ok(None),
        Err(error) => Err(error),
    }
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

#[cfg(test)]
mod tests {
    use netlink_packet_route::address::AddressHeader;

    use super::*;

    fn message(attributes: Vec<AddressAttribute>) -> AddressMessage {
        let mut message = AddressMessage::default();
        message.attributes = attributes;
        message
    }

    #[test]
    fn the_local_end_is_the_address() {
        let [local, peer] = ["10.0.2.2", "10.0.2.1"].map(|text| text.parse::<IpAddr>().unwrap());
        for (attributes, expected) in [
            (vec![], None),
            (vec![AddressAttribute::Address(local)], Some(local)),
            (
                vec![
                    AddressAttribute::Address(peer),
                    AddressAttribute::Local(local),
                ],
                Some(local),
            ),
        ] {
            assert_eq!(address_of(&message(attributes)), expected);
        }
    }

    #[test]
    fn only_what_dhcp_may_have_given_is_a_candidate() {
        let none = AddressHeaderFlags::empty();
        for (family, scope, flags, expected) in [
            (AddressFamily::Inet, AddressScope::Universe, none, true),
            (AddressFamily::Inet6, AddressScope::Universe, none, true),
            (
                AddressFamily::Inet6,
                AddressScope::Universe,
                AddressHeaderFlags::Permanent,
                true,
            ),
            (AddressFamily::Inet6, AddressScope::Link, none, false),
            (AddressFamily::Inet, AddressScope::Host, none, false),
            // Privacy extensions (RFC 8981), and a second address of the same prefix.
            (
                AddressFamily::Inet6,
                AddressScope::Universe,
                AddressHeaderFlags::Secondary,
                false,
            ),
            (
                AddressFamily::Inet6,
                AddressScope::Universe,
                AddressHeaderFlags::Dadfailed,
                false,
            ),
        ] {
            let mut message = message(Vec::new());
            message.header = AddressHeader {
                family,
                scope,
                flags,
                ..AddressHeader::default()
            };
            assert_eq!(
                is_candidate(&message),
                expected,
                "{family:?} {scope:?} {flags:?}"
            );
        }
    }

    #[test]
    fn the_xdp_slot_is_read_in_every_mode() {
        for (attributes, expected) in [
            (vec![], None),
            (vec![LinkXdp::ProgId(0)], None),
            (vec![LinkXdp::ProgId(7), LinkXdp::DrvProgId(7)], Some(7)),
            (vec![LinkXdp::SkbProgId(8)], Some(8)),
        ] {
            let mut link = LinkMessage::default();
            link.attributes = vec![LinkAttribute::Xdp(attributes)];
            assert_eq!(xdp_program_of(&link), expected);
        }
    }
}
