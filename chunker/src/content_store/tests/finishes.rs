//! Seals, floors and lists: the contents of a new root.

use std::time::Duration;

use bkfs_store::Operation;
use tokio::time::Instant;

use super::bucket::Verdict;
use super::*;

#[tokio::test]
async fn a_thousand_seals_keep_the_list_short() {
    let mut world = World::new(40, true);
    let content_store = world.loaded().await;
    let ingest = world.ingest(&content_store);
    let mut blobs = Vec::new();
    for number in 0..1000 {
        let bytes = noise(4000 + number, 300);
        let id = ingest
            .store_blob(Kind::Node, bytes.clone())
            .await
            .expect("is stored");
        blobs.push((id, bytes));
        world.commit(&ingest).await;
        assert!(
            world.index.len() < 24,
            "{} after {number}",
            world.index.len()
        );
    }
    assert_eq!(
        world.index.iter().map(|index| index.packs).sum::<u32>(),
        1000
    );
    let written = world.bucket.count("index/");
    assert_eq!(written, 1000, "one index object for each seal");
    let elsewhere = world.loaded().await;
    for content_store in [&content_store, &elsewhere] {
        for (id, bytes) in &blobs {
            assert_eq!(
                content_store
                    .read_blob(Kind::Node, *id)
                    .await
                    .expect("reads"),
                *bytes
            );
        }
    }
    let other_kind = elsewhere.read_blob(Kind::Segment, blobs[0].0).await;
    assert!(other_kind.is_err(), "a node is no segment");
}

#[tokio::test]
async fn a_reader_who_states_a_wrong_kind_spoils_nothing_for_later_ones() {
    let mut world = World::new(44, true);
    let content_store = world.loaded().await;
    let ingest = world.ingest(&content_store);
    let bytes = Bytes::from_static(b"a node");
    let stored = ingest.store_blob(Kind::Node, bytes.clone()).await;
    let id = stored.expect("stored");
    world.commit(&ingest).await;
    let elsewhere = world.loaded().await;
    let wrong = elsewhere.read_blob(Kind::Segment, id).await;
    assert!(wrong.is_err(), "a node is no segment");
    let right = elsewhere.read_blob(Kind::Node, id).await;
    assert_eq!(right.expect("reads"), bytes);
}

#[tokio::test]
async fn the_order_of_writes_is_data_then_metadata_then_index() {
    let mut world = World::new(41, true);
    let content_store = world.loaded().await;
    let ingest = world.ingest(&content_store);
    let order = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let seen = Arc::clone(&order);
    world.bucket.script(move |operation, key| {
        if operation == Operation::PutNew {
            seen.lock()
                .push(key.split('/').next().unwrap_or_default().to_owned());
        }
        Verdict::Pass
    });
    store_file(&ingest, Profile::Grid, &noise(41, 3 * MIB), MIB).await;
    world.commit(&ingest).await;
    let order = order.lock();
    let first = |class: &str| order.iter().position(|put| put == class).expect(class);
    let last = |class: &str| order.iter().rposition(|put| put == class).expect(class);
    assert!(
        last("data") < first("meta") && last("meta") < first("index"),
        "{order:?}"
    );
}

/// However long a PUT takes, no object that names its object is sent before its answer (rule 1).
#[tokio::test(start_paused = true)]
async fn nothing_is_sent_before_what_it_names_is_acknowledged() {
    const DATA: Duration = Duration::from_secs(5);
    const METADATA: Duration = Duration::from_secs(3);
    let mut world = World::new(49, true);
    let content_store = world.loaded().await;
    let ingest = world.ingest(&content_store);
    let sent = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let seen = Arc::clone(&sent);
    world.bucket.script(move |operation, key| {
        if operation != Operation::PutNew {
            return Verdict::Pass;
        }
        let class = key.split('/').next().unwrap_or_default().to_owned();
        let verdict = match class.as_str() {
            "data" => Verdict::Wait(DATA),
            "meta" => Verdict::Wait(METADATA),
            _ => Verdict::Pass,
        };
        seen.lock().push((class, Instant::now()));
        verdict
    });
    store_file(&ingest, Profile::Grid, &noise(49, 3 * MIB), MIB).await;
    world.commit(&ingest).await;
    let sent = sent.lock();
    let of = |class: &'static str| sent.iter().filter(move |put| put.0 == class);
    let first = |class| of(class).map(|put| put.1).min().expect(class);
    let last = |class| of(class).map(|put| put.1).max().expect(class);
    assert!(first("meta") >= last("data") + DATA, "{sent:?}");
    assert!(first("index") >= last("meta") + METADATA, "{sent:?}");
}

