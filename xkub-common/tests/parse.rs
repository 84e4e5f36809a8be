//! Parsing, case by case: what makes a packet malformed, every kind of extension header, every ICMP message.
#![expect(clippy::unwrap_used, reason = "a test that can't go on fails")]

use xkub_common::packet::{
    Extent, Ipv4Header, Ipv6Header, Kind, Packet, Piece, Plain, arp, ethertype, final_destination,
    ipv4, ipv6, link, plain_ipv4, protocol, quoted_transport, transport,
};

const ETHERNET: usize = 14;
const V4: usize = ETHERNET + 20;
const V6: usize = ETHERNET + 40;
/// Bytes behind the packet, so that what lies beyond its end can be read all the same.
const PADDING: [u8; 80] = [0; 80];

const AUTHENTICATION: u8 = 51;
const DESTINATION_OPTIONS: u8 = 60;
const FRAGMENT: u8 = 44;
const ROUTING: u8 = 43;

/// What was read of a packet.
#[derive(Debug, PartialEq, Eq)]
struct Facts {
    protocol: u8,
    piece: Piece,
    kind: Kind,
    at: usize,
    /// The words of the address that the pseudo header holds.
    destination: Vec<u32>,
    routing: usize,
}

fn parse<P: Packet + ?Sized>(frame: &P) -> Option<Facts> {
    let link = link(frame).ok()?;
    if link.ethertype == ethertype::IPV4 {
        let header: Ipv4Header = frame.read(link.network)?;
        let datagram = ipv4(frame, link.network, &header, Extent::Told).ok()?;
        return Some(Facts {
            protocol: datagram.protocol,
            piece: datagram.piece,
            kind: transport(frame, &datagram).ok()?.kind,
            at: datagram.transport,
            destination: vec![datagram.destination],
            routing: datagram.routing,
        });
    }
    let header: Ipv6Header = frame.read(link.network)?;
    let datagram = ipv6(frame, link.network, &header, Extent::Told).ok()?;
    Some(Facts {
        protocol: datagram.protocol,
        piece: datagram.piece,
        kind: transport(frame, &datagram).ok()?.kind,
        at: datagram.transport,
        destination: final_destination(frame, &datagram).ok()?.to_vec(),
        routing: datagram.routing,
    })
}

fn half(number: usize) -> [u8; 2] {
    u16::try_from(number).unwrap().to_be_bytes()
}

/// An IPv4 packet in a padded frame.
fn v4(protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![2; 12];
    frame.extend([0x08, 0x00, 0x45, 0]);
    frame.extend(half(20 + payload.len()));
    frame.extend([0, 1, 0, 0, 64, protocol, 0, 0, 10, 0, 2, 2, 10, 244, 3, 60]);
    frame.extend(payload);
    frame.extend(PADDING);
    frame
}

/// An IPv6 packet in a padded frame.
fn v6(next: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![2; 12];
    frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
    frame.extend(half(payload.len()));
    frame.extend([next, 64]);
    frame.extend([0xfd; 16]);
    frame.extend([0xfe; 16]);
    frame.extend(payload);
    frame.extend(PADDING);
    frame
}

/// The same frame with some bytes set.
fn with(mut frame: Vec<u8>, changes: &[(usize, u8)]) -> Vec<u8> {
    for (at, value) in changes {
        frame[*at] = *value;
    }
    frame
}

fn udp(length: usize) -> Vec<u8> {
    let mut header = vec![0, 1, 0, 2];
    header.extend(half(length));
    header.extend([0, 0]);
    header
}

/// A header whose length in 4-byte words is as given.
fn tcp(words: u8) -> Vec<u8> {
    let mut header = vec![0; 20];
    header[12] = words << 4;
    header
}

/// An extension header of 8 bytes.
fn options(next: u8) -> Vec<u8> {
    vec![next, 0, 1, 4, 0, 0, 0, 0]
}

