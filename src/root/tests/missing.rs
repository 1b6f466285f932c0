//! Acknowledged journals that are missing from the bucket: who detects that, and the consequences.

use super::support::*;
use crate::root::carried::{Records, Uncarried, forget_carried};
use crate::root::commit::RootCommitter;
use crate::root::commit_request::CommitRequest;
use crate::root::error::{ErrorKind, RootError};
use crate::root::gap::Gap;
use crate::root::handle::RootHandle;
use crate::root::holder::SystemProcesses;
use crate::root::journal::{JournalEntry, JournalWriter};
use crate::root::lists::Lists;
use crate::root::memory::FileMemory;
use crate::root::record::Replayed;
use crate::root::request::{KnownSpools, VolumeRequest};
use crate::root::session::OpenSession;
use crate::root::state::SessionState;
use crate::root::uploads::Uploads;
use async_trait::async_trait;
use bkfs_chunker::catalog::IndexSources;
use bkfs_chunker::id::Id;
use bkfs_chunker::ingest::Delivered;
use bkfs_store::{Layer, Operation, Store, StoreError, StoreErrorKind, Version};
use bkfs_testing::fault::{Fault, FaultStore, Strike};
use bytes::Bytes;
use futures::future::BoxFuture;
use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use tempfile::TempDir;

fn state() -> TempDir {
    tempfile::tempdir().expect("a directory")
}

/// Returns one process of a machine that keeps its memory in `state`.
async fn on(store: &Arc<dyn Store>, seed: u64, state: &Path) -> RootHandle {
    let memory = Arc::new(FileMemory::new(state, "r"));
    open(store.clone(), seed, memory).await.expect("opens")
}

async fn take(handle: &RootHandle, accept_loss: bool) -> Result<OpenSession, RootError> {
    let request = VolumeRequest {
        name: "main".into(),
        steal: true,
        accept_loss,
    };
    OpenSession::open(handle, holder("a"), Some(request), &SystemProcesses).await
}

/// Writes a journal for each of these operations.
async fn write(writer: &JournalWriter, operations: std::ops::RangeInclusive<u64>) {
    for operation in operations {
        let said = format!("operation {operation}").into_bytes();
        let entry = JournalEntry::new(operation..=operation, Delivered::default(), said);
        writer.settle(entry).expect("follows");
        writer.land(writer.settled()).await.expect("written");
    }
}

async fn journals(store: &Arc<dyn Store>) -> Vec<String> {
    let listed = store.list("", None, 1000).await.expect("listed");
    let keys = listed.into_iter().map(|object| object.key);
    keys.filter(|key| key.contains("journal/")).collect()
}

async fn delete(store: &Arc<dyn Store>, numbers: &[u64]) {
    for key in journals(store).await {
        if numbers
            .iter()
            .any(|number| key.ends_with(&format!("{number:016x}")))
        {
            store.delete(&key).await.expect("deleted");
        }
    }
}

/// Returns a bucket with five journals of a dead session, of which these are deleted, and the
/// memory of its machine.
async fn dead_without(numbers: &[u64]) -> (Arc<dyn Store>, TempDir, OpenSession) {
    let (store, state) = (memory().await, state());
    let handle = on(&store, 1, state.path()).await;
    let session = take(&handle, false).await.expect("free");
    let writer = JournalWriter::new(handle, session.id(), "main");
    write(&writer, 1..=5).await;
    delete(&store, numbers).await;
    (store, state, session)
}

fn gap(error: RootError) -> Gap {
    assert_eq!(error.kind(), ErrorKind::Damaged, "{error}");
    assert!(
        error
            .hint()
            .is_some_and(|hint| hint.contains("--accept-loss"))
    );
    match error {
        RootError::JournalsMissing { gaps } => gaps.into_iter().next().expect("one"),
        other => panic!("{other}"),
    }
}

fn ranges(session: &OpenSession) -> Vec<(u64, u64)> {
    let ended_sessions = session.ended_sessions().iter();
    let journals = ended_sessions.flat_map(|ended_session| &ended_session.journals);
    let summaries = journals.map(|journal| &journal.summary);
    summaries
        .map(|summary| (summary.first, summary.last))
        .collect()
}

