//! Parsing of Ethernet, VLAN tags, ARP, IPv4, IPv6 with its extension headers, and of what follows them,
//! over anything that can read at an offset.
//!
//! Offsets are bytes from the start of the Ethernet header. Fields keep network byte order unless a
//! name says otherwise; lengths are host byte order.

use network_types::{
    eth::EthHdr,
    ip::{Ipv4Hdr, Ipv6Hdr},
};

use crate::port::Port;

/// Types that any bytes are a valid value of.
///
/// # Safety
/// The type is `repr(C)` or primitive, has no padding and no invalid bit patterns.
pub unsafe trait Plain: Copy {}

macro_rules! plain {
    ($($type:ty),+ $(,)?) => { $(
        // SAFETY: integers, or `repr(C)` structs and arrays of them without padding.
        unsafe impl Plain for $type {}
    )+ };
}
plain!(
    u8,
    u16,
    u32,
    [u16; 2],
    [u32; 2],
    [u32; 4],
    Ipv4Header,
    Ipv4Tail,
    Ipv6Header,
    ArpHeader,
    FragmentHeader,
    TcpHeader,
    UdpHeader
);

/// A frame that can be read.
pub trait Packet {
    /// The `T` at `offset`, `None` when the frame ends before it does.
    fn read<T: Plain>(&self, offset: usize) -> Option<T>;

    /// Whether the whole frame is at least `bytes` long. (Asked this way, because a program without
    /// `CAP_PERFMON` may compare packet pointers but not subtract them.)
    fn holds(&self, bytes: usize) -> bool;

    /// The same value, of which the kernel's verifier forgets what it knows. It follows every way through a
    /// loop with every value that it can tell from another, so that knowledge which nothing needs costs a
    /// program its life.
    fn forget(&self, value: usize) -> usize {
        value
    }

    /// Asks for the first `bytes` of the frame, or all of a shorter one, to become readable. A frame in
    /// the kernel may lie in several pieces, of which only the first can be read at once.
    fn reach(&self, bytes: usize) {
        let _ = bytes;
    }
}

impl Packet for [u8] {
    fn read<T: Plain>(&self, offset: usize) -> Option<T> {
        let bytes = self.get(offset..offset.checked_add(size_of::<T>())?)?;
        // SAFETY: `bytes` is exactly as long as a `T`, of which any bytes are a valid value (`Plain`).
        Some(unsafe { bytes.as_ptr().cast::<T>().read_unaligned() })
    }

    fn holds(&self, bytes: usize) -> bool {
        self.len() >= bytes
    }
}

/// How many bytes of a frame are asked for at first: Ethernet, two VLAN tags, an IPv4 header with all its
/// options or an IPv6 one, and a TCP header.
pub const REACH: usize = EthHdr::LEN + 2 * VLAN_TAG + 60 + 20;
/// How many bytes are asked for when extension headers or a quoted packet are to be read.
pub const DEEP_REACH: usize = 512;

/// Bytes of a VLAN tag.
const VLAN_TAG: usize = 4;
/// How many VLAN tags are looked behind (802.1ad: two).
const VLAN_TAGS: usize = 2;

/// EtherTypes, host byte order.
pub mod ethertype {
    /// IPv4.
    pub const IPV4: u16 = 0x0800;
    /// ARP.
    pub const ARP: u16 = 0x0806;
    /// 802.1Q.
    pub const VLAN: u16 = 0x8100;
    /// IPv6.
    pub const IPV6: u16 = 0x86dd;
    /// 802.1ad.
    pub const QINQ: u16 = 0x88a8;
}

/// IP protocol numbers.
pub mod protocol {
    use network_types::ip::IpProto;

