//! The agent: observe, plan, apply; again on every trigger.
//!
//! Nothing is remembered that can be looked at: whatever kills the agent, the next one finds the node as it is.

pub mod action;
mod apply;
mod default_route;
mod kernel;
mod look;
mod node_ports;
pub mod observe;
pub mod plan;
mod retry;
mod sources;
mod state;
pub mod status;
pub mod triggers;

use std::{
    collections::BTreeSet,
    fmt::Write as _,
    io,
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use sd_notify::NotifyState;
use thiserror::Error;
use tokio::{
    runtime::Builder,
    signal::unix::{SignalKind, signal},
    sync::watch,
    task::spawn_blocking,
    time::{MissedTickBehavior, interval, sleep, sleep_until},
};
use tracing::{debug, info, warn};

use self::{
    action::{Action, Kind},
    apply::{Applier, Outcome, SharedKeeper, take_places},
    look::Looker,
    observe::Observation,
    plan::{Memory, Plan, plan},
    status::{Shared, Status},
    triggers::{Files, Interfaces, Netlink, Trigger},
};
use crate::{
    config::Config,
    datapath::{self, Announcements, Look, settings::DualAddress},
    node::unit,
    observe as observing,
};

/// How often the hooks are looked at: the kernel sends no event when a TCX program is attached.
const HOOK_PERIOD: Duration = Duration::from_secs(1);
/// What happens within so long is looked at once.
const DEBOUNCE: Duration = Duration::from_millis(30);
/// A kernel call of ours blocks for milliseconds; two can do so at a time.
const BLOCKING_THREADS: usize = 2;
/// How long a thread for them is kept: it is needed every second.
const THREAD_KEEP_ALIVE: Duration = Duration::from_secs(10);

/// Why an agent can't work at all. What may pass is no error, but a problem that it reports.
#[derive(Debug, Error)]
pub enum AgentError {
    /// There is no runtime.
    #[error("the agent's runtime can't be made")]
    Runtime(#[source] io::Error),
    /// A task ended before its time.
    #[error("a task of the agent ended before its time")]
    Task(#[source] tokio::task::JoinError),
    /// Another agent has the lock.
    #[error(
        "another agent works on this node: it has the lock in {}; stop it first, or look what it does: xkub status",
        .0.display()
    )]
    Running(PathBuf),
    /// The state directory can't be used.
    #[error("{} can't be used for the agent's lock and socket: {reason}", path.display())]
    StateDirectory {
        /// The directory.
        path: PathBuf,
        /// The system's answer.
        reason: io::Error,
    },
    /// The address of metrics and health can't be listened at.
    #[error(
        "{address} can't be listened at: {reason}; set observe.listen to another address, or to nothing"
    )]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The system's answer.
        reason: io::Error,
    },
    /// Events can't be had.
    #[error("the kernel's events and signals can't be had")]
    Events(#[source] io::Error),
    /// The kernel does not say what is attached.
    #[error(transparent)]
    Datapath(#[from] datapath::Error),
}

/// An error with its causes, on one line.
pub(crate) fn causes(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        // Writing to a string can't fail.
        let _: std::fmt::Result = write!(text, ": {cause}");
        source = cause.source();
    }
    text
}

/// How much a single run does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Once {
    /// It looks and plans.
    DryRun,
    /// It applies at most so many actions of one plan.
    Apply(usize),
}

/// What a single run planned and did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The plan.
    pub plan: Plan,
    /// Actions that failed, with the reason.
    pub failed: Vec<String>,
}

