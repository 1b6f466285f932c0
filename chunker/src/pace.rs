//! How many requests run at once, and how many bytes go by in a second.
//!
//! Owns slowing down when the store asks for patience and coming back to full speed by itself, and the rates that people set. Does not own requests.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::Instant;

/// Refusals within this time are answers to one and the same crowd of requests, and slow down once.
const ONE_CROWD: Duration = Duration::from_secs(1);

/// The longest single wait for a rate: whoever waits says each time that it is not the store that is slow.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// Bytes per second that are let by; none for as many as there are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Rates {
    /// To the store.
    pub upload: Option<u64>,
    /// From the store.
    pub download: Option<u64>,
}

/// Turns for requests: at most so many at once, fewer while the store asks for patience (halved each time), one more after each full round of successes (additive increase,
/// multiplicative decrease, as of TCP).
#[derive(Debug)]
pub(crate) struct Turns {
    semaphore: Semaphore,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    most: usize,
    limit: usize,
    /// Turns that are to be taken back as they end.
    owed: usize,
    successes: usize,
    slowed: Option<Instant>,
}

/// One turn. Dropping it lets the next one begin.
#[derive(Debug)]
pub(crate) struct Turn<'a> {
    turns: &'a Turns,
    permit: Option<SemaphorePermit<'a>>,
}

impl Turns {
    /// At most so many at once, and at least one.
    pub(crate) fn new(most: usize) -> Self {
        let most = most.max(1);
        Self {
            semaphore: Semaphore::new(most),
            state: Mutex::new(State {
                most,
                limit: most,
                owed: 0,
                successes: 0,
                slowed: None,
            }),
        }
    }

    /// Waits for a turn, first come first served.
    pub(crate) async fn take(&self) -> Turn<'_> {
        loop {
            // It is never closed.
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

    /// The store has done what was asked.
    pub(crate) fn succeeded(&self) {
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

    /// The store asks for patience.
    pub(crate) fn slow_down(&self) {
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

    /// How many may run at once now.
    pub(crate) fn limit(&self) -> usize {
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

/// A token bucket that lends: whoever comes may take any number of bytes once nothing is owed, and those after it wait until that is paid off. So an object of any size
/// goes by whole, and the rate holds over any time longer than the largest object takes.
#[derive(Debug)]
pub(crate) struct Meter {
    rate: Option<u64>,
    /// When nothing is owed any more.
    free_at: Mutex<Option<Instant>>,
    turn: tokio::sync::Mutex<()>,
}

impl Meter {
    /// So many bytes per second.
    pub(crate) fn new(rate: Option<u64>) -> Self {
        Self {
            rate: rate.filter(|rate| *rate > 0),
            free_at: Mutex::new(None),
            turn: tokio::sync::Mutex::default(),
        }
    }

    /// Waits until `bytes` may go by. `waiting` is called again and again meanwhile.
    pub(crate) async fn pass(&self, bytes: u64, waiting: impl Fn()) {
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

    /// `bytes` have gone by whose number nobody knew before: later ones wait for it.
    pub(crate) fn passed(&self, bytes: u64) {
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

    /// How many turns are given without waiting.
    async fn given(turns: &Turns) -> usize {
        let mut held = Vec::new();
        while let Ok(turn) = tokio::time::timeout(Duration::from_millis(1), turns.take()).await {
            held.push(turn);
        }
        held.len()
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_that_asks_for_patience_is_asked_less_at_once() {
        let turns = Turns::new(8);
        assert_eq!(given(&turns).await, 8);
        // A crowd of refusals is one.
        for _ in 0..8 {
            turns.slow_down();
        }
        assert_eq!((given(&turns).await, turns.limit()), (4, 4));
        for expected in [2, 1, 1] {
            tokio::time::advance(ONE_CROWD).await;
            turns.slow_down();
            assert_eq!((given(&turns).await, turns.limit()), (expected, expected));
        }
        // 1 + 2 + … + 7 successes bring all turns back, and no more.
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
        let turns = Turns::new(4);
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
        // Without a rate nobody waits, and rest is not saved up.
        Meter::new(None).pass(u64::MAX, || ()).await;
        tokio::time::advance(Duration::from_secs(1000)).await;
        let begin = Instant::now();
        meter.pass(3000, || ()).await;
        meter.pass(1, || ()).await;
        assert_eq!(begin.elapsed().as_secs(), 3);
    }
}
