//! A repair from another repository brings back everything that it has, and nothing else.

use std::sync::Arc;

use bkfs::maintain::check::check;
use bkfs::maintain::collect::plan::Effort;
use bkfs::maintain::collect::{Options, collect, prospect};
use bkfs::maintain::heal::counts::Healed;
use bkfs::maintain::heal::heal;
use bkfs::maintain::repair::{execute, plan};
use bkfs::maintain::report::Report;
use bkfs::maintain::workspace::Workspace;
use bkfs::replicate::progress::CopyProgress;
use bkfs::replicate::{Pace, Replication};
use bkfs::repository::{Repository, open_in};
use bkfs::root::repository::{NewRepository, create};
use bkfs_chunker::crypto::SlotCost;
use bkfs_store::{MemoryStore, Store};
use bkfs_testing::entropy::SeededEntropy;
use jiff::SignedDuration;

use crate::cases::{Case, Harm};
use crate::machine::{Machine, noise, opening};
use crate::password::Known;
use crate::restored::{Tree, restore};
use crate::world::{Fixture, Objects, PASSWORD, SNAPSHOTS, bucket, class_of, objects, wait};

/// The last snapshot, of a tree of several levels.
const LAST: &str = "four";

/// A repository without a writer, and its copy.
struct Pair {
    fixture: Fixture,
    /// The contents of [`LAST`].
    last: Tree,
    copy: Objects,
    copy_password: Option<&'static str>,
}

async fn open(store: Arc<MemoryStore>, password: Option<&'static str>) -> Repository {
    let opened = open_in(store, opening(), &mut Known(password)).await;
    opened.expect("opens")
}

/// Creates an empty repository.
fn empty(password: Option<&'static str>, seed: u64) -> Arc<MemoryStore> {
    let store = Arc::new(MemoryStore::new());
    let new = NewRepository {
        password: password.map(str::as_bytes),
        cost: SlotCost {
            memory_kib: 64,
            passes: 1,
            lanes: 1,
        },
        label: "another",
        clock: Default::default(),
        lock: None,
    };
    wait(create(&*store, &SeededEntropy::new(seed), &new)).expect("create");
    store
}

impl Pair {
    /// Builds both. One of the two is sealed.
    fn build(password: Option<&'static str>, copy_password: Option<&'static str>) -> Self {
        let mut fixture = Fixture::build(password);
        let store = bucket(&fixture.objects);
        let machine = Machine::mount(store.clone(), password);
        machine.directory("many");
        for number in 0..400 {
            machine.write(&format!("many/{number}"), 0, noise(number, 200));
        }
        machine.write("many/large", 0, noise(8, 300_000));
        machine.snapshot(LAST);
        machine.finish();
        fixture.objects = objects(&*store);
        fixture.needed = fixture.find_needed();
        let restored = restore(&fixture, store.clone(), LAST).expect("restores");
        assert!(restored.problems.is_empty(), "{:?}", restored.problems);
        let there = empty(copy_password, 77);
        wait(async {
            let from = open(store, password).await;
            let to = Arc::new(open(there.clone(), copy_password).await);
            let progress = CopyProgress::default();
            let replication = Replication {
                from: &from,
                to: &to,
                volume: "main",
                names: &[],
                steal: false,
                accept_loss: false,
                anew: false,
                replaces: false,
                pace: Pace::every(1 << 30),
                progress: &progress,
            };
            replication.run(&mut |_| ()).await.expect("copied");
        });
        Self {
            fixture,
            last: restored.tree,
            copy: objects(&*there),
            copy_password,
        }
    }

    /// Repairs from `other` until nothing is left to do, as the command does. Returns the report of
    /// a check after that, and the counts of what was brought back.
    fn mend(&self, store: &Arc<MemoryStore>, other: &Objects) -> (Report, Healed) {
        let there = bucket(other);
        let shared: Arc<dyn Store> = store.clone();
        let (keyring, options) = (&self.fixture.keyring, self.fixture.options());
        let done = wait(async {
            let from = open(there.clone(), self.copy_password).await;
            let mut all = Healed::default();
            for _ in 0..3 {
                let planned = plan(&shared, keyring, &options).await;
                let (findings, plan) = planned.expect("plans");
                let is_planned = !plan.is_empty();
                if is_planned {
                    let done = execute(&shared, keyring, &options, &findings, plan).await;
                    done.expect("is done");
                }
                let healed = heal(&shared, keyring, &options, &findings, &from).await;
                let healed = healed.expect("heals");
                all.add(&healed);
                if !is_planned && healed.is_nothing() {
                    return (findings.report, all);
                }
            }
            let report = check(shared.clone(), keyring, &options).await;
            (report.expect("checks"), all)
        });
        assert!(
            objects(&*there) == *other,
            "the other repository was written"
        );
        done
    }

