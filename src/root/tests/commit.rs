//! Commits of concurrent writers, of fenced writers, and of writers whose answers are lost.

use super::support::*;
use crate::maintain::rebuild;
use crate::root::commit::RootCommitter;
use crate::root::commit_request::CommitRequest;
use crate::root::error::{ErrorKind, RootError};
use crate::root::handle::RootHandle;
use crate::root::holder::SystemProcesses;
use crate::root::lists::Lists;
use crate::root::request::VolumeRequest;
use crate::root::session::OpenSession;
use crate::root::snapshots::NewSnapshot;
use bkfs_chunker::pack::PackName;
use bkfs_store::{LocalStore, Store, StoreErrorKind, StoreOptions};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// A writer of one volume.
pub struct Writer {
    pub handle: RootHandle,
    pub session: OpenSession,
    pub uploads: Arc<Fake>,
    pub committer: Arc<RootCommitter<Fake>>,
}

pub async fn writer(
    store: Arc<dyn Store>,
    shelf: &Arc<Shelf>,
    volume: &str,
    seed: u64,
    steal: bool,
) -> Writer {
    let handle = process(store, seed).await;
    let request = VolumeRequest {
        name: volume.to_owned(),
        steal,
        accept_loss: false,
    };
    let session = OpenSession::open(
        &handle,
        holder(&format!("host{seed}")),
        Some(request),
        &SystemProcesses,
    )
    .await
    .expect("free or stolen");
    let uploads = Fake::new(shelf, &handle, session.id());
    let lists = Lists::new(handle.store().clone(), keyring());
    let committer = Arc::new(
        RootCommitter::new(handle.clone(), lists, session.id(), volume, uploads.clone())
            .expect("just taken"),
    );
    Writer {
        handle,
        session,
        uploads,
        committer,
    }
}

fn named(number: u64, name: &str) -> CommitRequest<()> {
    let snapshot = NewSnapshot {
        name: Some(name.to_owned()),
        clock: time(1_000_000 + number as i64),
        ..NewSnapshot::default()
    };
    CommitRequest {
        snapshot: Some(snapshot),
        ..tree(number)
    }
}

/// Makes commits of one volume. Some lose their answer, and some make a snapshot.
async fn commit_often(
    store: Arc<dyn Store>,
    shelf: Arc<Shelf>,
    number: u64,
    commits: u64,
) -> (OpenSession, u64) {
    let faulty = Faulty::new(store);
    let volume = format!("v{number}");
    let writer = writer(faulty.clone(), &shelf, &volume, number + 1, false).await;
    let first = writer.handle.current().root.generation;
    for round in 1..=commits {
        if round % 7 == 0 {
            faulty.plan([
                Fault::After(StoreErrorKind::OutcomeUnknown),
                Fault::Before(StoreErrorKind::Throttled),
            ]);
        }
        let request = if round % 10 == 0 {
            named(round, &format!("s{round}"))
        } else {
            tree(round)
        };
        let made = writer.committer.commit(request).await;
        let made = made.expect("no other session takes the volume");
        assert_eq!(made.sequence, first + round - 1);
    }
    assert!(writer.uploads.uncommitted.lock().is_empty());
    let told = writer.uploads.committed.load(Ordering::Relaxed);
    assert_eq!(u64::from(told), commits, "each commit was told of once");
    (writer.session, first + commits - 1)
}

async fn committers(store: Arc<dyn Store>, volumes: u64, commits: u64) {
    let shelf = Arc::new(Shelf::default());
    let commit = |number| commit_often(store.clone(), shelf.clone(), number, commits);
    let tasks: Vec<_> = (0..volumes).map(|n| tokio::spawn(commit(n))).collect();
    let (mut sessions, mut last) = (Vec::new(), BTreeMap::new());
    for (number, task) in tasks.into_iter().enumerate() {
        let (session, sequence) = task.await.expect("no panic");
        sessions.push(session);
        last.insert(format!("v{number}"), sequence);
    }
    let reader = process(store.clone(), 99).await;
    let root = &reader.current().root;
    for (name, volume) in &root.volumes {
        assert_eq!(
            (volume.sequence, volume.tree, volume.bytes),
            (last[name], Some(id(commits)), 1000 * commits),
            "{name}"
        );
    }
    assert_eq!(root.volumes.len() as u64, volumes);
    assert_eq!(
        root.generation,
        1 + volumes + volumes * commits,
        "every change was made once"
    );
    let live = shelf.live(&root.index);
    for session in &sessions {
        let own = |pack: &&PackName| pack.session == session.id().0;
        let packs = live.iter().filter(own).count() as u64;
        assert!(packs >= commits, "{packs} live packs of {commits} commits");
    }
    let lists = Lists::new(store, keyring());
    let snapshots = lists.current_snapshots(&reader).await.expect("readable").1;
    assert_eq!(snapshots.iter().count() as u64, volumes * (commits / 10));
    assert!(root.snapshots.len() <= 16);
    for session in sessions {
        session.end().await.expect("still live");
    }
    let last = reader.refresh().await.expect("there");
    assert!(last.root.sessions.is_empty());
}

