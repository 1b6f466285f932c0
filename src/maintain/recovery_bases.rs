//! The states that the spools of ended sessions are based on, for code that goes through everything
//! that is needed.
//!
//! Owns the way from a ground of the root to its commit record, and the name of a ground in
//! reports.

use bkfs_chunker::depot::Depot;
use bkfs_chunker::error::DepotError;
use bkfs_chunker::id::{Id, Kind};

use crate::root::error::RootError;
use crate::root::record::CommitRecord;
use crate::root::state::Ground;

/// Returns the name of a ground in reports.
pub fn name_of(ground: &Ground) -> String {
    let (session, host, volume) = (ground.session, ground.host(), &ground.volume);
    format!("the spool on host {host} (ended session {session} of volume {volume})")
}

/// Reads a commit record. Returns none if it cannot be read or decoded: the check of the packs
/// reports that where the record is stored.
///
/// # Errors
/// [`RootError::Content`] if the store as a whole cannot be read (`Store`, `Stalled`).
pub async fn record_of(depot: &Depot, id: Id) -> Result<Option<CommitRecord>, RootError> {
    match depot.read_blob(Kind::Commit, id).await {
        Ok(bytes) => Ok(CommitRecord::decode(&bytes).ok()),
        Err(DepotError::Store(error)) if !error.is_of_one_object() => {
            Err(DepotError::Store(error).into())
        }
        Err(error @ DepotError::Stalled { .. }) => Err(error.into()),
        Err(_) => Ok(None),
    }
}
