//! The merge that follows a collection: how much it does, what it says, and how it ends.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bkfs::cli::gc::Collection;
use bkfs::cli::gc_merge::{Bounds, merge as merge_by_gc, merged_text};
use bkfs::cli::output::{Failure, Output};
use bkfs::maintain::merging::{MergePolicy, Merged, Stop};
use bkfs::repository::open_in;
use bkfs::root::run_group::RunGroup;
use bkfs_store::{Operation, StoreErrorKind};
use bkfs_testing::fault::{Fault, FaultStore, Strike};
use serde_json::Value;

use crate::collecting::OPTIONS;
use crate::host::{Bucket, Unsealed, opening, runtime};
use crate::merging::*;

/// Bounds by which all of a small index is merged.
const ALL: Bounds = Bounds {
    policy: OBJECTS_ONLY,
    records_max: u64::MAX,
};

fn output(is_json: bool, is_quiet: bool) -> Output {
    let mut output = Output::new(is_json, is_quiet);
    output.keep_results();
    output
}

/// Merges as a collection does. Returns the exit code and the results.
fn merged(bucket: &Bucket, faults: &Arc<FaultStore>, bounds: &Bounds) -> (i32, Vec<Value>) {
    let output = output(true, true);
    let done = bucket.work(faults.clone(), async |repository| {
        merge_by_gc(repository, bounds, &output, std::future::pending()).await
    });
    (code(&done), output.kept())
}

fn code(done: &Result<(), Failure>) -> i32 {
    done.as_ref().err().map_or(0, Failure::exit_code)
}

fn way_to(bucket: &Bucket) -> Arc<FaultStore> {
    Arc::new(FaultStore::new(bucket.memory.clone()))
}

fn is_merged(bucket: &Bucket) {
    assert!(groups(bucket).iter().all(RunGroup::is_complete));
    assert_eq!(root(bucket).uncovered_index(), []);
    is_whole(bucket);
}

#[test]
fn a_merge_says_what_it_wrote_and_then_nothing() {
    for (is_json, is_quiet) in [(false, false), (false, true), (true, false), (true, true)] {
        let bucket = three_files();
        let output = output(is_json, is_quiet);
        let done = bucket.work(bucket.memory.clone(), async |repository| {
            for _ in 0..2 {
                merge_by_gc(repository, &ALL, &output, std::future::pending()).await?;
            }
            Ok(())
        });
        assert_eq!(code(&done), 0);
        let [line] = &output.kept()[..] else {
            panic!("one line: {:?}", output.kept());
        };
        let root = root(&bucket);
        let runs = root.run_groups().iter().flat_map(|group| &group.runs);
        let (count, records) = runs.fold((0, 0), |(count, records), run| {
            (count + 1, records + run.records)
        });
        assert_eq!(line["merged_runs"], count);
        assert_eq!(line["merged_records"], records);
        assert_eq!(line["merged_bytes"], bucket.bytes("runs/"));
        assert_eq!(line["merge_stopped"], Value::Null);
        assert_eq!(line["merge_error"], Value::Null);
        is_merged(&bucket);
    }
}

#[test]
fn a_small_index_is_not_merged_and_costs_no_request() {
    let bucket = three_files();
    let faults = way_to(&bucket);
    bucket.work(faults.clone(), async |repository| {
        let before = faults.requests();
        let output = output(true, true);
        let bounds = Bounds::default();
        assert_eq!(bounds.records_max, 64 << 20);
        assert_eq!(bounds.policy.least_blobs, 1 << 20);
        let done = merge_by_gc(repository, &bounds, &output, std::future::pending());
        done.await.expect("nothing to do");
        assert_eq!(output.kept(), Vec::<Value>::new());
        assert_eq!(faults.requests(), before);
        assert_eq!(bounds.due_text(&repository.handle.current().root), None);
    });
}

#[test]
fn chunks_are_merged_once_there_are_so_many() {
    let bucket = three_files();
    let root = root(&bucket);
    let blobs: u64 = root.index.iter().map(|index| index.blobs).sum();
    for (least, is_due) in [(blobs, true), (blobs + 1, false)] {
        let policy = MergePolicy {
            least_blobs: least,
            ..OBJECTS_ONLY
        };
        let bounds = Bounds { policy, ..ALL };
        let told = bounds.due_text(&root).unwrap_or_default();
        assert_eq!(told.contains(&format!("{blobs} chunks")), is_due, "{told}");
    }
}

