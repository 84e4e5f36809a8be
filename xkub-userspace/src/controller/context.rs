//! What every reconciler works with.

use std::sync::Arc;

use kube::Client;

use super::{Record, Settings};

/// What every reconciler works with. Clones share everything.
#[derive(Clone)]
pub struct Context {
    /// The infra cluster.
    pub client: Client,
    /// What the controller was told.
    pub settings: Arc<Settings>,
    /// Where it is said what a reconciler did.
    pub record: Arc<Record>,
}

impl Context {
    /// With the infra cluster that `client` leads to.
    #[must_use]
    pub fn new(client: Client, settings: Settings) -> Self {
        let record = Record::new(client.clone(), settings.dry_run);
        Self {
            client,
            settings: Arc::new(settings),
            record: Arc::new(record),
        }
    }
}
