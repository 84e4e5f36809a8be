//! A guest's user space: busybox, this machine's own network programs with their libraries, the kernel's modules, and
//! the freshly built `xkub`.

use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use super::image::{self, Disk, Placed, What};
use super::kernel::{Kernel, cache, replace_file, run};
use crate::xkub;

/// Programs that guests must have, from packages that `cargo xtask setup` installs. dash, because busybox as a shell prefers
/// its own `ip` and `ping` to these.
const PROGRAMS: [&str; 9] = [
    "ip", "bridge", "tc", "ss", "nstat", "ping", "ethtool", "iperf3", "dash",
];
/// Programs that guests have if this machine has them.
const OPTIONAL_PROGRAMS: [&str; 4] = ["bpftool", "tcpdump", "nft", "strace"];

/// What a node has, in the order in which they are wanted.
const MODULES: [&str; 15] = [
    "virtio_pci",
    "virtio_net",
    "veth",
    "vxlan",
    "dummy",
    "ipip",
    "ip6_tunnel",
    "sch_ingress",
    "cls_bpf",
    "sch_fq_codel",
    "8021q",
    "bridge",
    "nf_tables",
    "nft_ct",
    "nft_nat",
];

/// What it needs beside to boot from a disk.
const DISK_MODULES: [&str; 2] = ["virtio_blk", "ext4"];

/// The first process: everything up to the uplink, then the agent, which serves commands.
const INIT: &str = include_str!("init.sh");
/// The first process where there is a disk.
const DISK_INIT: &str = include_str!("disk.sh");
/// Serves one command after the other on the second serial port.
const AGENT: &str = include_str!("agent.sh");

/// Makes the initramfs for a kernel, or takes the parts of an earlier one that are still right.
///
/// The result is three archives in a row: the kernel unpacks them over each other.
///
/// # Errors
/// When a program is missing; the error names it.
pub fn build(kernel: &Kernel, programs: &[PathBuf], folder: &Path) -> Result<PathBuf> {
    let mut image = Vec::new();
    image.extend(base()?);
    image.extend(modules(kernel, &MODULES)?);
    let mut archive = Archive::default();
    let binary = xkub::binary()?;
    archive.file("usr/sbin/xkub", &stripped_xkub()?, 0o755);
    let mut needed = libraries(&binary)?;
    for program in programs {
        let name = program.file_name().unwrap_or_default().to_string_lossy();
        archive.file(&format!("usr/sbin/{name}"), &stripped(program)?, 0o755);
        needed.extend(libraries(program)?);
    }
    for library in needed {
        let inside = library.to_string_lossy().into_owned();
        archive.file(inside.trim_start_matches('/'), &fs::read(&library)?, 0o755);
    }
    archive.file("init", INIT.as_bytes(), 0o755);
    archive.file("agent", AGENT.as_bytes(), 0o755);
    image.extend(archive.finish());
    let path = folder.join("initramfs");
    fs::write(&path, image).with_context(|| format!("write {}", path.display()))?;
    Ok(path)
}

/// Makes the initramfs of a guest that goes on from a disk: `xkub` and `programs` go to its `/usr/local/bin`, beside the
/// disk's own files.
///
/// Libraries are the disk's: Debian's are not older than this machine's as long as this is no newer Debian.
///
/// # Errors
/// As [`build`].
pub fn build_for_disk(
    kernel: &Kernel,
    programs: &[PathBuf],
    disk: &Disk,
    folder: &Path,
) -> Result<PathBuf> {
    let mut archive = Archive::default();
    for folder in ["proc", "sys", "dev"] {
        archive.folder(folder);
    }
    let busybox = find("busybox").context("no busybox: install Debian's busybox-static")?;
    archive.file("bin/busybox", &fs::read(&busybox)?, 0o755);
    for library in libraries(&busybox)? {
        let inside = library.to_string_lossy().into_owned();
        archive.file(inside.trim_start_matches('/'), &fs::read(&library)?, 0o755);
    }
    archive.file("init", DISK_INIT.as_bytes(), 0o755);
    archive.file(&format!("files/{}", image::AGENT), AGENT.as_bytes(), 0o755);
    if !disk
        .placed()
        .iter()
        .any(|placed| placed.path == "usr/local/bin/xkub")
    {
        archive.file("files/usr/local/bin/xkub", &stripped_xkub()?, 0o755);
    }
    for program in programs {
        let name = program.file_name().unwrap_or_default().to_string_lossy();
        let inside = format!("files/usr/local/bin/{name}");
        archive.file(&inside, &stripped(program)?, 0o755);
    }
    for Placed { path, what } in disk.placed() {
        let path = format!("files/{path}");
        match what {
            What::File { contents, mode } => archive.file(&path, contents, *mode),
            What::Link { target } => archive.link(&path, target),
        }
    }
    let mut image = modules(kernel, &[&MODULES[..], &DISK_MODULES[..]].concat())?;
    image.extend(archive.finish());
    let path = folder.join("initramfs");
    fs::write(&path, image).with_context(|| format!("write {}", path.display()))?;
    Ok(path)
}

