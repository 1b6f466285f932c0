//! What a repair brings back: lost indexes, a lost root, lost lists; and that damage is stored
//! again by the next write of the same data.

use std::sync::Arc;

use bkfs::maintain::check::check;
use bkfs::maintain::collect::plan::Effort;
use bkfs::maintain::collect::{Options, collect, prospect};
use bkfs::maintain::options::CheckOptions;
use bkfs::maintain::repair::{execute, plan};
use bkfs::maintain::report::{ProblemKind, Report};
use bkfs::maintain::workspace::Workspace;
use bkfs::repository::open_in;
use bkfs::root::chain::OlderPart;
use bkfs::root::state::Root;
use bkfs_chunker::crypto::{Class, Features, NewSlot, Secrets, SlotCost, SlotName};
use bkfs_store::{MemoryStore, Store};
use jiff::SignedDuration;

use crate::cases::{Case, Harm};
use crate::machine::{Machine, noise, opening};
use crate::password::Known;
use crate::restored::restore;
use crate::world::{Fixture, PASSWORD, SNAPSHOTS, bucket, class_of, wait};

/// Repairs until nothing is left to do, as the command does; gives what a check says then.
pub fn mend(fixture: &Fixture, store: &Arc<dyn Store>) -> Report {
    mend_with(fixture, store, &fixture.options())
}

/// The same with these options.
pub fn mend_with(fixture: &Fixture, store: &Arc<dyn Store>, options: &CheckOptions) -> Report {
    wait(async {
        for _ in 0..3 {
            let planned = plan(store, &fixture.keyring, options).await;
            let (findings, plan) = planned.expect("plans");
            if plan.is_empty() {
                return findings.report;
            }
            let done = execute(store, &fixture.keyring, options, &findings, plan).await;
            done.expect("is done");
        }
        let report = check(store.clone(), &fixture.keyring, options).await;
        report.expect("checks")
    })
}

/// All snapshots restore as they were.
fn all_restore(fixture: &Fixture, store: &Arc<MemoryStore>) {
    for name in SNAPSHOTS {
        let restored = restore(fixture, store.clone(), name).expect("restores");
        assert!(
            restored.problems.is_empty(),
            "{name}: {:?}",
            restored.problems
        );
        assert!(restored.tree == fixture.trees[name], "{name} is another");
    }
}

fn harmed(fixture: &Fixture, key: &str, harm: Harm) -> Arc<MemoryStore> {
    bucket(&Case::new(key, harm).apply(fixture))
}

/// The root as it stands.
pub fn root_of(fixture: &Fixture, store: &MemoryStore) -> Root {
    let object = wait(store.get("root")).expect("a root").0;
    let payload = fixture.keyring.open_object(Class::Root, "root", &object);
    Root::decode(&payload.expect("opens")).expect("decodes")
}

/// Writes what the fixture's files hold once more.
fn write_again(machine: &Machine) {
    machine.write("again-pages.ibd", 0, noise(1, 16_384 * 40));
    machine.write("again-pages.ibd", 16_384 * 9, noise(4, 16_384 * 3));
    machine.write("again-pages-1.ibd", 0, noise(1, 16_384 * 40));
    machine.write("again-large", 1_000, noise(3, 900_000));
    machine.write("again-late", 0, noise(6, 700_000));
    machine.snapshot("again");
}

/// Collects; how many packs were condemned.
fn gather(store: &Arc<MemoryStore>) -> u64 {
    let runtime = tokio::runtime::Runtime::new().expect("runtime");
    runtime.block_on(async {
        let repository = open_in(store.clone(), opening(), &mut Known(None)).await;
        let repository = repository.expect("opens");
        let options = Options {
            undelete_window: SignedDuration::ZERO,
            workspace: Workspace::IN_MEMORY,
            state_dir: None,
            lock_days: None,
            effort: Effort::default(),
        };
        let found = prospect(&repository, &options, repository.now()).await;
        let done = collect(&repository, found.expect("can be collected")).await;
        done.expect("is collected").condemned.packs
    })
}

#[test]
fn lost_index_objects_are_rebuilt_from_footers() {
    for password in [None, Some(PASSWORD)] {
        let fixture = Fixture::build(password);
        let lost = fixture.needed.iter().filter(|key| class_of(key) == "index");
        for key in lost {
            for harm in [Harm::Remove, Harm::Flip(200, 1)] {
                let store = harmed(&fixture, key, harm);
                let report = mend(&fixture, &(store.clone() as Arc<dyn Store>));
                assert!(report.is_clean(), "{report}");
                all_restore(&fixture, &store);
            }
        }
    }
}

