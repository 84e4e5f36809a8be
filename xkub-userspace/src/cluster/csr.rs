//! The certificate signing requests of this node's kubelet for its serving certificate, and what has become of
//! them.

use std::{
    fmt,
    time::{Duration, SystemTime},
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::core::{Request, params::ListParams};
use serde::Deserialize;

use super::client::{ClusterError, Connection};

/// The signer of serving certificates.
pub const KUBELET_SERVING: &str = "kubernetes.io/kubelet-serving";
const PATH: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
/// Requests in one answer: a few hundred KiB.
const PAGE: u32 = 100;
/// No cluster has that many: requests go after an hour, those that nobody approves after a day
/// (`pkg/controller/certificates/cleaner`, Kubernetes).
const MOST_PAGES: u32 = 500;

/// A certificate signing request, without what is in it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(from = "wire::Csr")]
pub struct CsrView {
    /// Its name.
    pub name: String,
    /// Who made it: `system:node:NAME`.
    pub username: String,
    /// When.
    pub created: SystemTime,
    /// Whether someone approved it.
    pub is_approved: bool,
    /// Why someone denied it.
    pub denied: Option<String>,
    /// Why the signer could not sign it.
    pub failed: Option<String>,
    /// Whether the certificate is there.
    pub is_issued: bool,
}

/// The request as the API sends it (`k8s.io/api/certificates/v1`).
mod wire {
    use serde::de::IgnoredAny;

    use super::{CsrView, Deserialize, Time};

    #[derive(Deserialize)]
    pub(super) struct Csr {
        metadata: Metadata,
        spec: Spec,
        #[serde(default)]
        status: Status,
    }

    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Metadata {
        name: String,
        creation_timestamp: Time,
    }

    #[derive(Deserialize)]
    struct Spec {
        #[serde(default)]
        username: String,
    }

    #[derive(Default, Deserialize)]
    struct Status {
        #[serde(default)]
        conditions: Vec<Condition>,
        certificate: Option<IgnoredAny>,
    }

    #[derive(Deserialize)]
    struct Condition {
        #[serde(rename = "type")]
        kind: String,
        #[serde(default)]
        reason: String,
        #[serde(default)]
        message: String,
    }

    impl From<Csr> for CsrView {
        fn from(csr: Csr) -> Self {
            // Such a condition can't be taken back: that it is there is what counts.
            let why = |kind: &str| {
                let condition = csr
                    .status
                    .conditions
                    .iter()
                    .find(|each| each.kind == kind)?;
                Some(match condition.message.as_str() {
                    "" => condition.reason.clone(),
                    message => message.to_owned(),
                })
            };
            Self {
                is_approved: why("Approved").is_some(),
                denied: why("Denied"),
                failed: why("Failed"),
                is_issued: csr.status.certificate.is_some(),
                name: csr.metadata.name,
                username: csr.spec.username,
                created: csr.metadata.creation_timestamp.0.into(),
            }
        }
    }
}

#[derive(Deserialize)]
struct List {
    #[serde(default)]
    metadata: ListMetadata,
    items: Vec<CsrView>,
}

#[derive(Default, Deserialize)]
struct ListMetadata {
    #[serde(default, rename = "continue")]
    next: String,
}

/// The requests for serving certificates that this node made. A kubelet may list all requests (`system:node`
/// cluster role), and the API has no selector for who made one, so they are asked for a page at a time and only
/// ours are kept.
///
/// # Errors
/// [`ClusterError`].
pub async fn list(connection: &Connection) -> Result<Vec<CsrView>, ClusterError> {
    let doing = "list certificate signing requests";
    let username = format!("system:node:{}", connection.node_name());
    let mut parameters = ListParams::default()
        .fields(&format!("spec.signerName={KUBELET_SERVING}"))
        .limit(PAGE);
    let mut ours = Vec::new();
    for _ in 0..MOST_PAGES {
        let list: List = connection
            .ask(doing, Request::new(PATH).list(&parameters))
            .await?;
        ours.extend(
            list.items
                .into_iter()
                .filter(|csr| csr.username == username),
        );
        if list.metadata.next.is_empty() {
            return Ok(ours);
        }
        parameters.continue_token = Some(list.metadata.next);
    }
    Err(ClusterError::Other {
        doing: doing.to_owned(),
        why: "the list does not end",
    })
}

/// Where a node's request for a serving certificate stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CsrState {
    /// There is none: the kubelet has what it wants, does not use the cluster's signer (`serverTLSBootstrap`), or
    /// the request is so old that it was removed.
    None,
    /// Nobody has decided.
    Pending {
        /// The request that the kubelet waits for.
        name: String,
        /// When the first of those that nobody decided was made.
        since: SystemTime,
        /// How long that is.
        waiting: Duration,
    },
    /// Approved.
    Approved {
        /// The request.
        name: String,
        /// Whether the certificate is there too.
        is_issued: bool,
    },
    /// Denied.
    Denied {
        /// The request.
        name: String,
        /// The words of who did.
        why: String,
    },
    /// The signer could not sign it.
    Failed {
        /// The request.
        name: String,
        /// Its words.
        why: String,
    },
}

