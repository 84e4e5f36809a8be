//! Egress: whatever has N as its source leaves from G.

use network_types::eth::EthHdr;
use xkub_common::{
    counter::{Class, Event, Family, Place},
    decide::{self, Ends},
    packet::{self, Extent, Kind, REACH, TcpHeader, UdpHeader, ethertype, protocol},
};

use crate::{
    counters::Outcome,
    frame::{Frame, is_readable},
    icmp,
    ip::{Field, Ip, IpPacket, V4, V6},
    maps, neighbour, remember,
    rewrite::{self, Way},
};

/// Translates a frame that leaves, if it is of the most common kind: the same rules as for any other, for which
/// the compiler knows all offsets.
#[inline(always)]
pub fn plain<F: Frame>(frame: &F) -> Option<(Family, Outcome)> {
    let header = packet::plain_ipv4(frame)?;
    // Two branches, each of which knows its protocol.
    let outcome = match header.protocol() {
        protocol::TCP if is_readable::<TcpHeader, F>(frame) => {
            ip::<V4, F>(frame, EthHdr::LEN, header)
        }
        protocol::UDP if is_readable::<UdpHeader, F>(frame) => {
            ip::<V4, F>(frame, EthHdr::LEN, header)
        }
        _ => return None,
    };
    Some((Family::V4, outcome))
}

/// Translates any frame that leaves.
#[inline(always)]
pub fn any<F: Frame>(frame: &F) -> (Family, Outcome) {
    frame.reach(REACH);
    let Ok(link) = packet::link(frame) else {
        return (Family::Other, Outcome::new(Event::Malformed, Class::Other));
    };
    match link.ethertype {
        ethertype::IPV4 => (Family::V4, read_ip::<V4, F>(frame, link.network)),
        ethertype::IPV6 => (Family::V6, read_ip::<V6, F>(frame, link.network)),
        ethertype::ARP => (
            Family::V4,
            Outcome::of(neighbour::leaving(frame, link.network), Class::Neighbour),
        ),
        _ => (Family::Other, Outcome::new(Event::Passed, Class::Other)),
    }
}

#[inline(always)]
fn read_ip<I: Ip, F: Frame>(frame: &F, network: usize) -> Outcome {
    match frame.read(network) {
        Some(header) => ip::<I, F>(frame, network, header),
        None => Outcome::new(Event::Malformed, Class::Other),
    }
}

#[inline(always)]
fn ip<I: Ip, F: Frame>(frame: &F, network: usize, header: I::Header) -> Outcome {
    if !I::enabled() {
        return Outcome::new(Event::Passed, Class::Other);
    }
    let source = I::source(&header);
    let from_node = source == I::node();
    if !from_node && source != I::guest() {
        return Outcome::new(Event::Passed, Class::Other);
    }
    let Ok(packet) = IpPacket::<I>::parse(frame, network, header, Extent::Told) else {
        return Outcome::new(Event::Malformed, Class::Other);
    };
    let Ok(transport) = packet::transport(frame, &packet.datagram) else {
        return Outcome::new(Event::Malformed, Class::Other);
    };
    let class = Class::of(transport.kind);
    if transport.kind == Kind::Error {
        return Outcome::of(icmp::leaving(frame, &packet), Class::IcmpError);
    }
    if I::is_announcement(frame, &packet.datagram) {
        neighbour::announced();
    }
    let Ok(destination) = I::final_destination(frame, &packet.datagram) else {
        return Outcome::new(Event::Malformed, class);
    };
    let protocol = packet.datagram.protocol;
    let services = maps::services();
    let key = || I::flow_key(destination, protocol, Ends::leaving(&transport));
    if from_node {
        if decide::remember_node(services, protocol, &transport) {
            remember::remember_node::<I>(&key(), class);
        }
    } else if maps::place() == Place::EgressFirst as u32 {
        // Only in the first place: the last one cannot tell these from what the first translated.
        let is_in_service =
            decide::in_service(services, protocol, transport.kind, transport.source);
        if decide::opens_guest(services, &transport, is_in_service) {
            remember::remember_guest::<I>(&key(), &transport, is_in_service, class);
        }
    }
    if !from_node {
        return Outcome::new(Event::Passed, class);
    }
    let rewritten = rewrite::packet(
        frame,
        &packet,
        destination,
        &transport,
        Field::Source,
        Way::ToGuest,
    );
    Outcome::of(rewritten.map(|()| Event::Translated), class)
}
