//! The key slots of a sealed repository: which there are, adding one, removing one.
//!
//! Owns the order in which slots come and go, so that at no moment, whatever crashes and whoever else changes slots, a repository is without one that opens. Does not own
//! their form (`bkfs_chunker::seal`), nor passwords.
//!
//! Slots are created under names that are never used again, and deleted; nothing orders two who do that at once. Whoever removes a slot holds the password of
//! another, its *own*, and goes by four steps: a copy of its own slot under a new name; the deletion; a look whether its own slot is still there; and only if so, the deletion of the copy.
//! Of several who remove each other's slots at once, the one whose deletion came last saw its own slot after all deletions, or keeps its copy.
//!
//! Only a slot in force ([`super::unlock`]) counts as an own one. A slot of a newer epoch than the
//! root's is never removed here: a rotation that is under way may be about to rely on it
//! ([`super::rotation`]).

use super::error::RootError;
use super::repository::{of_slot, read_config, unopenable};
use super::retry::random;
use super::state::ROOT_KEY;
use super::unlock::{Force, Trials, find_slots, root_header};
use bkfs_chunker::entropy::Entropy;
use bkfs_chunker::seal::{
    Config, Header, Keyring, NewSlot, OpenError, Secrets, Slot, SlotCost, SlotName, Statement,
};
use bkfs_chunker::store::Store;
use jiff::Timestamp;
use std::sync::Arc;
use zeroize::Zeroizing;

/// Most slots that there may be when one is added; a person makes each.
const SLOTS_MAX: usize = 64;

/// A slot as people know it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct SlotFacts {
    /// Its name.
    pub name: SlotName,
    /// What it is called.
    pub label: String,
    /// When it was made, in seconds since 1970, by the clock of whoever made it.
    pub created_s: u64,
    /// What a try of a password costs.
    pub cost: SlotCost,
    /// True if the password that was given opens it.
    pub is_own: bool,
    /// True if it is an own one, and the root is sealed under the newest master key that it holds.
    pub is_in_force: bool,
    /// The epoch of that master key: of an own slot as it is, of another as it states, if it does.
    pub epoch: Option<u32>,
    /// Whether label and time are those that it was made with; none if the password cannot tell.
    pub statement: Option<Statement>,
}

/// A slot to be made.
#[derive(Clone, Copy)]
pub struct Making<'a> {
    /// Opens it.
    pub password: &'a [u8],
    /// What it is called.
    pub label: &'a str,
    /// The time on the clock.
    pub clock: Timestamp,
    /// What a try of the password costs.
    pub cost: SlotCost,
}

/// Why slots were not changed.
#[derive(Debug, thiserror::Error)]
pub enum SlotsError {
    /// The store, the config or a slot.
    #[error(transparent)]
    Root(#[from] RootError),
    /// There are no slots to change.
    #[error("this repository is not encrypted: it has no keys")]
    NotEncrypted,
    /// No slot, or more than one, is meant.
    #[error("{count} keys begin with {text:?}")]
    Ambiguous {
        /// What was asked for.
        text: String,
        /// How many it fits.
        count: usize,
    },
    /// Its removal would leave nobody who can open the repository, as far as this can be known.
    #[error("{slot} is the only key that the given password opens: it is not removed")]
    Own {
        /// Which.
        slot: SlotName,
    },
    /// As many as there may be.
    #[error("there are {} keys already; remove one first", SLOTS_MAX)]
    Full,
    /// A rotation is under way that relies on it, or was interrupted.
    #[error(
        "key {slot} is of a newer epoch than the root: a rotation of the master key is under way, or was interrupted"
    )]
    Unfinished {
        /// Which.
        slot: SlotName,
    },
    /// The master key was rotated since the slots were read.
    #[error("the master key was rotated meanwhile: nothing was changed")]
    Rotated,
    /// A rotation would drop keys of other passwords.
    #[error(
        "other passwords open the repository, and would open nothing new: {}",
        shown(keys)
    )]
    Others {
        /// Those keys.
        keys: Vec<SlotFacts>,
    },
    /// There are as many epochs as there may be.
    #[error(
        "there were {} master keys already: copy to a new repository (bkfs copy)",
        Secrets::EPOCHS_MAX
    )]
    NoMoreEpochs,
}

/// Slots, by name and label.
fn shown(keys: &[SlotFacts]) -> String {
    let shown = keys
        .iter()
        .map(|key| format!("{} ({})", key.name, key.label));
    shown.collect::<Vec<_>>().join(", ")
}

/// The slots of one repository, opened with a password.
pub struct Slots {
    store: Arc<dyn Store>,
    entropy: Arc<dyn Entropy>,
    config: Config,
    keyring: Keyring,
    password: Zeroizing<Vec<u8>>,
    found: Vec<SlotFacts>,
    /// Slots of a rotation that did not take hold yet, and what they hold.
    pending: Vec<(SlotName, Secrets)>,
}

