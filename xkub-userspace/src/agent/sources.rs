//! Those who are asked from time to time, or tell when they have news: reflectors, and this node's Node. What they
//! said last is kept here, so that a look never waits for a network.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use futures::StreamExt as _;
use tokio::{
    sync::{Notify, watch},
    task::JoinHandle,
    time::sleep,
};

use crate::{
    address::{
        Family,
        reflector_client::{self, Server, Timing},
    },
    cluster::{
        self,
        client::{Cluster, ClusterError},
        node::{self, NodeView},
    },
    datapath::settings::DualAddress,
};

/// The end of a question to reflectors: some retransmissions, and no more than a node at boot can wait.
const ASK_LIMIT: Duration = Duration::from_secs(4);

/// What to ask reflectors for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Question {
    /// The interface to ask through.
    pub uplink: Option<String>,
    /// What it has addresses of.
    pub families: Vec<Family>,
}

/// What reflectors say, per family; nothing for one that was not asked for.
pub(super) type Seen = BTreeMap<Family, Result<IpAddr, String>>;

/// Asks reflectors once.
pub(super) async fn ask(servers: &[Server], question: &Question) -> Seen {
    let mut seen = Seen::new();
    if servers.is_empty() {
        return seen;
    }
    let settings = reflector_client::Settings {
        timing: Timing::within(ASK_LIMIT),
        uplink: question.uplink.clone(),
    };
    for family in &question.families {
        let answer = reflector_client::ask(servers, *family, &settings).await;
        seen.insert(
            *family,
            answer
                .map(|seen| seen.address)
                .map_err(|error| error.to_string()),
        );
    }
    seen
}

/// Reflectors that are asked again and again.
#[derive(Debug)]
pub(super) struct Reflectors {
    question: watch::Sender<Question>,
    seen: watch::Receiver<Seen>,
    again: Arc<Notify>,
}

impl Reflectors {
    /// Begins to ask as soon as there is a question.
    pub fn start(servers: Vec<Server>, interval: Duration) -> Self {
        let (question, mut questions) = watch::channel(Question::default());
        let (sender, seen) = watch::channel(Seen::new());
        let again = Arc::new(Notify::new());
        let wake = Arc::clone(&again);
        if !servers.is_empty() {
            tokio::spawn(async move {
                loop {
                    let question = questions.borrow_and_update().clone();
                    let new = ask(&servers, &question).await;
                    sender.send_if_modified(|old| {
                        let is_news = *old != new;
                        *old = new;
                        is_news
                    });
                    tokio::select! {
                        () = sleep(interval) => {}
                        () = wake.notified() => {}
                        changed = questions.changed() => if changed.is_err() {
                            return;
                        }
                    }
                }
            });
        }
        Self {
            question,
            seen,
            again,
        }
    }

    /// Asks another question from now on, or the same again when it is its time.
    pub fn set_question(&self, question: Question) {
        self.question.send_if_modified(|old| {
            let is_new = *old != question;
            *old = question;
            is_new
        });
    }

    /// Something has happened that may have changed the address: asks at once.
    pub fn ask_again(&self) {
        self.again.notify_one();
    }

    /// What they said last.
    pub fn seen(&self) -> Seen {
        self.seen.borrow().clone()
    }

    /// News, to be waited for.
    pub fn news(&self) -> watch::Receiver<Seen> {
        self.seen.clone()
    }
}

/// What is known of this node's Node.
#[derive(Clone, Debug)]
pub(super) enum NodeNews {
    /// Nobody has looked yet, or there is no kubeconfig.
    NotJoined,
    /// It can't be seen, for this reason.
    Failed(String),
    /// As it is.
    Seen(Arc<NodeView>),
}

impl NodeNews {
    pub fn of(result: Result<NodeView, ClusterError>) -> Self {
        match result {
            Ok(node) => Self::Seen(Arc::new(node)),
            Err(ClusterError::NotJoined(_)) => Self::NotJoined,
            Err(error) => Self::Failed(error.to_string()),
        }
    }
}

/// Reads this node's Node once.
pub(super) async fn read_node(cluster: &Cluster) -> NodeNews {
    let read = async { node::read(&cluster.connection().await?).await };
    NodeNews::of(read.await)
}

/// This node's Node, watched.
#[derive(Debug)]
pub(super) struct NodeWatch {
    kubeconfig: PathBuf,
    news: watch::Sender<NodeNews>,
    /// The node address at which answers arrive.
    address: DualAddress,
    cluster: Cluster,
    task: JoinHandle<()>,
}

impl NodeWatch {
    /// Begins to watch, and tells `news`.
    pub fn start(kubeconfig: &Path, news: watch::Sender<NodeNews>) -> Self {
        let (cluster, task) = begin(kubeconfig, news.clone());
        Self {
            kubeconfig: kubeconfig.to_owned(),
            news,
            address: DualAddress::default(),
            cluster,
            task,
        }
    }

    /// Begins anew, with new connections, when the node address has changed: what the API server sends on the old
    /// ones goes to the pod that was, and nobody tells this end. A watch would wait until its silence is too long.
    pub fn follow(&mut self, address: &DualAddress) {
        let has_moved = self.address != DualAddress::default() && self.address != *address;
        self.address = *address;
        if has_moved {
            self.task.abort();
            (self.cluster, self.task) = begin(&self.kubeconfig, self.news.clone());
        }
    }

    /// With which kubeconfig.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// The connection that it uses.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }
}

fn begin(kubeconfig: &Path, news: watch::Sender<NodeNews>) -> (Cluster, JoinHandle<()>) {
    let cluster = Cluster::new(kubeconfig);
    let mut stream = cluster::watch(cluster.clone());
    let task = tokio::spawn(async move {
        while let Some(result) = stream.next().await {
            if news.send(NodeNews::of(result)).is_err() {
                return;
            }
        }
    });
    (cluster, task)
}

impl Drop for NodeWatch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cluster::testing::{Answer, Credentials, Server, node_json};

    #[tokio::test]
    async fn a_watch_begins_anew_at_a_new_address() {
        let node = |version: &str, address: &str| node_json(version, &json!({}), &[address]);
        // Both watches stay open and say nothing, as one does whose answers go elsewhere.
        let server = Server::start(vec![
            Answer::Json(200, node("1", "10.244.1.226")),
            Answer::Open(Vec::new()),
            Answer::Json(200, node("2", "10.244.9.9")),
            Answer::Open(Vec::new()),
        ])
        .await;
        let credentials = Credentials::new(server.address, "system:node:worker-1");
        let news = watch::Sender::new(NodeNews::NotJoined);
        let mut heard = news.subscribe();
        let mut watch = NodeWatch::start(&credentials.kubeconfig(), news);
        let mut shows = async |address: &str| {
            let seen = heard.wait_for(
                |news| matches!(news, NodeNews::Seen(node) if node.addresses[0].address == address),
            );
            seen.await.unwrap();
        };
        let [old, new] = ["10.244.1.226", "10.244.9.9"].map(|address| DualAddress {
            v4: Some(address.parse().unwrap()),
            v6: None,
        });
        shows("10.244.1.226").await;
        // That the address is known now, or still the same, is no reason.
        watch.follow(&old);
        watch.follow(&old);
        watch.follow(&new);
        shows("10.244.9.9").await;
        let asked = server.asked();
        let reads = asked.iter().filter(|(line, _)| line.ends_with("/worker-1"));
        assert_eq!(reads.count(), 2, "{asked:?}");
    }
}
