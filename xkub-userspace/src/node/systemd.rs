//! systemd over D-Bus: restarting a worker, and what its process is.
//!
//! Whoever waits for a job must not be in its way: a unit with `After=xkub-agent.service` starts only when the
//! agent's own start is over. So the agent says that it is ready before it restarts its worker.

use std::{
    fs, io,
    path::Path,
    time::{Duration, UNIX_EPOCH},
};

use futures::StreamExt as _;
use thiserror::Error;
use tokio::time::timeout;
use zbus_systemd::{
    systemd1::{ManagerProxy, ServiceProxy, UnitProxy},
    zbus::{self, OwnedObjectPath},
};

use super::node_ip::Running;

/// The bus, and with it the system manager.
const BOOTED: &str = "/run/systemd/system";
/// Restarting a worker stops what it started first; `TimeoutStopSec=` is 90 s by default.
const JOB_TIMEOUT: Duration = Duration::from_secs(180);
/// `UnitFileState`, `ActiveState`, … answer at once, or never.
const CALL_TIMEOUT: Duration = Duration::from_secs(25);

/// Why systemd did not do it.
#[derive(Debug, Error)]
pub enum SystemdError {
    /// Something else is PID 1.
    #[error(
        "this system was not booted with systemd ({BOOTED} does not exist), so {wanted} is not possible"
    )]
    NotBooted {
        /// What was wanted.
        wanted: String,
    },
    /// The bus does not answer.
    #[error("no connection to systemd over the system bus: {0}; is dbus.service active?")]
    NoBus(zbus::Error),
    /// It refused, or does not know.
    #[error("systemd did not {wanted}: {reason}")]
    Refused {
        /// What was wanted.
        wanted: String,
        /// Its answer.
        reason: zbus::Error,
    },
    /// It did not say.
    #[error("systemd did not {wanted} within {} s", after.as_secs())]
    Timeout {
        /// What was wanted.
        wanted: String,
        /// How long it was waited for.
        after: Duration,
    },
    /// A job ended otherwise than well.
    #[error("systemd's job to {wanted} ended with \"{result}\"; see: journalctl -u {unit}")]
    Job {
        /// What was wanted.
        wanted: String,
        /// The unit.
        unit: String,
        /// `failed`, `timeout`, `dependency`, `canceled`, `skipped`, … (org.freedesktop.systemd1(5) `JobRemoved`).
        result: String,
    },
    /// `/proc` does not tell.
    #[error("/proc/{pid}/cmdline can't be read: {reason}")]
    Process {
        /// The process.
        pid: u32,
        /// The system's answer.
        reason: io::Error,
    },
}

/// Whether this system was booted with systemd (`sd_booted(3)`).
#[must_use]
pub fn is_booted() -> bool {
    Path::new(BOOTED).is_dir()
}

/// The system manager.
#[derive(Clone, Debug)]
pub struct Systemd {
    connection: zbus::Connection,
    manager: ManagerProxy<'static>,
}

impl Systemd {
    /// Connects to it.
    ///
    /// # Errors
    /// [`SystemdError::NotBooted`], [`SystemdError::NoBus`], [`SystemdError::Refused`].
    pub async fn connect() -> Result<Self, SystemdError> {
        if !is_booted() {
            return Err(SystemdError::NotBooted {
                wanted: "asking it for a unit".to_owned(),
            });
        }
        let connection = zbus::Connection::system()
            .await
            .map_err(SystemdError::NoBus)?;
        let manager = ManagerProxy::new(&connection)
            .await
            .map_err(SystemdError::NoBus)?;
        // Without a subscriber systemd sends no signals; a second subscription it refuses.
        within(CALL_TIMEOUT, "send signals", manager.subscribe()).await?;
        Ok(Self {
            connection,
            manager,
        })
    }

    /// Reads all unit files again.
    ///
    /// # Errors
    /// [`SystemdError::Refused`], [`SystemdError::Timeout`].
    pub async fn reload(&self) -> Result<(), SystemdError> {
        within(CALL_TIMEOUT, "reload its units", self.manager.reload()).await
    }

    /// Restarts a unit, or starts it, and waits until that is done.
    ///
    /// # Errors
    /// [`SystemdError::Job`] when it did not end well, and as [`Self::reload`].
    pub async fn restart(&self, unit: &str) -> Result<(), SystemdError> {
        let name = unit.to_owned();
        // "replace": a job that is in the queue already gives way.
        let job = self.manager.restart_unit(name, "replace".to_owned());
        self.job(format!("restart {unit}"), unit, job).await
    }

    /// Starts a unit unless it runs, and waits until that is done.
    ///
    /// # Errors
    /// As [`Self::restart`].
    pub async fn start(&self, unit: &str) -> Result<(), SystemdError> {
        let job = self
            .manager
            .start_unit(unit.to_owned(), "replace".to_owned());
        self.job(format!("start {unit}"), unit, job).await
    }

    /// Stops a unit if it runs, and waits until that is done.
    ///
    /// # Errors
    /// As [`Self::restart`].
    pub async fn stop(&self, unit: &str) -> Result<(), SystemdError> {
        let job = self
            .manager
            .stop_unit(unit.to_owned(), "replace".to_owned());
        self.job(format!("stop {unit}"), unit, job).await
    }

