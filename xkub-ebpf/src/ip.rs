//! What differs between IPv4 and IPv6, so that the rules are written once.

use aya_ebpf::{
    bindings::{
        bpf_sock, bpf_sock_tuple__bindgen_ty_1__bindgen_ty_1 as TupleV4,
        bpf_sock_tuple__bindgen_ty_1__bindgen_ty_2 as TupleV6,
    },
    maps::LruHashMap,
};
use xkub_common::{
    checksum,
    counter::Family,
    decide::Ends,
    flow::{self, Flow, FlowKeyV4, FlowKeyV6, Fragment, FragmentKeyV4, FragmentKeyV6},
    packet::{
        self, Datagram, Extent, Ipv4Header, Ipv6Header, Malformed, Packet, Plain, ipv4, ipv6,
        protocol,
    },
};

use crate::{
    frame::{Fault, Frame},
    maps::{FLOWS_V4, FLOWS_V6, FRAGMENTS_V4, FRAGMENTS_V6, constant},
    rewrite::Way,
};

/// Which address of a header.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Field {
    Source,
    Destination,
}

/// An IP packet in a frame: of its own, or quoted by an ICMP error.
pub struct IpPacket<I: Ip> {
    /// Where its header starts.
    pub network: usize,
    pub header: I::Header,
    pub datagram: Datagram<I::Address>,
}

impl<I: Ip> IpPacket<I> {
    /// Parses the packet whose header was read at `network`.
    #[inline(always)]
    pub fn parse<P: Packet>(
        packet: &P,
        network: usize,
        header: I::Header,
        extent: Extent,
    ) -> Result<Self, Malformed> {
        let datagram = I::parse(packet, network, &header, extent)?;
        Ok(Self {
            network,
            header,
            datagram,
        })
    }

    /// Writes an address into the header, and its header checksum if it has one.
    #[inline(always)]
    pub fn write<F: Frame>(&self, frame: &F, field: Field, way: Way) -> Result<(), Fault> {
        I::write(
            frame,
            self.network,
            field,
            &self.header,
            way.address::<I>(),
            way.difference::<I>(),
        )
    }
}

/// An address family.
pub trait Ip {
    type Address: Plain + PartialEq;
    type Header: Plain;
    type FlowKey: 'static;
    type FragmentKey: 'static;
    /// What a socket lookup takes.
    type Tuple;

    const FAMILY: Family;
    /// Whether the header has a checksum, which absorbs what its addresses add to a sum over the packet.
    const HEADER_CHECKSUM: bool;

    fn enabled() -> bool;
    fn guest() -> Self::Address;
    fn node() -> Self::Address;
    fn node_to_guest() -> u32;
    fn guest_to_node() -> u32;

    fn source(header: &Self::Header) -> Self::Address;
    fn destination(header: &Self::Header) -> Self::Address;
    fn parse<P: Packet>(
        packet: &P,
        network: usize,
        header: &Self::Header,
        extent: Extent,
    ) -> Result<Datagram<Self::Address>, Malformed>;
    /// The destination that the pseudo header holds.
    fn final_destination<P: Packet>(
        packet: &P,
        datagram: &Datagram<Self::Address>,
    ) -> Result<Self::Address, Malformed>;
    /// Whether this tells everybody on the link where an address of ours is, unasked.
    fn is_announcement<P: Packet>(packet: &P, datagram: &Datagram<Self::Address>) -> bool;
    /// The sum over an address, unfolded.
    fn sum(address: &Self::Address) -> u32;
    /// Writes an address into the header at `network`, and its header checksum if it has one.
    fn write<F: Frame>(
        frame: &F,
        network: usize,
        field: Field,
        header: &Self::Header,
        address: Self::Address,
        difference: u32,
    ) -> Result<(), Fault>;

    fn flows() -> &'static LruHashMap<Self::FlowKey, Flow>;
    fn flow_key(remote: Self::Address, kind: u8, ends: Ends) -> Self::FlowKey;
    /// The word that a flow is settled as, where that is done.
    fn settled(key: &Self::FlowKey) -> Option<u64>;
    fn fragments() -> &'static LruHashMap<Self::FragmentKey, Fragment>;
    fn fragment_key(datagram: &Datagram<Self::Address>) -> Self::FragmentKey;

    /// The sockets that a packet from `remote` to `local` could be for.
    fn tuple(remote: Self::Address, local: Self::Address, ends: Ends) -> Self::Tuple;
    /// The address that a socket is bound to.
    fn bound(socket: *const bpf_sock) -> Self::Address;
    /// The address that a socket is connected to.
    fn peer(socket: *const bpf_sock) -> Self::Address;
}