    /// ICMP.
    pub const ICMP: u8 = IpProto::Icmp as u8;
    /// IPv4 in IP.
    pub const IPIP: u8 = IpProto::Ipv4 as u8;
    /// TCP.
    pub const TCP: u8 = IpProto::Tcp as u8;
    /// UDP.
    pub const UDP: u8 = IpProto::Udp as u8;
    /// DCCP.
    pub const DCCP: u8 = IpProto::Dccp as u8;
    /// ICMPv6.
    pub const ICMPV6: u8 = IpProto::Ipv6Icmp as u8;
    /// SCTP.
    pub const SCTP: u8 = IpProto::Sctp as u8;
    /// UDP-Lite.
    pub const UDPLITE: u8 = IpProto::UdpLite as u8;

    pub(super) const HOP_BY_HOP: u8 = IpProto::HopOpt as u8;
    pub(super) const ROUTING: u8 = IpProto::Ipv6Route as u8;
    pub(super) const FRAGMENT: u8 = IpProto::Ipv6Frag as u8;
    pub(super) const AUTHENTICATION: u8 = IpProto::Ah as u8;
    pub(super) const DESTINATION: u8 = IpProto::Ipv6Opts as u8;
    pub(super) const MOBILITY: u8 = IpProto::MobilityHeader as u8;
    pub(super) const HIP: u8 = IpProto::Hip as u8;
    pub(super) const SHIM6: u8 = IpProto::Shim6 as u8;
}

/// The packet contradicts itself, or ends too early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

/// What a frame carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// The EtherType behind the VLAN tags, host byte order.
    pub ethertype: u16,
    /// Where the network header starts.
    pub network: usize,
}

/// Reads the Ethernet header and the VLAN tags behind it.
///
/// # Errors
/// When the frame ends within them.
#[inline(always)]
pub fn link<P: Packet + ?Sized>(packet: &P) -> Result<Link, Malformed> {
    let mut network = EthHdr::LEN;
    let mut ethertype = u16::from_be(packet.read::<u16>(network - 2).ok_or(Malformed)?);
    for _ in 0..VLAN_TAGS {
        if ethertype != ethertype::VLAN && ethertype != ethertype::QINQ {
            break;
        }
        network += VLAN_TAG;
        ethertype = u16::from_be(packet.read::<u16>(network - 2).ok_or(Malformed)?);
    }
    Ok(Link { ethertype, network })
}

/// An ARP header up to its addresses (RFC 826).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ArpHeader {
    hardware: u16,
    protocol: u16,
    lengths: u16,
    /// The operation.
    pub operation: u16,
}

/// Where the IPv4 addresses are in an ARP message for Ethernet, from its start.
pub mod arp {
    /// The sender's.
    pub const SENDER: usize = 14;
    /// The target's.
    pub const TARGET: usize = 24;
}

/// An ARP message's sender and target addresses.
///
/// # Errors
/// When the frame ends within it. `Ok(None)` when it isn't IPv4 over Ethernet.
#[inline(always)]
pub fn arp<P: Packet + ?Sized>(
    packet: &P,
    network: usize,
) -> Result<Option<(u32, u32)>, Malformed> {
    const ETHERNET: u16 = 1u16.to_be();
    const IPV4: u16 = ethertype::IPV4.to_be();
    const LENGTHS: u16 = 0x0604u16.to_be();
    let header: ArpHeader = packet.read(network).ok_or(Malformed)?;
    if header.hardware != ETHERNET || header.protocol != IPV4 || header.lengths != LENGTHS {
        return Ok(None);
    }
    // The addresses lie on 2-byte boundaries.
    let sender: [u16; 2] = packet.read(network + arp::SENDER).ok_or(Malformed)?;
    let target: [u16; 2] = packet.read(network + arp::TARGET).ok_or(Malformed)?;
    Ok(Some((join(sender), join(target))))
}

#[inline(always)]
const fn join(halves: [u16; 2]) -> u32 {
    let [a, b] = [halves[0].to_ne_bytes(), halves[1].to_ne_bytes()];
    u32::from_ne_bytes([a[0], a[1], b[0], b[1]])
}

