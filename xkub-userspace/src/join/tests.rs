//! Tables, properties and real shapes: a whole file goes in, and the exact file comes out.

use std::fmt::Write as _;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use proptest::prelude::*;

use super::{encoding::gzip, scan::DECODED_LIMIT, *};

/// Made by a real k0s 1.36 for a cluster that is gone.
const TOKEN: &str = include_str!("../../tests/fixtures/k0s-1.36-worker.token");

/// The secret half of its bootstrap token.
const SECRET: &str = "726pxp7c3k4luvkr";

const KUBECONFIG: &str = "\
apiVersion: v1
clusters:
- cluster:
    certificate-authority-data: LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0t
    server: https://10.244.9.9:6443
  name: k0s
contexts:
- context:
    cluster: k0s
    user: kubelet-bootstrap
  name: k0s
current-context: k0s
kind: Config
users:
- name: kubelet-bootstrap
  user:
    token: j00xss.726pxp7c3k4luvkr
";

fn replace() -> Replace {
    Replace {
        cidrs: vec![
            "10.244.0.0/16".parse().unwrap(),
            "fd00:244::/64".parse().unwrap(),
        ],
        endpoint: "192.0.2.10:443".parse().unwrap(),
    }
}

/// What comes of an input; a second pass finds nothing more to do, and gives the very same bytes.
#[track_caller]
fn rewritten(kind: Kind, input: &[u8]) -> Vec<u8> {
    let replace = replace();
    let rewritten = rewrite(kind, input, &replace).unwrap();
    assert_eq!(rewritten.changes.is_empty(), rewritten.bytes == input);
    let again = rewrite(kind, &rewritten.bytes, &replace).unwrap();
    assert_eq!(again.changes, []);
    assert!(matches!(again.bytes, Cow::Borrowed(bytes) if bytes == &*rewritten.bytes));
    rewritten.bytes.into_owned()
}

#[track_caller]
fn rewritten_text(kind: Kind, input: &str) -> String {
    String::from_utf8(rewritten(kind, input.as_bytes())).unwrap()
}

/// Only `10.244.9.9:6443` becomes the endpoint: everything around it is the caller's.
#[track_caller]
fn moves(kind: Kind, input: &str) {
    assert_ne!(moved(input), input);
    assert_eq!(rewritten_text(kind, input), moved(input));
}

#[track_caller]
fn stays(kind: Kind, input: &str) {
    assert_eq!(rewritten_text(kind, input), input);
}

fn moved(text: &str) -> String {
    text.replace("10.244.9.9:6443", "192.0.2.10:443")
}

fn pack(text: &str) -> String {
    STANDARD.encode(gzip(text.as_bytes()))
}

fn unpack(text: &str) -> String {
    let packed = STANDARD
        .decode(text.split_whitespace().collect::<String>())
        .unwrap();
    let decoded = encoding::gunzip(&packed, &Place::default(), &mut Scan::new(None)).unwrap();
    String::from_utf8(decoded.to_vec()).unwrap()
}

/// Lines of 76, as base64(1) wraps.
fn wrap(letters: &str, separator: &str) -> String {
    let lines: Vec<_> = letters.as_bytes().chunks(76).collect();
    String::from_utf8(lines.join(separator.as_bytes())).unwrap()
}

#[test]
fn a_real_token_changes_in_its_address_alone() {
    assert_eq!(detect(TOKEN.as_bytes()), Kind::K0s);
    let output = rewritten_text(Kind::K0s, TOKEN);
    let before = unpack(TOKEN);
    assert!(before.contains("server: https://10.244.9.9:6443\n"));
    assert_eq!(unpack(&output), moved(&before));
    let found = inspect(Kind::K0s, TOKEN.as_bytes()).unwrap();
    let [found] = found.as_slice() else {
        panic!("{found:?}")
    };
    assert_eq!(found.kind, Kind::K0s);
    assert_eq!(found.place.to_string(), "base64, gzip, line 5");
    assert_eq!(found.server, "https://10.244.9.9:6443");
    assert_eq!(found.user.as_deref(), Some("kubelet-bootstrap"));
    assert_eq!(found.token_id.as_deref(), Some("j00xss"));
    assert_eq!(found.expiry, Expiry::OfBootstrapToken);
    assert_eq!(found.outcome, None);
}

#[test]
fn a_token_keeps_its_wrapping_and_the_space_around_it() {
    for separator in ["\n", "\r\n", "\n  "] {
        let input = format!(" \n{}\n\n", wrap(TOKEN.trim(), separator));
        let output = rewritten_text(Kind::K0s, &input);
        assert_eq!(unpack(&output), moved(&unpack(TOKEN)));
        let letters: String = output.split_whitespace().collect();
        assert_eq!(output, format!(" \n{}\n\n", wrap(&letters, separator)));
    }
}

