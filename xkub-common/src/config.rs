//! The read-only constants of one program instance: addresses, service set and place in the chain.
//!
//! A change of any of them is a new program instance, swapped in as a whole, so no packet ever sees half
//! a change.

use crate::{
    checksum,
    counter::{self, Place},
    port::PortSet,
};

/// One address family's pair of addresses, for a 32-bit address word count of `WORDS` (1 or 4).
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses<const WORDS: usize> {
    /// 1 when the family is configured; 0 leaves every packet of the family alone.
    pub enabled: u32,
    /// G, network byte order.
    pub guest: [u32; WORDS],
    /// N, network byte order.
    pub node: [u32; WORDS],
    /// What the one's complement sum of a header grows by when N becomes G, 16 bits.
    pub node_to_guest: u32,
    /// What the one's complement sum of a header grows by when G becomes N, 16 bits.
    pub guest_to_node: u32,
}

impl<const WORDS: usize> Addresses<WORDS> {
    /// A family that is not configured.
    pub const NONE: Self = Self {
        enabled: 0,
        guest: [0; WORDS],
        node: [0; WORDS],
        node_to_guest: 0,
        guest_to_node: 0,
    };

    /// A configured family.
    #[must_use]
    pub fn new(guest: [u32; WORDS], node: [u32; WORDS]) -> Self {
        Self {
            enabled: 1,
            guest,
            node,
            node_to_guest: u32::from(checksum::difference(&node, &guest)),
            guest_to_node: u32::from(checksum::difference(&guest, &node)),
        }
    }
}

/// The IPv4 pair.
pub type AddressesV4 = Addresses<1>;
/// The IPv6 pair.
pub type AddressesV6 = Addresses<4>;

/// A set of IP protocol numbers.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ProtocolSet {
    words: [u64; 4],
}

impl ProtocolSet {
    /// No protocol.
    pub const EMPTY: Self = Self { words: [0; 4] };

    /// Adds a protocol.
    pub fn insert(&mut self, protocol: u8) {
        self.words[usize::from(protocol / 64)] |= 1 << (protocol % 64);
    }

    /// Whether the protocol is in the set.
    #[must_use]
    #[inline(always)]
    pub fn contains(&self, protocol: u8) -> bool {
        let word = &self.words[usize::from(protocol / 64)];
        // SAFETY: as in `PortSet::contains`.
        let word = unsafe { core::ptr::read_volatile(word) };
        word >> (protocol % 64) & 1 == 1
    }

    /// The protocols in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u8> + '_ {
        (0..=u8::MAX).filter(|protocol| self.contains(*protocol))
    }
}

/// What is always reached at the node address.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Services {
    /// TCP destination ports.
    pub tcp: PortSet,
    /// UDP destination ports, the overlay ports among them.
    pub udp: PortSet,
    /// UDP ports of one-way tunnels (VXLAN, Geneve): a flow to them is never remembered.
    pub overlay: PortSet,
    /// IP protocols reached as a whole, whatever their ports.
    pub protocols: ProtocolSet,
}

impl Services {
    /// Nothing.
    pub const EMPTY: Self = Self {
        tcp: PortSet::EMPTY,
        udp: PortSet::EMPTY,
        overlay: PortSet::EMPTY,
        protocols: ProtocolSet::EMPTY,
    };
}

/// The program constant `CONFIG`.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// The IPv4 pair.
    pub v4: AddressesV4,
    /// The IPv6 pair.
    pub v6: AddressesV6,
    /// A [`Place`], as its number.
    pub place: u32,
    /// The index of the place's first counter.
    pub counters: u32,
    /// One packet in how many becomes a [`Sample`](crate::sample::Sample), by counter; 0: none.
    pub sample: u32,
    /// Which build of the programs this is, set by the loader; the programs don't read it.
    pub build: u32,
    /// The service set.
    pub services: Services,
}

impl Config {
    /// Translates nothing.
    pub const EMPTY: Self = Self {
        v4: AddressesV4::NONE,
        v6: AddressesV6::NONE,
        place: Place::Ingress as u32,
        counters: counter::base(Place::Ingress),
        sample: 0,
        build: 0,
        services: Services::EMPTY,
    };

    /// Says where the program is going to stand.
    pub fn set_place(&mut self, place: Place) {
        self.place = place as u32;
        self.counters = counter::base(place);
    }
}

const _: () = assert!(
    size_of::<Config>().is_multiple_of(8),
    "no implicit padding at the end"
);
const _: () = assert!(
    core::mem::offset_of!(Config, services)
        == size_of::<AddressesV4>() + size_of::<AddressesV6>() + 16,
    "no implicit padding before the services"
);

#[cfg(feature = "user")]
// SAFETY: `repr(C)`, plain integers, no implicit padding (asserted above).
unsafe impl aya::Pod for Config {}
