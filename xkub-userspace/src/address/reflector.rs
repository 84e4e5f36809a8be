//! The reflector: a STUN server that tells whoever asks which address it sees (RFC 8489 §12, a basic server).
//!
//! A question from behind virt-launcher's masquerade comes from the node address, so the answer is that. The server
//! keeps nothing about who asked, beside a table of fixed size that bounds how often one source is answered.

use std::{
    convert::Infallible,
    io::{self, IoSlice, IoSliceMut},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6},
    os::fd::AsRawFd as _,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use futures::future::try_join_all;
use nix::sys::socket::{
    AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType, SockaddrIn,
    SockaddrIn6, SockaddrLike as _, SockaddrStorage, bind, getsockname, recvmsg, sendmsg,
    setsockopt, socket, sockopt,
};
use serde::Serialize;
use thiserror::Error;
use tokio::{io::Interest, net::UdpSocket, task::yield_now};

use super::{
    limit::{Limiter, Rate},
    stun,
};

/// How many datagrams of one socket are taken before the other sockets and signals have their turn.
const BATCH: usize = 64;

/// Why the reflector does not run.
#[derive(Debug, Error)]
pub enum ReflectorError {
    /// An address can't be listened on.
    #[error("the reflector can't listen on UDP {address}")]
    Listen {
        /// Which one.
        address: SocketAddr,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
    /// A socket is broken.
    #[error("the reflector can't receive on UDP {address}")]
    Receive {
        /// Which one.
        address: SocketAddr,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
}

/// What became of all datagrams so far.
#[derive(Debug, Default)]
struct Counters {
    answered: AtomicU64,
    unknown_attribute: AtomicU64,
    limited: AtomicU64,
    ignored: AtomicU64,
    unsent: AtomicU64,
}

/// What became of all datagrams so far: each is in exactly one of these.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Counts {
    /// Requests whose sender was told its address.
    pub answered: u64,
    /// Requests answered with error 420: they had attributes that we would have to know.
    pub unknown_attribute: u64,
    /// Requests without an answer, because their source had asked too often.
    pub limited: u64,
    /// Datagrams that are no requests.
    pub ignored: u64,
    /// Replies that the system did not take: no route, a firewall, a full queue.
    pub unsent: u64,
}

/// A server with its sockets.
#[derive(Debug)]
pub struct Reflector {
    listeners: Vec<Listener>,
    limiter: Mutex<Limiter>,
    counters: Counters,
}

impl Reflector {
    /// Opens a socket for each address; without any, for both families' unspecified addresses on port
    /// [`stun::PORT`], as far as the system has the families. Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// [`ReflectorError::Listen`].
    pub fn bind(addresses: &[SocketAddr], rate: Rate) -> Result<Self, ReflectorError> {
        let listeners = if addresses.is_empty() {
            Listener::open_everywhere()?
        } else {
            addresses
                .iter()
                .map(|&address| Listener::open(address))
                .collect::<Result<_, _>>()?
        };
        Ok(Self {
            listeners,
            limiter: Mutex::new(Limiter::new(rate, Instant::now())),
            counters: Counters::default(),
        })
    }

    /// What is listened on, with the ports that the system chose where none was given.
    #[must_use]
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.listeners
            .iter()
            .map(|listener| listener.address)
            .collect()
    }

    /// What became of all datagrams so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let Counters {
            answered,
            unknown_attribute,
            limited,
            ignored,
            unsent,
        } = &self.counters;
        let [answered, unknown_attribute, limited, ignored, unsent] =
            [answered, unknown_attribute, limited, ignored, unsent]
                .map(|counter| counter.load(Ordering::Relaxed));
        Counts {
            answered,
            unknown_attribute,
            limited,
            ignored,
            unsent,
        }
    }

    /// Answers until it is dropped.
    ///
    /// # Errors
    /// [`ReflectorError::Receive`].
    pub async fn serve(&self) -> Result<Infallible, ReflectorError> {
        let served = self.listeners.iter().map(|listener| self.listen(listener));
        match try_join_all(served).await?.pop() {
            Some(never) => match never {},
            // There is always a listener.
            None => std::future::pending().await,
        }
    }

    async fn listen(&self, listener: &Listener) -> Result<Infallible, ReflectorError> {
        let broken = |source| ReflectorError::Receive {
            address: listener.address,
            source,
        };
        let mut buffers = Buffers::default();
        loop {
            listener.socket.readable().await.map_err(broken)?;
            for _ in 0..BATCH {
                match listener.receive(&mut buffers) {
                    Ok(arrived) => self.take(listener, &arrived),
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(error) => return Err(broken(error)),
                }
            }
            yield_now().await;
        }
    }

    fn take(&self, listener: &Listener, arrived: &Arrived<'_>) {
        let Counters {
            answered,
            unknown_attribute,
            limited,
            ignored,
            unsent,
        } = &self.counters;
        let counter = match stun::reply(arrived.datagram, arrived.source) {
            Err(_) => ignored,
            Ok(_) if !self.may_answer(arrived.source.ip()) => limited,
            Ok(reply) => match listener.send(reply.as_bytes(), arrived) {
                Err(_) => unsent,
                Ok(()) if reply.is_error => unknown_attribute,
                Ok(()) => answered,
            },
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    fn may_answer(&self, source: IpAddr) -> bool {
        // Nothing that holds the lock can leave the table half-changed.
        let mut limiter = self.limiter.lock().unwrap_or_else(PoisonError::into_inner);
        limiter.take(Instant::now(), source)
    }
}

/// Room for one datagram and for where it arrived.
struct Buffers {
    datagram: [u8; stun::MAX_DATAGRAM],
    control: Vec<u8>,
}

impl Default for Buffers {
    fn default() -> Self {
        Self {
            datagram: [0; stun::MAX_DATAGRAM],
            control: nix::cmsg_space!(libc::in6_pktinfo),
        }
    }
}

/// A datagram, whence it came, and what it was sent to.
struct Arrived<'a> {
    datagram: &'a [u8],
    source: SocketAddr,
    destination: Option<Destination>,
}

