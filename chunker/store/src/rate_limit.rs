//! Limits on concurrent requests and on bytes per second.
//!
//! Owns the reduction of concurrency when the store asks for fewer requests, its recovery, and the
//! rates that users set. Does not own requests.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::Instant;

/// Refusals within this time answer the same group of requests, and reduce the limit once.
const ONE_CROWD: Duration = Duration::from_secs(1);

/// The longest single wait for a rate. After each wait the caller records that the store is not the
/// cause.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// The most bytes per second. `None` means no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Rates {
    /// Bytes per second to the store.
    pub upload: Option<u64>,
    /// Bytes per second from the store.
    pub download: Option<u64>,
}

/// A concurrency limit for requests. Each time the store asks for fewer requests, the limit is
/// halved. After each full round of successes it grows by one (additive increase, multiplicative
/// decrease, as in TCP).
#[derive(Debug)]
pub struct ConcurrencyLimit {
    semaphore: Semaphore,
    state: Mutex<MeterState>,
}

#[derive(Debug)]
struct MeterState {
    most: usize,
    limit: usize,
    /// The number of permits to withdraw when running requests end.
    owed: usize,
    successes: usize,
    slowed: Option<Instant>,
}

/// A permit for one request. Dropping it lets the next request begin.
#[derive(Debug)]
pub struct Turn<'a> {
    turns: &'a ConcurrencyLimit,
    permit: Option<SemaphorePermit<'a>>,
}

impl ConcurrencyLimit {
    /// Returns a limit of `most` concurrent requests, at least one.
    pub fn new(most: usize) -> Self {
        let most = most.max(1);
        Self {
            semaphore: Semaphore::new(most),
            state: Mutex::new(MeterState {
                most,
                limit: most,
                owed: 0,
                successes: 0,
                slowed: None,
            }),
        }
    }

    /// Waits for a permit, in the order of the calls.
    pub async fn take(&self) -> Turn<'_> {
        loop {
            // The semaphore is never closed.
            let permit = self.semaphore.acquire().await.ok();
            let turn = Turn {
                turns: self,
                permit,
            };
            if self.state.lock().owed == 0 {
                return turn;
            }
        }
    }

    /// Records that the store served a request.
    pub fn succeeded(&self) {
        let mut state = self.state.lock();
        if state.limit == state.most {
            return;
        }
        state.successes += 1;
        if state.successes >= state.limit {
            state.successes = 0;
            state.limit += 1;
            match state.owed {
                0 => self.semaphore.add_permits(1),
                _ => state.owed -= 1,
            }
        }
    }

    /// Records that the store asks for fewer requests.
    pub fn slow_down(&self) {
        let mut state = self.state.lock();
        let now = Instant::now();
        if state.slowed.is_some_and(|before| now < before + ONE_CROWD) {
            return;
        }
        state.slowed = Some(now);
        state.successes = 0;
        let limit = (state.limit / 2).max(1);
        state.owed += state.limit - limit;
        state.limit = limit;
    }

    /// Returns how many requests may run concurrently now.
    pub fn limit(&self) -> usize {
        self.state.lock().limit
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut state = self.turns.state.lock();
        if state.owed > 0
            && let Some(permit) = self.permit.take()
        {
            state.owed -= 1;
            permit.forget();
        }
    }
}

/// A token bucket that lends. A caller may take any number of bytes once no debt is left, and later
/// callers wait until the debt is paid off. So an object of any size passes as a whole, and the
/// rate holds over any time longer than the largest object takes.
#[derive(Debug)]
pub struct Meter {
    rate: Option<u64>,
    /// The time when the debt is paid off.
    free_at: Mutex<Option<Instant>>,
    turn: tokio::sync::Mutex<()>,
}

impl Meter {
    /// Returns a meter for `rate` bytes per second. `None` and 0 mean no limit.
    pub fn new(rate: Option<u64>) -> Self {
        Self {
            rate: rate.filter(|rate| *rate > 0),
            free_at: Mutex::new(None),
            turn: tokio::sync::Mutex::default(),
        }
    }

    /// Waits until `bytes` bytes may pass. Calls `waiting` at least once a second meanwhile.
    pub async fn pass(&self, bytes: u64, waiting: impl Fn()) {
        let Some(rate) = self.rate else { return };
        let _turn = self.turn.lock().await;
        loop {
            let now = Instant::now();
            let free_at = *self.free_at.lock();
            match free_at.filter(|free_at| *free_at > now) {
                Some(free_at) => {
                    waiting();
                    tokio::time::sleep_until(free_at.min(now + LONGEST_WAIT)).await;
                }
                None => break,
            }
        }
        self.charge(rate, bytes);
    }

    /// Records `bytes` bytes whose number was not known before they passed. Later callers wait for
    /// them.
    pub fn passed(&self, bytes: u64) {
        if let Some(rate) = self.rate {
            self.charge(rate, bytes);
        }
    }

    fn charge(&self, rate: u64, bytes: u64) {
        let mut free_at = self.free_at.lock();
        let now = Instant::now();
        let from = free_at.map_or(now, |free_at| free_at.max(now));
        *free_at = Some(from + Duration::from_secs_f64(bytes as f64 / rate as f64));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the number of permits that are available without waiting.
    async fn given(turns: &ConcurrencyLimit) -> usize {
        let mut held = Vec::new();
        while let Ok(turn) = tokio::time::timeout(Duration::from_millis(1), turns.take()).await {
            held.push(turn);
        }
        held.len()
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_that_asks_for_patience_is_asked_less_at_once() {
        let turns = ConcurrencyLimit::new(8);
        assert_eq!(given(&turns).await, 8);
        // A group of refusals counts once.
        for _ in 0..8 {
            turns.slow_down();
        }
        assert_eq!((given(&turns).await, turns.limit()), (4, 4));
        for expected in [2, 1, 1] {
            tokio::time::advance(ONE_CROWD).await;
            turns.slow_down();
            assert_eq!((given(&turns).await, turns.limit()), (expected, expected));
        }
        // 1 + 2 + … + 7 successes restore all permits, and no more.
        for _ in 0..27 {
            turns.succeeded();
        }
        assert_eq!(given(&turns).await, 7);
        for _ in 0..100 {
            turns.succeeded();
        }
        assert_eq!(given(&turns).await, 8);
    }

    #[tokio::test(start_paused = true)]
    async fn turns_that_run_are_taken_back_as_they_end() {
        let turns = ConcurrencyLimit::new(4);
        let mut running = Vec::new();
        for _ in 0..4 {
            running.push(turns.take().await);
        }
        turns.slow_down();
        running.truncate(2);
        assert_eq!(given(&turns).await, 0, "two are running, and two may");
        running.clear();
        assert_eq!(given(&turns).await, 2);
    }

    #[tokio::test(start_paused = true)]
    async fn bytes_go_by_at_the_rate() {
        let meter = Meter::new(Some(1000));
        let begin = Instant::now();
        let said = std::cell::Cell::new(0);
        for _ in 0..5 {
            meter.pass(4000, || said.set(said.get() + 1)).await;
        }
        meter.passed(2000);
        meter.pass(1, || ()).await;
        assert_eq!(begin.elapsed().as_secs(), 22);
        assert!(said.get() >= 16, "it says that it waits: {}", said.get());
        // Without a rate no caller waits, and unused time is not saved up.
        Meter::new(None).pass(u64::MAX, || ()).await;
        tokio::time::advance(Duration::from_secs(1000)).await;
        let begin = Instant::now();
        meter.pass(3000, || ()).await;
        meter.pass(1, || ()).await;
        assert_eq!(begin.elapsed().as_secs(), 3);
    }
}
