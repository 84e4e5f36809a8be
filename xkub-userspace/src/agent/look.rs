//! Looking at the node: everything that an [`Observation`] holds, from where it is.

use std::{
    net::IpAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use tokio::{
    sync::watch,
    task::{JoinHandle, spawn_blocking},
};

use super::{
    AgentError,
    kernel::{self, Kernel},
    node_ports,
    observe::{Cni, Discovered, JoinFile, JoinState, NodeState, Observation, Refusal, Worker},
    plan::{Memory, wanted_address},
    sources::{self, NodeNews, NodeWatch, Question, Reflectors, Seen},
};
use crate::{
    address::{
        Family,
        flap::{FlapGuard, FlapLimits, Verdict},
        pick::{self, Rules, Source, Told},
    },
    cluster::{
        client::{Cluster, ClusterError},
        csr,
        node::{annotated_address, cloud_provider_address, internal_ips},
        token,
    },
    cni::{self, Finding},
    config::{Config, Distribution, NodePorts},
    datapath::settings::{DualAddress, GuestAddress},
    files,
    join::{self, INPUT_LIMIT, Replace},
    node::{
        distribution::{self, JoinFileKind},
        serving_certificate::{Renewal, State},
        systemd::{Systemd, is_booted},
        tree::Tree,
        uplink::Uplink,
    },
};

/// How often nftables are asked for `NodePorts`: `nft` is a process of its own, and a proxy makes its set once.
const NODE_PORTS_PERIOD: Duration = Duration::from_secs(30);
/// How often the guest cluster is asked whether it knows the join token, and what became of requests for certificates:
/// that answer is large in a large cluster.
const QUESTIONS_PERIOD: Duration = Duration::from_secs(30);
/// Larger than any certificate with its key, bytes.
const MAX_CERTIFICATE: u64 = 1 << 20;

/// Where the answers of others come from.
#[derive(Debug)]
enum Others {
    /// They are asked now, and waited for.
    Asked,
    /// Whatever they said last.
    Heard {
        reflectors: Reflectors,
        node: Option<NodeWatch>,
    },
}

impl Others {
    fn are_waited_for(&self) -> bool {
        matches!(self, Self::Asked)
    }
}

/// Looks at a node again and again.
#[derive(Debug)]
pub(super) struct Looker {
    config: Arc<Config>,
    root: PathBuf,
    others: Others,
    guards: [(Family, FlapGuard); 2],
    node_ports: Option<(Instant, Option<Vec<IpAddr>>)>,
    systemd: Option<Systemd>,
    /// What became of our requests for a serving certificate.
    requests: Questions<String>,
    /// What the API says to the join token.
    token: Questions<token::Answer>,
    kubeconfig: Option<PathBuf>,
    news: watch::Sender<NodeNews>,
}

impl Looker {
    /// For one look: everybody is asked, and waited for.
    pub fn once(config: Arc<Config>) -> Self {
        Self::new(config, Others::Asked)
    }

    /// For many: whoever is slow tells when he has news.
    pub fn watching(config: Arc<Config>) -> Self {
        let reflectors = if config.address.sources.contains(&Source::Reflector) {
            config.address.reflectors.clone()
        } else {
            Vec::new()
        };
        let reflectors = Reflectors::start(reflectors, config.address.interval);
        Self::new(
            config,
            Others::Heard {
                reflectors,
                node: None,
            },
        )
    }

    fn new(config: Arc<Config>, others: Others) -> Self {
        let guard = || FlapGuard::new(FlapLimits::default());
        Self {
            config,
            root: PathBuf::from("/"),
            others,
            guards: Family::ALL.map(|family| (family, guard())),
            node_ports: None,
            systemd: None,
            requests: Questions::default(),
            token: Questions::default(),
            kubeconfig: None,
            news: watch::Sender::new(NodeNews::NotJoined),
        }
    }

    /// News of reflectors, if any are asked again and again.
    pub fn reflector_news(&self) -> Option<watch::Receiver<Seen>> {
        match &self.others {
            Others::Asked => None,
            Others::Heard { reflectors, .. } => Some(reflectors.news()),
        }
    }

    /// News of the Node.
    pub fn node_news(&self) -> watch::Receiver<NodeNews> {
        self.news.subscribe()
    }

    /// Something has happened that may have changed the address.
    pub fn ask_again(&self) {
        if let Others::Heard { reflectors, .. } = &self.others {
            reflectors.ask_again();
        }
    }

    /// The guest cluster, once it is known how to reach it.
    pub fn cluster(&self) -> Option<Cluster> {
        match &self.others {
            Others::Heard {
                node: Some(watch), ..
            } => Some(watch.cluster().clone()),
            _ => self.kubeconfig.as_deref().map(Cluster::new),
        }
    }

    /// The system manager; none where there is none.
    ///
    /// # Errors
    /// In words.
    pub async fn systemd(&mut self) -> Result<Option<&Systemd>, String> {
        if self.systemd.is_none() && is_booted() {
            let systemd = Systemd::connect()
                .await
                .map_err(|error| error.to_string())?;
            self.systemd = Some(systemd);
        }
        Ok(self.systemd.as_ref())
    }

    /// Looks.
    ///
    /// # Errors
    /// [`AgentError::Datapath`]: what can't be known otherwise. All else is part of the observation.
    pub async fn look(&mut self, memory: &Memory) -> Result<Observation, AgentError> {
        let config = Arc::clone(&self.config);
        let (name, device) = (
            config.uplink.clone(),
            config.datapath.address_device.clone(),
        );
        let kernel = spawn_blocking(move || kernel::look(name.as_deref(), &device))
            .await
            .map_err(AgentError::Task)??;
        let found = self.find_worker();
        self.follow_kubeconfig(&found);
        let (seen, news) = self.hear(&kernel).await;
        let is_external =
            matches!(&found, Ok(Some((_, worker))) if worker.has_external_cloud_provider);
        let address = self.discover(&kernel, &seen, &news, is_external);
        let wanted = wanted_address(&config, &address.address, kernel.datapath.as_ref(), memory);
        if let Others::Heard {
            node: Some(watch), ..
        } = &mut self.others
        {
            watch.follow(&wanted);
        }
        let mut token = None;
        let (worker, join_files) = match found {
            Ok(Some((tree, worker))) => {
                let files = self.join_files(&worker.join_files);
                let is_due = |file: &JoinFile| matches!(file.state, JoinState::Due(_));
                // News may not have come yet; the file tells whether the token still counts.
                let has_joined = worker.kubeconfig.exists();
                if !has_joined && !files.iter().any(is_due) {
                    token = self.ask_about_token(&worker.join_files).await;
                }
                (self.worker(&tree, worker, &wanted).await.map(Some), files)
            }
            Ok(None) => (Ok(None), Vec::new()),
            Err(why) => (Err(why), Vec::new()),
        };
        let cni = match &news {
            NodeNews::Seen(node) if wanted != DualAddress::default() => {
                findings(cni::look(node, &wanted))
            }
            _ => Cni::default(),
        };
        let node = match &news {
            NodeNews::NotJoined => NodeState::NotJoined,
            NodeNews::Failed(why) => NodeState::Unknown(why.clone()),
            NodeNews::Seen(node) => NodeState::Shows(internal_ips(node).collect()),
        };
        let Kernel {
            uplink,
            device,
            datapath,
        } = kernel;
        Ok(Observation {
            uplink,
            address,
            device,
            datapath,
            join_files,
            token,
            worker,
            node,
            cni,
            node_port_addresses: self.node_ports().await,
        })
    }

    fn find_worker(&self) -> Result<Option<(Tree, distribution::Worker)>, String> {
        let named = match self.config.node.distribution {
            Distribution::None => return Ok(None),
            Distribution::Auto => None,
            Distribution::Named(named) => Some(named),
        };
        let tree = distribution::read(&self.root).map_err(|error| error.to_string())?;
        let worker = distribution::find(&tree, named).map_err(|error| error.to_string())?;
        Ok(worker.map(|worker| (tree, worker)))
    }

    /// Watches the Node with the kubeconfig that is in use now.
    fn follow_kubeconfig(&mut self, found: &Result<Option<(Tree, distribution::Worker)>, String>) {
        let of_worker = || match found {
            Ok(Some((_, worker))) => Some(worker.kubeconfig.clone()),
            _ => None,
        };
        self.kubeconfig = self.config.node.kubeconfig.clone().or_else(of_worker);
        if let Others::Heard { node, .. } = &mut self.others {
            let Some(kubeconfig) = &self.kubeconfig else {
                return;
            };
            if node
                .as_ref()
                .is_none_or(|watch| watch.kubeconfig() != kubeconfig)
            {
                *node = Some(NodeWatch::start(kubeconfig, self.news.clone()));
            }
        }
    }

    async fn hear(&self, kernel: &Kernel) -> (Seen, NodeNews) {
        let question = match &kernel.uplink {
            Ok(uplink) => Question {
                uplink: Some(uplink.name.clone()),
                families: Family::ALL
                    .into_iter()
                    .filter(|family| {
                        let mut addresses = uplink.addresses.iter();
                        addresses.any(|address| Family::of(*address) == *family)
                    })
                    .collect(),
            },
            Err(_) => Question::default(),
        };
        match &self.others {
            Others::Heard { reflectors, .. } => {
                reflectors.set_question(question);
                (reflectors.seen(), self.news.borrow().clone())
            }
            Others::Asked => {
                let servers = if self.config.address.sources.contains(&Source::Reflector) {
                    self.config.address.reflectors.as_slice()
                } else {
                    &[]
                };
                let seen = sources::ask(servers, &question).await;
                let news = match &self.kubeconfig {
                    Some(path) => sources::read_node(&Cluster::new(path)).await,
                    None => NodeNews::NotJoined,
                };
                (seen, news)
            }
        }
    }

    fn discover(
        &mut self,
        kernel: &Kernel,
        seen: &Seen,
        news: &NodeNews,
        is_external: bool,
    ) -> Discovered {
        let (answers, silent) = answers(&self.config, seen, news, is_external);
        let picked = pick::pick(
            &self.config.address.sources,
            &answers,
            &rules(&self.config, kernel.uplink.as_ref().ok(), kernel),
        );
        let mut discovered = Discovered {
            refusals: picked
                .refused
                .iter()
                .map(|refused| refusal(refused.told, &refused.refusal))
                .collect(),
            silent,
            ..Discovered::default()
        };
        let now = Instant::now();
        for (family, guard) in &mut self.guards {
            let told = picked.of(*family);
            let verdict = guard.observe(now, told.map(|told| told.address));
            if let (Verdict::Held { kept, .. }, Some(told)) = (&verdict, told) {
                let flapping = pick::Refusal::Flapping { kept: *kept };
                discovered.refusals.push(refusal(told, &flapping));
            }
            match verdict.address() {
                Some(IpAddr::V4(address)) => discovered.address.v4 = Some(address),
                Some(IpAddr::V6(address)) => discovered.address.v6 = Some(address),
                None => {}
            }
            if let Some(told) = told {
                discovered
                    .source
                    .insert(family.name(), told.source.to_string());
            }
        }
        discovered
    }

    fn join_files(&self, found: &[distribution::JoinFile]) -> Vec<JoinFile> {
        let Some(replace) = replace(&self.config) else {
            return Vec::new();
        };
        let mut files = Vec::new();
        for file in found {
            let kind = join_kind(file.kind);
            let Some(contents) = read_join_file(&mut files, &file.path, kind, &replace) else {
                continue;
            };
            // It may name another file.
            if kind == join::Kind::Kubeadm
                && let Ok(Some(path)) = join::discovery_file(&contents)
            {
                read_join_file(
                    &mut files,
                    Path::new(&path),
                    join::Kind::Kubeconfig,
                    &replace,
                );
            }
        }
        files
    }

    async fn worker(
        &mut self,
        tree: &Tree,
        worker: distribution::Worker,
        wanted: &DualAddress,
    ) -> Result<Worker, String> {
        let unit = worker.distribution.unit().to_owned();
        let running = match self.systemd().await? {
            Some(systemd) => {
                let running = systemd.running(&unit).await;
                if running.is_err() {
                    // The bus may have gone away; the next look connects again.
                    self.systemd = None;
                }
                running.map_err(|error| error.to_string())?
            }
            None => None,
        };
        let addresses: Vec<IpAddr> = wanted.iter().collect();
        let mut seen = Worker {
            distribution: worker.distribution.name().to_owned(),
            unit,
            changes: Vec::new(),
            is_running: running.is_some(),
            is_outdated: false,
            has_external_cloud_provider: worker.has_external_cloud_provider,
            warnings: Vec::new(),
            certificate: None,
        };
        if addresses.is_empty() {
            seen.warnings = worker.warnings.iter().map(ToString::to_string).collect();
            return Ok(seen);
        }
        let plan = worker
            .plan_node_ip(tree, &addresses)
            .map_err(|error| error.to_string())?;
        if let Some(running) = &running {
            seen.is_outdated = worker.needs_restart(tree, &plan, running, &addresses);
            seen.certificate = self.certificate(&worker, &addresses).await;
        }
        seen.warnings = plan.warnings.iter().map(ToString::to_string).collect();
        seen.changes = plan.changes;
        Ok(seen)
    }

    /// What the serving certificate waits for: what the file tells, and where it comes by a request, what became of
    /// that.
    async fn certificate(
        &mut self,
        worker: &distribution::Worker,
        addresses: &[IpAddr],
    ) -> Option<String> {
        let certificate = &worker.serving_certificate;
        let state = match files::read(&certificate.path, MAX_CERTIFICATE) {
            Ok(contents) => State::of(contents.as_deref(), addresses, SystemTime::now()),
            Err(error) => return Some(error.to_string()),
        };
        let advice = state.advice(certificate.renewal)?;
        if certificate.renewal != Renewal::Rotated || matches!(state, State::SelfSigned { .. }) {
            return Some(advice);
        }
        let requests = self.ask_for_requests().await;
        Some(match requests {
            Some(requests) => format!("{advice}; {requests}"),
            None => advice,
        })
    }

    /// What became of our requests.
    async fn ask_for_requests(&mut self) -> Option<String> {
        let cluster = self.cluster();
        let ask = || {
            let cluster = cluster?;
            Some(async move {
                let list = async { csr::list(&cluster.connection().await?).await };
                let list: Result<_, ClusterError> = list.await;
                match list {
                    Ok(requests) => csr::state(&requests, SystemTime::now()).to_string(),
                    Err(error) => error.to_string(),
                }
            })
        };
        self.requests.ask(self.others.are_waited_for(), ask).await
    }

    /// What the API says to the token with which a worker would join. Of its files, the later count more.
    async fn ask_about_token(&mut self, files: &[distribution::JoinFile]) -> Option<token::Answer> {
        let ask = || {
            let kubeconfig = files.iter().rev().find_map(|file| {
                let contents = files::read(&file.path, input_limit()).ok().flatten()?;
                join::kubeconfig(join_kind(file.kind), &contents)
            })?;
            Some(async move { token::ask(&kubeconfig).await })
        };
        self.token.ask(self.others.are_waited_for(), ask).await
    }

    async fn node_ports(&mut self) -> Result<Option<Vec<IpAddr>>, String> {
        if self.config.datapath.node_ports != NodePorts::Auto {
            return Ok(None);
        }
        if let Some((when, accepted)) = &self.node_ports
            && when.elapsed() < NODE_PORTS_PERIOD
        {
            return Ok(accepted.clone());
        }
        let unknown = |error: &dyn std::fmt::Display| {
            format!("nft can't be run: {error}; set datapath.nodeports to on or off")
        };
        let accepted = spawn_blocking(node_ports::read)
            .await
            .map_err(|error| unknown(&error))?
            .map_err(|error| unknown(&error))?;
        self.node_ports = Some((Instant::now(), accepted.clone()));
        Ok(accepted)
    }
}

/// A question to the API that is asked from time to time, beside everything else: nothing waits for an API server that
/// is away.
#[derive(Debug)]
struct Questions<T> {
    /// The last answer, and when it came.
    answer: Option<(Instant, T)>,
    /// Whoever asks.
    asking: Option<JoinHandle<T>>,
}

impl<T> Default for Questions<T> {
    fn default() -> Self {
        Self {
            answer: None,
            asking: None,
        }
    }
}

impl<T: Clone + Send + 'static> Questions<T> {
    /// The last answer there is. `question` makes the next, if it is due and can be asked; a single look waits for the
    /// answer.
    async fn ask<Q: Future<Output = T> + Send + 'static>(
        &mut self,
        is_single: bool,
        question: impl FnOnce() -> Option<Q>,
    ) -> Option<T> {
        let is_due = self
            .answer
            .as_ref()
            .is_none_or(|(when, _)| when.elapsed() >= QUESTIONS_PERIOD);
        if is_due && self.asking.is_none() {
            self.asking = question().map(tokio::spawn);
        }
        if let Some(asking) = self
            .asking
            .take_if(|asking| is_single || asking.is_finished())
            && let Ok(answer) = asking.await
        {
            self.answer = Some((Instant::now(), answer));
        }
        self.answer.as_ref().map(|(_, answer)| answer.clone())
    }
}

