//! A file that is to be another: what a plan lists, and what carries it out.

use std::{
    fmt,
    path::{Path, PathBuf},
};

use super::rooted;
use crate::files::{self, FileError};

/// One file to be made, replaced or removed.
#[derive(Clone, PartialEq, Eq)]
pub struct FileChange {
    /// Where, from the root of the system.
    pub path: PathBuf,
    /// What it shall hold; none where it shall not be.
    pub contents: Option<Vec<u8>>,
    /// Its permissions if it is made.
    pub mode: u32,
    /// What for.
    pub why: String,
}

impl FileChange {
    /// A file with these contents.
    pub fn write(
        path: impl Into<PathBuf>,
        contents: impl Into<Vec<u8>>,
        mode: u32,
        why: impl Into<String>,
    ) -> Self {
        Self {
            path: path.into(),
            contents: Some(contents.into()),
            mode,
            why: why.into(),
        }
    }

    /// No file.
    pub fn remove(path: impl Into<PathBuf>, why: impl Into<String>) -> Self {
        Self {
            path: path.into(),
            contents: None,
            mode: 0,
            why: why.into(),
        }
    }

    /// Carries it out below `root`. Applying twice changes nothing the second time.
    ///
    /// # Errors
    /// [`FileError`]: nothing has changed then.
    pub fn apply(&self, root: &Path) -> Result<(), FileError> {
        let path = rooted::resolve(root, &self.path).map_err(|reason| FileError::Io {
            path: self.path.clone(),
            doing: "found",
            reason,
        })?;
        match &self.contents {
            Some(contents) => files::replace(&path, contents, self.mode),
            None => files::remove(&path).map(drop),
        }
    }
}

/// The file, and what for.
impl fmt::Display for FileChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = if self.contents.is_some() {
            "write"
        } else {
            "remove"
        };
        write!(f, "{verb} {}: {}", self.path.display(), self.why)
    }
}

/// Without the contents: they may hold secrets.
impl fmt::Debug for FileChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileChange")
            .field("path", &self.path)
            .field("bytes", &self.contents.as_ref().map(Vec::len))
            .field("mode", &format_args!("{:o}", self.mode))
            .field("why", &self.why)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_change_is_carried_out_below_the_root_and_shows_no_contents() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("outside")).unwrap();
        std::os::unix::fs::symlink("/outside", root.path().join("etc")).unwrap();
        let change = FileChange::write("/etc/default/kubelet", "TOKEN=abc", 0o644, "test");
        assert_eq!(change.to_string(), "write /etc/default/kubelet: test");
        assert!(!format!("{change:?}").contains("abc"));
        for _ in 0..2 {
            change.apply(root.path()).unwrap();
            let written = fs::read(root.path().join("outside/default/kubelet")).unwrap();
            assert_eq!(written, b"TOKEN=abc");
        }
        let change = FileChange::remove("/etc/default/kubelet", "test");
        for _ in 0..2 {
            change.apply(root.path()).unwrap();
            assert!(!root.path().join("outside/default/kubelet").exists());
        }
    }
}
