//! Snapshots: made, resolved, forgotten, restored, merged.

use super::support::*;
use crate::root::commit::RootCommitter;
use crate::root::commit_request::CommitRequest;
use crate::root::error::{ErrorKind, RootError};
use crate::root::forget::ListChanger;
use crate::root::holder::SystemProcesses;
use crate::root::lists::{DirectLists, Lists};
use crate::root::request::VolumeRequest;
use crate::root::session::OpenSession;
use crate::root::snapshots::*;
use bkfs_chunker::crypto::Class;
use bkfs_store::{Operation, Store, StoreErrorKind};
use bkfs_testing::fault::{Fault as Trouble, FaultStore, Strike};
use std::collections::HashSet;
use std::sync::Arc;

pub(super) struct ListBucket {
    pub(super) store: Arc<dyn Store>,
    pub(super) handle: crate::root::RootHandle,
    pub(super) lists: Lists,
    pub(super) session: OpenSession,
    pub(super) committer: RootCommitter<Fake>,
}

pub(super) async fn place(store: Arc<dyn Store>) -> ListBucket {
    let handle = process(store.clone(), 1).await;
    let request = VolumeRequest {
        name: "main".into(),
        steal: false,
        accept_loss: false,
    };
    let session = OpenSession::open(&handle, holder("a"), Some(request), &SystemProcesses)
        .await
        .expect("free");
    let lists = Lists::new(store.clone(), keyring());
    let uploads = Fake::new(&Arc::default(), &handle, session.id());
    let committer =
        RootCommitter::new(handle.clone(), lists.clone(), session.id(), "main", uploads)
            .expect("just taken");
    ListBucket {
        store,
        handle,
        lists,
        session,
        committer,
    }
}

impl ListBucket {
    pub(super) async fn snapshot(
        &self,
        name: Option<&str>,
        number: u64,
        clock: i64,
    ) -> Result<SnapshotEntry, RootError> {
        let request = NewSnapshot {
            name: name.map(str::to_owned),
            clock: time(clock),
            host: "h".into(),
            user: "u".into(),
            tags: vec!["t".into()],
            ..NewSnapshot::default()
        };
        let request = CommitRequest {
            snapshot: Some(request),
            ..tree(number)
        };
        let made = self.committer.commit(request).await?;
        Ok(made.snapshot.expect("asked for"))
    }

    pub(super) async fn kept(&self) -> SnapshotList {
        self.lists
            .current_snapshots(&self.handle)
            .await
            .expect("readable")
            .1
    }
}

/// Returns a committer of snapshots that are not among the volume's commits, as a fenced machine
/// has, and its session.
pub(super) async fn recovering(place: &ListBucket) -> (OpenSession, RootCommitter<Fake>) {
    let session = OpenSession::open(&place.handle, holder("b"), None, &SystemProcesses).await;
    let session = session.expect("room");
    let (handle, lists) = (place.handle.clone(), place.lists.clone());
    let uploads = Fake::new(&Arc::default(), &handle, session.id());
    let committer =
        RootCommitter::snapshot_only(handle, lists, session.id(), "main", uploads, None);
    (session, committer)
}

/// Returns the request for such a snapshot.
pub(super) fn recovered_as(name: &str, clock: i64) -> CommitRequest<()> {
    let request = NewSnapshot {
        name: Some(name.to_owned()),
        clock: time(clock),
        recovered: true,
        ..NewSnapshot::default()
    };
    CommitRequest {
        snapshot: Some(request),
        ..tree(9)
    }
}

/// Makes such a snapshot.
async fn recovered(place: &ListBucket, name: &str, clock: i64) -> SnapshotEntry {
    let (session, committer) = recovering(place).await;
    let made = committer.commit(recovered_as(name, clock));
    let made = made.await.expect("the name is free").snapshot;
    session.end().await.expect("still live");
    made.expect("asked for")
}

