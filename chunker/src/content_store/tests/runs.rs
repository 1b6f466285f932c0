//! Reads and matches by runs, as a machine that has loaded no index object makes them.

use bkfs_store::{Operation, StoreErrorKind};

use super::bucket::Verdict;
use super::*;
use crate::catalog::{IndexSources, MergeInput, NewRun, RunGroup, RunRef, merge};
use crate::codec::Effort;
use crate::crypto::{Class, Features};
use crate::id::Prefix;
use crate::pack::PackName;

/// Returns a world with a committed file of 24 MiB in many packs, and the file.
pub(super) async fn large_file(seed: u64) -> (World, Bytes) {
    let mut world = World::new(seed, true);
    let content_store = world.loaded().await;
    let ingest = world.ingest(&content_store);
    let file = noise(9, 24 * MIB);
    store_file(&ingest, Profile::Content, &file, 4 * MIB).await;
    world.commit(&ingest).await;
    (world, file)
}

/// Merges all index objects of a world into one run of each class of packs.
pub(super) async fn runs_of(world: &World) -> Vec<RunRef> {
    runs_named(world, 99).await
}

/// As [`runs_of`], under names of this session.
pub(super) async fn runs_named(world: &World, session: u64) -> Vec<RunRef> {
    let content_store = world.content_store();
    let catalog = &content_store.shared.catalog;
    let mut records = Vec::new();
    for reference in &world.index {
        let packs = catalog.records(reference.name).await.expect("read");
        records.extend(packs.iter().cloned());
    }
    let mut runs = Vec::new();
    for (number, class) in [Class::DataPack, Class::MetadataPack]
        .into_iter()
        .enumerate()
    {
        let name = PackName {
            session,
            sequence: number as u32,
            random: 0,
        };
        let key = name.key(Class::Run);
        let keyring = &world.keyring;
        let new = NewRun {
            sealer: keyring.object_sealer(Class::Run, &key, Features::NONE, [number as u8; 32]),
            class,
            range: Prefix([0; 16])..=Prefix([0xff; 16]),
            gone: &HashSet::new(),
            effort: Effort::Level(1),
        };
        let merged = merge(new, vec![MergeInput::Packs(records.iter().collect())]).await;
        let merged = merged.expect("merged");
        let body = merged.body.concat();
        let bytes = body.len() as u64;
        world.bucket.overwrite(&key, Bytes::from(body));
        runs.push(RunRef {
            name,
            bytes,
            class,
            first: Prefix([0; 16]),
            last: Prefix([0xff; 16]),
            records: merged.records,
        });
    }
    runs
}

/// What a root says whose index objects all are covered by one group of these runs.
pub(super) fn covered(world: &World, runs: &[RunRef], dropped: &[PackName]) -> IndexSources {
    IndexSources {
        objects: Vec::new(),
        groups: vec![RunGroup {
            covers: world.index.clone(),
            runs: runs.to_vec(),
            dropped: Arc::new(dropped.iter().copied().collect()),
        }],
    }
}

/// A content store that knows runs alone.
pub(super) async fn by_runs(world: &World, runs: &[RunRef]) -> ContentStore {
    let content_store = world.content_store();
    let sources = covered(world, runs, &[]);
    let loaded = content_store.load_index(&sources, &HashSet::new()).await;
    loaded.expect("no run is opened yet");
    content_store
}

/// A content store that knows runs alone, and matches new data with them.
pub(super) async fn matching(world: &World, runs: &[RunRef], dropped: &[PackName]) -> ContentStore {
    let content_store = world.content_store();
    content_store.match_new_data();
    let sources = covered(world, runs, dropped);
    let loaded = content_store.load_index(&sources, &HashSet::new()).await;
    loaded.expect("the filters are read");
    content_store
}

/// Returns a world with a file of each profile in several packs and index objects, and the files.
pub(super) async fn world_with_files(
    seed: u64,
    is_sealed: bool,
) -> (World, Vec<(StoredRun, Bytes)>) {
    let mut world = World::new(seed, is_sealed);
    let mut files = Vec::new();
    for (number, profile) in [Profile::Grid, Profile::Content, Profile::Raw]
        .into_iter()
        .enumerate()
    {
        let content_store = world.loaded().await;
        let ingest = world.ingest(&content_store);
        let file = content(seed * 10 + number as u64, 5 * MIB + number * 777 + 1);
        files.push((store_file(&ingest, profile, &file, MIB).await, file));
        world.commit(&ingest).await;
    }
    (world, files)
}

