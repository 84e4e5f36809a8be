//! The agent on a node with a worker, when something is broken: files, the API server, the agent itself.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::{
    fs,
    net::Ipv4Addr,
    path::{Path, PathBuf},
    process::Command,
    thread::sleep,
    time::Instant,
};

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use xkub_tests::{
    Masquerade, Node,
    agent::Agent,
    guest::{api::NodeApi, k0s},
    masquerade::{CLIENT_V4, GUEST_V4, NodeAddress},
};

/// Where systemd's units are.
const UNITS: &str = "/etc/systemd/system";
/// Where the join files are pointed to.
const ENDPOINT: &str = "192.0.2.77:6443";
/// A real token, whose server is 10.244.9.9.
const TOKEN: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../xkub-userspace/tests/fixtures/k0s-1.36-worker.token"
);
/// What is sent to the API server's port is never answered.
const HOLE: &str = "table inet hole { chain input { type filter hook input priority 0; tcp dport 6443 drop; }; }\n";
/// The drop-in with the kubelet's `--node-ip`.
const DROP_IN: &str = "k0sworker.service.d";

fn lab() -> Masquerade {
    Masquerade::builder()
        .ipv6(false)
        .node_address(NodeAddress::Absent)
        .build()
        .unwrap()
}

/// A node with a k0s worker that has not started yet: what `k0s install worker` leaves, with per cent signs and spaces
/// in paths. It has systemd's folder to itself.
struct Worker<'a> {
    agent: Agent<'a>,
}

impl<'a> Worker<'a> {
    fn new(node: &'a Node) -> Result<Self> {
        Self::told(node, node.node_v4())
    }

    /// One whose agent is told this address.
    fn told(node: &'a Node, address: Ipv4Addr) -> Result<Self> {
        let arguments = [
            "--node-distribution=k0s".to_owned(),
            "--join-replace=10.244.0.0/16".to_owned(),
            format!("--join-endpoint={ENDPOINT}"),
            format!("--address-static={address}"),
        ];
        let worker = Self {
            agent: Agent::new(node, arguments)?,
        };
        fs::create_dir(worker.units())?;
        fs::create_dir_all(worker.data())?;
        fs::copy(TOKEN, worker.token())?;
        let escaped = |path: PathBuf| {
            let path = path.to_string_lossy().into_owned();
            path.replace('%', "%%").replace(' ', "\\x20")
        };
        worker.write_unit(&format!(
            "[Service]\nExecStart=/usr/local/bin/k0s worker --data-dir={} \
             --kubelet-extra-args=--hostname-override=%H\\x20--node-ip=10.0.2.2 --token-file={}\n",
            escaped(worker.data()),
            escaped(worker.token()),
        ))?;
        let units = worker.units();
        node.guest.check([
            "mount".as_ref(),
            "--bind".as_ref(),
            units.as_os_str(),
            UNITS.as_ref(),
        ])?;
        Ok(worker)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.agent.folder().join(name)
    }

    fn units(&self) -> PathBuf {
        self.path("units")
    }

    fn data(&self) -> PathBuf {
        self.path("100% k0s")
    }

    fn token(&self) -> PathBuf {
        self.path("100% token")
    }

    fn write_unit(&self, text: &str) -> Result<()> {
        Ok(fs::write(self.units().join("k0sworker.service"), text)?)
    }

    /// The server in the token.
    fn server(&self) -> Result<String> {
        let output = self.agent.node.xkub(&[
            "token",
            "inspect",
            "--output=json",
            &self.token().to_string_lossy(),
        ])?;
        output.success()
    }

    fn is_attached(&self) -> Result<bool> {
        let address = self.agent.node.node_v4().to_string();
        Ok(self.agent.node.show()?["addresses"][0]["node"] == address)
    }

