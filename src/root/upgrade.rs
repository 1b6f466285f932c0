//! The replacement of the root that makes a small root a large one (docs/PROTOCOL.md, rule 15).
//!
//! Owns its condition: no other session stands in the root that is replaced, live or ending. Such a
//! session would read the root where those of a large one ask for a fence, and a program of version
//! 1 would take its volume without writing one.

use super::error::RootError;
use super::form::Form;
use super::handle::{RootHandle, Transition};
use super::holder::Processes;
use super::session::OpenSession;
use super::state::{HolderInfo, Root, SessionId};
use async_trait::async_trait;

/// Makes the root a large one, as `holder`. Returns false if it was one before.
///
/// Cancel safety: dropped, it leaves the root small or large, and its session maybe in it, until a
/// later command on this machine removes that.
///
/// # Errors
/// [`RootError::Refused`] with [`Refusal::Busy`](super::refusal::Refusal::Busy) if another session
/// stands in the root; [`RootError::OutcomeUnknown`] if the root may be large; those of
/// [`OpenSession::open_if`].
pub async fn make_large(
    handle: &RootHandle,
    holder: HolderInfo,
    processes: &dyn Processes,
) -> Result<bool, RootError> {
    let is_large = |root: &Root| root.form == Form::Large;
    if is_large(&handle.refresh().await?.root) {
        return Ok(false);
    }
    let permits = |root: &Root| match is_large(root) {
        true => Ok(()),
        false => root.require_no_session(),
    };
    let session = OpenSession::open_if(handle, holder, &permits, processes).await?;
    let mut change = MakeLarge {
        session: session.id(),
    };
    session.end_by(&mut change).await?;
    Ok(true)
}

struct MakeLarge {
    session: SessionId,
}

#[async_trait]
impl Transition for MakeLarge {
    type Output = ();

    fn session(&self) -> Option<SessionId> {
        Some(self.session)
    }

    async fn apply(&mut self, next: &mut Root) -> Result<(), RootError> {
        next.end(self.session)?;
        if next.form == Form::Small {
            next.require_no_session()?;
        }
        next.form = Form::Large;
        Ok(())
    }

    async fn seen(&mut self, root: &Root) -> Result<bool, RootError> {
        if root.sessions.contains_key(&self.session) {
            return Ok(false);
        }
        match root.form {
            Form::Large => Ok(true),
            Form::Small => Err(RootError::OutcomeUnknown {
                reason: "another program has ended the session of this command".to_owned(),
            }),
        }
    }
}
