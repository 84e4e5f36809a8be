//! The address of an API server: how it is written, and what it becomes.

use std::{fmt, net::IpAddr, ops::Range, str::FromStr};

use ipnet::IpNet;
use thiserror::Error;

/// Which server addresses change, and into what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replace {
    /// A server whose host is an address in one of these is replaced. A server that is named by DNS never is.
    pub cidrs: Vec<IpNet>,
    /// What it becomes: the join endpoint.
    pub endpoint: Endpoint,
}

/// Why text is no endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{text:?} is not an endpoint: {why}; expected HOST:PORT, [IPV6]:PORT or https://HOST:PORT")]
pub struct EndpointError {
    text: String,
    why: &'static str,
}

/// `host:port` at which guests reach the guest cluster's API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// `https` or `http`; without it, a URL keeps its own.
    scheme: Option<String>,
    /// An address or a name; IPv6 without brackets.
    host: String,
    /// Without it, an address keeps its own.
    port: Option<u16>,
}

impl Endpoint {
    /// The host with brackets where it needs them, and a port: the endpoint's, or else `port`.
    fn authority(&self, port: Option<u16>) -> String {
        let host = if self.host.contains(':') {
            format!("[{}]", self.host)
        } else {
            self.host.clone()
        };
        match self.port.or(port) {
            Some(port) => format!("{host}:{port}"),
            None => host,
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(scheme) = &self.scheme {
            write!(formatter, "{scheme}://")?;
        }
        formatter.write_str(&self.authority(None))
    }
}

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, EndpointError> {
        let error = |why| EndpointError {
            text: text.to_owned(),
            why,
        };
        let (scheme, rest) = match text.split_once("://") {
            Some((scheme @ ("https" | "http"), rest)) => (
                Some(scheme.to_owned()),
                rest.strip_suffix('/').unwrap_or(rest),
            ),
            Some(_) => return Err(error("the scheme is neither https nor http")),
            None => (None, text),
        };
        let (host, port) =
            split(rest).ok_or_else(|| error("the port is not a number up to 65535"))?;
        if port == Some(0) {
            return Err(error("no server has port 0"));
        }
        if host.parse::<IpAddr>().is_err() && !is_name(host) {
            return Err(error("the host is neither an address nor a name"));
        }
        Ok(Self {
            scheme,
            host: host.to_owned(),
            port,
        })
    }
}

/// A DNS name, by the letters and lengths of RFC 1123 section 2.1.
fn is_name(host: &str) -> bool {
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && label
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    // What is all digits and dots is a mistyped address.
    host.len() <= 253
        && host.split('.').all(label)
        && host.bytes().any(|byte| byte.is_ascii_alphabetic())
}

/// Host (without brackets) and port of an authority; none where the port is no port.
fn split(authority: &str) -> Option<(&str, Option<u16>)> {
    if let Some(rest) = authority.strip_prefix('[') {
        let (host, port) = rest.split_once(']')?;
        return match port.strip_prefix(':') {
            Some(port) => Some((host, Some(number(port)?))),
            None if port.is_empty() => Some((host, None)),
            None => None,
        };
    }
    match authority.split_once(':') {
        None => Some((authority, None)),
        // IPv6 without brackets, and so without a port.
        Some((_, rest)) if rest.contains(':') => Some((authority, None)),
        Some((host, port)) => Some((host, Some(number(port)?))),
    }
}

/// A port; Rust's own parser would take a sign.
fn number(text: &str) -> Option<u16> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten()
}

/// A server address as it stands in a file: a URL, or `host:port`.
#[derive(Debug)]
pub(super) struct Server<'a> {
    text: &'a str,
    /// `https`, without what follows.
    scheme: Option<&'a str>,
    /// Where host and port are, behind a user and a password.
    authority: Range<usize>,
    host: &'a str,
    port: Option<u16>,
}

impl<'a> Server<'a> {
    /// None where there is no host.
    pub fn parse(text: &'a str) -> Option<Self> {
        let (scheme, start) = match text.split_once("://") {
            Some((scheme, _)) => (Some(scheme), scheme.len() + "://".len()),
            None => (None, 0),
        };
        let rest = text.get(start..)?;
        let length = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let skipped = rest.get(..length)?.rfind('@').map_or(0, |at| at + 1);
        let authority = start + skipped..start + length;
        let (host, port) = split(text.get(authority.clone())?)?;
        (!host.is_empty()).then_some(Self {
            text,
            scheme,
            authority,
            host,
            port,
        })
    }

    /// As it was written.
    pub fn text(&self) -> &str {
        self.text
    }

    /// The host as an address; none for a name.
    pub fn address(&self) -> Option<IpAddr> {
        let address: IpAddr = self.host.parse().ok()?;
        Some(address.to_canonical())
    }

    /// Whether it is an http or https URL.
    pub fn is_url(&self) -> bool {
        self.scheme.is_some_and(|scheme| {
            scheme.eq_ignore_ascii_case("https") || scheme.eq_ignore_ascii_case("http")
        })
    }