    /// All files below systemd's folder, and the token.
    fn files(&self) -> Result<Vec<(PathBuf, Vec<u8>)>> {
        let mut files = vec![(self.token(), fs::read(self.token())?)];
        let mut folders = vec![self.units()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder)? {
                let path = entry?.path();
                if path.is_dir() {
                    folders.push(path);
                } else {
                    files.push((path.clone(), fs::read(&path)?));
                }
            }
        }
        files.sort();
        Ok(files)
    }

    /// Datapath, token and drop-in are as they should be, and there is nothing else.
    fn check_all_done(&self) -> Result<()> {
        ensure!(self.is_attached()?, "nothing is attached");
        let server = self.server()?;
        ensure!(server.contains(ENDPOINT), "the token has {server}");
        let drop_ins = fs::read_dir(self.units().join(DROP_IN))?.collect::<Result<Vec<_>, _>>()?;
        ensure!(drop_ins.len() == 1, "drop-ins: {drop_ins:?}");
        let text = fs::read_to_string(drop_ins[0].path())?;
        let flag = format!("--node-ip={}", self.agent.node.node_v4());
        ensure!(
            text.contains(&flag) && !text.contains("--node-ip=10.0.2.2"),
            "{text}"
        );
        // Neither systemd's specifiers nor its escapes are lost.
        ensure!(text.contains("100%%\\x20token"), "{text}");
        ensure!(text.contains("--hostname-override=%H"), "{text}");
        let plan = self.agent.plan()?;
        ensure!(plan["actions"] == json!([]), "{plan}");
        Ok(())
    }
}

fn says(status: &Value, list: &str, parts: &[&str]) -> bool {
    let lines = status[list].as_array().cloned().unwrap_or_default();
    lines.iter().any(|line| {
        let line = line.as_str().unwrap_or_default();
        parts.iter().all(|part| line.contains(part))
    })
}

#[test]
fn an_agent_that_ends_after_every_action_finishes_a_workers_files() {
    let lab = lab();
    let worker = Worker::new(lab.node(0)).unwrap();
    let mut kinds = Vec::new();
    loop {
        let plan = worker.agent.plan().unwrap();
        let Some(kind) = plan["actions"][0]["kind"].as_str() else {
            break;
        };
        kinds.push(kind.to_owned());
        assert!(kinds.len() <= 3, "{kinds:?}: {plan}");
        worker
            .agent
            .once(&["--max-actions=1"])
            .unwrap()
            .success()
            .unwrap();
    }
    assert_eq!(kinds, ["attach", "rewrite-join", "set-node-ip"]);
    worker.check_all_done().unwrap();
    let files = worker.files().unwrap();
    worker.agent.once(&[]).unwrap().success().unwrap();
    assert_eq!(worker.files().unwrap(), files);
}

/// How many moments of a run are tried.
const MOMENTS: u32 = 12;

#[test]
fn an_agent_that_is_killed_at_any_moment_leaves_files_whole_and_the_next_finishes_them() {
    let lab = lab();
    let worker = Worker::new(lab.node(0)).unwrap();
    let begun = Instant::now();
    worker.agent.once(&[]).unwrap().success().unwrap();
    let duration = begun.elapsed();
    let mut interrupted = 0;
    for moment in 0..MOMENTS {
        // As it was before the first.
        lab.node(0).detach().unwrap();
        fs::remove_dir_all(worker.units().join(DROP_IN)).unwrap();
        fs::copy(TOKEN, worker.token()).unwrap();
        let running = worker.agent.spawn().unwrap();
        sleep(duration * moment / MOMENTS);
        running.kill().unwrap();
        // Old or new, and whole.
        let is_old = fs::read(worker.token()).unwrap() == fs::read(TOKEN).unwrap();
        let server = worker.server().unwrap();
        assert!(is_old || server.contains(ENDPOINT), "{server}");
        let plan = worker.agent.plan().unwrap();
        interrupted += u32::from(plan["actions"] != json!([]));
        worker.agent.once(&[]).unwrap().success().unwrap();
        worker.check_all_done().unwrap();
    }
    assert!(interrupted > 0, "no moment was early enough");
}