#[test]
fn a_controllers_token_is_left_alone_and_said_so() {
    let text = KUBECONFIG
        .replace("kubelet-bootstrap", "controller-bootstrap")
        .replace(":6443", ":9443");
    let token = pack(&text);
    let rewritten = rewrite(Kind::K0s, token.as_bytes(), &replace()).unwrap();
    assert_eq!(rewritten.bytes, token.as_bytes());
    assert_eq!(rewritten.found[0].outcome, Some(Outcome::ControllerToken));
    assert_eq!(
        rewritten.found[0].user.as_deref(),
        Some("controller-bootstrap")
    );
}

#[test]
fn what_is_left_alone_has_a_reason() {
    for (server, outcome) in [
        (
            "https://10.244.9.9:6443",
            Outcome::Replaced {
                to: "https://192.0.2.10:443".into(),
            },
        ),
        ("https://10.245.9.9:6443", Outcome::OtherAddress),
        ("https://192.0.2.10:443", Outcome::OtherAddress),
        ("https://api.example.org:6443", Outcome::Name),
    ] {
        let input = KUBECONFIG.replace("https://10.244.9.9:6443", server);
        let rewritten = rewrite(Kind::Kubeconfig, input.as_bytes(), &replace()).unwrap();
        assert_eq!(rewritten.found[0].outcome, Some(outcome));
    }
    // An endpoint within the networks that are replaced.
    let inside = Replace {
        endpoint: "10.244.9.9:6443".parse().unwrap(),
        ..replace()
    };
    let rewritten = rewrite(Kind::Kubeconfig, KUBECONFIG.as_bytes(), &inside).unwrap();
    assert_eq!(rewritten.found[0].outcome, Some(Outcome::Already));
    assert!(matches!(rewritten.bytes, Cow::Borrowed(_)));
}

#[test]
fn a_kubeconfig_changes_in_its_addresses_alone() {
    let server = "    server: https://10.244.9.9:6443\n";
    let with = |line: &str| KUBECONFIG.replace(server, line);
    for input in [
        KUBECONFIG.to_owned(),
        KUBECONFIG.replace('\n', "\r\n"),
        format!("\u{feff}{KUBECONFIG}"),
        format!("# Schlüssel für 10.244.9.10\n---\n{KUBECONFIG}...\n"),
        KUBECONFIG.trim_end().to_owned(),
        with("    server: \"https://10.244.9.9:6443\"   # été\n"),
        with("    server: 'https://10.244.9.9:6443'\n"),
        with("    server:    https://10.244.9.9:6443 \t# 10.244.9.8\n"),
        with("    'server': https://10.244.9.9:6443/path\n"),
        with("    # Größe\n    \"server\": >-\n      https://10.244.9.9:6443\n"),
        with("    server: \"https:\\/\\/10.244.9.9:6443\"\n"),
        with("    server: !!str https://10.244.9.9:6443\n"),
        "{clusters: [{cluster: {server: https://10.244.9.9:6443}, name: a}, \
          {name: b, cluster: {server: 'https://10.244.9.9:6443'}}]}"
            .to_owned(),
        "{\n\t\"kind\": \"Config\",\n\t\"clusters\": [\n\t\t{\"name\": \"é\", \"cluster\": {\n\t\t\t\"server\":\t\
          \"https://10.244.9.9:6443\"}}\n\t]\n}\n"
            .to_owned(),
    ] {
        assert_eq!(detect(input.as_bytes()), if input.starts_with("{clu") { Kind::CloudInit } else { Kind::Kubeconfig });
        moves(Kind::Kubeconfig, &input);
    }
    for input in [
        with("    server: https://api.example.org:6443\n"),
        with("    server: https://192.0.2.1:6443 # https://10.244.9.9:6443\n"),
        with("    server: https://192.0.2.1:6443\n    proxy-url: http://10.244.9.9:6443\n"),
        with(
            "    server: https://192.0.2.1:6443\n    extensions: [{server: 'https://10.244.9.9:6443'}]\n",
        ),
    ] {
        stays(Kind::Kubeconfig, &input);
    }
    assert_eq!(
        rewritten_text(
            Kind::Kubeconfig,
            &with("    server: https://[fd00:244::9]:6443\n")
        ),
        with("    server: https://192.0.2.10:443\n")
    );
}

#[test]
fn each_cluster_has_its_own_user() {
    let input = "\
clusters:
- {name: a, cluster: {server: 'https://10.244.9.9:6443'}}
- {name: b, cluster: {server: 'https://10.244.9.9:9443'}}
contexts:
- {name: one, context: {cluster: b, user: controller-bootstrap}}
- {name: two, context: {cluster: a, user: someone}}
users:
- {name: someone, user: {token: no-bootstrap-token}}
- {name: controller-bootstrap, user: {token: abcdef.0123456789abcdef}}
";
    moves(Kind::Kubeconfig, input);
    let found = inspect(Kind::Kubeconfig, input.as_bytes()).unwrap();
    let users: Vec<_> = found
        .iter()
        .map(|found| (found.user.as_deref(), found.token_id.as_deref()))
        .collect();
    assert_eq!(
        users,
        [
            (Some("someone"), None),
            (Some("controller-bootstrap"), Some("abcdef"))
        ]
    );
}

