//! A snapshot that replaces the older one of its name, as `bkfs run --replace` asks for it: one of
//! them is always kept.

use std::time::Duration;

use bkfs::mounting::settings::Settings;
use bkfs_store::{Operation, StoreErrorKind};
use bkfs_testing::fault::{Fault, Strike};

use crate::handles::control;
use crate::host::{Bucket, Host, noise};

fn has_weekly(host: &Host) -> bool {
    let list = host.run(host.repository.snapshots()).expect("listed");
    list.named("main", "weekly").is_some()
}

/// Returns a host with a snapshot `weekly`, and something written since.
fn with_weekly(bucket: &Bucket) -> Host {
    let patience = Duration::from_secs(1);
    let host = Host::patient(bucket.memory.clone(), Settings::default(), patience);
    let host = host.expect("mounted");
    host.write("file", 0, noise(1, 10));
    let made = control(&host, r#"{"snapshot":{"name":"weekly","tags":[]}}"#);
    assert!(made.contains("\"weekly\""), "{made}");
    host.write("file", 0, noise(2, 10));
    host
}

#[test]
fn a_tag_that_is_refused_leaves_the_older_snapshot() {
    let host = with_weekly(&Bucket::new());
    // The list of snapshots cannot be read: a name that is taken could not be refused now.
    host.faults
        .plan(Strike::with(Fault::Hang).on(Operation::Get).always());
    let wanted = r#"{"name":"weekly","tags":["a\nb"],"replace":true}"#;
    let answer = control(&host, &format!(r#"{{"name":{wanted}}}"#));
    assert!(answer.contains("error"), "before the tool starts: {answer}");
    host.faults.heal();
    let answer = control(&host, &format!(r#"{{"snapshot":{wanted}}}"#));
    assert!(answer.contains("error"), "{answer}");
    assert!(has_weekly(&host));
}

/// Whichever replacement of the root the store refuses, or does not answer.
#[test]
fn a_store_that_refuses_leaves_one_of_them() {
    for fault in [
        Fault::FailBefore(StoreErrorKind::Denied),
        Fault::FailBefore(StoreErrorKind::OutcomeUnknown),
    ] {
        for nth in 1..=3 {
            let host = with_weekly(&Bucket::new());
            let strike = Strike::with(fault.clone()).on(Operation::Replace);
            host.faults.plan(strike.nth(nth).always());
            let wanted = r#"{"snapshot":{"name":"weekly","tags":[],"replace":true}}"#;
            let answer = control(&host, wanted);
            assert_eq!(
                answer.contains("\"replaced\":true"),
                nth > 1,
                "{nth}: {answer}"
            );
            host.faults.heal();
            assert!(has_weekly(&host), "{fault:?} {nth}: {answer}");
        }
    }
}

/// The store has made the replacement, and its answer is lost.
#[test]
fn a_lost_answer_says_what_was_replaced() {
    let host = with_weekly(&Bucket::new());
    let lost = Fault::FailAfter(StoreErrorKind::OutcomeUnknown);
    host.faults
        .plan(Strike::with(lost).on(Operation::Replace).keys("root"));
    let wanted = r#"{"snapshot":{"name":"weekly","tags":[],"replace":true}}"#;
    let answer = control(&host, wanted);
    assert_eq!(host.faults.struck(), 1);
    assert!(answer.contains("\"replaced\":true"), "{answer}");
    let list = host.run(host.repository.snapshots()).expect("listed");
    let weekly = list.iter().filter(|entry| entry.name == "weekly");
    assert_eq!(weekly.count(), 1);
    let root = host.repository.handle.current().root.clone();
    let trash = host.run(host.repository.lists.trash_shards(&root.trash));
    let trash = trash.expect("read");
    assert_eq!(trash.iter().map(|shard| shard.len()).sum::<usize>(), 1);
}
