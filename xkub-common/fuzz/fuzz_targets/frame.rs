//! Raw frames: parsing never panics, agrees with etherparse, and what was parsed lies within the frame; the rules
//! take whatever was parsed.
#![no_main]

#[path = "../../tests/agreement/mod.rs"]
mod agreement;

use libfuzzer_sys::fuzz_target;
use xkub_common::{
    config::Services,
    decide::{self, Ends},
    flow::Flow,
    packet::{self, Extent, Ipv4Header, Ipv6Header, Packet as _, ethertype},
};

fuzz_target!(|frame: &[u8]| {
    agreement::check(frame);
    let _ = packet::plain_ipv4(frame);
    let Ok(link) = packet::link(frame) else { return };
    match link.ethertype {
        ethertype::ARP => {
            let _ = packet::arp(frame, link.network);
        }
        ethertype::IPV4 => {
            let Some(header) = frame.read::<Ipv4Header>(link.network) else { return };
            for extent in [Extent::Told, Extent::Quoted] {
                if let Ok(datagram) = packet::ipv4(frame, link.network, &header, extent) {
                    rules(frame, &datagram, extent);
                }
            }
        }
        ethertype::IPV6 => {
            let Some(header) = frame.read::<Ipv6Header>(link.network) else { return };
            for extent in [Extent::Told, Extent::Quoted] {
                if let Ok(datagram) = packet::ipv6(frame, link.network, &header, extent) {
                    let _ = packet::final_destination(frame, &datagram);
                    rules(frame, &datagram, extent);
                }
            }
        }
        _ => {}
    }
});

fn rules<A: Copy>(frame: &[u8], datagram: &packet::Datagram<A>, extent: Extent) {
    if extent == Extent::Told {
        assert!(datagram.transport <= datagram.end && datagram.end <= frame.len());
    }
    let transport = match extent {
        Extent::Told => packet::transport(frame, datagram),
        Extent::Quoted => packet::quoted_transport(frame, datagram),
    };
    let Ok(transport) = transport else { return };
    let (services, kind) = (&Services::EMPTY, datagram.protocol);
    let local = Ends::arriving(&transport).local;
    assert!(!decide::in_service(services, kind, transport.kind, local));
    assert!(!decide::remember_guest(services, kind, &transport));
    let _ = decide::remember_node(services, kind, &transport);
    let _ = decide::arrival(&transport, Flow::UNKNOWN, || 0);
    assert!(!decide::quoted_from_node(services, kind, &transport, Flow::UNKNOWN));
}
