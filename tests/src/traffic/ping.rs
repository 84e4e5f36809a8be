//! `ping`, with its counts parsed.

use std::net::IpAddr;

use anyhow::{Context as _, Result};

use crate::namespace::Namespace;

/// A ping to be run.
#[derive(Debug, Clone)]
pub struct Ping {
    target: IpAddr,
    count: u32,
    source: Option<String>,
    payload: Option<u32>,
    dont_fragment: bool,
    reply_limit_seconds: u32,
}

/// What a ping brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PingResult {
    /// Requests sent.
    pub sent: u32,
    /// Replies received.
    pub received: u32,
}

impl PingResult {
    /// Whether every request was answered.
    #[must_use]
    pub fn complete(self) -> bool {
        self.sent > 0 && self.sent == self.received
    }
}

impl Ping {
    /// One request to `target`, a second of patience for the reply.
    #[must_use]
    pub fn to(target: impl Into<IpAddr>) -> Self {
        Self {
            target: target.into(),
            count: 1,
            source: None,
            payload: None,
            dont_fragment: false,
            reply_limit_seconds: 1,
        }
    }

    /// How many requests, 50 ms apart.
    #[must_use]
    pub fn count(mut self, count: u32) -> Self {
        self.count = count;
        self
    }

    /// `-I`: the address to send from.
    #[must_use]
    pub fn from(mut self, source: impl Into<IpAddr>) -> Self {
        self.source = Some(source.into().to_string());
        self
    }

    /// Payload in bytes. A packet is 28 bytes longer over IPv4, 48 over IPv6.
    #[must_use]
    pub fn payload(mut self, bytes: u32) -> Self {
        self.payload = Some(bytes);
        self
    }

    /// `-M do`: no fragmentation, here or on the way.
    #[must_use]
    pub fn dont_fragment(mut self) -> Self {
        self.dont_fragment = true;
        self
    }

    /// How long the last reply is waited for.
    #[must_use]
    pub fn patience(mut self, seconds: u32) -> Self {
        self.reply_limit_seconds = seconds;
        self
    }

    /// Sends it from `namespace`.
    ///
    /// # Errors
    /// When `ping` is missing, or prints no statistics (a wrong argument, no route).
    pub fn run(&self, namespace: &Namespace) -> Result<PingResult> {
        let mut argv = vec![
            "ping".to_owned(),
            "-n".to_owned(),
            format!("-c{}", self.count),
            "-i0.05".to_owned(),
            format!("-W{}", self.reply_limit_seconds),
        ];
        if let Some(source) = &self.source {
            argv.extend(["-I".to_owned(), source.clone()]);
        }
        if let Some(bytes) = self.payload {
            argv.push(format!("-s{bytes}"));
        }
        if self.dont_fragment {
            argv.extend(["-M".to_owned(), "do".to_owned()]);
        }
        argv.push(self.target.to_string());
        let output = namespace.run(argv)?;
        parse(&output.stdout)
            .with_context(|| format!("{}: {}{}", output.line, output.stdout, output.stderr))
    }
}

/// Reads "3 packets transmitted, 2 received, …".
pub(crate) fn parse(text: &str) -> Result<PingResult> {
    let line = text
        .lines()
        .find(|line| line.contains("packets transmitted"))
        .context("no statistics")?;
    let number = |part: Option<&str>| -> Result<u32> {
        let word = part
            .and_then(|part| part.split_whitespace().next())
            .context("no number")?;
        Ok(word.parse()?)
    };
    let mut parts = line.split(',');
    Ok(PingResult {
        sent: number(parts.next())?,
        received: number(parts.next())?,
    })
}

#[cfg(test)]
mod tests {
    use super::{PingResult, parse};

    #[test]
    fn statistics_are_read() {
        let text = "PING 10.0.2.1 (10.0.2.1) 56(84) bytes of data.\n\n--- 10.0.2.1 ping statistics ---\n\
                    3 packets transmitted, 2 received, +1 errors, 33% packet loss, time 101ms\n";
        assert_eq!(
            parse(text).unwrap(),
            PingResult {
                sent: 3,
                received: 2
            }
        );
        assert!(parse("ping: connect: Network is unreachable\n").is_err());
    }
}