/// An IPv4 header without options (RFC 791).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Ipv4Header {
    version_length: u8,
    service: u8,
    total_length: u16,
    identification: u16,
    fragment: u16,
    ttl: u8,
    protocol: u8,
    /// The header checksum.
    pub checksum: u16,
    /// The source address.
    pub source: u32,
    /// The destination address.
    pub destination: u32,
}

/// The header of the most common packet: untagged IPv4 without options that is not a fragment.
#[inline(always)]
pub fn plain_ipv4<P: Packet + ?Sized>(packet: &P) -> Option<Ipv4Header> {
    const IPV4: u16 = ethertype::IPV4.to_be();
    const VERSION_LENGTH: u8 = 0x45;
    let ethertype: u16 = packet.read(EthHdr::LEN - 2)?;
    let header: Ipv4Header = packet.read(EthHdr::LEN)?;
    let is_plain = ethertype == IPV4
        && header.version_length == VERSION_LENGTH
        && header.fragment & (MORE_V4 | OFFSET_V4) == 0;
    is_plain.then_some(header)
}

/// The end of an IPv4 header without options: all that a translation changes, and what lies before it on the same
/// 4-byte boundary.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Ipv4Tail {
    ttl: u8,
    protocol: u8,
    /// The header checksum.
    pub checksum: u16,
    /// The source address.
    pub source: u32,
    /// The destination address.
    pub destination: u32,
}

impl Ipv4Header {
    /// Its end.
    #[must_use]
    #[inline(always)]
    pub const fn tail(&self) -> Ipv4Tail {
        Ipv4Tail {
            ttl: self.ttl,
            protocol: self.protocol,
            checksum: self.checksum,
            source: self.source,
            destination: self.destination,
        }
    }

    /// The transport protocol.
    #[must_use]
    #[inline(always)]
    pub const fn protocol(&self) -> u8 {
        self.protocol
    }
}

/// "More fragments", network byte order.
const MORE_V4: u16 = 0x2000u16.to_be();
/// The fragment offset, network byte order.
const OFFSET_V4: u16 = 0x1fffu16.to_be();

/// Where the transport header of a packet of that kind starts.
pub const PLAIN_TRANSPORT: usize = EthHdr::LEN + Ipv4Hdr::LEN;

/// Offsets in an IPv4 header.
pub mod ipv4 {
    /// [`Ipv4Tail`](super::Ipv4Tail).
    pub const TAIL: usize = 8;
    /// The header checksum.
    pub const CHECKSUM: usize = 10;
    /// The source address.
    pub const SOURCE: usize = 12;
    /// The destination address.
    pub const DESTINATION: usize = 16;
}

/// An IPv6 header (RFC 8200).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Ipv6Header {
    version: u32,
    payload_length: u16,
    next_header: u8,
    hop_limit: u8,
    /// The source address.
    pub source: [u32; 4],
    /// The destination address.
    pub destination: [u32; 4],
}

/// Offsets in an IPv6 header.
pub mod ipv6 {
    /// All nodes on the link, `ff02::1` (RFC 4291 §2.7.1).
    pub const ALL_NODES: [u32; 4] = [0xff02_0000u32.to_be(), 0, 0, 1u32.to_be()];
    /// The ICMPv6 type of a neighbour advertisement (RFC 4861 §4.4).
    pub const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
    /// The source address.
    pub const SOURCE: usize = 8;
    /// The destination address.
    pub const DESTINATION: usize = 24;
}

/// An IPv6 fragment header (RFC 8200 §4.5).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct FragmentHeader {
    next_header: u8,
    reserved: u8,
    offset_more: u16,
    identification: u32,
}

/// A TCP header up to its flags (RFC 9293).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TcpHeader {
    /// The source port, network byte order.
    pub source: u16,
    /// The destination port, network byte order.
    pub destination: u16,
    sequence: u32,
    acknowledgement: u32,
    offset: u8,
    flags: u8,
    window: u16,
    checksum: u16,
    urgent: u16,
}

/// A UDP header (RFC 768).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct UdpHeader {
    /// The source port, network byte order.
    pub source: u16,
    /// The destination port, network byte order.
    pub destination: u16,
    /// The length of header and payload, network byte order.
    pub length: u16,
    /// The checksum.
    pub checksum: u16,
}

