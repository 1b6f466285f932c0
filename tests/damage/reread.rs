//! A store that gives a wrong answer for a while: what a check could not read and a repair can read
//! is not given up, and nothing is changed.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use bkfs::maintain::options::CheckOptions;
use bkfs::maintain::quarantine;
use bkfs::maintain::repair::{execute, plan};
use bkfs::root::error::{ErrorKind, RootError};
use bkfs::root::holder::SystemProcesses;
use bkfs::root::memory::{FileMemory, GenerationMemory};
use bkfs::root::sent::Sent;
use bkfs::root::shard::decode_shard;
use bkfs::root::snapshots::QuarantineEntry;
use bkfs_chunker::catalog::PackLocation;
use bkfs_chunker::crypto::Class;
use bkfs_chunker::pack::PackName;
use bkfs_store::{
    Layer, MemoryStore, ObjectInfo, Operation, PROBE_PREFIX, Store, StoreError, StoreErrorKind,
    Version,
};
use bytes::Bytes;

use crate::cases::{Case, Harm};
use crate::doubted::pack_of_root_node;
use crate::lists::{fixture, forget, lists, open};
use crate::machine::{Machine, noise};
use crate::renewed::{Meanwhile, pack_of};
use crate::repairs::{mend_with, root_of};
use crate::world::{Fixture, Objects, bucket, class_of, objects, wait};

/// What is answered for the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    /// Other bytes.
    Damage,
    /// It is not there.
    Absence,
}

const ANSWERS: [Answer; 2] = [Answer::Damage, Answer::Absence];

/// A store that gives a wrong answer for one object while `lies` is true.
#[derive(Debug)]
struct Lying {
    bucket: Arc<MemoryStore>,
    key: String,
    answer: Answer,
    lies: AtomicBool,
}

impl Lying {
    fn new(objects: &Objects, key: &str, answer: Answer) -> Arc<Self> {
        assert!(objects.contains_key(key), "{key} is not there");
        Arc::new(Self {
            bucket: bucket(objects),
            key: key.to_owned(),
            answer,
            lies: AtomicBool::new(true),
        })
    }

    fn lie(&self, lies: bool) {
        self.lies.store(lies, Ordering::Relaxed);
    }

    fn lies_of(&self, key: &str) -> bool {
        key == self.key && self.lies.load(Ordering::Relaxed)
    }

    fn absent(&self, operation: Operation, key: &str) -> Result<(), StoreError> {
        match self.lies_of(key) && self.answer == Answer::Absence {
            true => Err(StoreError::new(
                StoreErrorKind::NotFound,
                operation,
                key,
                "not found (404)",
            )),
            false => Ok(()),
        }
    }

    fn bytes(&self, key: &str, bytes: Bytes) -> Bytes {
        if !self.lies_of(key) || bytes.is_empty() {
            return bytes;
        }
        let mut bytes = bytes.to_vec();
        let middle = bytes.len() / 2;
        bytes[middle..].fill(7);
        Bytes::from(bytes)
    }
}

#[async_trait]
impl Layer for Lying {
    fn below(&self) -> &dyn Store {
        &*self.bucket
    }

    async fn get(&self, key: &str) -> Result<(Bytes, Version), StoreError> {
        self.absent(Operation::Get, key)?;
        let (bytes, version) = self.bucket.get(key).await?;
        Ok((self.bytes(key, bytes), version))
    }

    async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes, StoreError> {
        self.absent(Operation::GetRange, key)?;
        let bytes = self.bucket.get_range(key, range).await?;
        Ok(self.bytes(key, bytes))
    }

    async fn get_tail(&self, key: &str, count: u64) -> Result<(Bytes, u64), StoreError> {
        self.absent(Operation::GetTail, key)?;
        let (bytes, length) = self.bucket.get_tail(key, count).await?;
        Ok((self.bytes(key, bytes), length))
    }

