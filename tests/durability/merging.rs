//! Groups of runs: they answer in the place of the index objects that they cover, whatever is
//! committed, forgotten or killed meanwhile, and nothing is lost with them.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use bkfs::maintain::check::check;
use bkfs::maintain::collect::verifier;
use bkfs::maintain::merging::{MergePolicy, Merged, merge_runs};
use bkfs::maintain::options::CheckOptions;
use bkfs::maintain::repair::{execute, plan};
use bkfs::maintain::report::Report;
use bkfs::repository::Repository;
use bkfs::root::error::RootError;
use bkfs::root::run_group::RunGroup;
use bkfs::root::state::{Root, SessionId};
use bkfs_chunker::crypto::{Class, Features};
use bkfs_chunker::pack::PackName;
use bkfs_store::{Store, StoreErrorKind};
use bkfs_testing::fault::{Fault, FaultStore, Gate, Strike};

use crate::collecting::{forget, gc, snapshot, unlink};
use crate::host::{Bucket, Host, noise, runtime};

/// Merges each index object, and two groups at a time, into runs of a few records.
pub const POLICY: MergePolicy = MergePolicy {
    least_blobs: 1,
    most_blobs: 1 << 20,
    run_records: 6,
    small_records: 1 << 20,
    fan: 2,
};

/// Merges index objects, and no groups.
pub const OBJECTS_ONLY: MergePolicy = MergePolicy {
    fan: usize::MAX,
    ..POLICY
};

/// Merges by way of a store that fails so from then on.
pub fn merge_by(
    bucket: &Bucket,
    faults: &Arc<FaultStore>,
    strike: Strike,
    policy: &MergePolicy,
) -> Result<Merged, RootError> {
    bucket.work(faults.clone(), async |repository| {
        let verifier = verifier(repository)?;
        faults.plan(strike);
        merge_runs(repository, &verifier, policy, &|_| true, "merge").await
    })
}

pub fn merge(bucket: &Bucket, policy: &MergePolicy) -> Merged {
    let merged = bucket.work(bucket.memory.clone(), async |repository| {
        let verifier = verifier(repository)?;
        merge_runs(repository, &verifier, policy, &|_| true, "merge").await
    });
    merged.expect("merged")
}

pub fn root(bucket: &Bucket) -> Root {
    bucket.work(bucket.memory.clone(), async |repository| {
        repository.handle.current().root.clone()
    })
}

pub fn groups(bucket: &Bucket) -> Vec<RunGroup> {
    root(bucket).run_groups().to_vec()
}

pub fn report(bucket: &Bucket) -> Report {
    let keyring = bucket.work(bucket.memory.clone(), async |repository| {
        repository.handle.keyring().clone()
    });
    let store: Arc<dyn Store> = bucket.memory.clone();
    let report = runtime().block_on(check(store, &keyring, &CheckOptions::oracle()));
    report.expect("checked")
}

pub fn is_whole(bucket: &Bucket) {
    let report = report(bucket);
    assert!(report.is_clean(), "{:?}", report.problems);
}

/// Three files, each in a commit of its own session.
pub fn three_files() -> Bucket {
    let bucket = Bucket::new();
    for number in 0..3 {
        let host = bucket.host();
        host.write(&format!("file-{number}"), 0, noise(number, 3 << 20));
        host.finish().expect("unmounted");
    }
    bucket
}

/// Reads the [`three_files`], and unmounts.
pub fn is_readable(host: Host) {
    for number in 0..3 {
        let read = host.read(&format!("file-{number}"));
        assert!(read == Some(noise(number, 3 << 20)), "file {number}");
    }
    host.finish().expect("unmounted");
}

/// A machine that cannot read these index objects.
pub fn without_index(bucket: &Bucket, covered: &[RunGroup]) -> Host {
    let faults = Arc::new(FaultStore::new(bucket.memory.clone()));
    for name in covered.iter().flat_map(|group| &group.covers) {
        let denied = Strike::with(Fault::FailBefore(StoreErrorKind::Denied));
        faults.plan(denied.keys(&name.0.key(Class::Index)).always());
    }
    Host::patient(faults, Default::default(), Duration::from_secs(10)).expect("mounted")
}