fn join_kind(kind: JoinFileKind) -> join::Kind {
    match kind {
        JoinFileKind::K0sToken => join::Kind::K0s,
        JoinFileKind::Kubeconfig => join::Kind::Kubeconfig,
        JoinFileKind::KubeadmJoin => join::Kind::Kubeadm,
        JoinFileKind::K3sConfig => join::Kind::K3sConfig,
        JoinFileKind::K3sEnvironment => join::Kind::K3sEnv,
    }
}

/// More than any join file holds, bytes.
fn input_limit() -> u64 {
    u64::try_from(INPUT_LIMIT).unwrap_or(u64::MAX)
}

/// What the sources say, and who is silent.
fn answers(
    config: &Config,
    seen: &Seen,
    news: &NodeNews,
    is_external: bool,
) -> (Vec<Told>, Vec<String>) {
    let mut answers = Vec::new();
    let mut silent = Vec::new();
    for source in &config.address.sources {
        let mut tell = |address: &DualAddress| {
            answers.extend(address.iter().map(|address| Told {
                source: *source,
                address,
            }));
        };
        match source {
            Source::Static => tell(&config.address.fixed),
            Source::Reflector => {
                for answer in seen.values() {
                    match answer {
                        Ok(address) => answers.push(Told {
                            source: *source,
                            address: *address,
                        }),
                        Err(why) => silent.push(why.clone()),
                    }
                }
            }
            Source::Annotation => {
                if let NodeNews::Seen(node) = news {
                    match annotated_address(node) {
                        Ok(Some(address)) => tell(&address),
                        Ok(None) => {}
                        Err(error) => silent.push(format!("the annotation on the Node: {error}")),
                    }
                }
            }
            Source::CloudProvider => {
                if let NodeNews::Seen(node) = news
                    && let Ok(address) = cloud_provider_address(node, is_external)
                {
                    tell(&address);
                }
            }
        }
    }
    if let NodeNews::Failed(why) = news {
        silent.push(why.clone());
    }
    (answers, silent)
}

