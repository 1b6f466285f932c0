//! Shared helpers of the tests of keys: a sealed repository, its slots, and forged slots.

use super::support::{Seeded, holder, time};
use crate::root::choice::KeyChoice;
use crate::root::error::RootError;
use crate::root::holder::{ProcessState, Processes, SystemProcesses};
use crate::root::key_change::{KeyChange, KeyEntry};
use crate::root::memory::VolatileMemory;
use crate::root::repository::{
    Accepted, NewRepository, OpenOptions, Passwords, Repository, create, read_config,
};
use crate::root::retry::RetryPolicy;
use crate::root::rotation::{Rotated, RotationParts, rotate};
use crate::root::slot_error::SlotsError;
use crate::root::slots::{Making, Slots};
use bkfs_chunker::crypto::{Class, Features, Keyring, RepositoryId, Secrets, SlotCost, SlotName};
use bkfs_store::{MemoryStore, Store};
use bytes::Bytes;
use minicbor::Encoder;
use std::collections::BTreeMap;
use std::sync::Arc;
use zeroize::Zeroizing;

pub const CHEAP: SlotCost = SlotCost {
    memory_kib: 8,
    passes: 1,
    lanes: 1,
};

/// The largest cost that a slot may state: minutes of work.
pub const DEAREST: SlotCost = SlotCost {
    memory_kib: SlotCost::MEMORY_KIB_MAX,
    passes: 16,
    lanes: 1,
};

pub struct Given(pub &'static str);

impl Passwords for Given {
    fn is_given(&self) -> bool {
        true
    }
    fn password(&mut self) -> Result<Option<Zeroizing<Vec<u8>>>, RootError> {
        Ok(Some(Zeroizing::new(self.0.as_bytes().to_vec())))
    }
}

/// Returns a repository that opens with "first".
pub async fn made() -> Arc<dyn Store> {
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

/// Opens the repository with a password.
///
/// # Errors
/// Those of [`Repository::open`].
pub async fn open(store: &Arc<dyn Store>, password: &'static str) -> Result<Repository, RootError> {
    open_with(store, password, KeyChoice::default()).await
}

/// Same, with a choice of keys to try first.
///
/// # Errors
/// Those of [`Repository::open`].
pub async fn open_with(
    store: &Arc<dyn Store>,
    password: &'static str,
    choice: KeyChoice,
) -> Result<Repository, RootError> {
    let options = OpenOptions {
        key: choice.named,
        state_dir: choice.state_dir,
        waits: false,
        entropy: Seeded::next(),
        policy: RetryPolicy::default(),
        known: None,
        accepted: Accepted::default(),
        min_generation: 0,
    };
    Repository::open(store.clone(), options, &mut Given(password)).await
}

/// Opens the slots of the repository with a password.
///
/// # Errors
/// Those of [`Slots::open`].
pub async fn slots(store: &Arc<dyn Store>, password: &str, seed: u64) -> Result<Slots, SlotsError> {
    slots_with(store, password, seed, None).await
}

/// Same, with the slot that the user names.
///
/// # Errors
/// Those of [`Slots::open`].
pub async fn slots_with(
    store: &Arc<dyn Store>,
    password: &str,
    seed: u64,
    named: Option<SlotName>,
) -> Result<Slots, SlotsError> {
    let password = Zeroizing::new(password.as_bytes().to_vec());
    let choice = KeyChoice {
        named,
        state_dir: None,
    };
    Slots::open(store.clone(), Seeded::new(seed), password, choice).await
}

pub fn making<'a>(password: &'a str, label: &'a str) -> Making<'a> {
    Making {
        password: password.as_bytes(),
        label,
        clock: time(2000),
        cost: CHEAP,
    }
}

pub async fn add(store: &Arc<dyn Store>, password: &str, label: &str) -> SlotName {
    let seed = 20 + label.len() as u64;
    let slots = slots(store, "first", seed).await.expect("it opens");
    slots.add(making(password, label)).await.expect("room")
}

pub fn parts(drops_others: bool) -> RotationParts<'static> {
    RotationParts {
        entry: entry("rotator"),
        clock: time(3000),
        drops_others,
    }
}

/// How a change of keys enters the root on the machine `name`.
pub fn entry(name: &str) -> KeyEntry<'static> {
    KeyEntry {
        memory: Arc::new(VolatileMemory::default()),
        policy: RetryPolicy::default(),
        min_generation: 0,
        accept_rollback: false,
        holder: holder(name),
        processes: &SystemProcesses,
    }
}