/// Programs and libraries: the same for all kernels.
fn base() -> Result<Vec<u8>> {
    let mut files = BTreeMap::new();
    let busybox = find("busybox").context("no busybox: install Debian's busybox-static")?;
    // A static one has no libraries; any other will do as well.
    for library in libraries(&busybox)? {
        let inside = library.to_string_lossy();
        files.insert(inside.trim_start_matches('/').to_owned(), library.clone());
    }
    files.insert("bin/busybox".to_owned(), busybox);
    for name in PROGRAMS {
        let path = find(name)
            .with_context(|| format!("no {name} for the guests: run `cargo xtask setup`"))?;
        program(name, &path, &mut files)?;
    }
    for name in OPTIONAL_PROGRAMS {
        if let Some(path) = find(name) {
            program(name, &path, &mut files)?;
        }
    }
    let mut key = DefaultHasher::new();
    for (name, path) in &files {
        let metadata = fs::metadata(path)?;
        (name, path, metadata.len(), metadata.modified()?).hash(&mut key);
    }
    let file = cache()?
        .join("guest")
        .join(format!("base-{:016x}.cpio", key.finish()));
    if let Ok(bytes) = fs::read(&file) {
        return Ok(bytes);
    }
    let mut archive = Archive::default();
    for folder in ["proc", "sys", "dev", "run", "tmp", "etc", "root", "var"] {
        archive.folder(folder);
    }
    for (name, path) in &files {
        let bytes = fs::read(path).with_context(|| format!("read {}", path.display()))?;
        archive.file(name, &bytes, 0o755);
    }
    let bytes = archive.finish();
    keep(&file, &bytes)?;
    Ok(bytes)
}

/// A program and the libraries that the dynamic linker would load for it.
fn program(name: &str, path: &Path, files: &mut BTreeMap<String, PathBuf>) -> Result<()> {
    files.insert(format!("usr/sbin/{name}"), path.to_owned());
    for library in libraries(path)? {
        let inside = library.to_string_lossy();
        files.insert(inside.trim_start_matches('/').to_owned(), library.clone());
    }
    Ok(())
}

fn libraries(program: &Path) -> Result<Vec<PathBuf>> {
    // Fails for static programs, which then need none.
    let output = Command::new("ldd")
        .arg(program)
        .output()
        .context("start ldd")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let mut found = Vec::new();
    for line in text.lines() {
        // "libc.so.6 => /lib/…/libc.so.6 (0x…)", "/lib64/ld-linux-x86-64.so.2 (0x…)", "linux-vdso.so.1 (0x…)"
        let target = line.split_once("=>").map_or(line, |(_, target)| target);
        if target.contains("not found") {
            bail!("{}: {}", program.display(), line.trim());
        }
        let word = target.split_whitespace().next().unwrap_or_default();
        if word.starts_with('/') {
            found.push(PathBuf::from(word));
        }
    }
    Ok(found)
}

fn modules(kernel: &Kernel, wanted: &[&str]) -> Result<Vec<u8>> {
    let mut key = DefaultHasher::new();
    wanted.hash(&mut key);
    let file = kernel.companion(&format!("modules-{:016x}.cpio", key.finish()));
    if let Some(bytes) = file.as_ref().and_then(|file| fs::read(file).ok()) {
        return Ok(bytes);
    }
    let modules = kernel.modules(wanted)?;
    let mut archive = Archive::default();
    archive.folder("modules");
    let order: Vec<&str> = modules.iter().map(|module| module.file.as_str()).collect();
    let order = order.join("\n") + "\n";
    archive.file("modules/order", order.as_bytes(), 0o644);
    for module in &modules {
        archive.file(&format!("modules/{}", module.file), &module.bytes, 0o644);
    }
    let bytes = archive.finish();
    if let Some(file) = file {
        keep(&file, &bytes)?;
    }
    Ok(bytes)
}