impl Slots {
    /// Says whether there can be slots, before anybody is asked for a password.
    ///
    /// # Errors
    /// [`RootError::NoRepository`], [`SlotsError::NotEncrypted`].
    pub async fn expect(store: &dyn Store) -> Result<(), SlotsError> {
        config_of(store).await.map(|_| ())
    }

    /// Reads all slots and tries the password on each, within the bounds of [`super::unlock`].
    ///
    /// # Errors
    /// [`RootError::WrongPassword`] and its kin if it opens none; [`RootError::OlderKey`] if what it
    /// opens is of before a rotation; [`SlotsError::NotEncrypted`].
    pub async fn open(
        store: Arc<dyn Store>,
        entropy: Arc<dyn Entropy>,
        password: Zeroizing<Vec<u8>>,
    ) -> Result<Self, SlotsError> {
        let config = config_of(&*store).await?;
        let header = root_header(&*store).await?;
        let epoch = header.as_ref().map(Header::stated_epoch);
        let found = find_slots(&*store, config.repository(), epoch).await?;
        let mut trials = Trials::new(&password);
        let mut facts = Vec::new();
        let mut keyrings: Vec<(SlotName, Keyring)> = Vec::new();
        for (name, slot) in &found.slots {
            let opened = trials.open(&config, *name, slot);
            let mut fact = facts_of(*name, slot);
            if let Some((keyring, statement)) = opened {
                fact.is_own = true;
                fact.statement = Some(statement);
                fact.epoch = Some(keyring.epoch());
                keyrings.push((*name, keyring));
            }
            facts.push(fact);
        }
        let standing = |keyring: &Keyring| {
            let is_standing = Force::of(keyring, header.as_ref()) == Force::Standing;
            (is_standing, keyring.epoch())
        };
        let best = keyrings.iter().max_by_key(|(_, keyring)| standing(keyring));
        let Some((slot, keyring)) = best.cloned() else {
            return Err(trials.failure(found).into());
        };
        require_standing(&keyring, slot, Force::of(&keyring, header.as_ref()))?;
        trials.report();
        let secrets = keyring.secrets();
        let mut pending = Vec::new();
        for (name, other) in &keyrings {
            let other = other.secrets();
            let is_same = other.extend(secrets) && secrets.extend(other);
            if let Some(fact) = facts.iter_mut().find(|fact| fact.name == *name) {
                fact.is_in_force = is_same;
            }
            if other.extend(secrets) && !is_same {
                pending.push((*name, other.clone()));
            }
        }
        facts.sort_by_key(|slot| (slot.created_s, slot.name));
        Ok(Slots {
            store,
            entropy,
            config,
            keyring,
            password,
            found: facts,
            pending,
        })
    }

    /// All that can be read, oldest first.
    pub fn list(&self) -> &[SlotFacts] {
        &self.found
    }

    /// The slot whose name begins so.
    pub fn find(&self, text: &str) -> Result<SlotName, SlotsError> {
        let fits = |slot: &&SlotFacts| slot.name.to_string().starts_with(text);
        let fitting: Vec<&SlotFacts> = self.found.iter().filter(fits).collect();
        match fitting.as_slice() {
            [slot] if !text.is_empty() => Ok(slot.name),
            _ => Err(SlotsError::Ambiguous {
                text: text.to_owned(),
                count: fitting.len(),
            }),
        }
    }

    /// The keys of the repository.
    pub fn keyring(&self) -> &Keyring {
        &self.keyring
    }

    /// Slots of a rotation that did not take hold yet, and what they hold.
    pub(super) fn pending(&self) -> &[(SlotName, Secrets)] {
        &self.pending
    }

    pub(super) fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    pub(super) fn entropy(&self) -> &Arc<dyn Entropy> {
        &self.entropy
    }

    /// Adds a slot. When this returns it opens: it was read back and tried.
    ///
    /// # Errors
    /// [`SlotsError::Full`]; [`SlotsError::Rotated`] if it would open nothing new.
    pub async fn add(&self, making: Making<'_>) -> Result<SlotName, SlotsError> {
        if self.found.len() >= SLOTS_MAX {
            return Err(SlotsError::Full);
        }
        let name = self.put(making, self.keyring.secrets()).await?;
        let header = root_header(&*self.store).await?;
        if let Force::Older { .. } = Force::of(&self.keyring, header.as_ref()) {
            let store = &self.store;
            store.delete(&name.key()).await.map_err(RootError::from)?;
            return Err(SlotsError::Rotated);
        }
        Ok(name)
    }

