//! Keys of a repository: which open it beside hostile ones, and rotations of the master key.

use super::support::*;
use crate::root::error::{ErrorKind, RootError};
use crate::root::handle::RootHandle;
use crate::root::holder::SystemProcesses;
use crate::root::lists::{DirectLists, Lists};
use crate::root::memory::VolatileMemory;
use crate::root::repository::{
    Accepted, NewRepository, OpenOptions, Passwords, Repository, create, read_config,
};
use crate::root::retry::RetryPolicy;
use crate::root::rotation::{Rotated, RotationParts, rotate};
use crate::root::session::{OpenSession, VolumeRequest};
use crate::root::slots::{Making, Slots, SlotsError};
use crate::root::state::{ROOT_KEY, Root};
use crate::root::transition::Refusal;
use crate::root::unlock::{Trials, find_slots};
use bkfs_chunker::pack::PackName;
use bkfs_chunker::seal::{
    Class, Config, Features, Keyring, OpenError, RepositoryId, Secrets, SlotCost, SlotName,
    Statement,
};
use bkfs_chunker::store::fault::{Fault as Trouble, FaultStore, Gate, Strike};
use bkfs_chunker::store::{MemoryStore, Operation, Store, StoreErrorKind};
use bytes::Bytes;
use minicbor::Encoder;
use std::collections::BTreeMap;
use std::sync::Arc;
use zeroize::Zeroizing;

const CHEAP: SlotCost = SlotCost {
    memory_kib: 8,
    passes: 1,
    lanes: 1,
};

/// The most that a slot may ask for: minutes of work.
const DEAREST: SlotCost = SlotCost {
    memory_kib: SlotCost::MEMORY_KIB_MAX,
    passes: 16,
    lanes: 1,
};

