//! Marking for a collection: whatever fails half-way, the marks of a later attempt are whole.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use bkfs::maintain::collect::expiry::Expiry;
use bkfs::maintain::collect::mark::Marker;
use bkfs::maintain::collect::sightings::Sightings;
use bkfs::maintain::collect::verifier;
use bkfs::maintain::workspace::Workspace;
use bkfs::maintain::workspace::medium::{Medium, WorkFile};
use bkfs::repository::Repository;
use bkfs::root::state::Root;
use bkfs_chunker::crypto::Class;
use bkfs_chunker::ingest::Ingest;
use bkfs_chunker::verify::PackContents;
use bkfs_store::Store;
use bkfs_testing::fault::{Fault, FaultStore, Strike};
use jiff::Timestamp;
use parking_lot::Mutex;

use crate::collecting::{five_snapshots, forget, gather};
use crate::host::{Bucket, noise};

fn marker(repository: &Repository) -> Marker {
    marker_in(repository, Workspace::IN_MEMORY)
}

fn marker_in(repository: &Repository, workspace: Workspace) -> Marker {
    let (content_store, lists) = (repository.content_store.clone(), repository.lists.clone());
    let verifier = verifier(repository).expect("threads");
    let expiry = Expiry {
        before: Timestamp::MIN,
        now: Timestamp::MIN,
        seen: Sightings::default(),
    };
    Marker::new(verifier, content_store, lists, expiry, workspace)
}

/// Blobs that another collector has moved are needed in their new place, whatever was marked
/// before.
#[test]
fn marking_begins_anew_when_another_collector_was_faster() {
    let bucket = Bucket::new();
    five_snapshots(&bucket);
    bucket.work(bucket.memory.clone(), async |slow| {
        let mut overtaken = marker(slow);
        let before = slow.handle.current();
        overtaken.mark(&before.root).await.expect("marked");
        let faster = || {
            bucket.work(bucket.memory.clone(), async |repository| {
                forget(repository, "one").await;
                forget(repository, "round 1").await;
                gather(repository).await
            })
        };
        let faster = std::thread::scope(|scope| scope.spawn(faster).join());
        assert!(faster.expect("no panic").condemned.packs > 0);
        let after = slow.handle.refresh().await.expect("read");
        assert!(after.root.epoch > before.root.epoch);
        overtaken.mark(&after.root).await.expect("marked");
        let mut fresh = marker(slow);
        fresh.mark(&after.root).await.expect("marked");
        assert_eq!(overtaken.live, fresh.live);
        for name in &fresh.live {
            let needed = |marker: &Marker| marker.marks.pack(name).map(|pack| pack.reached);
            assert_eq!(needed(&overtaken), needed(&fresh), "{name}");
        }
    });
}

/// A pack that could not be read the first time is read the second time, and does not count as
/// marked.
#[test]
fn marking_goes_on_where_it_failed() {
    let bucket = Bucket::new();
    five_snapshots(&bucket);
    let (mut strikes, mut failures) = (0, 0);
    // The pack is not found, or one of its frames is damaged.
    for fault in [Fault::Missing, Fault::FlipBit(8 * 170)] {
        for failing in 1.. {
            let strike = Strike::with(fault.clone()).keys("meta/").nth(failing);
            match marks_the_same_after(&bucket, strike) {
                Struck::Not => break,
                Struck::Failed => failures += 1,
                Struck::ReadAgain => {}
            }
            strikes += 1;
        }
    }
    assert!(strikes > 6, "only {strikes} reads");
    assert!(failures > 1, "only {failures} of {strikes} failed");
}

/// The effect of a fault on marking.
enum Struck {
    /// The fault came too late.
    Not,
    /// Marking failed.
    Failed,
    /// The pack was read ahead, and read again when its turn came.
    ReadAgain,
}

/// Marks under a fault, and again without it if that fails. Checks that the marks are those of a
/// run without faults.
fn marks_the_same_after(bucket: &Bucket, strike: Strike) -> Struck {
    let faults = Arc::new(FaultStore::new(bucket.memory.clone()));
    let store: Arc<dyn Store> = faults.clone();
    bucket.work(store, async |repository| {
        let new = || marker(repository);
        let root = &repository.handle.current().root;
        let mut whole = new();
        whole.mark(root).await.expect("marked");
        let mut twice = new();
        let before = faults.struck();
        faults.plan(strike);
        let marked = twice.mark(root).await;
        if faults.struck() == before {
            return Struck::Not;
        }
        if marked.is_err() {
            twice.mark(root).await.expect("marked");
        }
        for (name, pack) in whole.marks.packs() {
            let known = twice.marks.pack(name).expect("known");
            assert_eq!(known.reached, pack.reached, "{name}");
        }
        match marked {
            Ok(()) => Struck::ReadAgain,
            Err(_) => Struck::Failed,
        }
    })
}

