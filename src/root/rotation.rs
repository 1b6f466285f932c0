//! Rotates the master key of a repository to the next key epoch.
//!
//! Owns the order of its requests. `bkfs_chunker::crypto` owns sealing and the contents of a slot;
//! [`super::unlock`] owns which slot counts.
//!
//! 1. A new slot is written, which holds all master keys so far and the new one. It opens nothing
//!    yet: a key is in force only while the root is sealed under its newest master key. (A slot
//!    that an interrupted rotation left is used again.)
//! 2. The root is replaced by one under the new master key, by compare-and-swap, while no session
//!    is in it, live or ending. That is the rotation: before it the old slots open the repository,
//!    after it only the new slot does. The new root has a session of the rotation, which keeps
//!    changes of keys out until step 3 has ended ([`super::key_change`]).
//! 3. The rotation checks that the new slot still exists, or a newer one that the password opens.
//!    Statements of a slot that the password does not open count for nothing: if there is no other
//!    slot, a copy of the new slot is written: no change of keys can have removed it meanwhile. A
//!    rotation whose session does not stand writes no copy, and takes a copy back if its session
//!    was ended before the copy was there. The other slots, which open nothing new, are deleted. A
//!    slot with another master key of some epoch, of a rotation that was begun and not made, stays
//!    (`bkfs key remove --give-up`).
//!
//! A rotation needs a slot in force of its password. If that slot was removed meanwhile, the
//! rotation is refused: otherwise it would let a user in again whom another user has shut out. The
//! new slot stays and opens nothing: another rotation by the same password may rely on it.
//!
//! An interruption after step 1 leaves the old state and an unused slot; after step 2, the new
//! state and unused slots. A replacement that arrives late finds its slot, since no slot of a newer
//! epoch than the root's is removed, unless the user gives it up. A mount that registers between
//! the read of the root and its replacement makes the replacement fail. A mount that has read its
//! key before cannot open the root any more, and so never registers.
//!
//! The id key and the cutting key stay. So ids, deduplication and the tag of the config do not
//! change.

use super::choice::KnownSlot;
use super::entering::draw_id;
use super::error::RootError;
use super::force::root_header;
use super::handle::{RootHandle, Transition};
use super::holder::LocalVerdict;
use super::key_change::{KeyEntry, LOOK_AGAIN_AFTER, LOOKS, ROTATION};
use super::refusal::Refusal;
use super::retry::random;
use super::session::OpenSession;
use super::slot_error::SlotsError;
use super::slot_facts::SlotFacts;
use super::slots::{Slots, require_one_of};
use super::state::{HolderInfo, ROOT_KEY, Root, SessionId};
use super::unlock::{damage_of, find_slots, read_slot};
use super::view::RootView;
use async_trait::async_trait;
use bkfs_chunker::crypto::{
    Class, Header, Keyring, OpenError, RepositoryId, Secrets, Slot, SlotName,
};
use bkfs_store::Store;
use jiff::Timestamp;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Parameters of a rotation, next to the slots.
pub struct RotationParts<'a> {
    /// How it enters the root.
    pub entry: KeyEntry<'a>,
    /// Current time of the clock.
    pub clock: Timestamp,
    /// Whether the keys of other passwords may be dropped.
    pub drops_others: bool,
}

/// Result of a rotation.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Rotated {
    /// The new epoch.
    pub epoch: u32,
    /// The generation of the root that made it.
    pub generation: u64,
    /// The slot that opens the repository now.
    pub slot: SlotName,
    /// Slots that were deleted.
    pub dropped: Vec<SlotName>,
    /// Slots that could not be deleted, and why; they open nothing new.
    pub left: Vec<(SlotName, String)>,
}

