//! Lists of prefetches: each frame once, within a share of the cache, and behind no read.

use std::time::Duration;

use bkfs_testing::fault::{Fault, FaultStore, Strike};

use super::pinned::{blobs_of, bring, cached_world, pin, stored, without_cache};
use super::*;

/// Returns pieces of 1 KiB at every `step` bytes of a file.
fn places(file: &[Piece], step: u32) -> Vec<Piece> {
    let places = file.iter().flat_map(|piece| {
        let offsets = (0..piece.length).step_by(step as usize);
        offsets.map(|offset| Piece {
            offset,
            length: 1024.min(piece.length - offset),
            ..*piece
        })
    });
    places.collect()
}

/// Returns a content store that has loaded the index, over a store that fails as it is told.
async fn behind_faults(world: &World) -> (Arc<FaultStore>, ContentStore) {
    let faults = Arc::new(FaultStore::new(world.bucket.clone()));
    let store: Arc<dyn Store> = faults.clone();
    let entropy = Arc::new(SeededEntropy::new(1));
    let config = world.config.clone();
    let store = ContentStore::open(store, world.keyring.clone(), entropy, config).expect("opens");
    let sources = IndexSources::of_objects(&world.index);
    let loaded = store.load_index(&sources, &HashSet::new()).await;
    loaded.expect("the index loads");
    (faults, store)
}

/// Stores a file of 12 MiB. Returns its pieces, and a store 100 ms away, with the lists of its chunks
/// in memory.
async fn far_file(world: &mut World) -> (Vec<Piece>, ContentStore) {
    let (mut files, _) = stored(world, &[12 * MIB]).await;
    let (faults, store) = behind_faults(world).await;
    let pieces = files.remove(0);
    let segments = pieces.iter().map(|piece| piece.target.id());
    let segments: Vec<Id> = segments.collect();
    store.chunks_of(&segments).await.expect("reads");
    faults.plan(Strike::with(Fault::Delay(Duration::from_millis(100))).always());
    (pieces, store)
}

/// Returns a KiB in the middle of a piece.
fn inside(piece: &Piece) -> Piece {
    Piece {
        offset: piece.length / 2,
        length: 1024,
        ..*piece
    }
}

#[tokio::test]
async fn each_frame_of_a_list_is_fetched_once_and_no_other() {
    let (mut world, directory) = cached_world(31);
    let (files, _) = stored(&mut world, &[6 * MIB, 3 * MIB]).await;
    without_cache(&directory);
    let store = world.loaded().await;
    let wanted = places(&files[0], MIB as u32);
    let list = store.prefetch_list();
    for piece in &wanted {
        assert!(
            list.bring(std::slice::from_ref(piece))
                .await
                .expect("works")
        );
    }
    let counts = list.counts();
    assert_eq!((counts.found_bytes, counts.failed_frames), (0, 0));
    assert!(counts.fetched_bytes > 0);
    // Lists of chunks come with their neighbours; frames of data do not.
    let sent = store.metrics().bytes_fetched;
    assert!(
        sent <= counts.fetched_bytes + counts.fetched_bytes / 5,
        "{sent} for {counts:?}"
    );
    assert!(list.bring(&wanted).await.expect("works"));
    let requests = store.metrics().get_requests;
    for piece in &wanted {
        store.read(&[*piece]).await.expect("reads");
    }
    assert_eq!(store.metrics().get_requests, requests);
    assert_eq!(store.metrics().bytes_fetched, sent);
    assert_eq!(list.counts(), counts);
    // Another list finds them all.
    let again = store.prefetch_list();
    again.bring(&wanted).await.expect("works");
    let found = again.counts();
    assert_eq!(
        (found.found_bytes, found.fetched_bytes),
        (counts.fetched_bytes, 0)
    );
}

#[tokio::test]
async fn a_list_that_is_in_memory_leaves_turns_to_other_tasks() {
    let mut world = World::new(38, true);
    let (files, _) = stored(&mut world, &[MIB]).await;
    let store = world.loaded().await;
    let list = store.prefetch_list();
    list.bring(&files[0]).await.expect("works");
    let repeated: Vec<Piece> = files[0].iter().copied().cycle().take(2000).collect();
    let mut polls = 0;
    let mut bring = std::pin::pin!(list.bring(&repeated));
    let counted = std::future::poll_fn(|context| {
        polls += 1;
        bring.as_mut().poll(context)
    });
    counted.await.expect("works");
    // A turn is 128 steps.
    assert!(polls >= 10, "{polls}");
}