/// Looks and plans once, and does what `once` says. Blocks.
///
/// # Errors
/// [`AgentError`].
pub fn once(config: Config, once: Once) -> Result<Report, AgentError> {
    // It holds a runtime of its own, which must not end within this one.
    let keeper = SharedKeeper::default();
    runtime()?.block_on(async {
        let config = Arc::new(config);
        let _lock = match once {
            Once::DryRun => None,
            Once::Apply(_) => Some(state::lock(&config.state_directory)?),
        };
        let mut memory = Memory {
            last_good: state::read(&config.state_directory),
            ..Memory::default()
        };
        let mut looker = Looker::once(Arc::clone(&config));
        let observation = looker.look(&memory).await?;
        let mut applier = Applier::new(Arc::clone(&config), Arc::clone(&keeper));
        memory.restart_wait = applier.restart_wait();
        let plan = plan(&config, &observation, &memory);
        let limit = match once {
            Once::DryRun => {
                return Ok(Report {
                    plan,
                    failed: Vec::new(),
                });
            }
            Once::Apply(limit) => limit,
        };
        let outcomes = applier.apply(&plan, &mut looker, limit, |_| {}).await;
        remember(&config, &mut memory, &observation, &outcomes);
        let failed = outcomes
            .iter()
            .filter_map(|(action, outcome)| match outcome {
                Outcome::Failed(why) => Some(format!("{action}: failed: {why}")),
                Outcome::Done | Outcome::Skipped => None,
            })
            .collect();
        Ok(Report { plan, failed })
    })
}

/// Keeps this node in line until SIGTERM or SIGINT. The datapath stays. Blocks.
///
/// # Errors
/// [`AgentError`].
pub fn run(config: Config) -> Result<(), AgentError> {
    // As above.
    let keeper = SharedKeeper::default();
    runtime()?.block_on(async {
        let lock = state::lock(&config.state_directory)?;
        let agent = Agent::new(config, Arc::clone(&keeper)).await?;
        let result = agent.run().await;
        drop(lock);
        result
    })
}

fn runtime() -> Result<tokio::runtime::Runtime, AgentError> {
    Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(BLOCKING_THREADS)
        .thread_keep_alive(THREAD_KEEP_ALIVE)
        .build()
        .map_err(AgentError::Runtime)
}

/// Notes the address that is in force now, if that is a new one. The addresses.
fn remember(
    config: &Config,
    memory: &mut Memory,
    observation: &Observation,
    outcomes: &[(Action, Outcome)],
) -> Vec<IpAddr> {
    let attached = outcomes.iter().find_map(|(action, outcome)| match action {
        Action::Attach { settings, .. } => Some((settings.node_address, outcome)),
        _ => None,
    });
    let in_force = if let Some((address, Outcome::Done)) = attached {
        address
    } else {
        let shown = observation.datapath.iter();
        let mut address = DualAddress::default();
        for line in shown.flat_map(|attached| &attached.shown.addresses) {
            match line.node {
                IpAddr::V4(node) => address.v4 = Some(node),
                IpAddr::V6(node) => address.v6 = Some(node),
            }
        }
        address
    };
    if in_force != DualAddress::default() && in_force != memory.last_good {
        memory.last_good = in_force;
        if let Err(error) = state::write(&config.state_directory, &in_force) {
            // Needed only if sources are silent at the next start, and the datapath is gone.
            warn!(%error, "the node address can't be remembered");
        }
    }
    in_force.iter().collect()
}

/// A running agent.
struct Agent {
    config: Arc<Config>,
    looker: Looker,
    applier: Applier,
    keeper: SharedKeeper,
    memory: Memory,
    /// Since when there have been old addresses.
    old_since: Option<Instant>,
    metrics: Arc<observing::Metrics>,
    status: Shared,
    netlink: Netlink,
    files: Files,
    /// Those of what was attached last.
    announcements: Option<Announcements>,
    interfaces: Interfaces,
    uplink: Option<String>,
    reconciles: u64,
    started: Instant,
    is_ready: bool,
    /// What was said last, so that it is not said again.
    said: BTreeSet<String>,
    /// What the last look has done.
    done: Vec<Action>,
}

