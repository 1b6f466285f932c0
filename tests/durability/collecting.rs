//! Collection while a writer works. What the writer has acknowledged, and what it is about to
//! acknowledge, stays whatever is condemned meanwhile. What nothing needs is deleted.
//!
//! The machines here send no heartbeats, so condemned packs stay until the machines are gone.

use std::cell::Cell;
use std::sync::Arc;

use bkfs::maintain::collect::plan::Effort;
use bkfs::maintain::collect::sweep::{delete, orphans};
use bkfs::maintain::collect::{Collected, Options, Prospect, collect, may_delete, prospect};
use bkfs::maintain::workspace::Workspace;
use bkfs::repository::Repository;
use bkfs::root::forget::ListChanger;
use bkfs::root::lists::DirectLists;
use bkfs::root::session::OpenSession;
use bkfs::volume::ROOT_INODE;
use bkfs::volume::requests::SnapshotRequest;
use bkfs_store::{Operation, Store, StoreErrorKind};
use bkfs_testing::fault::{Fault, FaultStore, Gate, Strike};
use jiff::{SignedDuration, Timestamp};

use crate::host::{Bucket, Host, noise};

pub const OPTIONS: Options = Options {
    undelete_window: SignedDuration::ZERO,
    workspace: Workspace::IN_MEMORY,
    state_dir: None,
    lock_days: None,
    effort: Effort {
        threshold: 0.9,
        budget_bytes: u64::MAX,
    },
};

async fn look(repository: &Repository) -> Prospect {
    let now = repository.now() + SignedDuration::from_hours(1);
    let found = prospect(repository, &OPTIONS, now).await;
    found.unwrap_or_else(|error| panic!("nothing can be collected: {error}"))
}

pub async fn gather(repository: &Repository) -> Collected {
    let found = look(repository).await;
    collect(repository, found).await.expect("collected")
}

pub fn gc(bucket: &Bucket) -> Collected {
    bucket.work(bucket.memory.clone(), gather)
}

pub async fn forget(repository: &Repository, name: &str) {
    forget_at(repository, name, repository.now()).await;
}

/// Forgets the snapshot "one".
pub fn forget_one(bucket: &Bucket) {
    bucket.work(bucket.memory.clone(), async |repository| {
        forget(repository, "one").await;
    });
}

/// Forgets a snapshot by a clock that the repository does not know.
pub async fn forget_at(repository: &Repository, name: &str, clock: Timestamp) {
    let (handle, machine) = (&repository.handle, &repository.environment);
    let holder = machine.holder("forget");
    let session = OpenSession::open(handle, holder, None, &*machine.processes).await;
    let session = session.expect("entered");
    let changer = ListChanger {
        handle,
        lists: &repository.lists,
        writer: &DirectLists::new(handle, session.id()),
        session: session.id(),
    };
    let names = [name.to_owned()];
    let forgotten = changer.forget("main", &names, clock).await;
    forgotten.expect("forgotten");
    session.end().await.expect("left");
}

pub fn snapshot(host: &Host, name: &str) {
    let request = SnapshotRequest {
        name: Some(name.to_owned()),
        ..SnapshotRequest::default()
    };
    host.run(host.volume().snapshot(request)).expect("made");
}

pub fn unlink(host: &Host, name: &str) {
    let gone = host.run(host.volume().unlink(ROOT_INODE, name.as_bytes()));
    gone.expect("unlinked");
}

/// Returns a host whose volume is empty, with `bytes` in a snapshot only.
pub fn with_snapshot_of(bucket: &Bucket, bytes: &[u8]) -> Host {
    let host = bucket.host();
    host.write("old", 0, bytes);
    snapshot(&host, "one");
    unlink(&host, "old");
    host.run(host.volume().commit()).expect("committed");
    host
}

/// Checks that the condemned packs hold nothing that is needed: they are deleted, and everything
/// can be read.
fn holds_without_what_was_condemned(bucket: &Bucket, host: Host, name: &str, expected: &[u8]) {
    host.finish().expect("unmounted");
    let done = gc(bucket);
    assert!(done.deleted_packs > 0, "{done:?}");
    assert_eq!(done.held_packs, 0, "{done:?}");
    let reader = bucket.host();
    assert!(reader.read(name).as_deref() == Some(expected));
}

