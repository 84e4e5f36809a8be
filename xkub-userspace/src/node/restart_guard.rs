//! How often a worker may be restarted: an address that flaps must not take the node with it.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

/// At most so many restarts within so long.
#[derive(Clone, Debug)]
pub struct RestartGuard {
    limit: usize,
    window: Duration,
    /// The last restarts, the oldest first; never more than `limit`.
    restarts: VecDeque<Instant>,
}

impl RestartGuard {
    /// At most `limit` restarts within any `window`.
    #[must_use]
    pub fn new(limit: usize, window: Duration) -> Self {
        Self {
            limit,
            window,
            restarts: VecDeque::with_capacity(limit),
        }
    }

    /// How long to wait for the next restart; nothing if it may be now.
    #[must_use]
    pub fn wait(&self, now: Instant) -> Option<Duration> {
        if self.restarts.len() < self.limit {
            return None;
        }
        let Some(oldest) = self.restarts.front() else {
            // None at all are allowed.
            return Some(self.window);
        };
        let wait = self
            .window
            .saturating_sub(now.saturating_duration_since(*oldest));
        (!wait.is_zero()).then_some(wait)
    }

    /// Remembers a restart, whether it was allowed or not.
    pub fn record(&mut self, now: Instant) {
        if self.restarts.len() >= self.limit {
            self.restarts.pop_front();
        }
        if self.limit > 0 {
            self.restarts.push_back(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn restarts_are_counted_in_a_sliding_window() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        let mut guard = RestartGuard::new(2, Duration::from_secs(60));
        for (now, expected, restarted) in [
            (0, None, true),
            (10, None, true),
            (10, seconds(50), false),
            (59, seconds(1), false),
            (60, None, true),
            (60, seconds(10), false),
            (70, None, false),
            (500, None, true),
        ] {
            assert_eq!(guard.wait(at(now)), expected, "{now}");
            if restarted {
                guard.record(at(now));
            }
        }
        // A clock that stands still or goes back is no reason to restart.
        assert_eq!(guard.wait(at(500)), None);
        guard.record(at(500));
        assert_eq!(guard.wait(start), seconds(60));
    }

    #[test]
    fn none_is_a_limit_too() {
        let mut guard = RestartGuard::new(0, Duration::from_secs(60));
        let now = Instant::now();
        guard.record(now);
        assert_eq!(guard.wait(now), Some(Duration::from_secs(60)));
    }
}
