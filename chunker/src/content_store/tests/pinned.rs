//! Pins: what is brought stays, and is read without the store.

use std::sync::atomic::Ordering;

use bkfs_testing::fault::{Fault, FaultStore, Strike};

use super::*;
use crate::pins::{Pin, PinError};

/// Stores incompressible files. Returns them as pieces, and as the blobs that reads of them need.
pub(super) async fn stored(
    world: &mut World,
    lengths: &[usize],
) -> (Vec<Vec<Piece>>, Vec<(Kind, Id)>) {
    let store = world.loaded().await;
    let ingest = world.ingest(&store);
    let mut files = Vec::new();
    for (seed, length) in lengths.iter().enumerate() {
        let file = noise(seed as u64 + 40, *length);
        files.push(store_file(&ingest, Profile::Content, &file, MIB).await);
    }
    world.commit(&ingest).await;
    let reader = world.loaded().await;
    let files: Vec<Vec<Piece>> = files.iter().map(pieces).collect();
    let mut blobs = Vec::new();
    for file in &files {
        blobs.extend(blobs_of(&reader, file).await);
    }
    (files, blobs)
}

/// Returns the blobs that reads of a file need.
pub(super) async fn blobs_of(store: &ContentStore, file: &[Piece]) -> Vec<(Kind, Id)> {
    let mut blobs = Vec::new();
    for piece in file {
        match piece.target {
            Target::Chunk(id) => blobs.push((Kind::Chunk, id)),
            Target::Segment(id) => {
                blobs.push((Kind::Segment, id));
                let chunks = store.chunks_of(&[id]).await.expect("reads");
                blobs.extend(chunks.into_iter().map(|id| (Kind::Chunk, id)));
            }
        }
    }
    blobs
}

/// Pins blobs and brings them.
pub(super) async fn pin(
    store: &ContentStore,
    blobs: &[(Kind, Id)],
    text: &'static [u8],
) -> Arc<Pin> {
    let mut plan = store.plan_pin();
    plan.add(blobs).await.expect("all are known");
    let pin = store.pin(plan, Bytes::from_static(text)).await;
    pin.expect("it fits")
}

pub(super) async fn bring(store: &ContentStore, pin: &Arc<Pin>) -> (u64, u64) {
    let progress = PinProgress::default();
    store.bring(pin, &progress).await.expect("is brought");
    (
        progress.found_bytes.load(Ordering::Relaxed),
        progress.fetched_bytes.load(Ordering::Relaxed),
    )
}

pub(super) fn cached_world(seed: u64) -> (World, tempfile::TempDir) {
    let mut world = World::new(seed, true);
    let directory = tempfile::tempdir().expect("a directory");
    world.cache_dir = Some(directory.path().to_owned());
    (world, directory)
}

/// Removes the disk cache of everything that was read so far, and not the pins.
pub(super) fn without_cache(directory: &tempfile::TempDir) {
    for repository in std::fs::read_dir(directory.path())
        .expect("lists")
        .flatten()
    {
        for part in ["packs", "index"] {
            let _ = std::fs::remove_dir_all(repository.path().join(part));
        }
    }
}

#[tokio::test]
async fn exactly_the_stored_bytes_are_fetched_and_no_read_needs_the_store_then() {
    let (mut world, directory) = cached_world(1);
    let lengths = [3 * MIB, 700, 2 * MIB + 77];
    let (files, blobs) = stored(&mut world, &lengths).await;
    without_cache(&directory);
    let store = world.loaded().await;
    // Segments are read to know the chunks.
    let pin = pin(&store, &blobs, b"three").await;
    let total = pin.facts().stored_bytes;
    assert!(total > 5 * MIB as u64 && !pin.facts().is_complete);
    let before = store.metrics().bytes_fetched;
    // Before, there is nothing to read without the store.
    let alone = store.of_pins_alone().expect("has pins");
    assert!(alone.read(&files[0]).await.is_err());
    assert!(alone.metrics().get_requests > 0 && store.metrics().bytes_fetched == before);
    let (found, fetched) = bring(&store, &pin).await;
    assert_eq!((found, fetched), (0, total));
    // Frames that lie close together are fetched with what is between them.
    let asked = store.metrics().bytes_fetched - before;
    assert!(asked <= total + total / 100, "{asked} of {total}");
    assert!(store.list_pins()[0].facts().is_complete);
    let alone = store.of_pins_alone().expect("has pins");
    for (seed, file) in files.iter().enumerate() {
        let read = alone.read(file).await.expect("is pinned").concat().concat();
        assert!(
            read == noise(seed as u64 + 40, lengths[seed]),
            "file {seed}"
        );
    }
    assert_eq!(alone.metrics().get_requests, 0);
    // A mount of later finds it too, whatever its own cache has.
    without_cache(&directory);
    let later = world.loaded().await;
    let requests = later.metrics().get_requests;
    for file in &files {
        later.read(file).await.expect("is pinned");
    }
    assert_eq!(later.metrics().get_requests, requests);
    assert_eq!(bring(&later, &later.list_pins()[0]).await, (total, 0));
}

