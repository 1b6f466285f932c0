//! Caches: the requests that they save, and that their contents are never trusted.

use std::fs;
use std::time::Duration;

use bkfs_store::Operation;

use super::bucket::Verdict;
use super::*;

fn files_below(directory: &std::path::Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).expect("a directory").flatten();
    let below = entries.flat_map(|entry| match entry.path() {
        path if path.is_dir() => files_below(&path),
        path => vec![path],
    });
    below.collect()
}

/// Drops a content store, and waits until its fetches have written to the disk: a fetch answers
/// before it writes.
async fn leave(content_store: ContentStore) {
    let reader = Arc::downgrade(&content_store.shared().reader);
    drop(content_store);
    let written = async {
        while reader.strong_count() > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let ended = tokio::time::timeout(Duration::from_secs(60), written).await;
    ended.expect("its fetches end");
}

#[tokio::test]
async fn a_restart_fetches_nothing_twice() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut world = World::new(20, true);
    world.cache_dir = Some(directory.path().to_owned());
    let content_store = world.loaded().await;
    let ingest = world.ingest(&content_store);
    let file = content(20, 5 * MIB);
    let stored = store_file(&ingest, Profile::Content, &file, MIB).await;
    world.commit(&ingest).await;
    drop((ingest, content_store));
    world.loaded().await;

    let content_store = world.loaded().await;
    assert!(read_file(&content_store, &stored).await.expect("reads") == file);
    assert!(content_store.metrics().cache_misses > 0);
    world.bucket.forget_requests();
    assert!(read_file(&content_store, &stored).await.expect("reads") == file);
    assert!(content_store.metrics().memory_hits > 0);
    leave(content_store).await;

    let content_store = world.loaded().await;
    assert!(read_file(&content_store, &stored).await.expect("reads") == file);
    let metrics = content_store.metrics();
    assert_eq!((metrics.get_requests, metrics.cache_misses), (0, 0));
    assert!(metrics.disk_hits > 0 && metrics.disk_cache_bytes > 0);
    for operation in Operation::ALL {
        assert_eq!(world.bucket.requests(operation, ""), 0, "{operation:?}");
    }
}

/// Stores noise as pages. Returns a content store that has none of it in memory.
async fn pages(world: &mut World, file: &Bytes) -> (ContentStore, StoredRun) {
    let content_store = world.loaded().await;
    let ingest = world.ingest(&content_store);
    let stored = store_file(&ingest, Profile::Grid, file, MIB).await;
    world.commit(&ingest).await;
    drop((ingest, content_store));
    (world.loaded().await, stored)
}

#[tokio::test]
async fn what_is_in_memory_is_read_without_the_index() {
    let mut world = World::new(39, true);
    let file = noise(390, MIB);
    let (content_store, stored) = pages(&mut world, &file).await;
    assert!(read_file(&content_store, &stored).await.expect("reads") == file);
    let other = world.loaded().await;
    for content_store in [&content_store, &other] {
        let nothing = IndexSources::of_objects(&[]);
        let emptied = content_store.load_index(&nothing, &HashSet::new()).await;
        emptied.expect("the index loads");
    }
    let mut right = 0;
    for piece in pieces(&stored) {
        for offset in (0..piece.length).step_by(16 << 10) {
            let length = 16 << 10;
            let page = Piece {
                offset,
                length,
                ..piece
            };
            right += usize::from(content_store.read(&[page]).await.is_ok());
            assert!(other.read(&[page]).await.is_err());
        }
    }
    // A few may have lost their place to others.
    assert!(right > 48, "{right} of 64 pages");
}

/// Some of the chunks of most frames have lost their places to others.
#[tokio::test]
async fn one_read_uses_a_frame_once() {
    let mut world = World::new(40, true);
    let file = noise(400, 6 * MIB);
    let (content_store, stored) = pages(&mut world, &file).await;
    assert!(read_file(&content_store, &stored).await.expect("reads") == file);
    let mut frames = HashSet::new();
    for page in file.chunks(16 << 10) {
        let id = world.keyring.id(Kind::Chunk, page);
        let slots = content_store.slots_of(&id.prefix()).await.expect("found");
        frames.extend(slots.into_iter().map(|(pack, frame, _)| (pack, frame)));
    }
    let before = content_store.metrics().memory_hits;
    assert!(read_file(&content_store, &stored).await.expect("reads") == file);
    let used = content_store.metrics().memory_hits - before;
    assert_eq!(used, frames.len() as u64);
}