/// As Cluster API writes it, and as people do.
const JOIN_V1BETA3: &str = "\
---
apiVersion: kubeadm.k8s.io/v1beta3
discovery:
  bootstrapToken:
    apiServerEndpoint: 10.244.9.9:6443
    caCertHashes:
    - sha256:2c6bd5a8c9c2b5d0b4d5e1cd6b0a4a62d7e7bca3d9f8d4a5f4b7f9a1e2b3c4d5
    token: abcdef.0123456789abcdef
kind: JoinConfiguration
nodeRegistration:
  kubeletExtraArgs:
    node-ip: 10.0.2.2
";

const JOIN_V1BETA4: &str = r#"# Größe
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
clusterDNS: ["10.244.9.9"]
---
apiVersion: "kubeadm.k8s.io/v1beta4"
kind: "JoinConfiguration"
discovery:
  bootstrapToken: {"token": "abcdef.0123456789abcdef", "apiServerEndpoint": "10.244.9.9:6443"}
nodeRegistration:
  kubeletExtraArgs:
  - name: node-ip
    value: 10.0.2.2
"#;

#[test]
fn a_join_configuration_changes_in_its_endpoint_alone() {
    for input in [
        JOIN_V1BETA3.to_owned(),
        JOIN_V1BETA4.to_owned(),
        JOIN_V1BETA4.replace('\n', "\r\n"),
    ] {
        assert_eq!(detect(input.as_bytes()), Kind::Kubeadm);
        moves(Kind::Kubeadm, &input);
        let found = inspect(Kind::Kubeadm, input.as_bytes()).unwrap();
        assert_eq!(found[0].server, "10.244.9.9:6443");
        assert_eq!(found[0].token_id.as_deref(), Some("abcdef"));
    }
    stays(
        Kind::Kubeadm,
        "kind: JoinConfiguration\ndiscovery:\n  file:\n    kubeConfigPath: /etc/a.conf\n",
    );
}

#[test]
fn a_discovery_file_is_named() {
    for (input, path) in [
        (
            "kind: JoinConfiguration\ndiscovery: {file: {kubeConfigPath: /etc/a.conf}}\n",
            Some("/etc/a.conf"),
        ),
        (
            "discovery: {file: {kubeConfigPath: 'https://10.244.9.9/a.conf'}}\n",
            None,
        ),
        (JOIN_V1BETA3, None),
    ] {
        assert_eq!(discovery_file(input.as_bytes()).unwrap().as_deref(), path);
    }
}

#[test]
fn k3s_files_change_in_their_server_alone() {
    for input in [
        "server: https://10.244.9.9:6443\ntoken: K10abc::node:secret\n",
        "# server: https://10.244.9.9:1\r\ntoken: a\r\nserver: \"https://10.244.9.9:6443\"\r\nnode-label:\r\n- a=b\r\n",
    ] {
        assert_eq!(detect(input.as_bytes()), Kind::K3sConfig);
        moves(Kind::K3sConfig, input);
    }
    for input in [
        "K3S_TOKEN='K10abc::node:secret'\nK3S_URL='https://10.244.9.9:6443'\n",
        "RKE2_URL=https://10.244.9.9:6443",
        " K3S_URL = \"https://10.244.9.9:6443\" \r\nA=b\r\n",
    ] {
        assert_eq!(detect(input.as_bytes()), Kind::K3sEnv);
        moves(Kind::K3sEnv, input);
    }
    for input in [
        "#K3S_URL=https://10.244.9.9:6443\n",
        "K3S_URL=\nNO_K3S_URL=https://10.244.9.9:6443\n",
        "",
    ] {
        stays(Kind::K3sEnv, input);
    }
    for input in [
        "server: ''\n",
        "a:\n  server: https://10.244.9.9:6443\n",
        "",
    ] {
        stays(Kind::K3sConfig, input);
    }
}

/// The shape of k0smotron's bootstrap Secrets.
fn k0smotron(token: &str) -> String {
    format!(
        "## template: jinja
#cloud-config
write_files:
- path: /etc/k0s.token
  permissions: \"0600\"
  content: {token}
runcmd:
- curl -sSfL --retry 5 https://get.k0s.sh | K0S_INSTALL_PATH=/usr/local/bin K0S_VERSION=v1.36.3+k0s.0 sh
- '/usr/local/bin/k0s install worker --token-file /etc/k0s.token --labels=k0smotron.io/machine-name=m1 \
  --kubelet-extra-args=\"--hostname-override={{{{ ds.meta_data.local_hostname }}}}\"'
- mkdir -p /run/cluster-api && touch /run/cluster-api/bootstrap-success.complete
{{% if a %}}: not YAML{{% endif %}}
"
    )
}