/// A fragment header, its last field but one being offset and "more".
fn fragment(next: u8, offset_more: [u8; 2]) -> Vec<u8> {
    [&[next, 0][..], &offset_more, &[0, 0, 0, 9]].concat()
}

/// A routing header with one address.
fn routing(next: u8, kind: u8, left: u8) -> Vec<u8> {
    let mut header = vec![next, 2, kind, left, 0, 0, 0, 0];
    header.extend([0xaa; 16]);
    header
}

#[test]
fn an_ipv4_packet_that_contradicts_itself_is_malformed() {
    const MORE: (usize, u8) = (20, 0x20);
    for (what, frame, is_right) in [
        ("UDP", v4(protocol::UDP, &udp(8)), true),
        (
            "version 6",
            with(v4(protocol::UDP, &udp(8)), &[(14, 0x65)]),
            false,
        ),
        (
            "IHL 4",
            with(v4(protocol::UDP, &udp(8)), &[(14, 0x44), (V4 + 1, 8)]),
            false,
        ),
        (
            "a header that ends behind the packet",
            with(
                v4(protocol::UDP, &udp(8)),
                // A whole UDP header where it would be.
                &[(14, 0x4f), (ETHERNET + 60 + 5, 8)],
            ),
            false,
        ),
        (
            "total length 0",
            with(v4(protocol::UDP, &udp(8)), &[(17, 0)]),
            false,
        ),
        ("TCP", v4(protocol::TCP, &tcp(5)), true),
        ("TCP of 4 words", v4(protocol::TCP, &tcp(4)), false),
        (
            "TCP that ends behind the packet",
            v4(protocol::TCP, &tcp(6)),
            false,
        ),
        (
            "a packet that ends in TCP",
            v4(protocol::TCP, &tcp(5)[..19]),
            false,
        ),
        ("UDP of 7 bytes", v4(protocol::UDP, &udp(7)), false),
        (
            "UDP that ends behind the packet",
            v4(protocol::UDP, &udp(9)),
            false,
        ),
        (
            "a first fragment of a longer UDP datagram",
            with(v4(protocol::UDP, &udp(9)), &[MORE]),
            true,
        ),
        (
            "a first fragment that ends in UDP",
            with(v4(protocol::UDP, &udp(8)[..7]), &[MORE]),
            false,
        ),
        ("ICMP", v4(protocol::ICMP, &[8; 8]), true),
        (
            "a packet that ends in ICMP",
            v4(protocol::ICMP, &[8; 7]),
            false,
        ),
        ("SCTP", v4(protocol::SCTP, &[0; 8]), true),
        (
            "a packet that ends in SCTP",
            v4(protocol::SCTP, &[0; 7]),
            false,
        ),
    ] {
        assert_eq!(parse(&frame[..]).is_some(), is_right, "{what}");
    }
}

#[test]
fn an_ipv6_packet_that_contradicts_itself_is_malformed() {
    let behind_options = |payload: &[u8]| [options(protocol::UDP), payload.to_vec()].concat();
    // Would be right for a parser that takes its place modulo 2048.
    let long_options = [&[protocol::UDP, 255, 0, 0, 0, 8][..], &[0; 2042], &udp(8)].concat();
    let many = |count: usize| {
        let mut payload: Vec<u8> = (1..count)
            .flat_map(|_| options(DESTINATION_OPTIONS))
            .collect();
        payload.extend(options(protocol::UDP));
        payload.extend(udp(8));
        payload
    };
    for (what, frame, is_right) in [
        ("UDP", v6(protocol::UDP, &udp(8)), true),
        (
            "version 4",
            with(v6(protocol::UDP, &udp(8)), &[(14, 0x40)]),
            false,
        ),
        (
            "a packet that ends in ICMPv6",
            v6(protocol::ICMPV6, &[128; 7]),
            false,
        ),
        (
            "an extension header that ends behind the packet",
            v6(DESTINATION_OPTIONS, &[59, 1, 0, 0, 0, 0, 0, 0]),
            false,
        ),
        (
            "a later fragment that ends in its fragment header",
            v6(FRAGMENT, &fragment(protocol::UDP, [0, 8])[..7]),
            false,
        ),
        (
            "an extension header",
            v6(DESTINATION_OPTIONS, &behind_options(&udp(8))),
            true,
        ),
        (
            "eight extension headers",
            v6(DESTINATION_OPTIONS, &many(8)),
            true,
        ),
        (
            "nine extension headers",
            v6(DESTINATION_OPTIONS, &many(9)),
            false,
        ),
        (
            "a header that reaches too far",
            v6(DESTINATION_OPTIONS, &long_options),
            false,
        ),
    ] {
        assert_eq!(parse(&frame[..]).is_some(), is_right, "{what}");
    }
}

