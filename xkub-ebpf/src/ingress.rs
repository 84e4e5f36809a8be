//! Ingress: of what arrives for G, that which is meant for N goes there.

use network_types::eth::EthHdr;
use xkub_common::{
    counter::{Class, Event, Family},
    decide::{self, Arrival, Ends},
    flow::Owner,
    packet::{
        self, Datagram, Extent, Kind, Piece, REACH, TcpHeader, Transport, UdpHeader, ethertype,
        protocol,
    },
};

use crate::{
    counters::{Outcome, count},
    fragment,
    frame::{Frame, is_readable},
    icmp,
    ip::{Field, Ip, IpPacket, V4, V6},
    maps, remember,
    rewrite::{self, Way},
};

/// Translates a frame that arrives, if it is of the most common kind: the same rules as for any other, for which
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

/// Translates any frame that arrives.
#[inline(always)]
pub fn any<F: Frame>(frame: &F) -> (Family, Outcome) {
    frame.reach(REACH);
    let Ok(link) = packet::link(frame) else {
        return (Family::Other, Outcome::new(Event::Malformed, Class::Other));
    };
    match link.ethertype {
        ethertype::IPV4 => (Family::V4, read_ip::<V4, F>(frame, link.network)),
        ethertype::IPV6 => (Family::V6, read_ip::<V6, F>(frame, link.network)),
        ethertype::ARP => (Family::V4, Outcome::new(Event::Passed, Class::Neighbour)),
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
    if !I::enabled() || I::destination(&header) != I::guest() {
        return Outcome::new(Event::Passed, Class::Other);
    }
    let Ok(packet) = IpPacket::<I>::parse(frame, network, header, Extent::Told) else {
        return Outcome::new(Event::Malformed, Class::Other);
    };
    let datagram = &packet.datagram;
    if datagram.routing != 0 {
        // We are a hop on its route, not its end.
        return Outcome::new(Event::Passed, Class::Other);
    }
    let Ok(transport) = packet::transport(frame, datagram) else {
        return Outcome::new(Event::Malformed, Class::Other);
    };
    let arrival = match transport.kind {
        Kind::Error => return Outcome::of(icmp::arriving(frame, &packet), Class::IcmpError),
        Kind::Fragment => fragment::later::<I>(datagram),
        _ => {
            let own = arrival::<I, F>(frame, datagram, &transport);
            if datagram.piece == Piece::First {
                fragment::first::<I>(datagram, own)
            } else {
                own
            }
        }
    };
    let class = Class::of(transport.kind);
    if arrival != Arrival::Node {
        return Outcome::new(Event::Passed, class);
    }
    let rewritten = rewrite::packet(
        frame,
        &packet,
        datagram.destination,
        &transport,
        Field::Destination,
        Way::ToNode,
    );
    Outcome::of(rewritten.map(|()| Event::Translated), class)
}

/// Where a packet with a transport header goes by itself; never [`Arrival::Lookup`].
#[inline(always)]
fn arrival<I: Ip, F: Frame>(
    frame: &F,
    datagram: &Datagram<I::Address>,
    transport: &Transport,
) -> Arrival {
    let protocol = datagram.protocol;
    let ends = Ends::arriving(transport);
    if decide::in_service(maps::services(), protocol, transport.kind, ends.local) {
        if !remember::may_be_guest(transport.kind, ends.local) {
            return Arrival::Node;
        }
        let key = I::flow_key(datagram.source, protocol, ends);
        let known = remember::recall::<I>(&key);
        let arrival = decide::arrival_in_service(transport, known);
        if arrival == Arrival::Node && known.is(Owner::GuestOpened) {
            // The peer's SYN: what follows it must not be taken for the guest's old connection.
            remember::remember::<I>(&key, Owner::Node, false, Class::of(transport.kind));
        }
        return arrival;
    }
    let key = I::flow_key(datagram.source, protocol, ends);
    let is_established = transport.kind == Kind::Tcp && !transport.opens;
    if is_established && remember::is_settled::<I>(&key) {
        return Arrival::Guest;
    }
    let known = remember::recall::<I>(&key);
    match decide::arrival(transport, known, remember::now) {
        Arrival::Lookup => {
            let class = Class::of(transport.kind);
            count(I::FAMILY, class, Event::Lookup);
            let (owner, arrival) =
                if remember::bound_to_node::<I, F>(frame, transport.kind, datagram.source, ends) {
                    (Owner::Node, Arrival::Node)
                } else {
                    (Owner::GuestFound, Arrival::Guest)
                };
            remember::remember::<I>(&key, owner, !known.is_known(), class);
            arrival
        }
        Arrival::Guest => {
            if is_established {
                remember::settle::<I>(&key);
            }
            Arrival::Guest
        }
        Arrival::Node => Arrival::Node,
    }
}
