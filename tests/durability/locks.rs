//! A bucket with object locks (`--lock-days`). No locked object is ever sent a deletion: this
//! bucket refuses those, and a collection would fail. Needed objects stay locked. The locks of all
//! others run out, and the objects are deleted.

use std::collections::BTreeSet;
use std::sync::Arc;

use bkfs::environment::Environment;
use bkfs::locking::is_locked;
use bkfs::maintain::collect::{Collected, Options, Prospect, collect, prospect};
use bkfs::repository::{Repository, create_locked_on};
use bkfs::root::error::RootError;
use bkfs_chunker::crypto::Class;
use bkfs_chunker::pack::PackName;
use bkfs_store::lock::{LockMode, LockRule};
use bkfs_store::{MemoryStore, Operation, Store, StoreErrorKind};
use bkfs_testing::fault::{Fault, FaultStore, Strike};
use jiff::{SignedDuration, Timestamp};

use crate::collecting::{OPTIONS, forget, snapshot, unlink};
use crate::host::{Bucket, noise, runtime};

const RULE: LockRule = LockRule {
    days: 10,
    mode: LockMode::Governance,
};
const HOUR: SignedDuration = SignedDuration::from_hours(1);

/// Returns a bucket with locks in which nothing needs the snapshot `one` any more, and the time.
fn bucket() -> (Bucket, Timestamp) {
    let (memory, machine) = (Arc::new(MemoryStore::new()), Environment::this());
    let now = machine.now();
    memory.set_clock(now);
    let created = create_locked_on(&machine, memory.clone(), None, Some(RULE));
    runtime().block_on(created).expect("created");
    let bucket = Bucket { memory };
    let host = bucket.host();
    host.write("old", 0, noise(1, 5 << 20));
    snapshot(&host, "one");
    unlink(&host, "old");
    host.write("new", 0, noise(2, 3 << 20));
    snapshot(&host, "two");
    host.finish().expect("unmounted");
    bucket.work(bucket.memory.clone(), async |repository| {
        forget(repository, "one").await;
    });
    (bucket, now)
}

async fn try_at(
    repository: &Repository,
    now: Timestamp,
    days: Option<u32>,
) -> Result<Collected, RootError> {
    let options = Options {
        lock_days: days,
        ..OPTIONS
    };
    let found: Prospect = prospect(repository, &options, now).await?;
    collect(repository, found).await
}

fn gc_at(bucket: &Bucket, now: Timestamp, days: Option<u32>) -> Collected {
    bucket.memory.set_clock(now);
    bucket.work(bucket.memory.clone(), async |repository| {
        try_at(repository, now, days).await.expect("collected")
    })
}

/// Returns by key when the lock of each object that may be locked ends; none for one without a
/// lock.
fn locks(bucket: &Bucket) -> Vec<(String, Option<Timestamp>)> {
    runtime().block_on(async {
        let mut found = Vec::new();
        for info in bucket.memory.list("", None, 10_000).await.expect("listed") {
            if is_locked(&info.key) {
                let lock = bucket.memory.lock(&info.key).await.expect("read");
                found.push((info.key, lock.map(|lock| lock.until)));
            }
        }
        found
    })
}

fn keys_of(waiting: &bkfs::maintain::collect::locks::Waiting) -> BTreeSet<String> {
    let classes = [Class::DataPack, Class::MetadataPack];
    let both = |name: &PackName| classes.map(|class| name.key(class));
    waiting.keys().flat_map(both).collect()
}