struct Given(&'static str);

impl Passwords for Given {
    fn is_given(&self) -> bool {
        true
    }
    fn password(&mut self) -> Result<Option<Zeroizing<Vec<u8>>>, RootError> {
        Ok(Some(Zeroizing::new(self.0.as_bytes().to_vec())))
    }
}

/// A repository that opens with "first".
async fn made() -> Arc<dyn Store> {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let new = NewRepository {
        password: Some(b"first"),
        cost: CHEAP,
        label: "one",
        clock: time(1000),
        lock: None,
    };
    let made = create(&*store, &*Seeded::new(1), &new).await;
    made.expect("empty");
    store
}

async fn open(store: &Arc<dyn Store>, password: &'static str) -> Result<Repository, RootError> {
    let options = OpenOptions {
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

async fn slots(store: &Arc<dyn Store>, password: &str, seed: u64) -> Result<Slots, SlotsError> {
    let password = Zeroizing::new(password.as_bytes().to_vec());
    Slots::open(store.clone(), Seeded::new(seed), password).await
}

fn making<'a>(password: &'a str, label: &'a str) -> Making<'a> {
    Making {
        password: password.as_bytes(),
        label,
        clock: time(2000),
        cost: CHEAP,
    }
}

async fn add(store: &Arc<dyn Store>, password: &str, label: &str) -> SlotName {
    let seed = 20 + label.len() as u64;
    let slots = slots(store, "first", seed).await.expect("it opens");
    slots.add(making(password, label)).await.expect("room")
}

fn parts(drops_others: bool) -> RotationParts<'static> {
    RotationParts {
        memory: Arc::new(VolatileMemory::default()),
        policy: RetryPolicy::default(),
        min_generation: 0,
        accept_rollback: false,
        holder: holder("rotator"),
        processes: &SystemProcesses,
        clock: time(3000),
        drops_others,
    }
}

async fn rotated(store: &Arc<dyn Store>, password: &str, seed: u64) -> Result<Rotated, SlotsError> {
    rotate(&slots(store, password, seed).await?, parts(true)).await
}

/// All objects below `keys/`.
async fn keys(store: &Arc<dyn Store>) -> BTreeMap<String, Bytes> {
    let mut keys = BTreeMap::new();
    for info in (store.list(SlotName::PREFIX, None, 1000).await).expect("listed") {
        let (object, _) = store.get(&info.key).await.expect("there");
        keys.insert(info.key, object);
    }
    keys
}

async fn put(store: &Arc<dyn Store>, key: &str, object: Bytes) {
    store.put(key, vec![object]).await.expect("put");
}

async fn repository_of(store: &Arc<dyn Store>) -> RepositoryId {
    let config = read_config(&**store).await.expect("readable");
    config.expect("there").repository()
}

/// Seals what lies under the key of a slot, as who can write to the bucket does.
fn forged(repository: RepositoryId, name: SlotName, payload: &[u8]) -> Bytes {
    let nobody = Secrets::new([0; 32], [0; 32], [0; 32]);
    let keyring = Keyring::unsealed(repository, nobody);
    keyring.seal_object(
        Class::KeySlot,
        &name.key(),
        Features::NONE,
        [9; 32],
        payload,
    )
}

/// A slot of no password.
fn hostile(repository: RepositoryId, name: SlotName, label: &str, cost: SlotCost) -> Bytes {
    let mut payload = Vec::new();
    let mut encoder = Encoder::new(&mut payload);
    encoder
        .map(6)
        .and_then(|it| it.u8(0)?.str(label)?.u8(1)?.u64(5))
        .expect("in memory");
    encoder.u8(2).and_then(|it| it.array(3)).expect("in memory");
    for number in [cost.memory_kib, cost.passes, cost.lanes] {
        encoder.u32(number).expect("in memory");
    }
    let salt = [name.0 as u8; 32];
    for (field, bytes) in [(3, &salt), (4, &[1; 32]), (5, &[2; 32])] {
        encoder
            .u8(field)
            .and_then(|it| it.bytes(bytes))
            .expect("in memory");
    }
    forged(repository, name, &payload)
}

#[tokio::test(start_paused = true)]
async fn hostile_slots_do_not_keep_the_password_out() {
    let store = made().await;
    let repository = repository_of(&store).await;
    let (key, honest) = keys(&store).await.pop_first().expect("one");
    let opener = Keyring::unsealed(repository, Secrets::new([0; 32], [0; 32], [0; 32]));
    let payload = opener.open_object(Class::KeySlot, &key, &honest);
    let payload = payload.expect("a slot is open");
    for number in 0..200 {
        let empty = format!("keys/000{number:013x}");
        put(&store, &empty, Bytes::new()).await;
        let name = SlotName(1 << 40 | number);
        put(&store, &name.key(), Bytes::from(vec![7; 300])).await;
    }
    for number in 0..64 {
        let name = SlotName(1 << 41 | number);
        let object = hostile(repository, name, "\x1b[2J\r\n", DEAREST);
        put(&store, &name.key(), object).await;
        // The honest one under other names.
        let name = SlotName(1 << 42 | number);
        put(&store, &name.key(), forged(repository, name, &payload)).await;
    }
    let large = Bytes::from(vec![0; 1 << 20]);
    put(&store, &SlotName(3).key(), large).await;

    let begun = std::time::Instant::now();
    let opened = open(&store, "first").await.expect("the password opens it");
    assert_eq!(opened.keyring().repository(), repository);
    assert!(begun.elapsed().as_secs() < 20, "{:?}", begun.elapsed());
    assert!(!opened.keyring().secrets().encode().is_empty());

    // Removed by name; what is no slot counts towards no limit.
    let found = find_slots(&*store, repository, None).await.expect("listed");
    assert_eq!(found.slots.len(), 129);
    assert_eq!(found.slots[0].1.cost(), CHEAP);
}

#[tokio::test(start_paused = true)]
async fn work_on_a_password_is_bounded_and_what_is_left_is_said() {
    let store = made().await;
    let repository = repository_of(&store).await;
    let cost = SlotCost {
        memory_kib: 1000,
        ..CHEAP
    };
    for number in 0..64 {
        let name = SlotName(number);
        put(&store, &name.key(), hostile(repository, name, "", cost)).await;
    }
    // Copies of a slot that did not open cost nothing.
    for number in 64..128 {
        let name = SlotName(number);
        let copy = hostile(repository, SlotName(number - 64), "", cost);
        let opener = Keyring::unsealed(repository, Secrets::new([0; 32], [0; 32], [0; 32]));
        let payload = opener.open_object(Class::KeySlot, &SlotName(number - 64).key(), &copy);
        let payload = payload.expect("open");
        put(&store, &name.key(), forged(repository, name, &payload)).await;
    }
    let config = read_config(&*store)
        .await
        .expect("readable")
        .expect("there");
    for (password, opens) in [(&b"first"[..], true), (b"other", false)] {
        let found = find_slots(&*store, repository, None).await.expect("listed");
        assert_eq!(found.slots.len(), 129);
        let mut trials = Trials::within(password, 8 + 10 * 1000);
        let mut opened = 0;
        for (name, slot) in &found.slots {
            opened += usize::from(trials.open(&config, *name, slot).is_some());
        }
        assert_eq!(opened, usize::from(opens), "the cheapest is tried first");
        let error = trials.failure(found);
        let RootError::KeysUntried { untried } = error else {
            panic!("{error}");
        };
        assert_eq!(untried, 2 * 54);
        assert_eq!(error.kind(), ErrorKind::WrongPassword);
        assert!(error.to_string().contains("108 were not tried"), "{error}");
    }
    // Within the bounds a wrong password is one, whatever else lies there.
    put(&store, "keys/0000000000000fff", Bytes::new()).await;
    let error = open(&store, "other").await.expect_err("wrong");
    assert!(matches!(error, RootError::WrongPassword), "{error}");
}

#[tokio::test(start_paused = true)]
async fn slots_that_cannot_be_read_are_damage_only_where_none_can() {
    let store = made().await;
    let (key, _) = keys(&store).await.pop_first().expect("one");
    put(&store, &key, Bytes::new()).await;
    let error = open(&store, "first").await.expect_err("no slot");
    assert!(
        error.kind() == ErrorKind::Damaged && error.to_string().contains(&key),
        "{error}"
    );
    let unreasonable = SlotCost {
        memory_kib: u32::MAX,
        ..CHEAP
    };
    let repository = repository_of(&store).await;
    let name = SlotName::from_key(&key).expect("a slot's");
    put(&store, &key, hostile(repository, name, "", unreasonable)).await;
    let error = open(&store, "first").await.expect_err("no slot");
    assert!(
        error.kind() == ErrorKind::Damaged && error.to_string().contains(&key),
        "{error}"
    );
}

#[tokio::test(start_paused = true)]
async fn any_key_can_be_removed_however_many_there_are() {
    let store = made().await;
    let repository = repository_of(&store).await;
    for number in 0..64 {
        let name = SlotName(number);
        put(&store, &name.key(), hostile(repository, name, "x", CHEAP)).await;
    }
    let slots = slots(&store, "first", 2).await.expect("it opens");
    let full = slots.add(making("second", "two")).await;
    assert!(matches!(full, Err(SlotsError::Full)));
    slots.remove(SlotName(5), time(1)).await.expect("removed");
    assert_eq!(keys(&store).await.len(), 64);
    open(&store, "first").await.expect("it opens");
}

#[tokio::test(start_paused = true)]
async fn a_rotation_seals_what_comes_and_opens_what_was() {
    let store = made().await;
    let before = open(&store, "first").await.expect("there");
    let old = before.keyring().clone();
    let list = write_list(before.handle(), 7).await;
    let made = rotated(&store, "first", 3).await.expect("no session");
    assert_eq!((made.epoch, made.dropped.len(), made.left.len()), (1, 1, 0));
    assert_eq!(keys(&store).await.len(), 1, "the old slot is gone");
    let after = open(&store, "first").await.expect("there");
    assert_eq!(after.keyring().epoch(), 1);
    let root = &after.handle().current().root;
    assert_eq!((made.generation, root.generation), (4, 4));
    assert!(root.chain.is_some() && root.lock_rules.is_some());
    // Ids stay; what was sealed opens; what is sealed now does not open with what was known before.
    let name = |keyring: &Keyring| keyring.id(bkfs_chunker::id::Kind::Chunk, b"x");
    assert_eq!(name(after.keyring()), name(&old));
    let lists = Lists::new(store.clone(), after.keyring().clone());
    lists.pack_shards(&[list]).await.expect("it opens");
    let newer = write_list(after.handle(), 8).await;
    let lists = Lists::new(store.clone(), old.clone());
    let error = lists.pack_shards(&[newer]).await.expect_err("newer");
    assert!(error.to_string().contains("rotated"), "{error}");
    // Again, and by those who have it open.
    let again = rotated(&store, "first", 4).await.expect("no session");
    assert_eq!(again.epoch, 2);
    let error = after.handle().refresh().await.expect_err("another key");
    assert!(error.to_string().contains("rotated"), "{error}");
    let opened = open(&store, "first").await.expect("there");
    assert_eq!(opened.keyring().epoch(), 2);
    let lists = Lists::new(store.clone(), opened.keyring().clone());
    lists.pack_shards(&[list, newer]).await.expect("both open");
}

/// Stores a list, by a session of its own.
async fn write_list(handle: &RootHandle, number: u32) -> crate::root::state::ListRef {
    use crate::root::snapshots::PackEntry;
    let session = OpenSession::open(handle, holder("a"), None, &SystemProcesses).await;
    let session = session.expect("room");
    let writer = DirectLists::last(handle, session.id());
    let entry = PackEntry(PackName {
        session: 1,
        sequence: number,
        random: 0,
    });
    let list = crate::root::lists::put_shard(&writer, vec![entry]).await;
    session.end().await.expect("live");
    list.expect("stored")
}

#[tokio::test(start_paused = true)]
async fn a_key_of_an_older_epoch_opens_nothing_new() {
    let store = made().await;
    add(&store, "second", "two").await;
    let old = keys(&store).await;
    let made = rotated(&store, "first", 3).await.expect("no session");
    assert_eq!(made.dropped.len(), 2);
    let error = open(&store, "second").await.expect_err("dropped");
    assert!(matches!(error, RootError::WrongPassword), "{error}");
    // All old slots are put back, first beside the new one.
    for (key, object) in &old {
        put(&store, key, object.clone()).await;
    }
    let opened = open(&store, "first").await.expect("the new key");
    assert_eq!(opened.keyring().epoch(), 1);
    let error = open(&store, "second").await.expect_err("an older epoch");
    let slot = match &error {
        RootError::OlderKey { slot, held, needed } => {
            assert_eq!((*held, *needed), (0, 1));
            slot.to_string()
        }
        other => panic!("{other}"),
    };
    assert_eq!(error.kind(), ErrorKind::WrongPassword);
    assert!(error.to_string().contains(&slot), "{error}");
    let listed = slots(&store, "second", 6).await;
    assert!(matches!(
        listed,
        Err(SlotsError::Root(RootError::OlderKey { .. }))
    ));
    let listed = slots(&store, "first", 6).await.expect("it opens");
    let facts = |name: SlotName| listed.list().iter().find(|facts| facts.name == name);
    let new = facts(made.slot).expect("there");
    assert!(new.is_in_force && new.epoch == Some(1) && new.statement == Some(Statement::Bound));
    let others = listed.list().iter().filter(|facts| facts.name != made.slot);
    assert!(
        others
            .clone()
            .all(|facts| !facts.is_in_force && facts.epoch == Some(0))
    );
    assert_eq!(others.clone().filter(|facts| facts.is_own).count(), 1);
    // They can be removed, and the one in force cannot.
    let own = listed.remove(made.slot, time(1)).await;
    assert!(matches!(own, Err(SlotsError::Own { .. })));
    for name in others.map(|facts| facts.name) {
        listed.remove(name, time(1)).await.expect("removed");
    }
    assert_eq!(keys(&store).await.len(), 1);
    // Then in the place of the new one.
    for (key, object) in &old {
        put(&store, key, object.clone()).await;
    }
    store.delete(&made.slot.key()).await.expect("deleted");
    let error = open(&store, "first").await.expect_err("an older epoch");
    assert!(matches!(error, RootError::OlderKey { .. }), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_root_that_an_old_key_seals_is_refused() {
    let store = made().await;
    let before = open(&store, "first").await.expect("there");
    let old = keys(&store).await;
    rotated(&store, "first", 3).await.expect("no session");
    let after = open(&store, "first").await.expect("there");
    // As who knows the old master key makes it, on top of all.
    let mut root: Root = after.handle().current().root.clone();
    root.follow([3; 16]);
    let payload = root.encode().expect("small");
    let features = after.handle().current().features;
    let seal =
        |keyring: &Keyring| keyring.seal_object(Class::Root, ROOT_KEY, features, [4; 32], &payload);
    put(&store, ROOT_KEY, seal(before.keyring())).await;
    let error = after.handle().refresh().await.expect_err("forged");
    assert!(error.kind() == ErrorKind::Damaged, "{error}");
    let error = open(&store, "first").await.expect_err("forged");
    let is_older = |error: &RootError| {
        let older = OpenError::OlderKeyEpoch {
            epoch: 0,
            newest: 1,
        };
        matches!(error, RootError::Unopenable { source, .. } if *source == older)
    };
    assert!(is_older(&error), "{error}");
    let listed = slots(&store, "first", 6).await;
    assert!(matches!(&listed, Err(SlotsError::Root(error)) if is_older(error)));
    put(&store, ROOT_KEY, seal(after.keyring())).await;
    open(&store, "first").await.expect("it is the new key's");
    // Who has no memory believes a bucket that was put back as a whole.
    for (key, object) in old {
        put(&store, &key, object).await;
    }
    put(&store, ROOT_KEY, seal(before.keyring())).await;
    open(&store, "first").await.expect("as it was before");
}

#[tokio::test(start_paused = true)]
async fn keys_of_other_passwords_are_dropped_only_if_that_is_meant() {
    let store = made().await;
    let second = add(&store, "second", "the other one").await;
    let before = keys(&store).await;
    let opened = slots(&store, "first", 3).await.expect("it opens");
    let error = rotate(&opened, parts(false)).await.expect_err("another");
    assert!(matches!(&error, SlotsError::Others { keys } if keys.len() == 1));
    let text = error.to_string();
    assert!(
        text.contains(&second.to_string()) && text.contains("the other one"),
        "{text}"
    );
    assert_eq!(keys(&store).await, before, "nothing was written");
    // One that comes after the look is not dropped either.
    let error = {
        add(&store, "third", "three").await;
        rotate(&opened, parts(true)).await.expect_err("another")
    };
    let changed = |error: &SlotsError| {
        matches!(
            error,
            SlotsError::Root(RootError::Refused(Refusal::KeysChanged(_)))
        )
    };
    assert!(changed(&error), "{error}");
    for password in ["first", "second", "third"] {
        open(&store, password).await.expect("it opens");
    }
    let made = rotated(&store, "first", 4).await.expect("no session");
    assert_eq!(keys(&store).await.len(), 1);
    // What the refused one had left was used.
    assert_eq!((made.epoch, made.dropped.len()), (1, 3));
}

#[tokio::test(start_paused = true)]
async fn no_rotation_while_a_session_stands() {
    let store = made().await;
    let before = keys(&store).await;
    let opened = open(&store, "first").await.expect("there");
    let request = || {
        Some(VolumeRequest {
            name: "main".to_owned(),
            steal: true,
            accept_loss: false,
        })
    };
    let open_as = |name: &'static str, volume| {
        OpenSession::open(opened.handle(), holder(name), volume, &SystemProcesses)
    };
    let session = open_as("carol", None).await.expect("room");
    let error = rotated(&store, "first", 3).await.expect_err("a session");
    let text = error.to_string();
    assert!(
        text.contains("carol") && text.contains(&session.id().to_string()),
        "{text}"
    );
    let SlotsError::Root(error) = error else {
        panic!("{text}")
    };
    assert_eq!(error.kind(), ErrorKind::Held);
    assert_eq!(keys(&store).await, before, "nothing was written");
    session.end().await.expect("live");
    // An ending one: what it acknowledged has to be carried out first.
    let first = open_as("dave", request()).await.expect("room");
    let mut root = opened.handle().current().root.clone();
    root.register(crate::root::SessionId(1), holder("erin"))
        .expect("room");
    root.claim(crate::root::SessionId(1), "main", crate::root::Claim::Steal)
        .expect("stolen");
    root.end(crate::root::SessionId(1)).expect("live");
    root.follow([9; 16]);
    assert_eq!(root.sessions.len(), 1);
    let keyring = opened.keyring();
    let features = opened.handle().current().features;
    let payload = root.encode().expect("small");
    let object = keyring.seal_object(Class::Root, ROOT_KEY, features, [8; 32], &payload);
    put(&store, ROOT_KEY, object).await;
    let error = rotated(&store, "first", 3).await.expect_err("a session");
    assert!(error.to_string().contains("dave"), "{error}");
    drop(first);
    assert_eq!(keys(&store).await, before, "nothing was written");
}

/// A rotation by "first" that waits before its replacement of the root is sent; what it becomes.
async fn held(
    store: &Arc<dyn Store>,
) -> (Gate, tokio::task::JoinHandle<Result<Rotated, SlotsError>>) {
    let faulty = Arc::new(FaultStore::new(store.clone()));
    let gate = Gate::new();
    let hold = Strike::with(Trouble::HoldBefore(gate.clone())).on(Operation::Replace);
    faulty.plan(hold.keys(ROOT_KEY));
    let through: Arc<dyn Store> = faulty.clone();
    let task = tokio::spawn(async move { rotated(&through, "first", 30).await });
    while faulty.struck() == 0 {
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
    (gate, task)
}

#[tokio::test(start_paused = true)]
async fn a_mount_that_comes_between_wins_or_never_registers() {
    let store = made().await;
    let opened = open(&store, "first").await.expect("there");
    let (gate, task) = held(&store).await;
    let session = OpenSession::open(opened.handle(), holder("carol"), None, &SystemProcesses).await;
    let session = session.expect("room");
    gate.open();
    let error = task.await.expect("no panic").expect_err("a session");
    assert!(error.to_string().contains("carol"), "{error}");
    assert_eq!(
        open(&store, "first")
            .await
            .expect("there")
            .keyring()
            .epoch(),
        0
    );
    session.end().await.expect("it writes on");
    // The other way round.
    rotated(&store, "first", 3).await.expect("no session");
    let root = store.get(ROOT_KEY).await.expect("there").0;
    let late = OpenSession::open(opened.handle(), holder("dave"), None, &SystemProcesses).await;
    let error = late.expect_err("its key is old");
    assert!(error.to_string().contains("rotated"), "{error}");
    assert_eq!(store.get(ROOT_KEY).await.expect("there").0, root);
}

#[tokio::test(start_paused = true)]
async fn of_two_rotations_one_is_made_and_its_key_opens() {
    // By one password: the second goes on with what the first has begun.
    let store = made().await;
    let (gate, task) = held(&store).await;
    let second = rotated(&store, "first", 40).await.expect("it comes first");
    gate.open();
    let first = task.await.expect("no panic").expect("the same one");
    assert_eq!((first.epoch, first.slot), (second.epoch, second.slot));
    assert_eq!(
        open(&store, "first")
            .await
            .expect("there")
            .keyring()
            .epoch(),
        1
    );
    assert_eq!(keys(&store).await.len(), 1);

    // By two passwords: the second one's key opens, and the first is told.
    let store = made().await;
    add(&store, "second", "two").await;
    let (gate, task) = held(&store).await;
    rotated(&store, "second", 40).await.expect("it comes first");
    gate.open();
    let error = task.await.expect("no panic").expect_err("too late");
    assert!(matches!(error, SlotsError::Rotated), "{error}");
    assert_eq!(
        open(&store, "second")
            .await
            .expect("there")
            .keyring()
            .epoch(),
        1
    );
    assert_eq!(keys(&store).await.len(), 1);
    assert!(open(&store, "first").await.is_err());

    // A slot of a rotation under way is not removed by another key, nor is a password changed.
    let store = made().await;
    add(&store, "second", "two").await;
    let (gate, task) = held(&store).await;
    let opened = slots(&store, "second", 41).await.expect("it opens");
    let newer = opened.list().iter().find(|slot| slot.epoch == Some(1));
    let newer = newer.expect("the new one").name;
    let refused = opened.remove(newer, time(1)).await;
    assert!(matches!(refused, Err(SlotsError::Unfinished { .. })));
    let own = slots(&store, "first", 42).await.expect("it opens");
    let refused = own.change(making("third", "three")).await;
    assert!(matches!(refused, Err(SlotsError::Unfinished { .. })));
    gate.open();
    task.await.expect("no panic").expect("it is made");
    // What they hold is of the old epoch now.
    let late = own.add(making("third", "three")).await;
    assert!(matches!(late, Err(SlotsError::Rotated)));
    assert_eq!(keys(&store).await.len(), 1);
}

/// What becomes of one request of a rotation, and of all after it.
#[derive(Clone, Copy, Debug)]
enum Cut {
    /// It and all after it are not sent: a crash.
    Before,
    /// It is made, and the process ends before the answer.
    After,
    /// It arrives after the process has ended.
    Late,
    /// Its answer is lost, and the process goes on.
    Unanswered,
    /// It fails, and the process goes on.
    Failed,
}

#[tokio::test(start_paused = true)]
async fn wherever_a_rotation_is_cut_the_password_opens() {
    let whole = Arc::new(FaultStore::new(two().await));
    let store: Arc<dyn Store> = whole.clone();
    rotated(&store, "first", 50).await.expect("no session");
    let requests = whole.requests();
    assert!(requests > 15, "{requests}");
    let cuts = [
        Cut::Before,
        Cut::After,
        Cut::Late,
        Cut::Unanswered,
        Cut::Failed,
    ];
    let mut ends = BTreeMap::new();
    for cut in cuts {
        for nth in 1..=requests {
            let epoch = cut_at(cut, nth).await;
            *ends.entry((format!("{cut:?}"), epoch)).or_insert(0) += 1;
        }
    }
    // Both states were seen after a crash.
    assert!(
        ends.contains_key(&("After".to_owned(), 0)) && ends.contains_key(&("After".to_owned(), 1))
    );
}

async fn two() -> Arc<dyn Store> {
    let store = made().await;
    add(&store, "second", "two").await;
    store
}

/// The epoch that a rotation cut at its `nth` request leaves in force.
async fn cut_at(cut: Cut, nth: u64) -> u32 {
    let what = format!("{cut:?} {nth}");
    let inner = two().await;
    let faulty = Arc::new(FaultStore::new(inner.clone()));
    let store: Arc<dyn Store> = faulty.clone();
    let gone = StoreErrorKind::Denied;
    let lost = StoreErrorKind::OutcomeUnknown;
    let struck = match cut {
        Cut::Before => Strike::with(Trouble::FailBefore(gone)).nth(nth).always(),
        Cut::After => Strike::with(Trouble::FailAfter(lost)).nth(nth),
        Cut::Late => Strike::with(Trouble::Late).nth(nth),
        Cut::Unanswered => Strike::with(Trouble::FailAfter(lost)).nth(nth),
        Cut::Failed => Strike::with(Trouble::FailBefore(gone)).nth(nth),
    };
    faulty.plan(struck);
    if matches!(cut, Cut::After | Cut::Late) {
        faulty.plan(
            Strike::with(Trouble::FailBefore(gone))
                .nth(nth + 1)
                .always(),
        );
    }
    let made = rotated(&store, "first", 60).await;
    faulty.heal();
    faulty.apply_late().await;
    let opened = open(&inner, "first").await;
    let opened = opened.unwrap_or_else(|error| panic!("{what}: {error}"));
    let epoch = opened.keyring().epoch();
    if made.is_ok() {
        assert_eq!(epoch, 1, "{what}");
    }
    let second = open(&inner, "second").await;
    assert_eq!(second.is_ok(), epoch == 0, "{what}");
    // It can be repeated, and leaves nothing behind.
    let again = rotated(&inner, "first", 70).await;
    let again = again.unwrap_or_else(|error| panic!("{what}: {error}"));
    assert_eq!(again.epoch, epoch + 1, "{what}");
    assert_eq!(keys(&inner).await.len(), 1, "{what}");
    open(&inner, "first").await.expect("it opens");
    epoch
}

#[tokio::test(start_paused = true)]
async fn a_new_key_that_is_removed_meanwhile_is_put_back() {
    let store = made().await;
    let faulty = Arc::new(FaultStore::new(store.clone()));
    let strike = Strike::with(Trouble::Missing).on(Operation::Head);
    faulty.plan(strike.keys(SlotName::PREFIX));
    let through: Arc<dyn Store> = faulty.clone();
    let made = rotated(&through, "first", 3).await.expect("no session");
    assert_eq!(faulty.struck(), 1);
    assert_eq!(
        keys(&store).await.into_keys().collect::<Vec<_>>(),
        [made.slot.key()]
    );
    open(&store, "first").await.expect("it opens");
}

#[tokio::test(start_paused = true)]
async fn a_lost_root_opens_with_the_newest_key() {
    let store = made().await;
    let old = keys(&store).await;
    rotated(&store, "first", 3).await.expect("no session");
    for (key, object) in old {
        put(&store, &key, object).await;
    }
    store.delete(ROOT_KEY).await.expect("deleted");
    let opened = crate::root::repository::open_keys(&*store, None, &mut Given("first")).await;
    assert_eq!(opened.expect("it opens").1.epoch(), 1);
    let listed = slots(&store, "first", 4).await.expect("it opens");
    assert_eq!(listed.keyring().epoch(), 1);
    let config = store.get(Config::KEY).await.expect("there").0;
    assert!(Config::open(&config).is_ok(), "it is as it was");
}
