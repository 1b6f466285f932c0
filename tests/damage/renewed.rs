//! Lists of condemned packs are lost, and something else with them: what a repair condemns anew
//! leaves what is needed alive, and brings nothing back to life that was condemned.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use bkfs::maintain::check::check;
use bkfs::maintain::collect::plan::Effort;
use bkfs::maintain::collect::{Options, Prospect, prospect};
use bkfs::maintain::options::CheckOptions;
use bkfs::maintain::quarantine;
use bkfs::maintain::workspace::Workspace;
use bkfs::root::holder::SystemProcesses;
use bkfs_chunker::catalog::PackLocation;
use bkfs_chunker::crypto::Class;
use bkfs_chunker::pack::PackName;
use bkfs_store::{Layer, MemoryStore, Store, StoreError, Version};
use bytes::Bytes;
use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;

use crate::cases::{Case, Harm};
use crate::lists::{condemned, fixture, forget, gather, goes_on, lists, open};
use crate::machine::{Machine, noise};
use crate::repairs::{mend, mend_with, root_of};
use crate::restored::restore;
use crate::world::{Fixture, Objects, SNAPSHOTS, bucket, objects, wait};

fn strip(store: &Arc<MemoryStore>) {
    wait(async { bkfs_tests::strip(&open(store.clone()).await).await });
}

/// What a collection on a machine that remembers in `state` would do.
fn look(store: &Arc<MemoryStore>, state: &Path) -> (Prospect, Timestamp) {
    wait(async {
        let repository = open(store.clone()).await;
        let options = Options {
            undelete_window: SignedDuration::from_hours(24 * 7),
            workspace: Workspace::IN_MEMORY,
            state_dir: Some(state.to_owned()),
            lock_days: None,
            effort: Effort::default(),
        };
        let now = repository.now();
        let found = prospect(&repository, &options, now).await;
        (found.expect("looked"), now)
    })
}

/// All snapshots have vanished after a machine saw them, and another machine has condemned what
/// only they need; then the list of that is lost.
struct Stripped {
    fixture: Fixture,
    objects: Objects,
    state: tempfile::TempDir,
    options: CheckOptions,
    condemned: BTreeSet<PackName>,
}

/// As described; `later` is a snapshot that was made since.
fn stripped(later: Option<&str>) -> Stripped {
    let fixture = Fixture::build(None);
    let store = bucket(&fixture.objects);
    let state = tempfile::tempdir().expect("a directory");
    let (_, now) = look(&store, state.path());
    strip(&store);
    if let Some(later) = later {
        let machine = Machine::mount(store.clone(), None);
        machine.write("later", 0, noise(80, 200_000));
        machine.snapshot(later);
        machine.crash();
    }
    let done = wait(async { gather(&open(store.clone()).await).await });
    let done = done.expect("collected");
    assert!(
        done.condemned.packs > 0 && done.deleted_packs == 0,
        "{done:?}"
    );
    let root = root_of(&fixture, &store);
    let condemned = condemned(&fixture, &store, &root);
    let key = root.condemned[0].list.name.key(Class::List);
    wait(store.delete(&key)).expect("deleted");
    let options = CheckOptions {
        seen: Some((state.path().to_owned(), now)),
        ..fixture.options()
    };
    Stripped {
        objects: objects(&*store),
        fixture,
        state,
        options,
        condemned,
    }
}

/// Repairs; afterwards nothing of the lost list is alive, and can be deleted at any time.
fn mended(it: &Stripped, store: &Arc<MemoryStore>) {
    let shared: Arc<dyn Store> = store.clone();
    let report = mend_with(&it.fixture, &shared, &it.options);
    assert!(report.is_clean(), "{report}");
    let root = root_of(&it.fixture, store);
    let after = condemned(&it.fixture, store, &root);
    assert!(it.condemned.is_subset(&after), "some are live again");
    // A collector that has read the list is late, and deletes what it named.
    delete(store, &it.condemned);
    let report = wait(check(shared, &it.fixture.keyring, &it.fixture.options()));
    let report = report.expect("checks");
    assert!(report.is_clean(), "{report}");
}

/// Deletes packs, whichever of them are there.
pub fn delete(store: &MemoryStore, packs: &BTreeSet<PackName>) {
    for pack in packs {
        for class in [Class::DataPack, Class::MetadataPack] {
            let _ = wait(store.delete(&pack.key(class)));
        }
    }
}

