//! Scrubbing reads everything at the rate, remembers its position, and puts damage in quarantine.
//! Packs that collection has deleted are no damage.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bkfs::maintain::check::check;
use bkfs::maintain::collect::plan::Effort;
use bkfs::maintain::collect::{Options, collect, prospect};
use bkfs::maintain::quarantine;
use bkfs::maintain::repair::plan;
use bkfs::maintain::scrub::{Facts, PositionFile, Scrubber, Surroundings};
use bkfs::maintain::workspace::Workspace;
use bkfs::repository::{Repository, open_in};
use bkfs::root::error::RootError;
use bkfs_chunker::catalog::PackLocation;
use bkfs_chunker::verify::{Verifier, VerifierConfig};
use bkfs_store::{MemoryStore, Operation, Store, StoreError, StoreErrorKind, Version};
use bytes::Bytes;
use jiff::SignedDuration;
use parking_lot::Mutex;
use tokio::task::JoinHandle;

use crate::cases::{Case, Harm};
use crate::machine::{Machine, noise, opening};
use crate::password::Known;
use crate::world::{Fixture, Objects, bucket, class_of, objects, wait};

/// A rate at which the fixture's packs take minutes.
const RATE: u64 = 64 << 10;

/// A mount. If it is busy, something is read in it all the time.
struct Mount {
    repository: Arc<Repository>,
    found: Mutex<Vec<PackLocation>>,
    traffic: AtomicU64,
    is_busy: bool,
}

#[async_trait]
impl Surroundings for Mount {
    async fn quarantine(&self, places: &[PackLocation]) -> Result<bool, RootError> {
        self.found.lock().extend(places);
        let repository = &self.repository;
        let holder = repository.environment.holder("scrubbing");
        let processes = repository.environment.processes.as_ref();
        let (handle, lists) = (&repository.handle, &repository.lists);
        quarantine::add(
            handle,
            lists,
            &repository.content_store,
            holder,
            processes,
            places,
        )
        .await?;
        Ok(true)
    }

    fn traffic_bytes(&self) -> u64 {
        match self.is_busy {
            true => self.traffic.fetch_add(1, Ordering::Relaxed),
            false => 0,
        }
    }
}

/// How the next reads of data packs end.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Mood {
    Honest,
    /// The next read has a wrong byte.
    FlipsOne,
    Fails,
}

#[derive(Debug)]
struct Moody {
    below: Arc<MemoryStore>,
    mood: Mutex<Mood>,
}

impl Moody {
    fn read(&self, key: &str, bytes: Bytes) -> Result<Bytes, StoreError> {
        if class_of(key) != "data" {
            return Ok(bytes);
        }
        let mut mood = self.mood.lock();
        match *mood {
            Mood::Honest => Ok(bytes),
            Mood::Fails => Err(StoreError::new(
                StoreErrorKind::Denied,
                Operation::Get,
                key,
                "not today",
            )),
            Mood::FlipsOne => {
                *mood = Mood::Honest;
                let mut bytes = bytes.to_vec();
                let middle = bytes.len() / 2;
                bytes[middle] ^= 1;
                Ok(bytes.into())
            }
        }
    }
}

#[async_trait]
impl bkfs_store::Layer for Moody {
    fn below(&self) -> &dyn Store {
        &*self.below
    }

    async fn get(&self, key: &str) -> Result<(Bytes, Version), StoreError> {
        let (bytes, version) = self.below.get(key).await?;
        Ok((self.read(key, bytes)?, version))
    }

    async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes, StoreError> {
        self.read(key, self.below.get_range(key, range).await?)
    }

    fn describe(&self) -> String {
        "moody".to_owned()
    }
}

fn moody(objects: &Objects, mood: Mood) -> Arc<Moody> {
    Arc::new(Moody {
        below: shared(objects),
        mood: Mutex::new(mood),
    })
}

/// A running scrubber.
struct Running {
    facts: Arc<Mutex<Facts>>,
    mount: Arc<Mount>,
    repository: Arc<Repository>,
    task: JoinHandle<()>,
}