#[tokio::test]
async fn nothing_is_kept_on_disk_where_requests_cost_little() {
    let mut world = World::new(29, true);
    let content_store = world.loaded().await;
    let ingest = world.ingest(&content_store);
    let file = content(29, 5 * MIB);
    let stored = store_file(&ingest, Profile::Content, &file, MIB).await;
    world.commit(&ingest).await;

    // An empty cache, without the uploaded packs.
    let directory = tempfile::tempdir().expect("a directory");
    world.cache_dir = Some(directory.path().to_owned());
    world.config.saves_requests = false;
    let content_store = world.loaded().await;
    assert!(read_file(&content_store, &stored).await.expect("reads") == file);
    let metrics = content_store.metrics();
    assert!(metrics.cache_misses > 0);
    assert_eq!(metrics.disk_cache_bytes, 0);
}

#[tokio::test]
async fn torn_and_foreign_cache_files_are_misses() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut world = World::new(21, false);
    world.cache_dir = Some(directory.path().to_owned());
    let content_store = world.loaded().await;
    let ingest = world.ingest(&content_store);
    let file = content(21, 4 * MIB);
    let stored = store_file(&ingest, Profile::Content, &file, MIB).await;
    world.commit(&ingest).await;
    let content_store = world.loaded().await;
    read_file(&content_store, &stored).await.expect("reads");
    leave(content_store).await;
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
    let content_store = world.loaded().await;
    assert!(read_file(&content_store, &stored).await.expect("reads") == file);
    assert!(content_store.metrics().cache_misses > 0);
    assert_eq!(
        content_store.metrics().damaged,
        0,
        "the bucket is not to blame"
    );
    // The cache files that were fetched again are whole.
    leave(content_store).await;
    let content_store = world.loaded().await;
    assert!(read_file(&content_store, &stored).await.expect("reads") == file);
    assert_eq!(content_store.metrics().get_requests, 0);
}

#[tokio::test]
async fn a_cache_that_cannot_be_written_only_costs_time() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut world = World::new(22, true);
    let content_store = world.loaded().await;
    let ingest = world.ingest(&content_store);
    let file = content(22, 4 * MIB);
    let stored = store_file(&ingest, Profile::Content, &file, MIB).await;
    world.commit(&ingest).await;
    world.cache_dir = Some(directory.path().to_owned());
    let content_store = world.content_store();
    for part in ["packs", "index"] {
        let repository = directory
            .path()
            .join(world.keyring.repository().to_string());
        fs::remove_dir_all(repository.join(part)).expect("is there");
        fs::write(repository.join(part), b"in the way").expect("writes");
    }
    let loaded = content_store
        .load_index(&IndexSources::of_objects(&world.index), &HashSet::new())
        .await;
    loaded.expect("the index stays in memory");
    for _ in 0..2 {
        assert!(read_file(&content_store, &stored).await.expect("reads") == file);
    }
}

#[tokio::test]
async fn the_cache_on_disk_stays_within_its_bound() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut world = World::new(23, true);
    world.cache_dir = Some(directory.path().to_owned());
    world.config.cache_bytes = 3 << 20;
    let content_store = world.loaded().await;
    let ingest = world.ingest(&content_store);
    let file = noise(23, 8 * MIB);
    let stored = store_file(&ingest, Profile::Content, &file, MIB).await;
    world.commit(&ingest).await;
    let content_store = world.loaded().await;
    for _ in 0..2 {
        assert!(read_file(&content_store, &stored).await.expect("reads") == file);
    }
    let used = content_store.metrics().disk_cache_bytes;
    assert!(used > 0 && used <= 3 << 20, "{used}");
}

