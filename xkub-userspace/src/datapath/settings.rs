//! What to attach: the user's words made into a program's constants, and back.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    str::FromStr,
};

use serde::{Serialize, Serializer};
use thiserror::Error;
use xkub_common::{
    config::{Addresses, AddressesV4, AddressesV6, Config, Services},
    counter::Family,
};

use super::hook::Hook;

/// UDP ports of the tunnels that guest CNIs use: VXLAN as flannel and Linux have it, VXLAN as moved out of the
/// infra cluster's way, VXLAN by IANA, Geneve.
pub const DEFAULT_OVERLAY_PORTS: [u16; 4] = [8472, 8473, 4789, 6081];
/// What is always reached at the node address, beside overlays: the kubelet, and IPIP, which kube-router uses.
pub const DEFAULT_SERVICES: [Service; 2] = [
    Service::Tcp(PortRange {
        first: 10250,
        last: 10250,
    }),
    Service::Protocol(4),
];
/// How many flows are remembered per family.
pub const DEFAULT_FLOW_ENTRIES: u32 = 65_536;
/// The word for an empty set.
const NONE: &str = "none";

/// Why a setting can't be used.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum SettingsError {
    /// Not an address.
    #[error(
        "{what} `{text}` is not an IP address; give one like 10.244.1.226, or two like 10.244.1.226,fd00::226"
    )]
    NotAnAddress {
        /// Which setting.
        what: &'static str,
        /// What was given.
        text: String,
    },
    /// Two addresses of one family.
    #[error("{what}es {first} and {second} are both {}; give at most one of each family", family_name(*first))]
    TwoOfOneFamily {
        /// Which setting.
        what: &'static str,
        /// The one.
        first: IpAddr,
        /// The other.
        second: IpAddr,
    },
    /// An address that can't be a host's own on a network.
    #[error("{what} {address} is {why}; give the address of the virt-launcher pod")]
    Unusable {
        /// Which setting.
        what: &'static str,
        /// The address.
        address: IpAddr,
        /// What it is instead.
        why: &'static str,
    },
    /// The guest address's family has no node address.
    #[error(
        "guest address {0} has no node address of its family; add one to --node-address, or leave it out"
    )]
    GuestWithoutNode(IpAddr),
    /// The uplink has no address of the node address's family.
    #[error("node address {node} is {}, but {uplink} has no {} address for it; wait for DHCP, leave it out, or give --guest-address", family_name(*node), family_name(*node))]
    NoGuestAddress {
        /// The node address.
        node: IpAddr,
        /// The uplink.
        uplink: String,
    },
    /// Both addresses are the same.
    #[error(
        "node address {0} is the guest address; give the address that the VM has outside, that of its virt-launcher pod"
    )]
    NodeIsGuest(IpAddr),
    /// A service that is none.
    #[error("service `{text}`: {why}; say tcp/PORT, udp/PORT, udp/FIRST-LAST or proto/NUMBER")]
    Service {
        /// What was given.
        text: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// An overlay port that is none.
    #[error("overlay port `{0}` is not a port; give a UDP port from 1 to 65535")]
    OverlayPort(String),
    /// A map without room.
    #[error("a flow map needs room for at least one flow; give --flow-entries a number from 1 to {max}", max = MAX_FLOW_ENTRIES)]
    FlowEntries,
}

/// The largest flow map, in entries: some GiB of kernel memory. More is a slip of the finger.
pub const MAX_FLOW_ENTRIES: u32 = 1 << 24;

const fn family_name(address: IpAddr) -> &'static str {
    match address {
        IpAddr::V4(_) => "IPv4",
        IpAddr::V6(_) => "IPv6",
    }
}

/// At most one address of each family.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DualAddress {
    /// The IPv4 address.
    pub v4: Option<Ipv4Addr>,
    /// The IPv6 address.
    pub v6: Option<Ipv6Addr>,
}

impl DualAddress {
    /// Reads `A`, `A6` or `A,A6`. `what` names the setting in errors: "node address".
    ///
    /// # Errors
    /// [`SettingsError::NotAnAddress`], [`SettingsError::TwoOfOneFamily`].
    pub fn parse(what: &'static str, text: &str) -> Result<Self, SettingsError> {
        let mut both = Self::default();
        for part in text.split(',').map(str::trim) {
            let address: IpAddr = part.parse().map_err(|_| SettingsError::NotAnAddress {
                what,
                text: part.to_owned(),
            })?;
            let previous = match address {
                IpAddr::V4(v4) => both.v4.replace(v4).map(IpAddr::V4),
                IpAddr::V6(v6) => both.v6.replace(v6).map(IpAddr::V6),
            };
            if let Some(first) = previous {
                return Err(SettingsError::TwoOfOneFamily {
                    what,
                    first,
                    second: address,
                });
            }
        }
        Ok(both)
    }

