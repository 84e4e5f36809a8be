//! Which answer is the node address: the rules it must stand, and the order of those who may tell.

use std::{fmt, net::IpAddr, str::FromStr};

use ipnet::IpNet;
use serde::Serialize;
use thiserror::Error;

use super::Family;

/// Who tells the node address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// The configuration.
    Static,
    /// A STUN server in the infra cluster, which sees us as peers do.
    Reflector,
    /// The annotation on our own Node.
    Annotation,
    /// The `InternalIP` that a cloud provider gave our Node.
    CloudProvider,
}

impl Source {
    /// All, in the order in which they are believed unless the configuration says otherwise.
    pub const ALL: [Self; 4] = [
        Self::Static,
        Self::Reflector,
        Self::Annotation,
        Self::CloudProvider,
    ];

    /// The name in the configuration, in output and in metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Static => "static",
            Self::Reflector => "reflector",
            Self::Annotation => "annotation",
            Self::CloudProvider => "cloud-provider",
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// A word that names no source.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error(
    "`{0}` is no source of a node address; say static, reflector, annotation or cloud-provider"
)]
pub struct UnknownSource(pub String);

impl FromStr for Source {
    type Err = UnknownSource;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|source| source.name() == text)
            .ok_or_else(|| UnknownSource(text.to_owned()))
    }
}

/// What a node address must not be, or must be in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// What the uplink has: every VM's own address is the same.
    pub guest_addresses: Vec<IpAddr>,
    /// The guest cluster's pod and service networks.
    pub guest_cidrs: Vec<IpNet>,
    /// The infra cluster's pod networks. None is no restriction; if there are some, an address of a family without
    /// one is outside.
    pub infra_cidrs: Vec<IpNet>,
}

/// Why an address can't be the node address.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq, Serialize)]
#[serde(tag = "reason", rename_all = "kebab-case")]
pub enum Refusal {
    /// The answer did not pass virt-launcher's masquerade.
    #[error(
        "it is the guest address, which every such VM has; ask a reflector outside the VM, on the infra \
         cluster's pod network"
    )]
    GuestAddress,
    /// An overlay's address.
    #[error(
        "it lies in {cidr}, a network inside the guest cluster; the question must leave by the uplink, not by the \
         overlay"
    )]
    GuestCidr {
        /// Which one.
        cidr: IpNet,
    },
    /// Not where virt-launcher pods live.
    #[error("it lies in none of the infra cluster's networks that are configured")]
    OutsideInfra,
    /// Nobody could reach the node there.
    #[error("{what} is nobody's address on a network")]
    Unusable {
        /// What it is instead.
        what: &'static str,
    },
    /// Too many changes in too short a time.
    #[error("the address changes to and fro; {kept} is kept until another one has been steady")]
    Flapping {
        /// The last one that was good.
        kept: IpAddr,
    },
}

impl Refusal {
    /// The name in metrics, the same as in output.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::GuestAddress => "guest-address",
            Self::GuestCidr { .. } => "guest-cidr",
            Self::OutsideInfra => "outside-infra",
            Self::Unusable { .. } => "unusable",
            Self::Flapping { .. } => "flapping",
        }
    }
}

/// Whether an address can be the node address.
///
/// # Errors
/// [`Refusal`]: the first rule that it breaks.
pub fn judge(address: IpAddr, rules: &Rules) -> Result<(), Refusal> {
    let Rules {
        guest_addresses,
        guest_cidrs,
        infra_cidrs,
    } = rules;
    let address = address.to_canonical();
    if let Some(what) = unusable(address) {
        return Err(Refusal::Unusable { what });
    }
    if guest_addresses.contains(&address) {
        return Err(Refusal::GuestAddress);
    }
    if let Some(&cidr) = guest_cidrs.iter().find(|cidr| cidr.contains(&address)) {
        return Err(Refusal::GuestCidr { cidr });
    }
    if !infra_cidrs.is_empty() && !infra_cidrs.iter().any(|cidr| cidr.contains(&address)) {
        return Err(Refusal::OutsideInfra);
    }
    Ok(())
}

