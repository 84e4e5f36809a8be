//! Frames, built from scratch with every checksum right, so that what is expected of a translation is the same
//! frame built with another address.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use etherparse::checksum::Sum16BitWords;

pub const G4: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 2);
pub const N4: Ipv4Addr = Ipv4Addr::new(10, 244, 1, 226);
pub const PEER4: Ipv4Addr = Ipv4Addr::new(10, 244, 3, 60);
pub const GATEWAY4: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 1);
pub const G6: Ipv6Addr = Ipv6Addr::new(0xfd10, 0, 2, 0, 0, 0, 0, 2);
pub const N6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x244, 1, 0, 0, 0, 0, 0xe2);
pub const PEER6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x244, 3, 0, 0, 0, 0, 0x3c);

/// One family's addresses.
#[derive(Clone, Copy)]
pub struct Side {
    pub guest: IpAddr,
    pub node: IpAddr,
    pub peer: IpAddr,
}

pub const V4: Side = Side {
    guest: IpAddr::V4(G4),
    node: IpAddr::V4(N4),
    peer: IpAddr::V4(PEER4),
};
pub const V6: Side = Side {
    guest: IpAddr::V6(G6),
    node: IpAddr::V6(N6),
    peer: IpAddr::V6(PEER6),
};
pub const BOTH: [Side; 2] = [V4, V6];

pub const ICMP: u8 = 1;
pub const IPIP: u8 = 4;
pub const TCP: u8 = 6;
pub const UDP: u8 = 17;
pub const DCCP: u8 = 33;
pub const GRE: u8 = 47;
pub const ESP: u8 = 50;
pub const ICMPV6: u8 = 58;
pub const SCTP: u8 = 132;
pub const UDPLITE: u8 = 136;

pub const SYN: u8 = 0x02;
pub const ACK: u8 = 0x10;

/// What an IP packet carries.
#[derive(Clone, Debug)]
pub enum Payload {
    /// UDP; without a checksum where `checksum` is false.
    Udp {
        source: u16,
        destination: u16,
        data: Vec<u8>,
        checksum: bool,
    },
    Tcp {
        source: u16,
        destination: u16,
        flags: u8,
        data: Vec<u8>,
    },
    /// UDP-Lite or DCCP: a checksum like UDP's in the same place.
    LikeUdp {
        protocol: u8,
        source: u16,
        destination: u16,
        data: Vec<u8>,
    },
    /// SCTP: ports, and a checksum that does not cover addresses.
    Sctp {
        source: u16,
        destination: u16,
        data: Vec<u8>,
    },
    /// ICMP or ICMPv6, after the packet's family; `rest` follows the checksum.
    Icmp { kind: u8, code: u8, rest: Vec<u8> },
    /// Any other protocol.
    Raw { protocol: u8, data: Vec<u8> },
}

impl Payload {
    pub fn udp(source: u16, destination: u16) -> Self {
        Self::Udp {
            source,
            destination,
            data: b"some data that is of odd length".to_vec(),
            checksum: true,
        }
    }

    pub fn vxlan(checksum: bool) -> Self {
        let mut data = vec![8, 0, 0, 0, 0, 0, 1, 0];
        data.extend([0x5a; 60]);
        Self::Udp {
            source: 51_234,
            destination: 8473,
            data,
            checksum,
        }
    }

    pub fn tcp(source: u16, destination: u16, flags: u8) -> Self {
        Self::Tcp {
            source,
            destination,
            flags,
            data: b"segment".to_vec(),
        }
    }

    /// An echo request or reply, after the family's numbers.
    pub fn echo(side: Side, request: bool, identifier: u16) -> Self {
        let kind = match (side.node, request) {
            (IpAddr::V4(_), true) => 8,
            (IpAddr::V4(_), false) => 0,
            (IpAddr::V6(_), true) => 128,
            (IpAddr::V6(_), false) => 129,
        };
        let mut rest = identifier.to_be_bytes().to_vec();
        rest.extend([0, 7]);
        rest.extend(*b"ping data");
        Self::Icmp {
            kind,
            code: 0,
            rest,
        }
    }

    fn protocol(&self, is_v6: bool) -> u8 {
        match self {
            Self::Udp { .. } => UDP,
            Self::Tcp { .. } => TCP,
            Self::Sctp { .. } => SCTP,
            Self::Icmp { .. } => {
                if is_v6 {
                    ICMPV6
                } else {
                    ICMP
                }
            }
            Self::LikeUdp { protocol, .. } | Self::Raw { protocol, .. } => *protocol,
        }
    }

