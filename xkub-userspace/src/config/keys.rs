//! Every key: its path, and how its value gets into the configuration and out of it.

use toml::Value;

use super::{Config, DEFAULT_TEXT, values};
use values::{Choice as _, or_auto, written, written_duration};

/// How a key's value is spelt in a flag or a variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// As it is.
    Text,
    /// `true` or `false`.
    Boolean,
    /// A whole number.
    Number,
    /// With commas.
    List,
}

/// A key.
#[derive(Debug)]
pub struct Key {
    /// Its path: `address.interval`.
    pub path: &'static str,
    /// How flags and variables spell it.
    pub kind: Kind,
    pub(super) set: fn(&mut Config, &Value) -> Result<(), String>,
    pub(super) get: fn(&Config) -> Value,
}

impl Key {
    /// The key with this path.
    #[must_use]
    pub fn find(path: &str) -> Option<&'static Self> {
        KEYS.iter().find(|key| key.path == path)
    }

    /// Its flag, without dashes before it: `address-interval`.
    #[must_use]
    pub fn flag(&self) -> String {
        self.path.replace('.', "-")
    }

    /// Its variable: `XKUB_ADDRESS_INTERVAL`.
    #[must_use]
    pub fn variable(&self) -> String {
        format!("XKUB_{}", self.flag().replace('-', "_").to_uppercase())
    }

    /// What it means: the comment above it in [`DEFAULT_TEXT`], on one line.
    #[must_use]
    pub fn help(&self) -> String {
        let (table, name) = self.path.rsplit_once('.').unwrap_or(("", self.path));
        let mut in_table = table.is_empty();
        let mut help: Vec<&str> = Vec::new();
        for line in DEFAULT_TEXT.lines() {
            if let Some(heading) = line.strip_prefix('[') {
                in_table = heading.strip_suffix(']') == Some(table);
            } else if let Some(comment) = line.strip_prefix("# ") {
                help.push(comment);
            } else if let Some(setting) = line.strip_prefix('#').filter(|rest| !rest.is_empty()) {
                if in_table && setting.split_once(" =").is_some_and(|(key, _)| key == name) {
                    return help.join(" ");
                }
                help.clear();
            } else {
                help.clear();
            }
        }
        String::new()
    }

    /// Its value in a configuration, as a file would have it.
    #[must_use]
    pub fn value(&self, config: &Config) -> Value {
        (self.get)(config)
    }

    /// What a flag or a variable says, as a file would have it.
    pub(super) fn value_of(&self, text: &str) -> Result<Value, String> {
        match self.kind {
            Kind::Text => Ok(Value::String(text.to_owned())),
            Kind::Boolean => text
                .parse()
                .map(Value::Boolean)
                .map_err(|_| format!("`{text}` is neither true nor false")),
            Kind::Number => text
                .parse()
                .map(Value::Integer)
                .map_err(|_| format!("`{text}` is not a whole number")),
            Kind::List if text.is_empty() => Ok(Value::Array(Vec::new())),
            Kind::List => Ok(written(text.split(',').map(str::trim))),
        }
    }
}

macro_rules! key {
    ($path:literal, $kind:ident, $($field:ident).+, $parse:expr, |$value:ident| $write:expr) => {
        Key {
            path: $path,
            kind: Kind::$kind,
            set: |config, value| {
                config.$($field).+ = ($parse)(value)?;
                Ok(())
            },
            get: |config| {
                let $value = &config.$($field).+;
                $write
            },
        }
    };
}

