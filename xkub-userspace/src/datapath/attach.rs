//! Attaching: the ladder of hooks, the maps, the node address, and the way back when something fails.

use std::net::IpAddr;

use aya::maps::{MapData, MapError, MapInfo};
use tracing::{debug, warn};
use xkub_common::{config::Config, counter::Place, map};

use super::{
    bpffs, capabilities,
    chain::{self, Attachment},
    change::{Change, release_clsact, sweep},
    error::Error,
    hook::{Direction, Hook, PlaceExt as _},
    object::{self, Instance, MapShape, Maps, ObjectError},
    pins::{self, Pins},
    repair,
    settings::{DualAddress, IngressHook, Settings, address_pairs_of, hooks_to_try},
    show::{self, Datapath},
    xdp,
};
use crate::{
    netlink::Netlink,
    node::{
        address_device::{AddressDevice, LOOPBACK},
        blocked_source,
        uplink::{self, Uplink},
    },
};

/// Puts the datapath on an uplink, or changes the one that is there. The answer's warnings also say what this
/// call did that was not asked for: a map made anew, `lo` for want of a dummy device.
///
/// Nothing is changed before all settings are checked. When something fails half-way, what was there before
/// stays, and what this call did is taken back.
///
/// # Errors
/// [`Error`], one variant per cause.
pub fn attach(settings: &Settings) -> Result<Datapath, Error> {
    settings.validate()?;
    let netlink = Netlink::open()?;
    let uplink = uplink::find(&netlink, &settings.uplink)?;
    let pairs = settings.address_pairs(&uplink.addresses)?;
    let config = settings.config(&pairs);
    capabilities::check()?;
    if bpffs::is_mounted()? {
        follow_renaming(&netlink, &uplink)?;
    }
    require_free_hooks(&netlink, &uplink, settings.ingress_hook)?;
    bpffs::ensure_mounted()?;

    let pins = Pins::of(&uplink.name);
    let existed = pins.exist();
    let lock = pins.lock()?;
    pins.create()?;
    let attaching = Attaching {
        settings,
        netlink: &netlink,
        uplink: &uplink,
        pins: &pins,
        config: &config,
        node: pairs.node(),
    };
    let result = attaching.run();
    if result.is_err() && !existed {
        pins.remove()?;
    }
    let mut datapath = result.and_then(|notes| {
        let mut datapath = show::show(&netlink, &uplink, &pins)?;
        datapath.warnings.splice(0..0, notes);
        Ok(datapath)
    })?;
    drop(lock);
    datapath.warnings.dedup();
    Ok(datapath)
}

/// Finds what was attached to the uplink when it had another name.
fn follow_renaming(netlink: &Netlink, uplink: &Uplink) -> Result<(), Error> {
    let pins = Pins::of(&uplink.name);
    if pins.exist() {
        return Ok(());
    }
    for name in Pins::uplinks()? {
        let other = Pins::of(&name);
        let programs = other.programs()?;
        for direction in Direction::ALL {
            let chain = chain::read(netlink, uplink, direction, &programs)?;
            let theirs = |entry: &chain::Entry| {
                programs
                    .iter()
                    .any(|(_, program)| entry.id == Some(program.id))
            };
            if chain.iter().any(theirs) {
                return pins.take_over(&other);
            }
        }
    }
    Ok(())
}

/// Looks for programs that leave us no room, before anything is changed.
fn require_free_hooks(
    netlink: &Netlink,
    uplink: &Uplink,
    wanted: IngressHook,
) -> Result<(), Error> {
    match wanted {
        IngressHook::Xdp => {
            xdp::require_free_slot(netlink, uplink, &Pins::of(&uplink.name).programs()?)
        }
        IngressHook::Clsact => require_no_foreign_tcx(netlink, uplink),
        IngressHook::Auto | IngressHook::Tcx => Ok(()),
    }
}

/// TCX runs before clsact, and a TCX program that ends the chain ends ours with it.
fn require_no_foreign_tcx(netlink: &Netlink, uplink: &Uplink) -> Result<(), Error> {
    for direction in Direction::ALL {
        for entry in chain::read(netlink, uplink, direction, &[])? {
            if entry.hook == Hook::Tcx && !entry.ours {
                return Err(Error::HiddenByTcx {
                    uplink: uplink.name.clone(),
                    direction,
                    id: entry.id.unwrap_or_default(),
                    name: entry.name,
                });
            }
        }
    }
    Ok(())
}

/// The order in which places are filled: egress first, so that the first flow that is translated on its way
/// out is remembered.
const ORDER: [Place; 3] = [Place::EgressFirst, Place::EgressLast, Place::Ingress];

struct Attaching<'a> {
    settings: &'a Settings,
    netlink: &'a Netlink,
    uplink: &'a Uplink,
    pins: &'a Pins,
    config: &'a Config,
    node: DualAddress,
}