    fn all_restore(&self, store: &Arc<MemoryStore>, what: &str) {
        for name in SNAPSHOTS {
            self.restores(store, name, &self.fixture.trees[name], what);
        }
        self.restores(store, LAST, &self.last, what);
    }

    fn restores(&self, store: &Arc<MemoryStore>, name: &str, tree: &Tree, what: &str) {
        let restored = restore(&self.fixture, store.clone(), name).expect("restores");
        let problems = &restored.problems;
        assert!(problems.is_empty(), "{what}: {name}: {problems:?}");
        assert!(restored.tree == *tree, "{what}: {name} is another");
    }

    /// Frees damaged packs that nothing needs. After that nothing is wrong any more.
    fn is_clean_once_collected(&self, store: &Arc<MemoryStore>, what: &str) {
        wait(async {
            let repository = open(store.clone(), self.fixture.password).await;
            let options = Options {
                undelete_window: SignedDuration::ZERO,
                workspace: Workspace::IN_MEMORY,
                state_dir: None,
                effort: Effort::default(),
                lock_days: None,
            };
            let found = prospect(&repository, &options, repository.now()).await;
            let found = found.unwrap_or_else(|error| panic!("{what}: {error}"));
            collect(&repository, found).await.expect("is collected");
        });
        let (keyring, options) = (&self.fixture.keyring, self.fixture.options());
        let report = wait(check(store.clone(), keyring, &options)).expect("checks");
        assert!(report.is_clean(), "{what}: {report}");
    }

    fn packs(&self) -> Vec<&String> {
        let needed = self.fixture.needed.iter();
        needed
            .filter(|key| ["data", "meta"].contains(&class_of(key)))
            .collect()
    }
}

/// Returns true if there is no damage, or only damage that touches no snapshot or volume.
fn touches_nothing(report: &Report) -> bool {
    report.is_clean() || report.touches_nothing()
}

#[test]
fn what_is_lost_comes_back_from_a_copy() {
    for (password, copy_password) in [(None, Some(PASSWORD)), (Some(PASSWORD), None)] {
        let pair = Pair::build(password, copy_password);
        let mut needed = 0;
        for (number, key) in pair.packs().into_iter().enumerate() {
            let length = pair.fixture.objects[key].len();
            // The harms take turns. Together they strike the header, frames, the footer and whole
            // packs.
            let harm = match number % 5 {
                0 => Harm::Remove,
                1 => Harm::Flip(length / 2, 1),
                2 => Harm::Flip(20, 1),
                3 => Harm::Flip(length - 5, 1),
                _ => Harm::Cut(length / 2),
            };
            let what = format!("{harm:?} of {key}");
            let store = bucket(&Case::new(key, harm).apply(&pair.fixture));
            let (keyring, options) = (&pair.fixture.keyring, pair.fixture.options());
            let before = wait(check(store.clone(), keyring, &options)).expect("checks");
            let (report, healed) = pair.mend(&store, &pair.copy);
            if !touches_nothing(&before) {
                needed += 1;
                assert!(!healed.is_nothing(), "{what}: nothing came back");
            }
            assert!(touches_nothing(&report), "{what}: {report}");
            if class_of(key) == "data" {
                assert!(report.is_clean(), "{what}: {report}");
            }
            pair.all_restore(&store, &what);
            pair.is_clean_once_collected(&store, &what);
            pair.all_restore(&store, &what);
        }
        assert!(needed > 0, "no pack was needed");
    }
}

