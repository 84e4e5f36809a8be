//! Counters and flow maps, read and summed.

use aya::maps::{Map, MapData, MapError, PerCpuArray};
use serde::Serialize;
use xkub_common::{
    counter::{self, Class, Event, Family, Place},
    map,
};

use super::{error::Error, object::ObjectError, pins::Pins, sys};

/// One counter, summed over CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Counter {
    /// Where.
    #[serde(serialize_with = "place_name")]
    pub place: Place,
    /// What the link header says.
    #[serde(serialize_with = "family_name")]
    pub family: Family,
    /// What kind of packet.
    #[serde(serialize_with = "class_name")]
    pub class: Class,
    /// What happened.
    #[serde(serialize_with = "event_name")]
    pub event: Event,
    /// How often since the maps were made, which a new attachment does not do.
    pub packets: u64,
}

/// A flow map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Flows {
    /// Whose flows.
    #[serde(serialize_with = "family_name")]
    pub family: Family,
    /// How many are remembered now.
    pub entries: u64,
    /// How many there is room for.
    pub max_entries: u32,
    /// How many were forgotten for want of room, as far as can be told: an LRU map never says so itself. This
    /// is what was remembered less what is there.
    pub evicted: u64,
}

/// All of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Stats {
    /// The uplink.
    pub uplink: String,
    /// One per family.
    pub flows: Vec<Flows>,
    /// Those that are not 0.
    pub counters: Vec<Counter>,
}

/// Reads the counters that are not 0.
pub(super) fn counters(pins: &Pins) -> Result<Vec<Counter>, Error> {
    let failed = unreadable(map::COUNTERS);
    let data = MapData::from_pin(pins.map(map::COUNTERS)).map_err(&failed)?;
    let array = PerCpuArray::<_, u64>::try_from(Map::PerCpuArray(data)).map_err(&failed)?;
    let mut counters = Vec::new();
    for place in Place::ALL.iter().copied() {
        for family in Family::ALL.iter().copied() {
            for class in Class::ALL.iter().copied() {
                for event in Event::ALL.iter().copied() {
                    let index = counter::index(place, family, class, event);
                    let packets = array.get(&index, 0).map_err(&failed)?.iter().sum();
                    if packets > 0 {
                        counters.push(Counter {
                            place,
                            family,
                            class,
                            event,
                            packets,
                        });
                    }
                }
            }
        }
    }
    Ok(counters)
}

/// Reads the flow maps.
pub(super) fn flows(pins: &Pins, counters: &[Counter]) -> Result<Vec<Flows>, Error> {
    [(Family::V4, map::FLOWS_V4), (Family::V6, map::FLOWS_V6)]
        .into_iter()
        .map(|(family, name)| {
            let failed = unreadable(name);
            let data = MapData::from_pin(pins.map(name)).map_err(&failed)?;
            let info = data.info().map_err(&failed)?;
            let entries = sys::map_len(data.fd(), info.key_size(), info.value_size())
                .map_err(|error| failed(MapError::IoError(error)))?;
            Ok(Flows {
                family,
                entries,
                max_entries: info.max_entries(),
                evicted: evicted(counters, family, entries),
            })
        })
        .collect()
}

fn evicted(counters: &[Counter], family: Family, entries: u64) -> u64 {
    counters
        .iter()
        .filter(|counter| counter.family == family && counter.event == Event::Remembered)
        .map(|counter| counter.packets)
        .sum::<u64>()
        .saturating_sub(entries)
}

/// How many packets a place has seen.
#[must_use]
pub fn seen(counters: &[Counter], place: Place) -> u64 {
    counters
        .iter()
        .filter(|counter| counter.place == place && is_an_end(counter.event))
        .map(|counter| counter.packets)
        .sum()
}

/// Whether an event happens once to each packet.
fn is_an_end(event: Event) -> bool {
    match event {
        Event::Translated | Event::Passed | Event::Dropped | Event::Malformed => true,
        Event::Remembered | Event::Lookup | Event::Full | Event::Unordered => false,
    }
}

fn unreadable(name: &'static str) -> impl Fn(MapError) -> Error {
    move |source| {
        ObjectError::Map {
            name: name.to_owned(),
            source: Box::new(source),
        }
        .into()
    }
}

macro_rules! by_name {
    ($($function:ident: $type:ty),+) => { $(
        pub(super) fn $function<S: serde::Serializer>(value: &$type, serializer: S) -> Result<S::Ok, S::Error> {
            serializer.serialize_str(value.name())
        }
    )+ };
}
by_name!(place_name: Place, family_name: Family, class_name: Class, event_name: Event);

#[cfg(test)]
mod tests {
    use super::*;

    fn counter(place: Place, family: Family, event: Event, packets: u64) -> Counter {
        Counter {
            place,
            family,
            class: Class::Udp,
            event,
            packets,
        }
    }

    #[test]
    fn only_ends_count_as_seen() {
        let counters = [
            counter(Place::EgressFirst, Family::V4, Event::Translated, 5),
            counter(Place::EgressFirst, Family::V6, Event::Passed, 7),
            counter(Place::EgressFirst, Family::V4, Event::Remembered, 100),
            counter(Place::EgressLast, Family::V4, Event::Passed, 1000),
        ];
        assert_eq!(seen(&counters, Place::EgressFirst), 12);
        assert_eq!(seen(&counters, Place::EgressLast), 1000);
        assert_eq!(seen(&counters, Place::Ingress), 0);
    }

    #[test]
    fn evicted_is_what_was_remembered_and_is_not_there() {
        let counters = [
            counter(Place::EgressFirst, Family::V4, Event::Remembered, 70),
            counter(Place::Ingress, Family::V4, Event::Remembered, 30),
            counter(Place::Ingress, Family::V6, Event::Remembered, 5),
        ];
        assert_eq!(evicted(&counters, Family::V4, 64), 36);
        assert_eq!(evicted(&counters, Family::V6, 5), 0);
        // Forgotten counters, remembered flows: counted by another map.
        assert_eq!(evicted(&counters, Family::V6, 9), 0);
    }

    #[test]
    fn counters_are_named_in_output() {
        let json = serde_json::to_value(counter(Place::EgressFirst, Family::V4, Event::Passed, 1))
            .unwrap();
        assert_eq!(
            json,
            serde_json::json!({"place": "egress-first", "family": "ipv4", "class": "udp", "event": "passed", "packets": 1})
        );
    }
}