/// What an address is, if it can't be a host's own on a network (RFC 6890).
fn unusable(address: IpAddr) -> Option<&'static str> {
    let link_local = match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    let reserved = match address {
        // 240.0.0.0/4, the broadcast address with it, and the rest of "this network".
        IpAddr::V4(v4) => v4.octets()[0] >= 240 || v4.octets()[0] == 0,
        IpAddr::V6(_) => false,
    };
    if address.is_unspecified() {
        Some("the unspecified address")
    } else if address.is_loopback() {
        Some("a loopback address")
    } else if address.is_multicast() {
        Some("a multicast address")
    } else if link_local {
        Some("a link-local address")
    } else if reserved {
        Some("a reserved address")
    } else {
        None
    }
}

/// One address that one source told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Told {
    /// Who told it.
    pub source: Source,
    /// The address.
    pub address: IpAddr,
}

/// An answer that does not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Refused {
    /// Who told what.
    #[serde(flatten)]
    pub told: Told,
    /// Why it does not count.
    #[serde(flatten)]
    pub refusal: Refusal,
}

impl fmt::Display for Refused {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            told: Told { source, address },
            refusal,
        } = self;
        write!(formatter, "{address} from {source} is refused: {refusal}")
    }
}

/// What came of all answers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Picked {
    /// The IPv4 node address, if any.
    pub v4: Option<Told>,
    /// The IPv6 node address, if any.
    pub v6: Option<Told>,
    /// Every answer that broke a rule, of sources that are believed less than the winner too.
    pub refused: Vec<Refused>,
}

impl Picked {
    /// The address of one family.
    #[must_use]
    pub const fn of(&self, family: Family) -> Option<Told> {
        match family {
            Family::V4 => self.v4,
            Family::V6 => self.v6,
        }
    }
}