    /// The addresses there are.
    pub fn iter(&self) -> impl Iterator<Item = IpAddr> {
        self.v4
            .map(IpAddr::V4)
            .into_iter()
            .chain(self.v6.map(IpAddr::V6))
    }
}

/// Where the guest address comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuestAddress {
    /// The uplink's first address that is not the node address.
    Auto,
    /// These; a family that is missing is taken from the uplink.
    Given(DualAddress),
}

impl GuestAddress {
    /// Reads `auto`, `G`, `G6` or `G,G6`.
    ///
    /// # Errors
    /// As [`DualAddress::parse`].
    pub fn parse(text: &str) -> Result<Self, SettingsError> {
        match text {
            "auto" => Ok(Self::Auto),
            other => DualAddress::parse("guest address", other).map(Self::Given),
        }
    }
}

/// Which hook the ingress program shall use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IngressHook {
    /// TCX where the kernel has it, else clsact; egress likewise.
    #[default]
    Auto,
    /// TCX both ways, or an error.
    Tcx,
    /// clsact both ways.
    Clsact,
    /// Native XDP at ingress, or an error; egress as with [`Self::Auto`].
    Xdp,
}

/// Consecutive ports, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PortRange {
    /// The first.
    pub first: u16,
    /// The last.
    pub last: u16,
}

impl FromStr for PortRange {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let port = |text: &str| match text.parse::<u16>() {
            Ok(0) | Err(_) => Err("a port is a number from 1 to 65535"),
            Ok(port) => Ok(port),
        };
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let (first, last) = (port(first)?, port(last)?);
        if first > last {
            return Err("the range runs backwards");
        }
        Ok(Self { first, last })
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { first, last } = self;
        if first == last {
            write!(f, "{first}")
        } else {
            write!(f, "{first}-{last}")
        }
    }
}

/// Something that is always reached at the node address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Service {
    /// TCP destination ports.
    Tcp(PortRange),
    /// UDP destination ports.
    Udp(PortRange),
    /// A whole IP protocol.
    Protocol(u8),
}

impl FromStr for Service {
    type Err = SettingsError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = |why| SettingsError::Service {
            text: text.to_owned(),
            why,
        };
        let (kind, rest) = text
            .split_once('/')
            .ok_or_else(|| error("there is no `/`"))?;
        match kind {
            "tcp" => rest.parse().map(Self::Tcp).map_err(error),
            "udp" => rest.parse().map(Self::Udp).map_err(error),
            "proto" => rest
                .parse()
                .map(Self::Protocol)
                .map_err(|_| error("an IP protocol is a number from 0 to 255")),
            _ => Err(error("the part before the `/` is none of tcp, udp, proto")),
        }
    }
}

impl fmt::Display for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(ports) => write!(f, "tcp/{ports}"),
            Self::Udp(ports) => write!(f, "udp/{ports}"),
            Self::Protocol(number) => write!(f, "proto/{number}"),
        }
    }
}

