//! What a collection deletes and forgets while sessions work: nothing before the base in the
//! heartbeat of each session says that the session does not need it.

use std::sync::Arc;

use bkfs::root::lists::{DirectLists, ListWriter};
use bkfs::root::session::OpenSession;
use bkfs_chunker::crypto::Class;
use bkfs_store::{Layer, MemoryStore, Operation, Store, StoreError};
use bkfs_testing::disk::SimulatedDisk;
use bkfs_testing::fault::{Fault, Gate, Strike};

use crate::collecting::{forget_one, gc, snapshot, unlink, with_snapshot_of};
use crate::host::{Bucket, Host, noise};
use crate::layers::{PAGE, commit_pages, hold_reads, page_file};

/// Returns a host whose heartbeats arrive.
fn beating(bucket: &Bucket) -> Host {
    let host = Host::spooling(bucket, &SimulatedDisk::new());
    host.beat();
    host
}

/// Lets the host read the newest root, and do what it does then.
fn learn(host: &Host) {
    host.run(host.repository.handle.refresh()).expect("read");
    host.wait(1.0);
}

/// Returns a host with a file `new` that no root has yet. The file refers to blobs that only a
/// snapshot holds. That snapshot is forgotten, so its blobs can be condemned.
fn relying_on_condemned(bucket: &Bucket, data: &[u8]) -> Host {
    let first = with_snapshot_of(bucket, data);
    first.finish().expect("unmounted");
    let host = beating(bucket);
    host.write("new", 0, data);
    host.run(host.volume().settle(host.file("new")))
        .expect("stored");
    forget_one(bucket);
    host
}

/// The first base of a session is the epoch of the root that registered it: the session may refer
/// to everything that was live in that root.
#[test]
fn what_was_live_when_a_session_entered_stays_until_it_has_looked() {
    let bucket = Bucket::new();
    let data = noise(1, 3 << 20);
    let host = relying_on_condemned(&bucket, &data);
    for _ in 0..2 {
        let done = gc(&bucket);
        assert_eq!(done.deleted_packs, 0, "{done:?}");
        assert!(done.held_packs > 0, "{done:?}");
    }
    host.finish().expect("unmounted");
    assert!(bucket.host().read("new") == Some(data));
}

#[test]
fn a_session_stores_again_what_was_condemned_before_it_raises_its_base() {
    let bucket = Bucket::new();
    let data = noise(1, 3 << 20);
    let host = relying_on_condemned(&bucket, &data);
    assert!(gc(&bucket).held_packs > 0);
    learn(&host);
    let done = gc(&bucket);
    assert!(done.deleted_packs > 0, "it holds nothing back: {done:?}");
    assert!(host.read("new").as_ref() == Some(&data));
    host.finish().expect("unmounted");
    assert!(bucket.host().read("new") == Some(data));
}

/// A file is stored while it is removed and committed as removed, so no operation that a commit
/// would cover has it. The next commit refers to the packs that it relies on all the same.
#[test]
fn a_session_raises_no_base_over_what_was_stored_of_a_removed_file() {
    let bucket = Bucket::new();
    commit_pages(&bucket);
    let host = beating(&bucket);
    let gate = hold_reads(&host);
    // One page is changed and its beginning is read back; the next one is as it was.
    let mut bytes = noise(2, PAGE - 100);
    bytes.extend_from_slice(&noise(1, 8 * PAGE)[4 * PAGE..5 * PAGE]);
    host.write("pages", 3 * PAGE as u64 + 100, bytes);
    let (volume, inode) = (host.volume(), host.file("pages"));
    let flush = host.spawn(async move { volume.settle(inode).await });
    host.wait(0.1);
    assert!(host.faults.struck() > 0);
    unlink(&host, "pages");
    host.run(host.volume().commit()).expect("committed");
    gate.open();
    host.run(flush).expect("ran").expect("stored");
    assert!(!host.volume().ingest().relied_on().is_empty());
    assert!(!host.volume().has_uncovered());
    let done = gc(&bucket);
    assert!(done.condemned.packs > 0, "{done:?}");
    assert_eq!(done.deleted_packs, 0, "{done:?}");
    learn(&host);
    let done = gc(&bucket);
    assert!(done.deleted_packs > 0, "it holds nothing back: {done:?}");
    host.write("file", 0, noise(3, 5_000));
    host.run(host.volume().commit()).expect("committed");
    host.crash();
    assert!(bucket.host().read("file") == Some(noise(3, 5_000)));
}

