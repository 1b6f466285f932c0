//! The states that the spools of ended sessions are based on, for code that goes through everything
//! that is needed.
//!
//! Owns the way from a recovery base of the root to its commit record, and the name of a recovery
//! base in reports.

use bkfs_chunker::content_store::ContentStore;
use bkfs_chunker::error::ContentError;
use bkfs_chunker::id::{Id, Kind};

use crate::root::error::RootError;
use crate::root::record::CommitRecord;
use crate::root::state::RecoveryBase;

/// Returns the name of a recovery base in reports.
pub fn name_of(recovery_base: &RecoveryBase) -> String {
    let (session, host, volume) = (
        recovery_base.session,
        recovery_base.host(),
        &recovery_base.volume,
    );
    format!("the spool on host {host} (ended session {session} of volume {volume})")
}

/// Reads a commit record. Returns none if it cannot be read or decoded: the check of the packs
/// reports that where the record is stored.
///
/// # Errors
/// [`RootError::Content`] if the store as a whole cannot be read (`Store`, `Stalled`).
pub async fn record_of(
    content_store: &ContentStore,
    id: Id,
) -> Result<Option<CommitRecord>, RootError> {
    match content_store.read_blob(Kind::Commit, id).await {
        Ok(bytes) => Ok(CommitRecord::decode(&bytes).ok()),
        Err(ContentError::Store(error)) if !error.is_of_one_object() => {
            Err(ContentError::Store(error).into())
        }
        Err(error @ ContentError::Stalled { .. }) => Err(error.into()),
        Err(_) => Ok(None),
    }
}
