//! Carrying a plan out, one action after the other.

use std::{
    collections::BTreeSet,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use tokio::task::spawn_blocking;

use super::{
    action::{Action, Kind},
    look::Looker,
    plan::Plan,
    retry::Retries,
};
use crate::{
    cluster::{client::ClusterError, node},
    config::Config,
    datapath::{self, Keeper, Look},
    files,
    join::{self, INPUT_LIMIT},
    node::{file_change::FileChange, restart_guard::RestartGuard},
};

/// Restarts of the worker: as many as live migrations may follow each other, and no more.
const RESTARTS: usize = 3;
/// Within so long.
const RESTART_WINDOW: Duration = Duration::from_secs(10 * 60);
/// For a join file that has gone meanwhile.
const SECRET_MODE: u32 = 0o600;

/// What keeps programs in their places, shared with the loop that looks every second.
pub(super) type SharedKeeper = Arc<Mutex<Option<Keeper>>>;

/// What became of an action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It is done.
    Done,
    /// It failed, and will be tried again.
    Failed(String),
    /// It was not tried: it failed before, or something that it needs did.
    Skipped,
}

/// Carries plans out.
#[derive(Debug)]
pub(super) struct Applier {
    config: Arc<Config>,
    retries: Retries,
    guard: RestartGuard,
    keeper: SharedKeeper,
}

impl Applier {
    pub fn new(config: Arc<Config>, keeper: SharedKeeper) -> Self {
        Self {
            config,
            retries: Retries::default(),
            guard: RestartGuard::new(RESTARTS, RESTART_WINDOW),
            keeper,
        }
    }

    /// How long the worker may not be restarted.
    pub fn restart_wait(&self) -> Option<Duration> {
        self.guard.wait(Instant::now())
    }

    /// When something that failed may be tried again.
    pub fn next_retry(&self) -> Option<Instant> {
        self.retries.next()
    }

    /// Applies at most `limit` of a plan's actions, in their order. `before` hears of each that is tried. An action
    /// that fails keeps only those back that need it.
    pub async fn apply(
        &mut self,
        plan: &Plan,
        looker: &mut Looker,
        limit: usize,
        mut before: impl FnMut(&Action),
    ) -> Vec<(Action, Outcome)> {
        let planned: BTreeSet<_> = plan.actions.iter().map(Action::key).collect();
        self.retries.keep(|key| planned.contains(key));
        let mut outcomes = Vec::new();
        let mut failed: BTreeSet<Kind> = BTreeSet::new();
        let mut tried = 0;
        for action in &plan.actions {
            let key = action.key();
            let is_due = self.retries.wait(&key, Instant::now()).is_none();
            let is_blocked = action
                .kind()
                .needs()
                .iter()
                .any(|kind| failed.contains(kind));
            let outcome = if !is_due || is_blocked || tried >= limit {
                Outcome::Skipped
            } else {
                tried += 1;
                before(action);
                match self.carry_out(action, looker).await {
                    Ok(()) => Outcome::Done,
                    Err(why) => Outcome::Failed(why),
                }
            };
            match &outcome {
                Outcome::Done => self.retries.worked(&key),
                Outcome::Failed(_) => {
                    self.retries.failed(key, Instant::now());
                    failed.insert(action.kind());
                }
                Outcome::Skipped => {
                    if is_blocked {
                        self.retries.blocked(&key);
                    }
                    failed.insert(action.kind());
                }
            }
            outcomes.push((action.clone(), outcome));
        }
        outcomes
    }