#[tokio::test]
async fn a_list_fills_half_of_what_pins_leave_and_evicts_none_of_them() {
    let (mut world, directory) = cached_world(32);
    let (files, _) = stored(&mut world, &[2 * MIB, 12 * MIB]).await;
    without_cache(&directory);
    world.config.cache_bytes = 8 * MIB as u64;
    let store = world.loaded().await;
    let pinned = blobs_of(&store, &files[0]).await;
    let pin = pin(&store, &pinned, b"first").await;
    bring(&store, &pin).await;
    let list = store.prefetch_list();
    let mut rounds = 0;
    for piece in &files[1] {
        rounds += 1;
        if !list.bring(&[*piece]).await.expect("works") {
            break;
        }
    }
    assert!(
        rounds < files[1].len() || files[1].len() < 4,
        "it is not full"
    );
    let room = (8 * MIB as u64 - store.metrics().pinned_bytes) / 2;
    let counts = list.counts();
    assert!(counts.fetched_bytes <= room, "{counts:?} of {room}");
    assert!(counts.fetched_bytes > room / 2, "{counts:?} of {room}");
    assert!(
        !list.bring(&files[1]).await.expect("works"),
        "it stays full"
    );
    assert_eq!(list.counts(), counts);
    let alone = store.of_pins_alone().expect("has pins");
    alone.read(&files[0]).await.expect("is pinned still");
    // What is pinned is found, and takes no room.
    let other = store.prefetch_list();
    assert!(other.bring(&files[0]).await.expect("works"));
    assert_eq!(other.counts().fetched_bytes, 0);
}

#[tokio::test]
async fn without_a_disk_a_list_fills_half_of_the_memory() {
    let mut world = World::new(33, true);
    let (files, _) = stored(&mut world, &[12 * MIB]).await;
    let store = world.loaded().await;
    let list = store.prefetch_list();
    assert!(!list.bring(&files[0]).await.expect("works"));
    let half = world.config.memory.cache_bytes / 2;
    let fetched = list.counts().fetched_bytes;
    assert!(fetched > half / 2 && fetched <= half, "{fetched} of {half}");
}

#[tokio::test]
async fn a_read_joins_the_prefetch_that_is_under_way() {
    let mut world = World::new(34, true);
    let (files, _) = stored(&mut world, &[MIB]).await;
    let (faults, store) = behind_faults(&world).await;
    let piece = [Piece {
        length: 1024,
        ..files[0][0]
    }];
    // Lists of chunks are in memory before.
    store.read(&piece).await.expect("reads");
    let far = [Piece {
        offset: files[0][0].length - 1024,
        ..piece[0]
    }];
    faults.plan(Strike::with(Fault::Delay(Duration::from_millis(200))).always());
    let before = store.metrics().get_requests;
    let list = store.prefetch_list();
    let read = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        store.read(&far).await.expect("reads")
    };
    let (brought, _) = tokio::join!(list.bring(&far), read);
    assert!(brought.expect("works"));
    assert_eq!(store.metrics().get_requests - before, 1);
}

#[tokio::test]
async fn what_is_damaged_or_unknown_is_passed_over_and_a_store_that_fails_is_told() {
    let mut world = World::new(35, true);
    let (files, _) = stored(&mut world, &[2 * MIB]).await;
    let store = world.loaded().await;
    let unknown = Piece {
        target: Target::Chunk(Id([9; 32])),
        offset: 0,
        length: 10,
    };
    let absent = Piece {
        target: Target::Segment(Id([9; 32])),
        ..unknown
    };
    let beyond = Piece {
        offset: files[0][0].length,
        ..files[0][0]
    };
    let list = store.prefetch_list();
    let hint = [unknown, absent, beyond, files[0][0]];
    assert!(list.bring(&hint).await.expect("works"));
    assert!(list.counts().fetched_bytes > 0);
    // The packs are gone: no copy can be read.
    let store = world.loaded().await;
    store
        .chunks_of(&[files[0][0].target.id()])
        .await
        .expect("reads");
    let packs = world.bucket.list("data/", None, 1000).await.expect("lists");
    for object in packs {
        world.bucket.delete(&object.key).await.expect("goes");
    }
    let list = store.prefetch_list();
    assert!(list.bring(&files[0]).await.expect("a hint"));
    let counts = list.counts();
    assert!(
        counts.failed_frames > 0 && counts.fetched_bytes == 0,
        "{counts:?}"
    );
}