#[tokio::test(start_paused = true)]
async fn recovered_snapshots_are_never_the_latest() {
    let place = place(memory().await).await;
    let state = place.snapshot(Some("day1"), 1, 5000).await.expect("new");
    let made = recovered(&place, "recovered-1", 6000).await;
    assert!(made.recovered);
    let kept = place.kept().await;
    assert_eq!(kept.latest("main"), Some(&state));
    assert_eq!(kept.at("main", time(7000)), Some(&state));
    assert_eq!(kept.of_volume("main"), [&state, &made]);
    let by_name = SnapshotReference::parse("recovered-1", time(90_000)).expect("a name");
    assert_eq!(kept.resolve("main", &by_name).expect("it is kept"), &made);
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_says_what_it_is() {
    let place = place(memory().await).await;
    place.committer.commit(tree(1)).await.expect("alone");
    let made = place.snapshot(Some("day1"), 2, 5000).await.expect("new");
    assert_eq!(
        (
            made.name.as_str(),
            made.number,
            made.volume.as_str(),
            made.tree
        ),
        ("day1", 1, "main", Some(id(2)))
    );
    assert_eq!(
        (made.files, made.bytes, made.new_bytes, made.generation),
        (2, 2000, 20, 4)
    );
    assert_eq!(
        (
            made.time,
            made.host.as_str(),
            made.user.as_str(),
            made.tags.as_slice()
        ),
        (time(5000), "h", "u", &["t".to_owned()][..])
    );
    assert_eq!(
        place.handle.current().root.volumes["main"].commit,
        Some(made.commit)
    );
    assert_eq!(place.kept().await.named("main", "day1"), Some(&made));

    // The clock went back, but times of snapshots never do. Bytes count from the preceding
    // snapshot.
    let second = place.snapshot(Some("day2"), 3, 4000).await.expect("new");
    assert_eq!(
        (second.time, second.new_bytes, second.number),
        (time(5000), 10, 2)
    );
    assert!(matches!(
        place.snapshot(Some("day1"), 4, 6000).await,
        Err(RootError::NameTaken { name }) if name == "day1"
    ));
    for name in ["", ".x", "@x", "a/b", "latest", "\0", &"x".repeat(256)] {
        assert!(
            matches!(
                place.snapshot(Some(name), 4, 6000).await,
                Err(RootError::BadName { .. })
            ),
            "{name:?}"
        );
    }
    for (number, name) in [(5, "1970-01-01T01:40:00Z"), (6, "1970-01-01T01:40:00Z-2")] {
        let made = place.snapshot(None, number, 6000).await.expect("new");
        assert_eq!(made.name, name);
    }
}

#[tokio::test(start_paused = true)]
async fn a_name_that_a_snapshot_would_refuse_is_refused_beforehand() {
    let place = place(memory().await).await;
    place.committer.commit(tree(1)).await.expect("alone");
    place.snapshot(Some("day1"), 2, 5000).await.expect("new");
    let kept = place.kept().await;
    let check = |name, tags: &[&str]| {
        let tags: Vec<String> = tags.iter().map(|tag| (*tag).to_owned()).collect();
        check_new(&kept, "main", name, &tags)
    };
    assert!(matches!(
        check(Some("day1"), &[]),
        Err(RootError::NameTaken { .. })
    ));
    assert!(check(Some("day3"), &["t"]).is_ok() && check(None, &["t"]).is_ok());
    for (name, tag) in [(Some(".x"), "t"), (None, "\0"), (None, &*"x".repeat(256))] {
        assert!(matches!(
            check(name, &[tag]),
            Err(RootError::BadName { .. })
        ));
    }
}

#[tokio::test(start_paused = true)]
async fn shards_are_merged_and_all_snapshots_stay() {
    let place = place(memory().await).await;
    for round in 0..60u64 {
        place
            .snapshot(Some(&format!("s{round}")), round + 1, 1000 + round as i64)
            .await
            .expect("new");
        assert!(place.handle.current().root.snapshots.len() <= SHARDS_MAX);
    }
    let fresh = Lists::new(place.store.clone(), keyring());
    let kept = fresh
        .snapshots(&place.handle.current().root)
        .await
        .expect("readable");
    let names: Vec<_> = kept
        .of_volume("main")
        .iter()
        .map(|entry| entry.name.clone())
        .collect();
    assert_eq!(
        names,
        (0..60).map(|round| format!("s{round}")).collect::<Vec<_>>()
    );
    assert_eq!(
        kept.iter()
            .map(|entry| entry.number)
            .collect::<HashSet<_>>()
            .len(),
        60
    );
    assert_eq!(
        kept.latest("main").map(|entry| entry.name.as_str()),
        Some("s59")
    );
    let resolve = |text: &str| {
        kept.resolve(
            "main",
            &SnapshotReference::parse(text, time(90_000)).expect("parses"),
        )
        .map(|entry| entry.name.clone())
    };
    assert_eq!(resolve("latest").expect("there"), "s59");
    assert_eq!(resolve("s7").expect("there"), "s7");
    assert_eq!(resolve("@1970-01-01T00:16:47.5Z").expect("there"), "s7");
    assert_eq!(resolve("@1970-01-01T01:16:47+01:00").expect("there"), "s7");
    // The end of a day counts, and the day before is yesterday.
    assert_eq!(resolve("@1970-01-01").expect("there"), "s59");
    assert_eq!(resolve("@yesterday").expect("there"), "s59");
    assert_eq!(resolve("@1970-01-01 00:16:47").expect("there"), "s7");
    assert!(matches!(
        resolve("@1970-01-01T00:16:39Z"),
        Err(RootError::NoSnapshot { .. })
    ));
    assert!(matches!(resolve("s60"), Err(RootError::NoSnapshot { .. })));
    assert!(matches!(
        kept.resolve("other", &SnapshotReference::Latest),
        Err(RootError::NoSnapshot { .. })
    ));
    assert!(matches!(
        SnapshotReference::parse("@soon", time(90_000)),
        Err(RootError::BadTime { .. })
    ));
    assert!(matches!(
        SnapshotReference::parse("a/b", time(90_000)),
        Err(RootError::BadName { .. })
    ));
}

/// Returns a place with the snapshots s0 to s4, and the writer of its lists.
async fn five(store: Arc<dyn Store>) -> (ListBucket, DirectLists) {
    let place = place(store).await;
    for round in 0..5u64 {
        place
            .snapshot(Some(&format!("s{round}")), round + 1, 1000)
            .await
            .expect("new");
    }
    let direct = DirectLists::new(&place.handle, place.session.id());
    (place, direct)
}

impl ListBucket {
    /// Forgets snapshots at second 2000.
    async fn forget(
        &self,
        writer: &DirectLists,
        names: &[&str],
    ) -> Result<Vec<SnapshotEntry>, RootError> {
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        let changer = self.changer(writer);
        let forgotten = changer.forget("main", &names, time(2000)).await?;
        Ok(forgotten.output)
    }

    async fn restore(&self, writer: &DirectLists, name: &str) -> Result<SnapshotEntry, RootError> {
        let restored = self.changer(writer).restore_forgotten("main", name).await?;
        Ok(restored.output)
    }

    fn changer<'a>(&'a self, writer: &'a DirectLists) -> ListChanger<'a> {
        ListChanger {
            handle: &self.handle,
            lists: &self.lists,
            writer,
            session: self.session.id(),
        }
    }

    async fn kept_names(&self) -> Vec<String> {
        let kept = self.kept().await;
        let kept = kept.of_volume("main");
        kept.iter().map(|entry| entry.name.clone()).collect()
    }
}

/// A policy decides on a list. Meanwhile a snapshot may be made anew under the name of one that
/// goes.
#[tokio::test(start_paused = true)]
async fn what_was_made_since_the_plan_is_not_forgotten() {
    let (place, direct) = five(memory().await).await;
    let planned: Vec<SnapshotEntry> = (place.kept().await.of_volume("main").into_iter())
        .filter(|entry| entry.name == "s1" || entry.name == "s2")
        .cloned()
        .collect();
    let request = NewSnapshot {
        name: Some("s1".to_owned()),
        clock: time(1900),
        replaces: true,
        ..NewSnapshot::default()
    };
    let request = CommitRequest {
        snapshot: Some(request),
        ..tree(77)
    };
    place.committer.commit(request).await.expect("made anew");
    let changer = place.changer(&direct);
    let forgotten = changer.forget_planned("main", &planned, time(2000)).await;
    let forgotten = forgotten.expect("forgotten").output;
    assert_eq!(forgotten, [planned[1].clone()]);
    assert_eq!(place.kept_names().await, ["s0", "s3", "s4", "s1"]);
}

#[tokio::test(start_paused = true)]
async fn forgetting_what_is_absent_forgets_nothing() {
    let (place, direct) = five(memory().await).await;
    let error = place
        .forget(&direct, &["s1", "absent"])
        .await
        .expect_err("one is absent");
    assert!(matches!(error, RootError::NoSnapshot { name, .. } if name == "absent"));
    assert_eq!(place.kept_names().await, ["s0", "s1", "s2", "s3", "s4"]);

    place.forget(&direct, &["s1"]).await.expect("there");
    let error = place.forget(&direct, &["s1"]).await.expect_err("gone");
    assert_eq!(error.kind(), ErrorKind::Refused);
}

#[tokio::test(start_paused = true)]
async fn forgetting_is_done_once_though_its_answer_is_lost() {
    let store = Faulty::new(memory().await);
    let (place, direct) = five(store.clone()).await;
    // Another session replaces the root before the lost answer is resolved.
    store.plan([Fault::Silent]);
    let forgetting = place.forget(&direct, &["s1", "s3", "s1"]);
    let other = process(store.inner.clone(), 9).await;
    let interfering = async {
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        OpenSession::open(&other, holder("b"), None, &SystemProcesses)
            .await
            .expect("entered")
    };
    let (forgotten, _) = tokio::join!(forgetting, interfering);
    let forgotten = forgotten.expect("forgotten");
    let names: Vec<_> = forgotten.iter().map(|entry| entry.name.as_str()).collect();
    assert_eq!(names, ["s1", "s3"]);
    assert_eq!(place.kept_names().await, ["s0", "s2", "s4"]);
    let trash = &place.handle.current().root.trash;
    let trash = place.lists.trash_shards(trash).await.expect("readable");
    let trashed: Vec<_> = trash
        .iter()
        .flat_map(|shard| shard.iter())
        .map(|entry| (entry.snapshot.name.as_str(), entry.forgotten))
        .collect();
    assert_eq!(trashed, [("s1", time(2000)), ("s3", time(2000))]);
}

#[tokio::test(start_paused = true)]
async fn what_is_forgotten_can_be_restored() {
    let store = Faulty::new(memory().await);
    let (place, direct) = five(store.clone()).await;
    let forgotten = place.forget(&direct, &["s1", "s3"]).await.expect("there");

    // The name can be used again, and the number cannot.
    let again = place
        .snapshot(Some("s1"), 9, 3000)
        .await
        .expect("the name is free");
    assert!(!forgotten.iter().any(|entry| entry.number == again.number));
    assert!(matches!(
        place.restore(&direct, "s1").await,
        Err(RootError::NameTaken { .. })
    ));
    store.plan([Fault::After(StoreErrorKind::OutcomeUnknown)]);
    let restored = place.restore(&direct, "s3").await.expect("in the trash");
    assert_eq!(restored, forgotten[1]);
    assert_eq!(place.kept().await.named("main", "s3"), Some(&forgotten[1]));
    assert!(matches!(
        place.restore(&direct, "s3x").await,
        Err(RootError::NoSnapshot { .. })
    ));
}

#[tokio::test(start_paused = true)]
async fn a_list_whose_writing_fails_in_passing_is_written_again() {
    for kind in [
        StoreErrorKind::OutcomeUnknown,
        StoreErrorKind::Unreachable,
        StoreErrorKind::Throttled,
    ] {
        for fault in [Trouble::FailBefore(kind), Trouble::FailAfter(kind)] {
            let store = Arc::new(FaultStore::new(memory().await));
            let (place, direct) = five(store.clone()).await;
            let strike = Strike::with(fault.clone()).on(Operation::PutNew);
            store.plan(strike.keys("lists/").times(2));
            let forgotten = place.forget(&direct, &["s1"]).await;
            forgotten.unwrap_or_else(|error| panic!("{fault:?}: {error}"));
            assert_eq!(store.struck(), 2, "{fault:?}");
            assert!(place.kept().await.named("main", "s1").is_none());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn damaged_and_vanished_lists_are_told_apart() {
    let place = place(memory().await).await;
    place.snapshot(Some("a"), 1, 1000).await.expect("new");
    let root = place.handle.current().root.clone();
    let key = root.snapshots[0].name.key(Class::List);
    let (object, _) = place.store.get(&key).await.expect("there");
    let mut damaged = object.to_vec();
    damaged[140] ^= 1;
    place
        .store
        .put(&key, vec![damaged.into()])
        .await
        .expect("put");
    let fresh = || Lists::new(place.store.clone(), keyring());
    let error = fresh()
        .current_snapshots(&place.handle)
        .await
        .expect_err("damaged");
    assert!(
        error.kind() == ErrorKind::Damaged && error.to_string().contains(&key),
        "{error}"
    );
    place.store.put(&key, vec![object]).await.expect("put");
    let mut miscounted = root.clone();
    miscounted.snapshots[0].count = 7;
    assert_eq!(
        fresh()
            .snapshots(&miscounted)
            .await
            .expect_err("miscounted")
            .kind(),
        ErrorKind::Damaged
    );

    // A missing list of the newest root is lost, except to processes that have it in memory.
    assert_eq!(place.kept().await.iter().count(), 1);
    place.store.delete(&key).await.expect("deleted");
    assert_eq!(
        fresh()
            .current_snapshots(&place.handle)
            .await
            .expect_err("lost")
            .kind(),
        ErrorKind::Damaged
    );
    assert_eq!(
        place.kept().await.iter().count(),
        1,
        "what is immutable may be cached"
    );
}
