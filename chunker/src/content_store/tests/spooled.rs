//! Storing with a spool: a store that is slow, absent or refuses, and a disk that is full, fails or
//! rots.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use super::bucket::Verdict;
use super::*;
use crate::spool::{ReplayProgress, Spool, leftovers};
use bkfs_store::disk::Disk;
use bkfs_store::{Operation, StoreErrorKind};
use bkfs_testing::disk::{DiskOperation, SimulatedDisk};
use tokio::time::Instant;

const ROOT: &str = "/state/spool/repository";

impl World {
    pub(super) async fn spooling(
        &mut self,
        content_store: &ContentStore,
        disk: &SimulatedDisk,
        limit: u64,
    ) -> Ingest {
        self.sessions += 1;
        let disk: Arc<dyn Disk> = Arc::new(disk.clone());
        let spool = Spool::create(disk, Path::new(ROOT), self.sessions, limit).await;
        let spool = spool.expect("a spool");
        Ingest::with_spool(content_store.clone(), self.sessions, Some(spool))
    }

    /// Packs take this long from now on.
    fn slow_uploads(&self, time: Duration) {
        self.bucket.script(move |operation, _| match operation {
            Operation::PutNew => Verdict::Wait(time),
            _ => Verdict::Pass,
        });
    }

    /// From now on nothing is written.
    pub(super) fn absent(&self, verdict: Verdict) {
        self.bucket
            .script(move |operation, _| match operation.is_write() {
                true => verdict,
                false => Verdict::Pass,
            });
    }

    /// All files are read back by a content store that has seen nothing of how they were stored.
    async fn check(&self, files: &[(StoredRun, Bytes)]) {
        let content_store = self.loaded().await;
        for (stored, file) in files {
            assert!(read_file(&content_store, stored).await.expect("reads") == *file);
        }
    }
}

async fn store_noise(ingest: &Ingest, first: u64, count: u64) -> Vec<(StoredRun, Bytes)> {
    let mut files = Vec::new();
    for seed in first..first + count {
        let file = noise(seed, 4 * MIB);
        let stored = store_file(ingest, Profile::Grid, &file, MIB).await;
        files.push((stored, file));
    }
    files
}

const UNREACHABLE: Verdict = Verdict::Fail(StoreErrorKind::Unreachable);

#[tokio::test(start_paused = true)]
async fn an_outage_that_the_spool_absorbs_is_invisible_to_writers() {
    for verdict in [UNREACHABLE, Verdict::Hang] {
        let mut world = World::new(60, true);
        let content_store = world.loaded().await;
        let disk = SimulatedDisk::new();
        let ingest = world.spooling(&content_store, &disk, 256 << 20).await;
        world.absent(verdict);
        let begin = Instant::now();
        let files = store_noise(&ingest, 600, 24).await;
        let taken = begin.elapsed();
        assert!(taken < Duration::from_secs(5), "{taken:?} for writers");
        let metrics = content_store.metrics();
        assert_eq!(metrics.packs_uploaded, 0);
        assert!(metrics.pending_peak_bytes <= world.config.memory.write_bytes * 5 / 6);
        assert!(metrics.spool_bytes > 70 << 20, "{metrics:?}");
        for (stored, file) in &files {
            assert!(
                read_file(&content_store, stored)
                    .await
                    .expect("from the spool")
                    == *file
            );
        }
        if verdict == Verdict::Hang {
            // What hangs in memory hangs for ever here.
            continue;
        }
        world.bucket.behave();
        let finished = ingest.finish(&world.index).await.expect("finishes");
        let usage = ingest.spool().expect("has one").usage();
        assert_eq!(usage.waiting_files, 0);
        assert!(usage.files > 70, "kept until a root names them: {usage:?}");
        world.index.clone_from(&finished.index);
        ingest.committed(finished);
        world.check(&files).await;
        let spool = Arc::clone(ingest.spool().expect("has one"));
        drop(ingest);
        assert_eq!(spool.end().await.files, 0, "all was named by a root");
        assert!(
            !disk
                .paths()
                .iter()
                .any(|path| path.starts_with(spool.directory()))
        );
    }
}

