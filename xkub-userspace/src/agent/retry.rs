//! When an action that failed is tried again: after a second, then less and less often.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use super::action::Kind;

/// The first pause.
const FIRST: Duration = Duration::from_secs(1);
/// The longest.
const LONGEST: Duration = Duration::from_secs(60);

/// What tells actions apart.
type Key = (Kind, String);

/// The actions that failed when they were last tried.
#[derive(Debug, Default)]
pub(super) struct Retries(BTreeMap<Key, Retry>);

#[derive(Clone, Copy, Debug)]
struct Retry {
    pause: Duration,
    due: Instant,
}

impl Retries {
    /// How long an action has to wait; none if it may be tried.
    pub fn wait(&self, key: &Key, now: Instant) -> Option<Duration> {
        let wait = self.0.get(key)?.due.saturating_duration_since(now);
        (!wait.is_zero()).then_some(wait)
    }

    /// It was tried, and failed.
    pub fn failed(&mut self, key: Key, now: Instant) {
        let pause = self
            .0
            .get(&key)
            .map_or(FIRST, |retry| retry.pause.saturating_mul(2).min(LONGEST));
        let due = now + pause;
        self.0.insert(key, Retry { pause, due });
    }

    /// It was tried, and worked.
    pub fn worked(&mut self, key: &Key) {
        self.0.remove(key);
    }

    /// It waits for something else now, and is tried as soon as that is done. Its own pause would be over before, and
    /// wake the loop again and again for nothing.
    pub fn blocked(&mut self, key: &Key) {
        self.0.remove(key);
    }

    /// Forgets what is not planned any more.
    pub fn keep(&mut self, is_planned: impl Fn(&Key) -> bool) {
        self.0.retain(|key, _| is_planned(key));
    }

    /// When the next one may be tried.
    pub fn next(&self) -> Option<Instant> {
        self.0.values().map(|retry| retry.due).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_until_it_works() {
        let start = Instant::now();
        let key = (Kind::Attach, "eth0".to_owned());
        let mut retries = Retries::default();
        assert_eq!(retries.wait(&key, start), None);
        let mut now = start;
        for seconds in [1, 2, 4, 8, 16, 32, 60, 60] {
            retries.failed(key.clone(), now);
            assert_eq!(retries.wait(&key, now), Some(Duration::from_secs(seconds)));
            assert_eq!(retries.wait(&(Kind::Restart, "eth0".to_owned()), now), None);
            now = retries.next().unwrap();
            assert_eq!(retries.wait(&key, now), None);
        }
        retries.worked(&key);
        retries.failed(key.clone(), now);
        assert_eq!(retries.wait(&key, now), Some(FIRST));
        retries.keep(|_| false);
        assert_eq!(retries.next(), None);
    }
}