pub struct V4;

impl Ip for V4 {
    type Address = u32;
    type Header = Ipv4Header;
    type FlowKey = FlowKeyV4;
    type FragmentKey = FragmentKeyV4;
    type Tuple = TupleV4;

    const FAMILY: Family = Family::V4;
    const HEADER_CHECKSUM: bool = true;

    #[inline(always)]
    fn enabled() -> bool {
        constant!(v4.enabled) != 0
    }
    #[inline(always)]
    fn guest() -> u32 {
        let [address] = constant!(v4.guest);
        address
    }
    #[inline(always)]
    fn node() -> u32 {
        let [address] = constant!(v4.node);
        address
    }
    #[inline(always)]
    fn node_to_guest() -> u32 {
        constant!(v4.node_to_guest)
    }
    #[inline(always)]
    fn guest_to_node() -> u32 {
        constant!(v4.guest_to_node)
    }

    #[inline(always)]
    fn source(header: &Ipv4Header) -> u32 {
        header.source
    }
    #[inline(always)]
    fn destination(header: &Ipv4Header) -> u32 {
        header.destination
    }
    #[inline(always)]
    fn parse<P: Packet>(
        packet: &P,
        network: usize,
        header: &Ipv4Header,
        extent: Extent,
    ) -> Result<Datagram<u32>, Malformed> {
        packet::ipv4(packet, network, header, extent)
    }
    #[inline(always)]
    fn final_destination<P: Packet>(_: &P, datagram: &Datagram<u32>) -> Result<u32, Malformed> {
        Ok(datagram.destination)
    }
    #[inline(always)]
    fn is_announcement<P: Packet>(_: &P, _: &Datagram<u32>) -> bool {
        // That is ARP's.
        false
    }
    #[inline(always)]
    fn sum(address: &u32) -> u32 {
        checksum::sum(&[*address])
    }
    #[inline(always)]
    fn write<F: Frame>(
        frame: &F,
        network: usize,
        field: Field,
        header: &Ipv4Header,
        address: u32,
        difference: u32,
    ) -> Result<(), Fault> {
        let checksum = checksum::update(header.checksum, difference);
        if F::WRITES_ARE_CALLS {
            let mut tail = header.tail();
            tail.checksum = checksum;
            match field {
                Field::Source => tail.source = address,
                Field::Destination => tail.destination = address,
            }
            frame.write(network + ipv4::TAIL, tail)
        } else {
            let offset = match field {
                Field::Source => ipv4::SOURCE,
                Field::Destination => ipv4::DESTINATION,
            };
            frame.write(network + ipv4::CHECKSUM, checksum)?;
            frame.write(network + offset, address)
        }
    }

    #[inline(always)]
    fn flows() -> &'static LruHashMap<FlowKeyV4, Flow> {
        &FLOWS_V4
    }
    #[inline(always)]
    fn flow_key(remote: u32, kind: u8, ends: Ends) -> FlowKeyV4 {
        FlowKeyV4 {
            remote,
            local_port: ends.local,
            remote_port: ends.remote,
            protocol: u32::from(kind),
        }
    }
    #[inline(always)]
    fn settled(key: &FlowKeyV4) -> Option<u64> {
        (key.protocol == u32::from(protocol::TCP)).then(|| flow::settled(key))
    }
    #[inline(always)]
    fn fragments() -> &'static LruHashMap<FragmentKeyV4, Fragment> {
        &FRAGMENTS_V4
    }
    #[inline(always)]
    fn fragment_key(datagram: &Datagram<u32>) -> FragmentKeyV4 {
        FragmentKeyV4 {
            remote: datagram.source,
            identification: datagram.identification as u16,
            protocol: u16::from(datagram.protocol),
        }
    }

    #[inline(always)]
    fn tuple(remote: u32, local: u32, ends: Ends) -> TupleV4 {
        TupleV4 {
            saddr: remote,
            daddr: local,
            sport: ends.remote.raw(),
            dport: ends.local.raw(),
        }
    }
    #[inline(always)]
    fn bound(socket: *const bpf_sock) -> u32 {
        // SAFETY: the caller holds the socket.
        unsafe { (*socket).src_ip4 }
    }
    #[inline(always)]
    fn peer(socket: *const bpf_sock) -> u32 {
        // SAFETY: the caller holds the socket.
        unsafe { (*socket).dst_ip4 }
    }
}