    /// Scheme, host and port. No user, password or query: they may be secret.
    pub fn shown(&self) -> String {
        let authority = self.text.get(self.authority.clone()).unwrap_or_default();
        match self.scheme {
            Some(scheme) => format!("{scheme}://{authority}"),
            None => authority.to_owned(),
        }
    }

    /// The bytes that change, and what they become.
    pub fn moved_to(&self, endpoint: &Endpoint) -> (Range<usize>, String) {
        let authority = endpoint.authority(self.port);
        match (self.scheme, &endpoint.scheme) {
            (Some(old), Some(new)) if !old.eq_ignore_ascii_case(new) => {
                let between = self
                    .text
                    .get(old.len()..self.authority.start)
                    .unwrap_or_default();
                (0..self.authority.end, format!("{new}{between}{authority}"))
            }
            _ => (self.authority.clone(), authority),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_read_and_printed() {
        for (text, printed) in [
            ("192.0.2.10:6443", "192.0.2.10:6443"),
            ("192.0.2.10", "192.0.2.10"),
            ("https://192.0.2.10:6443/", "https://192.0.2.10:6443"),
            ("http://api.example.org", "http://api.example.org"),
            ("[2001:db8::10]:6443", "[2001:db8::10]:6443"),
            ("[2001:db8::10]", "[2001:db8::10]"),
            ("2001:db8::10", "[2001:db8::10]"),
            ("api-1.example.org:6443", "api-1.example.org:6443"),
        ] {
            assert_eq!(text.parse::<Endpoint>().unwrap().to_string(), printed);
        }
    }

    #[test]
    fn what_is_no_endpoint_is_refused() {
        for text in [
            "",
            ":6443",
            "192.0.2.10:",
            "192.0.2.10:65536",
            "192.0.2.10:0",
            "192.0.2.10:+1",
            "192.0.2",
            "192.0.2.256:1",
            "[2001:db8::10",
            "[2001:db8::10]6443",
            "ftp://192.0.2.10",
            "https://192.0.2.10/path",
            "a b:1",
            "-a:1",
            "a..b:1",
            "user@host:1",
        ] {
            let error = text.parse::<Endpoint>().unwrap_err();
            assert!(error.to_string().contains("expected HOST:PORT"), "{text}");
        }
    }

    #[test]
    fn only_host_and_port_move() {
        let cases = [
            (
                "https://10.244.9.9:6443",
                "192.0.2.10:443",
                "https://192.0.2.10:443",
            ),
            (
                "https://10.244.9.9:6443",
                "192.0.2.10",
                "https://192.0.2.10:6443",
            ),
            ("https://10.244.9.9", "192.0.2.10", "https://192.0.2.10"),
            (
                "https://10.244.9.9",
                "192.0.2.10:6443",
                "https://192.0.2.10:6443",
            ),
            (
                "https://10.244.9.9:6443/a?b#c",
                "[2001:db8::1]:1",
                "https://[2001:db8::1]:1/a?b#c",
            ),
            (
                "https://[fd00::9]:6443",
                "api.example.org",
                "https://api.example.org:6443",
            ),
            ("https://[fd00::9]", "2001:db8::1", "https://[2001:db8::1]"),
            ("10.244.9.9:6443", "https://192.0.2.10", "192.0.2.10:6443"),
            (
                "http://10.244.9.9:80/",
                "https://192.0.2.10:6443",
                "https://192.0.2.10:6443/",
            ),
            (
                "http://a:b@10.244.9.9/",
                "https://192.0.2.10",
                "https://a:b@192.0.2.10/",
            ),
            (
                "HTTPS://10.244.9.9",
                "https://192.0.2.10",
                "HTTPS://192.0.2.10",
            ),
        ];
        for (before, endpoint, after) in cases {
            let server = Server::parse(before).unwrap();
            let (range, text) = server.moved_to(&endpoint.parse().unwrap());
            let mut moved = before.to_owned();
            moved.replace_range(range, &text);
            assert_eq!(moved, after);
        }
    }

    #[test]
    fn addresses_are_told_from_names() {
        for (text, address) in [
            ("https://10.244.9.9:6443", Some("10.244.9.9")),
            ("https://[::ffff:10.244.9.9]:6443", Some("10.244.9.9")),
            ("https://[fd00::9]", Some("fd00::9")),
            ("https://api.example.org:6443", None),
            // Octal to some, decimal to others: a name to us.
            ("https://010.244.9.9:6443", None),
            ("https://{{ endpoint }}", None),
        ] {
            let server = Server::parse(text).unwrap();
            assert_eq!(
                server.address(),
                address.map(|text| text.parse().unwrap()),
                "{text}"
            );
        }
        for text in [
            "",
            "https://",
            "https://:6443",
            "https://10.244.9.9:port",
            "https://[fd00::9",
        ] {
            assert!(Server::parse(text).is_none(), "{text}");
        }
    }

    #[test]
    fn passwords_and_queries_are_not_shown() {
        let server =
            Server::parse("https://admin:hunter2@10.244.9.9:6443/path?token=hunter3").unwrap();
        assert_eq!(server.shown(), "https://10.244.9.9:6443");
    }
}
