//! Creating and opening repositories, also by unauthorized users.

use super::support::*;
use crate::acquaintance::Acquaintance;
use crate::root::choice::KeyChoice;
use crate::root::error::{ErrorKind, RootError};
use crate::root::holder::SystemProcesses;
use crate::root::lock_rule::hash;
use crate::root::repository::{
    Accepted, NewRepository, OpenOptions, Passwords, Repository, create, open_keys,
};
use crate::root::retry::RetryPolicy;
use crate::root::rule::{self, announce, conclude, set_rule};
use crate::root::session::OpenSession;
use crate::root::state::ROOT_KEY;
use bkfs_chunker::crypto::{Config, SlotCost, SlotName};
use bkfs_store::lock::{LockMode, LockRule};
use bkfs_store::{
    LocalStore, MemoryStore, Store, StoreError, StoreErrorKind, StoreOptions, Version,
};
use bytes::Bytes;
use std::sync::Arc;
use zeroize::Zeroizing;

struct Given(Option<&'static str>);

impl Passwords for Given {
    fn is_given(&self) -> bool {
        self.0.is_some()
    }
    fn password(&mut self) -> Result<Option<Zeroizing<Vec<u8>>>, RootError> {
        Ok(self
            .0
            .map(|password| Zeroizing::new(password.as_bytes().to_vec())))
    }
}

fn new(password: Option<&'static str>) -> NewRepository<'static> {
    let cost = SlotCost {
        memory_kib: 8,
        passes: 1,
        lanes: 1,
    };
    NewRepository {
        password: password.map(str::as_bytes),
        cost,
        label: "first",
        clock: time(1000),
        lock: None,
    }
}

async fn open(
    store: &Arc<dyn Store>,
    password: Option<&'static str>,
) -> Result<Repository, RootError> {
    let options = OpenOptions {
        key: None,
        waits: false,
        entropy: Seeded::next(),
        policy: RetryPolicy::default(),
        state_dir: None,
        known: None,
        accepted: Accepted::default(),
        min_generation: 0,
    };
    Repository::open(store.clone(), options, &mut Given(password)).await
}

async fn empty() -> Arc<dyn Store> {
    Arc::new(MemoryStore::new())
}

#[tokio::test(start_paused = true)]
async fn a_sealed_repository_opens_with_its_password_only() {
    let store = empty().await;
    assert_eq!(
        open(&store, None).await.expect_err("nothing there").kind(),
        ErrorKind::NoRepository
    );
    let repository = create(&*store, &*Seeded::new(1), &new(Some("secret")))
        .await
        .expect("empty");
    let opened = open(&store, Some("secret")).await.expect("there");
    assert!(opened.keyring().is_sealed() && opened.config().is_sealed());
    assert_eq!(
        (
            opened.keyring().repository(),
            opened.handle().current().root.generation
        ),
        (repository, 1)
    );
    assert_eq!(
        open(&store, Some("Secret"))
            .await
            .expect_err("wrong")
            .kind(),
        ErrorKind::WrongPassword
    );
    assert!(matches!(
        open(&store, None).await,
        Err(RootError::PasswordNeeded)
    ));
    let error = create(&*store, &*Seeded::new(2), &new(Some("secret")))
        .await
        .expect_err("it is there");
    assert!(error.to_string().contains("already"), "{error}");
    assert_eq!(
        opened
            .handle()
            .refresh()
            .await
            .expect("untouched")
            .root
            .generation,
        1
    );
}

#[tokio::test]
async fn an_unsealed_repository_refuses_passwords() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let store: Arc<dyn Store> = Arc::new(
        LocalStore::open(directory.path(), &StoreOptions::default())
            .await
            .expect("there"),
    );
    create(&*store, &*Seeded::new(1), &new(None))
        .await
        .expect("empty");
    let opened = open(&store, None).await.expect("there");
    assert!(!opened.keyring().is_sealed());
    assert!(
        matches!(
            open(&store, Some("secret")).await,
            Err(RootError::NotEncrypted)
        ),
        "an attacker may have swapped it"
    );
}

#[tokio::test(start_paused = true)]
async fn an_interrupted_creation_is_completed_with_its_password() {
    for password in [None, Some("secret")] {
        let whole = empty().await;
        create(&*whole, &*Seeded::new(1), &new(password))
            .await
            .expect("empty");
        for lost in 1..3 {
            let store = empty().await;
            let mut keys: Vec<String> = whole
                .list("", None, 10)
                .await
                .expect("listed")
                .into_iter()
                .map(|info| info.key)
                .collect();
            keys.sort_by_key(|key| {
                if key == ROOT_KEY {
                    2
                } else {
                    i32::from(key == Config::KEY)
                }
            });
            keys.truncate(keys.len() - lost);
            for key in &keys {
                let (object, _) = whole.get(key).await.expect("there");
                store.put_new(key, vec![object]).await.expect("new");
            }
            assert!(open(&store, password).await.is_err(), "{keys:?}");
            if keys.iter().any(|key| key == Config::KEY) {
                assert_eq!(
                    open(&store, password).await.expect_err("no root").kind(),
                    ErrorKind::Damaged
                );
                let other = if password.is_some() {
                    None
                } else {
                    Some("secret")
                };
                assert_eq!(
                    create(&*store, &*Seeded::new(2), &new(other))
                        .await
                        .expect_err("another choice")
                        .kind(),
                    ErrorKind::Refused
                );
                if password.is_some() {
                    let error = create(&*store, &*Seeded::new(2), &new(Some("other")))
                        .await
                        .expect_err("another password");
                    assert_eq!(error.kind(), ErrorKind::WrongPassword);
                }
            }
            create(&*store, &*Seeded::new(3), &new(password))
                .await
                .expect("completed");
            open(&store, password).await.expect("there");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn of_two_creations_one_stands() {
    for password in [None, Some("secret")] {
        let store = empty().await;
        let (first, second) = (Seeded::new(1), Seeded::new(2));
        let (one, two) = (new(password), new(password));
        let (first, second) = tokio::join!(
            create(&*store, &*first, &one),
            create(&*store, &*second, &two)
        );
        let id = open(&store, password)
            .await
            .expect("one stands")
            .keyring()
            .repository();
        // The store in memory never waits, so one task ends before the other begins.
        assert!(
            matches!((&first, &second), (Ok(made), Err(_)) | (Err(_), Ok(made)) if *made == id),
            "{first:?} {second:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn remains_of_a_repository_are_not_written_over() {
    let store = empty().await;
    create(&*store, &*Seeded::new(1), &new(None))
        .await
        .expect("empty");
    store
        .put_new("data/00/x", vec!["x".into()])
        .await
        .expect("new");
    store.delete(ROOT_KEY).await.expect("deleted");
    let error = create(&*store, &*Seeded::new(2), &new(None))
        .await
        .expect_err("a root was lost");
    assert!(error.to_string().contains("--repair"), "{error}");
    store.delete(Config::KEY).await.expect("deleted");
    assert!(create(&*store, &*Seeded::new(2), &new(None)).await.is_err());
    assert_eq!(
        open(&store, None)
            .await
            .expect_err("no root, no config")
            .kind(),
        ErrorKind::NoRepository
    );
}

/// Returns two repositories with the same password.
async fn two_alike() -> (Arc<dyn Store>, Arc<dyn Store>) {
    let (one, other) = (empty().await, empty().await);
    for (store, seed) in [(&one, 1), (&other, 2)] {
        create(&**store, &*Seeded::new(seed), &new(Some("secret")))
            .await
            .expect("empty");
    }
    (one, other)
}

/// Returns the key and the body of the only slot.
async fn slot_of(store: &Arc<dyn Store>) -> (String, Bytes) {
    let slots = store.list(SlotName::PREFIX, None, 2).await.expect("listed");
    let key = slots[0].key.clone();
    let (object, _) = store.get(&key).await.expect("there");
    (key, object)
}

#[tokio::test(start_paused = true)]
async fn swapped_parts_are_told() {
    let (store, other) = two_alike().await;
    let (config, _) = store.get(Config::KEY).await.expect("there");
    let (foreign, _) = other.get(Config::KEY).await.expect("there");
    store.put(Config::KEY, vec![foreign]).await.expect("put");
    let error = open(&store, Some("secret")).await;
    let error = error.expect_err("no slot is its own");
    assert_eq!(error.kind(), ErrorKind::Damaged);
    store.put(Config::KEY, vec![config]).await.expect("put");

    // A foreign slot next to the right one is harmless.
    let (_, foreign) = slot_of(&other).await;
    let added = store.put_new("keys/0000000000000000", vec![foreign]).await;
    added.expect("new");
    open(&store, Some("secret")).await.expect("there");
}

#[tokio::test(start_paused = true)]
async fn damaged_parts_are_told() {
    let (store, _) = two_alike().await;
    let (config, _) = store.get(Config::KEY).await.expect("there");
    let (slot, object) = slot_of(&store).await;
    let mut damaged = object.to_vec();
    damaged[200] ^= 1;
    store.put(&slot, vec![damaged.into()]).await.expect("put");
    let error = open(&store, Some("secret")).await.expect_err("damaged");
    assert!(
        error.kind() == ErrorKind::Damaged && error.to_string().contains(&slot),
        "{error}"
    );
    store.put(&slot, vec![object]).await.expect("put");

    // The version counts only once the header verifies. A flipped bit is damage, and not a newer
    // format.
    let mut flipped = config.to_vec();
    flipped[8] = 2;
    let flipped = vec![flipped.into()];
    store.put(Config::KEY, flipped).await.expect("put");
    let error = open(&store, Some("secret")).await.expect_err("damaged");
    assert!(
        error.kind() == ErrorKind::Damaged && error.to_string().contains("does not verify"),
        "{error}"
    );
    store.delete(Config::KEY).await.expect("deleted");
    let error = open(&store, Some("secret")).await;
    let error = error.expect_err("there is a root");
    assert_eq!(error.kind(), ErrorKind::Damaged);
}

#[tokio::test(start_paused = true)]
async fn what_the_store_refuses_is_told() {
    let store = Faulty::new(empty().await);
    let bucket: Arc<dyn Store> = store.clone();
    for (kind, told) in [
        (StoreErrorKind::NoBucket, ErrorKind::NoRepository),
        (StoreErrorKind::Denied, ErrorKind::Unavailable),
        (StoreErrorKind::Unreachable, ErrorKind::Unavailable),
    ] {
        *store.outage.lock() = Some(kind);
        assert_eq!(open(&bucket, None).await.expect_err("refused").kind(), told);
    }
}

/// A store that ignores conditions.
#[derive(Debug)]
struct Careless(MemoryStore);

#[async_trait::async_trait]
impl bkfs_store::Layer for Careless {
    fn below(&self) -> &dyn Store {
        &self.0
    }

    async fn replace(
        &self,
        key: &str,
        body: Vec<Bytes>,
        _: &Version,
    ) -> Result<Version, StoreError> {
        self.0.put(key, body).await
    }

    fn describe(&self) -> String {
        "careless".into()
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_ignores_conditions_gets_no_repository() {
    let store = Careless(MemoryStore::new());
    let error = create(&store, &*Seeded::new(1), &new(None))
        .await
        .expect_err("unfit");
    assert!(
        matches!(&error, RootError::UnfitStore { .. }) && error.to_string().contains("careless"),
        "{error}"
    );
    assert_eq!(store.0.object_count(), 0, "nothing stays behind");
}

#[tokio::test(start_paused = true)]
async fn a_demanded_generation_is_demanded() {
    let store = empty().await;
    create(&*store, &*Seeded::new(1), &new(None))
        .await
        .expect("empty");
    let options = |min_generation| OpenOptions {
        key: None,
        waits: false,
        entropy: Seeded::new(5),
        policy: RetryPolicy::default(),
        state_dir: None,
        known: None,
        accepted: Accepted::default(),
        min_generation,
    };
    Repository::open(store.clone(), options(1), &mut Given(None))
        .await
        .expect("as demanded");
    let error = Repository::open(store, options(2), &mut Given(None))
        .await
        .expect_err("older");
    assert!(
        matches!(error, RootError::Rollback { known, .. } if known.generation == 2),
        "{error}"
    );
}

/// Fails the test if a password is asked for.
struct Unasked;

impl Passwords for Unasked {
    fn is_given(&self) -> bool {
        true
    }
    fn password(&mut self) -> Result<Option<Zeroizing<Vec<u8>>>, RootError> {
        panic!("the password was asked for")
    }
}

#[tokio::test(start_paused = true)]
async fn another_repository_than_the_known_one_is_told_no_password() {
    let sealed = empty().await;
    let first = create(&*sealed, &*Seeded::new(1), &new(Some("secret"))).await;
    let known = Some(Acquaintance {
        repository: first.expect("empty"),
        sealed: true,
    });
    let opened = open_keys(
        &*sealed,
        known,
        &KeyChoice::default(),
        &mut Given(Some("secret")),
    )
    .await;
    opened.expect("it is the known one");
    // Another repository under the same password, and one that needs no password.
    for password in [Some("secret"), None] {
        let other = empty().await;
        let made = create(&*other, &*Seeded::new(2), &new(password)).await;
        let made = made.expect("empty");
        let Err(error) = open_keys(&*other, known, &KeyChoice::default(), &mut Unasked).await
        else {
            panic!("it was opened");
        };
        assert_eq!(error.kind(), ErrorKind::Damaged);
        let (text, hint) = (error.to_string(), error.hint().unwrap_or_default());
        assert!(text.contains(&made.to_string()), "{text}");
        assert!(text.contains(&first_id(known)), "{text}");
        assert!(hint.contains("--accept-replaced"), "{hint}");
    }
}

fn first_id(known: Option<Acquaintance>) -> String {
    known.map_or(String::new(), |known| known.repository.to_string())
}

const RULE: LockRule = LockRule {
    days: 0,
    mode: LockMode::Governance,
};

#[tokio::test(start_paused = true)]
async fn an_older_config_with_another_rule_of_locks_is_refused() {
    let store = empty().await;
    let made = create(&*store, &*Seeded::new(1), &new(None)).await;
    made.expect("empty");
    let (old, _) = store.get(Config::KEY).await.expect("there");
    let opened = open(&store, None).await.expect("there");
    let handle = opened.handle();
    let session = OpenSession::open(handle, holder("a"), None, &SystemProcesses).await;
    let session = session.expect("room");
    let told = announce(handle, session.id(), hash(Some(RULE))).await;
    told.expect("live");
    // Both configs are valid between the two steps, so an interruption here locks no machine out.
    open(&store, None).await.expect("the old rule is admitted");
    let keyring = opened.keyring();
    let changed = set_rule(&*store, &*Seeded::new(3), keyring, RULE, time(0)).await;
    changed.expect("the config stands");
    open(&store, None).await.expect("the new rule is admitted");
    let told = conclude(handle, session.id()).await;
    told.expect("live");
    open(&store, None)
        .await
        .expect("the new rule is the only one");

    store.put(Config::KEY, vec![old]).await.expect("put");
    let error = open(&store, None).await.expect_err("it is older");
    assert!(matches!(error, RootError::OtherLockRule), "{error}");
    assert_eq!(error.kind(), ErrorKind::Damaged);
}

#[tokio::test(start_paused = true)]
async fn an_old_repository_learns_its_rule_from_its_config() {
    let store = empty().await;
    let made = create(&*store, &*Seeded::new(1), &new(None)).await;
    made.expect("empty");
    let opened = open(&store, None).await.expect("there");
    // The root as an older program left it.
    let root = crate::root::state::Root::new(opened.keyring().repository(), [1; 16]);
    let payload = root.encode().expect("small");
    let object = opened.keyring().seal_object(
        bkfs_chunker::crypto::Class::Root,
        ROOT_KEY,
        bkfs_chunker::crypto::Features::NONE,
        [3; 32],
        &payload,
    );
    store.put(ROOT_KEY, vec![object]).await.expect("put");
    let opened = open(&store, None).await.expect("nothing is told yet");
    let session = OpenSession::open(opened.handle(), holder("a"), None, &SystemProcesses).await;
    session.expect("room").end().await.expect("live");
    let told = opened.handle().current().root.lock_rules.clone();
    assert_eq!(told, Some(vec![hash(None)]));
}

/// Returns the rules that the root admits, and checks that a new process opens the repository.
async fn told(store: &Arc<dyn Store>) -> Vec<crate::root::state::RuleHash> {
    let opened = open(store, None).await.expect("it opens");
    opened
        .handle()
        .current()
        .root
        .lock_rules
        .clone()
        .unwrap_or_default()
}

/// Returns the session of a `bkfs lock` on `host`. Another process of the same host takes that
/// session for dead.
async fn locking(opened: &Repository, host: &str) -> OpenSession {
    let holder = crate::root::HolderInfo {
        mount_point: rule::HOLDER.to_owned(),
        ..holder(host)
    };
    let session = OpenSession::open(opened.handle(), holder, None, &SystemProcesses).await;
    session.expect("room")
}

#[tokio::test(start_paused = true)]
async fn two_changes_of_the_rule_at_once_leave_one_that_stands() {
    let other = LockRule {
        mode: LockMode::Compliance,
        ..RULE
    };
    let store = empty().await;
    let made = create(&*store, &*Seeded::new(1), &new(None)).await;
    made.expect("empty");
    let (one, two) = (open(&store, None).await, open(&store, None).await);
    let (one, two) = (one.expect("there"), two.expect("there"));
    let (first, second) = (locking(&one, "a").await, locking(&two, "b").await);
    // One session has announced its rule; the other completes its change and ends.
    let announced = announce(one.handle(), first.id(), hash(Some(RULE))).await;
    announced.expect("live");
    let changed = rule::change(two.handle(), second.id(), other, time(0)).await;
    changed.expect("the config is its own");
    second.end().await.expect("live");
    let all = [hash(None), hash(Some(RULE)), hash(Some(other))];
    assert_eq!(told(&store).await, all);
    let keyring = one.keyring();
    let changed = set_rule(&*store, &*Seeded::new(3), keyring, RULE, time(0)).await;
    changed.expect("it follows");
    assert_eq!(told(&store).await, all);
    conclude(one.handle(), first.id()).await.expect("live");
    first.end().await.expect("live");
    assert_eq!(told(&store).await, [hash(Some(RULE))]);
}

#[tokio::test(start_paused = true)]
async fn a_change_of_the_rule_during_a_mount_without_the_chain_is_told() {
    let store = empty().await;
    let made = create(&*store, &*Seeded::new(1), &new(None)).await;
    made.expect("empty");
    let mount = open(&store, None).await.expect("there");
    // The root as an older program left it, with that program's session in it.
    let mut root = crate::root::state::Root::new(mount.keyring().repository(), [1; 16]);
    root.register(crate::root::SessionId(1), holder("old"))
        .expect("room");
    let payload = root.encode().expect("small");
    let none = bkfs_chunker::crypto::Features::NONE;
    let class = bkfs_chunker::crypto::Class::Root;
    let keyring = mount.keyring();
    let object = keyring.seal_object(class, ROOT_KEY, none, [3; 32], &payload);
    store.put(ROOT_KEY, vec![object]).await.expect("put");
    let mount = open(&store, None).await.expect("there");
    let session = OpenSession::open(mount.handle(), holder("a"), None, &SystemProcesses).await;
    let session = session.expect("room");
    let changing = open(&store, None).await.expect("there");
    let changer = locking(&changing, "b").await;
    let changed = rule::change(changing.handle(), changer.id(), RULE, time(0)).await;
    changed.expect("the config is its own");
    changer.end().await.expect("live");
    let dead = crate::root::SessionId(1);
    let handle = mount.handle();
    let by = OpenSession::open_in_place_of(handle, holder("c"), dead, &SystemProcesses).await;
    by.expect("removed").end().await.expect("live");
    // The session is alone now. Its next root begins the chain, and names the rule that the config
    // states.
    session.end().await.expect("live");
    assert!(mount.handle().current().root.chain.is_some());
    assert_eq!(told(&store).await, [hash(Some(RULE))]);
}
