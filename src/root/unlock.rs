//! Finds, orders and tries the key slots of a sealed repository, and unlocks it with a password.
//!
//! Owns the order in which slots are tried, the bounds of that work, and the choice among those
//! that open. Does not own the form of slots (`bkfs_chunker::crypto`), nor their changes
//! ([`super::slots`], [`super::rotation`]).
//!
//! An attacker who can write to the bucket can put objects below `keys/`. So:
//! - The slot that the user names, and those that opened on this machine ([`super::choice`]), are
//!   read by name and tried first, before a listing.
//! - Objects whose name or size is no slot's cost no work and count towards no limit. Of the others
//!   at most [`READS_MAX`] are read.
//! - Slots whose stated epoch is the root's come first, then the cheaper ones.
//! - All trials of one password together do at most [`WORK_MAX`] of Argon2's work; the untried rest
//!   is reported. Slots with equal content are tried once.
//!
//! Of several slots that open, the one is *in force* whose newest master key the root is sealed
//! under. A slot with an older one precedes a rotation; a slot with a newer one belongs to a
//! rotation that is under way or was interrupted. Two slots with different master keys of one epoch
//! are from two rotations, of which one was made: if no root decides, neither is chosen.

use super::choice::{KeyChoice, KnownSlot};
use super::error::{RootError, of_slot, unopenable};
use super::force::{Force, RootHeader, changed_epoch, no_such_epoch, root_header};
use super::listing::Pages;
use super::passed_over::PassedOver;
use bkfs_chunker::crypto::{
    Config, Header, Keyring, OpenError, RepositoryId, Slot, SlotCost, SlotError, SlotName,
    Statement, Unwrapped,
};
use bkfs_store::{ObjectInfo, Store, StoreErrorKind};
use futures::StreamExt;
use std::collections::{HashMap, HashSet};

/// Most work of all trials of one password: KiB times passes, some tens of seconds. Suffices for
/// 170 slots as bkfs makes them, or two of the most expensive.
pub(super) const WORK_MAX: u64 = 2 * SlotCost::WORK_MAX;

/// Most keys below `keys/` that are listed.
const LISTED_MAX: usize = 65_536;

/// Most bytes of slots that are read, the smallest objects first. A usual slot has 450 bytes.
const READ_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// Most objects that are read, the smallest first.
pub(super) const READS_MAX: usize = 4096;

/// Most keys of objects without a slot's name that are kept.
const STRAYS_MAX: usize = 1000;

/// Concurrent reads of slots.
const READS_AT_ONCE: usize = 8;

/// The slots of a repository.
#[derive(Debug, Default)]
pub(super) struct FoundSlots {
    /// Readable slots, in the order of trials.
    pub(super) slots: Vec<(SlotName, Slot)>,
    /// Damage of one of the others.
    pub(super) damaged: Option<RootError>,
    /// The others that are slots by their names.
    pub(super) passed_over: PassedOver,
    /// Keys of objects without a slot's name, at most [`STRAYS_MAX`].
    pub(super) strays: Vec<String>,
    /// How many exceed the bounds and were not read; unlisted ones count as one.
    unread: usize,
}

impl FoundSlots {
    /// Whether a slot states this epoch, or an unread one may. A root whose stated epoch no slot
    /// states is damaged: a rotation writes its slot before its root.
    pub(super) fn may_have_epoch(&self, epoch: u32) -> bool {
        self.unread > 0 || self.slots.iter().any(|(_, slot)| slot.may_be_of(epoch))
    }

    fn refuse(&mut self, name: SlotName, error: RootError) {
        self.passed_over.add(name, &error);
        self.damaged = Some(error);
    }

    fn leave_unread(&mut self, count: usize) {
        self.passed_over.add_unnamed(count);
        self.unread += count;
    }

    /// Moves `first` before all others.
    pub(super) fn prefer(&mut self, first: Vec<(SlotName, Slot)>, known: &[KnownSlot]) {
        let names: HashSet<SlotName> = first.iter().map(|(name, _)| *name).collect();
        let mut others = std::mem::take(&mut self.slots);
        others.retain(|(name, _)| !names.contains(name));
        // A slot that was moved to another name is still the one that opened.
        let is_known = |slot: &Slot| {
            let fingerprint = slot.fingerprint();
            known.iter().any(|known| known.fingerprint == fingerprint)
        };
        let (moved, others): (Vec<_>, Vec<_>) =
            others.into_iter().partition(|(_, slot)| is_known(slot));
        self.slots = first.into_iter().chain(moved).chain(others).collect();
    }
}

