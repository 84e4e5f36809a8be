//! A copy of a fixture: a system's root folder that may be changed.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

pub struct Root(tempfile::TempDir);

impl Root {
    /// A fixture's copy; an empty folder for an empty name.
    pub fn of(fixture: &str) -> Self {
        let root = Self(tempfile::tempdir().unwrap());
        if !fixture.is_empty() {
            root.add(fixture);
        }
        root
    }

    pub fn add(&self, fixture: &str) {
        let from = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("tests/fixtures")
            .join(fixture);
        let copied = Command::new("cp")
            .arg("-a")
            .arg(from.join("."))
            .arg(self.path())
            .status()
            .unwrap();
        assert!(copied.success());
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    pub fn text(&self, path: &str) -> String {
        fs::read_to_string(self.path().join(path)).unwrap()
    }

    /// All files and links with what is in them.
    pub fn contents(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let mut contents = BTreeMap::new();
        let mut folders = vec![self.path().to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_symlink() {
                    let target = fs::read_link(&path).unwrap();
                    contents.insert(path, target.into_os_string().into_encoded_bytes());
                } else if path.is_dir() {
                    folders.push(path);
                } else {
                    let bytes = fs::read(&path).unwrap();
                    contents.insert(path, bytes);
                }
            }
        }
        contents
    }
}
