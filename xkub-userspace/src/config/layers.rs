//! Flags over variables over the file over defaults, and errors that say whose fault it is.

use std::{
    collections::BTreeMap,
    fmt,
    path::{Path, PathBuf},
};

use thiserror::Error;
use toml::{Table, Value};

use super::{
    Config,
    keys::{KEYS, Key, nearest},
};
use crate::{
    address::pick::Source,
    files::{self, FileError},
};

/// Where the file is unless told otherwise.
pub const DEFAULT_PATH: &str = "/etc/xkub/config.toml";
/// The largest file that is read, bytes: some hundred times the default one.
const MAX_FILE: u64 = 1 << 20;

/// Where a value comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Nobody said anything.
    Default,
    /// The file.
    File(PathBuf),
    /// A variable, by its name.
    Variable(String),
    /// A flag, by its name.
    Flag(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Variable(name) => f.write_str(name),
            Self::Flag(name) => write!(f, "--{name}"),
        }
    }
}

/// What is wrong with a configuration.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// The file can't be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// A file that was named is not there.
    #[error("there is no {}; write one: xkub config show --defaults", .0.display())]
    Missing(PathBuf),
    /// It is not TOML.
    #[error("{} is not TOML: {why}", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// Where and why.
        why: String,
    },
    /// A key that does not exist.
    #[error("{}: there is no key `{key}`{}", path.display(), suggestion(*nearest))]
    UnknownKey {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
        /// What may have been meant.
        nearest: Option<&'static str>,
    },
    /// A value that can't be.
    #[error("{origin}: `{key}`: {why}")]
    Value {
        /// Who set it.
        origin: Origin,
        /// The key.
        key: &'static str,
        /// What is wrong, and what would be right.
        why: String,
    },
    /// Values that don't fit each other.
    #[error("{origin}: `{key}` {why}")]
    Conflict {
        /// Who set it.
        origin: Origin,
        /// The key.
        key: &'static str,
        /// What is wrong, and what to do.
        why: &'static str,
    },
}

fn suggestion(nearest: Option<&str>) -> String {
    match nearest {
        Some(key) => format!("; did you mean `{key}`?"),
        None => "; all keys: xkub config show --defaults".to_owned(),
    }
}

/// A configuration, and who set what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loaded {
    /// The configuration.
    pub config: Config,
    /// The origin of each key's value, in the order of [`KEYS`].
    pub origins: Vec<Origin>,
}

/// Puts a configuration together. `file` is one that must exist; without, [`DEFAULT_PATH`] is read if it does.
/// `variable` looks a variable up; `flags` are by path.
///
/// # Errors
/// [`ConfigError`], one variant per cause; the first one found.
pub fn load(
    file: Option<&Path>,
    variable: impl Fn(&str) -> Option<String>,
    flags: &BTreeMap<&'static str, String>,
) -> Result<Loaded, ConfigError> {
    let path = file.unwrap_or(Path::new(DEFAULT_PATH));
    let values = match files::read(path, MAX_FILE)? {
        Some(contents) => parse(path, &contents)?,
        None if file.is_some() => return Err(ConfigError::Missing(path.to_owned())),
        None => BTreeMap::new(),
    };
    assemble(path, &values, variable, flags)
}

/// What a file with this text says by itself. `name` is what errors call it.
///
/// # Errors
/// As [`load`].
pub fn of_text(name: &Path, text: &str) -> Result<Config, ConfigError> {
    let values = parse(name, text.as_bytes())?;
    Ok(assemble(name, &values, |_| None, &BTreeMap::new())?.config)
}

/// What a file says by itself; none where there is none.
///
/// # Errors
/// As [`load`].
pub fn of_file(path: &Path) -> Result<Option<Config>, ConfigError> {
    let Some(contents) = files::read(path, MAX_FILE)? else {
        return Ok(None);
    };
    let values = parse(path, &contents)?;
    let loaded = assemble(path, &values, |_| None, &BTreeMap::new())?;
    Ok(Some(loaded.config))
}

