//! Ingress rule 3: whatever listens on N is reached, without configuration.

use std::net::{IpAddr, TcpListener, TcpStream, UdpSocket};

use xkub_common::counter::{Class, Event, Family, Place};

use crate::{
    harness::{At, Datapath, INGRESS, at, dual},
    packets::{ACK, BOTH, Payload, SYN, Side, V4, V6, frame},
};

fn wildcard(side: Side) -> IpAddr {
    if side.node.is_ipv4() { "0.0.0.0" } else { "::" }
        .parse()
        .unwrap()
}

fn family(side: Side) -> Family {
    if side.node.is_ipv4() {
        Family::V4
    } else {
        Family::V6
    }
}

#[test]
fn a_server_bound_to_the_node_address_is_reached_on_any_port() {
    for hook in INGRESS {
        let mut datapath = Datapath::new(&dual());
        for side in BOTH {
            let tcp = TcpListener::bind(at(side.node, 0)).unwrap();
            let udp = UdpSocket::bind(at(side.node, 0)).unwrap();
            let tcp_port = tcp.local_addr().unwrap().port();
            let udp_port = udp.local_addr().unwrap().port();
            for payload in [
                Payload::tcp(40_000, tcp_port, SYN),
                Payload::tcp(40_000, tcp_port, ACK),
                Payload::tcp(40_001, tcp_port, ACK),
                Payload::udp(40_000, udp_port),
                Payload::udp(40_000, udp_port),
            ] {
                datapath.expect(
                    hook,
                    &frame(side.peer, side.guest, &payload),
                    &frame(side.peer, side.node, &payload),
                    "a packet for a server on N",
                );
            }
        }
    }
}

#[test]
fn a_server_on_the_wildcard_or_the_guest_address_is_reached_as_before() {
    for hook in INGRESS {
        let mut datapath = Datapath::new(&dual());
        for side in BOTH {
            for address in [wildcard(side), side.guest] {
                let tcp = TcpListener::bind(at(address, 0)).unwrap();
                let udp = UdpSocket::bind(at(address, 0)).unwrap();
                for payload in [
                    Payload::tcp(40_000, tcp.local_addr().unwrap().port(), SYN),
                    Payload::tcp(40_000, tcp.local_addr().unwrap().port(), ACK),
                    Payload::udp(40_000, udp.local_addr().unwrap().port()),
                ] {
                    datapath.expect_unchanged(
                        hook,
                        &frame(side.peer, side.guest, &payload),
                        &format!("a packet for a server on {address}"),
                    );
                }
            }
        }
    }
}

#[test]
fn the_lookup_happens_once_per_flow() {
    for hook in INGRESS {
        let mut datapath = Datapath::new(&dual());
        for side in BOTH {
            let udp = UdpSocket::bind(at(side.node, 0)).unwrap();
            let port = udp.local_addr().unwrap().port();
            for source in [40_000, 40_001] {
                for _ in 0..10 {
                    // One that is found, and one that is not.
                    datapath.run(
                        hook,
                        &frame(side.peer, side.guest, &Payload::udp(source, port)),
                    );
                    datapath.run(
                        hook,
                        &frame(side.peer, side.guest, &Payload::udp(source, 9)),
                    );
                    datapath.run(
                        hook,
                        &frame(side.peer, side.guest, &Payload::tcp(source, 9, ACK)),
                    );
                }
            }
            let count = |class, event| datapath.counter(Place::Ingress, family(side), class, event);
            assert_eq!(
                count(Class::Udp, Event::Lookup),
                4,
                "two flows to each of two ports"
            );
            assert_eq!(count(Class::Udp, Event::Remembered), 4);
            assert_eq!(count(Class::Udp, Event::Translated), 20);
            assert_eq!(count(Class::Tcp, Event::Lookup), 2, "two flows");
            assert_eq!(count(Class::Tcp, Event::Passed), 20);
        }
    }
}

#[test]
fn services_and_other_protocols_need_no_lookup() {
    let mut datapath = Datapath::new(&dual());
    for side in BOTH {
        for payload in [
            Payload::vxlan(true),
            Payload::tcp(40_000, 10_250, SYN),
            Payload::echo(side, true, 3),
            Payload::Sctp {
                source: 1,
                destination: 2,
                data: vec![0; 8],
            },
        ] {
            datapath.run(At::Ingress, &frame(side.peer, side.guest, &payload));
        }
    }
    assert_eq!(datapath.events(Place::Ingress, Event::Lookup), 0);
}

#[test]
fn a_server_that_starts_later_is_reached_by_the_next_connection() {
    let mut datapath = Datapath::new(&dual());
    for side in BOTH {
        let reserved = TcpListener::bind(at(side.node, 0)).unwrap();
        let port = reserved.local_addr().unwrap().port();
        drop(reserved);
        let syn = Payload::tcp(40_000, port, SYN);
        datapath.expect_unchanged(
            At::Ingress,
            &frame(side.peer, side.guest, &syn),
            "a SYN before the server",
        );
        let late = Payload::tcp(40_000, port, ACK);
        datapath.expect_unchanged(
            At::Ingress,
            &frame(side.peer, side.guest, &late),
            "no server, no SYN",
        );
        let _server = TcpListener::bind(at(side.node, port)).unwrap();
        for flags in [SYN, ACK] {
            let payload = Payload::tcp(40_000, port, flags);
            datapath.expect(
                At::Ingress,
                &frame(side.peer, side.guest, &payload),
                &frame(side.peer, side.node, &payload),
                "the same connection, tried again",
            );
        }
    }
}

#[test]
fn the_guests_own_connection_comes_before_a_server_on_the_node_address() {
    // The peer is this host, so that the connection is a real one.
    let mut datapath = Datapath::new(&dual());
    for side in [V4, V6] {
        let peer = TcpListener::bind(at(side.node, 0)).unwrap();
        let peer_port = peer.local_addr().unwrap().port();
        let own = connect(at(side.guest, 0), peer.local_addr().unwrap());
        let own_port = own.local_addr().unwrap().port();
        let _server = listen_beside(at(side.node, own_port));
        let answer = Payload::tcp(peer_port, own_port, ACK);
        datapath.expect_unchanged(
            At::Ingress,
            &frame(side.node, side.guest, &answer),
            "an answer to the guest's own connection",
        );
        let stranger = Payload::tcp(peer_port, own_port, SYN);
        datapath.expect(
            At::Ingress,
            &frame(side.peer, side.guest, &stranger),
            &frame(side.peer, side.node, &stranger),
            "a stranger to the server on N",
        );
    }
}

/// A connection from a given address.
fn connect(from: std::net::SocketAddr, to: std::net::SocketAddr) -> TcpStream {
    use nix::sys::socket::{
        AddressFamily, SockFlag, SockType, SockaddrStorage, bind, connect, setsockopt, socket,
        sockopt,
    };
    use std::os::fd::AsRawFd as _;
    let family = if from.is_ipv4() {
        AddressFamily::Inet
    } else {
        AddressFamily::Inet6
    };
    let socket = socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).unwrap();
    setsockopt(&socket, sockopt::ReuseAddr, &true).unwrap();
    bind(socket.as_raw_fd(), &SockaddrStorage::from(from)).unwrap();
    connect(socket.as_raw_fd(), &SockaddrStorage::from(to)).unwrap();
    socket.into()
}

/// A server on a port that another socket of ours uses at another address.
fn listen_beside(address: std::net::SocketAddr) -> TcpListener {
    TcpListener::bind(address).unwrap()
}