    /// Stores a slot with these secrets, reads it back and tries it. A future that is dropped, and
    /// an error, may leave it there.
    pub(super) async fn put(
        &self,
        making: Making<'_>,
        secrets: &Secrets,
    ) -> Result<SlotName, SlotsError> {
        let slot = NewSlot {
            repository: self.config.repository(),
            name: SlotName(u64::from_le_bytes(random(&*self.entropy))),
            label: making.label,
            created_s: u64::try_from(making.clock.as_second()).unwrap_or(0),
            cost: making.cost,
            object_salt: random(&*self.entropy),
            password_salt: random(&*self.entropy),
        };
        let key = slot.name.key();
        let object = slot
            .wrap(making.password, secrets)
            .map_err(|error| of_slot(error, &key))?;
        // A slot that is removed is hidden, and its bytes stay until its lock ends.
        let rule = self.config.lock().filter(|rule| rule.days > 0);
        let put = match rule.map(|rule| rule.lock_from(making.clock)) {
            Some(lock) => self.store.put_locked(&key, vec![object], &lock).await,
            None => self.store.put_new(&key, vec![object]).await,
        };
        put.map_err(RootError::from)?;
        let (stored, _) = self.store.get(&key).await.map_err(RootError::from)?;
        Slot::open(self.config.repository(), slot.name, &stored)
            .map_err(|source| unopenable(&key, source))?
            .unwrap(making.password)
            .map_err(|error| of_slot(error, &key))?;
        Ok(slot.name)
    }

    /// What makes a slot that the given password opens, like `own`.
    pub(super) fn making_like<'b>(&'b self, own: &'b SlotFacts, clock: Timestamp) -> Making<'b> {
        Making {
            password: &self.password,
            label: &own.label,
            clock,
            cost: own.cost,
        }
    }

    /// Removes a slot other than the one in force that the password opens.
    ///
    /// # Errors
    /// [`SlotsError::Own`] if the password opens no other one in force; [`SlotsError::Unfinished`].
    pub async fn remove(&self, slot: SlotName, clock: Timestamp) -> Result<(), SlotsError> {
        let is_newer = |epoch: u32| epoch > self.keyring.epoch();
        let removed = self.found.iter().find(|facts| facts.name == slot);
        if removed.and_then(|facts| facts.epoch).is_some_and(is_newer) {
            return Err(SlotsError::Unfinished { slot });
        }
        let own = self
            .found
            .iter()
            .find(|facts| facts.is_in_force && facts.name != slot)
            .ok_or(SlotsError::Own { slot })?;
        let making = self.making_like(own, clock);
        self.remove_beside(slot, own.name, making).await
    }

    /// Puts a new slot in the place of all that the password opens: afterwards it opens none. Returns the new one.
    ///
    /// # Errors
    /// [`SlotsError::Unfinished`]; as [`Self::add`].
    pub async fn change(&self, making: Making<'_>) -> Result<SlotName, SlotsError> {
        if let Some((slot, _)) = self.pending.first() {
            return Err(SlotsError::Unfinished { slot: *slot });
        }
        let new = self.add(making).await?;
        for old in self.found.iter().filter(|slot| slot.is_own) {
            self.remove_beside(old.name, new, making).await?;
        }
        Ok(new)
    }

    /// The four steps of the module's head. `making` makes a copy of `own`.
    async fn remove_beside(
        &self,
        slot: SlotName,
        own: SlotName,
        making: Making<'_>,
    ) -> Result<(), SlotsError> {
        let copy = self.put(making, self.keyring.secrets()).await?;
        let store = &self.store;
        store.delete(&slot.key()).await.map_err(RootError::from)?;
        match store.head(&own.key()).await {
            Ok(_) => store.delete(&copy.key()).await.map_err(RootError::from)?,
            Err(error) if error.is_not_found() => {
                tracing::warn!(%own, %copy, "this key was removed meanwhile; its copy stays");
            }
            Err(error) => return Err(RootError::from(error).into()),
        }
        Ok(())
    }
}

/// What a slot states of itself.
fn facts_of(name: SlotName, slot: &Slot) -> SlotFacts {
    SlotFacts {
        name,
        label: slot.label().to_owned(),
        created_s: slot.created_s(),
        cost: slot.cost(),
        is_own: false,
        is_in_force: false,
        epoch: slot.epoch(),
        statement: None,
    }
}

/// That the best key that a password opens is the root's.
fn require_standing(keyring: &Keyring, slot: SlotName, force: Force) -> Result<(), RootError> {
    match force {
        Force::Standing | Force::Unknown => Ok(()),
        Force::Older { root } => Err(RootError::OlderKey {
            slot,
            held: keyring.epoch(),
            needed: root,
        }),
        Force::Newer { root } => Err(unopenable(
            ROOT_KEY,
            OpenError::OlderKeyEpoch {
                epoch: root,
                newest: keyring.epoch(),
            },
        )),
    }
}

/// The config of a sealed repository.
async fn config_of(store: &dyn Store) -> Result<Config, SlotsError> {
    let config = read_config(store).await?;
    let config = config.ok_or_else(|| RootError::NoRepository {
        location: store.describe(),
    })?;
    match config.is_sealed() {
        true => Ok(config),
        false => Err(SlotsError::NotEncrypted),
    }
}