#[tokio::test]
async fn a_piece_counts_once_no_read_of_it_sends_a_request() {
    let mut world = World::new(39, true);
    let (files, _) = stored(&mut world, &[12 * MIB]).await;
    let store = world.loaded().await;
    let list = store.prefetch_list();
    let told = parking_lot::Mutex::new(vec![0; files[0].len()]);
    let tell = |piece: usize| told.lock()[piece] += 1;
    // The list is full before its end.
    assert!(!list.bring_and_tell(&files[0], &tell).await.expect("works"));
    let told = std::mem::take(&mut *told.lock());
    let count = told.iter().sum::<usize>();
    assert!(count > 0 && count < told.len(), "{told:?}");
    let requests = store.metrics().get_requests;
    for (piece, told) in files[0].iter().zip(&told) {
        assert!(*told <= 1);
        if *told == 1 {
            store.read(&[*piece]).await.expect("reads");
        }
    }
    assert_eq!(store.metrics().get_requests, requests);
}

#[tokio::test(start_paused = true)]
async fn a_read_comes_before_the_prefetches_that_wait() {
    let mut world = World::new(36, true);
    world.config.downloads = 8;
    let (pieces, store) = far_file(&mut world).await;
    let (last, first) = pieces.split_last().expect("has several");
    let begun = tokio::time::Instant::now();
    let list = store.prefetch_list();
    let read = async {
        tokio::time::sleep(Duration::from_millis(10)).await;
        store.read(&[inside(last)]).await.expect("reads");
        begun.elapsed()
    };
    // Far more requests than may run.
    let bring = async |piece: &Piece| list.bring(&places(&[*piece], 384 << 10)).await;
    let brought = futures::future::join_all(first.iter().map(bring));
    let (brought, waited) = tokio::join!(brought, read);
    assert!(brought.into_iter().all(|brought| brought.is_ok()));
    assert!(
        begun.elapsed() >= Duration::from_millis(300),
        "it was too fast to wait for"
    );
    assert_eq!(waited, Duration::from_millis(110));
}

#[tokio::test(start_paused = true)]
async fn a_read_does_not_wait_for_the_memory_of_prefetches() {
    let mut world = World::new(37, true);
    world.config.downloads = 8;
    world.config.memory.fetch_bytes = 10 * MIB as u64;
    let (pieces, store) = far_file(&mut world).await;
    let begun = tokio::time::Instant::now();
    let (first, rest) = pieces.split_at(8);
    let bring = async |pieces: &[Piece]| {
        let bytes = pieces.iter().map(|piece| u64::from(piece.length)).sum();
        let room = store.prefetch(bytes).expect("there is room");
        room.bring(pieces).await;
        begun.elapsed()
    };
    let read = async |piece: &Piece| {
        tokio::time::sleep(Duration::from_millis(10)).await;
        store.read(&[inside(piece)]).await.expect("reads");
        begun.elapsed()
    };
    // The second read joins a prefetch that waits for memory.
    let (ahead, _, other, joined) = tokio::join!(
        bring(first),
        bring(&rest[..1]),
        read(&rest[1]),
        read(&rest[0])
    );
    assert!(ahead >= Duration::from_millis(200), "{ahead:?} is no wait");
    assert_eq!(other, Duration::from_millis(110));
    assert!(joined <= Duration::from_millis(210), "{joined:?}");
    let most = store.shared.reader.fetch_gate.peak();
    assert!(most <= 10 * MIB as u64, "{most}");
}

#[tokio::test(start_paused = true)]
async fn prefetches_borrow_the_memory_of_an_idle_writer() {
    for has_writer in [false, true] {
        let mut world = World::new(38, true);
        world.config.memory.fetch_bytes = 10 * MIB as u64;
        let (pieces, store) = far_file(&mut world).await;
        let writer = has_writer.then(|| world.ingest(&store));
        let begun = tokio::time::Instant::now();
        let room = store.prefetch(8 * MIB as u64).expect("there is room");
        room.bring(&pieces).await;
        let is_at_once = begun.elapsed() < Duration::from_millis(200);
        assert_eq!(is_at_once, has_writer, "{:?}", begun.elapsed());
        assert_eq!(store.metrics().pending_bytes, 0, "it is not to be written");
        drop(writer);
    }
}