impl Serialize for Service {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Reads services; the single word `none` is the empty set.
///
/// # Errors
/// [`SettingsError::Service`].
pub fn parse_services<S: AsRef<str>>(texts: &[S]) -> Result<Vec<Service>, SettingsError> {
    parse_all(texts, str::parse)
}

/// Reads overlay ports; the single word `none` is the empty set.
///
/// # Errors
/// [`SettingsError::OverlayPort`].
pub fn parse_overlay_ports<S: AsRef<str>>(texts: &[S]) -> Result<Vec<u16>, SettingsError> {
    parse_all(texts, |text| match text.parse() {
        Ok(0) | Err(_) => Err(SettingsError::OverlayPort(text.to_owned())),
        Ok(port) => Ok(port),
    })
}

fn parse_all<T, S: AsRef<str>>(
    texts: &[S],
    parse: impl Fn(&str) -> Result<T, SettingsError>,
) -> Result<Vec<T>, SettingsError> {
    if let [only] = texts
        && only.as_ref() == NONE
    {
        return Ok(Vec::new());
    }
    texts
        .iter()
        .map(|text| parse(text.as_ref().trim()))
        .collect()
}

/// The service set as the programs take it.
#[must_use]
pub fn service_set(services: &[Service], overlay_ports: &[u16]) -> Services {
    let mut set = Services::EMPTY;
    for service in services {
        match service {
            Service::Tcp(ports) => (ports.first..=ports.last).for_each(|port| set.tcp.insert(port)),
            Service::Udp(ports) => (ports.first..=ports.last).for_each(|port| set.udp.insert(port)),
            Service::Protocol(number) => set.protocols.insert(*number),
        }
    }
    for port in overlay_ports {
        set.udp.insert(*port);
        set.overlay.insert(*port);
    }
    set
}

/// A service set in as few words as it takes.
#[must_use]
pub fn compact(set: &Services) -> Vec<Service> {
    ranges(set.tcp.iter())
        .into_iter()
        .map(Service::Tcp)
        .chain(ranges(set.udp.iter()).into_iter().map(Service::Udp))
        .chain(set.protocols.iter().map(Service::Protocol))
        .collect()
}

fn ranges(ports: impl Iterator<Item = u16>) -> Vec<PortRange> {
    let mut ranges: Vec<PortRange> = Vec::new();
    for port in ports {
        match ranges.last_mut() {
            Some(range) if range.last.checked_add(1) == Some(port) => range.last = port,
            _ => ranges.push(PortRange {
                first: port,
                last: port,
            }),
        }
    }
    ranges
}

/// What to attach, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The interface.
    pub uplink: String,
    /// What peers know the node by.
    pub node_address: DualAddress,
    /// What the guest knows itself by.
    pub guest_address: GuestAddress,
    /// What is always reached at the node address, beside the overlay ports.
    pub services: Vec<Service>,
    /// UDP ports of tunnels.
    pub overlay_ports: Vec<u16>,
    /// The hook for ingress.
    pub ingress_hook: IngressHook,
    /// The interface that shall hold the node address; none: leave addresses alone.
    pub address_device: Option<String>,
    /// Room for remembered flows, per family.
    pub flow_entries: u32,
    /// Whether what was the node address before stays on its device, to be taken away with
    /// [`remove_address`](super::remove_address) when nobody relies on it any more: a kubelet does until it has been
    /// restarted. Nothing leaves from it any more: a rule sends that into a black hole. Where the kernel has no such
    /// rules, it goes at once.
    pub keep_old_addresses: bool,
}

/// The addresses of one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressPair<A> {
    /// G.
    pub guest: A,
    /// N.
    pub node: A,
}

/// The addresses as they will be translated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AddressPairs {
    /// The IPv4 pair.
    pub v4: Option<AddressPair<Ipv4Addr>>,
    /// The IPv6 pair.
    pub v6: Option<AddressPair<Ipv6Addr>>,
}

impl AddressPairs {
    /// The node addresses.
    #[must_use]
    pub fn node(&self) -> DualAddress {
        DualAddress {
            v4: self.v4.map(|pair| pair.node),
            v6: self.v6.map(|pair| pair.node),
        }
    }

    /// Each family with its guest address and its node address.
    pub fn iter(&self) -> impl Iterator<Item = (Family, IpAddr, IpAddr)> {
        let v4 = self
            .v4
            .map(|pair| (Family::V4, pair.guest.into(), pair.node.into()));
        let v6 = self
            .v6
            .map(|pair| (Family::V6, pair.guest.into(), pair.node.into()));
        v4.into_iter().chain(v6)
    }
}

impl Settings {
    /// Settings with every default.
    #[must_use]
    pub fn new(uplink: impl Into<String>, node_address: DualAddress) -> Self {
        Self {
            uplink: uplink.into(),
            node_address,
            guest_address: GuestAddress::Auto,
            services: DEFAULT_SERVICES.to_vec(),
            overlay_ports: DEFAULT_OVERLAY_PORTS.to_vec(),
            ingress_hook: IngressHook::Auto,
            address_device: Some(crate::node::address_device::DEFAULT_NAME.to_owned()),
            flow_entries: DEFAULT_FLOW_ENTRIES,
            keep_old_addresses: false,
        }
    }

