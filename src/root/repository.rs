//! Repositories: creating one, and opening one.
//!
//! Owns the order of the first writes, and the checks before any object of a bucket is trusted.
//! Parses no URLs and asks for no passwords.
//!
//! **Creating** writes the key slot, then the config, then the root, each only if it is absent. The
//! config decides: of two concurrent creations, one config stands. An interrupted creation is
//! repeated with the same password, and goes on with the config that stands. A bucket that holds
//! anything else of a repository is never written to.
//!
//! **Opening** trusts the config only after the secrets have verified it, since an attacker could
//! replace it. It refuses a password where none is needed: otherwise an attacker with write access
//! could swap a sealed repository for an unsealed one, and read all data written from then on.

use super::choice::KeyChoice;
use super::error::{RootError, of_slot, unopenable};
use super::handle::{RootHandle, RootParts};
use super::lists::Lists;
use super::lock_rule;
use super::memory::{FileMemory, GenerationMemory, VolatileMemory};
use super::patient_reads::PatientReads;
use super::reading::open_root;
use super::retry::{Pauses, RetryPolicy, create_surely, may_pass, random};
use super::state::{ROOT_KEY, Root};
use super::unlock::{Unlocked, damage_of, unlock};
use crate::acquaintance::Acquaintance;
use bkfs_chunker::crypto::{
    Class, Config, Features, Keyring, NewSlot, OpenError, RepositoryId, Secrets, SlotCost, SlotName,
};
use bkfs_store::entropy::Entropy;
use bkfs_store::lock::{Lock, LockRule};
use bkfs_store::{ProbeError, Races, Store, StoreErrorKind, probe_conditional_writes, probe_locks};
use jiff::Timestamp;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use zeroize::Zeroizing;

/// Prefixes of all but config and key slots. An object there means that a root once stood.
const CONTENTS: [&str; 6] = [
    "data/",
    "index/",
    "journal/",
    "lists/",
    "meta/",
    "sessions/",
];

/// How long opening waits for a silent store: a user learns of a mistyped address soon.
const OPENING_PATIENCE: Duration = Duration::from_secs(30);

/// How long creation waits for a silent store.
const CREATION_PATIENCE: Duration = Duration::from_secs(30);

/// For how many seconds [`probe_lock`] locks its object: S3 accepts a clock error of 15 minutes.
const PROBE_LOCK_S: i64 = 20 * 60;

/// One writable mount in this many searches for rare races of the store.
const THOROUGH_ONE_IN: u64 = 16;

/// Source of passwords.
pub trait Passwords: Send {
    /// Whether the user gave one in advance (file, variable, command). A repository without a
    /// password is then refused.
    fn is_given(&self) -> bool;

    /// The password; `None` if there is none and no terminal to ask at.
    ///
    /// # Errors
    /// [`RootError::Local`] if it is given but cannot be read.
    fn password(&mut self) -> Result<Option<Zeroizing<Vec<u8>>>, RootError>;
}

/// Parameters of a new repository.
#[derive(Clone, Copy)]
pub struct NewRepository<'a> {
    /// The password of its first key slot; without one it is not sealed.
    pub password: Option<&'a [u8]>,
    /// Work of one trial of the password.
    pub cost: SlotCost,
    /// Label of the first key slot.
    pub label: &'a str,
    /// Current time of the clock.
    pub clock: Timestamp,
    /// Rule by which its objects are locked in the bucket.
    pub lock: Option<LockRule>,
}

/// Creates a repository in `store`, after a probe of its conditional writes. Dropped, it leaves an
/// interrupted creation, which a repetition completes.
///
/// # Errors
/// [`RootError::NotEmpty`] if (part of) a repository is there; [`RootError::WrongPassword`] if an
/// interrupted creation began with another password; [`RootError::UnfitStore`]; store errors.
pub async fn create(
    store: &dyn Store,
    entropy: &dyn Entropy,
    new: &NewRepository<'_>,
) -> Result<RepositoryId, RootError> {
    refuse_contents(store).await?;
    // The user waits for the answer, and can try again.
    let policy = RetryPolicy::within(CREATION_PATIENCE);
    probe_with(store, entropy, &policy, |_| Races::MANY).await?;
    if let Some(rule) = new.lock {
        probe_lock(store, entropy, rule, new.clock).await?;
    }
    let config = match read_config(store).await? {
        Some(config) => config,
        None => begin(store, entropy, new, &policy).await?,
    };
    if config.lock() != new.lock {
        return Err(not_empty(
            store,
            "an interrupted creation, which began with other --lock-days: remove the object \
             config to begin anew",
        ));
    }
    let keyring = match (new.password, config.is_sealed()) {
        (Some(password), true) => {
            let choice = KeyChoice::default();
            unlock(store, &config, password, &choice).await?.keyring
        }
        (None, false) => open_keyring(&config)?,
        _ => {
            return Err(not_empty(
                store,
                "an interrupted creation, which began with another choice of encryption: remove \
                 the object config to begin anew",
            ));
        }
    };
    let mut root = Root::witnessed(keyring.repository(), random(entropy));
    root.lock_rules = Some(vec![lock_rule::hash(new.lock)]);
    let object = keyring.seal_object(
        Class::Root,
        ROOT_KEY,
        Features::NONE.with_witness(),
        random(entropy),
        &root.encode()?,
    );
    let Err(error) = create_surely(store, &policy, entropy, ROOT_KEY, &object).await else {
        return Ok(keyring.repository());
    };
    // As with every root: the object that stands decides, not the answer.
    let Ok((object, version)) = store.get(ROOT_KEY).await else {
        return Err(error.into());
    };
    if open_root(&keyring, &object, version).is_ok_and(|view| view.root == root) {
        return Ok(keyring.repository());
    }
    Err(not_empty(
        store,
        "a bkfs repository was created here a moment ago",
    ))
}

