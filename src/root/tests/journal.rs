//! Writing journals, and finding those of ended sessions.

use super::support::*;
use crate::root::error::{ErrorKind, RootError};
use crate::root::holder::SystemProcesses;
use crate::root::journal::{JournalEntry, JournalWriter};
use crate::root::session::{OpenSession, VolumeRequest};
use crate::root::state::SessionState;
use bkfs_chunker::ingest::{Delivered, NamedPack};
use bkfs_chunker::pack::PackName;
use bkfs_chunker::seal::{Class, Features};
use bkfs_chunker::spool::{Disk, DiskOperation, SimulatedDisk, Spool, leftovers};
use bkfs_chunker::store::fault::{Fault, FaultStore, Strike};
use bkfs_chunker::store::{Operation, Store, StoreErrorKind};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

async fn enter(store: &Arc<dyn Store>, seed: u64, name: &str) -> Result<OpenSession, RootError> {
    let handle = process(store.clone(), seed).await;
    let request = VolumeRequest {
        name: "main".into(),
        steal: true,
    };
    OpenSession::open(&handle, holder(name), Some(request), &SystemProcesses).await
}

async fn writer(store: &Arc<dyn Store>, session: &OpenSession) -> JournalWriter {
    JournalWriter::new(process(store.clone(), 77).await, session.id(), "main")
}

fn entry(operation: u64) -> JournalEntry {
    JournalEntry::new(
        operation,
        Delivered::default(),
        format!("operation {operation}").into_bytes(),
    )
}

async fn journals(store: &Arc<dyn Store>) -> Vec<String> {
    let listed = store.list("journal/", None, 100).await.expect("listed");
    listed.into_iter().map(|object| object.key).collect()
}

/// First and last operation of what a taker finds.
async fn found(store: &Arc<dyn Store>, seed: u64) -> Vec<Vec<(u64, u64)>> {
    let taker = enter(store, seed, "taker").await.expect("taken");
    let ranges = |entries: &[JournalEntry]| {
        let ranges = entries.iter().map(|entry| (entry.first, entry.last));
        ranges.collect()
    };
    let victims = taker.victims().iter();
    victims.map(|victim| ranges(&victim.entries)).collect()
}

/// Puts a journal object as a session would.
async fn put(store: &Arc<dyn Store>, like: &str, number: u64, entry: &JournalEntry) {
    let key = format!("{}{number:016x}", &like[..like.len() - 16]);
    let object = keyring().seal_object(
        Class::Journal,
        &key,
        Features::NONE,
        [3; 32],
        &entry.encode(),
    );
    store.put_new(&key, vec![object]).await.expect("new");
}

#[tokio::test(start_paused = true)]
async fn entries_follow_one_another_whatever_operations_they_carry() {
    let store = memory().await;
    let session = enter(&store, 1, "a").await.expect("free");
    let writer = writer(&store, &session).await;
    for operation in [1, 2, 5] {
        writer.write(entry(operation)).await.expect("written");
    }
    writer.confirm().await.expect("ours");
    assert_eq!(journals(&store).await.len(), 3);
    assert_eq!(found(&store, 2).await, [[(1, 1), (2, 2), (3, 5)]]);
    let error = writer.confirm().await.expect_err("taken over");
    assert_eq!(error.kind(), ErrorKind::Fenced);
}

#[tokio::test(start_paused = true)]
async fn a_pending_entry_goes_before_the_next() {
    let faults = Arc::new(FaultStore::new(memory().await));
    let store: Arc<dyn Store> = faults.clone();
    let session = enter(&store, 1, "a").await.expect("free");
    let writer = writer(&store, &session).await;
    let late = Strike::with(Fault::Late).on(Operation::PutNew);
    faults.plan(late.keys("journal/").always());
    writer.write(entry(1)).await.expect_err("no answer");
    writer.write(entry(2)).await.expect_err("no answer yet");
    assert!(journals(&store).await.is_empty());
    faults.heal();
    writer.write(entry(3)).await.expect("written");
    assert_eq!(found(&store, 2).await, [[(1, 1), (2, 3)]]);
    assert!(faults.apply_late().await > 0);
    assert_eq!(journals(&store).await.len(), 2, "the same bytes, late");
}

