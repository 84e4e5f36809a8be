//! The connection to the guest cluster's API: made from the kubelet's kubeconfig, and made anew when its
//! certificate rotates.

use std::{
    fmt, fs,
    io::ErrorKind,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use futures::{Stream, StreamExt as _, stream::BoxStream};
use http::Request;
use kube::{
    Client, Config,
    client::AuthError,
    config::{AuthInfo, KubeConfigOptions, Kubeconfig, KubeconfigError},
    core::{Status, WatchEvent, request},
};
use serde::de::DeserializeOwned;
use thiserror::Error;
use tokio::{sync::Mutex, time::timeout};
use x509_parser::pem::Pem;

use crate::files::{self, FileError};

/// How long a connection may take to come up: the API is some milliseconds away, or it is away.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// How long a request may take, connection included; of a watch: until it begins.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// More than any file of certificates holds, in bytes.
const MAX_CERTIFICATE_FILE: u64 = 1 << 20;
/// What a node's common name begins with.
const NODE_PREFIX: &str = "system:node:";

const NONSENSE: &str = "the server's answer is not what the Kubernetes API sends";

/// Why the guest cluster's API did not do what it was asked. Holds nothing of what the credentials hold.
#[derive(Debug, Error)]
pub enum ClusterError {
    /// There is no kubeconfig yet.
    #[error("{} is not there: this node has not joined yet", .0.display())]
    NotJoined(PathBuf),
    /// The kubeconfig can't be used.
    #[error("{} can't be used as a kubeconfig: {why}", path.display())]
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The kubeconfig does not say which node this is.
    #[error(
        "{} does not say which node this is: {why}; name the kubelet's own kubeconfig, not that of its bootstrap",
        path.display()
    )]
    NotANode {
        /// The kubeconfig.
        path: PathBuf,
        /// What was found in it.
        why: String,
    },
    /// A file that the kubeconfig names can't be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// No answer, or not in time.
    #[error("no answer from {server} to {doing}: {why}")]
    Unreachable {
        /// The API server's URL.
        server: String,
        /// What was tried: "read Node worker-1".
        doing: String,
        /// What the network, or TLS, said.
        why: String,
    },
    /// 401.
    #[error(
        "{server} does not know the credentials of {}: the certificate has ended, or is of another cluster",
        kubeconfig.display()
    )]
    Unauthorized {
        /// The API server's URL.
        server: String,
        /// Whose credentials.
        kubeconfig: PathBuf,
    },
    /// 403.
    #[error("this node may not {doing}: {why}")]
    Forbidden {
        /// What was tried.
        doing: String,
        /// The server's words.
        why: String,
    },
    /// 404.
    #[error("can't {doing}: there is none")]
    NotFound {
        /// What was tried.
        doing: String,
    },
    /// 409: someone else was faster.
    #[error("can't {doing}: it has changed meanwhile")]
    Conflict {
        /// What was tried.
        doing: String,
    },
    /// 410: what a watch began with is too old.
    #[error("can't {doing}: too much has happened since")]
    Gone {
        /// What was tried.
        doing: String,
    },
    /// Any other answer.
    #[error("can't {doing}: the server says {code}: {why}")]
    Api {
        /// What was tried.
        doing: String,
        /// The HTTP status.
        code: u16,
        /// The server's words.
        why: String,
    },
    /// Neither asked nor answered as it should be.
    #[error("can't {doing}: {why}")]
    Other {
        /// What was tried.
        doing: String,
        /// What went wrong.
        why: &'static str,
    },
}

/// The guest cluster as this node reaches it. Clones share the connection.
#[derive(Clone, Debug)]
pub struct Cluster {
    kubeconfig: Arc<Path>,
    current: Arc<Mutex<Option<Loaded>>>,
}

#[derive(Debug)]
struct Loaded {
    connection: Connection,
    files: Vec<(PathBuf, Option<Identity>)>,
}

/// What tells one version of a file from the next, even if it was replaced through a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Identity {
    device: u64,
    inode: u64,
    bytes: u64,
    modified: (i64, i64),
}

impl Identity {
    fn of(path: &Path) -> Option<Self> {
        let metadata = fs::metadata(path).ok()?;
        Some(Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            bytes: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
        })
    }
}

