//! The undelete window when a hostile writer shortens it. It counts from what the collecting
//! machine has seen.

use std::path::Path;

use bkfs::maintain::collect::{Collected, Options, Prospect, collect, prospect};
use jiff::{SignedDuration, Timestamp};

use crate::collecting::{OPTIONS, forget_at, gc, with_snapshot_of};
use crate::host::{Bucket, noise};

const WEEK: SignedDuration = SignedDuration::from_hours(24 * 7);

/// Collects `day` days from now, on a machine that remembers in `state`.
fn gc_on_day(bucket: &Bucket, state: &Path, day: i64) -> (Prospect, Collected) {
    bucket.work(bucket.memory.clone(), async |repository| {
        let options = Options {
            undelete_window: WEEK,
            state_dir: Some(state.to_owned()),
            ..OPTIONS
        };
        let now = repository.now() + SignedDuration::from_hours(24 * day);
        let look = async || prospect(repository, &options, now).await;
        let found = look().await.expect("looked");
        let done = collect(repository, look().await.expect("looked again")).await;
        (found, done.expect("collected"))
    })
}

/// A writer can put any date on the snapshots that it forgets.
#[test]
fn the_window_counts_from_when_the_trash_was_first_seen() {
    let bucket = Bucket::new();
    let state = tempfile::tempdir().expect("a directory");
    with_snapshot_of(&bucket, &noise(1, 5 << 20))
        .finish()
        .expect("unmounted");
    bucket.work(bucket.memory.clone(), async |repository| {
        forget_at(repository, "one", Timestamp::UNIX_EPOCH).await;
    });
    for day in [0, 1, 6] {
        let (found, done) = gc_on_day(&bucket, state.path(), day);
        assert_eq!((found.expired, found.dated_back), (0, 1));
        assert_eq!(done.condemned.expired, 0);
        assert!(done.condemned.bytes < 1 << 20, "{done:?}");
    }
    let (found, done) = gc_on_day(&bucket, state.path(), 8);
    assert_eq!((found.dated_back, done.condemned.expired), (0, 1));
    assert!(done.condemned.bytes > 5 << 20, "{done:?}");
}

/// Snapshots that this machine gave up itself have not vanished.
#[test]
fn a_snapshot_that_was_collected_here_is_not_missed() {
    let bucket = Bucket::new();
    let state = tempfile::tempdir().expect("a directory");
    with_snapshot_of(&bucket, &noise(1, 5 << 20))
        .finish()
        .expect("unmounted");
    bucket.work(bucket.memory.clone(), async |repository| {
        forget_at(repository, "one", repository.now()).await;
        let options = Options {
            state_dir: Some(state.path().to_owned()),
            ..OPTIONS
        };
        let now = repository.now() + SignedDuration::from_hours(1);
        let found = prospect(repository, &options, now).await.expect("looked");
        let done = collect(repository, found).await.expect("collected");
        assert_eq!(done.condemned.expired, 1);
    });
    let (found, _) = gc_on_day(&bucket, state.path(), 1);
    assert_eq!((found.vanished.len(), found.lost.len()), (0, 0));
}

fn strip(bucket: &Bucket) {
    bucket.work(bucket.memory.clone(), bkfs_tests::strip);
}

#[test]
fn a_snapshot_that_vanished_is_kept_for_the_window() {
    let bucket = Bucket::new();
    let state = tempfile::tempdir().expect("a directory");
    with_snapshot_of(&bucket, &noise(1, 5 << 20))
        .finish()
        .expect("unmounted");
    let (found, _) = gc_on_day(&bucket, state.path(), 0);
    assert!(found.vanished.is_empty() && found.lost.is_empty());
    strip(&bucket);
    for day in [1, 7] {
        let (found, done) = gc_on_day(&bucket, state.path(), day);
        let names: Vec<&str> = found.vanished.iter().map(|gone| &*gone.name).collect();
        assert_eq!((names, found.lost.len()), (vec!["one"], 0));
        assert_eq!(done.condemned.packs, 0, "{done:?}");
    }
    let (found, done) = gc_on_day(&bucket, state.path(), 9);
    assert!(found.vanished.is_empty());
    assert!(done.condemned.bytes > 5 << 20, "{done:?}");
}

#[test]
fn a_snapshot_that_another_machine_has_collected_holds_nothing_up() {
    let bucket = Bucket::new();
    let state = tempfile::tempdir().expect("a directory");
    with_snapshot_of(&bucket, &noise(1, 5 << 20))
        .finish()
        .expect("unmounted");
    gc_on_day(&bucket, state.path(), 0);
    strip(&bucket);
    // This collector remembers nothing, and frees at once.
    assert!(gc(&bucket).condemned.bytes > 5 << 20);
    let (found, _) = gc_on_day(&bucket, state.path(), 1);
    assert_eq!((found.vanished.len(), found.lost.len()), (0, 1));
}
