//! A store that refuses objects: one of them is named, and the check goes on; all of them are no
//! damage.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use bkfs::maintain::check::check;
use bkfs::maintain::repair::plan;
use bkfs::maintain::report::Report;
use bkfs::root::error::RootError;
use bkfs_chunker::store::{
    Layer, MemoryStore, ObjectInfo, Operation, Store, StoreError, StoreErrorKind, Version,
};
use bytes::Bytes;

use crate::world::{Fixture, bucket, class_of, wait};

/// Refuses to give some objects, or all, as a store does whose objects are in an archive class, or
/// whose credentials have expired.
#[derive(Debug)]
struct Refusing {
    bucket: Arc<MemoryStore>,
    /// None for all.
    keys: Option<BTreeSet<String>>,
}

impl Refusing {
    fn refuse(&self, operation: Operation, key: &str) -> Result<(), StoreError> {
        match self.keys.as_ref().is_none_or(|keys| keys.contains(key)) {
            true => Err(StoreError::new(
                StoreErrorKind::Denied,
                operation,
                key,
                "permission denied (403 Forbidden)",
            )),
            false => Ok(()),
        }
    }
}

#[async_trait]
impl Layer for Refusing {
    fn below(&self) -> &dyn Store {
        &*self.bucket
    }

    async fn get(&self, key: &str) -> Result<(Bytes, Version), StoreError> {
        self.refuse(Operation::Get, key)?;
        self.bucket.get(key).await
    }

    async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes, StoreError> {
        self.refuse(Operation::GetRange, key)?;
        self.bucket.get_range(key, range).await
    }

    async fn get_tail(&self, key: &str, bytes: u64) -> Result<(Bytes, u64), StoreError> {
        self.refuse(Operation::GetTail, key)?;
        self.bucket.get_tail(key, bytes).await
    }

    async fn head(&self, key: &str) -> Result<ObjectInfo, StoreError> {
        self.refuse(Operation::Head, key)?;
        self.bucket.head(key).await
    }
}

fn refusing(fixture: &Fixture, keys: Option<BTreeSet<String>>) -> Arc<dyn Store> {
    let bucket = bucket(&fixture.objects);
    Arc::new(Refusing { bucket, keys })
}

fn checked(fixture: &Fixture, store: Arc<dyn Store>) -> Result<Report, RootError> {
    wait(check(store, &fixture.keyring, &fixture.options()))
}

#[test]
fn an_object_that_the_store_refuses_is_named_and_the_rest_is_checked() {
    let fixture = Fixture::build(Some(crate::world::PASSWORD));
    let whole = checked(&fixture, bucket(&fixture.objects)).expect("checks");
    let mut classes: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for key in &fixture.needed {
        let keys = classes.entry(class_of(key)).or_default();
        keys.insert(key.clone());
    }
    classes.remove("config").expect("there is one");
    for (class, all) in classes {
        let first = BTreeSet::from_iter(all.first().cloned());
        for keys in [first, all] {
            let store = refusing(&fixture, Some(keys.clone()));
            let report = checked(&fixture, store.clone());
            let report = report.unwrap_or_else(|error| panic!("{class}: {error}"));
            for key in &keys {
                assert!(report.names(key), "{key} is not named: {report}");
            }
            if class == "data" {
                assert_eq!(report.counts.packs_read, whole.counts.packs_read, "{class}");
                continue;
            }
            if class == "meta" {
                continue;
            }
            // It may be given again: nothing is written in its place.
            let planned = wait(plan(&store, &fixture.keyring, &fixture.options()));
            let error = planned
                .err()
                .unwrap_or_else(|| panic!("{class} is repaired"));
            assert!(
                keys.iter().any(|key| error.to_string().contains(key)),
                "{error}"
            );
        }
    }
}

#[test]
fn a_store_that_refuses_everything_is_no_damage() {
    let fixture = Fixture::build(None);
    let error = checked(&fixture, refusing(&fixture, None)).expect_err("it cannot be read");
    let is_refusal = matches!(
        &error,
        RootError::Store(error) if error.kind() == StoreErrorKind::Denied
    );
    assert!(is_refusal, "{error}");
    // Nor once all was opened: here all but the root and the lists.
    let is_early = |key: &&String| matches!(class_of(key), "root" | "lists");
    let late = fixture.objects.keys().filter(|key| !is_early(key));
    let late = BTreeSet::from_iter(late.cloned());
    let report = checked(&fixture, refusing(&fixture, Some(late)));
    assert!(report.is_err(), "{}", report.expect("a report"));
}
