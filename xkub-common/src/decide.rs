//! The rules: what is translated, what is remembered. Pure functions of what was parsed, of the service
//! set and of what was remembered before.

use crate::{
    config::Services,
    flow::{Flow, Fragment, FragmentOwner, LOOKUP_TICKS, Owner, UNORDERED_TICKS},
    packet::{Kind, Transport},
    port::Port,
};

/// The ports of a flow's key, as seen from the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends {
    /// Our port, or an echo identifier.
    pub local: Port,
    /// The remote port, or an echo identifier.
    pub remote: Port,
}

impl Ends {
    /// Of a packet that leaves.
    #[must_use]
    #[inline(always)]
    pub const fn leaving(transport: &Transport) -> Self {
        Self {
            local: transport.source,
            remote: transport.destination,
        }
    }

    /// Of a packet that arrives.
    #[must_use]
    #[inline(always)]
    pub const fn arriving(transport: &Transport) -> Self {
        Self {
            local: transport.destination,
            remote: transport.source,
        }
    }
}

/// Whether packets for this local port belong to the service set.
#[must_use]
#[inline(always)]
pub fn in_service(services: &Services, protocol: u8, kind: Kind, local: Port) -> bool {
    (match kind {
        Kind::Tcp => services.tcp.contains(local),
        Kind::Udp => services.udp.contains(local),
        _ => false,
    }) || services.protocols.contains(protocol)
}

/// Whether it is a packet into a one-way tunnel: nothing answers to its source port.
#[inline(always)]
fn is_tunnel(services: &Services, transport: &Transport) -> bool {
    matches!(transport.kind, Kind::Udp) && services.overlay.contains(transport.destination)
}

/// Egress rule 4: whether a packet that leaves from N is remembered, so that its answer finds N.
#[must_use]
#[inline(always)]
pub fn remember_node(services: &Services, protocol: u8, transport: &Transport) -> bool {
    match transport.kind {
        Kind::Answer | Kind::Error | Kind::Neighbour | Kind::Message | Kind::Fragment => false,
        Kind::Tcp | Kind::Udp | Kind::Ports | Kind::Query | Kind::Other => {
            !is_tunnel(services, transport)
                && !in_service(services, protocol, transport.kind, transport.source)
        }
    }
}

/// Whether a packet that leaves from G makes its flow the guest's. In the service set every TCP packet does: its flow may
/// be older than we are, or forgotten.
#[must_use]
#[inline(always)]
pub fn opens_guest(services: &Services, transport: &Transport, is_in_service: bool) -> bool {
    match transport.kind {
        Kind::Tcp => transport.opens || is_in_service,
        Kind::Udp => !is_tunnel(services, transport),
        Kind::Ports | Kind::Query => true,
        _ => false,
    }
}

/// As what a flow that the guest opens from G must be remembered, given what is remembered of it: its answers would be
/// taken for the service set, or for those to an older flow from N with the same ends. `None` if neither.
#[must_use]
#[inline(always)]
pub const fn remember_guest(is_in_service: bool, remembered: Flow) -> Option<Owner> {
    if is_in_service && !remembered.is(Owner::GuestOpened) {
        Some(Owner::GuestOpened)
    } else if !is_in_service && remembered.is(Owner::Node) {
        Some(Owner::GuestFound)
    } else {
        None
    }
}

/// Where a packet for G goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// To N.
    Node,
    /// To G, unchanged.
    Guest,
    /// To the owner of the socket that a lookup finds, which is then remembered.
    Lookup,
}

impl Flow {
    /// Of a flow that is not remembered. (Not an `Option`: the compiler leaves the fields of a `None`
    /// undefined and moves them about all the same, which the kernel's verifier forbids.)
    pub const UNKNOWN: Self = Self { owner: 0, since: 0 };

    /// Whether the flow is remembered.
    #[must_use]
    #[inline(always)]
    pub const fn is_known(&self) -> bool {
        self.owner != Self::UNKNOWN.owner
    }

    /// A new entry.
    #[must_use]
    #[inline(always)]
    pub const fn new(owner: Owner, now: u32) -> Self {
        Self {
            owner: owner as u32,
            since: now,
        }
    }

    /// Whether the flow belongs to `owner`.
    #[must_use]
    #[inline(always)]
    pub const fn is(&self, owner: Owner) -> bool {
        self.owner == owner as u32
    }
}

/// Ingress rule 1: a packet of the service set, given what is remembered of its flow.
#[must_use]
#[inline(always)]
pub fn arrival_in_service(transport: &Transport, remembered: Flow) -> Arrival {
    // A SYN is a new connection, whatever was remembered of an old one with the same ends.
    if remembered.is(Owner::GuestOpened) && !transport.opens {
        Arrival::Guest
    } else {
        Arrival::Node
    }
}

/// Ingress rules 2 and 3: any other packet, given what is remembered of its flow. `now` gives the
/// kernel's tick counter, and is called only where it counts.
#[must_use]
#[inline(always)]
pub fn arrival(transport: &Transport, remembered: Flow, now: impl FnOnce() -> u32) -> Arrival {
    if transport.opens {
        return Arrival::Lookup;
    }
    if remembered.is(Owner::Node) {
        Arrival::Node
    } else if remembered.is(Owner::GuestOpened) {
        Arrival::Guest
    } else if remembered.is(Owner::GuestFound) {
        let is_old = matches!(transport.kind, Kind::Udp)
            && now().wrapping_sub(remembered.since) > LOOKUP_TICKS;
        if is_old {
            Arrival::Lookup
        } else {
            Arrival::Guest
        }
    } else if matches!(transport.kind, Kind::Tcp | Kind::Udp) {
        Arrival::Lookup
    } else {
        Arrival::Guest
    }
}

/// Ingress rule 4: whether the packet that an ICMP error quotes left from N. The quoted packet is as it was on
/// the wire, from G; `remembered` is what is known of its flow.
#[must_use]
#[inline(always)]
pub fn quoted_from_node(
    services: &Services,
    protocol: u8,
    transport: &Transport,
    remembered: Flow,
) -> bool {
    if remembered.is_known() {
        return remembered.is(Owner::Node);
    }
    is_tunnel(services, transport)
        || in_service(services, protocol, transport.kind, transport.source)
}

/// Where a first fragment goes: after a later fragment of the same datagram that came just before it, else
/// where it would go by itself (`None`).
#[must_use]
#[inline(always)]
pub const fn first_fragment(remembered: Option<Fragment>, now: u32) -> Option<Arrival> {
    match remembered {
        Some(Fragment { owner, since })
            if owner == FragmentOwner::GuestUnordered as u32
                && now.wrapping_sub(since) <= UNORDERED_TICKS =>
        {
            Some(Arrival::Guest)
        }
        _ => None,
    }
}
