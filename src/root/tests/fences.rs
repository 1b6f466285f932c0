//! Fences, by which sessions of a large root learn that they have ended.

use super::journal::{entry, found, write};
use super::support::*;
use crate::root::error::{ErrorKind, RootError};
use crate::root::fence::write_all;
use crate::root::form::Form;
use crate::root::heartbeat::{HEARTBEAT_INTERVAL, Standing};
use crate::root::holder::SystemProcesses;
use crate::root::journal::JournalWriter;
use crate::root::request::VolumeRequest;
use crate::root::session::OpenSession;
use crate::root::state::{ROOT_KEY, SessionId};
use crate::root::upgrade::make_large;
use bkfs_store::{Operation, Store, StoreErrorKind};
use bkfs_testing::counting::CountingStore;
use bkfs_testing::fault::{Fault, FaultStore, Gate, Strike};
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;

/// Returns a store with a large root, without sessions and volumes.
async fn large() -> Arc<dyn Store> {
    let store = memory().await;
    let made = upgrade(&store, 90).await.expect("nothing is in the way");
    assert!(made);
    store
}

async fn upgrade(store: &Arc<dyn Store>, seed: u64) -> Result<bool, RootError> {
    let handle = process(store.clone(), seed).await;
    make_large(&handle, holder("admin"), &SystemProcesses).await
}

/// Enters as the next holder of the volume, which may be held.
async fn take(store: &Arc<dyn Store>, seed: u64, name: &str) -> Result<OpenSession, RootError> {
    let handle = process(store.clone(), seed).await;
    let request = VolumeRequest {
        name: "main".into(),
        steal: true,
        accept_loss: false,
    };
    OpenSession::open(&handle, holder(name), Some(request), &SystemProcesses).await
}

/// Lets a first session take the volume and write a journal.
async fn written(store: &Arc<dyn Store>) -> (OpenSession, JournalWriter) {
    let session = take(store, 1, "a").await.expect("free");
    let writer = writer(&session);
    write(&writer, entry(1)).await.expect("written");
    (session, writer)
}

/// Returns the writer of a session's journals, in its own process.
fn writer(session: &OpenSession) -> JournalWriter {
    JournalWriter::new(session.handle.clone(), session.id(), "main")
}

async fn has_fence(store: &Arc<dyn Store>, session: SessionId) -> bool {
    store.get(&session.fence_key()).await.is_ok()
}

/// Lets a session enter whose object is held back until the gate opens.
async fn held_back(faults: &Arc<FaultStore>) -> (Gate, JoinHandle<Result<OpenSession, RootError>>) {
    let gate = Gate::new();
    let hold = Strike::with(Fault::HoldBefore(gate.clone()));
    faults.plan(hold.on(Operation::Put).keys("sessions/").times(2));
    let store: Arc<dyn Store> = faults.clone();
    let entering = tokio::spawn(async move { take(&store, 1, "a").await });
    a_while().await;
    (gate, entering)
}

/// Lets tasks run until they wait for what the test holds back.
async fn a_while() {
    tokio::time::sleep(Duration::from_secs(1)).await;
}

#[tokio::test(start_paused = true)]
async fn fsync_does_not_read_a_root_that_others_change() {
    let bucket = large().await;
    let counting = Arc::new(CountingStore::new(bucket.clone()));
    let (store, counters): (Arc<dyn Store>, _) = (counting.clone(), counting.counters());
    let (_session, writer) = written(&store).await;
    let other = process(bucket, 2).await;
    for name in 0..256 {
        let by = holder(&name.to_string());
        let entered = OpenSession::open(&other, by, None, &SystemProcesses).await;
        entered.expect("there is room");
    }
    let before = counters.tally(Operation::Get);
    for _ in 0..4 {
        writer
            .confirm()
            .await
            .expect("no other session has ended it");
    }
    let after = counters.tally(Operation::Get);
    assert_eq!(after.requests - before.requests, 4);
    assert_eq!(after.bytes_read, before.bytes_read);
}