/// Where checksums are in transport headers, from their start.
pub mod transport {
    /// TCP.
    pub const TCP_CHECKSUM: usize = 16;
    /// UDP, UDP-Lite and DCCP.
    pub const UDP_CHECKSUM: usize = 6;
    /// ICMP and ICMPv6.
    pub const ICMP_CHECKSUM: usize = 2;
    /// Length of the header that precedes a quoted packet in an ICMP or ICMPv6 error.
    pub const ICMP_HEADER: usize = 8;
}

/// What part of a datagram a packet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece {
    /// All of it.
    Whole,
    /// Its first fragment.
    First,
    /// Another fragment, without a transport header.
    Later,
}

/// An IP packet, its address family being `A`: `u32` for IPv4, `[u32; 4]` for IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram<A> {
    /// Source address.
    pub source: A,
    /// Destination address.
    pub destination: A,
    /// Where an IPv6 routing header starts that has segments left, so that `destination` is a hop and the
    /// pseudo header holds another; else 0.
    pub routing: usize,
    /// The transport protocol.
    pub protocol: u8,
    /// What part of a datagram it is.
    pub piece: Piece,
    /// What ties fragments together, network byte order; 0 in a whole datagram.
    pub identification: u32,
    /// Where the transport header starts, or the payload of a later fragment.
    pub transport: usize,
    /// Where the packet ends; a frame may be padded beyond it.
    pub end: usize,
}

/// Longest packet that an IPv4 total length or an IPv6 payload length can tell.
const MAX_TOLD: usize = u16::MAX as usize;

/// The end of the packet whose header is `before` bytes into the frame and whose length field tells `told`
/// bytes from there; `None` when the frame is shorter. A packet longer than the field can tell says 0
/// (BIG TCP) and ends with its frame.
#[inline(always)]
fn end<P: Packet + ?Sized>(packet: &P, before: usize, told: usize) -> Option<usize> {
    if told == 0 && packet.holds(before + MAX_TOLD + 1) {
        return Some(usize::MAX);
    }
    packet.holds(before + told).then_some(before + told)
}

/// Whether a packet must be there as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// As far as its length fields say.
    Told,
    /// As an ICMP error quotes it: cut off anywhere.
    Quoted,
}

/// Parses an IPv4 header that was read at `network`.
///
/// # Errors
/// When the version, the header length or the total length can't be.
#[inline(always)]
pub fn ipv4<P: Packet + ?Sized>(
    packet: &P,
    network: usize,
    header: &Ipv4Header,
    extent: Extent,
) -> Result<Datagram<u32>, Malformed> {
    const VERSION: u8 = 4;

    let length = usize::from(header.version_length & 0xf) * 4;
    let total = usize::from(u16::from_be(header.total_length));
    if header.version_length >> 4 != VERSION || length < Ipv4Hdr::LEN {
        return Err(Malformed);
    }
    let end = match extent {
        Extent::Told => end(packet, network, total).ok_or(Malformed)?,
        Extent::Quoted => usize::MAX,
    };
    if network + length > end {
        return Err(Malformed);
    }
    let piece = if header.fragment & (MORE_V4 | OFFSET_V4) == 0 {
        Piece::Whole
    } else if header.fragment & OFFSET_V4 == 0 {
        Piece::First
    } else {
        Piece::Later
    };
    Ok(Datagram {
        source: header.source,
        destination: header.destination,
        routing: 0,
        protocol: header.protocol,
        identification: if let Piece::Whole = piece {
            0
        } else {
            u32::from(header.identification)
        },
        piece,
        transport: network + length,
        end,
    })
}

/// How many extension headers are walked through; a packet with more is passed as malformed.
const EXTENSION_HEADERS: usize = 8;

