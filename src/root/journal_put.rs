//! The creation of a journal under a name that only its session uses.
//!
//! Owns what an answer says about it: an object with the same bytes is this session's own, from an
//! earlier request; one with other bytes is another machine's that has its identity.

use super::error::RootError;
use super::handle::RootHandle;
use super::refusal::Refusal;
use super::retry::{Pauses, bounded_by_silence};
use bkfs_store::{Operation, StoreErrorKind};
use bytes::Bytes;

/// The number of answers that must report other bytes under a number of this session before the
/// session counts as fenced.
const FOREIGN_ANSWERS: u32 = 3;

/// Creates a journal. Repeats the request with the same bytes while the store does not answer.
///
/// A request takes as long as its bytes move. After one without an answer they change nothing: the
/// store may take bodies and never answer. Nor do they once a request was refused after the
/// deadline: the store layer repeats it by itself.
///
/// Cancel safety: dropped, it leaves the journal, or none, or one that arrives later.
///
/// # Errors
/// [`RootError::Refused`] with [`Refusal::Fenced`] if several answers report other bytes under this
/// name; [`RootError::Store`] if the store does not acknowledge the journal, which may be there now
/// or later.
pub(super) async fn create_own(
    handle: &RootHandle,
    key: &str,
    body: &Bytes,
) -> Result<(), RootError> {
    let policy = handle.policy();
    let store = handle.store();
    let mut pauses = Pauses::new(&policy, &**handle.entropy());
    let signs = store.signs();
    let mut is_unanswered = false;
    let mut differing = 0;
    loop {
        let created = store.put_new(key, vec![body.clone()]);
        let patience = pauses.policy_for(body.len());
        let is_late = |operation| signs.was_refused_after(operation, key, pauses.deadline());
        let moved = || {
            let moved = signs.sent_at();
            moved.filter(|_| !is_unanswered && !is_late(Operation::PutNew))
        };
        let put = bounded_by_silence(&patience, Operation::PutNew, key, moved, created);
        let error = match put.await {
            Ok(_) => return Ok(()),
            Err(error) => error,
        };
        is_unanswered |= error.kind() == StoreErrorKind::OutcomeUnknown;
        if error.kind() == StoreErrorKind::AlreadyExists {
            let moved = || signs.received_at().filter(|_| !is_late(Operation::Get));
            let there = store.get(key);
            match bounded_by_silence(&patience, Operation::Get, key, moved, there).await {
                Ok((there, _)) if there == *body => return Ok(()),
                // An answer may arrive damaged, so several must agree.
                Ok(_) if differing + 1 == FOREIGN_ANSWERS => {
                    return Err(Refusal::Fenced { by: None }.into());
                }
                Ok(_) => differing += 1,
                Err(error) if policy.bears(&error) || error.is_not_found() => {}
                Err(error) => return Err(error.into()),
            }
        } else if !policy.bears(&error) {
            return Err(error.into());
        }
        pauses.pause(&error).await.map_err(|_| error)?;
    }
}