#[tokio::test]
async fn the_machine_that_sent_them_misses_the_newest_journals() {
    for (deleted, missing) in [
        (&[5][..], vec![5..=5]),
        (&[4, 5], vec![4..=5]),
        (&[1, 2, 3, 4, 5], vec![1..=5]),
        (&[2, 3, 5], vec![2..=3, 5..=5]),
    ] {
        let (store, state, session) = dead_without(deleted).await;
        let before = journals(&store).await;
        let handle = on(&store, 2, state.path()).await;
        let found = gap(take(&handle, false).await.expect_err("acknowledged"));
        let after = *deleted.first().expect("one") - 1;
        assert_eq!((found.after, found.last), (after, 5));
        assert_eq!((found.session, found.missing), (session.id(), missing));
        assert_eq!(journals(&store).await, before, "nothing was touched");
        let root = &handle.refresh().await.expect("read").root;
        let stands = &root.sessions[&session.id()];
        assert_eq!(stands.state, SessionState::Live, "the volume was not taken");
        assert_eq!(root.sessions.len(), 1);
        let taken = take(&handle, true).await.expect("accepted");
        let carried: Vec<_> = (1..=after)
            .map(|operation| (operation, operation))
            .collect();
        assert_eq!(ranges(&taken), carried);
    }
}

