//! A Debian with systemd as its first process, for what only a whole system shows: units, their order, networkd.
//!
//! The image is made once by `mmdebstrap` and kept outside the tree under a hash of its recipe; a guest gets a copy. What
//! belongs to one test is not in it: an initramfs carries those files and puts them there before the first boot, so that
//! a new build of `xkub` needs no new image.

use std::fs::{self, Permissions};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use super::kernel::{cache, mirror, run};
use crate::masquerade::{GATEWAY_V6, GUEST_V6, UPLINK};

/// The suite; its systemd is 257. Its kernel is not in the image: guests boot the lab's.
const SUITE: &str = "trixie";
/// What a node has, and what looks at it.
const PACKAGES: [&str; 11] = [
    "bpftool",
    "dbus",
    "ethtool",
    "iperf3",
    "iproute2",
    "iputils-ping",
    "kmod",
    "nftables",
    "procps",
    "systemd-sysv",
    "udev",
];
/// What is left out of packages.
const EXCLUDED: [&str; 3] = [
    "/usr/share/doc/*",
    "/usr/share/locale/*",
    "/usr/share/man/*",
];
/// Runs as root when the packages are installed, with the new root as its argument.
///
/// Masked is what an emulated guest would only wait for. An identity, and marks that nothing is out of date: a first boot
/// would enable and rebuild everything.
const CUSTOMISE: &str = r#"
chroot "$1" systemctl --quiet enable systemd-networkd.service
chroot "$1" systemctl --quiet mask \
    apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer fstrim.timer systemd-tmpfiles-clean.timer \
    getty@tty1.service serial-getty@ttyS0.service iperf3.service systemd-logind.service \
    modprobe@configfs.service modprobe@drm.service modprobe@fuse.service \
    dev-hugepages.mount dev-mqueue.mount run-lock.mount sys-fs-fuse-connections.mount sys-kernel-debug.mount \
    sys-kernel-tracing.mount proc-sys-fs-binfmt_misc.automount \
    systemd-networkd-persistent-storage.service systemd-network-generator.service systemd-pstore.service \
    systemd-random-seed.service systemd-udev-load-credentials.service \
    systemd-user-sessions.service
echo 6c61620000004000800000000000000f > "$1/etc/machine-id"
touch "$1/etc/.updated" "$1/var/.updated"
"#;
/// Size of the disk; the image has holes where nothing is.
const SIZE: &str = "1G";

/// Where the agent of the lab lies in the guest.
pub(super) const AGENT: &str = "usr/lib/lab/agent";
/// Serves the lab's commands as soon as there are file systems: before the network, and before anything under test.
const AGENT_UNIT: &str = "\
[Unit]
Description=Serves commands on the second serial port
DefaultDependencies=no
After=local-fs.target

[Service]
ExecStart=/bin/sh /usr/lib/lab/agent
WorkingDirectory=/root
Environment=HOME=/root
Restart=always
KillMode=process
OOMScoreAdjust=-900
";
/// The journal in memory, and its worse half on the console, which failing tests print.
const JOURNAL: &str = "\
[Journal]
Storage=volatile
ForwardToConsole=yes
MaxLevelConsole=warning
";
/// The unit's name on the kernel's command line, where `systemd.wants=` takes it.
pub(super) const AGENT_UNIT_NAME: &str = "lab-agent.service";

/// Something that a guest has before it boots for the first time.
#[derive(Debug, Clone)]
pub(super) struct Placed {
    /// Where, without the leading slash.
    pub(super) path: String,
    pub(super) what: What,
}

#[derive(Debug, Clone)]
pub(super) enum What {
    File { contents: Vec<u8>, mode: u32 },
    Link { target: String },
}

/// What is on a guest's disk beside the image. Of two things in the same place the later one counts.
#[derive(Debug, Clone)]
pub struct Disk {
    placed: Vec<Placed>,
}

impl Disk {
    /// The image as it is, which serves the lab's commands and configures its uplink by DHCP.
    #[must_use]
    pub fn new() -> Self {
        let network = format!(
            "[Match]\nName={UPLINK}\n\n\
             [Network]\nDHCP=ipv4\nIPv6AcceptRA=no\nGateway={GATEWAY_V6}\n\n\
             [Address]\nAddress={GUEST_V6}/120\nDuplicateAddressDetection=none\n\n\
             [DHCPv4]\nUseHostname=no\n"
        );
        Self { placed: Vec::new() }
            .file(
                &format!("/etc/systemd/system/{AGENT_UNIT_NAME}"),
                AGENT_UNIT,
                0o644,
            )
            .file("/etc/systemd/journald.conf.d/lab.conf", JOURNAL, 0o644)
            .file("/etc/systemd/network/50-uplink.network", &network, 0o644)
    }

    /// A file of the guest; `mode` is its permissions, `0o644`.
    #[must_use]
    pub fn file(self, path: &str, contents: impl AsRef<[u8]>, mode: u32) -> Self {
        let contents = contents.as_ref().to_owned();
        self.place(path, What::File { contents, mode })
    }

