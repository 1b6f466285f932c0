//! The key slots of a sealed repository: which there are, adding one, removing one.
//!
//! Owns the order in which slots come and go, so that at no moment, whatever crashes and whoever else changes slots, a repository is without one that opens. Does not own
//! their form (`bkfs_chunker::seal`), nor passwords.
//!
//! Slots are created under names that are never used again, and deleted; nothing orders two who do that at once. Whoever removes a slot holds the password of
//! another, its *own*, and goes by four steps: a copy of its own slot under a new name; the deletion; a look whether its own slot is still there; and only if so, the deletion of the copy.
//! Of several who remove each other's slots at once, the one whose deletion came last saw its own slot after all deletions, or keeps its copy.

use super::error::RootError;
use super::repository::{SLOTS_MAX, of_slot, read_config, unopenable};
use super::retry::random;
use bkfs_chunker::entropy::Entropy;
use bkfs_chunker::seal::{
    Config, Keyring, NewSlot, OpenError, Slot, SlotCost, SlotError, SlotName,
};
use bkfs_chunker::store::Store;
use jiff::Timestamp;
use zeroize::Zeroizing;

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
    /// As many as are tried with a password.
    #[error("there are {} keys already; remove one first", SLOTS_MAX)]
    Full,
}

/// The slots of one repository, opened with a password.
pub struct Slots<'a> {
    store: &'a dyn Store,
    entropy: &'a dyn Entropy,
    config: Config,
    keyring: Keyring,
    password: Zeroizing<Vec<u8>>,
    found: Vec<SlotFacts>,
}

impl<'a> Slots<'a> {
    /// Says whether there can be slots, before anybody is asked for a password.
    ///
    /// # Errors
    /// [`RootError::NoRepository`], [`SlotsError::NotEncrypted`].
    pub async fn expect(store: &dyn Store) -> Result<(), SlotsError> {
        config_of(store).await.map(|_| ())
    }

    /// Reads all slots and tries the password on each.
    ///
    /// # Errors
    /// [`RootError::WrongPassword`] if it opens none; [`SlotsError::NotEncrypted`].
    pub async fn open(
        store: &'a dyn Store,
        entropy: &'a dyn Entropy,
        password: Zeroizing<Vec<u8>>,
    ) -> Result<Self, SlotsError> {
        let config = config_of(store).await?;
        let mut found = Vec::new();
        let mut secrets = None;
        for (name, slot) in read_slots(store, &config).await? {
            let opened = slot.unwrap(&password);
            let is_own = opened.is_ok();
            match opened {
                Ok(own) => secrets = secrets.or(Some(own)),
                Err(SlotError::WrongPassword | SlotError::EmptyPassword) => {}
                Err(error) => tracing::warn!(%error, slot = %name, "a key slot cannot be used"),
            }
            found.push(SlotFacts {
                name,
                label: slot.label().to_owned(),
                created_s: slot.created_s(),
                cost: slot.cost(),
                is_own,
            });
        }
        found.sort_by_key(|slot| (slot.created_s, slot.name));
        let secrets = secrets.ok_or(RootError::WrongPassword)?;
        let keyring = config
            .unlock(secrets)
            .map_err(|source| unopenable(Config::KEY, source))?;
        Ok(Slots {
            store,
            entropy,
            config,
            keyring,
            password,
            found,
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

    /// Adds a slot. When this returns it opens: it was read back and tried.
    pub async fn add(&self, making: Making<'_>) -> Result<SlotName, SlotsError> {
        if self.found.len() >= SLOTS_MAX {
            return Err(SlotsError::Full);
        }
        let slot = NewSlot {
            repository: self.config.repository(),
            name: SlotName(u64::from_le_bytes(random(self.entropy))),
            label: making.label,
            created_s: u64::try_from(making.clock.as_second()).unwrap_or(0),
            cost: making.cost,
            object_salt: random(self.entropy),
            password_salt: random(self.entropy),
        };
        let key = slot.name.key();
        let object = slot
            .wrap(making.password, self.keyring.secrets())
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

    /// Removes a slot other than one's own.
    ///
    /// # Errors
    /// [`SlotsError::Own`] if the password opens no other one.
    pub async fn remove(&self, slot: SlotName, clock: Timestamp) -> Result<(), SlotsError> {
        let own = self
            .found
            .iter()
            .find(|facts| facts.is_own && facts.name != slot)
            .ok_or(SlotsError::Own { slot })?;
        let making = Making {
            password: &self.password,
            label: &own.label,
            clock,
            cost: own.cost,
        };
        self.remove_beside(slot, own.name, making).await
    }

    /// Puts a new slot in the place of all that the password opens: afterwards it opens none. Returns the new one.
    pub async fn change(&self, making: Making<'_>) -> Result<SlotName, SlotsError> {
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
        let copy = self.add(making).await?;
        let store = self.store;
        store.delete(&slot.key()).await.map_err(RootError::from)?;
        match store.head(&own.key()).await {
            Ok(_) => store.delete(&copy.key()).await.map_err(RootError::from)?,
            Err(error) if error.is_not_found() => {
                tracing::warn!(%own, %copy, "somebody removed this key meanwhile; its copy stays");
            }
            Err(error) => return Err(RootError::from(error).into()),
        }
        Ok(())
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

/// All slots of this repository that can be read.
async fn read_slots(
    store: &dyn Store,
    config: &Config,
) -> Result<Vec<(SlotName, Slot)>, RootError> {
    let mut slots = Vec::new();
    for info in store.list(SlotName::PREFIX, None, SLOTS_MAX).await? {
        let Some(name) = SlotName::from_key(&info.key) else {
            continue;
        };
        let object = match store.get(&info.key).await {
            Ok((object, _)) => object,
            Err(error) if error.is_not_found() => continue,
            Err(error) => return Err(error.into()),
        };
        match Slot::open(config.repository(), name, &object) {
            Ok(slot) => slots.push((name, slot)),
            Err(OpenError::WrongRepository { .. }) => {}
            Err(error) => tracing::warn!(%error, slot = %name, "a key slot cannot be read"),
        }
    }
    Ok(slots)
}
