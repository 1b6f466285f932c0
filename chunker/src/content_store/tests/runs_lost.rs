//! Groups of runs that change or fail while they are asked: what readers and writers then find, and
//! what that costs.

use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use bkfs_store::{Operation, StoreErrorKind};

use super::bucket::Verdict;
use super::runs::*;
use super::*;
use crate::catalog::{IndexSources, RunRef};
use crate::content_store::Renew;
use crate::crypto::Class;
use crate::id::Id;
use crate::pack::PackName;

/// A piece of a chunk that nothing has.
fn unknown() -> Piece {
    Piece {
        target: Target::Chunk(Id([7; 32])),
        offset: 0,
        length: 1,
    }
}

fn index_downloads(world: &World) -> u64 {
    world.bucket.requests(Operation::Get, "index/")
}

fn reads_of_runs(world: &World) -> u64 {
    world.bucket.requests(Operation::GetRange, "runs/")
}

/// The newest root of a test.
#[derive(Debug)]
struct Newest {
    sources: IndexSources,
    renewed: AtomicU64,
}

impl Newest {
    fn of(sources: IndexSources) -> Arc<Self> {
        Arc::new(Self {
            sources,
            renewed: AtomicU64::new(0),
        })
    }

    fn renewed(&self) -> u64 {
        self.renewed.load(Ordering::Relaxed)
    }
}

#[async_trait]
impl Renew for Newest {
    async fn renew(&self, content_store: &ContentStore) -> bool {
        self.renewed.fetch_add(1, Ordering::Relaxed);
        let loaded = content_store
            .load_index(&self.sources, &HashSet::new())
            .await;
        loaded.is_ok()
    }
}

#[tokio::test]
async fn a_blob_is_found_after_its_group_has_become_tables_for_another_one() {
    let (world, stored, _) = world_with_copies(85).await;
    let runs = runs_of(&world).await;
    let content_store = by_runs(&world, &runs).await;
    // The search for the first one reads the index objects in the place of the group.
    let mut asked = vec![unknown()];
    asked.extend(pieces(&stored));
    let mut read = content_store.read_each(&asked).await.into_iter();
    let error = read.next().expect("an answer").expect_err("nothing has it");
    assert!(matches!(error, ContentError::Unknown { .. }), "{error}");
    for answer in read {
        answer.expect("it is there");
    }
}

#[tokio::test(start_paused = true)]
async fn index_objects_that_are_committed_while_a_group_is_given_up_stay_known() {
    let (mut world, stored, file) = world_with_copies(86).await;
    let runs = runs_of(&world).await;
    damage(&world, keys_of(&runs));
    let content_store = by_runs(&world, &runs).await;
    let covered = std::mem::take(&mut world.index);
    let slow = |operation: Operation, key: &str| match operation == Operation::Get
        && key.starts_with("index/")
    {
        true => Verdict::Wait(Duration::from_secs(1)),
        false => Verdict::Pass,
    };
    world.bucket.script(slow);
    let ingest = world.ingest(&content_store);
    let other = noise(50, MIB);
    let reader = content_store.clone();
    let reading = tokio::spawn(async move { read_file(&reader, &stored).await });
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(index_downloads(&world) > 0, "the tables are on their way");
    store_file(&ingest, Profile::Content, &other, MIB).await;
    world.commit(&ingest).await;
    assert!(!reading.is_finished(), "the commit is made meanwhile");
    let read = reading.await.expect("ends").expect("reads");
    assert!(read == file);
    let own: Vec<PackName> = [world.bucket.keys("data/"), world.bucket.keys("meta/")]
        .concat()
        .iter()
        .map(|key| PackName::from_key(key).expect("a pack").1)
        .collect();
    let not_live = content_store.not_live(&own).await.expect("known");
    assert_eq!(not_live, [], "{} index objects were covered", covered.len());
}

