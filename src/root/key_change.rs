//! Changes of keys and rotations of the master key exclude each other.
//!
//! Owns the session of maintenance that stands in the root while keys are added, removed or
//! changed, and the order that follows from it. [`super::slots`] and [`super::slot_removal`] make
//! the changes, [`super::rotation`] the rotations.
//!
//! A change registers its session before its first write below `keys/`. A rotation replaces a root
//! in which no session stands, and enters that root itself, with a mount point by which others
//! recognize it; it leaves when it writes no key any more. So of the two:
//! - A rotation that reads the root before the change registers fails to replace it, and reads
//!   again.
//! - A rotation that reads it while the change stands is refused.
//! - A rotation that reads it after the change has left lists the keys after that, and is refused
//!   if one is there that it does not know, or its own is gone.
//! - A change that comes after the rotation cannot open the root with its older key.
//! - A change with the new key that comes while the rotation stands is refused. A rotation that
//!   finds its new key gone may write a copy of it, which a removed password must not get.
//!
//! A change believes that it stood all the time only from a read of the root after its last write.
//! A dead change or rotation leaves its session as every command does: the next one on the same
//! machine removes it, and `bkfs session end` on others.
//!
//! Additions exclude neither each other nor removals. A removal excludes other removals: each could
//! rely on a copy that another one is about to delete. A change of a password excludes every other
//! change: of two changes of one password both new ones would open, and a removal copies its own
//! key, by the old password. The one that registers later is refused. A change with a password that
//! was removed before it registered is refused as well.
//!
//! No rotation is made of a root that is absent or damaged. There a change registers nothing. It
//! looks several times before it believes that, and once more at its end.

use super::error::RootError;
use super::handle::{RootHandle, RootParts};
use super::holder::Processes;
use super::memory::GenerationMemory;
use super::refusal::Refusal;
use super::retry::RetryPolicy;
use super::session::OpenSession;
use super::slot_error::SlotsError;
use super::slots::{Slots, require_one_of};
use super::state::{HolderInfo, ROOT_KEY, Root};
use bkfs_chunker::crypto::{Keyring, OpenError};
use std::sync::Arc;
use std::time::Duration;

/// The mount point that the session of a rotation names.
pub const ROTATION: &str = "bkfs key rotate";

/// The mount points that the sessions of changes of keys name.
pub const PASSWD: &str = "bkfs key passwd";
/// As [`PASSWD`], of a key that is added.
pub const ADD: &str = "bkfs key add";
/// As [`PASSWD`], of keys that are removed.
pub const REMOVE: &str = "bkfs key remove";

/// How a change of keys or a rotation enters the root.
pub struct KeyEntry<'a> {
    /// This machine's memory of the repository.
    pub memory: Arc<dyn GenerationMemory>,
    /// Timeouts and back-off.
    pub policy: RetryPolicy,
    /// The oldest generation of the root that is accepted.
    pub min_generation: u64,
    /// Accept the root as it is found, whatever this machine remembers.
    pub accept_rollback: bool,
    /// The acting party: dead maintenance sessions of this machine do not block it.
    pub holder: HolderInfo,
    /// Tells whether the processes of those sessions live.
    pub processes: &'a dyn Processes,
}