/// The token in user data, whatever is around it.
fn token_in(text: &str) -> String {
    let start = text.find("H4sI").unwrap();
    let length = text[start..]
        .find(|letter: char| !letter.is_ascii_alphanumeric() && !"+/=".contains(letter));
    text[start..]
        .chars()
        .take(length.unwrap_or(text.len() - start))
        .collect()
}

#[test]
fn user_data_of_k0smotron() {
    let input = k0smotron(TOKEN.trim());
    assert_eq!(detect(input.as_bytes()), Kind::CloudInit);
    let output = rewritten_text(Kind::CloudInit, &input);
    let token = token_in(&output);
    assert_eq!(output, k0smotron(&token));
    assert_eq!(unpack(&token), moved(&unpack(TOKEN)));
    let found = inspect(Kind::CloudInit, input.as_bytes()).unwrap();
    let [found] = found.as_slice() else {
        panic!("{found:?}")
    };
    assert_eq!(found.kind, Kind::K0s);
    assert_eq!(found.place.to_string(), "line 6, base64, gzip, line 5");
    assert_eq!(found.user.as_deref(), Some("kubelet-bootstrap"));
}

/// A token wherever user data can have one; `{}` stands for it.
#[test]
fn a_token_is_found_wherever_it_stands() {
    for around in [
        "#cloud-config\nwrite_files:\n- {path: /etc/k0s.token, content: {}, permissions: '0600'}\n",
        "#cloud-config\r\nwrite_files:\r\n- content: \"{}\"\r\n",
        "#cloud-config\nwrite_files:\n- content: |\n    {}\n  path: /etc/k0s.token\n",
        "#cloud-config\nruncmd:\n- \"cat <<EOF > /etc/k0s.token\\n{}\\nEOF\\n\"\n",
        "#!/bin/sh\ncat <<EOF >/etc/k0s.token\n{}\nEOF\n",
        "#!/bin/sh\nK0S_TOKEN={} k0s worker",
        "{% set token = '{}' %}",
        "{}",
        "From nobody\nContent-Type: multipart/mixed; boundary=\"b\"\nMIME-Version: 1.0\n\n--b\n\
          Content-Type: text/cloud-config\n\n#cloud-config\nwrite_files:\n- content: {}\n--b--\n",
    ] {
        let input = around.replace("{}", TOKEN.trim());
        let output = rewritten_text(Kind::CloudInit, &input);
        let token = token_in(&output);
        assert_eq!(output, around.replace("{}", &token));
        assert_eq!(unpack(&token), moved(&unpack(TOKEN)));
    }
}