/// Probes the store's conditional writes by writing and removing a few small objects, at creation
/// and in every writable mount: on a store with faulty ones, two writers would destroy each other's
/// work. One mount in [`THOROUGH_ONE_IN`] tries as hard as creation. A silent store is probed again
/// with other objects: no conditional write is sent twice.
///
/// # Errors
/// [`RootError::UnfitStore`] says what was wrong; store errors that do not pass.
pub async fn probe(
    store: &dyn Store,
    entropy: &dyn Entropy,
    policy: &RetryPolicy,
) -> Result<(), RootError> {
    let now_and_then = |salt: u64| match salt.is_multiple_of(THOROUGH_ONE_IN) {
        true => Races::MANY,
        false => Races::FEW,
    };
    probe_with(store, entropy, policy, now_and_then).await
}

async fn probe_with(
    store: &dyn Store,
    entropy: &dyn Entropy,
    policy: &RetryPolicy,
    races: impl Fn(u64) -> Races,
) -> Result<(), RootError> {
    let mut pauses = Pauses::new(policy, entropy);
    loop {
        let salt = u64::from_le_bytes(random(entropy));
        match probe_conditional_writes(store, &format!("{salt:016x}"), races(salt)).await {
            Ok(()) => return Ok(()),
            Err(ProbeError::Store(error)) if may_pass(&error) => {
                pauses.pause(&error).await.map_err(|_| error)?;
            }
            Err(ProbeError::Store(error)) => return Err(error.into()),
            Err(unfit @ ProbeError::Unfit { .. }) => {
                return Err(RootError::UnfitStore {
                    reason: unfit.to_string(),
                });
            }
        }
    }
}

/// Proves with a locked object that the bucket keeps locks. Runs with [`probe`] under a lock rule.
///
/// # Errors
/// [`RootError::UnfitStore`] says what was wrong; store errors.
pub async fn probe_lock(
    store: &dyn Store,
    entropy: &dyn Entropy,
    rule: LockRule,
    now: Timestamp,
) -> Result<(), RootError> {
    if rule.days == 0 {
        return Ok(());
    }
    let lock = Lock {
        mode: rule.mode,
        until: Timestamp::from_second(now.as_second() + PROBE_LOCK_S).unwrap_or(Timestamp::MAX),
    };
    let salt = u64::from_le_bytes(random(entropy));
    match probe_locks(store, &format!("{salt:016x}"), &lock).await {
        Ok(()) => Ok(()),
        Err(ProbeError::Store(error)) => Err(error.into()),
        Err(unfit @ ProbeError::Unfit { .. }) => Err(RootError::UnfitStore {
            reason: unfit.to_string(),
        }),
    }
}

/// Writes key slot and config, and returns the config that stands.
async fn begin(
    store: &dyn Store,
    entropy: &dyn Entropy,
    new: &NewRepository<'_>,
    policy: &RetryPolicy,
) -> Result<Config, RootError> {
    let repository = RepositoryId(random(entropy));
    let secrets = Secrets::new(random(entropy), random(entropy), random(entropy));
    if let Some(password) = new.password {
        let slot = NewSlot {
            repository,
            name: SlotName(u64::from_le_bytes(random(entropy))),
            label: new.label,
            created_s: u64::try_from(new.clock.as_second()).unwrap_or(0),
            cost: new.cost,
            object_salt: random(entropy),
            password_salt: random(entropy),
        };
        let object = slot
            .wrap(password, &secrets)
            .map_err(|error| of_slot(error, &slot.name.key()))?;
        create_surely(store, policy, entropy, &slot.name.key(), &object).await?;
    }
    let object = Config::create(
        repository,
        &Default::default(),
        new.password.is_some(),
        &secrets,
        random(entropy),
        new.lock,
    );
    match create_surely(store, policy, entropy, Config::KEY, &object).await {
        Ok(()) => {}
        // A concurrent creation won, or this answer is the second one: the config decides.
        Err(error) if error.kind() == StoreErrorKind::AlreadyExists => {}
        Err(error) => return Err(error.into()),
    }
    read_config(store)
        .await?
        .ok_or_else(|| RootError::damaged(Config::KEY, "it was written, and is not there"))
}

