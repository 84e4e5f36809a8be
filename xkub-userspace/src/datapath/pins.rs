//! The pin directory of one uplink, which is all the state there is.
//!
//! `/sys/fs/bpf/xkub/v1/<uplink>/`:
//! - `maps/<NAME>`, `links/<place>` (TCX and XDP), `programs/<place>`;
//! - `constants/<place>`: a program's read-only map. The kernel finds it by id too, but that takes
//!   `CAP_SYS_ADMIN`, which nothing else here does;
//! - `filters/<place>/`, an empty directory: the place's program is a filter on clsact, which has no link;
//! - `clsact/`, an empty directory: the clsact qdisc is ours;
//! - `address/<device>/<address>/`, an empty directory: we put that address on that device.
//!
//! bpffs refuses names with a dot, which interface names may have; it becomes a colon, which they may not have.

use std::{
    fs::{self, File},
    io,
    net::IpAddr,
    os::{fd::OwnedFd, unix::fs::MetadataExt as _},
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use nix::fcntl::{Flock, FlockArg};
use xkub_common::{LAYOUT_VERSION, counter::Place, map, program};

use super::{
    bpffs::MOUNT_POINT,
    error::Error,
    hook::Hook,
    object::Maps,
    sys::{self, LinkInfo, ProgramInfo},
};

const DIRECTORY: &str = "xkub";
/// The end of the name of what will take another pin's place.
const NEW: &str = "-new";
/// Another process is done in less time than this: most of it goes into loading programs.
const LOCK_ATTEMPTS: u32 = 100;
const LOCK_INTERVAL: Duration = Duration::from_millis(100);

/// Keeps other xkub processes from changing the same datapath.
#[derive(Debug)]
pub(super) struct Lock(#[expect(dead_code, reason = "held, not read")] Flock<File>);

/// The paths of one uplink.
#[derive(Clone, Debug)]
pub(super) struct Pins {
    uplink: String,
    directory: PathBuf,
}

impl Pins {
    pub fn of(uplink: &str) -> Self {
        Self {
            uplink: uplink.to_owned(),
            directory: root().join(escape(uplink)),
        }
    }

    /// The uplinks that have a pin directory, sorted.
    pub fn uplinks() -> Result<Vec<String>, Error> {
        let mut uplinks: Vec<String> = entries(&root())?
            .iter()
            .map(|name| unescape(name))
            .collect();
        uplinks.sort();
        Ok(uplinks)
    }

    /// Takes over what is pinned under another name: an interface keeps its programs when it is renamed.
    pub fn take_over(&self, other: &Self) -> Result<(), Error> {
        fs::rename(&other.directory, &self.directory).map_err(|source| Error::Pin {
            path: other.directory.clone(),
            doing: "renamed",
            source,
        })
    }

    pub fn exist(&self) -> bool {
        self.directory.is_dir()
    }

    pub fn map(&self, name: &str) -> PathBuf {
        self.directory.join("maps").join(name)
    }

    /// The maps that are pinned, for one more instance to use.
    pub fn shared_maps(&self) -> Maps {
        Maps {
            pins: map::PINNED
                .into_iter()
                .map(|name| (name, self.map(name)))
                .collect(),
            ..Maps::default()
        }
    }

    pub fn link(&self, place: Place) -> PathBuf {
        self.directory.join("links").join(place.name())
    }

    pub fn program(&self, place: Place) -> PathBuf {
        self.directory.join("programs").join(place.name())
    }

    pub fn constants(&self, place: Place) -> PathBuf {
        self.directory.join("constants").join(place.name())
    }

    fn filter(&self, place: Place) -> PathBuf {
        self.directory.join("filters").join(place.name())
    }

    fn clsact(&self) -> PathBuf {
        self.directory.join("clsact")
    }

    fn address(&self) -> PathBuf {
        self.directory.join("address")
    }

    pub fn create(&self) -> Result<(), Error> {
        for path in ["maps", "links", "programs", "constants"] {
            let path = self.directory.join(path);
            fs::create_dir_all(&path).map_err(|source| Error::Pin {
                path,
                doing: "made",
                source,
            })?;
        }
        Ok(())
    }

    /// Takes the lock, made with the directory if need be.
    pub fn lock(&self) -> Result<Lock, Error> {
        let failed = |source| Error::Pin {
            path: self.directory.clone(),
            doing: "locked",
            source,
        };
        for _ in 0..LOCK_ATTEMPTS {
            fs::create_dir_all(&self.directory).map_err(failed)?;
            let file = match File::open(&self.directory) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                other => other.map_err(failed)?,
            };
            match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                Ok(lock) if is_same(&lock, &self.directory) => return Ok(Lock(lock)),
                // A detach removed the directory while we waited for it.
                Ok(_) => {}
                Err((_, nix::errno::Errno::EWOULDBLOCK)) => thread::sleep(LOCK_INTERVAL),
                Err((_, errno)) => return Err(failed(errno.into())),
            }
        }
        Err(Error::Busy(self.uplink.clone()))
    }

    /// Removes the directory with all that is in it, and those above it when they are empty.
    pub fn remove(&self) -> Result<(), Error> {
        match fs::remove_dir_all(&self.directory) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                return Err(Error::Pin {
                    path: self.directory.clone(),
                    doing: "removed",
                    source,
                });
            }
            _ => {}
        }
        let root = root();
        for directory in [Some(root.as_path()), root.parent()].into_iter().flatten() {
            // Another uplink's directory, or another layout's, may be in there.
            if fs::remove_dir(directory).is_err() {
                break;
            }
        }
        Ok(())
    }

    pub fn pinned_link(&self, place: Place) -> Result<Option<(OwnedFd, LinkInfo)>, Error> {
        let path = self.link(place);
        let Some(fd) = open(&path)? else {
            return Ok(None);
        };
        let info = sys::link_info(&fd).map_err(|source| Error::Pin {
            path,
            doing: "read as a link",
            source,
        })?;
        Ok(Some((fd, info)))
    }

    pub fn pinned_program(&self, place: Place) -> Result<Option<(OwnedFd, ProgramInfo)>, Error> {
        let path = self.program(place);
        let Some(fd) = open(&path)? else {
            return Ok(None);
        };
        let info = sys::program_info(&fd).map_err(|source| Error::Pin {
            path,
            doing: "read as a program",
            source,
        })?;
        Ok(Some((fd, info)))
    }

    /// All programs that are pinned, in the order of their places.
    pub fn programs(&self) -> Result<Vec<(Place, ProgramInfo)>, Error> {
        let mut programs = Vec::new();
        for place in Place::ALL {
            if let Some((_, info)) = self.pinned_program(*place)? {
                programs.push((*place, info));
            }
        }
        Ok(programs)
    }

    /// The hook that a place's program was put on, even if somebody has removed it from there.
    pub fn hook(&self, place: Place) -> Result<Hook, Error> {
        if self.filter(place).is_dir() {
            return Ok(Hook::Clsact);
        }
        Ok(match self.pinned_program(place)? {
            Some((_, info)) if info.name.starts_with(program::XDP) => Hook::Xdp,
            _ => Hook::Tcx,
        })
    }

    /// Remembers whether a place's program is a filter.
    pub fn mark_filter(&self, place: Place, is_filter: bool) -> Result<(), Error> {
        if is_filter {
            return mark(self.filter(place));
        }
        // Without the mark it is none.
        let _: io::Result<()> = fs::remove_dir(self.filter(place));
        Ok(())
    }

    /// Remembers that the clsact qdisc is ours.
    pub fn mark_clsact(&self) -> Result<(), Error> {
        mark(self.clsact())
    }

    pub fn is_clsact_ours(&self) -> bool {
        self.clsact().is_dir()
    }

    pub fn unmark_clsact(&self) {
        // Without the mark there is nothing to take back.
        let _: io::Result<()> = fs::remove_dir(self.clsact());
    }

    /// Remembers that an address is on a device because we put it there.
    pub fn mark_address(&self, device: &str, address: IpAddr) -> Result<(), Error> {
        mark(self.address_mark(device, address))
    }

    pub fn unmark_address(&self, device: &str, address: IpAddr) {
        let mark = self.address_mark(device, address);
        // The device's own directory goes with its last address.
        for directory in [Some(mark.as_path()), mark.parent()].into_iter().flatten() {
            let _: io::Result<()> = fs::remove_dir(directory);
        }
    }

    /// The addresses that we have put on devices, and the devices.
    pub fn addresses(&self) -> Result<Vec<(String, IpAddr)>, Error> {
        let mut addresses = Vec::new();
        for device in entries(&self.address())? {
            for name in entries(&self.address().join(&device))? {
                if let Some(address) = address_of_mark(&name) {
                    addresses.push((unescape(&device), address));
                }
            }
        }
        Ok(addresses)
    }

    fn address_mark(&self, device: &str, address: IpAddr) -> PathBuf {
        self.address()
            .join(escape(device))
            .join(escape(&address.to_string()))
    }
}

