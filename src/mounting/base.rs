//! The base epoch of a mount: from which collection on it needs nothing of what was condemned (protocol.md, rule 4).
//!
//! Owns: when the base is raised, without which a mount that lives for months would hold back every deletion. Does not own: publishing it (`root::heartbeat`), storing again what
//! was condemned (`volume::rescue`).
//!
//! In this order: the index is brought up to a root of the new epoch, so that every reference made from then on is resolved in it; if a journal stands that no commit covers,
//! or an uncommitted reference names what is not live, a commit is made, which begins after that, covers the journals, and stores again what was condemned; then all that uncommitted
//! references name is looked up; and only if all of that is live is the base raised. So a journal that names a condemned pack is never replaced, but covered before the pack may go.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use bkfs_chunker::pack::PackName;

use crate::mounting::MountingError;
use crate::mounting::publish::Publisher;
use crate::repository::Repository;
use crate::root::error::RootError;
use crate::root::heartbeat::{Base, HEARTBEAT_INTERVAL};
use crate::root::session::OpenSession;
use crate::root::state::SessionId;
use crate::volume::Volume;

/// Raises the base of one session.
pub(super) struct BaseKeeper {
    repository: Arc<Repository>,
    session: SessionId,
    base: Base,
    volume: Weak<Volume>,
    publisher: Arc<Publisher>,
}

impl BaseKeeper {
    pub(super) fn new(
        repository: &Arc<Repository>,
        open: &OpenSession,
        volume: &Arc<Volume>,
        publisher: &Arc<Publisher>,
    ) -> Self {
        Self {
            repository: repository.clone(),
            session: open.id(),
            base: open.heartbeat().base(),
            volume: Arc::downgrade(volume),
            publisher: publisher.clone(),
        }
    }

    /// Until the volume is gone or has failed.
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
                // A commit that fails says so to whoever waits for it.
                tracing::debug!("the base epoch is not raised: {error}");
                false
            });
            drop(volume);
            if !is_raised {
                tokio::time::sleep(HEARTBEAT_INTERVAL).await;
            }
        }
    }

    /// Steps `BaseRefresh` and `BaseCheck`. False if something is still needed that was condemned.
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
        let depot = &self.repository.depot;
        let loaded = depot.load_index(&view.root.index, &condemned).await;
        loaded.map_err(RootError::from)?;
        if volume.has_uncovered() || self.leans_on_condemned(volume) {
            volume.commit().await?;
            volume.let_go().await;
            if self.leans_on_condemned(volume) {
                return Ok(false);
            }
        }
        self.base.raise(epoch);
        Ok(true)
    }

    /// Whether uncommitted references name what is not live, or what was stored again and is in no root yet.
    fn leans_on_condemned(&self, volume: &Volume) -> bool {
        // In this order: what is stored again is noted first, and is then relied on no more.
        let relied: Vec<PackName> = volume.ingest().relied_on().into_iter().collect();
        let has_rescued = self.publisher.has_rescued.load(Ordering::SeqCst);
        let depot = &self.repository.depot;
        has_rescued && volume.is_dirty() || !depot.not_live(&relied).is_empty()
    }
}
