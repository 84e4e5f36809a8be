//! kubeconfigs, YAML or JSON: every `clusters[].cluster.server`.

use std::collections::BTreeMap;

use super::{
    Kind,
    error::{JoinError, Place},
    scan::{Edit, Scan, Whose},
    yaml::{self, Written},
};

/// What of a kubeconfig matters here. The keys are places in its lists.
#[derive(Default)]
pub(super) struct Kubeconfig {
    servers: Vec<(usize, Written)>,
    clusters: BTreeMap<usize, String>,
    /// Cluster and user.
    contexts: BTreeMap<usize, (Option<String>, Option<String>)>,
    users: BTreeMap<usize, User>,
}

#[derive(Default)]
struct User {
    name: Option<String>,
    token_id: Option<String>,
}

impl Kubeconfig {
    /// Reads the first document: client-go reads no other.
    pub fn read(text: &str, place: &Place) -> Result<Self, JoinError> {
        let mut config = Self::default();
        yaml::scalars(text, place, |scalar| {
            let index = scalar.index();
            let value = || scalar.value.map(str::to_owned);
            if scalar.document > 0 {
                return Ok(());
            }
            if scalar.is(&["clusters", "*", "cluster", "server"]) {
                let written = Written::of(scalar, place)?;
                config.servers.push((index, written));
            } else if scalar.is(&["clusters", "*", "name"]) {
                config.clusters.extend(value().map(|name| (index, name)));
            } else if scalar.is(&["contexts", "*", "name"]) {
                config.contexts.entry(index).or_default();
            } else if scalar.is(&["contexts", "*", "context", "cluster"]) {
                config.contexts.entry(index).or_default().0 = value();
            } else if scalar.is(&["contexts", "*", "context", "user"]) {
                config.contexts.entry(index).or_default().1 = value();
            } else if scalar.is(&["users", "*", "name"]) {
                config.users.entry(index).or_default().name = value();
            } else if scalar.is(&["users", "*", "user", "token"]) {
                let id = scalar.value.and_then(token_id).map(str::to_owned);
                config.users.entry(index).or_default().token_id = id;
            }
            Ok(())
        })?;
        if config.servers.is_empty() {
            return Err(JoinError::NotOfKind {
                place: place.clone(),
                kind: Kind::Kubeconfig.with_article(),
                why: "no cluster has a server",
            });
        }
        Ok(config)
    }

    /// The users of all contexts, one per context.
    pub fn context_users(&self) -> impl Iterator<Item = Option<&str>> {
        self.contexts.values().map(|(_, user)| user.as_deref())
    }

    /// Notes every server, and changes those that shall change.
    pub fn scan(
        &self,
        kind: Kind,
        text: &str,
        scan: &mut Scan<'_>,
    ) -> Result<Vec<Edit>, JoinError> {
        let mut edits = Vec::new();
        for (index, written) in &self.servers {
            let Some(server) = written.server() else {
                return Err(JoinError::Spelling {
                    place: written.place.clone(),
                    why: "has no host, or a wrong port",
                });
            };
            let edit = scan.server(kind, written.place.clone(), &server, self.whose(*index));
            if let Some(edit) = edit {
                edits.push(written.edit(text, edit)?);
            }
        }
        Ok(edits)
    }

    /// Who uses a cluster.
    fn whose(&self, cluster: usize) -> Whose {
        let Some(name) = self.clusters.get(&cluster) else {
            return Whose::default();
        };
        let user = self
            .contexts
            .values()
            .find(|(cluster, _)| cluster.as_ref() == Some(name))
            .and_then(|(_, user)| user.clone());
        let token_id = self
            .users
            .values()
            .find(|candidate| user.is_some() && candidate.name == user)
            .and_then(|user| user.token_id.clone());
        Whose { user, token_id }
    }
}

/// The public half of a bootstrap token: `[a-z0-9]{6}` of `[a-z0-9]{6}.[a-z0-9]{16}` (Kubernetes, "Authenticating
/// with Bootstrap Tokens").
pub(super) fn token_id(token: &str) -> Option<&str> {
    let (id, secret) = token.split_once('.')?;
    let all = |text: &str| {
        text.bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
    };
    (id.len() == 6 && secret.len() == 16 && all(id) && all(secret)).then_some(id)
}
