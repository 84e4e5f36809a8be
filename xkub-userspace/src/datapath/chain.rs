//! Who stands on a hook, in running order, and who among them stands where we should.

use serde::Serialize;
use xkub_common::{counter::Place, program};

use super::{
    clsact::{self, Slot},
    error::Error,
    hook::{Direction, Hook, PlaceExt as _},
    sys::{self, ProgramInfo},
};
use crate::{
    netlink::Netlink,
    node::uplink::{Uplink, xdp_program},
};

/// A program whose name the kernel does not tell: it takes `CAP_SYS_ADMIN` to ask.
pub(super) const UNKNOWN: &str = "unknown";

/// One program, or filter of another kind, that packets of a direction meet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Entry {
    /// The program's name; of a filter that is not BPF, its kind ("flower").
    pub name: String,
    /// The program's id.
    pub id: Option<u32>,
    /// The hook.
    pub hook: Hook,
    /// Whether it is one of our programs, in its place or an orphan.
    pub ours: bool,
    #[serde(skip)]
    pub(super) attachment: Attachment,
}

impl Entry {
    /// Of a filter on clsact.
    pub(super) fn priority(&self) -> Option<u16> {
        match self.attachment {
            Attachment::Clsact(slot) => Some(slot.priority),
            Attachment::Xdp | Attachment::Tcx { .. } => None,
        }
    }
}

/// How an entry can be taken away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Attachment {
    Xdp,
    Tcx { link_id: u32 },
    Clsact(Slot),
}

/// Reads a direction's chain: XDP, then TCX, then clsact. `pinned` are programs that are ours even if the
/// process may not ask for their names.
pub(super) fn read(
    netlink: &Netlink,
    uplink: &Uplink,
    direction: Direction,
    pinned: &[(Place, ProgramInfo)],
) -> Result<Vec<Entry>, Error> {
    let mut chain = Vec::new();
    if direction == Direction::Ingress
        && let Some(id) = xdp_program(netlink, uplink)?
    {
        chain.push(of_program(id, Hook::Xdp, Attachment::Xdp, pinned));
    }
    let tcx = sys::tcx_chain(uplink.index, direction).map_err(|source| Error::Chain {
        uplink: uplink.name.clone(),
        direction,
        source,
    })?;
    chain.extend(tcx.entries.iter().map(|entry| {
        let attachment = Attachment::Tcx {
            link_id: entry.link_id,
        };
        of_program(entry.program_id, Hook::Tcx, attachment, pinned)
    }));
    for filter in clsact::filters(netlink, uplink, direction)? {
        let attachment = Attachment::Clsact(filter.slot);
        chain.push(match filter.program_id {
            // Filters have names of their own choice: tc says "object.o:[section]".
            Some(id) => of_program(id, Hook::Clsact, attachment, pinned),
            None => Entry {
                name: filter.kind,
                id: None,
                hook: Hook::Clsact,
                ours: false,
                attachment,
            },
        });
    }
    Ok(chain)
}

fn of_program(
    id: u32,
    hook: Hook,
    attachment: Attachment,
    pinned: &[(Place, ProgramInfo)],
) -> Entry {
    let pinned = pinned.iter().find(|(_, info)| info.id == id);
    let name = match pinned {
        Some((_, info)) => Some(info.name.clone()),
        None => program_name(id),
    };
    Entry {
        ours: pinned.is_some() || name.as_deref().is_some_and(is_our_name),
        name: name.unwrap_or_else(|| UNKNOWN.to_owned()),
        id: Some(id),
        hook,
        attachment,
    }
}

/// The programs on an uplink that are ours by name, pinned or not.
pub(super) fn ours(netlink: &Netlink, uplink: &Uplink) -> Result<Vec<ProgramInfo>, Error> {
    let mut programs = Vec::new();
    for direction in Direction::ALL {
        programs.extend(
            read(netlink, uplink, direction, &[])?
                .into_iter()
                .filter(|entry| entry.ours)
                .filter_map(|entry| {
                    let fd = sys::program_by_id(entry.id?).ok()?;
                    sys::program_info(fd).ok()
                }),
        );
    }
    Ok(programs)
}

/// A program's name; `None` when the process may not ask, or the program is gone by now.
pub(super) fn program_name(id: u32) -> Option<String> {
    let fd = sys::program_by_id(id).ok()?;
    sys::program_info(fd).ok().map(|info| info.name)
}

pub(super) fn is_our_name(name: &str) -> bool {
    name.starts_with(program::PREFIX)
}

/// Whether the entry at `index` stands before all others of its hook (or behind all, if `is_last`), our own
/// not counted.
pub(super) fn is_in_place(chain: &[Entry], index: usize, is_last: bool) -> bool {
    let others = if is_last {
        chain.get(index + 1..)
    } else {
        chain.get(..index)
    };
    let hook = chain.get(index).map(|entry| entry.hook);
    others
        .unwrap_or_default()
        .iter()
        .all(|entry| entry.ours || Some(entry.hook) != hook)
}

/// The hook that a place belongs on, when `rung` is what its direction is attached to. All of TCX runs before all
/// filters on clsact, so that behind somebody's filters only a filter is last, unless one of theirs has the last
/// priority. Should somebody's TCX program end the chain, neither hook's last place is reached.
pub(super) fn hook_of(place: Place, rung: Hook, chain: &[Entry]) -> Hook {
    let last_filter = chain
        .iter()
        .filter(|entry| !entry.ours)
        .filter_map(Entry::priority)
        .max();
    match last_filter {
        Some(priority) if place.stands_last() && priority < clsact::priority(place) => Hook::Clsact,
        _ => rung,
    }
}