#[test]
fn what_a_vanished_snapshot_needs_is_stored_again_and_proves_no_pack_alive() {
    let it = stripped(None);
    let store = bucket(&it.objects);
    mended(&it, &store);
    let (found, _) = look(&store, it.state.path());
    let names: BTreeSet<&str> = found.vanished.iter().map(|gone| &*gone.name).collect();
    let all = BTreeSet::from(SNAPSHOTS);
    assert_eq!((names, found.lost.len()), (all, 0), "they are whole");
}

#[test]
fn what_is_gone_of_vanished_snapshots_alone_stops_no_renewal() {
    let it = stripped(None);
    // One pack after the other, data and metadata.
    for pack in &it.condemned {
        let store = bucket(&it.objects);
        delete(&store, &BTreeSet::from([*pack]));
        mended(&it, &store);
        let (found, _) = look(&store, it.state.path());
        let all = found.vanished.len() + found.lost.len();
        assert_eq!(all, SNAPSHOTS.len(), "without {pack}");
        assert!(!found.vanished.is_empty(), "without {pack}");
    }
}

#[test]
fn snapshots_that_only_records_tell_of_prove_no_pack_alive() {
    let fixture = fixture();
    let root = root_of(&fixture, &bucket(&fixture.objects));
    let before = condemned(&fixture, &bucket(&fixture.objects), &root);
    let keys = lists(&root);
    for others in [&["snapshots"][..], &["trash"], &["snapshots", "trash"]] {
        let mut harmed = Case::new(&keys["condemned"], Harm::Remove).apply(&fixture);
        for kind in others {
            harmed.remove(&keys[kind]);
        }
        let store = bucket(&harmed);
        let shared: Arc<dyn Store> = store.clone();
        let report = mend(&fixture, &shared);
        assert!(report.is_clean(), "{others:?}: {report}");
        let after = condemned(&fixture, &store, &root_of(&fixture, &store));
        assert!(before.is_subset(&after), "{others:?}: some are live again");
        delete(&store, &before);
        goes_on(&fixture, &store, &format!("{others:?}"));
    }
}

#[test]
fn a_vanished_snapshot_outlives_the_loss_of_both_lists() {
    let it = stripped(Some("later"));
    let store = bucket(&it.objects);
    for list in &root_of(&it.fixture, &store).snapshots {
        wait(store.delete(&list.name.key(Class::List))).expect("deleted");
    }
    mended(&it, &store);
    // Their commits are in the chain, so they are listed again.
    for name in SNAPSHOTS {
        let restored = restore(&it.fixture, store.clone(), name).expect("restores");
        assert!(restored.problems.is_empty(), "{:?}", restored.problems);
        assert!(restored.tree == it.fixture.trees[name], "{name} is another");
    }
}

/// Does something once, before the first object below one of some prefixes is stored.
pub struct Meanwhile {
    bucket: Arc<MemoryStore>,
    prefixes: &'static [&'static str],
    /// What is left to be done.
    pub work: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl std::fmt::Debug for Meanwhile {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Meanwhile")
    }
}

impl Meanwhile {
    /// Before the first pack.
    fn new(bucket: &Arc<MemoryStore>, work: impl FnOnce() + Send + 'static) -> Arc<Self> {
        Self::below(bucket, &["data/", "meta/"], work)
    }

    /// Before the first object below one of these prefixes is stored.
    pub fn below(
        bucket: &Arc<MemoryStore>,
        prefixes: &'static [&'static str],
        work: impl FnOnce() + Send + 'static,
    ) -> Arc<Self> {
        Arc::new(Self {
            bucket: bucket.clone(),
            prefixes,
            work: Mutex::new(Some(Box::new(work))),
        })
    }

    fn before(&self, key: &str) {
        if !self.prefixes.iter().any(|prefix| key.starts_with(prefix)) {
            return;
        }
        let work = self.work.lock().take();
        if let Some(work) = work {
            std::thread::scope(|scope| scope.spawn(work).join()).expect("works");
        }
    }
}

#[async_trait]
impl Layer for Meanwhile {
    fn below(&self) -> &dyn Store {
        &*self.bucket
    }

    async fn put_new(&self, key: &str, body: Vec<Bytes>) -> Result<Version, StoreError> {
        self.before(key);
        self.bucket.put_new(key, body).await
    }