impl Cluster {
    /// The cluster that a kubelet's kubeconfig names: `/var/lib/k0s/kubelet.conf`,
    /// `/etc/kubernetes/kubelet.conf`, … Reads nothing yet.
    #[must_use]
    pub fn new(kubeconfig: &Path) -> Self {
        Self {
            kubeconfig: kubeconfig.into(),
            current: Arc::default(),
        }
    }

    /// The connection: the one there is, or a new one if the kubeconfig, or a file that it names, is another now.
    ///
    /// # Errors
    /// [`ClusterError::NotJoined`], [`ClusterError::Kubeconfig`], [`ClusterError::NotANode`],
    /// [`ClusterError::File`]. Whether the server answers is not tried.
    pub async fn connection(&self) -> Result<Connection, ClusterError> {
        let mut current = self.current.lock().await;
        if let Some(loaded) = &*current
            && loaded
                .files
                .iter()
                .all(|(path, identity)| Identity::of(path) == *identity)
        {
            return Ok(loaded.connection.clone());
        }
        // Nothing stays of credentials that are no longer the node's.
        *current = None;
        let loaded = load(&self.kubeconfig).await?;
        let connection = loaded.connection.clone();
        *current = Some(loaded);
        Ok(connection)
    }
}

async fn load(path: &Path) -> Result<Loaded, ClusterError> {
    // Looked at before they are read: what changes in between is noticed the next time.
    let mut files = vec![(path.to_owned(), Identity::of(path))];
    let unusable = |error: KubeconfigError| kubeconfig_error(path, &error);
    let kubeconfig = Kubeconfig::read_from(path).map_err(unusable)?;
    files.extend(named_files(&kubeconfig).map(|file| {
        let identity = Identity::of(&file);
        (file, identity)
    }));
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .map_err(unusable)?;
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    config.write_timeout = Some(REQUEST_TIMEOUT);
    // Whoever asks decides when to ask again.
    config.default_retry = false;
    let node_name = node_name(path, &config.auth_info)?;
    let server = config.cluster_url.to_string();
    let client = Client::try_from(config).map_err(|error| match error {
        kube::Error::InferKubeconfig(error) => unusable(error),
        _ => ClusterError::Kubeconfig {
            path: path.to_owned(),
            why: "its certificates or its key can't be used",
        },
    })?;
    Ok(Loaded {
        connection: Connection {
            client,
            server: server.trim_end_matches('/').into(),
            node_name: node_name.into(),
            kubeconfig: path.into(),
        },
        files,
    })
}

fn named_files(kubeconfig: &Kubeconfig) -> impl Iterator<Item = PathBuf> {
    let authorities = kubeconfig
        .clusters
        .iter()
        .filter_map(|named| named.cluster.as_ref()?.certificate_authority.as_ref());
    let identities = kubeconfig
        .auth_infos
        .iter()
        .filter_map(|named| named.auth_info.as_ref())
        .flat_map(|user| [&user.client_certificate, &user.client_key])
        .flatten();
    authorities.chain(identities).map(PathBuf::from)
}

/// The causes in words of ours: those of the parser may quote the file.
fn kubeconfig_error(path: &Path, error: &KubeconfigError) -> ClusterError {
    let why = match error {
        KubeconfigError::ReadConfig(error, _) if error.kind() == ErrorKind::NotFound => {
            return ClusterError::NotJoined(path.to_owned());
        }
        KubeconfigError::ReadConfig(..) => "it can't be read",
        KubeconfigError::Parse(_) => "it is not YAML of that kind",
        KubeconfigError::CurrentContextNotSet | KubeconfigError::LoadContext(_) => {
            "it has no current context"
        }
        KubeconfigError::LoadClusterOfContext(_) => "its context's cluster is missing",
        KubeconfigError::MissingClusterUrl | KubeconfigError::ParseClusterUrl(_) => {
            "its `server:` is missing or not a URL"
        }
        KubeconfigError::LoadCertificateAuthority(_) | KubeconfigError::ParseCertificates(_) => {
            "its certificate authority can't be read"
        }
        KubeconfigError::LoadClientCertificate(_) => "its client certificate can't be read",
        KubeconfigError::LoadClientKey(_) => "its client key can't be read",
        _ => "it is incomplete",
    };
    ClusterError::Kubeconfig {
        path: path.to_owned(),
        why,
    }
}