/// The `xkub` that guests have.
///
/// # Errors
/// Without one, or without `strip`.
pub fn stripped_xkub() -> Result<Vec<u8>> {
    stripped(&xkub::binary()?)
}

/// A binary without its debugging information, which is nine tenths of it.
fn stripped(path: &Path) -> Result<Vec<u8>> {
    let metadata = fs::metadata(path)?;
    let mut key = DefaultHasher::new();
    (path, metadata.len(), metadata.modified()?).hash(&mut key);
    // Without the hash that cargo appends to some names.
    let program = path.file_name().unwrap_or_default().to_string_lossy();
    let prefix = format!("stripped-{program}-");
    let name = format!("{prefix}{:016x}", key.finish());
    let folder = cache()?.join("guest");
    let kept = folder.join(&name);
    if let Ok(bytes) = fs::read(&kept) {
        return Ok(bytes);
    }
    let folder = tempfile::tempdir()?;
    let target = folder.path().join("xkub");
    run(Command::new("strip").arg("-o").args([&target, path]))?;
    let bytes = fs::read(&target)?;
    forget_older(&prefix)?;
    keep(&kept, &bytes)?;
    Ok(bytes)
}

/// Removes what was kept of binaries that were built before.
fn forget_older(prefix: &str) -> Result<()> {
    let Ok(entries) = fs::read_dir(cache()?.join("guest")) else {
        return Ok(());
    };
    for entry in entries {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(prefix) {
            // Another run may have been quicker.
            let _ = fs::remove_file(entry.path());
        }
    }
    Ok(())
}

fn keep(path: &Path, bytes: &[u8]) -> Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
    }
    replace_file(path, bytes)
}

fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(
        ["/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/bin", "/bin"]
            .into_iter()
            .map(PathBuf::from),
    );
    folders.map(|folder| folder.join(program)).find(|file| {
        fs::metadata(file)
            .is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
    })
}

/// A cpio archive in the format that the kernel unpacks (`newc`, Documentation/driver-api/early-userspace/buffer-format.rst).
#[derive(Debug, Default)]
struct Archive {
    bytes: Vec<u8>,
    folders: Vec<String>,
    inode: u32,
}

/// File types of `st_mode`.
const FOLDER: u32 = 0o040_000;
const REGULAR: u32 = 0o100_000;
const LINK: u32 = 0o120_000;

impl Archive {
    fn folder(&mut self, path: &str) {
        if self.folders.iter().any(|folder| folder == path) {
            return;
        }
        if let Some((parent, _)) = path.rsplit_once('/') {
            self.folder(parent);
        }
        self.folders.push(path.to_owned());
        self.entry(path, FOLDER | 0o755, &[]);
    }

    fn file(&mut self, path: &str, contents: &[u8], permissions: u32) {
        if let Some((parent, _)) = path.rsplit_once('/') {
            self.folder(parent);
        }
        self.entry(path, REGULAR | permissions, contents);
    }

    fn link(&mut self, path: &str, target: &str) {
        if let Some((parent, _)) = path.rsplit_once('/') {
            self.folder(parent);
        }
        self.entry(path, LINK | 0o777, target.as_bytes());
    }

    fn entry(&mut self, path: &str, mode: u32, contents: &[u8]) {
        self.inode += 1;
        let fields = [
            self.inode as usize,
            mode as usize,
            0, // user
            0, // group
            1, // links
            0, // time
            contents.len(),
            0, // device
            0,
            0, // device that it is
            0,
            path.len() + 1,
            0, // checksum, of another format
        ];
        self.bytes.extend(b"070701");
        for field in fields {
            self.bytes.extend(format!("{field:08x}").bytes());
        }
        self.bytes.extend(path.bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend(contents);
        self.pad();
    }

    /// Everything starts at a multiple of four.
    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[]);
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::Archive;

    #[test]
    fn an_archive_has_folders_before_files_and_is_aligned() {
        let mut archive = Archive::default();
        archive.file("usr/sbin/xkub", b"abc", 0o755);
        archive.file("usr/sbin/ip", b"", 0o755);
        let bytes = archive.finish();
        assert_eq!(bytes.len() % 4, 0);
        let text = String::from_utf8_lossy(&bytes);
        let at = |needle: &str| text.find(needle).unwrap();
        assert!(at("usr\0") < at("usr/sbin\0"));
        assert!(at("usr/sbin\0") < at("usr/sbin/xkub\0"));
        assert_eq!(text.matches("usr/sbin\0").count(), 1);
        assert!(text.ends_with("TRAILER!!!\0\0\0\0"));
    }
}