impl KeyEntry<'_> {
    /// Opens the root with the given keys.
    ///
    /// # Errors
    /// Those of [`RootHandle::open`].
    pub(super) async fn open_root(
        &self,
        slots: &Slots,
        keyring: Keyring,
    ) -> Result<RootHandle, RootError> {
        let parts = RootParts {
            store: slots.store().clone(),
            keyring,
            entropy: slots.entropy().clone(),
            memory: self.memory.clone(),
            policy: self.policy,
            accept_rollback: self.accept_rollback,
        };
        RootHandle::open(parts, self.min_generation).await
    }

    /// Opens the root with the keys that `slots` has read. None if it is absent or damaged, each
    /// time that it is read.
    ///
    /// # Errors
    /// The other ones of [`RootHandle::open`].
    async fn find_root(&self, slots: &Slots) -> Result<Option<RootHandle>, RootError> {
        for look in 0..LOOKS {
            if look > 0 {
                tokio::time::sleep(LOOK_AGAIN_AFTER).await;
            }
            match self.open_root(slots, slots.keyring().clone()).await {
                Ok(handle) => return Ok(Some(handle)),
                Err(error) if has_no_root(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }
}

/// How many times something is read before a failure or its absence is believed.
pub(super) const LOOKS: u32 = 3;

/// The time between two such reads.
pub(super) const LOOK_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// A change of keys that stands in the root, unless there is no root that can be read.
pub struct KeyChange<'a> {
    slots: &'a Slots,
    entry: &'a KeyEntry<'a>,
    standing: Option<(RootHandle, OpenSession)>,
}

impl<'a> KeyChange<'a> {
    /// Begins a change of the keys that `slots` has read.
    ///
    /// Cancel safety: dropped, it may leave its session in the root, as
    /// [`OpenSession::open`] does.
    ///
    /// # Errors
    /// [`SlotsError::Rotated`] if the root is sealed under a newer master key; a refusal of kind
    /// `Busy` that names the session of a rotation or of another change that excludes this one;
    /// [`Refusal::KeyRemoved`]; those of [`RootHandle::open`] and [`OpenSession::open`].
    pub async fn begin(slots: &'a Slots, entry: &'a KeyEntry<'a>) -> Result<Self, SlotsError> {
        let mut change = Self {
            slots,
            entry,
            standing: None,
        };
        match entry.find_root(slots).await? {
            None => slots.require_unrotated().await?,
            Some(handle) => {
                let permits = |root: &Root| require_none_excluded(root, &entry.holder);
                let (holder, processes) = (entry.holder.clone(), entry.processes);
                let session = OpenSession::open_if(&handle, holder, &permits, processes).await?;
                change.standing = Some((handle, session));
            }
        }
        let own = slots.own_in_force();
        match require_one_of(&**slots.store(), &own).await {
            Ok(()) => Ok(change),
            Err(error) => {
                change.leave().await;
                Err(error.into())
            }
        }
    }

    /// Ends the change, and returns its result. If it was made, the session must have stood until
    /// then.
    ///
    /// Cancel safety: dropped, it may leave its session in the root. The change is made or not, as
    /// before.
    ///
    /// # Errors
    /// That of the change; [`SlotsError::Unconfirmed`] if it was made, and a rotation may have come
    /// between.
    pub async fn end<T>(self, changed: Result<T, SlotsError>) -> Result<T, SlotsError> {
        let stands = match &changed {
            Ok(_) => self.require_standing().await,
            Err(_) => Ok(()),
        };
        self.leave().await;
        stands.and(changed)
    }

    /// Checks with a read of the root that the session stands in it, or that there is still none.
    ///
    /// # Errors
    /// [`SlotsError::Unconfirmed`]; [`SlotsError::Rotated`].
    pub(super) async fn require_standing(&self) -> Result<(), SlotsError> {
        let unconfirmed = |reason: String| Err(SlotsError::Unconfirmed { reason });
        let Some((handle, session)) = &self.standing else {
            let keyring = self.slots.keyring().clone();
            return match self.entry.open_root(self.slots, keyring).await {
                Ok(_) => unconfirmed("the root, which seemed damaged, can be read".to_owned()),
                // Also if the root needs a newer key.
                Err(error) if has_no_root(&error) => self.slots.require_unrotated().await,
                Err(error) => unconfirmed(error.to_string()),
            };
        };
        match handle.refresh().await {
            Ok(view) if view.root.sessions.contains_key(&session.id()) => Ok(()),
            Ok(_) => unconfirmed("its session was ended by another program".to_owned()),
            Err(error) => unconfirmed(error.to_string()),
        }
    }

    async fn leave(self) {
        if let Some((_, session)) = self.standing
            && let Err(left) = session.end().await
        {
            tracing::warn!(error = %left, "the session of the change of keys stays in the root");
        }
    }
}

/// Checks that no session in the root excludes this change of keys.
///
/// # Errors
/// [`Refusal::Busy`], which names those that do.
fn require_none_excluded(root: &Root, change: &HolderInfo) -> Result<(), Refusal> {
    let name = change.mount_point.as_str();
    let excludes = |holder: &HolderInfo| match holder.mount_point.as_str() {
        ROTATION | PASSWD => true,
        REMOVE => name == PASSWD || name == REMOVE,
        ADD => name == PASSWD,
        _ => false,
    };
    let sessions = root.sessions.iter();
    let sessions = sessions.filter(|(_, session)| excludes(&session.holder));
    let sessions = sessions.map(|(id, session)| (*id, session.holder.clone()));
    let sessions: Vec<_> = sessions.collect();
    match sessions.is_empty() {
        true => Ok(()),
        false => Err(Refusal::Busy { sessions }),
    }
}

/// Whether the root is absent or damaged, so that no rotation can be made of it.
fn has_no_root(error: &RootError) -> bool {
    match error {
        RootError::Store(error) => error.is_not_found() && error.key() == ROOT_KEY,
        RootError::Damaged { key, .. } => key == ROOT_KEY,
        RootError::Unopenable { key, source } => {
            let may_be_whole = matches!(
                source,
                OpenError::OtherFormat { .. }
                    | OpenError::UnknownFeatures { .. }
                    | OpenError::OlderKeyEpoch { .. }
            );
            key == ROOT_KEY && !may_be_whole
        }
        _ => false,
    }
}