#[tokio::test]
async fn a_run_that_a_newer_root_has_deleted_costs_no_download() {
    let (world, stored, file) = world_with_copies(87).await;
    let runs = runs_of(&world).await;
    let newer = runs_named(&world, 98).await;
    keys_of(&runs).for_each(|key| world.bucket.remove(&key));
    let newest = Newest::of(covered(&world, &newer, &[]));
    let packs = world.bucket.keys("data/").into_iter();
    let packs: Vec<PackName> = packs
        .map(|key| PackName::from_key(&key).expect("a pack").1)
        .collect();
    for looks in ["reads", "packs", "places"] {
        let content_store = by_runs(&world, &runs).await;
        content_store.renew_by(newest.clone());
        let before = newest.renewed();
        world.bucket.forget_requests();
        match looks {
            "reads" => {
                let read = read_file(&content_store, &stored).await.expect("reads");
                assert!(read == file);
            }
            "packs" => {
                let not_live = content_store.not_live(&packs).await.expect("known");
                assert_eq!(not_live, []);
            }
            _ => {
                let Some(Target::Segment(id) | Target::Chunk(id)) = stored.extents[0].target else {
                    panic!("it is no hole");
                };
                let places = content_store.places(&id).await.expect("known");
                assert_eq!(places.len(), 2, "both machines have it");
            }
        }
        assert_eq!(newest.renewed() - before, 1, "{looks}");
        assert_eq!(index_downloads(&world), 0, "{looks}");
    }
}

#[tokio::test]
async fn a_run_that_is_lost_from_the_newest_root_is_read_from_index_objects() {
    let (world, stored, file) = world_with_copies(88).await;
    let runs = runs_of(&world).await;
    keys_of(&runs).for_each(|key| world.bucket.remove(&key));
    let content_store = by_runs(&world, &runs).await;
    content_store.renew_by(Newest::of(covered(&world, &runs, &[])));
    let read = read_file(&content_store, &stored).await.expect("reads");
    assert!(read == file);
    assert!(index_downloads(&world) > 0);
}

#[tokio::test]
async fn one_damaged_answer_gives_up_no_group() {
    let (world, stored, file) = world_with_copies(96).await;
    let runs = runs_of(&world).await;
    // The version, the key epoch and the salt of a header; another byte of other answers.
    for place in [8, 12, 64] {
        let mut reads = 1;
        for nth in 1.. {
            if nth > reads {
                break;
            }
            let content_store = by_runs(&world, &runs).await;
            content_store.renew_by(Newest::of(covered(&world, &runs, &[])));
            world.bucket.forget_requests();
            let mut asked = 0;
            world.bucket.script(move |operation, key| {
                asked += u64::from(operation == Operation::GetRange && key.starts_with("runs/"));
                match asked == nth && key.starts_with("runs/") {
                    true => Verdict::GarbleAt(place),
                    false => Verdict::Pass,
                }
            });
            let read = read_file(&content_store, &stored).await.expect("reads");
            assert!(read == file, "byte {place} of answer {nth}");
            assert_eq!(index_downloads(&world), 0, "byte {place} of answer {nth}");
            world.bucket.behave();
            reads = reads_of_runs(&world) - 1;
        }
        assert!(reads >= 4, "{reads} reads of two runs");
    }
}

#[tokio::test]
async fn an_unknown_blob_asks_the_newest_root_first() {
    let (world, stored, file) = world_with_copies(89).await;
    let runs = runs_of(&world).await;
    let (mut old, _, _) = world_with_copies(89).await;
    let older = runs_of_none(&mut old).await;
    let content_store = world.content_store();
    for run in &older {
        let key = run.name.key(Class::Run);
        world.bucket.overwrite(&key, old.bucket.bytes(&key));
    }
    let sources = covered(&world, &older, &[]);
    let loaded = content_store.load_index(&sources, &HashSet::new()).await;
    loaded.expect("no run is opened yet");
    content_store.renew_by(Newest::of(covered(&world, &runs, &[])));
    world.bucket.forget_requests();
    let read = read_file(&content_store, &stored).await.expect("reads");
    assert!(read == file);
    assert_eq!(index_downloads(&world), 0);
}

#[tokio::test]
async fn an_unknown_blob_does_not_download_a_large_index() {
    let (world, stored, file) = world_with_copies(90).await;
    let runs = runs_of(&world).await;
    let mut sources = covered(&world, &runs, &[]);
    for index in &mut sources.groups[0].covers {
        index.bytes = 1 << 40;
    }
    let content_store = world.content_store();
    let loaded = content_store.load_index(&sources, &HashSet::new()).await;
    loaded.expect("no run is opened yet");
    world.bucket.forget_requests();
    let error = content_store.read(&[unknown()]).await;
    let error = error.expect_err("nothing has it");
    assert!(matches!(error, ContentError::Unknown { .. }), "{error}");
    assert_eq!(index_downloads(&world), 0);
    let read = read_file(&content_store, &stored).await.expect("reads");
    assert!(read == file);
}