/// All keys, in the order of [`DEFAULT_TEXT`].
pub const KEYS: &[Key] = &[
    key!("uplink", Text, uplink, values::uplink, |name| or_auto(
        name.as_deref()
    )),
    key!(
        "guest-address",
        Text,
        guest_address,
        values::guest_address,
        |guest| match guest {
            crate::datapath::settings::GuestAddress::Auto => or_auto(None),
            crate::datapath::settings::GuestAddress::Given(given) => {
                let words: Vec<String> = given.iter().map(|address| address.to_string()).collect();
                Value::String(words.join(","))
            }
        }
    ),
    key!(
        "state-directory",
        Text,
        state_directory,
        values::absolute_path,
        |path| Value::String(path.display().to_string())
    ),
    key!(
        "address.sources",
        List,
        address.sources,
        values::sources,
        |sources| written(sources)
    ),
    key!(
        "address.static",
        List,
        address.fixed,
        values::fixed_address,
        |fixed| written(fixed.iter())
    ),
    key!(
        "address.reflectors",
        List,
        address.reflectors,
        values::reflectors,
        |servers| written(servers)
    ),
    key!(
        "address.infra-cidrs",
        List,
        address.infra_cidrs,
        values::cidrs,
        |cidrs| written(cidrs)
    ),
    key!(
        "address.guest-cidrs",
        List,
        address.guest_cidrs,
        values::cidrs,
        |cidrs| written(cidrs)
    ),
    key!(
        "address.interval",
        Text,
        address.interval,
        values::interval,
        |interval| written_duration(*interval)
    ),
    key!(
        "datapath.ingress-hook",
        Text,
        datapath.ingress_hook,
        values::choice,
        |hook| Value::String(hook.word().to_owned())
    ),
    key!(
        "datapath.overlay-ports",
        List,
        datapath.overlay_ports,
        values::overlay_ports,
        |ports| Value::Array(
            ports
                .iter()
                .map(|port| Value::Integer(i64::from(*port)))
                .collect()
        )
    ),
    key!(
        "datapath.services",
        List,
        datapath.services,
        values::services,
        |services| written(services)
    ),
    key!(
        "datapath.nodeports",
        Text,
        datapath.node_ports,
        values::choice,
        |choice| Value::String(choice.word().to_owned())
    ),
    key!(
        "datapath.nodeport-range",
        Text,
        datapath.node_port_range,
        values::port_range,
        |range| Value::String(range.to_string())
    ),
    key!(
        "datapath.address-device",
        Text,
        datapath.address_device,
        values::address_device,
        |name| Value::String(name.clone())
    ),
    key!(
        "datapath.flow-entries",
        Number,
        datapath.flow_entries,
        values::flow_entries,
        |number| Value::Integer(i64::from(*number))
    ),
    key!(
        "join.endpoint",
        Text,
        join.endpoint,
        values::endpoint,
        |endpoint| Value::String(
            endpoint
                .as_ref()
                .map(ToString::to_string)
                .unwrap_or_default()
        )
    ),
    key!("join.replace", List, join.replace, values::cidrs, |cidrs| {
        written(cidrs)
    }),
    key!(
        "node.distribution",
        Text,
        node.distribution,
        values::choice,
        |choice| Value::String(choice.word().to_owned())
    ),
    key!(
        "node.kubeconfig",
        Text,
        node.kubeconfig,
        values::kubeconfig,
        |path| match path {
            Some(path) => Value::String(path.display().to_string()),
            None => or_auto(None),
        }
    ),
    key!(
        "node.manage-node-ip",
        Boolean,
        node.manage_node_ip,
        values::boolean,
        |flag| Value::Boolean(*flag)
    ),
    key!(
        "node.restart",
        Boolean,
        node.restart,
        values::boolean,
        |flag| Value::Boolean(*flag)
    ),
    key!(
        "node.manage-cni",
        Boolean,
        node.manage_cni,
        values::boolean,
        |flag| Value::Boolean(*flag)
    ),
    key!(
        "node.fail-open",
        Boolean,
        node.fail_open,
        values::boolean,
        |flag| Value::Boolean(*flag)
    ),
    key!(
        "node.start-timeout",
        Text,
        node.start_timeout,
        values::start_timeout,
        |timeout| written_duration(*timeout)
    ),
    key!(
        "observe.listen",
        Text,
        observe.listen,
        values::listen,
        |listen| Value::String(
            listen
                .map(|address| address.to_string())
                .unwrap_or_default()
        )
    ),
];

/// The known path that is nearest to an unknown one, if any is near enough to be what was meant.
pub(super) fn nearest(path: &str) -> Option<&'static str> {
    let name = |path: &'static str| path.rsplit_once('.').map_or(path, |(_, name)| name);
    KEYS.iter()
        // The right name in the wrong table is as near as one letter.
        .map(|key| {
            let in_place = distance(path, key.path);
            let elsewhere = distance(path.rsplit_once('.').map_or(path, |(_, name)| name), name(key.path)) + 1;
            (in_place.min(elsewhere), key.path)
        })
        .min_by_key(|(distance, _)| *distance)
        .filter(|(distance, path)| *distance <= path.len() / 3)
        .map(|(_, path)| path)
}

/// Levenshtein's distance.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut left = i + 1;
        let mut diagonal = i;
        let mut next = vec![left];
        for (y, above) in b.iter().zip(row.iter().skip(1)) {
            left = (left + 1)
                .min(above + 1)
                .min(diagonal + usize::from(x != *y));
            diagonal = *above;
            next.push(left);
        }
        row = next;
    }
    row.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn distances_are_levenshteins() {
        for (a, b, expected) in [
            ("", "", 0),
            ("abc", "", 3),
            ("", "abc", 3),
            ("kitten", "sitting", 3),
            ("uplnk", "uplink", 1),
            ("same", "same", 0),
        ] {
            assert_eq!(distance(a, b), expected, "{a} {b}");
        }
    }

    #[test]
    fn each_key_has_a_flag_a_variable_and_a_meaning_of_its_own() {
        let flags: BTreeSet<String> = KEYS.iter().map(Key::flag).collect();
        let variables: BTreeSet<String> = KEYS.iter().map(Key::variable).collect();
        let meanings: BTreeSet<String> = KEYS.iter().map(Key::help).collect();
        assert_eq!(flags.len(), KEYS.len());
        assert_eq!(variables.len(), KEYS.len());
        assert_eq!(meanings.len(), KEYS.len());
        for key in KEYS {
            assert!(key.help().ends_with('.'), "{}: {}", key.path, key.help());
        }
        let key = Key::find("address.interval").unwrap();
        assert_eq!(key.flag(), "address-interval");
        assert_eq!(key.variable(), "XKUB_ADDRESS_INTERVAL");
    }

    #[test]
    fn what_is_written_is_read_as_the_same() {
        let default = Config::default();
        for key in KEYS {
            let mut config = default.clone();
            (key.set)(&mut config, &key.value(&default)).unwrap();
            assert_eq!(config, default, "{}", key.path);
        }
    }
}
