//! Sessions that change the root at the same time.

use super::support::*;
use crate::root::attempt::Attempt;
use crate::root::chain::RootMark;
use crate::root::contention::Races;
use crate::root::error::RootError;
use crate::root::handle::{RootHandle, RootParts, Transition};
use crate::root::holder::SystemProcesses;
use crate::root::memory::VolatileMemory;
use crate::root::retry::{Pauses, RetryPolicy};
use crate::root::session::OpenSession;
use crate::root::state::{ROOT_KEY, Root, SessionId};
use crate::root::upgrade::make_large;
use async_trait::async_trait;
use bkfs_store::{Operation, Store, StoreError, StoreErrorKind};
use bkfs_testing::counting::CountingStore;
use bkfs_testing::fault::{Fault, FaultStore, Strike};
use bytes::Bytes;
use futures::future::join_all;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// How long each request takes.
const ROUND_TRIP: Duration = Duration::from_millis(20);

/// Returns a process with the patience of a mount.
async fn host(store: Arc<dyn Store>, seed: u64) -> RootHandle {
    let parts = RootParts {
        store,
        keyring: keyring(),
        entropy: Seeded::new(seed),
        memory: Arc::new(VolatileMemory::default()),
        policy: RetryPolicy::default(),
        accept_rollback: false,
    };
    RootHandle::open(parts, 0).await.expect("the root is there")
}

/// A change of a live session.
struct Change(SessionId);

#[async_trait]
impl Transition for Change {
    type Output = ();

    fn session(&self) -> Option<SessionId> {
        Some(self.0)
    }

    async fn apply(&mut self, next: &mut Root) -> Result<(), RootError> {
        next.sessions.get_mut(&self.0).expect("it is live").covered += 1;
        Ok(())
    }

    async fn seen(&mut self, root: &Root) -> Result<bool, RootError> {
        Ok(root.sessions[&self.0].covered > 0)
    }
}

/// Returns an attempt to replace a root of this generation.
async fn attempt(generation: u64) -> Attempt {
    let store = memory().await;
    let view = process(store, 1).await.current();
    Attempt {
        next: (*view).clone(),
        base: RootMark {
            generation,
            nonce: [7; 16],
        },
        expected: view.version.clone(),
        body: Bytes::new(),
    }
}

/// With `timeout=10`, no pause is longer than two seconds.
#[tokio::test(start_paused = true)]
async fn a_loser_is_no_more_patient_than_its_caller() {
    let policy = RetryPolicy::within(Duration::from_secs(10));
    let conflict = StoreError::new(
        StoreErrorKind::Conflict,
        Operation::Replace,
        ROOT_KEY,
        "lost",
    );
    for seed in 1..64 {
        let entropy = Seeded::new(seed);
        let mut races = Races::of(None, &policy, &*entropy);
        let mut pauses = Pauses::new(&policy, &*entropy);
        for generation in [1, 100, 200, 300] {
            let attempt = attempt(generation).await;
            races.begin();
            tokio::time::sleep(Duration::from_secs(4)).await;
            let lost = Instant::now();
            races.end(&attempt, &conflict, &mut pauses).await;
            assert!(lost.elapsed() <= Duration::from_secs(2));
            let left = pauses.deadline() - Instant::now();
            assert_eq!(left, Duration::from_secs(10), "the store has answered");
        }
    }
}

/// Lets `at_once` of `live` sessions change a root at the same time. Returns the number of
/// replacements that they sent for each change, and the time until all were made.
async fn race(live: u64, at_once: usize) -> (f64, Duration) {
    let store = memory().await;
    let admin = process(store.clone(), 1).await;
    let made = make_large(&admin, holder("admin"), &SystemProcesses).await;
    assert!(made.expect("no session stands in it"));
    let mut sessions = Vec::new();
    for number in 0..live {
        let by = holder(&number.to_string());
        let entered = OpenSession::open(&admin, by, None, &SystemProcesses).await;
        sessions.push(entered.expect("there is room"));
    }
    let slow = Arc::new(FaultStore::new(store));
    slow.plan(Strike::with(Fault::Delay(ROUND_TRIP)).always());
    let counting = Arc::new(CountingStore::new(slow as Arc<dyn Store>));
    let mut hosts = Vec::new();
    for (session, seed) in sessions.iter().take(at_once).zip(2..) {
        hosts.push((host(counting.clone(), seed).await, session.id()));
    }
    let before = counting.counters().tally(Operation::Replace).requests;
    let began = Instant::now();
    let changes = hosts.into_iter().map(|(handle, id)| async move {
        let changed = handle.update(&mut Change(id)).await;
        changed.expect("it is made");
    });
    join_all(changes).await;
    let took = began.elapsed();
    let sent = counting.counters().tally(Operation::Replace).requests - before;
    let root = process(counting, 999).await.current().root.clone();
    let made = root
        .sessions
        .values()
        .filter(|session| session.covered == 1);
    assert_eq!(made.count(), at_once, "each change was made once");
    (sent as f64 / at_once as f64, took)
}

/// The root shows none of them yet.
#[tokio::test(start_paused = true)]
async fn a_crowd_that_enters_is_soon_through() {
    let store = memory().await;
    let admin = process(store.clone(), 1).await;
    let made = make_large(&admin, holder("admin"), &SystemProcesses).await;
    assert!(made.expect("no session stands in it"));
    let slow = Arc::new(FaultStore::new(store));
    slow.plan(Strike::with(Fault::Delay(ROUND_TRIP)).always());
    let counting = Arc::new(CountingStore::new(slow as Arc<dyn Store>));
    let mut hosts = Vec::new();
    for seed in 0..64 {
        hosts.push(host(counting.clone(), seed).await);
    }
    let before = counting.counters().tally(Operation::Replace).requests;
    let began = Instant::now();
    let entries = hosts.iter().map(|handle| async move {
        let entered = OpenSession::open(handle, holder("host"), None, &SystemProcesses).await;
        entered.expect("there is room")
    });
    let entered = join_all(entries).await;
    let took = began.elapsed();
    let sent = counting.counters().tally(Operation::Replace).requests - before;
    assert_eq!(entered.len(), 64);
    assert!(sent <= 64 * 6, "{sent} replacements");
    assert!(took <= Duration::from_secs(30), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_crowd_of_sessions_is_soon_through() {
    for crowd in [64, 256] {
        let (sent, took) = race(crowd, crowd as usize).await;
        assert!(sent <= 3.0, "{crowd}: {sent} replacements for each change");
        assert!(took <= Duration::from_secs(30), "{crowd}: {took:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_few_of_many_live_sessions_do_not_wait_for_the_others() {
    for few in [2, 8] {
        let (sent, took) = race(256, few).await;
        assert!(sent <= 3.0, "{few}: {sent} replacements for each change");
        assert!(took <= Duration::from_secs(3), "{few}: {took:?}");
    }
}
