//! The files that say how a node's worker is started, as they were read: whatever is derived from them is pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsStr,
    fmt, fs, io,
    path::{Path, PathBuf},
    time::SystemTime,
};

use thiserror::Error;

use super::rooted;
use crate::files::{self, FileError};

/// More than a unit, a drop-in or a configuration file ever has, bytes.
const LIMIT: u64 = 1 << 20;

/// Why a file is of no use.
#[derive(Debug, Error)]
pub enum TreeError {
    /// It can't be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// It is no text.
    #[error("{} is not UTF-8", .0.display())]
    NotUtf8(PathBuf),
}

/// One file.
#[derive(Clone)]
struct Entry {
    text: String,
    modified: Option<SystemTime>,
}

/// Files by their path from the root of the system.
#[derive(Clone, Default)]
pub struct Tree {
    entries: BTreeMap<PathBuf, Entry>,
    enabled: BTreeSet<String>,
}

impl Tree {
    /// Adds a file as if it had been read.
    pub fn insert(&mut self, path: impl Into<PathBuf>, text: impl Into<String>) {
        let entry = Entry {
            text: text.into(),
            modified: None,
        };
        self.entries.insert(path.into(), entry);
    }

    /// Adds what a unit's `WantedBy=` link says.
    pub fn enable(&mut self, unit: impl Into<String>) {
        self.enabled.insert(unit.into());
    }

    /// Reads a file below `root`, if it is there. One that is linked to `/dev/null`, as systemd masks a unit, is
    /// empty.
    ///
    /// # Errors
    /// [`TreeError`], one variant per cause.
    pub fn read(&mut self, root: &Path, path: &Path) -> Result<(), TreeError> {
        if self.entries.contains_key(path) {
            return Ok(());
        }
        let io = |reason| FileError::Io {
            path: path.to_owned(),
            doing: "read",
            reason,
        };
        let real = rooted::resolve(root, path).map_err(io)?;
        if real == root.join("dev/null") {
            self.insert(path, "");
            return Ok(());
        }
        let contents = match files::read(&real, LIMIT) {
            Ok(Some(contents)) => contents,
            Ok(None) => return Ok(()),
            // A folder above it is a file.
            Err(FileError::Io { reason, .. }) if reason.kind() == io::ErrorKind::NotADirectory => {
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        };
        let text = String::from_utf8(contents).map_err(|_| TreeError::NotUtf8(path.to_owned()))?;
        let modified = fs::metadata(&real)
            .and_then(|metadata| metadata.modified())
            .ok();
        self.entries
            .insert(path.to_owned(), Entry { text, modified });
        Ok(())
    }

    /// Reads the files of a folder below `root` whose names end with `suffix`.
    ///
    /// # Errors
    /// [`TreeError`], one variant per cause.
    pub fn read_folder(
        &mut self,
        root: &Path,
        folder: &Path,
        suffix: &str,
    ) -> Result<(), TreeError> {
        for name in names(root, folder)? {
            if name.ends_with(suffix) {
                self.read(root, &folder.join(name))?;
            }
        }
        Ok(())
    }

    /// Reads which units the `*.wants` and `*.requires` folders below `folder` enable.
    ///
    /// # Errors
    /// [`TreeError::File`].
    pub fn read_enabled(&mut self, root: &Path, folder: &Path) -> Result<(), TreeError> {
        for name in names(root, folder)? {
            let kind = Path::new(&name).extension().and_then(OsStr::to_str);
            if matches!(kind, Some("wants" | "requires")) {
                self.enabled.extend(names(root, &folder.join(name))?);
            }
        }
        Ok(())
    }

    /// A file's text.
    pub fn get(&self, path: impl AsRef<Path>) -> Option<&str> {
        self.entries
            .get(path.as_ref())
            .map(|entry| entry.text.as_str())
    }

    /// When a file was last changed, by the wall clock.
    pub fn modified(&self, path: impl AsRef<Path>) -> Option<SystemTime> {
        self.entries.get(path.as_ref())?.modified
    }

    /// The files right in a folder, by name.
    #[must_use]
    pub fn folder(&self, folder: &Path) -> Vec<(&Path, &str)> {
        self.entries
            .iter()
            .filter(|(path, _)| path.parent() == Some(folder))
            .map(|(path, entry)| (path.as_path(), entry.text.as_str()))
            .collect()
    }

    /// All paths.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.entries.keys().map(PathBuf::as_path)
    }

    /// Whether a unit is enabled.
    #[must_use]
    pub fn is_enabled(&self, unit: &str) -> bool {
        self.enabled.contains(unit)
    }
}

/// The paths only: what is in the files may be secret.
impl fmt::Debug for Tree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tree")
            .field("files", &self.entries.keys())
            .field("enabled", &self.enabled)
            .finish()
    }
}

/// The names in a folder below `root`; none where there is no such folder. Not those of temporary files.
fn names(root: &Path, folder: &Path) -> Result<Vec<String>, FileError> {
    let io = |reason| FileError::Io {
        path: folder.to_owned(),
        doing: "read",
        reason,
    };
    let real = rooted::resolve(root, folder).map_err(io)?;
    let entries = match fs::read_dir(real) {
        Ok(entries) => entries,
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
            ) =>
        {
            return Ok(Vec::new());
        }
        Err(error) => return Err(io(error)),
    };
    let mut names = Vec::new();
    for entry in entries {
        let name = entry.map_err(io)?.file_name();
        // Other names are no unit's.
        if let Ok(name) = name.into_string()
            && !name.starts_with('.')
        {
            names.push(name);
        }
    }
    names.sort_unstable();
    Ok(names)
}