#[test]
fn every_kind_of_extension_header_is_looked_behind() {
    let authentication = [&[protocol::UDP, 4][..], &[0; 22]].concat();
    let cases = [0, DESTINATION_OPTIONS, 135, 139, 140]
        .map(|kind| (kind, options(protocol::UDP)))
        .into_iter()
        .chain([
            (ROUTING, routing(protocol::UDP, 4, 0)),
            (FRAGMENT, fragment(protocol::UDP, [0, 0])),
            (AUTHENTICATION, authentication),
        ]);
    for (kind, header) in cases {
        let facts = parse(&v6(kind, &[header.clone(), udp(8)].concat())[..]).unwrap();
        let expected = Facts {
            protocol: protocol::UDP,
            piece: Piece::Whole,
            kind: Kind::Udp,
            at: V6 + header.len(),
            destination: vec![0xfefe_fefe; 4],
            routing: 0,
        };
        assert_eq!(facts, expected, "{kind}");
    }
    // No extension headers: ESP, whose inside can't be read, and "no next header".
    for kind in [50, 59] {
        let facts = parse(&v6(kind, &options(protocol::UDP))[..]).unwrap();
        assert_eq!((facts.protocol, facts.at), (kind, V6));
    }
}

#[test]
fn the_pseudo_header_holds_the_last_segment() {
    let (own, last) = (vec![0xfefe_fefe; 4], vec![0xaaaa_aaaa; 4]);
    for (kind, left, destination) in [
        (2, 1, &last),
        (4, 1, &last),
        (2, 0, &own),
        (4, 0, &own),
        // Where the last segment is in the other types is not known.
        (3, 1, &own),
    ] {
        let facts = parse(
            &v6(
                ROUTING,
                &[routing(protocol::UDP, kind, left), udp(8)].concat(),
            )[..],
        );
        let facts = facts.unwrap();
        assert_eq!(&facts.destination, destination, "type {kind}, {left} left");
        assert_eq!(facts.routing, if left == 0 { 0 } else { V6 });
        // The same in front of a fragment header.
        for (offset_more, piece) in [([0, 1], Piece::First), ([0, 8], Piece::Later)] {
            let headers = [
                routing(FRAGMENT, kind, left),
                fragment(protocol::UDP, offset_more),
                udp(8),
            ];
            let facts = parse(&v6(ROUTING, &headers.concat())[..]).unwrap();
            assert_eq!((&facts.destination, facts.piece), (destination, piece));
        }
    }
}

/// A frame that claims to be longer than it is.
struct Long<'a>(&'a [u8]);

impl Packet for Long<'_> {
    fn read<T: Plain>(&self, offset: usize) -> Option<T> {
        self.0.read(offset)
    }

    fn holds(&self, bytes: usize) -> bool {
        bytes <= 100_000
    }
}

