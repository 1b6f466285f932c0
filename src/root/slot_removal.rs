//! Removes key slots, and changes passwords.
//!
//! Owns which slots may be removed, and the steps. [`super::slots`] reads and adds slots.
//!
//! Slots are created under names that are never used again, and deleted; two concurrent removals
//! have no order. A removal holds the password of another slot, its *own*. It has five steps: a
//! copy of its own slot under a new name; a look whether its session stands in the root, and if
//! not, the copy is taken back and no more; the deletion; a look whether its own slot is still
//! there; and only if so, the deletion of the copy ([`super::slot_copy`]). Of several removals that
//! remove each other's slots, the one with the last deletion saw its own slot after all deletions,
//! or keeps its copy.
//!
//! Several slots that are removed together share one copy.
//!
//! Only a slot in force ([`super::unlock`]) counts as an own one. A slot that may hold a master key
//! which no other one holds is removed only if the user gives it up by name:
//! - A slot of the epoch after the root's: a concurrent rotation may be about to rely on it
//!   ([`super::rotation`]). No rotation makes a slot of a later epoch: it can be removed.
//! - A slot that the password opens, with another master key of some epoch than the slot in force:
//!   of two rotations one was made, and a root that was lost and rebuilt does not tell which.
//! - Without a root that tells which key is in force, every slot that the password does not open
//!   and that states no older epoch.
//!
//! Only the root orders a rotation and a change of slots ([`super::key_change`]). Where no root can
//! be read, and next to programs that do not enter it, every change reads the root's header again at
//! its end, and reports a rotation that was made meanwhile. An unchanged header proves that none
//! was made, even if it is damaged.

use super::error::{RootError, unopenable};
use super::force::{Force, changed_epoch, root_header};
use super::key_change::KeyChange;
use super::patient_reads::PatientReads;
use super::put_back::Kept;
use super::refusal::Refusal;
use super::retry::RetryPolicy;
use super::slot_copy::Fate;
use super::slot_error::SlotsError;
use super::slot_facts::SlotFacts;
use super::slots::{Making, Slots};
use super::state::ROOT_KEY;
use super::unlock::{damage_of, find_slots, read_slot};
use bkfs_chunker::crypto::{OpenError, SlotName};
use jiff::Timestamp;
use std::collections::HashSet;

impl Slots {
    /// Removes slots other than the one in force that the password opens. With `gives_up` also
    /// those that may hold a master key which no other slot holds. Each of these is put back if the
    /// root changed and is not sealed under the password's own master key. `change` is the change of
    /// keys that this belongs to; `None` where none can stand in the root.
    ///
    /// A future that is dropped has removed some of them, may leave a copy of the own slot, and
    /// leaves the given-up slots in files on this machine ([`super::put_back`]).
    ///
    /// # Errors
    /// - [`SlotsError::Own`] if the password opens no other slot in force.
    /// - [`SlotsError::Unfinished`], [`SlotsError::Foreign`] without `gives_up`.
    /// - [`SlotsError::Ambiguous`] if one of them is absent.
    /// - [`SlotsError::Rotated`].
    /// - [`SlotsError::Overtaken`] if `change` does not stand in the root any more.
    /// - [`SlotsError::Interrupted`] if some were removed before the error, also before
    ///   [`SlotsError::Rotated`].
    /// - Store errors.
    pub async fn remove(
        &self,
        slots: &[SlotName],
        gives_up: bool,
        clock: Timestamp,
        change: Option<&KeyChange<'_>>,
    ) -> Result<(), SlotsError> {
        let (mut given_up, mut unfinished) = (Vec::new(), HashSet::new());
        for slot in slots {
            match self.require_useless(*slot).await {
                Err(SlotsError::Unfinished { .. }) if gives_up => {
                    given_up.push(*slot);
                    unfinished.insert(*slot);
                }
                Err(SlotsError::Foreign { .. }) if gives_up => given_up.push(*slot),
                judged => judged?,
            }
        }
        let own = self.own_other_than(slots)?;
        self.require_unrotated().await?;
        let kept = self.keep(&given_up).await?;
        let making = self.making_like(own, clock);
        let removal = self.remove_with_copy(slots, own.name, making, change).await;
        let stands = match kept.is_empty() {
            true => self.require_unrotated().await,
            false => self.require_needless(&kept).await,
        };
        let (kept, untouched): (Vec<_>, Vec<_>) = kept
            .into_iter()
            .partition(|kept| removal.may_lack(kept.slot));
        self.discard(untouched).await;
        if kept.is_empty() || stands.is_ok() {
            // The root of that slot's rotation may have been sent, and arrive later.
            let (of_rotation, useless): (Vec<_>, Vec<_>) = kept
                .into_iter()
                .partition(|kept| unfinished.contains(&kept.slot));
            self.discard(useless).await;
            of_rotation.iter().for_each(Kept::tell_of_a_late_rotation);
            return removal.end(stands);
        }
        let (mut put_back, mut lost, mut there) = (Vec::new(), Vec::new(), Vec::new());
        for kept in kept {
            match self.put_back(&kept, clock).await {
                Ok(()) => {
                    put_back.push(kept.slot);
                    // A deletion without an answer may arrive after this.
                    match removal.removed.contains(&kept.slot) {
                        true => there.push(kept),
                        false => kept.tell_that_it_stays(),
                    }
                }
                Err(missing) => lost.push(missing),
            }
        }
        self.discard(there).await;
        let Removal {
            removed, failed, ..
        } = removal;
        let is_told =
            |slot: &SlotName| put_back.contains(slot) || lost.iter().any(|lost| lost.slot == *slot);
        Err(SlotsError::Interrupted {
            removed: removed.into_iter().filter(|slot| !is_told(slot)).collect(),
            put_back,
            lost,
            source: Box::new(first_of(failed, stands)),
        })
    }

