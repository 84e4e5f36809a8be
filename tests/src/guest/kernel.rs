//! Kernels for guests: Debian's cloud kernels, fetched from its archive and kept outside the tree.

use std::collections::HashMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, anyhow, bail};

/// Names a folder with kernels that are taken instead of Debian's: `<folder>/6.12/vmlinuz` and, below
/// `<folder>/6.12/modules`, its modules.
pub const FOLDER_VARIABLE: &str = "XKUB_KERNELS";
/// Set to anything: look for newer kernels than the ones that were fetched before.
pub const REFRESH_VARIABLE: &str = "XKUB_KERNELS_REFRESH";

/// Names the kernels that tests in guests run on, `6.1,6.12`; without it each test has its own choice.
pub const KERNELS_VARIABLE: &str = "XKUB_GUEST_KERNELS";

/// The kernels that a test which makes sense on `possible` is to run on: those that [`KERNELS_VARIABLE`] names, else `usual`.
///
/// # Errors
/// When the variable names a kernel that there is not.
pub fn wanted(possible: &[Series], usual: &[Series]) -> Result<Vec<Series>> {
    let Ok(names) = std::env::var(KERNELS_VARIABLE) else {
        return Ok(usual.to_vec());
    };
    let mut wanted = Vec::new();
    for name in names.split(',').filter(|name| !name.is_empty()) {
        let series = Series::parse(name)?;
        if possible.contains(&series) {
            wanted.push(series);
        }
    }
    Ok(wanted)
}

/// Kernels that xkub is tested with, oldest first. The datapath differs by what they have, not by their number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Series {
    /// Debian 11: no TCX, no XDP with frames in several buffers, native XDP in virtio-net only with spare queues.
    V5_10,
    /// Debian 12: no TCX.
    V6_1,
    /// Debian 13: TCX.
    V6_12,
    /// Debian's unstable, 7.2 when this was written: TCX.
    V7_2,
}

impl Series {
    /// All of them, oldest first.
    pub const ALL: [Self; 4] = [Self::V5_10, Self::V6_1, Self::V6_12, Self::V7_2];

    /// As on a command line: `6.12`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::V5_10 => "5.10",
            Self::V6_1 => "6.1",
            Self::V6_12 => "6.12",
            Self::V7_2 => "7.2",
        }
    }

    /// The series called so.
    ///
    /// # Errors
    /// When there is none; the error names those that there are.
    pub fn parse(name: &str) -> Result<Self> {
        Self::ALL
            .into_iter()
            .find(|series| series.name() == name)
            .ok_or_else(|| {
                let known: Vec<&str> = Self::ALL.iter().map(|series| series.name()).collect();
                anyhow!("no kernel {name:?} here: {}", known.join(", "))
            })
    }

    /// Whether it has TCX (Linux 6.6, commit e420bed02507).
    #[must_use]
    pub fn has_tcx(self) -> bool {
        self >= Self::V6_12
    }

    fn suite(self) -> &'static str {
        match self {
            Self::V5_10 => "bullseye",
            Self::V6_1 => "bookworm",
            Self::V6_12 => "trixie",
            Self::V7_2 => "sid",
        }
    }

    /// Before and after the part of the package's name that moves, and what else belongs to it.
    fn package(self) -> Package {
        match self {
            Self::V5_10 => Package::image("linux-image-5.10.0-"),
            Self::V6_1 => Package::image("linux-image-6.1.0-"),
            Self::V6_12 => Package::image("linux-image-6.12."),
            // Since 7.0 the image is a package without contents, and the suite moves on by itself.
            Self::V7_2 => Package {
                prefix: "linux-binary-7.",
                companion: Some(("linux-binary-", "linux-modules-")),
            },
        }
    }
}

impl fmt::Display for Series {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// How a series is packaged.
struct Package {
    prefix: &'static str,
    /// A second package, whose name is the first one's with the one replaced by the other.
    companion: Option<(&'static str, &'static str)>,
}

/// The flavour for VMs: virtio and no other drivers.
const FLAVOUR: &str = "-cloud-amd64";

impl Package {
    fn image(prefix: &'static str) -> Self {
        Self {
            prefix,
            companion: None,
        }
    }

