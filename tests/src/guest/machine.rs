//! One guest: a QEMU process in its launcher's network namespace, and the dialogue with it.

use std::fs::{self, File};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde_json::json;

use super::image::{self, Disk};
use super::initramfs;
use super::kernel::Kernel;
use super::qmp::Qmp;
use super::serial::Serial;
use crate::namespace::{Namespace, Output};
use crate::wait::{PATIENCE, wait_for};

/// Names a folder that keeps the console log of every guest; without it logs go with the guest.
pub const LOGS_VARIABLE: &str = "XKUB_GUEST_LOGS";
/// The emulator.
pub const QEMU: &str = "qemu-system-x86_64";

/// How long a guest may take to boot: two do it in five seconds on two idle cores.
const BOOT_LIMIT: Duration = Duration::from_secs(120);
/// How long a command may run unless it says otherwise.
const COMMAND_LIMIT: Duration = Duration::from_secs(60);
/// How long after its limit an answer is waited for.
const GRACE: Duration = Duration::from_secs(20);
/// How much of the console goes into an error.
const CONSOLE_LINES: usize = 30;
/// The name of the NIC towards QEMU.
const NIC: &str = "uplink";
/// The kernel's tick as `/proc` counts it (`USER_HZ`).
const TICKS_PER_SECOND: f64 = 100.0;

/// What a guest is made of.
#[derive(Debug, Clone)]
pub struct Hardware {
    /// Its name, `guest1`.
    pub name: String,
    /// Virtual CPUs.
    pub cpus: u32,
    /// Pairs of queues of the NIC; more than one needs a tap with `multi_queue`.
    pub queues: u32,
    /// MTU that the NIC offers.
    pub mtu: u32,
    /// The NIC's hardware address.
    pub mac: String,
    /// Whether the guest may change what the NIC does to received packets; a driver without that refuses XDP.
    pub offloads_change: bool,
    /// Programs of ours that it has beside the usual ones, in `/usr/sbin`, on a disk in `/usr/local/bin`.
    pub programs: Vec<PathBuf>,
    /// What it goes on from: a Debian on a disk with these files, or nothing but the initramfs.
    pub disk: Option<Disk>,
}

/// A running guest, killed when dropped.
#[derive(Debug)]
pub struct Guest {
    hardware: Hardware,
    kernel: Kernel,
    process: Process,
    storage: Storage,
    // Last: removed when everything that uses it is gone.
    folder: tempfile::TempDir,
}

/// What stays when the guest is switched off.
#[derive(Debug)]
struct Storage {
    initramfs: PathBuf,
    disk: Option<PathBuf>,
}

/// What ends when the guest is switched off.
#[derive(Debug)]
struct Process {
    /// A shell that ends QEMU when its standard input closes, at the latest when this process ends, however it ends.
    guard: Child,
    serial: Mutex<Serial>,
    qmp: Mutex<Qmp>,
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.guard.stdin.take());
        let _ = self.guard.wait();
    }
}

/// Starts QEMU, and ends it when standard input closes.
const GUARD: &str =
    r#"exec 3<&0; "$@" 3<&- < /dev/null & qemu=$!; read -r _ <&3; kill -KILL $qemu; wait $qemu"#;

