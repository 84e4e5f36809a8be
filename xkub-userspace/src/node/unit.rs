//! A service unit as systemd would load it: its file, its drop-ins in order, and of them what a worker's command
//! line depends on.
//!
//! Source: systemd.unit(5), systemd.syntax(7), and `config_parse()`, which passes over a line that is no
//! assignment but refuses a file with a broken section header.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use thiserror::Error;

use super::{
    command_line::{self, SplitError, Word},
    environment,
    tree::{Tree, TreeError},
};

/// Where units lie, the first wins (systemd.unit(5) "System Unit Search Path").
pub const FOLDERS: [&str; 5] = [
    "/etc/systemd/system",
    "/run/systemd/system",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
];

/// Where the administrator's units and drop-ins lie, and ours.
pub const ETC: &str = "/etc/systemd/system";

/// Why a unit is of no use.
#[derive(Debug, Error)]
pub enum UnitError {
    /// Not something that systemd would take.
    #[error("{}:{line}: {problem}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The first line of the setting, counted from one.
        line: usize,
        /// What is wrong with it.
        problem: Problem,
    },
    /// Nothing is started.
    #[error("{name} has no ExecStart= ({})", path.display())]
    NoCommand {
        /// The unit.
        name: String,
        /// Its file.
        path: PathBuf,
    },
    /// A file can't be read.
    #[error(transparent)]
    Tree(#[from] TreeError),
}

/// What is wrong with a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Problem {
    /// `[Service`.
    #[error("a section's name does not end with ]")]
    Section,
    /// A line that can't be split into words.
    #[error(transparent)]
    Split(#[from] SplitError),
    /// `ExecStart=a ; b`, or two of them.
    #[error("more than one command is started, and a worker is one")]
    SeveralCommands,
}

/// One assignment and where it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The file.
    pub path: PathBuf,
    /// Its first line, counted from one.
    pub line: usize,
    /// What was assigned, its continuation lines joined.
    pub value: String,
}

impl Setting {
    fn malformed(&self, problem: impl Into<Problem>) -> UnitError {
        UnitError::Malformed {
            path: self.path.clone(),
            line: self.line,
            problem: problem.into(),
        }
    }

    fn words(&self) -> Result<Vec<Word>, UnitError> {
        command_line::split(&self.value).map_err(|error| self.malformed(error))
    }
}

/// What is loaded of a service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unit {
    /// Its name, such as `k0sworker.service`.
    pub name: String,
    /// Its own file.
    pub path: PathBuf,
    exec_start: Vec<Setting>,
    environment: Vec<Setting>,
    environment_files: Vec<Setting>,
}

/// Reads a unit's files into a tree.
///
/// # Errors
/// [`TreeError`].
pub fn read(tree: &mut Tree, root: &Path, name: &str) -> Result<(), TreeError> {
    for folder in FOLDERS.map(Path::new) {
        tree.read(root, &folder.join(name))?;
        for drop_ins in drop_in_folders(name) {
            tree.read_folder(root, &folder.join(drop_ins), ".conf")?;
        }
    }
    Ok(())
}

impl Unit {
    /// The unit of this name, without the drop-ins called `without`; none where there is none, or where it is
    /// masked.
    ///
    /// # Errors
    /// [`UnitError::Malformed`].
    pub fn load(tree: &Tree, name: &str, without: &str) -> Result<Option<Self>, UnitError> {
        let Some((path, text)) = FOLDERS.iter().find_map(|folder| {
            let path = Path::new(folder).join(name);
            let text = tree.get(&path)?;
            Some((path, text))
        }) else {
            return Ok(None);
        };
        // systemd takes an empty file for a masked unit too.
        if text.is_empty() {
            return Ok(None);
        }
        let mut unit = Self {
            name: name.to_owned(),
            path: path.clone(),
            ..Self::default()
        };
        unit.merge(&path, text)?;
        for (path, text) in drop_ins(tree, name) {
            if path.file_name().is_none_or(|name| name != without) {
                unit.merge(path, text)?;
            }
        }
        Ok(Some(unit))
    }

    /// Adds what a file says to what was said before.
    fn merge(&mut self, path: &Path, text: &str) -> Result<(), UnitError> {
        for (section, key, setting) in settings(path, text)? {
            if section != "Service" {
                continue;
            }
            let list = match key.as_str() {
                "ExecStart" => &mut self.exec_start,
                "Environment" => &mut self.environment,
                "EnvironmentFile" => &mut self.environment_files,
                _ => continue,
            };
            // An empty assignment forgets those before it.
            if setting.value.is_empty() {
                list.clear();
            } else {
                list.push(setting);
            }
        }
        Ok(())
    }

