//! Writing journals, and finding those of ended sessions.

use super::support::*;
use crate::root::commit::RootCommitter;
use crate::root::commit_request::CommitRequest;
use crate::root::error::{ErrorKind, RootError};
use crate::root::holder::SystemProcesses;
use crate::root::journal::{JournalEntry, JournalWriter};
use crate::root::lists::Lists;
use crate::root::request::VolumeRequest;
use crate::root::session::OpenSession;
use crate::root::state::{ROOT_KEY, SessionState};
use bkfs_chunker::crypto::{Class, Features};
use bkfs_chunker::ingest::{Delivered, NamedPack};
use bkfs_chunker::pack::PackName;
use bkfs_chunker::spool::{Spool, leftovers};
use bkfs_store::disk::Disk;
use bkfs_store::{ObjectInfo, Operation, Store, StoreError, StoreErrorKind};
use bkfs_testing::disk::{DiskOperation, SimulatedDisk};
use bkfs_testing::fault::{Fault, FaultStore, Strike};
use bytes::Bytes;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

async fn enter(store: &Arc<dyn Store>, seed: u64, name: &str) -> Result<OpenSession, RootError> {
    enter_as(store, seed, name, false).await
}

async fn enter_as(
    store: &Arc<dyn Store>,
    seed: u64,
    name: &str,
    accept_loss: bool,
) -> Result<OpenSession, RootError> {
    let handle = process(store.clone(), seed).await;
    let request = VolumeRequest {
        name: "main".into(),
        steal: true,
        accept_loss,
    };
    OpenSession::open(&handle, holder(name), Some(request), &SystemProcesses).await
}

async fn writer(store: &Arc<dyn Store>, session: &OpenSession) -> JournalWriter {
    JournalWriter::new(process(store.clone(), 77).await, session.id(), "main")
}

fn entry(operation: u64) -> JournalEntry {
    entries(operation, operation)
}

fn entries(first: u64, operation: u64) -> JournalEntry {
    JournalEntry::new(
        first..=operation,
        Delivered::default(),
        format!("operation {operation}").into_bytes(),
    )
}

async fn write(writer: &JournalWriter, entry: JournalEntry) -> Result<(), RootError> {
    writer.settle(entry)?;
    writer.land(writer.settled()).await
}

async fn keep(writer: &JournalWriter, entry: JournalEntry) -> Result<(), RootError> {
    writer.settle(entry)?;
    writer.keep().await
}

async fn journals(store: &Arc<dyn Store>) -> Vec<String> {
    let listed = store.list("journal/", None, 100).await.expect("listed");
    listed.into_iter().map(|object| object.key).collect()
}

/// Returns the first and last operation of each entry that a new holder finds.
async fn found(store: &Arc<dyn Store>, seed: u64) -> Vec<Vec<(u64, u64)>> {
    let new_holder = enter(store, seed, "next").await.expect("taken");
    let ranges = |entries: &[JournalEntry]| {
        let ranges = entries.iter().map(|entry| (entry.first, entry.last));
        ranges.collect()
    };
    let ended_sessions = new_holder.ended_sessions().iter();
    ended_sessions
        .map(|ended_session| ranges(&ended_session.entries))
        .collect()
}

/// Stores a journal object in the way of a session.
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
    for (first, last) in [(1, 1), (2, 2), (3, 5)] {
        let written = write(&writer, entries(first, last)).await;
        written.expect("written");
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
    write(&writer, entry(1)).await.expect_err("no answer");
    write(&writer, entry(2)).await.expect_err("no answer yet");
    assert!(journals(&store).await.is_empty());
    faults.heal();
    write(&writer, entry(3)).await.expect("written");
    assert_eq!(found(&store, 2).await, [[(1, 1), (2, 2), (3, 3)]]);
    assert!(faults.apply_late().await > 0);
    assert_eq!(journals(&store).await.len(), 3, "the same bytes, late");
}

