//! Lists of condemned packs are lost, and packs that are needed with them: no copy that cannot be
//! read is relied on or proves another one live.

use std::collections::{BTreeSet, HashSet};
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use bkfs::maintain::check::{check, examine};
use bkfs::maintain::collect::rebuilt::Rebuilt;
use bkfs::maintain::collect::renew::Renewal;
use bkfs::maintain::collect::sightings::SightingsFile;
use bkfs::maintain::collect::verifier;
use bkfs::maintain::quarantine;
use bkfs::maintain::repair::{execute, plan};
use bkfs::repository::Repository;
use bkfs::root::error::RootError;
use bkfs::root::handle::Transition;
use bkfs::root::holder::SystemProcesses;
use bkfs::root::session::OpenSession;
use bkfs::root::state::{Condemned, HolderInfo, Root, SessionId};
use bkfs::root::transition::{IndexChange, ListChange};
use bkfs_chunker::catalog::{IndexSources, PackLocation};
use bkfs_chunker::content_store::ContentStore;
use bkfs_chunker::crypto::Class;
use bkfs_chunker::ingest::Ingest;
use bkfs_chunker::pack::PackName;
use bkfs_chunker::verify::Found;
use bkfs_store::{MemoryStore, Store};
use bytes::Bytes;

use crate::lists::{condemned, fixture, forget, gather, goes_on, lists, open};
use crate::machine::{Machine, noise};
use crate::renewed::{Meanwhile, condemn_contents, data_packs, delete, pack_of};
use crate::repairs::{mend, root_of};
use crate::restored::restore;
use crate::world::{Fixture, SNAPSHOTS, bucket, wait};

/// Empties the quarantine, and adds index objects.
#[derive(Default)]
pub struct Change {
    /// In whose name.
    pub session: Option<SessionId>,
    /// The index objects.
    pub index: IndexChange,
}

#[async_trait]
impl Transition for Change {
    type Output = ();

    fn session(&self) -> Option<SessionId> {
        self.session
    }

    async fn apply(&mut self, next: &mut Root) -> Result<(), RootError> {
        let emptied = ListChange {
            removed: next.quarantine.clone(),
            added: Vec::new(),
        };
        next.change_quarantine(&emptied)?;
        Ok(next.change_index(&self.index)?)
    }

    async fn seen(&mut self, _: &Root) -> Result<bool, RootError> {
        Ok(false)
    }
}

/// Empties the quarantine.
fn trust_all(store: &Arc<MemoryStore>) {
    wait(async {
        let repository = open(store.clone()).await;
        let session = enter(&repository).await;
        let mut change = Change {
            session: Some(session.id()),
            ..Change::default()
        };
        repository.handle.update(&mut change).await.expect("made");
        session.end().await.expect("left");
    });
}

/// A session of maintenance.
pub async fn enter(repository: &Repository) -> OpenSession {
    let holder = repository.environment.holder("test");
    let session = OpenSession::open(&repository.handle, holder, None, &SystemProcesses).await;
    session.expect("entered")
}

