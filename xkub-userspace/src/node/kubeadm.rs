//! kubeadm: a kubelet with a unit of its own, and `KUBELET_EXTRA_ARGS` in `/etc/default/kubelet` (Debian) or
//! `/etc/sysconfig/kubelet` (Fedora), which stands last on its command line and therefore wins.
//!
//! Source: reference/bootstrap.md §3.3, `10-kubeadm.conf`.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::{
    distribution::{
        Distribution, GivenNodeIp, JoinFile, JoinFileKind, Warning, Worker, WorkerError,
    },
    environment,
    file_change::FileChange,
    flags,
    node_ip::{self, MODE},
    serving_certificate::{Renewal, ServingCertificate},
    tree::{Tree, TreeError},
    unit::Unit,
    yaml,
};

/// Where extra arguments may stand.
const EXTRA_ARGS_FILES: [&str; 2] = ["/etc/default/kubelet", "/etc/sysconfig/kubelet"];
const EXTRA_ARGS: &str = "KUBELET_EXTRA_ARGS";
/// Cluster API's bootstrap provider writes it before it calls `kubeadm join`.
const JOIN_CONFIG: &str = "/run/kubeadm/kubeadm-join-config.yaml";
const CONFIG: &str = "/var/lib/kubelet/config.yaml";
const KUBECONFIG: &str = "/etc/kubernetes/kubelet.conf";
const BOOTSTRAP_KUBECONFIG: &str = "/etc/kubernetes/bootstrap-kubelet.conf";
const CERT_DIR: &str = "/var/lib/kubelet/pki";

/// What of `KubeletConfiguration` says where the serving certificate is.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Config {
    #[serde(rename = "serverTLSBootstrap")]
    server_tls_bootstrap: bool,
    tls_cert_file: Option<PathBuf>,
}

/// Reads what the command line names, and both files for extra arguments.
pub(super) fn read(tree: &mut Tree, root: &Path, arguments: &[String]) -> Result<(), TreeError> {
    for path in EXTRA_ARGS_FILES {
        tree.read(root, Path::new(path))?;
    }
    tree.read(root, config_path(arguments))
}

fn config_path(arguments: &[String]) -> &Path {
    Path::new(flags::value(arguments, "--config").unwrap_or(CONFIG))
}

/// What the unit says.
pub(super) fn worker(unit: Unit, tree: &Tree) -> Result<Worker, WorkerError> {
    let arguments = without_ours(&unit, tree)?;
    let path = |flag, default| PathBuf::from(flags::value(&arguments, flag).unwrap_or(default));
    let kubeconfig = path("--kubeconfig", KUBECONFIG);
    let bootstrap = path("--bootstrap-kubeconfig", BOOTSTRAP_KUBECONFIG);
    let cert_dir = path("--cert-dir", CERT_DIR);
    let config_path = config_path(&arguments);
    let config: Config = tree
        .get(config_path)
        .map(|text| yaml::read(config_path, text))
        .transpose()?
        .unwrap_or_default();
    let serving_certificate = match config.tls_cert_file {
        Some(path) => ServingCertificate {
            path,
            renewal: Renewal::Never,
        },
        None if config.server_tls_bootstrap => ServingCertificate {
            path: cert_dir.join("kubelet-server-current.pem"),
            renewal: Renewal::Rotated,
        },
        None => ServingCertificate {
            path: cert_dir.join("kubelet.crt"),
            renewal: Renewal::Never,
        },
    };
    let given_node_ip = flags::value(&arguments, "--node-ip").map(|value| GivenNodeIp {
        path: place_of_node_ip(&unit, tree),
        value: value.to_owned(),
    });
    Ok(Worker {
        distribution: Distribution::Kubeadm,
        join_files: vec![
            JoinFile::new(JoinFileKind::KubeadmJoin, JOIN_CONFIG),
            JoinFile::new(JoinFileKind::Kubeconfig, bootstrap),
            JoinFile::new(JoinFileKind::Kubeconfig, kubeconfig.as_path()),
        ],
        kubeconfig,
        serving_certificate,
        has_external_cloud_provider: flags::value(&arguments, "--cloud-provider")
            == Some("external"),
        warnings: Vec::new(),
        given_node_ip,
        arguments,
        unit,
    })
}

/// The kubelet's arguments as they were before we added ours.
fn without_ours(unit: &Unit, tree: &Tree) -> Result<Vec<String>, WorkerError> {
    let mut before = tree.clone();
    for change in remove_node_ip(tree) {
        let contents = change.contents.unwrap_or_default();
        before.insert(change.path, String::from_utf8_lossy(&contents));
    }
    Ok(unit.arguments(&before)?)
}

/// Where somebody set `--node-ip`: an environment file, else the unit.
fn place_of_node_ip(unit: &Unit, tree: &Tree) -> PathBuf {
    unit.environment_files()
        .into_iter()
        .rfind(|path| {
            tree.get(path).is_some_and(|text| {
                environment::parse(text)
                    .iter()
                    .any(|variable| variable.value.contains("--node-ip"))
            })
        })
        .unwrap_or_else(|| unit.path.clone())
}

/// The file of extra arguments that the unit reads last.
fn extra_args_file(unit: &Unit) -> Option<PathBuf> {
    unit.environment_files()
        .into_iter()
        .rfind(|path| EXTRA_ARGS_FILES.map(Path::new).contains(&path.as_path()))
}

/// The file of extra arguments with this flag in it.
///
/// # Errors
/// What stands in the way.
pub(super) fn node_ip(worker: &Worker, tree: &Tree, flag: &str) -> Result<FileChange, Warning> {
    let takes_them = worker.unit.words().is_ok_and(|words| {
        words
            .iter()
            .any(|word| word.value.trim_matches(['$', '{', '}']) == EXTRA_ARGS)
    });
    let path = extra_args_file(&worker.unit)
        .filter(|_| takes_them)
        .ok_or_else(|| Warning::NoExtraArguments(worker.unit.path.clone()))?;
    let text = tree.get(&path).unwrap_or_default();
    let value = environment::get(text, EXTRA_ARGS).unwrap_or_default();
    let changed = match node_ip::merge(&value, flag) {
        Ok(merged) if merged == value => Some(text.to_owned()),
        Ok(merged) => environment::set(text, EXTRA_ARGS, &merged),
        Err(_) => None,
    };
    let Some(changed) = changed else {
        return Err(Warning::OpenQuote(path));
    };
    let why = format!("the kubelet gets {flag}");
    Ok(FileChange::write(path, changed, MODE, why))
}

/// What takes our flag back.
pub(super) fn remove_node_ip(tree: &Tree) -> Vec<FileChange> {
    let strip = |value: &str| node_ip::strip(value).unwrap_or_else(|_| value.to_owned());
    EXTRA_ARGS_FILES
        .into_iter()
        .filter_map(|path| {
            let text = environment::unset(tree.get(path)?, EXTRA_ARGS, strip)?;
            let why = "the kubelet's --node-ip is not xkub's any more";
            Some(if text.is_empty() {
                FileChange::remove(path, why)
            } else {
                FileChange::write(path, text, MODE, why)
            })
        })
        .collect()
}
