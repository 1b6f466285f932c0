//! Journals in a spool: kept, sent later, and released once they are known to have come in time.

use super::journal::{enter, entries, entry, found, journals, write, writer};
use super::support::*;
use crate::root::error::{ErrorKind, RootError};
use crate::root::journal::{JournalEntry, JournalWriter};
use crate::root::session::OpenSession;
use crate::root::state::ROOT_KEY;
use bkfs_chunker::spool::{Leftover, Spool, leftovers};
use bkfs_store::disk::Disk;
use bkfs_store::{Operation, Store, StoreErrorKind};
use bkfs_testing::disk::{DiskOperation, SimulatedDisk};
use bkfs_testing::fault::{Fault, FaultStore, Gate, Strike};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

async fn keep(writer: &JournalWriter, entry: JournalEntry) -> Result<(), RootError> {
    writer.settle(entry)?;
    writer.keep().await
}

/// Returns an entry of one operation that takes so many bytes.
fn large(operation: u64, bytes: usize) -> JournalEntry {
    JournalEntry {
        operations: vec![7; bytes],
        ..entry(operation)
    }
}

/// Returns a writer with a spool on its own simulated disk.
async fn keeping(store: &Arc<dyn Store>, session: &OpenSession) -> (JournalWriter, SimulatedDisk) {
    keeping_at_most(store, session, 1 << 20).await
}

async fn keeping_at_most(
    store: &Arc<dyn Store>,
    session: &OpenSession,
    bytes: u64,
) -> (JournalWriter, SimulatedDisk) {
    let disk = SimulatedDisk::new();
    let (root, id) = (Path::new("/spool"), session.id().0);
    let spool = Spool::create(Arc::new(disk.clone()), root, id, bytes).await;
    let writer = writer(store, session).await;
    (writer.with_spool(Some(spool.expect("made"))), disk)
}

/// Returns the spools that a mount after a crash finds.
async fn left_in(disk: &SimulatedDisk) -> Vec<Leftover> {
    disk.kill();
    let disk: Arc<dyn Disk> = Arc::new(disk.clone());
    let left = leftovers(&disk, Path::new("/spool")).await;
    left.expect("found").spools
}

/// Uploads what a mount after a crash finds in the spool. Returns the number of objects.
async fn bring_leftovers(store: &Arc<dyn Store>, disk: &SimulatedDisk) -> usize {
    let left = left_in(disk).await;
    let mut count = 0;
    for object in left.iter().flat_map(|left| left.named()) {
        let bytes = left[0].read(object).await.expect("read").expect("whole");
        store.put_new(&object.key, vec![bytes]).await.expect("new");
        count += 1;
    }
    count
}

#[tokio::test(start_paused = true)]
async fn kept_entries_are_replayed_when_a_mount_has_brought_them() {
    let faults = Arc::new(FaultStore::new(memory().await));
    let store: Arc<dyn Store> = faults.clone();
    let session = enter(&store, 1, "a").await.expect("free");
    let (writer, disk) = keeping(&store, &session).await;
    let gone = Strike::with(Fault::FailBefore(StoreErrorKind::Unreachable));
    faults.plan(gone.on(Operation::PutNew).keys("journal/").always());
    keep(&writer, entry(1)).await.expect("needs no store");
    keep(&writer, entries(2, 4)).await.expect("needs no store");
    writer.land(writer.settled()).await.expect_err("needs one");
    assert!(writer.is_behind() && writer.is_needed());
    faults.heal();
    assert_eq!(journals(&store).await.len(), 0);
    assert_eq!(bring_leftovers(&store, &disk).await, 2);
    assert_eq!(found(&store, 2).await, [[(1, 1), (2, 4)]]);
}

#[tokio::test(start_paused = true)]
async fn kept_entries_land_before_later_ones_and_leave_the_spool() {
    let store = memory().await;
    let session = enter(&store, 1, "a").await.expect("free");
    let (writer, disk) = keeping(&store, &session).await;
    keep(&writer, entry(1)).await.expect("kept");
    keep(&writer, entry(2)).await.expect("kept");
    assert_eq!(journals(&store).await.len(), 0);
    write(&writer, entry(3)).await.expect("written");
    assert!(!writer.is_behind());
    assert_eq!(bring_leftovers(&store, &disk).await, 0);
    assert_eq!(found(&store, 2).await, [[(1, 1), (2, 2), (3, 3)]]);
}