fn address_of_mark(name: &str) -> Option<IpAddr> {
    // Four groups of an IPv6 address without a gap are none, so an escaped IPv4 address can't be taken for one.
    unescape(name).parse().or_else(|_| name.parse()).ok()
}

/// Opens a pin; `None` when there is none.
pub(super) fn open(path: &Path) -> Result<Option<OwnedFd>, Error> {
    sys::pinned(path).map_err(|source| Error::Pin {
        path: path.to_owned(),
        doing: "opened",
        source,
    })
}

/// The name under which something waits to take `path`'s place.
pub(super) fn new_name(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(NEW);
    PathBuf::from(name)
}

/// Removes a pin; none is fine.
pub(super) fn remove(path: &Path) -> Result<(), Error> {
    match fs::remove_file(path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => Err(Error::Pin {
            path: path.to_owned(),
            doing: "removed",
            source,
        }),
        _ => Ok(()),
    }
}

fn root() -> PathBuf {
    Path::new(MOUNT_POINT).join(DIRECTORY).join(LAYOUT_VERSION)
}

fn mark(path: PathBuf) -> Result<(), Error> {
    fs::create_dir_all(&path).map_err(|source| Error::Pin {
        path,
        doing: "made",
        source,
    })
}

fn entries(directory: &Path) -> Result<Vec<String>, Error> {
    let failed = |source| Error::Pin {
        path: directory.to_owned(),
        doing: "listed",
        source,
    };
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(failed)?,
    };
    entries
        .map(|entry| entry.map(|entry| entry.file_name().to_string_lossy().into_owned()))
        .collect::<io::Result<_>>()
        .map_err(failed)
}

