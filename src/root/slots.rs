//! Key slots of a sealed repository: listing, adding, and the state that removal starts from.
//!
//! Owns the order in which slots are added. The order keeps at every moment at least one slot that
//! opens, across crashes and concurrent changes. Does not own their form (`bkfs_chunker::crypto`),
//! nor passwords.
//!
//! [`super::slot_removal`] removes slots.

use super::choice::{KeyChoice, KnownSlot};
use super::error::{RootError, of_slot, unopenable};
use super::force::{Force, RootHeader, changed_epoch, no_such_epoch, root_header};
use super::passed_over::PassedOver;
use super::refusal::Refusal;
use super::repository::read_config;
use super::retry::random;
use super::slot_error::SlotsError;
use super::slot_facts::{SLOTS_MAX, SlotFacts, facts_of};
use super::state::ROOT_KEY;
use super::unlock::{FoundSlots, Trials, damage_of, find_slots, first_slots, newest_of};
use bkfs_chunker::crypto::{
    Config, Header, Keyring, NewSlot, OpenError, Secrets, Slot, SlotCost, SlotName,
};
use bkfs_store::Store;
use bkfs_store::entropy::Entropy;
use jiff::Timestamp;
use std::sync::Arc;
use zeroize::Zeroizing;

/// A slot to be made.
#[derive(Clone, Copy)]
pub struct Making<'a> {
    /// The password that opens it.
    pub password: &'a [u8],
    /// Its label.
    pub label: &'a str,
    /// Current time of the clock.
    pub clock: Timestamp,
    /// Work of one trial of the password.
    pub cost: SlotCost,
}

/// The slots of one repository, opened with a password.
pub struct Slots {
    pub(super) store: Arc<dyn Store>,
    pub(super) entropy: Arc<dyn Entropy>,
    pub(super) config: Config,
    pub(super) keyring: Keyring,
    pub(super) choice: KeyChoice,
    password: Zeroizing<Vec<u8>>,
    pub(super) found: Vec<SlotFacts>,
    /// Slots of a rotation that is not in force yet, with their secrets.
    pub(super) pending: Vec<(KnownSlot, Secrets)>,
    /// Slots that the password opens and whose master keys differ: the keyring lacks one of theirs,
    /// and they lack one of the keyring's.
    pub(super) foreign: Vec<SlotName>,
    /// Keys of objects below `keys/` whose names are no slot names.
    strays: Vec<String>,
    passed_over: PassedOver,
    /// True if a root verified with the keyring.
    pub(super) is_confirmed: bool,
    /// The header of the root that the slots were compared with; `None` if there was no root.
    pub(super) judged_by: Option<RootHeader>,
}

/// Slots, tried.
struct Tried {
    facts: Vec<SlotFacts>,
    keyrings: Vec<(KnownSlot, Keyring)>,
}

impl Tried {
    fn of(found: &FoundSlots, trials: &mut Trials<'_>, config: &Config) -> Self {
        let mut tried = Tried {
            facts: Vec::new(),
            keyrings: Vec::new(),
        };
        for (name, slot) in &found.slots {
            let mut fact = facts_of(*name, slot);
            if let Some((keyring, statement)) = trials.open(config, *name, slot) {
                fact.is_own = true;
                fact.statement = Some(statement);
                fact.epoch = Some(keyring.epoch());
                let known = KnownSlot {
                    name: *name,
                    fingerprint: slot.fingerprint(),
                };
                tried.keyrings.push((known, keyring));
            }
            tried.facts.push(fact);
        }
        tried
    }

