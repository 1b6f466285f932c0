//! What a password opens of a sealed repository: its key slots, found, ordered and tried.
//!
//! Owns the order in which slots are tried, the bounds of that work, and the choice among those
//! that open. Does not own the form of slots (`bkfs_chunker::seal`), nor their changes
//! ([`super::slots`], [`super::rotation`]).
//!
//! Whoever can write to the bucket can put objects below `keys/`. So:
//! - objects that are no slots are passed over without work, and count towards no limit;
//! - slots are tried in the order of what they cost, those first whose stated epoch is the root's;
//! - all trials of one password together do at most [`WORK_MAX`] of Argon2's work; what is left
//!   untried then is said.
//!
//! Of several slots that open, the one is *in force* whose newest master key the root is sealed
//! under. A slot with an older one is of before a rotation; a slot with a newer one belongs to a
//! rotation that is under way or was interrupted.

use super::error::RootError;
use super::repository::{of_slot, unopenable};
use super::state::ROOT_KEY;
use bkfs_chunker::seal::{
    Class, Config, HEADER_LEN, Header, Keyring, OpenError, RepositoryId, Slot, SlotCost, SlotError,
    SlotName, Statement, Unwrapped,
};
use bkfs_chunker::store::{ObjectInfo, Store, StoreErrorKind};
use futures::StreamExt;
use std::collections::HashSet;

/// The work that all trials of one password may cost together: KiB times passes, some tens of
/// seconds. 170 slots as bkfs makes them, or two of the dearest.
pub(super) const WORK_MAX: u64 = 2 * SlotCost::WORK_MAX;

/// Keys below `keys/` that are listed at most.
const LISTED_MAX: usize = 65_536;

/// Keys that are asked for at once.
const PAGE_KEYS: usize = 1000;

/// Bytes of slots that are read at most, the smallest objects first. A usual slot has 450 bytes.
const READ_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// Slots that are read at the same time.
const READS_AT_ONCE: usize = 8;

/// The 128 bytes that the root begins with.
pub(super) type RootHeader = [u8; HEADER_LEN];

/// The slots of a repository.
#[derive(Debug, Default)]
pub(super) struct FoundSlots {
    /// Those that can be read, in the order in which they are to be tried.
    pub(super) slots: Vec<(SlotName, Slot)>,
    /// Why one of the others cannot be read.
    pub(super) damaged: Option<RootError>,
    /// How many were not read, since there are too many.
    unread: usize,
}

