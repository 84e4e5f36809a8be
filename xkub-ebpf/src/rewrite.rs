//! Rewriting an address of a packet, and every checksum that covers it.

use xkub_common::{
    checksum::{self, Udp},
    packet::{Datagram, Kind, Transport, protocol, transport},
};

use crate::{
    frame::{Fault, Frame},
    ip::{Field, Ip, IpPacket},
};

/// Which way an address changes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// N becomes G.
    ToGuest,
    /// G becomes N.
    ToNode,
}

impl Way {
    #[inline(always)]
    pub fn address<I: Ip>(self) -> I::Address {
        match self {
            Self::ToGuest => I::guest(),
            Self::ToNode => I::node(),
        }
    }

    #[inline(always)]
    pub fn difference<I: Ip>(self) -> u32 {
        match self {
            Self::ToGuest => I::node_to_guest(),
            Self::ToNode => I::guest_to_node(),
        }
    }
}

/// Rewrites the source or destination of a packet. `destination` is the one that the pseudo header
/// holds.
#[inline(always)]
pub fn packet<I: Ip, F: Frame>(
    frame: &F,
    packet: &IpPacket<I>,
    destination: I::Address,
    transport: &Transport,
    field: Field,
    way: Way,
) -> Result<(), Fault> {
    let difference = way.difference::<I>();
    transport_checksum::<I, F>(frame, &packet.datagram, destination, transport, difference)?;
    packet.write(frame, field, way)
}

/// The frame's sum grows by what an IPv6 address adds; in IPv4 the header checksum absorbs it.
#[inline(always)]
fn uncovered<I: Ip, F: Frame>(frame: &F, difference: u32) {
    if !I::HEADER_CHECKSUM {
        frame.sum_grew(difference);
    }
}

/// The pseudo header grew by `difference`.
#[inline(always)]
fn transport_checksum<I: Ip, F: Frame>(
    frame: &F,
    datagram: &Datagram<I::Address>,
    destination: I::Address,
    transport: &Transport,
    difference: u32,
) -> Result<(), Fault> {
    let at = datagram.transport;
    match transport.kind {
        Kind::Tcp => {
            frame.update_transport(at + transport::TCP_CHECKSUM, difference)?;
            // The helper has told the kernel of a sum that shrank with the checksum. An IPv6 address makes
            // it grow by as much.
            uncovered::<I, F>(frame, difference);
        }
        Kind::Udp => {
            let checksum = transport.checksum;
            let at = at + transport::UDP_CHECKSUM;
            let pseudo = || {
                I::sum(&datagram.source)
                    + I::sum(&destination)
                    + u32::from(u16::from(protocol::UDP).to_be())
                    + u32::from(transport.length)
            };
            if checksum == 0 {
                uncovered::<I, F>(frame, difference);
            } else if let Udp::Pending = checksum::udp_state(checksum, pseudo()) {
                frame.update_pending(at, checksum, difference)?;
                uncovered::<I, F>(frame, difference);
            } else {
                covered::<I, F>(
                    frame,
                    at,
                    checksum,
                    checksum::update_udp(checksum, difference),
                )?;
            }
        }
        Kind::Ports if datagram.protocol != protocol::SCTP => {
            let at = at + transport::UDP_CHECKSUM;
            let field: u16 = frame.read(at).ok_or(Fault)?;
            covered::<I, F>(frame, at, field, checksum::update_udp(field, difference))?;
        }
        _ if datagram.protocol == protocol::ICMPV6
            && transport.kind != Kind::Fragment
            && !I::HEADER_CHECKSUM =>
        {
            let at = at + transport::ICMP_CHECKSUM;
            let field: u16 = frame.read(at).ok_or(Fault)?;
            covered::<I, F>(frame, at, field, checksum::update(field, difference))?;
        }
        // SCTP's checksum does not cover addresses, nor does ICMP's; tunnels and later fragments have none.
        _ => uncovered::<I, F>(frame, difference),
    }
    Ok(())
}

/// Replaces a finished checksum that covers the address.
#[inline(always)]
fn covered<I: Ip, F: Frame>(frame: &F, at: usize, old: u16, new: u16) -> Result<(), Fault> {
    frame.write(at, new)?;
    if I::HEADER_CHECKSUM {
        // The header's checksum absorbs the address, so the sum changes by this field alone; in IPv6 this
        // field absorbs the address.
        frame.sum_grew(u32::from(new) + u32::from(!old));
    }
    Ok(())
}