#[tokio::test]
async fn files_are_read_by_runs_alone() {
    for is_sealed in [true, false] {
        let (world, files) = world_with_files(70, is_sealed).await;
        let runs = runs_of(&world).await;
        let content_store = by_runs(&world, &runs).await;
        for (stored, file) in &files {
            let read = read_file(&content_store, stored).await.expect("reads");
            assert!(read == *file, "sealed: {is_sealed}");
        }
        let nothing = world.content_store();
        let error = read_file(&nothing, &files[0].0)
            .await
            .expect_err("no index");
        assert!(error.wants_newer_root(), "{error}");
        // Runs that no root names any more are not asked.
        let nothing = IndexSources::default();
        let loaded = content_store.load_index(&nothing, &HashSet::new()).await;
        loaded.expect("closed");
        let missing = Target::Chunk(crate::id::Id([7; 32]));
        let piece = Piece {
            target: missing,
            offset: 0,
            length: 1,
        };
        let error = content_store
            .read(&[piece])
            .await
            .expect_err("it is unknown");
        assert!(error.wants_newer_root(), "{error}");
    }
}

#[tokio::test]
async fn a_first_read_takes_few_requests_and_its_neighbours_none() {
    let (world, files) = world_with_files(71, true).await;
    let runs = runs_of(&world).await;
    world.bucket.forget_requests();
    let content_store = by_runs(&world, &runs).await;
    let asked = |prefix: &str| {
        [Operation::Get, Operation::GetRange, Operation::GetTail]
            .map(|operation| world.bucket.requests(operation, prefix))
            .iter()
            .sum::<u64>()
    };
    assert_eq!(asked(""), 0, "a run is opened when it is asked");
    let (stored, file) = &files[1];
    read_file(&content_store, stored).await.expect("reads");
    let packs = world.bucket.count("data/") + world.bucket.count("meta/");
    let (of_runs, of_index) = (asked("runs/"), asked("index/"));
    assert_eq!(of_index, 0);
    // The header and the end of both runs, and their blocks and names, which are small here.
    assert!(of_runs <= 8, "{of_runs} requests for runs");
    let of_packs = asked("data/") + asked("meta/");
    // Of each pack its header and footer, and the frames in requests of some MiB.
    let bound = 2 * packs as u64 + file.len() as u64 / MIB as u64 + 4;
    assert!(of_packs <= bound, "{of_packs} requests, {packs} packs");
    let before = asked("");
    // What is in memory is read without any look-up.
    let target = stored.extents[0].target.expect("it is noise");
    let places = content_store.places(&target.id()).await;
    places.expect("it is known where it lies");
    read_file(&content_store, stored).await.expect("reads");
    assert_eq!(asked("runs/"), of_runs, "footers answer");
    assert!(asked("") - before <= of_packs, "no more than before");
}

/// Returns a world in which two machines that know nothing of one another have stored the same file,
/// and the file.
pub(super) async fn world_with_copies(seed: u64) -> (World, StoredRun, Bytes) {
    let mut world = World::new(seed, true);
    let file = noise(7, 2 * MIB);
    let mut stored = None;
    for _ in 0..2 {
        let content_store = world.content_store();
        let ingest = world.ingest(&content_store);
        stored = Some(store_file(&ingest, Profile::Content, &file, MIB).await);
        world.commit(&ingest).await;
    }
    (world, stored.expect("stored"), file)
}

/// Returns the keys of the packs of a machine.
fn packs_of(world: &World, machine: u64) -> Vec<String> {
    let mut keys: Vec<String> = [world.bucket.keys("data/"), world.bucket.keys("meta/")].concat();
    keys.retain(|key| key.contains(&format!("/{machine:016x}-")));
    assert!(!keys.is_empty(), "machine {machine} has packs");
    keys
}

