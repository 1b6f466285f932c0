//! A repository with objects of every class, as bytes that can be damaged again and again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bkfs::maintain::check::examine;
use bkfs::maintain::options::CheckOptions;
use bkfs::root::choice::KeyChoice;
use bkfs::root::repository::{NewRepository, create, open_keys};
use bkfs_chunker::crypto::{Class, Keyring, SlotCost};
use bkfs_chunker::pack::PackName;
use bkfs_store::{MemoryStore, Store};
use bkfs_testing::entropy::SeededEntropy;
use bytes::Bytes;

use crate::machine::{Machine, noise};
use crate::password::Known;
use crate::restored::{Tree, restore};

/// The password of the sealed repository.
pub const PASSWORD: &str = "the password of a damaged repository";

/// The snapshots of the repository.
pub const SNAPSHOTS: [&str; 3] = ["one", "two", "three"];

/// The objects of a bucket.
pub type Objects = BTreeMap<String, Bytes>;

/// The undamaged repository.
pub struct Fixture {
    /// All objects.
    pub objects: Objects,
    /// The root as it was one snapshot before.
    pub older_root: Bytes,
    /// The keys of the objects that something refers to.
    pub needed: Vec<String>,
    /// Makes ids, and seals objects.
    pub keyring: Keyring,
    /// Its password.
    pub password: Option<&'static str>,
    /// The contents of each snapshot.
    pub trees: BTreeMap<&'static str, Tree>,
}

/// Runs a future to its end.
pub fn wait<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("runtime")
        .block_on(work)
}

/// Returns a bucket with these objects.
pub fn bucket(objects: &Objects) -> Arc<MemoryStore> {
    let store = Arc::new(MemoryStore::new());
    wait(async {
        for (key, bytes) in objects {
            store.put(key, vec![bytes.clone()]).await.expect("put");
        }
    });
    store
}

/// Returns all objects of a bucket.
pub fn objects(store: &dyn Store) -> Objects {
    wait(async {
        let mut objects = Objects::new();
        for info in store.list("", None, 100_000).await.expect("list") {
            let (bytes, _) = store.get(&info.key).await.expect("get");
            objects.insert(info.key, bytes);
        }
        objects
    })
}

/// Writes what a snapshot adds.
fn fill(machine: &Machine, number: u64) {
    match number {
        0 => {
            machine.directory("dir");
            machine.write("dir/pages.ibd", 0, noise(1, 16_384 * 40));
            machine.write("small", 0, noise(2, 100));
            machine.write("large", 1_000, noise(3, 900_000));
        }
        1 => {
            machine.write("dir/pages.ibd", 16_384 * 9, noise(4, 16_384 * 3));
            machine.write("large", 901_000, noise(5, 133_000));
            machine.symlink("link", b"../anywhere");
        }
        _ => {
            machine.directory("other");
            machine.write("other/late", 0, noise(6, 700_000));
            machine.write("small", 50, noise(7, 3_000));
        }
    }
}

/// Returns the class of a key, as far as damage is concerned.
pub fn class_of(key: &str) -> &'static str {
    let directory = key.split('/').next().unwrap_or_default();
    let classes = [
        "config", "root", "keys", "sessions", "journal", "lists", "index", "data", "meta",
    ];
    let found = classes.into_iter().find(|class| *class == directory);
    found.unwrap_or("other")
}

impl Fixture {
    /// Makes a repository with three snapshots, by a session that never ends, so that its heartbeat
    /// stays.
    pub fn build(password: Option<&'static str>) -> Self {
        let store = Arc::new(MemoryStore::new());
        let new = NewRepository {
            password: password.map(str::as_bytes),
            cost: SlotCost {
                memory_kib: 64,
                passes: 1,
                lanes: 1,
            },
            label: "damage",
            clock: Default::default(),
            lock: None,
        };
        wait(create(&*store, &SeededEntropy::new(1), &new)).expect("create");
        let machine = Machine::mount(store.clone(), password);
        let mut older_root = Bytes::new();
        for (number, name) in SNAPSHOTS.into_iter().enumerate() {
            fill(&machine, number as u64);
            older_root = wait(store.get("root")).expect("root").0;
            machine.snapshot(name);
        }
        // Writes that fsync has acknowledged and no commit covers stay in journals.
        for number in 0..3 {
            machine.write("synced", number * 20_000, noise(90 + number, 20_000));
            machine.fsync();
        }
        // A task of its own sends the first heartbeat when the session begins.
        while !wait(store.list("sessions/", None, 1)).is_ok_and(|page| !page.is_empty()) {
            std::thread::yield_now();
        }
        let objects = objects(&*store);
        machine.crash();
        let (_, keyring) = wait(open_keys(
            &*store,
            None,
            &KeyChoice::default(),
            &mut Known(password),
        ))
        .expect("keys");
        let mut fixture = Self {
            objects,
            older_root,
            needed: Vec::new(),
            keyring,
            password,
            trees: BTreeMap::new(),
        };
        fixture.needed = fixture.find_needed();
        for name in SNAPSHOTS {
            let restored = restore(&fixture, bucket(&fixture.objects), name).expect("restores");
            assert!(restored.problems.is_empty(), "{:?}", restored.problems);
            fixture.trees.insert(name, restored.tree);
        }
        fixture
    }

    /// Returns the oracle's options.
    pub fn options(&self) -> CheckOptions {
        CheckOptions::oracle()
    }

    /// Returns the keys of all objects that something refers to. The rest are index objects and
    /// lists that were replaced.
    pub fn find_needed(&self) -> Vec<String> {
        let store = bucket(&self.objects);
        let findings = wait(examine(store, &self.keyring, &self.options())).expect("examines");
        assert!(findings.report.is_clean(), "{}", findings.report);
        let root = findings.handle.expect("a root").current().root.clone();
        let mut needed: BTreeSet<String> = findings
            .indexed
            .packs
            .values()
            .map(|pack| pack.key())
            .collect();
        let named = |class, name: PackName| name.key(class);
        needed.extend(
            root.index
                .iter()
                .map(|index| named(Class::Index, index.name)),
        );
        needed.extend(
            root.snapshots
                .iter()
                .map(|list| named(Class::List, list.name)),
        );
        needed.extend(root.sessions.keys().map(|id| id.key()));
        let journals = self
            .objects
            .keys()
            .filter(|key| key.starts_with("journal/"));
        needed.extend(journals.cloned());
        needed.extend(["config".to_owned(), "root".to_owned()]);
        needed.extend(
            self.objects
                .keys()
                .filter(|key| key.starts_with("keys/"))
                .cloned(),
        );
        for key in &needed {
            assert!(self.objects.contains_key(key), "{key} is not there");
        }
        needed.into_iter().collect()
    }

    /// Returns how many classes of objects there are.
    pub fn classes(&self) -> usize {
        let classes: BTreeSet<_> = self.needed.iter().map(|key| class_of(key)).collect();
        classes.len()
    }
}