/// Returns the damage of a root that states this epoch, of which `keyring` holds no master key.
/// `None` if the root may be intact: a slot states that epoch, or an unread one may, and the root
/// does not verify under a master key that `keyring` holds.
///
/// # Errors
/// Store errors.
pub(crate) async fn damage_of(
    store: &dyn Store,
    keyring: &Keyring,
    epoch: u32,
) -> Result<Option<RootError>, RootError> {
    let header = root_header(store).await?;
    if let Force::Changed { root } = Force::of(keyring, header.as_ref()) {
        return Ok(Some(changed_epoch(root)));
    }
    let found = find_slots(store, keyring.repository(), Some(epoch)).await?;
    Ok((!found.may_have_epoch(epoch)).then(|| no_such_epoch(epoch)))
}

/// Slots that are tried before all others.
#[derive(Debug, Default)]
pub(super) struct First {
    /// The named slot, or the unchanged ones that opened on this machine.
    pub(super) slots: Vec<(SlotName, Slot)>,
    /// Damage of one that opened on this machine, if an object has its name.
    pub(super) damaged: Option<RootError>,
}

/// Returns the slots that are tried before all others: the named one, or the unchanged ones that
/// opened on this machine.
///
/// # Errors
/// [`RootError::NoSuchKey`] and damage of the named one; store errors.
pub(super) async fn first_slots(
    store: &dyn Store,
    repository: RepositoryId,
    named: Option<SlotName>,
    known: &[KnownSlot],
) -> Result<First, RootError> {
    let mut first = First::default();
    if let Some(name) = named {
        let slot = match read_slot(store, repository, name).await? {
            None => return Err(RootError::NoSuchKey { slot: name }),
            Some(Err(source)) => return Err(unopenable(&name.key(), source)),
            Some(Ok(slot)) => slot,
        };
        first.slots.push((name, slot));
        return Ok(first);
    }
    for known in known {
        let key = known.name.key();
        let damaged = match read_slot(store, repository, known.name).await {
            Ok(Some(Ok(slot))) if slot.fingerprint() == known.fingerprint => {
                first.slots.push((known.name, slot));
                continue;
            }
            // Slots are created and deleted, never rewritten.
            Ok(Some(Ok(_))) => RootError::damaged(&key, "it holds something else than it did"),
            Ok(Some(Err(source))) => unopenable(&key, source),
            Err(error) if error.is_of_one_object() => error,
            // It was removed, or the full list shows the error.
            Ok(None) | Err(_) => continue,
        };
        first.damaged.get_or_insert(damaged);
    }
    Ok(first)
}

/// Reads the object under a slot's key, and decodes it; `None` if there is no object.
///
/// # Errors
/// Store errors.
pub(super) async fn read_slot(
    store: &dyn Store,
    repository: RepositoryId,
    name: SlotName,
) -> Result<Option<Result<Slot, OpenError>>, RootError> {
    match store.get_tail(&name.key(), Slot::OBJECT_LEN_MAX).await {
        Ok((object, length)) if length == object.len() as u64 => {
            Ok(Some(Slot::open(repository, name, &object)))
        }
        Ok(_) => Ok(Some(Err(NO_SLOT))),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) if error.kind() == StoreErrorKind::OutOfRange => Ok(Some(Err(NO_SLOT))),
        Err(error) => Err(error.into()),
    }
}