#[tokio::test]
async fn a_copy_whose_pack_is_gone_does_not_keep_another_from_being_read() {
    for machine in [1, 2] {
        for is_learned in [false, true] {
            let (world, stored, file) = world_with_copies(72).await;
            let runs = runs_of(&world).await;
            let content_store = by_runs(&world, &runs).await;
            if is_learned {
                // A small part, so that no frame of the rest is cached.
                let piece = pieces(&stored)[0];
                content_store.read(&[piece]).await.expect("reads");
            }
            for key in packs_of(&world, machine) {
                world.bucket.remove(&key);
            }
            let read = read_file(&content_store, &stored).await.expect("reads");
            assert!(read == file, "{machine}, {is_learned}");
            for key in packs_of(&world, 3 - machine) {
                world.bucket.remove(&key);
            }
            let content_store = by_runs(&world, &runs).await;
            let error = read_file(&content_store, &stored).await;
            let error = error.expect_err("all are gone");
            assert!(matches!(error, ContentError::Missing { .. }), "{error}");
        }
    }
}

#[tokio::test]
async fn a_damaged_copy_does_not_keep_another_from_being_read() {
    for machine in [1, 2] {
        let (world, stored, file) = world_with_copies(74).await;
        let runs = runs_of(&world).await;
        let content_store = by_runs(&world, &runs).await;
        let packs = packs_of(&world, machine);
        for key in packs.iter().filter(|key| key.starts_with("data/")) {
            let mut bytes = world.bucket.bytes(key).to_vec();
            // The frames, and not the header or the footer.
            let end = bytes.len() - 3000;
            bytes[200..end].fill(0);
            world.bucket.overwrite(key, Bytes::from(bytes));
        }
        let read = read_file(&content_store, &stored).await.expect("reads");
        assert!(read == file, "{machine}");
    }
}

/// Spoils the middle of each of these objects.
pub(super) fn damage(world: &World, keys: impl Iterator<Item = String>) {
    for key in keys {
        let mut bytes = world.bucket.bytes(&key).to_vec();
        bytes[200..300].fill(0);
        world.bucket.overwrite(&key, Bytes::from(bytes));
    }
}

pub(super) fn keys_of<'a>(runs: &'a [RunRef]) -> impl Iterator<Item = String> + 'a {
    runs.iter().map(|run| run.name.key(Class::Run))
}

#[tokio::test]
async fn a_run_that_is_damaged_costs_a_download_and_no_data() {
    for is_missing in [false, true] {
        let (world, stored, file) = world_with_copies(75).await;
        let runs = runs_of(&world).await;
        match is_missing {
            true => keys_of(&runs).for_each(|key| world.bucket.remove(&key)),
            false => damage(&world, keys_of(&runs)),
        }
        let content_store = by_runs(&world, &runs).await;
        let read = read_file(&content_store, &stored).await.expect("reads");
        assert!(read == file);
        let packs = world.bucket.keys("data/").into_iter();
        let packs = packs.map(|key| PackName::from_key(&key).expect("a pack").1);
        let packs: Vec<PackName> = packs.collect();
        let content_store = by_runs(&world, &runs).await;
        let not_live = content_store.not_live(&packs).await.expect("known");
        assert_eq!(not_live, [], "{} packs", packs.len());
        // Now the index objects are damaged as well.
        let index = world.index.iter();
        damage(&world, index.map(|index| index.name.key(Class::Index)));
        let content_store = by_runs(&world, &runs).await;
        let error = read_file(&content_store, &stored).await;
        let error = error.expect_err("nothing says where it is");
        assert!(error.leaves_open() && !error.is_lost(), "{error}");
    }
}

#[tokio::test]
async fn a_group_of_another_run_is_not_believed() {
    let (world, stored, file) = world_with_copies(76).await;
    let mut runs = runs_of(&world).await;
    runs[0].records -= 1;
    let content_store = by_runs(&world, &runs).await;
    let read = read_file(&content_store, &stored).await.expect("reads");
    assert!(read == file);
    let index = world.index.len() as u64;
    let read = world.bucket.requests(Operation::Get, "index/");
    assert!(read >= index, "{read} index objects are read");
}

#[tokio::test]
async fn tables_at_hand_answer_in_the_place_of_runs() {
    let (world, stored, file) = world_with_copies(77).await;
    let runs = runs_of(&world).await;
    let content_store = world.loaded().await;
    let sources = covered(&world, &runs, &[]);
    let loaded = content_store.load_index(&sources, &HashSet::new()).await;
    loaded.expect("known");
    world.bucket.forget_requests();
    let read = read_file(&content_store, &stored).await.expect("reads");
    assert!(read == file);
    assert_eq!(world.bucket.requests(Operation::GetRange, "runs/"), 0);
    assert_eq!(world.bucket.requests(Operation::Get, "index/"), 0);
}