/// Takes, per family, the first answer that stands: by `order`, and of one source by the order it told them in. What
/// a source told that is not in `order` is not looked at.
#[must_use]
pub fn pick(order: &[Source], answers: &[Told], rules: &Rules) -> Picked {
    let mut picked = Picked::default();
    for (place, &source) in order.iter().enumerate() {
        if order.iter().take(place).any(|&earlier| earlier == source) {
            continue;
        }
        for answer in answers.iter().filter(|answer| answer.source == source) {
            let told = Told {
                source,
                address: answer.address.to_canonical(),
            };
            match judge(told.address, rules) {
                Ok(()) => {
                    let slot = match Family::of(told.address) {
                        Family::V4 => &mut picked.v4,
                        Family::V6 => &mut picked.v6,
                    };
                    slot.get_or_insert(told);
                }
                Err(refusal) => picked.refused.push(Refused { told, refusal }),
            }
        }
    }
    picked
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn told(source: Source, text: &str) -> Told {
        Told {
            source,
            address: address(text),
        }
    }

    fn rules() -> Rules {
        Rules {
            guest_addresses: vec![address("10.0.2.2"), address("fd10:0:2::2")],
            guest_cidrs: ["10.20.0.0/16", "10.96.0.0/12", "fd20::/48"]
                .map(|cidr| cidr.parse().unwrap())
                .to_vec(),
            infra_cidrs: ["10.244.0.0/16", "10.20.0.0/15", "fd00:10:244::/56"]
                .map(|cidr| cidr.parse().unwrap())
                .to_vec(),
        }
    }

    #[test]
    fn every_rule_refuses_what_breaks_it() {
        let cidr = |text: &str| Refusal::GuestCidr {
            cidr: text.parse().unwrap(),
        };
        let unusable = |what| Refusal::Unusable { what };
        let cases = [
            ("10.244.1.226", None),
            ("fd00:10:244::e2", None),
            // As a socket of both families shows it.
            ("::ffff:10.244.1.226", None),
            ("10.0.2.2", Some(Refusal::GuestAddress)),
            ("::ffff:10.0.2.2", Some(Refusal::GuestAddress)),
            ("fd10:0:2::2", Some(Refusal::GuestAddress)),
            // The guest's networks come first, even where they overlap the infra cluster's.
            ("10.20.3.4", Some(cidr("10.20.0.0/16"))),
            ("10.21.3.4", None),
            ("10.96.0.1", Some(cidr("10.96.0.0/12"))),
            ("fd20::1", Some(cidr("fd20::/48"))),
            ("192.168.1.1", Some(Refusal::OutsideInfra)),
            ("2001:db8::1", Some(Refusal::OutsideInfra)),
            ("0.0.0.0", Some(unusable("the unspecified address"))),
            ("::", Some(unusable("the unspecified address"))),
            ("127.0.0.1", Some(unusable("a loopback address"))),
            ("::1", Some(unusable("a loopback address"))),
            ("169.254.1.1", Some(unusable("a link-local address"))),
            ("fe80::1", Some(unusable("a link-local address"))),
            ("224.0.0.1", Some(unusable("a multicast address"))),
            ("ff02::1", Some(unusable("a multicast address"))),
            ("255.255.255.255", Some(unusable("a reserved address"))),
            ("240.0.0.1", Some(unusable("a reserved address"))),
            ("0.1.2.3", Some(unusable("a reserved address"))),
        ];
        for (text, refusal) in cases {
            assert_eq!(judge(address(text), &rules()).err(), refusal, "{text}");
        }
    }

    #[test]
    fn without_infra_networks_any_will_do() {
        let rules = Rules {
            infra_cidrs: Vec::new(),
            ..rules()
        };
        assert_eq!(judge(address("192.168.1.1"), &rules), Ok(()));
        assert_eq!(judge(address("2001:db8::1"), &rules), Ok(()));
        assert!(judge(address("10.0.2.2"), &rules).is_err());
    }

    #[test]
    fn the_first_in_order_that_stands_wins() {
        use Source::{Annotation, CloudProvider, Reflector, Static};
        let answers = [
            told(CloudProvider, "10.244.0.4"),
            told(Annotation, "10.244.0.3"),
            told(Annotation, "fd00:10:244::3"),
            told(Annotation, "10.244.0.33"),
            told(Reflector, "10.0.2.2"),
            told(Reflector, "::ffff:10.244.0.2"),
        ];
        let guest = Refused {
            told: told(Reflector, "10.0.2.2"),
            refusal: Refusal::GuestAddress,
        };
        let cases = [
            (&Source::ALL[..], Some((Reflector, "10.244.0.2")), true),
            (
                &[Annotation, Reflector],
                Some((Annotation, "10.244.0.3")),
                true,
            ),
            (
                &[CloudProvider, CloudProvider],
                Some((CloudProvider, "10.244.0.4")),
                false,
            ),
            (&[Static], None, false),
            (&[], None, false),
        ];
        for (order, v4, refused) in cases {
            let picked = pick(order, &answers, &rules());
            let v4 = v4.map(|(source, text)| told(source, text));
            assert_eq!(picked.of(Family::V4), v4, "{order:?}");
            let v6 = order.contains(&Annotation);
            let v6 = v6.then(|| told(Annotation, "fd00:10:244::3"));
            assert_eq!(picked.of(Family::V6), v6, "{order:?}");
            assert_eq!(picked.refused, Vec::from_iter(refused.then_some(guest)));
        }
    }

    #[test]
    fn refusals_say_who_what_and_why() {
        let picked = pick(
            &Source::ALL,
            &[told(Source::Reflector, "10.96.0.1")],
            &rules(),
        );
        assert_eq!(picked.v4, None);
        let [refused] = picked.refused[..] else {
            panic!("{picked:?}")
        };
        let text = refused.to_string();
        assert!(
            text.starts_with("10.96.0.1 from reflector is refused: it lies in 10.96.0.0/12,"),
            "{text}"
        );
        assert_eq!(
            serde_json::to_value(refused).unwrap(),
            serde_json::json!({
                "source": "reflector",
                "address": "10.96.0.1",
                "reason": "guest-cidr",
                "cidr": "10.96.0.0/12",
            })
        );
        // The name in metrics is the name in output.
        for refusal in [
            Refusal::GuestAddress,
            refused.refusal,
            Refusal::OutsideInfra,
            Refusal::Unusable { what: "nothing" },
            Refusal::Flapping {
                kept: address("10.244.0.1"),
            },
        ] {
            assert_eq!(
                serde_json::to_value(refusal).unwrap()["reason"],
                refusal.name()
            );
        }
    }

    #[test]
    fn sources_are_read_as_they_are_written() {
        for source in Source::ALL {
            assert_eq!(source.to_string().parse(), Ok(source));
            assert_eq!(serde_json::to_value(source).unwrap(), source.name());
        }
        let error = Source::from_str("Reflector").unwrap_err();
        assert!(error.to_string().contains("say static, reflector"));
    }
}
