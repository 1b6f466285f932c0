//! How long to wait for a store that does not answer.
//!
//! Owns the one rule: what counts is the time without any progress at the store, never the total (a slow store is not a dead
//! one). Every acknowledged request is progress for everybody who waits.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::entropy::{Entropy, number};
use crate::error::DepotError;
use crate::store::{StoreError, StoreErrorKind};

/// The first pause after a transient error; it doubles up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// The longest pause between two attempts: an outage that ends is noticed within it.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// A store that refuses us is waited for so long: credentials may be renewed, but somebody should know soon.
const REFUSED_PATIENCE: Duration = Duration::from_secs(10);

/// How often a waiter looks whether the store refuses.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// When the store last did anything for us.
#[derive(Debug)]
pub(crate) struct Progress {
    timeout: Duration,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    last: Option<Instant>,
    error: Option<Arc<StoreError>>,
}

impl Progress {
    pub(crate) fn new(timeout: Duration) -> Self {
        Self {
            timeout,
            state: Mutex::new(State {
                last: None,
                error: None,
            }),
        }
    }

    /// The store answered.
    pub(crate) fn note(&self) {
        let mut state = self.state.lock();
        state.last = Some(Instant::now());
        state.error = None;
    }

    /// It is not the store that is waited for.
    pub(crate) fn note_waiting(&self) {
        self.state.lock().last = Some(Instant::now());
    }

    /// The store answered with an error that may pass.
    pub(crate) fn note_trouble(&self, error: &Arc<StoreError>) {
        self.state.lock().error = Some(Arc::clone(error));
    }

    /// Waits until the store has done nothing for us for so long, from now on.
    pub(crate) async fn idle(&self, patience: Duration) {
        let begin = Instant::now();
        loop {
            let last = self.state.lock().last.map_or(begin, |last| last.max(begin));
            if Instant::now() >= last + patience {
                return;
            }
            tokio::time::sleep_until(last + patience).await;
        }
    }

    /// Waits for `future`, but gives up when nothing moved at the store for the whole timeout.
    pub(crate) async fn watch<F: Future>(&self, future: F) -> Result<F::Output, DepotError> {
        let mut future = pin!(future);
        let begin = Instant::now();
        loop {
            let (last, error) = {
                let state = self.state.lock();
                let last = state.last.map_or(begin, |last| last.max(begin));
                (last, state.error.clone())
            };
            let is_refused = error
                .as_ref()
                .is_some_and(|error| error.kind() == StoreErrorKind::Denied);
            let patience = match is_refused {
                true => self.timeout.min(REFUSED_PATIENCE),
                false => self.timeout,
            };
            let deadline = last + patience;
            let now = Instant::now();
            if now >= deadline {
                return Err(DepotError::Stalled {
                    waited_ms: patience.as_millis() as u64,
                    last: error,
                });
            }
            tokio::select! {
                biased;
                output = &mut future => return Ok(output),
                () = tokio::time::sleep_until(deadline.min(now + LOOK_EVERY)) => {}
            }
        }
    }
}

/// The pause before attempt number `attempt` (the first repetition is 1): doubling, with a random half so that many clients do not
/// come back in step.
pub(crate) fn pause(attempt: u32, entropy: &dyn Entropy) -> Duration {
    let doubled = FIRST_PAUSE.saturating_mul(1 << attempt.saturating_sub(1).min(10));
    let full = doubled.min(LONGEST_PAUSE);
    let part = f64::from(number(entropy)) / f64::from(u32::MAX);
    full.mul_f64(0.5 + 0.5 * part)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entropy::SeededEntropy;

    #[tokio::test(start_paused = true)]
    async fn a_store_that_does_something_is_not_idle() {
        let progress = Progress::new(Duration::from_secs(100));
        let begin = Instant::now();
        let works = async {
            for _ in 0..5 {
                tokio::time::sleep(Duration::from_secs(1)).await;
                progress.note();
            }
        };
        tokio::join!(works, progress.idle(Duration::from_secs(2)));
        assert_eq!(begin.elapsed(), Duration::from_secs(7));
    }

    #[tokio::test(start_paused = true)]
    async fn only_time_without_progress_counts() {
        let progress = Progress::new(Duration::from_secs(10));
        let slow = async {
            for _ in 0..5 {
                tokio::time::sleep(Duration::from_secs(8)).await;
                progress.note();
            }
        };
        progress.watch(slow).await.expect("slow, but alive");
        let begin = Instant::now();
        let dead = progress.watch(std::future::pending::<()>()).await;
        assert!(matches!(dead, Err(DepotError::Stalled { .. })));
        assert_eq!(begin.elapsed().as_secs(), 10);
    }

    #[test]
    fn pauses_grow_and_stay_bounded() {
        let entropy = SeededEntropy::new(1);
        for attempt in 1..100 {
            let pause = pause(attempt, &entropy);
            assert!(pause >= FIRST_PAUSE / 2 && pause <= LONGEST_PAUSE);
        }
        assert!(pause(1, &entropy) <= FIRST_PAUSE);
        assert!(pause(50, &entropy) >= LONGEST_PAUSE / 2);
    }
}
