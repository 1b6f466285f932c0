//! Roots that are read while something is uploaded for a change.

use super::handle::Register;
use super::support::*;
use crate::root::handle::RootHandle;
use crate::root::state::SessionId;
use bkfs_store::{Operation, StoreErrorKind};
use bkfs_testing::fault::{Fault as Trouble, FaultStore, Strike};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// How long each read of the root takes.
const TRIP: Duration = Duration::from_millis(100);

/// Makes a change after uploads that take two trips, and then `pause`. Returns whether the root was
/// read early, and how many trips the change took apart from the pause.
async fn changed(handle: &RootHandle, id: u64, pause: Duration) -> (bool, u128) {
    let begun = Instant::now();
    let ((), early) = handle.read_during(sleep(2 * TRIP)).await;
    let is_early = early.as_ref().is_ok_and(Option::is_some);
    sleep(pause).await;
    let mut change = Register(SessionId(id));
    handle.update_early(early, &mut change).await.expect("made");
    let taken = begun.elapsed() - pause;
    (is_early, taken.as_millis() / TRIP.as_millis())
}

#[tokio::test(start_paused = true)]
async fn a_lone_process_reads_the_root_while_it_uploads() {
    let store = Arc::new(FaultStore::new(memory().await));
    let handle = process(store.clone(), 1).await;
    let other = process(store.clone(), 2).await;
    let slow = Strike::with(Trouble::Delay(TRIP)).on(Operation::Get);
    store.plan(slow.keys("root").always());
    let none = Duration::ZERO;
    // Each change ends with a look at the root.
    assert_eq!(changed(&handle, 3, none).await, (false, 4));
    assert_eq!(changed(&handle, 4, none).await, (false, 4));
    assert_eq!(changed(&handle, 5, none).await, (true, 3));
    assert_eq!(
        changed(&handle, 6, Duration::from_secs(2)).await,
        (true, 4),
        "it was read too long ago"
    );
    assert_eq!(
        changed(&handle, 11, Duration::from_millis(850)).await,
        (true, 4),
        "its age counts from the request"
    );
    changed(&other, 7, none).await;
    // What another process did is seen by the early read. After that, it may change the root again.
    assert_eq!(changed(&handle, 8, none).await, (true, 3));
    assert_eq!(changed(&handle, 9, none).await, (false, 4));
    assert_eq!(changed(&handle, 10, none).await, (true, 3));
    let sessions = process(store, 3).await.current().root.sessions.clone();
    assert!((3..=11).all(|id| sessions.contains_key(&SessionId(id))));
}

#[tokio::test(start_paused = true)]
async fn an_early_read_that_fails_or_is_slow_costs_nothing() {
    let store = Arc::new(FaultStore::new(memory().await));
    let handle = process(store.clone(), 1).await;
    for id in [3, 4] {
        changed(&handle, id, Duration::ZERO).await;
    }
    let denied = Strike::with(Trouble::FailBefore(StoreErrorKind::Denied)).on(Operation::Get);
    store.plan(denied.keys("root"));
    let begun = Instant::now();
    let (sent, read) = changed(&handle, 5, Duration::ZERO).await;
    assert_eq!((sent, read, begun.elapsed()), (false, 2, 2 * TRIP));
    assert_eq!(store.struck(), 1);
    let slow = Strike::with(Trouble::Delay(3 * TRIP)).on(Operation::Get);
    store.plan(slow.keys("root").always());
    let begun = Instant::now();
    let ((), early) = handle.read_during(sleep(TRIP)).await;
    assert!(early.expect("no fork").is_none());
    assert_eq!(begun.elapsed(), TRIP);
}
