//! ICMP and ICMPv6 errors: the packet that they quote names an address that was translated on its way, and
//! must be what its sender knows.
//!
//! Only addresses and the quoted IPv4 header checksum are rewritten. The quoted transport checksum, often cut
//! off, is left alone: nobody verifies it, and so the ICMPv4 checksum over the quote stays right by itself.

use xkub_common::{
    checksum,
    counter::Event,
    decide::{self, Ends},
    packet::{self, DEEP_REACH, Extent, Kind, Malformed, transport},
};

use crate::{
    frame::{Fault, Frame},
    ip::{Field, Ip, IpPacket},
    maps, remember,
    rewrite::Way,
};

/// The packet that an error quotes.
#[inline(always)]
fn quote<I: Ip, F: Frame>(frame: &F, error: &IpPacket<I>) -> Result<IpPacket<I>, Malformed> {
    frame.reach(DEEP_REACH);
    let network = error.datagram.transport + transport::ICMP_HEADER;
    let header: I::Header = frame.read(network).ok_or(Malformed)?;
    IpPacket::parse(frame, network, header, Extent::Quoted)
}

/// Ingress rule 4: an error about a packet that left from N, and says G.
#[inline(always)]
pub fn arriving<I: Ip, F: Frame>(frame: &F, error: &IpPacket<I>) -> Result<Event, Fault> {
    let Ok(quote) = quote::<I, F>(frame, error) else {
        return Ok(Event::Malformed);
    };
    let Ok(transport) = packet::quoted_transport(frame, &quote.datagram) else {
        return Ok(Event::Malformed);
    };
    if quote.datagram.source != I::guest() || transport.kind == Kind::Fragment {
        return Ok(Event::Passed);
    }
    let protocol = quote.datagram.protocol;
    let key = I::flow_key(
        quote.datagram.destination,
        protocol,
        Ends::leaving(&transport),
    );
    let remembered = remember::recall::<I>(&key);
    if !decide::quoted_from_node(maps::services(), protocol, &transport, remembered) {
        return Ok(Event::Passed);
    }
    message_checksum::<I, F>(frame, error, 2, Way::ToNode)?;
    quote.write(frame, Field::Source, Way::ToNode)?;
    error.write(frame, Field::Destination, Way::ToNode)?;
    Ok(Event::Translated)
}

/// Egress rules 1 and 3: an error that the guest sends, from N or about a packet that arrived for N.
#[inline(always)]
pub fn leaving<I: Ip, F: Frame>(frame: &F, error: &IpPacket<I>) -> Result<Event, Fault> {
    let Ok(quote) = quote::<I, F>(frame, error) else {
        return Ok(Event::Malformed);
    };
    let about_node = quote.datagram.destination == I::node();
    let from_node = error.datagram.source == I::node();
    if !about_node && !from_node {
        return Ok(Event::Passed);
    }
    message_checksum::<I, F>(
        frame,
        error,
        u32::from(about_node) + u32::from(from_node),
        Way::ToGuest,
    )?;
    if about_node {
        quote.write(frame, Field::Destination, Way::ToGuest)?;
    }
    if from_node {
        error.write(frame, Field::Source, Way::ToGuest)?;
    }
    Ok(Event::Translated)
}

/// The ICMPv6 checksum covers the outer addresses, by its pseudo header, and the quoted ones, which no
/// quoted header checksum absorbs: `addresses` in all are rewritten.
#[inline(always)]
fn message_checksum<I: Ip, F: Frame>(
    frame: &F,
    error: &IpPacket<I>,
    addresses: u32,
    way: Way,
) -> Result<(), Fault> {
    if I::HEADER_CHECKSUM {
        return Ok(());
    }
    let at = error.datagram.transport + transport::ICMP_CHECKSUM;
    let field: u16 = frame.read(at).ok_or(Fault)?;
    frame.write(
        at,
        checksum::update(field, addresses * way.difference::<I>()),
    )
}
