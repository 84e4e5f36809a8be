//! A stand-in for the guest cluster's API: one Node, which a test sets and a node reads, watches and annotates.
//!
//! Plain HTTP, because who may what is not what labs are about.

use std::collections::BTreeMap;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use crate::namespace::Namespace;

/// How often its threads look whether there is something to do.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// The largest request, in bytes.
const REQUEST_MAX: u64 = 64 * 1024;

/// Serves until it is dropped.
#[derive(Debug)]
pub struct NodeApi {
    address: SocketAddr,
    shared: Arc<Shared>,
    stop: Arc<AtomicBool>,
    worker: Option<JoinHandle<()>>,
}

/// The Node, and who waits for its changes.
#[derive(Debug)]
struct Shared {
    node: Mutex<Node>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Node> {
        self.node.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The Node, as far as anybody asks.
#[derive(Debug)]
struct Node {
    name: String,
    version: u64,
    internal_ips: Vec<IpAddr>,
    annotations: BTreeMap<String, String>,
    knows_tokens: bool,
    requests_with_token: u64,
}

impl Node {
    fn document(&self) -> Value {
        let addresses: Vec<Value> = self
            .internal_ips
            .iter()
            .map(|address| json!({ "type": "InternalIP", "address": address }))
            .collect();
        json!({
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": self.name,
                "resourceVersion": self.version.to_string(),
                "annotations": self.annotations,
            },
            "spec": {},
            "status": { "addresses": addresses },
        })
    }

    /// The annotations of a merge patch (RFC 7396); nothing else of it.
    fn merge(&mut self, patch: &Value) {
        let Some(annotations) = patch
            .pointer("/metadata/annotations")
            .and_then(Value::as_object)
        else {
            return;
        };
        for (key, value) in annotations {
            match value.as_str() {
                Some(value) => self.annotations.insert(key.clone(), value.to_owned()),
                None => self.annotations.remove(key),
            };
        }
        self.version += 1;
    }
}

impl NodeApi {
    /// Serves the Node `name`, which has no addresses yet, at `address` in `namespace`.
    ///
    /// # Errors
    /// When the address can't be bound.
    pub fn start(namespace: &Namespace, address: SocketAddr, name: &str) -> Result<Self> {
        let listener = namespace
            .within(|| TcpListener::bind(address))?
            .with_context(|| format!("API server on {address} in {}", namespace.name()))?;
        listener.set_nonblocking(true)?;
        let shared = Arc::new(Shared {
            node: Mutex::new(Node {
                name: name.to_owned(),
                version: 1,
                internal_ips: Vec::new(),
                annotations: BTreeMap::new(),
                knows_tokens: true,
                requests_with_token: 0,
            }),
            changed: Condvar::new(),
        });
        let stop = Arc::<AtomicBool>::default();
        let worker = std::thread::spawn({
            let (shared, stop) = (Arc::clone(&shared), Arc::clone(&stop));
            move || serve(&listener, &shared, &stop)
        });
        Ok(Self {
            address,
            shared,
            stop,
            worker: Some(worker),
        })
    }

    /// The URL of the server.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// From now on, every bearer token has expired.
    pub fn forget_tokens(&self) {
        self.shared.lock().knows_tokens = false;
    }

    /// How many requests came with a bearer token.
    #[must_use]
    pub fn requests_with_token(&self) -> u64 {
        self.shared.lock().requests_with_token
    }

