//! Taking what is dead out of the root: sessions of maintenance, and what is known of spools that
//! are given up (docs/PROTOCOL.md, rule 7).
//!
//! Owns those two replacements. When a session counts as dead is for [`super::session`] and
//! [`super::holder`] to say.

use super::error::RootError;
use super::handle::{RootHandle, Transition};
use super::session::OpenSession;
use super::state::{Root, SessionId};
use async_trait::async_trait;

/// Step `EndSessionCas`: a dead session of maintenance leaves the root, by the hand of `by`, a live session.
///
/// # Errors
/// A refusal of kind `Held` if the dead one has a volume: that is ended by taking the volume.
pub async fn remove_dead(
    handle: &RootHandle,
    by: &OpenSession,
    dead: SessionId,
) -> Result<(), RootError> {
    let mut transition = RemoveDead { by: by.id(), dead };
    handle.update(&mut transition).await?;
    Ok(())
}

struct RemoveDead {
    by: SessionId,
    dead: SessionId,
}

#[async_trait]
impl Transition for RemoveDead {
    type Output = ();

    fn session(&self) -> Option<SessionId> {
        Some(self.by)
    }

    async fn apply(&mut self, next: &mut Root) -> Result<(), RootError> {
        Ok(next.remove_dead(self.dead)?)
    }

    async fn seen(&mut self, root: &Root) -> Result<bool, RootError> {
        Ok(!root.sessions.contains_key(&self.dead))
    }
}

/// What only the spool of an ended session holds is given up, by the hand of `by`, a live session:
/// its ground leaves the root.
///
/// # Errors
/// A refusal of kind `Fenced` if `by` is no more in the root; store errors.
pub async fn give_up(
    handle: &RootHandle,
    by: &OpenSession,
    ended: SessionId,
) -> Result<(), RootError> {
    let mut transition = GiveUp { by: by.id(), ended };
    handle.update(&mut transition).await?;
    Ok(())
}

struct GiveUp {
    by: SessionId,
    ended: SessionId,
}

#[async_trait]
impl Transition for GiveUp {
    type Output = ();

    fn session(&self) -> Option<SessionId> {
        Some(self.by)
    }

    async fn apply(&mut self, next: &mut Root) -> Result<(), RootError> {
        next.drop_grounds(&[self.ended]);
        Ok(())
    }

    async fn seen(&mut self, root: &Root) -> Result<bool, RootError> {
        Ok(root.ground_of(self.ended).is_none())
    }
}