/// Rotates to a new master key. Afterwards one slot holds it, for the password that opened `slots`.
///
/// A future that is dropped leaves the repository in the old state or the new one (see the module
/// header).
///
/// # Errors
/// [`SlotsError::Others`] unless the keys of other passwords may be dropped; a refusal of kind
/// `Busy` that names the sessions in the root; [`SlotsError::Rotated`] if another rotation came
/// first; [`RootError::OutcomeUnknown`] if this one may have been made;
/// [`SlotsError::RotationUnconfirmed`] if it was made, and it is not known which keys are there;
/// [`SlotsError::NoMoreEpochs`]; store errors, before which it was not made.
pub async fn rotate(slots: &Slots, parts: RotationParts<'_>) -> Result<Rotated, SlotsError> {
    let left = slots.keyring().epoch();
    if !parts.drops_others {
        refuse_others(slots, left)?;
    }
    let (secrets, pending) = next_secrets(slots)?;
    let repository = slots.keyring().repository();
    let keyring = Keyring::sealed(repository, secrets.clone()).rotating_from(left);
    let handle = parts.entry.open_root(slots, keyring.clone()).await?;
    let mut switch = Switch {
        parts: &parts,
        store: slots.store().clone(),
        repository,
        left,
        session: draw_id(&handle),
        new: None,
        known: slots.list().iter().map(|slot| slot.name).collect(),
        strays: BTreeSet::new(),
        own: slots.own_in_force(),
    };
    // Before any write: most refusals are known now.
    switch.clear_sessions(&mut handle.current().root.clone())?;
    let own = slots.list().iter().find(|slot| slot.is_in_force);
    let own = own.ok_or(RootError::WrongPassword)?;
    let making = slots.making_like(own, parts.clock);
    let slot = match pending {
        Some(slot) => slot,
        None => slots.put(making, &secrets).await?,
    };
    switch.known.insert(slot.name);
    switch.new = Some(slot);
    let root = match handle.update(&mut switch).await {
        Ok(_) => Ok(handle.current()),
        Err(error) => match judge(&handle, &keyring, error).await? {
            None => handle.refresh().await,
            Some(unknown) => Err(unknown),
        },
    };
    let session = root
        .as_ref()
        .ok()
        .and_then(|root| switch.session_in(root, &handle));
    // Without a readable root as well: the new slot may be its only key.
    let kept = keep(slots, slot, &secrets, own, (&switch, &handle)).await;
    let rotated = match (kept, root) {
        (Ok(slot), Ok(root)) => {
            slots.remember(slot).await;
            let (dropped, left) = drop_useless(slots, slot.name, &secrets, &switch).await;
            Ok(Rotated {
                epoch: keyring.epoch(),
                generation: root.root.generation,
                slot: slot.name,
                dropped,
                left,
            })
        }
        (Ok(_), Err(error @ RootError::OutcomeUnknown { .. })) => Err(error.into()),
        (Ok(_), Err(error)) => Err(unconfirmed(error)),
        (
            Err(SlotsError::RotationUnconfirmed { reason }),
            Err(RootError::OutcomeUnknown { reason: unknown }),
        ) => {
            let reason = format!("{unknown}; {reason}");
            Err(RootError::OutcomeUnknown { reason }.into())
        }
        (Err(error), _) => Err(error),
    };
    switch.leave(session, &handle).await;
    rotated
}

fn unconfirmed(reason: impl ToString) -> SlotsError {
    SlotsError::RotationUnconfirmed {
        reason: reason.to_string(),
    }
}

/// Deletes the slots that open nothing new. Returns those that were deleted, and those that were
/// not, each with the reason.
async fn drop_useless(
    slots: &Slots,
    kept: SlotName,
    secrets: &Secrets,
    switch: &Switch<'_>,
) -> (Vec<SlotName>, Vec<(SlotName, String)>) {
    let (mut dropped, mut left) = (Vec::new(), Vec::new());
    let foreign = slots.foreign_to(secrets);
    let useless = switch.known.union(&switch.strays);
    for name in useless.filter(|name| **name != kept) {
        if foreign.contains(name) {
            let why = SlotsError::Foreign { slot: *name }.to_string();
            left.push((*name, why));
            continue;
        }
        match slots.store().delete(&name.key()).await {
            Ok(()) => dropped.push(*name),
            Err(error) => left.push((*name, error.to_string())),
        }
    }
    (dropped, left)
}

