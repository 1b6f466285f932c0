//! The check of rule 3 before a root takes packs (docs/PROTOCOL.md).
//!
//! Owns which packs a session may rely on in the root to be replaced.

use super::error::RootError;
use super::lists::Lists;
use super::record::Replayed;
use super::state::{Root, SessionId};
use super::uploads::Uploads;
use bkfs_chunker::ingest::FinishedPacks;
use bkfs_chunker::pack::PackName;

/// Checks rule 3 ‡: each pack relied on is live in the replaced root, or own by *its* floor. `by`
/// are the session, and the ended sessions that it replays.
///
/// Cancel safety: it only reads.
///
/// # Errors
/// [`RootError::Rebuild`] with the packs that are neither; a refusal if the session is not live;
/// those of [`Lists::condemned`] and [`Uploads::not_live`].
pub(super) async fn check_relied_on(
    next: &Root,
    finished: &FinishedPacks,
    (session, replayed): (SessionId, &[Replayed]),
    lists: &Lists,
    uploads: &impl Uploads,
) -> Result<(), RootError> {
    let floor = next.require_live(session)?.floor;
    let own = |pack: &PackName| {
        let of = SessionId(pack.session);
        if of == session {
            return pack.sequence >= floor;
        }
        // A new holder counts replayed sessions' packs as its own when it makes them live.
        let ended_session = next.sessions.get(&of);
        replayed.iter().any(|replayed| replayed.session == of)
            && finished.packs.contains(pack)
            && ended_session.is_some_and(|ended_session| pack.sequence >= ended_session.floor)
    };
    // A pack that becomes live must be own, too: below the floor it may be condemned.
    let foreign: Vec<_> = finished
        .relied_on
        .iter()
        .chain(&finished.packs)
        .filter(|pack| !own(pack))
        .copied()
        .collect();
    if foreign.is_empty() {
        return Ok(());
    }
    let condemned = lists.condemned(next).await?;
    let sources = lists.sources(next).await?;
    let packs = uploads.not_live(&sources, &condemned, &foreign).await?;
    if packs.is_empty() {
        Ok(())
    } else {
        Err(RootError::Rebuild { packs })
    }
}