/// The node that a kubeconfig's client certificate stands for: its common name is `system:node:NAME`.
fn node_name(kubeconfig: &Path, user: &AuthInfo) -> Result<String, ClusterError> {
    let not_a_node = |why: String| ClusterError::NotANode {
        path: kubeconfig.to_owned(),
        why,
    };
    let pem = if let Some(data) = &user.client_certificate_data {
        base64::Engine::decode(&base64::engine::general_purpose::STANDARD, data.trim())
            .map_err(|_| not_a_node("its client certificate is not base64".to_owned()))?
    } else if let Some(path) = &user.client_certificate {
        files::read(Path::new(path), MAX_CERTIFICATE_FILE)?
            .ok_or_else(|| not_a_node(format!("{path} is not there")))?
    } else {
        return Err(not_a_node("it has no client certificate".to_owned()));
    };
    let name = common_name(&pem)
        .ok_or_else(|| not_a_node("its client certificate is none that can be read".to_owned()))?;
    match name.strip_prefix(NODE_PREFIX) {
        Some(node) if !node.is_empty() => Ok(node.to_owned()),
        _ => Err(not_a_node(format!(
            "its client certificate is for `{name}`, and a node's is for `{NODE_PREFIX}NAME`"
        ))),
    }
}

/// The common name of the first certificate; the kubelet keeps its key in the same file.
fn common_name(pem: &[u8]) -> Option<String> {
    let block = Pem::iter_from_buffer(pem)
        .filter_map(Result::ok)
        .find(|block| block.label == "CERTIFICATE")?;
    let certificate = block.parse_x509().ok()?;
    let name = certificate.subject().iter_common_name().next()?;
    name.as_str().ok().map(str::to_owned)
}

/// What the API is asked through.
#[derive(Clone)]
pub struct Connection {
    client: Client,
    server: Arc<str>,
    node_name: Arc<str>,
    kubeconfig: Arc<Path>,
}

impl fmt::Debug for Connection {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Connection")
            .field("server", &self.server)
            .field("node_name", &self.node_name)
            .finish_non_exhaustive()
    }
}

type Built = Result<Request<Vec<u8>>, request::Error>;

impl Connection {
    /// This node's name, from its certificate.
    #[must_use]
    pub fn node_name(&self) -> &str {
        &self.node_name
    }

    /// The API server's URL.
    #[must_use]
    pub fn server(&self) -> &str {
        &self.server
    }

    /// Sends a request and reads its answer. `doing` names it in errors: "read Node worker-1".
    pub(super) async fn ask<T: DeserializeOwned>(
        &self,
        doing: &str,
        request: Built,
    ) -> Result<T, ClusterError> {
        let request = request.map_err(|_| not_a_request(doing))?;
        timeout(REQUEST_TIMEOUT, self.client.request(request))
            .await
            .map_err(|_| self.too_slow(doing))?
            .map_err(|error| self.classify(doing, error))
    }