#[test]
fn what_is_needed_stays_locked_and_the_rest_runs_out() {
    let (bucket, now) = bucket();
    let uploaded = locks(&bucket);
    assert!(uploaded.len() >= 5, "config and packs: {uploaded:?}");
    for (key, until) in &uploaded {
        assert!(
            until.is_some_and(|until| until >= now + RULE.span()),
            "{key}"
        );
    }
    let first = gc_at(&bucket, now + HOUR, None);
    assert!(
        first.condemned.packs > 0 && !first.waiting.is_empty(),
        "{first:?}"
    );
    assert_eq!((first.deleted_packs, first.held_packs), (0, 0), "{first:?}");
    let until = RULE.lock_from(now + HOUR).until;
    assert_eq!(first.extended.until, Some(until));
    let waiting = keys_of(&first.waiting);
    for (key, found) in locks(&bucket) {
        let is_extended = found == Some(until);
        // Objects that this collection itself has stored are locked by the clock of this machine.
        let is_stored = !uploaded.iter().any(|(known, _)| *known == key);
        assert!(
            is_extended != waiting.contains(&key) || is_stored,
            "{key} until {found:?}"
        );
        assert!(found.is_some(), "{key}");
    }
    bucket.memory.set_clock(now + HOUR * 2);
    bucket.work(bucket.memory.clone(), async |repository| {
        let found = prospect(repository, &OPTIONS, now + HOUR * 2)
            .await
            .expect("seen");
        assert!(found.plan.is_empty() && found.free_packs == 0);
        let seen = found.locks.expect("there are locks");
        assert!(!seen.is_due);
        assert_eq!(keys_of(&seen.waiting), waiting);
    });
    let before = bucket.bytes("data/");
    let late = now + RULE.span() + HOUR * 2;
    let last = gc_at(&bucket, late, None);
    assert!(
        last.deleted_packs > 0 && last.waiting.is_empty(),
        "{last:?}"
    );
    assert!(bucket.bytes("data/") + (5 << 20) <= before, "{last:?}");
    for (key, until) in locks(&bucket) {
        assert!(until == Some(RULE.lock_from(late).until), "{key}");
    }
    bucket.work(bucket.memory.clone(), async |repository| {
        assert!(repository.handle.current().root.condemned.is_empty());
    });
    assert!(bucket.host().read("new") == Some(noise(2, 3 << 20)));
}

#[test]
fn locks_are_extended_when_half_of_the_days_is_left_or_more_are_demanded() {
    let (bucket, now) = bucket();
    let extended = |after: SignedDuration, days| gc_at(&bucket, now + after, days).extended;
    assert!(extended(HOUR, None).until.is_some(), "for the first time");
    assert!(
        extended(HOUR * 24 * 5, None).until.is_none(),
        "half of the days is left"
    );
    let next = HOUR * 24 * 5 + HOUR * 2;
    let until = RULE.lock_from(now + next).until;
    assert_eq!(extended(next, None).until, Some(until));
    assert!(
        extended(next, Some(20)).until.is_none(),
        "just half of what is demanded"
    );
    let more = extended(next, Some(21));
    let demanded = LockRule { days: 21, ..RULE };
    assert_eq!(more.until, Some(demanded.lock_from(now + next).until));
    assert!(more.objects > 0 && more.missing == 0, "{more:?}");
    assert!(extended(next, Some(0)).until.is_none());
    let later = extended(HOUR * 24 * 22, None);
    assert!(later.until.is_some());
}

#[test]
fn an_extension_that_fails_is_made_again() {
    let (bucket, now) = bucket();
    let faults = Arc::new(FaultStore::new(bucket.memory.clone()));
    let denied = Fault::FailBefore(StoreErrorKind::Denied);
    faults.plan(
        Strike::with(denied)
            .on(Operation::ExtendLock)
            .nth(3)
            .times(1),
    );
    bucket.memory.set_clock(now + HOUR);
    bucket.work(faults.clone(), async |repository| {
        let failed = try_at(repository, now + HOUR, None).await;
        assert!(failed.is_err());
        assert_eq!(repository.handle.current().root.locked_until_s, None);
    });
    assert!(gc_at(&bucket, now + HOUR, None).extended.until.is_some());
}

#[test]
fn what_is_free_earlier_goes_earlier_and_the_rest_stays_condemned() {
    let (bucket, now) = bucket();
    let first = gc_at(&bucket, now + HOUR, None);
    assert!(first.waiting.len() > 1, "{first:?}");
    let late = now + RULE.span() + HOUR * 2;
    let (kept, _) = first.waiting.first_key_value().expect("there is one");
    let kept_key = locks(&bucket)
        .into_iter()
        .find_map(|(key, _)| key.ends_with(&kept.to_string()).then_some(key))
        .expect("it is there");
    let longer = RULE.lock_from(late);
    runtime()
        .block_on(bucket.memory.extend_lock(&kept_key, &longer))
        .expect("locked");
    let second = gc_at(&bucket, late, None);
    assert_eq!(second.deleted_packs, first.waiting.len() as u64 - 1);
    assert!(keys_of(&second.waiting).contains(&kept_key));
    bucket.work(bucket.memory.clone(), async |repository| {
        let view = repository.handle.refresh().await.expect("read");
        assert_eq!(view.root.condemned.len(), 1);
        assert_eq!(view.root.condemned[0].list.count, 1);
        let condemned = repository.lists.condemned(&view.root).await.expect("read");
        assert!(condemned.contains(kept));
    });
    let third = gc_at(&bucket, longer.until + HOUR, None);
    assert_eq!((third.deleted_packs, third.waiting.len()), (1, 0));
    assert!(bucket.host().read("new") == Some(noise(2, 3 << 20)));
}