    /// Where the command line stands.
    ///
    /// # Errors
    /// [`UnitError::NoCommand`]; [`Problem::SeveralCommands`].
    pub fn command(&self) -> Result<&Setting, UnitError> {
        match self.exec_start.as_slice() {
            [command] => Ok(command),
            [] => Err(UnitError::NoCommand {
                name: self.name.clone(),
                path: self.path.clone(),
            }),
            [.., last] => Err(last.malformed(Problem::SeveralCommands)),
        }
    }

    /// The words of the command line.
    ///
    /// # Errors
    /// [`UnitError`].
    pub fn words(&self) -> Result<Vec<Word>, UnitError> {
        let command = self.command()?;
        let words = command.words()?;
        if words.iter().any(|word| word.raw == ";") {
            return Err(command.malformed(Problem::SeveralCommands));
        }
        Ok(words)
    }

    /// The files that `EnvironmentFile=` names, in their order; the last one wins. Whether they exist is open.
    #[must_use]
    pub fn environment_files(&self) -> Vec<PathBuf> {
        self.environment_files
            .iter()
            .map(|setting| {
                let path = setting.value.strip_prefix('-').unwrap_or(&setting.value);
                PathBuf::from(command_line::specifiers(path, &self.name))
            })
            .collect()
    }

    /// The variables that the process is started with, as far as the unit sets them.
    ///
    /// # Errors
    /// [`UnitError::Malformed`].
    pub fn variables(&self, tree: &Tree) -> Result<BTreeMap<String, String>, UnitError> {
        let mut variables = BTreeMap::new();
        for setting in &self.environment {
            for word in setting.words()? {
                let text = command_line::specifiers(&word.value, &self.name);
                if let Some((name, value)) = text.split_once('=') {
                    variables.insert(name.to_owned(), value.to_owned());
                }
            }
        }
        for path in self.environment_files() {
            let Some(text) = tree.get(path) else { continue };
            variables.extend(
                environment::parse(text)
                    .into_iter()
                    .map(|variable| (variable.name, variable.value)),
            );
        }
        Ok(variables)
    }

    /// The arguments of the process, the path of its program first.
    ///
    /// # Errors
    /// [`UnitError`].
    pub fn arguments(&self, tree: &Tree) -> Result<Vec<String>, UnitError> {
        let variables = self.variables(tree)?;
        Ok(command_line::expand(&self.words()?, &self.name, &variables))
    }
}

/// A unit's drop-ins in the order in which they count: by their names, wherever they lie. Of two with the same
/// name, only the one in the first folder counts.
fn drop_ins<'a>(tree: &'a Tree, name: &str) -> Vec<(&'a Path, &'a str)> {
    let mut by_name = BTreeMap::new();
    let folders = drop_in_folders(name)
        .into_iter()
        .flat_map(|folder| FOLDERS.map(|parent| Path::new(parent).join(&folder)));
    for folder in folders {
        for (path, text) in tree.folder(&folder) {
            if let Some(name) = path.file_name() {
                by_name.entry(name).or_insert((path, text));
            }
        }
    }
    by_name.into_values().collect()
}

/// `k3s-agent.service.d`, `k3s-.service.d`, `service.d`: the more special ones first.
fn drop_in_folders(name: &str) -> Vec<String> {
    let (stem, kind) = name.rsplit_once('.').unwrap_or((name, "service"));
    let mut folders = vec![format!("{name}.d")];
    folders.extend(
        stem.rmatch_indices('-')
            .filter_map(|(at, _)| stem.get(..=at))
            .map(|prefix| format!("{prefix}.{kind}.d")),
    );
    folders.push(format!("{kind}.d"));
    folders
}

/// All assignments of a file: section, key, and the rest.
fn settings(path: &Path, text: &str) -> Result<Vec<(String, String, Setting)>, UnitError> {
    let mut settings = Vec::new();
    let mut section = String::new();
    for (line, text) in logical_lines(text) {
        if let Some(header) = text.strip_prefix('[') {
            let name = header
                .strip_suffix(']')
                .ok_or_else(|| UnitError::Malformed {
                    path: path.to_owned(),
                    line,
                    problem: Problem::Section,
                })?;
            name.clone_into(&mut section);
        } else if let Some((key, value)) = text.split_once('=') {
            let setting = Setting {
                path: path.to_owned(),
                line,
                value: value.trim().to_owned(),
            };
            settings.push((section.clone(), key.trim_end().to_owned(), setting));
        }
    }
    Ok(settings)
}

