//! Installing into an image of every distribution, and leaving it as it was.

#![expect(clippy::unwrap_used, reason = "tests")]

mod root;

use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::Path,
    process::{Command, Output},
};

use root::Root;
use xkub_userspace::{
    install::{self, InstallError, Options, config::Setting},
    node::{
        boot_order::Start,
        distribution::{self, Distribution},
    },
};

const FIXTURES: [&str; 10] = [
    "",
    "k0s",
    "k0s-moved",
    "k0s-cloud",
    "kubeadm-deb",
    "kubeadm-rpm",
    "kubeadm-cloud",
    "k3s",
    "rke2",
    "rke2-cloud",
];

/// A copy of a fixture, and a file that stands for the binary.
struct Image {
    root: Root,
    executable: tempfile::NamedTempFile,
}

impl Image {
    fn of(fixture: &str) -> Self {
        let root = Root::of(fixture);
        let executable = tempfile::NamedTempFile::new().unwrap();
        fs::write(executable.path(), "a binary").unwrap();
        Self { root, executable }
    }

    fn options(&self, start: Start, settings: &[&str]) -> Options {
        Options {
            start,
            distribution: None,
            settings: settings
                .iter()
                .map(|text| Setting::parse(text).unwrap())
                .collect(),
            executable: self.executable.path().to_owned(),
        }
    }

    /// Installs, and says how many steps that took.
    fn install(&self, options: &Options) -> usize {
        let steps = install::plan(self.root.path(), options).unwrap();
        for step in &steps {
            step.apply(self.root.path()).unwrap();
        }
        steps.len()
    }

    fn remove(&self, purge: bool) {
        let removal = install::remove(self.root.path(), purge).unwrap();
        for step in &removal.steps {
            if step.is_due(self.root.path()).unwrap() {
                step.apply(self.root.path()).unwrap();
            }
        }
    }

    /// What the agent would do.
    fn set_node_ip(&self) {
        let tree = distribution::read(self.root.path()).unwrap();
        if let Some(worker) = distribution::find(&tree, None).unwrap() {
            let plan = worker
                .plan_node_ip(&tree, &["10.244.1.226".parse().unwrap()])
                .unwrap();
            for change in plan.changes {
                change.apply(self.root.path()).unwrap();
            }
        }
    }
}

#[test]
fn uninstall_leaves_what_was_there_before() {
    for fixture in FIXTURES {
        let image = Image::of(fixture);
        let before = image.root.contents();
        let options = image.options(Start::FailOpen, &[]);
        assert!(image.install(&options) > 0);
        assert_eq!(image.install(&options), 0, "{fixture}: not idempotent");
        image.set_node_ip();
        assert_eq!(image.install(&options), 0, "{fixture}: not after a run");
        image.remove(true);
        assert_eq!(image.root.contents(), before, "{fixture}");
        assert_eq!(
            install::remove(image.root.path(), true).unwrap(),
            install::Removal::default(),
            "{fixture}"
        );
    }
}

#[test]
fn the_folders_of_others_stay() {
    let image = Image::of("k0s");
    let folder = image
        .root
        .path()
        .join("etc/systemd/system/k0sworker.service.d");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("10-site.conf"), "[Service]\n").unwrap();
    let before = image.root.contents();
    image.install(&image.options(Start::FailOpen, &[]));
    image.set_node_ip();
    image.remove(true);
    assert_eq!(image.root.contents(), before);
}

#[test]
fn the_unit_is_enabled_and_ordered() {
    for (fixture, units) in [
        ("k0s", &["k0sworker.service"][..]),
        ("kubeadm-deb", &["kubelet.service"]),
        // None yet: it may become any.
        (
            "",
            &[
                "k0sworker.service",
                "kubelet.service",
                "k3s-agent.service",
                "rke2-agent.service",
            ],
        ),
    ] {
        for start in [Start::FailOpen, Start::FailClosed] {
            let image = Image::of(fixture);
            image.install(&image.options(start, &[]));
            let link = image
                .root
                .path()
                .join("etc/systemd/system/multi-user.target.wants/xkub-agent.service");
            assert_eq!(
                fs::read_link(link).unwrap(),
                Path::new("/etc/systemd/system/xkub-agent.service")
            );
            let unit = image.root.text("etc/systemd/system/xkub-agent.service");
            assert!(unit.contains("\nExecStart=/usr/local/bin/xkub agent\n"));
            assert!(!unit.contains('@') || unit.contains("@system-service"));
            assert!(!unit.contains("@BINARY@") && !unit.contains("@START_TIMEOUT@"));
            for distribution in Distribution::ALL {
                let path = format!(
                    "etc/systemd/system/{}.d/40-xkub-order.conf",
                    distribution.unit()
                );
                let exists = image.root.path().join(&path).exists();
                assert_eq!(exists, units.contains(&distribution.unit()), "{path}");
                if exists {
                    let text = image.root.text(&path);
                    assert!(text.contains("\nAfter=xkub-agent.service\n"));
                    let waits = text.contains("ExecStartPre=/bin/systemctl is-active");
                    assert_eq!(waits, start == Start::FailClosed);
                    assert!(text.contains(
                        "\nExecStartPre=-/usr/local/bin/xkub status --look --check live\n"
                    ));
                    assert!(!text.contains("\nRequires="));
                }
            }
        }
    }
}