    /// Begins a watch.
    pub(super) async fn events<T: Clone + DeserializeOwned + Send + 'static>(
        &self,
        doing: &str,
        request: Built,
    ) -> Result<BoxStream<'static, Result<WatchEvent<T>, ClusterError>>, ClusterError> {
        let request = request.map_err(|_| not_a_request(doing))?;
        let events = timeout(REQUEST_TIMEOUT, self.client.request_events(request))
            .await
            .map_err(|_| self.too_slow(doing))?
            .map_err(|error| self.classify(doing, error))?;
        Ok(self.classified(doing, events))
    }

    fn classified<T: Send + 'static>(
        &self,
        doing: &str,
        events: impl Stream<Item = Result<WatchEvent<T>, kube::Error>> + Send + 'static,
    ) -> BoxStream<'static, Result<WatchEvent<T>, ClusterError>> {
        let (connection, doing) = (self.clone(), doing.to_owned());
        events
            .map(move |event| match event {
                Ok(WatchEvent::Error(status)) => Err(connection.answer(&doing, *status)),
                other => other.map_err(|error| connection.classify(&doing, error)),
            })
            .boxed()
    }

    fn too_slow(&self, doing: &str) -> ClusterError {
        self.unreachable(
            doing,
            format!("nothing for {} s", REQUEST_TIMEOUT.as_secs()),
        )
    }

    fn unreachable(&self, doing: &str, why: String) -> ClusterError {
        ClusterError::Unreachable {
            server: self.server.to_string(),
            doing: doing.to_owned(),
            why,
        }
    }

    fn classify(&self, doing: &str, error: kube::Error) -> ClusterError {
        let why = match error {
            kube::Error::Api(status) => return self.answer(doing, *status),
            // The output of a credential plugin is in this one.
            kube::Error::Service(error) if error.is::<AuthError>() => {
                "the kubeconfig's credentials can't be used"
            }
            kube::Error::HyperError(_) | kube::Error::Service(_) | kube::Error::ReadEvents(_) => {
                return self.unreachable(doing, root_cause(&error));
            }
            kube::Error::Auth(_) => "the kubeconfig's credentials can't be used",
            kube::Error::SerdeError(_) | kube::Error::FromUtf8(_) => NONSENSE,
            _ => "the request could not be made",
        };
        ClusterError::Other {
            doing: doing.to_owned(),
            why,
        }
    }

    /// What an answer that is no success means.
    fn answer(&self, doing: &str, status: Status) -> ClusterError {
        let doing = doing.to_owned();
        match status.code {
            401 => ClusterError::Unauthorized {
                server: self.server.to_string(),
                kubeconfig: self.kubeconfig.to_path_buf(),
            },
            403 => ClusterError::Forbidden {
                doing,
                why: status.message,
            },
            404 => ClusterError::NotFound { doing },
            409 => ClusterError::Conflict { doing },
            410 => ClusterError::Gone { doing },
            // What a watch sent was not an event, and kube takes any object for a status.
            0 => ClusterError::Other {
                doing,
                why: NONSENSE,
            },
            code => ClusterError::Api {
                doing,
                code,
                why: status.message,
            },
        }
    }
}

fn not_a_request(doing: &str) -> ClusterError {
    ClusterError::Other {
        doing: doing.to_owned(),
        why: "the request could not be made",
    }
}