#[test]
fn runs_answer_in_the_place_of_index_objects() {
    let bucket = three_files();
    let merged = merge(&bucket, &POLICY);
    assert!(merged.runs > 6 && merged.records > 20, "{merged:?}");
    let covered = groups(&bucket);
    assert!(covered.iter().all(RunGroup::is_complete));
    assert_eq!(root(&bucket).uncovered_index(), []);
    assert_eq!(
        merge(&bucket, &POLICY),
        Merged::default(),
        "nothing is left"
    );
    is_whole(&bucket);
    let before = bucket.bytes("data/");
    let host = without_index(&bucket, &covered);
    for number in 0..3 {
        assert!(host.read(&format!("file-{number}")) == Some(noise(number, 3 << 20)));
        host.write(&format!("again-{number}"), 0, noise(number, 3 << 20));
    }
    host.fsync().expect("durable");
    host.run(host.volume().commit()).expect("committed");
    assert_eq!(bucket.bytes("data/"), before, "nothing is stored twice");
    host.write("new", 0, noise(9, 1 << 20));
    host.finish().expect("unmounted");
    assert!(bucket.bytes("data/") > before);
    is_whole(&bucket);
    let host = bucket.host();
    for number in 0..3 {
        assert!(host.read(&format!("again-{number}")) == Some(noise(number, 3 << 20)));
    }
    assert!(host.read("new") == Some(noise(9, 1 << 20)));
}

#[test]
fn commits_absorb_no_index_object_that_a_group_covers() {
    let bucket = three_files();
    merge(&bucket, &POLICY);
    let before = groups(&bucket);
    let host = bucket.host();
    for number in 0..20 {
        host.write("small", number * 100, noise(number, 40_000));
        host.run(host.volume().commit()).expect("committed");
    }
    host.finish().expect("unmounted");
    assert_eq!(groups(&bucket), before);
    assert!(root(&bucket).index.len() < 15, "the others are absorbed");
    is_whole(&bucket);
}

#[test]
fn a_merge_that_is_killed_at_any_request_is_resumed() {
    let first = three_files();
    merge(&first, &OBJECTS_ONLY);
    let host = first.host();
    host.write("file-3", 0, noise(3, 3 << 20));
    host.finish().expect("unmounted");
    let mut resumed = 0;
    for request in (1..).step_by(7) {
        let bucket = first.copy();
        let faults = Arc::new(FaultStore::new(bucket.memory.clone()));
        let gone = Strike::with(Fault::FailBefore(StoreErrorKind::Denied));
        let outcome = merge_by(&bucket, &faults, gone.nth(request).always(), &POLICY);
        if faults.struck() == 0 {
            outcome.expect("nothing failed");
            break;
        }
        if root(&bucket).building_group().is_some() {
            resumed += 1;
            is_whole(&bucket);
            let host = bucket.host();
            assert!(
                host.read("file-1") == Some(noise(1, 3 << 20)),
                "request {request}"
            );
            host.finish().expect("unmounted");
        }
        merge(&bucket, &POLICY);
        let covered = groups(&bucket);
        assert!(
            covered.iter().all(RunGroup::is_complete),
            "request {request}"
        );
        let host = without_index(&bucket, &covered);
        for number in 0..4 {
            let read = host.read(&format!("file-{number}"));
            assert!(read == Some(noise(number, 3 << 20)), "request {request}");
        }
        host.finish().expect("unmounted");
        gc(&bucket);
        is_whole(&bucket);
        // What is left is named, or of the session that was killed and stands in the root.
        let root = root(&bucket);
        let named: HashSet<PackName> = root.run_names().collect();
        let listed = runtime().block_on(bucket.memory.list("runs/", None, 1_000));
        for info in listed.expect("listed") {
            let (_, name) = PackName::from_key(&info.key).expect("a run");
            let stands = root.sessions.contains_key(&SessionId(name.session));
            assert!(named.contains(&name) || stands, "request {request}: {name}");
        }
    }
    assert!(resumed > 1, "{resumed} merges were resumed");
}

/// A bucket with a file in a forgotten snapshot only, and the same bytes to write again.
pub fn with_forgotten() -> (Bucket, Vec<u8>) {
    let bucket = three_files();
    let data = noise(7, 3 << 20);
    let host = bucket.host();
    host.write("old", 0, data.clone());
    snapshot(&host, "one");
    unlink(&host, "old");
    host.write("kept", 0, noise(8, 1 << 20));
    host.finish().expect("unmounted");
    (bucket, data)
}

/// Forgets the snapshot, and deletes what it alone needed.
pub fn collect_forgotten(bucket: &Bucket) {
    bucket.work(bucket.memory.clone(), async |repository| {
        forget(repository, "one").await;
    });
    let mut deleted = 0;
    for _ in 0..3 {
        deleted += gc(bucket).deleted_packs;
    }
    assert!(deleted > 0, "its packs are gone");
    assert_eq!(root(bucket).condemned, [], "and forgotten");
}

