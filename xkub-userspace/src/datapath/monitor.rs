//! Packets as the datapath sees them, for whoever wants to look.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    ops::ControlFlow,
    time::Duration,
};

use aya::maps::{Map, MapData, MapError, RingBuf};
use serde::Serialize;
use tokio::{
    io::unix::AsyncFd,
    runtime::Builder,
    signal::unix::{SignalKind, signal},
};
use xkub_common::{
    counter::{Class, Event, Family, Place},
    map,
    packet::{
        self, Extent, Ipv4Header, Ipv6Header, Kind, Packet as _, Transport, ethertype, protocol,
    },
    sample::Sample,
};

use super::{change::Change, error::Error, object, pins::Pins};
use crate::{
    netlink::Netlink,
    node::uplink::{self, Uplink},
};

/// A packet that a program has seen, as it went on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Shown {
    /// When, since boot without time in suspend (`CLOCK_MONOTONIC`).
    #[serde(rename = "seconds", serialize_with = "seconds")]
    pub time: Duration,
    /// Where.
    #[serde(serialize_with = "super::counters::place_name")]
    pub place: Place,
    /// What became of it.
    #[serde(serialize_with = "super::counters::event_name")]
    pub event: Event,
    /// What the link header says.
    #[serde(serialize_with = "super::counters::family_name")]
    pub family: Family,
    /// What kind of packet.
    #[serde(serialize_with = "super::counters::class_name")]
    pub class: Class,
    /// Its ends, if it is an IP packet and they are within its first bytes.
    #[serde(flatten)]
    pub ends: Option<Ends>,
}

/// Where a packet comes from and goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Ends {
    /// The source address.
    pub source: IpAddr,
    /// The destination address.
    pub destination: IpAddr,
    /// The IP protocol.
    pub protocol: u8,
    /// The source port, where there are ports.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source_port: Option<u16>,
    /// The destination port, where there are ports.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub destination_port: Option<u16>,
}

fn seconds<S: serde::Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(time.as_secs_f64())
}

/// Shows every `one_in`-th packet of each counter until SIGTERM, SIGINT or the end of the reader's interest.
///
/// Programs that show packets take the place of those that don't, and the other way round in the end. Should this
/// process be killed in between, packets go on as before; what is shown finds no room after a while, and the next
/// attachment ends it.
pub(super) fn monitor(
    name: &str,
    one_in: u32,
    report: &mut dyn FnMut(Shown) -> ControlFlow<()>,
) -> Result<(), Error> {
    let netlink = Netlink::open()?;
    let uplink = uplink::find(&netlink, name)?;
    let pins = Pins::of(name);
    show_one_in(&netlink, &uplink, &pins, one_in)?;
    let read = read(&pins, report);
    let back = show_one_in(&netlink, &uplink, &pins, 0);
    read.and(back)
}

/// Swaps in programs that show one packet in so many.
fn show_one_in(netlink: &Netlink, uplink: &Uplink, pins: &Pins, one_in: u32) -> Result<(), Error> {
    let lock = pins.lock()?;
    let mut change = Change::new(netlink, uplink, pins);
    let swapped = pins.programs()?.into_iter().try_for_each(|(place, info)| {
        let mut config = object::constants(&pins.constants(place), &info)?;
        config.sample = one_in;
        let mut instance = object::load(&config, &pins.shared_maps())?;
        change.place(place, pins.hook(place)?, &mut instance)
    });
    match swapped {
        Ok(()) => change.finish().map(drop)?,
        Err(error) => {
            change.roll_back();
            return Err(error);
        }
    }
    drop(lock);
    Ok(())
}

fn read(pins: &Pins, report: &mut dyn FnMut(Shown) -> ControlFlow<()>) -> Result<(), Error> {
    let unreadable = |source: MapError| {
        Error::Object(object::ObjectError::Map {
            name: map::SAMPLES.to_owned(),
            source: Box::new(source),
        })
    };
    let data = MapData::from_pin(pins.map(map::SAMPLES)).map_err(unreadable)?;
    let ring = RingBuf::try_from(Map::RingBuf(data)).map_err(unreadable)?;
    let runtime = Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(Error::Wait)?;
    runtime.block_on(follow(ring, report)).map_err(Error::Wait)
}

