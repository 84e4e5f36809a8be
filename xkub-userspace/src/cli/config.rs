//! `xkub config …`.

use std::{collections::BTreeMap, path::PathBuf};

use clap::Subcommand;
use serde::Serialize;
use xkub_userspace::config::{self, DEFAULT_TEXT, KEYS, Loaded};

use super::{
    output::{Format, print},
    settings::Settings,
    table::table,
};

/// Subcommands of `xkub config`.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Print the configuration in force: every key, its value, and where that comes from
    Show {
        /// Print the file with every key's meaning and default instead
        #[arg(long)]
        defaults: bool,
        #[command(flatten)]
        settings: Box<Settings>,
    },
    /// Say whether a file is right, without looking at anything else
    Check {
        /// The file
        file: PathBuf,
    },
}

/// A key's value, and where it comes from.
#[derive(Debug, Serialize)]
struct Line {
    value: toml::Value,
    origin: String,
}

#[derive(Debug, Serialize)]
struct Shown {
    keys: BTreeMap<&'static str, Line>,
}

#[derive(Debug, Serialize)]
struct Checked {
    file: PathBuf,
    valid: bool,
}

/// Does what the command says.
pub fn run(command: Command, format: Format) -> anyhow::Result<()> {
    match command {
        Command::Show { defaults: true, .. } if format == Format::Text => {
            print(format, "Config", &DEFAULT_TEXT.to_owned(), Clone::clone)
        }
        Command::Show { defaults, settings } => {
            let Loaded { config, origins } = if defaults {
                config::load(None, |_| None, &BTreeMap::new())?
            } else {
                settings.load()?
            };
            let keys = KEYS.iter().zip(&origins).map(|(key, origin)| {
                let line = Line {
                    value: key.value(&config),
                    origin: origin.to_string(),
                };
                (key.path, line)
            });
            let shown = Shown {
                keys: keys.collect(),
            };
            print(format, "Config", &shown, shown_text)
        }
        Command::Check { file } => {
            config::load(Some(&file), |_| None, &BTreeMap::new())?;
            let checked = Checked { file, valid: true };
            print(format, "ConfigCheck", &checked, |checked| {
                format!("{} is right\n", checked.file.display())
            })
        }
    }
}

fn shown_text(shown: &Shown) -> String {
    // In the order of the file.
    let rows: Vec<Vec<String>> = KEYS
        .iter()
        .filter_map(|key| {
            let line = shown.keys.get(key.path)?;
            Some(vec![
                key.path.to_owned(),
                line.value.to_string(),
                line.origin.clone(),
            ])
        })
        .collect();
    table(&rows, 0)
}
