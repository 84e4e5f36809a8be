//! What a cluster's manifests need so that new machines come with the agent: k0smotron's and kubeadm's hooks between
//! the files that cloud-init writes and the join.

use super::config::{self, Setting};
use crate::node::{boot_order::Start, distribution::Distribution};

/// Whose manifest it is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manifest {
    /// `K0sWorkerConfig` and its template.
    K0smotron,
    /// `KubeadmConfig` and its template.
    Kubeadm,
}

impl Manifest {
    fn distribution(self) -> Distribution {
        match self {
            Self::K0smotron => Distribution::K0s,
            Self::Kubeadm => Distribution::Kubeadm,
        }
    }

    /// The kind, and the list of commands that run before the join.
    fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::K0smotron => ("K0sWorkerConfig", "preK0sCommands"),
            Self::Kubeadm => ("KubeadmConfig", "preKubeadmCommands"),
        }
    }
}

/// Part of a manifest's `spec`. Without a URL the binary is taken to be in the image.
#[must_use]
pub fn snippet(
    manifest: Manifest,
    start: Start,
    settings: &[Setting],
    binary_url: Option<&str>,
) -> String {
    let (kind, commands) = manifest.names();
    let mut result =
        format!("# Part of {kind}'s spec, and of {kind}Template's spec.template.spec.\n");
    let text = config::short_text(settings);
    if !text.is_empty() {
        result.push_str(
            "files:\n  - path: /etc/xkub/config.toml\n    permissions: \"0644\"\n    content: |\n",
        );
        for line in text.lines() {
            result.push_str("      ");
            result.push_str(line);
            result.push('\n');
        }
    }
    let mut lines = Vec::new();
    if let Some(url) = binary_url {
        lines.push(format!(
            "curl --fail --silent --show-error --location --retry 5 --output /usr/local/bin/xkub {}",
            shell_word(url)
        ));
        lines.push("chmod 0755 /usr/local/bin/xkub".to_owned());
    }
    let wait = match start {
        Start::FailOpen => "",
        Start::FailClosed => " --fail-closed",
    };
    lines.push(format!(
        "/usr/local/bin/xkub install --distribution={}{wait} --now",
        manifest.distribution()
    ));
    result.push_str(commands);
    result.push_str(":\n");
    for line in lines {
        // A JSON string is a YAML string.
        result.push_str("  - ");
        result.push_str(&serde_json::Value::from(line).to_string());
        result.push('\n');
    }
    result
}

/// A word that a POSIX shell takes as it is.
fn shell_word(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Spec {
        #[serde(default)]
        files: Vec<File>,
        #[serde(default, alias = "preKubeadmCommands", alias = "preK0sCommands")]
        commands: Vec<String>,
    }

    #[derive(Deserialize)]
    struct File {
        path: String,
        content: String,
    }

    #[test]
    fn the_snippet_is_yaml_with_the_settings_in_it() {
        let settings = ["join.endpoint=10.0.0.1:6443", "join.replace=10.244.0.0/16"]
            .map(|text| Setting::parse(text).unwrap());
        let url = "https://example.com/it's/xkub?a=b&c=\"d\"";
        for (manifest, start, expected) in [
            (
                Manifest::K0smotron,
                Start::FailOpen,
                "/usr/local/bin/xkub install --distribution=k0s --now",
            ),
            (
                Manifest::Kubeadm,
                Start::FailClosed,
                "/usr/local/bin/xkub install --distribution=kubeadm --fail-closed --now",
            ),
        ] {
            let text = snippet(manifest, start, &settings, Some(url));
            let spec: Spec = serde_saphyr::from_str(&text).unwrap();
            assert_eq!(spec.files[0].path, "/etc/xkub/config.toml");
            assert_eq!(
                spec.files[0].content,
                "[join]\nendpoint = \"10.0.0.1:6443\"\nreplace = [\"10.244.0.0/16\"]\n"
            );
            assert!(spec.commands[0].ends_with(
                r#"--output /usr/local/bin/xkub 'https://example.com/it'\''s/xkub?a=b&c="d"'"#
            ));
            assert_eq!(spec.commands[2], expected);
            let spec: Spec = serde_saphyr::from_str(&snippet(manifest, start, &[], None)).unwrap();
            assert!(spec.files.is_empty());
            assert_eq!(spec.commands, [expected]);
        }
    }
}
