//! Every distribution's files as they really lie: what is found in them, what `--node-ip` changes, and that taking
//! it back leaves what was there.

#![expect(clippy::unwrap_used, reason = "tests")]

mod root;

use std::{
    fs,
    net::IpAddr,
    path::Path,
    time::{Duration, SystemTime},
};

use root::Root;
use xkub_userspace::node::{
    distribution::{self, Distribution, JoinFileKind, Warning, Worker, WorkerError},
    node_ip::{self, NodeIpPlan, Running},
    serving_certificate::Renewal,
    tree::Tree,
};

impl Root {
    fn write(&self, path: &str, text: &str) {
        let path = self.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn tree(&self) -> Tree {
        distribution::read(self.path()).unwrap()
    }

    fn worker(&self) -> (Tree, Worker) {
        let tree = self.tree();
        let worker = distribution::find(&tree, None).unwrap().unwrap();
        (tree, worker)
    }

    fn plan(&self, addresses: &[&str]) -> NodeIpPlan {
        let (tree, worker) = self.worker();
        worker.plan_node_ip(&tree, &parse(addresses)).unwrap()
    }

    fn apply(&self, plan: &NodeIpPlan) {
        for change in &plan.changes {
            change.apply(self.path()).unwrap();
        }
    }
}

fn parse(addresses: &[&str]) -> Vec<IpAddr> {
    addresses.iter().map(|text| text.parse().unwrap()).collect()
}

const ALL: [(&str, Distribution); 9] = [
    ("k0s", Distribution::K0s),
    ("k0s-moved", Distribution::K0s),
    ("k0s-cloud", Distribution::K0s),
    ("kubeadm-deb", Distribution::Kubeadm),
    ("kubeadm-rpm", Distribution::Kubeadm),
    ("kubeadm-cloud", Distribution::Kubeadm),
    ("k3s", Distribution::K3s),
    ("rke2", Distribution::Rke2),
    ("rke2-cloud", Distribution::Rke2),
];

#[test]
#[expect(clippy::too_many_lines, reason = "one table")]
fn join_files_and_the_kubelets_files_are_found() {
    use JoinFileKind::{K0sToken, K3sConfig, K3sEnvironment, KubeadmJoin, Kubeconfig};
    for (fixture, files, kubeconfig, certificate, renewal, external) in [
        (
            "k0s",
            &[
                (K0sToken, "/etc/k0s/k0stoken"),
                (Kubeconfig, "/var/lib/k0s/kubelet-bootstrap.conf"),
                (Kubeconfig, "/var/lib/k0s/kubelet.conf"),
            ][..],
            "/var/lib/k0s/kubelet.conf",
            "/var/lib/k0s/kubelet/pki/kubelet-server-current.pem",
            Renewal::Rotated,
            false,
        ),
        (
            "k0s-moved",
            &[
                (K0sToken, "/etc/k0s/100% token"),
                (Kubeconfig, "/srv/k0s data/kubelet-bootstrap.conf"),
                (Kubeconfig, "/srv/k0s data/kubelet.conf"),
            ],
            "/srv/k0s data/kubelet.conf",
            "/srv/kubelet/pki/kubelet-server-current.pem",
            Renewal::Rotated,
            false,
        ),
        (
            "k0s-cloud",
            &[
                (K0sToken, "/etc/k0s.token"),
                (Kubeconfig, "/var/lib/k0s/kubelet-bootstrap.conf"),
                (Kubeconfig, "/var/lib/k0s/kubelet.conf"),
            ],
            "/var/lib/k0s/kubelet.conf",
            "/var/lib/k0s/kubelet/pki/kubelet-server-current.pem",
            Renewal::Rotated,
            true,
        ),
        (
            "kubeadm-deb",
            &[
                (KubeadmJoin, "/run/kubeadm/kubeadm-join-config.yaml"),
                (Kubeconfig, "/etc/kubernetes/bootstrap-kubelet.conf"),
                (Kubeconfig, "/etc/kubernetes/kubelet.conf"),
            ],
            "/etc/kubernetes/kubelet.conf",
            "/var/lib/kubelet/pki/kubelet.crt",
            Renewal::Never,
            false,
        ),
        (
            "kubeadm-cloud",
            &[
                (KubeadmJoin, "/run/kubeadm/kubeadm-join-config.yaml"),
                (Kubeconfig, "/etc/kubernetes/bootstrap-kubelet.conf"),
                (Kubeconfig, "/etc/kubernetes/kubelet.conf"),
            ],
            "/etc/kubernetes/kubelet.conf",
            "/var/lib/kubelet/pki/kubelet-server-current.pem",
            Renewal::Rotated,
            true,
        ),
        (
            "k3s",
            &[
                (K3sEnvironment, "/etc/default/k3s-agent"),
                (K3sEnvironment, "/etc/sysconfig/k3s-agent"),
                (K3sEnvironment, "/etc/systemd/system/k3s-agent.service.env"),
                (K3sConfig, "/etc/rancher/k3s/config.yaml"),
                (K3sConfig, "/etc/rancher/k3s/config.yaml.d/10-empty.yaml"),
            ],
            "/srv/k3s/agent/kubelet.kubeconfig",
            "/srv/k3s/agent/serving-kubelet.crt",
            Renewal::AtStart,
            false,
        ),
        (
            "rke2-cloud",
            &[
                (K3sEnvironment, "/etc/default/rke2-agent"),
                (K3sEnvironment, "/etc/sysconfig/rke2-agent"),
                (
                    K3sEnvironment,
                    "/usr/local/lib/systemd/system/rke2-agent.env",
                ),
                (K3sConfig, "/etc/rancher/rke2/config.yaml"),
            ],
            "/var/lib/rancher/rke2/agent/kubelet.kubeconfig",
            "/var/lib/rancher/rke2/agent/serving-kubelet.crt",
            Renewal::AtStart,
            true,
        ),
    ] {
        let (_, worker) = Root::of(fixture).worker();
        let found: Vec<_> = worker
            .join_files
            .iter()
            .map(|file| (file.kind, file.path.to_str().unwrap()))
            .collect();
        assert_eq!(found, files, "{fixture}");
        assert_eq!(worker.kubeconfig, Path::new(kubeconfig), "{fixture}");
        assert_eq!(
            worker.serving_certificate.path,
            Path::new(certificate),
            "{fixture}"
        );
        assert_eq!(worker.serving_certificate.renewal, renewal, "{fixture}");
        assert_eq!(worker.has_external_cloud_provider, external, "{fixture}");
    }
}

#[test]
fn node_ip_is_put_where_the_distribution_looks_for_it() {
    const DUAL: &[&str] = &["10.244.1.226", "fd00::1"];
    for (fixture, path, expected) in [
        (
            "k0s",
            "etc/systemd/system/k0sworker.service.d/50-xkub.conf",
            "# Written by xkub: the command line of /etc/systemd/system/k0sworker.service with this node's address. \
             Changes are lost.\n\
             [Service]\n\
             ExecStart=\n\
             ExecStart=/usr/local/bin/k0s worker --kubelet-extra-args=--v=2\\x20--node-labels=a=b\\x20\
             --node-ip=10.244.1.226,fd00::1 --labels=x=y --token-file=/etc/k0s/k0stoken\n",
        ),
        (
            "k0s-moved",
            "etc/systemd/system/k0sworker.service.d/50-xkub.conf",
            "# Written by xkub: the command line of /etc/systemd/system/k0sworker.service with this node's address. \
             Changes are lost.\n\
             [Service]\n\
             ExecStart=\n\
             ExecStart=/usr/local/bin/k0s worker --data-dir=/srv/k0s\\x20data --kubelet-extra-args=\
             --hostname-override=%H\\x20--node-ip=10.244.1.226,fd00::1 --kubelet-root-dir=/srv/kubelet \
             --token-file=/etc/k0s/100%%\\x20token\n",
        ),
        (
            "kubeadm-deb",
            "etc/default/kubelet",
            "# Ours, by hand.\n\
             # xkub found: KUBELET_EXTRA_ARGS=\"--v=2 --node-labels=a=b\"\n\
             # xkub sets the next line, and takes it back with `xkub uninstall`.\n\
             KUBELET_EXTRA_ARGS=\"--v=2 --node-labels=a=b --node-ip=10.244.1.226,fd00::1\"",
        ),
        (
            "kubeadm-rpm",
            "etc/sysconfig/kubelet",
            "# xkub sets the next line, and takes it back with `xkub uninstall`.\n\
             KUBELET_EXTRA_ARGS=\"--node-ip=10.244.1.226,fd00::1\"\n",
        ),
        (
            "k3s",
            "etc/rancher/k3s/config.yaml.d/50-xkub.yaml",
            "# Written by xkub: this node's address. Changes are lost.\nnode-ip: \"10.244.1.226,fd00::1\"\n",
        ),
        (
            "rke2",
            "etc/rancher/rke2/config.yaml.d/50-xkub.yaml",
            "# Written by xkub: this node's address. Changes are lost.\nnode-ip: \"10.244.1.226,fd00::1\"\n",
        ),
    ] {
        let root = Root::of(fixture);
        let plan = root.plan(DUAL);
        assert_eq!(plan.warnings, [], "{fixture}");
        let [change] = plan.changes.as_slice() else {
            panic!("{fixture}: one change, not {:?}", plan.changes);
        };
        assert_eq!(change.path, Path::new("/").join(path), "{fixture}");
        root.apply(&plan);
        assert_eq!(root.text(path), expected, "{fixture}");
    }
}

#[test]
fn a_second_time_changes_nothing_and_taking_it_back_leaves_what_was_there() {
    for (fixture, distribution) in ALL {
        let root = Root::of(fixture);
        let before = root.contents();
        let (_, worker) = root.worker();
        assert_eq!(worker.distribution, distribution);
        for addresses in [&["10.244.1.226"][..], &["10.244.3.60", "fd00::1"]] {
            root.apply(&root.plan(addresses));
            assert_eq!(root.plan(addresses).changes, [], "{fixture}");
            // What we added is not taken for somebody else's.
            assert_eq!(root.worker().1.arguments.len(), worker.arguments.len());
        }
        for change in node_ip::remove_node_ip(&root.tree()) {
            change.apply(root.path()).unwrap();
        }
        assert_eq!(root.contents(), before, "{fixture}");
    }
}

#[test]
fn an_external_cloud_provider_is_left_alone() {
    for (fixture, path, text) in [
        ("k0s-cloud", "", ""),
        (
            "kubeadm-cloud",
            "etc/sysconfig/kubelet",
            "KUBELET_EXTRA_ARGS=--node-ip=10.0.2.2\n",
        ),
        (
            "rke2-cloud",
            "etc/rancher/rke2/config.yaml.d/a.yaml",
            "node-ip: [10.0.2.2]\n",
        ),
    ] {
        let root = Root::of(fixture);
        if !path.is_empty() {
            root.write(path, text);
        }
        let plan = root.plan(&["10.244.1.226"]);
        assert_eq!(plan.changes, [], "{fixture}");
        let [Warning::ForeignNodeIp { value, .. }] = plan.warnings.as_slice() else {
            panic!("{fixture}: {:?}", plan.warnings);
        };
        assert_eq!(value, "10.0.2.2");
        // The right one is fine.
        assert_eq!(root.plan(&["10.0.2.2"]), NodeIpPlan::default(), "{fixture}");
    }
    // One that comes later takes our flag away again.
    let root = Root::of("kubeadm-rpm");
    let before = root.contents();
    root.apply(&root.plan(&["10.244.1.226"]));
    root.add("kubeadm-cloud");
    let plan = root.plan(&["10.244.1.226"]);
    assert_eq!((plan.changes.len(), plan.warnings.len()), (1, 0));
    root.apply(&plan);
    let mut after = root.contents();
    let flags = root.path().join("var/lib/kubelet/kubeadm-flags.env");
    after.insert(flags.clone(), before.get(&flags).unwrap().clone());
    assert_eq!(after, before);
}

#[test]
fn a_restart_is_needed_when_the_flag_in_force_is_another() {
    let start = SystemTime::UNIX_EPOCH;
    let k0s = |extra: &str| {
        vec![
            "k0s".to_owned(),
            "worker".to_owned(),
            format!("--kubelet-extra-args={extra}"),
        ]
    };
    let kubelet = |flag: &str| vec!["/usr/bin/kubelet".to_owned(), flag.to_owned()];
    for (fixture, arguments, expected) in [
        ("k0s", k0s("--v=2"), true),
        ("k0s", k0s("--v=2 --node-ip=10.0.2.2"), true),
        ("k0s", k0s("--v=2 --node-ip=10.244.1.226"), false),
        ("k0s-cloud", k0s("--node-ip=10.0.2.2"), false),
        ("k0s-cloud", k0s("--node-ip=10.244.1.226"), true),
        ("kubeadm-deb", kubelet("--v=2"), true),
        ("kubeadm-deb", kubelet("--node-ip=10.244.1.226"), false),
        ("kubeadm-cloud", kubelet("--v=2"), false),
    ] {
        let root = Root::of(fixture);
        let wanted = parse(&["10.244.1.226"]);
        let (tree, worker) = root.worker();
        let plan = worker.plan_node_ip(&tree, &wanted).unwrap();
        let running = Running {
            arguments,
            started: start,
        };
        assert_eq!(
            worker.needs_restart(&tree, &plan, &running, &wanted),
            expected,
            "{fixture} {running:?}"
        );
        root.apply(&plan);
        let (tree, worker) = root.worker();
        let plan = worker.plan_node_ip(&tree, &wanted).unwrap();
        assert_eq!(
            worker.needs_restart(&tree, &plan, &running, &wanted),
            expected
        );
    }
}

#[test]
fn an_agent_whose_flags_are_in_a_file_is_restarted_when_the_file_is_newer() {
    let root = Root::of("rke2");
    let wanted = parse(&["10.244.1.226"]);
    let needs_restart = |started| {
        let (tree, worker) = root.worker();
        let plan = worker.plan_node_ip(&tree, &wanted).unwrap();
        let running = Running {
            arguments: vec!["/usr/local/bin/rke2".to_owned(), "agent".to_owned()],
            started,
        };
        worker.needs_restart(&tree, &plan, &running, &wanted)
    };
    let hour = Duration::from_secs(3600);
    let later = SystemTime::now() + hour;
    assert!(needs_restart(later));
    root.apply(&root.plan(&["10.244.1.226"]));
    assert!(needs_restart(SystemTime::now() - hour));
    assert!(!needs_restart(later));
}

#[test]
fn who_has_the_last_word_is_said() {
    let plan = |fixture, path, text| {
        let root = Root::of(fixture);
        root.write(path, text);
        root.plan(&["10.244.1.226"]).warnings
    };
    for (fixture, path, text, expected) in [
        (
            "k0s",
            "etc/systemd/system/k0sworker.service.d/60-site.conf",
            "[Service]\nExecStart=\nExecStart=/usr/local/bin/k0s worker --token-file=/t\n",
            "60-site.conf counts more than",
        ),
        (
            "k0s",
            "etc/systemd/system/k0sworker.service.d/10-token.conf",
            "[Service]\nEnvironment=K0S_TOKEN=H4sIsecret\n",
            "give it with --token-file",
        ),
        (
            "kubeadm-deb",
            "etc/systemd/system/kubelet.service.d/20-site.conf",
            "[Service]\nExecStart=\nExecStart=/usr/bin/kubelet --v=2\n",
            "reads no $KUBELET_EXTRA_ARGS",
        ),
        (
            "kubeadm-deb",
            "etc/default/kubelet",
            "A='b\n",
            "never closed",
        ),
        (
            "rke2",
            "etc/rancher/rke2/config.yaml.d/60-site.yaml",
            "node-ip: 10.0.2.2\n",
            "60-site.yaml counts more than",
        ),
        (
            "rke2",
            "etc/systemd/system/rke2-agent.service.d/site.conf",
            "[Service]\nExecStart=\nExecStart=/usr/local/bin/rke2 agent --node-ip 10.0.2.2\n",
            "gives --node-ip=10.0.2.2",
        ),
    ] {
        let warnings: Vec<_> = plan(fixture, path, text)
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(warnings[0].contains(expected), "{warnings:?}");
        assert!(!warnings[0].contains("secret"));
    }
}

#[test]
fn one_worker_is_chosen_or_the_choice_is_asked_for() {
    let find = |root: &Root, named| {
        distribution::find(&root.tree(), named)
            .map(|worker| worker.map(|worker| worker.distribution))
    };
    // Nothing yet, as before cloud-init has run.
    let root = Root::of("");
    assert_eq!(find(&root, None).unwrap(), None);
    assert_eq!(find(&root, Some(Distribution::K0s)).unwrap(), None);
    // Two, none of them enabled.
    root.add("k3s");
    root.add("rke2");
    let Err(WorkerError::Ambiguous(several)) = find(&root, None) else {
        panic!("both could be meant");
    };
    assert_eq!(several, [Distribution::K3s, Distribution::Rke2]);
    assert_eq!(
        find(&root, Some(Distribution::Rke2)).unwrap(),
        Some(Distribution::Rke2)
    );
    // The one that is enabled.
    root.add("k0s");
    assert_eq!(find(&root, None).unwrap(), Some(Distribution::K0s));
    // A masked unit is none.
    let unit = root.path().join("etc/systemd/system/k0sworker.service");
    fs::remove_file(&unit).unwrap();
    std::os::unix::fs::symlink("/dev/null", &unit).unwrap();
    assert_eq!(find(&root, Some(Distribution::K0s)).unwrap(), None);
}

#[test]
fn what_is_malformed_is_said_without_its_contents() {
    for (fixture, path, text, expected) in [
        (
            "k0s",
            "etc/systemd/system/k0sworker.service.d/10-site.conf",
            "[Service]\nEnvironment=A=b\nExecStart=\nExecStart=/bin/k0s worker 'secret\n",
            "/etc/systemd/system/k0sworker.service.d/10-site.conf:4: a quotation mark is never closed",
        ),
        (
            "rke2",
            "etc/rancher/rke2/config.yaml",
            "server: https://10.0.0.1:9345\ntoken: [secret\nnode-ip: {a: b}\n",
            "/etc/rancher/rke2/config.yaml",
        ),
    ] {
        let root = Root::of(fixture);
        root.write(path, text);
        let tree = root.tree();
        let error = distribution::find(&tree, None).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        assert!(!error.contains("secret"), "{error}");
        // It is of no interest where another one is named.
        assert_eq!(
            distribution::find(&tree, Some(Distribution::K3s)).unwrap(),
            None
        );
    }
}