impl Running {
    async fn begin(store: Arc<dyn Store>, state_dir: Option<&Path>, is_busy: bool) -> Self {
        let opened = open_in(store.clone(), opening(), &mut Known(None)).await;
        let repository = Arc::new(opened.expect("opens"));
        let config = VerifierConfig {
            workers: 0,
            downloads: 1,
            ..VerifierConfig::default()
        };
        let keyring = repository.content_store.keyring().clone();
        let entropy = repository.environment.entropy.clone();
        let facts = Arc::new(Mutex::new(Facts::default()));
        let mount = Arc::new(Mount {
            repository: repository.clone(),
            found: Mutex::default(),
            traffic: AtomicU64::new(0),
            is_busy,
        });
        let scrubber = Scrubber {
            handle: repository.handle.clone(),
            lists: repository.lists.clone(),
            verifier: Verifier::new(store, keyring, entropy, &config).expect("a verifier"),
            clock: repository.environment.clock.clone(),
            memory: PositionFile::new(state_dir, "repository"),
            surroundings: mount.clone(),
            rate: RATE,
            facts: facts.clone(),
        };
        Self {
            facts,
            mount,
            repository,
            task: tokio::spawn(scrubber.run()),
        }
    }

    fn facts(&self) -> Facts {
        self.facts.lock().clone()
    }

