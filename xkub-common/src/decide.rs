//! The rules: what is translated, what is remembered. Pure functions of what was parsed, of the service
//! set and of what was remembered before.

use crate::{
    config::Services,
    flow::{Flow, Fragment, FragmentOwner, LOOKUP_TICKS, Owner, UNORDERED_TICKS},
    packet::{Transport, protocol},
};

/// The ports of a flow's key, host byte order, as seen from the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends {
    /// Our port, or an echo identifier.
    pub local: u16,
    /// The remote port.
    pub remote: u16,
}

impl Ends {
    /// Of a packet that leaves.
    #[must_use]
    #[inline(always)]
    pub const fn leaving(transport: &Transport) -> Self {
        match *transport {
            Transport::Tcp {
                source,
                destination,
                ..
            }
            | Transport::Udp {
                source,
                destination,
                ..
            }
            | Transport::Ports {
                source,
                destination,
            } => Self {
                local: source,
                remote: destination,
            },
            Transport::Query(identifier) | Transport::Answer(identifier) => Self {
                local: identifier,
                remote: 0,
            },
            Transport::Error | Transport::Neighbour | Transport::Other => Self {
                local: 0,
                remote: 0,
            },
        }
    }

    /// Of a packet that arrives.
    #[must_use]
    #[inline(always)]
    pub const fn arriving(transport: &Transport) -> Self {
        let Self { local, remote } = Self::leaving(transport);
        match transport {
            Transport::Tcp { .. } | Transport::Udp { .. } | Transport::Ports { .. } => Self {
                local: remote,
                remote: local,
            },
            _ => Self { local, remote },
        }
    }
}

/// Whether packets for this local end belong to the service set.
#[must_use]
#[inline(always)]
pub fn in_service(services: &Services, kind: u8, transport: &Transport, local: u16) -> bool {
    (match transport {
        Transport::Tcp { .. } => services.tcp.contains(local),
        Transport::Udp { .. } => services.udp.contains(local),
        _ => false,
    }) || services.protocols.contains(kind)
}

/// Egress rule 4: whether a packet that leaves from N is remembered, so that its answer finds N.
#[must_use]
#[inline(always)]
pub fn remember_node(services: &Services, kind: u8, transport: &Transport) -> bool {
    match *transport {
        // One-way: nothing answers to a tunnel packet's source port.
        Transport::Udp { destination, .. } if services.overlay.contains(destination) => false,
        Transport::Answer(_) | Transport::Error | Transport::Neighbour => false,
        Transport::Other if kind == protocol::ICMP || kind == protocol::ICMPV6 => false,
        _ => !in_service(services, kind, transport, Ends::leaving(transport).local),
    }
}

/// Whether a packet that leaves from G opens a flow whose answers would be taken for the service set.
#[must_use]
#[inline(always)]
pub fn remember_guest(services: &Services, kind: u8, transport: &Transport) -> bool {
    match *transport {
        Transport::Tcp { source, opens, .. } => {
            opens && in_service(services, kind, transport, source)
        }
        Transport::Udp {
            source,
            destination,
            ..
        } => {
            in_service(services, kind, transport, source) && !services.overlay.contains(destination)
        }
        Transport::Ports { source, .. } => in_service(services, kind, transport, source),
        _ => false,
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
    if remembered.is(Owner::GuestOpened) && !matches!(transport, Transport::Tcp { opens: true, .. })
    {
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
    let has_socket = match transport {
        Transport::Tcp { opens: true, .. } => return Arrival::Lookup,
        Transport::Tcp { .. } | Transport::Udp { .. } => true,
        _ => false,
    };
    if remembered.is(Owner::Node) {
        Arrival::Node
    } else if remembered.is(Owner::GuestOpened) {
        Arrival::Guest
    } else if remembered.is(Owner::GuestFound) {
        let is_old = matches!(transport, Transport::Udp { .. })
            && now().wrapping_sub(remembered.since) > LOOKUP_TICKS;
        if is_old {
            Arrival::Lookup
        } else {
            Arrival::Guest
        }
    } else if has_socket {
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
    kind: u8,
    transport: &Transport,
    remembered: Flow,
) -> bool {
    if remembered.is_known() {
        return remembered.is(Owner::Node);
    }
    match *transport {
        Transport::Udp { destination, .. } if services.overlay.contains(destination) => true,
        _ => in_service(services, kind, transport, Ends::leaving(transport).local),
    }
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
