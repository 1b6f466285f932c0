//! Reads by runs alone, as a machine that has loaded no index object makes them.

use bkfs_store::{Operation, StoreErrorKind};

use super::bucket::Verdict;
use super::*;
use crate::catalog::{MergeInput, NewRun, RunRef, merge};
use crate::codec::Effort;
use crate::crypto::{Class, Features};
use crate::id::Prefix;
use crate::pack::PackName;

/// Merges all index objects of a world into one run of each class of packs.
async fn runs_of(world: &World) -> Vec<RunRef> {
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
            session: 99,
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
        let body = merge(new, vec![MergeInput::Packs(records.clone())]).await;
        let body = body.expect("merged").concat();
        let bytes = body.len() as u64;
        world.bucket.overwrite(&key, Bytes::from(body));
        runs.push(RunRef { name, bytes });
    }
    runs
}

/// A content store that knows runs alone.
async fn by_runs(world: &World, runs: &[RunRef]) -> ContentStore {
    let content_store = world.content_store();
    content_store.load_runs(runs).await.expect("they open");
    content_store
}

/// Returns a world with a file of each profile in several packs and index objects, and the files.
async fn world_with_files(seed: u64, is_sealed: bool) -> (World, Vec<(StoredRun, Bytes)>) {
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
        content_store.load_runs(&[]).await.expect("closed");
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
    assert_eq!(asked("runs/"), 4, "header and end of both runs");
    let (stored, file) = &files[1];
    read_file(&content_store, stored).await.expect("reads");
    let packs = world.bucket.count("data/") + world.bucket.count("meta/");
    let (of_runs, of_index) = (asked("runs/") - 4, asked("index/"));
    assert_eq!(of_index, 0);
    // The blocks and the names of both runs, which are small here.
    assert!(of_runs <= 4, "{of_runs} requests for blocks and names");
    let of_packs = asked("data/") + asked("meta/");
    // Of each pack its header and footer, and the frames in requests of some MiB.
    let bound = 2 * packs as u64 + file.len() as u64 / MIB as u64 + 4;
    assert!(of_packs <= bound, "{of_packs} requests, {packs} packs");
    let before = asked("");
    read_file(&content_store, stored).await.expect("reads");
    assert_eq!(asked("runs/"), of_runs + 4, "footers answer");
    assert!(asked("") - before <= of_packs, "no more than before");
}

/// Returns a world in which two machines that know nothing of one another have stored the same file,
/// and the file.
async fn world_with_copies(seed: u64) -> (World, StoredRun, Bytes) {
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

#[tokio::test]
async fn a_damaged_run_leaves_open_what_it_lists_and_hides_no_other_run() {
    let (world, stored, file) = world_with_copies(75).await;
    let runs = runs_of(&world).await;
    let [data, metadata] = runs[..] else {
        panic!("two classes");
    };
    // A second run of the same records under another name.
    let key = |run: RunRef| run.name.key(Class::Run);
    let damage = |run: RunRef| {
        let mut bytes = world.bucket.bytes(&key(run)).to_vec();
        bytes[200..300].fill(0);
        world.bucket.overwrite(&key(run), Bytes::from(bytes));
    };
    let other = as_another_run(&world, data).await;
    damage(data);
    let content_store = by_runs(&world, &[data, other, metadata]).await;
    let read = read_file(&content_store, &stored).await.expect("reads");
    assert!(read == file);
    damage(other);
    let content_store = by_runs(&world, &[data, other, metadata]).await;
    let error = read_file(&content_store, &stored).await;
    let error = error.expect_err("no run is whole");
    assert!(error.leaves_open() && !error.is_lost(), "{error}");
}

/// Copies a run under another name.
async fn as_another_run(world: &World, run: RunRef) -> RunRef {
    let content_store = world.content_store();
    let open = content_store.open_run(run).await.expect("it opens");
    let name = PackName {
        session: 98,
        ..run.name
    };
    let key = name.key(Class::Run);
    let new = NewRun {
        sealer: (world.keyring).object_sealer(Class::Run, &key, Features::NONE, [9; 32]),
        class: open.directory().class(),
        range: open.directory().prefixes().clone(),
        gone: &HashSet::new(),
        effort: Effort::Level(1),
    };
    let body = merge(new, vec![MergeInput::Run(&open)]).await;
    let body = body.expect("merged").concat();
    let bytes = body.len() as u64;
    world.bucket.overwrite(&key, Bytes::from(body));
    RunRef { name, bytes }
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
