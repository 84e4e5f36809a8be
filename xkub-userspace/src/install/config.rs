//! The configuration file that is installed: all keys with their defaults, those that were given set.

use thiserror::Error;

pub use crate::config::DEFAULT_PATH as PATH;
use crate::config::DEFAULT_TEXT;

/// `KEY=VALUE`, such as `join.endpoint=10.0.0.1:6443`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The section; empty before the first one.
    section: String,
    /// The key within it.
    key: String,
    /// The value, as a person writes it: without quotes, a list with commas.
    value: String,
}

/// Why something is no setting.
#[derive(Debug, Error)]
pub enum SettingError {
    /// No `=`.
    #[error("{0:?} is not KEY=VALUE, such as join.endpoint=10.0.0.1:6443")]
    NoValue(String),
    /// No such key.
    #[error("there is no key {key}; the nearest is {nearest}")]
    Unknown {
        /// What was given.
        key: String,
        /// What may have been meant.
        nearest: String,
    },
    /// The file that would say something else is there.
    #[error("{PATH} exists and stays as it is: set {} there", keys.join(", "))]
    Exists {
        /// The keys that were given.
        keys: Vec<String>,
    },
}

impl Setting {
    /// Reads `KEY=VALUE`.
    ///
    /// # Errors
    /// [`SettingError::NoValue`], [`SettingError::Unknown`].
    pub fn parse(text: &str) -> Result<Self, SettingError> {
        let (path, value) = text
            .split_once('=')
            .ok_or_else(|| SettingError::NoValue(text.to_owned()))?;
        let path = path.trim();
        let (section, key) = path.split_once('.').unwrap_or(("", path));
        let setting = Self {
            section: section.to_owned(),
            key: key.to_owned(),
            value: value.trim().to_owned(),
        };
        let keys = keys();
        if keys.contains(&setting.path()) {
            return Ok(setting);
        }
        let nearest = keys.into_iter().min_by_key(|known| distance(known, path));
        Err(SettingError::Unknown {
            key: path.to_owned(),
            nearest: nearest.unwrap_or_default(),
        })
    }

    /// The key with its section.
    #[must_use]
    pub fn path(&self) -> String {
        path(&self.section, &self.key)
    }

    /// The value as TOML, of the type that the default has.
    fn toml(&self, default: &str) -> String {
        let string = |text: &str| toml::Value::from(text).to_string();
        if default.starts_with('[') {
            let elements: Vec<_> = self
                .value
                .split(',')
                .map(str::trim)
                .filter(|element| !element.is_empty())
                .map(|element| {
                    if element.parse::<u64>().is_ok() {
                        element.to_owned()
                    } else {
                        string(element)
                    }
                })
                .collect();
            format!("[{}]", elements.join(", "))
        } else if default.starts_with('"') {
            string(&self.value)
        } else {
            self.value.clone()
        }
    }
}

/// The whole file with these settings.
#[must_use]
pub fn text(settings: &[Setting]) -> String {
    let mut result = String::new();
    for line in lines() {
        let found = line.key.and_then(|(key, default)| {
            let setting = settings
                .iter()
                .rfind(|setting| setting.section == line.section && setting.key == key)?;
            Some(format!("{key} = {}", setting.toml(default)))
        });
        result.push_str(found.as_deref().unwrap_or(line.text));
        result.push('\n');
    }
    result
}

/// Only what was set.
#[must_use]
pub fn short_text(settings: &[Setting]) -> String {
    let text = text(settings);
    let mut result = String::new();
    let mut header = None;
    for line in text.lines() {
        if line.starts_with('[') {
            header = Some(line);
        } else if !line.is_empty() && !line.starts_with('#') {
            if let Some(header) = header.take() {
                result.push_str(header);
                result.push('\n');
            }
            result.push_str(line);
            result.push('\n');
        }
    }
    result
}

/// A line of the default text.
struct Line<'a> {
    text: &'a str,
    section: &'a str,
    /// A key and its default: `#key = default`, without a space behind the `#`.
    key: Option<(&'a str, &'a str)>,
}

fn lines() -> impl Iterator<Item = Line<'static>> {
    let mut section = "";
    DEFAULT_TEXT.lines().map(move |text| {
        if let Some(name) = text
            .strip_prefix('[')
            .and_then(|text| text.strip_suffix(']'))
        {
            section = name;
        }
        let key = text
            .strip_prefix('#')
            .filter(|text| !text.starts_with(' '))
            .and_then(|text| text.split_once(" = "));
        Line { text, section, key }
    })
}

fn keys() -> Vec<String> {
    lines()
        .filter_map(|line| Some(path(line.section, line.key?.0)))
        .collect()
}

fn path(section: &str, key: &str) -> String {
    if section.is_empty() {
        key.to_owned()
    } else {
        format!("{section}.{key}")
    }
}

/// How many insertions, deletions and replacements lie between two words (Levenshtein).
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (index, from) in one.chars().enumerate() {
        let mut diagonal = index;
        let mut left = index + 1;
        let mut next = vec![left];
        for (to, above) in other.iter().zip(row.iter().skip(1)) {
            let replaced = diagonal + usize::from(from != *to);
            diagonal = *above;
            left = replaced.min(left + 1).min(*above + 1);
            next.push(left);
        }
        row = next;
    }
    row.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_put_where_their_keys_are() {
        let settings = [
            "uplink=enp1s0",
            "address.reflectors=192.0.2.1:3478, reflector.example",
            "datapath.overlay-ports=8472,4789",
            "join.endpoint=10.0.0.1:6443",
            "node.fail-open=false",
        ]
        .map(|text| Setting::parse(text).unwrap());
        assert_eq!(
            short_text(&settings),
            "uplink = \"enp1s0\"\n\
             [address]\nreflectors = [\"192.0.2.1:3478\", \"reflector.example\"]\n\
             [datapath]\noverlay-ports = [8472, 4789]\n\
             [join]\nendpoint = \"10.0.0.1:6443\"\n\
             [node]\nfail-open = false\n"
        );
        let text = text(&settings);
        assert_eq!(text.lines().count(), DEFAULT_TEXT.lines().count());
        toml::from_str::<toml::Table>(&text).unwrap();
        assert_eq!(super::text(&[]), DEFAULT_TEXT);
    }

    #[test]
    fn what_is_no_setting_is_refused() {
        assert!(matches!(
            Setting::parse("join.endpoint"),
            Err(SettingError::NoValue(_))
        ));
        let error = Setting::parse("join.endpiont=x").unwrap_err();
        assert_eq!(
            error.to_string(),
            "there is no key join.endpiont; the nearest is join.endpoint"
        );
    }
}