    fn bytes(&self, source: IpAddr, destination: IpAddr) -> Vec<u8> {
        let protocol = self.protocol(source.is_ipv6());
        match self {
            Self::Udp {
                source: from,
                destination: to,
                data,
                checksum,
            } => {
                let mut bytes = ports(*from, *to);
                bytes.extend(u16::try_from(8 + data.len()).unwrap().to_be_bytes());
                bytes.extend([0, 0]);
                bytes.extend(data);
                if *checksum {
                    put_checksum(&mut bytes, 6, source, destination, protocol, true);
                }
                bytes
            }
            Self::Tcp {
                source: from,
                destination: to,
                flags,
                data,
            } => {
                let mut bytes = ports(*from, *to);
                bytes.extend([1, 2, 3, 4, 5, 6, 7, 8, 5 << 4, *flags, 0x20, 0, 0, 0, 0, 0]);
                bytes.extend(data);
                put_checksum(&mut bytes, 16, source, destination, protocol, false);
                bytes
            }
            Self::LikeUdp {
                source: from,
                destination: to,
                data,
                ..
            } => {
                let mut bytes = ports(*from, *to);
                bytes.extend([0, 8, 0, 0]);
                bytes.extend(data);
                put_checksum(&mut bytes, 6, source, destination, protocol, true);
                bytes
            }
            Self::Sctp {
                source: from,
                destination: to,
                data,
            } => {
                let mut bytes = ports(*from, *to);
                bytes.extend([0xaa, 0xbb, 0xcc, 0xdd, 0xde, 0xad, 0xbe, 0xef]);
                bytes.extend(data);
                bytes
            }
            Self::Icmp { kind, code, rest } => {
                let mut bytes = vec![*kind, *code, 0, 0];
                bytes.extend(rest);
                if source.is_ipv6() {
                    put_checksum(&mut bytes, 2, source, destination, protocol, false);
                } else {
                    let sum = Sum16BitWords::new().add_slice(&bytes).ones_complement();
                    bytes[2..4].copy_from_slice(&sum.to_ne_bytes());
                }
                bytes
            }
            Self::Raw { data, .. } => data.clone(),
        }
    }
}

fn ports(source: u16, destination: u16) -> Vec<u8> {
    [source.to_be_bytes(), destination.to_be_bytes()].concat()
}

fn pseudo_header(
    source: IpAddr,
    destination: IpAddr,
    protocol: u8,
    length: usize,
) -> Sum16BitWords {
    let sum = match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => Sum16BitWords::new()
            .add_4bytes(source.octets())
            .add_4bytes(destination.octets()),
        (IpAddr::V6(source), IpAddr::V6(destination)) => Sum16BitWords::new()
            .add_16bytes(source.octets())
            .add_16bytes(destination.octets()),
        _ => panic!("{source} and {destination} are of two families"),
    };
    sum.add_2bytes([0, protocol])
        .add_4bytes(u32::try_from(length).unwrap().to_be_bytes())
}

/// The folded pseudo-header sum, as the field of a pending checksum holds it: network byte order.
pub fn pending(source: IpAddr, destination: IpAddr, protocol: u8, length: usize) -> [u8; 2] {
    (!pseudo_header(source, destination, protocol, length).ones_complement()).to_ne_bytes()
}

fn put_checksum(
    bytes: &mut [u8],
    at: usize,
    source: IpAddr,
    destination: IpAddr,
    protocol: u8,
    zero_means_none: bool,
) {
    let mut sum = pseudo_header(source, destination, protocol, bytes.len())
        .add_slice(bytes)
        .ones_complement();
    if zero_means_none && sum == 0 {
        sum = 0xffff;
    }
    bytes[at..at + 2].copy_from_slice(&sum.to_ne_bytes());
}

/// How a packet is wrapped.
#[derive(Clone, Debug, Default)]
pub struct Shape {
    /// VLAN tags, outermost first: (TPID, TCI).
    pub tags: Vec<(u16, u16)>,
    /// IPv4 options, a multiple of 4 bytes.
    pub options: Vec<u8>,
    /// IPv6 extension headers: their kind, and their bytes from the third on.
    pub extensions: Vec<(u8, Vec<u8>)>,
    /// Padding behind the packet.
    pub padding: usize,
    /// The pseudo header's destination, where a routing header makes it another.
    pub final_destination: Option<IpAddr>,
}

/// A whole packet in an Ethernet frame.
pub fn frame(source: IpAddr, destination: IpAddr, payload: &Payload) -> Vec<u8> {
    shaped(source, destination, payload, &Shape::default())
}

/// A whole packet in an Ethernet frame of a given shape.
pub fn shaped(source: IpAddr, destination: IpAddr, payload: &Payload, shape: &Shape) -> Vec<u8> {
    let bytes = payload.bytes(source, shape.final_destination.unwrap_or(destination));
    let mut frame = ethernet(source, shape);
    frame.extend(ip(
        source,
        destination,
        payload.protocol(source.is_ipv6()),
        &bytes,
        shape,
        None,
    ));
    frame.extend(vec![0xee; shape.padding]);
    frame
}