#[test]
fn a_lost_root_is_rebuilt_from_commit_records() {
    for password in [None, Some(PASSWORD)] {
        let fixture = Fixture::build(password);
        let before = root_of(&fixture, &bucket(&fixture.objects));
        for harm in [Harm::Remove, Harm::Flip(200, 1), Harm::Cut(90)] {
            let store = harmed(&fixture, "root", harm);
            let report = mend(&fixture, &(store.clone() as Arc<dyn Store>));
            assert!(report.is_clean(), "{report}");
            assert_eq!(report.counts.snapshots, SNAPSHOTS.len() as u64);
            all_restore(&fixture, &store);
            let after = root_of(&fixture, &store);
            assert!(after.generation > before.generation);
            let (old, new) = (&before.volumes["main"], &after.volumes["main"]);
            assert_eq!(
                (old.tree, old.commit, old.sequence),
                (new.tree, new.commit, new.sequence)
            );
            assert_eq!(old.next_inode, new.next_inode);
            // What fsync acknowledged is replayed by the next mount.
            let machine = Machine::mount(store.clone(), fixture.password);
            let synced: Vec<u8> = (0..3)
                .flat_map(|number| noise(90 + number, 20_000))
                .collect();
            assert!(
                machine.read("synced") == synced,
                "what fsync acknowledged is gone"
            );
            machine.snapshot("after");
            machine.crash();
        }
    }
}

/// Who can write to the bucket changes the epoch that the root states, and puts a key there that
/// states that one, too.
#[test]
fn a_root_whose_epoch_was_changed_is_repaired_whatever_a_key_states() {
    let fixture = Fixture::build(Some(PASSWORD));
    let store = harmed(&fixture, "root", Harm::Flip(12, 0));
    let mut secrets = Secrets::new([1; 32], [2; 32], [3; 32]);
    secrets.add_master([4; 32]);
    let slot = NewSlot {
        repository: fixture.keyring.repository(),
        name: SlotName(7),
        label: "junk",
        created_s: 1,
        cost: SlotCost {
            memory_kib: 64,
            passes: 1,
            lanes: 1,
        },
        object_salt: [5; 32],
        password_salt: [6; 32],
    };
    let junk = slot.wrap(b"unknown to all", &secrets).expect("wrapped");
    wait(store.put(&slot.name.key(), vec![junk])).expect("put");
    let report = mend(&fixture, &(store.clone() as Arc<dyn Store>));
    assert!(report.is_clean(), "{report}");
    all_restore(&fixture, &store);
}

#[test]
fn without_lists_too_snapshots_are_known_from_records() {
    let fixture = Fixture::build(None);
    for with_root in [true, false] {
        let mut objects = fixture.objects.clone();
        objects.retain(|key, _| class_of(key) != "lists" && (with_root || key != "root"));
        let store = bucket(&objects);
        let report = mend(&fixture, &(store.clone() as Arc<dyn Store>));
        assert!(report.is_clean(), "{report}");
        all_restore(&fixture, &store);
    }
}

#[test]
fn the_newest_snapshot_stays_the_newest_whichever_list_was_lost() {
    let fixture = Fixture::build(None);
    let root = root_of(&fixture, &bucket(&fixture.objects));
    assert!(root.snapshots.len() > 1, "one list holds them all");
    for list in &root.snapshots {
        let store = harmed(&fixture, &list.name.key(Class::List), Harm::Remove);
        let report = mend(&fixture, &(store.clone() as Arc<dyn Store>));
        assert!(report.is_clean(), "{report}");
        let runtime = tokio::runtime::Runtime::new().expect("runtime");
        let snapshots = runtime.block_on(async {
            let repository = open_in(store, opening(), &mut Known(None)).await;
            repository.expect("opens").snapshots().await
        });
        let snapshots = snapshots.expect("can be read");
        let mut entries = snapshots.of_volume("main");
        entries.sort_by_key(|entry| entry.generation);
        let names: Vec<&str> = entries.iter().map(|entry| &*entry.name).collect();
        assert_eq!(names, SNAPSHOTS);
    }
}

/// As a store does it whose conditional writes are not atomic: the root of before stands again,
/// with the commit of another writer on top.
#[test]
fn commits_that_no_root_knows_are_found() {
    let fixture = Fixture::build(None);
    let store = harmed(&fixture, "root", Harm::Older);
    let root = root_of(&fixture, &store);
    let options = fixture.options();
    // The session is still in that root: whether it goes on cannot be told.
    let shared: Arc<dyn Store> = store.clone();
    let report = wait(check(shared.clone(), &fixture.keyring, &options)).expect("checks");
    assert!(report.strays.is_empty(), "{:?}", report.strays);
    let machine = Machine::mount(shared.clone(), None);
    machine.snapshot("survivor");
    machine.crash();
    let report = wait(check(shared.clone(), &fixture.keyring, &options)).expect("checks");
    assert!(!report.strays.is_empty(), "nothing is found");
    let lost = root.volumes["main"].sequence + 1;
    assert!(
        report.strays.iter().all(|stray| stray.sequence >= lost),
        "{:?}",
        report.strays
    );
}

