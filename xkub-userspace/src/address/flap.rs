//! The flap guard: an address that changes to and fro is not followed, because each change restarts the worker.

use std::{
    collections::VecDeque,
    net::IpAddr,
    time::{Duration, Instant},
};

/// What is too often, and what is steady again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlapLimits {
    /// How many changes within `window` are followed at once; the first address is none.
    pub changes: usize,
    /// How long a change counts.
    pub window: Duration,
    /// How long an address must have been told without another one between, to be followed after that.
    pub steady: Duration,
}

impl Default for FlapLimits {
    /// Four changes in five minutes: a VM that is live-migrated from node to node during a drain of the infra
    /// cluster changes its address about once a minute. Steady is a minute.
    fn default() -> Self {
        Self {
            changes: 4,
            window: Duration::from_secs(5 * 60),
            steady: Duration::from_secs(60),
        }
    }
}

/// What comes of an observation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nobody has told an address yet.
    Unknown,
    /// As before; also when nobody tells one at the moment.
    Same(IpAddr),
    /// A new one, to be followed.
    Changed {
        /// The one before; none at the start.
        from: Option<IpAddr>,
        /// The new one.
        to: IpAddr,
    },
    /// A new one that is not followed: too many were before it.
    Held {
        /// What is kept.
        kept: IpAddr,
        /// What was told.
        told: IpAddr,
    },
}

impl Verdict {
    /// The address that counts now.
    #[must_use]
    pub const fn address(self) -> Option<IpAddr> {
        match self {
            Self::Unknown => None,
            Self::Same(address)
            | Self::Changed { to: address, .. }
            | Self::Held { kept: address, .. } => Some(address),
        }
    }
}

/// The memory of one family's address. It has no clock: time comes with each observation.
#[derive(Clone, Debug)]
pub struct FlapGuard {
    limits: FlapLimits,
    kept: Option<IpAddr>,
    /// What was told last, and since when without another one between.
    told: Option<(IpAddr, Instant)>,
    /// When addresses were followed: at most `limits.changes`, the oldest first.
    changes: VecDeque<Instant>,
    is_flapping: bool,
}

impl FlapGuard {
    /// Knows nothing yet.
    #[must_use]
    pub const fn new(limits: FlapLimits) -> Self {
        Self {
            limits,
            kept: None,
            told: None,
            changes: VecDeque::new(),
            is_flapping: false,
        }
    }

    /// The address that counts: the last good one.
    #[must_use]
    pub const fn address(&self) -> Option<IpAddr> {
        self.kept
    }

    /// Whether a change was held back, and no address has been steady since.
    #[must_use]
    pub const fn is_flapping(&self) -> bool {
        self.is_flapping
    }