/// Finds that no process of this machine runs.
#[derive(Debug)]
pub struct AllGone;

impl Processes for AllGone {
    fn state(&self, _: u32) -> ProcessState {
        ProcessState::Gone
    }
}

/// Changes keys on the machine `name`, as the commands do.
///
/// # Errors
/// Those of [`KeyChange::begin`], of the change, and of [`KeyChange::end`].
pub async fn changed<T>(
    slots: &Slots,
    entry: KeyEntry<'_>,
    change: impl Future<Output = Result<T, SlotsError>>,
) -> Result<T, SlotsError> {
    let standing = KeyChange::begin(slots, &entry).await?;
    standing.end(change.await).await
}

/// Rotates the master key; keys of other passwords may be dropped.
///
/// # Errors
/// Those of [`Slots::open`] and [`rotate`].
pub async fn rotated(
    store: &Arc<dyn Store>,
    password: &str,
    seed: u64,
) -> Result<Rotated, SlotsError> {
    rotate(&slots(store, password, seed).await?, parts(true)).await
}

/// Returns all objects below `keys/`.
pub async fn keys(store: &Arc<dyn Store>) -> BTreeMap<String, Bytes> {
    let mut keys = BTreeMap::new();
    for info in (store.list(SlotName::PREFIX, None, 1000).await).expect("listed") {
        let (object, _) = store.get(&info.key).await.expect("there");
        keys.insert(info.key, object);
    }
    keys
}

pub async fn put(store: &Arc<dyn Store>, key: &str, object: Bytes) {
    store.put(key, vec![object]).await.expect("put");
}

/// Flips a bit of the byte at `at` of an object.
pub async fn turn(store: &Arc<dyn Store>, key: &str, at: usize) {
    let (object, _) = store.get(key).await.expect("there");
    let mut turned = object.to_vec();
    turned[at] ^= 1;
    put(store, key, Bytes::from(turned)).await;
}

pub async fn repository_of(store: &Arc<dyn Store>) -> RepositoryId {
    let config = read_config(&**store).await.expect("readable");
    config.expect("there").repository()
}

/// Seals a slot without any secret, as an attacker with write access can.
pub fn forged(repository: RepositoryId, name: SlotName, payload: &[u8]) -> Bytes {
    let none = Secrets::new([0; 32], [0; 32], [0; 32]);
    let keyring = Keyring::unsealed(repository, none);
    keyring.seal_object(
        Class::KeySlot,
        &name.key(),
        Features::NONE,
        [9; 32],
        payload,
    )
}

/// Returns a slot that no password opens.
pub fn hostile(repository: RepositoryId, name: SlotName, label: &str, cost: SlotCost) -> Bytes {
    hostile_of(repository, name, label, cost, None)
}

/// Same, with a stated epoch.
pub fn hostile_of(
    repository: RepositoryId,
    name: SlotName,
    label: &str,
    cost: SlotCost,
    epoch: Option<u32>,
) -> Bytes {
    let mut payload = Vec::new();
    let mut encoder = Encoder::new(&mut payload);
    encoder
        .map(6 + u64::from(epoch.is_some()))
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
    if let Some(epoch) = epoch {
        encoder
            .u8(6)
            .and_then(|it| it.u32(epoch))
            .expect("in memory");
    }
    forged(repository, name, &payload)
}

/// Returns the names of all keys.
pub async fn slots_of(store: &Arc<dyn Store>) -> Vec<SlotName> {
    let keys = keys(store).await.into_keys();
    keys.filter_map(|key| SlotName::from_key(&key)).collect()
}