#[tokio::test(start_paused = true)]
async fn what_lies_behind_a_gap_was_never_acknowledged() {
    let store = memory().await;
    let session = enter(&store, 1, "a").await.expect("free");
    let writer = writer(&store, &session).await;
    for operation in 1..=2 {
        writer.write(entry(operation)).await.expect("written");
    }
    let like = journals(&store).await.remove(0);
    let behind = JournalEntry {
        first: 4,
        last: 4,
        ..entry(4)
    };
    put(&store, &like, 4, &behind).await;
    assert_eq!(found(&store, 2).await, [[(1, 1), (2, 2)]]);
}

#[tokio::test(start_paused = true)]
async fn a_journal_that_cannot_be_read_is_not_passed_over() {
    for damage in ["bytes", "entry"] {
        let store = memory().await;
        let session = enter(&store, 1, "a").await.expect("free");
        let id = session.id();
        let writer = writer(&store, &session).await;
        writer.write(entry(1)).await.expect("written");
        let key = journals(&store).await.remove(0);
        let (object, _) = store.get(&key).await.expect("there");
        store.delete(&key).await.expect("deleted");
        if damage == "bytes" {
            let mut bytes = object.to_vec();
            *bytes.last_mut().expect("not empty") ^= 1;
            store.put_new(&key, vec![bytes.into()]).await.expect("new");
        } else {
            let empty = JournalEntry {
                first: 2,
                last: 1,
                ..entry(1)
            };
            put(&store, &key, 1, &empty).await;
        }
        let error = enter(&store, 2, "taker").await.expect_err("acknowledged");
        assert_eq!(error.kind(), ErrorKind::Damaged, "{error}");
        let root = &process(store.clone(), 3).await.current().root;
        assert_eq!(root.sessions.len(), 1, "the taker has left");
        assert_eq!(root.sessions[&id].state, SessionState::Ending);
    }
}

#[tokio::test(start_paused = true)]
async fn covered_journals_are_deleted_and_need_not_be() {
    let faults = Arc::new(FaultStore::new(memory().await));
    let store: Arc<dyn Store> = faults.clone();
    let session = enter(&store, 1, "a").await.expect("free");
    let writer = writer(&store, &session).await;
    for operation in 1..=4 {
        writer.write(entry(operation)).await.expect("written");
    }
    // A store that fails once is asked again at the next commit.
    let passing = Fault::FailBefore(StoreErrorKind::Unreachable);
    faults.plan(Strike::with(passing).on(Operation::Delete));
    writer.covered(1).await;
    assert_eq!(journals(&store).await.len(), 4);
    writer.covered(2).await;
    assert_eq!(journals(&store).await.len(), 2);
    assert!(writer.is_needed().await);
    faults.plan(
        Strike::with(Fault::FailBefore(StoreErrorKind::Denied))
            .on(Operation::Delete)
            .always(),
    );
    writer.covered(4).await;
    assert_eq!(journals(&store).await.len(), 2);
    assert!(!writer.is_needed().await);
    writer.write(entry(5)).await.expect("written");
    assert!(writer.is_needed().await);
}

#[test]
fn entries_are_read_back_and_nothing_else_is() {
    let packs = Delivered {
        own: vec![NamedPack {
            name: PackName {
                session: 1,
                sequence: 2,
                random: 3,
            },
            is_metadata: true,
            length: 4,
        }],
        relied_on: vec![PackName {
            session: 5,
            sequence: 6,
            random: 7,
        }],
    };
    let entry = JournalEntry::new(9, packs.clone(), b"operations".to_vec());
    let bytes = entry.encode();
    assert_eq!(JournalEntry::decode(&bytes).as_ref(), Ok(&entry));
    assert_eq!(entry.packs(), packs);
    for cut in 0..bytes.len() {
        assert!(JournalEntry::decode(&bytes[..cut]).is_err());
    }
    for (first, last) in [(0, 0), (0, 3), (4, 3)] {
        let wrong = JournalEntry {
            first,
            last,
            ..entry.clone()
        };
        assert!(JournalEntry::decode(&wrong.encode()).is_err());
    }
}

/// A writer with a spool on a disk of its own.
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