/// Writes the bytes of the forgotten snapshot anew, on a machine that has the runs alone: no pack
/// that is gone may stand for them.
pub fn stores_again(bucket: &Bucket, data: &[u8]) {
    is_whole(bucket);
    let host = without_index(bucket, &groups(bucket));
    host.write("new", 0, data);
    host.fsync().expect("durable");
    host.finish().expect("unmounted");
    let host = bucket.host();
    assert!(host.read("new").as_deref() == Some(data));
    assert!(host.read("kept") == Some(noise(8, 1 << 20)));
    assert!(host.read("file-2") == Some(noise(2, 3 << 20)));
    host.finish().expect("unmounted");
    is_whole(bucket);
}

#[test]
fn what_was_forgotten_is_not_found_by_runs_that_name_it() {
    let (bucket, data) = with_forgotten();
    merge(&bucket, &OBJECTS_ONLY);
    let before = groups(&bucket);
    collect_forgotten(&bucket);
    let after = groups(&bucket);
    let began = |groups: &[RunGroup]| groups.iter().map(|group| group.begun).collect::<Vec<_>>();
    assert_eq!(began(&after), began(&before), "the groups stay");
    assert!(
        after.iter().any(|group| group.dropped.is_some()),
        "{after:?}"
    );
    stores_again(&bucket, &data);
    // A merge leaves out what is gone, and forgets it.
    merge(&bucket, &POLICY);
    merge(&bucket, &POLICY);
    let after = groups(&bucket);
    assert!(
        after.iter().all(|group| group.dropped.is_none()),
        "{after:?}"
    );
    is_whole(&bucket);
}

#[test]
fn what_is_forgotten_while_a_group_is_built_is_not_found_by_it() {
    let (first, data) = with_forgotten();
    merge(&first, &OBJECTS_ONLY);
    let host = first.host();
    host.write("file-4", 0, noise(4, 1 << 20));
    host.finish().expect("unmounted");
    for from_groups in [false, true] {
        let policy = match from_groups {
            true => POLICY,
            false => OBJECTS_ONLY,
        };
        let mut seen = 0;
        for runs in [2, 5] {
            let bucket = first.copy();
            if from_groups {
                merge(&bucket, &OBJECTS_ONLY);
            }
            // The merge is killed after some of its runs.
            let faults = Arc::new(FaultStore::new(bucket.memory.clone()));
            let gone = Strike::with(Fault::FailBefore(StoreErrorKind::Denied)).keys("runs/");
            let _ = merge_by(
                &bucket,
                &faults,
                gone.on_writes().nth(runs).always(),
                &policy,
            );
            let Some(building) = root(&bucket).building_group().cloned() else {
                continue;
            };
            seen += usize::from(!building.runs.is_empty());
            collect_forgotten(&bucket);
            merge(&bucket, &policy);
            assert!(root(&bucket).building_group().is_none());
            stores_again(&bucket, &data);
        }
        assert!(seen > 0, "{from_groups}");
    }
}

#[test]
fn a_forgetting_that_is_killed_at_any_request_leaves_groups_that_are_right() {
    let (first, data) = with_forgotten();
    merge(&first, &OBJECTS_ONLY);
    first.work(first.memory.clone(), async |repository| {
        forget(repository, "one").await;
    });
    for request in (1..).step_by(7) {
        let bucket = first.copy();
        let faults = Arc::new(FaultStore::new(bucket.memory.clone()));
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            bucket.work(faults.clone(), async |repository| {
                let gone = Strike::with(Fault::FailBefore(StoreErrorKind::Denied));
                faults.plan(gone.nth(request).always());
                for _ in 0..2 {
                    crate::collecting::gather(repository).await;
                }
            })
        }));
        if faults.struck() == 0 {
            return;
        }
        for _ in 0..2 {
            gc(&bucket);
        }
        stores_again(&bucket, &data);
    }
}

