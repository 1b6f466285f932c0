//! Forgotten snapshots of which something cannot be read hold collections back. A repair gives them
//! up where it is told to, and only those of which nothing kept needs what is missing.

use std::collections::BTreeSet;
use std::sync::Arc;

use bkfs::maintain::collect::plan::Effort;
use bkfs::maintain::collect::{Options, collect, prospect, verifier};
use bkfs::maintain::options::CheckOptions;
use bkfs::maintain::repair::plan;
use bkfs::maintain::repair_plan::RepairPlan;
use bkfs::maintain::workspace::Workspace;
use bkfs::repository::Repository;
use bkfs::root::error::RootError;
use bkfs::root::forget::ListChanger;
use bkfs::root::lists::DirectLists;
use bkfs::root::transition::IndexChange;
use bkfs_chunker::crypto::Class;
use bkfs_chunker::ingest::Ingest;
use bkfs_chunker::pack::PackName;
use bkfs_chunker::verify::PackContents;
use bkfs_store::{MemoryStore, Store};
use bytes::Bytes;
use jiff::SignedDuration;

use crate::doubted::{Change, added, enter, forgotten, pack_of_root_node, spoil, twice};
use crate::lists::{condemned, fixture, forget, goes_on, open};
use crate::machine::{Machine, noise};
use crate::renewed::delete;
use crate::repairs::{mend, mend_with, root_of};
use crate::restored::restore;
use crate::world::{Fixture, bucket, wait};

/// The options of a repair that gives up what holds collections back.
fn giving_up(fixture: &Fixture) -> CheckOptions {
    CheckOptions {
        gives_up: true,
        ..fixture.options()
    }
}

/// What a repair with these options would do.
fn planned(fixture: &Fixture, store: &Arc<dyn Store>, options: &CheckOptions) -> RepairPlan {
    let planned = wait(plan(store, &fixture.keyring, options));
    planned.expect("plans").1
}

/// Brings a forgotten snapshot of `main` back.
fn bring_back(store: &Arc<MemoryStore>, name: &str) {
    wait(async {
        let repository = open(store.clone()).await;
        let session = enter(&repository).await;
        let changer = ListChanger {
            handle: &repository.handle,
            lists: &repository.lists,
            writer: &DirectLists::new(&repository.handle, session.id()),
            session: session.id(),
        };
        let back = changer.restore_forgotten("main", name).await;
        back.expect("is back");
        session.end().await.expect("left");
    });
}

/// Takes packs out of the index.
fn unlist(store: &Arc<MemoryStore>, packs: &BTreeSet<PackName>) {
    wait(async {
        let repository = open(store.clone()).await;
        let verifier = verifier(&repository).expect("threads");
        let root = repository.handle.current().root.clone();
        let mut held: Vec<PackContents> = Vec::new();
        for index in &root.index {
            held.extend(verifier.index(*index).await.expect("an index"));
        }
        held.retain(|pack| !packs.contains(&pack.name()));
        let session = enter(&repository).await;
        let ingest = Ingest::new(repository.content_store.clone(), session.id().0);
        let mut change = Change {
            session: Some(session.id()),
            index: IndexChange {
                absorbed: root.index.clone(),
                added: ingest.put_index(&held).await.expect("stored"),
            },
        };
        repository.handle.update(&mut change).await.expect("made");
        session.end().await.expect("left");
    });
}

/// Collects with an undelete window of a week.
async fn gather_slowly(repository: &Repository) -> Result<u64, RootError> {
    let options = Options {
        undelete_window: SignedDuration::from_hours(24 * 7),
        workspace: Workspace::IN_MEMORY,
        state_dir: None,
        lock_days: None,
        effort: Effort::default(),
    };
    let found = prospect(repository, &options, repository.now()).await?;
    Ok(collect(repository, found).await?.condemned.packs)
}

/// A pack that was spoiled, and what it held.
type Spoiled = (String, Bytes);

/// A repository with a snapshot `broken` whose root node cannot be read, and `whole` after it.
fn with_broken() -> (Fixture, Arc<MemoryStore>, Spoiled) {
    let fixture = fixture();
    let store = bucket(&fixture.objects);
    let machine = Machine::mount(store.clone(), None);
    for (number, name) in ["broken", "whole"].into_iter().enumerate() {
        machine.write("file", 0, noise(70 + number as u64, 40_000));
        machine.snapshot(name);
    }
    machine.finish();
    let pack = pack_of_root_node(&fixture, &store, "broken");
    let key = pack.key(Class::MetadataPack);
    let held = spoil(&store, &key);
    (fixture, store, (key, held))
}

#[test]
fn forgetting_what_cannot_be_read_lets_collections_go_on() {
    for loses_list in [true, false] {
        let (fixture, store, _) = with_broken();
        let root = root_of(&fixture, &store);
        let before = condemned(&fixture, &store, &root);
        if loses_list {
            let key = root.condemned[0].list.name.key(Class::List);
            wait(store.delete(&key)).expect("deleted");
        }
        let shared: Arc<dyn Store> = store.clone();
        let report = mend(&fixture, &shared);
        assert!(!report.is_clean(), "{report}");
        let refused = wait(async { gather_slowly(&open(store.clone()).await).await });
        let refused = refused.expect_err("it does not know what is needed");
        if !loses_list {
            let text = refused.to_string();
            assert!(text.contains("bkfs forget"), "{text}");
            let repair = "bkfs check --repair --give-up-forgotten";
            assert!(text.contains(repair), "{text}");
        }
        wait(async { forget(&open(store.clone()).await, "broken").await });
        let planned = wait(plan(&shared, &fixture.keyring, &giving_up(&fixture)));
        let steps = planned.expect("plans").1.steps.join("\n");
        assert!(steps.contains("main/broken"), "{steps}");
        mend_with(&fixture, &shared, &giving_up(&fixture));
        let after = condemned(&fixture, &store, &root_of(&fixture, &store));
        assert!(before.is_subset(&after), "some are live again");
        let collected = wait(async { gather_slowly(&open(store.clone()).await).await });
        collected.unwrap_or_else(|error| panic!("list lost: {loses_list}: {error}"));
        // What is forgotten and whole can be brought back all the same.
        let trash = root_of(&fixture, &store).trash;
        assert!(!trash.is_empty(), "all of the trash is gone");
        goes_on(&fixture, &store, "without what was forgotten");
    }
}