    /// Returns a slot in force that the password opens and that is none of `slots`.
    ///
    /// # Errors
    /// [`SlotsError::Own`].
    fn own_other_than(&self, slots: &[SlotName]) -> Result<&SlotFacts, SlotsError> {
        let is_other = |facts: &&SlotFacts| facts.is_in_force && !slots.contains(&facts.name);
        let own = self.found.iter().find(is_other);
        own.ok_or_else(|| SlotsError::Own {
            slot: slots.first().copied().unwrap_or(SlotName(0)),
        })
    }

    /// Removes one of the [strays](Slots::strays), which open nothing. A future that is dropped may
    /// have removed it.
    ///
    /// # Errors
    /// [`SlotsError::Ambiguous`] if it is none of them; store errors.
    pub async fn remove_stray(&self, key: &str) -> Result<(), SlotsError> {
        if !self.strays().iter().any(|stray| stray == key) {
            return Err(SlotsError::Ambiguous {
                text: key.to_owned(),
                count: 0,
            });
        }
        Ok(self.store.delete(key).await.map_err(RootError::from)?)
    }

    /// Checks that the root needs none of the given-up slots: its header is the one that they were
    /// compared with, or it is sealed under the master key of the password's own slot. If no
    /// remaining slot states the root's epoch, that proves nothing: a given-up slot may be its only
    /// key.
    ///
    /// # Errors
    /// [`SlotsError::Rotated`]; [`RootError::Damaged`] if the root was damaged or removed
    /// meanwhile; store errors.
    async fn require_needless(&self, given_up: &[Kept]) -> Result<(), SlotsError> {
        let policy = RetryPolicy::default();
        let read = PatientReads {
            store: self.store.clone(),
            policy,
            handle: None,
            entropy: self.entropy.clone(),
        };
        let header = root_header(&read).await?;
        if header == self.judged_by {
            return Ok(());
        }
        if header.is_none() {
            return Err(RootError::damaged(ROOT_KEY, "it is gone, or cut short").into());
        }
        let damaged = match Force::of(&self.keyring, header.as_ref()) {
            Force::Standing => return Ok(()),
            Force::Older { root } => {
                let repository = self.config.repository();
                let states = |kept: &Kept| kept.may_be_of(repository, root);
                let damage = match given_up.iter().any(states) {
                    true => None,
                    false => damage_of(&read, &self.keyring, root).await?,
                };
                return Err(damage.map_or(SlotsError::Rotated, SlotsError::from));
            }
            Force::Newer { root } => RootError::damaged(
                ROOT_KEY,
                format!("one under master key {root}, of before a rotation, took its place"),
            ),
            Force::Changed { root } => changed_epoch(root),
            Force::Unknown => RootError::damaged(
                ROOT_KEY,
                "it was replaced meanwhile, and does not verify with the password's key",
            ),
        };
        Err(damaged.into())
    }

    /// Checks that no other slot can need the secrets of this one.
    ///
    /// # Errors
    /// [`SlotsError::Unfinished`], [`SlotsError::Foreign`]; [`SlotsError::Ambiguous`] if there is
    /// no such object; [`RootError::Unopenable`] if the object is of a newer program; store errors.
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