/// Refuses to drop keys of other passwords that may be in force, or that hold master keys which no
/// root names.
fn refuse_others(slots: &Slots, epoch: u32) -> Result<(), SlotsError> {
    // No key of an older epoch is in force.
    let may_open = |slot: &&SlotFacts| !slot.is_own && slot.epoch.is_none_or(|at| at >= epoch);
    let keys: Vec<SlotFacts> = slots.list().iter().filter(may_open).cloned().collect();
    match keys.is_empty() {
        true => Ok(()),
        false => Err(SlotsError::Others { keys }),
    }
}

/// Returns the secrets with the next master key, and the slot that holds them already, if an
/// interrupted rotation left one.
fn next_secrets(slots: &Slots) -> Result<(Secrets, Option<KnownSlot>), SlotsError> {
    if let Some((slot, secrets)) = slots.pending().first() {
        return Ok((secrets.clone(), Some(*slot)));
    }
    let mut secrets = slots.keyring().secrets().clone();
    if !secrets.has_room() {
        return Err(SlotsError::NoMoreEpochs);
    }
    secrets.add_master(random(&**slots.entropy()));
    Ok((secrets, None))
}

/// Decides the outcome of a switch that ended with `error`. Returns none if the root is sealed under
/// the new master key, and `error` if it may be.
///
/// The header of the root is read several times before it counts as that of another root.
///
/// # Errors
/// `error` itself if the switch was not made, or [`SlotsError::Rotated`] if the root is sealed under
/// another new master key.
async fn judge(
    handle: &RootHandle,
    keyring: &Keyring,
    error: RootError,
) -> Result<Option<RootError>, SlotsError> {
    let mut refusal = None;
    for look in 0..LOOKS {
        if look > 0 {
            tokio::time::sleep(LOOK_AGAIN_AFTER).await;
        }
        let Ok(Some(header)) = root_header(&**handle.store()).await else {
            continue;
        };
        refusal = match keyring.object_opener(Class::Root, ROOT_KEY, &header) {
            Ok(opener) if opener.header().key_epoch == keyring.epoch() => return Ok(None),
            Ok(_) => return Err(error.into()),
            Err(OpenError::NoKeyEpoch { epoch }) => {
                let damage = damage_of(&**handle.store(), keyring, epoch).await;
                let rotated = damage.map(|it| it.map_or(SlotsError::Rotated, SlotsError::from));
                rotated.ok()
            }
            // Under another new one of the same epoch.
            Err(_) if Header::stated_epoch(&header) == keyring.epoch() => Some(SlotsError::Rotated),
            Err(_) => None,
        };
    }
    match (refusal, error) {
        (Some(refusal), _) => Err(refusal),
        (None, error @ RootError::OutcomeUnknown { .. }) => Ok(Some(error)),
        // The root was of another epoch, maybe of this one.
        (None, error @ RootError::Contended { .. }) => Ok(Some(RootError::OutcomeUnknown {
            reason: error.to_string(),
        })),
        (None, error) => Err(error.into()),
    }
}

/// Looks several times, until a look does not fail.
///
/// # Errors
/// That of the last look.
async fn look<T, F>(mut at: impl FnMut() -> F) -> Result<T, RootError>
where
    F: Future<Output = Result<T, RootError>>,
{
    for _ in 1..LOOKS {
        if let Ok(seen) = at().await {
            return Ok(seen);
        }
        tokio::time::sleep(LOOK_AGAIN_AFTER).await;
    }
    at().await
}

