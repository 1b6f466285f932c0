//! One list of each kind is flipped or deleted. A list that only collection needs stops only
//! collection, and a repair makes all of it whole.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bkfs::maintain::check::check;
use bkfs::maintain::collect::plan::Effort;
use bkfs::maintain::collect::{Collected, Options, collect, prospect};
use bkfs::maintain::quarantine;
use bkfs::maintain::workspace::Workspace;
use bkfs::repository::{Repository, open_in};
use bkfs::root::chain::{NonceEntry, OlderPart};
use bkfs::root::error::RootError;
use bkfs::root::forget::ListChanger;
use bkfs::root::holder::SystemProcesses;
use bkfs::root::lists::DirectLists;
use bkfs::root::session::OpenSession;
use bkfs::root::shard::{ListRef, decode_shard, encode_shard};
use bkfs::root::snapshots::PackEntry;
use bkfs::root::state::Root;
use bkfs_chunker::catalog::PackLocation;
use bkfs_chunker::crypto::{Class, Features};
use bkfs_chunker::pack::PackName;
use bkfs_store::{MemoryStore, Store};
use bytes::Bytes;
use jiff::SignedDuration;

use crate::cases::{Case, Harm};
use crate::machine::{Machine, noise, opening, reads};
use crate::password::Known;
use crate::repairs::{mend, root_of};
use crate::restored::restore;
use crate::world::{Fixture, bucket, objects, wait};

/// Returns the kinds of lists, each with the key of one that the root names.
pub fn lists(root: &Root) -> BTreeMap<&'static str, String> {
    let key = |list: &ListRef| list.name.key(Class::List);
    let chain = root.chain.as_ref().expect("it bears witness");
    BTreeMap::from([
        ("snapshots", key(root.snapshots.last().expect("a list"))),
        ("trash", key(&root.trash[0])),
        ("condemned", key(&root.condemned[0].list)),
        ("quarantine", key(&root.quarantine[0])),
        ("chain", key(&chain.older[0].list)),
        ("index", root.index[0].name.key(Class::Index)),
    ])
}

/// Opens a repository.
pub async fn open(store: Arc<MemoryStore>) -> Repository {
    let opened = open_in(store, opening(), &mut Known(None)).await;
    opened.expect("opens")
}

/// Forgets a snapshot of `main`.
pub async fn forget(repository: &Repository, name: &str) {
    let handle = &repository.handle;
    let holder = repository.environment.holder("forget");
    let session = OpenSession::open(handle, holder, None, &SystemProcesses).await;
    let session = session.expect("entered");
    let changer = ListChanger {
        handle,
        lists: &repository.lists,
        writer: &DirectLists::new(handle, session.id()),
        session: session.id(),
    };
    let names = [name.to_owned()];
    let forgotten = changer.forget("main", &names, repository.now()).await;
    forgotten.expect("forgotten");
    session.end().await.expect("left");
}

/// Collects without an undelete window, on a machine that has seen nothing before.
///
/// # Errors
/// Those of the collection.
pub async fn gather(repository: &Repository) -> Result<Collected, RootError> {
    let options = Options {
        undelete_window: SignedDuration::ZERO,
        workspace: Workspace::IN_MEMORY,
        state_dir: None,
        lock_days: None,
        effort: Effort::default(),
    };
    let now = repository.now() + SignedDuration::from_secs(1);
    let found = prospect(repository, &options, now).await?;
    collect(repository, found).await
}

/// Builds a repository with a list of every kind. One snapshot was collected while the session of a
/// dead machine holds back deletion, one is forgotten, and one is left.
pub fn fixture() -> Fixture {
    let mut fixture = Fixture::build(None);
    let store = bucket(&fixture.objects);
    wait(async {
        let repository = open(store.clone()).await;
        forget(&repository, "one").await;
        let done = gather(&repository).await.expect("collected");
        assert!(
            done.condemned.packs > 0 && done.deleted_packs == 0,
            "{done:?}"
        );
        forget(&repository, "two").await;
    });
    let root = root_of(&fixture, &store);
    let place = PackLocation {
        pack: *condemned(&fixture, &store, &root)
            .first()
            .expect("condemned"),
        frame: None,
    };
    wait(async {
        let repository = open(store.clone()).await;
        quarantine::add(
            &repository.handle,
            &repository.lists,
            &repository.content_store,
            repository.environment.holder("quarantine"),
            &SystemProcesses,
            &[place],
        )
        .await
        .expect("in quarantine");
    });
    let mut root = root_of(&fixture, &store);
    with_older_chain(&fixture, &store, &mut root);
    fixture.objects = objects(&*store);
    let report = wait(check(store, &fixture.keyring, &fixture.options()));
    let report = report.expect("checks");
    assert!(report.is_clean(), "{report}");
    fixture
}