/// Reads hang as well, and hold memory that they have borrowed. Packs of several kinds are open, and
/// none of them is full.
#[tokio::test(start_paused = true)]
async fn a_stalled_read_ahead_leaves_the_spool_its_memory() {
    let mut world = World::new(67, true);
    world.config.memory = MemoryBudget {
        write_bytes: 128 << 20,
        fetch_bytes: 10 << 20,
        cache_bytes: 128 << 20,
    };
    world.config.pack_bytes = 4 << 20;
    let content_store = world.loaded().await;
    let ingest = world.ingest(&content_store);
    let file = noise(670, 56 * MIB);
    let stored = store_file(&ingest, Profile::Grid, &file, MIB).await;
    world.commit(&ingest).await;
    drop(ingest);
    let content_store = world.loaded().await;
    let pieces = pieces(&stored);
    let segments: Vec<Id> = pieces.iter().map(|piece| piece.target.id()).collect();
    content_store.chunks_of(&segments).await.expect("reads");
    let disk = SimulatedDisk::new();
    let ingest = world.spooling(&content_store, &disk, 1 << 30).await;
    world.bucket.script(|_, _| Verdict::Hang);
    let room = content_store.prefetch(20 << 20).expect("there is room");
    let read_ahead = tokio::spawn(async move { room.bring(&pieces).await });
    tokio::time::sleep(Duration::from_secs(1)).await;
    let (lendable, lent) = ingest.memory().0.lending_of();
    assert!(lent > 10 << 20, "{lent} of {lendable} bytes");
    let begin = Instant::now();
    let ingest = &ingest;
    let writers = (0..8).map(|writer| async move {
        for seed in 7000 + writer * 10..7003 + writer * 10 {
            store_noise(ingest, seed, 1).await;
            store_file(ingest, Profile::Content, &content(seed, 2 * MIB), MIB).await;
            let node = noise(90_000 + seed, 3900 << 10);
            ingest.store_blob(Kind::Node, node).await.expect("stored");
        }
    });
    futures::future::join_all(writers).await;
    let taken = begin.elapsed();
    assert!(taken < Duration::from_secs(5), "{taken:?} for writers");
    assert!(!read_ahead.is_finished());
}

/// Whatever the budget is, packs that are sent or open fit into what is not lent.
#[tokio::test]
async fn a_session_lends_only_what_its_packs_do_not_need() {
    for (budget, lendable) in [(24 << 20, 0), (192 << 20, 0), (6_u64 << 30, 2_000_000_000)] {
        let mut world = World::new(68, true);
        world.config.memory.write_bytes = budget;
        world.config.pack_bytes = 16 << 20;
        let content_store = world.loaded().await;
        let disk = SimulatedDisk::new();
        let ingest = world.spooling(&content_store, &disk, 1 << 30).await;
        let (gate, flight) = ingest.memory();
        let most = gate.lending_of().0;
        assert!(most <= lendable, "{most} of {budget} bytes");
        assert!(gate.capacity() - most > flight, "{most} of {budget} bytes");
    }
    let mut world = World::new(69, true);
    world.config.memory.write_bytes = 12 << 30;
    let content_store = world.loaded().await;
    let ingest = world.ingest(&content_store);
    let gate = ingest.memory().0;
    assert!(gate.lending_of().0 <= gate.capacity() / 2 + 1);
}

#[tokio::test(start_paused = true)]
async fn a_fast_store_needs_no_spool() {
    let mut world = World::new(61, true);
    let content_store = world.loaded().await;
    let disk = SimulatedDisk::new();
    let ingest = world.spooling(&content_store, &disk, 256 << 20).await;
    world.slow_uploads(Duration::from_millis(20));
    let files = store_noise(&ingest, 700, 24).await;
    world.commit(&ingest).await;
    assert_eq!(content_store.metrics().bytes_spooled, 0);
    world.check(&files).await;
}