impl Agent {
    async fn new(config: Config, keeper: SharedKeeper) -> Result<Self, AgentError> {
        let config = Arc::new(config);
        let metrics = Arc::new(observing::Metrics::default());
        let status = Shared::default();
        if let Some(address) = config.observe.listen {
            observing::serve(address, Arc::clone(&metrics), status.clone())
                .await
                .map_err(|reason| AgentError::Listen { address, reason })?;
        }
        status::serve(&config.state_directory, status.clone()).map_err(|reason| {
            AgentError::StateDirectory {
                path: config.state_directory.clone(),
                reason,
            }
        })?;
        watch_over(&status);
        Ok(Self {
            looker: Looker::watching(Arc::clone(&config)),
            applier: Applier::new(Arc::clone(&config), Arc::clone(&keeper)),
            keeper,
            memory: Memory {
                last_good: state::read(&config.state_directory),
                ..Memory::default()
            },
            old_since: None,
            metrics,
            status,
            netlink: Netlink::open().map_err(AgentError::Events)?,
            files: Files::new(),
            announcements: None,
            interfaces: Interfaces::default(),
            uplink: None,
            reconciles: 0,
            started: Instant::now(),
            is_ready: false,
            said: BTreeSet::new(),
            done: Vec::new(),
            config,
        })
    }

    async fn run(mut self) -> Result<(), AgentError> {
        let mut interrupt = signal(SignalKind::interrupt()).map_err(AgentError::Events)?;
        let mut terminate = signal(SignalKind::terminate()).map_err(AgentError::Events)?;
        let mut hangup = signal(SignalKind::hangup()).map_err(AgentError::Events)?;
        let mut hooks = interval(HOOK_PERIOD);
        hooks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut timer = interval(self.config.address.interval);
        timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
        timer.reset();
        let mut reflectors = self.looker.reflector_news();
        let mut node = self.looker.node_news();
        let mut trigger = Trigger::Start;
        loop {
            let again = self.reconcile(trigger).await;
            trigger = loop {
                let retry = self.applier.next_retry();
                tokio::select! {
                    biased;
                    _ = interrupt.recv() => { stop(); return Ok(()); }
                    _ = terminate.recv() => { stop(); return Ok(()); }
                    () = self.netlink.next(&self.interfaces) => break Trigger::Netlink,
                    () = changed(&mut reflectors) => break Trigger::Reflector,
                    Ok(()) = node.changed() => break Trigger::Node,
                    () = self.files.next() => break Trigger::File,
                    () = announced(&mut self.announcements) => break Trigger::Announcement,
                    _ = hangup.recv() => break Trigger::Hangup,
                    () = self.status.asked() => break Trigger::Asked,
                    () = sleep(DEBOUNCE), if again => break Trigger::Again,
                    () = until(retry), if retry.is_some() => break Trigger::Again,
                    _ = timer.tick() => break Trigger::Timer,
                    _ = hooks.tick() => self.keep_hooks().await,
                }
            };
            debug!(trigger = trigger.name(), "looking");
            if matches!(
                trigger,
                Trigger::Announcement | Trigger::Netlink | Trigger::Hangup
            ) {
                self.looker.ask_again();
            }
            // What else happens in the same moment is seen by the same look.
            sleep(DEBOUNCE).await;
            timer.reset();
        }
    }

    /// Looks at the hooks, which costs next to nothing while nobody has touched them.
    async fn keep_hooks(&mut self) {
        self.status.beat();
        self.be_ready_in_time();
        let Some(uplink) = self.uplink.clone() else {
            return;
        };
        let keeper = Arc::clone(&self.keeper);
        let looked = spawn_blocking(move || take_places(&keeper, &uplink, Look::Period)).await;
        match looked {
            Ok(Ok(repairs)) => {
                for repair in repairs {
                    warn!(
                        "{} is back in its place on {}: {}",
                        repair.place.name(),
                        repair.hook.name(),
                        repair.cause.words()
                    );
                    self.metrics.repair(&repair);
                }
            }
            Ok(Err(error)) => debug!(error = causes(&error), "the hooks can't be looked at"),
            Err(error) => debug!(%error, "the hooks were not looked at"),
        }
    }

