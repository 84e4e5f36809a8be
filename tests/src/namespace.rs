//! A network namespace with its own mounts, as an object that removes it when dropped.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::signal::Signal;

use crate::wait::wait_until;

/// How long a command may run before it is killed and counted as failed.
const COMMAND_LIMIT: Duration = Duration::from_secs(120);

/// How long the output of a command that has ended is waited for, should a grandchild hold the pipe open.
const DRAIN_LIMIT: Duration = Duration::from_secs(2);

/// A network namespace together with a mount namespace, held by a process of ours.
///
/// Inside, `/sys` shows this namespace's devices, `/sys/fs/bpf` is a bpffs of its own (unless built without) and
/// `/run` is empty, so that locks and pins are not shared with the host or another lab.
#[derive(Debug)]
pub struct Namespace {
    name: String,
    holder: Holder,
    net: File,
    mounts: File,
}

/// The process that keeps the namespaces alive.
#[derive(Debug)]
enum Holder {
    /// A child that ends when its standard input closes: at the latest when this process ends, however it ends.
    Guarded(Child),
    /// A process that outlives us; its end is somebody else's decision. It is never waited for: init reaps it.
    Standing(i32),
}

/// How a namespace is made.
#[derive(Debug, Clone)]
pub struct NamespaceBuilder {
    name: String,
    bpffs: bool,
    standing: bool,
}

impl NamespaceBuilder {
    /// Leaves `/sys/fs/bpf` unmounted.
    #[must_use]
    pub fn without_bpffs(mut self) -> Self {
        self.bpffs = false;
        self
    }

    /// Makes it possible that the namespace outlives this process; see [`Namespace::leave_standing`].
    #[must_use]
    pub fn standing(mut self, standing: bool) -> Self {
        self.standing = standing;
        self
    }

    /// Makes the namespace and brings its loopback device up.
    ///
    /// # Errors
    /// When this process may not make namespaces (it needs root), or `ip` is missing.
    pub fn build(self) -> Result<Namespace> {
        let Self {
            name,
            bpffs,
            standing,
        } = self;
        let mut command = if standing {
            let mut command = Command::new("sleep");
            command.arg("infinity").stdin(Stdio::null());
            command
        } else {
            // `cat` ends when the other end of its standard input closes. A parent-death signal would not do: it
            // fires when the *thread* that forked ends, and a lab may be handed to another thread.
            let mut command = Command::new("cat");
            command.stdin(Stdio::piped());
            command
        };
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let set_up = move || -> io::Result<()> {
            if standing {
                // Detached from the terminal: Ctrl-C there must not end the lab.
                nix::unistd::setsid()?;
            }
            unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS)?;
            let none = None::<&str>;
            mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
            umount2("/sys", MntFlags::MNT_DETACH)?;
            mount(Some("sysfs"), "/sys", Some("sysfs"), MsFlags::empty(), none)?;
            if bpffs {
                mount(
                    Some("bpf"),
                    "/sys/fs/bpf",
                    Some("bpf"),
                    MsFlags::empty(),
                    none,
                )?;
            }
            mount(Some("tmpfs"), "/run", Some("tmpfs"), MsFlags::empty(), none)?;
            Ok(())
        };
        // SAFETY: the closure only makes system calls with static arguments; it neither allocates nor locks.
        unsafe { command.pre_exec(set_up) };
        let child = command
            .spawn()
            .with_context(|| format!("make namespace {name} (this needs root)"))?;
        let pid = i32::try_from(child.id())?;
        let (net, mounts) = open_namespaces(pid)?;
        let namespace = Namespace {
            name,
            holder: Holder::Guarded(child),
            net,
            mounts,
        };
        namespace.ip("link set lo up")?;
        Ok(namespace)
    }
}

impl Namespace {
    /// Starts describing a namespace; `name` is for messages only and need not be unique.
    pub fn builder(name: impl Into<String>) -> NamespaceBuilder {
        NamespaceBuilder {
            name: name.into(),
            bpffs: true,
            standing: false,
        }
    }

    /// A namespace with everything as usual.
    ///
    /// # Errors
    /// As [`NamespaceBuilder::build`].
    pub fn new(name: impl Into<String>) -> Result<Self> {
        Self::builder(name).build()
    }

    /// The namespaces that this process is in; nothing ends when this is dropped.
    ///
    /// # Errors
    /// Without `/proc`.
    pub fn here() -> Result<Self> {
        let pid = i32::try_from(std::process::id())?;
        let (net, mounts) = open_namespaces(pid)?;
        Ok(Self {
            name: "here".to_owned(),
            holder: Holder::Standing(pid),
            net,
            mounts,
        })
    }