/// What an answer must not be. The node address may be on the uplink as well, where others have put it.
fn rules(config: &Config, uplink: Option<&Uplink>, kernel: &Kernel) -> Rules {
    let attached = kernel
        .datapath
        .iter()
        .flat_map(|attached| &attached.shown.addresses);
    let mut guest_addresses: Vec<IpAddr> = attached.map(|line| line.guest).collect();
    match config.guest_address {
        GuestAddress::Given(given) => guest_addresses.extend(given.iter()),
        GuestAddress::Auto => {
            guest_addresses.extend(uplink.iter().flat_map(|uplink| &uplink.addresses));
        }
    }
    Rules {
        guest_addresses,
        guest_cidrs: config.address.guest_cidrs.clone(),
        infra_cidrs: config.address.infra_cidrs.clone(),
    }
}

fn refusal(told: Told, refusal: &pick::Refusal) -> Refusal {
    Refusal {
        source: told.source.to_string(),
        address: told.address,
        reason: refusal.name().to_owned(),
        message: refusal.to_string(),
    }
}

/// What join files are pointed to; none if they are left alone.
pub(super) fn replace(config: &Config) -> Option<Replace> {
    let endpoint = config.join.endpoint.clone()?;
    (!config.join.replace.is_empty()).then(|| Replace {
        cidrs: config.join.replace.clone(),
        endpoint,
    })
}