/// Lines without comments, with continuations joined by a space, and the number of the first of each.
fn logical_lines(text: &str) -> Vec<(usize, String)> {
    let mut lines = Vec::new();
    let mut open: Option<(usize, String)> = None;
    for (index, line) in text.lines().enumerate() {
        let line = line.trim_start();
        // A comment does not end a continuation.
        if line.starts_with(['#', ';']) {
            continue;
        }
        let (number, mut joined) = open.take().unwrap_or((index + 1, String::new()));
        let backslashes = line.len() - line.trim_end_matches('\\').len();
        if backslashes % 2 == 1 {
            joined.push_str(line.get(..line.len() - 1).unwrap_or_default());
            joined.push(' ');
            open = Some((number, joined));
        } else {
            joined.push_str(line.trim_end());
            lines.push((number, joined));
        }
    }
    lines.extend(open);
    lines.retain(|(_, line)| !line.trim().is_empty());
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: &str = "k3s-agent.service";

    fn tree(files: &[(&str, &str)]) -> Tree {
        let mut tree = Tree::default();
        for (path, text) in files {
            tree.insert(*path, *text);
        }
        tree
    }

    fn arguments(files: &[(&str, &str)]) -> Vec<String> {
        let tree = tree(files);
        let unit = Unit::load(&tree, NAME, "50-xkub.conf").unwrap().unwrap();
        unit.arguments(&tree).unwrap()
    }

    #[test]
    fn files_are_merged_in_order() {
        let unit = "[Service]\nEnvironment=\"A=a a\" B=b\nEnvironmentFile=-/etc/default/%N\nExecStart=/bin/one $A ${B}\n";
        let base = ("/usr/lib/systemd/system/k3s-agent.service", unit);
        for (more, expected) in [
            (&[][..], &["/bin/one", "a", "a", "b"][..]),
            (
                &[("/etc/default/k3s-agent", "B='c d'\n")],
                &["/bin/one", "a", "a", "c d"],
            ),
            // The administrator's file hides the distribution's.
            (
                &[(
                    "/etc/systemd/system/k3s-agent.service",
                    "[Service]\nExecStart=/bin/two",
                )],
                &["/bin/two"],
            ),
            (
                &[(
                    "/run/systemd/system/k3s-agent.service.d/10.conf",
                    "[Service]\nExecStart=\nExecStart=/bin/three \\\n  # not now\n  x \\\n  y",
                )],
                &["/bin/three", "x", "y"],
            ),
            // By name, not by folder; the same name in /etc hides the other.
            (
                &[
                    (
                        "/etc/systemd/system/service.d/10.conf",
                        "[Service]\nExecStart=\nExecStart=/bin/four",
                    ),
                    (
                        "/usr/lib/systemd/system/k3s-.service.d/20.conf",
                        "[Service]\nExecStart=\nExecStart=/bin/five",
                    ),
                    (
                        "/usr/lib/systemd/system/k3s-agent.service.d/30.conf",
                        "[Service]\nExecStart=\nExecStart=/bin/six",
                    ),
                    ("/etc/systemd/system/k3s-agent.service.d/30.conf", ""),
                ],
                &["/bin/five"],
            ),
            // What we wrote ourselves is not what there was before.
            (
                &[(
                    "/etc/systemd/system/k3s-agent.service.d/50-xkub.conf",
                    "[Service]\nExecStart=\nExecStart=/bin/ours",
                )],
                &["/bin/one", "a", "a", "b"],
            ),
            // Other sections, and lines that are no assignment.
            (
                &[(
                    "/etc/systemd/system/k3s-agent.service.d/10.conf",
                    "what\n[Unit]\nExecStart=/bin/no\n[Service]\n; ExecStart=/bin/no\nno\n",
                )],
                &["/bin/one", "a", "a", "b"],
            ),
        ] {
            assert_eq!(arguments(&[&[base], more].concat()), expected, "{more:?}");
        }
    }

    #[test]
    fn no_unit_and_a_masked_one() {
        for files in [&[][..], &[("/etc/systemd/system/k3s-agent.service", "")]] {
            assert_eq!(Unit::load(&tree(files), NAME, "").unwrap(), None);
        }
    }

    #[test]
    fn what_is_malformed_is_said_with_its_place() {
        for (text, expected) in [
            (
                "[Unit]\n\n[Service\nExecStart=/bin/a",
                "/etc/systemd/system/k3s-agent.service:3: a section's name does not end with ]",
            ),
            (
                "[Service]\nExecStart=/bin/a \\\n 'b",
                "/etc/systemd/system/k3s-agent.service:2: a quotation mark is never closed",
            ),
            (
                "[Service]\nExecStart=/bin/a\nExecStart=/bin/b",
                "/etc/systemd/system/k3s-agent.service:3: more than one command is started, and a worker is one",
            ),
            (
                "[Service]\nExecStart=/bin/a ; /bin/b",
                "/etc/systemd/system/k3s-agent.service:2: more than one command is started, and a worker is one",
            ),
            (
                "rubbish",
                "k3s-agent.service has no ExecStart= (/etc/systemd/system/k3s-agent.service)",
            ),
        ] {
            let tree = tree(&[("/etc/systemd/system/k3s-agent.service", text)]);
            let error = Unit::load(&tree, NAME, "")
                .and_then(|unit| unit.unwrap().words())
                .unwrap_err();
            assert_eq!(error.to_string(), expected);
        }
    }
}