#[tokio::test(start_paused = true)]
async fn readers_of_unknown_blobs_at_the_same_time_pay_once_for_what_is_read() {
    let (mut world, _, _) = world_with_copies(97).await;
    let mut sources = IndexSources::default();
    for (number, reference) in std::mem::take(&mut world.index).into_iter().enumerate() {
        world.index = vec![reference];
        let runs = runs_named(&world, 90 + number as u64).await;
        let mut of_one = covered(&world, &runs, &[]).groups;
        // Two of these may be read, and no third one.
        of_one[0].covers[0].bytes = 100 << 20;
        sources.groups.append(&mut of_one);
    }
    let content_store = world.content_store();
    let loaded = content_store.load_index(&sources, &HashSet::new()).await;
    loaded.expect("no run is opened yet");
    world.bucket.forget_requests();
    world.bucket.script(|operation, key| {
        match operation == Operation::Get && key.starts_with("index/") {
            true => Verdict::Wait(Duration::from_secs(1)),
            false => Verdict::Pass,
        }
    });
    let asked = [unknown()];
    let reads = (0..8).map(|_| content_store.read(&asked));
    for read in futures::future::join_all(reads).await {
        let error = read.expect_err("nothing has it");
        assert!(matches!(error, ContentError::Unknown { .. }), "{error}");
    }
    assert_eq!(index_downloads(&world), 2, "both groups are doubted");
}

#[tokio::test(start_paused = true)]
async fn an_index_is_loaded_while_an_unknown_blob_is_looked_for() {
    let (world, _, _) = world_with_copies(91).await;
    let runs = runs_of(&world).await;
    let content_store = by_runs(&world, &runs).await;
    world.bucket.script(|operation, key| {
        match operation == Operation::Get && key.starts_with("index/") {
            true => Verdict::Hang,
            false => Verdict::Pass,
        }
    });
    let reader = content_store.clone();
    let reading = tokio::spawn(async move { reader.read(&[unknown()]).await });
    tokio::time::sleep(Duration::from_secs(1)).await;
    let sources = covered(&world, &runs, &[]);
    let nothing = HashSet::new();
    let loaded = content_store.load_index(&sources, &nothing);
    let loaded = tokio::time::timeout(Duration::from_secs(1), loaded).await;
    loaded.expect("it waits for no reader").expect("loaded");
    reading.abort();
}