/// Parses an IPv6 header that was read at `network`, and its extension headers.
///
/// # Errors
/// When the version or a length can't be, or there are more than eight extension headers.
#[inline(always)]
#[expect(
    clippy::cast_possible_truncation,
    reason = "what went through `forget` comes out with the width that it had"
)]
pub fn ipv6<P: Packet + ?Sized>(
    packet: &P,
    network: usize,
    header: &Ipv6Header,
    extent: Extent,
) -> Result<Datagram<[u32; 4]>, Malformed> {
    const VERSION: u32 = 6;
    const MORE: u16 = 1u16.to_be();
    const OFFSET: u16 = 0xfff8u16.to_be();

    if u32::from_be(header.version) >> 28 != VERSION {
        return Err(Malformed);
    }
    let payload = usize::from(u16::from_be(header.payload_length));
    let end = match extent {
        Extent::Told => end(packet, network + Ipv6Hdr::LEN, payload).ok_or(Malformed)?,
        Extent::Quoted => usize::MAX,
    };
    let mut datagram = Datagram {
        source: header.source,
        destination: header.destination,
        routing: 0,
        protocol: header.next_header,
        piece: Piece::Whole,
        identification: 0,
        transport: network + Ipv6Hdr::LEN,
        end,
    };
    if !is_extension(datagram.protocol) {
        return Ok(datagram);
    }
    packet.reach(DEEP_REACH);
    let mut at = datagram.transport;
    let mut kind = datagram.protocol;
    let mut identification = packet.forget(0);
    let mut is_first = packet.forget(0);
    let mut routing = packet.forget(0);
    for _ in 0..EXTENSION_HEADERS {
        if !is_extension(kind) {
            break;
        }
        let [next, length] = packet.read::<u16>(at).ok_or(Malformed)?.to_ne_bytes();
        let length = usize::from(length);
        let length = match kind {
            protocol::FRAGMENT => {
                let fragment: FragmentHeader = packet.read(at).ok_or(Malformed)?;
                // An "atomic" fragment (RFC 6946) is a whole datagram.
                if fragment.offset_more & (MORE | OFFSET) != 0 {
                    identification = fragment.identification as usize;
                    if fragment.offset_more & OFFSET != 0 {
                        datagram.piece = Piece::Later;
                        datagram.identification = fragment.identification;
                        datagram.protocol = next;
                        datagram.routing = routing;
                        datagram.transport = at + size_of::<FragmentHeader>();
                        return within(datagram);
                    }
                    is_first = 1;
                }
                size_of::<FragmentHeader>()
            }
            // RFC 4302 §2.2: in 4-byte units, minus 2.
            protocol::AUTHENTICATION => (length + 2) * 4,
            // RFC 8200 §4.2: in 8-byte units, not counting the first.
            _ => (length + 1) * 8,
        };
        if kind == protocol::ROUTING {
            let [_, left] = packet.read::<u16>(at + 2).ok_or(Malformed)?.to_ne_bytes();
            if left != 0 {
                routing = at;
            }
        }
        if at + length > EXTENSIONS_REACH {
            return Err(Malformed);
        }
        at = packet.forget(at + length) & EXTENSIONS_REACH;
        kind = packet.forget(usize::from(next)) as u8;
        identification = packet.forget(identification);
        is_first = packet.forget(is_first);
        routing = packet.forget(routing);
    }
    if is_extension(kind) {
        return Err(Malformed);
    }
    if is_first & 1 == 1 {
        datagram.piece = Piece::First;
    }
    datagram.identification = identification as u32;
    datagram.protocol = kind;
    datagram.routing = routing;
    datagram.transport = at;
    within(datagram)
}

/// How far into a frame extension headers are followed, bytes: one less than a power of two.
const EXTENSIONS_REACH: usize = 2047;

#[inline(always)]
const fn within(datagram: Datagram<[u32; 4]>) -> Result<Datagram<[u32; 4]>, Malformed> {
    if datagram.transport > datagram.end {
        Err(Malformed)
    } else {
        Ok(datagram)
    }
}

