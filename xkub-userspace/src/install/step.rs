//! One thing that installing or removing does, and whether it is still to be done.

use std::{
    fs, io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use crate::{
    files::{self, FileError},
    node::{file_change::FileChange, rooted},
};

/// More than our own binary has, bytes.
const LIMIT: u64 = 1 << 28;

/// One thing to do. Paths are from the root of the system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// A file is written or removed.
    File(FileChange),
    /// A symbolic link is made.
    Link {
        /// Where.
        path: PathBuf,
        /// To what.
        target: PathBuf,
        /// What for.
        why: String,
    },
    /// A symbolic link is removed.
    Unlink(PathBuf),
    /// A folder is removed with all that is in it.
    Folder(PathBuf),
    /// A folder is removed if nothing is in it.
    EmptyFolder(PathBuf),
}

impl Step {
    /// What is changed.
    #[must_use]
    pub fn path(&self) -> &Path {
        match self {
            Self::File(change) => &change.path,
            Self::Link { path, .. }
            | Self::Unlink(path)
            | Self::Folder(path)
            | Self::EmptyFolder(path) => path,
        }
    }

    /// Whether it removes something.
    #[must_use]
    pub fn removes(&self) -> bool {
        match self {
            Self::File(change) => change.contents.is_none(),
            Self::Link { .. } => false,
            Self::Unlink(_) | Self::Folder(_) | Self::EmptyFolder(_) => true,
        }
    }

    /// What for.
    #[must_use]
    pub fn why(&self) -> &str {
        match self {
            Self::File(change) => &change.why,
            Self::Link { why, .. } => why,
            Self::Unlink(_) => "nothing is enabled any more",
            Self::Folder(_) => "what the agent kept there",
            Self::EmptyFolder(_) => "nothing is in it any more",
        }
    }

    /// Whether the system below `root` is not yet so.
    ///
    /// # Errors
    /// [`FileError`].
    pub fn is_due(&self, root: &Path) -> Result<bool, FileError> {
        let place = place(root, self.path())?;
        Ok(match self {
            Self::File(FileChange { contents, .. }) => {
                &files::read(&resolve(root, self.path())?, LIMIT)? != contents
            }
            Self::Link { target, .. } => fs::read_link(place).ok().as_ref() != Some(target),
            Self::Unlink(_) => place.is_symlink(),
            Self::Folder(_) => place.is_dir(),
            Self::EmptyFolder(_) => {
                fs::read_dir(place).is_ok_and(|mut entries| entries.next().is_none())
            }
        })
    }

    /// Does it below `root`.
    ///
    /// # Errors
    /// [`FileError`].
    pub fn apply(&self, root: &Path) -> Result<(), FileError> {
        let place = place(root, self.path())?;
        let failed = |doing| {
            move |reason| FileError::Io {
                path: self.path().to_owned(),
                doing,
                reason,
            }
        };
        match self {
            Self::File(change) => change.apply(root),
            Self::Link { target, .. } => {
                if let Some(folder) = place.parent() {
                    fs::create_dir_all(folder).map_err(failed("written"))?;
                }
                gone(fs::remove_file(&place)).map_err(failed("replaced"))?;
                symlink(target, place).map_err(failed("written"))
            }
            Self::Unlink(_) => gone(fs::remove_file(place)).map_err(failed("removed")),
            Self::Folder(_) => gone(fs::remove_dir_all(place)).map_err(failed("removed")),
            Self::EmptyFolder(_) => gone(fs::remove_dir(place)).map_err(failed("removed")),
        }
    }
}

/// That it is not there is what is wanted.
fn gone(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

fn resolve(root: &Path, path: &Path) -> Result<PathBuf, FileError> {
    rooted::resolve(root, path).map_err(|reason| FileError::Io {
        path: path.to_owned(),
        doing: "found",
        reason,
    })
}

/// Where a path itself is, even if it is a link.
fn place(root: &Path, path: &Path) -> Result<PathBuf, FileError> {
    let folder = resolve(root, path.parent().unwrap_or(Path::new("/")))?;
    Ok(path
        .file_name()
        .map_or_else(|| folder.clone(), |name| folder.join(name)))
}