    /// What the namespace is called in messages.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The process that holds the namespace: `nsenter --target PID --net --mount` enters it, and `ip … netns PID`
    /// names it.
    #[must_use]
    pub fn pid(&self) -> i32 {
        match &self.holder {
            // Process ids fit: the kernel's limit is 2^22.
            Holder::Guarded(child) => i32::try_from(child.id()).unwrap_or(i32::MAX),
            Holder::Standing(pid) => *pid,
        }
    }

    /// Leaves the namespace standing when this object is dropped, and when this process ends if it was built with
    /// [`NamespaceBuilder::standing`]; whoever ends the process [`Namespace::pid`] ends it.
    pub fn leave_standing(&mut self) {
        self.holder = Holder::Standing(self.pid());
    }

    /// A command that will run inside this namespace.
    #[must_use]
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        let (net, mounts) = (self.net.as_raw_fd(), self.mounts.as_raw_fd());
        let enter = move || -> io::Result<()> {
            // SAFETY: `Namespace` keeps both descriptors open while its commands are started.
            let (net, mounts) =
                unsafe { (BorrowedFd::borrow_raw(net), BorrowedFd::borrow_raw(mounts)) };
            setns(net, CloneFlags::CLONE_NEWNET)?;
            setns(mounts, CloneFlags::CLONE_NEWNS)?;
            Ok(())
        };
        // SAFETY: the closure only makes system calls; it neither allocates nor locks.
        unsafe { command.pre_exec(enter) };
        command
    }

    /// Runs a command inside to its end and returns what it said, whether it failed or not.
    ///
    /// # Errors
    /// When the program can't be started, or has not ended after two minutes (it is killed then).
    pub fn run<S: AsRef<OsStr>>(&self, argv: impl IntoIterator<Item = S>) -> Result<Output> {
        self.run_with_input(argv, "")
    }

    /// As [`Namespace::run`], with text on standard input.
    ///
    /// # Errors
    /// As [`Namespace::run`].
    pub fn run_with_input<S: AsRef<OsStr>>(
        &self,
        argv: impl IntoIterator<Item = S>,
        input: &str,
    ) -> Result<Output> {
        let mut argv = argv.into_iter();
        let program = argv.next().ok_or_else(|| anyhow!("an empty command"))?;
        let mut command = self.command(&program);
        command.args(argv);
        let line = command_line(&command);
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let child = command
            .spawn()
            .with_context(|| format!("start `{line}` in {}", self.name))?;
        let mut running = Running::new(format!("`{line}` in {}", self.name), child);
        if let Some(mut stdin) = running.child.stdin.take() {
            // A program that does not read its input closes it: its own message is then the better one.
            let _ = stdin.write_all(input.as_bytes());
        }
        if !running.wait_limit(COMMAND_LIMIT)? {
            bail!(
                "{} did not end within {COMMAND_LIMIT:?}\n{}{}",
                running.line,
                running.stdout(),
                running.stderr()
            );
        }
        running.finish()
    }

    /// Runs a command inside that must succeed and returns its standard output.
    ///
    /// # Errors
    /// When it can't be started or fails; the error carries what it said.
    pub fn check<S: AsRef<OsStr>>(&self, argv: impl IntoIterator<Item = S>) -> Result<String> {
        self.run(argv)?.success()
    }

    /// Starts a command inside that goes on in the background until the guard is dropped.
    ///
    /// It also ends when the thread that started it ends, so that an aborted test leaves nothing behind.
    ///
    /// # Errors
    /// When it can't be started.
    pub fn spawn<S: AsRef<OsStr>>(&self, argv: impl IntoIterator<Item = S>) -> Result<Running> {
        let mut argv = argv.into_iter();
        let program = argv.next().ok_or_else(|| anyhow!("an empty command"))?;
        let mut command = self.command(&program);
        command.args(argv);
        // SAFETY: one system call; it neither allocates nor locks.
        unsafe {
            command.pre_exec(|| {
                nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?;
                Ok(())
            });
        }
        let line = command_line(&command);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let child = command
            .spawn()
            .with_context(|| format!("start `{line}` in {}", self.name))?;
        Ok(Running::new(format!("`{line}` in {}", self.name), child))
    }

    /// Runs `ip` commands, one a line, without the word `ip`.
    ///
    /// # Errors
    /// When one of them fails; the error carries `ip`'s message and the batch.
    pub fn ip(&self, batch: &str) -> Result<()> {
        let output = self.run_with_input(["ip", "-batch", "-"], batch)?;
        if !output.status.success() {
            bail!(
                "`ip -batch` in {}: {}\n{batch}",
                self.name,
                output.stderr.trim()
            );
        }
        Ok(())
    }

    /// Loads an nftables ruleset.
    ///
    /// # Errors
    /// When `nft` refuses it; the error carries its message.
    pub fn nft(&self, ruleset: &str) -> Result<()> {
        self.run_with_input(["nft", "-f", "-"], ruleset)?
            .success()
            .map(drop)
    }

    /// Sets a sysctl of this network namespace, named with slashes: `net/ipv4/ip_forward`.
    ///
    /// # Errors
    /// When there is no such sysctl, or the kernel refuses the value.
    pub fn sysctl(&self, name: &str, value: &str) -> Result<()> {
        // /proc/sys/net shows the namespace of the task that opens it, so a thread inside is enough.
        self.within(|| fs::write(format!("/proc/sys/{name}"), value))?
            .with_context(|| format!("set {name} to {value} in {}", self.name))
    }

    /// Runs `action` on a thread that stands in this network namespace (the mounts stay the host's).
    ///
    /// Sockets opened there belong to the namespace for good and may be used from any thread afterwards.
    ///
    /// # Errors
    /// When the namespace can't be entered. A panic in `action` is passed on.
    pub fn within<T: Send>(&self, action: impl FnOnce() -> T + Send) -> Result<T> {
        let outcome = std::thread::scope(|scope| {
            scope
                .spawn(|| {
                    setns(self.net.as_fd(), CloneFlags::CLONE_NEWNET)?;
                    Ok::<T, nix::Error>(action())
                })
                .join()
        });
        match outcome {
            Ok(value) => value.with_context(|| format!("enter {}", self.name)),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }

    /// The index of the device `name`.
    ///
    /// # Errors
    /// When there is none.
    pub fn interface_index(&self, name: &str) -> Result<u32> {
        self.within(|| nix::net::if_::if_nametoindex(name))?
            .with_context(|| format!("device {name} in {}", self.name))
    }

    /// The hardware address of the device `name`, as `aa:bb:cc:dd:ee:ff`.
    ///
    /// # Errors
    /// When there is no such device.
    pub fn mac(&self, name: &str) -> Result<String> {
        let text = self.check(["cat", &format!("/sys/class/net/{name}/address")])?;
        Ok(text.trim().to_owned())
    }

    /// One counter of this namespace's stack as `nstat` names it: `UdpInCsumErrors`, `Udp6InDatagrams`…
    ///
    /// # Errors
    /// When `nstat` fails or knows no such counter.
    pub fn counter(&self, name: &str) -> Result<u64> {
        // -a: absolute values; -s: no history file; -z: zeros too.
        let text = self.check(["nstat", "-a", "-s", "-z", name])?;
        text.lines()
            .find_map(|line| {
                let mut fields = line.split_whitespace();
                (fields.next() == Some(name))
                    .then(|| fields.next()?.parse().ok())
                    .flatten()
            })
            .ok_or_else(|| anyhow!("no counter {name} in {}", self.name))
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        if let Holder::Guarded(child) = &mut self.holder {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn open_namespaces(pid: i32) -> Result<(File, File)> {
    let open = |kind: &str| {
        let path = format!("/proc/{pid}/ns/{kind}");
        File::open(&path).with_context(|| format!("open {path}"))
    };
    Ok((open("net")?, open("mnt")?))
}

fn command_line(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words
        .map(|word| word.to_string_lossy())
        .collect::<Vec<_>>()
        .join(" ")
}

/// What a command that has ended said.
#[derive(Debug, Clone)]
pub struct Output {
    /// The command and where it ran, for messages.
    pub line: String,
    /// How it ended.
    pub status: ExitStatus,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
}

impl Output {
    /// The standard output, if the command succeeded.
    ///
    /// # Errors
    /// When it failed; the error carries both outputs.
    pub fn success(self) -> Result<String> {
        if self.status.success() {
            return Ok(self.stdout);
        }
        bail!(
            "{}: {}\n{}{}",
            self.line,
            self.status,
            self.stdout,
            self.stderr
        )
    }

    /// The exit code; `None` when a signal ended it.
    #[must_use]
    pub fn code(&self) -> Option<i32> {
        self.status.code()
    }
}

/// A command that runs in the background; dropping it kills and reaps it.
#[derive(Debug)]
pub struct Running {
    line: String,
    child: Child,
    stdout: Collected,
    stderr: Collected,
}

/// Output that a thread collects while the command runs.
#[derive(Debug, Default)]
struct Collected {
    text: Arc<Mutex<Vec<u8>>>,
    reader: Option<JoinHandle<()>>,
}

impl Collected {
    fn start(source: Option<impl Read + Send + 'static>) -> Self {
        let text = Arc::<Mutex<Vec<u8>>>::default();
        let reader = source.map(|mut source| {
            let text = Arc::clone(&text);
            std::thread::spawn(move || {
                let mut buffer = [0; 4096];
                while let Ok(length @ 1..) = source.read(&mut buffer) {
                    let mut text = text.lock().unwrap_or_else(PoisonError::into_inner);
                    text.extend(buffer.iter().take(length));
                }
            })
        });
        Self { text, reader }
    }

    fn text(&self) -> String {
        let text = self.text.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&text).into_owned()
    }

    /// The whole output of a child that has ended. A grandchild that holds the pipe open is not waited for.
    fn finish(&mut self) -> String {
        if let Some(reader) = self.reader.take() {
            let _ = wait_until("the end of the output", DRAIN_LIMIT, || {
                Ok(reader.is_finished())
            });
        }
        self.text()
    }
}

impl Running {
    fn new(line: String, mut child: Child) -> Self {
        let stdout = Collected::start(child.stdout.take());
        let stderr = Collected::start(child.stderr.take());
        Self {
            line,
            child,
            stdout,
            stderr,
        }
    }

    /// The process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it has written to standard output so far.
    #[must_use]
    pub fn stdout(&self) -> String {
        self.stdout.text()
    }

    /// What it has written to standard error so far.
    #[must_use]
    pub fn stderr(&self) -> String {
        self.stderr.text()
    }

    /// Waits until either output contains `text`.
    ///
    /// # Errors
    /// When it ended before, or `limit` has passed; the error carries both outputs.
    pub fn wait_output(&mut self, text: &str, limit: Duration) -> Result<()> {
        let what = format!("{} to say {text:?}", self.line);
        let said = wait_until(&what, limit, || {
            let ended = self.child.try_wait()?.is_some();
            if self.stdout().contains(text) || self.stderr().contains(text) {
                return Ok(true);
            }
            if ended {
                bail!("{} ended before it said {text:?}", self.line);
            }
            Ok(false)
        });
        said.with_context(|| format!("{}{}", self.stdout(), self.stderr()))
    }

    /// Whether it still runs.
    ///
    /// # Errors
    /// When the process can't be looked at.
    pub fn is_running(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_none())
    }

    /// Sends a signal to it.
    ///
    /// # Errors
    /// When it has ended.
    pub fn signal(&mut self, signal: Signal) -> Result<()> {
        if self.child.try_wait()?.is_some() {
            // Its number may be somebody else's by now.
            bail!("{} has ended already", self.line);
        }
        let pid = nix::unistd::Pid::from_raw(i32::try_from(self.child.id())?);
        nix::sys::signal::kill(pid, signal).with_context(|| format!("{signal} to {}", self.line))
    }

    /// Waits for its end and returns what it said; it is killed after `limit`.
    ///
    /// # Errors
    /// When `limit` passed before.
    pub fn wait(mut self, limit: Duration) -> Result<Output> {
        if !self.wait_limit(limit)? {
            bail!(
                "{} did not end within {limit:?}\n{}{}",
                self.line,
                self.stdout(),
                self.stderr()
            );
        }
        self.finish()
    }

    /// Kills it at once and returns what it had said.
    ///
    /// # Errors
    /// When it can't be waited for.
    pub fn kill(mut self) -> Result<Output> {
        self.child.kill()?;
        self.finish()
    }

    /// Waits for the end without a busy loop; false when `limit` passed first.
    fn wait_limit(&mut self, limit: Duration) -> Result<bool> {
        if self.child.try_wait()?.is_some() {
            return Ok(true);
        }
        let pid = libc::pid_t::try_from(self.child.id())?;
        // SAFETY: pidfd_open takes two integers; our own child can't have been reaped by anyone else.
        let descriptor = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
        let descriptor = i32::try_from(descriptor)?;
        if descriptor < 0 {
            return Err(io::Error::last_os_error()).context("pidfd_open");
        }
        // SAFETY: the kernel just gave us this descriptor and nobody else knows it.
        let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
        let deadline = Instant::now() + limit;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
            let mut descriptors = [PollFd::new(descriptor.as_fd(), PollFlags::POLLIN)];
            match poll(&mut descriptors, timeout) {
                Ok(0) if Instant::now() >= deadline => return Ok(false),
                Ok(0) | Err(nix::Error::EINTR) => {}
                Ok(_) => return Ok(true),
                Err(error) => return Err(error).context("wait for a command"),
            }
        }
    }

    fn finish(mut self) -> Result<Output> {
        let status = self.child.wait()?;
        Ok(Output {
            line: std::mem::take(&mut self.line),
            status,
            stdout: self.stdout.finish(),
            stderr: self.stderr.finish(),
        })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
