//! A failing store: either everything succeeds in the end, or the error is clear and no
//! acknowledged data is lost.

use std::sync::atomic::{AtomicU64, Ordering};

use bkfs_store::{Operation, StoreErrorKind};

use super::bucket::Verdict;
use super::*;

#[tokio::test]
async fn a_frame_whose_fetch_is_abandoned_is_asked_for_again() {
    let mut world = World::new(33, true);
    let content_store = world.loaded().await;
    let ingest = world.ingest(&content_store);
    let blob = noise(33, 10_000);
    let stored = ingest.store_blob(Kind::Chunk, blob.clone()).await;
    let id = stored.expect("stores");
    world.commit(&ingest).await;
    let content_store = world.loaded().await;
    let begun = content_store.shared().reader.begin_in_vain(&id).await;
    let reading = tokio::spawn({
        let content_store = content_store.clone();
        async move { content_store.read_blob(Kind::Chunk, id).await }
    });
    // The reader waits for the fetch of another caller, which ends without an answer.
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    drop(begun);
    assert_eq!(reading.await.expect("no panic").expect("reads"), blob);
}

/// Stores two files with a commit after each. Returns the files committed before the first error,
/// and that error.
async fn job(world: &mut World) -> (Vec<(StoredRun, Bytes)>, Option<ContentError>) {
    let mut acknowledged = Vec::new();
    let content_store = world.content_store();
    let ingest = world.ingest(&content_store);
    for number in 0..2 {
        let file = content(300 + number, 2 * MIB);
        let stored = ingest
            .store_run(Profile::Content, 0, vec![file.clone()], true)
            .await;
        let stored = match stored {
            Ok(stored) => stored,
            Err(error) => return (acknowledged, Some(error)),
        };
        match ingest.finish(&world.index).await {
            Ok(finished) => {
                world.index.clone_from(&finished.index);
                ingest.committed(finished);
            }
            Err(error) => return (acknowledged, Some(error)),
        }
        acknowledged.push((stored, file));
    }
    (acknowledged, None)
}

/// Runs the job once for each request number at which the failure begins. It lasts for `times`
/// requests.
async fn sweep(verdict: Verdict, times: u64, must_succeed: bool) {
    let mut number = 0;
    loop {
        let mut world = World::new(30, true);
        let count = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&count);
        world.bucket.script(move |operation, _| {
            if !operation.is_write() {
                return Verdict::Pass;
            }
            let now = counted.fetch_add(1, Ordering::SeqCst);
            match (number..number + times).contains(&now) {
                true => verdict,
                false => Verdict::Pass,
            }
        });
        let (acknowledged, error) = job(&mut world).await;
        world.bucket.behave();
        if let Some(error) = &error {
            assert!(!must_succeed, "request {number}: {error}");
            assert!(
                matches!(error.cause(), ContentError::Store(_)),
                "request {number}: {error}"
            );
        } else {
            assert_eq!(acknowledged.len(), 2);
        }
        let elsewhere = world.loaded().await;
        for (stored, file) in &acknowledged {
            assert!(
                read_file(&elsewhere, stored).await.expect("reads") == *file,
                "request {number}"
            );
        }
        if count.load(Ordering::SeqCst) <= number {
            assert!(number >= 6, "the job makes {number} writes");
            return;
        }
        number += 1;
    }
}

#[tokio::test(start_paused = true)]
async fn every_write_may_fail_for_a_while() {
    for kind in [
        StoreErrorKind::Unreachable,
        StoreErrorKind::Throttled,
        StoreErrorKind::OutcomeUnknown,
    ] {
        sweep(Verdict::Fail(kind), 5, true).await;
    }
    sweep(Verdict::Fail(StoreErrorKind::Other), 2, true).await;
}