#[tokio::test(start_paused = true)]
async fn eight_committers_on_eight_volumes_lose_nothing() {
    committers(memory().await, 8, 50).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn committers_on_a_directory_lose_nothing() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let store = LocalStore::open(directory.path(), &StoreOptions::default())
        .await
        .expect("there");
    create(&store).await;
    committers(Arc::new(store), 4, 10).await;
}

#[tokio::test(start_paused = true)]
async fn a_fenced_writer_commits_nothing_more() {
    let store = memory().await;
    let shelf = Arc::new(Shelf::default());
    let ended_session = writer(store.clone(), &shelf, "main", 1, false).await;
    ended_session
        .committer
        .commit(tree(1))
        .await
        .expect("alone");
    let new_holder = writer(store.clone(), &shelf, "main", 2, true).await;
    assert_eq!(
        new_holder
            .session
            .taken_from()
            .map(|from| from.host.as_str()),
        Some("host1")
    );
    let error = ended_session
        .committer
        .commit(tree(2))
        .await
        .expect_err("fenced");
    assert_eq!(error.kind(), ErrorKind::Fenced);
    assert!(error.to_string().contains("host2"), "{error}");
    assert_eq!(
        new_holder
            .committer
            .commit(tree(3))
            .await
            .expect("holder")
            .sequence,
        3
    );
    assert_eq!(
        ended_session
            .committer
            .commit(tree(4))
            .await
            .expect_err("still")
            .kind(),
        ErrorKind::Fenced
    );
    assert_eq!(
        ended_session.session.end().await.expect_err("still").kind(),
        ErrorKind::Fenced
    );
    let root = &new_holder.handle.refresh().await.expect("there").root;
    assert_eq!(
        (root.volumes["main"].tree, root.sessions.len()),
        (Some(id(3)), 1)
    );
}