/// The entries that stand before all of ours in running order, on any hook.
pub(super) fn before_ours(chain: &[Entry]) -> &[Entry] {
    let first = chain.iter().position(|entry| entry.ours);
    chain.get(..first.unwrap_or_default()).unwrap_or_default()
}

/// The entries of others between two programs of ours.
pub(super) fn between(chain: &[Entry], first: u32, last: u32) -> Vec<&Entry> {
    let position = |id| chain.iter().position(|entry| entry.id == Some(id));
    match (position(first), position(last)) {
        (Some(first), Some(last)) if first < last => chain[first..last]
            .iter()
            .filter(|entry| !entry.ours)
            .collect(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub fn entry(text: &str) -> Entry {
        let (hook, name) = text.split_once(':').unwrap();
        let (name, id) = name.split_once('#').unwrap();
        let (hook, attachment) = match hook {
            "xdp" => (Hook::Xdp, Attachment::Xdp),
            "tcx" => (Hook::Tcx, Attachment::Tcx { link_id: 1 }),
            _ => (
                Hook::Clsact,
                Attachment::Clsact(Slot {
                    direction: Direction::Egress,
                    priority: 1,
                    handle: 1,
                }),
            ),
        };
        Entry {
            name: name.to_owned(),
            id: Some(id.parse().unwrap()),
            hook,
            ours: is_our_name(name),
            attachment,
        }
    }

    pub fn chain(texts: &[&str]) -> Vec<Entry> {
        texts.iter().map(|text| entry(text)).collect()
    }

    #[test]
    fn first_and_last_are_told_among_others() {
        for (texts, index, is_first, is_last) in [
            (&["tcx:xkub_egress#1"][..], 0, true, true),
            (
                &["tcx:xkub_egress#1", "tcx:cil#2", "tcx:xkub_egress#3"],
                0,
                true,
                false,
            ),
            (
                &["tcx:xkub_egress#1", "tcx:cil#2", "tcx:xkub_egress#3"],
                2,
                false,
                true,
            ),
            (&["tcx:cil#2", "tcx:xkub_egress#1"], 1, false, true),
            // An orphan of ours before us is no reason to move.
            (
                &["tcx:xkub_egress#1", "tcx:xkub_egress#2", "tcx:cil#3"],
                1,
                true,
                false,
            ),
            // Another hook's programs can't be overtaken.
            (
                &["xdp:cil#9", "tcx:xkub_ingress#1", "clsact:cil#2"],
                1,
                true,
                true,
            ),
        ] {
            let chain = chain(texts);
            assert_eq!(is_in_place(&chain, index, false), is_first, "{texts:?}");
            assert_eq!(is_in_place(&chain, index, true), is_last, "{texts:?}");
        }
    }

    #[test]
    fn the_last_place_is_behind_filters_of_others() {
        let tcx = ["tcx:xkub_egress#1", "tcx:cil#2", "tcx:xkub_egress#3"];
        let clsact = ["tcx:xkub_egress#1", "clsact:cali#2", "clsact:xkub_egress#3"];
        let alone = ["tcx:xkub_egress#1", "clsact:xkub_egress#3"];
        for (texts, rung, last) in [
            (&tcx[..], Hook::Tcx, Hook::Tcx),
            (&clsact, Hook::Tcx, Hook::Clsact),
            (&alone, Hook::Tcx, Hook::Tcx),
            (&[], Hook::Tcx, Hook::Tcx),
            (&tcx, Hook::Clsact, Hook::Clsact),
            (&clsact, Hook::Clsact, Hook::Clsact),
            (&alone, Hook::Clsact, Hook::Clsact),
        ] {
            let chain = chain(texts);
            let hook = |place| hook_of(place, rung, &chain);
            assert_eq!(hook(Place::EgressLast), last, "{texts:?} {rung:?}");
            assert_eq!(hook(Place::EgressFirst), rung, "{texts:?}");
            assert_eq!(hook(Place::Ingress), rung, "{texts:?}");
        }
    }

    #[test]
    fn behind_the_last_priority_is_nobody() {
        let mut chain = chain(&["tcx:xkub_egress#1", "clsact:cali#2", "clsact:other#4"]);
        for (priority, expected) in [(65534, Hook::Clsact), (65535, Hook::Tcx)] {
            chain[2].attachment = Attachment::Clsact(Slot {
                direction: Direction::Egress,
                priority,
                handle: 1,
            });
            assert_eq!(hook_of(Place::EgressLast, Hook::Tcx, &chain), expected);
        }
    }

    #[test]
    fn who_stands_before_and_between() {
        let chain = chain(&[
            "tcx:early#9",
            "tcx:xkub_egress#1",
            "tcx:cil#2",
            "clsact:cali#3",
            "tcx:xkub_egress#4",
        ]);
        let names = |entries: Vec<&Entry>| {
            entries
                .iter()
                .map(|entry| entry.name.clone())
                .collect::<Vec<_>>()
        };
        assert_eq!(names(before_ours(&chain).iter().collect()), ["early"]);
        assert_eq!(names(between(&chain, 1, 4)), ["cil", "cali"]);
        assert!(between(&chain, 4, 1).is_empty());
        assert!(between(&chain, 1, 77).is_empty());
        assert!(before_ours(&chain[..1]).is_empty());
    }
}
