//! Acknowledged operations are there after the machine is gone, in order and once.

use std::time::Duration;

use bkfs::mounting::settings::Settings;
use bkfs::volume::requests::SnapshotRequest;
use bkfs_chunker::id::Kind;
use bkfs_store::{Operation, StoreErrorKind};
use bkfs_testing::fault::{Fault, Gate, Strike};
use proptest::prelude::*;

use crate::host::{Bucket, Host, noise};

/// Returns a machine whose credentials may not delete.
fn without_deleting(bucket: &Bucket) -> Host {
    let host = bucket.host();
    let denied = Strike::with(Fault::FailBefore(StoreErrorKind::Denied)).on(Operation::Delete);
    host.faults.plan(denied.always());
    host
}

#[test]
fn journals_and_commits_are_one_history() {
    let bucket = Bucket::new();
    let host = bucket.host();
    host.write("both", 0, noise(1, 300_000));
    host.write("deleted", 0, b"x".to_vec());
    host.fsync().expect("durable");
    host.write("both", 100_000, noise(2, 50_000));
    host.run(host.volume().commit()).expect("committed");
    host.write("both", 120_000, noise(3, 50_000));
    host.run(host.volume().unlink(bkfs::volume::ROOT_INODE, b"deleted"))
        .expect("unlinked");
    host.fsync().expect("durable");
    host.write("both", 290_000, noise(4, 50_000));
    host.fsync().expect("durable");
    let expected = host.read("both");
    let totals = host.volume().view.totals();
    host.write("both", 0, b"not acknowledged".to_vec());
    host.crash();
    let next = bucket.host();
    assert!(next.read("both") == expected);
    assert_eq!(next.find("deleted"), None);
    assert_eq!(bucket.count("journal/"), 0, "they are in the tree by now");
    let inode = next.find("both").expect("is there");
    // The last bytes of the file were dirty before, and are stored now.
    let stored = next.attributes(inode).allocated_bytes;
    let counted = next.volume().view.totals();
    assert_eq!((counted.inodes, counted.bytes), (totals.inodes, stored));
    assert!(
        next.attributes(inode).allocated_bytes.abs_diff(340_000) < 16_384,
        "what is stored is counted once: {:?}",
        next.attributes(inode)
    );
}

#[test]
fn a_journal_that_a_commit_covers_is_not_carried_out_again() {
    let bucket = Bucket::new();
    let host = without_deleting(&bucket);
    host.write("file", 0, b"first".to_vec());
    host.fsync().expect("durable");
    host.write("file", 0, b"newer".to_vec());
    host.run(host.volume().commit()).expect("committed");
    assert_eq!(bucket.count("journal/"), 1, "it cannot be deleted");
    host.crash();
    assert_eq!(bucket.host().read("file"), Some(b"newer".to_vec()));
}

#[test]
fn a_session_is_replayed_once() {
    let bucket = Bucket::new();
    let host = bucket.host();
    host.write("file", 0, b"first".to_vec());
    host.fsync().expect("durable");
    host.crash();
    let strike = Strike::with(Fault::FailBefore(StoreErrorKind::Denied)).on(Operation::Delete);
    let second = bucket.host_with(strike.always());
    assert_eq!(bucket.count("journal/"), 1, "it cannot be deleted");
    second.write("file", 0, b"newer".to_vec());
    second.fsync().expect("durable");
    second.crash();
    let third = bucket.host();
    assert_eq!(third.read("file"), Some(b"newer".to_vec()));
    assert_eq!(third.repository.handle.current().root.sessions.len(), 1);
}

/// An fsync does not wait for a commit that makes no progress, and carries what the commit would
/// have carried.
#[test]
fn a_commit_under_way_holds_no_fsync_up() {
    for is_made in [false, true] {
        let bucket = Bucket::new();
        let host = bucket.host();
        let gate = Gate::new();
        let strike = match is_made {
            true => Strike::with(Fault::HoldAfter(gate.clone())),
            false => Strike::with(Fault::HoldBefore(gate.clone())),
        };
        host.faults.plan(strike.on(Operation::Replace).keys("root"));
        host.write("before", 0, noise(1, 200_000));
        host.write("small", 0, b"small".to_vec());
        let volume = host.volume();
        let commit = host.spawn(async move { volume.commit().await });
        while host.faults.struck() == 0 {
            std::thread::yield_now();
        }
        host.write("before", 1_000, noise(2, 100_000));
        host.write("after", 0, noise(3, 3_000));
        host.fsync().expect("durable");
        let expected = ["before", "small", "after"].map(|name| host.read(name));
        drop(commit);
        host.crash();
        let next = bucket.host();
        let found = ["before", "small", "after"].map(|name| next.read(name));
        assert!(found == expected, "with the commit made: {is_made}");
        let inode = next.find("before").expect("is there");
        let allocated = next.attributes(inode).allocated_bytes;
        assert!(allocated.abs_diff(200_000) < 16_384, "{allocated}");
    }
}

/// The next journal carries what a failed one was to carry.
#[test]
fn an_fsync_that_failed_loses_nothing() {
    let bucket = Bucket::new();
    let patience = Duration::from_secs(1);
    let host = Host::patient(bucket.memory.clone(), Settings::default(), patience);
    let host = host.expect("mounted");
    let strike = Strike::with(Fault::FailBefore(StoreErrorKind::Denied)).on(Operation::PutNew);
    host.faults.plan(strike.keys("journal/").always());
    host.write("one", 0, b"one".to_vec());
    host.fsync().expect_err("denied");
    host.write("two", 0, noise(2, 2 << 20));
    host.fsync().expect_err("denied again");
    assert!(host.volume().failure().is_none(), "nothing was dropped");
    assert!(host.faults.struck() >= 2);
    host.faults.heal();
    host.write("three", 0, b"three".to_vec());
    host.fsync().expect("durable");
    host.crash();
    let next = bucket.host();
    assert_eq!(next.read("one"), Some(b"one".to_vec()));
    assert!(next.read("two") == Some(noise(2, 2 << 20)));
    assert_eq!(next.read("three"), Some(b"three".to_vec()));
}

