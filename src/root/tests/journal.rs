//! Writing journals, and finding those of ended sessions.

use super::support::*;
use crate::root::commit::RootCommitter;
use crate::root::commit_request::CommitRequest;
use crate::root::ended_sessions::EndedSession;
use crate::root::error::{ErrorKind, RootError};
use crate::root::holder::SystemProcesses;
use crate::root::journal::{JournalEntry, JournalWriter};
use crate::root::lists::Lists;
use crate::root::request::VolumeRequest;
use crate::root::session::OpenSession;
use crate::root::state::SessionState;
use bkfs_chunker::crypto::{Class, Features};
use bkfs_chunker::ingest::{Delivered, NamedPack};
use bkfs_chunker::pack::PackName;
use bkfs_store::{ObjectInfo, Operation, Store, StoreError, StoreErrorKind};
use bkfs_testing::fault::{Fault, FaultStore, Strike};
use bytes::Bytes;
use std::sync::Arc;

pub async fn enter(
    store: &Arc<dyn Store>,
    seed: u64,
    name: &str,
) -> Result<OpenSession, RootError> {
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

pub async fn writer(store: &Arc<dyn Store>, session: &OpenSession) -> JournalWriter {
    JournalWriter::new(process(store.clone(), 77).await, session.id(), "main")
}

pub fn entry(operation: u64) -> JournalEntry {
    entries(operation, operation)
}

pub fn entries(first: u64, operation: u64) -> JournalEntry {
    JournalEntry::new(
        first..=operation,
        Delivered::default(),
        format!("operation {operation}").into_bytes(),
    )
}

pub async fn write(writer: &JournalWriter, entry: JournalEntry) -> Result<(), RootError> {
    writer.settle(entry)?;
    writer.land(writer.settled()).await
}

pub async fn journals(store: &Arc<dyn Store>) -> Vec<String> {
    let listed = store.list("journal/", None, 100).await.expect("listed");
    listed.into_iter().map(|object| object.key).collect()
}

/// Returns the first and last operation of each entry that a new holder finds.
pub async fn found(store: &Arc<dyn Store>, seed: u64) -> Vec<Vec<(u64, u64)>> {
    let new_holder = enter(store, seed, "next").await.expect("taken");
    let ranges = |ended_session: &EndedSession| {
        let journals = ended_session.journals.iter();
        let ranges = journals.map(|journal| (journal.summary.first, journal.summary.last));
        ranges.collect()
    };
    new_holder.ended_sessions().iter().map(ranges).collect()
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
    assert_eq!(ended_session.journals.len(), 2);
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
    assert_eq!(ended_session.journals.len(), 2);
    assert_eq!(
        ended_session.keys.len(),
        6,
        "all are garbage once it is replayed"
    );
}

/// Two operations of a session that another one has taken the volume from.
async fn taken_over(store: &Arc<dyn Store>) -> OpenSession {
    let session = enter(store, 1, "a").await.expect("free");
    let writer = writer(store, &session).await;
    for operation in 1..=2 {
        write(&writer, entry(operation)).await.expect("written");
    }
    enter(store, 2, "next").await.expect("taken")
}

#[tokio::test]
async fn a_journal_is_read_again_with_its_operations() {
    let store = memory().await;
    let taken = taken_over(&store).await;
    let handle = process(store.clone(), 3).await;
    let [ended_session] = taken.ended_sessions() else {
        panic!("one was there");
    };
    for (journal, operation) in ended_session.journals.iter().zip(1..) {
        let kept = handle.read_uncovered(journal, taken.id(), "main").await;
        assert_eq!(kept.expect("kept"), entry(operation).operations);
        let journal = journal.forgetful();
        let again = handle.read_uncovered(&journal, taken.id(), "main").await;
        assert_eq!(again.expect("read"), entry(operation).operations);
    }
    let journal = &ended_session.journals[0].forgetful();
    // The same session, which has put something else in its first journal.
    let twin = memory().await;
    let session = enter(&twin, 1, "a").await.expect("free");
    let writer = writer(&twin, &session).await;
    let changed = JournalEntry::new(1..=1, Delivered::default(), b"operation 9".to_vec());
    write(&writer, changed).await.expect("written");
    assert_eq!(journals(&twin).await, std::slice::from_ref(&journal.key));
    let (other, _) = twin.get(&journal.key).await.expect("read");
    store.delete(&journal.key).await.expect("deleted");
    store.put_new(&journal.key, vec![other]).await.expect("put");
    let other = handle.read_uncovered(journal, taken.id(), "main").await;
    let other = other.expect_err("it is another one");
    assert_eq!(other.kind(), ErrorKind::Damaged, "{other}");
    assert!(other.to_string().contains("not the journal"), "{other}");
}

#[tokio::test]
async fn a_journal_that_a_later_holder_has_carried_out_is_not_damage() {
    let store = memory().await;
    let taken = taken_over(&store).await;
    let handle = process(store.clone(), 3).await;
    let journal = &taken.ended_sessions()[0].journals[0].forgetful();
    store.delete(&journal.key).await.expect("deleted");
    let gone = handle.read_uncovered(journal, taken.id(), "main").await;
    assert!(matches!(gone, Err(RootError::Damaged { .. })), "{gone:?}");
    enter(&store, 4, "later").await.expect_err("1 is missing");
    enter_as(&store, 5, "later", true).await.expect("accepted");
    let gone = handle.read_uncovered(journal, taken.id(), "main").await;
    assert!(matches!(gone, Err(RootError::Refused(_))), "{gone:?}");
}

#[tokio::test(start_paused = true)]
async fn a_journal_whose_answer_arrives_damaged_is_read_again() {
    let faults = Arc::new(FaultStore::new(memory().await));
    let store: Arc<dyn Store> = faults.clone();
    let session = enter(&store, 1, "a").await.expect("free");
    let writer = writer(&store, &session).await;
    write(&writer, entry(1)).await.expect("written");
    let twice = || {
        let flip = Strike::with(Fault::FlipBit(77)).on(Operation::Get);
        faults.plan(flip.keys("journal/").times(2));
    };
    twice();
    let taken = enter_as(&store, 2, "next", true).await.expect("taken");
    assert_eq!(faults.struck(), 2);
    let journal = taken.ended_sessions()[0].journals[0].forgetful();
    let handle = process(store.clone(), 3).await;
    twice();
    let again = handle.read_uncovered(&journal, taken.id(), "main").await;
    assert_eq!(again.expect("read"), entry(1).operations);
    assert_eq!(faults.struck(), 4);
}

/// An entry that names these packs.
fn naming(operation: u64, packs: std::ops::RangeInclusive<u32>) -> JournalEntry {
    let packs = packs.map(|sequence| NamedPack {
        name: PackName {
            session: 1,
            sequence,
            random: 3,
        },
        is_metadata: false,
        length: 4,
    });
    let packs = Delivered {
        own: packs.collect(),
        relied_on: Vec::new(),
    };
    JournalEntry::new(operation..=operation, packs, b"operations".to_vec())
}

#[tokio::test(start_paused = true)]
async fn the_packs_of_journals_are_known_once() {
    let store = memory().await;
    let session = enter(&store, 1, "a").await.expect("free");
    let writer = writer(&store, &session).await;
    for (operation, packs) in [(1, 1..=2), (2, 1..=3), (3, 2..=4)] {
        let written = write(&writer, naming(operation, packs)).await;
        written.expect("written");
    }
    let sequences = |taken: &OpenSession| {
        let ended_sessions = taken.ended_sessions().iter();
        let journals = ended_sessions.clone().map(|ended| ended.journals.len());
        assert_eq!(journals.sum::<usize>(), 3);
        let packs = ended_sessions.flat_map(|ended_session| &ended_session.packs);
        packs.map(|pack| pack.name.sequence).collect::<Vec<u32>>()
    };
    let taken = enter(&store, 2, "next").await.expect("taken");
    assert_eq!(sequences(&taken), [1, 2, 3, 4]);
    let like = journals(&store).await.remove(0);
    put(&store, &like, 5, &naming(5, 4..=9)).await;
    let taken = enter_as(&store, 3, "later", true).await.expect("accepted");
    let sequences = sequences(&taken);
    assert_eq!(
        sequences,
        [1, 2, 3, 4],
        "no pack that only what is behind a gap names"
    );
}
