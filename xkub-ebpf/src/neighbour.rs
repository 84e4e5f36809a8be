//! ARP at egress. (NDP needs no rule of its own: the source address of its messages is rewritten like any
//! other.)
//!
//! The kernel puts the source of the packet that waits into the ARP request (`arp_announce=0`), and
//! virt-launcher ignores a request that claims its own address: the gateway would never be found.

use aya_ebpf::helpers;
use xkub_common::{
    counter::{Event, Place},
    packet::{self, arp},
};

use crate::{
    frame::{Fault, Frame},
    ip::{Ip, V4},
    maps::{self, ANNOUNCED},
};

/// Tells user space that the guest announces an address of ours: so does a VM whose migration has ended
/// (`VIRTIO_NET_S_ANNOUNCE`, `netdev_notify_peers`), and nobody else tells it. Once for each, in the first place.
#[inline(always)]
pub fn announced() {
    if maps::place() == Place::EgressFirst as u32 {
        // SAFETY: the helper takes nothing.
        let now: u64 = unsafe { helpers::bpf_ktime_get_ns() };
        // No room: an earlier one has not been read yet, and says the same.
        let _ = ANNOUNCED.output::<u64>(now, 0);
    }
}

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
    let Some((sender, target)) = addresses else {
        return Ok(Event::Passed);
    };
    let from_node = sender == V4::node();
    if !from_node && sender != V4::guest() {
        return Ok(Event::Passed);
    }
    if target == sender {
        announced();
    }
    if !from_node {
        return Ok(Event::Passed);
    }
    // An ARP message carries no checksum of its own, but the device's sum covers it.
    frame.sum_grew(V4::node_to_guest());
    frame.write(network + arp::SENDER, V4::guest())?;
    if target == sender {
        frame.sum_grew(V4::node_to_guest());
        frame.write(network + arp::TARGET, V4::guest())?;
    }
    Ok(Event::Translated)
}
