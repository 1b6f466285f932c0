//! Limits on the wait for a store that does not answer.
//!
//! Owns the one rule: only the time without any progress at the store counts, never the total,
//! since a slow store is not a dead one. Every acknowledged request is progress for all waiting
//! callers, and so are the bytes of a long transfer while they move. Neither is while a request that
//! was sent earlier is still refused, or ended without an answer.
//!
//! The store ends a transfer below a least rate, and one whose answer does not come. Then the
//! request counts as refused since it was first sent, however many bytes moved. So a store that
//! takes bodies and never answers is not waited for without end.

use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bkfs_store::backoff::Backoff;
use bkfs_store::entropy::Entropy;
use bkfs_store::{Signs, StoreError};
use parking_lot::Mutex;
use tokio::time::{Instant, MissedTickBehavior};

use crate::error::ContentError;

/// The pauses after transient errors. The end of an outage is noticed within the longest one.
const BACKOFF: Backoff = Backoff {
    first: Duration::from_millis(100),
    longest: Duration::from_secs(10),
};

/// No pause is longer than this fraction (one fifth) of the timeout, so that it ends before the
/// waiting callers give up.
const PAUSES_IN_TIMEOUT: u32 = 5;

/// How often a waiting caller checks for refused requests and for a stop of this process.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Tells the time in which this process ran from the time in which it stood still: stopped by a
/// signal, or on a suspended machine. No request is attempted while it stands still.
#[derive(Debug, Default)]
pub(crate) struct Awake(Mutex<Duration>);

impl Awake {
    /// Runs `future`, and checks the clock once every second meanwhile.
    pub(crate) async fn watch<F: Future>(&self, future: F) -> F::Output {
        let mut future = pin!(future);
        let mut looks = tokio::time::interval(LOOK_EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut looked = Instant::now();
        poll_fn(|context| {
            let now = Instant::now();
            let late = now.saturating_duration_since(looked + LOOK_EVERY);
            if late > LOOK_EVERY {
                *self.0.lock() += late;
            }
            looked = now;
            // Polled again after a tick, so that the timer wakes this task for the next one.
            while looks.poll_tick(context).is_ready() {}
            future.as_mut().poll(context)
        })
        .await
    }

    /// Returns the present moment, to measure from.
    pub(crate) fn now(&self) -> Moment {
        Moment {
            at: Instant::now(),
            stood: *self.0.lock(),
        }
    }

    /// Returns how long this process has run since `begin`.
    pub(crate) fn since(&self, begin: Moment) -> Duration {
        let stood = self.0.lock().saturating_sub(begin.stood);
        begin.at.elapsed().saturating_sub(stood)
    }
}

/// A moment, with the total time that the process had stood still by then.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Moment {
    at: Instant,
    stood: Duration,
}

/// The progress of the store for requests of one sort: uploads or reads.
#[derive(Debug)]
pub(crate) struct StoreProgress {
    timeout: Duration,
    movement: Movement,
    state: Mutex<ProgressState>,
}

/// The movement of bytes that counts for the waits: that of bodies, or that of answers.
#[derive(Debug, Clone)]
pub(crate) struct Movement {
    pub(crate) signs: Signs,
    /// Returns the time of the last movement.
    pub(crate) last: fn(&Signs) -> Option<Instant>,
}

#[derive(Debug)]
struct ProgressState {
    /// The time of the last answer.
    last: Option<Instant>,
    error: Option<Arc<StoreError>>,
    /// Requests that are refused or not answered repeatedly, by number: since when, and the last
    /// error.
    stuck: BTreeMap<u64, (Instant, Option<Arc<StoreError>>)>,
    /// The number of such requests so far.
    numbers: u64,
    /// The number of requests that have not succeeded yet.
    sending: usize,
}

/// A request that has not succeeded yet, while this is held.
#[derive(Debug)]
pub(crate) struct Sending<'a>(&'a StoreProgress);

impl Drop for Sending<'_> {
    fn drop(&mut self) {
        self.0.state.lock().sending -= 1;
    }
}

