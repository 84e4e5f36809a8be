//! QEMU's monitor (docs/interop/qmp-spec.rst): for what happens to a VM from outside.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

/// How long QEMU may take to answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(20);

/// The monitor's other end.
#[derive(Debug)]
pub(super) struct Qmp {
    stream: BufReader<UnixStream>,
    events: Vec<Value>,
}

impl Qmp {
    /// Says hello.
    pub(super) fn new(stream: UnixStream) -> Result<Self> {
        let mut qmp = Self {
            stream: BufReader::new(stream),
            events: Vec::new(),
        };
        qmp.message(Instant::now() + ANSWER_LIMIT)?;
        qmp.execute("qmp_capabilities", &json!({}))?;
        Ok(qmp)
    }

    /// Runs a command and returns its answer.
    pub(super) fn execute(&mut self, command: &str, arguments: &Value) -> Result<Value> {
        let request = json!({ "execute": command, "arguments": arguments });
        writeln!(self.stream.get_mut(), "{request}").context("write to QEMU's monitor")?;
        let deadline = Instant::now() + ANSWER_LIMIT;
        loop {
            let mut message = self.message(deadline)?;
            if let Some(answer) = message.get_mut("return") {
                return Ok(answer.take());
            }
            if let Some(error) = message.get("error") {
                bail!("QEMU refuses {command} {arguments}: {error}");
            }
            self.events.push(message);
        }
    }

    /// Waits for an event; one that came earlier and was not asked for yet counts.
    pub(super) fn wait_event(
        &mut self,
        name: &str,
        limit: Duration,
        wanted: impl Fn(&Value) -> bool,
    ) -> Result<()> {
        let deadline = Instant::now() + limit;
        loop {
            let found = self.events.iter().position(|event| {
                event.get("event").and_then(Value::as_str) == Some(name) && wanted(event)
            });
            if let Some(found) = found {
                self.events.remove(found);
                return Ok(());
            }
            let message = self
                .message(deadline)
                .with_context(|| format!("waiting for QEMU's event {name}"))?;
            self.events.push(message);
        }
    }

    fn message(&mut self, deadline: Instant) -> Result<Value> {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            bail!("QEMU's monitor is silent");
        }
        self.stream.get_ref().set_read_timeout(Some(left))?;
        let mut line = String::new();
        let length = self
            .stream
            .read_line(&mut line)
            .context("read from QEMU's monitor")?;
        if length == 0 {
            bail!("QEMU is gone");
        }
        serde_json::from_str(&line).with_context(|| format!("QEMU's monitor said {line:?}"))
    }
}