#[tokio::test(start_paused = true)]
async fn entries_that_wait_for_room_are_let_in_by_those_that_land() {
    let store = memory().await;
    let session = enter(&store, 1, "a").await.expect("free");
    // The spool has room for two entries.
    let (writer, _disk) = keeping_at_most(&store, &session, 2500).await;
    let begin = tokio::time::Instant::now();
    let lands = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        writer.land(writer.settled()).await
    };
    let keeps = async {
        for operation in 1..=3 {
            keep(&writer, entry(operation)).await.expect("kept");
        }
    };
    let (landed, ()) = tokio::join!(lands, keeps);
    landed.expect("landed");
    assert_eq!(begin.elapsed().as_secs(), 1);
    writer.land(writer.settled()).await.expect("landed");
    assert_eq!(found(&store, 2).await, [[(1, 1), (2, 2), (3, 3)]]);
}

/// The packs of a later entry may be in the spool alone.
#[tokio::test(start_paused = true)]
async fn what_is_settled_later_does_not_land_along() {
    let store = memory().await;
    let session = enter(&store, 1, "a").await.expect("free");
    let (writer, _disk) = keeping(&store, &session).await;
    keep(&writer, entry(1)).await.expect("kept");
    let until = writer.settled();
    keep(&writer, entry(2)).await.expect("kept");
    writer.land(until).await.expect("landed");
    assert_eq!(journals(&store).await.len(), 1);
    assert!(writer.is_behind());
    writer.land(writer.settled()).await.expect("landed");
    assert_eq!(journals(&store).await.len(), 2);
    assert!(!writer.is_behind());
}

#[tokio::test(start_paused = true)]
async fn what_a_commit_covers_need_not_land() {
    let store = memory().await;
    let session = enter(&store, 1, "a").await.expect("free");
    let (writer, disk) = keeping(&store, &session).await;
    for operation in 1..=3 {
        keep(&writer, entry(operation)).await.expect("kept");
    }
    writer.covered(2).await;
    assert!(writer.is_needed());
    writer.land(writer.settled()).await.expect("landed");
    assert_eq!(journals(&store).await.len(), 1);
    writer.covered(3).await;
    assert!(!writer.is_needed());
    assert_eq!(bring_leftovers(&store, &disk).await, 0);
}

