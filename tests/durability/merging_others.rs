//! Merges next to other programs: one that drops groups of runs, one that makes runs of another form,
//! and a collector that waits for the base of the merge. A merge ends, and holds nothing up.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use bkfs::maintain::collect::verifier;
use bkfs::maintain::merging::{MergePolicy, Merged, Stop, merge_runs};
use bkfs::repository::open_in;
use bkfs::root::run_group::{Building, RunGroup};
use bkfs_chunker::crypto::{Class, Features};
use bkfs_store::{Operation, Store, StoreErrorKind};
use bkfs_testing::fault::{Fault, FaultStore, Gate, Strike};

use crate::collecting::{forget, gc};
use crate::host::{Bucket, Unsealed, noise, opening, runtime};
use crate::merging::*;

/// The most steps that a merge of these tests takes.
const STEPS_MAX: u32 = 60;

/// Three files, each in a group of its own.
fn three_groups() -> Bucket {
    let bucket = Bucket::new();
    for number in 0..3 {
        let host = bucket.host();
        host.write(&format!("file-{number}"), 0, noise(number, 3 << 20));
        host.finish().expect("unmounted");
        merge(&bucket, &OBJECTS_ONLY);
    }
    assert_eq!(groups(&bucket).len(), 3);
    bucket
}

fn has_three(bucket: &Bucket) {
    is_whole(bucket);
    is_readable(without_index(bucket, &groups(bucket)));
}

/// Checks that the root names no run that is gone, that a collection leaves no other run, and that a
/// merge without other programs makes all groups.
fn can_be_merged(bucket: &Bucket, what: &str) {
    for name in root(bucket).run_names() {
        let run = runtime().block_on(bucket.memory.head(&name.key(Class::Run)));
        run.unwrap_or_else(|error| panic!("{what}: {error}"));
    }
    gc(bucket);
    let named = root(bucket).run_names().count();
    assert_eq!(bucket.count("runs/"), named, "{what}: runs are left over");
    let merged = merge(bucket, &POLICY);
    assert_eq!(merged.stop, None, "{what}");
    assert_eq!(root(bucket).uncovered_index(), [], "{what}");
    assert!(groups(bucket).iter().all(RunGroup::is_complete), "{what}");
    has_three(bucket);
}

/// Merges, while an older program replaces the root before the steps for which `drops` is true of the
/// number of steps so far.
fn merge_next_to(bucket: &Bucket, drops: impl Fn(u32) -> bool + Sync) -> Merged {
    let steps = AtomicU32::new(0);
    let goes_on = |_: &Merged| {
        let step = steps.fetch_add(1, Ordering::Relaxed);
        assert!(step < STEPS_MAX, "the merge does not end");
        if drops(step) {
            std::thread::scope(|scope| {
                let other = scope.spawn(|| lose_groups(bucket));
                other.join().expect("replaced");
            });
        }
        true
    };
    let merged = bucket.work(bucket.memory.clone(), async |repository| {
        let verifier = verifier(repository)?;
        merge_runs(repository, &verifier, &POLICY, &goes_on, "merge").await
    });
    merged.expect("it ends well")
}

#[test]
fn a_merge_next_to_a_program_that_drops_groups_ends() {
    for has_groups in [false, true] {
        let bucket = match has_groups {
            true => three_groups(),
            false => three_files(),
        };
        let merged = merge_next_to(&bucket, |_| true);
        assert_eq!(merged.stop, Some(Stop::GroupsGone), "{merged:?}");
        can_be_merged(&bucket, &format!("groups before: {has_groups}"));
    }
}

#[test]
fn a_merge_that_loses_its_groups_once_ends_and_leaves_no_trace() {
    for first in [three_files(), three_groups()] {
        let mut ended = 0;
        for number in (0..14).step_by(2) {
            let bucket = first.copy();
            let merged = merge_next_to(&bucket, |step| step == number);
            let what = format!("before step {number}: {merged:?}");
            match merged.stop {
                Some(Stop::GroupsGone) => ended += 1,
                // There was nothing to drop yet, or the merge was over.
                None => assert_eq!(root(&bucket).uncovered_index(), [], "{what}"),
                stop => panic!("{what}: {stop:?}"),
            }
            can_be_merged(&bucket, &what);
        }
        assert!(ended > 2, "{ended} merges lost groups");
    }
}

