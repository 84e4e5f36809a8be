//! What the datapath counts: one number per CPU for each place, family, class and event.

use crate::packet::Kind;

macro_rules! numbered {
    ($(#[$meta:meta])* $name:ident { $($(#[$variant_meta:meta])* $variant:ident = $text:literal),+ $(,)? }) => {
        $(#[$meta])*
        #[repr(u32)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum $name { $($(#[$variant_meta])* $variant),+ }

        impl $name {
            /// Every value, in the order of their numbers.
            pub const ALL: &[Self] = &[$(Self::$variant),+];
            /// How many there are.
            #[expect(clippy::cast_possible_truncation, reason = "a handful")]
            pub const COUNT: u32 = Self::ALL.len() as u32;

            /// The name that output and metrics use.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $text),+ }
            }
        }
    };
}

numbered! {
    /// Where a program stands.
    Place {
        /// First at ingress.
        Ingress = "ingress",
        /// First at egress, before a CNI that may end the chain.
        EgressFirst = "egress-first",
        /// Last at egress, after a CNI that may choose N as a source.
        EgressLast = "egress-last",
    }
}

numbered! {
    /// What the link header says the packet is.
    Family {
        /// IPv4, and ARP.
        V4 = "ipv4",
        /// IPv6.
        V6 = "ipv6",
        /// Anything else.
        Other = "other",
    }
}

numbered! {
    /// What kind of packet it is.
    Class {
        /// TCP.
        Tcp = "tcp",
        /// UDP, tunnels among them.
        Udp = "udp",
        /// ICMP and ICMPv6 that quote no packet.
        Icmp = "icmp",
        /// ICMP and ICMPv6 errors, which quote one.
        IcmpError = "icmp-error",
        /// ARP and NDP.
        Neighbour = "neighbour",
        /// A fragment that is not the first.
        Fragment = "fragment",
        /// Any other protocol, and everything that was passed before the protocol was looked at.
        Other = "other",
    }
}

numbered! {
    /// What happened. `Translated`, `Passed`, `Dropped` and `Malformed` add up to the packets seen.
    Event {
        /// Addresses were rewritten.
        Translated = "translated",
        /// Nothing was to do.
        Passed = "passed",
        /// A rewrite broke off half-way (no memory), so the packet was dropped.
        Dropped = "dropped",
        /// The packet contradicts itself and was passed unchanged.
        Malformed = "malformed",
        /// A new flow was remembered.
        Remembered = "remembered",
        /// A socket lookup was made.
        Lookup = "lookup",
        /// A flow could not be remembered because the map had no room; the packet itself went its way.
        Full = "full",
        /// A later fragment came before its first one and was passed unchanged.
        Unordered = "unordered",
    }
}

impl Class {
    /// Of a packet with this transport header.
    #[must_use]
    #[inline(always)]
    pub const fn of(kind: Kind) -> Self {
        match kind {
            Kind::Tcp => Self::Tcp,
            Kind::Udp => Self::Udp,
            Kind::Query | Kind::Answer | Kind::Message => Self::Icmp,
            Kind::Error => Self::IcmpError,
            Kind::Neighbour => Self::Neighbour,
            Kind::Fragment => Self::Fragment,
            Kind::Ports | Kind::Other => Self::Other,
        }
    }
}

/// How many counters there are.
pub const COUNT: u32 = Place::COUNT * Family::COUNT * Class::COUNT * Event::COUNT;

/// The map index of a counter.
#[must_use]
#[inline(always)]
pub const fn index(place: Place, family: Family, class: Class, event: Event) -> u32 {
    offset(family, class, event) + base(place)
}

/// The part of an index that is the place's.
#[must_use]
#[inline(always)]
pub const fn base(place: Place) -> u32 {
    place as u32 * (Family::COUNT * Class::COUNT * Event::COUNT)
}

/// The part of an index that is not the place's.
#[must_use]
#[inline(always)]
pub const fn offset(family: Family, class: Class, event: Event) -> u32 {
    ((family as u32) * Class::COUNT + class as u32) * Event::COUNT + event as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_counter_has_a_number_of_its_own() {
        let mut expected = 0;
        for place in Place::ALL {
            for family in Family::ALL {
                for class in Class::ALL {
                    for event in Event::ALL {
                        assert_eq!(index(*place, *family, *class, *event), expected);
                        expected += 1;
                    }
                }
            }
        }
        assert_eq!(expected, COUNT);
    }
}
