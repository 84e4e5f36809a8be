//! Values of keys: read from what a file, a flag or a variable says, and written as a file would say them.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    str::FromStr,
    time::Duration,
};

use ipnet::IpNet;
use toml::Value;

use super::{Distribution, NodePorts};
use crate::{
    address::{pick::Source, reflector_client::Server},
    datapath::settings::{
        DualAddress, GuestAddress, IngressHook, MAX_FLOW_ENTRIES, PortRange, Service,
        parse_overlay_ports, parse_services,
    },
    join::{Endpoint, EndpointError},
    node::distribution,
};

/// The word for what is to be found out.
const AUTO: &str = "auto";
/// Interface names have a terminating zero in 16 bytes (`IFNAMSIZ`).
const MAX_INTERFACE_NAME: usize = 15;
/// More often costs more than it tells; see docs/benchmarks.
const MIN_INTERVAL: Duration = Duration::from_secs(1);

/// A text.
fn text(value: &Value) -> Result<&str, String> {
    value
        .as_str()
        .ok_or_else(|| format!("{value} is not a text; put it in quotes"))
}

/// The elements of a list, numbers among them, as texts.
fn list(value: &Value) -> Result<Vec<String>, String> {
    let elements = value
        .as_array()
        .ok_or_else(|| format!("{value} is not a list; put it in square brackets"))?;
    elements
        .iter()
        .map(|element| match element {
            Value::String(text) => Ok(text.clone()),
            Value::Integer(number) => Ok(number.to_string()),
            other => Err(format!("{other} is neither a text nor a number")),
        })
        .collect()
}

pub(super) fn boolean(value: &Value) -> Result<bool, String> {
    value
        .as_bool()
        .ok_or_else(|| format!("{value} is neither true nor false"))
}

pub(super) fn flow_entries(value: &Value) -> Result<u32, String> {
    value
        .as_integer()
        .and_then(|number| u32::try_from(number).ok())
        .filter(|number| (1..=MAX_FLOW_ENTRIES).contains(number))
        .ok_or_else(|| format!("{value} is not a number from 1 to {MAX_FLOW_ENTRIES}"))
}

/// A text of one's own, or none for `auto`.
fn unless_auto(value: &Value) -> Result<Option<&str>, String> {
    match text(value)? {
        AUTO => Ok(None),
        "" => Err(format!("it is empty; say `{AUTO}`, or leave the key out")),
        other => Ok(Some(other)),
    }
}

fn interface_name(name: &str) -> Result<String, String> {
    let is_name = (1..=MAX_INTERFACE_NAME).contains(&name.len())
        && !matches!(name, "." | "..")
        && !name.contains(|c: char| c == '/' || c == ':' || c.is_whitespace());
    if is_name {
        Ok(name.to_owned())
    } else {
        Err(format!(
            "`{name}` can't be an interface's name: up to {MAX_INTERFACE_NAME} bytes without `/`, `:` and spaces"
        ))
    }
}

pub(super) fn uplink(value: &Value) -> Result<Option<String>, String> {
    unless_auto(value)?.map(interface_name).transpose()
}

pub(super) fn address_device(value: &Value) -> Result<String, String> {
    interface_name(text(value)?)
}

pub(super) fn guest_address(value: &Value) -> Result<GuestAddress, String> {
    // A list is as good as a text with a comma.
    let words = match value {
        Value::Array(_) => list(value)?.join(","),
        _ => text(value)?.to_owned(),
    };
    GuestAddress::parse(&words).map_err(|error| error.to_string())
}

pub(super) fn fixed_address(value: &Value) -> Result<DualAddress, String> {
    let words = list(value)?;
    if words.is_empty() {
        return Ok(DualAddress::default());
    }
    DualAddress::parse("node address", &words.join(",")).map_err(|error| error.to_string())
}

pub(super) fn absolute_path(value: &Value) -> Result<PathBuf, String> {
    let path = PathBuf::from(text(value)?);
    if path.is_absolute() {
        Ok(path)
    } else {
        Err(format!(
            "`{}` is not an absolute path; begin it with `/`",
            path.display()
        ))
    }
}