/// Where one node's requests stand. The newest counts: a kubelet waits for one request at a time and makes another
/// when it gives up on it. A clock that is behind makes for no waiting, not for an error.
#[must_use]
pub fn state(requests: &[CsrView], now: SystemTime) -> CsrState {
    let mut newest_first: Vec<_> = requests.iter().collect();
    newest_first.sort_by(|a, b| (b.created, &b.name).cmp(&(a.created, &a.name)));
    let Some(&newest) = newest_first.first() else {
        return CsrState::None;
    };
    let name = newest.name.clone();
    if let Some(why) = newest.failed.clone() {
        return CsrState::Failed { name, why };
    }
    if let Some(why) = newest.denied.clone() {
        return CsrState::Denied { name, why };
    }
    if newest.is_approved {
        return CsrState::Approved {
            name,
            is_issued: newest.is_issued,
        };
    }
    let since = newest_first
        .iter()
        .take_while(|csr| !csr.is_approved && csr.denied.is_none() && csr.failed.is_none())
        .map(|csr| csr.created)
        .last()
        .unwrap_or(newest.created);
    CsrState::Pending {
        name,
        since,
        waiting: now.duration_since(since).unwrap_or_default(),
    }
}

impl fmt::Display for CsrState {
    /// One line that says what to do, where there is something to do.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => write!(formatter, "no request for a serving certificate"),
            Self::Pending { name, waiting, .. } => write!(
                formatter,
                "nobody approves the kubelet's serving certificate, for {} s now: kubectl certificate approve {name}",
                waiting.as_secs()
            ),
            Self::Approved {
                name,
                is_issued: true,
            } => write!(formatter, "{name} is approved, its certificate is issued"),
            Self::Approved {
                name,
                is_issued: false,
            } => write!(
                formatter,
                "{name} is approved, but not signed: see that kube-controller-manager runs, with \
                 --cluster-signing-cert-file and --cluster-signing-key-file"
            ),
            Self::Denied { name, why } => write!(
                formatter,
                "{name} for the kubelet's serving certificate was denied: {why}; the kubelet will ask again, \
                 make its approver accept this node's addresses"
            ),
            Self::Failed { name, why } => write!(
                formatter,
                "the signer {KUBELET_SERVING} can't sign {name}: {why}; see the log of kube-controller-manager"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::testing::{Answer, Credentials, Server};

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
    }

    fn pending(name: &str, created: u64) -> CsrView {
        CsrView {
            name: name.to_owned(),
            username: "system:node:worker-1".to_owned(),
            created: at(created),
            is_approved: false,
            denied: None,
            failed: None,
            is_issued: false,
        }
    }

    fn approved(name: &str, created: u64, is_issued: bool) -> CsrView {
        CsrView {
            is_approved: true,
            is_issued,
            ..pending(name, created)
        }
    }