/// A request that fails repeatedly, while this is held.
#[derive(Debug)]
pub(crate) struct Stuck<'a> {
    progress: &'a StoreProgress,
    number: u64,
    since: Instant,
}

impl Stuck<'_> {
    /// Records the reason.
    pub(crate) fn note(&self, error: &Arc<StoreError>) {
        let stuck = (self.since, Some(Arc::clone(error)));
        self.progress.state.lock().stuck.insert(self.number, stuck);
    }
}

impl Drop for Stuck<'_> {
    fn drop(&mut self) {
        self.progress.state.lock().stuck.remove(&self.number);
    }
}

impl StoreProgress {
    pub(crate) fn new(timeout: Duration, movement: Movement) -> Self {
        Self {
            timeout,
            movement,
            state: Mutex::new(ProgressState {
                last: None,
                error: None,
                stuck: BTreeMap::new(),
                numbers: 0,
                sending: 0,
            }),
        }
    }

    /// Records progress: the store answered.
    pub(crate) fn note(&self) {
        let mut state = self.state.lock();
        state.last = Some(Instant::now());
        state.error = None;
    }

    /// Records that the caller waits for something other than the store. This counts as progress.
    pub(crate) fn note_waiting(&self) {
        self.state.lock().last = Some(Instant::now());
    }

    /// Records that the store answered with an error that may pass.
    pub(crate) fn note_trouble(&self, error: &Arc<StoreError>) {
        self.state.lock().error = Some(Arc::clone(error));
    }

    /// Records a request, with all its attempts, until the returned value is dropped.
    pub(crate) fn send(&self) -> Sending<'_> {
        self.state.lock().sending += 1;
        Sending(self)
    }

    /// Records that a request has not succeeded since `since`, whatever becomes of other requests,
    /// until the returned value is dropped.
    pub(crate) fn stick(&self, since: Instant) -> Stuck<'_> {
        let mut state = self.state.lock();
        state.numbers += 1;
        let number = state.numbers;
        state.stuck.insert(number, (since, None));
        Stuck {
            progress: self,
            number,
            since,
        }
    }

    /// Waits until the store has acknowledged nothing for `patience`, counted from now at the
    /// earliest. For callers that can keep data elsewhere: what moves is not safe yet, and on a slow
    /// link it is not for long.
    pub(crate) async fn idle(&self, patience: Duration) {
        let last = |begin: Instant| self.state.lock().last.map_or(begin, |last| last.max(begin));
        self.without(patience, last).await;
    }

    /// Waits until the store has made no progress for `patience`, counted from now at the earliest:
    /// it acknowledges nothing, and nothing moves.
    pub(crate) async fn silent(&self, patience: Duration) {
        self.without(patience, |begin| self.last(&self.state.lock(), begin))
            .await;
    }

    /// Waits until no byte has moved for `patience`, counted from `begin` at the earliest. What the
    /// store acknowledges does not matter.
    pub(crate) async fn still(&self, begin: Instant, patience: Duration) {
        let last = || (self.movement.last)(&self.movement.signs);
        while let Some(last) = last().map(|last| last.max(begin))
            && Instant::now() < last + patience
        {
            tokio::time::sleep_until(last + patience).await;
        }
    }

    async fn without(&self, patience: Duration, last: impl Fn(Instant) -> Instant) {
        let begin = Instant::now();
        loop {
            let end = last(begin) + patience;
            if Instant::now() >= end {
                return;
            }
            tokio::time::sleep_until(end).await;
        }
    }

    /// Waits for `future`. Dropping the wait drops the future.
    ///
    /// # Errors
    /// [`ContentError::Stalled`] if the store made no progress for the whole timeout, or if one
    /// request did not succeed for that long.
    pub(crate) async fn watch<F: Future>(&self, future: F) -> Result<F::Output, ContentError> {
        self.wait(future, |_| true).await
    }

    /// Waits for `future`, which may work for long without a request. Only the time in which a
    /// request is in progress counts.
    ///
    /// # Errors
    /// Those of [`StoreProgress::watch`].
    pub(crate) async fn bound<F: Future>(&self, future: F) -> Result<F::Output, ContentError> {
        self.wait(future, |state| state.sending > 0).await
    }

    async fn wait<F: Future>(
        &self,
        future: F,
        counts: impl Fn(&ProgressState) -> bool,
    ) -> Result<F::Output, ContentError> {
        let mut future = pin!(future);
        let mut begin = Instant::now();
        let mut looked = begin;
        loop {
            let now = Instant::now();
            // A check that comes so late shows that this process stood still, not the store.
            let was_stopped = now - looked > LOOK_EVERY + self.timeout / 2;
            if was_stopped || !counts(&self.state.lock()) {
                begin = now;
            }
            looked = now;
            let (deadline, error) = self.deadline(begin);
            if now >= deadline {
                return Err(self.stalled(error));
            }
            tokio::select! {
                biased;
                output = &mut future => return Ok(output),
                () = tokio::time::sleep_until(deadline.min(now + LOOK_EVERY)) => {}
            }
        }
    }

    /// Returns the present deadline of a wait that began at `begin`, and the error to report then.
    fn deadline(&self, begin: Instant) -> (Instant, Option<Arc<StoreError>>) {
        let state = self.state.lock();
        let last = self.last(&state, begin);
        let stuck = state.stuck.values().min_by_key(|(since, _)| *since);
        match stuck.map(|(since, error)| (begin.max(*since), error)) {
            Some((since, error)) if since < last => (since + self.timeout, error.clone()),
            _ => (last + self.timeout, state.error.clone()),
        }
    }

    /// Returns the time of the last progress, for a wait that began at `begin`.
    fn last(&self, state: &ProgressState, begin: Instant) -> Instant {
        // A store that takes bodies and refuses each of them moves bytes for ever. So they count
        // only while no request was refused since the last answer.
        let moved = match &state.error {
            None => (self.movement.last)(&self.movement.signs),
            Some(_) => None,
        };
        let last = state.last.max(moved);
        last.map_or(begin, |last| last.max(begin))
    }

    /// Returns the error of a wait in vain.
    pub(crate) fn stalled(&self, last: Option<Arc<StoreError>>) -> ContentError {
        ContentError::Stalled {
            waited_ms: self.timeout.as_millis() as u64,
            last,
        }
    }
}

