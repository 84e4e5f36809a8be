//! `xkub token`: a filter on files and stdin that changes addresses alone and never shows a secret.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::{
    fs,
    io::Write as _,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::{Command, Output, Stdio},
};

/// The secret half of the token in the fixture.
const SECRET: &str = "726pxp7c3k4luvkr";

const KUBECONFIG: &str = "\
kind: Config
clusters:
- cluster: # été
    server: \"https://10.244.9.9:6443\"
users:
- user: {token: j00xss.726pxp7c3k4luvkr}
";

const REWRITE: [&str; 6] = [
    "token",
    "rewrite",
    "--endpoint",
    "192.0.2.10:443",
    "--replace",
    "10.96.0.0/12,10.244.0.0/16",
];

fn fixture() -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../xkub-userspace/tests/fixtures/k0s-1.36-worker.token");
    fs::read(path).unwrap()
}

fn xkub(arguments: &[&str], input: &[u8]) -> Output {
    let mut child = Command::new(xkub_tests::xkub::binary().unwrap())
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // It reads all before it writes. One that refuses its arguments reads nothing.
    let _ = child.stdin.take().unwrap().write_all(input);
    child.wait_with_output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn a_token_passes_through_the_filter() {
    let before = fixture();
    let output = xkub(&[&REWRITE[..], &["-"]].concat(), &before);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(
        text(&output.stderr),
        "base64, gzip, line 5: https://10.244.9.9:6443 → https://192.0.2.10:443\n"
    );
    let after = output.stdout;
    assert_ne!(after, before);
    let again = xkub(&REWRITE, &after);
    assert_eq!(again.stdout, after);
    assert_eq!(
        text(&again.stderr),
        "base64, gzip, line 5: https://192.0.2.10:443 left alone: it is in none of the networks to replace\n"
    );
    let inspected = xkub(&["token", "inspect"], &after);
    assert_eq!(
        text(&inspected.stdout),
        "\
format      k0s
server      https://192.0.2.10:443 (k0s, base64, gzip, line 5)
  user      kubelet-bootstrap (a worker)
  token id  j00xss
  expiry    not in it: see the Secret kube-system/bootstrap-token-j00xss
"
    );
}

#[test]
fn a_token_is_inspected_as_a_document() {
    let output = xkub(&["token", "inspect", "-", "--output", "json"], &fixture());
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let expected = serde_json::json!({
        "apiVersion": "xkub.io/v1",
        "kind": "Token",
        "format": "k0s",
        "servers": [{
            "kind": "k0s",
            "place": "base64, gzip, line 5",
            "server": "https://10.244.9.9:6443",
            "user": "kubelet-bootstrap",
            "tokenId": "j00xss",
            "expiry": "of-bootstrap-token",
        }],
    });
    assert_eq!(document, expected);
    let output = xkub(&["token", "inspect", "-o", "yaml"], &fixture());
    assert!(
        text(&output.stdout).contains("tokenId: j00xss\n"),
        "{output:?}"
    );
}

#[test]
fn a_file_is_replaced_in_place() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kubelet.conf");
    fs::write(&path, KUBECONFIG).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    let arguments = [&REWRITE[..], &["--in-place", path.to_str().unwrap()]].concat();
    let output = xkub(&arguments, b"");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(
        text(&output.stdout),
        "line 4: https://10.244.9.9:6443 → https://192.0.2.10:443\n"
    );
    assert_eq!(
        fs::read_to_string(&path).unwrap(),
        KUBECONFIG.replace("10.244.9.9:6443", "192.0.2.10:443")
    );
    assert_eq!(
        fs::metadata(&path).unwrap().permissions().mode() & 0o777,
        0o640
    );
    // Nothing to do: not even touched.
    let modified = fs::metadata(&path).unwrap().modified().unwrap();
    let output = xkub(&[&arguments[..], &["--output", "json"]].concat(), b"");
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(document["kind"], "TokenRewrite");
    assert_eq!(document["changes"], serde_json::json!([]));
    assert_eq!(document["servers"][0]["outcome"], "other-address");
    assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), modified);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn the_environment_says_the_same_as_flags() {
    let output = Command::new(xkub_tests::xkub::binary().unwrap())
        .args(["token", "rewrite", "/dev/stdin"])
        .envs([
            ("XKUB_JOIN_ENDPOINT", "[2001:db8::10]:6443"),
            ("XKUB_JOIN_REPLACE", "10.244.9.9"),
            ("XKUB_TOKEN_KIND", "k3s-env"),
        ])
        .stdin(Stdio::from(tempfile_with(
            "K3S_URL=https://10.244.9.9:6443\nK3S_TOKEN=x\n",
        )))
        .output()
        .unwrap();
    assert_eq!(
        text(&output.stdout),
        "K3S_URL=https://[2001:db8::10]:6443\nK3S_TOKEN=x\n",
        "{output:?}"
    );
}

fn tempfile_with(contents: &str) -> fs::File {
    use std::io::Seek as _;

    let mut file = tempfile::tempfile().unwrap();
    file.write_all(contents.as_bytes()).unwrap();
    file.rewind().unwrap();
    file
}

#[test]
fn mistakes_are_named_and_show_no_secret() {
    let token = fixture();
    let cut = &token[..token.len() - 41];
    let rewrite = |rest: &[&'static str]| [&["token", "rewrite"], rest].concat();
    let cases: &[(Vec<&str>, &[u8], i32, &str)] = &[
        (
            vec!["token", "inspect"],
            cut,
            1,
            "xkub: stdin: base64, gzip: not a whole gzip stream; was it cut off?\n",
        ),
        (
            REWRITE.to_vec(),
            cut,
            1,
            "xkub: stdin: base64, gzip: not a whole gzip stream; was it cut off?\n",
        ),
        (
            vec!["token", "inspect", "--kind", "k0s"],
            KUBECONFIG.as_bytes(),
            1,
            "xkub: stdin: the input: not base64 (standard alphabet), or cut off\n",
        ),
        (
            vec!["token", "inspect", "/nonexistent/token"],
            b"",
            1,
            "xkub: /nonexistent/token can't be read: No such file or directory (os error 2)\n",
        ),
        (
            rewrite(&["--endpoint", "192.0.2.10:x", "--replace", "10.244.0.0/16"]),
            &token,
            1,
            "xkub: \"192.0.2.10:x\" is not an endpoint: the port is not a number up to 65535; expected HOST:PORT, \
             [IPV6]:PORT or https://HOST:PORT\n",
        ),
        (
            rewrite(&["--endpoint", "192.0.2.10:1", "--replace", "10.244.0.0/40"]),
            &token,
            1,
            "xkub: --replace \"10.244.0.0/40\" is neither a network like 10.244.0.0/16 nor an address\n",
        ),
        (
            [&REWRITE[..], &["--in-place"]].concat(),
            &token,
            1,
            "xkub: --in-place needs a FILE: stdin can't be replaced\n",
        ),
        (vec!["token", "rewrite"], &token, 2, ""),
        (vec!["token", "inspect", "--kind", "jwt"], &token, 2, ""),
    ];
    for (arguments, input, code, message) in cases {
        let output = xkub(arguments, input);
        assert_eq!(output.status.code(), Some(*code), "{output:?}");
        assert_eq!(output.stdout, b"", "{output:?}");
        let stderr = text(&output.stderr);
        assert!(
            !stderr.contains(SECRET) && !stderr.contains("H4sI"),
            "{stderr}"
        );
        if *code == 1 {
            assert_eq!(stderr, *message);
        }
    }
}
