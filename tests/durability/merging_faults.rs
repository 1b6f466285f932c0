//! Merges that meet damage, lost answers and other sessions: what was begun becomes complete, and
//! nothing is lost.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use bkfs::maintain::collect::verifier;
use bkfs::maintain::merging::{MergePolicy, merge_runs};
use bkfs::restore::source::Source;
use bkfs::restore::target::Target;
use bkfs::restore::{resolve, restore};
use bkfs::root::lists::Lists;
use bkfs::root::run_group::{Building, IndexName, RunGroup};
use bkfs_chunker::catalog::RunRef;
use bkfs_chunker::crypto::{Class, HEADER_LEN};
use bkfs_chunker::id::{Kind, Prefix};
use bkfs_chunker::index::PackRecord;
use bkfs_chunker::ingest::{Ingest, RunPlan};
use bkfs_chunker::pack::{FooterBuilder, PackName};
use bkfs_chunker::verify::PackContents;
use bkfs_store::{Store, StoreErrorKind};
use bkfs_testing::counting::CountingStore;
use bkfs_testing::fault::{Fault, FaultStore, Strike};

use crate::collecting::{forget, gc, snapshot, unlink};
use crate::host::{Bucket, noise, runtime};
use crate::merging::*;

/// Spoils one byte of an object, behind its header.
fn spoil(bucket: &Bucket, key: &str) {
    runtime().block_on(async {
        let (bytes, _) = bucket.memory.get(key).await.expect("read");
        let mut bytes = bytes.to_vec();
        let place = 200.min(bytes.len() - 1);
        bytes[place] ^= 1;
        bucket.memory.delete(key).await.expect("removed");
        let put = bucket.memory.put_new(key, vec![bytes.into()]).await;
        put.expect("written");
    });
}

fn has_all(bucket: &Bucket, files: u64) {
    is_whole(bucket);
    let host = without_index(bucket, &groups(bucket));
    for number in 0..files {
        let read = host.read(&format!("file-{number}"));
        assert!(read == Some(noise(number, 3 << 20)), "file {number}");
    }
    host.finish().expect("unmounted");
}

#[test]
fn a_group_whose_run_is_damaged_or_lost_is_merged_anew() {
    let first = Bucket::new();
    for number in 0..3 {
        let host = first.host();
        host.write(&format!("file-{number}"), 0, noise(number, 3 << 20));
        host.finish().expect("unmounted");
        merge(&first, &OBJECTS_ONLY);
    }
    assert_eq!(groups(&first).len(), 3);
    for is_lost in [false, true] {
        let bucket = first.copy();
        let damaged = groups(&bucket)[1].runs[0].name.key(Class::Run);
        match is_lost {
            true => {
                let removed = runtime().block_on(bucket.memory.delete(&damaged));
                removed.expect("removed");
            }
            false => spoil(&bucket, &damaged),
        }
        merge(&bucket, &POLICY);
        let named: Vec<String> = root(&bucket)
            .run_names()
            .map(|name| name.key(Class::Run))
            .collect();
        assert!(!named.contains(&damaged), "lost: {is_lost}");
        assert!(groups(&bucket).iter().all(RunGroup::is_complete));
        assert_eq!(root(&bucket).uncovered_index(), []);
        has_all(&bucket, 3);
    }
}

#[test]
fn an_index_object_that_is_damaged_keeps_no_other_one_from_being_merged() {
    for is_begun in [false, true] {
        let bucket = three_files();
        add_forged(&bucket, 0..2);
        let policy = MergePolicy {
            run_records: 8 << 10,
            ..OBJECTS_ONLY
        };
        if is_begun {
            // Without its last runs.
            let faults = Arc::new(FaultStore::new(bucket.memory.clone()));
            let gone = Strike::with(Fault::FailBefore(StoreErrorKind::Denied)).keys("runs/");
            let gone = gone.on_writes().nth(3).always();
            merge_by(&bucket, &faults, gone, &policy).expect_err("refused");
            let group = root(&bucket).building_group().cloned().expect("begun");
            assert!(!group.runs.is_empty());
            assert_eq!(root(&bucket).index.len(), 1, "they were written into one");
            add_forged(&bucket, 2..4);
        }
        let damaged = root(&bucket).index[0];
        spoil(&bucket, &damaged.name.key(Class::Index));
        merge(&bucket, &policy);
        assert_eq!(
            root(&bucket).uncovered_index(),
            [damaged],
            "begun: {is_begun}"
        );
        let covered = groups(&bucket);
        let is_complete = !covered.is_empty() && covered.iter().all(RunGroup::is_complete);
        assert!(is_complete, "begun: {is_begun}, {covered:?}");
    }
}