/// A journal that is cut during a commit names packs as own to its session. They can be condemned
/// once that commit is made. Another commit covers the journal before they go.
#[test]
fn a_session_covers_its_journals_before_it_raises_its_base() {
    let bucket = Bucket::new();
    let host = beating(&bucket);
    host.write("gone", 0, noise(1, 3 << 20));
    host.fsync().expect("durable");
    unlink(&host, "gone");
    let gate = Gate::new();
    let strike = Strike::with(Fault::HoldBefore(gate.clone()));
    host.faults.plan(strike.on(Operation::Replace).keys("root"));
    let volume = host.volume();
    let commit = host.spawn(async move { volume.commit().await });
    host.wait(0.1);
    assert_eq!(host.faults.struck(), 1);
    host.write("kept", 0, noise(2, 3 << 20));
    host.fsync().expect("durable");
    gate.open();
    host.run(commit).expect("ran").expect("committed");
    assert!(host.volume().has_uncovered());
    let done = gc(&bucket);
    assert!(done.condemned.packs > 0, "{done:?}");
    assert_eq!(done.deleted_packs, 0, "{done:?}");
    learn(&host);
    let done = gc(&bucket);
    assert!(done.deleted_packs > 0, "it holds nothing back: {done:?}");
    host.crash();
    let next = bucket.host();
    assert_eq!(next.find("gone"), None);
    assert!(next.read("kept") == Some(noise(2, 3 << 20)));
}

/// A file is stored while a commit is under way. That commit makes the file's list of chunks live,
/// though no tree leads to it. A new holder finds the list by the journal, and does not look below
/// it.
#[test]
fn what_a_listed_pack_of_a_session_refers_to_stays_reachable_or_not() {
    let bucket = Bucket::new();
    let first = bucket.host();
    page_file(&first, "old");
    first.write("old", 0, noise(1, 160 * PAGE));
    snapshot(&first, "one");
    unlink(&first, "old");
    page_file(&first, "pages");
    first.write("pages", 0, noise(2, 8 * PAGE));
    first.finish().expect("unmounted");

    let host = bucket.host();
    let gate = hold_reads(&host);
    // This is the middle of a page: the commit reads the rest of it back, and waits for that.
    host.write("pages", 3 * PAGE as u64 + 100, noise(3, 4096));
    let volume = host.volume();
    let commit = host.spawn(async move { volume.commit().await });
    while host.faults.struck() == 0 {
        std::thread::yield_now();
    }
    // The last list of chunks of this file is new, and the bucket has all of its chunks.
    let data = noise(1, 150 * PAGE);
    page_file(&host, "new");
    host.write("new", 0, data.clone());
    host.run(host.volume().settle(host.file("new")))
        .expect("stored");
    gate.open();
    host.run(commit).expect("ran").expect("committed");
    host.fsync().expect("durable");
    host.crash();
    forget_one(&bucket);
    gc(&bucket);
    let next = bucket.host();
    assert!(next.read("new").as_ref() == Some(&data));
    next.finish().expect("unmounted");
    for _ in 0..2 {
        gc(&bucket);
    }
    assert!(bucket.host().read("new") == Some(data));
}

/// The next root of its session may name the list.
#[test]
fn a_list_that_a_session_at_work_has_written_is_no_orphan() {
    let bucket = Bucket::new();
    bucket.host().finish().expect("unmounted");
    let (session, key) = bucket.work(bucket.memory.clone(), async |repository| {
        let (handle, machine) = (&repository.handle, &repository.environment);
        let holder = machine.holder("forget");
        let session = OpenSession::open(handle, holder, None, &*machine.processes).await;
        let session = session.expect("entered");
        let lists = DirectLists::new(handle, session.id());
        let name = lists.put_list(Vec::new()).await.expect("written");
        (session.id(), name.key(Class::List))
    });
    gc(&bucket);
    assert_eq!(bucket.count(&key), 1, "a root may name it yet");
    bucket.work(bucket.memory.clone(), async |repository| {
        let (handle, machine) = (&repository.handle, &repository.environment);
        let holder = machine.holder("session end");
        let processes = &*machine.processes;
        let by = OpenSession::open_in_place_of(handle, holder, session, processes).await;
        by.expect("removed").end().await.expect("left");
    });
    gc(&bucket);
    assert_eq!(bucket.count(&key), 0, "no root will name it");
}

/// A bucket that reports data packs as deleted and keeps them.
#[derive(Debug)]
struct Keeping(Arc<MemoryStore>);

#[async_trait::async_trait]
impl Layer for Keeping {
    fn below(&self) -> &dyn Store {
        &*self.0
    }

    async fn delete(&self, key: &str) -> Result<(), StoreError> {
        match key.starts_with("data/") {
            true => Ok(()),
            false => self.0.delete(key).await,
        }
    }
}

#[test]
fn what_was_condemned_is_remembered_for_as_long_as_it_is_there() {
    let bucket = Bucket::new();
    let first = with_snapshot_of(&bucket, &noise(1, 3 << 20));
    first.finish().expect("unmounted");
    forget_one(&bucket);
    let epochs = |bucket: &Bucket| {
        bucket.work(bucket.memory.clone(), async |repository| {
            repository.handle.current().root.condemned.len()
        })
    };
    let before = bucket.bytes("data/");
    let keeping: Arc<dyn Store> = Arc::new(Keeping(bucket.memory.clone()));
    bucket.work(keeping, crate::collecting::gather);
    assert_eq!(bucket.bytes("data/"), before, "they are there");
    assert_eq!(epochs(&bucket), 1, "and condemned");
    gc(&bucket);
    assert!(bucket.bytes("data/") < before);
    assert_eq!(epochs(&bucket), 0);
}
