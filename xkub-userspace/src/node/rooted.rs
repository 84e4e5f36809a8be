//! Paths below another root: an image that is being built, or this machine.
//!
//! A link in an image means a path of the image. Followed as the system follows it, it would lead to the
//! machine that builds the image.

use std::{
    ffi::OsString,
    fs, io,
    path::{Component, Path, PathBuf},
};

/// The kernel's own bound (`MAXSYMLINKS`, `path_resolution(7)`).
const MAX_LINKS: usize = 40;

/// Where an absolute `path` of the system below `root` really lies, every link followed within `root`. What does
/// not exist yet is taken as written.
///
/// # Errors
/// What reading a link says, and `ELOOP` for links that lead in a circle.
pub fn resolve(root: &Path, path: &Path) -> io::Result<PathBuf> {
    let mut rest = pending(path);
    let mut done = PathBuf::new();
    let mut links = 0;
    while let Some(name) = rest.pop() {
        if name == ".." {
            done.pop();
            continue;
        }
        let target = match fs::read_link(root.join(&done).join(&name)) {
            Ok(target) => target,
            // No link, or nothing at all.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::InvalidInput
                        | io::ErrorKind::NotFound
                        | io::ErrorKind::NotADirectory
                ) =>
            {
                done.push(name);
                continue;
            }
            Err(error) => return Err(error),
        };
        links += 1;
        if links > MAX_LINKS {
            return Err(io::Error::from_raw_os_error(libc::ELOOP));
        }
        if target.is_absolute() {
            done.clear();
        }
        rest.extend(pending(&target));
    }
    Ok(root.join(done))
}

/// The names of a path, the last one first.
fn pending(path: &Path) -> Vec<OsString> {
    path.components()
        .rev()
        .filter_map(|component| match component {
            Component::Normal(name) => Some(name.to_owned()),
            Component::ParentDir => Some("..".into()),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn links_stay_below_the_root() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        fs::create_dir_all(root.join("usr/lib/systemd")).unwrap();
        fs::create_dir_all(root.join("etc")).unwrap();
        symlink("usr/lib", root.join("lib")).unwrap();
        symlink("/usr/lib/systemd", root.join("etc/systemd")).unwrap();
        symlink("../../../../etc/shadow", root.join("etc/up")).unwrap();
        symlink("/etc/circle", root.join("etc/circle")).unwrap();
        for (path, expected) in [
            ("/", ""),
            ("/lib/systemd/a.service", "usr/lib/systemd/a.service"),
            ("/etc/systemd/../new/./file", "usr/lib/new/file"),
            ("/etc/up", "etc/shadow"),
            ("/nothing/here", "nothing/here"),
        ] {
            assert_eq!(
                resolve(root, Path::new(path)).unwrap(),
                root.join(expected),
                "{path}"
            );
        }
        let circle = resolve(root, Path::new("/etc/circle")).unwrap_err();
        assert_eq!(circle.raw_os_error(), Some(libc::ELOOP));
    }
}