#[test]
fn many_damaged_index_objects_keep_no_other_one_from_being_merged() {
    let bucket = three_files();
    add_forged(&bucket, 0..20);
    let objects = root(&bucket).index;
    let damaged: Vec<_> = objects.iter().step_by(2).copied().collect();
    assert!(damaged.len() > 9, "{objects:?}");
    for index in &damaged {
        spoil(&bucket, &index.name.key(Class::Index));
    }
    let policy = MergePolicy {
        run_records: 8 << 10,
        ..OBJECTS_ONLY
    };
    merge(&bucket, &policy);
    let mut left = root(&bucket).uncovered_index();
    left.sort_by_key(|index| index.name);
    let mut damaged = damaged;
    damaged.sort_by_key(|index| index.name);
    assert_eq!(left, damaged);
}

/// Runs that a group had when its merge was broken off.
fn begun(bucket: &Bucket) -> Option<(u64, Vec<RunRef>)> {
    let group = root(bucket).building_group().cloned()?;
    Some((group.begun, group.runs))
}

/// Checks that a merge completes the group that was begun, with the runs that it had.
fn completes(bucket: &Bucket, group: (u64, Vec<RunRef>), what: &str) {
    let (begun, runs) = group;
    merge(bucket, &OBJECTS_ONLY);
    let groups = groups(bucket);
    let group = groups.iter().find(|group| group.begun == begun);
    let group = group.unwrap_or_else(|| panic!("{what}: another one was begun: {groups:?}"));
    assert!(group.is_complete(), "{what}");
    assert!(
        group.runs.starts_with(&runs),
        "{what}: runs are written anew"
    );
    let mut slices: Vec<_> = group
        .runs
        .iter()
        .map(|run| (run.class, run.first))
        .collect();
    slices.sort_unstable_by_key(|(class, first)| (*class as u8, *first));
    slices.dedup();
    assert_eq!(
        slices.len(),
        group.runs.len(),
        "{what}: a slice is there twice"
    );
}

#[test]
fn the_group_that_was_begun_becomes_complete_after_a_kill_at_any_request() {
    let first = three_files();
    for fault in [
        Fault::FailBefore(StoreErrorKind::Denied),
        Fault::FailAfter(StoreErrorKind::Denied),
    ] {
        let mut resumed = 0;
        for request in (1..).step_by(5) {
            let bucket = first.copy();
            let faults = Arc::new(FaultStore::new(bucket.memory.clone()));
            let gone = Strike::with(fault.clone()).nth(request).always();
            let outcome = merge_by(&bucket, &faults, gone, &OBJECTS_ONLY);
            if faults.struck() == 0 {
                outcome.expect("nothing failed");
                break;
            }
            if let Some(group) = begun(&bucket) {
                resumed += u32::from(!group.1.is_empty());
                completes(&bucket, group, &format!("{fault:?}, request {request}"));
            }
            merge(&bucket, &OBJECTS_ONLY);
            has_all(&bucket, 3);
        }
        assert!(resumed > 2, "{resumed} groups were resumed with runs");
    }
}