    /// One turn: observe, plan, apply. Whether another look is due at once.
    async fn reconcile(&mut self, trigger: Trigger) -> bool {
        self.status.begin();
        self.reconciles = self.reconciles.saturating_add(1);
        self.metrics.reconcile(trigger.name());
        let observation = match self.looker.look(&self.memory).await {
            Ok(observation) => observation,
            Err(error) => {
                let problem = causes(&error);
                let status = Status {
                    ready: false,
                    problems: vec![problem.clone()],
                    reconciles: self.reconciles,
                    ..self.status.get()
                };
                self.say(&BTreeSet::from([problem]));
                self.metrics.status(&status);
                self.status.set(status);
                return false;
            }
        };
        self.follow(&observation);
        self.memory.restart_wait = self.applier.restart_wait();
        self.memory.old_addresses_for = self.old_addresses_for(&observation);
        let mut plan = plan(&self.config, &observation, &self.memory);
        // A worker that is ordered behind us is not restarted before we are ready: systemd would wait for us, and
        // we for systemd.
        if !self.is_ready
            && plan
                .actions
                .iter()
                .any(|action| action.kind() == Kind::Restart)
        {
            let restarts = |action: &Action| action.kind() == Kind::Restart;
            let first: Vec<Action> = plan
                .actions
                .iter()
                .filter(|a| !restarts(a))
                .cloned()
                .collect();
            plan.actions = first;
            plan.waiting
                .push("the worker is restarted when the agent is ready".to_owned());
        }
        let (status, metrics) = (self.status.clone(), Arc::clone(&self.metrics));
        let outcomes = self
            .applier
            .apply(&plan, &mut self.looker, usize::MAX, |action| {
                status.act(action);
                info!("{action}");
            })
            .await;
        let mut done = Vec::new();
        for (action, outcome) in &outcomes {
            match outcome {
                Outcome::Done => {
                    done.push(action.clone());
                    metrics.action(action.kind().name(), true);
                }
                Outcome::Failed(_) => metrics.action(action.kind().name(), false),
                Outcome::Skipped => {}
            }
        }
        self.listen(&observation, &outcomes);
        let in_force = remember(&self.config, &mut self.memory, &observation, &outcomes);
        let status = Status::of(&observation, &plan, &outcomes, in_force, self.reconciles);
        self.say(&status.problems.iter().cloned().collect());
        self.metrics.status(&status);
        let was_ready = self.is_ready;
        if status.ready {
            self.become_ready();
        }
        tell_systemd(&[NotifyState::Status(&summary(&status))]);
        self.status.set(status);
        // What was done and is due all the same would be done for ever at once.
        let is_news = done.iter().any(|action| !self.done.contains(action));
        self.done = done;
        is_news || was_ready != self.is_ready
    }

    /// Logs what is new, and what is over.
    fn say(&mut self, problems: &BTreeSet<String>) {
        for problem in problems.difference(&self.said) {
            warn!("{problem}");
        }
        for problem in self.said.difference(problems) {
            info!("over: {problem}");
        }
        self.said.clone_from(problems);
    }

    /// Whose events matter from now on.
    fn follow(&mut self, observation: &Observation) {
        let uplink = observation.uplink.as_ref().ok();
        self.uplink = uplink.map(|uplink| uplink.name.clone());
        self.interfaces = Interfaces {
            indices: uplink
                .map(|uplink| uplink.index)
                .into_iter()
                .chain(observation.device.as_ref().map(|device| device.index))
                .collect(),
            names: [self.config.datapath.address_device.clone()]
                .into_iter()
                .chain(self.config.uplink.clone())
                .collect(),
        };
        if uplink.is_none() {
            // Any of them may become the uplink.
            self.interfaces.indices.clear();
        }
        let mut folders: BTreeSet<PathBuf> = observation
            .join_files
            .iter()
            .filter_map(|file| file.path.parent())
            .map(Path::to_owned)
            .collect();
        // A worker may be installed any time.
        folders.insert(PathBuf::from(unit::ETC));
        if let Ok(Some(worker)) = &observation.worker {
            folders.insert(Path::new(unit::ETC).join(format!("{}.d", worker.unit)));
        }
        self.files.watch(folders);
    }