/// Ensures that a slot in force exists, and returns it: the new one; if that was removed or changed
/// meanwhile, a later one that the password opens; otherwise a copy of the new one, unless the
/// rotation's session does not stand in the root before or after. A user that removed the new slot
/// has another one in force, but the statements of a slot that the password does not open prove
/// nothing.
///
/// A request that fails keeps no copy from being written, after several looks: only a root without
/// the session does.
///
/// Cancel safety: dropped, it may leave a copy.
///
/// # Errors
/// [`SlotsError::Rotated`] if there is none, and the session does not stand: another rotation was
/// made with this slot, or another program ended the session, and a change of keys may have removed
/// the slot since. [`SlotsError::RotationUnconfirmed`] if a request failed; a copy that may be there
/// is named, and stays, since it may be the only key.
async fn keep(
    slots: &Slots,
    slot: KnownSlot,
    secrets: &Secrets,
    own: &SlotFacts,
    (switch, handle): (&Switch<'_>, &RootHandle),
) -> Result<KnownSlot, SlotsError> {
    let (store, repository) = (slots.store(), switch.repository);
    let there = look(|| read_slot(&**store, repository, slot.name)).await;
    if let Ok(Some(Ok(there))) = &there
        && there.fingerprint() == slot.fingerprint
    {
        return Ok(slot);
    }
    let epoch = Some(secrets.epoch());
    let found = look(|| find_slots(&**store, repository, epoch)).await;
    let listed = found.as_ref().map_or(&[][..], |found| &found.slots);
    let newer: Vec<&(SlotName, Slot)> = (listed.iter())
        .filter(|(name, slot)| {
            let is_older = switch.known.contains(name) || switch.strays.contains(name);
            !is_older && slot.epoch() == Some(secrets.epoch())
        })
        .collect();
    let opened = slots.first_of(&newer, secrets);
    if let Some((name, newer)) = opened {
        tracing::warn!(slot = %slot.name, newer = %name,
            "the new key was removed meanwhile, and a newer one is there");
        return Ok(KnownSlot {
            name: *name,
            fingerprint: newer.fingerprint(),
        });
    }
    let before = switch.stands(handle).await;
    if let Ok(false) = before {
        return Err(SlotsError::Rotated);
    }
    let making = slots.making_like(own, switch.parts.clock);
    let copy = slots.put(making, secrets).await;
    let copy = copy.map_err(|error| unconfirmed(format!("{error}; a key may have been added")))?;
    // Only this look counts: the session may have been ended, and the keys changed, before the copy
    // was there.
    let after = switch.stands(handle).await;
    if let Ok(false) = after {
        let key = copy.name.key();
        return Err(match store.delete(&key).await {
            Ok(()) => SlotsError::Rotated,
            Err(error) => unconfirmed(format!("{error}; key {} was added", copy.name)),
        });
    }
    tracing::warn!(slot = %slot.name, copy = %copy.name,
        "the new key was removed meanwhile; a copy stays");
    for (name, _) in newer {
        tracing::warn!(slot = %name, copy = %copy.name,
            "this key came meanwhile, and the given password does not open it; if it is meant to \
             take the place of the copy, remove that"
        );
    }
    let failed = [there.err(), found.err(), before.err(), after.err()];
    match failed.into_iter().flatten().next() {
        None => Ok(copy),
        Some(error) => Err(unconfirmed(format!("{error}; key {} was added", copy.name))),
    }
}

/// Replaces the root by one that is sealed under the next master key, with the same contents and
/// the session of the rotation: the handle's keyring seals under the newest one. No session makes
/// it, since none may be in the root.
struct Switch<'a> {
    parts: &'a RotationParts<'a>,
    store: Arc<dyn Store>,
    repository: RepositoryId,
    left: u32,
    /// The session that the new root has.
    session: SessionId,
    /// The new slot, once it is there.
    new: Option<KnownSlot>,
    /// The new slot, and slots that are useless afterwards.
    known: BTreeSet<SlotName>,
    /// Slots of other rotations from the same epoch, which this one makes fail.
    strays: BTreeSet<SlotName>,
    /// Slots in force of the rotating password.
    own: Vec<SlotName>,
}