/// The header of the root that stands; none if there is no root, or less than a header.
///
/// # Errors
/// Store errors.
pub(super) async fn root_header(store: &dyn Store) -> Result<Option<RootHeader>, RootError> {
    match store.get_range(ROOT_KEY, 0..HEADER_LEN as u64).await {
        Ok(bytes) => Ok(bytes[..].try_into().ok()),
        Err(error) if error.is_not_found() || error.kind() == StoreErrorKind::OutOfRange => {
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}

/// How a key stands to the root.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Force {
    /// The root is sealed under its newest master key, or there is no root to compare it with.
    Standing,
    /// The root states a newer master key than the key holds.
    Older {
        /// The epoch that the root states.
        root: u32,
    },
    /// The root is sealed under an older master key than the newest one of the key.
    Newer {
        /// The epoch of the root.
        root: u32,
    },
    /// The header of the root does not verify.
    Unknown,
}

impl Force {
    /// How `keyring` stands to the root with this header.
    pub(super) fn of(keyring: &Keyring, header: Option<&RootHeader>) -> Self {
        let Some(header) = header else {
            return Force::Standing;
        };
        match keyring.object_opener(Class::Root, ROOT_KEY, header) {
            Ok(_) => Force::Standing,
            Err(OpenError::NoKeyEpoch { epoch }) => Force::Older { root: epoch },
            Err(OpenError::OlderKeyEpoch { epoch, .. }) => Force::Newer { root: epoch },
            Err(_) => Force::Unknown,
        }
    }
}

/// The slots of `repository` that can be read; `epoch` is what the root states, and orders them.
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
        let length = Slot::OBJECT_LEN_MAX;
        (store.get_tail(&info.key, length).await, info.key)
    };
    let mut reads = futures::stream::iter(candidates.into_iter().map(read)).buffered(READS_AT_ONCE);
    while let Some((read, key)) = reads.next().await {
        let Some(name) = SlotName::from_key(&key) else {
            continue;
        };
        let opened = match read {
            Ok((object, length)) if length == object.len() as u64 => {
                Slot::open(repository, name, &object)
            }
            Ok(_) => Err(NO_SLOT),
            // Removed since it was listed.
            Err(error) if error.is_not_found() => continue,
            Err(error) if error.kind() == StoreErrorKind::OutOfRange => Err(NO_SLOT),
            // One that the store refuses to give keeps no other one from opening.
            Err(error)
                if matches!(
                    error.kind(),
                    StoreErrorKind::Invalid | StoreErrorKind::Denied
                ) =>
            {
                found.damaged = Some(error.into());
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        match opened {
            Ok(slot) => found.slots.push((name, slot)),
            // Left by a creation that another one overtook.
            Err(OpenError::WrongRepository { .. }) => {}
            Err(source) => found.damaged = Some(unopenable(&key, source)),
        }
    }
    found.slots.sort_by_key(|(name, slot)| {
        // Where the root states none, no slot is of another: a dear one stands behind a cheap one.
        let states_other = |root| slot.epoch().is_some_and(|stated| stated != root);
        let is_other = epoch.is_some_and(states_other);
        (is_other, slot.cost().work(), *name)
    });
    Ok(found)
}

const NO_SLOT: OpenError = OpenError::Damaged {
    what: "its size is not that of a key slot",
};

/// What is listed below `keys/` and may be a slot by its name and size, the smallest first.
async fn candidates(
    store: &dyn Store,
    found: &mut FoundSlots,
) -> Result<Vec<ObjectInfo>, RootError> {
    let mut candidates = Vec::new();
    let mut after: Option<String> = None;
    let mut listed = 0;
    loop {
        let page = (store.list(SlotName::PREFIX, after.as_deref(), PAGE_KEYS)).await?;
        let is_last = page.len() < PAGE_KEYS;
        listed += page.len();
        after = page.last().map(|info| info.key.clone());
        for info in page {
            if SlotName::from_key(&info.key).is_none() {
                continue;
            }
            match info.size {
                0 => found.damaged = Some(unopenable(&info.key, NO_SLOT)),
                size if size > Slot::OBJECT_LEN_MAX => {
                    found.damaged = Some(unopenable(&info.key, NO_SLOT));
                }
                _ => candidates.push(info),
            }
        }
        if is_last {
            break;
        }
        if listed >= LISTED_MAX {
            tracing::warn!(
                "more than {LISTED_MAX} objects lie below keys/: the others are not looked at"
            );
            break;
        }
    }
    candidates.sort_by_key(|info| info.size);
    let total = candidates.iter().scan(0, |total, info| {
        *total += info.size;
        Some(*total)
    });
    let kept = total.take_while(|total| *total <= READ_BYTES_MAX).count();
    found.unread = candidates.len() - kept;
    candidates.truncate(kept);
    Ok(candidates)
}

/// One password, tried on slots.
pub(super) struct Trials<'a> {
    password: &'a [u8],
    /// The work that is left.
    work: u64,
    /// Of slots that did not open.
    failed: HashSet<[u8; 32]>,
    untried: usize,
    is_wrong: bool,
    /// Why a slot, or the config by what a slot holds, is not what it should be.
    damaged: Option<RootError>,
    contradicted: Option<RootError>,
}

impl<'a> Trials<'a> {
    /// None yet, of this password.
    pub(super) fn new(password: &'a [u8]) -> Self {
        Self::within(password, WORK_MAX)
    }

    /// The same, with other bounds to the work.
    pub(super) fn within(password: &'a [u8], work: u64) -> Self {
        Self {
            password,
            work,
            failed: HashSet::new(),
            untried: 0,
            is_wrong: false,
            damaged: None,
            contradicted: None,
        }
    }