/// Looks at a join file, and gives its contents if it is there.
fn read_join_file(
    files: &mut Vec<JoinFile>,
    path: &Path,
    kind: join::Kind,
    replace: &Replace,
) -> Option<Vec<u8>> {
    let mut contents = None;
    let state = match files::read(path, input_limit()) {
        Ok(None) => return None,
        Err(error) => JoinState::Broken(error.to_string()),
        Ok(Some(bytes)) => {
            let state = match join::rewrite(kind, &bytes, replace) {
                Ok(rewritten) if rewritten.changes.is_empty() => JoinState::Fine,
                Ok(rewritten) => JoinState::Due(
                    rewritten
                        .changes
                        .iter()
                        .map(|change| format!("{} becomes {}", change.from, change.to))
                        .collect(),
                ),
                Err(error) => JoinState::Broken(format!("{}: {error}", path.display())),
            };
            contents = Some(bytes);
            state
        }
    };
    files.push(JoinFile {
        path: path.to_owned(),
        kind,
        state,
    });
    contents
}

fn findings(found: Vec<Finding>) -> Cni {
    let mut cni = Cni::default();
    for finding in found {
        match finding {
            Finding::Patch { annotations, why } => {
                cni.due.extend(annotations);
                cni.why = why;
            }
            Finding::Advice(advice) => cni.warnings.push(advice),
        }
    }
    cni
}
