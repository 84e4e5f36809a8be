//! Random packets, against an oracle that knows nothing of our code: etherparse takes them apart, the address is
//! replaced, and every checksum is computed anew.

use std::cell::RefCell;

use etherparse::{Ipv4Header, NetHeaders, PacketHeaders, PayloadSlice, TransportHeader};
use proptest::{collection::vec, prelude::*, test_runner::TestRunner};

use crate::{
    harness::{At, Datapath, dual},
    packets::{G4, G6, N4, N6, Payload, SYN, Shape, Side, UDP, V4, V6, pending, shaped},
};

/// The frame with its source N made G.
fn oracle(frame: &[u8]) -> Vec<u8> {
    let mut headers = PacketHeaders::from_ethernet_slice(frame).unwrap();
    let payload = match &headers.payload {
        PayloadSlice::Udp(bytes)
        | PayloadSlice::Tcp(bytes)
        | PayloadSlice::Icmpv4(bytes)
        | PayloadSlice::Icmpv6(bytes) => *bytes,
        other => panic!("{other:?}"),
    };
    let mut out = Vec::new();
    headers.link.unwrap().write(&mut out).unwrap();
    for tag in &headers.link_exts {
        match tag {
            etherparse::LinkExtHeader::Vlan(tag) => tag.write(&mut out).unwrap(),
            etherparse::LinkExtHeader::Macsec(_) => unreachable!(),
        }
    }
    let mut transport = headers.transport.unwrap();
    let zero_udp = matches!(&transport, TransportHeader::Udp(udp) if udp.checksum == 0);
    match headers.net.as_mut().unwrap() {
        NetHeaders::Ipv4(ip, _) => {
            assert_eq!(ip.source, N4.octets());
            ip.source = G4.octets();
            write_v4(ip, &mut out);
            if !zero_udp {
                transport.update_checksum_ipv4(ip, payload).unwrap();
            }
        }
        NetHeaders::Ipv6(ip, extensions) => {
            assert_eq!(ip.source, N6.octets());
            ip.source = G6.octets();
            ip.write(&mut out).unwrap();
            extensions.write(&mut out, ip.next_header).unwrap();
            if !zero_udp {
                transport.update_checksum_ipv6(ip, payload).unwrap();
            }
        }
        NetHeaders::Arp(_) => unreachable!(),
    }
    transport.write(&mut out).unwrap();
    out.extend(payload);
    out
}

fn write_v4(ip: &mut Ipv4Header, out: &mut Vec<u8>) {
    ip.header_checksum = ip.calc_header_checksum();
    ip.write_raw(out).unwrap();
}

fn payloads(side: Side) -> impl Strategy<Value = Payload> {
    let data = vec(any::<u8>(), 0..200);
    prop_oneof![
        (any::<u16>(), any::<u16>(), data.clone(), any::<bool>()).prop_map(
            |(source, destination, data, checksum)| Payload::Udp {
                source,
                destination,
                data,
                checksum
            }
        ),
        (any::<u16>(), any::<u16>(), data.clone(), any::<u8>()).prop_map(
            |(source, destination, data, flags)| Payload::Tcp {
                source,
                destination,
                flags,
                data
            }
        ),
        (any::<u16>(), any::<bool>())
            .prop_map(move |(identifier, request)| Payload::echo(side, request, identifier)),
    ]
}

fn shapes(side: Side) -> impl Strategy<Value = Shape> {
    let tags = prop_oneof![
        Just(vec![]),
        any::<u16>().prop_map(|tci| vec![(0x8100, tci)]),
        any::<(u16, u16)>().prop_map(|(outer, inner)| vec![(0x88a8, outer), (0x8100, inner)]),
    ];
    let is_v4 = side.node.is_ipv4();
    (tags, 0..=10usize, 0..3usize).prop_map(move |(tags, options, extensions)| Shape {
        tags,
        options: if is_v4 { vec![1; options * 4] } else { vec![] },
        // In the order that RFC 8200 recommends, which is all that the oracle keeps.
        extensions: if is_v4 {
            vec![]
        } else {
            [(0, vec![0; 6]), (60, vec![0; 14])][..extensions].to_vec()
        },
        ..Shape::default()
    })
}

#[test]
fn whatever_leaves_from_the_node_address_is_what_the_oracle_makes_of_it() {
    let datapath = RefCell::new(Datapath::new(&dual()));
    for side in [V4, V6] {
        let mut runner = TestRunner::new(ProptestConfig::with_cases(2_000));
        runner
            .run(&(payloads(side), shapes(side)), |(payload, shape)| {
                let frame = shaped(side.node, side.peer, &payload, &shape);
                for at in [At::EgressFirst, At::EgressLast] {
                    prop_assert_eq!(datapath.borrow_mut().run(at, &frame), oracle(&frame));
                }
                Ok(())
            })
            .unwrap();
    }
}

/// Whether a datagram from the peer to G has the checksum of one that awaits completion.
fn looks_pending(side: Side, payload: &Payload) -> bool {
    let frame = shaped(side.peer, side.guest, payload, &Shape::default());
    let transport = 14 + if side.guest.is_ipv4() { 20 } else { 40 };
    let pending = pending(side.peer, side.guest, UDP, frame.len() - transport);
    frame[transport + 6..transport + 8] == pending
}

#[test]
fn a_way_in_and_out_again_restores_every_byte() {
    let datapath = RefCell::new(Datapath::new(&dual()));
    for side in [V4, V6] {
        let mut runner = TestRunner::new(ProptestConfig::with_cases(1_000));
        runner
            .run(
                &(vec(any::<u8>(), 0..300), any::<u16>(), shapes(side)),
                |(data, port, shape)| {
                    let payload = Payload::Udp {
                        source: port,
                        destination: 8473,
                        data,
                        checksum: true,
                    };
                    // One finished checksum in 65,536 looks pending, and is not to be told from one that is.
                    prop_assume!(!looks_pending(side, &payload));
                    for at in [At::Ingress, At::Xdp] {
                        let arrived = datapath
                            .borrow_mut()
                            .run(at, &shaped(side.peer, side.guest, &payload, &shape));
                        prop_assert_eq!(&arrived, &shaped(side.peer, side.node, &payload, &shape));
                    }
                    Ok(())
                },
            )
            .unwrap();
    }
}

#[test]
fn no_bytes_whatever_upset_a_program() {
    let datapath = RefCell::new(Datapath::new(&dual()));
    let mut runner = TestRunner::new(ProptestConfig::with_cases(3_000));
    let interesting = (any::<prop::sample::Index>(), any::<u8>());
    runner
        .run(
            &(any::<bool>(), vec(interesting, 1..6), any::<bool>()),
            |(is_v4, changes, tcp)| {
                let side = if is_v4 { V4 } else { V6 };
                let payload = if tcp {
                    Payload::tcp(1, 10_250, SYN)
                } else {
                    Payload::vxlan(true)
                };
                for (at, source, destination) in [
                    (At::EgressFirst, side.node, side.peer),
                    (At::Ingress, side.peer, side.guest),
                    (At::Xdp, side.peer, side.guest),
                ] {
                    let mut frame = shaped(source, destination, &payload, &Shape::default());
                    for (index, value) in &changes {
                        // Beyond the Ethernet addresses.
                        let at = 12 + index.index(frame.len() - 12);
                        frame[at] = *value;
                    }
                    // The length never changes, and the program always hands on; `run` checks that.
                    prop_assert_eq!(datapath.borrow_mut().run(at, &frame).len(), frame.len());
                }
                Ok(())
            },
        )
        .unwrap();
}