#[inline(always)]
const fn is_extension(kind: u8) -> bool {
    matches!(
        kind,
        protocol::HOP_BY_HOP
            | protocol::ROUTING
            | protocol::FRAGMENT
            | protocol::AUTHENTICATION
            | protocol::DESTINATION
            | protocol::MOBILITY
            | protocol::HIP
            | protocol::SHIM6
    )
}

/// The destination address of an IPv6 packet's pseudo header (RFC 8200 §8.1): the last segment while a routing
/// header has some left, as far as the header's type is known.
///
/// # Errors
/// When the frame ends within the routing header.
#[inline(always)]
pub fn final_destination<P: Packet + ?Sized>(
    packet: &P,
    datagram: &Datagram<[u32; 4]>,
) -> Result<[u32; 4], Malformed> {
    // RFC 6275 §6.4 (mobility) and RFC 8754 §2 (segments in reverse order): the last one comes first.
    const MOBILITY: u8 = 2;
    const SEGMENTS: u8 = 4;
    let at = datagram.routing & EXTENSIONS_REACH;
    if at == 0 {
        return Ok(datagram.destination);
    }
    match packet.read::<u8>(at + 2).ok_or(Malformed)? {
        MOBILITY | SEGMENTS => packet.read(at + 8).ok_or(Malformed),
        _ => Ok(datagram.destination),
    }
}

/// What kind of transport header a packet has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// SCTP, DCCP and UDP-Lite: ports where TCP and UDP have them.
    Ports,
    /// An ICMP or ICMPv6 message that is answered by one with the same identifier.
    Query,
    /// The answer to one.
    Answer,
    /// An ICMP or ICMPv6 message that quotes a packet.
    Error,
    /// A Neighbour Discovery message.
    Neighbour,
    /// Any other ICMP or ICMPv6 message.
    Message,
    /// Any other protocol.
    Other,
    /// None: a fragment that is not the first.
    Fragment,
}

/// A transport header, as far as translation needs it.
///
/// A struct, and not an enum with fields: of an enum the compiler copies fields that the variant at hand does not have,
/// which kernels before 6.3 reject as a read of uninitialised stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transport {
    /// What it is.
    pub kind: Kind,
    /// The source port, or the identifier of a query or an answer.
    pub source: Port,
    /// The destination port, or the identifier of a query or an answer.
    pub destination: Port,
    /// TCP: a SYN without ACK, the first packet of a connection.
    pub opens: bool,
    /// UDP: the checksum field as it is.
    pub checksum: u16,
    /// UDP: the length field, network byte order.
    pub length: u16,
}

impl Transport {
    /// A header of which nothing but the kind counts.
    #[must_use]
    #[inline(always)]
    pub const fn new(kind: Kind) -> Self {
        Self::with_ports(kind, Port::NONE, Port::NONE)
    }

    /// A header with ports.
    #[must_use]
    #[inline(always)]
    pub const fn with_ports(kind: Kind, source: Port, destination: Port) -> Self {
        Self {
            kind,
            source,
            destination,
            opens: false,
            checksum: 0,
            length: 0,
        }
    }
}