#[tokio::test]
async fn a_conflict_keeps_the_packs_for_the_next_seal() {
    let mut world = World::new(42, true);
    let content_store = world.loaded().await;
    let (ours, theirs) = (world.ingest(&content_store), world.ingest(&content_store));
    let file = noise(42, MIB);
    let stored = store_file(&ours, Profile::Content, &file, MIB).await;
    let finished = ours.finish(&world.index).await.expect("finishes");
    let packs = finished.packs.clone();
    // Another session replaces the root first.
    let other = theirs
        .store_blob(Kind::Node, noise(43, 100))
        .await
        .expect("is stored");
    world.commit(&theirs).await;
    ours.conflicted(finished);
    let finished = ours.finish(&world.index).await.expect("finishes again");
    assert_eq!(finished.packs, packs, "the same packs");
    assert_eq!(finished.index.len(), 2);
    world.index.clone_from(&finished.index);
    ours.committed(finished);
    assert_eq!(world.bucket.count("data/"), 1 + packs.len() - 2);
    let elsewhere = world.loaded().await;
    assert!(read_file(&elsewhere, &stored).await.expect("reads") == file);
    elsewhere.read_blob(Kind::Node, other).await.expect("reads");
}

#[tokio::test]
async fn floors_never_pass_what_is_not_committed() {
    let mut world = World::new(43, true);
    let content_store = world.loaded().await;
    let ingest = world.ingest(&content_store);
    let first = ingest
        .store_blob(Kind::Node, noise(1, 100))
        .await
        .expect("is stored");
    let mark = ingest.mark();
    // Stored after the mark: its references are not in the tree that this seal commits.
    let late = ingest
        .store_blob(Kind::Node, noise(2, 100))
        .await
        .expect("is stored");
    let finished = ingest
        .finish_since(mark, &world.index)
        .await
        .expect("finishes");
    let lowest = finished.packs.iter().map(|pack| pack.sequence).min();
    assert!(
        finished.floor <= lowest.expect("a pack"),
        "the late blob's pack stays its own"
    );
    world.index.clone_from(&finished.index);
    ingest.committed(finished);
    // With a mark that has no references after it, the floor passes all packs.
    let finished = ingest.finish(&world.index).await.expect("finishes");
    let floor = finished.floor;
    assert!(floor > lowest.expect("a pack"));
    ingest.committed(finished);
    // Its own pack now counts as a foreign one: a new reference to it is a reliance.
    assert!(ingest.relied_on().is_empty());
    let mark = ingest.mark();
    let again = ingest
        .store_blob(Kind::Node, noise(1, 100))
        .await
        .expect("is there");
    assert_eq!(again, first);
    assert_eq!(ingest.relied_on().len(), 1);
    let finished = ingest
        .finish_since(mark, &world.index)
        .await
        .expect("finishes");
    assert_eq!(finished.relied_on.len(), 1);
    ingest.committed(finished);
    assert_eq!(
        ingest.relied_on().len(),
        1,
        "made after the line, so not committed"
    );
    let finished = ingest.finish(&world.index).await.expect("finishes");
    ingest.committed(finished);
    assert!(ingest.relied_on().is_empty());
    content_store
        .read_blob(Kind::Node, late)
        .await
        .expect("reads");
}

/// A pack under construction has its name already: a mark drawn now may have later references to
/// blobs in that very pack.
#[tokio::test]
async fn a_pack_that_is_open_at_the_line_stays_own() {
    let mut world = World::new(50, true);
    let content_store = world.loaded().await;
    let ingest = world.ingest(&content_store);
    let store = async |seed| {
        let stored = ingest.store_blob(Kind::Node, noise(seed, 100 << 10)).await;
        stored.expect("is stored")
    };
    // More than a frame, and less than a pack.
    for seed in 1..4 {
        store(seed).await;
    }
    tokio::time::sleep(Duration::from_millis(50)).await;
    let mark = ingest.mark();
    store(4).await;
    let finished = ingest
        .finish_since(mark, &world.index)
        .await
        .expect("finishes");
    let lowest = finished.packs.iter().map(|pack| pack.sequence).min();
    assert!(finished.floor <= lowest.expect("a pack"), "{finished:?}");
    ingest.committed(finished);
}

async fn not_live(content_store: &ContentStore, packs: &HashSet<PackName>) -> usize {
    let found = content_store.not_live(packs).await;
    found.expect("the index answers").len()
}