#[test]
fn a_read_only_etc_keeps_nothing_else_back_and_is_tried_again() {
    let lab = lab();
    let worker = Worker::new(lab.node(0)).unwrap();
    let remount = |how: &str| {
        let options = format!("remount,bind,{how}");
        worker
            .agent
            .node
            .guest
            .check(["mount", "-o", &options, UNITS])
            .unwrap();
    };
    remount("ro");
    let before = fs::read_dir(worker.units()).unwrap().count();
    let _agent = worker.agent.spawn().unwrap();
    let status = worker
        .agent
        .wait_status("the cause", |status| {
            says(status, "problems", &[UNITS, "Read-only file system"])
        })
        .unwrap();
    assert_eq!(status["ready"], false);
    assert!(says(&status, "pending", &["--node-ip"]), "{status}");
    assert!(worker.is_attached().unwrap());
    assert!(worker.server().unwrap().contains(ENDPOINT));
    assert_eq!(fs::read_dir(worker.units()).unwrap().count(), before);
    remount("rw");
    worker
        .agent
        .wait_status("the end of the fault", |status| status["ready"] == true)
        .unwrap();
    worker.check_all_done().unwrap();
}

#[test]
fn a_full_disk_leaves_old_contents_whole_and_is_tried_again() {
    let lab = lab();
    let mut worker = Worker::new(lab.node(0)).unwrap();
    let guest = &worker.agent.node.guest;
    // The token lies on a disk of its own, of which every page is taken.
    let disk = worker.path("disk");
    fs::create_dir(&disk).unwrap();
    let token = disk.join("token");
    let (disk, token) = (disk.to_string_lossy(), token.to_string_lossy());
    let filler = format!("{disk}/fill");
    guest
        .check(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", &disk])
        .unwrap();
    guest.check(["cp", TOKEN, &token]).unwrap();
    let full = guest
        .run(["dd", "if=/dev/zero", &format!("of={filler}"), "bs=4k"])
        .unwrap();
    assert!(full.success().is_err());
    worker
        .write_unit(&format!(
            "[Service]\nExecStart=/usr/local/bin/k0s worker --token-file={token}\n"
        ))
        .unwrap();
    worker
        .agent
        .arguments
        .push("--address-interval=60m".to_owned());
    let _agent = worker.agent.spawn().unwrap();
    let status = worker
        .agent
        .wait_status("the cause", |status| {
            says(status, "problems", &[&token, "No space left on device"])
        })
        .unwrap();
    assert_eq!(status["ready"], false);
    assert!(worker.is_attached().unwrap());
    // What does not need this disk is done.
    assert!(worker.units().join(DROP_IN).is_dir());
    guest.check(["cmp", TOKEN, &token]).unwrap();
    assert_eq!(guest.check(["ls", "-A", &disk]).unwrap(), "fill\ntoken\n");
    guest.check(["rm", &filler]).unwrap();
    worker
        .agent
        .wait_status("the end of the fault", |status| status["ready"] == true)
        .unwrap();
    let inspected = worker
        .agent
        .node
        .xkub(&["token", "inspect", &token])
        .unwrap();
    assert!(inspected.success().unwrap().contains(ENDPOINT));
    assert_eq!(guest.check(["ls", "-A", &disk]).unwrap(), "token\n");
}

#[test]
fn a_malformed_unit_is_said_and_the_datapath_attached() {
    let lab = lab();
    let worker = Worker::new(lab.node(0)).unwrap();
    for unit in [
        "[Service]\nExecStart=/usr/local/bin/k0s worker '--token-file=/etc/k0s\n",
        "[Service]\nExecStart=/usr/local/bin/k0s worker\nExecStart=/usr/local/bin/k0s worker\n",
    ] {
        worker.write_unit(unit).unwrap();
        let agent = worker.agent.spawn().unwrap();
        let status = worker
            .agent
            .wait_status("the cause", |status| {
                says(status, "problems", &["k0sworker.service"])
                    && status["nodeAddresses"] == json!([worker.agent.node.node_v4().to_string()])
            })
            .unwrap();
        assert_eq!(status["live"], true);
        assert!(worker.is_attached().unwrap());
        assert!(!worker.units().join(DROP_IN).exists());
        drop(agent);
    }
}

#[test]
fn a_token_that_is_none_is_said_without_its_contents() {
    let lab = lab();
    let worker = Worker::new(lab.node(0)).unwrap();
    let whole = fs::read(TOKEN).unwrap();
    let truncated = &whole[..whole.len() / 2 / 4 * 4];
    let path = worker.token().to_string_lossy().into_owned();
    for contents in [
        &b"\xff\x00garbage-secret"[..],
        b"abcdef.0123456789abcdef",
        truncated,
        b"",
    ] {
        fs::write(worker.token(), contents).unwrap();
        let agent = worker.agent.spawn().unwrap();
        let status = worker
            .agent
            .wait_status("the cause", |status| {
                says(status, "problems", &[&path]) && status["ready"] == true
            })
            .unwrap();
        for secret in ["garbage-secret", "0123456789abcdef", "H4sI"] {
            assert!(!status.to_string().contains(secret), "{status}");
            assert!(!agent.stderr().contains(secret));
        }
        assert_eq!(fs::read(worker.token()).unwrap(), contents);
        assert!(worker.is_attached().unwrap());
        assert!(worker.units().join(DROP_IN).is_dir());
        drop(agent);
    }
}

#[test]
fn a_token_that_the_api_does_not_know_is_said() {
    let lab = lab();
    let worker = Worker::new(lab.node(0)).unwrap();
    let address = (Ipv4Addr::LOCALHOST, 6443).into();
    let api = NodeApi::start(&worker.agent.node.guest, address, "worker-1").unwrap();
    // What is in a real token is trusted by no server here.
    let token = k0s::token(&api.url(), "").unwrap();
    fs::write(worker.token(), token).unwrap();
    // While the API knows it, there is nothing to say.
    let plan = worker.agent.plan().unwrap();
    assert_eq!(plan["problems"], json!([]), "{plan}");
    assert_eq!(plan["waiting"], json!([]), "{plan}");
    api.forget_tokens();
    let agent = worker.agent.spawn().unwrap();
    let status = worker
        .agent
        .wait_status("the cause", |status| {
            let words = [&api.url(), "does not know the join token", "expired"];
            says(status, "problems", &words) && status["ready"] == true
        })
        .unwrap();
    assert!(!status.to_string().contains("0123456789abcdef"), "{status}");
    assert!(!agent.stderr().contains("0123456789abcdef"));
    assert!(worker.is_attached().unwrap());
    drop(agent);
    // A kubeconfig from an earlier try counts more than the token.
    let other = (Ipv4Addr::new(127, 0, 0, 2), 6443).into();
    let other = NodeApi::start(&worker.agent.node.guest, other, "worker-1").unwrap();
    let text = token_kubeconfig(&other.url());
    fs::write(worker.data().join("kubelet-bootstrap.conf"), text).unwrap();
    let plan = worker.agent.plan().unwrap();
    assert_eq!(plan["problems"], json!([]), "{plan}");
    assert_eq!(other.requests_with_token(), 1);
}

#[test]
fn a_node_that_has_joined_is_not_asked_about_its_token() {
    let lab = lab();
    let worker = Worker::new(lab.node(0)).unwrap();
    let address = (Ipv4Addr::LOCALHOST, 6443).into();
    let api = NodeApi::start(&worker.agent.node.guest, address, "worker-1").unwrap();
    api.forget_tokens();
    fs::write(worker.token(), k0s::token(&api.url(), "").unwrap()).unwrap();
    // While the Node can't be read, nothing but the file tells that the node has joined.
    lab.client.nft(HOLE).unwrap();
    let hole = format!("https://{CLIENT_V4}:6443");
    let text = kubeconfig(worker.agent.folder(), &hole).unwrap();
    fs::write(worker.data().join("kubelet.conf"), text).unwrap();
    let _agent = worker.agent.spawn().unwrap();
    let status = worker
        .agent
        .wait_status("the cause", |status| {
            says(status, "waiting", &["no answer from", &hole])
        })
        .unwrap();
    assert!(!status.to_string().contains("join token"), "{status}");
    assert_eq!(api.requests_with_token(), 0);
}

/// A kubeconfig such as is in a token, for a server.
fn token_kubeconfig(server: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: k0s\n\
         clusters: [{{name: k0s, cluster: {{server: '{server}'}}}}]\n\
         contexts: [{{name: k0s, context: {{cluster: k0s, user: kubelet-bootstrap}}}}]\n\
         users: [{{name: kubelet-bootstrap, user: {{token: abcdef.0123456789abcdef}}}}]\n"
    )
}