    /// The one in force; without a root that tells, the named one, or the newest. None if none
    /// opened.
    ///
    /// # Errors
    /// [`RootError::KeysConflict`].
    fn best(
        &self,
        header: Option<&RootHeader>,
        named: Option<SlotName>,
    ) -> Result<Option<(KnownSlot, Keyring)>, RootError> {
        let is_standing =
            |keyring: &Keyring| header.is_some() && Force::of(keyring, header) == Force::Standing;
        let mut keyrings = self.keyrings.iter();
        if let Some(standing) = keyrings.find(|(_, keyring)| is_standing(keyring)) {
            return Ok(Some(standing.clone()));
        }
        let is_named = |(known, _): &&(KnownSlot, Keyring)| Some(known.name) == named;
        if let Some(named) = self.keyrings.iter().find(is_named) {
            return Ok(Some(named.clone()));
        }
        let keyrings = self.keyrings.iter();
        let newest = newest_of(keyrings.map(|(known, keyring)| (known.name, keyring)))?;
        Ok(newest.map(|at| self.keyrings[at].clone()))
    }
}

impl Slots {
    /// Checks that the repository can have slots, before a user is asked for a password.
    ///
    /// # Errors
    /// [`RootError::NoRepository`], [`SlotsError::NotEncrypted`]; store errors.
    pub async fn expect(store: &dyn Store) -> Result<(), SlotsError> {
        config_of(store).await.map(|_| ())
    }

    /// Reads all slots and tries the password on each, within the bounds of [`super::unlock`]. The
    /// named slot comes first, then those that opened last on this machine.
    ///
    /// # Errors
    /// [`RootError::WrongPassword`], [`RootError::KeysUntried`] or a damaged slot's error if it
    /// opens none; [`RootError::OlderKey`] if the slots that it opens are older than a rotation;
    /// [`RootError::KeysConflict`]; [`SlotsError::NotEncrypted`]; store errors.
    pub async fn open(
        store: Arc<dyn Store>,
        entropy: Arc<dyn Entropy>,
        password: Zeroizing<Vec<u8>>,
        choice: KeyChoice,
    ) -> Result<Self, SlotsError> {
        let config = config_of(&*store).await?;
        let repository = config.repository();
        let header = root_header(&*store).await?;
        let epoch = header.as_ref().map(Header::stated_epoch);
        let known = choice.recall(repository).await;
        let first = first_slots(&*store, repository, choice.named, &known).await?;
        let mut found = find_slots(&*store, repository, epoch).await?;
        found.prefer(first.slots, &known);
        let strays = std::mem::take(&mut found.strays);
        let mut trials = Trials::new(&password);
        let tried = Tried::of(&found, &mut trials, &config);
        let Some((own, keyring)) = tried.best(header.as_ref(), choice.named)? else {
            return Err(trials.failure(found, first.damaged).into());
        };
        let force = Force::of(&keyring, header.as_ref());
        require_standing(&keyring, own.name, &force, &found)?;
        trials.report();
        let is_confirmed = header.is_some() && force == Force::Standing;
        if is_confirmed {
            choice.remember(repository, own).await;
        }
        let mut passed_over = found.passed_over;
        passed_over.extend(&trials.passed_over);
        let mut slots = Slots {
            store,
            entropy,
            config,
            keyring,
            choice,
            password,
            found: tried.facts,
            pending: Vec::new(),
            foreign: Vec::new(),
            strays,
            passed_over,
            is_confirmed,
            judged_by: header,
        };
        slots.judge(&tried.keyrings);
        Ok(slots)
    }

    /// Compares the slots that opened with the one in force.
    fn judge(&mut self, keyrings: &[(KnownSlot, Keyring)]) {
        let secrets = self.keyring.secrets();
        for (known, other) in keyrings {
            let other = other.secrets();
            let (is_older, is_newer) = (secrets.extend(other), other.extend(secrets));
            let mut facts = self.found.iter_mut();
            if let Some(fact) = facts.find(|fact| fact.name == known.name) {
                fact.is_in_force = is_older && is_newer;
            }
            match (is_older, is_newer) {
                (false, true) => self.pending.push((*known, other.clone())),
                (false, false) => self.foreign.push(known.name),
                (true, _) => {}
            }
        }
        self.found.sort_by_key(|slot| (slot.created_s, slot.name));
    }

    /// Returns the slots that the password was not tried on. It may open them.
    pub fn passed_over(&self) -> &PassedOver {
        &self.passed_over
    }