#[test]
fn a_merge_goes_on_after_any_lost_answer() {
    let first = three_files();
    let mut struck = 0;
    for request in (1..).step_by(2) {
        let bucket = first.copy();
        let faults = Arc::new(FaultStore::new(bucket.memory.clone()));
        let lost = Fault::FailAfter(StoreErrorKind::OutcomeUnknown);
        let lost = Strike::with(lost).on_writes().nth(request);
        let outcome = merge_by(&bucket, &faults, lost, &POLICY);
        if faults.struck() == 0 {
            outcome.expect("nothing failed");
            break;
        }
        struck += 1;
        let merged = outcome.unwrap_or_else(|error| panic!("write {request}: {error}"));
        let groups = groups(&bucket);
        assert!(groups.iter().all(RunGroup::is_complete), "write {request}");
        assert_eq!(root(&bucket).uncovered_index(), [], "write {request}");
        assert!(merged.runs > 6, "write {request}: {merged:?}");
        has_all(&bucket, 3);
        gc(&bucket);
        let left = root(&bucket).run_names().count();
        assert_eq!(
            bucket.count("runs/"),
            left,
            "write {request}: none is left over"
        );
    }
    assert!(struck > 5, "{struck} answers were lost");
}

#[test]
fn merges_commits_and_collections_go_on_at_the_same_time() {
    const ROUNDS: u64 = 5;
    let bucket = three_files();
    let host = bucket.host();
    for round in 0..ROUNDS {
        host.write("old", 0, noise(100 + round, 1 << 20));
        snapshot(&host, &format!("snapshot-{round}"));
        unlink(&host, "old");
    }
    host.run(host.volume().commit()).expect("committed");
    merge(&bucket, &OBJECTS_ONLY);
    let (is_over, merges, deleted) = (AtomicBool::new(false), AtomicU32::new(0), AtomicU32::new(0));
    std::thread::scope(|scope| {
        let merging = scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                let merged = bucket.work(bucket.memory.clone(), async |repository| {
                    let verifier = verifier(repository).expect("opened");
                    merge_runs(repository, &verifier, &POLICY, &|_| true, "merge").await
                });
                // Others may change the root faster than it goes on.
                match merged {
                    Ok(merged) => drop(merges.fetch_add(merged.runs as u32, Ordering::Relaxed)),
                    Err(error) => eprintln!("a merge broke off: {error}"),
                }
            }
        });
        let collecting = scope.spawn(|| {
            for round in 0..ROUNDS {
                bucket.work(bucket.memory.clone(), async |repository| {
                    forget(repository, &format!("snapshot-{round}")).await;
                });
                for _ in 0..2 {
                    let done = gc(&bucket).deleted_packs as u32;
                    deleted.fetch_add(done, Ordering::Relaxed);
                }
            }
        });
        for round in 0..4 * ROUNDS {
            host.write(&format!("new-{round}"), 0, noise(200 + round, 300_000));
            host.run(host.volume().commit()).expect("committed");
            host.wait(0.05);
        }
        collecting.join().expect("collected");
        is_over.store(true, Ordering::Relaxed);
        merging.join().expect("merged");
    });
    host.finish().expect("unmounted");
    assert!(merges.load(Ordering::Relaxed) > 20, "{merges:?} runs");
    for _ in 0..3 {
        deleted.fetch_add(gc(&bucket).deleted_packs as u32, Ordering::Relaxed);
    }
    assert!(
        deleted.load(Ordering::Relaxed) > 0,
        "snapshots were collected"
    );
    merge(&bucket, &POLICY);
    has_all(&bucket, 3);
    let host = without_index(&bucket, &groups(&bucket));
    for round in 0..4 * ROUNDS {
        let read = host.read(&format!("new-{round}"));
        assert!(read == Some(noise(200 + round, 300_000)), "round {round}");
    }
    // What was forgotten is stored again, and no pack that is gone stands for it.
    for round in 0..ROUNDS {
        host.write(&format!("old-{round}"), 0, noise(100 + round, 1 << 20));
    }
    host.finish().expect("unmounted");
    is_whole(&bucket);
    let host = bucket.host();
    for round in 0..ROUNDS {
        assert!(host.read(&format!("old-{round}")) == Some(noise(100 + round, 1 << 20)));
    }
    host.finish().expect("unmounted");
}