/// A kubelet's kubeconfig for a server.
fn kubeconfig(folder: &Path, server: &str) -> Result<String> {
    let (key, certificate) = (folder.join("key.pem"), folder.join("cert.pem"));
    let made = Command::new("openssl")
        .args([
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
        ])
        .args([
            "-subj",
            "/O=system:nodes/CN=system:node:worker-1",
            "-keyout",
        ])
        .arg(&key)
        .arg("-out")
        .arg(&certificate)
        .output()?;
    ensure!(made.status.success(), "{made:?}");
    let (key, certificate) = (key.display(), certificate.display());
    Ok(format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
         clusters:\n- name: c\n  cluster:\n    server: {server}\n    certificate-authority: {certificate}\n\
         users:\n- name: u\n  user:\n    client-certificate: {certificate}\n    client-key: {key}\n\
         contexts:\n- name: c\n  context:\n    cluster: c\n    user: u\n"
    ))
}

#[test]
fn an_api_server_that_is_away_keeps_nothing_back() {
    let lab = lab();
    let worker = Worker::new(lab.node(0)).unwrap();
    lab.client.nft(HOLE).unwrap();
    let hole = format!("https://{CLIENT_V4}:6443");
    for server in ["https://127.0.0.1:1", &hole] {
        let text = kubeconfig(worker.agent.folder(), server).unwrap();
        fs::write(worker.data().join("kubelet.conf"), text).unwrap();
        let agent = worker.agent.spawn().unwrap();
        let status = worker
            .agent
            .wait_status("the cause", |status| {
                says(status, "waiting", &["no answer from", server])
            })
            .unwrap();
        assert_eq!(status["ready"], true, "{status}");
        worker.check_all_done().unwrap();
        drop(agent);
        worker.agent.node.detach().unwrap();
    }
}

