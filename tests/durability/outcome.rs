//! A commit whose answer was lost. The caller is told the outcome, or that it is unknown.

use std::time::Duration;

use bkfs::mounting::settings::Settings;
use bkfs::volume::error::VolumeError;
use bkfs::volume::requests::SnapshotRequest;
use bkfs_store::{Operation, StoreErrorKind};
use bkfs_testing::fault::{Fault, Gate, Strike};

use crate::host::{Bucket, Host};

fn named(name: &str) -> SnapshotRequest {
    SnapshotRequest {
        name: Some(name.to_owned()),
        ..SnapshotRequest::default()
    }
}

/// Returns a host that replaced the root for a snapshot and got no answer. After that the store did
/// not tell what the root holds until the host had given up.
fn silenced(
    bucket: &Bucket,
    answers_by_then: bool,
) -> (Host, tokio::task::JoinHandle<Result<(), VolumeError>>) {
    let patience = Duration::from_secs(1);
    let host = Host::patient(bucket.memory.clone(), Settings::default(), patience);
    let host = host.expect("mounted");
    host.write("file", 0, b"contents".to_vec());
    let gate = Gate::new();
    let root = |fault| Strike::with(fault).on(Operation::Replace).keys("root");
    host.faults.plan(root(Fault::HoldBefore(gate.clone())));
    host.faults
        .plan(root(Fault::FailAfter(StoreErrorKind::OutcomeUnknown)));
    let volume = host.volume();
    let asked = host.spawn(async move { volume.snapshot(named("one")).await.map(|_| ()) });
    while host.faults.struck() < 2 {
        std::thread::yield_now();
    }
    let silent = Strike::with(Fault::FailBefore(StoreErrorKind::Unreachable)).on(Operation::Get);
    host.faults.plan(silent.keys("root").always());
    // The same bytes are sent again when the attempt was given up and is looked for once more.
    let again = Gate::new();
    host.faults.plan(root(Fault::HoldAfter(again.clone())));
    let replaced = host.asked(Operation::Replace);
    gate.open();
    while host.asked(Operation::Replace) < replaced + 2 {
        std::thread::yield_now();
    }
    if answers_by_then {
        host.faults.heal();
    }
    again.open();
    (host, asked)
}

#[test]
fn what_cannot_be_known_is_said_to_be_unknown() {
    let bucket = Bucket::new();
    let (host, asked) = silenced(&bucket, false);
    let error = host.run(asked).expect("no panic").expect_err("unknown");
    assert!(matches!(error, VolumeError::OutcomeUnknown(_)), "{error}");
    assert!(host.volume().failure().is_none(), "nothing is lost");
    host.faults.heal();
    let again = host.run(host.volume().snapshot(named("one")));
    assert!(
        matches!(again, Err(VolumeError::SnapshotName(_))),
        "it was made: {again:?}"
    );
    host.run(host.volume().snapshot(named("two")))
        .expect("made");
}

#[test]
fn what_was_made_is_reported_as_made() {
    let bucket = Bucket::new();
    let (host, asked) = silenced(&bucket, true);
    host.run(asked).expect("no panic").expect("was made");
    assert!(host.find("file").is_some());
}