    /// Returns all slots that can be read, oldest first.
    pub fn list(&self) -> &[SlotFacts] {
        &self.found
    }

    /// Returns keys of objects below `keys/` whose names are no slot names; of very many not all.
    pub fn strays(&self) -> &[String] {
        &self.strays
    }

    /// Returns the slot whose name begins with `text`. A whole name is returned as it is, since the
    /// object of that name may be unreadable.
    ///
    /// # Errors
    /// [`SlotsError::Ambiguous`] unless exactly one slot fits.
    pub fn find(&self, text: &str) -> Result<SlotName, SlotsError> {
        if let Ok(name) = text.parse() {
            return Ok(name);
        }
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

    /// Returns the slots in force that the password opens.
    pub(super) fn own_in_force(&self) -> Vec<SlotName> {
        let own = self.found.iter().filter(|slot| slot.is_in_force);
        own.map(|slot| slot.name).collect()
    }

    /// The keys of the repository.
    pub fn keyring(&self) -> &Keyring {
        &self.keyring
    }

    /// Slots of a rotation that is not in force yet, with their secrets.
    pub(super) fn pending(&self) -> &[(KnownSlot, Secrets)] {
        &self.pending
    }

    /// Returns the slots that the password opens and that hold another master key of some epoch
    /// than these secrets.
    pub(super) fn foreign_to(&self, secrets: &Secrets) -> Vec<SlotName> {
        let pending = self.pending.iter();
        let others = pending.filter(|(_, other)| !secrets.extend(other));
        let others = others.map(|(known, _)| known.name);
        self.foreign.iter().copied().chain(others).collect()
    }

    /// Records on this machine that this slot opens.
    pub(super) async fn remember(&self, slot: KnownSlot) {
        self.choice.remember(self.config.repository(), slot).await;
    }

    pub(super) fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    pub(super) fn entropy(&self) -> &Arc<dyn Entropy> {
        &self.entropy
    }

    /// Adds a slot, reads it back and tries it, so that it opens when this returns. Dropped, it may
    /// leave the slot there.
    ///
    /// # Errors
    /// [`SlotsError::Full`]; [`SlotsError::Rotated`] if it would open nothing new; store errors.
    pub async fn add(&self, making: Making<'_>) -> Result<SlotName, SlotsError> {
        if self.found.len() >= SLOTS_MAX {
            return Err(SlotsError::Full);
        }
        Ok(self.add_surely(making).await?.name)
    }

    /// Same as [`Self::add`], whatever the number of slots.
    ///
    /// # Errors
    /// [`SlotsError::Rotated`], after the slot was deleted again; store errors, after which the
    /// slot may be there.
    pub(super) async fn add_surely(&self, making: Making<'_>) -> Result<KnownSlot, SlotsError> {
        let added = self.put(making, self.keyring.secrets()).await?;
        match self.require_unrotated().await {
            Ok(()) => Ok(added),
            Err(rotated @ SlotsError::Rotated) => {
                let store = &self.store;
                let key = added.name.key();
                store.delete(&key).await.map_err(RootError::from)?;
                Err(rotated)
            }
            Err(error) => Err(error),
        }
    }

    /// Checks that the root is sealed under no newer master key than the slots that were read. The
    /// epoch that a damaged root states counts only if a slot states it too.
    ///
    /// # Errors
    /// [`SlotsError::Rotated`]; store errors.
    pub(super) async fn require_unrotated(&self) -> Result<(), SlotsError> {
        let header = root_header(&*self.store).await?;
        let Force::Older { root } = Force::of(&self.keyring, header.as_ref()) else {
            return Ok(());
        };
        match damage_of(&*self.store, &self.keyring, root).await? {
            None => Err(SlotsError::Rotated),
            Some(_) => Ok(()),
        }
    }

    /// Stores a slot with these secrets, reads it back and tries it. Dropped, or after an error, it
    /// may leave the slot there.
    ///
    /// # Errors
    /// [`RootError::Local`] if it cannot be made; [`RootError::Unopenable`] or
    /// [`RootError::Damaged`] if the stored object is another one; store errors.
    pub(super) async fn put(
        &self,
        making: Making<'_>,
        secrets: &Secrets,
    ) -> Result<KnownSlot, SlotsError> {
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
        // A removed slot is only hidden; its bytes stay until its lock ends.
        let rule = self.config.lock().filter(|rule| rule.days > 0);
        let put = match rule.map(|rule| rule.lock_from(making.clock)) {
            Some(lock) => self.store.put_locked(&key, vec![object], &lock).await,
            None => self.store.put_new(&key, vec![object]).await,
        };
        put.map_err(RootError::from)?;
        let (stored, _) = self.store.get(&key).await.map_err(RootError::from)?;
        let opened = Slot::open(self.config.repository(), slot.name, &stored)
            .map_err(|source| unopenable(&key, source))?;
        opened
            .unwrap(making.password)
            .map_err(|error| of_slot(error, &key))?;
        Ok(KnownSlot {
            name: slot.name,
            fingerprint: opened.fingerprint(),
        })
    }

    /// Returns the first of these slots that the password opens and that holds exactly these
    /// secrets. All trials together take no more work than those of one password may.
    pub(super) fn first_of<'b>(
        &self,
        slots: &[&'b (SlotName, Slot)],
        secrets: &Secrets,
    ) -> Option<&'b (SlotName, Slot)> {
        let mut trials = Trials::new(&self.password);
        let mut is_of = |(name, slot): &(SlotName, Slot)| {
            let opened = trials.open(&self.config, *name, slot);
            opened.is_some_and(|(keyring, _)| {
                let other = keyring.secrets();
                other.extend(secrets) && secrets.extend(other)
            })
        };
        slots.iter().find(|slot| is_of(slot)).copied()
    }