#[tokio::test(start_paused = true)]
async fn a_full_spool_slows_writers_and_fails_nothing() {
    let mut world = World::new(62, true);
    let content_store = world.loaded().await;
    let disk = SimulatedDisk::new();
    let limit = 10 << 20;
    let ingest = world.spooling(&content_store, &disk, limit).await;
    world.slow_uploads(Duration::from_secs(20));
    let begin = Instant::now();
    let mut files = Vec::new();
    for round in 0..20 {
        files.extend(store_noise(&ingest, 800 + round, 1).await);
        assert!(content_store.metrics().spool_bytes <= limit);
        if round % 8 == 7 {
            world.commit(&ingest).await;
        }
    }
    assert!(
        begin.elapsed() > Duration::from_secs(100),
        "writers were slowed"
    );
    let metrics = content_store.metrics();
    assert!(metrics.bytes_spooled > limit / 2, "{metrics:?}");
    assert!(metrics.pending_peak_bytes <= world.config.memory.write_bytes);
    world.commit(&ingest).await;
    world.check(&files).await;
}

#[tokio::test(start_paused = true)]
async fn what_is_kept_survives_the_process() {
    for verdict in [UNREACHABLE, Verdict::Hang] {
        let mut world = World::new(63, true);
        let content_store = world.loaded().await;
        let disk = SimulatedDisk::new();
        let ingest = world.spooling(&content_store, &disk, 256 << 20).await;
        world.absent(verdict);
        let files = store_noise(&ingest, 900, 2).await;
        ingest.keep().await.expect("needs no store");
        disk.crash(&SeededEntropy::new(1));
        let shared: Arc<dyn Disk> = Arc::new(disk.clone());
        let found = (leftovers(&shared, Path::new(ROOT)).await.expect("finds")).spools;
        let mut kept = BTreeMap::new();
        for object in found[0].objects() {
            let bytes = found[0].read(object).await.expect("reads");
            kept.insert(object.key.clone(), bytes.expect("is whole"));
        }
        if verdict == Verdict::Hang {
            assert!(!kept.is_empty());
            continue;
        }
        // What the living session goes on to upload is what the dead one would have left.
        world.bucket.behave();
        let finished = ingest.finish(&world.index).await.expect("finishes");
        let usage = ingest.spool().expect("has one").usage();
        assert_eq!((usage.files, usage.waiting_files), (kept.len() as u64, 0));
        world.index.clone_from(&finished.index);
        ingest.committed(finished);
        let mut keys = world.bucket.keys("data/");
        keys.extend(world.bucket.keys("meta/"));
        assert_eq!(keys, kept.keys().cloned().collect::<Vec<_>>());
        for (key, bytes) in kept {
            assert!(world.bucket.bytes(&key) == bytes, "{key}");
        }
        world.check(&files).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_disk_that_fails_or_is_full_costs_speed_only() {
    for operation in [
        DiskOperation::Write,
        DiskOperation::Flush,
        DiskOperation::SyncDirectory,
    ] {
        let mut world = World::new(64, true);
        let content_store = world.loaded().await;
        let disk = SimulatedDisk::new();
        let ingest = world.spooling(&content_store, &disk, 256 << 20).await;
        world.slow_uploads(Duration::from_secs(5));
        disk.fail(operation, 4, std::io::ErrorKind::Other);
        let files = store_noise(&ingest, 1000, 16).await;
        assert_eq!(disk.struck(), 1, "{operation:?}");
        assert!(ingest.spool().expect("has one").failure().is_some());
        world.commit(&ingest).await;
        world.check(&files).await;
    }
    let mut world = World::new(65, true);
    let content_store = world.loaded().await;
    let disk = SimulatedDisk::new();
    disk.set_capacity(Some(5 << 20));
    let ingest = world.spooling(&content_store, &disk, 256 << 20).await;
    world.slow_uploads(Duration::from_secs(5));
    let files = store_noise(&ingest, 1100, 16).await;
    let spooled = content_store.metrics().spool_bytes;
    assert!(spooled > 3 << 20 && spooled <= 5 << 20, "{spooled}");
    world.commit(&ingest).await;
    world.check(&files).await;
}

/// The disk hangs in puts that are given up, because the store has taken the packs. They hold their
/// packs in memory until the disk answers, and no longer.
#[tokio::test(start_paused = true)]
async fn a_put_that_was_given_up_is_freed_once_the_disk_answers() {
    let mut world = World::new(66, true);
    let content_store = world.loaded().await;
    let disk = SimulatedDisk::new();
    let ingest = world.spooling(&content_store, &disk, 256 << 20).await;
    world.slow_uploads(Duration::from_secs(5));
    disk.hold();
    let mut files = store_noise(&ingest, 1200, 8).await;
    world.commit(&ingest).await;
    let spool = Arc::clone(ingest.spool().expect("has one"));
    let tasks = || {
        tokio::runtime::Handle::current()
            .metrics()
            .num_alive_tasks()
    };
    let before = tasks();
    files.extend(store_noise(&ingest, 1300, 48).await);
    world.commit(&ingest).await;
    assert!(tasks() <= before + 1, "tasks: {before}, {}", tasks());
    let almost_all = (256 << 20) - 1000;
    assert_eq!(content_store.metrics().bytes_spooled, 0);
    assert!(spool.lacks_room(almost_all), "a put is under way");
    disk.let_go();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!spool.lacks_room(almost_all));
    world.check(&files).await;
}

#[tokio::test(start_paused = true)]
async fn what_only_the_spool_had_and_lost_fails_the_session() {
    for is_rot in [true, false] {
        let mut world = World::new(66, true);
        let content_store = world.loaded().await;
        let disk = SimulatedDisk::new();
        let ingest = world.spooling(&content_store, &disk, 256 << 20).await;
        world.absent(UNREACHABLE);
        store_noise(&ingest, 1200, 16).await;
        let spool = ingest.spool().expect("has one");
        // The newest waits for its turn for certain.
        let newest = disk
            .paths()
            .into_iter()
            .rfind(|path| path.parent() == Some(spool.directory()) && !path.ends_with("lock"));
        let newest = newest.expect("packs are there");
        match is_rot {
            true => disk.rot(&newest, 12_345),
            false => disk.remove(&newest).await.expect("is there"),
        }
        world.bucket.behave();
        let refused = ingest.finish(&world.index).await.expect_err("is lost");
        let text = refused.to_string();
        assert!(matches!(refused.cause(), ContentError::Spool(_)), "{text}");
        let name = newest.file_name().expect("a name").to_string_lossy();
        assert!(text.contains(&*name), "{text} names {name}");
        let later = ingest.store_blob(crate::id::Kind::Node, noise(1, 10)).await;
        assert!(matches!(later, Err(ContentError::Failed(_))));
    }
}

/// Wherever it stops, nothing is in the bucket before what it names (rule 1).
#[tokio::test(start_paused = true)]
async fn what_a_spool_kept_arrives_in_the_order_of_references() {
    let mut world = World::new(67, true);
    let content_store = world.loaded().await;
    let disk = SimulatedDisk::new();
    let ingest = world.spooling(&content_store, &disk, 256 << 20).await;
    world.absent(UNREACHABLE);
    let spool = ingest.spool().expect("has one").clone();
    for number in 1..=2 {
        store_noise(&ingest, 1300 + number, 2).await;
        ingest.keep().await.expect("needs no store");
        let key = format!("journal/{:032x}/{number:016x}", 7);
        let kept = spool.put(&key, &[noise(number, 100)]).await;
        kept.expect("kept");
    }
    disk.crash(&SeededEntropy::new(1));
    let shared: Arc<dyn Disk> = Arc::new(disk.clone());
    let found = (leftovers(&shared, Path::new(ROOT)).await.expect("finds")).spools;
    let other = World::new(67, true);
    let order = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let seen = Arc::clone(&order);
    other.bucket.script(move |operation, key| {
        if operation == Operation::PutNew {
            let class = key.split('/').next().unwrap_or_default();
            seen.lock().push(class.to_owned());
        }
        Verdict::Pass
    });
    let (new_holder, progress) = (other.loaded().await, ReplayProgress::default());
    let objects: Vec<_> = found[0].named().iter().collect();
    let brought = found[0].replay(&new_holder, &objects, &progress).await;
    brought.expect("brought");
    let order = order.lock();
    let classes = ["data", "meta", "journal"];
    assert!(classes.map(|class| order.contains(&class.to_owned())) == [true; 3]);
    assert!(
        order.is_sorted_by_key(|put| classes.iter().position(|class| class == put)),
        "{order:?}"
    );
}
