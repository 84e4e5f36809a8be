//! Frames whose headers lie in pages, as virtio-net delivers large ones: the kernel makes them readable when asked, and
//! not before. (No test run has them, so they come in through a tap.)

use std::{
    fs::{File, OpenOptions},
    io::Write as _,
    os::fd::AsRawFd as _,
};

use xkub_common::counter::{Class, Event, Family, Place};

use crate::{
    harness::{Datapath, dual},
    packets::{BOTH, Payload, Shape, error, frame, packet},
};

const TAP: &str = "tap0";

/// A tap, up, in this thread's network namespace.
fn tap() -> File {
    let tap = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/net/tun")
        .unwrap();
    // SAFETY: zeroes are a valid `ifreq`.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(TAP.bytes()) {
        *to = from.cast_signed();
    }
    request.ifr_ifru.ifru_flags =
        i16::try_from(libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR).unwrap();
    // SAFETY: the request is a valid one and outlives the call.
    let result = unsafe { libc::ioctl(tap.as_raw_fd(), libc::TUNSETIFF, &raw const request) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    let status = std::process::Command::new("ip")
        .args(["link", "set", TAP, "mtu", "9000", "up"])
        .status()
        .unwrap();
    assert!(status.success());
    tap
}

/// Sends a frame up of which only the first bytes can be read at once. It must be longer than a page, or the tap
/// copies it as a whole.
fn send(tap: &mut File, frame: &[u8], readable: u16) {
    let mut bytes = vec![0; 2];
    bytes.extend(readable.to_ne_bytes());
    bytes.extend([0; 6]);
    bytes.extend(frame);
    assert_eq!(tap.write(&bytes).unwrap(), bytes.len());
}

#[test]
fn headers_in_pages_are_read_all_the_same() {
    let mut datapath = Datapath::new(&dual());
    let mut tap = tap();
    datapath.attach_ingress(TAP);
    let data = vec![7; 5000];
    for (side, family) in BOTH.into_iter().zip([Family::V4, Family::V6]) {
        let quote = packet(
            side.guest,
            side.peer,
            &Payload::Udp {
                source: 40_000,
                destination: 8473,
                data: data.clone(),
                checksum: false,
            },
            &Shape::default(),
        );
        for (class, payload) in [
            (
                Class::Udp,
                Payload::Udp {
                    source: 40_000,
                    destination: 8473,
                    data: data.clone(),
                    checksum: true,
                },
            ),
            (
                Class::Tcp,
                Payload::Tcp {
                    source: 40_000,
                    destination: 10_250,
                    flags: crate::packets::ACK,
                    data: data.clone(),
                },
            ),
            (Class::IcmpError, error(side, &quote)),
        ] {
            let frame = frame(side.peer, side.guest, &payload);
            let count = |event| datapath.counter(Place::Ingress, family, class, event);
            let header = if side.node.is_ipv4() { 20 } else { 40 };
            // The Ethernet header alone; the IP header too, which is what GRO leaves of UDP; and a part of the next.
            for readable in [14, 14 + header, 14 + header + 7] {
                let before = count(Event::Translated);
                send(&mut tap, &frame, readable);
                assert_eq!(
                    count(Event::Translated),
                    before + 1,
                    "{class:?}, {readable} bytes readable"
                );
            }
        }
    }
    assert_eq!(datapath.events(Place::Ingress, Event::Malformed), 0);
}
