//! Limits on concurrent requests and on bytes per second.
//!
//! Owns the reduction of concurrency when the store asks for fewer requests, its recovery, and the
//! rates that users set. Does not own requests.

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::urgency::{SharedUrgency, Urgency};

/// Refusals within this time answer the same group of requests, and reduce the limit once.
const ONE_CROWD: Duration = Duration::from_secs(1);

/// One part in this many of a limit is for requests for which a caller waits.
const RESERVED_PART: usize = 8;

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
///
/// The more urgent request begins first, and of equally urgent ones the one that came first. One
/// part in [`RESERVED_PART`] of the limit is for requests for which a caller waits. While one of
/// those runs, as many requests of the background run, and otherwise at most half of the limit.
#[derive(Debug)]
pub struct ConcurrencyLimit {
    state: Arc<Mutex<LimitState>>,
}

#[derive(Debug)]
struct LimitState {
    most: usize,
    limit: usize,
    /// Requests that run, by the urgency with which they began.
    running: [usize; 3],
    /// Requests that wait, in the order of the calls.
    waiting: VecDeque<Waiter>,
    successes: usize,
    slowed: Option<Instant>,
}

/// A request that waits for a permit.
#[derive(Debug)]
struct Waiter {
    urgency: SharedUrgency,
    admit: oneshot::Sender<Turn>,
}

/// A permit for one request. Dropping it lets the next request begin.
#[derive(Debug)]
pub struct Turn {
    state: Arc<Mutex<LimitState>>,
    urgency: Urgency,
}

impl ConcurrencyLimit {
    /// Returns a limit of `most` concurrent requests, at least one.
    pub fn new(most: usize) -> Self {
        let most = most.max(1);
        Self {
            state: Arc::new(Mutex::new(LimitState {
                most,
                limit: most,
                running: [0; 3],
                waiting: VecDeque::new(),
                successes: 0,
                slowed: None,
            })),
        }
    }

    /// Waits for a permit for a request whose answer a caller waits for.
    pub async fn take(&self) -> Turn {
        self.take_as(&SharedUrgency::new(Urgency::Now)).await
    }

    /// Waits for a permit for a request of this urgency. After the urgency was raised,
    /// [`ConcurrencyLimit::reconsider`] counts the new one.
    ///
    /// Cancel safety: dropped, it gives the permit back, or waits no more.
    pub async fn take_as(&self, urgency: &SharedUrgency) -> Turn {
        loop {
            let (admit, admitted) = oneshot::channel();
            let urgency = urgency.clone();
            let waiter = Waiter { urgency, admit };
            self.state.lock().waiting.push_back(waiter);
            self.reconsider();
            // A waiter leaves the queue by its permit alone.
            if let Ok(turn) = admitted.await {
                return turn;
            }
        }
    }

    /// Lets requests begin that may, after the urgency of a waiting one was raised.
    pub fn reconsider(&self) {
        admit(&self.state);
    }

    /// Records that the store served a request.
    pub fn succeeded(&self) {
        {
            let mut state = self.state.lock();
            if state.limit == state.most {
                return;
            }
            state.successes += 1;
            if state.successes < state.limit {
                return;
            }
            state.successes = 0;
            state.limit += 1;
        }
        admit(&self.state);
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
        state.limit = (state.limit / 2).max(1);
    }

    /// Returns how many requests may run concurrently now.
    pub fn limit(&self) -> usize {
        self.state.lock().limit
    }
}

impl LimitState {
    /// Returns true if one more request of this urgency may run.
    fn may_begin(&self, urgency: Urgency) -> bool {
        let running: usize = self.running.iter().sum();
        let reserved = self.limit / RESERVED_PART;
        match urgency {
            Urgency::Now => running < self.limit,
            Urgency::Ahead => running < self.limit - reserved,
            Urgency::Background => {
                let most = match self.running[Urgency::Now as usize] {
                    0 => self.limit / 2,
                    _ => reserved,
                };
                running < self.limit - reserved
                    && self.running[Urgency::Background as usize] < most.max(1)
            }
        }
    }