    fn matches(&self, name: &str) -> bool {
        let moving = name
            .strip_prefix(self.prefix)
            .and_then(|rest| rest.strip_suffix(FLAVOUR));
        moving.is_some_and(|moving| !moving.is_empty() && !moving.contains("-rt"))
    }
}

/// A kernel on this machine.
#[derive(Debug, Clone)]
pub struct Kernel {
    /// Which one.
    pub series: Series,
    /// The package and its version, for people.
    pub package: String,
    /// The image that QEMU boots.
    pub image: PathBuf,
    modules: PathBuf,
    folder: PathBuf,
}

impl Kernel {
    /// The kernel of a series: of the folder that `XKUB_KERNELS` names, of an earlier run, or fetched now.
    ///
    /// # Errors
    /// When it must be fetched and can't be; the error says from where, and what can be done.
    pub fn obtain(series: Series) -> Result<Self> {
        if let Some(folder) = std::env::var_os(FOLDER_VARIABLE) {
            let folder = PathBuf::from(folder).join(series.name());
            return Self::in_folder(series, &folder)
                .with_context(|| format!("kernel {series} of {FOLDER_VARIABLE}"));
        }
        let cache = cache()?.join("kernels");
        let current = cache.join(series.name());
        if std::env::var_os(REFRESH_VARIABLE).is_none()
            && let Ok(name) = fs::read_to_string(&current)
            && let Ok(kernel) = Self::in_folder(series, &cache.join(name.trim()))
        {
            return Ok(kernel);
        }
        let name = fetch(series, &cache).with_context(|| {
            format!(
                "fetch kernel {series} from Debian's {}; without access to Debian's archive, put vmlinuz and modules \
                 into <folder>/{series}/ and name the folder in {FOLDER_VARIABLE}",
                series.suite()
            )
        })?;
        let kernel = Self::in_folder(series, &cache.join(&name))?;
        replace_file(&current, &name)?;
        Ok(kernel)
    }

    fn in_folder(series: Series, folder: &Path) -> Result<Self> {
        let image = folder.join("vmlinuz");
        let modules = folder.join("modules");
        for path in [&image, &modules] {
            if !path.exists() {
                bail!("{} is missing", path.display());
            }
        }
        let package = folder.file_name().unwrap_or_default().to_string_lossy();
        Ok(Self {
            series,
            package: package.into_owned(),
            image,
            modules,
            folder: folder.to_owned(),
        })
    }

    /// A file beside the kernel in which something made of it may be kept; `None` where the folder is not ours.
    pub(super) fn companion(&self, name: &str) -> Option<PathBuf> {
        std::env::var_os(FOLDER_VARIABLE)
            .is_none()
            .then(|| self.folder.join(name))
    }

    /// The modules called `wanted` and all they depend on, uncompressed, in an order in which they can be loaded.
    ///
    /// What is built into the kernel is left out, and so is what is missing where the package does not tell what is built
    /// in.
    ///
    /// # Errors
    /// When one is known to be neither there nor built in.
    pub fn modules(&self, wanted: &[&str]) -> Result<Vec<Module>> {
        let mut tree = Tree::read(&self.modules)?;
        for name in wanted {
            tree.load(name, &mut Vec::new())
                .with_context(|| format!("modules of {}", self.package))?;
        }
        Ok(tree.loaded)
    }
}

/// A kernel module.
#[derive(Debug, Clone)]
pub struct Module {
    /// Its file's name, `virtio_net.ko`.
    pub file: String,
    /// The ELF file.
    pub bytes: Vec<u8>,
}

/// The modules of a kernel.
struct Tree {
    files: HashMap<String, PathBuf>,
    built_in: Vec<String>,
    loaded: Vec<Module>,
}

impl Tree {
    fn read(folder: &Path) -> Result<Self> {
        let mut tree = Self {
            files: HashMap::new(),
            built_in: Vec::new(),
            loaded: Vec::new(),
        };
        tree.walk(folder)
            .with_context(|| format!("read {}", folder.display()))?;
        Ok(tree)
    }

    fn walk(&mut self, folder: &Path) -> Result<()> {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let path = entry.path();
            let kind = entry.file_type()?;
            if kind.is_dir() {
                self.walk(&path)?;
            } else if path
                .file_name()
                .is_some_and(|name| name == "modules.builtin")
            {
                let text = fs::read_to_string(&path)?;
                self.built_in
                    .extend(text.lines().filter_map(|line| module_name(Path::new(line))));
            } else if let Some(name) = module_name(&path) {
                self.files.insert(name, path);
            }
        }
        Ok(())
    }