/// Refuses a bucket in which a root stands or once stood.
async fn refuse_contents(store: &dyn Store) -> Result<(), RootError> {
    match store.head(ROOT_KEY).await {
        Ok(_) => return Err(not_empty(store, "a bkfs repository is here already")),
        Err(error) if error.is_not_found() => {}
        Err(error) => return Err(error.into()),
    }
    for prefix in CONTENTS {
        if !store.list(prefix, None, 1).await?.is_empty() {
            return Err(not_empty(
                store,
                "parts of a bkfs repository are here, but no root: see bkfs check --repair",
            ));
        }
    }
    Ok(())
}

/// Differences from this machine's memory, or from the root, that the user accepts.
#[derive(Clone, Copy, Debug, Default)]
pub struct Accepted {
    /// The root as it is found.
    pub rollback: bool,
    /// Another repository than the one that is known.
    pub replaced: bool,
    /// A config with another lock rule than the root states.
    pub lock_rule: bool,
}

/// Options for opening a repository.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// Source of salts, names and nonces.
    pub entropy: Arc<dyn Entropy>,
    /// How long requests are retried.
    pub policy: RetryPolicy,
    /// Whether they are retried as long before the store's first answer.
    pub waits: bool,
    /// Directory of this machine's memory of repositories; `None` keeps it in the process only.
    pub state_dir: Option<PathBuf>,
    /// The one key slot that is tried; `None` tries all.
    pub key: Option<SlotName>,
    /// The oldest generation of the root that is accepted.
    pub min_generation: u64,
    /// Differences from this machine's memory that the user accepts.
    pub accepted: Accepted,
    /// The repository known here; with another one no password is asked for.
    pub known: Option<Acquaintance>,
}

/// An open repository. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Repository {
    handle: RootHandle,
    lists: Lists,
    config: Arc<Config>,
}

impl Repository {
    /// Opens the repository in `store`.
    ///
    /// # Errors
    /// [`RootError::NoRepository`], [`RootError::Replaced`], [`RootError::NotEncrypted`],
    /// [`RootError::PasswordNeeded`], [`RootError::WrongPassword`] or another error of the keys;
    /// [`RootError::Rollback`], [`RootError::NotDescended`], [`RootError::Rebuilt`],
    /// [`RootError::OtherLockRule`]; [`RootError::Unopenable`] for a newer format;
    /// [`RootError::Damaged`] without config or root; store errors.
    pub async fn open(
        store: Arc<dyn Store>,
        options: OpenOptions,
        passwords: &mut dyn Passwords,
    ) -> Result<Self, RootError> {
        let patient = Arc::new(PatientReads {
            store: store.clone(),
            policy: RetryPolicy {
                stall_timeout: match options.waits {
                    true => options.policy.stall_timeout,
                    false => options.policy.stall_timeout.min(OPENING_PATIENCE),
                },
                ..options.policy
            },
            handle: None,
            entropy: options.entropy.clone(),
        });
        let choice = KeyChoice {
            named: options.key,
            state_dir: options.state_dir.clone(),
        };
        let opened = keys_of(&*patient, options.known, &choice, passwords).await?;
        let (config, keyring, slot) = opened;
        let memory: Arc<dyn GenerationMemory> = match &options.state_dir {
            Some(directory) => Arc::new(FileMemory::new(
                directory,
                &keyring.repository().to_string(),
            )),
            None => Arc::new(VolatileMemory::default()),
        };
        let parts = RootParts {
            store: store.clone(),
            keyring: keyring.clone(),
            entropy: options.entropy,
            memory,
            policy: options.policy,
            accept_rollback: options.accepted.rollback,
        };
        let handle = match RootHandle::open(parts, options.min_generation).await {
            Err(RootError::Store(error)) if error.is_not_found() => {
                return Err(RootError::damaged(
                    ROOT_KEY,
                    "it is missing (an interrupted creation is completed by: bkfs init; a lost \
                     root by: bkfs check --repair)",
                ));
            }
            Err(error) => return Err(of_older_key(&*patient, error, &keyring, slot).await?),
            Ok(handle) => handle,
        };
        let stated = lock_rule::hash(config.lock());
        if !options.accepted.lock_rule && !lock_rule::admits(&handle.current().root, stated) {
            return Err(RootError::OtherLockRule);
        }
        let reads = Arc::new(PatientReads {
            handle: Some(handle.clone()),
            ..(*patient).clone()
        });
        Ok(Self {
            handle,
            lists: Lists::new(reads, keyring),
            config: Arc::new(config),
        })
    }

