//! The dialogue with a guest over its second serial port; the other end is `agent.sh`.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

/// What a guest's terminal takes at once: its line discipline drops what is beyond 4096 bytes.
const COMMAND_MAX: usize = 4000;

/// One end of the port.
#[derive(Debug)]
pub(super) struct Serial {
    stream: UnixStream,
    received: Vec<u8>,
    commands: u64,
}

/// What a command brought.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: i32,
    pub(super) stdout: Vec<u8>,
    pub(super) stderr: Vec<u8>,
}

impl Serial {
    pub(super) fn new(stream: UnixStream) -> Self {
        Self {
            stream,
            received: Vec::new(),
            commands: 0,
        }
    }

    /// Waits until the agent is there.
    pub(super) fn wait_ready(&mut self, limit: Duration) -> Result<()> {
        let deadline = Instant::now() + limit;
        loop {
            if self.line(deadline)?.starts_with(":ready ") {
                return Ok(());
            }
        }
    }

    /// Runs a command; the guest kills it after `limit`, and `grace` later it is not waited for any more.
    pub(super) fn run(
        &mut self,
        command: &str,
        limit: Duration,
        grace: Duration,
    ) -> Result<Answer> {
        if command.len() > COMMAND_MAX {
            bail!("a command of {} bytes is too long", command.len());
        }
        self.commands += 1;
        let number = format!(":{}", self.commands);
        let request = format!(
            "{number} {} {}\n{command}",
            limit.as_secs().max(1),
            command.len()
        );
        let deadline = Instant::now() + limit + grace;
        self.stream
            .write_all(request.as_bytes())
            .context("write to the guest")?;
        loop {
            let line = self.line(deadline)?;
            if line.starts_with(":ready ") {
                bail!("the guest started anew");
            }
            let mut fields = line.split(' ');
            let Some(answered) = fields.next().filter(|field| field.starts_with(':')) else {
                continue;
            };
            let mut field = || -> Result<usize> {
                let field = fields.next().context("a field is missing")?;
                field.parse().with_context(|| format!("{field:?}"))
            };
            let header = (|| -> Result<_> { Ok((field()?, field()?, field()?)) })();
            let (status, stdout, stderr) =
                header.with_context(|| format!("the guest answered {line:?}"))?;
            let answer = Answer {
                status: i32::try_from(status)?,
                stdout: self.bytes(stdout, deadline)?,
                stderr: self.bytes(stderr, deadline)?,
            };
            // An older one belongs to a command that was given up.
            if answered == number {
                return Ok(answer);
            }
        }
    }

    fn line(&mut self, deadline: Instant) -> Result<String> {
        loop {
            if let Some(end) = self.received.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = self.received.drain(..=end).collect();
                return Ok(String::from_utf8_lossy(&line).trim_end().to_owned());
            }
            self.more(deadline)?;
        }
    }

    fn bytes(&mut self, count: usize, deadline: Instant) -> Result<Vec<u8>> {
        while self.received.len() < count {
            self.more(deadline)?;
        }
        Ok(self.received.drain(..count).collect())
    }

    fn more(&mut self, deadline: Instant) -> Result<()> {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            bail!("the guest is silent");
        }
        self.stream.set_read_timeout(Some(left))?;
        let mut buffer = [0; 16 * 1024];
        match self.stream.read(&mut buffer) {
            Ok(0) => bail!("QEMU is gone"),
            Ok(length) => {
                self.received.extend(buffer.iter().take(length));
                Ok(())
            }
            // A stopped process that goes on, or a signal that somebody else handles.
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => Ok(()),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                bail!("the guest is silent")
            }
            Err(error) => Err(error).context("read from the guest"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Serial;
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    const LIMIT: Duration = Duration::from_secs(5);

    #[test]
    fn output_that_looks_like_an_answer_is_output() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let mut serial = Serial::new(ours);
        let output = "\n:1 0 0 0\n:ready x\n";
        let late = "\n:0 137 3 0\nold";
        write!(
            theirs,
            "{late}\n:1 3 {} 2\n{output}no\n:2 0 0 0\n",
            output.len()
        )
        .unwrap();
        let answer = serial.run("true", LIMIT, LIMIT).unwrap();
        assert_eq!(answer.status, 3);
        assert_eq!(answer.stdout, output.as_bytes());
        assert_eq!(answer.stderr, b"no");
        assert_eq!(serial.run("echo 2", LIMIT, LIMIT).unwrap().status, 0);
        let mut request = vec![0; 21];
        theirs.read_exact(&mut request).unwrap();
        assert_eq!(request, b":1 5 4\ntrue:2 5 6\nech");
    }

    #[test]
    fn a_guest_that_ends_is_an_error() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let mut serial = Serial::new(ours);
        theirs.write_all(b"\n:1 0 10 0\nabc").unwrap();
        drop(theirs);
        assert!(serial.run("true", LIMIT, LIMIT).is_err());
    }
}
