//! The rules, as tables.

use xkub_common::{
    config::Services,
    decide::{
        Arrival, Ends, arrival, arrival_in_service, first_fragment, in_service, opens_guest,
        quoted_from_node, remember_guest, remember_node,
    },
    flow::{Flow, Fragment, FragmentOwner, LOOKUP_TICKS, Owner, UNORDERED_TICKS},
    packet::{Kind, Transport, protocol},
    port::Port,
};

const SCTP_WHOLE: u8 = protocol::SCTP;

fn services() -> Services {
    let mut services = Services::EMPTY;
    for port in [8472, 8473] {
        services.udp.insert(port);
        services.overlay.insert(port);
    }
    services.udp.insert(30_053);
    services.tcp.insert(10_250);
    services.protocols.insert(protocol::IPIP);
    services.protocols.insert(SCTP_WHOLE);
    services
}

const fn tcp(source: u16, destination: u16, opens: bool) -> Transport {
    Transport {
        opens,
        ..Transport::with_ports(Kind::Tcp, Port::new(source), Port::new(destination))
    }
}

const fn udp(source: u16, destination: u16) -> Transport {
    Transport::with_ports(Kind::Udp, Port::new(source), Port::new(destination))
}

const fn sctp(source: u16, destination: u16) -> Transport {
    Transport::with_ports(Kind::Ports, Port::new(source), Port::new(destination))
}

const fn plain(kind: Kind) -> Transport {
    Transport::new(kind)
}

#[test]
fn what_is_remembered_when_it_leaves() {
    use protocol::{ICMP, ICMPV6, IPIP, TCP, UDP, UDPLITE};
    // (protocol, transport, remembered from N, opens a flow from G)
    let cases = [
        (TCP, tcp(45_000, 443, true), true, true),
        (TCP, tcp(45_000, 443, false), true, false),
        (TCP, tcp(10_250, 443, true), false, true),
        (TCP, tcp(10_250, 443, false), false, true),
        (TCP, tcp(45_000, 10_250, true), true, true),
        (UDP, udp(45_000, 53), true, true),
        (UDP, udp(30_053, 53), false, true),
        (UDP, udp(8472, 53), false, true),
        (UDP, udp(45_000, 8473), false, false),
        (UDP, udp(8473, 8473), false, false),
        (SCTP_WHOLE, sctp(1, 2), false, true),
        (UDPLITE, sctp(1, 2), true, true),
        (ICMP, plain(Kind::Query), true, true),
        (ICMP, plain(Kind::Answer), false, false),
        (ICMP, plain(Kind::Error), false, false),
        (ICMP, plain(Kind::Message), false, false),
        (ICMPV6, plain(Kind::Neighbour), false, false),
        (ICMPV6, plain(Kind::Message), false, false),
        (IPIP, plain(Kind::Other), false, false),
        (47, plain(Kind::Other), true, false),
    ];
    for (kind, transport, node, guest) in cases {
        assert_eq!(
            remember_node(&services(), kind, &transport),
            node,
            "{kind} {transport:?} from N"
        );
        assert_eq!(
            opens_guest(
                &services(),
                &transport,
                in_service(&services(), kind, transport.kind, transport.source)
            ),
            guest,
            "{kind} {transport:?} from G"
        );
    }
}

#[test]
fn as_what_a_flow_of_the_guests_is_remembered() {
    let flow = |owner| Flow::new(owner, 0);
    for (is_in_service, remembered, expected) in [
        (true, Flow::UNKNOWN, Some(Owner::GuestOpened)),
        (true, flow(Owner::GuestFound), Some(Owner::GuestOpened)),
        (true, flow(Owner::Node), Some(Owner::GuestOpened)),
        (true, flow(Owner::GuestOpened), None),
        (false, Flow::UNKNOWN, None),
        (false, flow(Owner::GuestFound), None),
        (false, flow(Owner::GuestOpened), None),
        (false, flow(Owner::Node), Some(Owner::GuestFound)),
    ] {
        assert_eq!(
            remember_guest(is_in_service, remembered),
            expected,
            "{is_in_service} {remembered:?}"
        );
    }
}

#[test]
fn what_belongs_to_the_service_set() {
    use protocol::{ICMP, IPIP, TCP, UDP};
    for (kind, transport, expected) in [
        (TCP, tcp(1, 10_250, true), true),
        (TCP, tcp(10_250, 1, true), false),
        (TCP, tcp(1, 8472, true), false),
        (UDP, udp(1, 8472), true),
        (UDP, udp(1, 10_250), false),
        (UDP, udp(1, 30_053), true),
        (SCTP_WHOLE, sctp(1, 2), true),
        (IPIP, plain(Kind::Other), true),
        (47, plain(Kind::Other), false),
        (ICMP, plain(Kind::Query), false),
    ] {
        let local = Ends::arriving(&transport).local;
        assert_eq!(
            in_service(&services(), kind, transport.kind, local),
            expected,
            "{kind} {transport:?}"
        );
    }
}

