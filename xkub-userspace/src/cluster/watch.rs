//! Watches this node's Node, whatever becomes of the connection.

use std::{
    hash::{BuildHasher as _, RandomState},
    time::Duration,
};

use futures::{
    Stream, StreamExt as _,
    stream::{BoxStream, unfold},
};
use kube::core::{Request, WatchEvent, params::WatchParams};
use tokio::time::{sleep, timeout};

use super::{
    client::{Cluster, ClusterError},
    node::{self, NODES, NodeView},
};

/// When the server shall end a watch, seconds: whoever moved meanwhile is found again, and a certificate that
/// rotated is taken up.
const WATCH_SECONDS: u32 = 240;
/// How long a watch may be silent before it is taken for dead. The server sends a bookmark about every minute
/// (`bookmarkFrequency`, `k8s.io/apiserver`), so it is two of them.
const SILENCE: Duration = Duration::from_secs(130);

/// How long to wait before another try.
#[derive(Clone, Copy, Debug)]
struct Pace {
    first: Duration,
    most: Duration,
}

const PACE: Pace = Pace {
    first: Duration::from_secs(1),
    most: Duration::from_secs(30),
};

impl Pace {
    /// Doubles with every failure in a row. `spread` takes up to half of it away, so that the nodes of a cluster
    /// whose API comes back do not come all at once.
    fn delay(self, failures: u32, spread: u16) -> Duration {
        let Some(doublings) = failures.checked_sub(1) else {
            return Duration::ZERO;
        };
        let factor = 1_u32.checked_shl(doublings).unwrap_or(u32::MAX);
        let whole = self.first.saturating_mul(factor).min(self.most);
        let part = f64::from(spread) / f64::from(u16::MAX);
        whole.saturating_sub((whole / 2).mul_f64(part))
    }
}

/// This node's Node: as it is now, then at every change. Never ends. An error says that the Node can't be seen at
/// the moment, why, and is not the last word: it is tried again after a while that grows from one second to thirty.
///
/// Every connection begins with a read, so nothing that happened in between is missed, and a version that is too old
/// to be watched (410) is only a reason to read. A kubelet may watch Nodes with the field selector
/// `metadata.name=NAME` of its own.
#[must_use]
pub fn watch(cluster: Cluster) -> BoxStream<'static, Result<NodeView, ClusterError>> {
    paced(cluster, PACE).boxed()
}

fn paced(cluster: Cluster, pace: Pace) -> impl Stream<Item = Result<NodeView, ClusterError>> {
    let watch = Watch {
        cluster,
        pace,
        failures: 0,
        events: None,
        shown: String::new(),
    };
    unfold(watch, |mut watch| async move {
        let item = watch.next().await;
        Some((item, watch))
    })
}

struct Watch {
    cluster: Cluster,
    pace: Pace,
    /// Attempts in a row that brought nothing.
    failures: u32,
    events: Option<BoxStream<'static, Result<WatchEvent<NodeView>, ClusterError>>>,
    /// The version that was handed out last.
    shown: String,
}

impl Watch {
    async fn next(&mut self) -> Result<NodeView, ClusterError> {
        loop {
            let result = match self.events.as_mut() {
                None => self.begin().await.map(Some),
                // Silence ends a watch as its end does.
                Some(events) => {
                    if let Ok(Some(event)) = timeout(SILENCE, events.next()).await {
                        seen(event)
                    } else {
                        self.lose();
                        continue;
                    }
                }
            };
            match result {
                Ok(node) => {
                    self.failures = 0;
                    if let Some(node) = node
                        && node.resource_version != self.shown
                    {
                        self.shown.clone_from(&node.resource_version);
                        return Ok(node);
                    }
                }
                Err(ClusterError::Gone { .. }) => self.lose(),
                Err(error) => {
                    self.lose();
                    return Err(error);
                }
            }
        }
    }

    fn lose(&mut self) {
        self.events = None;
        self.failures = self.failures.saturating_add(1);
    }

    /// Reads the Node and begins to watch it.
    async fn begin(&mut self) -> Result<NodeView, ClusterError> {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "any sixteen bits of a random number will do"
        )]
        let spread = RandomState::new().hash_one(self.failures) as u16;
        sleep(self.pace.delay(self.failures, spread)).await;
        let connection = self.cluster.connection().await?;
        let node = node::read(&connection).await?;
        let name = connection.node_name();
        let parameters = WatchParams::default()
            .fields(&format!("metadata.name={name}"))
            .timeout(WATCH_SECONDS);
        let request = Request::new(NODES).watch(&parameters, &node.resource_version);
        let events = connection
            .events(&format!("watch Node {name}"), request)
            .await?;
        self.events = Some(events);
        Ok(node)
    }
}