/// Moves the oldest nonces of the chain of `root` to a list.
fn with_older_chain(fixture: &Fixture, store: &MemoryStore, root: &mut Root) {
    let name = PackName {
        session: 0x5eed,
        sequence: 1,
        random: 7,
    };
    let chain = root.chain.as_mut().expect("it bears witness");
    let entries: Vec<NonceEntry> = chain.nonces[..16]
        .chunks(8)
        .map(|nonce| NonceEntry(nonce.try_into().expect("8 bytes")))
        .collect();
    let payload = encode_shard(entries);
    let list = ListRef {
        name,
        count: 2,
        bytes: payload.len() as u64,
    };
    let first = chain.first;
    chain.older.push(OlderPart { first, list });
    chain.first += 2;
    chain.nonces.drain(..16);
    put(
        fixture,
        store,
        (Class::List, &name.key(Class::List)),
        Features::NONE,
        &payload,
    );
    let payload = root.encode().expect("small");
    put(
        fixture,
        store,
        (Class::Root, "root"),
        Features::NONE.with_witness(),
        &payload,
    );
}

fn put(
    fixture: &Fixture,
    store: &MemoryStore,
    (class, key): (Class, &str),
    features: Features,
    payload: &[u8],
) {
    let object = fixture
        .keyring
        .seal_object(class, key, features, [9; 32], payload);
    wait(store.put(key, vec![object])).expect("put");
}

/// Returns the packs that `root` names as condemned, by the lists in `store`.
pub fn condemned(fixture: &Fixture, store: &MemoryStore, root: &Root) -> BTreeSet<PackName> {
    let mut found = BTreeSet::new();
    for condemned in &root.condemned {
        let key = condemned.list.name.key(Class::List);
        let (object, _) = wait(store.get(&key)).expect("a list");
        let payload = fixture.keyring.open_object(Class::List, &key, &object);
        let entries = decode_shard::<PackEntry>(&payload.expect("opens"));
        found.extend(entries.expect("decodes").iter().map(|entry| entry.0));
    }
    found
}

/// The operations that work on a repository with a harmed list.
#[derive(Debug, PartialEq, Eq)]
struct Works {
    reads: bool,
    writes: bool,
    collects: bool,
}

fn what_works(fixture: &Fixture, store: &Arc<MemoryStore>) -> Works {
    let restored = restore(fixture, store.clone(), "three");
    let listed = restored.as_ref().is_ok_and(|restored| {
        restored.problems.is_empty() && restored.tree == fixture.trees["three"]
    });
    let mounted = reads(store.clone(), None);
    assert!(
        listed == mounted.is_ok() || restored.is_err(),
        "{:?}, {mounted:?}",
        restored.map(|restored| restored.problems)
    );
    let copy = bucket(&objects(&**store));
    let collected = wait(async { gather(&open(copy).await).await });
    if let Err(error) = &collected {
        let text = error.to_string();
        assert!(text.contains("lists/") || text.contains("index/"), "{text}");
    }
    let copy = bucket(&objects(&**store));
    let writes = match Machine::try_mount(copy, None) {
        Ok(machine) => {
            machine.write("more", 0, noise(77, 50_000));
            let made = machine.try_snapshot("more");
            machine.crash();
            made.is_ok()
        }
        Err(error) => {
            assert!(
                error.contains("lists/") || error.contains("index/"),
                "{error}"
            );
            false
        }
    };
    Works {
        reads: listed,
        writes,
        collects: collected.is_ok(),
    }
}

#[test]
fn a_list_that_only_collection_needs_stops_only_collection() {
    let fixture = fixture();
    let root = root_of(&fixture, &bucket(&fixture.objects));
    for (kind, key) in lists(&root) {
        for harm in [Harm::Flip(150, 1), Harm::Flip(9, 0), Harm::Remove] {
            let case = Case::new(&key, harm);
            let store = bucket(&case.apply(&fixture));
            let works = what_works(&fixture, &store);
            let expected = match kind {
                // Readers do not need them, and mounts do not collect.
                "quarantine" | "trash" => (true, true, false),
                "chain" => (true, true, true),
                // New data could rely on packs that may be deleted.
                "condemned" => (true, false, false),
                // It is not known which snapshot is the newest.
                "snapshots" => (false, false, false),
                _ => (false, false, false),
            };
            let expected = Works {
                reads: expected.0,
                writes: expected.1,
                collects: expected.2,
            };
            assert_eq!(works, expected, "{kind}: {case}");
        }
    }
}

#[test]
fn every_list_can_be_repaired() {
    let fixture = fixture();
    let root = root_of(&fixture, &bucket(&fixture.objects));
    for (kind, key) in lists(&root) {
        for harm in [Harm::Flip(150, 1), Harm::Flip(9, 0), Harm::Remove] {
            let case = Case::new(&key, harm);
            let store = bucket(&case.apply(&fixture));
            let shared: Arc<dyn Store> = store.clone();
            let report = wait(check(shared.clone(), &fixture.keyring, &fixture.options()));
            let report = report.expect("checks");
            assert!(report.names(&key), "{kind}: {case}: {report}");
            let report = mend(&fixture, &shared);
            assert!(report.is_clean(), "{kind}: {case}: {report}");
            goes_on(&fixture, &store, &format!("{kind}: {case}"));
        }
    }
}