/// The innermost cause, which is the one that names it: "Connection refused".
pub(super) fn root_cause(error: &kube::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    cause.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::{
        node,
        testing::{Answer, Credentials, Server, node_json},
    };

    /// What must never be seen.
    const SECRET: &str = "abcdef.0123456789abcdef";

    #[tokio::test]
    async fn a_certificate_that_rotates_makes_a_new_connection() {
        let credentials = Credentials::new(([127, 0, 0, 1], 1).into(), "system:node:worker-1");
        let cluster = credentials.cluster();
        let first = cluster.connection().await.unwrap();
        assert_eq!(first.node_name(), "worker-1");
        assert_eq!(first.server(), "http://127.0.0.1:1");
        let same = cluster.clone().connection().await.unwrap();
        assert!(Arc::ptr_eq(&first.node_name, &same.node_name));
        credentials.rotate("system:node:worker-2");
        let second = cluster.connection().await.unwrap();
        assert_eq!(second.node_name(), "worker-2");
    }

    #[tokio::test]
    async fn a_kubeconfig_that_is_torn_for_a_while_is_read_again() {
        let credentials = Credentials::new(([127, 0, 0, 1], 1).into(), "system:node:worker-1");
        let cluster = credentials.cluster();
        cluster.connection().await.unwrap();
        let whole = fs::read_to_string(credentials.kubeconfig()).unwrap();
        credentials.write("kubelet.conf", &whole[..whole.len() / 2]);
        let error = cluster.connection().await.unwrap_err();
        assert!(matches!(error, ClusterError::Kubeconfig { .. }), "{error}");
        credentials.write("kubelet.conf", &whole);
        cluster.connection().await.unwrap();
    }

    #[tokio::test]
    async fn what_is_wrong_with_a_kubeconfig_is_said_without_what_is_in_it() {
        let credentials = Credentials::new(([127, 0, 0, 1], 1).into(), "admin");
        let with = |user: &str| {
            format!(
                "apiVersion: v1\nkind: Config\ncurrent-context: x\n\
                 clusters: [{{name: c, cluster: {{server: 'http://127.0.0.1:1'}}}}]\n\
                 contexts: [{{name: x, context: {{cluster: c, user: u}}}}]\n\
                 users: [{{name: u, user: {user}}}]\n"
            )
        };
        let folder = credentials.folder().display();
        let table = [
            (format!("token: {{{SECRET}"), "it is not YAML of that kind"),
            (format!("users: {SECRET}"), "it is not YAML of that kind"),
            ("kind: Config".to_owned(), "it has no current context"),
            (
                with(&format!("{{token: '{SECRET}'}}")),
                "it has no client certificate",
            ),
            (
                with(&format!("{{client-certificate-data: '{SECRET}'}}")),
                "its client certificate is not base64",
            ),
            (
                with("{client-certificate-data: 'bm8gUEVN'}"),
                "its client certificate is none that can be read",
            ),
            (
                with("{client-certificate: none.pem}"),
                "none.pem is not there",
            ),
            (
                with("{client-certificate: kubelet-client-current.pem}"),
                "is for `admin`, and a node's is for `system:node:NAME`",
            ),
            (
                with(&format!("{{client-certificate: '{folder}'}}")),
                "is not a regular file",
            ),
        ];
        for (kubeconfig, expected) in table {
            let path = credentials.write("case.conf", &kubeconfig);
            let error = Cluster::new(&path).connection().await.unwrap_err();
            assert!(error.to_string().contains(expected), "{error}");
            let all = format!("{error} {error:?}");
            assert!(!all.contains(SECRET), "{all}");
        }

        credentials.rotate("system:node:worker-1");
        // What a torn write leaves: a certificate whose key is not there, or is no key.
        let pem =
            fs::read_to_string(credentials.folder().join("kubelet-client-current.pem")).unwrap();
        let end = pem.find("-----BEGIN PRIVATE KEY").unwrap();
        credentials.write("certificate.pem", &pem[..end]);
        credentials.write("key.pem", SECRET);
        for (key, expected) in [
            ("missing.pem", "its client key can't be read"),
            ("key.pem", "its certificates or its key can't be used"),
        ] {
            let user = format!("{{client-certificate: certificate.pem, client-key: {key}}}");
            let path = credentials.write("case.conf", &with(&user));
            let error = Cluster::new(&path).connection().await.unwrap_err();
            assert!(error.to_string().contains(expected), "{error}");
            assert!(!format!("{error} {error:?}").contains(SECRET), "{error:?}");
        }

        let missing = credentials.folder().join("missing.conf");
        let error = Cluster::new(&missing).connection().await.unwrap_err();
        assert!(matches!(error, ClusterError::NotJoined(_)), "{error}");
    }

    #[tokio::test]
    async fn every_answer_has_its_error() {
        let server = Server::start(vec![
            Answer::failure(401, "Unauthorized"),
            Answer::failure(403, "nodes \"worker-1\" is forbidden"),
            Answer::failure(404, "nodes \"worker-1\" not found"),
            Answer::failure(409, "the object has been modified"),
            Answer::failure(410, "too old resource version"),
            Answer::failure(503, "etcd leader changed"),
            Answer::Json(200, serde_json::json!({"kind": "Pod"})),
            Answer::Json(200, node_json("7", &serde_json::json!({}), &["10.244.1.5"])),
        ])
        .await;
        let credentials = Credentials::new(server.address, "system:node:worker-1");
        let connection = credentials.cluster().connection().await.unwrap();
        let is_expected: [fn(&ClusterError) -> bool; 7] = [
            |error| matches!(error, ClusterError::Unauthorized { .. }),
            |error| matches!(error, ClusterError::Forbidden { why, .. } if why.ends_with("is forbidden")),
            |error| matches!(error, ClusterError::NotFound { .. }),
            |error| matches!(error, ClusterError::Conflict { .. }),
            |error| matches!(error, ClusterError::Gone { .. }),
            |error| matches!(error, ClusterError::Api { code: 503, .. }),
            |error| matches!(error, ClusterError::Other { .. }),
        ];
        for is_expected in is_expected {
            let error = node::read(&connection).await.unwrap_err();
            assert!(is_expected(&error), "{error:?}");
        }
        let node = node::read(&connection).await.unwrap();
        assert_eq!(node.resource_version, "7");
        // Nothing was tried twice behind our back.
        assert_eq!(server.asked().len(), 8);
    }

    #[tokio::test]
    async fn a_server_that_is_not_there_is_unreachable() {
        let address = std::net::TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap();
        let credentials = Credentials::new(address, "system:node:worker-1");
        let connection = credentials.cluster().connection().await.unwrap();
        let error = node::read(&connection).await.unwrap_err();
        let expected = format!(
            "no answer from http://{address} to read Node worker-1: Connection refused (os error 111)"
        );
        assert_eq!(error.to_string(), expected);
    }
}
