//! ARP at egress. (NDP needs no rule of its own: the source address of its messages is rewritten like any
//! other.)
//!
//! The kernel puts the source of the packet that waits into the ARP request (`arp_announce=0`), and
//! virt-launcher ignores a request that claims its own address: the gateway would never be found.

use xkub_common::{
    counter::Event,
    packet::{self, arp},
};

use crate::{
    frame::{Fault, Frame},
    ip::{Ip, V4},
};

/// Egress rule 2: the sender N becomes G; and so does the target of an announcement, which names its
/// sender twice (RFC 5227 §3).
#[inline(always)]
pub fn leaving<F: Frame>(frame: &F, network: usize) -> Result<Event, Fault> {
    if !V4::enabled() {
        return Ok(Event::Passed);
    }
    let Ok(addresses) = packet::arp(frame, network) else {
        return Ok(Event::Malformed);
    };
    let Some((sender, target)) = addresses.filter(|(sender, _)| *sender == V4::node()) else {
        return Ok(Event::Passed);
    };
    // An ARP message carries no checksum of its own, but the device's sum covers it.
    frame.sum_grew(V4::node_to_guest());
    frame.write(network + arp::SENDER, V4::guest())?;
    if target == sender {
        frame.sum_grew(V4::node_to_guest());
        frame.write(network + arp::TARGET, V4::guest())?;
    }
    Ok(Event::Translated)
}