    #[test]
    fn the_newest_request_counts() {
        let denied = CsrView {
            denied: Some("wrong address".to_owned()),
            ..pending("csr-d", 300)
        };
        let failed = CsrView {
            failed: Some("no such usage".to_owned()),
            ..approved("csr-f", 400, false)
        };
        let waits = |name: &str, since: u64, waiting: u64| CsrState::Pending {
            name: name.to_owned(),
            since: at(since),
            waiting: Duration::from_secs(waiting),
        };
        let is_approved = |name: &str, is_issued| CsrState::Approved {
            name: name.to_owned(),
            is_issued,
        };
        let table = [
            (vec![], CsrState::None),
            (vec![pending("csr-a", 100)], waits("csr-a", 100, 900)),
            // Since the first of an unbroken row; the newest is the one to approve.
            (
                vec![
                    pending("csr-b", 600),
                    approved("csr-0", 50, true),
                    pending("csr-a", 100),
                ],
                waits("csr-b", 100, 900),
            ),
            (
                vec![
                    pending("csr-b", 600),
                    approved("csr-0", 500, true),
                    pending("csr-a", 100),
                ],
                waits("csr-b", 600, 400),
            ),
            // Our clock is behind the server's.
            (vec![pending("csr-a", 5000)], waits("csr-a", 5000, 0)),
            (
                vec![pending("csr-a", 100), approved("csr-b", 200, true)],
                is_approved("csr-b", true),
            ),
            (
                vec![approved("csr-b", 200, false)],
                is_approved("csr-b", false),
            ),
            (
                vec![approved("csr-b", 200, true), denied],
                CsrState::Denied {
                    name: "csr-d".to_owned(),
                    why: "wrong address".to_owned(),
                },
            ),
            (
                vec![failed],
                CsrState::Failed {
                    name: "csr-f".to_owned(),
                    why: "no such usage".to_owned(),
                },
            ),
        ];
        for (requests, expected) in table {
            assert_eq!(state(&requests, at(1000)), expected);
        }
    }

    #[test]
    fn what_waits_says_how_to_approve_it() {
        assert_eq!(
            state(&[pending("csr-x7k2p", 100)], at(820)).to_string(),
            "nobody approves the kubelet's serving certificate, for 720 s now: kubectl certificate approve csr-x7k2p"
        );
    }

    #[test]
    fn conditions_are_read() {
        let csr = |status: serde_json::Value| -> CsrView {
            serde_json::from_value(serde_json::json!({
                "metadata": {"name": "csr-1", "creationTimestamp": "1970-01-01T00:01:40Z", "uid": "x"},
                "spec": {
                    "username": "system:node:worker-1",
                    "request": "LS0t",
                    "signerName": "kubernetes.io/kubelet-serving",
                },
                "status": status,
            }))
            .unwrap()
        };
        let condition = |kind, message| {
            serde_json::json!({"conditions": [
                {"type": kind, "status": "True", "reason": "Because", "message": message},
            ]})
        };
        assert_eq!(csr(serde_json::json!({})), pending("csr-1", 100));
        assert_eq!(
            csr(serde_json::json!({
                "certificate": "LS0t",
                "conditions": [{"type": "Approved", "status": "True"}],
            })),
            approved("csr-1", 100, true)
        );
        assert_eq!(csr(condition("Denied", "no")).denied.as_deref(), Some("no"));
        assert_eq!(
            csr(condition("Failed", "")).failed.as_deref(),
            Some("Because")
        );
    }

    #[tokio::test]
    async fn ours_are_found_on_every_page() {
        let csr = |name: &str, username: &str| {
            serde_json::json!({
                "metadata": {"name": name, "creationTimestamp": "1970-01-01T00:01:40Z"},
                "spec": {"username": username},
            })
        };
        let page = |next: &str, items: Vec<serde_json::Value>| {
            Answer::Json(
                200,
                serde_json::json!({"metadata": {"continue": next}, "items": items}),
            )
        };
        let server = Server::start(vec![
            page(
                "next",
                vec![
                    csr("csr-a", "system:node:worker-1"),
                    csr("csr-b", "system:node:worker-10"),
                ],
            ),
            page("", vec![csr("csr-c", "system:node:worker-1")]),
        ])
        .await;
        let credentials = Credentials::new(server.address, "system:node:worker-1");
        let connection = credentials.cluster().connection().await.unwrap();
        let ours = list(&connection).await.unwrap();
        assert_eq!(ours, [pending("csr-a", 100), pending("csr-c", 100)]);
        let asked = server.asked();
        let [first, second] = asked.as_slice() else {
            panic!("{asked:?}");
        };
        assert!(
            first
                .0
                .contains("fieldSelector=spec.signerName%3Dkubernetes.io%2Fkubelet-serving"),
            "{first:?}"
        );
        assert!(second.0.contains("continue=next"), "{second:?}");
    }
}