    /// The root.
    pub fn handle(&self) -> &RootHandle {
        &self.handle
    }

    /// Its lists.
    pub fn lists(&self) -> &Lists {
        &self.lists
    }

    /// The config, verified.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Its keys.
    pub fn keyring(&self) -> &Keyring {
        self.handle.keyring()
    }

    /// The bucket.
    pub fn store(&self) -> &Arc<dyn Store> {
        self.handle.store()
    }
}

/// Returns config and keys of the repository in `store`, whatever the state of its root. If it is
/// not the `known` one, no password is asked for.
///
/// # Errors
/// Those of [`Repository::open`] that do not concern the root.
pub async fn open_keys(
    store: &dyn Store,
    known: Option<Acquaintance>,
    choice: &KeyChoice,
    passwords: &mut dyn Passwords,
) -> Result<(Config, Keyring), RootError> {
    let (config, keyring, _) = keys_of(store, known, choice, passwords).await?;
    Ok((config, keyring))
}

/// As [`open_keys`], with the slot that the password opened.
async fn keys_of(
    store: &dyn Store,
    known: Option<Acquaintance>,
    choice: &KeyChoice,
    passwords: &mut dyn Passwords,
) -> Result<(Config, Keyring, Option<SlotName>), RootError> {
    let Some(config) = read_config(store).await? else {
        return Err(without_config(store).await?);
    };
    require_known(&config, known)?;
    if config.is_sealed() {
        let password = passwords.password()?.ok_or(RootError::PasswordNeeded)?;
        let Unlocked { keyring, slot } = unlock(store, &config, &password, choice).await?;
        return Ok((config, keyring, Some(slot)));
    }
    if passwords.is_given() {
        return Err(RootError::NotEncrypted);
    }
    let keyring = open_keyring(&config)?;
    Ok((config, keyring, None))
}

/// Names the slot if the root is sealed under a newer master key than the slot holds. The epoch
/// that the root states is trusted as far as [`damage_of`] says.
///
/// # Errors
/// Store errors.
async fn of_older_key(
    store: &dyn Store,
    error: RootError,
    keyring: &Keyring,
    slot: Option<SlotName>,
) -> Result<RootError, RootError> {
    let (
        RootError::Unopenable {
            source: OpenError::NoKeyEpoch { epoch },
            key,
        },
        Some(slot),
    ) = (&error, slot)
    else {
        return Ok(error);
    };
    if key != ROOT_KEY {
        return Ok(error);
    }
    let damage = damage_of(store, keyring, *epoch).await?;
    Ok(damage.unwrap_or(RootError::OlderKey {
        slot,
        held: keyring.epoch(),
        needed: *epoch,
    }))
}

/// Checks by its config that the repository is the `known` one. A missing config passes.
///
/// # Errors
/// [`RootError::Replaced`]; [`RootError::Unopenable`]; store errors.
pub async fn recognize(store: &dyn Store, known: Option<Acquaintance>) -> Result<(), RootError> {
    let config = read_config(store).await?;
    config.map_or(Ok(()), |config| require_known(&config, known))
}

fn require_known(config: &Config, known: Option<Acquaintance>) -> Result<(), RootError> {
    let found = Acquaintance {
        repository: config.repository(),
        sealed: config.is_sealed(),
    };
    match known.filter(|known| *known != found) {
        Some(known) => Err(RootError::Replaced { known, found }),
        None => Ok(()),
    }
}

/// Returns the config, if there is one.
///
/// # Errors
/// [`RootError::Unopenable`]; store errors.
pub(super) async fn read_config(store: &dyn Store) -> Result<Option<Config>, RootError> {
    match store.get(Config::KEY).await {
        Ok((object, _)) => Config::open(&object)
            .map(Some)
            .map_err(|source| unopenable(Config::KEY, source)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Returns the meaning of a missing config: no repository, or a damaged one.
async fn without_config(store: &dyn Store) -> Result<RootError, RootError> {
    match store.head(ROOT_KEY).await {
        Ok(_) => Ok(RootError::damaged(
            Config::KEY,
            "it is missing, though there is a root",
        )),
        Err(error) if error.is_not_found() => Ok(RootError::NoRepository {
            location: store.describe(),
        }),
        Err(error) => Err(error.into()),
    }
}

fn open_keyring(config: &Config) -> Result<Keyring, RootError> {
    let keyring = config
        .keyring()
        .map_err(|source| unopenable(Config::KEY, source))?;
    keyring.ok_or(RootError::PasswordNeeded)
}

fn not_empty(store: &dyn Store, found: &str) -> RootError {
    RootError::NotEmpty {
        location: store.describe(),
        found: found.to_owned(),
    }
}