    /// Takes the request out of the queue that begins next, if one may.
    fn next(&mut self) -> Option<(Urgency, Waiter)> {
        self.waiting.retain(|waiter| !waiter.admit.is_closed());
        let waiting = self.waiting.iter().enumerate();
        let by_urgency = waiting.map(|(place, waiter)| (waiter.urgency.get(), Reverse(place)));
        // The most urgent one decides: none behind it begins before it.
        let (urgency, Reverse(place)) = by_urgency.max()?;
        if !self.may_begin(urgency) {
            return None;
        }
        let waiter = self.waiting.remove(place)?;
        self.running[urgency as usize] += 1;
        Some((urgency, waiter))
    }
}

/// Lets waiting requests begin, as many as may.
fn admit(state: &Arc<Mutex<LimitState>>) {
    loop {
        let next = state.lock().next();
        let Some((urgency, waiter)) = next else {
            return;
        };
        let state = Arc::clone(state);
        let turn = Turn { state, urgency };
        // A caller that has gone gives its permit back by dropping it.
        drop(waiter.admit.send(turn));
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.state.lock().running[self.urgency as usize] -= 1;
        admit(&self.state);
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

    /// Returns how many requests of this urgency begin without waiting.
    async fn begun(turns: &ConcurrencyLimit, urgency: Urgency, held: &mut Vec<Turn>) -> usize {
        let before = held.len();
        let urgency = SharedUrgency::new(urgency);
        let moment = Duration::from_millis(1);
        while let Ok(turn) = tokio::time::timeout(moment, turns.take_as(&urgency)).await {
            held.push(turn);
        }
        held.len() - before
    }

    #[tokio::test(start_paused = true)]
    async fn requests_for_which_a_caller_waits_have_room() {
        let turns = ConcurrencyLimit::new(16);
        let mut held = Vec::new();
        assert_eq!(begun(&turns, Urgency::Background, &mut held).await, 8);
        assert_eq!(begun(&turns, Urgency::Ahead, &mut held).await, 6);
        assert_eq!(begun(&turns, Urgency::Now, &mut held).await, 2);
        held.clear();
        held.push(turns.take().await);
        assert_eq!(begun(&turns, Urgency::Background, &mut held).await, 2);
        // A limit of one request still serves all.
        let turns = ConcurrencyLimit::new(1);
        for urgency in [Urgency::Background, Urgency::Ahead, Urgency::Now] {
            let mut held = Vec::new();
            assert_eq!(begun(&turns, urgency, &mut held).await, 1, "{urgency:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_more_urgent_request_begins_first_and_a_raised_one_is_that() {
        let turns = Arc::new(ConcurrencyLimit::new(1));
        let first = turns.take().await;
        let order = Arc::new(Mutex::new(Vec::new()));
        let raised = SharedUrgency::new(Urgency::Background);
        let mut tasks = Vec::new();
        for (name, urgency) in [
            ("background", SharedUrgency::new(Urgency::Background)),
            ("raised", raised.clone()),
            ("ahead", SharedUrgency::new(Urgency::Ahead)),
            ("now", SharedUrgency::new(Urgency::Now)),
        ] {
            let (turns, order) = (turns.clone(), order.clone());
            tasks.push(tokio::spawn(async move {
                let _turn = turns.take_as(&urgency).await;
                order.lock().push(name);
            }));
            tokio::task::yield_now().await;
        }
        assert!(raised.raise(Urgency::Now) && !raised.raise(Urgency::Ahead));
        turns.reconsider();
        // One that has gone is passed over.
        tasks.remove(3).abort();
        tokio::task::yield_now().await;
        drop(first);
        futures::future::join_all(tasks).await;
        assert_eq!(*order.lock(), ["raised", "ahead", "background"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_raised_request_begins_in_the_room_for_waiting_callers() {
        let turns = ConcurrencyLimit::new(8);
        let mut held = Vec::new();
        begun(&turns, Urgency::Ahead, &mut held).await;
        let urgency = SharedUrgency::new(Urgency::Ahead);
        let raise = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            urgency.raise(Urgency::Now);
            turns.reconsider();
        };
        let taken = tokio::time::timeout(Duration::from_secs(2), turns.take_as(&urgency));
        let (taken, ()) = tokio::join!(taken, raise);
        assert!(taken.is_ok());
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