impl Guest {
    /// Switches a guest on, on the tap `tap0` of `launcher`, and waits until it serves commands.
    ///
    /// Its uplink is not configured yet.
    ///
    /// # Errors
    /// When QEMU or a program for the guest is missing, or the guest does not come up; the error carries its console.
    pub fn start(launcher: &Namespace, kernel: &Kernel, hardware: Hardware) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("xkub-").tempdir()?;
        let (programs, path) = (&hardware.programs, folder.path());
        let storage = match &hardware.disk {
            None => Storage {
                initramfs: initramfs::build(kernel, programs, path)?,
                disk: None,
            },
            Some(disk) => Storage {
                initramfs: initramfs::build_for_disk(kernel, programs, disk, path)?,
                disk: Some(image::copy(path)?),
            },
        };
        let process = switch_on(launcher, kernel, &hardware, &storage, path)?;
        let guest = Self {
            hardware,
            kernel: kernel.clone(),
            process,
            storage,
            folder,
        };
        guest.wait_ready()?;
        Ok(guest)
    }

    /// The guest's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.hardware.name
    }

    /// What it is made of.
    #[must_use]
    pub fn hardware(&self) -> &Hardware {
        &self.hardware
    }

    /// What it boots.
    #[must_use]
    pub fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    /// Switches the guest off and on again, as when virt-launcher restarts a VM in the same pod. A disk stays as it is, less
    /// what the guest had not written yet.
    ///
    /// # Errors
    /// As [`Guest::start`].
    pub fn reboot(&mut self, launcher: &Namespace) -> Result<()> {
        // The tap has one user: the old QEMU must be gone first.
        drop(self.process.guard.stdin.take());
        self.process.guard.wait()?;
        self.process = switch_on(
            launcher,
            &self.kernel,
            &self.hardware,
            &self.storage,
            self.folder.path(),
        )?;
        self.wait_ready()
    }

    fn wait_ready(&self) -> Result<()> {
        lock(&self.process.serial)
            .wait_ready(BOOT_LIMIT)
            .with_context(|| format!("boot of {}\n{}", self.name(), self.console_tail()))
    }

    /// Runs a shell command to its end and returns what it said, whether it failed or not.
    ///
    /// # Errors
    /// When the guest does not answer; the error carries its console.
    pub fn run(&self, command: &str) -> Result<Output> {
        self.run_within(command, COMMAND_LIMIT)
    }

    /// As [`Guest::run`]; the command is killed after `limit`, with status 137.
    ///
    /// # Errors
    /// As [`Guest::run`].
    pub fn run_within(&self, command: &str, limit: Duration) -> Result<Output> {
        let answer = lock(&self.process.serial)
            .run(command, limit, GRACE)
            .with_context(|| format!("`{command}` in {}\n{}", self.name(), self.console_tail()))?;
        Ok(Output {
            line: format!("`{command}` in {}", self.name()),
            // As waitpid(2) reports an exit code.
            status: ExitStatus::from_raw((answer.status & 0xff) << 8),
            stdout: String::from_utf8_lossy(&answer.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&answer.stderr).into_owned(),
        })
    }

    /// Runs a shell command that must succeed and returns its standard output.
    ///
    /// # Errors
    /// When it fails; the error carries what it said.
    pub fn check(&self, command: &str) -> Result<String> {
        self.run(command)?.success()
    }

    /// Starts a shell command in the background.
    ///
    /// # Errors
    /// When the guest does not answer.
    pub fn spawn(&self, command: &str) -> Result<Background<'_>> {
        // The number of the process is also its group's, so that all of it can be ended.
        let log = "/tmp/background.$$";
        let text = self.check(&format!(
            "setsid dash -c 'exec > {log}.out 2> {log}.err < /dev/null; ( {} ); echo $? > {log}.status' & echo $!",
            command.replace('\'', r"'\''")
        ))?;
        let process = text.trim().to_owned();
        process
            .parse::<u32>()
            .with_context(|| format!("the shell said {text:?}"))?;
        Ok(Background {
            guest: self,
            command: command.to_owned(),
            process,
        })
    }

    /// Runs `ip` commands, one a line, without the word `ip`.
    ///
    /// # Errors
    /// When one of them fails; the error carries `ip`'s message and the batch.
    pub fn ip(&self, batch: &str) -> Result<()> {
        self.check(&format!("ip -batch - <<'END'\n{batch}\nEND"))
            .map(drop)
    }

    /// Pulls the NIC out, as the infra cluster can, and waits until the guest has let go of it.
    ///
    /// # Errors
    /// When QEMU refuses, or the guest does not let go.
    pub fn unplug_nic(&self) -> Result<()> {
        let mut qmp = lock(&self.process.qmp);
        qmp.execute("device_del", &json!({ "id": NIC }))?;
        qmp.wait_event("DEVICE_DELETED", PATIENCE, |event| {
            event.pointer("/data/device").and_then(|id| id.as_str()) == Some(NIC)
        })
    }

    /// Puts the NIC back in.
    ///
    /// # Errors
    /// When QEMU refuses.
    pub fn plug_nic(&self) -> Result<()> {
        let mut arguments = json!({
            "driver": "virtio-net-pci", "id": NIC, "netdev": NIC,
            "mac": self.hardware.mac, "host_mtu": self.hardware.mtu,
        });
        if self.hardware.queues > 1
            && let Some(arguments) = arguments.as_object_mut()
        {
            arguments.insert("mq".to_owned(), json!(true));
            arguments.insert("vectors".to_owned(), json!(vectors(self.hardware.queues)));
        }
        lock(&self.process.qmp)
            .execute("device_add", &arguments)
            .map(drop)
    }

    /// Makes the guest tell its network where it is, as QEMU does at the end of a live migration.
    ///
    /// # Errors
    /// When QEMU refuses.
    pub fn announce(&self) -> Result<()> {
        // Milliseconds; QEMU's own figures for a migration (`announce_self` in migration/options.c).
        let parameters = json!({ "initial": 50, "max": 550, "rounds": 5, "step": 100 });
        lock(&self.process.qmp)
            .execute("announce-self", &parameters)
            .map(drop)
    }

    /// Everything the kernel and the first process have written to the console.
    ///
    /// # Errors
    /// When the log can't be read.
    pub fn console(&self) -> Result<String> {
        let bytes = fs::read(console_path(self.folder.path(), &self.hardware.name))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn console_tail(&self) -> String {
        let console = self.console().unwrap_or_default();
        let lines: Vec<&str> = console.lines().collect();
        let from = lines.len().saturating_sub(CONSOLE_LINES);
        let qemu = fs::read_to_string(self.folder.path().join("qemu.log")).unwrap_or_default();
        format!(
            "{qemu}--- console\n{}\n---",
            lines.get(from..).unwrap_or_default().join("\n")
        )
    }

    /// The socket on which a shell for a person runs.
    #[must_use]
    pub fn shell_socket(&self) -> PathBuf {
        self.folder.path().join("shell")
    }

    /// Processor time that the machine has spent on this guest so far, in seconds.
    ///
    /// # Errors
    /// When QEMU is gone.
    pub fn host_cpu_seconds(&self) -> Result<f64> {
        let pid = fs::read_to_string(self.folder.path().join("pid"))?;
        let text = fs::read_to_string(format!("/proc/{}/stat", pid.trim()))?;
        let (_, after_name) = text.rsplit_once(')').context("/proc/PID/stat")?;
        // Fields 14 and 15: utime and stime, of all threads.
        let ticks = after_name.split_whitespace().skip(11).take(2);
        Ok(ticks
            .filter_map(|ticks| ticks.parse::<f64>().ok())
            .sum::<f64>()
            / TICKS_PER_SECOND)
    }

    /// Processor time that the guest believes to have spent on anything but idling, in seconds.
    ///
    /// # Errors
    /// When the guest does not answer.
    pub fn cpu_seconds(&self) -> Result<f64> {
        let text = self.check("head -n 1 /proc/stat")?;
        // cpu user nice system idle iowait irq softirq steal
        let fields: Vec<f64> = text
            .split_whitespace()
            .filter_map(|field| field.parse().ok())
            .collect();
        let busy = [0, 1, 2, 5, 6]
            .iter()
            .filter_map(|&index| fields.get(index));
        Ok(busy.sum::<f64>() / TICKS_PER_SECOND)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Interrupts of a NIC with so many pairs of queues: one each, one for control, one for configuration.
fn vectors(queues: u32) -> u32 {
    2 * queues + 2
}

fn console_path(folder: &Path, name: &str) -> PathBuf {
    match std::env::var_os(LOGS_VARIABLE) {
        Some(logs) => {
            // The folder's random name tells guests of the same name apart.
            let unique = folder.file_name().unwrap_or_default().to_string_lossy();
            PathBuf::from(logs).join(format!("{name}-{unique}.log"))
        }
        None => folder.join("console.log"),
    }
}

fn switch_on(
    launcher: &Namespace,
    kernel: &Kernel,
    hardware: &Hardware,
    storage: &Storage,
    folder: &Path,
) -> Result<Process> {
    let Hardware {
        name,
        cpus,
        queues,
        mtu,
        mac,
        offloads_change,
        programs: _,
        disk: _,
    } = hardware;
    let path = |name: &str| folder.join(name).to_string_lossy().into_owned();
    // QEMU connects to sockets that are there already, so that nothing it says is lost.
    let listen = |name: &str| -> Result<UnixListener> {
        let _ = fs::remove_file(folder.join(name));
        let listener = UnixListener::bind(folder.join(name))?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    };
    let (agent, monitor) = (listen("agent")?, listen("monitor")?);
    let mut netdev = format!("tap,id={NIC},ifname=tap0,script=no,downscript=no");
    let mut device =
        format!("virtio-net-pci,id={NIC},netdev={NIC},mac={mac},host_mtu={mtu},romfile=");
    if *queues > 1 {
        netdev = format!("{netdev},queues={queues}");
        device = format!("{device},mq=on,vectors={}", vectors(*queues));
    }
    if !offloads_change {
        device += ",ctrl_guest_offloads=off";
    }
    let console = console_path(folder, name);
    if let Some(folder) = console.parent() {
        fs::create_dir_all(folder)?;
    }
    let image = kernel.image.to_string_lossy().into_owned();
    let initramfs = storage.initramfs.to_string_lossy().into_owned();
    let (cpus, pid) = (cpus.to_string(), path("pid"));
    let console = format!("file,id=console,append=on,path={}", console.display());
    let (agent_path, shell_path, monitor_path) = (
        format!("socket,id=agent,path={}", path("agent")),
        format!("socket,id=shell,server=on,wait=off,path={}", path("shell")),
        format!("socket,id=monitor,path={}", path("monitor")),
    );
    // The emulated timer of a guest that gets too little of the processor fails the kernel's check, which then falls back
    // on one that stops.
    let mut append =
        format!("console=ttyS0 quiet panic=-1 net.ifnames=0 no_timer_check xkub.name={name}");
    if storage.disk.is_some() {
        append = format!(
            "{append} systemd.hostname={name} systemd.show_status=no systemd.wants={}",
            image::AGENT_UNIT_NAME
        );
    }
    let mut command = launcher.command("sh");
    command.args(["-c", GUARD, "sh", QEMU]);
    command.args(["-nodefaults", "-no-user-config", "-no-reboot"]);
    command.args(["-display", "none", "-machine", "pc", "-accel", "tcg"]);
    command.args(["-m", "512", "-smp", &cpus, "-pidfile", &pid]);
    command.args(["-kernel", &image, "-initrd", &initramfs, "-append", &append]);
    for (chardev, port) in [
        (&console, "console"),
        (&agent_path, "agent"),
        (&shell_path, "shell"),
    ] {
        command.args(["-chardev", chardev, "-serial", &format!("chardev:{port}")]);
    }
    command.args([
        "-chardev",
        &monitor_path,
        "-mon",
        "chardev=monitor,mode=control",
    ]);
    command.args(["-netdev", &netdev, "-device", &device]);
    if let Some(disk) = &storage.disk {
        // Nothing is kept from the host's page cache, so that QEMU's end loses no more than a power cut.
        let drive = format!(
            "if=none,id=disk,format=raw,cache=unsafe,file={}",
            disk.display()
        );
        command.args(["-drive", &drive, "-device", "virtio-blk-pci,drive=disk"]);
    }
    let log = File::create(folder.join("qemu.log"))?;
    command
        .stdin(Stdio::piped())
        .stdout(log.try_clone()?)
        .stderr(log);
    let mut guard = command.spawn().context("start QEMU")?;
    let connected = (|| {
        Ok((
            accept(&agent, folder)?,
            Qmp::new(accept(&monitor, folder)?)?,
        ))
    })();
    match connected {
        Ok((agent, qmp)) => Ok(Process {
            guard,
            serial: Mutex::new(Serial::new(agent)),
            qmp: Mutex::new(qmp),
        }),
        Err(error) => {
            drop(guard.stdin.take());
            let _ = guard.wait();
            Err(error)
        }
    }
}

/// QEMU's connection, or why there is none.
fn accept(listener: &UnixListener, folder: &Path) -> Result<UnixStream> {
    let stream = wait_for("QEMU to connect", PATIENCE, || match listener.accept() {
        Ok((stream, _)) => Ok(Some(stream)),
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
            let said = fs::read_to_string(folder.join("qemu.log")).unwrap_or_default();
            if said.contains("not found") || said.contains(&format!("{QEMU}: -")) {
                bail!("QEMU did not start: {}", said.trim());
            }
            Ok(None)
        }
        Err(error) => Err(error.into()),
    })?;
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// A command that runs in a guest until this is dropped.
#[derive(Debug)]
pub struct Background<'a> {
    guest: &'a Guest,
    command: String,
    process: String,
}

impl Background<'_> {
    /// What it has written to standard output so far.
    ///
    /// # Errors
    /// When the guest does not answer.
    pub fn stdout(&self) -> Result<String> {
        self.read("out")
    }

    /// What it has written to standard error so far.
    ///
    /// # Errors
    /// When the guest does not answer.
    pub fn stderr(&self) -> Result<String> {
        self.read("err")
    }

    fn read(&self, kind: &str) -> Result<String> {
        self.guest
            // It may not have got so far as to open its files.
            .check(&format!(
                "cat /tmp/background.{}.{kind} 2> /dev/null || true",
                self.process
            ))
    }

    /// Waits until either output contains `text`.
    ///
    /// # Errors
    /// When `limit` has passed, or the command ended before; the error carries both outputs.
    pub fn wait_output(&self, text: &str, limit: Duration) -> Result<()> {
        let what = format!("`{}` to say {text:?}", self.command);
        wait_for(&what, limit, || {
            let status = self.status()?;
            if self.stdout()?.contains(text) || self.stderr()?.contains(text) {
                return Ok(Some(()));
            }
            if let Some(status) = status {
                bail!("it ended before, with status {status}");
            }
            Ok(None)
        })
        .with_context(|| {
            format!(
                "{}{}",
                self.stdout().unwrap_or_default(),
                self.stderr().unwrap_or_default()
            )
        })
    }

    fn status(&self) -> Result<Option<i32>> {
        let text = self
            .guest
            .run(&format!("cat /tmp/background.{}.status", self.process))?
            .stdout;
        Ok(text.trim().parse().ok())
    }

    /// Waits for its end and returns its status and what it said.
    ///
    /// # Errors
    /// When `limit` has passed before.
    pub fn wait(self, limit: Duration) -> Result<Output> {
        let what = format!("the end of `{}` in {}", self.command, self.guest.name());
        let status = wait_for(&what, limit, || self.status()).with_context(|| {
            format!(
                "{}{}",
                self.stdout().unwrap_or_default(),
                self.stderr().unwrap_or_default()
            )
        })?;
        Ok(Output {
            line: format!("`{}` in {}", self.command, self.guest.name()),
            status: ExitStatus::from_raw((status & 0xff) << 8),
            stdout: self.stdout()?,
            stderr: self.stderr()?,
        })
    }

    /// Sends a signal to it and everything it started: `KILL`, `TERM`.
    ///
    /// # Errors
    /// When the guest does not answer.
    pub fn signal(&self, signal: &str) -> Result<()> {
        self.guest
            .run(&format!("kill -{signal} -{}", self.process))
            .map(drop)
    }
}

impl Drop for Background<'_> {
    fn drop(&mut self) {
        let _ = self.signal("KILL");
    }
}