#[test]
fn what_nothing_needs_goes_and_the_rest_stays() {
    let bucket = Bucket::new();
    let (old, new) = (noise(1, 5 << 20), noise(2, 3 << 20));
    let host = with_snapshot_of(&bucket, &old);
    host.write("new", 0, new.clone());
    snapshot(&host, "two");
    host.finish().expect("unmounted");
    let before = bucket.bytes("data/");
    assert!(before > 8 << 20);
    let done = gc(&bucket);
    assert_eq!(bucket.bytes("data/"), before, "a snapshot has it: {done:?}");
    bucket.work(bucket.memory.clone(), async |repository| {
        forget(repository, "one").await;
    });
    let done = gc(&bucket);
    assert_eq!(done.condemned.expired, 1);
    assert!(bucket.bytes("data/") < 4 << 20, "{done:?}");
    assert!(bucket.host().read("new") == Some(new));
}

#[test]
fn a_commit_stores_again_what_was_condemned_beneath_it() {
    let bucket = Bucket::new();
    let data = noise(1, 3 << 20);
    let host = with_snapshot_of(&bucket, &data);
    // The bucket has the same contents already: only a reference is made, and no root has it.
    host.write("new", 0, data.clone());
    host.run(host.volume().settle(host.file("new")))
        .expect("stored");
    bucket.work(bucket.memory.clone(), async |repository| {
        forget(repository, "one").await;
        let done = gather(repository).await;
        assert!(
            done.condemned.packs > 0 && done.deleted_packs == 0,
            "{done:?}"
        );
    });
    host.run(host.volume().commit()).expect("committed");
    holds_without_what_was_condemned(&bucket, host, "new", &data);
}

#[test]
fn a_new_holder_stores_again_what_was_condemned_beneath_a_journal() {
    let bucket = Bucket::new();
    let data = noise(1, 3 << 20);
    let host = with_snapshot_of(&bucket, &data);
    host.write("new", 0, data.clone());
    host.fsync().expect("durable");
    host.crash();
    bucket.work(bucket.memory.clone(), async |repository| {
        forget(repository, "one").await;
        let done = gather(repository).await;
        assert!(
            done.condemned.packs > 0 && done.deleted_packs == 0,
            "{done:?}"
        );
    });
    let next = bucket.host();
    assert!(next.read("new").as_ref() == Some(&data));
    holds_without_what_was_condemned(&bucket, next, "new", &data);
}

/// A journal that is cut during a commit names packs as own to its session that this commit lists.
/// They can be condemned from then on.
#[test]
fn a_new_holder_copes_with_condemned_packs_of_an_ended_session() {
    let bucket = Bucket::new();
    let host = bucket.host();
    host.write("gone", 0, noise(1, 3 << 20));
    host.fsync().expect("durable");
    unlink(&host, "gone");
    let gate = Gate::new();
    let strike = Strike::with(Fault::HoldBefore(gate.clone()));
    host.faults.plan(strike.on(Operation::Replace).keys("root"));
    let volume = host.volume();
    let commit = host.spawn(async move { volume.commit().await });
    while host.faults.struck() == 0 {
        std::thread::yield_now();
    }
    host.write("kept", 0, noise(2, 5_000));
    host.fsync().expect("durable");
    gate.open();
    host.run(commit).expect("ran").expect("committed");
    host.crash();
    let done = gc(&bucket);
    assert!(
        done.condemned.packs > 0 && done.deleted_packs == 0,
        "{done:?}"
    );
    let next = bucket.host();
    assert_eq!(next.find("gone"), None);
    holds_without_what_was_condemned(&bucket, next, "kept", &noise(2, 5_000));
}

