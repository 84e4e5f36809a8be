//! Where kube-proxy in nftables mode accepts `NodePorts`: its set `nodeport-ips`.

use std::{
    io,
    net::IpAddr,
    process::{Command, Stdio},
};

use serde_json::Value;

/// kube-proxy's table and set (`pkg/proxy/nftables`, Kubernetes).
const TABLE: &str = "kube-proxy";
const SET: &str = "nodeport-ips";

/// Asks `nft`. None where there is no such set in either family, or no `nft`: no proxy can have made one then, but
/// one that brings its own, whose `NodePorts` are configured with `nodeports = "on"`.
///
/// # Errors
/// When `nft` can't be run for another reason.
pub(super) fn read() -> io::Result<Option<Vec<IpAddr>>> {
    let mut accepted: Option<Vec<IpAddr>> = None;
    for family in ["ip", "ip6"] {
        let output = Command::new("nft")
            .args(["--json", "list", "set", family, TABLE, SET])
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .output();
        let output = match output {
            Ok(output) => output,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        if output.status.success()
            && let Some(elements) = elements(&output.stdout)
        {
            accepted.get_or_insert_default().extend(elements);
        }
    }
    Ok(accepted)
}

/// The addresses in `nft --json`'s answer (libnftables-json(5)); none if it is no such answer.
fn elements(json: &[u8]) -> Option<Vec<IpAddr>> {
    let document: Value = serde_json::from_slice(json).ok()?;
    let set = document
        .get("nftables")?
        .as_array()?
        .iter()
        .find_map(|object| object.get("set"))?;
    // Without elements there is no such key.
    let elements = set.get("elem").and_then(Value::as_array);
    Some(
        elements
            .into_iter()
            .flatten()
            .filter_map(|element| {
                let value = element
                    .get("elem")
                    .and_then(|element| element.get("val"))
                    .unwrap_or(element);
                value.as_str()?.parse().ok()
            })
            .collect(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sets_addresses_are_read() {
        let head = r#"{"nftables": [{"metainfo": {"version": "1.0.6"}}, {"set": {"family": "ip", "name": "nodeport-ips", "table": "kube-proxy", "type": "ipv4_addr", "handle": 9"#;
        for (rest, expected) in [
            (
                r#", "elem": ["10.244.1.226"]}}]}"#,
                Some(&["10.244.1.226"][..]),
            ),
            (
                r#", "elem": ["10.0.2.2", {"elem": {"val": "10.244.1.226", "comment": "x"}}]}}]}"#,
                Some(&["10.0.2.2", "10.244.1.226"]),
            ),
            ("}}]}", Some(&[])),
            (
                r#", "elem": [{"prefix": {"addr": "10.0.0.0", "len": 8}}]}}]}"#,
                Some(&[]),
            ),
            ("", None),
        ] {
            let expected: Option<Vec<IpAddr>> =
                expected.map(|texts| texts.iter().map(|text| text.parse().unwrap()).collect());
            assert_eq!(
                elements((head.to_owned() + rest).as_bytes()),
                expected,
                "{rest}"
            );
        }
        assert_eq!(elements(br#"{"nftables": []}"#), None);
        assert_eq!(elements(b""), None);
    }
}