fn assemble(
    path: &Path,
    values: &BTreeMap<String, Value>,
    variable: impl Fn(&str) -> Option<String>,
    flags: &BTreeMap<&'static str, String>,
) -> Result<Loaded, ConfigError> {
    let mut config = Config::default();
    let mut origins = Vec::new();
    for key in KEYS {
        let words = |origin: Origin, text: &str| -> Result<_, ConfigError> {
            let value = key.value_of(text).map_err(|why| ConfigError::Value {
                origin: origin.clone(),
                key: key.path,
                why,
            })?;
            Ok((origin, value))
        };
        let said = if let Some(text) = flags.get(key.path) {
            Some(words(Origin::Flag(key.flag()), text)?)
        } else if let Some(text) = variable(&key.variable()) {
            Some(words(Origin::Variable(key.variable()), &text)?)
        } else {
            values
                .get(key.path)
                .map(|value| (Origin::File(path.to_owned()), value.clone()))
        };
        let Some((origin, value)) = said else {
            origins.push(Origin::Default);
            continue;
        };
        (key.set)(&mut config, &value).map_err(|why| ConfigError::Value {
            origin: origin.clone(),
            key: key.path,
            why,
        })?;
        origins.push(origin);
    }
    let loaded = Loaded { config, origins };
    loaded.check()?;
    Ok(loaded)
}

impl Loaded {
    /// Who set a key.
    #[must_use]
    pub fn origin(&self, path: &str) -> &Origin {
        KEYS.iter()
            .zip(&self.origins)
            .find_map(|(key, origin)| (key.path == path).then_some(origin))
            .unwrap_or(&Origin::Default)
    }

    /// What no key can tell alone.
    fn check(&self) -> Result<(), ConfigError> {
        let conflict = |key, why| {
            Err(ConfigError::Conflict {
                origin: self.origin(key).clone(),
                key,
                why,
            })
        };
        let config = &self.config;
        if !config.join.replace.is_empty() && config.join.endpoint.is_none() {
            return conflict(
                "join.replace",
                "says what to replace, and `join.endpoint` does not say with what; set it",
            );
        }
        if config.address.sources.is_empty() {
            return conflict(
                "address.sources",
                "is empty, so that no address can be found; leave it out for all sources",
            );
        }
        let fixed = config.address.fixed.iter();
        if fixed.count() > 0 && !config.address.sources.contains(&Source::Static) {
            return conflict(
                "address.static",
                "is set, but `static` is not among `address.sources`; add it there",
            );
        }
        Ok(())
    }
}

/// A file's values by path.
fn parse(path: &Path, contents: &[u8]) -> Result<BTreeMap<String, Value>, ConfigError> {
    let syntax = |why: String| ConfigError::Syntax {
        path: path.to_owned(),
        why,
    };
    let text = std::str::from_utf8(contents).map_err(|error| syntax(error.to_string()))?;
    let table: Table = text
        .parse()
        .map_err(|error: toml::de::Error| syntax(describe(text, &error)))?;
    let mut values = BTreeMap::new();
    collect(path, "", table, &mut values)?;
    Ok(values)
}

/// An error on one line.
fn describe(text: &str, error: &toml::de::Error) -> String {
    let line = error
        .span()
        .and_then(|span| text.get(..span.start))
        .map(|before| before.matches('\n').count() + 1);
    match line {
        Some(line) => format!("line {line}: {}", error.message()),
        None => error.message().to_owned(),
    }
}