    /// Checks what can be checked without looking at the machine.
    ///
    /// # Errors
    /// [`SettingsError`].
    pub fn validate(&self) -> Result<(), SettingsError> {
        for address in self.node_address.iter() {
            require_usable("node address", address)?;
        }
        if let GuestAddress::Given(guest) = self.guest_address {
            for address in guest.iter() {
                require_usable("guest address", address)?;
                if !self
                    .node_address
                    .iter()
                    .any(|node| node.is_ipv4() == address.is_ipv4())
                {
                    return Err(SettingsError::GuestWithoutNode(address));
                }
                if self.node_address.iter().any(|node| node == address) {
                    return Err(SettingsError::NodeIsGuest(address));
                }
            }
        }
        if !(1..=MAX_FLOW_ENTRIES).contains(&self.flow_entries) {
            return Err(SettingsError::FlowEntries);
        }
        Ok(())
    }

    /// Finds the guest address for each node address. `uplink_addresses` are the uplink's, of global scope.
    ///
    /// # Errors
    /// [`SettingsError::NoGuestAddress`], [`SettingsError::NodeIsGuest`].
    pub fn address_pairs(
        &self,
        uplink_addresses: &[IpAddr],
    ) -> Result<AddressPairs, SettingsError> {
        let given = match self.guest_address {
            GuestAddress::Auto => DualAddress::default(),
            GuestAddress::Given(given) => given,
        };
        let missing = |node: IpAddr| {
            // An uplink with the node address alone is a VM that is not on masquerade.
            if uplink_addresses.contains(&node) {
                SettingsError::NodeIsGuest(node)
            } else {
                SettingsError::NoGuestAddress {
                    node,
                    uplink: self.uplink.clone(),
                }
            }
        };
        let v4 = match self.node_address.v4 {
            None => None,
            Some(node) => {
                let found = uplink_addresses.iter().find_map(|address| match address {
                    IpAddr::V4(address) if *address != node => Some(*address),
                    _ => None,
                });
                let guest = given.v4.or(found).ok_or_else(|| missing(node.into()))?;
                Some(AddressPair { guest, node })
            }
        };
        let v6 = match self.node_address.v6 {
            None => None,
            Some(node) => {
                let found = uplink_addresses.iter().find_map(|address| match address {
                    IpAddr::V6(address) if *address != node => Some(*address),
                    _ => None,
                });
                let guest = given.v6.or(found).ok_or_else(|| missing(node.into()))?;
                Some(AddressPair { guest, node })
            }
        };
        Ok(AddressPairs { v4, v6 })
    }

    /// The programs' constants, for the ingress place; another is set with [`Config::set_place`].
    #[must_use]
    pub fn config(&self, pairs: &AddressPairs) -> Config {
        Config {
            v4: pairs.v4.map_or(AddressesV4::NONE, |pair| {
                Addresses::new(words_v4(pair.guest), words_v4(pair.node))
            }),
            v6: pairs.v6.map_or(AddressesV6::NONE, |pair| {
                Addresses::new(words_v6(pair.guest), words_v6(pair.node))
            }),
            services: service_set(&self.services, &self.overlay_ports),
            ..Config::EMPTY
        }
    }
}

/// The addresses in a program's constants.
#[must_use]
pub fn address_pairs_of(config: &Config) -> AddressPairs {
    AddressPairs {
        v4: (config.v4.enabled != 0).then(|| AddressPair {
            guest: address_v4(config.v4.guest),
            node: address_v4(config.v4.node),
        }),
        v6: (config.v6.enabled != 0).then(|| AddressPair {
            guest: address_v6(config.v6.guest),
            node: address_v6(config.v6.node),
        }),
    }
}

fn require_usable(what: &'static str, address: IpAddr) -> Result<(), SettingsError> {
    let why = match address {
        _ if address.is_unspecified() => "the unspecified address",
        _ if address.is_loopback() => "a loopback address",
        _ if address.is_multicast() => "a multicast address",
        IpAddr::V4(v4) if v4.is_broadcast() => "the broadcast address",
        IpAddr::V4(v4) if v4.is_link_local() => "a link-local address",
        IpAddr::V6(v6) if v6.is_unicast_link_local() => "a link-local address",
        IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some() => "an IPv4-mapped address",
        _ => return Ok(()),
    };
    Err(SettingsError::Unusable { what, address, why })
}

fn words_v4(address: Ipv4Addr) -> [u32; 1] {
    [u32::from_ne_bytes(address.octets())]
}

fn address_v4([word]: [u32; 1]) -> Ipv4Addr {
    Ipv4Addr::from(word.to_ne_bytes())
}

fn words_v6(address: Ipv6Addr) -> [u32; 4] {
    let octets = address.octets();
    std::array::from_fn(|word| {
        u32::from_ne_bytes(std::array::from_fn(|byte| octets[word * 4 + byte]))
    })
}