#[tokio::test]
async fn what_is_not_pinned_is_asked_for_and_refused() {
    let (mut world, _directory) = cached_world(2);
    let (files, _) = stored(&mut world, &[MIB, MIB]).await;
    let store = world.loaded().await;
    // The cache has both files, and a pin has one.
    for file in &files {
        store.read(file).await.expect("reads");
    }
    let first = blobs_of(&store, &files[0]).await;
    bring(&store, &pin(&store, &first, b"one").await).await;
    let alone = store.of_pins_alone().expect("has pins");
    let both = [alone.read(&files[0]).await, alone.read(&files[1]).await];
    assert!(both[1].is_err(), "it is in the cache alone");
    assert!(both[0].is_ok());
}

#[tokio::test]
async fn what_is_cached_is_not_fetched_again_to_be_pinned() {
    let (mut world, _directory) = cached_world(4);
    let (files, _) = stored(&mut world, &[3 * MIB, 3 * MIB]).await;
    world.config.cache_bytes = 8 * MIB as u64;
    let store = world.loaded().await;
    for file in &files {
        store.read(file).await.expect("reads");
    }
    let mut blobs = blobs_of(&store, &files[0]).await;
    blobs.extend(blobs_of(&store, &files[1]).await);
    let pin = pin(&store, &blobs, b"both").await;
    let (found, fetched) = bring(&store, &pin).await;
    assert_eq!((found, fetched), (pin.facts().stored_bytes, 0));
    let metrics = store.metrics();
    assert!(metrics.disk_cache_bytes + metrics.pinned_bytes <= 8 * MIB as u64);
    let alone = store.of_pins_alone().expect("has pins");
    for file in &files {
        alone.read(file).await.expect("is pinned");
    }
}

#[tokio::test]
async fn no_eviction_takes_what_is_pinned() {
    let (mut world, directory) = cached_world(3);
    let lengths = [2 * MIB, 3 * MIB, 3 * MIB, 3 * MIB];
    let (files, blobs) = stored(&mut world, &lengths).await;
    without_cache(&directory);
    world.config.cache_bytes = 4 * MIB as u64;
    let store = world.loaded().await;
    let first = blobs_of(&store, &files[0]).await;
    assert!(first.len() < blobs.len());
    let pin = pin(&store, &first, b"first").await;
    bring(&store, &pin).await;
    // Far more passes through the cache than it holds.
    for _ in 0..2 {
        for file in &files[1..] {
            store.read(file).await.expect("reads");
        }
    }
    let metrics = store.metrics();
    assert!(metrics.disk_cache_bytes + metrics.pinned_bytes <= 4 * MIB as u64);
    assert!(metrics.pinned_bytes >= pin.facts().stored_bytes);
    let again = world.loaded().await;
    let alone = again.of_pins_alone().expect("has pins");
    alone.read(&files[0]).await.expect("is pinned still");
    let freed = again.unpin(&again.list_pins()[0]).await.expect("goes");
    assert!(freed >= pin.facts().stored_bytes, "{freed}");
    assert_eq!(
        (again.metrics().pinned_bytes, again.list_pins().len()),
        (0, 0)
    );
    let alone = again.of_pins_alone().expect("has a cache");
    assert!(alone.read(&files[0]).await.is_err(), "is gone");
}