    async fn head(&self, key: &str) -> Result<ObjectInfo, StoreError> {
        self.absent(Operation::Head, key)?;
        self.bucket.head(key).await
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<ObjectInfo>, StoreError> {
        let mut listed = self.bucket.list(prefix, after, limit).await?;
        listed.retain(|info| self.absent(Operation::List, &info.key).is_ok());
        Ok(listed)
    }
}

/// Plans a repair while the store lies, and executes it once it does not. Returns the steps and the
/// outcome.
fn repair(
    fixture: &Fixture,
    store: &Arc<Lying>,
    options: &CheckOptions,
) -> (Vec<String>, Result<(), RootError>) {
    let shared: Arc<dyn Store> = store.clone();
    wait(async {
        store.lie(true);
        let planned = plan(&shared, &fixture.keyring, options).await;
        let (findings, plan) = planned.expect("plans");
        store.lie(false);
        let steps = plan.steps.clone();
        let done = execute(&shared, &fixture.keyring, options, &findings, plan).await;
        (steps, done)
    })
}

/// Checks that a repair of what a lying store says changes nothing and names `named`, and that the
/// next one, which hears the truth, finds nothing wrong.
fn changes_nothing(fixture: &Fixture, store: &Arc<Lying>, named: &str) {
    changes_nothing_with(fixture, store, named, &fixture.options());
    let shared: Arc<dyn Store> = store.clone();
    let report = mend_with(fixture, &shared, &fixture.options());
    assert!(report.is_clean(), "{named}: {report}");
}

/// The first half, with these options.
fn changes_nothing_with(
    fixture: &Fixture,
    store: &Arc<Lying>,
    named: &str,
    options: &CheckOptions,
) {
    let before = objects(&*store.bucket);
    let case = format!("{:?} of {}", store.answer, store.key);
    let (steps, done) = repair(fixture, store, options);
    assert!(!steps.is_empty(), "{case}: nothing is planned");
    let Err(error) = done else {
        panic!("{case}: done in spite of the truth: {steps:?}");
    };
    let text = error.to_string();
    for told in [named, "different answers", "again"] {
        assert!(text.contains(told), "{case}: {text}");
    }
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{case}: {text}");
    assert!(objects(&*store.bucket) == before, "{case}: it was changed");
}

#[test]
fn a_list_that_can_be_read_again_is_not_given_up() {
    let fixture = fixture();
    let root = root_of(&fixture, &bucket(&fixture.objects));
    for (_, key) in lists(&root) {
        for answer in ANSWERS {
            let store = Lying::new(&fixture.objects, &key, answer);
            changes_nothing(&fixture, &store, &key);
        }
    }
}

#[test]
fn a_root_that_can_be_read_again_is_not_replaced() {
    let fixture = Fixture::build(None);
    for answer in ANSWERS {
        let store = Lying::new(&fixture.objects, "root", answer);
        changes_nothing(&fixture, &store, "root");
    }
}

#[test]
fn a_journal_that_can_be_read_again_is_not_set_aside() {
    let fixture = Fixture::build(None);
    let all = fixture.needed.iter();
    let journals: Vec<&String> = all.filter(|key| class_of(key) == "journal").collect();
    assert_eq!(journals.len(), 3);
    for (number, key) in journals.iter().enumerate() {
        let store = Lying::new(&fixture.objects, key, Answer::Damage);
        changes_nothing(&fixture, &store, key);
        // The absence of the last one is no gap, since this machine remembers nothing.
        if number < 2 {
            let store = Lying::new(&fixture.objects, key, Answer::Absence);
            changes_nothing(&fixture, &store, "journal/");
        }
    }
}

#[test]
fn what_stands_in_for_a_loss_is_read_again_too() {
    // Without the index, packs say what they hold. Without the root, whatever list is left tells.
    let fixture = Fixture::build(None);
    let root = root_of(&fixture, &bucket(&fixture.objects));
    let index = root.index[0].name.key(Class::Index);
    let list = root.snapshots[0].name.key(Class::List);
    let packs = fixture.needed.iter();
    let pack = packs.clone().find(|key| class_of(key) == "data");
    for (lost, key) in [
        (&index[..], pack.expect("a pack")),
        ("root", &list),
        ("root", &index),
    ] {
        let harmed = Case::new(lost, Harm::Remove).apply(&fixture);
        let store = Lying::new(&harmed, key, Answer::Damage);
        changes_nothing(&fixture, &store, key);
    }
}

#[test]
fn a_forgotten_snapshot_that_can_be_read_again_is_not_given_up() {
    let mut fixture = Fixture::build(None);
    let store = bucket(&fixture.objects);
    let machine = Machine::mount(store.clone(), None);
    for (number, name) in ["broken", "whole"].into_iter().enumerate() {
        machine.write("file", 0, noise(70 + number as u64, 40_000));
        machine.snapshot(name);
    }
    machine.finish();
    let pack = pack_of_root_node(&fixture, &store, "broken");
    wait(async { forget(&open(store.clone()).await, "broken").await });
    fixture.objects = objects(&*store);
    let options = CheckOptions {
        gives_up: true,
        ..fixture.options()
    };
    let key = pack.key(Class::MetadataPack);
    let store = Lying::new(&fixture.objects, &key, Answer::Damage);
    changes_nothing_with(&fixture, &store, "main/broken", &options);
}

/// The places in quarantine, by the lists in `store`.
fn quarantined(fixture: &Fixture, store: &MemoryStore) -> BTreeSet<PackName> {
    let mut found = BTreeSet::new();
    for list in root_of(fixture, store).quarantine {
        let key = list.name.key(Class::List);
        let (object, _) = wait(store.get(&key)).expect("a list");
        let payload = fixture.keyring.open_object(Class::List, &key, &object);
        let entries = decode_shard::<QuarantineEntry>(&payload.expect("opens"));
        found.extend(entries.expect("decodes").iter().map(|entry| entry.pack));
    }
    found
}

/// A repository with a quarantine, and the data pack that is harmed in it.
fn with_damage() -> (Fixture, Objects, PackName) {
    let fixture = fixture();
    let store = bucket(&fixture.objects);
    let known = quarantined(&fixture, &store);
    assert!(!known.is_empty(), "nothing is in quarantine");
    let needed = fixture.find_needed().into_iter();
    let mut data = needed.filter(|key| class_of(key) == "data" && !known.contains(&pack_of(key)));
    let key = data.next().expect("a data pack");
    let harmed = Case::new(&key, Harm::Flip(300, 1)).apply(&fixture);
    (fixture, harmed, pack_of(&key))
}

#[test]
fn a_quarantine_that_cannot_be_read_for_a_moment_is_not_given_up() {
    let (fixture, harmed, _) = with_damage();
    let root = root_of(&fixture, &bucket(&fixture.objects));
    let key = lists(&root)["quarantine"].clone();
    for answer in ANSWERS {
        let store = Lying::new(&harmed, &key, answer);
        store.lie(false);
        let shared: Arc<dyn Store> = store.clone();
        let options = fixture.options();
        let done = wait(async {
            let planned = plan(&shared, &fixture.keyring, &options).await;
            let (findings, plan) = planned.expect("plans");
            // The check has read it.
            store.lie(true);
            execute(&shared, &fixture.keyring, &options, &findings, plan).await
        });
        assert!(done.is_err(), "{answer:?}: it is given up");
        let now = root_of(&fixture, &store.bucket);
        assert_eq!(now.quarantine, root.quarantine, "{answer:?}");
    }
}

#[test]
fn of_two_writers_of_the_quarantine_neither_loses_anything() {
    let (fixture, harmed, damaged) = with_damage();
    let store = bucket(&harmed);
    let mut expected = quarantined(&fixture, &store);
    let needed = fixture.find_needed().into_iter();
    let mut packs = needed
        .filter(|key| class_of(key) == "data")
        .map(|key| pack_of(&key));
    let other = packs.rfind(|pack| *pack != damaged && !expected.contains(pack));
    let other = other.expect("another pack");
    expected.extend([damaged, other]);
    let below = store.clone();
    // Before the list of the first one is stored, so after the quarantine was read.
    let meanwhile = Meanwhile::below(&store, &["lists/"], move || {
        wait(async {
            let repository = open(below).await;
            let places = [PackLocation {
                pack: other,
                frame: None,
            }];
            let added = quarantine::add(
                &repository.handle,
                &repository.lists,
                &repository.content_store,
                repository.environment.holder("quarantine"),
                &SystemProcesses,
                &places,
            );
            added.await.expect("in quarantine");
        });
    });
    let shared: Arc<dyn Store> = meanwhile.clone();
    mend_with(&fixture, &shared, &fixture.options());
    assert!(meanwhile.work.lock().is_none(), "no list was stored");
    assert_eq!(quarantined(&fixture, &store), expected);
}

/// A store that does not find an object until the root is replaced.
#[derive(Debug)]
struct Returning {
    bucket: Arc<MemoryStore>,
    key: String,
    is_back: AtomicBool,
}

impl Returning {
    fn of(bucket: Arc<MemoryStore>, key: &str) -> Arc<dyn Store> {
        Arc::new(Self {
            bucket,
            key: key.to_owned(),
            is_back: AtomicBool::new(false),
        })
    }

