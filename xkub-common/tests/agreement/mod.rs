//! What our parser and etherparse say of a frame.

use etherparse::{NetSlice, SlicedPacket, TransportSlice};
use xkub_common::packet::{
    Extent, Ipv4Header, Ipv6Header, Kind, Packet as _, Piece, Transport, ethertype, ipv4, ipv6,
    link, transport,
};

/// What both parsers must agree on.
#[derive(Debug, PartialEq, Eq)]
pub struct Facts {
    source: Vec<u8>,
    destination: Vec<u8>,
    protocol: u8,
    piece: Piece,
    ports: Option<(u16, u16)>,
}

/// What our parser says.
pub fn ours(frame: &[u8]) -> Option<Facts> {
    let link = link(frame).ok()?;
    let octets = |words: &[u32]| {
        words
            .iter()
            .flat_map(|word| word.to_ne_bytes())
            .collect::<Vec<u8>>()
    };
    let ports = |transport: Transport| {
        let ports = (transport.source.number(), transport.destination.number());
        matches!(transport.kind, Kind::Tcp | Kind::Udp).then_some(ports)
    };
    match link.ethertype {
        ethertype::IPV4 => {
            let header: Ipv4Header = frame.read(link.network)?;
            let datagram = ipv4(frame, link.network, &header, Extent::Told).ok()?;
            let transport = transport(frame, &datagram).ok()?;
            Some(Facts {
                source: octets(&[datagram.source]),
                destination: octets(&[datagram.destination]),
                protocol: datagram.protocol,
                piece: datagram.piece,
                ports: ports(transport),
            })
        }
        ethertype::IPV6 => {
            let header: Ipv6Header = frame.read(link.network)?;
            let datagram = ipv6(frame, link.network, &header, Extent::Told).ok()?;
            let transport = transport(frame, &datagram).ok()?;
            Some(Facts {
                source: octets(&datagram.source),
                destination: octets(&datagram.destination),
                protocol: datagram.protocol,
                piece: datagram.piece,
                ports: ports(transport),
            })
        }
        _ => None,
    }
}

/// What etherparse says.
pub fn theirs(frame: &[u8]) -> Option<Facts> {
    let sliced = SlicedPacket::from_ethernet(frame).ok()?;
    let ports = match &sliced.transport {
        Some(TransportSlice::Udp(udp)) => Some((udp.source_port(), udp.destination_port())),
        Some(TransportSlice::Tcp(tcp)) => Some((tcp.source_port(), tcp.destination_port())),
        _ => None,
    };
    match sliced.net? {
        NetSlice::Ipv4(ip) => {
            let header = ip.header();
            let piece = if header.fragments_offset().value() != 0 {
                Piece::Later
            } else if header.more_fragments() {
                Piece::First
            } else {
                Piece::Whole
            };
            Some(Facts {
                source: header.source().to_vec(),
                destination: header.destination().to_vec(),
                protocol: header.protocol().0,
                piece,
                // etherparse looks behind an authentication header. We don't in IPv4: it covers the addresses, so that
                // whoever uses it can't be translated anyway.
                ports: ports.filter(|_| ip.extensions().is_empty() && piece == Piece::Whole),
            })
        }
        NetSlice::Ipv6(ip) => Some(Facts {
            source: ip.header().source().to_vec(),
            destination: ip.header().destination().to_vec(),
            protocol: ip.payload().ip_number.0,
            piece: if ip.payload().fragmented {
                Piece::First
            } else {
                Piece::Whole
            },
            ports,
        }),
        NetSlice::Arp(_) => None,
    }
}

/// Each refuses some frames that the other accepts (a UDP length of 0, say), but of what both accept they must say
/// the same.
///
/// # Panics
/// When they don't.
pub fn check(frame: &[u8]) {
    if let (Some(ours), Some(theirs)) = (ours(frame), theirs(frame)) {
        // Of fragments etherparse reads no transport header; we read the first one's.
        if ours.piece == Piece::Whole && theirs.piece == Piece::Whole {
            assert_eq!(ours, theirs);
        }
    }
}