/// The Node of an event; none for an event without news.
fn seen(
    event: Result<WatchEvent<NodeView>, ClusterError>,
) -> Result<Option<NodeView>, ClusterError> {
    match event? {
        WatchEvent::Added(node) | WatchEvent::Modified(node) => Ok(Some(node)),
        WatchEvent::Deleted(node) => Err(ClusterError::NotFound {
            doing: format!("watch Node {}", node.name),
        }),
        // An error in the stream is one by now.
        WatchEvent::Bookmark(_) | WatchEvent::Error(_) => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::cluster::testing::{Answer, Credentials, Server, node_json};

    /// Without waiting.
    const AT_ONCE: Pace = Pace {
        first: Duration::ZERO,
        most: Duration::ZERO,
    };

    fn version(version: &str) -> Answer {
        Answer::Json(200, node_json(version, &json!({}), &[]))
    }

    fn event(kind: &str, version: &str) -> Value {
        json!({"type": kind, "object": node_json(version, &json!({}), &[])})
    }

    #[test]
    fn tries_grow_apart() {
        let seconds = |failures, spread| PACE.delay(failures, spread).as_secs_f64();
        let table = [
            (0, 0, 0.0),
            (1, 0, 1.0),
            (1, u16::MAX, 0.5),
            (2, 0, 2.0),
            (5, 0, 16.0),
            (6, 0, 30.0),
            (6, u16::MAX, 15.0),
            (40, 0, 30.0),
            (u32::MAX, 0, 30.0),
        ];
        for (failures, spread, expected) in table {
            assert!(
                (seconds(failures, spread) - expected).abs() < 1e-6,
                "{failures}"
            );
        }
    }

    #[tokio::test]
    async fn whatever_happens_it_goes_on() {
        let gone = json!({"type": "ERROR", "object": {
            "kind": "Status", "status": "Failure", "reason": "Expired", "code": 410,
            "message": "too old resource version: 2 (3)",
        }});
        let bookmark = json!({"type": "BOOKMARK", "object": {
            "kind": "Node", "apiVersion": "v1", "metadata": {"resourceVersion": "2"},
        }});
        let server = Server::start(vec![
            version("1"),
            Answer::Events(vec![
                event("MODIFIED", "2"),
                bookmark,
                event("MODIFIED", "2"),
            ]),
            // The stream ended. Nothing new.
            version("2"),
            Answer::Events(vec![gone]),
            version("3"),
            Answer::failure(410, "too old resource version"),
            version("3"),
            Answer::Events(vec![
                json!({"type": "MODIFIED", "object": {"kind": "Node"}}),
            ]),
            Answer::failure(401, "Unauthorized"),
            version("4"),
            Answer::failure(500, "no"),
            version("4"),
            Answer::Events(vec![event("DELETED", "4")]),
            Answer::failure(404, "nodes \"worker-1\" not found"),
            version("5"),
            Answer::Open(vec![event("MODIFIED", "6")]),
        ])
        .await;
        let credentials = Credentials::new(server.address, "system:node:worker-1");
        let items: Vec<_> = paced(credentials.cluster(), AT_ONCE)
            .take(11)
            .collect()
            .await;
        let told: Vec<_> = items
            .iter()
            .map(|item| match item {
                Ok(node) => node.resource_version.as_str(),
                Err(ClusterError::Unauthorized { .. }) => "unauthorized",
                Err(ClusterError::NotFound { .. }) => "not found",
                Err(ClusterError::Api { .. }) => "server",
                Err(ClusterError::Other { .. }) => "nonsense",
                Err(_) => "unexpected",
            })
            .collect();
        let expected = [
            "1",
            "2",
            "3",
            "nonsense",
            "unauthorized",
            "server",
            "4",
            "not found",
            "not found",
            "5",
            "6",
        ];
        assert_eq!(told, expected, "{items:?}");
        let asked = server.asked();
        assert_eq!(asked[0].0, "GET /api/v1/nodes/worker-1");
        assert_eq!(
            asked[1].0,
            "GET /api/v1/nodes?&watch=true&timeoutSeconds=240&fieldSelector=metadata.name%3Dworker-1\
             &allowWatchBookmarks=true&resourceVersion=1"
        );
        assert_eq!(asked.len(), 16);
    }

    #[tokio::test]
    async fn an_api_that_is_away_is_told_and_awaited() {
        let address = std::net::TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap();
        let credentials = Credentials::new(address, "system:node:worker-1");
        let items: Vec<_> = paced(credentials.cluster(), AT_ONCE)
            .take(3)
            .collect()
            .await;
        for item in items {
            assert!(
                matches!(item, Err(ClusterError::Unreachable { .. })),
                "{item:?}"
            );
        }
    }
}