async fn follow(
    ring: RingBuf<MapData>,
    report: &mut dyn FnMut(Shown) -> ControlFlow<()>,
) -> io::Result<()> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    // SAFETY: the ring buffer owns its descriptor, and closes it no sooner than it is dropped itself.
    let mut ring = unsafe { AsyncFd::register(ring)? };
    loop {
        let mut ready = tokio::select! {
            biased;
            _ = interrupt.recv() => return Ok(()),
            _ = terminate.recv() => return Ok(()),
            ready = ring.readable_mut() => ready?,
        };
        while let Some(bytes) = ready.get_inner_mut().next() {
            if let Some(shown) = decode(&bytes)
                && report(shown).is_break()
            {
                return Ok(());
            }
        }
        ready.clear_ready();
    }
}

fn decode(bytes: &[u8]) -> Option<Shown> {
    if bytes.len() < size_of::<Sample>() {
        return None;
    }
    // SAFETY: long enough, and any bytes are a sample.
    let sample = unsafe { bytes.as_ptr().cast::<Sample>().read_unaligned() };
    let one_of = |number: u32| usize::try_from(number).ok();
    let words = sample.head.get(..one_of(sample.words)?)?;
    let head: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    Some(Shown {
        time: Duration::from_nanos(sample.time),
        place: *Place::ALL.get(one_of(sample.place)?)?,
        event: *Event::ALL.get(one_of(sample.event)?)?,
        family: *Family::ALL.get(one_of(sample.family)?)?,
        class: *Class::ALL.get(one_of(sample.class)?)?,
        ends: ends(&head),
    })
}

fn ends(head: &[u8]) -> Option<Ends> {
    let link = packet::link(head).ok()?;
    match link.ethertype {
        ethertype::IPV4 => {
            let header: Ipv4Header = head.read(link.network)?;
            let datagram = packet::ipv4(head, link.network, &header, Extent::Quoted).ok()?;
            let address = |raw: u32| IpAddr::V4(Ipv4Addr::from(raw.to_ne_bytes()));
            Some(Ends::new(
                address(datagram.source),
                address(datagram.destination),
                datagram.protocol,
                packet::quoted_transport(head, &datagram).ok(),
            ))
        }
        ethertype::IPV6 => {
            let header: Ipv6Header = head.read(link.network)?;
            let datagram = packet::ipv6(head, link.network, &header, Extent::Quoted).ok()?;
            let address = |words: [u32; 4]| {
                let mut octets = [0; 16];
                for (octets, word) in octets.chunks_exact_mut(4).zip(words) {
                    octets.copy_from_slice(&word.to_ne_bytes());
                }
                IpAddr::V6(Ipv6Addr::from(octets))
            };
            Some(Ends::new(
                address(datagram.source),
                address(datagram.destination),
                datagram.protocol,
                packet::quoted_transport(head, &datagram).ok(),
            ))
        }
        _ => None,
    }
}

impl Ends {
    fn new(
        source: IpAddr,
        destination: IpAddr,
        protocol: u8,
        transport: Option<Transport>,
    ) -> Self {
        let ports = transport
            .filter(|transport| matches!(transport.kind, Kind::Tcp | Kind::Udp | Kind::Ports));
        Self {
            source,
            destination,
            protocol,
            source_port: ports.map(|ports| ports.source.number()),
            destination_port: ports.map(|ports| ports.destination.number()),
        }
    }
}

impl std::fmt::Display for Ends {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let end = |address: IpAddr, port: Option<u16>| match port {
            Some(port) => std::net::SocketAddr::new(address, port).to_string(),
            None => address.to_string(),
        };
        let protocol = match self.protocol {
            protocol::TCP => "tcp".to_owned(),
            protocol::UDP => "udp".to_owned(),
            protocol::ICMP => "icmp".to_owned(),
            protocol::ICMPV6 => "icmpv6".to_owned(),
            other => format!("protocol {other}"),
        };
        write!(
            formatter,
            "{} > {}, {protocol}",
            end(self.source, self.source_port),
            end(self.destination, self.destination_port)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_read_from_a_head_that_is_cut_off() {
        let mut head = vec![2; 12];
        head.extend([0x08, 0x00, 0x45, 0, 0x05, 0xdc, 0, 0, 0, 0, 64, 17, 0, 0]);
        head.extend([
            10, 0, 2, 2, 10, 244, 3, 60, 0xc8, 0x22, 0x21, 0x19, 0, 0, 0, 0,
        ]);
        let ends = ends(&head).unwrap();
        assert_eq!(ends.to_string(), "10.0.2.2:51234 > 10.244.3.60:8473, udp");
        head[12] = 0x86;
        assert_eq!(super::ends(&head), None);
    }

    #[test]
    fn bytes_that_are_no_sample_are_left_out() {
        assert_eq!(decode(&[0; 8]), None);
        assert_eq!(decode(&[0xff; size_of::<Sample>()]), None);
    }
}