    /// Appends `name` behind everything it depends on; `below` are the modules that asked for it.
    fn load(&mut self, name: &str, below: &mut Vec<String>) -> Result<()> {
        let name = name.replace('-', "_");
        let file = format!("{name}.ko");
        if self.loaded.iter().any(|module| module.file == file)
            || self.built_in.contains(&name)
            || below.contains(&name)
        {
            return Ok(());
        }
        let Some(path) = self.files.get(&name) else {
            // Packages since 7.0 do not list what is built in: the guest then finds out.
            if self.built_in.is_empty() {
                return Ok(());
            }
            bail!("no module {name}, and it is not built in");
        };
        let bytes = read_module(path)?;
        below.push(name);
        for dependency in dependencies(&bytes) {
            self.load(&dependency, below)?;
        }
        below.pop();
        self.loaded.push(Module { file, bytes });
        Ok(())
    }
}

/// `ip6_tunnel` for `…/ip6_tunnel.ko.xz`: the kernel knows no dashes in names.
fn module_name(path: &Path) -> Option<String> {
    let file = path.file_name()?.to_str()?;
    let (name, extension) = file.split_once(".ko")?;
    matches!(extension, "" | ".xz" | ".zst" | ".gz").then(|| name.replace('-', "_"))
}

fn read_module(path: &Path) -> Result<Vec<u8>> {
    let program = match path.extension().and_then(|extension| extension.to_str()) {
        Some("xz") => "xz",
        Some("zst") => "zstd",
        Some("gz") => "gzip",
        _ => return fs::read(path).with_context(|| format!("read {}", path.display())),
    };
    let mut command = Command::new(program);
    command.args(["--decompress", "--stdout"]).arg(path);
    run(&mut command)
}

/// What `.modinfo` says: Debian's packages carry no `modules.dep`, which is made where a kernel is installed.
fn dependencies(module: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"\0depends=";
    let Some(at) = module.windows(KEY.len()).position(|window| window == KEY) else {
        return Vec::new();
    };
    let value = module.get(at + KEY.len()..).unwrap_or_default();
    let value = value.split(|&byte| byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(value)
        .split(',')
        .filter(|name| !name.is_empty())
        .map(|name| name.replace('-', "_"))
        .collect()
}

/// Where things are kept that can be made again.
///
/// # Errors
/// Without a home.
pub(super) fn cache() -> Result<PathBuf> {
    let folder = std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")))
        .context("neither XDG_CACHE_HOME nor HOME is set")?;
    Ok(folder.join("xkub"))
}

/// Fetches and unpacks the newest kernel of a series; returns the name of its folder in `cache`.
fn fetch(series: Series, cache: &Path) -> Result<String> {
    fs::create_dir_all(cache).with_context(|| format!("make {}", cache.display()))?;
    let work = tempfile::Builder::new()
        .prefix(".fetch-")
        .tempdir_in(cache)?;
    let apt = Apt::new(series.suite(), work.path())?;
    eprintln!("fetching kernel {series} from Debian's {}", series.suite());
    apt.run("apt-get", &["update", "-qq"])?;
    let package = series.package();
    let (name, version) = apt.newest(&package)?;
    let folder = format!("{name}_{}", version.replace(':', "%3a"));
    if cache.join(&folder).exists() {
        return Ok(folder);
    }
    let mut packages = vec![format!("{name}={version}")];
    if let Some((from, to)) = package.companion {
        packages.push(format!("{}={version}", name.replacen(from, to, 1)));
    }
    let mut arguments = vec!["download", "-qq"];
    arguments.extend(packages.iter().map(String::as_str));
    apt.run("apt-get", &arguments)?;

    let tree = work.path().join("tree");
    for entry in fs::read_dir(work.path())? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "deb") {
            run(Command::new("dpkg-deb")
                .arg("--extract")
                .args([&path, &tree]))?;
        }
    }
    let made = work.path().join("kernel");
    fs::create_dir(&made)?;
    let modules = ["usr/lib/modules", "lib/modules"]
        .iter()
        .map(|folder| tree.join(folder))
        .find(|folder| folder.is_dir())
        .with_context(|| format!("{name} has no modules"))?;
    let image = find_image(&tree.join("boot"))
        .or_else(|| find_image(&modules))
        .with_context(|| format!("{name} has no kernel image"))?;
    fs::rename(image, made.join("vmlinuz"))?;
    fs::rename(modules, made.join("modules"))?;
    match fs::rename(&made, cache.join(&folder)) {
        Ok(()) => {}
        // Somebody else fetched the same at the same time.
        Err(_) if cache.join(&folder).exists() => {}
        Err(error) => return Err(error).context("put the kernel in its place"),
    }
    Ok(folder)
}