fn is_same(file: &File, path: &Path) -> bool {
    match (file.metadata(), fs::metadata(path)) {
        (Ok(held), Ok(there)) => (held.dev(), held.ino()) == (there.dev(), there.ino()),
        _ => false,
    }
}

fn escape(name: &str) -> String {
    name.replace('.', ":")
}

fn unescape(name: &str) -> String {
    name.replace(':', ".")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_can_be_marked() {
        for text in ["10.244.1.226", "fd00::226", "::1", "2001:db8:1:2:3:4:5:6"] {
            let address: IpAddr = text.parse().unwrap();
            let mark = escape(&address.to_string());
            assert!(!mark.contains('.'), "{mark}");
            assert_eq!(address_of_mark(&mark), Some(address));
        }
        assert_eq!(address_of_mark("lo"), None);
    }

    #[test]
    fn names_with_dots_have_pins() {
        for name in ["eth0", "eth0.100", "a.b.c"] {
            let escaped = escape(name);
            assert!(!escaped.contains('.'), "{escaped}");
            assert_eq!(unescape(&escaped), name);
        }
        assert_eq!(
            Pins::of("eth0.5").program(Place::EgressLast),
            Path::new("/sys/fs/bpf/xkub/v1/eth0:5/programs/egress-last")
        );
    }
}