impl Switch<'_> {
    /// Removes dead maintenance sessions of this machine from the root.
    ///
    /// # Errors
    /// A refusal of kind `Busy` if other sessions are in it.
    fn clear_sessions(&self, root: &mut Root) -> Result<(), RootError> {
        let KeyEntry {
            holder, processes, ..
        } = &self.parts.entry;
        let is_dead = |id: &SessionId| {
            let session = &root.sessions[id];
            session.volume.is_none()
                && session.judge_locally(holder, *processes) == LocalVerdict::Dead
        };
        let dead: Vec<SessionId> = root.sessions.keys().copied().filter(is_dead).collect();
        for dead in dead {
            root.remove_dead(dead)?;
        }
        Ok(root.require_no_session()?)
    }

    /// Returns whether the rotation's session stands in the root, by a read of it.
    ///
    /// # Errors
    /// Those of [`RootHandle::refresh`], after several looks.
    async fn stands(&self, handle: &RootHandle) -> Result<bool, RootError> {
        let view = look(|| handle.refresh()).await?;
        Ok(view.root.sessions.contains_key(&self.session))
    }

    /// Checks that the slot with the new master key is there.
    ///
    /// # Errors
    /// [`Refusal::NewKeyRemoved`]; store errors.
    async fn require_new(&self) -> Result<(), RootError> {
        let Some(new) = self.new else {
            return Ok(());
        };
        let there = read_slot(&*self.store, self.repository, new.name).await?;
        let is_new = |slot: &Slot| slot.fingerprint() == new.fingerprint;
        match there.is_some_and(|slot| slot.as_ref().is_ok_and(is_new)) {
            true => Ok(()),
            false => Err(Refusal::NewKeyRemoved(new.name).into()),
        }
    }

    /// Returns the rotation's session with its heartbeat, if it stands in this root.
    fn session_in(&self, view: &RootView, handle: &RootHandle) -> Option<OpenSession> {
        let holder = view.root.sessions.get(&self.session)?.holder.clone();
        let epoch = view.root.epoch;
        Some(OpenSession::registered(
            handle,
            self.session,
            None,
            holder,
            epoch,
        ))
    }

    /// Ends the rotation's session. If the root could not be read before, looks for it again.
    async fn leave(&self, session: Option<OpenSession>, handle: &RootHandle) {
        let session = match session {
            Some(session) => Ok(Some(session)),
            None => handle
                .refresh()
                .await
                .map(|view| self.session_in(&view, handle)),
        };
        let left = match session {
            Ok(Some(session)) => session.end().await,
            Ok(None) => Ok(()),
            Err(error) => Err(error),
        };
        if let Err(left) = left {
            tracing::warn!(error = %left, "the session of the rotation stays in the root");
        }
    }

    /// Checks that the root is still sealed under the old master key.
    ///
    /// # Errors
    /// [`RootError::Contended`] if it is not: this rotation or another one was made. Store errors.
    async fn require_left(&self) -> Result<(), RootError> {
        match root_header(&*self.store).await? {
            Some(header) if Header::stated_epoch(&header) != self.left => {
                Err(RootError::Contended { attempts: 1 })
            }
            _ => Ok(()),
        }
    }
}

#[async_trait]
impl Transition for Switch<'_> {
    type Output = ();

    fn session(&self) -> Option<SessionId> {
        None
    }

    async fn apply(&mut self, next: &mut Root) -> Result<(), RootError> {
        self.clear_sessions(next)?;
        let found = find_slots(&*self.store, self.repository, None).await?;
        let mut strays = BTreeSet::new();
        for (name, slot) in found.slots {
            match slot.epoch() {
                _ if self.known.contains(&name) => {}
                Some(epoch) if epoch > self.left => {
                    strays.insert(name);
                }
                _ => return Err(Refusal::KeysChanged(name).into()),
            }
        }
        // Read after the list: the listed slots existed while the old epoch was in force. So no
        // stray holds the new master key, and none of another rotation gets in force after this.
        self.require_left().await?;
        // Read after that: another rotation, once it is made, removes them too.
        require_one_of(&*self.store, &self.own).await?;
        // A change of keys that removes it after this read replaces the root before.
        self.require_new().await?;
        self.strays = strays;
        let holder = HolderInfo {
            mount_point: ROTATION.to_owned(),
            ..self.parts.entry.holder.clone()
        };
        Ok(next.register(self.session, holder)?)
    }

    async fn seen(&mut self, root: &Root) -> Result<bool, RootError> {
        // Session ids are random. Another rotation shows in the header, and the next try reads
        // that.
        Ok(root.sessions.contains_key(&self.session))
    }
}
