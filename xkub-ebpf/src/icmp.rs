//! ICMP and ICMPv6 errors: the packet that they quote names an address that was translated on its way, and
//! must be what its sender knows.
//!
//! Only addresses and the quoted IPv4 header checksum are rewritten. The quoted transport checksum, often cut
//! off, is left alone: nobody verifies it, and so the ICMPv4 checksum over the quote stays right by itself.

use xkub_common::{
    checksum,
    counter::{Class, Event},
    decide::{self, Ends},
    packet::{self, DEEP_REACH, Datagram, Extent, Malformed, Piece, transport},
};

use crate::{
    counters::Outcome,
    frame::{Fault, Frame},
    ip::{Field, Ip},
    maps, remember,
    rewrite::Way,
};

/// A packet that an error quotes.
struct Quote<H, A> {
    network: usize,
    header: H,
    datagram: Datagram<A>,
}

#[inline(always)]
fn quote<I: Ip, F: Frame>(
    frame: &F,
    error: &Datagram<I::Address>,
) -> Result<Quote<I::Header, I::Address>, Malformed> {
    frame.reach(DEEP_REACH);
    let network = error.transport + transport::ICMP_HEADER;
    let header: I::Header = frame.read(network).ok_or(Malformed)?;
    let datagram = I::parse(frame, network, &header, Extent::Quoted)?;
    Ok(Quote { network, header, datagram })
}

/// Ingress rule 4: an error about a packet that left from N, and says G.
#[inline(always)]
pub fn arriving<I: Ip, F: Frame>(
    frame: &F,
    network: usize,
    header: &I::Header,
    error: &Datagram<I::Address>,
) -> Result<Outcome, Fault> {
    let Ok(quote) = quote::<I, F>(frame, error) else { return Ok(malformed()) };
    if quote.datagram.source != I::guest() || quote.datagram.piece == Piece::Later {
        return Ok(passed());
    }
    let Ok(transport) = packet::quoted_transport(frame, quote.datagram.protocol, quote.datagram.transport) else {
        return Ok(malformed());
    };
    let kind = quote.datagram.protocol;
    let key = I::flow_key(quote.datagram.destination, kind, Ends::leaving(&transport));
    if !decide::quoted_from_node(maps::services(), kind, &transport, remember::recall::<I>(&key)) {
        return Ok(passed());
    }
    let way = Way::ToNode;
    let difference = way.difference::<I>();
    message_checksum::<I, F>(frame, error, 2 * difference)?;
    I::write(frame, quote.network, Field::Source, &quote.header, way.address::<I>(), difference)?;
    I::write(frame, network, Field::Destination, header, way.address::<I>(), difference)?;
    Ok(translated())
}

/// Egress rules 1 and 3: an error that the guest sends, from N or about a packet that arrived for N.
#[inline(always)]
pub fn leaving<I: Ip, F: Frame>(
    frame: &F,
    network: usize,
    header: &I::Header,
    error: &Datagram<I::Address>,
) -> Result<Outcome, Fault> {
    let Ok(quote) = quote::<I, F>(frame, error) else { return Ok(malformed()) };
    let way = Way::ToGuest;
    let difference = way.difference::<I>();
    let about_node = quote.datagram.destination == I::node();
    let from_node = error.source == I::node();
    if !about_node && !from_node {
        return Ok(passed());
    }
    let times = u32::from(about_node) + u32::from(from_node);
    message_checksum::<I, F>(frame, error, times * difference)?;
    if about_node {
        I::write(frame, quote.network, Field::Destination, &quote.header, way.address::<I>(), difference)?;
    }
    if from_node {
        I::write(frame, network, Field::Source, header, way.address::<I>(), difference)?;
    }
    Ok(translated())
}

/// The ICMPv6 checksum covers the outer addresses, by its pseudo header, and the quoted ones, which no
/// quoted header checksum absorbs.
#[inline(always)]
fn message_checksum<I: Ip, F: Frame>(frame: &F, error: &Datagram<I::Address>, difference: u32) -> Result<(), Fault> {
    if I::HEADER_CHECKSUM {
        return Ok(());
    }
    let at = error.transport + transport::ICMP_CHECKSUM;
    let field: u16 = frame.read(at).ok_or(Fault)?;
    frame.write(at, checksum::update(field, difference))
}

const fn malformed() -> Outcome {
    Outcome::new(Event::Malformed, Class::IcmpError)
}

const fn passed() -> Outcome {
    Outcome::new(Event::Passed, Class::IcmpError)
}

const fn translated() -> Outcome {
    Outcome::new(Event::Translated, Class::IcmpError)
}
