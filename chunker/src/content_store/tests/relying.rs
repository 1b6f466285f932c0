//! What sessions rely on, and what is left when they end.

use std::time::Duration;

use super::bucket::Verdict;
use super::*;
use crate::extent::Target;

fn first_target(stored: &StoredRun) -> Target {
    stored
        .extents
        .first()
        .and_then(|extent| extent.target)
        .expect("one")
}

#[tokio::test]
async fn what_is_adopted_is_relied_on_until_it_is_let_go() {
    let mut world = World::new(81, true);
    let content_store = world.loaded().await;
    let ingest = world.ingest(&content_store);
    let stored = store_file(&ingest, Profile::Grid, &noise(81, MIB), MIB).await;
    world.commit(&ingest).await;
    let other = world.ingest(&content_store);
    assert_eq!((ingest.session(), other.session()), (1, 2));
    let before = other.mark();
    other.adopt(first_target(&stored)).await.expect("is live");
    let relied_on = other.relied_on();
    assert_eq!(relied_on.len(), 1);
    other.let_go_before(before);
    assert_eq!(other.relied_on(), relied_on, "it was adopted after that");
    other.let_go_before(other.mark());
    assert!(other.relied_on().is_empty());
}

#[tokio::test]
async fn what_no_live_pack_holds_is_not_adopted() {
    let mut world = World::new(82, true);
    let content_store = world.loaded().await;
    let ingest = world.ingest(&content_store);
    for target in [Target::Chunk(Id([7; 32])), Target::Segment(Id([8; 32]))] {
        let adopted = ingest.adopt(target).await;
        assert!(
            matches!(adopted, Err(ContentError::Unknown { .. })),
            "{adopted:?}"
        );
    }
}

/// Packs of a session hang on their way. The next session of the process has their memory.
#[tokio::test(start_paused = true)]
async fn a_session_that_ends_gives_its_memory_back() {
    let mut world = World::new(83, true);
    let content_store = world.loaded().await;
    let ingest = world.ingest(&content_store);
    world.absent(Verdict::Hang);
    let file = noise(83, 16 * MIB);
    let stored = store_file(&ingest, Profile::Grid, &file, MIB);
    let stored = tokio::time::timeout(Duration::from_secs(60), stored).await;
    assert!(stored.is_ok(), "it fits in memory");
    drop(ingest);
    world.bucket.behave();
    let next = world.ingest(&content_store);
    let file = noise(84, 22 * MIB);
    let stored = store_file(&next, Profile::Grid, &file, MIB);
    let stored = tokio::time::timeout(Duration::from_secs(60), stored).await;
    let stored = stored.expect("there is memory for it");
    world.commit(&next).await;
    assert!(read_file(&content_store, &stored).await.expect("reads") == file);
}
