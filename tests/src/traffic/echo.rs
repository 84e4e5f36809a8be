//! Small TCP and UDP echo servers and a client, whose addresses are chosen to the last byte.

use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use socket2::{Domain, Protocol, Socket, Type};

use crate::namespace::Namespace;

/// How often a server looks whether it is to stop.
const STOP_INTERVAL: Duration = Duration::from_millis(20);
/// The largest UDP datagram.
const DATAGRAM_MAX: usize = 65_535;

/// Somebody who spoke to a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// Where it came from, as the server saw it.
    pub peer: SocketAddr,
    /// TCP: the server's own address on that connection; UDP: what the server is bound to.
    pub local: SocketAddr,
    /// Bytes received.
    pub bytes: usize,
}

/// A server that sends everything back, until it is dropped.
#[derive(Debug)]
pub struct EchoServer {
    address: SocketAddr,
    seen: Arc<Mutex<Vec<Seen>>>,
    stop: Arc<AtomicBool>,
    worker: Option<JoinHandle<()>>,
}

impl EchoServer {
    /// A TCP server in `namespace`, bound to `address` (port 0 picks one).
    ///
    /// # Errors
    /// When the address can't be bound.
    pub fn tcp(namespace: &Namespace, address: impl Into<SocketAddr>) -> Result<Self> {
        let address = address.into();
        let listener = namespace
            .within(|| TcpListener::bind(address))?
            .with_context(|| format!("TCP server on {address} in {}", namespace.name()))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        Ok(Self::start(address, move |stop, seen| {
            serve_tcp(&listener, stop, seen);
        }))
    }

    /// A UDP server in `namespace`, bound to `address` (port 0 picks one).
    ///
    /// # Errors
    /// When the address can't be bound.
    pub fn udp(namespace: &Namespace, address: impl Into<SocketAddr>) -> Result<Self> {
        let address = address.into();
        let socket = namespace
            .within(|| UdpSocket::bind(address))?
            .with_context(|| format!("UDP server on {address} in {}", namespace.name()))?;
        socket.set_read_timeout(Some(STOP_INTERVAL))?;
        let address = socket.local_addr()?;
        Ok(Self::start(address, move |stop, seen| {
            serve_udp(&socket, stop, seen);
        }))
    }

    fn start(
        address: SocketAddr,
        serve: impl FnOnce(&AtomicBool, &Mutex<Vec<Seen>>) + Send + 'static,
    ) -> Self {
        let seen = Arc::<Mutex<Vec<Seen>>>::default();
        let stop = Arc::<AtomicBool>::default();
        let worker = std::thread::spawn({
            let (seen, stop) = (Arc::clone(&seen), Arc::clone(&stop));
            move || serve(&stop, &seen)
        });
        Self {
            address,
            seen,
            stop,
            worker: Some(worker),
        }
    }

    /// What the server is bound to.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The server's port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Everybody who spoke to it so far: one entry a connection or datagram.
    #[must_use]
    pub fn seen(&self) -> Vec<Seen> {
        self.seen
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl Drop for EchoServer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(worker) = self.worker.take() {
            let _ = worker.join();
        }
    }
}

fn note(seen: &Mutex<Vec<Seen>>, entry: Seen) {
    seen.lock()
        .unwrap_or_else(PoisonError::into_inner)
        .push(entry);
}

fn serve_tcp(listener: &TcpListener, stop: &AtomicBool, seen: &Mutex<Vec<Seen>>) {
    std::thread::scope(|scope| {
        while !stop.load(Ordering::Relaxed) {
            match listener.accept() {
                Ok((stream, peer)) => {
                    scope.spawn(move || {
                        if let Err(error) = serve_connection(stream, peer, stop, seen) {
                            // Peers come and go in these tests; the client's side is what is asserted.
                            eprintln!("echo server: {peer}: {error}");
                        }
                    });
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    std::thread::sleep(STOP_INTERVAL);
                }
                Err(error) => {
                    eprintln!("echo server: accept: {error}");
                    return;
                }
            }
        }
    });
}

fn serve_connection(
    mut stream: TcpStream,
    peer: SocketAddr,
    stop: &AtomicBool,
    seen: &Mutex<Vec<Seen>>,
) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(STOP_INTERVAL))?;
    let local = stream.local_addr()?;
    let mut bytes = 0;
    let mut buffer = [0; 16 * 1024];
    while !stop.load(Ordering::Relaxed) {
        match stream.read(&mut buffer) {
            Ok(0) => break,
            Ok(length) => {
                bytes += length;
                stream.write_all(buffer.get(..length).unwrap_or_default())?;
            }
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
                ) => {}
            Err(error) => return Err(error),
        }
    }
    note(seen, Seen { peer, local, bytes });
    Ok(())
}

