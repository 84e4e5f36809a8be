//! k0s: its worker starts the kubelet, and its arguments, with `--kubelet-extra-args` among them, stand in the unit
//! that `k0s install worker` wrote.
//!
//! Source: reference/bootstrap.md §1.2–1.6, lab-findings §3d. The unit belongs to k0s, which may write it again;
//! therefore the whole command line stands once more in a drop-in, with `--node-ip` in it.

use std::path::{Path, PathBuf};

use super::{
    command_line::{self, Word},
    distribution::{Distribution, GivenNodeIp, JoinFile, JoinFileKind, Warning, Worker},
    file_change::FileChange,
    flags,
    node_ip::{MODE, OWN_DROP_IN, drop_in_path},
    serving_certificate::{Renewal, ServingCertificate},
    tree::Tree,
    unit::{Unit, UnitError},
};

const EXTRA_ARGS: &str = "--kubelet-extra-args";
/// `pkg/config/cfgvars.go`.
const DATA_DIR: &str = "/var/lib/k0s";
/// How base64 of a gzip stream begins, and so every token.
const TOKEN_START: &str = "H4sI";

/// What the unit says.
pub(super) fn worker(unit: Unit, tree: &Tree) -> Result<Worker, UnitError> {
    let arguments = unit.arguments(tree)?;
    let data_dir = PathBuf::from(flags::value(&arguments, "--data-dir").unwrap_or(DATA_DIR));
    let kubelet_dir = flags::value(&arguments, "--kubelet-root-dir")
        .map_or_else(|| data_dir.join("kubelet"), PathBuf::from);
    let mut join_files: Vec<_> = flags::value(&arguments, "--token-file")
        .map(|path| JoinFile::new(JoinFileKind::K0sToken, path))
        .into_iter()
        .collect();
    // These count more than the token once they exist.
    for name in ["kubelet-bootstrap.conf", "kubelet.conf"] {
        join_files.push(JoinFile::new(JoinFileKind::Kubeconfig, data_dir.join(name)));
    }
    let command = unit.command()?.path.clone();
    let mut warnings = Vec::new();
    if arguments.iter().any(|word| word.starts_with(TOKEN_START))
        || unit.variables(tree)?.contains_key("K0S_TOKEN")
    {
        warnings.push(Warning::InlineToken(command.clone()));
    }
    let extra = extra_arguments(&arguments);
    let given = extra
        .iter()
        .filter_map(|field| field.strip_prefix("--node-ip="))
        .next_back();
    Ok(Worker {
        distribution: Distribution::K0s,
        join_files,
        kubeconfig: data_dir.join("kubelet.conf"),
        // k0s sets serverTLSBootstrap and approves the request itself.
        serving_certificate: ServingCertificate {
            path: kubelet_dir.join("pki/kubelet-server-current.pem"),
            renewal: Renewal::Rotated,
        },
        has_external_cloud_provider: flags::is_set(&arguments, "--enable-cloud-provider")
            || extra.contains(&"--cloud-provider=external"),
        warnings,
        given_node_ip: given.map(|value| GivenNodeIp {
            value: value.to_owned(),
            path: command,
        }),
        arguments,
        unit,
    })
}

/// The kubelet's arguments as k0s takes them apart: at spaces, without quotes (`internal/pkg/flags/flags.go`).
pub(super) fn extra_arguments(arguments: &[String]) -> Vec<&str> {
    flags::value(arguments, EXTRA_ARGS)
        .unwrap_or_default()
        .split_whitespace()
        .collect()
}

/// Where our drop-in lies.
pub(super) fn drop_in() -> PathBuf {
    drop_in_path(Distribution::K0s.unit(), OWN_DROP_IN)
}

/// The drop-in that starts the worker with this flag.
pub(super) fn node_ip(
    worker: &Worker,
    flag: &str,
) -> Result<(FileChange, Option<Warning>), UnitError> {
    let ours = drop_in();
    let command = &worker.unit.command()?.path;
    let warning = is_after(command, &worker.unit.path).then(|| Warning::Overridden {
        theirs: command.clone(),
        ours: ours.clone(),
    });
    let words = with_flag(worker.unit.words()?, &worker.arguments, flag);
    let text = format!(
        "# Written by xkub: the command line of {} with this node's address. Changes are lost.\n\
         [Service]\nExecStart=\nExecStart={}\n",
        command.display(),
        command_line::join(&words)
    );
    let change = FileChange::write(ours, text, MODE, format!("the kubelet gets {flag}"));
    Ok((change, warning))
}