#[tokio::test]
async fn many_readers_share_one_fetch() {
    let mut world = World::new(24, true);
    let content_store = world.loaded().await;
    let ingest = world.ingest(&content_store);
    let file = noise(24, 2 * MIB);
    let stored = store_file(&ingest, Profile::Content, &file, 2 * MIB).await;
    world.commit(&ingest).await;
    let content_store = world.loaded().await;
    world.bucket.forget_requests();
    let reads = (0..20).map(|_| read_file(&content_store, &stored));
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
async fn a_prefetch_fills_the_cache_and_has_its_bounds() {
    let mut world = World::new(25, true);
    let content_store = world.loaded().await;
    let ingest = world.ingest(&content_store);
    let file = noise(25, 2 * MIB);
    let stored = store_file(&ingest, Profile::Content, &file, 2 * MIB).await;
    world.commit(&ingest).await;
    let content_store = world.loaded().await;
    let prefetch = content_store
        .prefetch(2 * MIB as u64)
        .expect("there is room");
    prefetch.bring(&pieces(&stored)).await;
    world.bucket.forget_requests();
    assert!(read_file(&content_store, &stored).await.expect("reads") == file);
    assert_eq!(world.bucket.requests(Operation::GetRange, "data/"), 0);
    let most = content_store.prefetch_bytes_max();
    let first = content_store.prefetch(most - 1).expect("there is room");
    assert!(content_store.prefetch(2).is_none());
    let second = content_store.prefetch(1);
    assert!(second.is_some() && content_store.prefetch(1).is_none());
    drop(first);
    let again = content_store
        .prefetch(most - 1)
        .expect("there is room again");
    drop(second);
    again.bring(&pieces(&stored)).await;
    assert!(
        content_store.prefetch(most).is_some(),
        "all of it was given back"
    );
}

/// A high-latency link stays busy only if the second request does not wait for the answer to the
/// first.
#[tokio::test]
async fn a_prefetch_asks_for_all_of_it_at_once() {
    let mut world = World::new(26, true);
    world.config.memory.fetch_bytes = 64 << 20;
    world.config.memory.cache_bytes = 64 << 20;
    world.config.downloads = 64;
    let content_store = world.loaded().await;
    let ingest = world.ingest(&content_store);
    let stored = store_file(&ingest, Profile::Content, &noise(26, 24 * MIB), MIB).await;
    world.commit(&ingest).await;
    let content_store = world.loaded().await;
    let packs = world.bucket.count("data/") as u64;
    assert!(packs > 16, "{packs} packs");
    world
        .bucket
        .script(|_, key| match key.starts_with("data/") {
            true => Verdict::Hang,
            false => Verdict::Pass,
        });
    world.bucket.forget_requests();
    let prefetch = content_store
        .prefetch(24 * MIB as u64)
        .expect("there is room");
    let pieces = pieces(&stored);
    let bringing = tokio::spawn(async move { prefetch.bring(&pieces).await });
    for _ in 0..10_000 {
        tokio::task::yield_now().await;
    }
    assert_eq!(world.bucket.requests(Operation::GetRange, "data/"), packs);
    bringing.abort();
}

/// Small files lie in packs in the order in which they were written, and are read in the order of a
/// directory.
#[tokio::test]
async fn a_place_that_is_returned_to_is_fetched_whole() {
    let mut world = World::new(27, true);
    world.config.memory.cache_bytes = 64 << 20;
    let content_store = world.loaded().await;
    let ingest = world.ingest(&content_store);
    let mut files = Vec::new();
    for number in 0..200 {
        let file = noise(2700 + number, 20_000);
        let stored = store_file(&ingest, Profile::Content, &file, MIB).await;
        files.push((file, stored));
    }
    world.commit(&ingest).await;
    let packs = world.bucket.count("data/") as u64;
    assert!(packs >= 3, "{packs} packs");

    let content_store = world.loaded().await;
    world.bucket.forget_requests();
    for step in 0..files.len() {
        let (file, stored) = &files[step * 77 % files.len()];
        assert!(read_file(&content_store, stored).await.expect("reads") == *file);
    }
    let ranges = world.bucket.requests(Operation::GetRange, "data/");
    assert!(
        (packs..=3 * packs).contains(&ranges),
        "{ranges} requests for {packs} packs"
    );

    // A reader with random access gets no extra data.
    let content_store = world.loaded().await;
    let before = content_store.metrics().bytes_fetched;
    for number in [0, 100] {
        let (file, stored) = &files[number];
        assert!(read_file(&content_store, stored).await.expect("reads") == *file);
    }
    let fetched = content_store.metrics().bytes_fetched - before;
    assert!(fetched < 300_000, "{fetched} bytes for two frames");

    // No neighbours are fetched where requests cost little.
    world.config.saves_requests = false;
    let content_store = world.loaded().await;
    world.bucket.forget_requests();
    for (file, stored) in &files {
        assert!(read_file(&content_store, stored).await.expect("reads") == *file);
    }
    let ranges = world.bucket.requests(Operation::GetRange, "data/");
    assert!(ranges > 6 * packs, "{ranges} requests for {packs} packs");
}

/// A region may hold much data that was compressed to almost nothing: its neighbours must fit into
/// memory after decoding.
#[tokio::test]
async fn neighbours_are_bounded_by_what_they_decode_to() {
    let mut world = World::new(28, true);
    world.config.memory.cache_bytes = 128 << 20;
    let content_store = world.loaded().await;
    let ingest = world.ingest(&content_store);
    let mut files = Vec::new();
    for number in 0..256 {
        let word = noise(2800 + number, 16);
        let file: Bytes = word.iter().copied().cycle().take(128 << 10).collect();
        let stored = store_file(&ingest, Profile::Raw, &file, MIB).await;
        files.push((file, stored));
    }
    world.commit(&ingest).await;
    assert_eq!(world.bucket.count("data/"), 1, "32 MiB in one small pack");
    let content_store = world.loaded().await;
    world.bucket.forget_requests();
    for (file, stored) in &files {
        assert!(read_file(&content_store, stored).await.expect("reads") == *file);
    }
    let ranges = world.bucket.requests(Operation::GetRange, "data/");
    assert!((5..=12).contains(&ranges), "{ranges} requests");
}
