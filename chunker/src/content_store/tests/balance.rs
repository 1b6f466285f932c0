//! Writers, workers and a store of different speeds: which of them waits, and the effect on
//! compression.

use std::time::Duration;

use bkfs_store::{Operation, StoreErrorKind};
use bkfs_testing::disk::SimulatedDisk;
use futures::FutureExt;

use super::bucket::Verdict;
use super::*;

/// So small that the caller computes the id itself: only compression needs a worker.
const BLOB_LEN: usize = 32 << 10;

/// Rows of uneven lengths like those of a database: a few constant bytes before random digits.
fn rows(seed: u64, length: usize) -> Bytes {
    let mut rows = Vec::with_capacity(length + 64);
    for digits in noise(seed, length).chunks_exact(64) {
        rows.extend_from_slice(b"a row: ");
        let digits = &digits[usize::from(digits[0] % 32)..];
        rows.extend(digits.iter().map(|byte| b'0' + byte % 10));
    }
    rows.resize(length, b' ');
    Bytes::from(rows)
}

/// Words of a vocabulary of 4,096 words, in random order.
fn words(seed: u64, length: usize) -> Bytes {
    let list = noise(1, 4096 * 6);
    let order = noise(seed, length);
    let word = |choice: &[u8]| {
        let word = usize::from(choice[0]) << 4 | usize::from(choice[1] >> 4);
        let letters = list[6 * word..6 * word + 3 + word % 4].iter();
        letters
            .map(|byte| b'a' + byte % 26)
            .chain([b' '])
            .collect::<Vec<_>>()
    };
    let mut text: Bytes = order.chunks_exact(2).flat_map(word).collect();
    text.truncate(length);
    text
}

/// Returns the total length of all data packs, in bytes.
fn stored_bytes(world: &World) -> usize {
    let keys = world.bucket.keys("data/");
    keys.iter().map(|key| world.bucket.bytes(key).len()).sum()
}

/// Stores blobs while the only worker is busy, until the writer is held back, and commits them all.
/// Returns the number of stored blobs.
async fn store_until_held_back(world: &mut World, blob: impl Fn(usize) -> Bytes) -> usize {
    world.config.workers = 1;
    let content_store = world.loaded().await;
    let ingest = world.ingest(&content_store);
    let (release, held) = std::sync::mpsc::channel::<()>();
    let workers = content_store.shared().workers.clone();
    let busy = tokio::spawn(async move { workers.run(move |_| held.recv()).await });
    let mut taken = 0;
    let mut waiting = loop {
        let mut storing = Box::pin(ingest.store_blob(Kind::Chunk, blob(taken)));
        // Lets the tasks run that pass frames to the workers.
        tokio::task::yield_now().await;
        match (&mut storing).now_or_never() {
            Some(stored) => drop(stored.expect("stores")),
            None => break storing,
        }
        taken += 1;
        assert!(taken * BLOB_LEN < 16 * MIB, "no writer waits");
    };
    assert!(taken * BLOB_LEN >= 4 * MIB, "after {taken}");
    release.send(()).expect("the receiver waits");
    (&mut waiting).await.expect("stores");
    drop(waiting);
    busy.await.expect("ends").expect("runs").expect("received");
    world.commit(&ingest).await;
    taken + 1
}

async fn check_blobs(world: &World, count: usize, blob: impl Fn(usize) -> Bytes) {
    let elsewhere = world.loaded().await;
    for number in 0..count {
        let id = world.keyring.id(Kind::Chunk, &blob(number));
        let read = elsewhere.read_blob(Kind::Chunk, id).await;
        assert!(read.expect("reads") == blob(number), "{number}");
    }
}

#[tokio::test]
async fn writers_wait_for_busy_workers() {
    let mut world = World::new(36, true);
    let blob = |number: usize| noise(3600 + number as u64, BLOB_LEN);
    let stored = store_until_held_back(&mut world, blob).await;
    check_blobs(&world, stored, blob).await;
}

#[tokio::test]
async fn workers_that_are_behind_give_bytes_for_time() {
    let mut hurried = World::new(37, true);
    let blob = |number: usize| rows(3700 + number as u64, BLOB_LEN);
    let count = store_until_held_back(&mut hurried, blob).await;
    check_blobs(&hurried, count, blob).await;
    let mut even = World::new(37, true);
    let content_store = even.loaded().await;
    let ingest = even.ingest(&content_store);
    for number in 0..count {
        let stored = ingest.store_blob(Kind::Chunk, blob(number)).await;
        stored.expect("stores");
        tokio::task::yield_now().await;
    }
    even.commit(&ingest).await;
    let [hurried, even] = [stored_bytes(&hurried), stored_bytes(&even)];
    assert!(hurried > even + even / 200, "{hurried} and {even}");
    assert!(hurried < even + even / 16, "{hurried} and {even}");
}

#[tokio::test(start_paused = true)]
async fn workers_that_are_ahead_give_time_for_bytes() {
    let mut stored = Vec::new();
    for verdict in [Verdict::Pass, Verdict::Wait(Duration::from_secs(20))] {
        let mut world = World::new(38, true);
        world.bucket.script(move |operation, _| match operation {
            Operation::PutNew => verdict,
            _ => Verdict::Pass,
        });
        let content_store = world.loaded().await;
        let ingest = world.ingest(&content_store);
        let file = words(38, 64 * MIB);
        let run = store_file(&ingest, Profile::Grid, &file, MIB).await;
        world.commit(&ingest).await;
        stored.push(stored_bytes(&world));
        world.bucket.behave();
        let elsewhere = world.loaded().await;
        assert!(read_file(&elsewhere, &run).await.expect("reads") == file);
    }
    let [passing, slow] = stored[..] else {
        unreachable!("two of them");
    };
    assert!(slow < passing - passing / 40, "{slow} and {passing}");
}

/// With a spool, memory is given back long before the bucket holds the data.
#[tokio::test(start_paused = true)]
async fn a_spool_that_fills_is_waited_for_as_the_store_is() {
    let mut stored = Vec::new();
    for is_absent in [false, true] {
        let mut world = World::new(39, true);
        let content_store = world.loaded().await;
        let disk = SimulatedDisk::new();
        let ingest = world.spooling(&content_store, &disk, 256 << 20).await;
        if is_absent {
            world.absent(Verdict::Fail(StoreErrorKind::Unreachable));
        }
        let file = words(39, 64 * MIB);
        let run = store_file(&ingest, Profile::Grid, &file, MIB).await;
        assert_eq!(content_store.metrics().bytes_spooled > 0, is_absent);
        world.bucket.behave();
        world.commit(&ingest).await;
        stored.push(stored_bytes(&world));
        let elsewhere = world.loaded().await;
        assert!(read_file(&elsewhere, &run).await.expect("reads") == file);
    }
    let [passing, absent] = stored[..] else {
        unreachable!("two of them");
    };
    assert!(absent < passing - passing / 40, "{absent} and {passing}");
}