/// Whether a command line comes from a drop-in that is read after ours.
fn is_after(command: &Path, unit: &Path) -> bool {
    command != unit
        && command
            .file_name()
            .is_some_and(|name| name > Path::new(OWN_DROP_IN).as_os_str())
}

/// The words with a flag for the kubelet; those that need not change stay as they are written.
fn with_flag(mut words: Vec<Word>, arguments: &[String], flag: &str) -> Vec<Word> {
    let prefix = format!("{EXTRA_ARGS}=");
    let last = words
        .iter()
        .rposition(|word| word.value == EXTRA_ARGS || word.value.starts_with(&prefix));
    let (at, head, value) = match last {
        Some(at) if words.get(at).is_some_and(|word| word.value == EXTRA_ARGS) => {
            let value = words.get(at + 1).map(|word| word.value.clone());
            (at + 1, "", value.unwrap_or_default())
        }
        Some(at) => {
            let value = words
                .get(at)
                .and_then(|word| word.value.strip_prefix(&prefix))
                .unwrap_or_default();
            (at, prefix.as_str(), value.to_owned())
        }
        // None, or in a variable: then what it says is said again, and the last one counts.
        None => {
            let given = extra_arguments(arguments).join(" ");
            (words.len(), prefix.as_str(), command_line::literal(&given))
        }
    };
    // k0s knows no quotes here: the value is split at spaces alone.
    let mut fields: Vec<_> = value
        .split_whitespace()
        .filter(|field| *field != "--node-ip" && !field.starts_with("--node-ip="))
        .collect();
    fields.push(flag);
    let word = Word::new(format!("{head}{}", fields.join(" ")));
    match words.get_mut(at) {
        Some(place) => *place = word,
        None => words.push(word),
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flag_is_merged_into_the_line() {
        const FLAG: &str = "--node-ip=10.244.1.226,fd00::1";
        for (line, expected) in [
            (
                "k0s worker",
                r"k0s worker --kubelet-extra-args=--node-ip=10.244.1.226,fd00::1",
            ),
            (
                r"k0s worker --kubelet-extra-args=--v=2\x20--node-labels=a=b --labels=x=y",
                r"k0s worker --kubelet-extra-args=--v=2\x20--node-labels=a=b\x20--node-ip=10.244.1.226,fd00::1 --labels=x=y",
            ),
            (
                r#"k0s worker --kubelet-extra-args "--node-ip=10.0.2.2 --v=2" --token-file='/a b'"#,
                r"k0s worker --kubelet-extra-args --v=2\x20--node-ip=10.244.1.226,fd00::1 --token-file='/a b'",
            ),
            // The last one counts.
            (
                "k0s worker --kubelet-extra-args=--a=b --kubelet-extra-args=--v=2",
                r"k0s worker --kubelet-extra-args=--a=b --kubelet-extra-args=--v=2\x20--node-ip=10.244.1.226,fd00::1",
            ),
            // What systemd replaces is left to it.
            (
                r"k0s worker --kubelet-extra-args=--hostname-override=%H\x20--x=50%%\x20--y=${Y} --data-dir=/d%%",
                r"k0s worker --kubelet-extra-args=--hostname-override=%H\x20--x=50%%\x20--y=${Y}\x20--node-ip=10.244.1.226,fd00::1 --data-dir=/d%%",
            ),
            (
                "k0s worker --kubelet-extra-args",
                "k0s worker --kubelet-extra-args --node-ip=10.244.1.226,fd00::1",
            ),
            (
                "k0s worker $ARGS",
                r"k0s worker $ARGS --kubelet-extra-args=--z=5%%\x20--node-ip=10.244.1.226,fd00::1",
            ),
        ] {
            let words = command_line::split(line).unwrap();
            let variables = [("ARGS".to_owned(), "--kubelet-extra-args=--z=5%".to_owned())];
            let arguments = command_line::expand(&words, "a.service", &variables.into());
            let merged = command_line::join(&with_flag(words, &arguments, FLAG));
            assert_eq!(merged, expected);
            // Applied to its own outcome, nothing changes.
            let words = command_line::split(&merged).unwrap();
            assert_eq!(command_line::join(&with_flag(words, &[], FLAG)), expected);
        }
    }
}
