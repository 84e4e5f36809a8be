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
use tokio::{
    net::{UnixListener, UnixStream},
    sync::{Notify, watch},
    time::timeout,
};
use tracing::debug;

use super::{
    action::{Action, Kind},
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
/// How long it may take to look before it answers: a worker's start waits for it.
const LOOK_TIMEOUT: Duration = Duration::from_secs(20);
/// What whoever asks says first, to be answered after a look that began later. Who says nothing is answered at once.
const LOOK: &[u8] = b"look";
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

/// How far the loop is.
#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    /// Looks that have begun.
    begun: u64,
    /// Looks that are over, with all that was done about them.
    done: u64,
    /// It waits for a worker that it restarts, and which therefore must not wait for it. All else that was planned is
    /// done by then.
    is_restarting: bool,
}

/// The status as it is now, shared by the loop and those who ask.
#[derive(Clone, Debug)]
pub struct Shared {
    state: Arc<Mutex<(Status, Instant)>>,
    progress: watch::Sender<Progress>,
    asked: Arc<Notify>,
}

impl Default for Shared {
    fn default() -> Self {
        Self {
            state: Arc::new(Mutex::new((Status::default(), Instant::now()))),
            progress: watch::Sender::default(),
            asked: Arc::default(),
        }
    }
}

impl Shared {
    /// A look begins.
    pub(super) fn begin(&self) {
        self.beat();
        self.progress.send_modify(|progress| {
            progress.begun = progress.begun.saturating_add(1);
        });
    }

    /// The loop has turned, or begins something that may take its time.
    pub(super) fn beat(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).1 = Instant::now();
    }

    /// An action is about to be carried out.
    pub(super) fn act(&self, action: &Action) {
        self.beat();
        let is_restarting = action.kind() == Kind::Restart;
        self.progress
            .send_modify(|progress| progress.is_restarting = is_restarting);
    }

    /// The look is over. Says something new.
    pub(super) fn set(&self, status: Status) {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = (status, Instant::now());
        self.progress.send_modify(|progress| {
            progress.done = progress.begun;
            progress.is_restarting = false;
        });
    }

    /// What there is to say.
    #[must_use]
    pub fn get(&self) -> Status {
        let guard = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (status, beat) = &*guard;
        Status {
            live: beat.elapsed() < LIVE_LIMIT,
            ..status.clone()
        }
    }

    /// Somebody wants the agent to look.
    pub(super) async fn asked(&self) {
        self.asked.notified().await;
    }

    /// Makes the agent look, and waits until a look that began after this call is over; or until the agent waits for a
    /// worker's start itself.
    async fn look(&self) {
        let mut progress = self.progress.subscribe();
        let begun = progress.borrow_and_update().begun;
        self.asked.notify_one();
        let is_over = |progress: &Progress| progress.is_restarting || progress.done > begun;
        // The sender is ours.
        let _: Result<_, watch::error::RecvError> = progress.wait_for(is_over).await;
    }
}

/// Why an agent could not be asked.
#[derive(Debug, Error)]
pub enum StatusError {
    /// Nobody listens.
    #[error("no agent answers at {}: {reason}; is it running? systemctl status xkub-agent", path.display())]
    NoAgent {
        /// The socket.
        path: PathBuf,
        /// The system's answer.
        reason: io::Error,
    },
    /// It does not get to it.
    #[error("the agent did not look within {} s; what it waits for: journalctl -u xkub-agent", LOOK_TIMEOUT.as_secs())]
    NoLook,
    /// An answer that is no status.
    #[error("the answer at {} is no status; is the agent of this version?", .0.display())]
    NotAStatus(PathBuf),
}

/// When the agent answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// At once.
    Now,
    /// After a look at the node that begins now, and after what there is to do about it.
    AfterLook,
}

/// Asks the agent whose state directory this is. Blocks.
///
/// # Errors
/// [`StatusError`].
pub fn ask(directory: &Path, when: Ask) -> Result<Status, StatusError> {
    use std::{
        io::{Read as _, Write as _},
        net::Shutdown,
        os::unix::net::UnixStream,
    };

    let path = directory.join(SOCKET);
    let (words, limit) = match when {
        Ask::Now => (&b""[..], ANSWER_TIMEOUT),
        Ask::AfterLook => (LOOK, LOOK_TIMEOUT + ANSWER_TIMEOUT),
    };
    let ask = || {
        let mut stream = UnixStream::connect(&path)?;
        stream.set_read_timeout(Some(limit))?;
        stream.write_all(words)?;
        stream.shutdown(Shutdown::Write)?;
        let mut text = String::new();
        stream.take(MAX_STATUS).read_to_string(&mut text)?;
        Ok(text)
    };
    let text = ask().map_err(|reason| StatusError::NoAgent {
        path: path.clone(),
        reason,
    })?;
    if text.is_empty() && when == Ask::AfterLook {
        return Err(StatusError::NoLook);
    }
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
                    // Whoever asks may have gone, and must not keep others waiting.
                    let shared = shared.clone();
                    tokio::spawn(async move {
                        if let Err(error) = answer(&stream, &shared).await {
                            debug!(%error, "nobody took the status");
                        }
                    });
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

/// Answers one who asks. Nothing is said to one whose look does not come in time.
async fn answer(stream: &UnixStream, shared: &Shared) -> io::Result<()> {
    let words = timeout(ANSWER_TIMEOUT, read_words(stream)).await??;
    if words == LOOK && timeout(LOOK_TIMEOUT, shared.look()).await.is_err() {
        return Ok(());
    }
    let text = serde_json::to_vec(&shared.get()).unwrap_or_default();
    timeout(ANSWER_TIMEOUT, write_all(stream, &text)).await?
}

/// What the other side says until it is silent; of one that says too much, what it begins with.
async fn read_words(stream: &UnixStream) -> io::Result<Vec<u8>> {
    let mut words = Vec::new();
    while words.len() <= LOOK.len() {
        stream.readable().await?;
        let mut buffer = [0; 8];
        match stream.try_read(&mut buffer) {
            Ok(0) => break,
            Ok(read) => words.extend_from_slice(buffer.get(..read).unwrap_or_default()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(words)
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

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures::FutureExt as _;

    use super::*;

    fn restart() -> Action {
        Action::Restart {
            unit: "k0sworker.service".to_owned(),
            why: "test".to_owned(),
        }
    }

    #[test]
    fn a_look_that_had_begun_does_not_count() {
        let shared = Shared::default();
        shared.begin();
        let mut look = pin!(shared.look());
        assert_eq!(look.as_mut().now_or_never(), None);
        assert_eq!(shared.asked().now_or_never(), Some(()));
        shared.set(Status::default());
        assert_eq!(look.as_mut().now_or_never(), None);
        shared.begin();
        assert_eq!(look.as_mut().now_or_never(), None);
        shared.set(Status::default());
        assert_eq!(look.now_or_never(), Some(()));
    }

    #[test]
    fn a_worker_that_the_agent_starts_does_not_wait_for_it() {
        let shared = Shared::default();
        shared.begin();
        shared.act(&restart());
        assert_eq!(shared.look().now_or_never(), Some(()));
        shared.set(Status::default());
        assert_eq!(shared.look().now_or_never(), None);
    }
}