/// Reads the transport header of a packet.
///
/// # Errors
/// When the packet ends within it, or its own length can't be.
#[inline(always)]
pub fn transport<P: Packet + ?Sized, A: Copy>(
    packet: &P,
    datagram: &Datagram<A>,
) -> Result<Transport, Malformed> {
    if datagram.piece == Piece::Later {
        return Ok(Transport::new(Kind::Fragment));
    }
    let at = datagram.transport;
    // Never negative: the parsers see to it that the transport header does not start behind the end.
    let room = datagram.end.wrapping_sub(at);
    match datagram.protocol {
        protocol::TCP => {
            const SYN: u8 = 0x02;
            const ACK: u8 = 0x10;
            let tcp: TcpHeader = packet.read(at).ok_or(Malformed)?;
            let length = usize::from(tcp.offset >> 4) * 4;
            if length < size_of::<TcpHeader>() || length > room {
                return Err(Malformed);
            }
            let (source, destination) = (
                Port::from_packet(tcp.source),
                Port::from_packet(tcp.destination),
            );
            Ok(Transport {
                opens: tcp.flags & (SYN | ACK) == SYN,
                ..Transport::with_ports(Kind::Tcp, source, destination)
            })
        }
        protocol::UDP => {
            let udp: UdpHeader = packet.read(at).ok_or(Malformed)?;
            let length = usize::from(u16::from_be(udp.length));
            if size_of::<UdpHeader>() > room
                || length < size_of::<UdpHeader>()
                || (length > room && datagram.piece == Piece::Whole)
            {
                return Err(Malformed);
            }
            let (source, destination) = (
                Port::from_packet(udp.source),
                Port::from_packet(udp.destination),
            );
            Ok(Transport {
                checksum: udp.checksum,
                length: udp.length,
                ..Transport::with_ports(Kind::Udp, source, destination)
            })
        }
        _ => other_transport(packet, datagram.protocol, at, room),
    }
}

/// As [`transport`], for the first 8 bytes of a quoted packet: all that an ICMP error must quote (RFC 792).
///
/// # Errors
/// When the quote ends within them.
#[inline(always)]
pub fn quoted_transport<P: Packet + ?Sized, A: Copy>(
    packet: &P,
    datagram: &Datagram<A>,
) -> Result<Transport, Malformed> {
    if datagram.piece == Piece::Later {
        return Ok(Transport::new(Kind::Fragment));
    }
    let at = datagram.transport;
    match datagram.protocol {
        protocol::TCP => ports(packet, Kind::Tcp, at),
        protocol::UDP => ports(packet, Kind::Udp, at),
        other => other_transport(packet, other, at, usize::MAX),
    }
}

#[inline(always)]
fn other_transport<P: Packet + ?Sized>(
    packet: &P,
    protocol: u8,
    at: usize,
    room: usize,
) -> Result<Transport, Malformed> {
    match protocol {
        protocol::ICMP | protocol::ICMPV6 => {
            let [first, second] = packet.read::<[u32; 2]>(at).ok_or(Malformed)?;
            if transport::ICMP_HEADER > room {
                return Err(Malformed);
            }
            let [message, ..] = first.to_ne_bytes();
            let [high, low, ..] = second.to_ne_bytes();
            let identifier = Port::from_packet(u16::from_ne_bytes([high, low]));
            let kind = if protocol == protocol::ICMP {
                icmp(message)
            } else {
                icmpv6(message)
            };
            Ok(Transport::with_ports(kind, identifier, identifier))
        }
        protocol::SCTP | protocol::DCCP | protocol::UDPLITE => {
            if transport::UDP_CHECKSUM + 2 > room {
                return Err(Malformed);
            }
            ports(packet, Kind::Ports, at)
        }
        _ => Ok(Transport::new(Kind::Other)),
    }
}

#[inline(always)]
fn ports<P: Packet + ?Sized>(packet: &P, kind: Kind, at: usize) -> Result<Transport, Malformed> {
    let [source, destination] = packet.read::<[u16; 2]>(at).ok_or(Malformed)?;
    let (source, destination) = (Port::from_packet(source), Port::from_packet(destination));
    Ok(Transport::with_ports(kind, source, destination))
}

/// RFC 792; RFC 950 for the address mask.
#[inline(always)]
const fn icmp(message: u8) -> Kind {
    match message {
        8 | 13 | 15 | 17 => Kind::Query,
        0 | 14 | 16 | 18 => Kind::Answer,
        3 | 4 | 5 | 11 | 12 => Kind::Error,
        _ => Kind::Message,
    }
}

/// RFC 4443 (errors are below 128), RFC 4861.
#[inline(always)]
const fn icmpv6(message: u8) -> Kind {
    match message {
        1..=127 => Kind::Error,
        128 => Kind::Query,
        129 => Kind::Answer,
        133..=137 => Kind::Neighbour,
        _ => Kind::Message,
    }
}