fn serve_udp(socket: &UdpSocket, stop: &AtomicBool, seen: &Mutex<Vec<Seen>>) {
    let mut buffer = vec![0; DATAGRAM_MAX];
    let Ok(local) = socket.local_addr() else {
        return;
    };
    while !stop.load(Ordering::Relaxed) {
        // Errors here are time-outs and ICMP errors that came back for earlier answers.
        if let Ok((bytes, peer)) = socket.recv_from(&mut buffer) {
            note(seen, Seen { peer, local, bytes });
            let _ = socket.send_to(buffer.get(..bytes).unwrap_or_default(), peer);
        }
    }
}

/// A client that sends something and wants it back.
#[derive(Debug, Clone)]
pub struct Client {
    target: SocketAddr,
    source: Option<SocketAddr>,
    limit: Duration,
}

impl Client {
    /// A client of `target`, from an address that the kernel chooses, with three seconds of patience.
    #[must_use]
    pub fn to(target: impl Into<SocketAddr>) -> Self {
        Self {
            target: target.into(),
            source: None,
            limit: Duration::from_secs(3),
        }
    }

    /// Binds to `source` before connecting; the port is the kernel's choice.
    #[must_use]
    pub fn from(self, source: impl Into<IpAddr>) -> Self {
        self.from_port(source, 0)
    }

    /// Binds to `source` and `port` before connecting.
    #[must_use]
    pub fn from_port(mut self, source: impl Into<IpAddr>, port: u16) -> Self {
        self.source = Some(SocketAddr::new(source.into(), port));
        self
    }

    /// How long connecting, and then the answer, may take.
    #[must_use]
    pub fn patience(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    fn socket(&self, namespace: &Namespace, kind: Type, protocol: Protocol) -> Result<Socket> {
        let domain = Domain::for_address(self.target);
        let socket = namespace.within(|| Socket::new(domain, kind, Some(protocol)))??;
        if let Some(source) = self.source {
            socket.set_reuse_address(true)?;
            socket
                .bind(&source.into())
                .with_context(|| format!("bind to {source}"))?;
        }
        socket.set_read_timeout(Some(self.limit))?;
        Ok(socket)
    }

    /// Opens a TCP connection from `namespace`.
    ///
    /// # Errors
    /// When it is refused or not answered in time.
    pub fn connect(&self, namespace: &Namespace) -> Result<TcpStream> {
        let socket = self.socket(namespace, Type::STREAM, Protocol::TCP)?;
        socket
            .connect_timeout(&self.target.into(), self.limit)
            .with_context(|| format!("connect to {} from {}", self.target, namespace.name()))?;
        Ok(socket.into())
    }

    /// Sends `payload` over TCP and checks that the same comes back.
    ///
    /// # Errors
    /// When there is no connection, or the answer is late or wrong.
    pub fn tcp(&self, namespace: &Namespace, payload: &[u8]) -> Result<()> {
        let mut stream = self.connect(namespace)?;
        let mut sender = stream.try_clone()?;
        // Both directions at once: a payload larger than the buffers would block a client that only sends.
        let (sent, received) = std::thread::scope(|scope| {
            let sent = scope.spawn(move || {
                sender.write_all(payload)?;
                sender.shutdown(std::net::Shutdown::Write)
            });
            let mut answer = Vec::new();
            let received = stream.read_to_end(&mut answer).map(|_| answer);
            (sent.join(), received)
        });
        let answer = received.with_context(|| format!("answer of {}", self.target))?;
        match sent {
            Ok(outcome) => outcome.with_context(|| format!("send to {}", self.target))?,
            Err(panic) => std::panic::resume_unwind(panic),
        }
        self.compare(&answer, payload)
    }

    /// Opens a UDP socket in `namespace` that is connected to the target.
    ///
    /// # Errors
    /// When the source can't be bound or there is no route.
    pub fn udp_socket(&self, namespace: &Namespace) -> Result<UdpSocket> {
        let socket = self.socket(namespace, Type::DGRAM, Protocol::UDP)?;
        socket
            .connect(&self.target.into())
            .with_context(|| format!("route to {}", self.target))?;
        Ok(socket.into())
    }

    /// Sends one datagram and checks that the same comes back.
    ///
    /// # Errors
    /// When the answer is late or wrong.
    pub fn udp(&self, namespace: &Namespace, payload: &[u8]) -> Result<()> {
        let socket = self.udp_socket(namespace)?;
        socket
            .send(payload)
            .with_context(|| format!("send to {}", self.target))?;
        let mut answer = vec![0; DATAGRAM_MAX];
        let length = socket
            .recv(&mut answer)
            .with_context(|| format!("answer of {}", self.target))?;
        answer.truncate(length);
        self.compare(&answer, payload)
    }

    fn compare(&self, answer: &[u8], payload: &[u8]) -> Result<()> {
        if answer != payload {
            bail!(
                "{} sent {} bytes back for {}, or other ones",
                self.target,
                answer.len(),
                payload.len()
            );
        }
        Ok(())
    }
}