#[tokio::test(start_paused = true)]
async fn an_entry_that_the_spool_refused_goes_to_the_bucket() {
    let store = memory().await;
    let session = enter(&store, 1, "a").await.expect("free");
    let (writer, disk) = keeping(&store, &session).await;
    keep(&writer, entry(1)).await.expect("kept");
    disk.fail(DiskOperation::Flush, 1, std::io::ErrorKind::Other);
    keep(&writer, entry(2)).await.expect_err("not flushed");
    keep(&writer, entry(3))
        .await
        .expect_err("not trusted any more");
    assert_eq!(disk.struck(), 1);
    write(&writer, entry(4)).await.expect("written");
    let found = found(&store, 2).await;
    let last = found[0].last().expect("entries");
    assert_eq!((found[0][0], last.1), ((1, 1), 4));
    for pair in found[0].windows(2) {
        assert!(pair[1].0 <= pair[0].1 + 1, "no gap: {found:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_the_spool_refused_counts_once_the_root_was_read_after_its_arrival() {
    let store = memory().await;
    let session = enter(&store, 1, "a").await.expect("free");
    let (writer, disk) = keeping(&store, &session).await;
    for operation in [1, 2] {
        disk.fail(DiskOperation::Write, 1, std::io::ErrorKind::Other);
        keep(&writer, entry(operation)).await.expect_err("refused");
        assert!(writer.is_in_time(), "nothing has arrived");
        writer.land(writer.settled()).await.expect("sent");
        assert!(!writer.is_in_time());
        if operation == 1 {
            writer.confirm().await.expect("still ours");
            assert!(writer.is_in_time());
        }
    }
    found(&store, 2).await;
    writer.confirm().await.expect_err("taken over");
    assert!(!writer.is_in_time(), "it may have come too late");
}

#[tokio::test(start_paused = true)]
async fn an_entry_that_arrives_after_the_takeover_stays_in_the_spool() {
    let store = memory().await;
    let session = enter(&store, 1, "a").await.expect("free");
    let (writer, disk) = keeping(&store, &session).await;
    keep(&writer, entry(1)).await.expect("kept");
    assert!(
        found(&store, 2).await.is_empty(),
        "the new holder finds nothing"
    );
    let error = writer.land(writer.settled()).await.expect_err("too late");
    assert_eq!(error.kind(), ErrorKind::Fenced);
    assert_eq!(journals(&store).await.len(), 1, "where no search looks");
    assert!(writer.is_behind());
    let left = left_in(&disk).await;
    assert_eq!(left[0].named().len(), 1);
}

/// The store took the entry from memory, and it is not known whether that was in time.
#[tokio::test(start_paused = true)]
async fn an_entry_that_arrives_from_memory_can_be_kept_until_it_is_confirmed() {
    for is_taken in [true, false] {
        let store = memory().await;
        let session = enter(&store, 1, "a").await.expect("free");
        let (writer, disk) = keeping(&store, &session).await;
        if is_taken {
            assert!(found(&store, 2).await.is_empty());
        }
        writer.settle(entry(1)).expect("the first");
        writer.land(writer.settled()).await.expect("sent");
        assert_eq!(journals(&store).await.len(), 1);
        assert!(!writer.is_in_time() && !writer.is_bare() && !writer.is_behind());
        if !is_taken {
            writer.confirm().await.expect("ours");
        }
        writer.keep().await.expect("the spool has room");
        assert_eq!(writer.is_behind(), is_taken);
        let left = left_in(&disk).await;
        let named = left[0].named().len();
        assert_eq!(named, usize::from(is_taken));
    }
}

/// An entry arrives after the request for the root was sent, whose answer does not count for it.
#[tokio::test(start_paused = true)]
async fn only_a_later_read_of_the_root_confirms_an_entry() {
    let faults = Arc::new(FaultStore::new(memory().await));
    let store: Arc<dyn Store> = faults.clone();
    let session = enter(&store, 1, "a").await.expect("free");
    let (writer, _disk) = keeping(&store, &session).await;
    let delay = Strike::with(Fault::Delay(Duration::from_secs(5)));
    faults.plan(delay.on(Operation::Get).keys(ROOT_KEY));
    let sends = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        writer.settle(entry(1)).expect("the first");
        writer.land(writer.settled()).await.expect("sent");
    };
    let (confirmed, ()) = tokio::join!(writer.confirm(), sends);
    confirmed.expect("ours");
    writer.keep().await.expect("the spool has room");
    assert!(writer.is_behind(), "it is in the spool");
}

/// Memory does not grow with journals for which nothing reads the root.
#[tokio::test(start_paused = true)]
async fn many_bytes_of_unconfirmed_entries_are_confirmed() {
    let store = memory().await;
    let session = enter(&store, 1, "a").await.expect("free");
    let (writer, _disk) = keeping(&store, &session).await;
    let mut confirmed = 0;
    for operation in 1..=8 {
        writer
            .settle(large(operation, 300_000))
            .expect("it follows");
        writer.land(writer.settled()).await.expect("sent");
        confirmed += u32::from(writer.is_in_time());
    }
    assert!((1..=2).contains(&confirmed), "{confirmed} reads");
}

/// While the root cannot be read, the spool takes what memory has no room for, and journals go on.
#[tokio::test(start_paused = true)]
async fn unconfirmed_entries_go_to_the_spool_if_the_root_cannot_be_read() {
    let faults = Arc::new(FaultStore::new(memory().await));
    let store: Arc<dyn Store> = faults.clone();
    let session = enter(&store, 1, "a").await.expect("free");
    let (writer, disk) = keeping_at_most(&store, &session, 64 << 20).await;
    let refused = Strike::with(Fault::FailBefore(StoreErrorKind::Denied)).on(Operation::Get);
    faults.plan(refused.keys(ROOT_KEY).always());
    for operation in 1..=8 {
        writer
            .settle(large(operation, 300_000))
            .expect("it follows");
        // It is sent in any case. The root is needed for what the spool has.
        let _ = writer.land(writer.settled()).await;
        assert!(!writer.is_bare(), "{operation}");
    }
    let left = left_in(&disk).await;
    assert!(left[0].named().len() >= 4);
}

/// An entry that is nowhere else does not wait for room behind one that is in the bucket.
#[tokio::test(start_paused = true)]
async fn a_full_spool_takes_first_what_is_nowhere_else() {
    let store = memory().await;
    let session = enter(&store, 1, "a").await.expect("free");
    let (writer, disk) = keeping_at_most(&store, &session, 50_000).await;
    writer.settle(large(1, 100_000)).expect("the first");
    writer.land(writer.settled()).await.expect("sent");
    writer.settle(entry(2)).expect("it follows");
    writer.keep().await.expect_err("no room for the first");
    assert!(!writer.is_bare());
    let left = left_in(&disk).await;
    assert_eq!(left[0].named().len(), 1);
}

/// A commit covers the entry while the spool takes it.
#[tokio::test(start_paused = true)]
async fn an_entry_that_is_settled_while_it_is_kept_leaves_the_spool() {
    let store = memory().await;
    let session = enter(&store, 1, "a").await.expect("free");
    let (writer, disk) = keeping(&store, &session).await;
    writer.settle(entry(1)).expect("the first");
    writer.land(writer.settled()).await.expect("sent");
    writer.covered(1).await;
    writer.keep().await.expect("nothing to keep");
    assert_eq!(bring_leftovers(&store, &disk).await, 0);
}

/// A caller that drops the future while the store or the disk hangs leaves the entry in its place
/// for the next call.
#[tokio::test(start_paused = true)]
async fn an_entry_that_was_given_up_on_is_neither_lost_nor_passed_over() {
    let faults = Arc::new(FaultStore::new(memory().await));
    let store: Arc<dyn Store> = faults.clone();
    let session = enter(&store, 1, "a").await.expect("free");
    let (writer, disk) = keeping(&store, &session).await;
    let hung = Strike::with(Fault::Hang).on(Operation::PutNew);
    faults.plan(hung.keys("journal/").always());
    for operation in 1..=2 {
        let given_up = write(&writer, entry(operation));
        let given_up = tokio::time::timeout(Duration::from_secs(2), given_up).await;
        given_up.expect_err("it hangs");
        assert!(writer.is_bare());
    }
    writer.keep().await.expect("needs no store");
    assert!(!writer.is_bare() && writer.is_behind());
    faults.heal();
    assert_eq!(bring_leftovers(&store, &disk).await, 2);
    assert_eq!(found(&store, 2).await, [[(1, 1), (2, 2)]]);
}

/// The spool refused an entry and takes it later: that needs no read of the root.
#[tokio::test(start_paused = true)]
async fn what_the_spool_takes_after_all_is_in_time() {
    let faults = Arc::new(FaultStore::new(memory().await));
    let store: Arc<dyn Store> = faults.clone();
    let session = enter(&store, 1, "a").await.expect("free");
    let (writer, _disk) = keeping(&store, &session).await;
    writer.settle(entry(1)).expect("the first");
    writer.land(writer.settled()).await.expect("sent");
    assert!(!writer.is_in_time());
    let refused = Strike::with(Fault::FailBefore(StoreErrorKind::Unreachable));
    faults.plan(refused.on(Operation::Get).keys(ROOT_KEY).always());
    keep(&writer, entry(2)).await.expect("the spool has room");
    assert!(writer.is_in_time());
}

/// Two entries arrive in the bucket while a full disk lets neither be kept.
#[tokio::test(start_paused = true)]
async fn what_arrives_while_the_disk_is_full_is_kept_all_the_same() {
    let store = memory().await;
    let session = enter(&store, 1, "a").await.expect("free");
    let (writer, disk) = keeping(&store, &session).await;
    disk.set_capacity(Some(0));
    for operation in 1..=2 {
        writer.settle(entry(operation)).expect("it follows");
    }
    let arrive = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        writer.land(writer.settled()).await.expect("sent");
        tokio::time::sleep(Duration::from_secs(2)).await;
        disk.set_capacity(None);
    };
    let (kept, ()) = tokio::join!(writer.keep(), arrive);
    kept.expect("the disk has room again");
    assert!(writer.is_in_time() && writer.is_behind());
    let left = left_in(&disk).await;
    assert_eq!(left[0].named().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_disk_that_stays_full_is_waited_for_as_long_as_the_store() {
    let store = memory().await;
    let session = enter(&store, 1, "a").await.expect("free");
    let (writer, disk) = keeping(&store, &session).await;
    disk.set_capacity(Some(0));
    let began = tokio::time::Instant::now();
    keep(&writer, entry(1)).await.expect_err("it stays full");
    let patience = process(store.clone(), 78).await.policy().stall_timeout;
    let waited = began.elapsed();
    assert!(patience <= waited && waited < 2 * patience, "{waited:?}");
}

/// The spool takes what is unconfirmed, and the root is an older one: the session is lost.
#[tokio::test(start_paused = true)]
async fn a_rolled_back_root_is_told_although_the_spool_has_room() {
    let store = memory().await;
    let (older, _) = store.get(ROOT_KEY).await.expect("a root");
    let session = enter(&store, 1, "a").await.expect("free");
    let (writer, _disk) = keeping_at_most(&store, &session, 64 << 20).await;
    store.put(ROOT_KEY, vec![older]).await.expect("put");
    writer.settle(large(1, 1_200_000)).expect("the first");
    let error = writer.land(writer.settled()).await;
    let error = error.expect_err("an older root");
    assert!(matches!(error, RootError::Rollback { .. }), "{error}");
}

/// A commit is made while many entries of the spool are sent. What it covers is not sent any more,
/// and its room comes back, also if the next entry is refused.
#[tokio::test(start_paused = true)]
async fn what_a_commit_covers_meanwhile_is_not_sent() {
    for is_refused in [false, true] {
        let faults = Arc::new(FaultStore::new(memory().await));
        let store: Arc<dyn Store> = faults.clone();
        let session = enter(&store, 1, "a").await.expect("free");
        let (writer, disk) = keeping(&store, &session).await;
        let writer = Arc::new(writer);
        for operation in 1..=5 {
            keep(&writer, entry(operation)).await.expect("kept");
        }
        let gate = Gate::new();
        let hold = Strike::with(Fault::HoldBefore(gate.clone())).on(Operation::PutNew);
        faults.plan(hold.keys("journal/"));
        if is_refused {
            let refused = Strike::with(Fault::FailBefore(StoreErrorKind::Denied));
            let refused = refused.on(Operation::PutNew).keys("journal/");
            faults.plan(refused.nth(2));
        }
        let sending = writer.clone();
        let landing = tokio::spawn(async move { sending.land(5).await });
        while faults.struck() == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        writer.covered(4).await;
        gate.open();
        let landed = landing.await.expect("no panic");
        assert_eq!(landed.is_err(), is_refused);
        let sent = store.list("journal/", None, 10).await.expect("listed");
        assert_eq!(sent.len(), if is_refused { 1 } else { 2 }, "1, and 5");
        let kept = left_in(&disk).await;
        let kept = kept.iter().flat_map(|left| left.named()).count();
        assert_eq!(kept, usize::from(is_refused), "5");
    }
}

/// What a hung disk is asked for.
#[derive(Clone, Copy, PartialEq)]
enum Hung {
    /// A put that was dropped.
    Put,
    /// The removal of an entry that a commit covers.
    Covered,
    /// The same, of one that has arrived in the bucket in time.
    Arrived,
}

/// The disk of the spool hangs. The bucket takes journals all the same.
#[tokio::test(start_paused = true)]
async fn a_hung_disk_holds_up_no_journal_for_the_bucket() {
    for hung in [Hung::Put, Hung::Covered, Hung::Arrived] {
        let store = memory().await;
        let session = enter(&store, 1, "a").await.expect("free");
        let (writer, disk) = keeping(&store, &session).await;
        writer.settle(entry(1)).expect("the first");
        if hung == Hung::Put {
            disk.hold();
            let given_up = tokio::time::timeout(Duration::from_secs(1), writer.keep()).await;
            given_up.expect_err("the disk hangs");
        } else {
            writer.keep().await.expect("kept");
            disk.hold();
        }
        if hung != Hung::Arrived {
            let covered = tokio::time::timeout(Duration::from_secs(9), writer.covered(1));
            covered.await.expect("a commit waits for no disk");
        }
        for operation in 2..=4 {
            writer.settle(entry(operation)).expect("it follows");
            let landed = writer.land(writer.settled());
            let landed = tokio::time::timeout(Duration::from_secs(9), landed).await;
            landed.expect("it waits for no disk").expect("sent");
        }
        disk.let_go();
    }
}