#[tokio::test]
async fn condemned_packs_are_read_and_not_referred_to() {
    let mut world = World::new(44, true);
    let content_store = world.loaded().await;
    let ingest = world.ingest(&content_store);
    let file = noise(44, MIB);
    let stored = store_file(&ingest, Profile::Content, &file, MIB).await;
    let finished = ingest.finish(&world.index).await.expect("finishes");
    let condemned: HashSet<PackName> = finished.packs.iter().copied().collect();
    world.index.clone_from(&finished.index);
    assert_eq!(not_live(&content_store, &condemned).await, condemned.len());
    ingest.committed(finished);
    assert_eq!(not_live(&content_store, &condemned).await, 0);
    let content_store = world.content_store();
    content_store
        .load_index(&IndexSources::of_objects(&world.index), &condemned)
        .await
        .expect("loads");
    assert_eq!(not_live(&content_store, &condemned).await, condemned.len());
    // An older root that is loaded late makes no condemned pack live again.
    content_store
        .load_index(&IndexSources::of_objects(&world.index), &HashSet::new())
        .await
        .expect("loads");
    assert_eq!(not_live(&content_store, &condemned).await, condemned.len());
    for index in [&[][..], &world.index] {
        let older = content_store
            .load_index(&IndexSources::of_objects(index), &HashSet::new())
            .await;
        older.expect("loads");
    }
    assert_eq!(not_live(&content_store, &condemned).await, condemned.len());
    assert!(read_file(&content_store, &stored).await.expect("reads") == file);
    let ingest = world.ingest(&content_store);
    let refused = ingest.adopt(pieces(&stored)[0].target).await;
    assert!(matches!(refused, Err(ContentError::Unknown { .. })));
    assert_eq!(
        store_file(&ingest, Profile::Content, &file, MIB).await,
        stored
    );
    ingest
        .adopt(pieces(&stored)[0].target)
        .await
        .expect("is here now");
    assert!(ingest.relied_on().is_disjoint(&condemned));
    world.commit(&ingest).await;
    // The file is whole without the condemned packs.
    for pack in &condemned {
        for class in [
            crate::crypto::Class::DataPack,
            crate::crypto::Class::MetadataPack,
        ] {
            world.bucket.remove(&pack.key(class));
        }
    }
    let elsewhere = world.content_store();
    elsewhere
        .load_index(&IndexSources::of_objects(&world.index), &condemned)
        .await
        .expect("loads");
    assert!(read_file(&elsewhere, &stored).await.expect("reads") == file);
}

#[tokio::test]
async fn quarantined_chunks_are_stored_again() {
    let mut world = World::new(45, true);
    let content_store = world.loaded().await;
    let ingest = world.ingest(&content_store);
    let page = noise(45, 16_384);
    let stored = store_file(&ingest, Profile::Grid, &page, MIB).await;
    world.commit(&ingest).await;
    let Some(Target::Chunk(id)) = stored.extents[0].target else {
        panic!("a page alone needs no segment");
    };
    let places = content_store.places(&id).await.expect("answers");
    assert_eq!(places.len(), 1);
    content_store.set_quarantine(places.into_iter().collect());
    let before = world.bucket.count("data/");
    for _ in 0..2 {
        let again = store_file(&ingest, Profile::Grid, &page, MIB).await;
        assert_eq!(again, stored);
        world.commit(&ingest).await;
        // Only once: the new copy is undamaged, and is found from then on.
        assert_eq!(world.bucket.count("data/"), before + 1);
    }
    assert_eq!(content_store.places(&id).await.expect("answers").len(), 2);
    let whole = content_store
        .places(&id)
        .await
        .expect("answers")
        .into_iter();
    let whole = whole.map(|place| PackLocation {
        frame: None,
        ..place
    });
    content_store.set_quarantine(whole.collect());
    store_file(&ingest, Profile::Grid, &page, MIB).await;
    world.commit(&ingest).await;
    assert_eq!(world.bucket.count("data/"), before + 2, "whole packs, too");
}

#[tokio::test]
async fn lists_are_named_by_the_session_and_read_back() {
    let mut world = World::new(46, true);
    let content_store = world.loaded().await;
    let ingest = world.ingest(&content_store);
    let name = ingest.put_list(b"snapshots").await.expect("is written");
    assert_eq!(name.session, ingest.session());
    let key = name.key(crate::crypto::Class::List);
    let payload =
        world
            .keyring
            .open_object(crate::crypto::Class::List, &key, &world.bucket.bytes(&key));
    assert_eq!(payload.expect("opens"), b"snapshots");
}

#[tokio::test(start_paused = true)]
async fn stores_during_a_seal_belong_to_the_next() {
    let mut world = World::new(47, true);
    let content_store = world.loaded().await;
    let ingest = Arc::new(world.ingest(&content_store));
    world.bucket.script(|operation, _| match operation {
        Operation::PutNew => Verdict::Wait(Duration::from_secs(1)),
        _ => Verdict::Pass,
    });
    let first = store_file(&ingest, Profile::Content, &noise(47, MIB), MIB).await;
    let sealing = Arc::clone(&ingest);
    let seal = tokio::spawn(async move { sealing.finish(&[]).await });
    tokio::time::sleep(Duration::from_millis(100)).await;
    let late = noise(48, MIB);
    let second = store_file(&ingest, Profile::Content, &late, MIB).await;
    let finished = seal.await.expect("ends").expect("finishes");
    world.index.clone_from(&finished.index);
    ingest.committed(finished);
    let elsewhere = world.loaded().await;
    read_file(&elsewhere, &first)
        .await
        .expect("the first is in");
    assert!(
        read_file(&elsewhere, &second).await.is_err(),
        "the second is not"
    );
    world.commit(&ingest).await;
    let elsewhere = world.loaded().await;
    assert!(read_file(&elsewhere, &second).await.expect("now it is") == late);
}

#[tokio::test]
async fn a_session_that_is_dropped_stops() {
    let mut world = World::new(48, true);
    let content_store = world.loaded().await;
    let ingest = world.ingest(&content_store);
    store_file(&ingest, Profile::Content, &noise(48, MIB / 2), MIB).await;
    drop(ingest);
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert_eq!(world.bucket.count(""), 0);
}