/// Returns the readable slots of `repository`, ordered by the root's stated `epoch`.
///
/// # Errors
/// Store errors.
pub(super) async fn find_slots(
    store: &dyn Store,
    repository: RepositoryId,
    epoch: Option<u32>,
) -> Result<FoundSlots, RootError> {
    let mut found = FoundSlots::default();
    let candidates = candidates(store, &mut found).await?;
    let read = |info: ObjectInfo| async move {
        let name = SlotName::from_key(&info.key)?;
        Some((name, read_slot(store, repository, name).await))
    };
    let mut reads = futures::stream::iter(candidates.into_iter().map(read)).buffered(READS_AT_ONCE);
    while let Some(read) = reads.next().await {
        let Some((name, read)) = read else {
            continue;
        };
        match read {
            Ok(Some(Ok(slot))) => found.slots.push((name, slot)),
            // Removed since the listing; or the remains of an overtaken creation.
            Ok(None | Some(Err(OpenError::WrongRepository { .. }))) => {}
            Ok(Some(Err(source))) => found.refuse(name, unopenable(&name.key(), source)),
            // A slot that the store refuses to return does not block the others.
            Err(RootError::Store(error))
                if matches!(
                    error.kind(),
                    StoreErrorKind::Invalid | StoreErrorKind::Denied
                ) =>
            {
                found.refuse(name, error.into());
            }
            Err(error) => return Err(error),
        }
    }
    found.slots.sort_by_key(|(name, slot)| {
        // If the root states none, no slot has another one: cheaper slots come first.
        let states_other = |root| slot.epoch().is_some_and(|stated| stated != root);
        let is_other = epoch.is_some_and(states_other);
        (is_other, slot.cost().work(), *name)
    });
    Ok(found)
}

const NO_SLOT: OpenError = OpenError::Damaged {
    what: "its size is not that of a key slot",
};

/// Lists the objects below `keys/` with a slot's name and size, the smallest first.
async fn candidates(
    store: &dyn Store,
    found: &mut FoundSlots,
) -> Result<Vec<ObjectInfo>, RootError> {
    let mut candidates = Vec::new();
    let mut pages = Pages::new(SlotName::PREFIX);
    let mut listed = 0;
    while let Some(page) = pages.next(store).await? {
        listed += page.len();
        for info in page {
            let Some(name) = SlotName::from_key(&info.key) else {
                if found.strays.len() < STRAYS_MAX {
                    found.strays.push(info.key);
                }
                continue;
            };
            match (Slot::OBJECT_LEN_MIN..=Slot::OBJECT_LEN_MAX).contains(&info.size) {
                true => candidates.push(info),
                false => found.refuse(name, unopenable(&info.key, NO_SLOT)),
            }
        }
        if listed >= LISTED_MAX && !pages.is_over() {
            tracing::warn!(
                "more than {LISTED_MAX} objects lie below keys/: the others are not looked at"
            );
            found.leave_unread(1);
            break;
        }
    }
    candidates.sort_by_key(|info| info.size);
    let total = candidates.iter().scan(0, |total, info| {
        *total += info.size;
        Some(*total)
    });
    let kept = total.take_while(|total| *total <= READ_BYTES_MAX).count();
    let kept = kept.min(READS_MAX);
    found.leave_unread(candidates.len() - kept);
    candidates.truncate(kept);
    Ok(candidates)
}

/// Trials of one password on slots.
pub(super) struct Trials<'a> {
    password: &'a [u8],
    /// Work that is left.
    work: u64,
    /// Results by the slot's fingerprint; `None` for slots that did not open.
    tried: HashMap<[u8; 32], Option<Unwrapped>>,
    untried: usize,
    /// The slots that it was not tried on, or that hold no keys.
    pub(super) passed_over: PassedOver,
    is_wrong: bool,
    /// Error of a slot that the password fits but that holds no keys, or that this machine cannot
    /// try.
    broken: Option<RootError>,
    /// Damage of a slot, or of the config by a slot's secrets.
    damaged: Option<RootError>,
    contradicted: Option<RootError>,
}

impl<'a> Trials<'a> {
    /// No trials yet, of this password.
    pub(super) fn new(password: &'a [u8]) -> Self {
        Self::within(password, WORK_MAX)
    }

    /// Same, with another bound of the work.
    pub(super) fn within(password: &'a [u8], work: u64) -> Self {
        Self {
            password,
            work,
            tried: HashMap::new(),
            untried: 0,
            passed_over: PassedOver::default(),
            is_wrong: false,
            broken: None,
            damaged: None,
            contradicted: None,
        }
    }