impl StoreProgress {
    /// Waits for the pause before attempt number `attempt` of a request (the first repetition is
    /// 1).
    pub(crate) async fn pause(&self, attempt: u32, entropy: &dyn Entropy) {
        let longest = self.timeout / PAUSES_IN_TIMEOUT;
        tokio::time::sleep(BACKOFF.equal_jitter(attempt, entropy).min(longest)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the progress of uploads with a timeout of so many seconds, and the signs it looks at.
    fn progress(timeout: u64) -> (StoreProgress, Signs) {
        let signs = Signs::default();
        let movement = Movement {
            signs: signs.clone(),
            last: Signs::sent_at,
        };
        let timeout = Duration::from_secs(timeout);
        (StoreProgress::new(timeout, movement), signs)
    }

    /// Moves bytes of a body once a second for so many seconds.
    async fn upload(signs: &Signs, seconds: u64) {
        let first = Instant::now();
        for _ in 0..seconds {
            tokio::time::sleep(Duration::from_secs(1)).await;
            signs.sent(first);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn bytes_that_move_are_progress_and_the_silence_after_them_counts() {
        let (progress, signs) = progress(10);
        let begin = Instant::now();
        let slow = progress.watch(upload(&signs, 300));
        slow.await.expect("it moves all the time");
        let silent = async {
            upload(&signs, 100).await;
            std::future::pending::<()>().await;
        };
        let stalled = progress.watch(silent).await;
        assert!(matches!(stalled, Err(ContentError::Stalled { .. })));
        assert_eq!(begin.elapsed().as_secs(), 300 + 100 + 10);
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_whose_bytes_move_is_not_silent_and_acknowledges_nothing() {
        let (progress, signs) = progress(100);
        let begin = Instant::now();
        tokio::join!(upload(&signs, 30), progress.silent(Duration::from_secs(2)));
        assert_eq!(begin.elapsed().as_secs(), 32);
        let idle = async {
            progress.idle(Duration::from_secs(2)).await;
            assert_eq!(
                begin.elapsed().as_secs(),
                34,
                "others may keep data elsewhere"
            );
        };
        tokio::join!(upload(&signs, 30), idle);
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_was_taken_and_not_answered_is_no_progress() {
        let (progress, signs) = progress(10);
        let begin = Instant::now();
        let swallowed = async {
            upload(&signs, 5).await;
            let _stuck = progress.stick(begin);
            // It is sent again, and again.
            upload(&signs, 1000).await;
        };
        progress.watch(swallowed).await.expect_err("in vain");
        assert_eq!(begin.elapsed().as_secs(), 10);
    }

    #[tokio::test(start_paused = true)]
    async fn bodies_that_are_refused_again_and_again_are_no_progress() {
        let (progress, signs) = progress(10);
        let begin = Instant::now();
        let busy = StoreError::new(
            bkfs_store::StoreErrorKind::Throttled,
            bkfs_store::Operation::PutNew,
            "data/1",
            "slow down",
        );
        let refused = async {
            loop {
                upload(&signs, 5).await;
                progress.note_trouble(&Arc::new(busy.clone()));
            }
        };
        let stalled = progress.watch::<_>(refused).await;
        stalled.map(|never: ()| never).expect_err("in vain");
        assert_eq!(begin.elapsed().as_secs(), 10);
        progress.note();
        let slow = progress.watch(upload(&signs, 300));
        slow.await.expect("an answer ends the trouble");
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_that_only_sends_takes_nothing() {
        let (progress, signs) = progress(10);
        let begin = Instant::now();
        let answers = async {
            loop {
                tokio::time::sleep(Duration::from_secs(1)).await;
                signs.received(begin);
            }
        };
        let stalled = progress.watch::<_>(answers).await;
        stalled.map(|never: ()| never).expect_err("in vain");
        assert_eq!(begin.elapsed().as_secs(), 10);
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_that_does_something_is_not_idle() {
        let progress = progress(100).0;
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
        let progress = progress(10).0;
        let slow = async {
            for _ in 0..5 {
                tokio::time::sleep(Duration::from_secs(8)).await;
                progress.note();
            }
        };
        progress.watch(slow).await.expect("slow, but alive");
        let begin = Instant::now();
        let dead = progress.watch(std::future::pending::<()>()).await;
        assert!(matches!(dead, Err(ContentError::Stalled { .. })));
        assert_eq!(begin.elapsed().as_secs(), 10);
    }

    #[tokio::test(start_paused = true)]
    async fn one_request_that_never_gets_through_is_waited_for_no_longer_than_silence() {
        let progress = progress(10).0;
        let begin = Instant::now();
        let others = async {
            loop {
                tokio::time::sleep(Duration::from_secs(1)).await;
                progress.note();
            }
        };
        let refused = async {
            tokio::time::sleep(Duration::from_secs(5)).await;
            let stuck = progress.stick(Instant::now());
            progress.watch(others).await.expect_err("in vain");
            drop(stuck);
        };
        refused.await;
        assert_eq!(begin.elapsed().as_secs(), 15);
        let well = progress.watch(tokio::time::sleep(Duration::from_secs(9)));
        well.await.expect("it is over");
    }

    #[tokio::test(start_paused = true)]
    async fn time_in_which_this_process_stood_still_does_not_count() {
        let progress = progress(10).0;
        let begin = Instant::now();
        let mut waits = pin!(progress.watch(std::future::pending::<()>()));
        assert!(futures::poll!(waits.as_mut()).is_pending());
        tokio::time::advance(Duration::from_secs(300)).await;
        assert!(futures::poll!(waits.as_mut()).is_pending());
        waits.await.expect_err("in vain");
        assert_eq!(begin.elapsed().as_secs(), 310);
    }
}