#[test]
fn a_packet_longer_than_its_length_field_can_tell_says_zero() {
    for frame in [
        with(v4(protocol::TCP, &tcp(5)), &[(16, 0), (17, 0)]),
        with(v6(protocol::TCP, &tcp(5)), &[(18, 0), (19, 0)]),
    ] {
        assert_eq!(parse(&frame[..]), None);
        assert_eq!(parse(&Long(&frame)).unwrap().kind, Kind::Tcp);
    }
}

#[test]
fn arp_is_read_for_ipv4_over_ethernet() {
    let right: [u8; 28] = [
        0, 1, 8, 0, 6, 4, 0, 1, 2, 2, 2, 2, 2, 2, 10, 244, 1, 226, 0, 0, 0, 0, 0, 0, 10, 0, 2, 1,
    ];
    let addresses = (
        u32::from_ne_bytes([10, 244, 1, 226]),
        u32::from_ne_bytes([10, 0, 2, 1]),
    );
    assert_eq!(arp(&right[..], 0), Ok(Some(addresses)));
    for at in 0..6 {
        let mut other = right;
        other[at] ^= 0x20;
        assert_eq!(arp(&other[..], 0), Ok(None), "byte {at}");
    }
    for length in 0..28 {
        assert!(arp(&right[..length], 0).is_err(), "{length} bytes");
    }
}

/// RFC 792, RFC 950, RFC 4443, RFC 4861.
#[test]
fn every_icmp_message_is_known_for_what_it_is() {
    for message in 0..=u8::MAX {
        let expected = match message {
            8 | 13 | 15 | 17 => Kind::Query,
            0 | 14 | 16 | 18 => Kind::Answer,
            3 | 4 | 5 | 11 | 12 => Kind::Error,
            _ => Kind::Message,
        };
        let facts = parse(&v4(protocol::ICMP, &[message, 0, 0, 0, 0, 0, 0, 0])[..]).unwrap();
        assert_eq!(facts.kind, expected, "ICMP {message}");
        let expected = match message {
            1..128 => Kind::Error,
            128 => Kind::Query,
            129 => Kind::Answer,
            133..=137 => Kind::Neighbour,
            _ => Kind::Message,
        };
        let facts = parse(&v6(protocol::ICMPV6, &[message, 0, 0, 0, 0, 0, 0, 0])[..]).unwrap();
        assert_eq!(facts.kind, expected, "ICMPv6 {message}");
    }
}

#[test]
fn the_straight_way_takes_plain_packets() {
    let is_plain = |frame: &[u8]| plain_ipv4(frame).is_some();
    let (udp, tcp) = (v4(protocol::UDP, &udp(8)), v4(protocol::TCP, &tcp(5)));
    assert!(is_plain(&udp) && is_plain(&udp[..V4]) && is_plain(&tcp));
    for (what, frame) in [
        ("half an IPv4 header", udp[..V4 - 1].to_vec()),
        ("options", with(udp.clone(), &[(14, 0x46)])),
        ("a first fragment", with(udp.clone(), &[(20, 0x20)])),
        ("a later fragment", with(udp.clone(), &[(21, 1)])),
        ("another EtherType", with(udp, &[(12, 0x81)])),
    ] {
        assert!(!is_plain(&frame), "{what}");
    }
}

/// An error quotes 8 bytes at least (RFC 792).
#[test]
fn a_quote_is_read_as_far_as_it_goes() {
    for (kind, length) in [
        (protocol::TCP, 4),
        (protocol::UDP, 4),
        (protocol::SCTP, 4),
        (protocol::ICMP, 8),
        (47, 0),
    ] {
        let frame = v4(kind, &[7; 40]);
        for cut in 0..=length {
            let quote = &frame[..V4 + cut];
            let header: Ipv4Header = quote.read(ETHERNET).unwrap();
            let datagram = ipv4(quote, ETHERNET, &header, Extent::Quoted).unwrap();
            let is_read = quoted_transport(quote, &datagram).is_ok();
            assert_eq!(is_read, cut == length, "{cut} bytes of {kind}");
        }
    }
}