#[tokio::test(start_paused = true)]
async fn a_session_that_was_taken_over_acknowledges_nothing() {
    let store = large().await;
    let (session, writer) = written(&store).await;
    writer.confirm().await.expect("it holds the volume");
    let next = take(&store, 2, "b").await.expect("taken");
    let error = writer.confirm().await.expect_err("taken over");
    assert_eq!(error.kind(), ErrorKind::Fenced);
    assert!(error.to_string().contains("host b"), "{error}");
    // Also once it has left the root.
    next.remove_ended_sessions()
        .await
        .expect("it holds the volume");
    let root = &process(store.clone(), 3).await.current().root;
    assert!(!root.sessions.contains_key(&session.id()));
    let error = writer.confirm().await.expect_err("taken over");
    assert_eq!(error.kind(), ErrorKind::Fenced);
}

#[tokio::test(start_paused = true)]
async fn what_is_acknowledged_before_the_fence_is_found() {
    let faults = Arc::new(FaultStore::new(large().await));
    let store: Arc<dyn Store> = faults.clone();
    let session = take(&store, 1, "a").await.expect("free");
    let writer = writer(&session);
    let gate = Gate::new();
    let hold = Strike::with(Fault::HoldBefore(gate.clone()));
    faults.plan(hold.on(Operation::PutNew).keys("fence/").always());
    let bucket = store.clone();
    let taking = tokio::spawn(async move { found(&bucket, 2).await });
    a_while().await;
    let root = &process(store.clone(), 3).await.current().root;
    assert_ne!(
        root.volumes["main"].holder,
        Some(session.id()),
        "it is taken"
    );
    write(&writer, entry(1)).await.expect("written");
    writer.confirm().await.expect("no fence stands yet");
    gate.open();
    assert_eq!(taking.await.expect("no panic"), [[(1, 1)]]);
}

#[tokio::test(start_paused = true)]
async fn a_fence_without_an_answer_is_sent_again() {
    let faults = Arc::new(FaultStore::new(large().await));
    let store: Arc<dyn Store> = faults.clone();
    let session = take(&store, 1, "a").await.expect("free");
    let unheard = Fault::FailBefore(StoreErrorKind::OutcomeUnknown);
    for (fault, nth) in [(Fault::Late, 1), (unheard, 2)] {
        let strike = Strike::with(fault).on(Operation::PutNew).keys("fence/");
        faults.plan(strike.nth(nth));
    }
    take(&store, 2, "b").await.expect("taken");
    assert_eq!(faults.struck(), 2);
    assert!(has_fence(&store, session.id()).await);
    faults.apply_late().await;
    assert!(has_fence(&store, session.id()).await);
}

#[tokio::test(start_paused = true)]
async fn no_session_begins_without_the_fences() {
    let faults = Arc::new(FaultStore::new(large().await));
    let store: Arc<dyn Store> = faults.clone();
    let (session, _) = written(&store).await;
    let denied = Strike::with(Fault::FailBefore(StoreErrorKind::Denied));
    faults.plan(denied.on(Operation::PutNew).keys("fence/"));
    take(&store, 2, "b").await.expect_err("it cannot fence");
    let root = &process(store.clone(), 3).await.current().root;
    assert!(root.sessions.contains_key(&session.id()), "nothing is lost");
    assert_eq!(found(&store, 4).await, [[(1, 1)]]);
}

