//! How a session leaves the root (docs/PROTOCOL.md, rule 2).
//!
//! Owns the end of a session, by a replacement of its own or by the one that makes its only change.
//! [`super::session`] has the beginning.

use super::error::RootError;
use super::fence;
use super::handle::{Applied, RootHandle, Transition};
use super::refusal::Refusal;
use super::sent::Sent;
use super::session::OpenSession;
use super::state::{Root, SessionId};
use async_trait::async_trait;

impl OpenSession {
    /// Removes the session from the root and sets its volume free. Call this after the last commit,
    /// which must cover every accepted operation.
    ///
    /// Cancel safety: dropped, it leaves the session in the root without a heartbeat, or out of it,
    /// and its heartbeat object maybe in the bucket.
    ///
    /// # Errors
    /// [`RootError::Refused`] with [`Refusal::Fenced`](super::refusal::Refusal::Fenced) if the
    /// session was taken over before; the other errors of [`RootHandle::update`].
    pub async fn end(self) -> Result<(), RootError> {
        let Self {
            handle,
            id,
            heartbeat,
            ..
        } = self;
        heartbeat.stop().await;
        let mut end = End { id, covered: 0 };
        handle.update(&mut end).await?;
        if let Some(sent) = handle.memory().sent() {
            // If a commit does not cover everything, the note stays, and the next mount reports the
            // loss.
            let is_covered = |sent: Sent| sent.last <= end.covered;
            if sent.recall(id).await.is_none_or(is_covered) {
                sent.forget([id]).await;
            }
        }
        delete_heartbeat(&handle, id).await;
        Ok(())
    }

    /// Ends a session of this process that has no [`OpenSession`] any more: its entry had no
    /// answer, it could not begin, or its end failed. It must have acknowledged no operation that
    /// no commit covers, since the journals of such operations are then lost.
    ///
    /// Cancel safety: dropped, it leaves the session in the root or out of it, and can be repeated.
    ///
    /// # Errors
    /// Those of [`RootHandle::settle`] and [`RootHandle::update`]. The session may still be in the
    /// root.
    pub async fn end_left(handle: &RootHandle, id: SessionId) -> Result<(), RootError> {
        // The replacement by which it enters may have had no answer, and be made only now.
        let mut view = handle.settle().await?;
        if view.root.require_live(id).is_ok() {
            let mut end = End { id, covered: 0 };
            match handle.update(&mut end).await {
                // Meanwhile another call ended it, or its volume was taken.
                Ok(_) | Err(RootError::Refused(Refusal::Fenced { .. })) => {}
                Err(error) => return Err(error),
            }
            view = handle.current();
        }
        // One that is ending is removed by the new holder of its volume.
        if !view.root.sessions.contains_key(&id) {
            delete_heartbeat(handle, id).await;
        }
        Ok(())
    }

    /// Ends a session that could not begin to write. One that succeeded sessions of the same mount
    /// stays in the root, with the volume, if none of those is there any more: the next successor
    /// could not know that no other mount had the volume meanwhile.
    ///
    /// Cancel safety: as of [`Self::end`].
    ///
    /// # Errors
    /// Those of [`Self::end`] and [`RootHandle::settle`]. The session then stays in the root.
    pub async fn end_unbegun(self) -> Result<(), RootError> {
        if !self.former.is_empty() {
            // Its own commit may have removed them, and had no answer.
            let view = self.handle.settle().await?;
            let mut former = self.former.iter();
            if !former.any(|id| view.root.sessions.contains_key(id)) {
                return Ok(());
            }
        }
        self.end().await
    }

    /// Makes one change that also removes the session from the root: a replacement less than with
    /// [`Self::end`]. The change starts on the newest root known, as
    /// [`RootHandle::update_known`] does.
    ///
    /// Cancel safety: that of [`Self::end`]. The change may be made.
    ///
    /// # Errors
    /// Those of [`RootHandle::update`]. Unless the change may have been made, the session has then
    /// left the root, or the log says that it stays there.
    pub async fn end_by<T: Transition>(
        self,
        change: &mut T,
    ) -> Result<Applied<T::Output>, RootError> {
        let Self {
            handle,
            id,
            heartbeat,
            ..
        } = self;
        // A heartbeat that finds its session gone would complain.
        heartbeat.stop().await;
        let made = handle.update_known(change).await;
        if let Err(error) = &made {
            let mut end = End { id, covered: 0 };
            // This also settles a change without an answer.
            let ended = handle.update(&mut end).await;
            if let Err(left) = ended.map_err(|left| left.to_string()) {
                tracing::debug!(session = %id, %error, %left, "the session may stay in the root");
            }
        }
        delete_heartbeat(&handle, id).await;
        made
    }

    /// Makes one change that also gives the session, which has none, a volume.
    ///
    /// Cancel safety: dropped, it leaves the session in the root without a heartbeat, and the
    /// change maybe made.
    ///
    /// # Errors
    /// Those of [`RootHandle::update`]; [`RootError::OutcomeUnknown`] if the change was made and
    /// the session could not begin. The session has then left the root, or the log says that it
    /// stays there.
    pub(super) async fn hold_by<T: Transition>(
        self,
        volume: &str,
        change: &mut T,
    ) -> Result<(Self, Applied<T::Output>), RootError> {
        let applied = match self.handle.update_known(change).await {
            Ok(applied) => applied,
            Err(error) => {
                if let Err(left) = self.end().await {
                    tracing::warn!(%left, "a session that has no volume stays in the root");
                }
                return Err(error);
            }
        };
        let base = self.heartbeat.base().get();
        self.heartbeat.stop().await;
        let of = Some(volume.to_owned());
        let session = Self::registered(&self.handle, self.id, of, self.holder, base);
        let announce = session.heartbeat.announce(&session.handle, session.id);
        let begun = fence::begin(&session.handle, session.id, volume, announce).await;
        if let Err(error) = begun {
            if let Err(left) = session.end().await {
                tracing::warn!(%left, "a session that could not begin stays in the root");
            }
            let reason = error.to_string();
            return Err(RootError::OutcomeUnknown { reason });
        }
        Ok((session, applied))
    }
}

/// Deletes the heartbeat of a session that is in no root, where it is never read. If it cannot be
/// deleted (no permission, no answer), it stays as garbage.
async fn delete_heartbeat(handle: &RootHandle, id: SessionId) {
    let key = id.key();
    let deleted = handle.store().delete(&key);
    let left = match tokio::time::timeout(handle.policy().request_timeout, deleted).await {
        Ok(Ok(())) => return,
        Ok(Err(error)) => error.to_string(),
        Err(late) => late.to_string(),
    };
    tracing::debug!(session = %id, left, "the heartbeat object of an ended session stays behind");
}

struct End {
    id: SessionId,
    /// The last operation that a commit covers.
    covered: u64,
}

#[async_trait]
impl Transition for End {
    type Output = ();

    fn session(&self) -> Option<SessionId> {
        Some(self.id)
    }

    async fn apply(&mut self, next: &mut Root) -> Result<(), RootError> {
        let session = next.sessions.get(&self.id);
        self.covered = session.map_or(0, |session| session.covered);
        Ok(next.end(self.id)?)
    }

    async fn seen(&mut self, root: &Root) -> Result<bool, RootError> {
        // A session that is not in the root has ended, by this change or by a new holder that
        // replayed it. An ending session was taken over, and the next attempt is refused.
        Ok(!root.sessions.contains_key(&self.id))
    }
}
