//! Removal of recovery bases from the root, of spools that are given up (docs/PROTOCOL.md, rule 7).
//!
//! Owns that replacement.

use super::error::RootError;
use super::handle::{RootHandle, Transition};
use super::session::OpenSession;
use super::state::{Root, SessionId};
use async_trait::async_trait;

/// Removes the recovery bases of these ended sessions from the root, in the name of the live
/// session `by`. The root then keeps nothing for their spools.
///
/// Cancel safety: dropped, it leaves the change unsent, or sent with an unknown outcome, which the
/// handle settles before its next change.
///
/// # Errors
/// [`RootError::Refused`] with [`Refusal::Fenced`](super::refusal::Refusal::Fenced) if `by` is
/// not live in the root; the other errors of [`RootHandle::update`].
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
        next.drop_recovery_bases(self.ended);
        Ok(())
    }

    async fn seen(&mut self, root: &Root) -> Result<bool, RootError> {
        let mut ended = self.ended.iter();
        Ok(!ended.any(|ended| root.recovery_base_of(*ended).is_some()))
    }
}