    /// A symbolic link of the guest.
    #[must_use]
    pub fn link(self, path: &str, target: &str) -> Self {
        let target = target.to_owned();
        self.place(path, What::Link { target })
    }

    fn place(mut self, path: &str, what: What) -> Self {
        let path = path.trim_start_matches('/').to_owned();
        self.placed.retain(|placed| placed.path != path);
        self.placed.push(Placed { path, what });
        self
    }

    /// The files and links below `folder`, as what makes an image puts them there: `xkub install --root`.
    ///
    /// # Errors
    /// When something can't be read, or is neither folder, file nor link.
    pub fn tree(mut self, folder: &Path) -> Result<Self> {
        let mut folders = vec![folder.to_owned()];
        while let Some(next) = folders.pop() {
            for entry in fs::read_dir(&next).with_context(|| format!("read {}", next.display()))? {
                let path = entry?.path();
                let metadata = fs::symlink_metadata(&path)?;
                let inside = path.strip_prefix(folder)?.to_string_lossy().into_owned();
                self = if metadata.is_dir() {
                    folders.push(path);
                    self
                } else if metadata.is_symlink() {
                    self.link(&inside, &fs::read_link(&path)?.to_string_lossy())
                } else if metadata.is_file() {
                    let mode = metadata.permissions().mode() & 0o7777;
                    self.file(&inside, fs::read(&path)?, mode)
                } else {
                    bail!("{} is no file", path.display());
                };
            }
        }
        Ok(self)
    }

    /// Writes all of it below `folder`, for a program that works on a folder and not on a running system.
    ///
    /// # Errors
    /// When something can't be written.
    pub fn write(&self, folder: &Path) -> Result<()> {
        for Placed { path, what } in &self.placed {
            let path = folder.join(path);
            if let Some(parent) = path.parent() {
                fs::create_dir_all(parent)?;
            }
            let written = match what {
                What::File { contents, mode } => fs::write(&path, contents)
                    .and_then(|()| fs::set_permissions(&path, Permissions::from_mode(*mode))),
                What::Link { target } => symlink(target, &path),
            };
            written.with_context(|| format!("write {}", path.display()))?;
        }
        Ok(())
    }

    pub(super) fn placed(&self) -> &[Placed] {
        &self.placed
    }
}

impl Default for Disk {
    fn default() -> Self {
        Self::new()
    }
}

/// The image of an earlier run, or made now: a file system without a partition table.
///
/// # Errors
/// Without root, without `mmdebstrap` or `mkfs.ext4`, or when Debian's archive can't be reached.
pub fn obtain() -> Result<PathBuf> {
    let mut key = DefaultHasher::new();
    (SUITE, PACKAGES, EXCLUDED, CUSTOMISE, SIZE).hash(&mut key);
    let folder = cache()?.join("images");
    let image = folder.join(format!("{SUITE}-{:016x}.ext4", key.finish()));
    if !image.exists() {
        make(&image, &folder)
            .with_context(|| format!("make a guest's image of Debian's {SUITE}"))?;
    }
    Ok(image)
}

fn make(image: &Path, folder: &Path) -> Result<()> {
    eprintln!("making a guest's image of Debian's {SUITE}: takes a minute or two");
    fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
    let work = tempfile::Builder::new()
        .prefix(".make-")
        .tempdir_in(folder)?;
    let (tree, made) = (work.path().join("tree"), work.path().join("image"));
    let mut command = Command::new("mmdebstrap");
    command.args(["--quiet", "--mode=root", "--variant=minbase"]);
    command.arg(format!("--include={}", PACKAGES.join(",")));
    for path in EXCLUDED {
        command.arg(format!("--dpkgopt=path-exclude={path}"));
    }
    command.arg(format!("--customize-hook={CUSTOMISE}"));
    command
        .args([SUITE.as_ref(), tree.as_os_str()])
        .arg(format!("deb {} {SUITE} main", mirror()?));
    run(&mut command)?;
    // A disk that is not worth a reserve for root; nobody looks for bad blocks in a file.
    run(Command::new("mkfs.ext4")
        .args(["-q", "-m", "0", "-d"])
        .args([&tree, &made])
        .arg(SIZE))?;
    // Those of older recipes; guests have copies.
    for entry in fs::read_dir(folder)?.filter_map(Result::ok) {
        if entry.file_name().to_string_lossy().starts_with(SUITE) {
            // Another run may have been quicker.
            let _ = fs::remove_file(entry.path());
        }
    }
    fs::rename(&made, image).with_context(|| format!("put {} in its place", image.display()))
}

/// A guest's own copy in `folder`.
///
/// # Errors
/// As [`obtain`], or when the disk is full.
pub(super) fn copy(folder: &Path) -> Result<PathBuf> {
    let copy = folder.join("disk");
    run(Command::new("cp")
        .args(["--sparse=always", "--reflink=auto"])
        .args([&obtain()?, &copy]))?;
    Ok(copy)
}