#[test]
fn a_lost_part_of_the_chain_is_given_up() {
    let fixture = Fixture::build(Some(PASSWORD));
    let store = bucket(&fixture.objects);
    let mut root = root_of(&fixture, &store);
    let chain = root.chain.as_mut().expect("it bears witness");
    let mut list = root.snapshots[0];
    (list.name.random, list.count) = (7, 0);
    let first = chain.first;
    chain.older = vec![OlderPart { first, list }];
    let payload = root.encode().expect("small");
    let features = Features::NONE.with_witness();
    let sealed = fixture
        .keyring
        .seal_object(Class::Root, "root", features, [3; 32], &payload);
    wait(store.put("root", vec![sealed])).expect("put");
    let shared: Arc<dyn Store> = store.clone();
    let report = wait(check(shared.clone(), &fixture.keyring, &fixture.options()));
    assert!(!report.expect("checks").is_clean(), "it is not noticed");
    let report = mend(&fixture, &shared);
    assert!(report.is_clean(), "{report}");
    let chain = root_of(&fixture, &store).chain.expect("it bears witness");
    assert_eq!((chain.older.len(), chain.lost), (0, Some(first - 1)));
    all_restore(&fixture, &store);
}

#[test]
fn quarantined_damage_is_stored_again_by_the_next_write() {
    let fixture = Fixture::build(None);
    let options = fixture.options();
    let first = fixture.needed.iter().filter(|key| class_of(key) == "data");
    let mut healed = 0;
    for key in first {
        let store = harmed(&fixture, key, Harm::Flip(300, 1));
        let shared: Arc<dyn Store> = store.clone();
        let report = mend(&fixture, &shared);
        assert!(report.names(key), "what is lost stays named: {report}");
        assert!(!root_of(&fixture, &store).quarantine.is_empty());
        let planned = wait(plan(&shared, &fixture.keyring, &options));
        assert!(
            planned.expect("plans").1.is_empty(),
            "what is known is not quarantined again"
        );
        let machine = Machine::mount(shared.clone(), None);
        write_again(&machine);
        machine.crash();
        let report = wait(check(shared, &fixture.keyring, &options)).expect("checks");
        if report.is_clean() {
            assert!(report.counts.healed > 0);
            all_restore(&fixture, &store);
            let condemned = gather(&store);
            assert!(condemned > 0, "the damaged copy of {key} stays for ever");
            let report = wait(check(store.clone(), &fixture.keyring, &options));
            assert!(report.expect("checks").is_clean());
            all_restore(&fixture, &store);
            healed += 1;
        }
    }
    assert!(healed > 0, "nothing healed");
}

#[test]
fn a_running_mount_learns_what_was_put_in_quarantine() {
    let fixture = Fixture::build(None);
    let mut healed = 0;
    for key in fixture.needed.iter().filter(|key| class_of(key) == "data") {
        let store = harmed(&fixture, key, Harm::Flip(300, 1));
        let shared: Arc<dyn Store> = store.clone();
        let machine = Machine::mount(shared.clone(), None);
        let report = mend(&fixture, &shared);
        assert!(report.names(key), "what is lost stays named: {report}");
        machine.heed(root_of(&fixture, &store).generation);
        write_again(&machine);
        machine.crash();
        let report = wait(check(shared, &fixture.keyring, &fixture.options())).expect("checks");
        healed += u32::from(report.is_clean() && report.counts.healed > 0);
    }
    assert!(healed > 0, "nothing healed");
}

#[test]
fn a_bucket_that_was_rolled_back_is_not_repaired() {
    let fixture = Fixture::build(None);
    let store = harmed(&fixture, "root", Harm::Older);
    let before = crate::world::objects(&*store);
    let mut options = fixture.options();
    options.min_generation = root_of(&fixture, &bucket(&fixture.objects)).generation;
    let shared: Arc<dyn Store> = store.clone();
    let report = wait(check(shared.clone(), &fixture.keyring, &options)).expect("checks");
    assert!(
        report
            .problems
            .iter()
            .any(|problem| problem.kind == ProblemKind::RolledBack)
    );
    assert!(wait(plan(&shared, &fixture.keyring, &options)).is_err());
    assert!(crate::world::objects(&*store) == before);
}

#[test]
fn journals_that_cannot_be_carried_out_are_set_aside() {
    for password in [None, Some(PASSWORD)] {
        let fixture = Fixture::build(password);
        let journals = fixture
            .needed
            .iter()
            .filter(|key| class_of(key) == "journal");
        for (number, key) in journals.enumerate() {
            let store = harmed(&fixture, key, Harm::Flip(200, 1));
            let shared: Arc<dyn Store> = store.clone();
            let planned = wait(plan(&shared, &fixture.keyring, &fixture.options()));
            let steps = planned.expect("plans").1.steps.join("\n");
            assert!(steps.contains("is lost"), "it does not say so: {steps}");
            let report = mend(&fixture, &shared);
            assert!(report.is_clean(), "{report}");
            let aside = crate::world::objects(&*store);
            let aside = aside.keys().filter(|key| key.starts_with("damaged/"));
            assert_eq!(aside.count(), 3 - number, "it and all after it");
            // Without the repair no machine could mount the volume.
            let machine = Machine::mount(shared, password);
            if number > 0 {
                let synced: Vec<u8> = (0..number as u64)
                    .flat_map(|number| noise(90 + number, 20_000))
                    .collect();
                assert!(
                    machine.read("synced") == synced,
                    "what came before the damage is gone"
                );
            }
            machine.snapshot("after");
            machine.crash();
            all_restore(&fixture, &store);
        }
    }
}
