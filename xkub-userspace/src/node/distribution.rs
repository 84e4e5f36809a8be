//! What runs the kubelet on this node, found by looking at its files: everything here is derived from a [`Tree`].

use std::{
    fmt,
    path::{Path, PathBuf},
};

use thiserror::Error;

use super::{
    k0s, k3s, kubeadm,
    node_ip::OWN_DROP_IN,
    serving_certificate::ServingCertificate,
    tree::{Tree, TreeError},
    unit::{self, Unit, UnitError},
};

/// A Kubernetes distribution that xkub knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Distribution {
    /// k0s, whose worker starts the kubelet itself.
    K0s,
    /// A kubelet of its own, joined by kubeadm.
    Kubeadm,
    /// A k3s agent.
    K3s,
    /// An rke2 agent.
    Rke2,
}

impl Distribution {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::K0s, Self::Kubeadm, Self::K3s, Self::Rke2];

    /// As a person writes it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::K0s => "k0s",
            Self::Kubeadm => "kubeadm",
            Self::K3s => "k3s",
            Self::Rke2 => "rke2",
        }
    }

    /// The unit that runs the kubelet.
    #[must_use]
    pub fn unit(self) -> &'static str {
        match self {
            Self::K0s => "k0sworker.service",
            Self::Kubeadm => "kubelet.service",
            Self::K3s => "k3s-agent.service",
            Self::Rke2 => "rke2-agent.service",
        }
    }
}

impl fmt::Display for Distribution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Why it is not known how the worker is started.
#[derive(Debug, Error)]
pub enum WorkerError {
    /// A unit is malformed or can't be read.
    #[error(transparent)]
    Unit(#[from] UnitError),
    /// A file can't be read.
    #[error(transparent)]
    Tree(#[from] TreeError),
    /// A configuration file of the distribution is malformed. What is in it is not said: it may hold a token.
    #[error("{}{} is not the YAML that is expected there", path.display(), at(*.line))]
    Yaml {
        /// The file.
        path: PathBuf,
        /// Where, counted from one, if that is known.
        line: Option<u64>,
    },
    /// More than one could be meant.
    #[error(
        "several workers are installed: {}; name one of them with distribution = in [node], or disable the others",
        names(.0)
    )]
    Ambiguous(Vec<Distribution>),
}

fn at(line: Option<u64>) -> String {
    line.map(|line| format!(":{line}")).unwrap_or_default()
}

fn names(distributions: &[Distribution]) -> String {
    let names: Vec<_> = distributions.iter().map(|which| which.name()).collect();
    names.join(", ")
}

/// What kind of file holds the address of the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JoinFileKind {
    /// base64(gzip(kubeconfig)).
    K0sToken,
    /// A kubeconfig.
    Kubeconfig,
    /// `JoinConfiguration`; it may name a discovery file, which is a kubeconfig.
    KubeadmJoin,
    /// `config.yaml` of k3s or rke2.
    K3sConfig,
    /// An environment file with `K3S_URL` or `RKE2_URL`.
    K3sEnvironment,
}

/// A file to be looked at before the worker starts. It need not exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinFile {
    /// What it is.
    pub kind: JoinFileKind,
    /// Where it lies.
    pub path: PathBuf,
}

impl JoinFile {
    pub(super) fn new(kind: JoinFileKind, path: impl Into<PathBuf>) -> Self {
        Self {
            kind,
            path: path.into(),
        }
    }
}

/// What a person should know about how the worker is started.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Warning {
    /// A token that is not in a file.
    #[error(
        "the join token stands in {} itself, where xkub does not change it; give it with --token-file",
        .0.display()
    )]
    InlineToken(PathBuf),
    /// Somebody else has the last word.
    #[error(
        "{} counts more than {}, so --node-ip is not in force; give it a name that sorts before it",
        theirs.display(), ours.display()
    )]
    Overridden {
        /// What counts.
        theirs: PathBuf,
        /// What does not.
        ours: PathBuf,
    },
    /// An external cloud provider and a node-ip that is not its address.
    #[error(
        "the kubelet has --node-ip={value} and an external cloud provider, which refuses a node whose address differs \
         (\"failed to get node address from cloud provider that matches ip\"); remove --node-ip from {}",
        path.display()
    )]
    ForeignNodeIp {
        /// What it is set to.
        value: String,
        /// Where.
        path: PathBuf,
    },
    /// Given twice, where both count.
    #[error("{} gives --node-ip={value}, which is added to what xkub writes; remove it there", path.display())]
    SecondNodeIp {
        /// What it is set to.
        value: String,
        /// Where.
        path: PathBuf,
    },
    /// A kubelet unit that takes no extra arguments.
    #[error(
        "{} reads no $KUBELET_EXTRA_ARGS from /etc/default/kubelet or /etc/sysconfig/kubelet; \
         add both to it as kubeadm's 10-kubeadm.conf has them",
        .0.display()
    )]
    NoExtraArguments(PathBuf),
    /// `KUBELET_EXTRA_ARGS` can't be added to.
    #[error("{} has a quotation mark that is never closed, or ends with a backslash; correct it", .0.display())]
    OpenQuote(PathBuf),
}