/// A pack of other volumes, which only its index says.
fn forged(number: u64) -> PackContents {
    let mut footer = FooterBuilder::new();
    for frame in 0..50 {
        let blobs = (0..10).map(|slot| {
            let blob = (number * 50 + frame) * 10 + slot;
            let hash = blake3::hash(&blob.to_le_bytes());
            let prefix = hash.as_bytes().first_chunk().expect("a hash is longer");
            (Kind::Chunk, 16_384, Prefix(*prefix))
        });
        footer.push(150_000, blobs);
    }
    PackContents::from(PackRecord {
        name: PackName {
            session: 98,
            sequence: number as u32,
            random: number as u32,
        },
        class: Class::DataPack,
        length: 16 << 20,
        header: [number as u8; HEADER_LEN],
        footer: footer.finish().expect("small"),
    })
}

/// Adds index objects of 40 forged packs each.
fn add_forged(bucket: &Bucket, parts: Range<u64>) {
    for part in parts {
        change_root(bucket, async |repository, next| {
            let packs: Vec<PackContents> = (part * 40..(part + 1) * 40).map(forged).collect();
            let ingest = Ingest::new(repository.content_store.clone(), 90 + part);
            next.index
                .extend(ingest.put_index(&packs).await.expect("written"));
        });
    }
}

/// What a machine has asked of a bucket.
#[derive(Debug)]
struct Cost {
    index_requests: u64,
    run_requests: u64,
    requests: u64,
    bytes: u64,
}

/// Restores one file on a machine that knows nothing of the repository.
fn cost_of_a_restore(bucket: &Bucket) -> Cost {
    let counting = Arc::new(CountingStore::new(bucket.memory.clone()));
    let counted = |below: Arc<dyn Store>, keys: &str| {
        let store = Arc::new(FaultStore::new(below));
        store.plan(
            Strike::with(Fault::Delay(Duration::ZERO))
                .keys(keys)
                .always(),
        );
        store
    };
    let index = counted(counting.clone(), "index/");
    let runs = counted(index.clone(), "runs/");
    let home = tempfile::TempDir::new().expect("a directory");
    bucket.work(runs.clone(), async |repository| {
        let (_, view) = repository.snapshot("main", "full").await.expect("found");
        let inode = resolve(&view, b"/file-1").await.expect("it is there");
        let target = Target::at(home.path().join("file-1"));
        let source = Source::whole(view, inode, b"/file-1");
        let restored = restore(
            source,
            Default::default(),
            &target,
            Default::default(),
            Arc::default(),
        );
        restored.await.expect("restored");
    });
    let restored = std::fs::read(home.path().join("file-1")).expect("it is there");
    assert!(restored == noise(1, 3 << 20));
    let total = counting.counters().total();
    Cost {
        index_requests: index.struck(),
        run_requests: runs.struck(),
        requests: total.requests,
        bytes: total.bytes_read,
    }
}

#[test]
fn a_file_on_an_empty_machine_costs_a_few_ranges_and_not_the_index() {
    let bucket = three_files();
    let host = bucket.host();
    snapshot(&host, "full");
    host.finish().expect("unmounted");
    for part in 0..12 {
        change_root(&bucket, async |repository, next| {
            let packs: Vec<PackContents> = (part * 40..(part + 1) * 40).map(forged).collect();
            let ingest = Ingest::new(repository.content_store.clone(), 90 + part);
            next.index
                .extend(ingest.put_index(&packs).await.expect("written"));
        });
    }
    let objects = root(&bucket).index.len() as u64;
    assert!(objects >= 12, "{objects} index objects");
    let before = cost_of_a_restore(&bucket);
    assert!(before.index_requests >= objects, "{before:?}");
    let policy = MergePolicy {
        least_blobs: 1,
        run_records: 128 << 10,
        fan: usize::MAX,
        ..MergePolicy::default()
    };
    merge(&bucket, &policy);
    assert_eq!(root(&bucket).uncovered_index(), []);
    let after = cost_of_a_restore(&bucket);
    assert!(
        after.requests <= before.requests + 10,
        "{before:?}, {after:?}"
    );
    assert_eq!(after.index_requests, 0, "{after:?}");
    assert!(after.run_requests <= 16, "{after:?}");
    let file = 3 << 20;
    assert!(
        (after.bytes - file) * 3 < before.bytes - file,
        "{before:?}, {after:?}"
    );
}