    fn find(&self, operation: Operation, key: &str) -> Result<(), StoreError> {
        match key == self.key && !self.is_back.load(Ordering::Relaxed) {
            true => Err(StoreError::new(
                StoreErrorKind::NotFound,
                operation,
                key,
                "not found (404)",
            )),
            false => Ok(()),
        }
    }
}

#[async_trait]
impl Layer for Returning {
    fn below(&self) -> &dyn Store {
        &*self.bucket
    }

    async fn get(&self, key: &str) -> Result<(Bytes, Version), StoreError> {
        self.find(Operation::Get, key)?;
        self.bucket.get(key).await
    }

    async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes, StoreError> {
        self.find(Operation::GetRange, key)?;
        self.bucket.get_range(key, range).await
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<ObjectInfo>, StoreError> {
        let mut listed = self.bucket.list(prefix, after, limit).await?;
        listed.retain(|info| self.find(Operation::List, &info.key).is_ok());
        Ok(listed)
    }

    async fn replace(
        &self,
        key: &str,
        body: Vec<Bytes>,
        expected: &Version,
    ) -> Result<Version, StoreError> {
        let replaced = self.bucket.replace(key, body, expected).await;
        let is_root = key == "root" && replaced.is_ok();
        self.is_back.fetch_or(is_root, Ordering::Relaxed);
        replaced
    }
}

/// Repairs, and returns the object that the repair did not give up, and what it said of that.
fn not_given_up(
    fixture: &Fixture,
    store: &Arc<dyn Store>,
    options: &CheckOptions,
) -> (String, String) {
    let error = wait(async {
        let planned = plan(store, &fixture.keyring, options).await;
        let (findings, plan) = planned.expect("plans");
        execute(store, &fixture.keyring, options, &findings, plan).await
    });
    let error = error.expect_err("it is there");
    let text = error.to_string();
    match error {
        RootError::NoLongerLost { object, .. } => (object, text),
        error => panic!("{error}"),
    }
}

/// The renewal of condemned packs takes minutes. A list that comes back in them is not given up.
#[test]
fn a_list_that_comes_back_during_the_renewal_is_not_given_up() {
    let fixture = fixture();
    let store = bucket(&fixture.objects);
    let root = root_of(&fixture, &store);
    let keys = lists(&root);
    wait(store.delete(&keys["condemned"])).expect("deleted");
    let shared = Returning::of(store.clone(), &keys["snapshots"]);
    let (object, text) = not_given_up(&fixture, &shared, &fixture.options());
    assert_eq!(object, keys["snapshots"]);
    assert!(!text.contains("Nothing was changed"), "{text}");
    assert!(text.contains("stands"), "{text}");
    let now = root_of(&fixture, &store);
    assert_eq!(now.snapshots, root.snapshots, "the list stays");
    // What the renewal did stands, and the next repair goes on from there.
    mend_with(&fixture, &shared, &fixture.options());
    assert_eq!(root_of(&fixture, &store).snapshots, root.snapshots);
}

/// The journals of `store`, and the ones that were set aside.
fn journals(store: &MemoryStore) -> Objects {
    let mut found = objects(store);
    found.retain(|key, _| key.starts_with("journal/") || key.starts_with("damaged/"));
    found
}

/// A repository with lost lists of condemned packs, whose journals can be harmed.
fn without_condemned() -> (Fixture, Arc<MemoryStore>, Vec<String>) {
    let fixture = fixture();
    let store = bucket(&fixture.objects);
    let condemned = &lists(&root_of(&fixture, &store))["condemned"];
    wait(store.delete(condemned)).expect("deleted");
    let keys: Vec<String> = journals(&store).into_keys().collect();
    assert_eq!(keys.len(), 3);
    (fixture, store, keys)
}

/// Journals are set aside, and forgotten by this machine, only once nothing else is there again.
#[test]
fn a_list_that_comes_back_during_the_renewal_leaves_all_journals() {
    let (fixture, store, keys) = without_condemned();
    let root = root_of(&fixture, &store);
    let list = lists(&root)["snapshots"].clone();
    let mut sessions = root.sessions.iter();
    let (session, _) = sessions
        .find(|(_, session)| session.volume.is_some())
        .expect("a session");
    // One is lost, and only this machine knows of it; one is damaged.
    wait(store.delete(&keys[2])).expect("deleted");
    let (bytes, _) = wait(store.get(&keys[1])).expect("a journal");
    let mut bytes = bytes.to_vec();
    bytes[200] ^= 1;
    wait(store.put(&keys[1], vec![bytes.into()])).expect("put");
    let state = tempfile::tempdir().expect("a directory");
    let memory = Arc::new(FileMemory::new(state.path(), "repository"));
    let sent = memory.sent().expect("it keeps notes");
    let known = Sent {
        number: 3,
        last: 1_000,
    };
    wait(sent.lower(*session, known));
    let options = CheckOptions {
        memory: Some(memory.clone()),
        ..fixture.options()
    };
    let before = journals(&store);
    let shared = Returning::of(store.clone(), &list);
    let (object, _) = not_given_up(&fixture, &shared, &options);
    assert_eq!(object, list);
    assert!(journals(&store) == before, "journals were set aside");
    assert_eq!(wait(sent.recall(*session)), Some(known));
}

#[test]
fn a_journal_that_comes_back_during_the_renewal_is_not_given_up() {
    let (fixture, store, keys) = without_condemned();
    let list = &lists(&root_of(&fixture, &store))["snapshots"];
    wait(store.delete(list)).expect("deleted");
    let before = journals(&store);
    let shared = Returning::of(store.clone(), &keys[1]);
    let (object, _) = not_given_up(&fixture, &shared, &fixture.options());
    assert!(object.starts_with("journal/"), "{object}");
    assert!(journals(&store) == before, "journals were set aside");
}

/// A store that tells the truth once it is tried, which a repair does before it writes.
#[derive(Debug)]
struct Tried(Arc<Lying>);

#[async_trait]
impl Layer for Tried {
    fn below(&self) -> &dyn Store {
        &*self.0
    }

    async fn put_new(&self, key: &str, body: Vec<Bytes>) -> Result<Version, StoreError> {
        if key.starts_with(PROBE_PREFIX) {
            self.0.lie(false);
        }
        self.0.bucket.put_new(key, body).await
    }
}

/// A trial of the store may wait for it for minutes.
#[test]
fn what_comes_back_while_the_store_is_tried_is_not_given_up() {
    let fixture = fixture();
    let root = root_of(&fixture, &bucket(&fixture.objects));
    let list = lists(&root)["snapshots"].clone();
    let mut keys = fixture.objects.keys();
    let journal = keys.find(|key| class_of(key) == "journal").cloned();
    for key in ["root".to_owned(), list, journal.expect("a journal")] {
        let lying = Lying::new(&fixture.objects, &key, Answer::Damage);
        let before = objects(&*lying.bucket);
        lying.lie(true);
        let shared: Arc<dyn Store> = Arc::new(Tried(lying.clone()));
        let (object, text) = not_given_up(&fixture, &shared, &fixture.options());
        assert_eq!(object, key);
        assert!(text.contains("Nothing was changed"), "{text}");
        assert!(objects(&*lying.bucket) == before, "{key}: it was changed");
    }
}
