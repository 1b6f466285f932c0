//! A writer that has lost its volume acknowledges nothing.

use bkfs_store::{Operation, Store};
use bkfs_testing::fault::{Fault, Gate, Strike};
use bytes::Bytes;

use crate::host::Bucket;

#[test]
fn one_that_was_taken_over_cannot_acknowledge() {
    let bucket = Bucket::new();
    let ended_session = bucket.host();
    ended_session.write("file", 0, b"acknowledged".to_vec());
    ended_session.fsync().expect("durable");
    let new_holder = bucket.host();
    ended_session.write("file", 0, b"never".to_vec());
    ended_session.fsync().expect_err("fenced");
    assert!(ended_session.volume().failure().is_some(), "and for ever");
    ended_session
        .try_write("file", 0, b"never".to_vec())
        .expect_err("poisoned");
    assert_eq!(new_holder.read("file"), Some(b"acknowledged".to_vec()));
    new_holder.crash();
    assert_eq!(bucket.host().read("file"), Some(b"acknowledged".to_vec()));
}

#[test]
fn nothing_newer_is_no_reason_not_to_ask() {
    let bucket = Bucket::new();
    let ended_session = bucket.host();
    ended_session.fsync().expect("still ours");
    let _new_holder = bucket.host();
    ended_session.fsync().expect_err("another's by now");
}

/// The journal arrives before the takeover, its answer after it. The journal is replayed, and not
/// acknowledged.
#[test]
fn an_answer_that_comes_after_the_taking_acknowledges_nothing() {
    let bucket = Bucket::new();
    let ended_session = bucket.host();
    let gate = Gate::new();
    let strike = Strike::with(Fault::HoldAfter(gate.clone())).on(Operation::PutNew);
    ended_session.faults.plan(strike.keys("journal/"));
    ended_session.write("file", 0, b"arrived".to_vec());
    let volume = ended_session.volume();
    let fsync = ended_session.spawn(async move { volume.fsync().await });
    while bucket.count("journal/") == 0 {
        std::thread::yield_now();
    }
    let new_holder = bucket.host();
    assert_eq!(new_holder.read("file"), Some(b"arrived".to_vec()));
    gate.open();
    ended_session
        .run(fsync)
        .expect("no panic")
        .expect_err("the root was asked after the answer");
}

/// The journal arrives after the new holder has looked for it.
#[test]
fn a_journal_that_comes_too_late_is_not_acknowledged() {
    let bucket = Bucket::new();
    let ended_session = bucket.host();
    let gate = Gate::new();
    let strike = Strike::with(Fault::HoldBefore(gate.clone())).on(Operation::PutNew);
    ended_session.faults.plan(strike.keys("journal/"));
    ended_session.write("file", 0, b"too late".to_vec());
    let volume = ended_session.volume();
    let fsync = ended_session.spawn(async move { volume.fsync().await });
    while ended_session.faults.struck() == 0 {
        std::thread::yield_now();
    }
    let new_holder = bucket.host();
    gate.open();
    ended_session
        .run(fsync)
        .expect("no panic")
        .expect_err("fenced");
    assert_eq!(bucket.count("journal/"), 1, "it has arrived");
    assert_eq!(new_holder.find("file"), None);
    new_holder.crash();
    assert_eq!(bucket.host().find("file"), None, "and counts for nothing");
}

/// A clone of the machine writes under the same session.
#[test]
fn other_bytes_under_a_number_of_ours_mean_that_we_are_fenced() {
    let bucket = Bucket::new();
    let host = bucket.host();
    host.write("file", 0, b"one".to_vec());
    host.fsync().expect("durable");
    let listed = host.run(bucket.memory.list("journal/", None, 10));
    let first = listed.expect("listed")[0].key.clone();
    let next = format!("{}2", first.strip_suffix('1').expect("number 1"));
    host.run(
        bucket
            .memory
            .put_new(&next, vec![Bytes::from_static(b"a clone's")]),
    )
    .expect("new");
    host.write("file", 0, b"two".to_vec());
    host.fsync().expect_err("fenced");
    assert!(host.volume().failure().is_some());
}