#[test]
fn a_merge_that_never_sees_its_own_group_in_the_root_ends() {
    // The first replacement is that of the session; then a group is begun, and runs are named.
    for nth in 2..5 {
        let bucket = three_files();
        let faults = Arc::new(FaultStore::new(bucket.memory.clone()));
        let gate = Gate::new();
        let merged = bucket.work(faults.clone(), async |repository| {
            let verifier = verifier(repository)?;
            let held = Strike::with(Fault::HoldAfter(gate.clone()));
            faults.plan(held.on(Operation::Replace).keys("root").nth(nth));
            let merging = merge_runs(repository, &verifier, &POLICY, &|_| true, "merge");
            let other = async {
                while faults.struck() == 0 {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                std::thread::scope(|scope| {
                    let other = scope.spawn(|| lose_groups(&bucket));
                    other.join().expect("replaced");
                });
                // As a heartbeat does: the newest root is known before the answer arrives.
                repository.handle.refresh().await.expect("read");
                gate.open();
            };
            tokio::join!(merging, other).0
        });
        let merged = merged.expect("it ends well");
        assert_eq!(merged.stop, Some(Stop::GroupsGone), "replacement {nth}");
        can_be_merged(&bucket, &format!("replacement {nth}"));
    }
}

#[test]
fn what_others_condemn_is_held_back_no_longer_than_a_step() {
    let (bucket, data) = with_forgotten();
    let faults = Arc::new(FaultStore::new(bucket.memory.clone()));
    let gates = [Gate::new(), Gate::new()];
    let struck = |times: u64| {
        while faults.struck() < times {
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    std::thread::scope(|scope| {
        let merging = scope.spawn(|| {
            runtime().block_on(async {
                // A request that is held is not sent again for a minute.
                let opening = opening(Duration::from_secs(300));
                let repository = open_in(faults.clone(), opening, &mut Unsealed).await;
                let repository = repository.expect("opened");
                let verifier = verifier(&repository)?;
                for (gate, nth) in gates.iter().zip([2, 3]) {
                    let held = Strike::with(Fault::HoldBefore(gate.clone())).keys("runs/");
                    faults.plan(held.on(Operation::PutNew).nth(nth));
                }
                merge_runs(&repository, &verifier, &OBJECTS_ONLY, &|_| true, "merge").await
            })
        });
        struck(1);
        bucket.work(bucket.memory.clone(), async |repository| {
            forget(repository, "one").await;
        });
        let done = gc(&bucket);
        assert!(done.condemned.packs > 0, "{done:?}");
        let done = gc(&bucket);
        assert!(done.held_packs > 0, "the step began before: {done:?}");
        gates[0].open();
        struck(2);
        let mut deleted = 0;
        let begin = Instant::now();
        while deleted == 0 && begin.elapsed() < Duration::from_secs(20) {
            deleted += gc(&bucket).deleted_packs;
        }
        assert!(!merging.is_finished(), "it is held in the next step");
        gates[1].open();
        merging.join().expect("ends").expect("merged");
        assert!(deleted > 0, "the next step holds nothing back");
    });
    assert!(groups(&bucket).iter().all(RunGroup::is_complete));
    stores_again(&bucket, &data);
}

#[test]
fn one_damaged_answer_takes_no_group_out_of_the_root() {
    let first = three_groups();
    let whole = first.copy();
    let expected = merge(&whole, &POLICY);
    let (runs, index, lists) = (Operation::GetRange, Operation::Get, Operation::Get);
    for (operation, keys, policy) in [
        (runs, "runs/", &POLICY),
        (index, "index/", &OBJECTS_ONLY),
        (lists, "lists/", &POLICY),
    ] {
        let first = match keys {
            "runs/" => first.copy(),
            "index/" => three_files(),
            _ => {
                let (bucket, _) = with_forgotten();
                merge(&bucket, &OBJECTS_ONLY);
                collect_forgotten(&bucket);
                let host = bucket.host();
                host.write("more", 0, noise(20, 3 << 20));
                host.finish().expect("unmounted");
                merge(&bucket, &OBJECTS_ONLY);
                bucket
            }
        };
        let expected = match keys {
            "runs/" => expected,
            _ => merge(&first.copy(), policy),
        };
        let mut struck = 0;
        // Of the key epoch, and of the rest.
        for (bit, step) in [(12 * 8, 1), (70 * 8, 3), (200 * 8, 3)] {
            for nth in (1..).step_by(step) {
                let bucket = first.copy();
                let faults = Arc::new(FaultStore::new(bucket.memory.clone()));
                let flipped = Strike::with(Fault::FlipBit(bit)).on(operation);
                let merged = merge_by(&bucket, &faults, flipped.keys(keys).nth(nth), policy);
                if faults.struck() == 0 {
                    break;
                }
                struck += 1;
                let merged = merged.expect("the second answer is whole");
                // What was dropped would be merged anew.
                let what = format!("{keys}, bit {bit}, answer {nth}");
                assert_eq!((merged.runs, merged.stop), (expected.runs, None), "{what}");
                assert_eq!(merged.records, expected.records, "{what}");
                assert_eq!(root(&bucket).uncovered_index(), [], "{what}");
            }
        }
        assert!(struck > 0, "{keys}");
    }
}

/// Makes a run one of a form that only a newer program reads.
fn renew(bucket: &Bucket, group: &RunGroup) {
    let keyring = bucket.work(bucket.memory.clone(), async |repository| {
        repository.handle.keyring().clone()
    });
    let run = group.runs[0];
    let key = run.name.key(Class::Run);
    let features = Features {
        incompatible: 1 << 40,
        ..Features::NONE
    };
    let object = keyring.seal_object(Class::Run, &key, features, [9; 32], b"another form");
    let mut object = object.to_vec();
    object.resize(run.bytes as usize, 0);
    runtime().block_on(async {
        bucket.memory.delete(&key).await.expect("removed");
        let put = bucket.memory.put_new(&key, vec![object.into()]).await;
        put.expect("written");
    });
}

#[test]
fn a_group_with_a_newer_form_of_run_is_left_alone_and_the_rest_merges() {
    for is_begun in [false, true] {
        let bucket = three_groups();
        let before = groups(&bucket);
        let newer = before[1].clone();
        renew(&bucket, &newer);
        if is_begun {
            // A newer program has begun to merge it.
            change_root(&bucket, async |_, next| {
                let sources = &before[..2];
                let from = sources.iter().map(|group| group.begun).collect();
                let covers = sources.iter().flat_map(|group| group.covers.clone());
                let covers = covers.collect();
                next.begin_group(Building { slices: 1, from }, covers)
                    .expect("begun");
            });
        }
        let before = groups(&bucket);
        let merged = merge(&bucket, &POLICY);
        assert_eq!(merged.stop, is_begun.then_some(Stop::Newer));
        let after = groups(&bucket);
        match is_begun {
            // That program goes on with it.
            true => assert_eq!(after, before),
            false => {
                assert!(after.contains(&newer), "{after:?}");
                assert_eq!(after.len(), 2, "{after:?}");
                assert!(after.iter().all(RunGroup::is_complete));
            }
        }
        let generation = root(&bucket).generation;
        assert_eq!(merge(&bucket, &POLICY).runs, 0, "nothing is left to do");
        let used = root(&bucket).generation - generation;
        assert!(used <= 2, "{used} replacements, for no more than a session");
        is_readable(bucket.host());
    }
}

#[test]
fn a_store_that_denies_runs_is_not_waited_for() {
    let bucket = three_groups();
    let policy = MergePolicy { fan: 3, ..POLICY };
    for operation in [Operation::PutNew, Operation::GetRange] {
        let faults = Arc::new(FaultStore::new(bucket.memory.clone()));
        let denied = Strike::with(Fault::FailBefore(StoreErrorKind::Denied));
        let denied = denied.on(operation).keys("runs/").always();
        let begin = Instant::now();
        let error = merge_by(&bucket, &faults, denied, &policy).expect_err("denied");
        let took = begin.elapsed();
        assert!(took < Duration::from_secs(5), "{operation:?}: {took:?}");
        assert!(error.to_string().contains("runs/"), "{error}");
    }
    has_three(&bucket);
}