#[test]
fn where_a_packet_of_the_service_set_goes() {
    let opened = Flow::new(Owner::GuestOpened, 0);
    for (transport, remembered, expected) in [
        (tcp(1, 10_250, true), Flow::UNKNOWN, Arrival::Node),
        (tcp(1, 10_250, false), Flow::UNKNOWN, Arrival::Node),
        (tcp(1, 10_250, false), opened, Arrival::Guest),
        (tcp(1, 10_250, true), opened, Arrival::Node),
        (udp(1, 8472), opened, Arrival::Guest),
        (udp(1, 8472), Flow::new(Owner::GuestFound, 0), Arrival::Node),
    ] {
        assert_eq!(
            arrival_in_service(&transport, remembered),
            expected,
            "{transport:?} {remembered:?}"
        );
    }
}

#[test]
fn where_another_packet_goes() {
    // The tick counter wraps.
    for start in [0, u32::MAX - 5] {
        let found = Flow::new(Owner::GuestFound, start);
        let node = Flow::new(Owner::Node, start);
        let opened = Flow::new(Owner::GuestOpened, start);
        let old = LOOKUP_TICKS + 1;
        for (transport, remembered, age, expected) in [
            (tcp(1, 2, true), Flow::UNKNOWN, 0, Arrival::Lookup),
            (tcp(1, 2, false), Flow::UNKNOWN, 0, Arrival::Lookup),
            (tcp(1, 2, true), found, 0, Arrival::Lookup),
            (tcp(1, 2, true), node, 0, Arrival::Lookup),
            (tcp(1, 2, false), node, old, Arrival::Node),
            (tcp(1, 2, false), found, old, Arrival::Guest),
            (tcp(1, 2, false), opened, old, Arrival::Guest),
            (udp(1, 2), Flow::UNKNOWN, 0, Arrival::Lookup),
            (udp(1, 2), node, old, Arrival::Node),
            (udp(1, 2), opened, old, Arrival::Guest),
            (udp(1, 2), found, LOOKUP_TICKS, Arrival::Guest),
            (udp(1, 2), found, old, Arrival::Lookup),
            (plain(Kind::Answer), Flow::UNKNOWN, 0, Arrival::Guest),
            (plain(Kind::Answer), node, old, Arrival::Node),
            (plain(Kind::Query), Flow::UNKNOWN, 0, Arrival::Guest),
            (sctp(1, 2), Flow::UNKNOWN, 0, Arrival::Guest),
            (sctp(1, 2), node, 0, Arrival::Node),
            (plain(Kind::Other), node, 0, Arrival::Node),
        ] {
            assert_eq!(
                arrival(&transport, remembered, || start.wrapping_add(age)),
                expected,
                "{transport:?} {remembered:?} after {age}"
            );
        }
    }
}

#[test]
fn whose_packet_an_error_quotes() {
    use protocol::{ICMP, IPIP, TCP, UDP};
    let node = Flow::new(Owner::Node, 0);
    let opened = Flow::new(Owner::GuestOpened, 0);
    for (kind, transport, remembered, expected) in [
        (UDP, udp(51_000, 8473), Flow::UNKNOWN, true),
        (UDP, udp(51_000, 53), Flow::UNKNOWN, false),
        (UDP, udp(51_000, 53), node, true),
        (TCP, tcp(10_250, 40_000, false), Flow::UNKNOWN, true),
        (TCP, tcp(10_250, 40_000, false), opened, false),
        (TCP, tcp(40_000, 443, false), Flow::UNKNOWN, false),
        (
            TCP,
            tcp(40_000, 443, false),
            Flow::new(Owner::GuestFound, 0),
            false,
        ),
        (IPIP, plain(Kind::Other), Flow::UNKNOWN, true),
        (ICMP, plain(Kind::Query), Flow::UNKNOWN, false),
        (ICMP, plain(Kind::Query), node, true),
    ] {
        assert_eq!(
            quoted_from_node(&services(), kind, &transport, remembered),
            expected,
            "{kind} {transport:?} {remembered:?}"
        );
    }
}

#[test]
fn where_a_first_fragment_goes() {
    let fragment = |owner: FragmentOwner| {
        Some(Fragment {
            owner: owner as u32,
            since: u32::MAX,
        })
    };
    for (remembered, age, expected) in [
        (None, 0, None),
        (fragment(FragmentOwner::Node), 0, None),
        (fragment(FragmentOwner::Guest), 0, None),
        (
            fragment(FragmentOwner::GuestUnordered),
            0,
            Some(Arrival::Guest),
        ),
        (
            fragment(FragmentOwner::GuestUnordered),
            UNORDERED_TICKS,
            Some(Arrival::Guest),
        ),
        (
            fragment(FragmentOwner::GuestUnordered),
            UNORDERED_TICKS + 1,
            None,
        ),
    ] {
        assert_eq!(
            first_fragment(remembered, u32::MAX.wrapping_add(age)),
            expected,
            "{remembered:?} after {age}"
        );
    }
}
