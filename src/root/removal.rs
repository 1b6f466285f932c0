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

/// Nothing is kept any more for the spools of these ended sessions, by the hand of `by`, a live
/// session: their grounds leave the root.
///
/// # Errors
/// A refusal of kind `Fenced` if `by` is no more in the root; store errors.
pub async fn give_up(
    handle: &RootHandle,
    by: &OpenSession,
    ended: &[SessionId],
) -> Result<(), RootError> {
    let mut transition = GiveUp { by: by.id(), ended };
    handle.update(&mut transition).await?;
    Ok(())
}

struct GiveUp<'a> {
    by: SessionId,
    ended: &'a [SessionId],
}

#[async_trait]
impl Transition for GiveUp<'_> {
    type Output = ();

    fn session(&self) -> Option<SessionId> {
        Some(self.by)
    }

    async fn apply(&mut self, next: &mut Root) -> Result<(), RootError> {
        next.drop_grounds(self.ended);
        Ok(())
    }

    async fn seen(&mut self, root: &Root) -> Result<bool, RootError> {
        let mut ended = self.ended.iter();
        Ok(!ended.any(|ended| root.ground_of(*ended).is_some()))
    }
}
