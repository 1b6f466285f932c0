//! Which key slots are removed, and by which steps.
//!
//! Owns removal, and the change of a password. Which slots there are is in [`super::slots`].
//!
//! Slots are created under names that are never used again, and deleted; nothing orders two removals
//! at the same time. A removal holds the password of another slot, its *own*, and has four steps: a
//! copy of its own slot under a new name; the deletion; a look whether its own slot is still there;
//! and only if so, the deletion of the copy. Of several that remove each other's slots at once, the
//! one whose deletion came last saw its own slot after all deletions, or keeps its copy.
//!
//! Several slots that are removed together share one copy.
//!
//! Only a slot in force ([`super::unlock`]) counts as an own one. A slot that may hold a master key
//! which no other one holds is removed only if the user gives it up by name:
//! - one of the next epoch after the root's, since a rotation that is under way may be about to rely
//!   on it ([`super::rotation`]). No rotation makes a slot of a later epoch: it can be removed;
//! - one that the password opens, and that holds another master key of an epoch than the slot in
//!   force: of two rotations one was made, and a root that was lost and rebuilt does not tell which;
//! - while no root tells which key is in force, every one that the password does not open and that
//!   states no older epoch.
//!
//! Nothing orders a rotation and a change of slots but the root. So every change reads the root's
//! header again at its end, and says if the master key was rotated meanwhile.

use super::error::RootError;
use super::repository::unopenable;
use super::slots::{Making, SlotFacts, Slots, SlotsError};
use super::unlock::{Force, read_slot, root_header};
use bkfs_chunker::seal::{OpenError, SlotName};
use jiff::Timestamp;

impl Slots {
    /// Removes slots other than the one in force that the password opens. With `gives_up` also those
    /// that may hold a master key which no other slot holds; each of these is put back if the master
    /// key is rotated meanwhile.
    ///
    /// A future that is dropped has removed some of them, and may leave a copy of the own slot.
    ///
    /// # Errors
    /// [`SlotsError::Own`] if the password opens no other one in force; [`SlotsError::Unfinished`],
    /// [`SlotsError::Foreign`]; [`SlotsError::Ambiguous`] if one is not there;
    /// [`SlotsError::Rotated`].
    pub async fn remove(
        &self,
        slots: &[SlotName],
        gives_up: bool,
        clock: Timestamp,
    ) -> Result<(), SlotsError> {
        let mut given_up = Vec::new();
        for slot in slots {
            match self.require_useless(*slot).await {
                Err(SlotsError::Unfinished { .. } | SlotsError::Foreign { .. }) if gives_up => {
                    given_up.push(*slot);
                }
                judged => judged?,
            }
        }
        let is_other = |facts: &&SlotFacts| facts.is_in_force && !slots.contains(&facts.name);
        let own = self.found.iter().find(is_other);
        let own = own.ok_or_else(|| SlotsError::Own {
            slot: slots.first().copied().unwrap_or(SlotName(0)),
        })?;
        self.require_unrotated().await?;
        let mut kept = Vec::new();
        for slot in &given_up {
            let (object, _) = (self.store.get(&slot.key()).await).map_err(RootError::from)?;
            kept.push((slot.key(), object));
        }
        let making = self.making_like(own, clock);
        let removed = self.remove_beside(slots, own.name, making).await;
        let stands = self.require_unrotated().await;
        // What was given up may be the only key of the root that stands now, and then no slot says
        // so: only a root that this key is in force of needs none of it.
        let is_needed = !kept.is_empty() && !self.is_in_force().await;
        let mut put_back = Ok(());
        for (key, object) in kept.into_iter().filter(|_| is_needed) {
            let put = self.store.put_new(&key, vec![object]).await;
            put_back = put_back.and(put.map(|_| ()).map_err(RootError::from));
        }
        put_back?;
        removed.and(stands)?;
        match is_needed {
            true => Err(SlotsError::Rotated),
            false => Ok(()),
        }
    }