fn collect(
    file: &Path,
    prefix: &str,
    table: Table,
    values: &mut BTreeMap<String, Value>,
) -> Result<(), ConfigError> {
    for (name, value) in table {
        let path = if prefix.is_empty() {
            name
        } else {
            format!("{prefix}.{name}")
        };
        let heading = format!("{path}.");
        let is_table = KEYS.iter().any(|key| key.path.starts_with(&heading));
        match value {
            Value::Table(inner) if is_table => collect(file, &path, inner, values)?,
            value if Key::find(&path).is_some() => {
                values.insert(path, value);
            }
            _ => {
                return Err(ConfigError::UnknownKey {
                    path: file.to_owned(),
                    nearest: nearest(&path),
                    key: path,
                });
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::DEFAULT_TEXT;

    fn load_text(
        text: &str,
        variables: &[(&str, &str)],
        flags: &[(&'static str, &str)],
    ) -> Result<Loaded, ConfigError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.toml");
        std::fs::write(&path, text).unwrap();
        load(
            Some(&path),
            |wanted| {
                variables
                    .iter()
                    .find_map(|(name, value)| (*name == wanted).then(|| (*value).to_owned()))
            },
            &flags
                .iter()
                .map(|(path, text)| (*path, (*text).to_owned()))
                .collect(),
        )
    }

    #[test]
    fn the_default_file_says_every_key_and_its_default() {
        assert_eq!(
            load_text(DEFAULT_TEXT, &[], &[]).unwrap().config,
            Config::default()
        );
        // The same with every key set.
        let mut set = String::new();
        for line in DEFAULT_TEXT.lines() {
            let is_setting = line
                .strip_prefix('#')
                .is_some_and(|rest| !rest.is_empty() && !rest.starts_with(' '));
            set.push_str(if is_setting { &line[1..] } else { line });
            set.push('\n');
        }
        let loaded = load_text(&set, &[], &[]).unwrap();
        assert_eq!(loaded.config, Config::default());
        for (key, origin) in KEYS.iter().zip(&loaded.origins) {
            assert!(matches!(origin, Origin::File(_)), "{}", key.path);
        }
    }

    #[test]
    fn every_key_can_be_set_by_file_variable_and_flag() {
        // One value for each key that is not its default.
        let values: BTreeMap<&str, &str> = [
            ("uplink", "enp1s0"),
            ("guest-address", "10.0.2.2"),
            ("state-directory", "/run/other"),
            ("address.sources", "static,cloud-provider"),
            ("address.static", "10.244.1.226,fd00::1"),
            ("address.reflectors", "reflector.example:3479,10.0.0.1"),
            ("address.infra-cidrs", "10.244.0.0/16"),
            ("address.guest-cidrs", "10.42.0.0/16,10.43.0.0/16"),
            ("address.interval", "7s"),
            ("datapath.ingress-hook", "xdp"),
            ("datapath.overlay-ports", "8473"),
            ("datapath.services", "none"),
            ("datapath.nodeports", "off"),
            ("datapath.nodeport-range", "20000-20010"),
            ("datapath.address-device", "node0"),
            ("datapath.flow-entries", "1024"),
            ("join.endpoint", "10.9.9.9:6443"),
            ("join.replace", "10.96.0.0/12"),
            ("node.distribution", "k3s"),
            ("node.kubeconfig", "/etc/kubernetes/other.conf"),
            ("node.manage-node-ip", "false"),
            ("node.restart", "false"),
            ("node.manage-cni", "false"),
            ("node.fail-open", "false"),
            ("node.start-timeout", "1m"),
            ("observe.listen", ""),
        ]
        .into();
        // What fits no other key's default alone.
        let companions = [("join.endpoint", "10.9.9.9:6443")];
        for key in KEYS {
            let text = *values.get(key.path).unwrap();
            let companions: Vec<_> = companions
                .into_iter()
                .filter(|(path, _)| *path != key.path && key.path == "join.replace")
                .collect();
            let flags: Vec<_> = companions
                .iter()
                .copied()
                .chain([(key.path, text)])
                .collect();
            let by_flag = load_text("", &[], &flags).unwrap();
            assert_ne!(by_flag.config, Config::default(), "{}", key.path);
            assert_eq!(by_flag.origin(key.path), &Origin::Flag(key.flag()));

            let variable = key.variable();
            let by_variable = load_text("", &[(&variable, text)], &companions).unwrap();
            assert_eq!(by_variable.config, by_flag.config, "{}", key.path);

            // As `config show` writes it.
            let (table, name) = key.path.rsplit_once('.').unwrap_or(("", key.path));
            let heading = if table.is_empty() {
                String::new()
            } else {
                format!("[{table}]\n")
            };
            let file = format!("{heading}{name} = {}\n", key.value(&by_flag.config));
            let by_file = load_text(&file, &[], &companions).unwrap();
            assert_eq!(by_file.config, by_flag.config, "{file}");
        }
    }

    #[test]
    fn a_flag_counts_more_than_a_variable_and_that_more_than_the_file() {
        let file = "uplink = \"eth1\"\n";
        let variables = [("XKUB_UPLINK", "eth2")];
        let flags = [("uplink", "eth3")];
        for (variables, flags, expected) in [
            (&[][..], &[][..], "eth1"),
            (&variables, &[], "eth2"),
            (&variables, &flags, "eth3"),
            (&[], &flags, "eth3"),
        ] {
            let loaded = load_text(file, variables, flags).unwrap();
            assert_eq!(loaded.config.uplink.as_deref(), Some(expected));
        }
    }

    #[test]
    fn what_is_wrong_is_said_with_its_place_and_its_cure() {
        for (file, variables, flags, expected) in [
            (
                "uplnk = \"eth0\"",
                &[][..],
                &[][..],
                "no key `uplnk`; did you mean `uplink`?",
            ),
            ("[adress]\nsources = []", &[], &[], "no key `adress`"),
            (
                "interval = \"5s\"",
                &[],
                &[],
                "did you mean `address.interval`?",
            ),
            (
                "[datapath]\nnode-ports = \"on\"",
                &[],
                &[],
                "did you mean `datapath.nodeports`?",
            ),
            (
                "zzzzzz = 1",
                &[],
                &[],
                "all keys: xkub config show --defaults",
            ),
            ("address = 5", &[], &[], "no key `address`"),
            ("uplink = 5", &[], &[], "`uplink`: 5 is not a text"),
            ("uplink = \"\"", &[], &[], "`uplink`: it is empty"),
            ("uplink = ", &[], &[], "is not TOML: line 1"),
            (
                "uplink = \"a\"\nuplink = \"b\"",
                &[],
                &[],
                "is not TOML: line 2",
            ),
            (
                "[address]\nstatic = [\"10.0.0.1\", \"10.0.0.2\"]",
                &[],
                &[],
                "are both IPv4",
            ),
            (
                "[address]\nsources = []",
                &[],
                &[],
                "no address can be found",
            ),
            (
                "[address]\nsources = [\"static\", \"static\"]",
                &[],
                &[],
                "there twice",
            ),
            (
                "[address]\nsources = [\"dns\"]",
                &[],
                &[],
                "say static, reflector",
            ),
            (
                "[address]\nstatic = [\"10.0.0.1\"]\nsources = [\"cloud-provider\"]",
                &[],
                &[],
                "`static` is not among",
            ),
            (
                "[join]\nreplace = [\"10.0.0.0/8\"]",
                &[],
                &[],
                "does not say with what",
            ),
            ("[datapath]\nflow-entries = 0", &[], &[], "from 1 to"),
            ("[datapath]\nservices = [\"tcp/0\"]", &[], &[], "1 to 65535"),
            (
                "",
                &[("XKUB_NODE_RESTART", "yes")],
                &[],
                "XKUB_NODE_RESTART: `node.restart`: `yes`",
            ),
            (
                "",
                &[],
                &[("address.interval", "5")],
                "--address-interval: `address.interval`: `5`",
            ),
        ] {
            let error = load_text(file, variables, flags).unwrap_err().to_string();
            assert!(error.contains(expected), "{file}: {error}");
            assert!(!error.contains('\n'), "{error}");
        }
    }

    #[test]
    fn only_a_file_that_was_named_has_to_be_there() {
        let error = load(
            Some(Path::new("/nonexistent/x.toml")),
            |_| None,
            &BTreeMap::new(),
        );
        assert!(matches!(error, Err(ConfigError::Missing(_))));
    }
}