    /// What the password makes of a slot, and the keyring that it holds; none if it does not open
    /// it, or if the work for that would be too much. Takes as long as the slot says.
    pub(super) fn open(
        &mut self,
        config: &Config,
        name: SlotName,
        slot: &Slot,
    ) -> Option<(Keyring, Statement)> {
        let Unwrapped { secrets, statement } = self.unwrap(name, slot)?;
        match config.unlock(secrets) {
            Ok(keyring) => Some((keyring, statement)),
            Err(source) => {
                self.contradicted = Some(unopenable(Config::KEY, source));
                None
            }
        }
    }

    fn unwrap(&mut self, name: SlotName, slot: &Slot) -> Option<Unwrapped> {
        let fingerprint = slot.fingerprint();
        if self.failed.contains(&fingerprint) {
            return None;
        }
        let work = slot.cost().work();
        let is_tried = slot.cost().is_reasonable() && !self.password.is_empty();
        if is_tried && work > self.work {
            self.untried += 1;
            return None;
        }
        if is_tried {
            self.work -= work;
        }
        match slot.unwrap_judged(self.password) {
            Ok(unwrapped) => return Some(unwrapped),
            Err(SlotError::WrongPassword | SlotError::EmptyPassword) => self.is_wrong = true,
            Err(error @ SlotError::UnreasonableCost(_)) => {
                self.damaged = Some(RootError::damaged(&name.key(), error));
            }
            Err(error) => self.damaged = Some(of_slot(error, &name.key())),
        }
        self.failed.insert(fingerprint);
        None
    }

    /// Logs what was not looked at, where something else was opened.
    pub(super) fn report(&self) {
        if let Some(error) = self.damaged.as_ref().or(self.contradicted.as_ref()) {
            tracing::warn!(%error, "a key slot cannot be used");
        }
        if self.untried > 0 {
            let untried = self.untried;
            tracing::warn!("{untried} keys were not tried: all of them would cost too much");
        }
    }

    /// Why nothing was opened.
    pub(super) fn failure(self, found: FoundSlots) -> RootError {
        let damaged = self.damaged.or(found.damaged);
        if let Some(error) = self.contradicted {
            return error;
        }
        let untried = self.untried + found.unread;
        if untried > 0 {
            return RootError::KeysUntried { untried };
        }
        match damaged {
            Some(error) if self.is_wrong => {
                tracing::warn!(%error, "a key slot cannot be used");
                RootError::WrongPassword
            }
            Some(error) => error,
            None if self.is_wrong => RootError::WrongPassword,
            None => RootError::damaged(
                SlotName::PREFIX,
                "no key slot of this repository is left: nothing can open it",
            ),
        }
    }
}

/// The keys that a password opens.
pub(super) struct Unlocked {
    /// The keys.
    pub(super) keyring: Keyring,
    /// The slot that holds them.
    pub(super) slot: SlotName,
}

/// The keyring of a sealed repository: of its slots that open with `password` the one in force, or,
/// if none is, the one with the newest master key.
///
/// # Errors
/// [`RootError::WrongPassword`], [`RootError::KeysUntried`]; a slot or the config is damaged; store
/// errors.
pub(super) async fn unlock(
    store: &dyn Store,
    config: &Config,
    password: &[u8],
) -> Result<Unlocked, RootError> {
    let header = match root_header(store).await {
        // Keys open whatever became of the root.
        Err(error) if error.is_of_one_object() => None,
        read => read?,
    };
    let epoch = header.as_ref().map(Header::stated_epoch);
    let found = find_slots(store, config.repository(), epoch).await?;
    let mut trials = Trials::new(password);
    let mut best: Option<Unlocked> = None;
    for (name, slot) in &found.slots {
        let Some((keyring, statement)) = trials.open(config, *name, slot) else {
            continue;
        };
        if statement == Statement::Changed {
            tracing::warn!(slot = %name, "the label, time, epoch or name of this key was changed");
        }
        let is_standing =
            header.is_some() && Force::of(&keyring, header.as_ref()) == Force::Standing;
        let is_newer = |best: &Unlocked| best.keyring.epoch() < keyring.epoch();
        if is_standing || best.as_ref().is_none_or(is_newer) {
            let slot = *name;
            best = Some(Unlocked { keyring, slot });
        }
        if is_standing {
            break;
        }
    }
    best.ok_or_else(|| trials.failure(found))
}
