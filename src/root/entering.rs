//! The replacement of the root by which a session enters it (docs/PROTOCOL.md, rules 2 and 7).
//!
//! Owns its parts: sessions that leave, the number of places, registration, the taking of a volume.
//! [`super::session`] judges whom a volume may be taken from, before that.

use super::error::RootError;
use super::handle::{RootHandle, Transition};
use super::holder::{LocalVerdict, Processes};
use super::refusal::Refusal;
use super::request::KnownSpools;
use super::state::{HolderInfo, Root, Session, SessionId};
use super::transition::{CLEARING_SESSIONS_MAX, Claim, TAKING_SESSIONS_MAX};
use async_trait::async_trait;

/// Places beyond [`Root::sessions_max`] with those for sessions that remove dead entries.
const CLEARING_PLACES: usize = TAKING_SESSIONS_MAX + CLEARING_SESSIONS_MAX;

/// A session that is about to enter the root.
pub(super) struct Entering<'a> {
    /// The root.
    pub(super) handle: &'a RootHandle,
    /// The new session's id.
    pub(super) id: SessionId,
    /// The process behind it.
    pub(super) holder: HolderInfo,
    /// Tells whether processes of this machine live.
    pub(super) processes: &'a dyn Processes,
    /// What is known of the spools on this machine.
    pub(super) spools: KnownSpools,
    /// What it enters for.
    pub(super) purpose: Purpose,
    /// The condition for its entry, on the root that is replaced.
    pub(super) permits: &'a (dyn Fn(&Root) -> Result<(), Refusal> + Sync),
}

/// What a session enters the root for. One that clears the root has a place in a full one.
pub(super) enum Purpose {
    /// To work.
    Work,
    /// To give up recovery bases.
    GiveUp,
    /// To end this dead maintenance session, of any machine. It leaves in the same replacement.
    End(SessionId),
}

impl<'a> Entering<'a> {
    /// Returns a new session that works, and knows of no spools.
    pub(super) fn new(
        handle: &'a RootHandle,
        holder: HolderInfo,
        processes: &'a dyn Processes,
    ) -> Self {
        Self {
            handle,
            id: draw_id(handle),
            holder,
            processes,
            spools: KnownSpools::default(),
            purpose: Purpose::Work,
            permits: &|_| Ok(()),
        }
    }
}

impl Entering<'_> {
    /// Registers the session and takes its volume in one replacement (steps `RegisterCas` and
    /// `TakeCas`). The same replacement removes sessions of this machine's crashed commands
    /// (`EndSessionCas`). Returns the session's first base epoch.
    pub(super) async fn enter(&self, volume: Option<(&str, Claim)>) -> Result<u64, RootError> {
        let handle = self.handle;
        let mut transition = Enter {
            entering: self,
            volume,
        };
        Ok(handle.update(&mut transition).await?.output)
    }

    /// As [`Self::enter`] without a volume, on the newest root known.
    pub(super) async fn enter_known(&self) -> Result<u64, RootError> {
        let mut transition = Enter {
            entering: self,
            volume: None,
        };
        Ok(self.handle.update_known(&mut transition).await?.output)
    }
}

struct Enter<'a, 'b> {
    entering: &'a Entering<'b>,
    volume: Option<(&'a str, Claim)>,
}

impl Enter<'_, '_> {
    /// Returns the maintenance sessions that ran on this machine and whose process has ended, by
    /// itself or with an earlier boot.
    fn dead_sessions(&self, root: &Root) -> Vec<SessionId> {
        let Entering {
            holder, processes, ..
        } = self.entering;
        let is_dead = |session: &Session| {
            session.volume.is_none()
                && session.judge_locally(holder, *processes) == LocalVerdict::Dead
        };
        let dead = root.sessions.iter().filter(|(_, session)| is_dead(session));
        dead.map(|(id, _)| *id).collect()
    }
}

#[async_trait]
impl Transition for Enter<'_, '_> {
    /// The epoch in which the session is registered.
    type Output = u64;

    fn session(&self) -> Option<SessionId> {
        None
    }

    async fn apply(&mut self, next: &mut Root) -> Result<u64, RootError> {
        // These go first, because they may be what fills the root.
        let Entering {
            id,
            holder,
            spools,
            purpose,
            permits,
            ..
        } = self.entering;
        let before = next.sessions.len();
        for dead in self.dead_sessions(next) {
            next.remove_dead(dead)?;
        }
        if let Purpose::End(dead) = purpose {
            next.remove_dead(*dead)?;
        }
        next.drop_recovery_bases(&spools.empty);
        permits(next)?;
        let places = match (self.volume, purpose) {
            (Some((volume, _)), _) => next.places_to_take(volume),
            (None, Purpose::Work) => next.sessions_max(),
            // The root does not grow if a session leaves it.
            (None, Purpose::GiveUp | Purpose::End(_)) => {
                before.max(next.sessions_max() + CLEARING_PLACES)
            }
        };
        next.register_within(*id, holder.clone(), places)?;
        next.note_spool(*id, spools.own);
        if let Some((volume, claim)) = self.volume {
            next.claim(*id, volume, claim)?;
        }
        Ok(next.epoch)
    }

    async fn seen(&mut self, root: &Root) -> Result<bool, RootError> {
        // Session ids are random, so no other session registers this one.
        Ok(root.sessions.contains_key(&self.entering.id))
    }
}

/// Draws the id of a new session.
pub(super) fn draw_id(handle: &RootHandle) -> SessionId {
    let mut id = [0; 8];
    handle.entropy().fill(&mut id);
    SessionId(u64::from_le_bytes(id))
}
