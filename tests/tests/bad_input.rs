//! Bad input gets one clear line and the right exit code: 1 when something is wrong, 2 for wrong usage.

use xkub_tests::masquerade::{Masquerade, UPLINK};
use xkub_tests::traffic::Ping;

const ATTACH: [&str; 4] = ["datapath", "attach", "--uplink", UPLINK];

#[test]
fn each_mistake_is_named_in_one_line() {
    let lab = Masquerade::builder().build().unwrap();
    let node = lab.node(0);
    let address = ["--node-address", "10.244.1.226"];
    let cases: &[(&[&str], &str)] = &[
        (
            &[
                "datapath",
                "attach",
                "--uplink",
                "nope0",
                "--node-address",
                "10.244.1.226",
            ],
            "nope0",
        ),
        (&["--node-address", "10.244.1"], "10.244.1"),
        (&["--node-address", "fd00:244:1::e2,fd00:244:1::e3"], "IPv6"),
        (&["--node-address", "10.244.1.226,10.244.1.227"], "IPv4"),
        // The same address inside and outside: not behind masquerade at all, or a mistake.
        (&["--node-address", "10.0.2.2"], "10.0.2.2"),
        (&["--node-address", "fd10:0:2::2"], "fd10:0:2::2"),
        (&["--node-address", "0.0.0.0"], "0.0.0.0"),
        (&["--node-address", "127.0.0.1"], "127.0.0.1"),
        (&["--node-address", "224.0.0.1"], "224.0.0.1"),
        (&["--node-address", "fe80::1"], "fe80::1"),
        (&["--guest-address", "fd10:0:2::2"], "fd10:0:2::2"),
        (&["--guest-address", "nonsense"], "nonsense"),
        (&["--overlay-port", "0"], "0"),
        (&["--overlay-port", "70000"], "70000"),
        (&["--service", "tcp/"], "tcp/"),
        (&["--service", "sctp/80"], "sctp"),
        (&["--service", "tcp/90-80"], "90-80"),
        (&["--service", "proto/256"], "256"),
        (&["--service", "10250"], "10250"),
        (&["--flow-entries", "0"], "--flow-entries"),
        (&["datapath", "show"], "no uplink has a datapath"),
        (&["datapath", "show", "--uplink", UPLINK], UPLINK),
        (&["datapath", "stats", "--uplink", UPLINK], UPLINK),
        (&["datapath", "watch", "--uplink", UPLINK], UPLINK),
    ];
    for (arguments, expected) in cases {
        let mut command: Vec<&str> = Vec::new();
        if arguments[0] != "datapath" {
            command.extend(ATTACH);
            if arguments[0] != "--node-address" {
                command.extend(address);
            }
        }
        command.extend(*arguments);
        let output = node.xkub(&command).unwrap();
        assert_eq!(output.code(), Some(1), "{output:?}");
        assert_eq!(output.stderr.lines().count(), 1, "{output:?}");
        assert!(output.stderr.contains(expected), "{expected}: {output:?}");
        assert_eq!(output.stdout, "", "{output:?}");
    }
}

#[test]
fn a_cause_is_said_once() {
    let lab = Masquerade::builder().build().unwrap();
    for arguments in [
        &["status", "--state-directory=/no/such"][..],
        &["agent", "--once", "--state-directory=/proc/no/such"],
        &[
            "token",
            "rewrite",
            "--endpoint=192.0.2.1:6443",
            "--replace=10.244.0.0/16",
            "/no/such",
        ],
    ] {
        let output = lab.node(0).xkub(arguments).unwrap();
        assert_eq!(output.code(), Some(1), "{output:?}");
        assert_eq!(output.stderr.lines().count(), 1, "{output:?}");
        let said = output.stderr.matches("No such file or directory").count();
        assert_eq!(said, 1, "{output:?}");
    }
}

#[test]
fn defaults_are_a_document_too() {
    let lab = Masquerade::builder().build().unwrap();
    let show = ["config", "show", "--defaults"];
    let text = lab.node(0).xkub(&show).unwrap().success().unwrap();
    assert!(text.contains("[address]"), "{text}");
    let json = ["config", "show", "--defaults", "--output=json"];
    let json = lab.node(0).xkub(&json).unwrap().success().unwrap();
    let document: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(document["apiVersion"], "xkub.io/v1", "{json}");
    assert_eq!(
        document["keys"]["address.interval"]["value"], "5s",
        "{json}"
    );
}

#[test]
fn wrong_usage_is_told_from_failure() {
    let lab = Masquerade::builder().build().unwrap();
    let cases: &[&[&str]] = &[
        &["datapath"],
        &["datapath", "attach"],
        &["datapath", "attach", "--uplink", UPLINK],
        &[
            "datapath",
            "attach",
            "--uplink",
            UPLINK,
            "--node-address",
            "10.244.1.226",
            "--ingress-hook",
            "nft",
        ],
        &[
            "datapath",
            "attach",
            "--uplink",
            UPLINK,
            "--node-address",
            "10.244.1.226",
            "--unknown",
        ],
        &["datapath", "show", "--output", "xml"],
        &["nonsense"],
    ];
    for arguments in cases {
        let output = lab.node(0).xkub(arguments).unwrap();
        assert_eq!(output.code(), Some(2), "{output:?}");
        assert!(!output.stderr.is_empty(), "{output:?}");
    }
}

#[test]
fn without_capabilities() {
    let lab = Masquerade::builder().build().unwrap();
    let guest = &lab.node(0).guest;
    let binary = xkub_tests::xkub::binary().unwrap();
    let binary = binary.to_string_lossy();
    for (dropped, named) in [
        ("-net_admin", "CAP_NET_ADMIN"),
        ("-bpf,-sys_admin", "CAP_BPF"),
    ] {
        let bounding = format!("--bounding-set={dropped}");
        let prefix = ["setpriv", bounding.as_str(), "--", binary.as_ref()];
        let output = guest
            .run(
                prefix
                    .iter()
                    .chain(&ATTACH)
                    .chain(&["--node-address", "10.244.1.226"]),
            )
            .unwrap();
        assert_eq!(output.code(), Some(1), "{output:?}");
        assert_eq!(output.stderr.lines().count(), 1, "{output:?}");
        assert!(output.stderr.contains(named), "{output:?}");
    }
}

/// A guest without a BPF filesystem gets one, in the usual place and only one.
#[test]
fn bpffs_is_mounted_where_there_is_none() {
    let lab = Masquerade::builder().without_bpffs().build().unwrap();
    let node = lab.node(0);
    let mounts = || {
        let text = node.guest.check(["cat", "/proc/self/mountinfo"]).unwrap();
        text.lines()
            .filter(|line| line.contains(" /sys/fs/bpf ") && line.contains(" - bpf "))
            .count()
    };
    assert_eq!(mounts(), 0);
    for _ in 0..2 {
        node.attach(&[]).unwrap();
        assert_eq!(mounts(), 1);
    }
    assert!(
        Ping::to(xkub_tests::masquerade::CLIENT_V4)
            .from(node.node_v4())
            .run(&node.guest)
            .unwrap()
            .complete()
    );
}
