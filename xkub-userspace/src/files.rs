//! Files that others read: never seen half-written, and whose they were.

use std::{
    fs::{self, File},
    io::{self, Read as _, Write as _},
    os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use atomic_write_file::{AtomicWriteFile, unix::OpenOptionsExt as _};
use thiserror::Error;

/// Why a file could not be read or replaced. Never says what is in it.
#[derive(Debug, Error)]
pub enum FileError {
    /// The system said no.
    #[error("{} can't be {doing}: {reason}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What was tried: "read", "written", …
        doing: &'static str,
        /// The system's answer.
        reason: io::Error,
    },
    /// A file that is no file of its kind.
    #[error("{} has more than {limit} bytes, which is not what it is for", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// How many were allowed.
        limit: u64,
    },
    /// A device, a folder, a pipe.
    #[error("{} is not a regular file", path.display())]
    NotAFile {
        /// What it is called.
        path: PathBuf,
    },
}

/// Reads a whole file of `limit` bytes at most; none where there is none.
///
/// # Errors
/// [`FileError`], one variant per cause.
pub fn read(path: &Path, limit: u64) -> Result<Option<Vec<u8>>, FileError> {
    let io = |reason| FileError::Io {
        path: path.to_owned(),
        doing: "read",
        reason,
    };
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(io(error)),
    };
    if !file.metadata().map_err(io)?.is_file() {
        return Err(FileError::NotAFile {
            path: path.to_owned(),
        });
    }
    let mut contents = Vec::new();
    file.take(limit.saturating_add(1))
        .read_to_end(&mut contents)
        .map_err(io)?;
    if u64::try_from(contents.len()).is_ok_and(|length| length > limit) {
        return Err(FileError::TooLarge {
            path: path.to_owned(),
            limit,
        });
    }
    Ok(Some(contents))
}

/// Replaces a file in one step, or makes it with `mode` and the folders above it. A file that was there keeps
/// its mode and its owner; a symbolic link stays one, and what it points to is replaced. A crash at any moment
/// leaves the old contents or the new ones.
///
/// # Errors
/// [`FileError`]: nothing has changed then.
pub fn replace(path: &Path, contents: &[u8], mode: u32) -> Result<(), FileError> {
    let io = |doing| {
        move |reason| FileError::Io {
            path: path.to_owned(),
            doing,
            reason,
        }
    };
    // What a link points to is replaced, not the link.
    let target = match fs::canonicalize(path) {
        Ok(target) => target,
        Err(error) if error.kind() == io::ErrorKind::NotFound => path.to_owned(),
        Err(error) => return Err(io("written")(error)),
    };
    let exists = match fs::metadata(&target) {
        Ok(metadata) if !metadata.is_file() => {
            return Err(FileError::NotAFile { path: target });
        }
        Ok(_) => true,
        Err(error) if error.kind() == io::ErrorKind::NotFound => false,
        Err(error) => return Err(io("written")(error)),
    };
    let folder = target.parent().unwrap_or(Path::new("/"));
    if !exists {
        fs::create_dir_all(folder).map_err(io("written"))?;
    }
    let mut options = AtomicWriteFile::options();
    options.preserve_mode(exists).preserve_owner(exists);
    options.mode(mode);
    let mut file = options.open(&target).map_err(io("written"))?;
    if !exists {
        // The mask of this process is not what decides.
        file.set_permissions(fs::Permissions::from_mode(mode))
            .map_err(io("written"))?;
    }
    file.write_all(contents).map_err(io("written"))?;
    file.commit().map_err(io("written"))?;
    File::open(folder)
        .and_then(|folder| folder.sync_all())
        .map_err(io("written"))
}

/// Removes a file. Whether it was there.
///
/// # Errors
/// [`FileError::Io`].
pub fn remove(path: &Path) -> Result<bool, FileError> {
    match fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(reason) => Err(FileError::Io {
            path: path.to_owned(),
            doing: "removed",
            reason,
        }),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_file_keeps_its_mode_and_a_link_stays_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/b/token");
        replace(&path, b"one", 0o600).unwrap();
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let link = folder.path().join("link");
        symlink(&path, &link).unwrap();
        replace(&link, b"two", 0o600).unwrap();
        assert!(link.is_symlink());
        assert_eq!(read(&path, 3).unwrap(), Some(b"two".to_vec()));
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o640
        );
        // Nothing else is left in the folder.
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
        assert!(remove(&path).unwrap());
        assert!(!remove(&path).unwrap());
    }

    #[test]
    fn what_is_no_file_or_too_large_is_said() {
        let folder = tempfile::tempdir().unwrap();
        assert!(matches!(
            read(folder.path(), 9),
            Err(FileError::NotAFile { .. })
        ));
        assert!(matches!(
            replace(folder.path(), b"", 0o600),
            Err(FileError::NotAFile { .. })
        ));
        let path = folder.path().join("file");
        assert_eq!(read(&path, 3).unwrap(), None);
        fs::write(&path, "four").unwrap();
        assert!(matches!(
            read(&path, 3),
            Err(FileError::TooLarge { limit: 3, .. })
        ));
    }
}