#[test]
fn an_unmount_leaves_no_journal() {
    let bucket = Bucket::new();
    let host = bucket.host();
    host.write("file", 0, b"kept".to_vec());
    host.fsync().expect("durable");
    assert_eq!(bucket.count("journal/"), 1);
    host.finish().expect("unmounted");
    assert_eq!(bucket.count("journal/"), 0);
    let next = bucket.host();
    assert_eq!(next.read("file"), Some(b"kept".to_vec()));
    assert_eq!(next.repository.handle.current().root.sessions.len(), 1);
}

#[test]
fn an_unmount_that_cannot_commit_leaves_the_session_to_the_next() {
    let bucket = Bucket::new();
    let host = bucket.host();
    host.write("file", 0, b"acknowledged".to_vec());
    host.fsync().expect("durable");
    let strike = Strike::with(Fault::FailBefore(StoreErrorKind::Denied)).on(Operation::PutNew);
    host.faults.plan(strike.always());
    host.write("file", 0, b"lost".to_vec());
    host.finish().expect_err("nothing can be stored");
    assert_eq!(
        bucket.host().read("file"),
        Some(b"acknowledged".to_vec()),
        "and what was acknowledged before is still there"
    );
}

#[test]
fn snapshots_of_a_new_holder_have_what_was_acknowledged() {
    let bucket = Bucket::new();
    let host = bucket.host();
    host.write("file", 0, noise(9, 3 << 20));
    host.fsync().expect("durable");
    host.crash();
    let next = bucket.host();
    let request = SnapshotRequest {
        name: Some("after".into()),
        ..SnapshotRequest::default()
    };
    next.run(next.volume().snapshot(request)).expect("made");
    assert!(next.read("file") == Some(noise(9, 3 << 20)));
}

/// Returns a tree node with references to blobs that this repository does not have.
fn foreign_node() -> bytes::Bytes {
    let host = Bucket::new().host();
    host.write("elsewhere", 0, noise(5, 3 << 20));
    host.run(host.volume().commit()).expect("committed");
    let tree = host.volume().view.base();
    let node = host.run(host.repository.content_store.read_blob(Kind::Node, tree));
    node.expect("read")
}

/// Journals of earlier versions may name a pack with nodes of a commit whose children never
/// arrived.
#[test]
fn a_pack_that_refers_to_what_never_arrived_is_no_hindrance() {
    let bucket = Bucket::new();
    let host = bucket.host();
    let volume = host.volume();
    let stored = host.run(volume.ingest().store_blob(Kind::Node, foreign_node()));
    stored.expect("stored");
    host.write("large", 0, noise(7, 5 << 20));
    host.write("small", 0, b"small".to_vec());
    host.fsync().expect("durable");
    host.crash();
    let next = bucket.host();
    assert!(next.read("large") == Some(noise(7, 5 << 20)));
    assert_eq!(next.read("small"), Some(b"small".to_vec()));
    next.finish().expect("unmounted");
    assert!(bucket.host().read("large") == Some(noise(7, 5 << 20)));
}

#[derive(Debug, Clone)]
enum Step {
    /// Appends a numbered record to one of the files.
    Append(u8, usize),
    Fsync,
    Commit,
    Crash,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0u8..3, prop_oneof![3 => 1usize..3_000, 1 => 1usize..200_000, 1 => 1usize..3_000_000])
            .prop_map(|(file, length)| Step::Append(file, length)),
        3 => Just(Step::Fsync),
        1 => Just(Step::Commit),
        2 => Just(Step::Crash),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// After a crash everything acknowledged is there, and of the later writes a beginning: never a
    /// later write without an earlier one.
    #[test]
    fn what_is_found_is_a_beginning(steps in proptest::collection::vec(step(), 1..25)) {
        let bucket = Bucket::new();
        let mut host = bucket.host();
        // The file and bytes of each write. Those before `durable` were acknowledged.
        let mut history: Vec<(u8, Vec<u8>)> = Vec::new();
        let mut durable = 0;
        for (number, step) in steps.into_iter().chain([Step::Crash]).enumerate() {
            match step {
                Step::Append(file, length) => {
                    let name = format!("file {file}");
                    let at = host.read(&name).map_or(0, |bytes| bytes.len() as u64);
                    let data = noise(number as u64, length);
                    host.write(&name, at, data.clone());
                    history.push((file, data));
                }
                Step::Fsync => {
                    host.fsync().expect("durable");
                    durable = history.len();
                }
                Step::Commit => {
                    host.run(host.volume().commit()).expect("committed");
                    durable = history.len();
                }
                Step::Crash => {
                    host.crash();
                    host = bucket.host();
                    let found = [0u8, 1, 2]
                        .map(|file| host.read(&format!("file {file}")).unwrap_or_default());
                    let after = |count: usize| {
                        [0u8, 1, 2].map(|file| {
                            let mine = history[..count].iter().filter(|(of, _)| *of == file);
                            mine.flat_map(|(_, data)| data.iter().copied()).collect::<Vec<u8>>()
                        })
                    };
                    let kept = (durable..=history.len()).find(|&count| after(count) == found);
                    prop_assert!(
                        kept.is_some(),
                        "{durable} of {} writes were acknowledged",
                        history.len()
                    );
                    history.truncate(kept.unwrap_or_default());
                    durable = history.len();
                }
            }
        }
    }
}