#[test]
fn a_merge_goes_on_during_commits_and_other_merges() {
    let first = three_files();
    merge(&first, &OBJECTS_ONLY);
    for request in (1..).step_by(5) {
        let bucket = first.copy();
        let faults = Arc::new(FaultStore::new(bucket.memory.clone()));
        let gate = Gate::new();
        let held = Strike::with(Fault::HoldBefore(gate.clone())).nth(request);
        let is_over = std::thread::scope(|scope| {
            let slow = scope.spawn(|| merge_by(&bucket, &faults, held, &POLICY));
            while faults.struck() == 0 && !slow.is_finished() {
                std::thread::yield_now();
            }
            let is_over = faults.struck() == 0;
            if !is_over {
                let host = bucket.host();
                host.write("meanwhile", 0, noise(5, 1 << 20));
                host.finish().expect("unmounted");
                merge(&bucket, &POLICY);
            }
            gate.open();
            slow.join().expect("ends").expect("merged");
            is_over
        });
        merge(&bucket, &POLICY);
        is_whole(&bucket);
        let host = bucket.host();
        assert!(
            host.read("file-0") == Some(noise(0, 3 << 20)),
            "request {request}"
        );
        if is_over {
            return;
        }
        assert!(
            host.read("meanwhile") == Some(noise(5, 1 << 20)),
            "request {request}"
        );
    }
}

/// Replaces the root as a program does that does not know groups.
pub fn lose_groups(bucket: &Bucket) {
    change_root(bucket, async |_, next| next.run_groups = None);
}

#[test]
fn a_program_that_does_not_know_groups_loses_nothing_but_them() {
    let bucket = three_files();
    merge(&bucket, &POLICY);
    lose_groups(&bucket);
    assert_eq!(groups(&bucket), []);
    is_whole(&bucket);
    let host = bucket.host();
    for number in 0..3 {
        assert!(host.read(&format!("file-{number}")) == Some(noise(number, 3 << 20)));
    }
    host.finish().expect("unmounted");
    assert!(bucket.count("runs/") > 0);
    gc(&bucket);
    assert_eq!(bucket.count("runs/"), 0, "no root will name them");
    merge(&bucket, &POLICY);
    is_whole(&bucket);
}

/// Spoils one byte of each of these runs, at a place that depends on `seed`.
fn damage_runs(bucket: &Bucket, seed: usize) {
    let names: Vec<String> = root(bucket)
        .run_names()
        .map(|name| name.key(Class::Run))
        .collect();
    runtime().block_on(async {
        for key in names {
            let (bytes, _) = bucket.memory.get(&key).await.expect("read");
            let mut bytes = bytes.to_vec();
            let place = 128 + seed * 37 % (bytes.len() - 128);
            bytes[place] ^= 1;
            bucket.memory.delete(&key).await.expect("removed");
            let put = bucket.memory.put_new(&key, vec![bytes.into()]).await;
            put.expect("written");
        }
    });
}

#[test]
fn damaged_runs_are_named_and_taken_out_and_hide_nothing() {
    let first = three_files();
    merge(&first, &POLICY);
    for seed in 0..12 {
        let bucket = first.copy();
        damage_runs(&bucket, seed);
        let found = report(&bucket);
        let named = found
            .problems
            .iter()
            .filter(|problem| problem.object.starts_with("runs/"));
        assert_eq!(
            named.count(),
            root(&bucket).run_names().count(),
            "seed {seed}"
        );
        let host = bucket.host();
        for number in 0..3 {
            let read = host.read(&format!("file-{number}"));
            assert!(read == Some(noise(number, 3 << 20)), "seed {seed}");
        }
        host.write("again", 0, noise(0, 3 << 20));
        host.finish().expect("unmounted");
        let keyring = bucket.work(bucket.memory.clone(), async |repository| {
            repository.handle.keyring().clone()
        });
        let store: Arc<dyn Store> = bucket.memory.clone();
        let options = CheckOptions::oracle();
        runtime().block_on(async {
            let (findings, planned) = plan(&store, &keyring, &options).await.expect("planned");
            assert!(!planned.is_empty());
            execute(&store, &keyring, &options, &findings, planned)
                .await
                .expect("repaired");
        });
        assert_eq!(groups(&bucket), []);
        is_whole(&bucket);
        merge(&bucket, &POLICY);
        is_whole(&bucket);
        assert!(bucket.host().read("again") == Some(noise(0, 3 << 20)));
    }
}

/// Replaces the root by what `change` makes of it.
pub fn change_root(bucket: &Bucket, change: impl AsyncFnOnce(&Repository, &mut Root)) {
    bucket.work(bucket.memory.clone(), async |repository| {
        let handle = &repository.handle;
        let (_, version) = bucket.memory.get("root").await.expect("read");
        let mut next = handle.current().root.clone();
        next.follow([7; 16]);
        change(repository, &mut next).await;
        let payload = next.encode().expect("a root");
        let features = Features::NONE.with_witness();
        let keyring = handle.keyring();
        let object = keyring.seal_object(Class::Root, "root", features, [3; 32], &payload);
        let replaced = bucket.memory.replace("root", vec![object], &version).await;
        replaced.expect("replaced");
    });
}