    /// Whether a unit is loaded from a file that is there.
    ///
    /// # Errors
    /// [`SystemdError::Refused`], [`SystemdError::Timeout`].
    pub async fn exists(&self, unit: &str) -> Result<bool, SystemdError> {
        let proxy = self.unit(unit).await?;
        let state = within(CALL_TIMEOUT, &format!("look {unit} up"), proxy.load_state()).await?;
        Ok(state == "loaded")
    }

    /// Whether a unit runs.
    ///
    /// # Errors
    /// As [`Self::exists`].
    pub async fn is_active(&self, unit: &str) -> Result<bool, SystemdError> {
        let proxy = self.unit(unit).await?;
        let state = within(
            CALL_TIMEOUT,
            &format!("look {unit} up"),
            proxy.active_state(),
        )
        .await?;
        Ok(matches!(
            state.as_str(),
            "active" | "activating" | "reloading"
        ))
    }

    /// The process of a service, as it was really started; none where it does not run.
    ///
    /// # Errors
    /// As [`Self::exists`]; [`SystemdError::Process`].
    pub async fn running(&self, unit: &str) -> Result<Option<Running>, SystemdError> {
        let wanted = format!("say which process {unit} is");
        let path = self.path(unit).await?;
        let service = within(
            CALL_TIMEOUT,
            &wanted,
            ServiceProxy::new(&self.connection, path),
        )
        .await?;
        let pid = within(CALL_TIMEOUT, &wanted, service.main_pid()).await?;
        if pid == 0 {
            return Ok(None);
        }
        let micros = within(CALL_TIMEOUT, &wanted, service.exec_main_start_timestamp()).await?;
        let arguments = match fs::read(format!("/proc/{pid}/cmdline")) {
            Ok(bytes) => arguments(&bytes),
            // It has just ended.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(reason) => return Err(SystemdError::Process { pid, reason }),
        };
        Ok(Some(Running {
            arguments,
            started: UNIX_EPOCH + Duration::from_micros(micros),
        }))
    }

    async fn unit(&self, unit: &str) -> Result<UnitProxy<'static>, SystemdError> {
        let path = self.path(unit).await?;
        let proxy = UnitProxy::new(&self.connection, path);
        within(CALL_TIMEOUT, &format!("look {unit} up"), proxy).await
    }

    async fn path(&self, unit: &str) -> Result<OwnedObjectPath, SystemdError> {
        let load = self.manager.load_unit(unit.to_owned());
        within(CALL_TIMEOUT, &format!("look {unit} up"), load).await
    }

    /// Waits for a job. Its end is listened for before it is begun: it may be short.
    async fn job(
        &self,
        wanted: String,
        unit: &str,
        begin: impl Future<Output = zbus::Result<OwnedObjectPath>>,
    ) -> Result<(), SystemdError> {
        let mut ends = within(CALL_TIMEOUT, &wanted, self.manager.receive_job_removed()).await?;
        let job = within(CALL_TIMEOUT, &wanted, begin).await?;
        let result = timeout(JOB_TIMEOUT, async {
            while let Some(end) = ends.next().await {
                let end = end.args()?;
                if end.job == job {
                    return Ok(end.result.clone());
                }
            }
            Err(zbus::Error::InputOutput(
                io::Error::from(io::ErrorKind::UnexpectedEof).into(),
            ))
        });
        let result = result.await.map_err(|_| SystemdError::Timeout {
            wanted: wanted.clone(),
            after: JOB_TIMEOUT,
        })?;
        match result {
            Ok(result) if result == "done" => Ok(()),
            Ok(result) => Err(SystemdError::Job {
                wanted,
                unit: unit.to_owned(),
                result,
            }),
            Err(reason) => Err(SystemdError::Refused { wanted, reason }),
        }
    }
}

async fn within<T>(
    limit: Duration,
    wanted: &str,
    call: impl Future<Output = zbus::Result<T>>,
) -> Result<T, SystemdError> {
    timeout(limit, call)
        .await
        .map_err(|_| SystemdError::Timeout {
            wanted: wanted.to_owned(),
            after: limit,
        })?
        .map_err(|reason| SystemdError::Refused {
            wanted: wanted.to_owned(),
            reason,
        })
}

/// The arguments in a process's `cmdline`: each ends with a NUL.
fn arguments(bytes: &[u8]) -> Vec<String> {
    let bytes = bytes.strip_suffix(b"\0").unwrap_or(bytes);
    bytes
        .split(|byte| *byte == 0)
        .map(|argument| String::from_utf8_lossy(argument).into_owned())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bus_that_is_away_is_said_once() {
        let error = SystemdError::NoBus(zbus::Error::InvalidReply);
        // Whoever prints an error prints its sources behind it.
        assert!(std::error::Error::source(&error).is_none());
        assert!(error.to_string().contains("dbus.service"), "{error}");
    }

    #[test]
    fn arguments_end_with_a_nul() {
        assert_eq!(
            arguments(b"/usr/local/bin/k0s\0worker\0--kubelet-extra-args=--v=2 --a=b\0\0"),
            [
                "/usr/local/bin/k0s",
                "worker",
                "--kubelet-extra-args=--v=2 --a=b",
                ""
            ]
        );
    }
}
