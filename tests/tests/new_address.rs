//! A node address that changes under traffic: nothing leaves with the old one, or with the new one, untranslated.

use std::net::{Ipv4Addr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};

use xkub_tests::Masquerade;
use xkub_tests::masquerade::{CLIENT_V4, NodeAddress, UPLINK};
use xkub_tests::traffic::{Capture, Client};
use xkub_tests::wait::{PATIENCE, wait_until};

/// The discard port: nobody answers.
const PORT: u16 = 9;

/// Ends the sender, however the test ends.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn no_packet_leaves_with_a_node_address() {
    let second = Ipv4Addr::new(10, 244, 1, 227);
    for hook in ["tcx", "clsact", "xdp"] {
        let lab = Masquerade::builder()
            .ipv6(false)
            .node_address(NodeAddress::Absent)
            .build()
            .unwrap();
        let node = lab.node(0);
        let first = node.node_v4();
        let attach = |address: Ipv4Addr| {
            let address = address.to_string();
            let arguments = [
                "datapath",
                "attach",
                "--uplink",
                UPLINK,
                "--ingress-hook",
                hook,
                "--node-address",
                &address,
            ];
            node.xkub(&arguments).unwrap().success().unwrap();
        };
        attach(first);
        let wire = Capture::start(&node.launcher, "tap0").unwrap();
        let socket: UdpSocket = Client::to((CLIENT_V4, PORT))
            .from(first)
            .udp_socket(&node.guest)
            .unwrap();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    // Refused as soon as the address is gone, as it must be.
                    let _ = socket.send(b"from the first address");
                    std::thread::yield_now();
                }
            });
            let _stop = Stop(&stop);
            wait_until("traffic", PATIENCE, || Ok(wire.frames().len() > 100)).unwrap();
            for address in [second, first, second] {
                attach(address);
            }
        });
        let source = |bytes: &[u8]| {
            bytes.get(26..30) == Some(&first.octets())
                || bytes.get(26..30) == Some(&second.octets())
        };
        let leaked = wire
            .frames()
            .iter()
            .filter(|frame| !frame.outgoing && source(&frame.bytes))
            .count();
        assert_eq!(leaked, 0, "{hook}");
    }
}