#[tokio::test]
async fn the_message_says_what_is_missing_of_what() {
    let (store, state, session) = dead_without(&[3, 5]).await;
    let handle = on(&store, 2, state.path()).await;
    let text = take(&handle, false).await.expect_err("missing").to_string();
    let key = format!("{}/0000000000000003", session.id());
    let says = [
        &format!("session {}", session.id()),
        "volume main",
        "number 3, 5 ",
        &key,
        "operations 3 to 5 (3 in all)",
    ];
    for part in says {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
}

/// This machine does not ask again for a loss that it has accepted, and detects later ones.
#[tokio::test]
async fn a_loss_is_accepted_once() {
    let (store, state, session) = dead_without(&[4, 5]).await;
    let handle = on(&store, 2, state.path()).await;
    drop(take(&handle, true).await.expect("accepted"));
    let handle = on(&store, 3, state.path()).await;
    let third = take(&handle, false).await.expect("accepted before");
    assert_eq!(ranges(&third), [(1, 1), (2, 2), (3, 3)]);
    assert_ne!(third.id(), session.id());
    delete(&store, &[3]).await;
    let handle = on(&store, 4, state.path()).await;
    let found = gap(take(&handle, false).await.expect_err("3 was not accepted"));
    assert_eq!((found.after, found.last), (2, 3));
}

#[tokio::test]
async fn any_machine_misses_one_in_the_middle() {
    let (store, _state, session) = dead_without(&[3]).await;
    let other = state();
    let before = journals(&store).await;
    let handle = on(&store, 2, other.path()).await;
    let found = gap(take(&handle, false).await.expect_err("acknowledged"));
    assert_eq!((found.after, found.last), (2, 5));
    assert_eq!(found.missing, [3..=3]);
    assert_eq!(journals(&store).await, before);
    let root = &handle.refresh().await.expect("read").root;
    assert_eq!(root.sessions[&session.id()].state, SessionState::Live);
    let taken = take(&handle, true).await.expect("accepted");
    assert_eq!(ranges(&taken), [(1, 1), (2, 2)]);
    let aside = store.list("damaged/journal/", None, 10).await;
    assert_eq!(aside.expect("listed").len(), 2, "kept for people");
}

/// A mount that continues after a failure detects and accepts losses like every other mount.
#[tokio::test]
async fn a_successor_accepts_a_loss_only_if_its_mount_does() {
    for accepts in [false, true] {
        let (store, state) = (memory().await, state());
        let writer = Writer::begin(&store, state.path()).await;
        write(&writer.journals, 1..=5).await;
        delete(&store, &[4, 5]).await;
        let known = KnownSpools::default();
        let mut successors = Vec::new();
        let next = writer.session.succeed(
            &mut successors,
            holder("a"),
            &SystemProcesses,
            known,
            accepts,
        );
        let next = next.await;
        if accepts {
            let carried = ranges(&next.expect("accepted"));
            assert_eq!(carried, [(1, 1), (2, 2), (3, 3)]);
            continue;
        }
        let found = gap(next.expect_err("acknowledged"));
        assert_eq!((found.after, found.last), (3, 5));
        let root = &writer.handle.refresh().await.expect("read").root;
        let holder = root.volumes["main"].holder;
        assert_eq!(holder, Some(writer.session.id()), "it stays as it was");
    }
}

/// Only the machine that sent the newest journals can detect that they are missing.
#[tokio::test]
async fn another_machine_cannot_miss_the_newest() {
    let (store, _state, _session) = dead_without(&[4, 5]).await;
    let other = state();
    let handle = on(&store, 2, other.path()).await;
    let taken = take(&handle, false).await.expect("it cannot know");
    assert_eq!(ranges(&taken), [(1, 1), (2, 2), (3, 3)]);
}

/// An unreadable journal is not missing: the takeover begins, and fails with its damage.
#[tokio::test]
async fn what_cannot_be_read_is_damage_and_no_gap() {
    let (store, state, session) = dead_without(&[]).await;
    let key = journals(&store).await.remove(4);
    store.delete(&key).await.expect("deleted");
    let noise = Bytes::from_static(b"noise");
    store.put_new(&key, vec![noise]).await.expect("put");
    let handle = on(&store, 2, state.path()).await;
    let error = take(&handle, false).await.expect_err("acknowledged");
    assert!(matches!(error, RootError::Unopenable { .. }), "{error}");
    let root = &handle.refresh().await.expect("read").root;
    assert_eq!(root.sessions[&session.id()].state, SessionState::Ending);
}

/// One process that writes, commits when told, and ends.
struct Writer {
    handle: RootHandle,
    session: OpenSession,
    journals: JournalWriter,
    committer: RootCommitter<Fake>,
    shelf: Arc<Shelf>,
}

impl Writer {
    async fn begin(store: &Arc<dyn Store>, state: &Path) -> Self {
        Self::begin_as(store, state, 1).await
    }

    async fn begin_as(store: &Arc<dyn Store>, state: &Path, seed: u64) -> Self {
        let handle = on(store, seed, state).await;
        let session = take(&handle, false).await.expect("free");
        let shelf = Arc::new(Shelf::default());
        let uploads = Fake::new(&shelf, &handle, session.id());
        let lists = Lists::new(store.clone(), keyring());
        let committer = RootCommitter::new(handle.clone(), lists, session.id(), "main", uploads);
        Self {
            journals: JournalWriter::new(handle.clone(), session.id(), "main"),
            committer: committer.expect("it holds the volume"),
            session,
            handle,
            shelf,
        }
    }

    async fn commit(&self, covered: u64) {
        let request = CommitRequest {
            covered,
            covered_journal: Some(self.journals.number_covered(covered)),
            ..tree(1)
        };
        self.committer.commit(request).await.expect("committed");
    }
}

/// Every state after a crash is accepted.
#[tokio::test(start_paused = true)]
async fn what_a_crash_leaves_is_whole() {
    // A commit covers some journals, and none, some or all of these are deleted.
    for (covers, deleted) in [
        (3, &[][..]),
        (3, &[1]),
        (3, &[1, 2, 3]),
        (5, &[1, 2, 3, 4, 5]),
    ] {
        let (store, state) = (memory().await, state());
        let writer = Writer::begin(&store, state.path()).await;
        write(&writer.journals, 1..=5).await;
        writer.commit(covers).await;
        delete(&store, deleted).await;
        let handle = on(&store, 2, state.path()).await;
        let taken = take(&handle, false).await.expect("whole");
        let left: Vec<_> = (covers + 1..=5)
            .map(|operation| (operation, operation))
            .collect();
        assert_eq!(ranges(&taken), left);
    }
    // The last journal is in flight, and may arrive.
    for arrives in [false, true] {
        let faults = Arc::new(FaultStore::new(memory().await));
        let (store, state): (Arc<dyn Store>, _) = (faults.clone(), state());
        let writer = Writer::begin(&store, state.path()).await;
        write(&writer.journals, 1..=2).await;
        let late = Strike::with(Fault::Late).on(Operation::PutNew);
        faults.plan(late.keys("journal/").always());
        let entry = JournalEntry::new(3..=3, Delivered::default(), b"late".to_vec());
        writer.journals.settle(entry).expect("follows");
        writer.journals.land(3).await.expect_err("no answer");
        faults.heal();
        if arrives {
            faults.apply_late().await;
        }
        let handle = on(&store, 2, state.path()).await;
        let taken = take(&handle, false).await.expect("whole");
        assert_eq!(ranges(&taken).len(), 2 + usize::from(arrives));
    }
    // The answer was lost, and the process ended before it asked again.
    let faults = Arc::new(FaultStore::new(memory().await));
    let (store, state): (Arc<dyn Store>, _) = (faults.clone(), state());
    let writer = Writer::begin(&store, state.path()).await;
    let unheard = Fault::FailAfter(StoreErrorKind::Denied);
    faults.plan(Strike::with(unheard).on(Operation::PutNew).keys("journal/"));
    let entry = JournalEntry::new(1..=1, Delivered::default(), b"unheard".to_vec());
    writer.journals.settle(entry).expect("follows");
    writer
        .journals
        .land(1)
        .await
        .expect_err("refused, it seems");
    let handle = on(&store, 2, state.path()).await;
    assert_eq!(
        ranges(&take(&handle, false).await.expect("whole")),
        [(1, 1)]
    );
}

/// A store that runs an event at the first read of a journal.
struct Meanwhile {
    below: Arc<dyn Store>,
    event: parking_lot::Mutex<Option<BoxFuture<'static, ()>>>,
}

impl std::fmt::Debug for Meanwhile {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Meanwhile")
    }
}