    /// What a kubelet would do: sets the addresses that the Node shows.
    pub fn show(&self, internal_ips: &[IpAddr]) {
        let mut node = self.shared.lock();
        internal_ips.clone_into(&mut node.internal_ips);
        node.version += 1;
        self.shared.changed.notify_all();
    }
}

impl Drop for NodeApi {
    fn drop(&mut self) {
        {
            // With the lock, so that nobody is between looking and waiting.
            let _node = self.shared.lock();
            self.stop.store(true, Ordering::Relaxed);
            self.shared.changed.notify_all();
        }
        if let Some(worker) = self.worker.take() {
            let _ = worker.join();
        }
    }
}

fn serve(listener: &TcpListener, shared: &Shared, stop: &AtomicBool) {
    std::thread::scope(|scope| {
        while !stop.load(Ordering::Relaxed) {
            match listener.accept() {
                // A client that goes away is nobody's fault.
                Ok((stream, _)) => {
                    scope.spawn(move || answer(&stream, shared, stop));
                }
                Err(_) => std::thread::sleep(POLL_INTERVAL),
            }
        }
    });
}

/// Answers one request and closes: whoever wants more connects again.
fn answer(stream: &TcpStream, shared: &Shared, stop: &AtomicBool) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    // A client may connect long before it asks.
    stream.set_read_timeout(Some(POLL_INTERVAL))?;
    let mut first = [0];
    while stream.peek(&mut first).is_err() {
        if stop.load(Ordering::Relaxed) {
            return Ok(());
        }
    }
    stream.set_read_timeout(None)?;
    let mut reader = BufReader::new(stream.take(REQUEST_MAX));
    let mut request = String::new();
    reader.read_line(&mut request)?;
    let mut length = 0;
    let mut has_token = false;
    loop {
        let mut header = String::new();
        reader.read_line(&mut header)?;
        let Some((key, value)) = header.split_once(':') else {
            break;
        };
        if key.eq_ignore_ascii_case("content-length") {
            length = value.trim().parse().unwrap_or_default();
        }
        has_token |= key.eq_ignore_ascii_case("authorization");
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let (method, target) = request.split_once(' ').unwrap_or_default();
    let target = target.split(' ').next().unwrap_or_default();
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let (own, is_known) = {
        let mut node = shared.lock();
        node.requests_with_token += u64::from(has_token);
        (
            format!("/api/v1/nodes/{}", node.name),
            !has_token || node.knows_tokens,
        )
    };
    match (method, path) {
        _ if !is_known => respond(stream, 401, &failure(401, "Unauthorized", "Unauthorized")),
        ("GET", "/version") => respond(stream, 200, &json!({ "gitVersion": "v1.37.2" })),
        ("GET", path) if path == own => respond(stream, 200, &shared.lock().document()),
        ("PATCH", path) if path == own => {
            let mut node = shared.lock();
            node.merge(&serde_json::from_slice(&body).unwrap_or_default());
            shared.changed.notify_all();
            respond(stream, 200, &node.document())
        }
        ("GET", "/api/v1/nodes") if query.contains("watch=") => watch(stream, shared, stop),
        _ => respond(
            stream,
            404,
            &failure(404, "NotFound", &format!("{method} {path} is not here")),
        ),
    }
}

fn failure(code: u16, reason: &str, message: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Status", "status": "Failure", "code": code,
        "reason": reason, "message": message,
    })
}

fn respond(mut stream: &TcpStream, code: u16, document: &Value) -> io::Result<()> {
    let body = document.to_string();
    write!(
        stream,
        "HTTP/1.1 {code} \r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
}

/// One event for every version from now on, until the client has enough.
fn watch(mut stream: &TcpStream, shared: &Shared, stop: &AtomicBool) -> io::Result<()> {
    // The body ends with the connection.
    write!(
        stream,
        "HTTP/1.1 200 \r\nContent-Type: application/json\r\nConnection: close\r\n\r\n"
    )?;
    let mut seen = 0;
    loop {
        let event = {
            let is_old = |node: &mut Node| node.version == seen && !stop.load(Ordering::Relaxed);
            let node = shared
                .changed
                .wait_while(shared.lock(), is_old)
                .unwrap_or_else(PoisonError::into_inner);
            if stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            seen = node.version;
            json!({ "type": "MODIFIED", "object": node.document() })
        };
        writeln!(stream, "{event}")?;
    }
}