#[tokio::test(start_paused = true)]
async fn a_commit_that_was_made_before_its_writer_was_fenced_is_reported_as_made() {
    for commits_on_top in 0..3u64 {
        let store = Faulty::new(memory().await);
        let shelf = Arc::new(Shelf::default());
        let ended_session = writer(store.clone(), &shelf, "main", 1, false).await;
        ended_session
            .committer
            .commit(tree(1))
            .await
            .expect("alone");
        store.plan([Fault::Silent]);
        let committing = tokio::spawn({
            let committer = ended_session.committer.clone();
            async move { committer.commit(named(2, "last")).await }
        });
        tokio::time::sleep(Duration::from_secs(1)).await;
        let new_holder = writer(store.inner.clone(), &shelf, "main", 2, true).await;
        for round in 0..commits_on_top {
            new_holder
                .committer
                .commit(tree(10 + round))
                .await
                .expect("holder");
        }
        let made = committing.await.expect("no panic").expect("it was made");
        assert_eq!(
            (made.sequence, made.snapshot.map(|snapshot| snapshot.name)),
            (3, Some("last".to_owned()))
        );
        assert_eq!(
            ended_session
                .committer
                .commit(tree(5))
                .await
                .expect_err("fenced")
                .kind(),
            ErrorKind::Fenced
        );
        let (view, snapshots) = Lists::new(store.inner.clone(), keyring())
            .current_snapshots(&new_holder.handle)
            .await
            .expect("readable");
        assert_eq!(view.root.volumes["main"].sequence, 3 + commits_on_top);
        assert_eq!(
            snapshots
                .named("main", "last")
                .map(|entry| entry.generation),
            Some(made.generation)
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_holder_that_never_committed_records_nothing_above_its_successor() {
    let store = memory().await;
    let shelf = Arc::new(Shelf::default());
    let fenced = writer(store.clone(), &shelf, "main", 1, false).await;
    let successor = writer(store.clone(), &shelf, "main", 2, true).await;
    let mut last = 0;
    for round in 0..3 {
        let made = successor.committer.commit(tree(10 + round)).await;
        last = made.expect("holder").sequence;
    }
    // Others go on, and the heartbeat reads the root.
    for seed in 3..8 {
        writer(store.clone(), &shelf, &format!("other{seed}"), seed, false).await;
    }
    fenced.handle.refresh().await.expect("read");
    let error = fenced.committer.commit(tree(5)).await.expect_err("fenced");
    assert_eq!(error.kind(), ErrorKind::Fenced, "{error}");
    assert!(
        (shelf.records().iter()).all(|(_, record)| record.sequence <= last),
        "a repair would take it for the last commit"
    );
}

#[tokio::test(start_paused = true)]
async fn a_former_holder_records_nothing_that_passes_its_successor() {
    for is_told in [false, true] {
        let store = memory().await;
        let shelf = Arc::new(Shelf::default());
        let fenced = writer(store.clone(), &shelf, "main", 1, false).await;
        fenced.committer.commit(tree(1)).await.expect("alone");
        let successor = writer(store.clone(), &shelf, "main", 2, true).await;
        let made = successor.committer.commit(tree(10)).await.expect("holder");
        if is_told {
            fenced.handle.refresh().await.expect("read");
        }
        // By the clocks it is later.
        let error = fenced.committer.commit(tree(20)).await.expect_err("fenced");
        assert_eq!(error.kind(), ErrorKind::Fenced, "{error}");
        let records = shelf.records();
        let best = rebuild::candidates(&records)["main"][0].0;
        assert_eq!(best, made.record, "a repair takes the other one");
        assert_eq!(records.len(), if is_told { 2 } else { 3 });
    }
}

#[tokio::test(start_paused = true)]
async fn a_commit_that_was_overtaken_is_reported_as_fenced() {
    for commits_on_top in 0..3u64 {
        let store = Faulty::new(memory().await);
        let shelf = Arc::new(Shelf::default());
        let ended_session = writer(store.clone(), &shelf, "main", 1, false).await;
        ended_session
            .committer
            .commit(tree(1))
            .await
            .expect("alone");
        store.plan([Fault::Late]);
        let committing = tokio::spawn({
            let committer = ended_session.committer.clone();
            async move { committer.commit(tree(2)).await }
        });
        tokio::time::sleep(Duration::from_secs(1)).await;
        let new_holder = writer(store.inner.clone(), &shelf, "main", 2, true).await;
        for round in 0..commits_on_top {
            new_holder
                .committer
                .commit(tree(10 + round))
                .await
                .expect("holder");
        }
        assert_eq!(
            committing
                .await
                .expect("no panic")
                .expect_err("fenced")
                .kind(),
            ErrorKind::Fenced
        );
        assert_eq!(store.deliver().await, 0, "its late request changes nothing");
    }
}

#[tokio::test(start_paused = true)]
async fn an_unknown_commit_is_found_out_by_the_next() {
    for deliver in [false, true] {
        let store = Faulty::new(memory().await);
        let shelf = Arc::new(Shelf::default());
        let writer = writer(store.clone(), &shelf, "main", 1, false).await;
        store.plan([Fault::Late]);
        let committing = tokio::spawn({
            let committer = writer.committer.clone();
            async move { committer.commit(named(1, "one")).await }
        });
        tokio::time::sleep(Duration::from_secs(1)).await;
        *store.outage.lock() = Some(StoreErrorKind::Unreachable);
        assert_eq!(
            committing
                .await
                .expect("no panic")
                .expect_err("gone")
                .kind(),
            ErrorKind::OutcomeUnknown
        );
        *store.outage.lock() = None;
        if deliver {
            assert_eq!(store.deliver().await, 1);
        }
        // In both cases the commit was completed and is reported. The same name is refused, and the
        // next commit follows it.
        let settled = writer.committer.settle_pending().await.expect("decided");
        let settled = settled.expect("made");
        assert_eq!((settled.sequence, settled.generation), (2, 3));
        let snapshot = settled.snapshot.expect("was asked for");
        assert_eq!((snapshot.name.as_str(), snapshot.generation), ("one", 3));
        let again = writer.committer.settle_pending().await.expect("decided");
        assert_eq!(again, None, "nothing is left to decide");
        assert!(matches!(
            writer.committer.commit(named(2, "one")).await,
            Err(RootError::NameTaken { .. })
        ));
        assert_eq!(
            writer
                .committer
                .commit(named(3, "two"))
                .await
                .expect("alone")
                .sequence,
            3
        );
        assert_eq!(writer.uploads.committed.load(Ordering::Relaxed), 2);
        assert!(writer.uploads.uncommitted.lock().is_empty());
    }
}

/// Returns a writer whose commit of the first tree is held back, and which knows no answer to it.
async fn with_unknown_commit(shelf: &Arc<Shelf>) -> (Arc<Faulty>, Writer) {
    let store = Faulty::new(memory().await);
    let writer = writer(store.clone(), shelf, "main", 1, false).await;
    store.plan([Fault::Late]);
    let committing = tokio::spawn({
        let committer = writer.committer.clone();
        async move { committer.commit(tree(1)).await }
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    *store.outage.lock() = Some(StoreErrorKind::Unreachable);
    let unknown = committing.await.expect("no panic").expect_err("gone");
    assert_eq!(unknown.kind(), ErrorKind::OutcomeUnknown);
    *store.outage.lock() = None;
    (store, writer)
}

/// No call of `settle_pending` comes in between: a commit determines the outcome of the one before
/// it itself.
#[tokio::test(start_paused = true)]
async fn a_commit_after_an_unknown_one_follows_it_unasked() {
    let shelf = Arc::new(Shelf::default());
    let (store, writer) = with_unknown_commit(&shelf).await;
    assert_eq!(store.deliver().await, 1);
    let next = writer.committer.commit(tree(2)).await;
    assert_eq!(next.expect("it follows").sequence, 3);
    assert!(writer.uploads.uncommitted.lock().is_empty());
}

/// Refusals say nothing about a request that was sent before them and is still on its way.
#[tokio::test(start_paused = true)]
async fn a_commit_that_arrives_after_refusals_is_not_lost() {
    let shelf = Arc::new(Shelf::default());
    let (store, writer) = with_unknown_commit(&shelf).await;
    store.plan([Fault::Before(StoreErrorKind::Denied)]);
    let refused = writer.committer.commit(tree(2)).await;
    let refused = refused.expect_err("nothing is known of the first");
    assert_ne!(refused.kind(), ErrorKind::Fenced, "{refused}");
    assert_eq!(store.deliver().await, 1);
    let next = writer.committer.commit(tree(2)).await;
    assert_eq!(next.expect("it follows the first").sequence, 3);
    assert!(writer.uploads.uncommitted.lock().is_empty());
}

/// A commit whose repetition was refused may still arrive, so it is not reported as never made.
#[tokio::test(start_paused = true)]
async fn a_refused_repetition_does_not_decide_a_commit() {
    let shelf = Arc::new(Shelf::default());
    let (store, writer) = with_unknown_commit(&shelf).await;
    store.plan([Fault::Before(StoreErrorKind::Denied)]);
    let refused = writer.committer.settle_pending().await;
    assert!(refused.is_err(), "its first request is still on its way");
    let settled = writer.committer.settle_pending().await.expect("decided");
    assert_eq!(settled.map(|made| made.sequence), Some(2));
    assert_eq!(
        store.deliver().await,
        0,
        "its first request changes nothing"
    );
    let next = writer.committer.commit(tree(2)).await;
    assert_eq!(next.expect("it follows the first").sequence, 3);
    assert!(writer.uploads.uncommitted.lock().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_copy_of_the_machine_is_fenced_by_the_last_commit() {
    let store = memory().await;
    let shelf = Arc::new(Shelf::default());
    let original = writer(store.clone(), &shelf, "main", 1, false).await;
    original.committer.commit(tree(1)).await.expect("alone");
    let handle = process(store.clone(), 2).await;
    let lists = Lists::new(store, keyring());
    let copy = RootCommitter::new(
        handle.clone(),
        lists,
        original.session.id(),
        "main",
        Fake::new(&shelf, &handle, original.session.id()),
    )
    .expect("looks like the holder");
    copy.commit(tree(2)).await.expect("it was first");
    assert_eq!(
        original
            .committer
            .commit(tree(3))
            .await
            .expect_err("the copy has committed")
            .kind(),
        ErrorKind::Fenced
    );
}