#[test]
fn a_guest_address_that_is_told_is_refused() {
    let lab = lab();
    let worker = Worker::told(lab.node(0), GUEST_V4).unwrap();
    let _agent = worker.agent.spawn().unwrap();
    let status = worker
        .agent
        .wait_status("a refusal", |status| status["refusals"][0].is_object())
        .unwrap();
    assert_eq!(status["refusals"][0]["reason"], "guest-address");
    assert_eq!(status["ready"], false);
    assert!(worker.agent.node.show().is_err());
    // The kubelet is not told a wrong one, and the token needs no address.
    assert!(!worker.units().join(DROP_IN).exists());
    assert!(worker.server().unwrap().contains(ENDPOINT));
}

#[test]
fn a_clock_that_jumped_changes_nothing() {
    let lab = lab();
    let worker = Worker::new(lab.node(0)).unwrap();
    worker.agent.once(&[]).unwrap().success().unwrap();
    worker.check_all_done().unwrap();
    let files = worker.files().unwrap();
    // What the agent left, as it looks after a jump by decades in either direction.
    for date in ["1971-01-01", "2099-01-01"] {
        let state = worker.path("state/state.json");
        for path in files.iter().map(|(path, _)| path).chain([&state]) {
            let path = path.as_os_str();
            let touch = ["touch".as_ref(), "--date".as_ref(), date.as_ref(), path];
            worker.agent.node.guest.check(touch).unwrap();
        }
        worker.agent.once(&[]).unwrap().success().unwrap();
        worker.check_all_done().unwrap();
        assert_eq!(worker.files().unwrap(), files);
    }
}