#[test]
fn a_repository_without_any_pack_comes_back_from_a_copy() {
    for (password, copy_password) in [(None, Some(PASSWORD)), (Some(PASSWORD), None)] {
        let pair = Pair::build(password, copy_password);
        for lost in [["data", "data"], ["meta", "meta"], ["data", "meta"]] {
            let mut objects = pair.fixture.objects.clone();
            objects.retain(|key, _| !lost.contains(&class_of(key)));
            let store = bucket(&objects);
            let (report, healed) = pair.mend(&store, &pair.copy);
            let what = format!("without {lost:?}");
            assert!(touches_nothing(&report), "{what}: {report}");
            assert_eq!(healed.records > 0, lost.contains(&"meta"), "{healed:?}");
            pair.all_restore(&store, &what);
            pair.is_clean_once_collected(&store, &what);
            pair.all_restore(&store, &what);
        }
    }
}

/// Returns another repository in which the same inodes of the same snapshots have other contents.
fn stranger(password: Option<&'static str>) -> Objects {
    let store = empty(password, 99);
    let machine = Machine::mount(store.clone(), password);
    machine.directory("dir");
    machine.write("dir/pages.ibd", 0, noise(101, 16_384 * 40));
    machine.write("small", 0, noise(102, 100));
    machine.write("large", 1_000, noise(103, 900_000));
    for name in SNAPSHOTS {
        machine.write("large", 1_000, noise(104, 20_000));
        machine.snapshot(name);
    }
    machine.finish();
    objects(&*store)
}

#[test]
fn nothing_is_taken_from_another_version_of_a_file() {
    let mut pair = Pair::build(None, Some(PASSWORD));
    let other = stranger(Some(PASSWORD));
    for key in pair.packs() {
        let store = bucket(&Case::new(key, Harm::Remove).apply(&pair.fixture));
        let (report, healed) = pair.mend(&store, &other);
        assert_eq!((healed.blobs, healed.bytes), (0, 0), "{key}");
        assert!(report.names(key), "what is lost stays named: {report}");
        let after = objects(&*store);
        let new = after.keys().filter(|key| class_of(key) == "data");
        let old = pair.fixture.objects.keys();
        let old = old.filter(|key| class_of(key) == "data");
        assert!(new.count() <= old.count(), "{key}: data was written");
    }
    // A repository that has nothing at all.
    pair.copy = objects(&*empty(Some(PASSWORD), 98));
    let key = pair.packs()[0].clone();
    let store = bucket(&Case::new(&key, Harm::Remove).apply(&pair.fixture));
    let (report, healed) = pair.mend(&store, &pair.copy);
    assert!(healed.is_nothing() && report.names(&key), "{report}");
}

#[test]
fn a_copy_that_has_a_part_brings_that_part_back() {
    let pair = Pair::build(None, None);
    let data = |objects: &Objects| -> Vec<String> {
        let keys = objects.keys().filter(|key| class_of(key) == "data");
        keys.cloned().collect()
    };
    let mut copy = pair.copy.clone();
    let gone = data(&copy).pop().expect("a pack");
    copy.remove(&gone);
    let mut objects = pair.fixture.objects.clone();
    objects.retain(|key, _| class_of(key) != "data");
    let store = bucket(&objects);
    let (report, healed) = pair.mend(&store, &copy);
    assert!(!healed.is_nothing() && !report.is_clean(), "{report}");
    // Files that did not come back are named, and everything else restores.
    for name in SNAPSHOTS {
        let restored = restore(&pair.fixture, store.clone(), name).expect("restores");
        for path in &restored.problems {
            let named = format!("main/{name}:{path}");
            let files = report.problems.iter().flat_map(|problem| &problem.files);
            assert!(files.into_iter().any(|file| *file == named), "{named}");
        }
    }
    // A whole copy gives the rest.
    let (report, _) = pair.mend(&store, &pair.copy);
    assert!(report.is_clean(), "{report}");
    pair.all_restore(&store, "in two steps");
}

#[test]
fn it_heals_during_a_mount() {
    let pair = Pair::build(None, None);
    let mut objects = pair.fixture.objects.clone();
    objects.retain(|key, _| class_of(key) != "data");
    let store = bucket(&objects);
    let machine = Machine::mount(store.clone(), None);
    machine.write("before", 0, noise(50, 100_000));
    machine.snapshot("before");
    let (report, _) = pair.mend(&store, &pair.copy);
    assert!(report.is_clean(), "{report}");
    machine.write("after", 0, noise(3, 900_000));
    machine.snapshot("after");
    assert!(machine.read("before") == noise(50, 100_000));
    machine.finish();
    pair.all_restore(&store, "during a mount");
    pair.is_clean_once_collected(&store, "during a mount");
}