pub(super) fn kubeconfig(value: &Value) -> Result<Option<PathBuf>, String> {
    match unless_auto(value)? {
        None => Ok(None),
        Some(_) => absolute_path(value).map(Some),
    }
}

pub(super) fn sources(value: &Value) -> Result<Vec<Source>, String> {
    let mut sources = Vec::new();
    for word in list(value)? {
        let source = word.parse::<Source>().map_err(|error| error.to_string())?;
        if sources.contains(&source) {
            return Err(format!("`{word}` is there twice"));
        }
        sources.push(source);
    }
    Ok(sources)
}

pub(super) fn reflectors(value: &Value) -> Result<Vec<Server>, String> {
    list(value)?
        .iter()
        .map(|word| word.parse::<Server>().map_err(|error| error.to_string()))
        .collect()
}

pub(super) fn endpoint(value: &Value) -> Result<Option<Endpoint>, String> {
    match text(value)? {
        "" => Ok(None),
        word => word
            .parse()
            .map(Some)
            .map_err(|error: EndpointError| error.to_string()),
    }
}

pub(super) fn cidrs(value: &Value) -> Result<Vec<IpNet>, String> {
    list(value)?
        .iter()
        .map(|word| {
            let network = match word.parse::<IpAddr>() {
                Ok(address) => IpNet::from(address),
                Err(_) => word.parse::<IpNet>().map_err(|_| {
                    format!("`{word}` is not a network; say it like 10.244.0.0/16 or fd00:244::/56")
                })?,
            };
            if network == network.trunc() {
                Ok(network)
            } else {
                Err(format!(
                    "`{word}` has bits behind its prefix; did you mean {}?",
                    network.trunc()
                ))
            }
        })
        .collect()
}

/// Reads `500ms`, `5s`, `2m`.
fn duration(value: &Value) -> Result<Duration, String> {
    let word = text(value)?;
    let digits = word
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(word.len());
    let (number, unit) = word.split_at(digits);
    let number: Option<u64> = number.parse().ok();
    match (number, unit) {
        (Some(number), "ms") => Some(Duration::from_millis(number)),
        (Some(number), "s") => Some(Duration::from_secs(number)),
        (Some(number), "m") => number.checked_mul(60).map(Duration::from_secs),
        _ => None,
    }
    .ok_or_else(|| format!("`{word}` is not a duration; say it like 5s, 500ms or 2m"))
}

pub(super) fn interval(value: &Value) -> Result<Duration, String> {
    let interval = duration(value)?;
    if (MIN_INTERVAL..=MAX_DURATION).contains(&interval) {
        Ok(interval)
    } else {
        Err("it has to be from 1s to 1440m".to_owned())
    }
}

/// A day: whoever waits longer has made a slip of the finger, and no deadline overflows.
const MAX_DURATION: Duration = Duration::from_secs(24 * 60 * 60);

pub(super) fn start_timeout(value: &Value) -> Result<Duration, String> {
    let timeout = duration(value)?;
    if timeout <= MAX_DURATION {
        Ok(timeout)
    } else {
        Err("it has to be 1440m at most".to_owned())
    }
}

pub(super) fn overlay_ports(value: &Value) -> Result<Vec<u16>, String> {
    parse_overlay_ports(&list(value)?).map_err(|error| error.to_string())
}

pub(super) fn services(value: &Value) -> Result<Vec<Service>, String> {
    parse_services(&list(value)?).map_err(|error| error.to_string())
}

pub(super) fn port_range(value: &Value) -> Result<PortRange, String> {
    let word = text(value)?;
    PortRange::from_str(word).map_err(|why| format!("`{word}`: {why}"))
}

pub(super) fn listen(value: &Value) -> Result<Option<SocketAddr>, String> {
    match text(value)? {
        "" => Ok(None),
        word => word
            .parse()
            .map(Some)
            .map_err(|_| format!("`{word}` is not ADDRESS:PORT, such as 127.0.0.1:9969")),
    }
}