/// A holder does not know how far the one before it came.
#[tokio::test(start_paused = true)]
async fn every_ended_session_of_the_volume_is_fenced() {
    let store = large().await;
    let first = take(&store, 1, "a").await.expect("free");
    write(&writer(&first), entry(1)).await.expect("written");
    let second = take(&store, 2, "b").await.expect("taken");
    let fence = first.id().fence_key();
    store
        .delete(&fence)
        .await
        .expect("as if it had crashed before");
    take(&store, 3, "c").await.expect("taken");
    for ended in [&first, &second] {
        assert!(has_fence(&store, ended.id()).await);
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_no_fence_confirms_nothing_and_ends_nothing() {
    let store = large().await;
    let (session, writer) = written(&store).await;
    let key = session.id().fence_key();
    let put = store.put_new(&key, vec![Bytes::from_static(b"strange")]);
    put.await.expect("it is free");
    let error = writer.confirm().await.expect_err("it may be a fence");
    assert!(!error.ends_session(), "{error}");
    store.delete(&key).await.expect("it was there");
    writer.confirm().await.expect("it holds the volume");
}

#[tokio::test(start_paused = true)]
async fn a_session_begins_once_its_object_and_a_root_after_that_show_it() {
    let faults = Arc::new(FaultStore::new(large().await));
    let store: Arc<dyn Store> = faults.clone();
    let (gate, entering) = held_back(&faults).await;
    assert!(!entering.is_finished(), "no repair would know it");
    take(&store, 2, "b").await.expect("taken");
    gate.open();
    let refused = entering.await.expect("no panic").expect_err("taken over");
    assert_eq!(refused.kind(), ErrorKind::Fenced);
}

/// A store may tell its version while its bytes have rotted.
#[tokio::test(start_paused = true)]
async fn a_session_does_not_begin_by_a_root_that_cannot_be_read() {
    let faults = Arc::new(FaultStore::new(large().await));
    let (gate, entering) = held_back(&faults).await;
    let rotten = Strike::with(Fault::FlipBit(1 << 11));
    faults.plan(rotten.on(Operation::Get).keys(ROOT_KEY).always());
    gate.open();
    let refused = entering.await.expect("no panic");
    refused.expect_err("a repair may have missed it");
}

#[tokio::test(start_paused = true)]
async fn a_heartbeat_asks_for_the_fence() {
    let bucket = large().await;
    let counting = Arc::new(CountingStore::new(bucket.clone()));
    let (store, counters): (Arc<dyn Store>, _) = (counting.clone(), counting.counters());
    let session = take(&store, 1, "a").await.expect("free");
    let mut standing = session.heartbeat().standing();
    let before = counters.tally(Operation::Get).bytes_read;
    let other = process(bucket.clone(), 2).await;
    for name in 0..2 {
        let by = holder(&name.to_string());
        let entered = OpenSession::open(&other, by, None, &SystemProcesses).await;
        entered.expect("there is room");
        tokio::time::sleep(HEARTBEAT_INTERVAL).await;
    }
    assert_eq!(counters.tally(Operation::Get).bytes_read, before);
    take(&bucket, 3, "b").await.expect("taken");
    let told = standing.wait_for(|standing| matches!(standing, Standing::Fenced(_)));
    let told = tokio::time::timeout(2 * HEARTBEAT_INTERVAL, told).await;
    told.expect("in time").expect("it is told");
}

#[tokio::test(start_paused = true)]
async fn a_root_that_is_lost_or_rolled_back_is_noticed_within_a_minute() {
    for is_lost in [true, false] {
        let store = large().await;
        let (older, _) = store.get(ROOT_KEY).await.expect("it is there");
        let session = take(&store, 1, "a").await.expect("free");
        // As every mount does.
        session.handle.bear_refusals();
        let writer = writer(&session);
        write(&writer, entry(1)).await.expect("written");
        writer.confirm().await.expect("it holds the volume");
        if is_lost {
            store.delete(ROOT_KEY).await.expect("it was there");
        } else {
            let (_, version) = store.get(ROOT_KEY).await.expect("it is there");
            let replaced = store.replace(ROOT_KEY, vec![older], &version).await;
            replaced.expect("nothing comes between");
        }
        tokio::time::sleep(6 * HEARTBEAT_INTERVAL).await;
        let refused = writer.confirm().await;
        refused.expect_err("no root shows that it holds the volume");
    }
}

/// On a slow line a heartbeat has no time to read all of a root.
#[tokio::test(start_paused = true)]
async fn a_heartbeat_in_doubt_of_its_root_still_asks_for_the_fence() {
    let bucket = large().await;
    let faults = Arc::new(FaultStore::new(bucket.clone()));
    let store: Arc<dyn Store> = faults.clone();
    let (session, _) = written(&store).await;
    let denied = Strike::with(Fault::FailBefore(StoreErrorKind::Denied));
    faults.plan(denied.keys(ROOT_KEY));
    session.handle.refresh().await.expect_err("denied");
    let slow = Strike::with(Fault::Delay(2 * HEARTBEAT_INTERVAL)).on(Operation::Get);
    faults.plan(slow.keys(ROOT_KEY).always());
    let mut standing = session.heartbeat().standing();
    take(&bucket, 2, "b").await.expect("taken");
    let told = standing.wait_for(|standing| matches!(standing, Standing::Fenced(_)));
    let told = tokio::time::timeout(4 * HEARTBEAT_INTERVAL, told).await;
    told.expect("in time").expect("it is told");
}

/// The repair that has written it may not have replaced the root yet.
#[tokio::test(start_paused = true)]
async fn a_session_in_doubt_of_its_root_asks_for_its_fence_too() {
    let faults = Arc::new(FaultStore::new(large().await));
    let store: Arc<dyn Store> = faults.clone();
    let (session, writer) = written(&store).await;
    let denied = Strike::with(Fault::FailBefore(StoreErrorKind::Denied));
    faults.plan(denied.keys(ROOT_KEY).times(2));
    session.handle.refresh().await.expect_err("denied");
    writer.confirm().await.expect_err("denied");
    assert!(session.handle.is_in_doubt());
    writer
        .confirm()
        .await
        .expect("the root shows that it holds the volume");
    assert!(!session.handle.is_in_doubt());
    let (policy, entropy) = (session.handle.policy(), session.handle.entropy().clone());
    let keyring = session.handle.keyring();
    let written = write_all(&store, keyring, (&policy, &entropy), [session.id()]).await;
    written.expect("the store answers");
    let denied = Strike::with(Fault::FailBefore(StoreErrorKind::Denied));
    faults.plan(denied.keys(ROOT_KEY));
    session.handle.refresh().await.expect_err("denied");
    let error = writer.confirm().await.expect_err("its fence stands");
    assert_eq!(error.kind(), ErrorKind::Fenced);
}

/// Its bytes may have changed since the session read them.
#[tokio::test(start_paused = true)]
async fn a_session_in_doubt_of_its_root_does_not_go_by_its_version() {
    for is_large in [false, true] {
        let bucket = match is_large {
            true => large().await,
            false => memory().await,
        };
        let faults = Arc::new(FaultStore::new(bucket));
        let store: Arc<dyn Store> = faults.clone();
        let (session, writer) = written(&store).await;
        let denied = Strike::with(Fault::FailBefore(StoreErrorKind::Denied));
        faults.plan(denied.keys(ROOT_KEY));
        session.handle.refresh().await.expect_err("denied");
        let rotten = Strike::with(Fault::FlipBit(1 << 11)).on(Operation::Get);
        faults.plan(rotten.keys(ROOT_KEY).always());
        writer.confirm().await.expect_err("it cannot be read");
        faults.heal();
        writer.confirm().await.expect("it holds the volume");
    }
}

/// A new holder of version 1 writes no fence.
#[tokio::test(start_paused = true)]
async fn in_a_small_root_nothing_goes_by_fences() {
    let faults = Arc::new(FaultStore::new(memory().await));
    let store: Arc<dyn Store> = faults.clone();
    faults.plan(Strike::with(Fault::Hang).keys("fence/").always());
    faults.plan(
        Strike::with(Fault::Hang)
            .on(Operation::Put)
            .keys("sessions/"),
    );
    let (_session, writer) = written(&store).await;
    writer.confirm().await.expect("it holds the volume");
    take(&store, 2, "b").await.expect("taken");
    let error = writer.confirm().await.expect_err("taken over");
    assert_eq!(error.kind(), ErrorKind::Fenced);
}

#[tokio::test(start_paused = true)]
async fn a_root_with_a_session_stays_small() {
    let store = memory().await;
    let session = take(&store, 1, "a").await.expect("free");
    let refused = upgrade(&store, 2).await.expect_err("it is live");
    assert_eq!(refused.kind(), ErrorKind::Held);
    write(&writer(&session), entry(1)).await.expect("written");
    let next = take(&store, 3, "b").await.expect("taken");
    let paused = writer(&session);
    let refused = upgrade(&store, 4)
        .await
        .expect_err("one is live, one is ending");
    assert!(refused.to_string().contains("host a"), "{refused}");
    let root = &process(store.clone(), 5).await.current().root;
    assert_eq!((root.form, root.sessions.len()), (Form::Small, 2));
    next.remove_ended_sessions()
        .await
        .expect("it holds the volume");
    next.end().await.expect("it is live");
    assert!(upgrade(&store, 6).await.expect("no session is left"));
    assert!(!upgrade(&store, 7).await.expect("nothing is left to do"));
    // It goes by the root, also once it knows the large one.
    for _ in 0..2 {
        let error = paused.confirm().await.expect_err("it has ended");
        assert_eq!(error.kind(), ErrorKind::Fenced);
        session.handle.refresh().await.expect("it is there");
    }
}

#[tokio::test(start_paused = true)]
async fn a_session_that_enters_meanwhile_keeps_the_root_small() {
    let store = memory().await;
    let faults = Arc::new(FaultStore::new(store.clone()));
    let gate = Gate::new();
    let hold = Strike::with(Fault::HoldBefore(gate.clone()));
    faults.plan(hold.on(Operation::Replace).nth(2));
    let own: Arc<dyn Store> = faults.clone();
    let upgrading = tokio::spawn(async move { upgrade(&own, 1).await });
    a_while().await;
    assert_eq!(faults.struck(), 1, "its session stands");
    let session = take(&store, 2, "a").await.expect("free");
    gate.open();
    let refused = upgrading.await.expect("no panic").expect_err("one is live");
    assert_eq!(refused.kind(), ErrorKind::Held);
    let root = &process(store.clone(), 3).await.current().root;
    assert_eq!((root.form, root.sessions.len()), (Form::Small, 1));
    session.end().await.expect("it is live");
}

#[tokio::test(start_paused = true)]
async fn an_upgrade_that_is_cut_anywhere_leaves_a_small_root_or_a_large_one() {
    let faults = [
        Fault::FailBefore(StoreErrorKind::Denied),
        Fault::FailAfter(StoreErrorKind::OutcomeUnknown),
        Fault::Late,
        Fault::Hang,
    ];
    for fault in faults {
        for nth in 1.. {
            let faulty = Arc::new(FaultStore::new(memory().await));
            let store: Arc<dyn Store> = faulty.clone();
            let handle = process(store.clone(), 1).await;
            faulty.plan(Strike::with(fault.clone()).nth(nth).always());
            let made = make_large(&handle, holder("admin"), &SystemProcesses).await;
            let is_struck = faulty.struck() > 0;
            faulty.heal();
            faulty.apply_late().await;
            drop(handle);
            // The next command finds the session of the first one, which has ended.
            let gone = OneGone;
            let handle = process(store.clone(), 2).await;
            let again = make_large(&handle, holder("admin"), &gone).await;
            let what = format!("{fault:?} at request {nth}: {made:?}");
            let again = again.unwrap_or_else(|error| panic!("{what}: {error}"));
            assert!(made.is_err() || !again, "{what}: it was told as made");
            let view = handle.refresh().await.expect("it is there");
            assert_eq!(view.root.form, Form::Large, "{what}");
            assert!(view.root.sessions.is_empty(), "{what}");
            take(&store, 3, "a").await.expect("free");
            if !is_struck {
                break;
            }
        }
    }
}

/// A machine on which no process of an earlier command is left.
#[derive(Debug)]
struct OneGone;

impl crate::root::holder::Processes for OneGone {
    fn state(&self, _: u32) -> crate::root::holder::ProcessState {
        crate::root::holder::ProcessState::Gone
    }
}

#[tokio::test(start_paused = true)]
async fn a_large_root_takes_more_sessions_than_a_small_one_did() {
    let store = large().await;
    let handle = process(store.clone(), 1).await;
    let before = store.get(ROOT_KEY).await.expect("it is there").0.len();
    for name in 0..200 {
        let by = holder(&name.to_string());
        let entered = OpenSession::open(&handle, by, None, &SystemProcesses).await;
        entered.expect("there is room");
    }
    let root = &process(store.clone(), 2).await.current().root;
    assert_eq!(root.sessions.len(), 200);
    let after = store.get(ROOT_KEY).await.expect("it is there").0.len();
    assert!(after - before < 64 * 1024, "{after}");
}
