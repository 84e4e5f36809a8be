//! `iperf3`, with its JSON parsed.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use serde_json::Value;

use crate::namespace::{Namespace, Running};
use crate::wait::PATIENCE;

/// An iperf3 server, until it is dropped. It serves one client after the other.
#[derive(Debug)]
pub struct IperfServer {
    /// The running server.
    pub process: Running,
    address: IpAddr,
    port: u16,
}

impl IperfServer {
    /// Starts a server bound to `address` and waits until it listens.
    ///
    /// # Errors
    /// When `iperf3` is missing or can't bind.
    pub fn start(namespace: &Namespace, address: impl Into<IpAddr>, port: u16) -> Result<Self> {
        let address = address.into();
        let mut process = namespace.spawn([
            "iperf3",
            "--server",
            "--forceflush",
            "--bind",
            &address.to_string(),
            "--port",
            &port.to_string(),
        ])?;
        process.wait_output("Server listening", PATIENCE)?;
        Ok(Self {
            process,
            address,
            port,
        })
    }

    /// A client of this server: five seconds of TCP unless told otherwise.
    #[must_use]
    pub fn client(&self) -> Iperf {
        Iperf {
            server: self.address,
            port: self.port,
            duration: Duration::from_secs(5),
            bind: None,
            udp: None,
            reverse: false,
            connect_limit: Duration::from_secs(3),
        }
    }
}

/// A measurement to be run.
#[derive(Debug, Clone)]
pub struct Iperf {
    server: IpAddr,
    port: u16,
    duration: Duration,
    bind: Option<IpAddr>,
    udp: Option<(u32, String)>,
    reverse: bool,
    connect_limit: Duration,
}

/// What a measurement brought.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measured {
    /// Received payload, bits per second.
    pub bits_per_second: f64,
    /// UDP: datagrams that arrived; zero for TCP.
    pub packets_received: u64,
    /// UDP: datagrams that did not.
    pub packets_lost: u64,
    /// UDP: datagrams that arrived, per second.
    pub packets_per_second: f64,
    /// TCP: segments sent again.
    pub retransmits: u64,
}

impl Iperf {
    /// How long data flows; whole seconds.
    #[must_use]
    pub fn duration(mut self, duration: Duration) -> Self {
        self.duration = duration;
        self
    }

    /// The address to send from.
    #[must_use]
    pub fn from(mut self, source: impl Into<IpAddr>) -> Self {
        self.bind = Some(source.into());
        self
    }

    /// UDP datagrams with `payload` bytes at `rate` (iperf3's notation, `0` for as fast as possible).
    #[must_use]
    pub fn udp(mut self, payload: u32, rate: &str) -> Self {
        self.udp = Some((payload, rate.to_owned()));
        self
    }

    /// Data flows from the server to the client.
    #[must_use]
    pub fn reverse(mut self) -> Self {
        self.reverse = true;
        self
    }

    /// How long the connection may take to open.
    #[must_use]
    pub fn connect_limit(mut self, limit: Duration) -> Self {
        self.connect_limit = limit;
        self
    }

    fn arguments(&self) -> Vec<String> {
        let mut argv = vec![
            "iperf3".to_owned(),
            "--json".to_owned(),
            "--client".to_owned(),
            self.server.to_string(),
            "--port".to_owned(),
            self.port.to_string(),
            "--time".to_owned(),
            self.duration.as_secs().max(1).to_string(),
            "--connect-timeout".to_owned(),
            self.connect_limit.as_millis().to_string(),
        ];
        if let Some(source) = self.bind {
            argv.extend(["--bind".to_owned(), source.to_string()]);
        }
        if let Some((payload, rate)) = &self.udp {
            argv.extend([
                "--udp".to_owned(),
                "--length".to_owned(),
                payload.to_string(),
            ]);
            argv.extend(["--bitrate".to_owned(), rate.clone()]);
        }
        if self.reverse {
            argv.push("--reverse".to_owned());
        }
        argv
    }

    /// Starts the client in the background; hand its output to [`Iperf::finish`].
    ///
    /// # Errors
    /// When `iperf3` is missing.
    pub fn start(&self, namespace: &Namespace) -> Result<Running> {
        namespace.spawn(self.arguments())
    }

    /// Waits for a client that was started and reads its result.
    ///
    /// # Errors
    /// When the connection failed or broke, or the client hangs.
    pub fn finish(&self, client: Running) -> Result<Measured> {
        let output = client.wait(self.duration + self.connect_limit + PATIENCE)?;
        parse(&output.stdout).with_context(|| format!("{}: {}", output.line, output.stderr))
    }

    /// Runs the client to its end.
    ///
    /// # Errors
    /// As [`Iperf::finish`].
    pub fn run(&self, namespace: &Namespace) -> Result<Measured> {
        self.finish(self.start(namespace)?)
    }
}

/// Reads what `iperf3 --json` printed.
pub(crate) fn parse(text: &str) -> Result<Measured> {
    let report: Value = serde_json::from_str(text).with_context(|| format!("not JSON: {text}"))?;
    if let Some(error) = report.get("error").and_then(Value::as_str) {
        return Err(anyhow!("iperf3: {error}"));
    }
    let end = report.get("end").context("no end in iperf3's report")?;
    // UDP: one sum, whose losses the receiver told; TCP: a sum for each side.
    let received = end
        .get("sum_received")
        .or_else(|| end.get("sum"))
        .context("no sum in iperf3's report")?;
    let sum = end.get("sum").unwrap_or(received);
    let float =
        |value: &Value, key: &str| value.get(key).and_then(Value::as_f64).unwrap_or_default();
    let whole =
        |value: &Value, key: &str| value.get(key).and_then(Value::as_u64).unwrap_or_default();
    let (packets, packets_lost) = (whole(sum, "packets"), whole(sum, "lost_packets"));
    let packets_received = packets.saturating_sub(packets_lost);
    let seconds = float(sum, "seconds");
    #[expect(
        clippy::cast_precision_loss,
        reason = "packet counts of a few seconds are far below 2^52"
    )]
    let packets_per_second = if seconds > 0.0 {
        packets_received as f64 / seconds
    } else {
        0.0
    };
    let retransmits = end
        .get("sum_sent")
        .map_or(0, |sent| whole(sent, "retransmits"));
    Ok(Measured {
        bits_per_second: float(received, "bits_per_second"),
        packets_received,
        packets_lost,
        packets_per_second,
        retransmits,
    })
}
