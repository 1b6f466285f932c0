//! The base epoch of a mount: nothing that was condemned at or before it is needed
//! (docs/PROTOCOL.md, rule 4).
//!
//! Owns: when the base is raised. Without that, a mount that lives for months would hold back every
//! deletion. Does not own: publishing the base (`root::heartbeat`), storing condemned blobs again
//! (`volume::rescue`).
//!
//! The order of the steps:
//!
//! 1. The index is loaded for a root of the new epoch. Every later reference is resolved in it.
//! 2. A commit is made if a journal stands that no commit covers, or if an uncommitted reference
//!    names a pack that is not live. The commit begins after step 1. It covers the journals and
//!    stores condemned blobs again.
//! 3. The packs that uncommitted references name are looked up again. The base is raised only if
//!    all of them are live.
//!
//! So a journal that names a condemned pack is never replaced. A commit covers it before the pack
//! may be deleted.

use std::sync::{Arc, Weak};

use bkfs_chunker::pack::PackName;

use crate::mounting::error::MountingError;
use crate::repository::Repository;
use crate::root::error::RootError;
use crate::root::heartbeat::{Base, HEARTBEAT_INTERVAL};
use crate::root::session::OpenSession;
use crate::root::state::SessionId;
use crate::volume::Volume;

/// Raises the base epoch of one session.
pub(super) struct BaseRaiser {
    repository: Arc<Repository>,
    session: SessionId,
    base: Base,
    volume: Weak<Volume>,
}

impl BaseRaiser {
    pub(super) fn new(
        repository: &Arc<Repository>,
        open: &OpenSession,
        volume: &Arc<Volume>,
    ) -> Self {
        Self {
            repository: repository.clone(),
            session: open.id(),
            base: open.heartbeat().base(),
            volume: Arc::downgrade(volume),
        }
    }

    /// Runs until the volume is dropped or has failed.
    pub(super) async fn run(self) {
        let mut roots = self.repository.handle.subscribe();
        loop {
            tokio::select! {
                _ = roots.changed() => {}
                () = tokio::time::sleep(HEARTBEAT_INTERVAL) => {}
            }
            let Some(volume) = self.volume.upgrade() else {
                return;
            };
            if volume.failure().is_some() {
                return;
            }
            let is_raised = self.raise(&volume).await.unwrap_or_else(|error| {
                // A commit that fails reports its error to its callers.
                tracing::debug!("the base epoch is not raised: {error}");
                false
            });
            drop(volume);
            if !is_raised {
                tokio::time::sleep(HEARTBEAT_INTERVAL).await;
            }
        }
    }

    /// Performs the steps `BaseRefresh` and `BaseCheck`. Returns false if something condemned is
    /// still needed.
    async fn raise(&self, volume: &Volume) -> Result<bool, MountingError> {
        let view = self.repository.handle.current();
        let epoch = view.root.epoch;
        if epoch <= self.base.get() {
            return Ok(true);
        }
        view.root
            .require_live(self.session)
            .map_err(RootError::from)?;
        let condemned = self.repository.lists.condemned(&view.root).await?;
        let content_store = &self.repository.content_store;
        let sources = self.repository.lists.sources(&view.root).await?;
        let loaded = content_store.load_index(&sources, &condemned).await;
        loaded.map_err(RootError::from)?;
        if volume.has_uncovered() || self.leans_on_condemned(volume).await? {
            volume.commit_for_the_base().await?;
            volume.let_go().await;
            if self.leans_on_condemned(volume).await? {
                return Ok(false);
            }
        }
        self.base.raise(epoch);
        Ok(true)
    }

    /// Returns true if an uncommitted reference names a pack that is not live, or if blobs were
    /// stored again that no root holds yet.
    async fn leans_on_condemned(&self, volume: &Volume) -> Result<bool, RootError> {
        // This order matters: a rescue sets `has_rescued` before it removes packs from the
        // relied-on set.
        let relied: Vec<PackName> = volume.ingest().relied_on().into_iter().collect();
        let has_rescued = volume.has_rescued();
        let content_store = &self.repository.content_store;
        Ok(has_rescued && volume.is_dirty() || !content_store.not_live(&relied).await?.is_empty())
    }
}
