//! What is attached, as it is in the kernel, and what is wrong with it.

use std::net::IpAddr;

use aya::maps::MapInfo;
use serde::Serialize;
use xkub_common::{
    config::Config,
    counter::{Family, Place},
    map,
};

use super::{
    chain::{self, Entry},
    clsact,
    counters::{self, Counter},
    error::Error,
    hook::{Direction, Hook, PlaceExt as _},
    object,
    pins::Pins,
    settings::{self, Service},
    sys::{self, ProgramInfo},
};
use crate::{
    netlink::Netlink,
    node::{address_device, uplink::Uplink},
};

/// Fewer packets that were seen first and not last are no sign of anything: programs are not swapped all at
/// once, and packets are under way while counters are read.
const NOTICEABLE: u64 = 16;

/// An attached datapath.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Datapath {
    /// The uplink.
    pub uplink: String,
    /// Its index.
    pub ifindex: u32,
    /// The hooks in use.
    pub hook: Hooks,
    /// What is translated into what.
    pub addresses: Vec<AddressLine>,
    /// The interface that holds the node address.
    pub address_device: Option<String>,
    /// The service set, overlay ports among it.
    pub services: Vec<Service>,
    /// UDP ports of tunnels, ascending.
    pub overlay_ports: Vec<u16>,
    /// Our programs.
    pub programs: Vec<ProgramLine>,
    /// Whether all of them are of the build that looks: an upgrade loads them anew.
    pub is_current_build: bool,
    /// Our maps.
    pub maps: Vec<MapLine>,
    /// Everybody's programs, in running order.
    pub chain: Chains,
    /// What is wrong, and what to do about it.
    pub warnings: Vec<String>,
}

/// The hook of each place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Hooks {
    /// Of ingress.
    pub ingress: Hook,
    /// Of egress, before all others.
    pub egress_first: Hook,
    /// Of egress, behind all others: clsact behind somebody's filters on it, even where the first is on TCX.
    pub egress_last: Hook,
}

/// The addresses of one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct AddressLine {
    /// `ipv4` or `ipv6`.
    pub family: &'static str,
    /// The guest address.
    pub guest: IpAddr,
    /// The node address.
    pub node: IpAddr,
}

/// One of our programs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ProgramLine {
    /// Its place: `ingress`, `egress-first`, `egress-last`.
    pub place: &'static str,
    /// Its name.
    pub name: String,
    /// Its id.
    pub id: u32,
    /// The hash of its instructions, 16 hexadecimal digits.
    pub tag: String,
    /// How long ago it was loaded, which is when its settings were last changed.
    pub age_seconds: u64,
    /// Its maps' ids.
    pub map_ids: Vec<u32>,
}

/// One of our maps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MapLine {
    /// Its name.
    pub name: &'static str,
    /// Its id.
    pub id: u32,
    /// What it has room for.
    pub max_entries: u32,
}

/// The chains.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Chains {
    /// From the wire.
    pub ingress: Vec<Entry>,
    /// To the wire.
    pub egress: Vec<Entry>,
}