/// A `--node-ip` that is not ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GivenNodeIp {
    pub value: String,
    pub path: PathBuf,
}

/// How the kubelet is started on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Worker {
    /// Which one.
    pub distribution: Distribution,
    /// Its unit, without what xkub added.
    pub unit: Unit,
    /// The arguments of its process, without what xkub added.
    pub arguments: Vec<String>,
    /// What holds the address of the API server.
    pub join_files: Vec<JoinFile>,
    /// The kubelet's kubeconfig, once the node has joined.
    pub kubeconfig: PathBuf,
    /// The kubelet's serving certificate.
    pub serving_certificate: ServingCertificate,
    /// Whether the Node's addresses are set by a cloud provider outside.
    pub has_external_cloud_provider: bool,
    /// What a person should know.
    pub warnings: Vec<Warning>,
    /// `--node-ip` as somebody else set it.
    pub(super) given_node_ip: Option<GivenNodeIp>,
}

/// Reads all files that say how a worker is started.
///
/// # Errors
/// [`TreeError`].
pub fn read(root: &Path) -> Result<Tree, TreeError> {
    let mut tree = Tree::default();
    tree.read_enabled(root, Path::new(unit::ETC))?;
    for distribution in Distribution::ALL {
        unit::read(&mut tree, root, distribution.unit())?;
        // One that is malformed is reported by [`find`], where it is the one that matters.
        let Ok(Some(unit)) = Unit::load(&tree, distribution.unit(), OWN_DROP_IN) else {
            continue;
        };
        for path in unit.environment_files() {
            tree.read(root, &path)?;
        }
        let (Ok(arguments), Ok(variables)) = (unit.arguments(&tree), unit.variables(&tree)) else {
            continue;
        };
        match distribution {
            Distribution::K0s => {}
            Distribution::Kubeadm => kubeadm::read(&mut tree, root, &arguments)?,
            Distribution::K3s | Distribution::Rke2 => {
                let folder = k3s::config_path(distribution, &arguments, &variables);
                tree.read(root, &folder)?;
                tree.read_folder(root, &k3s::config_folder(&folder), ".yaml")?;
            }
        }
    }
    Ok(tree)
}

/// The worker of this node: the one that is named, or the only one that is enabled, or the only one there is. None
/// where it is not installed yet.
///
/// # Errors
/// [`WorkerError`], one variant per cause.
pub fn find(tree: &Tree, named: Option<Distribution>) -> Result<Option<Worker>, WorkerError> {
    let mut units = Vec::new();
    for distribution in Distribution::ALL {
        if named.is_none_or(|named| named == distribution)
            && let Some(unit) = Unit::load(tree, distribution.unit(), OWN_DROP_IN)?
        {
            units.push((distribution, unit));
        }
    }
    if units.iter().any(|(which, _)| tree.is_enabled(which.unit())) {
        units.retain(|(which, _)| tree.is_enabled(which.unit()));
    }
    if units.len() > 1 {
        let which = units.into_iter().map(|(which, _)| which).collect();
        return Err(WorkerError::Ambiguous(which));
    }
    let Some((distribution, unit)) = units.pop() else {
        return Ok(None);
    };
    match distribution {
        Distribution::K0s => k0s::worker(unit, tree).map_err(WorkerError::from),
        Distribution::Kubeadm => kubeadm::worker(unit, tree),
        Distribution::K3s | Distribution::Rke2 => k3s::worker(distribution, unit, tree),
    }
    .map(Some)
}
