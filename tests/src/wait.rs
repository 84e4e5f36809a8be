//! Waiting for a condition with a deadline, so that no test sleeps and hopes.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// How long labs wait for something that normally takes milliseconds: generous, because machines are shared.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Pause between two looks at a condition that sends no event.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Looks at `condition` until it gives a value and returns that.
///
/// # Errors
/// When `condition` itself fails, or has given nothing within `limit`; the error names `what` was awaited.
pub fn wait_for<T>(
    what: &str,
    limit: Duration,
    mut condition: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(value) = condition()? {
            return Ok(value);
        }
        if Instant::now() >= deadline {
            bail!("waited {limit:?} in vain for {what}");
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Waits until `condition` holds.
///
/// # Errors
/// As [`wait_for`].
pub fn wait_until(
    what: &str,
    limit: Duration,
    mut condition: impl FnMut() -> Result<bool>,
) -> Result<()> {
    wait_for(what, limit, || Ok(condition()?.then_some(())))
}