#[tokio::test(start_paused = true)]
async fn every_write_may_be_applied_without_our_knowing() {
    for kind in [
        StoreErrorKind::OutcomeUnknown,
        StoreErrorKind::AlreadyExists,
        StoreErrorKind::Unreachable,
    ] {
        sweep(Verdict::ApplyAndFail(kind), 1, true).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_write_that_is_refused_for_good_is_a_clear_error() {
    for kind in [StoreErrorKind::NoSpace, StoreErrorKind::NoBucket] {
        sweep(Verdict::Fail(kind), u64::MAX / 2, false).await;
    }
}

#[tokio::test(start_paused = true)]
async fn expired_credentials_drop_nothing() {
    sweep(Verdict::Fail(StoreErrorKind::Denied), 6, true).await;
    let mut world = World::new(39, true);
    let content_store = world.loaded().await;
    let ingest = world.ingest(&content_store);
    world
        .bucket
        .script(|operation, _| match operation.is_write() {
            true => Verdict::Fail(StoreErrorKind::Denied),
            false => Verdict::Pass,
        });
    let file = noise(39, MIB);
    let stored = store_file(&ingest, Profile::Content, &file, MIB).await;
    let stalled = ingest.finish(&[]).await.expect_err("writes are denied");
    assert!(
        stalled.to_string().contains("as told"),
        "{stalled} says why"
    );
    assert!(matches!(stalled, ContentError::Stalled { .. }));
    world.bucket.behave();
    world.commit(&ingest).await;
    assert!(
        read_file(&world.loaded().await, &stored)
            .await
            .expect("reads")
            == file
    );
}

/// A restored gateway answers for a store that is not restored yet.
#[tokio::test(start_paused = true)]
async fn a_refusal_after_a_long_silence_is_waited_out() {
    let silence = Duration::from_secs(2000);
    let mut world = World::new(40, true);
    let content_store = world.loaded().await;
    content_store.bear_refusals();
    let ingest = world.ingest(&content_store);
    let (begin, refused) = (tokio::time::Instant::now(), AtomicU64::new(0));
    world.bucket.script(move |operation, _| {
        if !operation.is_write() {
            Verdict::Pass
        } else if begin.elapsed() < silence {
            Verdict::Fail(StoreErrorKind::Unreachable)
        } else if refused.fetch_add(1, Ordering::SeqCst) < 3 {
            Verdict::Fail(StoreErrorKind::NoBucket)
        } else {
            Verdict::Pass
        }
    });
    let file = noise(40, MIB);
    let stored = store_file(&ingest, Profile::Content, &file, MIB).await;
    let stalled = ingest.finish(&[]).await.expect_err("no answer");
    assert!(matches!(stalled, ContentError::Stalled { .. }), "{stalled}");
    tokio::time::sleep(silence).await;
    world.commit(&ingest).await;
    let read = read_file(&world.loaded().await, &stored).await;
    assert!(read.expect("reads") == file);
}

#[tokio::test(start_paused = true)]
async fn a_session_that_lost_something_takes_nothing_more() {
    let mut world = World::new(31, true);
    let content_store = world.loaded().await;
    let ingest = world.ingest(&content_store);
    world.bucket.script(|operation, key| match operation {
        Operation::PutNew if key.starts_with("data/") => Verdict::Fail(StoreErrorKind::NoSpace),
        _ => Verdict::Pass,
    });
    let file = noise(31, MIB);
    let stored = store_file(&ingest, Profile::Content, &file, MIB).await;
    let failed = ingest
        .finish(&[])
        .await
        .expect_err("the data is not in the bucket");
    assert!(matches!(failed, ContentError::Failed(_)));
    let ContentError::Store(cause) = failed.cause() else {
        panic!("{failed}");
    };
    assert_eq!(cause.kind(), StoreErrorKind::NoSpace);
    world.bucket.behave();
    let more = ingest
        .store_run(Profile::Content, 0, vec![noise(32, 100)], true)
        .await;
    assert!(matches!(more, Err(ContentError::Failed(_))));
    let blob = ingest.store_blob(Kind::Node, noise(33, 100)).await;
    assert!(matches!(blob, Err(ContentError::Failed(_))));
    assert!(matches!(
        ingest.finish(&[]).await,
        Err(ContentError::Failed(_))
    ));
    assert!(ingest.failure().is_some());
    assert!(
        read_file(&content_store, &stored)
            .await
            .expect("is here still")
            == file
    );
    assert_eq!(
        world.bucket.count("meta/") + world.bucket.count("index/"),
        0,
        "nothing names what is not there"
    );
}

#[tokio::test(start_paused = true)]
async fn a_store_that_hangs_stalls_waiters_and_loses_nothing() {
    let mut world = World::new(32, true);
    world.config.timeout_ms = 60_000;
    let content_store = world.loaded().await;
    let ingest = world.ingest(&content_store);
    world.bucket.script(|operation, _| match operation {
        Operation::PutNew => Verdict::Fail(StoreErrorKind::Unreachable),
        _ => Verdict::Pass,
    });
    let file = noise(32, MIB);
    let stored = store_file(&ingest, Profile::Content, &file, MIB).await;
    let begin = tokio::time::Instant::now();
    let stalled = ingest.finish(&[]).await.expect_err("nothing arrives");
    assert!(
        matches!(stalled, ContentError::Stalled { last: Some(_), .. }),
        "{stalled}"
    );
    assert_eq!(begin.elapsed().as_secs(), 60);
    assert!(
        read_file(&content_store, &stored)
            .await
            .expect("is here still")
            == file
    );
    // Writers are held back when the budget is used up, and then get an error.
    let mut held_back = false;
    for number in 0..40 {
        let more = ingest
            .store_run(Profile::Content, 0, vec![noise(3200 + number, MIB)], true)
            .await;
        if let Err(error) = more {
            assert!(matches!(error, ContentError::Stalled { .. }), "{error}");
            held_back = true;
            break;
        }
    }
    assert!(held_back);
    assert!(content_store.metrics().pending_peak_bytes <= 24 << 20);
    world.bucket.behave();
    world.commit(&ingest).await;
    let elsewhere = world.loaded().await;
    assert!(read_file(&elsewhere, &stored).await.expect("reads") == file);
}

#[tokio::test(start_paused = true)]
async fn the_gauge_of_pending_bytes_is_that_of_all_sessions() {
    let mut world = World::new(34, true);
    let content_store = world.loaded().await;
    let (first, second) = (world.ingest(&content_store), world.ingest(&content_store));
    world.bucket.script(|operation, _| match operation {
        Operation::PutNew => Verdict::Wait(Duration::from_secs(20)),
        _ => Verdict::Pass,
    });
    store_file(&first, Profile::Content, &noise(34, 4 * MIB), 4 * MIB).await;
    let pending = content_store.metrics().pending_bytes;
    assert!(pending >= MIB as u64, "{pending}");
    store_file(&second, Profile::Content, &noise(35, 1000), 1000).await;
    let both = content_store.metrics().pending_bytes;
    assert!(both >= pending, "{both} after {pending}");
    drop(second);
    world.commit(&first).await;
    drop(first);
    assert_eq!(content_store.metrics().pending_bytes, 0);
}

#[tokio::test(start_paused = true)]
async fn memory_stays_within_the_budget_when_the_store_is_slow() {
    let mut world = World::new(33, true);
    let content_store = world.loaded().await;
    let ingest = world.ingest(&content_store);
    world.bucket.script(|operation, _| match operation {
        Operation::PutNew => Verdict::Wait(Duration::from_secs(20)),
        _ => Verdict::Pass,
    });
    let file = noise(33, 64 * MIB);
    let stored = store_file(&ingest, Profile::Content, &file, 4 * MIB).await;
    world.commit(&ingest).await;
    let metrics = content_store.metrics();
    assert!(
        metrics.pending_peak_bytes <= 24 << 20,
        "{}",
        metrics.pending_peak_bytes
    );
    assert!(
        metrics.pending_peak_bytes >= 8 << 20,
        "the budget is made use of"
    );
    assert_eq!(metrics.pending_bytes, 0);
    world.bucket.behave();
    let elsewhere = world.loaded().await;
    assert!(read_file(&elsewhere, &stored).await.expect("reads") == file);
}

#[tokio::test(start_paused = true)]
async fn reads_survive_a_store_that_fails_for_a_while() {
    let mut world = World::new(34, true);
    let content_store = world.loaded().await;
    let ingest = world.ingest(&content_store);
    let file = content(34, 3 * MIB);
    let stored = store_file(&ingest, Profile::Content, &file, MIB).await;
    world.commit(&ingest).await;
    let content_store = world.content_store();
    let count = AtomicU64::new(0);
    world
        .bucket
        .script(move |_, _| match count.fetch_add(1, Ordering::SeqCst) % 3 {
            0 => Verdict::Pass,
            1 => Verdict::Fail(StoreErrorKind::Unreachable),
            _ => Verdict::Fail(StoreErrorKind::Throttled),
        });
    let loaded = content_store
        .load_index(&IndexSources::of_objects(&world.index), &HashSet::new())
        .await;
    loaded.expect("loads in the end");
    assert!(
        read_file(&content_store, &stored)
            .await
            .expect("reads in the end")
            == file
    );
    assert!(content_store.metrics().retries > 0);
    world.bucket.script(|_, _| Verdict::Hang);
    let content_store = world.content_store();
    let hangs = content_store
        .load_index(&IndexSources::of_objects(&world.index), &HashSet::new())
        .await;
    assert!(matches!(hangs, Err(ContentError::Stalled { .. })));
}

#[tokio::test(start_paused = true)]
async fn damage_is_an_error_of_that_range_only() {
    for is_sealed in [true, false] {
        let mut world = World::new(35, is_sealed);
        let content_store = world.loaded().await;
        let ingest = world.ingest(&content_store);
        let file = noise(35, 4 * MIB);
        let stored = store_file(&ingest, Profile::Content, &file, 4 * MIB).await;
        world.commit(&ingest).await;
        let key = world.bucket.keys("data/").remove(1);
        let mut bytes = world.bucket.bytes(&key).to_vec();
        bytes[300_000] ^= 1;
        world.bucket.overwrite(&key, Bytes::from(bytes));
        let content_store = world.loaded().await;
        let mut damaged = 0;
        for (extent, answer) in stored
            .extents
            .iter()
            .zip(content_store.read_each(&pieces(&stored)).await)
        {
            let start = extent.offset as usize;
            match answer {
                Ok(parts) => assert!(parts.concat() == file[start..start + extent.length as usize]),
                Err(ContentError::Damaged { object, .. }) => {
                    assert_eq!(object, key);
                    damaged += 1;
                }
                Err(error) => panic!("{error}"),
            }
        }
        assert!((1..=3).contains(&damaged), "{damaged} extents");
        // The next write of the same data stores it again, which heals it.
        let ingest = world.ingest(&content_store);
        let again = store_file(&ingest, Profile::Content, &file, 4 * MIB).await;
        assert_eq!(stored, again);
        world.commit(&ingest).await;
        assert!(read_file(&content_store, &stored).await.expect("reads") == file);
        let elsewhere = world.loaded().await;
        assert!(
            read_file(&elsewhere, &stored).await.expect("reads") == file,
            "tries both places"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_garbled_on_the_way_is_fetched_once_more() {
    let mut world = World::new(38, true);
    let content_store = world.loaded().await;
    let ingest = world.ingest(&content_store);
    let file = noise(38, 3 * MIB);
    let stored = store_file(&ingest, Profile::Content, &file, 3 * MIB).await;
    world.commit(&ingest).await;
    let content_store = world.loaded().await;
    let seen = parking_lot::Mutex::new(HashSet::new());
    world.bucket.script(move |operation, key| {
        // The first range that is read of each pack.
        match operation == Operation::GetRange && seen.lock().insert(key.to_owned()) {
            true => Verdict::Garble,
            false => Verdict::Pass,
        }
    });
    assert!(read_file(&content_store, &stored).await.expect("reads") == file);
    assert_eq!(content_store.metrics().damaged, 0);
}

#[tokio::test(start_paused = true)]
async fn a_pack_cut_short_still_gives_what_it_has() {
    let mut world = World::new(36, true);
    world.config.pack_bytes = 64 << 20;
    let content_store = world.loaded().await;
    let ingest = world.ingest(&content_store);
    let file = noise(36, 3 * MIB);
    let stored = store_file(&ingest, Profile::Content, &file, 3 * MIB).await;
    world.commit(&ingest).await;
    let key = world.bucket.keys("data/").remove(0);
    let bytes = world.bucket.bytes(&key);
    world.bucket.overwrite(&key, bytes.slice(..2 * MIB));
    let content_store = world.loaded().await;
    let answers = content_store.read_each(&pieces(&stored)).await;
    assert!(answers.first().is_some_and(Result::is_ok));
    assert!(matches!(
        answers.last(),
        Some(Err(ContentError::Damaged { .. }))
    ));
}

#[tokio::test(start_paused = true)]
async fn a_missing_pack_says_so() {
    let mut world = World::new(37, true);
    let content_store = world.loaded().await;
    let ingest = world.ingest(&content_store);
    let file = noise(37, 3 * MIB);
    let stored = store_file(&ingest, Profile::Content, &file, 3 * MIB).await;
    world.commit(&ingest).await;
    let key = world.bucket.keys("data/").remove(0);
    world.bucket.remove(&key);
    let content_store = world.loaded().await;
    let error = read_file(&content_store, &stored)
        .await
        .expect_err("is gone");
    assert!(matches!(&error, ContentError::Missing { object } if *object == key));
    assert!(error.wants_newer_root());
    world
        .bucket
        .remove(&world.index[0].name.key(crate::crypto::Class::Index));
    let error = world
        .content_store()
        .load_index(&IndexSources::of_objects(&world.index), &HashSet::new())
        .await;
    assert!(error.expect_err("is gone").wants_newer_root());
    let unknown = world
        .content_store()
        .read_blob(Kind::Node, Id([7; 32]))
        .await;
    assert!(matches!(unknown, Err(ContentError::Unknown { .. })));
}
