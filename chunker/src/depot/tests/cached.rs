//! Caches: what they save, and that nothing in them is ever believed.

use std::fs;

use super::bucket::Verdict;
use super::*;
use crate::store::Operation;

fn files_below(directory: &std::path::Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).expect("a directory").flatten();
    let below = entries.flat_map(|entry| match entry.path() {
        path if path.is_dir() => files_below(&path),
        path => vec![path],
    });
    below.collect()
}

#[tokio::test]
async fn a_restart_fetches_nothing_twice() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut world = World::new(20, true);
    world.cache_dir = Some(directory.path().to_owned());
    let depot = world.loaded().await;
    let ingest = world.ingest(&depot);
    let file = content(20, 5 * MIB);
    let stored = store_file(&ingest, Profile::Content, &file, MIB).await;
    world.commit(&ingest).await;
    drop((ingest, depot));
    world.loaded().await;

    let depot = world.loaded().await;
    assert!(read_file(&depot, &stored).await.expect("reads") == file);
    let fetched = depot.metrics();
    assert!(fetched.cache_misses > 0 && fetched.disk_cache_bytes > 0);
    world.bucket.forget_requests();
    assert!(read_file(&depot, &stored).await.expect("reads") == file);
    assert!(depot.metrics().memory_hits > 0);
    drop(depot);

    let depot = world.loaded().await;
    assert!(read_file(&depot, &stored).await.expect("reads") == file);
    let metrics = depot.metrics();
    assert_eq!((metrics.get_requests, metrics.cache_misses), (0, 0));
    assert!(metrics.disk_hits > 0);
    for operation in Operation::ALL {
        assert_eq!(world.bucket.requests(operation, ""), 0, "{operation:?}");
    }
}

#[tokio::test]
async fn torn_and_foreign_cache_files_are_misses() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut world = World::new(21, false);
    world.cache_dir = Some(directory.path().to_owned());
    let depot = world.loaded().await;
    let ingest = world.ingest(&depot);
    let file = content(21, 4 * MIB);
    let stored = store_file(&ingest, Profile::Content, &file, MIB).await;
    world.commit(&ingest).await;
    let depot = world.loaded().await;
    read_file(&depot, &stored).await.expect("reads");
    drop(depot);
    for (number, path) in files_below(directory.path()).into_iter().enumerate() {
        let mut bytes = fs::read(&path).expect("reads");
        match number % 3 {
            0 => bytes.truncate(bytes.len() / 2),
            1 => {
                let middle = bytes.len() / 2;
                bytes[middle..].fill(0);
            }
            _ => bytes.iter_mut().step_by(1000).for_each(|byte| *byte ^= 1),
        }
        fs::write(&path, bytes).expect("writes");
    }
    let depot = world.loaded().await;
    assert!(read_file(&depot, &stored).await.expect("reads") == file);
    assert!(depot.metrics().cache_misses > 0);
    assert_eq!(depot.metrics().damaged, 0, "the bucket is not to blame");
    // What was fetched again is right again.
    drop(depot);
    let depot = world.loaded().await;
    assert!(read_file(&depot, &stored).await.expect("reads") == file);
    assert_eq!(depot.metrics().get_requests, 0);
}

#[tokio::test]
async fn a_cache_that_cannot_be_written_only_costs_time() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut world = World::new(22, true);
    let depot = world.loaded().await;
    let ingest = world.ingest(&depot);
    let file = content(22, 4 * MIB);
    let stored = store_file(&ingest, Profile::Content, &file, MIB).await;
    world.commit(&ingest).await;
    world.cache_dir = Some(directory.path().to_owned());
    let depot = world.depot();
    for part in ["packs", "index"] {
        let repository = directory
            .path()
            .join(world.keyring.repository().to_string());
        fs::remove_dir_all(repository.join(part)).expect("is there");
        fs::write(repository.join(part), b"in the way").expect("writes");
    }
    let loaded = depot.load_index(&world.index, &HashSet::new()).await;
    loaded.expect("the index stays in memory");
    for _ in 0..2 {
        assert!(read_file(&depot, &stored).await.expect("reads") == file);
    }
}

#[tokio::test]
async fn the_cache_on_disk_stays_within_its_bound() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut world = World::new(23, true);
    world.cache_dir = Some(directory.path().to_owned());
    world.config.cache_bytes = 3 << 20;
    let depot = world.loaded().await;
    let ingest = world.ingest(&depot);
    let file = noise(23, 8 * MIB);
    let stored = store_file(&ingest, Profile::Content, &file, MIB).await;
    world.commit(&ingest).await;
    let depot = world.loaded().await;
    for _ in 0..2 {
        assert!(read_file(&depot, &stored).await.expect("reads") == file);
    }
    let used = depot.metrics().disk_cache_bytes;
    assert!(used > 0 && used <= 3 << 20, "{used}");
}

#[tokio::test]
async fn many_readers_share_one_fetch() {
    let mut world = World::new(24, true);
    let depot = world.loaded().await;
    let ingest = world.ingest(&depot);
    let file = noise(24, 2 * MIB);
    let stored = store_file(&ingest, Profile::Content, &file, 2 * MIB).await;
    world.commit(&ingest).await;
    let depot = world.loaded().await;
    world.bucket.forget_requests();
    let reads = (0..20).map(|_| read_file(&depot, &stored));
    for read in futures::future::join_all(reads).await {
        assert!(read.expect("reads") == file);
    }
    let ranges = world.bucket.requests(Operation::GetRange, "data/");
    assert!(
        ranges <= 4,
        "{ranges} requests for two megabytes in three packs"
    );
    assert!(world.bucket.requests(Operation::GetRange, "meta/") <= 1);
}

#[tokio::test]
async fn a_prefetch_fills_the_cache_and_can_be_stopped() {
    let mut world = World::new(25, true);
    let depot = world.loaded().await;
    let ingest = world.ingest(&depot);
    let file = noise(25, 2 * MIB);
    let stored = store_file(&ingest, Profile::Content, &file, 2 * MIB).await;
    let page = noise(2525, 16_384);
    store_file(&ingest, Profile::Grid, &page, MIB).await;
    world.commit(&ingest).await;
    let depot = world.loaded().await;
    depot.prefetch(pieces(&stored));
    while depot.metrics().bytes_fetched < 2 * MIB as u64 {
        tokio::task::yield_now().await;
    }
    tokio::task::yield_now().await;
    world.bucket.forget_requests();
    assert!(read_file(&depot, &stored).await.expect("reads") == file);
    assert_eq!(world.bucket.requests(Operation::GetRange, "data/"), 0);
    depot.prefetch(pieces(&stored)).cancel();
    // While as much as may be is under way, no more is begun.
    let depot = world.loaded().await;
    world.bucket.script(|_, _| Verdict::Hang);
    let limit = world.config.memory.fetch_bytes as usize / pieces(&stored)[0].length as usize;
    let asked = |depot: &Depot| depot.metrics().get_requests;
    let loading = asked(&depot);
    let first = depot.prefetch(vec![pieces(&stored)[0]; limit + 1]);
    while asked(&depot) == loading {
        tokio::task::yield_now().await;
    }
    let before = asked(&depot);
    depot.prefetch(pieces(&stored));
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert_eq!(asked(&depot), before);
    first.cancel();
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    // The lists of chunks are being waited for already, but this page is not.
    depot.prefetch(vec![Piece {
        target: Target::Chunk(world.keyring.id(Kind::Chunk, &page)),
        offset: 0,
        length: 1,
    }]);
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert!(asked(&depot) > before, "there is room again");
}