#[tokio::test]
async fn what_does_not_fit_is_refused_by_exact_numbers_before_a_byte_is_fetched() {
    let (mut world, directory) = cached_world(4);
    let (_, blobs) = stored(&mut world, &[3 * MIB]).await;
    without_cache(&directory);
    let store = world.loaded().await;
    let mut plan = store.plan_pin();
    plan.add(&blobs).await.expect("all are known");
    let stored = plan.stored_bytes();
    let pin = store.pin(plan, Bytes::new()).await.expect("fits");
    let needed = pin.facts().disk_bytes;
    store.unpin(&pin).await.expect("goes");
    drop(store);
    for (cache_bytes, fits) in [(needed, true), (needed - 1, false)] {
        world.config.cache_bytes = cache_bytes;
        let store = world.loaded().await;
        let mut plan = store.plan_pin();
        plan.add(&blobs).await.expect("all are known");
        let before = store.metrics().bytes_fetched;
        match store.pin(plan, Bytes::new()).await {
            Ok(pin) => {
                assert!(fits);
                bring(&store, &pin).await;
                assert!(store.metrics().pinned_bytes <= needed);
                store.unpin(&pin).await.expect("goes");
            }
            Err(PinError::DoesNotFit {
                stored_bytes,
                disk_bytes,
                pinned_bytes,
                cache_bytes: limit,
            }) => {
                assert!(!fits);
                let told = (stored_bytes, disk_bytes, pinned_bytes, limit);
                assert_eq!(told, (stored, needed, 0, needed - 1));
                assert_eq!(store.metrics().bytes_fetched, before);
                assert!(store.list_pins().is_empty());
            }
            Err(error) => panic!("{error}"),
        }
    }
}

#[tokio::test]
async fn an_interrupted_pin_goes_on_without_fetching_twice() {
    let (mut world, directory) = cached_world(5);
    let (files, blobs) = stored(&mut world, &[9 * MIB]).await;
    without_cache(&directory);
    let store = world.loaded().await;
    let total = {
        let pin = pin(&store, &blobs, b"all").await;
        let packs = pin.packs().expect("reads");
        let half = packs.into_iter().take(4);
        // As if the process had ended there, in the middle of a write.
        for (name, pack) in half {
            for (number, frame) in pack.frames {
                let key = name.key(pack.pack.class);
                let range = crate::pins::parts::range_of(&frame);
                let sealed = world.bucket.get_range(&key, range).await.expect("is there");
                let sealed = match number {
                    0 => sealed.slice(..sealed.len() / 2),
                    _ => sealed,
                };
                let pins = store.shared().reader.pins.clone().expect("has");
                let parts = [(u64::from(frame.offset), sealed)];
                pins.frames().put(name, &parts).expect("writes");
            }
        }
        pin.facts().stored_bytes
    };
    drop(store);
    let store = world.loaded().await;
    let pin = store.list_pins().pop().expect("survives");
    let (found, fetched) = bring(&store, &pin).await;
    assert_eq!(found + fetched, total);
    assert!(found > 2 * MIB as u64, "{found} of {total}");
    assert!(
        fetched > MIB as u64,
        "torn frames are fetched again: {fetched}"
    );
    let alone = store.of_pins_alone().expect("has pins");
    let read = alone
        .read(&files[0])
        .await
        .expect("is pinned")
        .concat()
        .concat();
    assert!(read == noise(40, 9 * MIB));
}

#[tokio::test]
async fn pins_share_frames_and_free_only_what_no_other_has() {
    let (mut world, _directory) = cached_world(6);
    let (files, blobs) = stored(&mut world, &[2 * MIB, 2 * MIB]).await;
    let store = world.loaded().await;
    let one = pin(&store, &blobs, b"both").await;
    bring(&store, &one).await;
    let half = blobs_of(&store, &files[0]).await;
    let two = pin(&store, &half, b"first").await;
    let (found, fetched) = bring(&store, &two).await;
    assert_eq!((found, fetched), (two.facts().stored_bytes, 0));
    let taken = store.metrics().pinned_bytes;
    store.unpin(&one).await.expect("goes");
    let left = store.metrics().pinned_bytes;
    assert!(
        left < taken && left >= two.facts().stored_bytes,
        "{left} of {taken}"
    );
    let alone = store.of_pins_alone().expect("has pins");
    alone.read(&files[0]).await.expect("is pinned still");
    assert!(alone.read(&files[1]).await.is_err(), "is gone");
}