#[test]
fn a_wrapped_token_stays_wrapped() {
    for (start, separator, end) in [
        (
            "write_files:\n- content: |\n    ",
            "\n    ",
            "\n  path: /etc/k0s.token\n",
        ),
        (
            "- content: !!binary |\r\n    ",
            "\r\n    ",
            "\r\n  path: /etc/k0s.token\r\n",
        ),
        ("cat <<EOF\n", "\n", "\nEOF\n"),
        (r#"content: ""#, r"\n", r#"\n""#),
    ] {
        let input = format!("{start}{}{end}", wrap(TOKEN.trim(), separator));
        let output = rewritten_text(Kind::CloudInit, &input);
        let inner = output
            .strip_prefix(start)
            .unwrap()
            .strip_suffix(end)
            .unwrap();
        let letters = inner.replace(separator, "");
        assert_eq!(inner, wrap(&letters, separator));
        assert_eq!(unpack(&letters), moved(&unpack(TOKEN)));
    }
}

/// The shape of Cluster API's bootstrap Secrets for kubeadm.
fn cabpk(content: &str) -> String {
    let mut text = "\
## template: jinja
#cloud-config

write_files:
-   path: /run/kubeadm/kubeadm-join-config.yaml
    owner: root:root
    permissions: '0640'
    content: |
"
    .to_owned();
    for line in content.lines() {
        writeln!(text, "      {line}").unwrap();
    }
    text + "\
-   path: /run/cluster-api/placeholder
    owner: root:root
    permissions: '0640'
    content: \"This placeholder file is used to create the /run/cluster-api sub directory\"
runcmd:
  - kubeadm join --config /run/kubeadm/kubeadm-join-config.yaml  && echo success > /run/cluster-api/x
"
}

#[test]
fn user_data_of_cluster_api() {
    for content in [JOIN_V1BETA3, JOIN_V1BETA4, KUBECONFIG] {
        moves(Kind::CloudInit, &cabpk(content));
        moves(Kind::CloudInit, &cabpk(content).replace('\n', "\r\n"));
    }
    moves(
        Kind::CloudInit,
        "#!/bin/sh\ncurl -sfL https://get.k3s.io | K3S_URL=https://10.244.9.9:6443 K3S_TOKEN=x sh -\n",
    );
    moves(
        Kind::CloudInit,
        "#cloud-config\nruncmd:\n- \"echo 'K3S_URL: \\\"https://10.244.9.9:6443\\\"' >a\\nserver: https://10.244.9.9:6443\\n\"\n",
    );
    moves(
        Kind::CloudInit,
        r#"{"a": "{\"server\": \"https://10.244.9.9:6443\"}"}"#,
    );
    for input in [
        "#cloud-config\nntp: {servers: [10.244.9.9]}\nhttp_proxy: http://10.244.9.9:6443\n",
        "#cloud-config\nchef:\n  server_url: https://10.244.9.9:6443\n  no-server: https://10.244.9.9:6443\n",
        "#cloud-config\nx: {server: 10.244.9.9:6443}\n",
        "server:",
        "",
    ] {
        stays(Kind::CloudInit, input);
    }
}

/// Contents in every encoding that `write_files` has, and user data that is encoded as a whole.
#[test]
fn encodings_within_each_other() {
    let data = cabpk(JOIN_V1BETA3);
    let b64 = |text: &str| STANDARD.encode(text);
    let undo = |encoded: &str| String::from_utf8(STANDARD.decode(encoded).unwrap()).unwrap();
    // base64 can be compared letter by letter, since nothing in it is free.
    for content in [
        KUBECONFIG,
        JOIN_V1BETA4,
        "K3S_URL=https://10.244.9.9:6443\n",
        &data,
    ] {
        let input = format!(
            "write_files:\n- encoding: b64\n  content: {}\n",
            b64(content)
        );
        let expected = format!(
            "write_files:\n- encoding: b64\n  content: {}\n",
            b64(&moved(content))
        );
        assert_eq!(rewritten_text(Kind::CloudInit, &input), expected);
        assert_eq!(
            rewritten_text(Kind::CloudInit, &b64(&input)),
            b64(&expected)
        );
        let wrapped = wrap(&b64(&input), "\n") + "\n";
        assert_eq!(
            rewritten_text(Kind::CloudInit, &wrapped),
            wrap(&b64(&expected), "\n") + "\n"
        );
        // gzip as it comes out of our own hands.
        let input = format!(
            "write_files:\n- encoding: gz+b64\n  content: {}\n",
            pack(content)
        );
        let expected = format!(
            "write_files:\n- encoding: gz+b64\n  content: {}\n",
            pack(&moved(content))
        );
        assert_eq!(rewritten_text(Kind::CloudInit, &input), expected);
        assert_eq!(
            rewritten(Kind::CloudInit, &gzip(input.as_bytes())),
            gzip(expected.as_bytes())
        );
        assert_eq!(
            rewritten_text(Kind::CloudInit, &pack(&input)),
            pack(&expected)
        );
        assert_eq!(undo(&b64(&input)), input);
    }
    assert_eq!(detect(&gzip(data.as_bytes())), Kind::CloudInit);
    assert_eq!(detect(pack(&data).as_bytes()), Kind::CloudInit);
    assert_eq!(detect(b64(&data).as_bytes()), Kind::CloudInit);
}

#[test]
fn files_that_are_no_join_files_stay() {
    let program: Vec<u8> = (0..=255).cycle().take(4000).collect();
    let input = format!(
        "#cloud-config\nwrite_files:\n- content: {}\n- content: {}\n- content: {}\n",
        STANDARD.encode(gzip(&program)),
        STANDARD.encode(&program),
        pack("nothing to see"),
    );
    stays(Kind::CloudInit, &input);
    assert_eq!(rewritten(Kind::CloudInit, &program), program);
}

/// The shape of what Butane and k0smotron's Ignition provisioner write.
fn ignition(source: &str, compression: &str) -> String {
    format!(
        r#"{{"ignition":{{"version":"3.3.0"}},"storage":{{"files":[{{"path":"/etc/hostname","contents":{{"source":"data:,m1"}},"mode":420}},{{"path":"/etc/k0s.token","contents":{{"compression":"{compression}","source":"{source}"}},"mode":384}}]}},"systemd":{{"units":[{{"contents":"[Service]\nExecStart=/usr/local/bin/k0s \"worker\"\n","enabled":true,"name":"é.service"}}]}}}}"#
    )
}

fn percent(text: &str) -> String {
    text.bytes().fold(String::new(), |mut text, byte| {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            text.push(char::from(byte));
        } else {
            write!(text, "%{byte:02X}").unwrap();
        }
        text
    })
}