/// References of a journal that was cut during a commit must not be given up before a later commit
/// has covered it.
#[test]
fn a_commit_covers_the_journals_that_were_cut_during_the_last_one() {
    let bucket = Bucket::new();
    let host = bucket.host();
    host.write("file", 0, noise(1, 5_000));
    let gate = Gate::new();
    let strike = Strike::with(Fault::HoldBefore(gate.clone()));
    host.faults.plan(strike.on(Operation::Replace).keys("root"));
    let volume = host.volume();
    let commit = host.spawn(async move { volume.commit().await });
    while host.faults.struck() == 0 {
        std::thread::yield_now();
    }
    host.fsync().expect("durable");
    gate.open();
    host.run(commit).expect("ran").expect("committed");
    let volume = host.volume();
    assert!(volume.has_uncovered() && !volume.is_dirty());
    let before = host.repository.handle.current().root.generation;
    host.run(volume.commit()).expect("committed");
    assert!(host.repository.handle.current().root.generation > before);
    assert!(!volume.has_uncovered());
    host.run(volume.commit()).expect("nothing to commit");
    assert_eq!(host.repository.handle.current().root.generation, before + 1);
}

#[test]
fn what_is_committed_while_a_collection_looks_is_kept() {
    let bucket = Bucket::new();
    let data = noise(1, 3 << 20);
    let host = with_snapshot_of(&bucket, &data);
    bucket.work(bucket.memory.clone(), async |repository| {
        forget(repository, "one").await;
        let found = look(repository).await;
        assert!(!found.plan.dead.is_empty());
        // Only a reference is committed, into packs that are about to be condemned.
        std::thread::scope(|scope| {
            let committed = scope.spawn(|| {
                host.write("new", 0, data.clone());
                host.run(host.volume().commit()).expect("committed");
            });
            committed.join().expect("no panic");
        });
        collect(repository, found).await.expect("collected");
    });
    host.finish().expect("unmounted");
    gc(&bucket);
    assert!(bucket.host().read("new") == Some(data));
}

/// Makes five snapshots, `one` and `round 0` to `round 3`, each with metadata of its own.
pub fn five_snapshots(bucket: &Bucket) {
    let host = with_snapshot_of(bucket, &noise(1, 5 << 20));
    for round in 0..4 {
        host.write("file", round << 20, noise(round, 3 << 20));
        snapshot(&host, &format!("round {round}"));
    }
    host.finish().expect("unmounted");
}

#[test]
fn of_two_collectors_one_gives_way() {
    let bucket = Bucket::new();
    let data = noise(2, 3 << 20);
    let host = with_snapshot_of(&bucket, &noise(1, 3 << 20));
    host.write("new", 0, data.clone());
    host.finish().expect("unmounted");
    bucket.work(bucket.memory.clone(), async |repository| {
        forget(repository, "one").await;
    });
    bucket.work(bucket.memory.clone(), async |slow| {
        let seen = look(slow).await;
        let fast = std::thread::scope(|scope| scope.spawn(|| gc(&bucket)).join());
        let fast = fast.expect("no panic");
        assert!(
            fast.condemned.packs > 0 && fast.deleted_packs > 0,
            "{fast:?}"
        );
        let done = collect(slow, seen).await.expect("harmless");
        assert!(
            done.condemned.gave_way && done.condemned.packs == 0,
            "{done:?}"
        );
    });
    assert!(bucket.host().read("new") == Some(data));
}

/// The results of collectors that something happened to at their n-th request, for every n.
#[derive(Default)]
struct Overtaken {
    requests: u32,
    gave_way: u32,
}