    /// Takes what the sources tell at `now`; none is silence, after which the last good address stays.
    pub fn observe(&mut self, now: Instant, told: Option<IpAddr>) -> Verdict {
        let Some(told) = told else {
            return self.kept.map_or(Verdict::Unknown, Verdict::Same);
        };
        let since = match self.told {
            Some((before, since)) if before == told => since,
            _ => now,
        };
        self.told = Some((told, since));
        let Some(kept) = self.kept else {
            self.kept = Some(told);
            return Verdict::Changed {
                from: None,
                to: told,
            };
        };
        let Self {
            limits:
                FlapLimits {
                    changes,
                    window,
                    steady,
                },
            ..
        } = *self;
        while let Some(&oldest) = self.changes.front()
            && now.saturating_duration_since(oldest) >= window
        {
            self.changes.pop_front();
        }
        if self.is_flapping && now.saturating_duration_since(since) >= steady {
            self.is_flapping = false;
            self.changes.clear();
        }
        if told == kept {
            return Verdict::Same(kept);
        }
        if self.is_flapping || self.changes.len() >= changes {
            self.is_flapping = true;
            return Verdict::Held { kept, told };
        }
        self.changes.push_back(now);
        self.kept = Some(told);
        Verdict::Changed {
            from: Some(kept),
            to: told,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIMITS: FlapLimits = FlapLimits {
        changes: 2,
        window: Duration::from_secs(100),
        steady: Duration::from_secs(20),
    };

    fn address(last: u8) -> IpAddr {
        IpAddr::from([10, 244, 0, last])
    }

    /// Seconds, who is told (0 is silence), and what comes of it: `=` the same, `>` followed, `!` held.
    fn run(observations: &[(u64, u8, &str)]) -> FlapGuard {
        let mut guard = FlapGuard::new(LIMITS);
        let start = Instant::now();
        for &(seconds, told, expected) in observations {
            let told = (told > 0).then(|| address(told));
            let verdict = guard.observe(start + Duration::from_secs(seconds), told);
            let mark = match verdict {
                Verdict::Unknown => "?",
                Verdict::Same(_) => "=",
                Verdict::Changed { .. } => ">",
                Verdict::Held { .. } => "!",
            };
            assert_eq!(mark, expected, "at {seconds} s: {verdict:?}");
            assert_eq!(verdict.address(), guard.address());
        }
        guard
    }

    #[test]
    fn changes_are_followed_at_once_and_silence_changes_nothing() {
        let guard = run(&[
            (0, 0, "?"),
            (1, 1, ">"),
            (2, 1, "="),
            (3, 0, "="),
            (4, 2, ">"),
            (5, 2, "="),
        ]);
        assert_eq!(guard.address(), Some(address(2)));
        assert!(!guard.is_flapping());
    }

    #[test]
    fn to_and_fro_is_held_until_steady() {
        let to_and_fro = [(0, 1, ">"), (5, 2, ">"), (10, 1, ">"), (15, 2, "!")];
        let guard = run(&to_and_fro);
        assert!(guard.is_flapping());
        assert_eq!(guard.address(), Some(address(1)));
        // Going on like that changes nothing, for however long.
        let mut for_long = to_and_fro.to_vec();
        for at in (20..1000).step_by(10) {
            for_long.extend([(at, 1, "="), (at + 5, 2, "!")]);
        }
        assert!(run(&for_long).is_flapping());
        // Steady at the new one: followed; then as before any change.
        let new = [
            (20, 2, "!"),
            (34, 2, "!"),
            (35, 2, ">"),
            (36, 3, ">"),
            (37, 2, "!"),
        ];
        assert!(run(&[&to_and_fro[..], &new].concat()).is_flapping());
        // Steady at the old one: calm again.
        let old = [(20, 1, "="), (39, 1, "="), (40, 1, "=")];
        assert!(!run(&[&to_and_fro[..], &old].concat()).is_flapping());
        // Silence is no sign of steadiness by itself, and does not break it.
        let silent = [(30, 0, "="), (40, 0, "=")];
        assert!(run(&[&to_and_fro[..], &silent].concat()).is_flapping());
        let silent_between = [(20, 0, "="), (35, 2, ">")];
        assert!(!run(&[&to_and_fro[..], &silent_between].concat()).is_flapping());
    }

    #[test]
    fn old_changes_are_forgotten() {
        run(&[
            (0, 1, ">"),
            (10, 2, ">"),
            (50, 3, ">"),
            (109, 3, "="),
            (110, 4, ">"),
            (149, 5, "!"),
        ]);
    }

    proptest! {
        /// However it is told: never more changes within a window than allowed, beside those that were steady.
        #[test]
        fn there_is_a_limit(steps in prop::collection::vec((0..10_u64, 0..4_u8), 0..300)) {
            let mut guard = FlapGuard::new(LIMITS);
            let start = Instant::now();
            let mut seconds = 0;
            let mut changes = Vec::new();
            for (pause, told) in steps {
                seconds += pause;
                let told = (told > 0).then(|| address(told));
                let verdict = guard.observe(start + Duration::from_secs(seconds), told);
                if let Verdict::Changed { from: Some(_), .. } = verdict {
                    changes.push(seconds);
                }
                prop_assert!(guard.changes.len() <= LIMITS.changes);
            }
            // Those within the window, and then one that was steady.
            for few in changes.windows(LIMITS.changes + 1) {
                let span = few[LIMITS.changes] - few[0];
                prop_assert!(span >= LIMITS.steady.as_secs(), "{changes:?}");
            }
        }
    }
}