#[test]
fn ignition_changes_in_one_string_alone() {
    let escaped = |text: &str| format!("data:,{}", percent(text));
    let base64 = |text: &str| format!("data:;base64,{}", STANDARD.encode(text));
    let gzipped = |text: &str| format!("data:;base64,{}", pack(text));
    let token = pack(KUBECONFIG);
    let moved_token = pack(&moved(KUBECONFIG));
    for (before, after, compression) in [
        (escaped(KUBECONFIG), escaped(&moved(KUBECONFIG)), ""),
        (base64(KUBECONFIG), base64(&moved(KUBECONFIG)), ""),
        (gzipped(KUBECONFIG), gzipped(&moved(KUBECONFIG)), "gzip"),
        (escaped(&token), escaped(&moved_token), ""),
        (base64(&token), base64(&moved_token), ""),
        (gzipped(&token), gzipped(&moved_token), "gzip"),
        (
            base64(&ignition(&base64(JOIN_V1BETA3), "")),
            base64(&ignition(&base64(&moved(JOIN_V1BETA3)), "")),
            "",
        ),
        (
            "data:,server:%20https:%2F%2F10.244.9.9:6443".to_owned(),
            "data:,server:%20https:%2F%2F192.0.2.10:443".to_owned(),
            "",
        ),
        (
            r"Environment=\u004b3S_URL=https:\/\/10.244.9.9:6443\n".to_owned(),
            r"Environment=\u004b3S_URL=https:\/\/192.0.2.10:443\n".to_owned(),
            "",
        ),
    ] {
        let input = ignition(&before, compression);
        assert_eq!(detect(input.as_bytes()), Kind::Ignition);
        assert_eq!(
            rewritten_text(Kind::Ignition, &input),
            ignition(&after, compression)
        );
    }
    stays(Kind::Ignition, &ignition("data:;base64,", "gzip"));
    let input = ignition(&gzipped(&token), "gzip");
    let found = inspect(Kind::Ignition, input.as_bytes()).unwrap();
    assert_eq!(
        found[0].place.to_string(),
        "storage.files[1].contents.source, base64, gzip, line 1, base64, gzip, line 5"
    );
}