/// Looks at an attached datapath.
pub(super) fn show(netlink: &Netlink, uplink: &Uplink, pins: &Pins) -> Result<Datapath, Error> {
    let programs = pins.programs()?;
    let (place, any) = programs
        .first()
        .ok_or_else(|| Error::NotAttached(uplink.name.clone()))?;
    let config = object::constants(&pins.constants(*place), any)?;
    let mut is_current_build = true;
    for (place, program) in &programs {
        let build = object::constants(&pins.constants(*place), program)?.build;
        is_current_build &= build == object::build();
    }
    let chain = Chains {
        ingress: chain::read(netlink, uplink, Direction::Ingress, &programs)?,
        egress: chain::read(netlink, uplink, Direction::Egress, &programs)?,
    };
    // Five hundred calls of the kernel, which only a program of somebody else's makes worth it.
    let counters = if is_anybody_between(&chain.egress, &programs) {
        counters::counters(pins)?
    } else {
        Vec::new()
    };
    let addresses = addresses(&config);
    let holders = addresses
        .iter()
        .map(|line| Ok((line.node, address_device::holders(netlink, line.node)?)))
        .collect::<Result<Vec<_>, Error>>()?;
    let wanted_devices: Vec<String> = pins
        .addresses()?
        .into_iter()
        .map(|(name, _)| name)
        .collect();
    let mut warnings = chain_warnings(&chain, &programs, &counters);
    warnings.extend(address_warnings(&uplink.name, &holders));
    Ok(Datapath {
        uplink: uplink.name.clone(),
        ifindex: uplink.index,
        hook: Hooks {
            ingress: pins.hook(Place::Ingress)?,
            egress_first: pins.hook(Place::EgressFirst)?,
            egress_last: pins.hook(Place::EgressLast)?,
        },
        address_device: address_device(&holders, &wanted_devices),
        addresses,
        services: settings::compact(&config.services),
        overlay_ports: config.services.overlay.iter().collect(),
        programs: programs.iter().map(program_line).collect(),
        is_current_build,
        maps: maps(pins)?,
        chain,
        warnings,
    })
}

fn addresses(config: &Config) -> Vec<AddressLine> {
    settings::address_pairs_of(config)
        .iter()
        .map(|(family, guest, node)| AddressLine {
            family: Family::name(family),
            guest,
            node,
        })
        .collect()
}

fn program_line((place, info): &(Place, ProgramInfo)) -> ProgramLine {
    ProgramLine {
        place: place.name(),
        name: info.name.clone(),
        id: info.id,
        tag: format!("{:016x}", u64::from_be_bytes(info.tag)),
        age_seconds: sys::since_boot().saturating_sub(info.loaded_at).as_secs(),
        map_ids: info.map_ids.clone(),
    }
}

fn maps(pins: &Pins) -> Result<Vec<MapLine>, Error> {
    map::PINNED
        .into_iter()
        .map(|name| {
            let info =
                MapInfo::from_pin(pins.map(name)).map_err(|source| object::ObjectError::Map {
                    name: name.to_owned(),
                    source: Box::new(source),
                })?;
            Ok(MapLine {
                name,
                id: info.id(),
                max_entries: info.max_entries(),
            })
        })
        .collect()
}

/// The device that we put the address on, else any that holds it.
fn address_device(holders: &[(IpAddr, Vec<String>)], wanted: &[String]) -> Option<String> {
    let mut names = holders.iter().flat_map(|(_, names)| names);
    names
        .clone()
        .find(|name| wanted.contains(name))
        .or_else(|| names.next())
        .cloned()
}

fn address_warnings(uplink: &str, holders: &[(IpAddr, Vec<String>)]) -> Vec<String> {
    holders
        .iter()
        .filter_map(|(address, names)| {
            if names.is_empty() {
                Some(format!(
                    "no interface has the node address {address}, so packets for it are not taken: attach again without --no-address"
                ))
            } else if names.iter().any(|name| name == uplink) {
                Some(format!(
                    "the node address {address} is on {uplink} itself, where Cilium takes it as the source for its pods: put it on a dummy interface"
                ))
            } else {
                None
            }
        })
        .collect()
}

/// The programs at egress, first and last.
fn egress_ids(programs: &[(Place, ProgramInfo)]) -> Option<(u32, u32)> {
    let id_of = |wanted: Place| {
        let mut found = programs.iter().filter(|(place, _)| *place == wanted);
        found.next().map(|(_, info)| info.id)
    };
    Some((id_of(Place::EgressFirst)?, id_of(Place::EgressLast)?))
}

/// Whether anybody could end the chain at egress after our first place and before our last one.
fn is_anybody_between(egress: &[Entry], programs: &[(Place, ProgramInfo)]) -> bool {
    egress_ids(programs)
        .is_some_and(|(first, last)| !chain::between(egress, first, last).is_empty())
}