/// Returns the bytes of new blobs that storing a file again adds.
pub(super) async fn stored_again(
    world: &mut World,
    content_store: &ContentStore,
    file: &Bytes,
) -> u64 {
    let before = content_store.metrics().bytes_new;
    let ingest = world.ingest(content_store);
    store_file(&ingest, Profile::Content, file, MIB).await;
    content_store.metrics().bytes_new - before
}

#[tokio::test]
async fn what_runs_have_is_not_stored_again() {
    let (mut world, files) = world_with_files(78, true).await;
    let runs = runs_of(&world).await;
    let file = files[1].1.clone();
    let content_store = matching(&world, &runs, &[]).await;
    world.bucket.forget_requests();
    let again = stored_again(&mut world, &content_store, &file).await;
    assert_eq!(again, 0);
    let of_runs = world.bucket.requests(Operation::GetRange, "runs/");
    assert!(of_runs <= 6, "{of_runs} requests for blocks and names");
    let footers = world.bucket.requests(Operation::GetTail, "");
    let packs = world.bucket.count("data/") + world.bucket.count("meta/");
    assert!(
        footers <= packs as u64,
        "{footers} footers of {packs} packs"
    );
    assert_eq!(world.bucket.requests(Operation::Get, "index/"), 0);
    // What is new costs nothing.
    world.bucket.forget_requests();
    let other = noise(5, 4 * MIB);
    let again = stored_again(&mut world, &content_store, &other).await;
    assert!(again >= other.len() as u64, "{again}");
    let asked = world.bucket.requests(Operation::GetRange, "runs/");
    assert!(asked <= 1, "{asked} requests for what no run has");
}

#[tokio::test]
async fn a_sample_of_the_filters_finds_the_neighbours() {
    let (mut world, file) = large_file(79).await;
    let runs = runs_of(&world).await;
    // About 370 chunks, so that one in four is in the filters.
    world.config.memory.cache_bytes = 2 * 18 * 370 / 8 / 4;
    let content_store = matching(&world, &runs, &[]).await;
    let before = content_store.metrics().bytes_new;
    let ingest = world.ingest(&content_store);
    store_file(&ingest, Profile::Content, &file, 4 * MIB).await;
    let again = content_store.metrics().bytes_new - before;
    assert!(again * 4 < file.len() as u64, "{again} bytes");
}

#[tokio::test]
async fn condemned_and_dropped_packs_are_not_matched() {
    let (mut world, files) = world_with_files(80, true).await;
    let runs = runs_of(&world).await;
    let file = files[1].1.clone();
    let packs = [world.bucket.keys("data/"), world.bucket.keys("meta/")].concat();
    let packs = packs
        .iter()
        .map(|key| PackName::from_key(key).expect("a pack").1);
    let packs: Vec<PackName> = packs.collect();
    for is_learned in [false, true] {
        for is_dropped in [false, true] {
            let content_store = matching(&world, &runs, &[]).await;
            if is_learned {
                assert_eq!(stored_again(&mut world, &content_store, &file).await, 0);
            }
            let (dropped, condemned) = match is_dropped {
                true => (packs.as_slice(), HashSet::new()),
                false => ([].as_slice(), packs.iter().copied().collect()),
            };
            let sources = covered(&world, &runs, dropped);
            let loaded = content_store.load_index(&sources, &condemned).await;
            loaded.expect("known");
            let again = stored_again(&mut world, &content_store, &file).await;
            assert!(
                again > 4 * MIB as u64,
                "{again}, {is_learned}, {is_dropped}"
            );
            let not_live = content_store.not_live(&packs).await.expect("known");
            assert_eq!(not_live.len(), packs.len(), "{is_learned}, {is_dropped}");
        }
    }
}

