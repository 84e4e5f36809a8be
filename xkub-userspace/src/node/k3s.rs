//! k3s and rke2: agents whose flags may stand in `config.yaml` and, in the order of their names, in the files of
//! `config.yaml.d`.
//!
//! Source: reference/bootstrap.md §3.4, docs.k3s.io/installation/configuration. Of a key that stands in several
//! files the last one counts; on the command line, though, `--node-ip` adds to what the files say.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use serde::Deserialize;

use super::{
    distribution::{
        Distribution, GivenNodeIp, JoinFile, JoinFileKind, Warning, Worker, WorkerError,
    },
    file_change::FileChange,
    flags,
    node_ip::MODE,
    serving_certificate::{Renewal, ServingCertificate},
    tree::Tree,
    unit::Unit,
    yaml,
};

/// The name of our file in `config.yaml.d`.
const OWN_FILE: &str = "50-xkub.yaml";
/// Begins our file.
const HEADER: &str = "# Written by xkub: this node's address. Changes are lost.\n";

/// A flag's value, or a list of them.
#[derive(Deserialize)]
#[serde(untagged)]
enum Values {
    One(String),
    Several(Vec<String>),
}

impl Values {
    fn list(&self) -> &[String] {
        match self {
            Self::One(value) => std::slice::from_ref(value),
            Self::Several(values) => values,
        }
    }
}

/// The flags that matter here.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
struct Config {
    node_ip: Option<Values>,
    data_dir: Option<PathBuf>,
    kubelet_arg: Option<Values>,
    #[serde(rename = "kubelet-arg+")]
    more_kubelet_arg: Option<Values>,
    cloud_provider_name: Option<String>,
}

fn name(distribution: Distribution) -> &'static str {
    match distribution {
        Distribution::Rke2 => "rke2",
        _ => "k3s",
    }
}

/// Where the configuration file lies.
pub(super) fn config_path(
    distribution: Distribution,
    arguments: &[String],
    variables: &BTreeMap<String, String>,
) -> PathBuf {
    let variable = format!("{}_CONFIG_FILE", name(distribution).to_uppercase());
    flags::value(arguments, "--config")
        .or_else(|| flags::value(arguments, "-c"))
        .or_else(|| variables.get(&variable).map(String::as_str))
        .map_or_else(
            || {
                Path::new("/etc/rancher")
                    .join(name(distribution))
                    .join("config.yaml")
            },
            PathBuf::from,
        )
}

/// Where the files lie that add to it.
pub(super) fn config_folder(config: &Path) -> PathBuf {
    let mut folder = config.as_os_str().to_owned();
    folder.push(".d");
    folder.into()
}

/// What the unit and the files say.
pub(super) fn worker(
    distribution: Distribution,
    unit: Unit,
    tree: &Tree,
) -> Result<Worker, WorkerError> {
    let arguments = unit.arguments(tree)?;
    let config = config_path(distribution, &arguments, &unit.variables(tree)?);
    let folder = config_folder(&config);
    let mut join_files: Vec<_> = unit
        .environment_files()
        .into_iter()
        .map(|path| JoinFile::new(JoinFileKind::K3sEnvironment, path))
        .collect();
    let mut data_dir = None;
    let mut kubelet_arguments = Vec::new();
    let mut cloud_provider = None;
    let mut given_node_ip = None;
    let mut warnings = Vec::new();
    let first = (config.as_path(), tree.get(&config).unwrap_or_default());
    for (path, text) in [first].into_iter().chain(tree.folder(&folder)) {
        if path.file_name().is_some_and(|name| name == OWN_FILE) {
            continue;
        }
        join_files.push(JoinFile::new(JoinFileKind::K3sConfig, path));
        let read: Config = yaml::read(path, text)?;
        if let Some(values) = &read.node_ip {
            given_node_ip = Some(GivenNodeIp {
                value: values.list().join(","),
                path: path.to_owned(),
            });
            if path.parent() == Some(&folder) && path.file_name() > Some(OWN_FILE.as_ref()) {
                warnings.push(Warning::Overridden {
                    theirs: path.to_owned(),
                    ours: folder.join(OWN_FILE),
                });
            }
        }
        if let Some(values) = &read.kubelet_arg {
            kubelet_arguments = values.list().to_vec();
        }
        if let Some(values) = &read.more_kubelet_arg {
            kubelet_arguments.extend_from_slice(values.list());
        }
        data_dir = read.data_dir.or(data_dir);
        cloud_provider = read.cloud_provider_name.or(cloud_provider);
    }
    kubelet_arguments.extend(
        flags::values(&arguments, "--kubelet-arg")
            .into_iter()
            .map(str::to_owned),
    );
    let on_command_line = flags::values(&arguments, "--node-ip").join(",");
    if !on_command_line.is_empty() {
        let path = unit.command()?.path.clone();
        warnings.push(Warning::SecondNodeIp {
            value: on_command_line.clone(),
            path: path.clone(),
        });
        given_node_ip = Some(GivenNodeIp {
            value: on_command_line,
            path,
        });
    }
    let data_dir = flags::value(&arguments, "--data-dir")
        .or_else(|| flags::value(&arguments, "-d"))
        .map(PathBuf::from)
        .or(data_dir)
        .unwrap_or_else(|| Path::new("/var/lib/rancher").join(name(distribution)));
    let agent = data_dir.join("agent");
    let cloud_provider = flags::value(&arguments, "--cloud-provider-name")
        .map(str::to_owned)
        .or(cloud_provider);
    // Their own cloud provider, which runs by default, takes the address from the agent's --node-ip; only another
    // one counts here.
    let has_external_cloud_provider = cloud_provider.as_deref() == Some("external")
        || kubelet_arguments
            .iter()
            .any(|argument| argument.trim_start_matches('-') == "cloud-provider=external");
    Ok(Worker {
        distribution,
        join_files,
        kubeconfig: agent.join("kubelet.kubeconfig"),
        serving_certificate: ServingCertificate {
            path: agent.join("serving-kubelet.crt"),
            renewal: Renewal::AtStart,
        },
        has_external_cloud_provider,
        warnings,
        given_node_ip,
        arguments,
        unit,
    })
}

/// Where our file lies.
pub(super) fn drop_in(worker: &Worker, tree: &Tree) -> PathBuf {
    let variables = worker.unit.variables(tree).unwrap_or_default();
    let config = config_path(worker.distribution, &worker.arguments, &variables);
    config_folder(&config).join(OWN_FILE)
}

/// Our file with these addresses, separated by commas.
pub(super) fn node_ip(worker: &Worker, tree: &Tree, addresses: &str) -> FileChange {
    FileChange::write(
        drop_in(worker, tree),
        format!("{HEADER}node-ip: \"{addresses}\"\n"),
        MODE,
        format!("the kubelet gets --node-ip={addresses}"),
    )
}

/// Our files, wherever they are.
pub(super) fn own_files(tree: &Tree) -> Vec<PathBuf> {
    tree.paths()
        .filter(|path| path.file_name().is_some_and(|name| name == OWN_FILE))
        .map(Path::to_owned)
        .collect()
}