    /// Whether the root that stands is known to be sealed under the master key of these slots.
    async fn is_in_force(&self) -> bool {
        match root_header(&*self.store).await {
            Ok(header) => Force::of(&self.keyring, header.as_ref()) == Force::Standing,
            Err(_) => false,
        }
    }

    /// That no other slot can miss what this one holds.
    ///
    /// # Errors
    /// [`SlotsError::Unfinished`], [`SlotsError::Foreign`]; [`SlotsError::Ambiguous`] if there is no
    /// such object; the object is of a newer program.
    async fn require_useless(&self, slot: SlotName) -> Result<(), SlotsError> {
        let facts = self.found.iter().find(|facts| facts.name == slot);
        let is_pending = self.pending.iter().any(|(known, _)| known.name == slot);
        if is_pending {
            return Err(SlotsError::Unfinished { slot });
        }
        if self.foreign.contains(&slot) {
            return Err(SlotsError::Foreign { slot });
        }
        let stated = match facts {
            Some(facts) if facts.is_own => return Ok(()),
            Some(facts) => facts.epoch,
            None => match read_slot(&*self.store, self.config.repository(), slot).await? {
                Some(Ok(slot)) => slot.epoch(),
                Some(Err(
                    source @ (OpenError::OtherFormat { .. } | OpenError::UnknownFeatures { .. }),
                )) => return Err(unopenable(&slot.key(), source).into()),
                // It opens nothing.
                Some(Err(_)) => return Ok(()),
                None => {
                    return Err(SlotsError::Ambiguous {
                        text: slot.to_string(),
                        count: 0,
                    });
                }
            },
        };
        let epoch = self.keyring.epoch();
        match (self.is_confirmed, stated) {
            (true, Some(stated)) if stated == epoch.saturating_add(1) => {
                Err(SlotsError::Unfinished { slot })
            }
            (false, stated) if stated.is_none_or(|stated| stated >= epoch) => {
                Err(SlotsError::Foreign { slot })
            }
            _ => Ok(()),
        }
    }

    /// Puts a new slot in the place of all that the password opens: afterwards it opens none.
    /// Returns the new one, and those that it took the place of. Slots of others, however many,
    /// change nothing of that.
    ///
    /// A future that is dropped leaves both passwords that open, or the new one.
    ///
    /// # Errors
    /// [`SlotsError::Unfinished`], [`SlotsError::Foreign`]; as [`Self::add`], but for its bound.
    /// [`SlotsError::Rotated`] if the new one opens nothing, since a rotation by the old password
    /// was made meanwhile.
    pub async fn change(
        &self,
        making: Making<'_>,
    ) -> Result<(SlotName, Vec<SlotName>), SlotsError> {
        if let Some((known, _)) = self.pending.first() {
            return Err(SlotsError::Unfinished { slot: known.name });
        }
        if let Some(slot) = self.foreign.first() {
            return Err(SlotsError::Foreign { slot: *slot });
        }
        let new = self.add_surely(making).await?;
        let own = self.found.iter().filter(|slot| slot.is_own);
        let old: Vec<SlotName> = own.map(|slot| slot.name).collect();
        self.remove_beside(&old, new.name, making).await?;
        self.require_unrotated().await?;
        self.remember(new).await;
        Ok((new.name, old))
    }

    /// The four steps of the module's head. `making` makes a copy of `own`. If one deletion fails,
    /// the others are tried, and the copy stays: that deletion may be made yet.
    async fn remove_beside(
        &self,
        slots: &[SlotName],
        own: SlotName,
        making: Making<'_>,
    ) -> Result<(), SlotsError> {
        let copy = self.put(making, self.keyring.secrets()).await?.name;
        let store = &self.store;
        let mut deleted = Ok(());
        for slot in slots {
            let answer = store.delete(&slot.key()).await.map_err(RootError::from);
            deleted = deleted.and(answer);
        }
        deleted?;
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
