//! Every packet is counted once, where and as what it belongs.

use xkub_common::counter::{Class, Event, Family, Place};

use crate::{
    harness::{At, Datapath, dual},
    packets::{ACK, BOTH, ESP, Payload, SYN, Shape, error, fragments, frame, packet},
};

#[test]
fn each_packet_is_counted_as_what_it_is() {
    for (side, family) in BOTH.into_iter().zip([Family::V4, Family::V6]) {
        let mut datapath = Datapath::new(&dual());
        let quote = packet(
            side.guest,
            side.peer,
            &Payload::vxlan(true),
            &Shape::default(),
        );
        let cases = [
            (Payload::vxlan(true), Class::Udp, Event::Translated),
            (Payload::udp(1, 9), Class::Udp, Event::Passed),
            (Payload::tcp(1, 10_250, ACK), Class::Tcp, Event::Translated),
            (Payload::tcp(1, 9, SYN), Class::Tcp, Event::Passed),
            (Payload::echo(side, true, 1), Class::Icmp, Event::Passed),
            (error(side, &quote), Class::IcmpError, Event::Translated),
            (
                Payload::Raw {
                    protocol: ESP,
                    data: vec![0; 8],
                },
                Class::Other,
                Event::Passed,
            ),
        ];
        for (index, (payload, class, event)) in cases.iter().enumerate() {
            let before = datapath.counter(Place::Ingress, family, *class, *event);
            datapath.run(At::Ingress, &frame(side.peer, side.guest, payload));
            assert_eq!(
                datapath.counter(Place::Ingress, family, *class, *event),
                before + 1,
                "{payload:?}"
            );
            let seen: u64 = [
                Event::Translated,
                Event::Passed,
                Event::Dropped,
                Event::Malformed,
            ]
            .into_iter()
            .map(|event| datapath.events(Place::Ingress, event))
            .sum();
            assert_eq!(seen, u64::try_from(index).unwrap() + 1, "every packet once");
        }
        let big = Payload::Udp {
            source: 1,
            destination: 8473,
            data: vec![0; 2000],
            checksum: true,
        };
        for fragment in fragments(side.peer, side.guest, &big, &Shape::default(), 1, 1024) {
            datapath.run(At::Ingress, &fragment);
        }
        assert_eq!(
            datapath.counter(Place::Ingress, family, Class::Fragment, Event::Translated),
            1
        );
        assert_eq!(
            datapath.counter(Place::Ingress, family, Class::Udp, Event::Translated),
            2
        );
    }
}

#[test]
fn the_two_places_at_egress_count_apart() {
    let mut datapath = Datapath::new(&dual());
    let side = crate::packets::V4;
    let packet = frame(side.node, side.peer, &Payload::vxlan(false));
    for _ in 0..3 {
        datapath.run(At::EgressFirst, &packet);
    }
    datapath.run(At::EgressLast, &packet);
    assert_eq!(
        datapath.counter(
            Place::EgressFirst,
            Family::V4,
            Class::Udp,
            Event::Translated
        ),
        3
    );
    assert_eq!(
        datapath.counter(Place::EgressLast, Family::V4, Class::Udp, Event::Translated),
        1
    );
}
