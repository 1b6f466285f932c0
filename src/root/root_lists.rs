//! Lists of the root that a handle reads.
//!
//! Owns the reading of a root together with its kept snapshots, and the writer of a session of the
//! handle. [`super::lists`] loads and writes the lists.

use super::error::RootError;
use super::handle::RootHandle;
use super::lists::{DirectLists, Lists};
use super::snapshots::SnapshotList;
use super::state::SessionId;
use super::view::RootView;
use std::sync::Arc;

/// The number of times that a missing list makes the root be read again (rule 10) before the list
/// counts as damaged.
const VANISHED_MAX: u32 = 8;

impl Lists {
    /// Returns the root as it is now, and its kept snapshots. Reads the root again if a list is
    /// missing (rule 10).
    ///
    /// # Errors
    /// [`RootError::Damaged`] if a list was missing from eight roots in a row; the errors of
    /// [`RootHandle::refresh`] and [`Lists::snapshots`].
    pub async fn current_snapshots(
        &self,
        handle: &RootHandle,
    ) -> Result<(Arc<RootView>, SnapshotList), RootError> {
        let mut view = handle.refresh().await?;
        for _ in 0..VANISHED_MAX {
            let error = match self.snapshots(&view.root).await {
                Ok(snapshots) => return Ok((view, snapshots)),
                Err(error) => error,
            };
            let fresh = handle.refresh().await?;
            if !matches!(&error, RootError::Store(error) if error.is_not_found())
                || fresh.root.mark() == view.root.mark()
            {
                return Err(error);
            }
            view = fresh;
        }
        Err(RootError::damaged(
            "lists/",
            "lists vanish faster than they can be read",
        ))
    }
}

impl DirectLists {
    /// Returns the writer of `session`, which is registered in the root and has written nothing
    /// yet.
    pub fn new(handle: &RootHandle, session: SessionId) -> Self {
        Self::of(
            session,
            handle.store().clone(),
            handle.keyring().clone(),
            handle.entropy().clone(),
            handle.policy(),
        )
    }
}