#[tokio::test(start_paused = true)]
async fn an_entry_that_would_leave_operations_out_is_refused() {
    let store = memory().await;
    let session = enter(&store, 1, "a").await.expect("free");
    let writer = writer(&store, &session).await;
    write(&writer, entry(1)).await.expect("written");
    let left_out = writer.settle(entry(3)).expect_err("operation 2 is nowhere");
    assert!(
        left_out.to_string().contains("does not follow"),
        "{left_out}"
    );
    write(&writer, entries(1, 3))
        .await
        .expect("it is told again");
    assert_eq!(found(&store, 2).await, [[(1, 1), (1, 3)]]);
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

#[tokio::test(start_paused = true)]
async fn what_lies_behind_a_gap_is_set_aside() {
    let store = memory().await;
    let session = enter(&store, 1, "a").await.expect("free");
    let writer = writer(&store, &session).await;
    for operation in 1..=2 {
        write(&writer, entry(operation)).await.expect("written");
    }
    let like = journals(&store).await.remove(0);
    let behind = JournalEntry {
        first: 4,
        last: 4,
        ..entry(4)
    };
    put(&store, &like, 4, &behind).await;
    let refused = enter(&store, 2, "next").await.expect_err("3 is missing");
    assert_eq!(refused.kind(), ErrorKind::Damaged, "{refused}");
    let new_holder = enter_as(&store, 3, "next", true).await.expect("accepted");
    let [ended_session] = new_holder.ended_sessions() else {
        panic!("one was there");
    };
    assert_eq!(ended_session.entries.len(), 2);
    let aside = store.list("damaged/journal/", None, 10).await;
    assert_eq!(aside.expect("listed").len(), 1, "kept for people");
    assert_eq!(journals(&store).await.len(), 2);
}

/// A store whose lists omit the journals whose numbers end in one of these texts.
#[derive(Debug)]
struct Stale(Arc<dyn Store>, &'static [&'static str]);