#[test]
fn kinds_are_told_apart() {
    for (input, kind) in [
        ("", Kind::CloudInit),
        ("hello", Kind::CloudInit),
        ("H4sI", Kind::K0s),
        ("H4sI… is how tokens begin", Kind::CloudInit),
        ("#cloud-config\nclusters: []\nserver: a\n", Kind::CloudInit),
        (r#"{"kind": "Config", "clusters": []}"#, Kind::Kubeconfig),
        (r#"{"kind": "JoinConfiguration"}"#, Kind::Kubeadm),
        (r#"{"server": "https://10.244.9.9:6443"}"#, Kind::K3sConfig),
        (r#"{"ignition": {"version": "3.3.0"}}"#, Kind::Ignition),
        ("kind: 'JoinConfiguration'\r\n", Kind::Kubeadm),
        ("  clusters:\n", Kind::CloudInit),
    ] {
        assert_eq!(detect(input.as_bytes()), kind, "{input}");
    }
    for kind in Kind::ALL {
        assert_eq!(serde_json::to_value(kind).unwrap(), kind.name());
    }
}

/// Inputs that can't be read: what is said, and where. None of it is secret.
#[track_caller]
fn say(cases: Vec<(Kind, String, &str)>) {
    for (kind, input, expected) in cases {
        for error in [
            inspect(kind, input.as_bytes()).unwrap_err(),
            rewrite(kind, input.as_bytes(), &replace()).unwrap_err(),
        ] {
            assert_eq!(error.to_string(), expected);
            assert!(!format!("{error:?}").contains(SECRET));
        }
    }
}

#[test]
fn tokens_that_are_broken_are_named_and_their_place() {
    let token = TOKEN.trim();
    let mut nested = KUBECONFIG.to_owned();
    for _ in 0..20 {
        nested = STANDARD.encode(nested);
    }
    let bomb = STANDARD.encode(gzip(&vec![b'a'; DECODED_LIMIT + 1]));
    let two_contexts = KUBECONFIG.replace(
        "contexts:\n",
        "contexts:\n- {context: {user: a}, name: b}\n",
    );
    let cases: Vec<(Kind, String, &str)> = vec![
        (
            Kind::K0s,
            String::new(),
            "the input: not base64 (standard alphabet), or cut off",
        ),
        (
            Kind::K0s,
            SECRET.to_owned(),
            "base64, gzip: not a whole gzip stream; was it cut off?",
        ),
        (
            Kind::K0s,
            token[..token.len() - 40].to_owned(),
            "base64, gzip: not a whole gzip stream; was it cut off?",
        ),
        (
            Kind::K0s,
            format!("{token}-"),
            "the input: not base64 (standard alphabet), or cut off",
        ),
        (
            Kind::K0s,
            pack(SECRET),
            "base64, gzip: not a kubeconfig: no cluster has a server",
        ),
        (
            Kind::K0s,
            pack(&KUBECONFIG.replace("kubelet-bootstrap", SECRET)),
            "base64, gzip: not a k0s join token: its user is neither kubelet-bootstrap nor controller-bootstrap",
        ),
        (
            Kind::K0s,
            pack(&two_contexts),
            "base64, gzip: not a k0s join token: it has not exactly one context",
        ),
        (
            Kind::K0s,
            bomb.clone(),
            "base64, gzip: more than 1048576 bytes",
        ),
        (
            Kind::CloudInit,
            k0smotron(&bomb),
            "line 6, base64, gzip: more than 1048576 bytes",
        ),
        (
            Kind::CloudInit,
            k0smotron(&token[..token.len() - 40]),
            "line 6, base64, gzip: not a whole gzip stream; was it cut off?",
        ),
        (
            Kind::CloudInit,
            nested,
            "line 1, base64, line 1, base64, line 1, base64, line 1, base64, line 1, base64, line 1, base64, line 1, base64, line 1, base64, line 1: nested too deep",
        ),
    ];
    say(cases);
}

#[test]
fn files_that_are_broken_are_named_and_their_place() {
    let deep = format!("a: {}{}", "[".repeat(100), "]".repeat(100));
    let cases: Vec<(Kind, String, &str)> = vec![
        (
            Kind::Kubeconfig,
            format!("clusters: [{SECRET}"),
            "line 1: not valid YAML",
        ),
        (
            Kind::Kubeconfig,
            format!("a: b\n{SECRET}: [}}\n"),
            "line 2: not valid YAML",
        ),
        (
            Kind::Kubeconfig,
            format!("a: *{SECRET}\n"),
            "line 1: not valid YAML",
        ),
        (Kind::Kubeconfig, deep, "line 1: nested too deep"),
        (
            Kind::Kubeconfig,
            format!("clusters:\n- cluster:\n    server: https://{SECRET}:port\n"),
            "line 3: the server address has no host, or a wrong port; write it out plainly",
        ),
        (
            Kind::Kubeconfig,
            "x: &a https://10.244.9.9:6443\nclusters:\n- cluster: {server: *a}\n".to_owned(),
            "line 3: the server address is an alias; write it out plainly",
        ),
        (
            Kind::Kubeadm,
            "kind: Config\n".to_owned(),
            "the input: not a kubeadm join configuration: no document is a JoinConfiguration",
        ),
        (
            Kind::K3sEnv,
            format!("A=b\nK3S_URL=https://{SECRET}:x\n"),
            "line 2: the server address has no host, or a wrong port; write it out plainly",
        ),
        (
            Kind::Ignition,
            format!("{{\n\"ignition\": {SECRET}"),
            "line 2: not valid JSON",
        ),
        (
            Kind::Ignition,
            "{}".to_owned(),
            "the input: not an Ignition configuration: it has no `ignition`",
        ),
        (
            Kind::Ignition,
            ignition("data:;base64,!", ""),
            "storage.files[1].contents.source: not base64 (standard alphabet), or cut off",
        ),
        (
            Kind::CloudInit,
            "a".repeat(INPUT_LIMIT + 1),
            "the input: more than 2097152 bytes",
        ),
    ];
    say(cases);
    // What can be read but not be edited.
    let escaped = br#"clusters: [{cluster: {server: "https://10.244.9\x2e9:6443"}}]"#;
    assert_eq!(inspect(Kind::Kubeconfig, escaped).unwrap().len(), 1);
    assert_eq!(
        rewrite(Kind::Kubeconfig, escaped, &replace())
            .unwrap_err()
            .to_string(),
        "line 1: the server address is written with escapes; write it out plainly"
    );
    let error = inspect(Kind::Kubeconfig, b"\xff").unwrap_err();
    assert_eq!(error.to_string(), "the input: not UTF-8 text");
}

/// Whatever is printed of a result, no half of a secret is in it.
#[test]
fn nothing_that_is_printed_is_secret() {
    for (kind, input) in [
        (Kind::K0s, TOKEN.to_owned()),
        (
            Kind::Kubeconfig,
            KUBECONFIG.replace("https://", &format!("https://admin:{SECRET}@")),
        ),
        (Kind::CloudInit, cabpk(KUBECONFIG)),
        (Kind::CloudInit, k0smotron(TOKEN.trim())),
        (
            Kind::Ignition,
            ignition(&format!("data:;base64,{}", STANDARD.encode(KUBECONFIG)), ""),
        ),
    ] {
        let rewritten = rewrite(kind, input.as_bytes(), &replace()).unwrap();
        assert_eq!(rewritten.changes.len(), 1);
        for printed in [
            format!("{rewritten:?}"),
            format!("{:?}", rewritten.changes),
            serde_json::to_string(&rewritten.found).unwrap(),
            serde_json::to_string(&rewritten.changes).unwrap(),
        ] {
            assert!(!printed.contains(SECRET), "{printed}");
            assert!(!printed.contains(&TOKEN[..60]), "{printed}");
        }
    }
    let edit = Edit {
        range: 0..1,
        bytes: SECRET.as_bytes().to_vec(),
    };
    assert_eq!(format!("{edit:?}"), "Edit { range: 0..1, .. }");
}

/// Samples of every kind, to be damaged.
fn samples() -> Vec<(Kind, Vec<u8>)> {
    let data_url = format!("data:;base64,{}", pack(KUBECONFIG));
    [
        (Kind::Kubeconfig, KUBECONFIG.to_owned()),
        (Kind::K0s, TOKEN.to_owned()),
        (Kind::Kubeadm, JOIN_V1BETA4.to_owned()),
        (
            Kind::K3sConfig,
            "server: https://10.244.9.9:6443\n".to_owned(),
        ),
        (
            Kind::K3sEnv,
            "K3S_URL='https://10.244.9.9:6443'\n".to_owned(),
        ),
        (Kind::CloudInit, k0smotron(&wrap(TOKEN.trim(), "\n    "))),
        (Kind::CloudInit, cabpk(KUBECONFIG)),
        (Kind::Ignition, ignition(&data_url, "gzip")),
        (
            Kind::Ignition,
            ignition(&format!("data:,{}", percent(JOIN_V1BETA3)), ""),
        ),
    ]
    .map(|(kind, text)| (kind, text.into_bytes()))
    .to_vec()
}

/// What holds for any input: no panic, bytes that stay when nothing is changed, a second pass without effect.
fn holds(kind: Kind, input: &[u8]) -> Result<(), TestCaseError> {
    let _ = detect(input);
    let replace = replace();
    let Ok(rewritten) = rewrite(kind, input, &replace) else {
        return Ok(());
    };
    if rewritten.changes.is_empty() {
        prop_assert!(matches!(rewritten.bytes, Cow::Borrowed(bytes) if bytes == input));
    } else {
        let again = rewrite(kind, &rewritten.bytes, &replace)
            .map_err(|error| TestCaseError::fail(error.to_string()))?;
        prop_assert!(again.changes.is_empty());
    }
    Ok(())
}

proptest! {
    #[test]
    fn any_bytes_are_fine(input in prop::collection::vec(any::<u8>(), 0..400)) {
        for kind in Kind::ALL {
            holds(kind, &input)?;
        }
    }

    #[test]
    fn any_text_is_fine(input in r#"([a-z:\-"'\[\]{},#&*!|>%@? \n\\]|server: |H4sI|data:;base64,|https://10\.244\.9\.9|[A-Za-z0-9+/]{28,40}|\r\n|é){0,40}"#) {
        for kind in Kind::ALL {
            holds(kind, input.as_bytes())?;
        }
    }

    #[test]
    fn damaged_files_are_fine(
        sample in prop::sample::select(samples()),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        cut in any::<prop::sample::Index>(),
    ) {
        let (kind, mut bytes) = sample;
        for (index, byte) in damage {
            let index = index.index(bytes.len());
            bytes[index] = byte;
        }
        holds(kind, &bytes)?;
        bytes.truncate(cut.index(bytes.len()));
        holds(kind, &bytes)?;
    }

    /// Whatever the addresses are, the decoded files differ in them alone.
    #[test]
    fn only_the_address_changes(
        address in any::<[u8; 2]>(),
        port in 1..=u16::MAX,
        ca in "[A-Za-z0-9+/]{0,80}",
        quote in prop::sample::select(vec!["", "'", "\""]),
        width in 20..120_usize,
    ) {
        let server = format!("10.244.{}.{}:{port}", address[0], address[1]);
        let before = KUBECONFIG
            .replace("LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0t", &ca)
            .replace("https://10.244.9.9:6443", &format!("{quote}https://{server}{quote}"));
        let after = before.replace(&server, "192.0.2.10:443");
        prop_assert_eq!(rewritten_text(Kind::Kubeconfig, &before), &*after);
        let packed = pack(&before);
        let lines: Vec<_> = packed.as_bytes().chunks(width).map(|line| std::str::from_utf8(line).unwrap()).collect();
        prop_assert_eq!(unpack(&rewritten_text(Kind::K0s, &lines.join("\n"))), &*after);
        let output = rewritten_text(Kind::CloudInit, &k0smotron(&packed));
        let token = token_in(&output);
        prop_assert_eq!(unpack(&token), after);
        prop_assert_eq!(output, k0smotron(&token));
    }
}