#[test]
fn forgetting_what_only_lost_packs_hold_lets_a_repair_go_on() {
    let it = twice(false, true);
    delete(&it.store, &it.first);
    delete(&it.store, &it.second);
    let shared: Arc<dyn Store> = it.store.clone();
    let report = mend(&it.fixture, &shared);
    assert!(!report.is_clean(), "{report}");
    assert_eq!(root_of(&it.fixture, &it.store).condemned.len(), 1);
    for name in ["first", "second"] {
        wait(async { forget(&open(it.store.clone()).await, name).await });
    }
    // Not unasked.
    mend(&it.fixture, &shared);
    assert_eq!(root_of(&it.fixture, &it.store).condemned.len(), 1);
    let report = mend_with(&it.fixture, &shared, &giving_up(&it.fixture));
    assert!(report.is_clean(), "{report}");
    let after = condemned(&it.fixture, &it.store, &root_of(&it.fixture, &it.store));
    assert!(it.before.is_subset(&after), "some are live again");
    goes_on(&it.fixture, &it.store, "without what was forgotten");
}

#[test]
fn what_a_store_hides_for_a_while_is_not_given_up_unasked() {
    let (fixture, store, (key, held)) = with_broken();
    wait(async { forget(&open(store.clone()).await, "broken").await });
    let before = forgotten(&store);
    assert!(before.contains("broken"), "{before:?}");
    let shared: Arc<dyn Store> = store.clone();
    let report = mend(&fixture, &shared);
    assert!(!report.is_clean(), "{report}");
    assert_eq!(forgotten(&store), before);
    let plan = planned(&fixture, &shared, &fixture.options());
    assert!(plan.is_empty(), "{:?}", plan.steps);
    let remarks = plan.remarks.join("\n");
    for told in ["main/broken", "bkfs check --repair --give-up-forgotten"] {
        assert!(remarks.contains(told), "{remarks}");
    }
    // The pack is there again.
    wait(store.put(&key, vec![held])).expect("put");
    let plan = planned(&fixture, &shared, &fixture.options());
    assert!(plan.remarks.is_empty(), "{:?}", plan.remarks);
    let collected = wait(async { gather_slowly(&open(store.clone()).await).await });
    collected.expect("collected");
    bring_back(&store, "broken");
    let restored = restore(&fixture, store.clone(), "broken").expect("restores");
    assert!(restored.problems.is_empty(), "{:?}", restored.problems);
    let file = restored.tree.get("/file").map(|(_, bytes)| bytes);
    assert!(file == Some(&noise(70, 40_000)), "it is another");
}

#[test]
fn nothing_is_given_up_of_which_something_kept_needs_the_same() {
    let fixture = fixture();
    let store = bucket(&fixture.objects);
    let machine = Machine::mount(store.clone(), None);
    machine.write("file", 0, noise(75, 40_000));
    machine.snapshot("newest");
    // Nothing is committed after it.
    machine.crash();
    let pack = pack_of_root_node(&fixture, &store, "newest");
    assert_eq!(pack, pack_of_root_node(&fixture, &store, "main"));
    spoil(&store, &pack.key(Class::MetadataPack));
    wait(async { forget(&open(store.clone()).await, "newest").await });
    let before = forgotten(&store);
    let shared: Arc<dyn Store> = store.clone();
    mend_with(&fixture, &shared, &giving_up(&fixture));
    assert_eq!(forgotten(&store), before);
    let plan = planned(&fixture, &shared, &giving_up(&fixture));
    assert!(plan.is_empty(), "{:?}", plan.steps);
    let remarks = plan.remarks.join("\n");
    for told in ["main/newest", "gains nothing"] {
        assert!(remarks.contains(told), "{remarks}");
    }
}

#[test]
fn a_forgotten_snapshot_that_lacks_chunks_can_be_given_up() {
    let fixture = fixture();
    let store = bucket(&fixture.objects);
    // What the session before has left in journals is carried out.
    added(&store, |machine| machine.snapshot("begun"));
    let packs = added(&store, |machine| {
        machine.write("file", 0, noise(76, 300_000));
        machine.snapshot("lacking");
    });
    added(&store, |machine| {
        machine.write("file", 0, noise(77, 300_000));
        machine.snapshot("whole");
    });
    assert!(!packs.is_empty());
    unlist(&store, &packs);
    wait(async { forget(&open(store.clone()).await, "lacking").await });
    let shared: Arc<dyn Store> = store.clone();
    mend(&fixture, &shared);
    let refused = wait(async { gather_slowly(&open(store.clone()).await).await });
    let text = refused.expect_err("chunks are in no pack").to_string();
    assert!(text.contains("--give-up-forgotten"), "{text}");
    mend_with(&fixture, &shared, &giving_up(&fixture));
    assert!(!forgotten(&store).contains("lacking"), "it is not given up");
    let collected = wait(async { gather_slowly(&open(store.clone()).await).await });
    collected.expect("collected");
    goes_on(&fixture, &store, "without what lacks chunks");
}
