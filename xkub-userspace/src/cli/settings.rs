//! The configuration's keys as flags, and a configuration put together from flags, variables and the file.

use std::{collections::BTreeMap, path::PathBuf};

use clap::{Arg, ArgMatches, Args, Command, FromArgMatches, value_parser};
use xkub_userspace::config::{self, ConfigError, DEFAULT_PATH, KEYS, Loaded};

/// The flag that names the file.
const FILE: &str = "config";
/// Its variable.
const FILE_VARIABLE: &str = "XKUB_CONFIG";

/// A flag for each key, and one for the file. Variables are read by [`config::load`], not by clap: whoever is at
/// fault is then named.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    file: Option<PathBuf>,
    flags: BTreeMap<&'static str, String>,
}

impl Settings {
    /// Puts the configuration together.
    pub fn load(&self) -> Result<Loaded, ConfigError> {
        let variable = |name: &str| std::env::var(name).ok();
        config::load(self.file.as_deref(), variable, &self.flags)
    }
}

impl Args for Settings {
    fn augment_args(command: Command) -> Command {
        let file = Arg::new(FILE)
            .long(FILE)
            .value_name("FILE")
            .env(FILE_VARIABLE)
            .value_parser(value_parser!(PathBuf))
            .help(format!(
                "The configuration; it has to be there. Without, {DEFAULT_PATH} is read if it is there"
            ));
        KEYS.iter().fold(command.arg(file), |command, key| {
            let flag = key.flag();
            command.arg(
                Arg::new(key.path)
                    .long(flag)
                    .value_name("VALUE")
                    .help(format!(
                        "{} [key: {}] [env: {}]",
                        key.help(),
                        key.path,
                        key.variable()
                    ))
                    .help_heading("Keys of the configuration"),
            )
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for Settings {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut settings = Self::default();
        settings.update_from_arg_matches(matches)?;
        Ok(settings)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.file = matches.get_one::<PathBuf>(FILE).cloned();
        self.flags = KEYS
            .iter()
            .filter_map(|key| Some((key.path, matches.get_one::<String>(key.path)?.clone())))
            .collect();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_has_a_flag() {
        let command = Settings::augment_args(Command::new("agent"));
        for key in KEYS {
            let flag = key.flag();
            let argument = command
                .get_arguments()
                .find(|argument| argument.get_long() == Some(&flag));
            assert!(argument.is_some(), "{flag}");
            let matches = command
                .clone()
                .get_matches_from(["agent", &format!("--{flag}=value")]);
            let settings = Settings::from_arg_matches(&matches).unwrap();
            assert_eq!(
                settings.flags,
                BTreeMap::from([(key.path, "value".to_owned())])
            );
        }
    }
}