#[test]
fn a_configuration_that_is_there_is_never_touched() {
    let image = Image::of("k0s");
    image.install(&image.options(Start::FailOpen, &["join.endpoint=10.0.0.1:6443"]));
    let text = image.root.text("etc/xkub/config.toml");
    assert!(text.contains("\nendpoint = \"10.0.0.1:6443\"\n"));
    let options = image.options(Start::FailOpen, &["join.endpoint=10.0.0.2:6443"]);
    let error = install::plan(image.root.path(), &options).unwrap_err();
    assert!(matches!(error, InstallError::Setting(_)));
    assert!(
        error.to_string().contains("set join.endpoint there"),
        "{error}"
    );
    assert_eq!(image.install(&image.options(Start::FailClosed, &[])), 2);
    assert_eq!(image.root.text("etc/xkub/config.toml"), text);
    image.remove(false);
    assert_eq!(image.root.text("etc/xkub/config.toml"), text);
}

#[test]
fn nothing_is_written_outside_the_image() {
    let outside = tempfile::tempdir().unwrap();
    let image = Image::of("");
    fs::create_dir_all(image.root.path().join("etc")).unwrap();
    // A link that would lead out of the image, were it not taken as the image's own.
    symlink(outside.path(), image.root.path().join("etc/systemd")).unwrap();
    image.install(&image.options(Start::FailOpen, &[]));
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0);
    image.remove(true);
}

#[test]
fn a_malformed_unit_stops_everything_before_it_begins() {
    let image = Image::of("k0s");
    let unit = image
        .root
        .path()
        .join("etc/systemd/system/k0sworker.service");
    fs::write(unit, "[Service\nExecStart=/bin/false\n").unwrap();
    let before = image.root.contents();
    let error = install::plan(image.root.path(), &image.options(Start::FailOpen, &[])).unwrap_err();
    assert!(
        error.to_string().contains("k0sworker.service:1:"),
        "{error}"
    );
    assert_eq!(image.root.contents(), before);
}

fn xkub(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_xkub"))
        .args(arguments)
        .output()
        .unwrap()
}

#[test]
fn the_command_says_what_it_changes() {
    let image = Image::of("k0s");
    let before = image.root.contents();
    let root = format!("--root={}", image.root.path().display());
    let dry = xkub(&["install", &root, "--dry-run"]);
    assert!(dry.status.success(), "{dry:?}");
    let text = String::from_utf8(dry.stdout).unwrap();
    assert!(
        text.contains("would be written  /usr/local/bin/xkub: the agent\n"),
        "{text}"
    );
    assert_eq!(image.root.contents(), before);

    let done = xkub(&["install", &root, "--output=json"]);
    assert!(done.status.success(), "{done:?}");
    let report: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!(report["kind"], "Installation");
    assert_eq!(report["changes"].as_array().unwrap().len(), 7);
    let binary = image.root.path().join("usr/local/bin/xkub");
    assert_eq!(
        fs::metadata(binary).unwrap().permissions().mode() & 0o777,
        0o755
    );
    let again = xkub(&["install", &root]);
    assert_eq!(again.stdout, b"nothing to change\n");

    let removed = xkub(&["uninstall", &root, "--purge"]);
    assert!(removed.status.success(), "{removed:?}");
    assert_eq!(image.root.contents(), before);
}

#[test]
fn the_units_wait_as_the_configuration_says() {
    let image = Image::of("k0s");
    let root = format!("--root={}", image.root.path().display());
    let order = "etc/systemd/system/k0sworker.service.d/40-xkub-order.conf";
    let waits = || {
        let text = fs::read_to_string(image.root.path().join(order)).unwrap();
        text.contains("is-active")
    };
    let done = xkub(&["install", &root, "--set", "node.fail-open=false"]);
    assert!(done.status.success(), "{done:?}");
    assert!(waits());
    // The file is there now, and says so.
    let again = xkub(&["install", &root]);
    assert_eq!(again.stdout, b"nothing to change\n", "{again:?}");
    assert!(waits());
    fs::write(image.root.path().join("etc/xkub/config.toml"), "").unwrap();
    assert!(xkub(&["install", &root]).status.success());
    assert!(!waits());
    let closed = xkub(&["install", &root, "--fail-closed"]);
    assert!(waits());
    let said = String::from_utf8(closed.stdout).unwrap();
    assert!(said.contains("next: set fail-open = false"), "{said}");
}

#[test]
fn bad_usage_is_said() {
    let image = Image::of("");
    let root = format!("--root={}", image.root.path().display());
    for (arguments, code, expected) in [
        (
            &["install", &root, "--set", "join.endpiont=x"][..],
            1,
            "nearest is join.endpoint",
        ),
        (
            &["install", &root, "--set", "datapath.flow-entries=abc"],
            1,
            "--set",
        ),
        (&["install", &root, "--set", "node.restart=yes"], 1, "--set"),
        (
            &["install", &root, "--now"],
            1,
            "--now is for the running system",
        ),
        (&["install", &root, "--binary-url=x"], 2, "--print"),
        (
            &["install", &root, "--distribution=talos"],
            2,
            "possible values",
        ),
    ] {
        let output = xkub(arguments);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}");
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(error.contains(expected), "{error}");
        assert_eq!(image.root.contents().len(), 0);
    }
}
