//! What the tests of this module, and those of the CNIs, share: Nodes, a kubelet's credentials, an API server of
//! answers.

use std::{
    collections::VecDeque,
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use axum::{body::Body, extract::Request, response::Response};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{client::Cluster, node::NodeView};

/// A Node worker-1 with these annotations and `InternalIP`s.
pub(crate) fn node(annotations: &Value, internal_ips: &[&str]) -> NodeView {
    serde_json::from_value(node_json("1", annotations, internal_ips)).unwrap()
}

/// The same as the API sends it.
pub(crate) fn node_json(version: &str, annotations: &Value, internal_ips: &[&str]) -> Value {
    let addresses: Vec<_> = internal_ips
        .iter()
        .map(|address| json!({"type": "InternalIP", "address": address}))
        .collect();
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "worker-1", "resourceVersion": version, "annotations": annotations},
        "spec": {},
        "status": {"addresses": addresses},
    })
}

/// What is sent for a request.
pub(crate) enum Answer {
    /// A status and a body.
    Json(u16, Value),
    /// Lines, and then the end.
    Events(Vec<Value>),
    /// Lines, and then nothing.
    Open(Vec<Value>),
}

impl Answer {
    /// A failure as the API server says it.
    pub(crate) fn failure(code: u16, message: &str) -> Self {
        Self::Json(
            code,
            json!({
                "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                "message": message, "reason": "Because", "code": code,
            }),
        )
    }

    fn into_response(self) -> Response {
        let lines = |events: Vec<Value>| -> String {
            events
                .iter()
                .flat_map(|event| {
                    [
                        event.to_string(),
                        "
"
                        .to_owned(),
                    ]
                })
                .collect()
        };
        let (code, body) = match self {
            Self::Json(code, body) => (code, Body::from(body.to_string())),
            Self::Events(events) => (200, Body::from(lines(events))),
            Self::Open(events) => {
                let head = futures::stream::once(std::future::ready(lines(events)));
                let all = futures::StreamExt::chain(head, futures::stream::pending());
                let all = futures::StreamExt::map(all, Ok::<_, std::convert::Infallible>);
                (200, Body::from_stream(all))
            }
        };
        Response::builder().status(code).body(body).unwrap()
    }
}

/// An API server that gives its answers in order, and keeps what it was asked.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    asked: Arc<Mutex<Vec<(String, Value)>>>,
}

impl Server {
    pub(crate) async fn start(answers: Vec<Answer>) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let answers = Arc::new(Mutex::new(VecDeque::from(answers)));
        let asked = Arc::<Mutex<Vec<(String, Value)>>>::default();
        let log = Arc::clone(&asked);
        let router = axum::Router::new().fallback(move |request: Request| {
            let (answers, log) = (Arc::clone(&answers), Arc::clone(&log));
            async move {
                let line = format!("{} {}", request.method(), request.uri());
                let body = axum::body::to_bytes(request.into_body(), 1 << 20)
                    .await
                    .unwrap();
                log.lock()
                    .unwrap()
                    .push((line, serde_json::from_slice(&body).unwrap_or_default()));
                let answer = answers.lock().unwrap().pop_front();
                answer
                    .unwrap_or_else(|| Answer::failure(500, "asked once too often"))
                    .into_response()
            }
        });
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self { address, asked }
    }

    /// What was asked so far: method and path, and the body.
    pub(crate) fn asked(&self) -> Vec<(String, Value)> {
        self.asked.lock().unwrap().clone()
    }
}

/// A kubelet's folder: a kubeconfig that names a file of certificate and key, as k0s and kubeadm have it.
pub(crate) struct Credentials {
    folder: TempDir,
}

impl Credentials {
    pub(crate) fn new(server: SocketAddr, common_name: &str) -> Self {
        let credentials = Self {
            folder: tempfile::tempdir().unwrap(),
        };
        credentials.rotate(common_name);
        let current = credentials.path("kubelet-client-current.pem");
        let kubeconfig = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {"server": format!("http://{server}")}}],
            "users": [{"name": "u", "user": {"client-certificate": current, "client-key": current}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        });
        fs::write(credentials.kubeconfig(), kubeconfig.to_string()).unwrap();
        credentials
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.path("kubelet.conf")
    }

    pub(crate) fn cluster(&self) -> Cluster {
        Cluster::new(&self.kubeconfig())
    }

    /// As the kubelet does it: a new file, and the link is replaced.
    pub(crate) fn rotate(&self, common_name: &str) {
        let count = fs::read_dir(self.folder.path()).unwrap().count();
        let dated = self.path(&format!("kubelet-client-{count}.pem"));
        fs::write(&dated, certificate(common_name)).unwrap();
        let link = self.path("link");
        std::os::unix::fs::symlink(&dated, &link).unwrap();
        fs::rename(link, self.path("kubelet-client-current.pem")).unwrap();
    }

    pub(crate) fn write(&self, name: &str, contents: &str) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, contents).unwrap();
        path
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }
}

fn certificate(common_name: &str) -> String {
    let mut parameters = rcgen::CertificateParams::default();
    let mut name = rcgen::DistinguishedName::new();
    name.push(rcgen::DnType::OrganizationName, "system:nodes");
    name.push(rcgen::DnType::CommonName, common_name);
    parameters.distinguished_name = name;
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = parameters.self_signed(&key).unwrap();
    format!("{}{}", certificate.pem(), key.serialize_pem())
}