#[tokio::test(start_paused = true)]
async fn a_writer_that_gives_up_a_group_downloads_nothing_and_asks_again_later() {
    let mut world = World::new(92, true);
    let content_store = world.loaded().await;
    let files = [1, 2, 3].map(|seed| noise(seed, 3 * MIB));
    for file in &files {
        let ingest = world.ingest(&content_store);
        store_file(&ingest, Profile::Content, file, MIB).await;
        world.commit(&ingest).await;
    }
    let runs = runs_of(&world).await;
    let content_store = matching(&world, &runs, &[]).await;
    let whole: Vec<(String, Bytes)> = keys_of(&runs)
        .map(|key| (key.clone(), world.bucket.bytes(&key)))
        .collect();
    damage(&world, keys_of(&runs));
    world.bucket.forget_requests();
    let again = stored_again(&mut world, &content_store, &files[0]).await;
    assert!(again >= 3 * MIB as u64, "{again}");
    let sources = covered(&world, &runs, &[]);
    let loaded = content_store.load_index(&sources, &HashSet::new()).await;
    loaded.expect("known");
    assert_eq!(index_downloads(&world), 0, "a commit waits for no download");
    // Longer than a writer asks nothing after a failure.
    tokio::time::sleep(Duration::from_secs(60)).await;
    let asked = reads_of_runs(&world);
    let again = stored_again(&mut world, &content_store, &files[1]).await;
    assert!(again >= 3 * MIB as u64, "{again}");
    assert_eq!(reads_of_runs(&world), asked, "it is given up");
    for (key, bytes) in whole {
        world.bucket.overwrite(&key, bytes);
    }
    tokio::time::sleep(Duration::from_secs(3600)).await;
    let again = stored_again(&mut world, &content_store, &files[2]).await;
    assert_eq!(again, 0, "it is asked again");
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_read_at_all_is_not_asked_for_by_each_look_up() {
    let (world, stored, _) = world_with_copies(93).await;
    let runs = runs_of(&world).await;
    damage(&world, keys_of(&runs));
    let index = world.index.iter();
    damage(&world, index.map(|index| index.name.key(Class::Index)));
    let content_store = by_runs(&world, &runs).await;
    let error = read_file(&content_store, &stored).await;
    error.expect_err("nothing says where it is");
    world.bucket.forget_requests();
    for _ in 0..20 {
        let error = content_store.read(&[unknown()]).await;
        let error = error.expect_err("it cannot be known");
        assert!(error.leaves_open() && !error.is_lost(), "{error}");
    }
    let asked = reads_of_runs(&world) + index_downloads(&world);
    assert!(asked <= 6, "{asked} requests of 20 look-ups");
    tokio::time::sleep(Duration::from_secs(3600)).await;
    let error = content_store.read(&[unknown()]).await;
    error.expect_err("it cannot be known");
    assert!(reads_of_runs(&world) > 0, "it is tried again later");
}

#[tokio::test(start_paused = true)]
async fn a_writer_asks_for_many_blobs_at_once() {
    let (mut world, file) = large_file(94).await;
    let runs = runs_of(&world).await;
    let packs = world.bucket.count("data/") as u32;
    assert!(packs >= 20, "{packs} packs");
    let content_store = matching(&world, &runs, &[]).await;
    world
        .bucket
        .script(|_, _| Verdict::Wait(Duration::from_millis(100)));
    let began = tokio::time::Instant::now();
    let before = content_store.metrics().bytes_new;
    let ingest = world.ingest(&content_store);
    store_file(&ingest, Profile::Content, &file, 24 * MIB).await;
    assert_eq!(content_store.metrics().bytes_new, before);
    let waited = began.elapsed();
    assert!(
        waited < Duration::from_millis(100) * packs,
        "{waited:?}, {packs} packs"
    );
}

/// Returns runs of an index of nothing else than one other file.
async fn runs_of_none(world: &mut World) -> Vec<RunRef> {
    let content_store = world.content_store();
    let ingest = world.ingest(&content_store);
    world.index.clear();
    store_file(&ingest, Profile::Content, &noise(77, MIB), MIB).await;
    world.commit(&ingest).await;
    runs_named(world, 97).await
}

#[tokio::test]
async fn a_run_that_lacks_records_hides_no_blob() {
    let (world, stored, file) = world_with_copies(95).await;
    let (mut other, _, _) = world_with_copies(95).await;
    let runs = runs_of_none(&mut other).await;
    for key in keys_of(&runs) {
        world.bucket.overwrite(&key, other.bucket.bytes(&key));
    }
    let content_store = by_runs(&world, &runs).await;
    content_store.renew_by(Newest::of(covered(&world, &runs, &[])));
    let read = read_file(&content_store, &stored).await.expect("reads");
    assert!(read == file);
    assert!(index_downloads(&world) > 0);
}

#[tokio::test(start_paused = true)]
async fn reads_that_fail_for_an_unknown_blob_are_not_charged() {
    let (world, stored, file) = world_with_copies(98).await;
    let (mut other, _, _) = world_with_copies(98).await;
    let runs = runs_of_none(&mut other).await;
    for key in keys_of(&runs) {
        world.bucket.overwrite(&key, other.bucket.bytes(&key));
    }
    let mut sources = covered(&world, &runs, &[]);
    let covers = &mut sources.groups[0].covers;
    // All of them may be read once, and not twice.
    let each = (200 << 20) / covers.len() as u64;
    covers.iter_mut().for_each(|index| index.bytes = each);
    let content_store = world.content_store();
    let loaded = content_store.load_index(&sources, &HashSet::new()).await;
    loaded.expect("no run is opened yet");
    world.bucket.script(|operation, key| {
        match operation == Operation::Get && key.starts_with("index/") {
            true => Verdict::Fail(StoreErrorKind::Denied),
            false => Verdict::Pass,
        }
    });
    world.bucket.forget_requests();
    for _ in 0..10 {
        let error = content_store.read(&[unknown()]).await;
        error.expect_err("it cannot be known");
        tokio::time::sleep(Duration::from_secs(3600)).await;
    }
    let failed = index_downloads(&world);
    assert!(failed >= 10, "{failed}");
    world.bucket.behave();
    let read = read_file(&content_store, &stored).await.expect("reads");
    assert!(read == file);
}