    /// Tries the password on a slot. Returns its keyring, and whether its statement was changed;
    /// `None` if it does not open, or would exceed the work. Takes as long as the slot's cost says.
    pub(super) fn open(
        &mut self,
        config: &Config,
        name: SlotName,
        slot: &Slot,
    ) -> Option<(Keyring, Statement)> {
        let Unwrapped {
            secrets, statement, ..
        } = self.unwrap(name, slot)?;
        match config.unlock(secrets) {
            Ok(keyring) => Some((keyring, statement)),
            Err(source) => {
                let error = unopenable(Config::KEY, source);
                self.passed_over.add(name, &error);
                self.contradicted = Some(error);
                None
            }
        }
    }

    fn unwrap(&mut self, name: SlotName, slot: &Slot) -> Option<Unwrapped> {
        let fingerprint = slot.fingerprint();
        if let Some(tried) = self.tried.get(&fingerprint) {
            return tried.as_ref().map(|like| slot.unwrapped_like(like));
        }
        let work = slot.cost().work();
        let is_tried = slot.cost().is_reasonable() && !self.password.is_empty();
        if is_tried && work > self.work {
            self.untried += 1;
            self.passed_over.add(name, "trying it would cost too much");
            return None;
        }
        if is_tried {
            self.work -= work;
        }
        match slot.unwrap_judged(self.password) {
            Ok(unwrapped) => {
                self.tried.insert(fingerprint, Some(unwrapped.clone()));
                return Some(unwrapped);
            }
            Err(SlotError::WrongPassword | SlotError::EmptyPassword) => self.is_wrong = true,
            Err(error @ SlotError::UnreasonableCost(_)) => {
                let error = RootError::damaged(&name.key(), error);
                self.passed_over.add(name, &error);
                self.damaged = Some(error);
            }
            Err(error) => {
                let error = of_slot(error, &name.key());
                self.passed_over.add(name, &error);
                self.broken = Some(error);
            }
        }
        self.tried.insert(fingerprint, None);
        None
    }

    /// Logs what was skipped, after another slot opened.
    pub(super) fn report(&self) {
        let wrong = [&self.broken, &self.damaged, &self.contradicted];
        if let Some(error) = wrong.into_iter().flatten().next() {
            tracing::warn!(%error, "a key slot cannot be used");
        }
        if self.untried > 0 {
            let untried = self.untried;
            tracing::warn!("{untried} keys were not tried: all of them would cost too much");
        }
    }

    /// Returns the error if no slot opened. `own` is the damage of a slot that opened on this
    /// machine.
    pub(super) fn failure(self, found: FoundSlots, own: Option<RootError>) -> RootError {
        let damaged = self.damaged.or(found.damaged);
        if let Some(error) = self.contradicted.or(self.broken) {
            return error;
        }
        let untried = self.untried + found.unread;
        if let Some(error) = own {
            let reason = match untried {
                0 => error.to_string(),
                _ => format!("{error}; {untried} other keys were not tried"),
            };
            return RootError::OwnKeyDamaged { reason };
        }
        if untried > 0 {
            return RootError::KeysUntried { untried };
        }
        match damaged {
            Some(error) if self.is_wrong => RootError::WrongPasswordOrDamaged {
                reason: error.to_string(),
            },
            Some(error) => error,
            None if self.is_wrong => RootError::WrongPassword,
            None => RootError::damaged(
                SlotName::PREFIX,
                "no key slot of this repository is left: nothing can open it",
            ),
        }
    }
}

/// Keys that a password opened.
pub(super) struct Unlocked {
    /// The keys.
    pub(super) keyring: Keyring,
    /// The slot that holds them.
    pub(super) slot: SlotName,
}

/// Trials of a password until a slot in force opens.
struct Search<'a> {
    config: &'a Config,
    header: Option<RootHeader>,
    trials: Trials<'a>,
    /// Slots that opened and are not known to be in force.
    opened: Vec<(KnownSlot, Keyring)>,
}