/// A value that is one of a few words.
pub(super) trait Choice: Copy + PartialEq + 'static {
    /// The words, each with its meaning.
    const WORDS: &'static [(&'static str, Self)];

    /// The word for a value.
    fn word(self) -> &'static str {
        Self::WORDS
            .iter()
            .find_map(|(word, value)| (*value == self).then_some(*word))
            .unwrap_or_default()
    }
}

impl Choice for IngressHook {
    const WORDS: &'static [(&'static str, Self)] = &[
        (AUTO, Self::Auto),
        ("tcx", Self::Tcx),
        ("clsact", Self::Clsact),
        ("xdp", Self::Xdp),
    ];
}

impl Choice for NodePorts {
    const WORDS: &'static [(&'static str, Self)] =
        &[(AUTO, Self::Auto), ("on", Self::On), ("off", Self::Off)];
}

impl Choice for Distribution {
    const WORDS: &'static [(&'static str, Self)] = &[
        (AUTO, Self::Auto),
        ("k0s", Self::Named(distribution::Distribution::K0s)),
        ("kubeadm", Self::Named(distribution::Distribution::Kubeadm)),
        ("k3s", Self::Named(distribution::Distribution::K3s)),
        ("rke2", Self::Named(distribution::Distribution::Rke2)),
        ("none", Self::None),
    ];
}

fn choose<T: Copy>(word: &str, words: &[(&str, T)]) -> Result<T, String> {
    words
        .iter()
        .find_map(|(name, value)| (*name == word).then_some(*value))
        .ok_or_else(|| {
            let names: Vec<&str> = words.iter().map(|(name, _)| *name).collect();
            format!("`{word}` is none of {}", names.join(", "))
        })
}

pub(super) fn choice<T: Choice>(value: &Value) -> Result<T, String> {
    choose(text(value)?, T::WORDS)
}

/// A list as a file would have it.
pub(super) fn written<T: fmt::Display>(values: impl IntoIterator<Item = T>) -> Value {
    Value::Array(
        values
            .into_iter()
            .map(|value| Value::String(value.to_string()))
            .collect(),
    )
}

/// `auto`, or what is chosen instead.
pub(super) fn or_auto(value: Option<&str>) -> Value {
    Value::String(value.unwrap_or(AUTO).to_owned())
}

pub(super) fn written_duration(duration: Duration) -> Value {
    Value::String(if duration.subsec_millis() == 0 {
        format!("{}s", duration.as_secs())
    } else {
        format!("{}ms", duration.as_millis())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_a_unit() {
        for (text, expected) in [
            ("5s", Some(Duration::from_secs(5))),
            ("500ms", Some(Duration::from_millis(500))),
            ("2m", Some(Duration::from_secs(120))),
            ("5", None),
            ("s", None),
            ("-5s", None),
            ("1.5s", None),
            ("5 s", None),
            ("99999999999999999999s", None),
            ("18446744073709551615m", None),
        ] {
            let value = Value::String(text.to_owned());
            assert_eq!(duration(&value).ok(), expected, "{text}");
        }
        assert!(interval(&Value::String("500ms".to_owned())).is_err());
        assert!(interval(&Value::String("1441m".to_owned())).is_err());
        assert!(start_timeout(&Value::String("0s".to_owned())).is_ok());
    }

    #[test]
    fn networks_have_nothing_behind_their_prefix() {
        let parse = |text: &str| cidrs(&Value::Array(vec![Value::String(text.to_owned())]));
        assert_eq!(parse("10.244.0.0/16").unwrap().len(), 1);
        assert_eq!(
            parse("10.244.0.1").unwrap(),
            ["10.244.0.1/32".parse().unwrap()]
        );
        let error = parse("10.244.0.1/16").unwrap_err();
        assert!(error.contains("did you mean 10.244.0.0/16"), "{error}");
        assert!(parse("10.244.0.0/33").is_err());
    }

    #[test]
    fn names_are_checked() {
        for (name, is_valid) in [
            ("eth0", true),
            ("enp1s0.100", true),
            ("a-name-too-long0", false),
            ("a/b", false),
            ("..", false),
        ] {
            assert_eq!(interface_name(name).is_ok(), is_valid, "{name}");
        }
    }
}