/// `vmlinuz-6.1.0-…` in /boot, or `vmlinuz` beside the modules.
fn find_image(folder: &Path) -> Option<PathBuf> {
    for entry in fs::read_dir(folder).ok()?.filter_map(Result::ok) {
        let path = entry.path();
        if path.is_dir() {
            if let Some(found) = find_image(&path) {
                return Some(found);
            }
        } else if entry.file_name().to_string_lossy().starts_with("vmlinuz") {
            return Some(path);
        }
    }
    None
}

/// An apt of our own, which reads another suite from this machine's own mirror and leaves its state alone.
struct Apt {
    folder: PathBuf,
    options: Vec<String>,
}

impl Apt {
    fn new(suite: &str, folder: &Path) -> Result<Self> {
        let mirror = mirror()?;
        let sources = folder.join("sources.list");
        fs::write(&sources, format!("deb {mirror} {suite} main\n"))?;
        for sub in ["lists/partial", "archives/partial"] {
            fs::create_dir_all(folder.join(sub))?;
        }
        let set = |key: &str, value: &Path| format!("{key}={}", value.display());
        let options = vec![
            set("Dir::Etc::SourceList", &sources),
            "Dir::Etc::SourceParts=/dev/null".to_owned(),
            set("Dir::State::Lists", &folder.join("lists")),
            "Dir::State::Status=/dev/null".to_owned(),
            set("Dir::Cache", folder),
            set("Dir::Cache::Archives", &folder.join("archives")),
            // Our folders may be closed to apt's own user; whoever runs this is no more than themselves.
            "APT::Sandbox::User=".to_owned(),
            "Acquire::Languages=none".to_owned(),
        ];
        Ok(Self {
            folder: folder.to_owned(),
            options,
        })
    }

    fn run(&self, program: &str, arguments: &[&str]) -> Result<String> {
        let mut command = Command::new(program);
        command.current_dir(&self.folder);
        for option in &self.options {
            command.args(["-o", option]);
        }
        Ok(String::from_utf8_lossy(&run(command.args(arguments))?).into_owned())
    }

    /// The newest package that matches, and its version.
    fn newest(&self, package: &Package) -> Result<(String, String)> {
        let names = self.run("apt-cache", &["pkgnames", package.prefix])?;
        let name = names
            .lines()
            .filter(|name| package.matches(name))
            .max_by_key(|name| numbers(name))
            .with_context(|| format!("the suite has no {}*{FLAVOUR}", package.prefix))?;
        let text = self.run("apt-cache", &["show", "--no-all-versions", name])?;
        let version = text
            .lines()
            .find_map(|line| line.strip_prefix("Version: "))
            .with_context(|| format!("no version of {name}"))?;
        Ok((name.to_owned(), version.to_owned()))
    }
}

/// All numbers in a name, so that 6.1.0-9 comes before 6.1.0-10.
fn numbers(name: &str) -> Vec<u64> {
    name.split(|letter: char| !letter.is_ascii_digit())
        .filter_map(|number| number.parse().ok())
        .collect()
}

/// The archive that this machine itself uses, with apt's options: `[signed-by=…] scheme://host/debian`.
pub(super) fn mirror() -> Result<String> {
    let mut files = vec![PathBuf::from("/etc/apt/sources.list")];
    if let Ok(folder) = fs::read_dir("/etc/apt/sources.list.d") {
        files.extend(folder.filter_map(|entry| Some(entry.ok()?.path())));
    }
    let found = files.iter().find_map(|path| {
        let text = fs::read_to_string(path).ok()?;
        match path.extension()?.to_str()? {
            "list" => text.lines().find_map(one_line_source),
            "sources" => text.split("\n\n").find_map(deb822_source),
            _ => None,
        }
    });
    found.context("no Debian archive in /etc/apt/sources.list or sources.list.d")
}