fn address_v6(words: [u32; 4]) -> Ipv6Addr {
    let bytes = words.map(u32::to_ne_bytes);
    Ipv6Addr::from(std::array::from_fn(|byte| bytes[byte / 4][byte % 4]))
}

/// What an attached place says of its hook.
#[must_use]
pub const fn hooks_to_try(ingress_hook: IngressHook) -> &'static [(Hook, Hook)] {
    match ingress_hook {
        IngressHook::Auto => &[(Hook::Tcx, Hook::Tcx), (Hook::Clsact, Hook::Clsact)],
        IngressHook::Tcx => &[(Hook::Tcx, Hook::Tcx)],
        IngressHook::Clsact => &[(Hook::Clsact, Hook::Clsact)],
        IngressHook::Xdp => &[(Hook::Xdp, Hook::Tcx), (Hook::Xdp, Hook::Clsact)],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(node: &str, guest: &str) -> Settings {
        Settings {
            guest_address: GuestAddress::parse(guest).unwrap(),
            ..Settings::new("eth0", DualAddress::parse("node address", node).unwrap())
        }
    }

    fn addresses(texts: &[&str]) -> Vec<IpAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn services_are_read_and_written_alike() {
        for text in [
            "tcp/10250",
            "udp/30000-32767",
            "proto/4",
            "tcp/1-65535",
            "udp/1",
            "proto/0",
            "proto/255",
        ] {
            assert_eq!(text.parse::<Service>().unwrap().to_string(), text);
        }
        assert_eq!("udp/5-5".parse::<Service>().unwrap().to_string(), "udp/5");
    }

    #[test]
    fn bad_services_are_refused_with_a_reason() {
        for (text, why) in [
            ("", "no `/`"),
            ("10250", "no `/`"),
            ("sctp/5", "none of tcp"),
            ("tcp/0", "1 to 65535"),
            ("tcp/65536", "1 to 65535"),
            ("tcp/", "1 to 65535"),
            ("tcp/x", "1 to 65535"),
            ("tcp/-5", "1 to 65535"),
            ("udp/9-5", "backwards"),
            ("udp/1-2-3", "1 to 65535"),
            ("proto/256", "0 to 255"),
            ("proto/ipip", "0 to 255"),
            ("TCP/1", "none of tcp"),
        ] {
            let error = text.parse::<Service>().unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn none_is_the_empty_set() {
        assert!(parse_services(&["none"]).unwrap().is_empty());
        assert!(parse_overlay_ports(&["none"]).unwrap().is_empty());
        assert!(parse_services(&["none", "tcp/1"]).is_err());
        for text in ["0", "65536", "x", "-1", ""] {
            assert!(parse_overlay_ports(&[text]).is_err(), "{text}");
        }
    }

    #[test]
    fn a_service_set_survives_the_way_into_the_constants_and_back() {
        let services = parse_services(&[
            "tcp/10250",
            "tcp/10251-10260",
            "udp/65534-65535",
            "udp/1",
            "proto/4",
        ])
        .unwrap();
        let set = service_set(&services, &DEFAULT_OVERLAY_PORTS);
        let words: Vec<String> = compact(&set).iter().map(ToString::to_string).collect();
        assert_eq!(
            words,
            [
                "tcp/10250-10260",
                "udp/1",
                "udp/4789",
                "udp/6081",
                "udp/8472-8473",
                "udp/65534-65535",
                "proto/4"
            ]
        );
        assert_eq!(
            set.overlay.iter().collect::<Vec<_>>(),
            [4789, 6081, 8472, 8473]
        );
    }

    #[test]
    fn addresses_survive_the_way_into_the_constants_and_back() {
        let settings = settings("10.244.1.226,fd00:244::1:226", "10.0.2.2,fd10:0:2::2");
        let pairs = settings.address_pairs(&[]).unwrap();
        let config = settings.config(&pairs);
        assert_eq!(address_pairs_of(&config), pairs);
        // As a load from the packet finds it.
        assert_eq!(config.v4.node[0].to_ne_bytes(), [10, 244, 1, 226]);
        assert_eq!(config.v6.guest[0].to_ne_bytes(), [0xfd, 0x10, 0, 0]);
        assert_eq!(config.v6.guest[3].to_ne_bytes(), [0, 0, 0, 2]);
    }

    #[test]
    fn a_family_that_is_not_configured_is_off() {
        let settings = settings("10.244.1.226", "auto");
        let pairs = settings
            .address_pairs(&addresses(&["10.0.2.2", "fd10:0:2::2"]))
            .unwrap();
        assert_eq!(settings.config(&pairs).v6, AddressesV6::NONE);
    }

    #[test]
    fn the_guest_address_is_the_uplinks_first_that_is_not_the_node_address() {
        for (node, guest, uplink, expected) in [
            ("10.244.1.226", "auto", &["10.0.2.2"][..], &["10.0.2.2"][..]),
            (
                "10.244.1.226",
                "auto",
                &["10.244.1.226", "10.0.2.2"],
                &["10.0.2.2"],
            ),
            (
                "10.244.1.226",
                "auto",
                &["fd10:0:2::2", "10.0.2.2", "10.0.2.3"],
                &["10.0.2.2"],
            ),
            (
                "10.244.1.226,fd00::226",
                "auto",
                &["10.0.2.2", "fd10:0:2::2"],
                &["10.0.2.2", "fd10:0:2::2"],
            ),
            (
                "fd00::226",
                "auto",
                &["10.0.2.2", "fd10:0:2::2"],
                &["fd10:0:2::2"],
            ),
            (
                "10.244.1.226",
                "192.168.5.2",
                &["10.0.2.2"],
                &["192.168.5.2"],
            ),
            (
                "10.244.1.226,fd00::226",
                "10.0.2.2",
                &["fd10:0:2::2"],
                &["10.0.2.2", "fd10:0:2::2"],
            ),
        ] {
            let pairs = settings(node, guest)
                .address_pairs(&addresses(uplink))
                .unwrap();
            let found: Vec<IpAddr> = pairs.iter().map(|(_, guest, _)| guest).collect();
            assert_eq!(found, addresses(expected), "{node} {guest} {uplink:?}");
        }
    }

    #[test]
    fn addresses_that_cannot_work_are_refused() {
        for (node, guest, uplink, why) in [
            (
                "10.244.1.226,fd00::226",
                "auto",
                &["10.0.2.2"][..],
                "no IPv6 address",
            ),
            ("10.244.1.226", "auto", &["fd10:0:2::2"], "no IPv4 address"),
            ("10.0.2.2", "auto", &["10.0.2.2"], "is the guest address"),
            ("10.0.2.2", "10.0.2.2", &[], "is the guest address"),
            (
                "10.244.1.226",
                "fd10:0:2::2",
                &["10.0.2.2"],
                "no node address of its family",
            ),
            ("127.0.0.1", "auto", &["10.0.2.2"], "loopback"),
            ("::1", "auto", &["fd10::2"], "loopback"),
            ("0.0.0.0", "auto", &["10.0.2.2"], "unspecified"),
            ("::", "auto", &["fd10::2"], "unspecified"),
            ("224.0.0.1", "auto", &["10.0.2.2"], "multicast"),
            ("ff02::1", "auto", &["fd10::2"], "multicast"),
            ("255.255.255.255", "auto", &["10.0.2.2"], "broadcast"),
            ("169.254.0.1", "auto", &["10.0.2.2"], "link-local"),
            ("fe80::1", "auto", &["fd10::2"], "link-local"),
            ("::ffff:10.0.0.1", "auto", &["fd10::2"], "IPv4-mapped"),
        ] {
            let settings = settings(node, guest);
            let error = settings
                .validate()
                .and_then(|()| settings.address_pairs(&addresses(uplink)).map(drop))
                .unwrap_err()
                .to_string();
            assert!(error.contains(why), "{node} {guest}: {error}");
            assert!(!error.contains('\n'), "{error}");
        }
    }

    #[test]
    fn what_is_not_an_address_is_refused() {
        for (text, why) in [
            ("", "is not an IP address"),
            ("10.0.0", "is not an IP address"),
            ("10.0.0.1/32", "is not an IP address"),
            ("eth0", "is not an IP address"),
            ("10.0.0.1,", "is not an IP address"),
            ("10.0.0.1,10.0.0.2", "are both IPv4"),
            ("fd00::1,fd00::2", "are both IPv6"),
        ] {
            let error = DualAddress::parse("node address", text)
                .unwrap_err()
                .to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn a_flow_map_has_room() {
        let settings = Settings {
            flow_entries: 0,
            ..settings("10.244.1.226", "auto")
        };
        assert_eq!(settings.validate(), Err(SettingsError::FlowEntries));
    }
}