#[test]
fn a_collection_merges_up_to_its_bound_and_the_next_ones_go_on() {
    let bucket = three_files();
    let bounds = Bounds {
        records_max: 4,
        ..ALL
    };
    let mut rounds: Vec<u64> = Vec::new();
    let begun = loop {
        let (code, said) = merged(&bucket, &way_to(&bucket), &bounds);
        assert_eq!(code, 0);
        let line = said.last().expect("it says what was done");
        let done = line["merged_records"].as_u64().expect("a number");
        rounds.push(done);
        if line["merge_stopped"].is_null() {
            break groups(&bucket);
        }
        assert_eq!(line["merge_stopped"], "bound");
        assert!(rounds.len() < 50, "it does not end");
    };
    assert!(rounds.len() > 2, "{rounds:?}");
    // The run that reaches the bound is the last one. How long runs are depends on random ids.
    let runs = begun.iter().flat_map(|group| &group.runs);
    let longest = runs.map(|run| run.records).max().expect("there are runs");
    let bounded = &rounds[..rounds.len() - 1];
    let is_bounded = |done: &u64| (4..4 + longest).contains(done);
    assert!(bounded.iter().all(is_bounded), "{rounds:?}, {longest}");
    let all: u64 = begun.iter().map(RunGroup::records).sum();
    assert_eq!(rounds.iter().sum::<u64>(), all, "nothing is merged twice");
    is_merged(&bucket);
}

/// Collects as `bkfs gc` does. Returns the exit code and the results.
fn collected(bucket: &Bucket, dry_run: bool, bounds: Bounds) -> (i32, Vec<Value>) {
    let output = output(true, true);
    let done = bucket.work(bucket.memory.clone(), async |repository| {
        let collection = Collection {
            repository,
            options: OPTIONS,
            bounds,
            dry_run,
            yes_delete: true,
        };
        collection.run(&output, std::future::pending()).await
    });
    (code(&done), output.kept())
}

#[test]
fn a_dry_run_says_what_would_be_merged_and_merges_nothing() {
    let bucket = three_files();
    let before = root(&bucket);
    let blobs: u64 = before.index.iter().map(|index| index.blobs).sum();
    let (code, said) = collected(&bucket, true, ALL);
    assert_eq!(code, 0);
    let [plan] = &said[..] else {
        panic!("one line: {said:?}");
    };
    assert_eq!(plan["merge_due"], true);
    assert_eq!(plan["unmerged_chunks"], blobs);
    assert_eq!(root(&bucket).mark(), before.mark(), "nothing was replaced");
    assert_eq!(bucket.count("runs/"), 0);
    let text = ALL.due_text(&before).expect("there is something to do");
    assert!(text.contains(&format!("{blobs} chunks")), "{text}");
    let (code, said) = collected(&bucket, true, Bounds::default());
    assert_eq!((code, &said[0]["merge_due"]), (0, &Value::Bool(false)));
}

#[test]
fn a_collection_merges_also_if_there_is_nothing_to_free() {
    let bucket = three_files();
    for is_first in [true, false] {
        let (code, said) = collected(&bucket, false, ALL);
        assert_eq!(code, 0);
        assert_eq!(said[0]["merge_due"], is_first);
        let lines = said.iter().filter(|line| line["merged_runs"].is_u64());
        assert_eq!(lines.count(), usize::from(is_first), "{said:?}");
        is_merged(&bucket);
    }
    is_readable(bucket.host());
}

/// Merges all of an index as a collection does, by a command that waits for the store for minutes. It
/// is told to end when a fault strikes, and must do so within 20 s.
fn told_at_a_fault(faults: &Arc<FaultStore>, output: &Output) -> Result<(), Failure> {
    let done = runtime().block_on(async {
        let patient = opening(Duration::from_secs(300));
        let repository = open_in(faults.clone(), patient, &mut Unsealed).await;
        let repository = repository.expect("opened");
        let told = async {
            while faults.struck() == 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            "ended by a signal"
        };
        let merge = merge_by_gc(&repository, &ALL, output, told);
        tokio::time::timeout(Duration::from_secs(20), merge).await
    });
    done.expect("it ends soon")
}