/// What is wrong with who stands where. `counters` matter only where somebody stands between our two at egress.
fn chain_warnings(
    chain: &Chains,
    programs: &[(Place, ProgramInfo)],
    counters: &[Counter],
) -> Vec<String> {
    let mut warnings = Vec::new();
    let id_of = |wanted: Place| {
        programs
            .iter()
            .find(|(place, _)| *place == wanted)
            .map(|(_, info)| info.id)
    };
    for place in Place::ALL.iter().copied() {
        let entries = match place.direction() {
            Direction::Ingress => &chain.ingress,
            Direction::Egress => &chain.egress,
        };
        let stands =
            id_of(place).is_some_and(|id| entries.iter().any(|entry| entry.id == Some(id)));
        if !stands {
            warnings.push(format!(
                "nothing of ours stands at {}: somebody removed it; put it back: xkub datapath watch, or attach again",
                place.name()
            ));
        }
    }
    for (direction, entries) in [
        (Direction::Ingress, &chain.ingress),
        (Direction::Egress, &chain.egress),
    ] {
        let before = chain::before_ours(entries);
        let ours = entries.get(before.len()).map(|entry| entry.hook);
        for entry in before {
            warnings.push(format!(
                "{} stands before us at {} and sees packets untranslated, or ends the chain: {}",
                describe(entry),
                direction.name(),
                match entry.hook {
                    hook if Some(hook) == ours => "xkub datapath watch takes the first place again",
                    Hook::Xdp => "no other hook comes before XDP, and its slot holds one program",
                    Hook::Tcx | Hook::Clsact => "attach again with --ingress-hook tcx",
                }
            ));
        }
    }
    if let Some((first, last)) = egress_ids(programs) {
        let between = chain::between(&chain.egress, first, last);
        let (seen_first, seen_last) = (
            counters::seen(counters, Place::EgressFirst),
            counters::seen(counters, Place::EgressLast),
        );
        let missed = seen_first.saturating_sub(seen_last);
        if !between.is_empty() && missed >= NOTICEABLE && missed > seen_first / 100 {
            let names: Vec<String> = between.into_iter().map(describe).collect();
            warnings.push(format!(
                "{} ends the chain at egress: {missed} of {seen_first} packets were seen first and never last, so a node address that it chooses as a source is not translated",
                names.join(" or ")
            ));
        }
        let from_last = chain
            .egress
            .iter()
            .skip_while(|entry| entry.id != Some(last));
        for entry in from_last.filter(|entry| !entry.ours) {
            warnings.push(format!(
                "{} stands behind us at egress, so a node address that it chooses as a source is not translated: {}",
                describe(entry),
                if entry.priority() == Some(clsact::priority(Place::EgressLast)) {
                    "it has the last priority that there is; give it a smaller number"
                } else {
                    "xkub datapath watch takes the last place again"
                }
            ));
        }
    }
    warnings
}

