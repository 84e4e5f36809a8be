//! Packet capture on one device by a raw socket: what is on the wire side of the TC programs.
//!
//! On the way in the kernel shows a packet here before TC ingress, on the way out after TC egress.

use std::io::{self, Read as _};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, Result};
use socket2::{Domain, Protocol, SockAddr, SockAddrStorage, Socket, Type};

use crate::namespace::Namespace;
use crate::wait::wait_for;

/// How often the capturing thread looks whether it is to stop.
const STOP_INTERVAL: Duration = Duration::from_millis(20);
/// Large enough for a GSO packet, whose length is that of many packets.
const FRAME_MAX: usize = 128 * 1024;

/// A captured Ethernet frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// Whether this namespace sent it (and did not receive it).
    pub outgoing: bool,
    /// From the destination hardware address on. A VLAN tag is not part of it.
    pub bytes: Vec<u8>,
}

/// A capture, until it is dropped.
#[derive(Debug)]
pub struct Capture {
    frames: Arc<Mutex<Vec<Frame>>>,
    stop: Arc<AtomicBool>,
    worker: Option<JoinHandle<()>>,
}

impl Capture {
    /// Captures on `device` from now on.
    ///
    /// # Errors
    /// When there is no such device, or without `CAP_NET_RAW`.
    pub fn start(namespace: &Namespace, device: &str) -> Result<Self> {
        let socket = packet_socket(namespace, device)?;
        socket.set_read_timeout(Some(STOP_INTERVAL))?;
        let frames = Arc::<Mutex<Vec<Frame>>>::default();
        let stop = Arc::<AtomicBool>::default();
        let worker = std::thread::spawn({
            let (frames, stop) = (Arc::clone(&frames), Arc::clone(&stop));
            move || {
                let mut buffer = vec![MaybeUninit::uninit(); FRAME_MAX];
                while !stop.load(Ordering::Relaxed) {
                    // Errors are time-outs, and the device going away.
                    let Ok((length, from)) = socket.recv_from(&mut buffer) else {
                        continue;
                    };
                    let mut bytes = vec![0; length];
                    if initialised(&buffer, length).read_exact(&mut bytes).is_err() {
                        continue;
                    }
                    let frame = Frame {
                        outgoing: packet_type(from) == libc::PACKET_OUTGOING,
                        bytes,
                    };
                    frames
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .push(frame);
                }
            }
        });
        Ok(Self {
            frames,
            stop,
            worker: Some(worker),
        })
    }

    /// Everything captured so far.
    #[must_use]
    pub fn frames(&self) -> Vec<Frame> {
        self.frames
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Waits for a frame that `wanted` recognises; frames captured before count.
    ///
    /// # Errors
    /// When `limit` has passed; the error names `what`.
    pub fn wait(
        &self,
        what: &str,
        limit: Duration,
        wanted: impl Fn(&Frame) -> bool,
    ) -> Result<Frame> {
        wait_for(what, limit, || Ok(self.frames().into_iter().find(&wanted)))
            .with_context(|| format!("{} frames captured", self.frames().len()))
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(worker) = self.worker.take() {
            let _ = worker.join();
        }
    }
}

/// The first `length` bytes of a buffer that the kernel has filled so far.
fn initialised(buffer: &[MaybeUninit<u8>], length: usize) -> &[u8] {
    let filled = buffer.get(..length).unwrap_or_default();
    // SAFETY: recv wrote `length` bytes, and MaybeUninit<u8> has the layout of u8.
    unsafe { std::slice::from_raw_parts(filled.as_ptr().cast(), filled.len()) }
}

/// A raw socket that sees every frame of `device`.
pub(super) fn packet_socket(namespace: &Namespace, device: &str) -> Result<Socket> {
    let index = namespace.interface_index(device)?;
    // In network order, as packet(7) wants it.
    let every_protocol = u16::try_from(libc::ETH_P_ALL)?.to_be();
    let open = || -> io::Result<Socket> {
        let socket = Socket::new(
            Domain::PACKET,
            Type::RAW,
            Some(Protocol::from(i32::from(every_protocol))),
        )?;
        socket.bind(&link_address(index, every_protocol))?;
        Ok(socket)
    };
    namespace
        .within(open)?
        .with_context(|| format!("raw socket on {device} in {}", namespace.name()))
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    reason = "constants of packet(7) that fit"
)]
fn link_address(index: u32, protocol: u16) -> SockAddr {
    let mut storage = SockAddrStorage::zeroed();
    // SAFETY: sockaddr_ll fits into sockaddr_storage and every bit pattern is valid for it.
    let address = unsafe { storage.view_as::<libc::sockaddr_ll>() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = protocol;
    address.sll_ifindex = index as i32;
    let length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: the storage holds a sockaddr_ll of exactly this length.
    unsafe { SockAddr::new(storage, length) }
}

/// Whether a frame was sent or received: `PACKET_OUTGOING`, `PACKET_HOST`…
fn packet_type(address: SockAddr) -> u8 {
    let mut storage = address.as_storage();
    // SAFETY: a packet socket fills in a sockaddr_ll, and every bit pattern is valid for one.
    unsafe { storage.view_as::<libc::sockaddr_ll>() }.sll_pkttype
}