    /// Lets time pass until `holds` returns true. Returns the time that has passed, in seconds.
    async fn until(&self, holds: impl Fn(&Facts) -> bool) -> u64 {
        for second in 0..100_000 {
            if holds(&self.facts()) {
                return second;
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        panic!("it never comes: {:?}", self.facts());
    }

    async fn end(self) {
        self.task.abort();
        // It was aborted.
        let _ = self.task.await;
    }
}

/// Runs `work` on the clock of tokio, which stands still except for sleeps.
fn simulate<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .expect("runtime")
        .block_on(work)
}

/// Returns a repository without a writer, with packs of several sizes, and its objects.
fn quiet() -> (Fixture, Objects) {
    let fixture = Fixture::build(None);
    let store = bucket(&fixture.objects);
    let machine = Machine::mount(store.clone(), None);
    for number in 0..6 {
        machine.write("more", number * 400_000, noise(200 + number, 400_000));
        machine.snapshot(&format!("more-{number}"));
    }
    machine.finish();
    let objects = objects(&*store);
    (fixture, objects)
}

fn shared(objects: &Objects) -> Arc<MemoryStore> {
    bucket(objects)
}

#[test]
fn everything_is_verified_at_the_rate_and_again() {
    let (_, objects) = quiet();
    let largest = objects.iter().filter(|(key, _)| class_of(key) == "data");
    let largest = largest
        .map(|(_, bytes)| bytes.len() as u64)
        .max()
        .expect("packs");
    let store = shared(&objects);
    simulate(async {
        let running = Running::begin(store, None, false).await;
        let mut second = 0;
        while running.facts().last_round.is_none() {
            tokio::time::sleep(Duration::from_secs(1)).await;
            second += 1;
            let read = running.facts().verified_bytes;
            assert!(
                read <= RATE * second + 2 * largest,
                "{read} bytes in {second} s"
            );
        }
        let facts = running.facts();
        assert!(facts.total_bytes > 20 * RATE, "{facts:?}");
        assert!(
            second >= (facts.total_bytes - largest) / RATE,
            "{second} s: {facts:?}"
        );
        assert_eq!(facts.verified_bytes, facts.total_bytes);
        assert_eq!((facts.damaged, facts.last_round_damaged), (0, 0));
        // The next round begins by itself, but not at once.
        let rest = running.until(|facts| facts.round_bytes > 0).await;
        assert!(rest > 3_500, "it began again after {rest} s");
        running.end().await;
    });
}

#[test]
fn it_goes_on_where_it_was() {
    let (_, objects) = quiet();
    let store = shared(&objects);
    simulate(async {
        let state = tempfile::tempdir().expect("a directory");
        let running = Running::begin(store.clone(), Some(state.path()), false).await;
        running
            .until(|facts| facts.round_bytes > facts.total_bytes / 3 && facts.total_bytes > 0)
            .await;
        running.end().await;
        let before = PositionFile::new(Some(state.path()), "repository")
            .recall()
            .await
            .expect("remembered");
        assert!(before.after.is_some());
        let running = Running::begin(store.clone(), Some(state.path()), false).await;
        running.until(|facts| facts.last_round.is_some()).await;
        let facts = running.facts();
        assert_eq!(facts.verified_bytes, facts.total_bytes - before.bytes);
        running.end().await;
        // Another mount does not begin at once either.
        let running = Running::begin(store, Some(state.path()), false).await;
        tokio::time::sleep(Duration::from_secs(3_000)).await;
        assert_eq!(running.facts().verified_bytes, 0);
        running.until(|facts| facts.verified_bytes > 0).await;
        running.end().await;
    });
}

#[test]
fn a_single_bad_read_is_no_damage() {
    let (_, objects) = quiet();
    let store = moody(&objects, Mood::FlipsOne);
    simulate(async {
        let running = Running::begin(store.clone(), None, false).await;
        running.until(|facts| facts.last_round.is_some()).await;
        let facts = running.facts();
        assert_eq!(*store.mood.lock(), Mood::Honest, "nothing was flipped");
        assert_eq!((facts.last_round_damaged, facts.quarantined), (0, 0));
        assert!(running.mount.found.lock().is_empty());
        running.end().await;
    });
}

#[test]
fn a_store_that_fails_is_waited_for() {
    let (_, objects) = quiet();
    let store = moody(&objects, Mood::Fails);
    simulate(async {
        let running = Running::begin(store.clone(), None, false).await;
        running.until(|facts| facts.error.is_some()).await;
        tokio::time::sleep(Duration::from_secs(600)).await;
        let facts = running.facts();
        assert!(facts.error.is_some_and(|error| error.contains("not today")));
        *store.mood.lock() = Mood::Honest;
        running.until(|facts| facts.last_round.is_some()).await;
        let facts = running.facts();
        assert_eq!((facts.last_round_damaged, facts.error), (0, None));
        assert_eq!(facts.verified_bytes, facts.total_bytes);
        running.end().await;
    });
}

#[test]
fn an_index_object_that_cannot_be_read_is_named_and_passed_over() {
    let (_, whole) = quiet();
    let index = |objects: &Objects| {
        let keys = objects.keys().filter(|key| class_of(key) == "index");
        keys.cloned().collect::<Vec<_>>()
    };
    let all = index(&whole);
    for flips in [false, true] {
        let mut reached = 0;
        for key in &all {
            let mut objects = whole.clone();
            match flips {
                true => {
                    let mut bytes = objects[key].to_vec();
                    bytes[200] ^= 1;
                    objects.insert(key.clone(), bytes.into());
                }
                false => {
                    objects.remove(key);
                }
            }
            let store = shared(&objects);
            simulate(async {
                let running = Running::begin(store, None, false).await;
                running.until(|facts| facts.last_round.is_some()).await;
                let facts = running.facts();
                assert_eq!(facts.verified_bytes, facts.total_bytes);
                if facts.last_round_damaged == 1 {
                    let told = facts.error.expect("it is told");
                    assert!(told.contains(key) && told.contains("--repair"), "{told}");
                    reached += u64::from(facts.verified_bytes > 0);
                }
                running.end().await;
            });
        }
        assert!(reached > 0, "no index object was missed");
    }
}

#[test]
fn one_mount_of_a_machine_scrubs() {
    let (_, objects) = quiet();
    let store = shared(&objects);
    simulate(async {
        let state = tempfile::tempdir().expect("a directory");
        let first = Running::begin(store.clone(), Some(state.path()), false).await;
        first.until(|facts| facts.verified_bytes > 0).await;
        let second = Running::begin(store, Some(state.path()), false).await;
        second.until(|facts| facts.error.is_some()).await;
        first.until(|facts| facts.last_round.is_some()).await;
        assert_eq!(second.facts().verified_bytes, 0);
        first.end().await;
        second.until(|facts| facts.verified_bytes > 0).await;
        assert_eq!(second.facts().error, None);
        second.end().await;
    });
}

#[test]
fn those_who_are_busy_go_first_but_not_for_ever() {
    let (_, objects) = quiet();
    let store = shared(&objects);
    simulate(async {
        let running = Running::begin(store, None, true).await;
        let waited = running.until(|facts| facts.verified_bytes > 0).await;
        assert!((20..60).contains(&waited), "it waited {waited} s");
        running.until(|facts| facts.last_round.is_some()).await;
        running.end().await;
    });
}

#[test]
fn damage_is_found_and_put_in_quarantine() {
    let (fixture, objects) = quiet();
    for class in ["data", "meta"] {
        for harm in [Harm::Remove, Harm::Flip(300, 1)] {
            let mut harmed = fixture_of(&fixture, &objects);
            let key = harmed.needed.iter().rfind(|key| class_of(key) == class);
            let case = Case::new(key.expect("a pack"), harm);
            harmed.objects = case.apply(&harmed);
            let store = shared(&harmed.objects);
            simulate(async {
                let running = Running::begin(store.clone(), None, false).await;
                running.until(|facts| facts.last_round.is_some()).await;
                let facts = running.facts();
                assert_eq!(facts.last_round_damaged, 1, "{case}: {facts:?}");
                assert!(facts.quarantined > 0, "{case}: {facts:?}");
                let found = running.mount.found.lock().len();
                // The next round finds nothing new.
                running.until(|facts| facts.round_bytes > 0).await;
                running.until(|facts| facts.round_bytes == 0).await;
                let facts = running.facts();
                assert_eq!(facts.last_round_damaged, 0, "{case}: {facts:?}");
                assert_eq!(running.mount.found.lock().len(), found);
                running.end().await;
            });
            // A repair has nothing more to quarantine.
            let (keyring, options) = (&harmed.keyring, harmed.options());
            let shared: Arc<dyn Store> = store;
            let report = wait(check(shared.clone(), keyring, &options)).expect("checks");
            assert!(!report.is_clean());
            let planned = wait(plan(&shared, keyring, &options)).expect("plans");
            assert!(planned.1.is_empty(), "{case}: {:?}", planned.1.steps);
        }
    }
}

/// Returns the same repository with these objects.
fn fixture_of(fixture: &Fixture, objects: &Objects) -> Fixture {
    let mut made = Fixture {
        objects: objects.clone(),
        older_root: fixture.older_root.clone(),
        needed: Vec::new(),
        keyring: fixture.keyring.clone(),
        password: fixture.password,
        trees: fixture.trees.clone(),
    };
    made.needed = made.find_needed();
    made
}

#[test]
fn what_was_collected_meanwhile_is_no_damage() {
    let (_, before) = quiet();
    let store = shared(&before);
    simulate(async {
        let running = Running::begin(store.clone(), None, false).await;
        running.until(|facts| facts.verified_bytes > 0).await;
        let position = running.facts().position.expect("a pack was verified");
        let options = Options {
            undelete_window: SignedDuration::ZERO,
            workspace: Workspace::IN_MEMORY,
            state_dir: None,
            effort: Effort::default(),
            lock_days: None,
        };
        let repository = &running.repository;
        let found = prospect(repository, &options, repository.now()).await;
        collect(repository, found.expect("plans"))
            .await
            .expect("collects");
        let mut ahead = 0;
        for key in before
            .keys()
            .filter(|key| ["data", "meta"].contains(&class_of(key)))
        {
            let name = key.rsplit('/').next().unwrap_or_default();
            let is_gone = store.head(key).await.is_err();
            ahead += u32::from(is_gone && *name > *position);
        }
        assert!(ahead > 0, "nothing was deleted before it was read");
        running.until(|facts| facts.last_round.is_some()).await;
        let facts = running.facts();
        assert_eq!((facts.last_round_damaged, facts.error), (0, None));
        assert!(running.mount.found.lock().is_empty());
        running.end().await;
    });
}