/// What a mount after a crash brings into the bucket.
async fn bring_leftovers(store: &Arc<dyn Store>, disk: &SimulatedDisk) -> usize {
    disk.kill();
    let disk: Arc<dyn Disk> = Arc::new(disk.clone());
    let left = leftovers(&disk, Path::new("/spool")).await.expect("found");
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
    writer.keep(entry(1)).await.expect("needs no store");
    writer.keep(entry(4)).await.expect("needs no store");
    writer.land().await.expect_err("needs one");
    assert!(writer.is_behind().await && writer.is_needed().await);
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
    writer.keep(entry(1)).await.expect("kept");
    writer.keep(entry(2)).await.expect("kept");
    assert_eq!(journals(&store).await.len(), 0);
    writer.write(entry(3)).await.expect("written");
    assert!(!writer.is_behind().await);
    assert_eq!(bring_leftovers(&store, &disk).await, 0);
    assert_eq!(found(&store, 2).await, [[(1, 1), (2, 2), (3, 3)]]);
}

#[tokio::test(start_paused = true)]
async fn entries_that_wait_for_room_are_let_in_by_those_that_land() {
    let store = memory().await;
    let session = enter(&store, 1, "a").await.expect("free");
    // There is room for two.
    let (writer, _disk) = keeping_at_most(&store, &session, 700).await;
    let begin = tokio::time::Instant::now();
    let lands = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        writer.land().await
    };
    let keeps = async {
        for operation in 1..=3 {
            writer.keep(entry(operation)).await.expect("kept");
        }
    };
    let (landed, ()) = tokio::join!(lands, keeps);
    landed.expect("landed");
    assert_eq!(begin.elapsed().as_secs(), 1);
    writer.land().await.expect("landed");
    assert_eq!(found(&store, 2).await, [[(1, 1), (2, 2), (3, 3)]]);
}

#[tokio::test(start_paused = true)]
async fn what_a_commit_covers_need_not_land() {
    let store = memory().await;
    let session = enter(&store, 1, "a").await.expect("free");
    let (writer, disk) = keeping(&store, &session).await;
    for operation in 1..=3 {
        writer.keep(entry(operation)).await.expect("kept");
    }
    writer.covered(2).await;
    assert!(writer.is_needed().await);
    writer.land().await.expect("landed");
    assert_eq!(journals(&store).await.len(), 1);
    writer.covered(3).await;
    assert!(!writer.is_needed().await);
    assert_eq!(bring_leftovers(&store, &disk).await, 0);
}

#[tokio::test(start_paused = true)]
async fn an_entry_that_the_spool_refused_goes_to_the_bucket() {
    let store = memory().await;
    let session = enter(&store, 1, "a").await.expect("free");
    let (writer, disk) = keeping(&store, &session).await;
    writer.keep(entry(1)).await.expect("kept");
    disk.fail(DiskOperation::Flush, 1, std::io::ErrorKind::Other);
    writer.keep(entry(2)).await.expect_err("not flushed");
    writer
        .keep(entry(3))
        .await
        .expect_err("not trusted any more");
    assert_eq!(disk.struck(), 1);
    writer.write(entry(4)).await.expect("written");
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
        writer.keep(entry(operation)).await.expect_err("refused");
        assert!(writer.is_in_time().await, "nothing has arrived");
        writer.land().await.expect("sent");
        assert!(!writer.is_in_time().await);
        if operation == 1 {
            writer.confirm().await.expect("still ours");
            assert!(writer.is_in_time().await);
        }
    }
    found(&store, 2).await;
    writer.confirm().await.expect_err("taken over");
    assert!(!writer.is_in_time().await, "it may have come too late");
}

#[tokio::test(start_paused = true)]
async fn an_entry_that_arrives_after_the_takeover_stays_in_the_spool() {
    let store = memory().await;
    let session = enter(&store, 1, "a").await.expect("free");
    let (writer, disk) = keeping(&store, &session).await;
    writer.keep(entry(1)).await.expect("kept");
    assert!(found(&store, 2).await.is_empty(), "the taker finds nothing");
    let error = writer.land().await.expect_err("too late");
    assert_eq!(error.kind(), ErrorKind::Fenced);
    assert_eq!(journals(&store).await.len(), 1, "where nobody looks");
    assert!(writer.is_behind().await);
    disk.kill();
    let disk: Arc<dyn Disk> = Arc::new(disk.clone());
    let left = leftovers(&disk, Path::new("/spool")).await.expect("found");
    assert_eq!(left[0].named().len(), 1);
}