#[async_trait]
impl Layer for Meanwhile {
    fn below(&self) -> &dyn Store {
        &*self.below
    }

    async fn get(&self, key: &str) -> Result<(Bytes, Version), StoreError> {
        let event = match key.starts_with("journal/") {
            true => self.event.lock().take(),
            false => None,
        };
        if let Some(event) = event {
            event.await;
        }
        self.below.get(key).await
    }
}

/// The holder of the volume covers journals by a commit while another machine reads them.
#[tokio::test]
async fn what_is_covered_meanwhile_is_not_missed() {
    let (store, state) = (memory().await, state());
    let writer = Writer::begin(&store, state.path()).await;
    write(&writer.journals, 1..=5).await;
    let event = async move {
        writer.commit(4).await;
        writer.journals.covered(4).await;
        drop((writer.session, writer.handle));
    };
    let looking: Arc<dyn Store> = Arc::new(Meanwhile {
        below: store.clone(),
        event: parking_lot::Mutex::new(Some(Box::pin(event))),
    });
    let handle = on(&looking, 2, state.path()).await;
    let taken = take(&handle, false).await.expect("whole");
    assert_eq!(ranges(&taken), [(5, 5)]);
    assert_eq!(journals(&store).await.len(), 1);
}

/// Two journals arrive between two requests for them.
#[tokio::test]
async fn what_arrives_while_it_is_looked_for_leaves_no_gap() {
    let (store, state) = (memory().await, state());
    let writer = Writer::begin(&store, state.path()).await;
    write(&writer.journals, 1..=2).await;
    let arriving: Arc<dyn Store> = Arc::new(Arriving {
        below: store.clone(),
        journals: parking_lot::Mutex::new(Some(writer.journals)),
        arrived: tokio::sync::Semaphore::new(0),
    });
    let other = self::state();
    let handle = on(&arriving, 2, other.path()).await;
    let taken = take(&handle, false).await.expect("whole");
    assert_eq!(ranges(&taken).len(), 4);
}

/// A store in which journals 3 and 4 arrive right after the request for 3, and before that for 4.
struct Arriving {
    below: Arc<dyn Store>,
    journals: parking_lot::Mutex<Option<JournalWriter>>,
    arrived: tokio::sync::Semaphore,
}

impl std::fmt::Debug for Arriving {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Arriving")
    }
}

#[async_trait]
impl Layer for Arriving {
    fn below(&self) -> &dyn Store {
        &*self.below
    }

    async fn get(&self, key: &str) -> Result<(Bytes, Version), StoreError> {
        if key.ends_with("0000000000000004") {
            drop(self.arrived.acquire().await);
        }
        let answer = self.below.get(key).await;
        let journals = match key.ends_with("0000000000000003") {
            true => self.journals.lock().take(),
            false => None,
        };
        if let Some(journals) = journals {
            write(&journals, 3..=4).await;
            self.arrived.add_permits(1);
        }
        answer
    }
}

/// The number of sessions in the root bounds the notes.
#[tokio::test]
async fn sessions_that_have_left_are_forgotten() {
    let (store, state) = (memory().await, state());
    let remembered = || std::fs::read_dir(state.path().join("r/sent")).map_or(0, Iterator::count);
    let writer = Writer::begin(&store, state.path()).await;
    assert_eq!(remembered(), 0, "nothing was sent");
    write(&writer.journals, 1..=2).await;
    assert_eq!(remembered(), 1);
    writer.commit(2).await;
    writer.session.end().await.expect("ends");
    assert_eq!(remembered(), 0);
    // Another machine ends the session, and replays its acknowledged operations.
    let writer = Writer::begin_as(&store, state.path(), 9).await;
    write(&writer.journals, 1..=2).await;
    taken_elsewhere(&store, &writer, 2).await;
    assert_eq!(remembered(), 1);
    assert_eq!(uncarried(&store, state.path(), &writer.shelf).await, []);
    assert_eq!(remembered(), 0);
}