    /// Returns the first of these slots that the password opens, whatever secrets it holds. The
    /// trials are bounded as those of [`Self::first_of`].
    pub(super) fn first_own<'b>(
        &self,
        mut slots: impl Iterator<Item = &'b (SlotName, Slot)>,
    ) -> Option<SlotName> {
        let mut trials = Trials::new(&self.password);
        let own = slots.find(|(name, slot)| trials.open(&self.config, *name, slot).is_some());
        own.map(|(name, _)| *name)
    }

    /// Returns a request for a slot like `own`, with the given password.
    pub(super) fn making_like<'b>(&'b self, own: &'b SlotFacts, clock: Timestamp) -> Making<'b> {
        Making {
            password: &self.password,
            label: &own.label,
            clock,
            cost: own.cost,
        }
    }
}

/// Checks that one of these slots of the password is still there.
///
/// # Errors
/// [`Refusal::KeyRemoved`]; store errors.
pub(super) async fn require_one_of(store: &dyn Store, own: &[SlotName]) -> Result<(), RootError> {
    for own in own {
        match store.head(&own.key()).await {
            Ok(_) => return Ok(()),
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error.into()),
        }
    }
    match own.first() {
        Some(own) => Err(Refusal::KeyRemoved(*own).into()),
        None => Ok(()),
    }
}

/// Checks that the best key that a password opens is the root's. A root whose stated epoch no slot
/// states is damaged.
fn require_standing(
    keyring: &Keyring,
    slot: SlotName,
    force: &Force,
    found: &FoundSlots,
) -> Result<(), RootError> {
    match force {
        Force::Standing | Force::Unknown => Ok(()),
        Force::Changed { root } => Err(changed_epoch(*root)),
        Force::Older { root } if !found.may_have_epoch(*root) => Err(no_such_epoch(*root)),
        Force::Older { root } => Err(RootError::OlderKey {
            slot,
            held: keyring.epoch(),
            needed: *root,
        }),
        Force::Newer { root } => Err(unopenable(
            ROOT_KEY,
            OpenError::OlderKeyEpoch {
                epoch: *root,
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