    /// Announcements come through a map, which an attachment may have made anew.
    fn listen(&mut self, observation: &Observation, outcomes: &[(Action, Outcome)]) {
        let is_new = outcomes
            .iter()
            .any(|(action, outcome)| action.kind() == Kind::Attach && *outcome == Outcome::Done);
        let is_there = is_new || observation.datapath.is_some();
        if !is_new && is_there == self.announcements.is_some() {
            return;
        }
        self.announcements = match &self.uplink {
            Some(uplink) if is_there => datapath::announcements(uplink)
                .inspect_err(|error| debug!(error = causes(error), "announcements are not heard"))
                .ok(),
            _ => None,
        };
    }

    fn old_addresses_for(&mut self, observation: &Observation) -> Duration {
        let has_old = observation.datapath.as_ref().is_some_and(|attached| {
            let is_current = |address: &IpAddr| {
                let mut lines = attached.shown.addresses.iter();
                lines.any(|line| line.node == *address)
            };
            attached
                .marks
                .iter()
                .any(|(_, address)| !is_current(address))
        });
        if !has_old {
            self.old_since = None;
            return Duration::ZERO;
        }
        self.old_since.get_or_insert_with(Instant::now).elapsed()
    }

    /// The worker need not wait for ever, if so configured.
    fn be_ready_in_time(&mut self) {
        let node = &self.config.node;
        if !self.is_ready && node.fail_open && self.started.elapsed() >= node.start_timeout {
            warn!(
                "there is no node address after {} s; the worker may start without",
                node.start_timeout.as_secs()
            );
            self.become_ready();
        }
    }

    fn become_ready(&mut self) {
        if !self.is_ready {
            self.is_ready = true;
            tell_systemd(&[NotifyState::Ready]);
            info!("ready");
        }
    }
}

fn stop() {
    tell_systemd(&[NotifyState::Stopping]);
    info!("stopped; the datapath stays attached");
}

/// One line for `systemctl status`.
fn summary(status: &Status) -> String {
    let addresses: Vec<String> = status
        .node_addresses
        .iter()
        .map(ToString::to_string)
        .collect();
    let what = if addresses.is_empty() {
        "no node address yet".to_owned()
    } else {
        format!("node address {}", addresses.join(", "))
    };
    match status.problems.first().or(status.waiting.first()) {
        Some(first) => format!("{what}; {first}"),
        None => what,
    }
}

/// Tells systemd that the loop turns, as long as it does.
fn watch_over(status: &Shared) {
    let Some(limit) = sd_notify::watchdog_enabled() else {
        return;
    };
    let status = status.clone();
    tokio::spawn(async move {
        let mut ticks = interval(limit / 3);
        loop {
            ticks.tick().await;
            if status.get().live {
                tell_systemd(&[NotifyState::Watchdog]);
            }
        }
    });
}

fn tell_systemd(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        debug!(%error, "systemd was not told");
    }
}

async fn changed<T>(receiver: &mut Option<watch::Receiver<T>>) {
    if let Some(receiver) = receiver
        && receiver.changed().await.is_ok()
    {
        return;
    }
    std::future::pending::<()>().await;
}

async fn announced(announcements: &mut Option<Announcements>) {
    if let Some(some) = announcements
        && some.next().await.is_ok()
    {
        return;
    }
    // The timer is left.
    *announcements = None;
    std::future::pending::<()>().await;
}

async fn until(instant: Option<Instant>) {
    match instant {
        Some(instant) => sleep_until(instant.into()).await,
        None => std::future::pending().await,
    }
}