/// Changes one byte of the header in a list of a pack.
fn of_another_header(pack: &PackContents) -> PackContents {
    let mut bytes = Vec::new();
    pack.encode(&mut bytes);
    let header = pack.frames().header;
    let place = bytes
        .windows(header.len())
        .position(|window| window == header);
    bytes[place.expect("it has the header") + 20] ^= 1;
    PackContents::decode(bytes.into()).expect("it has the same form")
}

#[test]
fn a_run_with_a_wrong_record_of_a_pack_is_named() {
    for is_wrong in [false, true] {
        let bucket = three_files();
        change_root(&bucket, async |repository, next| {
            let verifier = verifier(repository).expect("opened");
            let mut packs = Vec::new();
            for index in &next.index {
                packs.extend(verifier.index(*index).await.expect("read"));
            }
            if is_wrong {
                packs[0] = of_another_header(&packs[0]);
            }
            let covers = next.index.iter().map(|index| IndexName(index.name));
            let (covers, from) = (covers.collect(), Vec::new());
            next.begin_group(Building { slices: 1, from }, covers)
                .expect("begun");
            let group = next.building_group().expect("begun").clone();
            let ingest = Ingest::new(repository.content_store.clone(), 99);
            for slice in group.missing() {
                let plan = RunPlan {
                    class: slice.class,
                    prefixes: slice.prefixes,
                    packs: &packs,
                    runs: &[],
                    gone: &HashSet::new(),
                };
                let run = ingest.put_run(plan).await.expect("written");
                next.add_run(group.begun, run).expect("it is missing");
            }
        });
        assert_eq!(groups(&bucket).len(), 1);
        let problems = report(&bucket).problems;
        let found = problems
            .iter()
            .map(|problem| problem.object.starts_with("runs/"));
        let found: Vec<bool> = found.collect();
        assert_eq!(found, vec![true; usize::from(is_wrong)], "{problems:?}");
    }
}

#[test]
fn a_dropped_list_that_a_newer_root_has_deleted_costs_no_download() {
    let (bucket, _) = with_forgotten();
    merge(&bucket, &OBJECTS_ONLY);
    collect_forgotten(&bucket);
    let before = groups(&bucket);
    let lists: Vec<String> = before
        .iter()
        .filter_map(|group| Some(group.dropped?.name.key(Class::List)))
        .collect();
    assert!(!lists.is_empty(), "{before:?}");
    bucket.work(bucket.memory.clone(), async |repository| {
        // The process has the root, and no list yet, when the groups are merged and collected.
        let old = repository.handle.current();
        std::thread::scope(|scope| {
            let merging = scope.spawn(|| {
                merge(&bucket, &POLICY);
                for _ in 0..2 {
                    gc(&bucket);
                }
            });
            merging.join().expect("merged");
        });
        for list in &lists {
            assert!(bucket.memory.get(list).await.is_err(), "{list} is deleted");
        }
        let fresh = Lists::new(bucket.memory.clone(), repository.handle.keyring().clone());
        let error = fresh.sources(&old.root).await.expect_err("it is outdated");
        assert!(error.wants_newer_root(), "{error}");
        repository
            .load_index_to_write()
            .await
            .expect("by the newest root");
        let newest = repository.handle.current();
        assert!(newest.root.generation > old.root.generation);
        let sources = fresh.sources(&newest.root).await.expect("they are there");
        assert_eq!(sources.groups.len(), newest.root.complete_groups().count());
    });
    // A list that the newest root names, and that is lost, costs speed.
    let (bucket, data) = with_forgotten();
    merge(&bucket, &OBJECTS_ONLY);
    collect_forgotten(&bucket);
    let groups = groups(&bucket);
    let lost = groups.iter().filter_map(|group| group.dropped);
    runtime().block_on(async {
        for list in lost {
            let removed = bucket.memory.delete(&list.name.key(Class::List)).await;
            removed.expect("removed");
        }
    });
    let host = bucket.host();
    host.write("new", 0, data.clone());
    host.finish().expect("unmounted");
    let host = bucket.host();
    assert!(host.read("new") == Some(data));
    assert!(host.read("file-2") == Some(noise(2, 3 << 20)));
    host.finish().expect("unmounted");
}