impl Search<'_> {
    /// Tries slots, and returns the first one in force.
    fn over(&mut self, slots: &[(SlotName, Slot)]) -> Option<(KnownSlot, Keyring)> {
        for (name, slot) in slots {
            let Some((keyring, statement)) = self.trials.open(self.config, *name, slot) else {
                continue;
            };
            if statement == Statement::Changed {
                tracing::warn!(slot = %name,
                    "the label, time, epoch or name of this key was changed");
            }
            let known = KnownSlot {
                name: *name,
                fingerprint: slot.fingerprint(),
            };
            let header = self.header.as_ref();
            if header.is_some() && Force::of(&keyring, header) == Force::Standing {
                return Some((known, keyring));
            }
            self.opened.push((known, keyring));
        }
        None
    }

    /// Returns the slot with the newest master key among those that opened and are not in force.
    ///
    /// # Errors
    /// [`RootError::KeysConflict`] if another one holds a master key that this one does not hold.
    fn newest(&mut self) -> Result<Option<(KnownSlot, Keyring)>, RootError> {
        let opened = std::mem::take(&mut self.opened);
        let keyrings = opened.iter().map(|(known, keyring)| (known.name, keyring));
        let Some(at) = newest_of(keyrings)? else {
            return Ok(None);
        };
        Ok(opened.into_iter().nth(at))
    }
}

/// Returns the position of the newest master key among `keyrings`, the first of several.
///
/// # Errors
/// [`RootError::KeysConflict`] if another one holds a master key that this one does not hold.
pub(super) fn newest_of<'a>(
    keyrings: impl Iterator<Item = (SlotName, &'a Keyring)> + Clone,
) -> Result<Option<usize>, RootError> {
    let newest = keyrings
        .clone()
        .enumerate()
        .max_by_key(|(at, (_, keyring))| (keyring.epoch(), std::cmp::Reverse(*at)));
    let Some((at, (slot, keyring))) = newest else {
        return Ok(None);
    };
    let mut keyrings = keyrings;
    match keyrings.find(|(_, other)| !keyring.secrets().extend(other.secrets())) {
        Some((other, _)) => Err(RootError::KeysConflict {
            first: slot.min(other),
            second: slot.max(other),
        }),
        None => Ok(Some(at)),
    }
}

/// Returns the keyring of a sealed repository: of the slots that open with `password` the one in
/// force, or without one the slot with the newest master key. Records a slot in force on this
/// machine. Dropped, it has changed nothing else.
///
/// # Errors
/// [`RootError::WrongPassword`], [`RootError::KeysUntried`], [`RootError::KeysConflict`]; a slot or
/// the config is damaged; store errors.
pub(super) async fn unlock(
    store: &dyn Store,
    config: &Config,
    password: &[u8],
    choice: &KeyChoice,
) -> Result<Unlocked, RootError> {
    let header = match root_header(store).await {
        // Keys open whatever the state of the root.
        Err(error) if error.is_of_one_object() => None,
        read => read?,
    };
    let repository = config.repository();
    let epoch = header.as_ref().map(Header::stated_epoch);
    let known = choice.recall(repository).await;
    let first = first_slots(store, repository, choice.named, &known).await?;
    let mut search = Search {
        config,
        header,
        trials: Trials::new(password),
        opened: Vec::new(),
    };
    let mut in_force = search.over(&first.slots);
    let mut found = FoundSlots::default();
    if in_force.is_none() && choice.named.is_none() {
        found = find_slots(store, repository, epoch).await?;
        found.prefer(first.slots, &known);
        search.opened.clear();
        in_force = search.over(&found.slots);
    }
    let opened = match in_force {
        Some((known, keyring)) => {
            choice.remember(repository, known).await;
            Some((known, keyring))
        }
        None => search.newest()?,
    };
    match opened {
        Some((known, keyring)) => Ok(Unlocked {
            keyring,
            slot: known.name,
        }),
        None => Err(search.trials.failure(found, first.damaged)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An attacker damages the key that this machine knows, and adds keys that cost much.
    #[test]
    fn a_damaged_own_key_does_not_hide_keys_that_were_not_tried() {
        let own = RootError::damaged("keys/own", "cut short");
        let found = FoundSlots {
            unread: 2,
            ..FoundSlots::default()
        };
        let told = Trials::new(b"password").failure(found, Some(own));
        assert!(matches!(told, RootError::OwnKeyDamaged { .. }), "{told}");
        let told = told.to_string();
        assert!(told.contains("keys/own"), "{told}");
        assert!(told.contains("2 other keys were not tried"), "{told}");
    }
}