#[test]
fn a_signal_ends_a_merge_in_the_middle_of_a_step() {
    let bucket = three_files();
    let faults = way_to(&bucket);
    // The store takes the run and does not answer.
    let silent = Strike::with(Fault::Hang)
        .on(Operation::PutNew)
        .keys("runs/");
    faults.plan(silent.nth(4).always());
    let output = output(true, true);
    let begin = Instant::now();
    let done = told_at_a_fault(&faults, &output);
    assert!(begin.elapsed() < Duration::from_secs(10), "it ends soon");
    let failure = done.expect_err("it did not merge all");
    assert_eq!(failure.exit_code(), 1);
    assert!(failure.message.contains("ended by a signal"), "{failure:?}");
    let hint = failure.hint.expect("what follows");
    assert!(hint.contains("The collection is complete"), "{hint}");
    let said = output.kept();
    assert_eq!(said[0]["merge_stopped"], "signal");
    assert_eq!(said[0]["merged_runs"], 3);
    let left = root(&bucket);
    assert_eq!(left.sessions.len(), 0, "its session has left");
    let group = left.building_group().cloned().expect("it is begun");
    assert_eq!(group.runs.len(), 3);
    is_whole(&bucket);
    let (code, said) = merged(&bucket, &way_to(&bucket), &ALL);
    assert_eq!((code, &said[0]["merge_stopped"]), (0, &Value::Null));
    let groups = groups(&bucket);
    let after = groups.iter().find(|after| after.begun == group.begun);
    let after = after.expect("it went on with the group");
    assert!(after.runs.starts_with(&group.runs), "no run is made anew");
    is_merged(&bucket);
}

#[test]
fn a_signal_is_heard_while_the_session_of_a_merge_ends() {
    let bucket = three_files();
    let faults = way_to(&bucket);
    let silent = Strike::with(Fault::Hang).on(Operation::Delete);
    faults.plan(silent.keys("sessions/").always());
    let output = output(true, true);
    let done = told_at_a_fault(&faults, &output);
    assert!(faults.struck() > 0, "the end was waited for");
    assert_eq!(code(&done), 0, "all is merged");
    is_merged(&bucket);
}

#[test]
fn a_merge_that_fails_or_loses_groups_does_not_fail_the_collection() {
    let bucket = three_files();
    let faults = way_to(&bucket);
    let denied = Strike::with(Fault::FailBefore(StoreErrorKind::Denied));
    faults.plan(denied.on_writes().keys("runs/").nth(3).always());
    let begin = Instant::now();
    let (code, said) = merged(&bucket, &faults, &ALL);
    assert!(
        begin.elapsed() < Duration::from_secs(5),
        "it is not waited for"
    );
    assert_eq!(code, 0);
    assert_eq!(said[0]["merge_stopped"], "failed");
    assert_eq!(said[0]["merged_runs"], 2, "what was done is known");
    let error = said[0]["merge_error"].as_str().expect("it says why");
    assert!(error.contains("runs/"), "{error}");
    // An older program replaces the root in the middle of a merge.
    let faults = way_to(&bucket);
    let slow = Fault::Delay(Duration::from_millis(1500));
    faults.plan(Strike::with(slow).on_writes().keys("runs/").nth(2));
    let (code, said) = std::thread::scope(|scope| {
        let merging = scope.spawn(|| merged(&bucket, &faults, &ALL));
        while faults.struck() == 0 {
            std::thread::sleep(Duration::from_millis(5));
        }
        lose_groups(&bucket);
        merging.join().expect("ends")
    });
    assert_eq!(
        (code, &said[0]["merge_stopped"]),
        (0, &"groups_gone".into())
    );
    assert_eq!(groups(&bucket), []);
    is_whole(&bucket);
}

#[test]
fn what_people_read_says_what_was_done_and_what_comes_next() {
    let told = |stop| {
        let merged = Merged {
            runs: 3,
            records: 40,
            bytes: 5 << 20,
            stop,
        };
        merged_text(&merged, None)
    };
    let all = told(None);
    let first = "merged the index: wrote 3 runs of 40 records (5.00 MiB)";
    assert_eq!(all, first);
    for (stop, words) in [
        (Stop::Bound, "the next bkfs gc --merge goes on"),
        (Stop::Told, "the next bkfs gc --merge goes on"),
        (
            Stop::GroupsGone,
            "Update bkfs on each machine that writes here",
        ),
        (Stop::NoRoom, "no room for further groups"),
    ] {
        let text = told(Some(stop));
        assert!(text.starts_with(first) && text.contains(words), "{text}");
    }
}
