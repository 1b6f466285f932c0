//! Slots that a change of keys adds for a while: when they are taken back, and when they stay.
//!
//! Owns the looks before and after such a slot is deleted. Two programs may rely on each other's
//! slots at the same moment. So the deletion is followed by another look, whatever its answer, and
//! by a new slot if the look does not find what the deletion relied on.

use super::error::RootError;
use super::retry::{Pauses, RetryPolicy, patiently};
use super::slot_error::{Lost, SlotsError};
use super::slots::{Making, Slots};
use super::unlock::find_slots;
use bkfs_chunker::crypto::SlotName;
use bkfs_store::{Operation, StoreError};

/// The fate of a slot that a change of keys had added.
pub(super) enum Fate {
    /// It is gone.
    Gone,
    /// It stays, or another one in its place: the only key may be this one.
    Stays(SlotName),
    /// It is not known whether it is gone.
    Unknown(SlotName, StoreError),
    /// It is gone, and may have been the only key.
    Lost(Lost),
}

/// What opens the repository without a slot that is deleted.
#[derive(Copy, Clone)]
enum ReliedOn {
    /// This slot.
    Slot(SlotName),
    /// Any other slot of this epoch.
    AnyOther,
}

impl Slots {
    /// Deletes a copy of the own slot that `making` made, unless the own slot was removed meanwhile.
    ///
    /// Cancel safety: dropped, it may leave the copy, or have deleted it without the second look.
    ///
    /// # Errors
    /// Store errors, after which the copy may be there; [`SlotsError::LastKeyLost`].
    pub(super) async fn drop_copy(
        &self,
        own: SlotName,
        copy: SlotName,
        making: Making<'_>,
    ) -> Result<(), SlotsError> {
        if !self.is_there(own).await.map_err(RootError::from)? {
            tracing::warn!(%own, %copy,
                "this key was removed meanwhile; its copy stays: remove that too if the password \
                 is to open nothing");
            return Ok(());
        }
        match self.delete_added(copy, making, ReliedOn::Slot(own)).await {
            Fate::Gone | Fate::Stays(_) => Ok(()),
            Fate::Unknown(_, error) => Err(RootError::from(error).into()),
            Fate::Lost(lost) => Err(SlotsError::LastKeyLost(lost)),
        }
    }

    /// Takes back a slot that `making` made for a change that does not go on. It stays if no other
    /// slot is known to be there: it may be the only key.
    ///
    /// Cancel safety: dropped, it may leave the slot, or have deleted it without the second look.
    pub(super) async fn take_back(&self, added: SlotName, making: Making<'_>) -> Fate {
        match self.is_needless(added, ReliedOn::AnyOther).await {
            true => self.delete_added(added, making, ReliedOn::AnyOther).await,
            false => Fate::Stays(added),
        }
    }

    /// Deletes a slot that `making` made. If what that relies on is not known to be there after that,
    /// puts another one in its place.
    async fn delete_added(&self, added: SlotName, making: Making<'_>, relied_on: ReliedOn) -> Fate {
        let key = added.key();
        let (policy, entropy) = (RetryPolicy::default(), &*self.entropy);
        let get = || self.store.get(&key);
        let object = patiently(&policy, entropy, Operation::Get, &key, get).await;
        let deleted = match &object {
            Ok(_) => self.store.delete(&key).await,
            // Another program was faster.
            Err(error) if error.is_not_found() => Ok(()),
            Err(error) => return Fate::Unknown(added, error.clone()),
        };
        if self.is_needless(added, relied_on).await {
            return match deleted {
                Ok(()) => Fate::Gone,
                Err(error) => Fate::Unknown(added, error),
            };
        }
        let failed = match self.put_again(making).await {
            Ok(again) => return Fate::Stays(again),
            Err(error) => error,
        };
        match object {
            // It is gone, and no other key is known to be there.
            Err(gone) => match failed {
                SlotsError::Root(RootError::Store(error)) => Fate::Unknown(added, error),
                _ => Fate::Unknown(added, gone),
            },
            Ok((object, _)) => Fate::Lost(Lost {
                slot: added,
                why: failed.to_string(),
                saved: None,
                object,
            }),
        }
    }

    async fn put_again(&self, making: Making<'_>) -> Result<SlotName, SlotsError> {
        let policy = RetryPolicy::default();
        let mut pauses = Pauses::new(&policy, &*self.entropy);
        loop {
            match self.put(making, self.keyring.secrets()).await {
                Ok(again) => {
                    tracing::warn!(key = %again.name,
                        "another program may have relied on a key that was to go: it stays");
                    return Ok(again.name);
                }
                Err(SlotsError::Root(RootError::Store(error))) if policy.bears(&error) => {
                    pauses.pause(&error).await?;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns true if what the deletion of `added` relies on is known to be there.
    async fn is_needless(&self, added: SlotName, relied_on: ReliedOn) -> bool {
        if let ReliedOn::Slot(slot) = relied_on {
            return matches!(self.is_there(slot).await, Ok(true));
        }
        let found = find_slots(&*self.store, self.config.repository(), None).await;
        let epoch = Some(self.keyring.epoch());
        found.is_ok_and(|found| {
            let mut slots = found.slots.iter();
            slots.any(|(name, slot)| *name != added && slot.epoch() == epoch)
        })
    }

    async fn is_there(&self, slot: SlotName) -> Result<bool, StoreError> {
        let (policy, key) = (RetryPolicy::default(), slot.key());
        let head = || self.store.head(&key);
        match patiently(&policy, &*self.entropy, Operation::Head, &key, head).await {
            Ok(_) => Ok(true),
            Err(error) if error.is_not_found() => Ok(false),
            Err(error) => Err(error),
        }
    }
}