#[tokio::test]
async fn a_damaged_pin_costs_bytes_and_nothing_else() {
    let (mut world, directory) = cached_world(7);
    let (files, blobs) = stored(&mut world, &[2 * MIB]).await;
    without_cache(&directory);
    let store = world.loaded().await;
    bring(&store, &pin(&store, &blobs, b"all").await).await;
    drop(store);
    let repository = std::fs::read_dir(directory.path())
        .expect("lists")
        .flatten()
        .next();
    let pins = repository.expect("is there").path().join("pins");
    let spoil = |path: &std::path::Path| {
        let mut bytes = std::fs::read(path).expect("reads");
        for byte in bytes.iter_mut().skip(50) {
            *byte ^= 0x5a;
        }
        std::fs::write(path, bytes).expect("writes");
    };
    let files_of = |suffix: &str| -> Vec<PathBuf> {
        let all = std::fs::read_dir(&pins).expect("lists").flatten();
        let all = all.map(|file| file.path());
        all.filter(|path| path.to_string_lossy().ends_with(suffix))
            .collect()
    };
    for shelf in std::fs::read_dir(pins.join("packs"))
        .expect("lists")
        .flatten()
    {
        for pack in std::fs::read_dir(shelf.path()).expect("lists").flatten() {
            spoil(&pack.path());
        }
    }
    for spoiled in ["frames", ".table", ".pin"] {
        files_of(spoiled).iter().for_each(|path| spoil(path));
        without_cache(&directory);
        let store = world.loaded().await;
        if spoiled == "frames" {
            // It is brought again where it is not sound.
            let (found, fetched) = bring(&store, &store.list_pins()[0]).await;
            assert!(found < fetched, "{found} {fetched}");
        }
        let read = store.read(&files[0]).await.expect("the bucket has it");
        assert!(read.concat().concat() == noise(40, 2 * MIB), "{spoiled}");
    }
    assert!(world.loaded().await.list_pins().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_store_that_goes_away_is_an_error_and_the_next_attempt_goes_on() {
    let (mut world, directory) = cached_world(8);
    let (_, blobs) = stored(&mut world, &[9 * MIB]).await;
    without_cache(&directory);
    let faulty = FaultStore::new(world.bucket.clone());
    let config = ContentStoreConfig {
        cache_dir: world.cache_dir.clone(),
        timeout_ms: 10_000,
        downloads: 1,
        ..world.config.clone()
    };
    let entropy = Arc::new(SeededEntropy::new(9));
    let opened = ContentStore::open(
        Arc::new(faulty.clone()),
        world.keyring.clone(),
        entropy,
        config,
    );
    let store = opened.expect("opens");
    store
        .load_index(&IndexSources::of_objects(&world.index), &HashSet::new())
        .await
        .expect("loads");
    let pin = pin(&store, &blobs, b"all").await;
    let away = Strike::with(Fault::FailBefore(bkfs_store::StoreErrorKind::Unreachable));
    faulty.plan(away.keys("data/").nth(4).always());
    let progress = PinProgress::default();
    let failed = store.bring(&pin, &progress).await.expect_err("is away");
    assert!(matches!(failed, PinError::Content(_)), "{failed}");
    let brought = progress.fetched_bytes.load(Ordering::Relaxed);
    assert!(brought > 0);
    faulty.heal();
    let (found, fetched) = bring(&store, &pin).await;
    assert_eq!(found + fetched, pin.facts().stored_bytes);
    assert!(found >= brought, "{found} of {brought}");
}

#[tokio::test]
async fn one_task_brings_a_pin_at_a_time_and_a_read_joins_it() {
    let (mut world, directory) = cached_world(9);
    let (files, blobs) = stored(&mut world, &[6 * MIB]).await;
    without_cache(&directory);
    let store = world.loaded().await;
    let pin = pin(&store, &blobs, b"all").await;
    let pins = store.shared().reader.pins.clone().expect("has");
    let held = pins.hold(&pin).expect("is free");
    let progress = PinProgress::default();
    let busy = store.bring(&pin, &progress).await;
    assert!(matches!(busy, Err(PinError::Busy)), "{busy:?}");
    let busy = store.unpin(&pin).await;
    assert!(matches!(busy, Err(PinError::Busy)), "{busy:?}");
    drop(held);
    let before = store.metrics().bytes_fetched;
    let (brought, read) = tokio::join!(bring(&store, &pin), store.read(&files[0]));
    assert!(read.expect("reads").concat().concat() == noise(40, 6 * MIB));
    let fetched = store.metrics().bytes_fetched - before;
    let total = pin.facts().stored_bytes;
    assert_eq!(brought.0 + brought.1, total);
    assert!(
        fetched < total + total / 4,
        "{fetched} bytes were fetched for {total}"
    );
}