impl Attaching<'_> {
    /// Does it all. What is worth saying.
    fn run(&self) -> Result<Vec<String>, Error> {
        let orphans = orphans_node_address(self.netlink, self.uplink, self.pins);
        let mut notes = Vec::new();
        let mut change = Change::new(self.netlink, self.uplink, self.pins);
        let standing = match self.put_everything(&mut change, &mut notes, &orphans) {
            Ok(()) => change.finish()?,
            Err(error) => {
                change.roll_back();
                return Err(error);
            }
        };
        self.clear_away(&standing)?;
        self.remove_old_addresses(&orphans)?;
        // Somebody may have attached at the same moment. All stands by now, if not where it should.
        if let Err(error) = repair::repair(self.netlink, self.uplink, self.pins) {
            notes.push(error.to_string());
        }
        Ok(notes)
    }

    fn put_everything(
        &self,
        change: &mut Change<'_>,
        notes: &mut Vec<String>,
        orphans: &DualAddress,
    ) -> Result<(), Error> {
        self.recover_maps()?;
        let maps = self.maps(change, notes)?;
        // All are loaded before any is attached: the verifier refuses before something has changed.
        let mut instances = Vec::new();
        for place in ORDER {
            let mut config = *self.config;
            config.set_place(place);
            let mut instance = object::load(&config, &maps)?;
            match (place, self.settings.ingress_hook) {
                (Place::Ingress, IngressHook::Xdp) => drop(instance.xdp()?),
                _ => drop(instance.classifier(place.program(Hook::Tcx))?),
            }
            instances.push((place, instance));
        }
        // What is sent from an address that no program translates leaves as it is: an address comes after its programs, and
        // goes before them.
        for (device, address) in self.old_addresses(orphans)? {
            let is_kept = self.settings.keep_old_addresses && change.block_source(address)?;
            if !is_kept && let Some(device) = AddressDevice::find(self.netlink, &device)? {
                change.withdraw_address(&device, address)?;
            }
        }
        self.climb(change, &mut instances)?;
        self.put_addresses(change, notes)
    }

    /// The ladder: each pair of hooks in turn, until the kernel has one.
    fn climb(
        &self,
        change: &mut Change<'_>,
        instances: &mut [(Place, Instance)],
    ) -> Result<(), Error> {
        let rungs = hooks_to_try(self.settings.ingress_hook);
        let mut is_tcx_missing = false;
        let programs = self.pins.programs()?;
        let others = chain::read(self.netlink, self.uplink, Direction::Egress, &programs)?;
        for (ingress, egress) in rungs {
            if *egress == Hook::Clsact {
                require_no_foreign_tcx(self.netlink, self.uplink)?;
            }
            let result = instances.iter_mut().try_for_each(|(place, instance)| {
                let rung = match place.direction() {
                    Direction::Ingress => *ingress,
                    Direction::Egress => *egress,
                };
                let hook = chain::hook_of(*place, rung, &others);
                match change.place(*place, hook, instance) {
                    // Last on its rung is better than nowhere.
                    Err(Error::NoClsact { .. }) if hook != rung => {
                        change.place(*place, rung, instance)
                    }
                    other => other,
                }
            });
            match result {
                // Found out with the first program, so that nothing stands yet.
                Err(Error::NoTcx) if rungs.len() > 1 => {
                    debug!("the kernel has no TCX");
                    is_tcx_missing = true;
                }
                Err(Error::NoClsact { missing }) if is_tcx_missing => {
                    return Err(Error::NoHook { missing });
                }
                other => return other,
            }
        }
        Err(Error::NoTcx)
    }

    /// When the pins are gone (bpffs was unmounted) and the programs are not, their maps are worth keeping:
    /// flows that were opened from the node address live in them.
    fn recover_maps(&self) -> Result<(), Error> {
        let programs = chain::ours(self.netlink, self.uplink)?;
        for id in programs.into_iter().flat_map(|info| info.map_ids) {
            let Ok(data) = MapData::from_id(id) else {
                continue;
            };
            let Ok(info) = data.info() else {
                continue;
            };
            let name = map::PINNED
                .into_iter()
                .find(|name| name.as_bytes() == info.name());
            if let Some(name) = name
                && pins::open(&self.pins.map(name))?.is_none()
            {
                match data.pin(self.pins.map(name)) {
                    Ok(()) => debug!(name, id, "map recovered from a program"),
                    Err(error) => warn!(name, id, %error, "map could not be recovered"),
                }
            }
        }
        Ok(())
    }

    /// Where the maps are pinned, those that can't be used any more replaced.
    fn maps(&self, change: &mut Change<'_>, notes: &mut Vec<String>) -> Result<Maps, Error> {
        let flow_entries = self.settings.flow_entries;
        let mut maps = Maps {
            flow_entries,
            pins: Vec::new(),
        };
        for (name, wanted) in object::map_shapes(flow_entries)? {
            let path = self.pins.map(name);
            let unreadable = |source: MapError| {
                Error::Object(ObjectError::Map {
                    name: name.to_owned(),
                    source: Box::new(source),
                })
            };
            let there = match pins::open(&path)? {
                Some(_) => {
                    let info = MapInfo::from_pin(&path).map_err(unreadable)?;
                    Some(MapShape::of(&info).map_err(unreadable)?)
                }
                None => None,
            };
            match there {
                Some(there) if there != wanted => {
                    notes.push(if there.max_entries == wanted.max_entries {
                        format!("map {name} was made anew, because its layout has changed; what was in it is forgotten")
                    } else {
                        format!(
                            "map {name} was made anew with room for {} entries instead of {}; what was in it is forgotten",
                            wanted.max_entries, there.max_entries
                        )
                    });
                    maps.pins.push((name, change.replacement(path)?));
                }
                _ => maps.pins.push((name, path)),
            }
        }
        Ok(maps)
    }

    fn put_addresses(&self, change: &mut Change<'_>, notes: &mut Vec<String>) -> Result<(), Error> {
        let Some(name) = &self.settings.address_device else {
            return Ok(());
        };
        let device = AddressDevice::ensure(self.netlink, name, self.uplink.mtu)?;
        change.used_device(&device);
        if device.name != *name {
            notes.push(format!(
                "this kernel has no dummy device for {name}; the node address is on {LOOPBACK}, whose MTU kube-router and Felix take over"
            ));
        }
        for address in self.node.iter() {
            change.add_address(&device, address)?;
        }
        Ok(())
    }

    /// Removes what this change has replaced, on whatever hook.
    fn clear_away(&self, standing: &[Attachment]) -> Result<(), Error> {
        for removed in sweep(self.netlink, self.uplink, &self.pins.programs()?, standing)? {
            debug!(removed, "removed");
        }
        release_clsact(self.netlink, self.uplink, self.pins)
    }

    /// What we put on devices and is not the node address any more. `orphans` is what programs were for whose pins, and
    /// with them our marks, are gone.
    fn old_addresses(&self, orphans: &DualAddress) -> Result<Vec<(String, IpAddr)>, Error> {
        let Some(current) = self.current_device()? else {
            return Ok(Vec::new());
        };
        let orphaned = orphans.iter().map(|address| (current.clone(), address));
        let marked = self.pins.addresses()?;
        Ok(marked
            .into_iter()
            .chain(orphaned)
            .filter(|(name, address)| {
                let is_wanted = self.node.iter().any(|node| node == *address);
                // The same address on another device is for whoever asked for that, later.
                !is_wanted || (*name != current && !self.settings.keep_old_addresses)
            })
            .collect())
    }

    /// The device that holds the node address, if one is to: `lo` where the kernel has no dummy device.
    fn current_device(&self) -> Result<Option<String>, Error> {
        let Some(wanted) = &self.settings.address_device else {
            return Ok(None);
        };
        let there = AddressDevice::find(self.netlink, wanted)?;
        let name = there.map_or(LOOPBACK, |_| wanted);
        Ok(Some(name.to_owned()))
    }

    /// Takes from devices what is not the node address any more, marks and devices that held nothing else included.
    fn remove_old_addresses(&self, orphans: &DualAddress) -> Result<(), Error> {
        let current = self.current_device()?;
        for (name, address) in self.old_addresses(orphans)? {
            if self.settings.keep_old_addresses {
                // With a mark of its own, so that it is found when it is to go.
                self.pins.mark_address(&name, address)?;
                continue;
            }
            if let Some(device) = AddressDevice::find(self.netlink, &name)? {
                device.remove(self.netlink, address)?;
                if Some(&name) != current.as_ref() {
                    device.remove_if_unused(self.netlink)?;
                }
            }
            blocked_source::unblock(self.netlink, address)?;
            self.pins.unmark_address(&name, address);
        }
        Ok(())
    }
}

/// The node address of programs of ours that stand, but whose pins are gone: bpffs was unmounted, or mounted over.
pub(super) fn orphans_node_address(netlink: &Netlink, uplink: &Uplink, pins: &Pins) -> DualAddress {
    if pins.programs().is_ok_and(|programs| !programs.is_empty()) {
        return DualAddress::default();
    }
    chain::ours(netlink, uplink)
        .unwrap_or_default()
        .iter()
        .find_map(|info| object::constants(&pins.constants(Place::Ingress), info).ok())
        .map(|config| address_pairs_of(&config).node())
        .unwrap_or_default()
}
