//! A stand-in for the guest cluster's API: one Node, which a test sets and a node reads, watches and annotates.
//!
//! Plain HTTP, because who may what is not what labs are about.

use std::collections::BTreeMap;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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
    node: Arc<Mutex<Node>>,
    stop: Arc<AtomicBool>,
    worker: Option<JoinHandle<()>>,
}

/// The Node, as far as anybody asks.
#[derive(Debug)]
struct Node {
    name: String,
    version: u64,
    internal_ips: Vec<IpAddr>,
    annotations: BTreeMap<String, String>,
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
        let node = Arc::new(Mutex::new(Node {
            name: name.to_owned(),
            version: 1,
            internal_ips: Vec::new(),
            annotations: BTreeMap::new(),
        }));
        let stop = Arc::<AtomicBool>::default();
        let worker = std::thread::spawn({
            let (node, stop) = (Arc::clone(&node), Arc::clone(&stop));
            move || serve(&listener, &node, &stop)
        });
        Ok(Self {
            address,
            node,
            stop,
            worker: Some(worker),
        })
    }

    /// The URL of the server.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// What a kubelet would do: sets the addresses that the Node shows.
    pub fn show(&self, internal_ips: &[IpAddr]) {
        let mut node = lock(&self.node);
        internal_ips.clone_into(&mut node.internal_ips);
        node.version += 1;
    }
}

impl Drop for NodeApi {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(worker) = self.worker.take() {
            let _ = worker.join();
        }
    }
}

fn lock(node: &Mutex<Node>) -> MutexGuard<'_, Node> {
    node.lock().unwrap_or_else(PoisonError::into_inner)
}

fn serve(listener: &TcpListener, node: &Mutex<Node>, stop: &AtomicBool) {
    std::thread::scope(|scope| {
        while !stop.load(Ordering::Relaxed) {
            match listener.accept() {
                // A client that goes away is nobody's fault.
                Ok((stream, _)) => {
                    scope.spawn(move || answer(&stream, node, stop));
                }
                Err(_) => std::thread::sleep(POLL_INTERVAL),
            }
        }
    });
}

/// Answers one request and closes: whoever wants more connects again.
fn answer(stream: &TcpStream, node: &Mutex<Node>, stop: &AtomicBool) -> io::Result<()> {
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
    loop {
        let mut header = String::new();
        reader.read_line(&mut header)?;
        let Some((key, value)) = header.split_once(':') else {
            break;
        };
        if key.eq_ignore_ascii_case("content-length") {
            length = value.trim().parse().unwrap_or_default();
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let (method, target) = request.split_once(' ').unwrap_or_default();
    let target = target.split(' ').next().unwrap_or_default();
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let own = format!("/api/v1/nodes/{}", lock(node).name);
    match (method, path) {
        ("GET", path) if path == own => respond(stream, 200, &lock(node).document()),
        ("PATCH", path) if path == own => {
            let mut node = lock(node);
            node.merge(&serde_json::from_slice(&body).unwrap_or_default());
            respond(stream, 200, &node.document())
        }
        ("GET", "/api/v1/nodes") if query.contains("watch=") => watch(stream, node, stop),
        _ => respond(
            stream,
            404,
            &json!({
                "apiVersion": "v1", "kind": "Status", "status": "Failure", "code": 404,
                "reason": "NotFound", "message": format!("{method} {path} is not here"),
            }),
        ),
    }
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
fn watch(mut stream: &TcpStream, node: &Mutex<Node>, stop: &AtomicBool) -> io::Result<()> {
    // The body ends with the connection.
    write!(
        stream,
        "HTTP/1.1 200 \r\nContent-Type: application/json\r\nConnection: close\r\n\r\n"
    )?;
    let mut seen = 0;
    while !stop.load(Ordering::Relaxed) {
        let event = {
            let node = lock(node);
            (node.version > seen).then(|| {
                seen = node.version;
                json!({ "type": "MODIFIED", "object": node.document() })
            })
        };
        if let Some(event) = event {
            writeln!(stream, "{event}")?;
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}