/// The address that the answer must come from: a client takes none from another one, and a host with several
/// addresses would choose one by its routes.
enum Destination {
    V4(libc::in_pktinfo),
    V6(libc::in6_pktinfo),
}

/// One socket of one family.
#[derive(Debug)]
struct Listener {
    socket: UdpSocket,
    address: SocketAddr,
}

impl Listener {
    /// Both families' unspecified addresses, but for a family that the system does not have.
    fn open_everywhere() -> Result<Vec<Self>, ReflectorError> {
        let v4 = SocketAddr::from((Ipv4Addr::UNSPECIFIED, stun::PORT));
        let v6 = SocketAddr::from((Ipv6Addr::UNSPECIFIED, stun::PORT));
        let mut listeners = Vec::new();
        let mut missing = None;
        for address in [v4, v6] {
            match Self::open(address) {
                Ok(listener) => listeners.push(listener),
                Err(ReflectorError::Listen { address, source }) if is_without_family(&source) => {
                    missing = Some(ReflectorError::Listen { address, source });
                }
                Err(error) => return Err(error),
            }
        }
        match missing {
            Some(error) if listeners.is_empty() => Err(error),
            _ => Ok(listeners),
        }
    }

    fn open(address: SocketAddr) -> Result<Self, ReflectorError> {
        Self::try_open(address).map_err(|source| ReflectorError::Listen { address, source })
    }

    fn try_open(address: SocketAddr) -> io::Result<Self> {
        let family = match address {
            SocketAddr::V4(_) => AddressFamily::Inet,
            SocketAddr::V6(_) => AddressFamily::Inet6,
        };
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let socket = socket(family, SockType::Datagram, flags, None)?;
        match address {
            SocketAddr::V4(_) => setsockopt(&socket, sockopt::Ipv4PacketInfo, &true)?,
            SocketAddr::V6(_) => {
                // IPv4 has a socket of its own on the same port.
                setsockopt(&socket, sockopt::Ipv6V6Only, &true)?;
                setsockopt(&socket, sockopt::Ipv6RecvPacketInfo, &true)?;
            }
        }
        bind(socket.as_raw_fd(), &SockaddrStorage::from(address))?;
        let bound: SockaddrStorage = getsockname(socket.as_raw_fd())?;
        Ok(Self {
            address: socket_address(&bound).unwrap_or(address),
            socket: UdpSocket::from_std(socket.into())?,
        })
    }

    fn receive<'a>(&self, buffers: &'a mut Buffers) -> io::Result<Arrived<'a>> {
        let Buffers { datagram, control } = buffers;
        let mut parts = [IoSliceMut::new(datagram)];
        let (length, source, destination) = self.socket.try_io(Interest::READABLE, || {
            let message = recvmsg::<SockaddrStorage>(
                self.socket.as_raw_fd(),
                &mut parts,
                Some(control.as_mut_slice()),
                MsgFlags::MSG_DONTWAIT,
            )?;
            let source = message.address.as_ref().and_then(socket_address);
            let destination = message
                .cmsgs()
                .ok()
                .and_then(|mut messages| messages.find_map(|message| Destination::of(&message)));
            Ok((message.bytes, source, destination))
        })?;
        Ok(Arrived {
            datagram: datagram.get(..length).unwrap_or_default(),
            // Every datagram has one; without it, this is as good as none.
            source: source.ok_or(io::ErrorKind::Interrupted)?,
            destination,
        })
    }

    fn send(&self, reply: &[u8], arrived: &Arrived<'_>) -> nix::Result<()> {
        let from = match &arrived.destination {
            Some(Destination::V4(info)) => Some(ControlMessage::Ipv4PacketInfo(info)),
            Some(Destination::V6(info)) => Some(ControlMessage::Ipv6PacketInfo(info)),
            None => None,
        };
        let to = SockaddrStorage::from(arrived.source);
        sendmsg(
            self.socket.as_raw_fd(),
            &[IoSlice::new(reply)],
            from.as_slice(),
            // A full queue must not hold up everybody else.
            MsgFlags::MSG_DONTWAIT,
            Some(&to),
        )
        .map(drop)
    }
}

impl Destination {
    /// What the kernel told of a datagram's way in, turned into an order for its answer's way out (ip(7), ipv6(7)).
    fn of(message: &ControlMessageOwned) -> Option<Self> {
        match *message {
            ControlMessageOwned::Ipv4PacketInfo(info) => Some(Self::V4(libc::in_pktinfo {
                // Routes decide about the interface.
                ipi_ifindex: 0,
                ..info
            })),
            ControlMessageOwned::Ipv6PacketInfo(info) => Some(Self::V6(libc::in6_pktinfo {
                // For a link-local source, the interface is in the address that it is sent to.
                ipi6_ifindex: 0,
                ..info
            })),
            _ => None,
        }
    }
}

fn socket_address(storage: &SockaddrStorage) -> Option<SocketAddr> {
    match storage.family()? {
        AddressFamily::Inet => storage.as_sockaddr_in().map(|&v4| SockaddrIn::into(v4)),
        AddressFamily::Inet6 => {
            let v6: &SockaddrIn6 = storage.as_sockaddr_in6()?;
            Some(SocketAddrV6::from(*v6).into())
        }
        _ => None,
    }
}

/// Whether the system lacks an address family: not built in, or switched off.
fn is_without_family(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EAFNOSUPPORT | libc::EADDRNOTAVAIL)
    )
}
