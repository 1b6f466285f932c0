//! Lists of the root that a handle reads.
//!
//! Owns the reading of a root together with its kept snapshots, what is tried again on a newer
//! root, and the writer of a session of the handle. [`super::lists`] loads and writes the lists.

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

/// Most roots on which [`RootHandle::while_it_stands`] tries its work.
const ROOTS_MAX: u32 = 8;

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

impl RootHandle {
    /// Runs `work` on the newest root, and on the next if an object that this one names vanishes
    /// (rule 10).
    ///
    /// # Errors
    /// Those of the work on a root that still stands; [`RootError::Contended`] after eight roots.
    pub async fn while_it_stands<T>(
        &self,
        mut work: impl AsyncFnMut(Arc<RootView>) -> Result<T, RootError>,
    ) -> Result<T, RootError> {
        let mut view = self.refresh().await?;
        for _ in 0..ROOTS_MAX {
            match work(view.clone()).await {
                Ok(done) => return Ok(done),
                Err(error) => view = self.moved_on(&view, error).await?,
            }
        }
        Err(RootError::Contended {
            attempts: ROOTS_MAX,
        })
    }

    /// Returns the newer root if the root has moved since `base`: that is why an object is missing
    /// (rule 10).
    ///
    /// # Errors
    /// `error` itself if that is not why; store errors.
    pub async fn moved_on(
        &self,
        base: &RootView,
        error: RootError,
    ) -> Result<Arc<RootView>, RootError> {
        match error.wants_newer_root() {
            true => self.moved(base, error).await,
            false => Err(error),
        }
    }

    /// Returns the newer root if the root has moved since `base`, and else `error`.
    pub(super) async fn moved(
        &self,
        base: &RootView,
        error: RootError,
    ) -> Result<Arc<RootView>, RootError> {
        let view = self.refresh().await?;
        match view.root.mark() == base.root.mark() {
            true => Err(error),
            false => Ok(view),
        }
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
