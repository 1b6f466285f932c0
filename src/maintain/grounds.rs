//! What the spools of ended sessions stand on, for those who go through all that is needed.
//!
//! Owns the way from a ground of the root to its trees, and its name for people.

use bkfs_chunker::depot::Depot;
use bkfs_chunker::error::DepotError;
use bkfs_chunker::id::{Id, Kind};

use crate::root::error::RootError;
use crate::root::record::CommitRecord;
use crate::root::state::Ground;

/// What reports call the state that a spool stands on.
pub fn name_of(ground: &Ground) -> String {
    let (session, host, volume) = (ground.session, ground.host(), &ground.volume);
    format!("the spool on host {host} (ended session {session} of volume {volume})")
}

/// A commit record; none if it cannot be read, which is told where it lies.
///
/// # Errors
/// The store cannot be read.
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