    async fn carry_out(&mut self, action: &Action, looker: &mut Looker) -> Result<(), String> {
        match action.clone() {
            Action::Attach { settings, .. } => {
                in_words(spawn_blocking(move || {
                    datapath::attach(&settings).map(drop)
                }))
                .await
            }
            Action::TakePlaces { uplink, .. } => {
                let keeper = Arc::clone(&self.keeper);
                in_words(spawn_blocking(move || {
                    take_places(&keeper, &uplink, Look::Full).map(drop)
                }))
                .await
            }
            Action::PutAddress {
                uplink,
                device,
                mtu,
                addresses,
                ..
            } => {
                in_words(spawn_blocking(move || {
                    datapath::put_addresses(&uplink, &device, mtu, &addresses).map(drop)
                }))
                .await
            }
            Action::RemoveAddress {
                uplink,
                device,
                address,
                ..
            } => {
                in_words(spawn_blocking(move || {
                    datapath::remove_address(&uplink, &device, address).map(drop)
                }))
                .await
            }
            Action::Annotate { annotations, .. } => {
                let Some(cluster) = looker.cluster() else {
                    return Err("this node has no kubeconfig".to_owned());
                };
                let patch = async {
                    let connection = cluster.connection().await?;
                    let node = node::read(&connection).await?;
                    node::annotate(&connection, &node, |_| annotations.clone()).await
                };
                let result: Result<_, ClusterError> = patch.await;
                result.map(drop).map_err(|error| error.to_string())
            }
            Action::RewriteJoin { path, kind, .. } => rewrite(&self.config, &path, kind),
            Action::SetNodeIp { changes, .. } => {
                changes
                    .iter()
                    .try_for_each(|change: &FileChange| change.apply(Path::new("/")))
                    .map_err(|error| error.to_string())?;
                match looker.systemd().await? {
                    Some(systemd) => systemd.reload().await.map_err(|error| error.to_string()),
                    None => Ok(()),
                }
            }
            Action::Restart { unit, .. } => {
                let Some(systemd) = looker.systemd().await? else {
                    return Err("systemd is not the system manager here".to_owned());
                };
                // A predecessor may have been killed between a change and its reload.
                systemd.reload().await.map_err(|error| error.to_string())?;
                self.guard.record(Instant::now());
                systemd
                    .restart(&unit)
                    .await
                    .map_err(|error| error.to_string())
            }
        }
    }
}

/// Looks with the shared keeper, which knows how often places were taken already.
pub(super) fn take_places(
    keeper: &SharedKeeper,
    uplink: &str,
    look: Look,
) -> Result<Vec<datapath::Repair>, datapath::Error> {
    let mut keeper = keeper.lock().unwrap_or_else(PoisonError::into_inner);
    if keeper
        .as_ref()
        .is_none_or(|keeper| keeper.uplink() != uplink)
    {
        *keeper = Some(Keeper::new(uplink)?);
    }
    keeper
        .as_mut()
        .map_or(Ok(Vec::new()), |keeper| keeper.look(look))
}

/// Points a join file to the join endpoint, as it is now.
fn rewrite(config: &Config, path: &Path, kind: join::Kind) -> Result<(), String> {
    let Some(replace) = super::look::replace(config) else {
        return Ok(());
    };
    let limit = u64::try_from(INPUT_LIMIT).unwrap_or(u64::MAX);
    let Some(contents) = files::read(path, limit).map_err(|error| error.to_string())? else {
        return Ok(());
    };
    let rewritten = join::rewrite(kind, &contents, &replace)
        .map_err(|error| format!("{}: {error}", path.display()))?;
    if rewritten.changes.is_empty() {
        return Ok(());
    }
    files::replace(path, &rewritten.bytes, SECRET_MODE).map_err(|error| error.to_string())
}

/// A result with its error and that error's causes on one line.
async fn in_words(
    task: tokio::task::JoinHandle<Result<(), datapath::Error>>,
) -> Result<(), String> {
    match task.await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(super::causes(&error)),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::datapath::settings::{DualAddress, Settings};

    #[tokio::test]
    async fn what_is_blocked_does_not_wake_the_loop() {
        let config = Arc::new(Config::default());
        let mut looker = Looker::once(Arc::clone(&config));
        let mut applier = Applier::new(config, SharedKeeper::default());
        // Neither can work: there is no such device, and no such folder can be made.
        let address = DualAddress::parse("node address", "10.244.1.226").unwrap();
        let attach = Action::Attach {
            settings: Box::new(Settings::new("no-such-device", address)),
            why: "test".to_owned(),
        };
        let change = FileChange::write("/proc/no/such/file", "", 0o644, "test");
        let set = Action::SetNodeIp {
            unit: "k0sworker.service".to_owned(),
            changes: vec![change],
        };
        let mut apply = async |actions: &[&Action]| {
            let plan = Plan {
                actions: actions.iter().map(|action| (*action).clone()).collect(),
                ..Plan::default()
            };
            let outcomes = applier.apply(&plan, &mut looker, usize::MAX, |_| {}).await;
            let last = outcomes.into_iter().next_back().unwrap().1;
            (last, applier.next_retry().unwrap())
        };
        let (outcome, own) = apply(&[&set]).await;
        assert!(matches!(outcome, Outcome::Failed(_)), "{outcome:?}");
        let (outcome, next) = apply(&[&attach, &set]).await;
        assert_eq!(outcome, Outcome::Skipped);
        assert!(
            next > own,
            "the blocked action's own pause is still waited for"
        );
    }
}
