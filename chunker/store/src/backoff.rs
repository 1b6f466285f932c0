//! The pauses between attempts: how they grow, and which part of them is random.
//!
//! Owns the formula that every repeated attempt in the workspace uses. Pure. Does not own the
//! sleep, what counts as an attempt, or when a caller gives up.

use std::time::Duration;

use crate::entropy::{Entropy, number};

/// A pause doubles at most this many times. Every bound is reached before.
const DOUBLINGS_MAX: u32 = 16;

/// Pauses that double with each failure, up to a bound.
///
/// The two kinds of jitter are those of "Exponential Backoff And Jitter" (AWS Architecture Blog,
/// 2015).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// The upper limit of the pause after the first failure.
    pub first: Duration,
    /// The upper limit of every pause.
    pub longest: Duration,
}

impl Backoff {
    /// Returns the upper limit of the pause after failure number `failure` (the first is 1): the
    /// pause without jitter.
    pub fn limit(&self, failure: u32) -> Duration {
        let doublings = failure.saturating_sub(1).min(DOUBLINGS_MAX);
        let doubled = self.first.saturating_mul(1 << doublings);
        doubled.min(self.longest)
    }

    /// Returns a random time from zero to the limit: spreads clients that contend for one object.
    pub fn full_jitter(&self, failure: u32, entropy: &dyn Entropy) -> Duration {
        self.limit(failure).mul_f64(fraction(entropy))
    }

    /// Returns a random time from half of the limit to the limit: for clients that wait for the
    /// store. Requests that failed together are not repeated together.
    pub fn equal_jitter(&self, failure: u32, entropy: &dyn Entropy) -> Duration {
        self.limit(failure).mul_f64(0.5 + fraction(entropy) / 2.0)
    }
}

/// Returns a random number from 0 to 1.
fn fraction(entropy: &dyn Entropy) -> f64 {
    f64::from(number(entropy)) / f64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BACKOFF: Backoff = Backoff {
        first: Duration::from_millis(100),
        longest: Duration::from_secs(10),
    };

    /// Returns the same number each time.
    #[derive(Debug)]
    struct Always(u32);

    impl Entropy for Always {
        fn fill(&self, bytes: &mut [u8]) {
            bytes.copy_from_slice(&self.0.to_le_bytes());
        }
    }

    #[test]
    fn pauses_double_up_to_the_longest() {
        let limits = [1, 2, 3, 7, 8, 100, u32::MAX].map(|failure| BACKOFF.limit(failure));
        let expected = [100, 200, 400, 6_400, 10_000, 10_000, 10_000];
        assert_eq!(limits, expected.map(Duration::from_millis));
    }

    #[test]
    fn jitter_stays_within_its_limits() {
        let times = |least, most| (Duration::from_millis(least), Duration::from_millis(most));
        let full = |number| BACKOFF.full_jitter(3, &Always(number));
        assert_eq!((full(0), full(u32::MAX)), times(0, 400));
        let equal = |number| BACKOFF.equal_jitter(3, &Always(number));
        assert_eq!((equal(0), equal(u32::MAX)), times(200, 400));
    }
}
