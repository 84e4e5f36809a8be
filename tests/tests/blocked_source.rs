//! An old node address that is still on its device: nothing leaves from it, and inside it can be used.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use xkub_tests::Masquerade;
use xkub_tests::masquerade::{GATEWAY_V4, GATEWAY_V6};
use xkub_userspace::{netlink::Netlink, node::blocked_source};

const OLD: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(10, 244, 1, 226)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0x244, 1, 0, 0, 0, 0, 0xe2)),
];

/// Whether a datagram goes out from `source`.
fn sends(source: IpAddr, destination: IpAddr) -> bool {
    let socket = UdpSocket::bind(SocketAddr::from((source, 0))).unwrap();
    socket.send_to(b"x", (destination, 9)).is_ok()
}

#[test]
fn nothing_leaves_from_a_blocked_source() {
    let lab = Masquerade::builder().build().unwrap();
    let guest = &lab.node(0).guest;
    for address in OLD {
        // Where the lab has put the node address.
        let _ = guest.ip(&format!("addr add {address} dev lo\n"));
    }
    let blocked = guest.within(|| {
        let netlink = Netlink::open().unwrap();
        let gateways: [IpAddr; 2] = [GATEWAY_V4.into(), GATEWAY_V6.into()];
        for (address, gateway) in OLD.into_iter().zip(gateways) {
            assert!(sends(address, gateway), "{address} before");
            assert!(blocked_source::block(&netlink, address).unwrap());
            // A second time is as good as once.
            assert!(blocked_source::block(&netlink, address).unwrap());
            assert!(!sends(address, gateway), "{address} is blocked");
            assert!(sends(address, address), "{address} inside");
        }
        let blocked = blocked_source::blocked(&netlink).unwrap();
        for (address, gateway) in OLD.into_iter().zip(gateways) {
            assert!(blocked_source::unblock(&netlink, address).unwrap());
            assert!(!blocked_source::unblock(&netlink, address).unwrap());
            assert!(sends(address, gateway), "{address} afterwards");
        }
        assert_eq!(
            blocked_source::blocked(&netlink).unwrap(),
            Vec::<IpAddr>::new()
        );
        blocked
    });
    assert_eq!(blocked.unwrap(), OLD);
}