/// Puts packs in quarantine.
fn distrust(store: &Arc<MemoryStore>, packs: &BTreeSet<PackName>) {
    let places: Vec<PackLocation> = packs
        .iter()
        .map(|pack| PackLocation {
            pack: *pack,
            frame: None,
        })
        .collect();
    wait(async {
        let repository = open(store.clone()).await;
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
}

/// The data packs that `work` adds.
pub fn added(store: &Arc<MemoryStore>, work: impl FnOnce(&Machine)) -> BTreeSet<PackName> {
    let known = data_packs(store);
    let machine = Machine::mount(store.clone(), None);
    work(&machine);
    machine.finish();
    let fresh = data_packs(store);
    fresh.difference(&known).map(|key| pack_of(key)).collect()
}

/// A repository whose list of condemned packs is lost, with data that two live packs hold.
pub struct Twice {
    /// As it was before.
    pub fixture: Fixture,
    /// The bucket.
    pub store: Arc<MemoryStore>,
    /// What the lost list named.
    pub before: BTreeSet<PackName>,
    /// The packs of the snapshot `first`.
    pub first: BTreeSet<PackName>,
    /// Those of `second`, which hold nothing else.
    pub second: BTreeSet<PackName>,
}

/// As described; with `other` the first pack holds something else too, with `later` only these
/// snapshots need it, and not the volume.
pub fn twice(other: bool, later: bool) -> Twice {
    let fixture = fixture();
    let store = bucket(&fixture.objects);
    let root = root_of(&fixture, &store);
    let before = condemned(&fixture, &store, &root);
    // What the session before has left in journals is carried out.
    added(&store, |machine| machine.snapshot("begun"));
    let first = added(&store, |machine| {
        machine.write("both", 0, noise(50, 300_000));
        if other {
            machine.write("beyond", 0, noise(51, 300_000));
        }
        machine.snapshot("first");
    });
    distrust(&store, &first);
    let second = added(&store, |machine| {
        machine.write("again", 0, noise(50, 300_000));
        machine.snapshot("second");
    });
    if later {
        added(&store, |machine| {
            machine.write("both", 0, noise(55, 300_000));
            machine.write("again", 0, noise(56, 300_000));
            machine.snapshot("third");
        });
    }
    trust_all(&store);
    wait(store.delete(&lists(&root)["condemned"])).expect("deleted");
    assert!(!first.is_empty() && !second.is_empty());
    Twice {
        fixture,
        store,
        before,
        first,
        second,
    }
}

/// Condemns anew, on a machine that has seen nothing.
fn renew(fixture: &Fixture, store: &Arc<MemoryStore>) -> Result<u64, RootError> {
    let root = root_of(fixture, store);
    wait(async {
        let repository = open(store.clone()).await;
        let mut lost: Vec<Condemned> = Vec::new();
        for condemned in &root.condemned {
            if store
                .head(&condemned.list.name.key(Class::List))
                .await
                .is_err()
            {
                lost.push(*condemned);
            }
        }
        assert!(!lost.is_empty(), "no list is lost");
        let renewal = Renewal {
            handle: &repository.handle,
            lists: &repository.lists,
            verifier: verifier(&repository)?,
            content_store: repository.content_store.clone(),
            holder: HolderInfo::of_this_process("test"),
            memory: SightingsFile::new(None::<&Path>, fixture.keyring.repository()),
            rebuilt: Rebuilt::default(),
            now: repository.now(),
        };
        renewal.renew(&lost).await.map(|renewed| renewed.packs)
    })
}

#[test]
fn what_stays_is_never_left_to_a_pack_that_is_gone() {
    let it = twice(true, true);
    delete(&it.store, &it.first);
    renew(&it.fixture, &it.store).expect("condemned anew");
    let after = condemned(&it.fixture, &it.store, &root_of(&it.fixture, &it.store));
    assert!(it.before.is_subset(&after), "some are live again");
    // A collector comes late, and deletes all that was condemned.
    delete(&it.store, &after);
    let restored = restore(&it.fixture, it.store.clone(), "second").expect("restores");
    let again = restored.tree.get("/again").map(|(_, bytes)| bytes);
    assert!(
        again == Some(&noise(50, 300_000)),
        "{:?}",
        restored.problems
    );
}

#[test]
fn of_two_copies_that_are_gone_neither_proves_the_other_live() {
    // What a live pack alone has shows that it is live; the other one may have been condemned.
    let it = twice(true, true);
    delete(&it.store, &it.first);
    delete(&it.store, &it.second);
    renew(&it.fixture, &it.store).expect("condemned anew");
    let after = condemned(&it.fixture, &it.store, &root_of(&it.fixture, &it.store));
    assert!(it.second.is_subset(&after), "it is live without a proof");
    assert!(it.first.is_disjoint(&after), "it is known to be live");
    // Nothing shows which of them is live.
    let it = twice(false, true);
    delete(&it.store, &it.first);
    delete(&it.store, &it.second);
    let before = root_of(&it.fixture, &it.store);
    let error = renew(&it.fixture, &it.store).expect_err("one is live");
    let text = error.to_string();
    for pack in it.first.iter().chain(&it.second) {
        assert!(text.contains(&pack.to_string()), "{text}");
    }
    assert_eq!(root_of(&it.fixture, &it.store).condemned, before.condemned);
}

#[test]
fn what_is_only_known_from_records_proves_no_pack_live_after_a_failed_repair() {
    let it = twice(false, false);
    let (fixture, store) = (&it.fixture, &it.store);
    let root = root_of(fixture, store);
    for list in root.snapshots.iter().chain(&root.trash) {
        wait(store.delete(&list.name.key(Class::List))).expect("deleted");
    }
    // What the volume needs cannot be read for a while.
    let keys: Vec<String> = it.first.iter().chain(&it.second).map(data_key).collect();
    let whole: Vec<Bytes> = keys
        .iter()
        .map(|key| wait(store.get(key)).expect("is there").0)
        .collect();
    delete(store, &it.first);
    delete(store, &it.second);
    let shared: Arc<dyn Store> = store.clone();
    let report = mend(fixture, &shared);
    assert!(!report.is_clean(), "{report}");
    let condemned_now = root_of(fixture, store).condemned;
    assert_eq!(condemned_now, root.condemned, "they were put aside");
    // All are listed, because a restore may need them now.
    let names: BTreeSet<String> = names(store).into_iter().collect();
    for name in ["one", "three", "second"] {
        assert!(names.contains(name), "{names:?}");
        assert!(marked(store).contains(name), "{name} bears no mark");
    }
    for (key, whole) in keys.iter().zip(whole) {
        wait(store.put(key, vec![whole])).expect("put");
    }
    let report = mend(fixture, &shared);
    assert!(report.is_clean(), "{report}");
    let after = condemned(fixture, store, &root_of(fixture, store));
    assert!(it.before.is_subset(&after), "some are live again");
    // All of them are whole, and what they need was stored again.
    assert_eq!(marked(store), BTreeSet::new());
    delete(store, &it.before);
    goes_on(fixture, store, "after a failed repair");
}

#[test]
fn snapshots_bear_a_mark_only_while_it_is_not_known_what_is_condemned() {
    let fixture = fixture();
    let keys = lists(&root_of(&fixture, &bucket(&fixture.objects)));
    for lost in [
        &["snapshots"][..],
        &["trash"],
        &["snapshots", "trash"],
        &["condemned", "snapshots", "trash"],
    ] {
        let store = bucket(&fixture.objects);
        for kind in lost {
            wait(store.delete(&keys[kind])).expect("deleted");
        }
        let shared: Arc<dyn Store> = store.clone();
        let report = mend(&fixture, &shared);
        assert!(report.is_clean(), "{lost:?}: {report}");
        assert!(names(&store).contains(&"three".to_owned()), "{lost:?}");
        assert_eq!(marked(&store), BTreeSet::new(), "{lost:?}");
    }
}

#[test]
fn what_is_gone_of_a_snapshot_leaves_its_mark() {
    let fixture = Fixture::build(None);
    let store = bucket(&fixture.objects);
    condemn_contents(&store, "file", "gone", "kept");
    let root = root_of(&fixture, &store);
    let before = condemned(&fixture, &store, &root);
    // The deletion has begun with the data.
    for pack in &before {
        let _ = wait(store.delete(&data_key(pack)));
    }
    let of_snapshots = root.snapshots.iter().chain(&root.trash);
    let of_packs = root.condemned.iter().map(|condemned| &condemned.list);
    for list in of_snapshots.chain(of_packs) {
        wait(store.delete(&list.name.key(Class::List))).expect("deleted");
    }
    let shared: Arc<dyn Store> = store.clone();
    mend(&fixture, &shared);
    let after = condemned(&fixture, &store, &root_of(&fixture, &store));
    assert!(before.is_subset(&after), "some are live again");
    assert_eq!(marked(&store), BTreeSet::from(["gone".to_owned()]));
}

/// The key of a data pack.
pub fn data_key(pack: &PackName) -> String {
    pack.key(Class::DataPack)
}

/// The names of all kept snapshots, sorted.
fn names(store: &Arc<MemoryStore>) -> Vec<String> {
    wait(async {
        let snapshots = open(store.clone()).await.snapshots().await.expect("read");
        let mut names: Vec<String> = snapshots.iter().map(|entry| entry.name.clone()).collect();
        names.sort();
        names
    })
}

/// The names of all snapshots, kept and forgotten, that bear the mark of a failed repair.
pub fn marked(store: &Arc<MemoryStore>) -> BTreeSet<String> {
    wait(async {
        let repository = open(store.clone()).await;
        let root = repository.handle.current().root.clone();
        let kept = repository.lists.snapshot_shards(&root.snapshots).await;
        let kept = kept.expect("read");
        let trash = repository.lists.trash_shards(&root.trash).await;
        let trash = trash.expect("read");
        let forgotten = trash.iter().flat_map(|shard| shard.iter());
        let forgotten = forgotten.map(|entry| &entry.snapshot);
        let all = kept.iter().flat_map(|shard| shard.iter()).chain(forgotten);
        let marked = all.filter(|entry| entry.rebuilt);
        marked.map(|entry| entry.name.clone()).collect()
    })
}

/// The names of all forgotten snapshots.
pub fn forgotten(store: &Arc<MemoryStore>) -> BTreeSet<String> {
    wait(async {
        let repository = open(store.clone()).await;
        let root = repository.handle.current().root.clone();
        let trash = repository.lists.trash_shards(&root.trash).await;
        let trash = trash.expect("read");
        let entries = trash.iter().flat_map(|shard| shard.iter());
        entries.map(|entry| entry.snapshot.name.clone()).collect()
    })
}

/// The pack with the root node of a volume, or of the snapshot `main/NAME`.
pub fn pack_of_root_node(fixture: &Fixture, store: &Arc<MemoryStore>, of: &str) -> PackName {
    let options = fixture.options();
    let findings = wait(examine(store.clone(), &fixture.keyring, &options)).expect("examines");
    let root = root_of(fixture, store);
    let named = |name: &str| {
        let mut kept = findings.listed.snapshots.iter();
        kept.find(|entry| entry.name == name)
    };
    let tree = match named(of) {
        Some(entry) => entry.tree,
        None => root.volumes[of].tree,
    };
    let tree = tree.expect("a tree");
    findings.content_store.places_in_memory(&tree.prefix())[0].pack
}

/// Spoils all of an object but its header, and returns what it was.
pub fn spoil(store: &MemoryStore, key: &str) -> Bytes {
    let whole = wait(store.get(key)).expect("is there").0;
    let mut harmed = whole.to_vec();
    harmed[100..].fill(7);
    wait(store.put(key, vec![Bytes::from(harmed)])).expect("put");
    whole
}

/// Stores everything that metadata packs hold once more, in packs of its own.
fn copy_metadata(fixture: &Fixture, store: &Arc<MemoryStore>) {
    wait(async {
        let repository = open(store.clone()).await;
        let verifier = verifier(&repository).expect("threads");
        let root = repository.handle.current().root.clone();
        let condemned = repository.lists.condemned(&root).await.expect("read");
        let session = enter(&repository).await;
        let content_store = ContentStore::open(
            store.clone(),
            fixture.keyring.clone(),
            repository.content_store.entropy().clone(),
            repository.content_store.config().clone(),
        );
        let content_store = content_store.expect("opens");
        content_store
            .load_index(&IndexSources::default(), &HashSet::new())
            .await
            .expect("empty");
        let ingest = Ingest::new(content_store, session.id().0);
        let mark = ingest.mark();
        for index in &root.index {
            for pack in verifier.index(*index).await.expect("an index") {
                if pack.class() != Class::MetadataPack || condemned.contains(&pack.name()) {
                    continue;
                }
                let mut blobs = Vec::new();
                let mut visit = |found: Found| blobs.push((found.kind, found.bytes));
                verifier.walk(&pack, &mut visit).await.expect("walks");
                for (kind, bytes) in blobs {
                    ingest.store_blob(kind, bytes).await.expect("stored");
                }
            }
        }
        let finished = ingest.finish_since(mark, &[]).await.expect("sealed");
        let mut change = Change {
            session: Some(session.id()),
            index: IndexChange {
                absorbed: Vec::new(),
                added: finished.index.clone(),
            },
        };
        repository.handle.update(&mut change).await.expect("made");
        session.end().await.expect("left");
    });
}

#[test]
fn many_unreadable_packs_are_found_in_one_round() {
    let fixture = fixture();
    let store = bucket(&fixture.objects);
    let machine = Machine::mount(store.clone(), None);
    for number in 0..12 {
        machine.write(&format!("file {number}"), 0, noise(60 + number, 40_000));
        machine.snapshot(&format!("snapshot {number}"));
    }
    machine.finish();
    let root = root_of(&fixture, &store);
    let keys: BTreeSet<PackName> = (0..12)
        .map(|number| pack_of_root_node(&fixture, &store, &format!("snapshot {number}")))
        .collect();
    assert_eq!(keys.len(), 12, "they share packs");
    copy_metadata(&fixture, &store);
    let before = condemned(&fixture, &store, &root);
    for pack in &keys {
        spoil(&store, &pack.key(Class::MetadataPack));
    }
    wait(store.delete(&lists(&root)["condemned"])).expect("deleted");
    renew(&fixture, &store).expect("condemned anew");
    let after = condemned(&fixture, &store, &root_of(&fixture, &store));
    assert!(before.is_subset(&after), "some are live again");
    delete(&store, &after);
    for number in 0..12 {
        let name = format!("snapshot {number}");
        let restored = restore(&fixture, store.clone(), &name).expect("restores");
        assert!(restored.problems.is_empty(), "{:?}", restored.problems);
    }
}

/// Loses the lists of kept snapshots.
fn without_snapshots(fixture: &Fixture) -> Arc<MemoryStore> {
    let store = bucket(&fixture.objects);
    for list in &root_of(fixture, &store).snapshots {
        wait(store.delete(&list.name.key(Class::List))).expect("deleted");
    }
    store
}

#[test]
fn two_repairs_list_each_snapshot_once() {
    let fixture = Arc::new(Fixture::build(None));
    let options = fixture.options();
    // Both have planned before either does anything.
    let store = without_snapshots(&fixture);
    let shared: Arc<dyn Store> = store.clone();
    wait(async {
        let first = plan(&shared, &fixture.keyring, &options)
            .await
            .expect("plans");
        let second = plan(&shared, &fixture.keyring, &options)
            .await
            .expect("plans");
        for (findings, plan) in [first, second] {
            let done = execute(&shared, &fixture.keyring, &options, &findings, plan).await;
            done.expect("is done");
        }
    });
    let mut expected = SNAPSHOTS;
    expected.sort();
    assert_eq!(names(&store), expected);
    // One is faster than the other.
    let store = without_snapshots(&fixture);
    let (below, same) = (store.clone(), fixture.clone());
    let other = Meanwhile::below(&store, &["lists/"], move || {
        let shared: Arc<dyn Store> = below;
        let report = mend(&same, &shared);
        assert!(report.is_clean(), "{report}");
    });
    let shared: Arc<dyn Store> = other.clone();
    let report = mend(&fixture, &shared);
    assert!(other.work.lock().is_none(), "nothing was listed");
    assert!(report.is_clean(), "{report}");
    assert_eq!(names(&store), expected);
    let report = wait(check(store, &fixture.keyring, &options)).expect("checks");
    assert!(report.is_clean(), "{report}");
}

#[test]
fn a_late_repair_lists_nothing_that_was_collected_since() {
    let fixture = Fixture::build(None);
    let options = fixture.options();
    let store = without_snapshots(&fixture);
    let shared: Arc<dyn Store> = store.clone();
    wait(async {
        let first = plan(&shared, &fixture.keyring, &options).await;
        let second = plan(&shared, &fixture.keyring, &options).await;
        let (findings, planned) = first.expect("plans");
        let done = execute(&shared, &fixture.keyring, &options, &findings, planned).await;
        done.expect("is done");
        let repository = open(store.clone()).await;
        forget(&repository, "one").await;
        let done = gather(&repository).await.expect("collected");
        assert!(done.condemned.packs > 0, "{done:?}");
        let (findings, planned) = second.expect("plans");
        let done = execute(&shared, &fixture.keyring, &options, &findings, planned).await;
        done.expect("is done");
    });
    assert_eq!(names(&store), ["three", "two"]);
    assert_eq!(forgotten(&store), BTreeSet::new());
    let report = wait(check(store, &fixture.keyring, &options)).expect("checks");
    assert!(report.is_clean(), "{report}");
}