fn describe(entry: &Entry) -> String {
    match entry.id {
        Some(id) => format!("{} (program {id}, {})", entry.name, entry.hook.name()),
        None => format!("a {} filter", entry.name),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use xkub_common::counter::{Class, Event};

    use super::{super::chain::tests::chain, *};

    fn programs() -> Vec<(Place, ProgramInfo)> {
        [
            (Place::Ingress, 1),
            (Place::EgressFirst, 2),
            (Place::EgressLast, 3),
        ]
        .into_iter()
        .map(|(place, id)| {
            let info = ProgramInfo {
                id,
                name: place.program(Hook::Tcx).to_owned(),
                tag: [0; 8],
                loaded_at: Duration::ZERO,
                map_ids: Vec::new(),
            };
            (place, info)
        })
        .collect()
    }

    fn passed(first: u64, last: u64) -> Vec<Counter> {
        [(Place::EgressFirst, first), (Place::EgressLast, last)]
            .into_iter()
            .map(|(place, packets)| Counter {
                place,
                family: Family::V4,
                class: Class::Tcp,
                event: Event::Passed,
                packets,
            })
            .collect()
    }

    #[test]
    fn warnings_say_who_is_in_the_way() {
        let ingress = &["tcx:xkub_ingress#1", "tcx:cil_from_netdev#8"][..];
        let egress = &[
            "tcx:xkub_egress#2",
            "tcx:cil_to_netdev#9",
            "tcx:xkub_egress#3",
        ][..];
        let alone = &["tcx:xkub_egress#2", "tcx:xkub_egress#3"][..];
        for (ingress, egress, counts, expected) in [
            (ingress, egress, (0, 0), &[][..]),
            (ingress, egress, (1000, 1000), &[]),
            // Swaps and packets under way.
            (ingress, egress, (15, 0), &[]),
            (ingress, egress, (100_000, 99_900), &[]),
            (ingress, egress, (1000, 1010), &[]),
            (
                ingress,
                egress,
                (16, 0),
                &["cil_to_netdev (program 9, tcx) ends the chain at egress: 16 of 16"],
            ),
            (
                ingress,
                egress,
                (1000, 900),
                &["cil_to_netdev (program 9, tcx) ends the chain at egress: 100 of 1000"],
            ),
            // Nobody is there to have done it; it happened in the past.
            (ingress, alone, (1000, 0), &[]),
            (
                &["xdp:other#7", "tcx:xkub_ingress#1"],
                alone,
                (0, 0),
                &["other (program 7, xdp) stands before us at ingress"],
            ),
            (
                &["tcx:other#7", "tcx:xkub_ingress#1"],
                alone,
                (0, 0),
                &["other (program 7, tcx) stands before us at ingress"],
            ),
            (&[], alone, (0, 0), &["nothing of ours stands at ingress"]),
            (
                ingress,
                &["tcx:xkub_egress#2"],
                (0, 0),
                &["nothing of ours stands at egress-last"],
            ),
            (
                ingress,
                &[
                    "tcx:xkub_egress#2",
                    "tcx:xkub_egress#3",
                    "tcx:cil_to_netdev#9",
                ],
                (1000, 1000),
                &["cil_to_netdev (program 9, tcx) stands behind us at egress"],
            ),
            (
                ingress,
                &["tcx:xkub_egress#2", "tcx:xkub_egress#3", "clsact:cali#9"],
                (1000, 1000),
                &["cali (program 9, clsact) stands behind us at egress"],
            ),
            (
                ingress,
                &["tcx:xkub_egress#2", "clsact:cali#9", "clsact:xkub_egress#3"],
                (1000, 1000),
                &[],
            ),
        ] {
            let chains = Chains {
                ingress: chain(ingress),
                egress: chain(egress),
            };
            let (first, last) = counts;
            let warnings = chain_warnings(&chains, &programs(), &passed(first, last));
            assert_eq!(
                warnings.len(),
                expected.len(),
                "{ingress:?} {egress:?} {counts:?}: {warnings:?}"
            );
            if !is_anybody_between(&chains.egress, &programs()) {
                // Whoever does not read the counters then warns of the same.
                assert_eq!(chain_warnings(&chains, &programs(), &[]), warnings);
            }
            for (warning, expected) in warnings.iter().zip(expected) {
                assert!(warning.starts_with(expected), "{warning}");
            }
        }
    }

    #[test]
    fn the_address_device_is_the_one_we_chose() {
        let node: IpAddr = "10.244.1.226".parse().unwrap();
        let names = |names: &[&str]| {
            names
                .iter()
                .map(|name| (*name).to_owned())
                .collect::<Vec<_>>()
        };
        for (holders, wanted, device, warnings) in [
            (&["eth0", "xkub0"][..], &["xkub0"][..], Some("xkub0"), 1),
            (&["lo"], &[], Some("lo"), 0),
            (&["xkub0"], &["xkub0"], Some("xkub0"), 0),
            (&[], &["xkub0"], None, 1),
        ] {
            let holders = [(node, names(holders))];
            assert_eq!(address_device(&holders, &names(wanted)).as_deref(), device);
            assert_eq!(address_warnings("eth0", &holders).len(), warnings);
        }
    }
}