/// Checks that everything works again: reading, writing, and collecting until nothing is condemned
/// any more.
pub fn goes_on(fixture: &Fixture, store: &Arc<MemoryStore>, case: &str) {
    assert!(what_works(fixture, store).reads, "{case}");
    let machine = Machine::mount(store.clone(), None);
    machine.write("after", 0, noise(1, 16_384 * 40));
    machine.write("after", 16_384 * 40, noise(3, 900_000));
    machine.snapshot("after");
    machine.finish();
    wait(async {
        let repository = open(store.clone()).await;
        gather(&repository)
            .await
            .unwrap_or_else(|error| panic!("{case}: {error}"));
        let done = gather(&repository)
            .await
            .unwrap_or_else(|error| panic!("{case}: {error}"));
        assert_eq!(done.held_packs, 0, "{case}: {done:?}");
    });
    let root = root_of(fixture, store);
    assert!(root.condemned.is_empty(), "{case}");
    let report = wait(check(store.clone(), &fixture.keyring, &fixture.options()));
    let report = report.expect("checks");
    assert!(report.is_clean(), "{case}: {report}");
    let restored = restore(fixture, store.clone(), "after").expect("restores");
    assert!(
        restored.problems.is_empty(),
        "{case}: {:?}",
        restored.problems
    );
    let again = [noise(1, 16_384 * 40), noise(3, 900_000)].concat();
    let found = restored.tree.get("/after").map(|(_, bytes)| bytes);
    assert!(found == Some(&again), "{case}: what was written is another");
}

/// Condemned packs stay condemned: a collector that has read the list may still delete them.
#[test]
fn nothing_of_a_lost_list_of_condemned_packs_comes_back_to_life() {
    let fixture = fixture();
    let root = root_of(&fixture, &bucket(&fixture.objects));
    let before = condemned(&fixture, &bucket(&fixture.objects), &root);
    let key = lists(&root)["condemned"].clone();
    // All of them are there, or a collector has died in the middle of deleting them, or at its end.
    for deleted in [0, 1, before.len()] {
        let mut harmed = Case::new(&key, Harm::Flip(150, 1)).apply(&fixture);
        for pack in before.iter().take(deleted) {
            harmed.retain(|key, _| !key.ends_with(&pack.to_string()));
        }
        let store = bucket(&harmed);
        let shared: Arc<dyn Store> = store.clone();
        let report = mend(&fixture, &shared);
        assert!(report.is_clean(), "{deleted} deleted: {report}");
        let root = root_of(&fixture, &store);
        let after = condemned(&fixture, &store, &root);
        assert!(
            before.is_subset(&after),
            "{deleted} deleted: some are live again"
        );
        // The late collector deletes the rest.
        for pack in &before {
            for class in [Class::DataPack, Class::MetadataPack] {
                let _ = wait(store.delete(&pack.key(class)));
            }
        }
        goes_on(&fixture, &store, &format!("{deleted} deleted"));
    }
}

/// A mount goes on while the collection of another machine leaves a list that cannot be read.
#[test]
fn a_running_mount_loses_nothing_to_a_lost_list_of_condemned_packs() {
    let fixture = Fixture::build(None);
    let store = bucket(&fixture.objects);
    let machine = Machine::mount(store.clone(), None);
    machine.snapshot("begun");
    wait(async {
        let repository = open(store.clone()).await;
        forget(&repository, "one").await;
        let done = gather(&repository).await.expect("collected");
        assert!(done.condemned.packs > 0, "{done:?}");
    });
    let root = root_of(&fixture, &store);
    let key = root.condemned[0].list.name.key(Class::List);
    let whole = wait(store.get(&key)).expect("a list").0;
    let mut flipped = whole.to_vec();
    flipped[150] ^= 2;
    wait(store.put(&key, vec![Bytes::from(flipped)])).expect("put");
    machine.write("during", 0, noise(1, 16_384 * 40));
    machine.fsync();
    let refused = machine
        .try_snapshot("refused")
        .expect_err("it leans on what may go");
    assert!(refused.contains(&key), "{refused}");
    let shared: Arc<dyn Store> = store.clone();
    let report = mend(&fixture, &shared);
    assert!(report.is_clean(), "{report}");
    machine.snapshot("after");
    assert!(machine.read("during") == noise(1, 16_384 * 40));
    machine.finish();
    let report = wait(check(shared, &fixture.keyring, &fixture.options())).expect("checks");
    assert!(report.is_clean(), "{report}");
    let restored = restore(&fixture, store, "after").expect("restores");
    assert!(restored.problems.is_empty(), "{:?}", restored.problems);
}