#[tokio::test]
async fn what_was_learned_is_forgotten_with_the_run_that_led_to_it() {
    let (mut world, files) = world_with_files(81, true).await;
    let runs = runs_of(&world).await;
    let file = files[1].1.clone();
    let content_store = matching(&world, &runs, &[]).await;
    assert_eq!(stored_again(&mut world, &content_store, &file).await, 0);
    // A root whose runs name none of the packs: they were condemned, forgotten and merged away.
    let index = std::mem::take(&mut world.index);
    let others = runs_named(&world, 98).await;
    world.index = index;
    let none = covered(&world, &others, &[]);
    for sources in [IndexSources::default(), none] {
        let content_store = matching(&world, &runs, &[]).await;
        assert_eq!(stored_again(&mut world, &content_store, &file).await, 0);
        let loaded = content_store.load_index(&sources, &HashSet::new()).await;
        loaded.expect("known");
        let again = stored_again(&mut world, &content_store, &file).await;
        assert!(again > 4 * MIB as u64, "{again}");
    }
}

#[tokio::test]
async fn live_packs_are_known_by_runs() {
    let (world, _) = world_with_files(82, true).await;
    let runs = runs_of(&world).await;
    let content_store = by_runs(&world, &runs).await;
    let packs = [world.bucket.keys("data/"), world.bucket.keys("meta/")].concat();
    let packs = packs
        .iter()
        .map(|key| PackName::from_key(key).expect("a pack").1);
    let mut packs: Vec<PackName> = packs.collect();
    let stranger = PackName {
        session: 77,
        sequence: 1,
        random: 2,
    };
    packs.push(stranger);
    let not_live = content_store.not_live(&packs).await.expect("known");
    assert_eq!(not_live, [stranger]);
    world.bucket.forget_requests();
    packs.pop();
    let not_live = content_store.not_live(&packs).await.expect("known");
    assert_eq!(not_live, []);
    assert_eq!(
        world.bucket.requests(Operation::GetRange, "runs/"),
        0,
        "remembered"
    );
}

#[tokio::test]
async fn a_reference_is_adopted_by_runs() {
    let (mut world, files) = world_with_files(83, true).await;
    let runs = runs_of(&world).await;
    let content_store = by_runs(&world, &runs).await;
    let ingest = world.ingest(&content_store);
    for piece in pieces(&files[0].0) {
        ingest.adopt(piece.target).await.expect("it is live");
    }
    assert!(!ingest.relied_on().is_empty());
    let missing = Target::Chunk(crate::id::Id([7; 32]));
    let error = ingest.adopt(missing).await.expect_err("nothing has it");
    assert!(matches!(error, ContentError::Unknown { .. }), "{error}");
}

#[tokio::test(start_paused = true)]
async fn runs_that_do_not_answer_do_not_hold_a_writer() {
    let (mut world, files) = world_with_files(84, true).await;
    let runs = runs_of(&world).await;
    let file = files[1].1.clone();
    let content_store = matching(&world, &runs, &[]).await;
    world.bucket.script(|operation, key| {
        match key.starts_with("runs/") && operation == Operation::GetRange {
            true => Verdict::Hang,
            false => Verdict::Pass,
        }
    });
    let began = tokio::time::Instant::now();
    let again = stored_again(&mut world, &content_store, &file).await;
    assert!(again > 4 * MIB as u64, "{again}");
    let waited = began.elapsed();
    assert!(waited < Duration::from_secs(5), "{waited:?}");
}

#[tokio::test]
async fn a_run_that_cannot_be_read_fails_the_read_and_not_the_next_one() {
    let (world, files) = world_with_files(73, true).await;
    let runs = runs_of(&world).await;
    let content_store = by_runs(&world, &runs).await;
    world.bucket.script(|operation, key| {
        match key.starts_with("runs/") && operation == Operation::GetRange {
            true => Verdict::Fail(StoreErrorKind::Denied),
            false => Verdict::Pass,
        }
    });
    let (stored, file) = &files[0];
    let error = read_file(&content_store, stored)
        .await
        .expect_err("refused");
    assert!(matches!(error, ContentError::Store(_)), "{error}");
    // No blob counts as lost that was not looked for.
    let each = content_store.read_each(&pieces(stored)).await;
    assert!(each.len() > 1);
    for answer in each {
        let error = answer.expect_err("refused");
        assert!(error.leaves_open() && !error.is_lost(), "{error}");
    }
    world.bucket.behave();
    let read = read_file(&content_store, stored).await.expect("reads");
    assert!(read == *file);
}
