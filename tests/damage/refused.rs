//! A store that refuses objects: one of them is named, and the check goes on; all of them are no
//! damage.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use bkfs::maintain::check::check;
use bkfs::maintain::options::CheckOptions;
use bkfs::maintain::repair::plan;
use bkfs::maintain::report::{PROBLEMS_MAX, Problem, ProblemKind, Report};
use bkfs::root::error::RootError;
use bkfs_chunker::crypto::Class;
use bkfs_chunker::pack::PackName;
use bkfs_store::{
    Layer, MemoryStore, ObjectInfo, Operation, Store, StoreError, StoreErrorKind, Version,
};
use bytes::Bytes;

use crate::lists::{forget, open};
use crate::machine::{Machine, noise};
use crate::world::{Fixture, SNAPSHOTS, bucket, class_of, objects, wait};

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

/// Checks that the report names each of these packs as refused.
fn are_refused(keys: &BTreeSet<String>, report: &Report) {
    for key in keys {
        let is_named =
            |problem: &Problem| problem.object == *key && problem.kind == ProblemKind::Refused;
        assert!(report.problems.iter().any(is_named), "{key}: {report}");
    }
}

#[test]
fn a_refused_pack_is_no_damage_whose_ends_alone_are_read() {
    let fixture = Fixture::build(None);
    let data = fixture.needed.iter().filter(|key| class_of(key) == "data");
    let data = BTreeSet::from_iter(data.cloned());
    let options = CheckOptions {
        verifier: fixture.options().verifier,
        ..CheckOptions::default()
    };
    let store = refusing(&fixture, Some(data.clone()));
    let report = wait(check(store.clone(), &fixture.keyring, &options)).expect("checks");
    are_refused(&data, &report);
    let (_, planned) = wait(plan(&store, &fixture.keyring, &options)).expect("plans");
    assert!(planned.is_empty(), "{:?}", planned.steps);
}

#[test]
fn a_refused_pack_that_the_trash_needs_gives_nothing_up() {
    let fixture = Fixture::build(None);
    let bucket = bucket(&fixture.objects);
    wait(async { forget(&open(bucket.clone()).await, SNAPSHOTS[0]).await });
    let metadata = fixture.needed.iter().filter(|key| class_of(key) == "meta");
    let keys = BTreeSet::from_iter(metadata.cloned());
    let store: Arc<dyn Store> = Arc::new(Refusing {
        bucket,
        keys: Some(keys),
    });
    let (_, planned) = wait(plan(&store, &fixture.keyring, &fixture.options())).expect("plans");
    assert!(planned.is_empty(), "{:?}", planned.steps);
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
            // It may be given again: nothing is written in its place.
            let planned = wait(plan(&store, &fixture.keyring, &fixture.options()));
            if matches!(class, "data" | "meta") {
                assert_eq!(report.counts.packs_read, whole.counts.packs_read, "{class}");
                are_refused(&keys, &report);
                let (_, planned) = planned.unwrap_or_else(|error| panic!("{class}: {error}"));
                assert!(planned.is_empty(), "{class}: {:?}", planned.steps);
                continue;
            }
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

/// A report lists a bounded number of problems, and the repair of a lost index object goes by what
/// packs say: a refused one among them may be the only one that says it.
#[test]
fn a_refused_pack_is_in_the_way_behind_any_number_of_problems() {
    let mut fixture = Fixture::build(None);
    let class = |class: &'static str| {
        let keys = fixture.needed.iter();
        let keys = keys.filter(move |key| class_of(key) == class);
        keys.cloned().collect::<Vec<_>>()
    };
    let (index, packs) = (class("index"), class("meta"));
    let refused = packs.last().expect("a pack").clone();
    fixture.objects.remove(&index[0]).expect("it was there");
    // Anyone who can write to the bucket can put these there. They sort before metadata packs.
    for sequence in 0..PROBLEMS_MAX as u32 {
        let name = PackName {
            session: 1,
            sequence,
            random: 1,
        };
        let junk = Bytes::from_static(b"junk");
        fixture.objects.insert(name.key(Class::DataPack), junk);
    }
    let store = refusing(&fixture, Some(BTreeSet::from([refused.clone()])));
    let report = checked(&fixture, store.clone()).expect("checks");
    assert!(report.more_problems > 0, "the report is not full");
    let planned = wait(plan(&store, &fixture.keyring, &fixture.options()));
    let error = planned.err().expect("nothing is written without it");
    assert!(error.to_string().contains(&refused), "{error}");
}

/// Without the root, lists and index objects that no root names say what there was.
#[test]
fn what_a_lost_root_is_rebuilt_from_is_in_the_way_if_it_is_refused() {
    let mut fixture = Fixture::build(None);
    fixture.objects.remove("root").expect("it was there");
    for class in ["lists", "index", "sessions"] {
        let keys = fixture.objects.keys().filter(|key| class_of(key) == class);
        let refused = BTreeSet::from_iter(keys.last().cloned());
        let store = refusing(&fixture, Some(refused.clone()));
        let planned = wait(plan(&store, &fixture.keyring, &fixture.options()));
        let error = planned.err();
        let error = error.unwrap_or_else(|| panic!("{class}: it is rebuilt without {refused:?}"));
        assert!(
            refused.iter().all(|key| error.to_string().contains(key)),
            "{error}"
        );
        let report = checked(&fixture, store).expect("checks");
        are_refused(&refused, &report);
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

/// A store that does not list some objects and refuses to tell of them.
#[derive(Debug)]
struct Hiding(Refusing);

#[async_trait]
impl Layer for Hiding {
    fn below(&self) -> &dyn Store {
        &self.0
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<ObjectInfo>, StoreError> {
        let keys = self.0.keys.as_ref().expect("some");
        let mut listed = self.0.bucket.list(prefix, after, limit).await?;
        listed.retain(|info| !keys.contains(&info.key));
        Ok(listed)
    }
}

/// A pack that only a journal names arrives after the listing, or is left out of it.
#[test]
fn a_refused_pack_that_a_journal_names_is_named_and_not_given_up() {
    let fixture = Fixture::build(None);
    let bucket = bucket(&fixture.objects);
    let machine = Machine::mount(bucket.clone(), None);
    machine.write("before", 0, noise(8, 100));
    machine.snapshot("before");
    let packs = |store: &MemoryStore| -> BTreeSet<String> {
        let keys = objects(store).into_keys();
        keys.filter(|key| matches!(class_of(key), "data" | "meta"))
            .collect()
    };
    let before = packs(&bucket);
    // More than a journal carries itself.
    machine.write("synced-late", 0, noise(9, 3 << 20));
    machine.fsync();
    machine.crash();
    let keys: BTreeSet<String> = packs(&bucket).difference(&before).cloned().collect();
    assert!(!keys.is_empty());
    let refusing = Refusing {
        bucket,
        keys: Some(keys.clone()),
    };
    let store: Arc<dyn Store> = Arc::new(Hiding(refusing));
    let report = checked(&fixture, store.clone()).expect("goes on");
    are_refused(&keys, &report);
    let planned = wait(plan(&store, &fixture.keyring, &fixture.options()));
    let error = planned.err().expect("nothing is given up");
    assert!(
        keys.iter().any(|key| error.to_string().contains(key)),
        "{error}"
    );
}
