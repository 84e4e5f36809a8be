//! How often one source is answered: a table of fixed size, which no flood of sources makes grow.

use std::{
    hash::{BuildHasher as _, RandomState},
    net::{IpAddr, Ipv4Addr},
    num::NonZeroU32,
    time::Instant,
};

/// A power of two, so that a hash is cut to a set by a mask.
const SETS: usize = 4096;
/// Sources that share a set. Four make it unlikely that two busy ones push each other out.
const WAYS: usize = 4;
/// How many sources are remembered at once.
pub const SOURCES: usize = SETS * WAYS;
const NANOSECONDS: u64 = 1_000_000_000;

/// A token bucket's measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Tokens that come back per second.
    pub per_second: NonZeroU32,
    /// Tokens that a bucket holds.
    pub burst: NonZeroU32,
}

/// One token bucket per source address. A source that was pushed out by others begins with a full one: for that,
/// others must be as many as [`SOURCES`].
#[derive(Debug)]
pub struct Limiter {
    start: Instant,
    /// Its keys are random: nobody can choose addresses that push a certain one out.
    hasher: RandomState,
    sets: Box<[[Bucket; WAYS]]>,
    /// Nanoseconds in which one token comes back.
    period: u64,
    /// Nanoseconds in which all but one do.
    tolerance: u64,
}

/// A token bucket as one number: when it will be full again, in nanoseconds since the limiter's start.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    source: IpAddr,
    full_at: u64,
}

impl Limiter {
    /// All buckets are full at `start`.
    #[must_use]
    pub fn new(rate: Rate, start: Instant) -> Self {
        let Rate { per_second, burst } = rate;
        let period = NANOSECONDS / u64::from(per_second.get());
        let empty = Bucket {
            source: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            full_at: 0,
        };
        Self {
            start,
            hasher: RandomState::new(),
            sets: vec![[empty; WAYS]; SETS].into_boxed_slice(),
            period,
            tolerance: period.saturating_mul(u64::from(burst.get() - 1)),
        }
    }

    /// Takes a token of a source. Whether there was one.
    pub fn take(&mut self, now: Instant, source: IpAddr) -> bool {
        let now = now.saturating_duration_since(self.start).as_nanos();
        let now = u64::try_from(now).unwrap_or(u64::MAX);
        let hash = usize::try_from(self.hasher.hash_one(source) % SETS as u64).unwrap_or_default();
        let Some(set) = self.sets.get_mut(hash) else {
            return false;
        };
        let known = set.iter().position(|bucket| bucket.source == source);
        let bucket = match known {
            Some(at) => set.get_mut(at),
            // Whose bucket is the fullest loses the least.
            None => set.iter_mut().min_by_key(|bucket| bucket.full_at),
        };
        let Some(bucket) = bucket else {
            return false;
        };
        if known.is_none() {
            *bucket = Bucket {
                source,
                full_at: now,
            };
        }
        let full_at = bucket.full_at.max(now);
        if full_at - now > self.tolerance {
            return false;
        }
        bucket.full_at = full_at.saturating_add(self.period);
        true
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn limiter(per_second: u32, burst: u32, start: Instant) -> Limiter {
        let rate = Rate {
            per_second: NonZeroU32::new(per_second).unwrap(),
            burst: NonZeroU32::new(burst).unwrap(),
        };
        Limiter::new(rate, start)
    }

    fn source(number: u32) -> IpAddr {
        IpAddr::V4(Ipv4Addr::from_bits(0x0a00_0000 + number))
    }

    #[test]
    fn a_burst_and_then_the_rate() {
        let start = Instant::now();
        let mut limiter = limiter(10, 5, start);
        let taken = |limiter: &mut Limiter, millis, source| {
            let now = start + Duration::from_millis(millis);
            (0..100).filter(|_| limiter.take(now, source)).count()
        };
        for (millis, tokens) in [(0, 5), (99, 0), (100, 1), (300, 2), (10_000, 5)] {
            assert_eq!(
                taken(&mut limiter, millis, source(1)),
                tokens,
                "{millis} ms"
            );
        }
        // Another source has its own, and so has one of the other family.
        assert_eq!(taken(&mut limiter, 10_000, source(2)), 5);
        assert_eq!(taken(&mut limiter, 10_000, "fd00::1".parse().unwrap()), 5);
    }

    #[test]
    fn the_extremes_are_bounds_too() {
        let start = Instant::now();
        for (per_second, burst, expected) in [(1, 1, 1), (u32::MAX, 1, 1000), (1, u32::MAX, 1000)] {
            let mut limiter = limiter(per_second, burst, start);
            let taken = (0..1000_u64)
                .filter(|&step| limiter.take(start + Duration::from_nanos(step), source(1)))
                .count();
            assert_eq!(taken, expected, "{per_second} per second, {burst} at once");
        }
        // A clock that goes back gives nothing away.
        let mut limiter = limiter(1, 1, start + Duration::from_secs(5));
        assert!(limiter.take(start + Duration::from_secs(6), source(1)));
        assert!(!limiter.take(start, source(1)));
    }

    #[test]
    fn a_flood_of_sources_is_answered_and_needs_no_more_room() {
        let start = Instant::now();
        let mut limiter = limiter(1, 1, start);
        let room = size_of_val(&*limiter.sets);
        assert_eq!(room, SOURCES * size_of::<Bucket>());
        // A source that goes on asking stays limited while fewer others than there is room for come.
        let mut answered = 0;
        for number in 0..100 {
            answered += u32::from(limiter.take(start, source(u32::MAX >> 8)));
            assert!(limiter.take(start, source(number)));
        }
        assert_eq!(answered, 1);
        for number in 0..200_000 {
            limiter.take(start, source(number));
        }
        assert_eq!(size_of_val(&*limiter.sets), room);
    }
}