/// Whether that is the archive of all suites, and not of security updates or somebody else's.
fn is_archive(uri: &str) -> bool {
    uri.trim_end_matches('/').ends_with("/debian")
}

/// `deb [options] URI suite component…`
fn one_line_source(line: &str) -> Option<String> {
    let rest = line.trim().strip_prefix("deb ")?.trim();
    let (options, rest) = match rest.strip_prefix('[') {
        Some(rest) => rest.split_once(']')?,
        None => ("", rest),
    };
    let uri = rest.split_whitespace().next()?;
    let signed = options
        .split_whitespace()
        .find(|option| option.starts_with("signed-by=") || option.starts_with("trusted="));
    is_archive(uri).then(|| match signed {
        Some(option) => format!("[{option}] {uri}"),
        None => uri.to_owned(),
    })
}

/// A paragraph of `*.sources`.
fn deb822_source(paragraph: &str) -> Option<String> {
    let field = |name: &str| {
        paragraph.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    };
    field("Types")?
        .split_whitespace()
        .find(|kind| *kind == "deb")?;
    if field("Enabled").is_some_and(|value| value.eq_ignore_ascii_case("no")) {
        return None;
    }
    let uri = field("URIs")?
        .split_whitespace()
        .find(|uri| is_archive(uri))?;
    // A key in the file itself has no path; the machine's own keyring then has to do.
    Some(
        match field("Signed-By").filter(|path| path.starts_with('/')) {
            Some(path) => format!("[signed-by={path}] {uri}"),
            None => uri.to_owned(),
        },
    )
}

/// Runs a program and returns its output.
pub(super) fn run(command: &mut Command) -> Result<Vec<u8>> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command
        .output()
        .with_context(|| format!("start {program}"))?;
    if !output.status.success() {
        bail!(
            "{program}: {}: {}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(output.stdout)
}

/// Writes a file so that nobody ever reads half of it.
pub(super) fn replace_file(path: &Path, contents: impl AsRef<[u8]>) -> Result<()> {
    let folder = path.parent().context("a file without a folder")?;
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    std::io::Write::write_all(&mut file, contents.as_ref())?;
    file.persist(path)
        .with_context(|| format!("write {}", path.display()))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{Series, deb822_source, dependencies, module_name, numbers, one_line_source};
    use std::path::Path;

    #[test]
    fn packages_are_told_apart() {
        let package = Series::V6_12.package();
        assert!(package.matches("linux-image-6.12.117+deb13-cloud-amd64"));
        assert!(!package.matches("linux-image-6.12.117+deb13-cloud-amd64-unsigned"));
        assert!(!package.matches("linux-image-6.12.117+deb13-amd64"));
        let older = "linux-image-6.1.0-9-cloud-amd64";
        assert!(numbers(older) < numbers("linux-image-6.1.0-50-cloud-amd64"));
    }

    #[test]
    fn the_machines_own_archive_is_found() {
        let paragraph = "Types: deb\n# a remark\nURIs: http://mirror.example/debian\nSuites: bookworm\n\
                         Signed-By: /usr/share/keyrings/debian.gpg\n";
        assert_eq!(
            deb822_source(paragraph).unwrap(),
            "[signed-by=/usr/share/keyrings/debian.gpg] http://mirror.example/debian"
        );
        let security = "Types: deb\nURIs: http://mirror.example/debian-security\n";
        assert_eq!(deb822_source(security), None);
        assert_eq!(
            one_line_source("deb http://mirror.example/debian bookworm main").unwrap(),
            "http://mirror.example/debian"
        );
        assert_eq!(
            one_line_source("# deb http://mirror.example/debian x y"),
            None
        );
    }

    #[test]
    fn modules_say_what_they_need() {
        let module = b"\x7fELF\0license=GPL\0depends=udp_tunnel,ip6-udp-tunnel\0name=vxlan\0";
        assert_eq!(dependencies(module), ["udp_tunnel", "ip6_udp_tunnel"]);
        assert!(dependencies(b"\0depends=\0name=veth\0").is_empty());
        assert_eq!(module_name(Path::new("a/nf-x.ko.xz")).unwrap(), "nf_x");
        assert_eq!(module_name(Path::new("a/modules.order")), None);
    }
}
