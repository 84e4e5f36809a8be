//! What the agent thinks of its node, for whoever asks: the document behind `xkub status`, and the socket that it is
//! asked through.

use std::{
    collections::BTreeMap,
    fs, io,
    net::IpAddr,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};
use thiserror::Error;
use tokio::net::{UnixListener, UnixStream};
use tracing::debug;

use super::{
    action::Action,
    apply::Outcome,
    observe::{NodeState, Observation, Refusal},
    plan::Plan,
};

const SOCKET: &str = "agent.sock";
/// Root alone: a status names addresses and servers.
const SOCKET_MODE: u32 = 0o600;
/// Larger than any status, bytes.
const MAX_STATUS: u64 = 1 << 20;
/// How long the agent may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// A loop that has not turned for so long hangs: longer than a worker's restart.
const LIVE_LIMIT: Duration = Duration::from_secs(120);

/// The state of an agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// The agent's version.
    pub version: String,
    /// Whether its loop turns.
    pub live: bool,
    /// Whether there is a node address, and all that was planned for it is done.
    pub ready: bool,
    /// The uplink.
    pub uplink: Option<String>,
    /// The node address in force, at most one of each family.
    pub node_addresses: Vec<IpAddr>,
    /// Which source told it, by family.
    pub sources: BTreeMap<String, String>,
    /// Answers that don't count.
    pub refusals: Vec<RefusalLine>,
    /// The worker, if there is one: `k0s (k0sworker.service)`.
    pub worker: Option<String>,
    /// The addresses that this node's Node shows, or why they are not known.
    pub node: String,
    /// Actions of the last plan that are not done.
    pub pending: Vec<String>,
    /// What is waited for.
    pub waiting: Vec<String>,
    /// What is wrong, and what to do about it.
    pub problems: Vec<String>,
    /// How often the agent has looked.
    pub reconciles: u64,
}

/// An answer that does not count.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusalLine {
    /// The source.
    pub source: String,
    /// The answer.
    pub address: IpAddr,
    /// In one word.
    pub reason: String,
    /// In a sentence.
    pub message: String,
}

impl From<&Refusal> for RefusalLine {
    fn from(refusal: &Refusal) -> Self {
        let Refusal {
            source,
            address,
            reason,
            message,
        } = refusal.clone();
        Self {
            source,
            address,
            reason,
            message,
        }
    }
}

impl Status {
    /// What to say after a plan was applied.
    pub(super) fn of(
        observation: &Observation,
        plan: &Plan,
        outcomes: &[(Action, Outcome)],
        node_addresses: Vec<IpAddr>,
        reconciles: u64,
    ) -> Self {
        let mut problems = plan.problems.clone();
        let mut pending = Vec::new();
        for (action, outcome) in outcomes {
            match outcome {
                Outcome::Done => {}
                Outcome::Skipped => pending.push(action.to_string()),
                Outcome::Failed(why) => {
                    pending.push(action.to_string());
                    problems.push(why.clone());
                }
            }
        }
        let refusals = &observation.address.refusals;
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            live: true,
            ready: pending.is_empty() && !node_addresses.is_empty(),
            uplink: observation
                .uplink
                .as_ref()
                .ok()
                .map(|uplink| uplink.name.clone()),
            node_addresses,
            sources: observation
                .address
                .source
                .iter()
                .map(|(family, source)| ((*family).to_owned(), source.clone()))
                .collect(),
            refusals: refusals.iter().map(RefusalLine::from).collect(),
            worker: match &observation.worker {
                Ok(Some(worker)) => Some(format!("{} ({})", worker.distribution, worker.unit)),
                _ => None,
            },
            node: match &observation.node {
                NodeState::NotJoined => "not joined yet".to_owned(),
                NodeState::Unknown(why) => why.clone(),
                NodeState::Shows(addresses) => {
                    let words: Vec<String> = addresses.iter().map(ToString::to_string).collect();
                    format!("shows {}", words.join(", "))
                }
            },
            pending,
            waiting: plan.waiting.clone(),
            problems,
            reconciles,
        }
    }
}

/// The status as it is now, shared by the loop and those who ask.
#[derive(Clone, Debug)]
pub struct Shared(Arc<Mutex<(Status, Instant)>>);

impl Default for Shared {
    fn default() -> Self {
        Self(Arc::new(Mutex::new((Status::default(), Instant::now()))))
    }
}

impl Shared {
    /// The loop has turned, or begins something that may take its time.
    pub(super) fn beat(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).1 = Instant::now();
    }

    /// Says something new.
    pub(super) fn set(&self, status: Status) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = (status, Instant::now());
    }

    /// What there is to say.
    #[must_use]
    pub fn get(&self) -> Status {
        let guard = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (status, beat) = &*guard;
        Status {
            live: beat.elapsed() < LIVE_LIMIT,
            ..status.clone()
        }
    }
}

/// Why an agent could not be asked.
#[derive(Debug, Error)]
pub enum StatusError {
    /// Nobody listens.
    #[error("no agent answers at {}: {source}; is it running? systemctl status xkub-agent", path.display())]
    NoAgent {
        /// The socket.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// An answer that is no status.
    #[error("the answer at {} is no status; is the agent of this version?", .0.display())]
    NotAStatus(PathBuf),
}

/// Asks the agent whose state directory this is. Blocks.
///
/// # Errors
/// [`StatusError`].
pub fn ask(directory: &Path) -> Result<Status, StatusError> {
    use std::{io::Read as _, os::unix::net::UnixStream};

    let path = directory.join(SOCKET);
    let ask = || {
        let stream = UnixStream::connect(&path)?;
        stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        let mut text = String::new();
        stream.take(MAX_STATUS).read_to_string(&mut text)?;
        Ok(text)
    };
    let text = ask().map_err(|source| StatusError::NoAgent {
        path: path.clone(),
        source,
    })?;
    serde_json::from_str(&text).map_err(|_| StatusError::NotAStatus(path))
}

/// Answers whoever connects with the status, as JSON. Whoever holds the lock may take the socket's place.
pub(super) fn serve(directory: &Path, shared: Shared) -> io::Result<()> {
    let path = directory.join(SOCKET);
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(&path)?;
    fs::set_permissions(&path, fs::Permissions::from_mode(SOCKET_MODE))?;
    tokio::spawn(async move {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => {
                    let text = serde_json::to_vec(&shared.get()).unwrap_or_default();
                    // Whoever asks may have gone, and must not keep others waiting.
                    let write = tokio::time::timeout(ANSWER_TIMEOUT, write_all(&stream, &text));
                    if let Ok(Err(error)) = write.await {
                        debug!(%error, "nobody took the status");
                    }
                }
                Err(error) => {
                    debug!(%error, "nobody can ask for the status for a moment");
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
            }
        }
    });
    Ok(())
}

async fn write_all(stream: &UnixStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        stream.writable().await?;
        match stream.try_write(bytes) {
            Ok(written) => bytes = bytes.get(written..).unwrap_or_default(),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