    /// Replaces all slots that the password opens by a new one; afterwards the password opens none.
    /// Returns the new slot and those that it replaced. Slots of other passwords, however many,
    /// change nothing of that. `change` is as for [`Slots::remove`].
    ///
    /// A future that is dropped leaves both passwords working, or only the new one.
    ///
    /// # Errors
    /// [`SlotsError::Unfinished`], [`SlotsError::Foreign`]; [`Refusal::KeysChanged`] if a slot of
    /// the password came after the slots were read; as [`Self::add`], without its bound.
    /// [`SlotsError::Rotated`] if a rotation by the old password was made meanwhile, so that the
    /// new slot opens nothing; within [`SlotsError::Interrupted`] if old slots were removed.
    /// [`SlotsError::Overtaken`] as for [`Slots::remove`]; the new slot is taken back then.
    pub async fn change(
        &self,
        making: Making<'_>,
        change: Option<&KeyChange<'_>>,
    ) -> Result<(SlotName, Vec<SlotName>), SlotsError> {
        if let Some((known, _)) = self.pending.first() {
            return Err(SlotsError::Unfinished { slot: known.name });
        }
        if let Some(slot) = self.foreign.first() {
            return Err(SlotsError::Foreign { slot: *slot });
        }
        self.require_no_further_own().await?;
        let new = self.add_surely(making).await?;
        let own = self.found.iter().filter(|slot| slot.is_own);
        let old: Vec<SlotName> = own.map(|slot| slot.name).collect();
        let mut removal = self.remove_with_copy(&old, new.name, making, change).await;
        if let Some(SlotsError::Overtaken { left, lost, .. }) = &mut removal.failed {
            match self.take_back(new.name, making).await {
                Fate::Gone => {}
                Fate::Stays(slot) | Fate::Unknown(slot, _) => left.push(slot),
                Fate::Lost(slot) => lost.push(slot),
            }
        }
        removal.end(self.require_unrotated().await)?;
        self.remember(new).await;
        Ok((new.name, old))
    }

    /// Checks that no slot that the password opens came after the slots were read: it would go on
    /// opening.
    ///
    /// # Errors
    /// [`Refusal::KeysChanged`]; store errors.
    async fn require_no_further_own(&self) -> Result<(), SlotsError> {
        let found = find_slots(&*self.store, self.config.repository(), None).await?;
        let is_known = |name: &SlotName| self.found.iter().any(|facts| facts.name == *name);
        let further = found.slots.iter().filter(|(name, _)| !is_known(name));
        match self.first_own(further) {
            Some(name) => Err(RootError::from(Refusal::KeysChanged(name)).into()),
            None => Ok(()),
        }
    }

    /// Runs the steps of the module header. `making` makes a copy of `own`. If one deletion fails,
    /// the others are tried and the copy stays, since the failed deletion may still be carried out.
    async fn remove_with_copy(
        &self,
        slots: &[SlotName],
        own: SlotName,
        making: Making<'_>,
        change: Option<&KeyChange<'_>>,
    ) -> Removal {
        let mut removal = Removal::default();
        let copy = match self.put(making, self.keyring.secrets()).await {
            Ok(copy) => copy.name,
            Err(error) => {
                removal.failed = Some(error);
                return removal;
            }
        };
        // Others may have removed the own slot since, and with it its password.
        if let Some(change) = change
            && let Err(reason) = change.require_standing().await
        {
            let (left, lost) = match self.take_back(copy, making).await {
                Fate::Gone => (Vec::new(), Vec::new()),
                Fate::Stays(slot) | Fate::Unknown(slot, _) => (vec![slot], Vec::new()),
                Fate::Lost(slot) => (Vec::new(), vec![slot]),
            };
            let reason = Box::new(reason);
            removal.failed = Some(SlotsError::Overtaken { reason, left, lost });
            return removal;
        }
        for slot in slots {
            match self.store.delete(&slot.key()).await {
                Ok(()) => removal.removed.push(*slot),
                Err(error) => {
                    removal.unknown.push(*slot);
                    let error = || RootError::from(error).into();
                    removal.failed.get_or_insert_with(error);
                }
            }
        }
        if removal.failed.is_none() {
            removal.failed = self.drop_copy(own, copy, making).await.err();
        }
        removal
    }
}

/// Progress of a removal.
#[derive(Default)]
struct Removal {
    /// Slots that were removed.
    removed: Vec<SlotName>,
    /// Slots whose deletion failed; it may still be carried out.
    unknown: Vec<SlotName>,
    /// The first failure.
    failed: Option<SlotsError>,
}

impl Removal {
    /// Whether this slot may be absent now.
    fn may_lack(&self, slot: SlotName) -> bool {
        self.removed.contains(&slot) || self.unknown.contains(&slot)
    }

    /// Ends a removal of which nothing has to be put back.
    fn end(self, stands: Result<(), SlotsError>) -> Result<(), SlotsError> {
        match self.failed.or(stands.err()) {
            None => Ok(()),
            Some(failed) if self.removed.is_empty() => Err(failed),
            Some(failed) => Err(SlotsError::Interrupted {
                removed: self.removed,
                put_back: Vec::new(),
                lost: Vec::new(),
                source: Box::new(failed),
            }),
        }
    }
}

/// Returns the first failure: of the removal itself, or of the look at the root after it.
fn first_of(failed: Option<SlotsError>, stands: Result<(), SlotsError>) -> SlotsError {
    failed.or(stands.err()).unwrap_or(SlotsError::Rotated)
}