/// Another machine takes the volume over, and finds journals up to `last`.
async fn taken_elsewhere(store: &Arc<dyn Store>, from: &Writer, last: u64) {
    let other = state();
    let handle = on(store, 2, other.path()).await;
    let taken = take(&handle, false).await.expect("taken");
    let journals = taken
        .ended_sessions()
        .iter()
        .flat_map(|ended_session| &ended_session.journals);
    let lasts = journals.map(|journal| journal.summary.last);
    assert_eq!(lasts.max().unwrap_or(0), last);
    let uploads = Fake::new(&from.shelf, &handle, taken.id());
    let lists = Lists::new(store.clone(), keyring());
    let replayed = Replayed {
        session: from.session.id(),
        last,
    };
    let committer = RootCommitter::new(handle.clone(), lists, taken.id(), "main", uploads);
    let committer = committer.expect("it holds the volume");
    let committer = match last {
        0 => committer,
        _ => committer.replaying(vec![replayed]),
    };
    committer.commit(tree(2)).await.expect("committed");
    taken.end().await.expect("ends");
}

/// The commit records of a shelf.
struct Shown(Arc<Fake>);

#[async_trait]
impl Records for Shown {
    async fn record(&self, id: Id) -> Result<Bytes, RootError> {
        let view = self.0.handle.current();
        let none = HashSet::new();
        let sources = IndexSources::of_objects(&view.root.index);
        (self.0.read_record(&sources, &none, id)).await
    }
}

/// Returns the losses that the machine with the memory `state` detects.
async fn uncarried(store: &Arc<dyn Store>, state: &Path, shelf: &Arc<Shelf>) -> Vec<Uncarried> {
    let handle = on(store, 3, state).await;
    let session = take(&handle, false).await.expect("free");
    let uploads = Fake::new(shelf, &handle, session.id());
    let found = forget_carried(&handle, &Shown(uploads)).await;
    let found = found.expect("looked");
    session.end().await.expect("ends");
    found
}

/// Another machine took the volume over after the newest journals had been deleted, and could not
/// detect that. The machine that sent them does.
#[tokio::test]
async fn what_another_machine_could_not_miss_is_missed_here() {
    for (deleted, covered) in [(&[4, 5][..], 3), (&[1, 2, 3, 4, 5], 0)] {
        let (store, state) = (memory().await, state());
        let writer = Writer::begin(&store, state.path()).await;
        write(&writer.journals, 1..=5).await;
        delete(&store, deleted).await;
        taken_elsewhere(&store, &writer, covered).await;
        let lost = |after| Uncarried {
            session: writer.session.id(),
            sent: 5,
            covered,
            after,
        };
        for _ in 0..2 {
            let found = uncarried(&store, state.path(), &writer.shelf).await;
            let after = found.first().and_then(|found| found.after.clone());
            assert_eq!(after.is_some(), covered > 0, "{found:?}");
            assert_eq!(found, [lost(after)], "until it is accepted");
            let told = found[0].to_string();
            let first = format!("operations {} to 5", covered + 1);
            assert!(told.contains(&first), "{told}");
            let after = match covered {
                0 => "no commit has anything",
                _ => "in the commit of volume main at ",
            };
            assert!(told.contains(after), "{told}");
        }
    }
}

/// A missing record proves nothing, and counts as no loss.
#[tokio::test]
async fn where_commits_cannot_be_read_nothing_is_said() {
    let (store, state) = (memory().await, state());
    let writer = Writer::begin(&store, state.path()).await;
    write(&writer.journals, 1..=2).await;
    taken_elsewhere(&store, &writer, 2).await;
    let empty = Arc::new(Shelf::default());
    assert_eq!(uncarried(&store, state.path(), &empty).await, []);
    assert_eq!(uncarried(&store, state.path(), &writer.shelf).await, []);
    let left = std::fs::read_dir(state.path().join("r/sent"));
    assert_eq!(left.map_or(0, Iterator::count), 0);
}