/// An IP packet without its Ethernet header, to be quoted.
pub fn packet(source: IpAddr, destination: IpAddr, payload: &Payload, shape: &Shape) -> Vec<u8> {
    ip(
        source,
        destination,
        payload.protocol(source.is_ipv6()),
        &payload.bytes(source, destination),
        shape,
        None,
    )
}

/// The same packet in fragments of `size` payload bytes, a multiple of 8.
pub fn fragments(
    source: IpAddr,
    destination: IpAddr,
    payload: &Payload,
    shape: &Shape,
    identification: u32,
    size: usize,
) -> Vec<Vec<u8>> {
    let bytes = payload.bytes(source, destination);
    let count = bytes.len().div_ceil(size);
    bytes
        .chunks(size)
        .enumerate()
        .map(|(index, chunk)| {
            let fragment = Fragment {
                identification,
                offset: index * size,
                more: index + 1 < count,
            };
            let mut frame = ethernet(source, shape);
            frame.extend(ip(
                source,
                destination,
                payload.protocol(source.is_ipv6()),
                chunk,
                shape,
                Some(&fragment),
            ));
            frame
        })
        .collect()
}

struct Fragment {
    identification: u32,
    offset: usize,
    more: bool,
}

pub fn ethernet(source: IpAddr, shape: &Shape) -> Vec<u8> {
    let mut frame = vec![0x02, 0, 0, 0, 0, 0x01, 0x02, 0, 0, 0, 0, 0x02];
    for (tpid, tci) in &shape.tags {
        frame.extend(tpid.to_be_bytes());
        frame.extend(tci.to_be_bytes());
    }
    frame.extend(if source.is_ipv6() {
        [0x86, 0xdd]
    } else {
        [0x08, 0x00]
    });
    frame
}

fn ip(
    source: IpAddr,
    destination: IpAddr,
    protocol: u8,
    payload: &[u8],
    shape: &Shape,
    fragment: Option<&Fragment>,
) -> Vec<u8> {
    match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let length = 20 + shape.options.len();
            let mut header = vec![0x40 | u8::try_from(length / 4).unwrap(), 0];
            header.extend(u16::try_from(length + payload.len()).unwrap().to_be_bytes());
            let (identification, bits) = match fragment {
                Some(Fragment {
                    identification,
                    offset,
                    more,
                }) => (
                    u16::try_from(*identification).unwrap(),
                    u16::try_from(offset / 8).unwrap() | if *more { 0x2000 } else { 0 },
                ),
                None => (0x1234, 0x4000),
            };
            header.extend(identification.to_be_bytes());
            header.extend(bits.to_be_bytes());
            header.extend([63, protocol, 0, 0]);
            header.extend(source.octets());
            header.extend(destination.octets());
            header.extend(&shape.options);
            let sum = Sum16BitWords::new().add_slice(&header).ones_complement();
            header[10..12].copy_from_slice(&sum.to_ne_bytes());
            header.extend(payload);
            header
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let mut extensions = shape.extensions.clone();
            if let Some(Fragment {
                identification,
                offset,
                more,
            }) = fragment
            {
                let mut body = (u16::try_from(*offset).unwrap() | u16::from(*more))
                    .to_be_bytes()
                    .to_vec();
                body.extend(identification.to_be_bytes());
                extensions.push((44, body));
            }
            let mut body = Vec::new();
            for (index, (kind, rest)) in extensions.iter().enumerate() {
                let next = extensions
                    .get(index + 1)
                    .map_or(protocol, |(kind, _)| *kind);
                let length = 2 + rest.len();
                let units = match *kind {
                    44 => 0,
                    51 => length / 4 - 2,
                    _ => length / 8 - 1,
                };
                body.extend([next, u8::try_from(units).unwrap()]);
                body.extend(rest);
            }
            body.extend(payload);
            let first = extensions.first().map_or(protocol, |(kind, _)| *kind);
            let mut header = vec![0x60, 0x12, 0x34, 0x56];
            header.extend(u16::try_from(body.len()).unwrap().to_be_bytes());
            header.extend([first, 63]);
            header.extend(source.octets());
            header.extend(destination.octets());
            header.extend(body);
            header
        }
        _ => panic!("{source} and {destination} are of two families"),
    }
}

/// An ICMP or ICMPv6 error that quotes the first bytes of a packet.
pub fn error(side: Side, quote: &[u8]) -> Payload {
    // "Fragmentation needed" with a next-hop MTU of 1400, "packet too big" with one of 1400.
    let (kind, code) = if side.node.is_ipv6() { (2, 0) } else { (3, 4) };
    let mut rest = vec![0, 0, 0x05, 0x78];
    rest.extend(quote);
    Payload::Icmp { kind, code, rest }
}