#[async_trait::async_trait]
impl bkfs_store::Layer for Stale {
    fn below(&self) -> &dyn Store {
        &*self.0
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<ObjectInfo>, StoreError> {
        let mut listed = self.0.list(prefix, after, limit).await?;
        let is_left_out =
            |object: &ObjectInfo| self.1.iter().any(|number| object.key.ends_with(number));
        listed.retain(|object| !object.key.starts_with("journal/") || !is_left_out(object));
        Ok(listed)
    }
}

#[tokio::test(start_paused = true)]
async fn a_list_that_leaves_journals_out_hides_none() {
    let all = &["0001", "0002", "0003", "0004", "0005"][..];
    for left_out in [all, &all[3..], &all[..2], &all[1..4], &all[..4]] {
        let store = memory().await;
        let session = enter(&store, 1, "a").await.expect("free");
        let writer = writer(&store, &session).await;
        for operation in 1..=5 {
            write(&writer, entry(operation)).await.expect("written");
        }
        let stale: Arc<dyn Store> = Arc::new(Stale(store.clone(), left_out));
        let expected = [(1, 1), (2, 2), (3, 3), (4, 4), (5, 5)];
        assert_eq!(found(&stale, 2).await, [expected], "without {left_out:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_journal_that_cannot_be_read_is_not_passed_over() {
    for damage in ["bytes", "entry"] {
        let store = memory().await;
        let session = enter(&store, 1, "a").await.expect("free");
        let id = session.id();
        let writer = writer(&store, &session).await;
        write(&writer, entry(1)).await.expect("written");
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
        let error = enter(&store, 2, "next").await.expect_err("acknowledged");
        assert_eq!(error.kind(), ErrorKind::Damaged, "{error}");
        let root = &process(store.clone(), 3).await.current().root;
        assert_eq!(root.sessions.len(), 1, "the new holder has left");
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
        write(&writer, entry(operation)).await.expect("written");
    }
    // The next commit tries a failed deletion again.
    let passing = Fault::FailBefore(StoreErrorKind::Unreachable);
    faults.plan(Strike::with(passing).on(Operation::Delete));
    writer.covered(1).await;
    assert_eq!(journals(&store).await.len(), 4);
    writer.covered(2).await;
    assert_eq!(journals(&store).await.len(), 2);
    assert!(writer.is_needed());
    faults.plan(
        Strike::with(Fault::FailBefore(StoreErrorKind::Denied))
            .on(Operation::Delete)
            .always(),
    );
    writer.covered(4).await;
    assert_eq!(journals(&store).await.len(), 2);
    assert!(!writer.is_needed());
    write(&writer, entry(5)).await.expect("written");
    assert!(writer.is_needed());
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
    let entry = JournalEntry::new(9..=9, packs.clone(), b"operations".to_vec());
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

/// Uploads what a mount after a crash finds in the spool. Returns the number of objects.
async fn bring_leftovers(store: &Arc<dyn Store>, disk: &SimulatedDisk) -> usize {
    disk.kill();
    let disk: Arc<dyn Disk> = Arc::new(disk.clone());
    let left = leftovers(&disk, Path::new("/spool"))
        .await
        .expect("found")
        .spools;
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
    disk.kill();
    let disk: Arc<dyn Disk> = Arc::new(disk.clone());
    let left = leftovers(&disk, Path::new("/spool"))
        .await
        .expect("found")
        .spools;
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
        disk.kill();
        let disk: Arc<dyn Disk> = Arc::new(disk.clone());
        let left = leftovers(&disk, Path::new("/spool")).await.expect("found");
        let named = left.spools[0].named().len();
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
        let large = JournalEntry {
            operations: vec![7; 300_000],
            ..entry(operation)
        };
        writer.settle(large).expect("it follows");
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
        let large = JournalEntry {
            operations: vec![7; 300_000],
            ..entry(operation)
        };
        writer.settle(large).expect("it follows");
        // It is sent in any case. The root is needed for what the spool has.
        let _ = writer.land(writer.settled()).await;
        assert!(!writer.is_bare(), "{operation}");
    }
    disk.kill();
    let disk: Arc<dyn Disk> = Arc::new(disk.clone());
    let left = leftovers(&disk, Path::new("/spool")).await.expect("found");
    assert!(left.spools[0].named().len() >= 4);
}

/// An entry that is nowhere else does not wait for room behind one that is in the bucket.
#[tokio::test(start_paused = true)]
async fn a_full_spool_takes_first_what_is_nowhere_else() {
    let store = memory().await;
    let session = enter(&store, 1, "a").await.expect("free");
    let (writer, disk) = keeping_at_most(&store, &session, 50_000).await;
    let large = JournalEntry {
        operations: vec![7; 100_000],
        ..entry(1)
    };
    writer.settle(large).expect("the first");
    writer.land(writer.settled()).await.expect("sent");
    writer.settle(entry(2)).expect("it follows");
    writer.keep().await.expect_err("no room for the first");
    assert!(!writer.is_bare());
    disk.kill();
    let disk: Arc<dyn Disk> = Arc::new(disk.clone());
    let left = leftovers(&disk, Path::new("/spool")).await.expect("found");
    assert_eq!(left.spools[0].named().len(), 1);
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

/// Writes six journals of one operation each, of which a commit covers four.
async fn half_covered(store: &Arc<dyn Store>) -> JournalWriter {
    half_covered_by(store, 4).await
}

/// Same as [`half_covered`], by a commit that counts only the journals of the first `counted`
/// operations.
async fn half_covered_by(store: &Arc<dyn Store>, counted: u64) -> JournalWriter {
    let handle = process(store.clone(), 1).await;
    let request = VolumeRequest {
        name: "main".into(),
        steal: true,
        accept_loss: false,
    };
    let session = OpenSession::open(&handle, holder("a"), Some(request), &SystemProcesses).await;
    let session = session.expect("free");
    let writer = JournalWriter::new(handle.clone(), session.id(), "main");
    for operation in 1..=6 {
        write(&writer, entry(operation)).await.expect("written");
    }
    let uploads = Fake::new(&Arc::new(Shelf::default()), &handle, session.id());
    let lists = Lists::new(store.clone(), keyring());
    let committer = RootCommitter::new(handle.clone(), lists, session.id(), "main", uploads);
    let request = CommitRequest {
        covered: 4,
        covered_journal: Some(writer.number_covered(counted)),
        ..tree(1)
    };
    let committed = committer
        .expect("it holds the volume")
        .commit(request)
        .await;
    committed.expect("committed");
    writer
}

#[tokio::test(start_paused = true)]
async fn journals_are_looked_for_behind_the_last_covered_one() {
    let store = memory().await;
    let writer = half_covered(&store).await;
    writer.covered(4).await;
    assert_eq!(journals(&store).await.len(), 2);
    let stale: Arc<dyn Store> = Arc::new(Stale(store.clone(), &["0005", "0006"]));
    assert_eq!(found(&stale, 2).await, [[(5, 5), (6, 6)]]);
}

/// A journal may arrive after its covering commit has begun; that commit does not count it.
#[tokio::test(start_paused = true)]
async fn what_a_commit_covers_is_not_carried_out_again() {
    let store = memory().await;
    half_covered_by(&store, 2).await;
    assert_eq!(found(&store, 2).await, [[(5, 5), (6, 6)]]);
}

#[tokio::test(start_paused = true)]
async fn a_covered_journal_need_not_be_readable() {
    let store = memory().await;
    half_covered(&store).await;
    let damaged = journals(&store).await.remove(2);
    store.delete(&damaged).await.expect("deleted");
    let noise = Bytes::from_static(b"noise");
    store.put_new(&damaged, vec![noise]).await.expect("put");
    let new_holder = enter(&store, 2, "next").await.expect("taken");
    let [ended_session] = new_holder.ended_sessions() else {
        panic!("one was there");
    };
    assert_eq!(ended_session.entries.len(), 2);
    assert_eq!(
        ended_session.keys.len(),
        6,
        "all are garbage once it is replayed"
    );
}