/// A place for working data whose reads fail as often as it is told.
#[derive(Debug, Default)]
struct FailingReads {
    file: Mutex<Vec<u8>>,
    failing: AtomicU32,
    reads: AtomicU32,
}

#[derive(Debug)]
struct FailingPlace(Arc<FailingReads>);

impl Medium for FailingPlace {
    fn create(&self) -> io::Result<Arc<dyn WorkFile>> {
        self.0.file.lock().clear();
        Ok(self.0.clone())
    }

    fn place(&self) -> Arc<str> {
        "memory".into()
    }

    fn free_bytes(&self) -> Option<u64> {
        None
    }
}

impl WorkFile for FailingReads {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut file = self.file.lock();
        file.resize(offset as usize, 0);
        file.extend_from_slice(bytes);
        Ok(())
    }

    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        let left = |left: u32| left.checked_sub(1);
        let failed = self
            .failing
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, left);
        if failed == Ok(1) {
            return Err(io::ErrorKind::Other.into());
        }
        let offset = offset as usize;
        bytes.copy_from_slice(&self.file.lock()[offset..offset + bytes.len()]);
        Ok(())
    }
}

/// The chunks that marking needs are on disk, and a read of them fails. Marking again then marks
/// each of them.
#[test]
fn chunks_on_disk_are_marked_whichever_read_fails_before() {
    let bucket = Bucket::new();
    five_snapshots(&bucket);
    bucket.work(bucket.memory.clone(), async |repository| {
        let root = &repository.handle.current().root;
        let mut whole = marker(repository);
        whole.mark(root).await.expect("marked");
        let mut failures = 0;
        for failing in 0.. {
            let place = Arc::new(FailingReads::default());
            place.failing.store(failing, Ordering::Relaxed);
            let workspace = Workspace {
                medium: Some(Arc::new(FailingPlace(place.clone()))),
                memory_bytes: 16 * 16 * 8,
                announce: None,
            };
            let mut spilled = marker_in(repository, workspace);
            let marked = spilled.mark(root).await;
            if marked.is_err() {
                failures += 1;
                spilled.mark(root).await.expect("marked");
            }
            for (name, pack) in whole.marks.packs() {
                let known = spilled.marks.pack(name).expect("known");
                assert_eq!(known.reached, pack.reached, "{name}");
            }
            if place.reads.load(Ordering::Relaxed) < failing {
                break;
            }
        }
        assert!(failures > 10, "only {failures} reads");
    });
}

/// This holds in whichever order packs lead to each other.
#[test]
fn marking_reads_no_metadata_pack_twice() {
    let bucket = Bucket::new();
    for session in 0..4 {
        let host = bucket.host();
        for round in 0..4 {
            let name = format!("file {}", (session + round) % 5);
            host.write(&name, round << 18, noise(4 * session + round, 1 << 20));
            host.run(host.volume().commit()).expect("committed");
        }
        host.finish().expect("unmounted");
    }
    let packs = bucket.count("meta/") as u64;
    bucket.work(bucket.memory.clone(), async |repository| {
        let mut marker = marker(repository);
        let root = &repository.handle.current().root;
        marker.mark(root).await.expect("marked");
        assert!(marker.packs_read > 4, "only {} reads", marker.packs_read);
        assert!(
            marker.packs_read <= packs,
            "{} reads of {packs} packs",
            marker.packs_read
        );
        let before = marker.packs_read;
        marker.mark(root).await.expect("marked");
        assert_eq!(marker.packs_read, before, "nothing is new");
    });
}

/// Returns a root as `root`, whose index lacks a data pack.
async fn lacking(repository: &Repository, root: &Root) -> Root {
    let verifier = verifier(repository).expect("threads");
    let mut packs = Vec::new();
    for index in &root.index {
        packs.extend(verifier.index(*index).await.expect("read"));
    }
    let is_data = |pack: &PackContents| pack.class() == Class::DataPack;
    let first = packs.iter().position(is_data).expect("one");
    packs.remove(first);
    let ingest = Ingest::new(repository.content_store.clone(), 77);
    Root {
        index: ingest.put_index(&packs).await.expect("put"),
        ..root.clone()
    }
}

/// A newer root of the same epoch has a pack that an older one lacked, as when the older one was
/// read from a store that gives old answers.
#[test]
fn a_chunk_that_an_older_root_lacked_is_marked_from_the_next() {
    let bucket = Bucket::new();
    five_snapshots(&bucket);
    bucket.work(bucket.memory.clone(), async |repository| {
        let root = &repository.handle.current().root;
        let older = lacking(repository, root).await;
        let mut whole = marker(repository);
        whole.mark(root).await.expect("marked");
        let mut twice = marker(repository);
        let error = twice.mark(&older).await.expect_err("a chunk is missing");
        assert!(error.to_string().contains("in no live pack"), "{error}");
        twice.mark(root).await.expect("marked");
        for (name, pack) in whole.marks.packs() {
            let known = twice.marks.pack(name).expect("known");
            assert_eq!(known.reached, pack.reached, "{name}");
        }
    });
}