pub struct V6;

impl Ip for V6 {
    type Address = [u32; 4];
    type Header = Ipv6Header;
    type FlowKey = FlowKeyV6;
    type FragmentKey = FragmentKeyV6;
    type Tuple = TupleV6;

    const FAMILY: Family = Family::V6;
    const HEADER_CHECKSUM: bool = false;

    #[inline(always)]
    fn enabled() -> bool {
        constant!(v6.enabled) != 0
    }
    #[inline(always)]
    fn guest() -> [u32; 4] {
        constant!(v6.guest)
    }
    #[inline(always)]
    fn node() -> [u32; 4] {
        constant!(v6.node)
    }
    #[inline(always)]
    fn node_to_guest() -> u32 {
        constant!(v6.node_to_guest)
    }
    #[inline(always)]
    fn guest_to_node() -> u32 {
        constant!(v6.guest_to_node)
    }

    #[inline(always)]
    fn source(header: &Ipv6Header) -> [u32; 4] {
        header.source
    }
    #[inline(always)]
    fn destination(header: &Ipv6Header) -> [u32; 4] {
        header.destination
    }
    #[inline(always)]
    fn parse<P: Packet>(
        packet: &P,
        network: usize,
        header: &Ipv6Header,
        extent: Extent,
    ) -> Result<Datagram<[u32; 4]>, Malformed> {
        packet::ipv6(packet, network, header, extent)
    }
    #[inline(always)]
    fn final_destination<P: Packet>(
        packet: &P,
        datagram: &Datagram<[u32; 4]>,
    ) -> Result<[u32; 4], Malformed> {
        packet::final_destination(packet, datagram)
    }
    #[inline(always)]
    fn is_announcement<P: Packet>(packet: &P, datagram: &Datagram<[u32; 4]>) -> bool {
        datagram.protocol == protocol::ICMPV6
            && datagram.destination == ipv6::ALL_NODES
            // More than the type, since the verifier wants the bound of a read of one byte in another form.
            && packet
                .read::<u32>(datagram.transport)
                .is_some_and(|head| head.to_ne_bytes()[0] == ipv6::NEIGHBOUR_ADVERTISEMENT)
    }
    #[inline(always)]
    fn sum(address: &[u32; 4]) -> u32 {
        checksum::sum(address)
    }
    #[inline(always)]
    fn write<F: Frame>(
        frame: &F,
        network: usize,
        field: Field,
        _: &Ipv6Header,
        address: [u32; 4],
        _: u32,
    ) -> Result<(), Fault> {
        let offset = match field {
            Field::Source => ipv6::SOURCE,
            Field::Destination => ipv6::DESTINATION,
        };
        frame.write(network + offset, address)
    }

    #[inline(always)]
    fn flows() -> &'static LruHashMap<FlowKeyV6, Flow> {
        &FLOWS_V6
    }
    #[inline(always)]
    fn flow_key(remote: [u32; 4], kind: u8, ends: Ends) -> FlowKeyV6 {
        FlowKeyV6 {
            remote,
            local_port: ends.local,
            remote_port: ends.remote,
            protocol: u32::from(kind),
        }
    }
    #[inline(always)]
    fn settled(_: &FlowKeyV6) -> Option<u64> {
        None
    }
    #[inline(always)]
    fn fragments() -> &'static LruHashMap<FragmentKeyV6, Fragment> {
        &FRAGMENTS_V6
    }
    #[inline(always)]
    fn fragment_key(datagram: &Datagram<[u32; 4]>) -> FragmentKeyV6 {
        FragmentKeyV6 {
            remote: datagram.source,
            identification: datagram.identification,
            protocol: u32::from(datagram.protocol),
        }
    }

    #[inline(always)]
    fn tuple(remote: [u32; 4], local: [u32; 4], ends: Ends) -> TupleV6 {
        TupleV6 {
            saddr: remote,
            daddr: local,
            sport: ends.remote.raw(),
            dport: ends.local.raw(),
        }
    }
    #[inline(always)]
    fn bound(socket: *const bpf_sock) -> [u32; 4] {
        // SAFETY: the caller holds the socket.
        unsafe { (*socket).src_ip6 }
    }
    #[inline(always)]
    fn peer(socket: *const bpf_sock) -> [u32; 4] {
        // SAFETY: the caller holds the socket.
        unsafe { (*socket).dst_ip6 }
    }
}