    async fn put(&self, key: &str, body: Vec<Bytes>) -> Result<Version, StoreError> {
        self.before(key);
        self.bucket.put(key, body).await
    }
}

/// The data packs of a bucket.
pub fn data_packs(store: &MemoryStore) -> BTreeSet<String> {
    let keys = objects(store).into_keys();
    keys.filter(|key| key.starts_with("data/")).collect()
}

/// The pack that a key is of.
pub fn pack_of(key: &str) -> PackName {
    let name = key.rsplit('/').next().expect("a name");
    name.parse().expect("a pack")
}

/// Writes `file` for the snapshots `forgotten` and `kept`, with other contents in each, and
/// condemns what only `forgotten` needs. A session that crashed holds the deletion back.
pub fn condemn_contents(store: &Arc<MemoryStore>, file: &str, forgotten: &str, kept: &str) {
    let machine = Machine::mount(store.clone(), None);
    machine.write(file, 0, noise(50, 900_000));
    machine.snapshot(forgotten);
    machine.write(file, 0, noise(51, 900_000));
    machine.snapshot(kept);
    machine.crash();
    let done = wait(async {
        let repository = open(store.clone()).await;
        forget(&repository, forgotten).await;
        gather(&repository).await
    });
    let done = done.expect("collected");
    assert!(
        done.condemned.bytes > 800_000 && done.deleted_packs == 0,
        "{done:?}"
    );
}

#[test]
fn damage_that_is_found_meanwhile_is_stored_again_as_well() {
    let fixture = Fixture::build(None);
    let store = bucket(&fixture.objects);
    condemn_contents(&store, "again", "before", "without");
    // The same data, stored again, with other data in its pack.
    let known = data_packs(&store);
    let machine = Machine::mount(store.clone(), None);
    machine.write("again", 0, noise(50, 900_000));
    machine.write("with it", 0, noise(52, 500_000));
    machine.snapshot("after");
    machine.finish();
    let fresh: Vec<String> = data_packs(&store).difference(&known).cloned().collect();
    let places: Vec<PackLocation> = fresh
        .iter()
        .map(|key| PackLocation {
            pack: pack_of(key),
            frame: None,
        })
        .collect();
    assert!(!places.is_empty());
    let root = root_of(&fixture, &store);
    let before = condemned(&fixture, &store, &root);
    for condemned in &root.condemned {
        wait(store.delete(&condemned.list.name.key(Class::List))).expect("deleted");
    }
    let below = store.clone();
    let found = Meanwhile::new(&store, move || {
        wait(async {
            let repository = open(below).await;
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
    let shared: Arc<dyn Store> = found.clone();
    let report = mend(&fixture, &shared);
    assert!(found.work.lock().is_none(), "nothing was stored");
    assert!(report.is_clean(), "{report}");
    // The damage was real, and the collector that had read the list is late.
    delete(&store, &before);
    for key in fresh {
        wait(store.delete(&key)).expect("deleted");
    }
    let restored = restore(&fixture, store.clone(), "after").expect("restores");
    let again = restored.tree.get("/again").map(|(_, bytes)| bytes);
    assert!(
        again == Some(&noise(50, 900_000)),
        "{:?}",
        restored.problems
    );
}

#[test]
fn of_two_repairs_at_the_same_time_both_end_well() {
    let fixture = fixture();
    let root = root_of(&fixture, &bucket(&fixture.objects));
    let key = lists(&root)["condemned"].clone();
    let store = bucket(&Case::new(&key, Harm::Remove).apply(&fixture));
    let before = condemned(&fixture, &bucket(&fixture.objects), &root);
    let fixture = Arc::new(fixture);
    let (below, same) = (store.clone(), fixture.clone());
    let other = Meanwhile::new(&store, move || {
        let shared: Arc<dyn Store> = below;
        let report = mend(&same, &shared);
        assert!(report.is_clean(), "{report}");
    });
    let shared: Arc<dyn Store> = other.clone();
    let report = mend(&fixture, &shared);
    assert!(other.work.lock().is_none(), "nothing was stored");
    assert!(report.is_clean(), "{report}");
    let after = condemned(&fixture, &store, &root_of(&fixture, &store));
    assert!(before.is_subset(&after), "some are live again");
    goes_on(&fixture, &store, "two repairs");
}