/// Collects in copies of a bucket. Each time `meanwhile` runs from beginning to end before another
/// one of the collector's requests.
fn overtaken_at_every_request(first: &Bucket, meanwhile: impl Fn(&Bucket)) -> Overtaken {
    // This runs on a copy: the session of a host that never leaves would hold back all deletion.
    let expected = first.copy().host().read("file");
    let mut all = Overtaken::default();
    for request in 1.. {
        let bucket = first.copy();
        let faults = Arc::new(FaultStore::new(bucket.memory.clone()));
        let gate = Gate::new();
        let slow = || {
            bucket.work(faults.clone(), async |repository| {
                let hold = Fault::HoldBefore(gate.clone());
                faults.plan(Strike::with(hold).nth(request));
                let seen = look(repository).await;
                // So the root names index objects that the collector has not loaded yet.
                std::thread::scope(|scope| scope.spawn(|| write_some(&bucket, 1)).join())
                    .expect("written");
                collect(repository, seen).await.expect("collected")
            })
        };
        let done = std::thread::scope(|scope| {
            let slow = scope.spawn(slow);
            while faults.struck() == 0 && !slow.is_finished() {
                std::thread::yield_now();
            }
            if faults.struck() > 0 {
                meanwhile(&bucket);
            }
            gate.open();
            slow.join()
        });
        let done = done.unwrap_or_else(|_| panic!("overtaken at request {request}"));
        if faults.struck() == 0 {
            return all;
        }
        all.requests += 1;
        all.gave_way += u32::from(done.condemned.gave_way);
        assert_eq!(bucket.host().read("file"), expected, "request {request}");
    }
    unreachable!("a collector has no end")
}

/// Mounts, commits so often that every small index object is merged with others (`ingest::absorb`),
/// and unmounts.
fn write_some(bucket: &Bucket, commits: u64) {
    let host = bucket.host();
    for number in 0..commits {
        host.write("other", 0, noise(number, 1 << 20));
        host.run(host.volume().commit()).expect("committed");
    }
    host.finish().expect("unmounted");
}

/// Returns a bucket with five snapshots, of which two are forgotten.
fn much_to_collect() -> Bucket {
    let bucket = Bucket::new();
    five_snapshots(&bucket);
    bucket.work(bucket.memory.clone(), async |repository| {
        forget(repository, "one").await;
        forget(repository, "round 1").await;
    });
    bucket
}

#[test]
fn a_collector_that_is_overtaken_at_any_request_ends_well() {
    let all = overtaken_at_every_request(&much_to_collect(), |bucket| {
        gc(bucket);
    });
    assert!(all.requests > 20, "only {} requests", all.requests);
    assert!(all.gave_way > 0, "it never came too late");
}

/// A commit merges index objects, and the last step of another collection deletes those that no
/// root names any more. The epoch does not tell of that.
#[test]
fn a_collector_whose_index_objects_vanish_at_any_request_ends_well() {
    let deleted = Cell::new(0);
    let all = overtaken_at_every_request(&much_to_collect(), |bucket| {
        write_some(bucket, 4);
        bucket.work(bucket.memory.clone(), async |repository| {
            let (handle, memory) = (&repository.handle, &bucket.memory);
            let listed = memory.list("", None, 10_000).await.expect("listed");
            let listed = listed.into_iter().map(|info| (info.key, info.size));
            let view = handle.refresh().await.expect("read");
            let gone = orphans(&view.root, &listed.collect()).into_keys();
            let gone = gone.filter(|key| key.starts_with("index/"));
            deleted.set(deleted.get() + delete(&**memory, gone).await.expect("deleted"));
        });
    });
    assert!(all.requests > 20, "only {} requests", all.requests);
    let deleted = deleted.get();
    assert!(
        deleted >= u64::from(all.requests),
        "only {deleted} are gone"
    );
    assert_eq!(all.gave_way, 0, "no other collector has condemned");
}

#[test]
fn a_key_that_cannot_delete_changes_nothing() {
    let bucket = Bucket::new();
    with_snapshot_of(&bucket, &noise(1, 3 << 20))
        .finish()
        .expect("unmounted");
    let faults = Arc::new(FaultStore::new(bucket.memory.clone()));
    faults.plan(
        Strike::with(Fault::FailBefore(StoreErrorKind::Denied))
            .on(Operation::Delete)
            .always(),
    );
    let store: Arc<dyn Store> = faults;
    bucket.work(store, async |repository| {
        let generation = repository.handle.current().root.generation;
        may_delete(&repository.handle).await.expect_err("denied");
        let now = repository.handle.refresh().await.expect("read");
        assert_eq!(now.root.generation, generation);
    });
}
