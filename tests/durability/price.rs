//! The requests of an fsync: one PUT and one conditional GET, shared by all callers that wait.

use bkfs_store::{Operation, StoreErrorKind};
use bkfs_testing::fault::{Fault, Gate, Strike};
use futures::future::join_all;

use crate::host::{Bucket, Host, noise};

/// Returns the number of requests of every kind, in the order of [`Operation::ALL`].
fn asked(host: &Host) -> Vec<u64> {
    Operation::ALL.map(|operation| host.asked(operation)).into()
}

/// Returns the requests since `before`, without the kinds that were not used.
fn since(host: &Host, before: &[u64]) -> Vec<(Operation, u64)> {
    let now = asked(host).into_iter().zip(before);
    let counts = now.map(|(now, before)| now - before);
    Operation::ALL
        .into_iter()
        .zip(counts)
        .filter(|(_, count)| *count > 0)
        .collect()
}

#[test]
fn an_fsync_of_little_data_is_one_put_and_one_get() {
    let bucket = Bucket::new();
    let host = bucket.host();
    for round in 0..3 {
        host.write(&format!("file {round}"), 0, noise(round, 100_000));
        host.write("one for all", round * 5_000, noise(round, 5_000));
        let before = asked(&host);
        host.fsync().expect("durable");
        let expected = [(Operation::Get, 1), (Operation::PutNew, 1)];
        assert_eq!(since(&host, &before), expected);
    }
    let before = asked(&host);
    host.fsync().expect("durable still");
    assert_eq!(
        since(&host, &before),
        [(Operation::Get, 1)],
        "nothing is newer, but the volume might be another's"
    );
}

#[test]
fn all_who_wait_share_one_journal() {
    let bucket = Bucket::new();
    let host = bucket.host();
    let gate = Gate::new();
    host.faults.plan(
        Strike::with(Fault::HoldBefore(gate.clone()))
            .on(Operation::PutNew)
            .keys("journal/"),
    );
    host.write("first", 0, b"first".to_vec());
    let before = asked(&host);
    let volume = host.volume();
    let first = host.spawn(async move { volume.fsync().await });
    while host.faults.struck() == 0 {
        std::thread::yield_now();
    }
    for n in 0..15 {
        host.write(&format!("file {n}"), 0, noise(n, 1_000));
    }
    let volume = host.volume();
    host.run(async {
        let mut others: Vec<_> = (0..15).map(|_| Box::pin(volume.fsync())).collect();
        for other in &mut others {
            // Polled once, each waits for its answer.
            assert!(futures::poll!(other).is_pending());
        }
        gate.open();
        for result in join_all(others).await {
            result.expect("durable");
        }
        first.await.expect("no panic").expect("durable");
    });
    let expected = [(Operation::Get, 2), (Operation::PutNew, 2)];
    assert_eq!(since(&host, &before), expected);
}

#[test]
fn much_data_goes_to_packs_ahead_and_never_to_the_root() {
    let bucket = Bucket::new();
    let host = bucket.host();
    let data = noise(1, 5 << 20);
    host.write("large", 0, data.clone());
    let generation = host.repository.handle.current().root.generation;
    let replaced = host.asked(Operation::Replace);
    let indexes = bucket.count("index/");
    host.fsync().expect("durable");
    assert_eq!(host.asked(Operation::Replace), replaced);
    assert_eq!(host.repository.handle.current().root.generation, generation);
    assert_eq!(bucket.count("index/"), indexes, "no index object is needed");
    assert_eq!(bucket.count("journal/"), 1);
    assert!(bucket.count("data/") >= 1);
    host.crash();
    let other = bucket.host();
    assert!(other.read("large") == Some(data));
}

/// A mount knows what it has written, also when a commit has just made a tree of it.
#[test]
fn names_are_made_after_a_commit_without_reading_packs() {
    let bucket = Bucket::new();
    let host = bucket.host();
    for n in 0..300 {
        host.write(&format!("file {n}"), 0, b"small".to_vec());
    }
    host.run(host.volume().commit()).expect("committed");
    let before = host.asked(Operation::GetRange);
    assert!(host.find("file 17").is_some());
    host.write("another", 0, b"small, too".to_vec());
    assert_eq!(host.asked(Operation::GetRange), before);
}

#[test]
fn an_answer_that_is_lost_is_asked_for_again_with_the_same_bytes() {
    for fault in [
        Fault::FailAfter(StoreErrorKind::OutcomeUnknown),
        Fault::FailBefore(StoreErrorKind::OutcomeUnknown),
        Fault::FailBefore(StoreErrorKind::Unreachable),
    ] {
        let bucket = Bucket::new();
        let host = bucket.host();
        let strike = Strike::with(fault).on(Operation::PutNew).keys("journal/");
        host.faults.plan(strike);
        host.write("file", 0, b"kept".to_vec());
        host.fsync().expect("durable");
        assert_eq!(host.faults.struck(), 1);
        assert_eq!(bucket.count("journal/"), 1);
        host.crash();
        assert_eq!(bucket.host().read("file"), Some(b"kept".to_vec()));
    }
}
