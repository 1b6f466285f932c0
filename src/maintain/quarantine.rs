//! Puts damage in quarantine while mounts and collections go on (docs/PROTOCOL.md, rule 11).
//!
//! Owns one replacement of the root, made by a session of its own that holds no volume. Places that
//! are in quarantine already stay there.

use std::collections::HashSet;

use async_trait::async_trait;
use bkfs_chunker::catalog::PackLocation;
use bkfs_chunker::content_store::ContentStore;
use bkfs_chunker::ingest::Ingest;

use crate::root::error::RootError;
use crate::root::forget::rewrite;
use crate::root::handle::{RootHandle, Transition};
use crate::root::holder::Processes;
use crate::root::lists::Lists;
use crate::root::session::OpenSession;
use crate::root::snapshots::QuarantineEntry;
use crate::root::state::{HolderInfo, Root, SessionId};

/// Puts places in quarantine.
///
/// Cancel safety: dropped half-way, it leaves the places in quarantine or not, and may leave its
/// session in the root.
///
/// # Errors
/// Those of [`OpenSession::open`] and of [`RootHandle::update`]; [`RootError::Store`] or
/// [`RootError::Content`] if a list cannot be read or stored. Calling it again is safe.
pub async fn add(
    handle: &RootHandle,
    lists: &Lists,
    content_store: &ContentStore,
    holder: HolderInfo,
    processes: &dyn Processes,
    places: &[PackLocation],
) -> Result<(), RootError> {
    let session = OpenSession::open(handle, holder, None, processes).await?;
    let ingest = Ingest::new(content_store.clone(), session.id().0);
    let mut change = Quarantine {
        session: session.id(),
        lists,
        ingest: &ingest,
        places,
    };
    let made = handle.update(&mut change).await;
    if let Err(left) = session.end().await {
        tracing::warn!(error = %left, "the session of the quarantine stays in the root");
    }
    made.map(|_| ())
}

struct Quarantine<'a> {
    session: SessionId,
    lists: &'a Lists,
    ingest: &'a Ingest,
    places: &'a [PackLocation],
}

#[async_trait]
impl Transition for Quarantine<'_> {
    type Output = ();

    fn session(&self) -> Option<SessionId> {
        Some(self.session)
    }

    async fn apply(&mut self, next: &mut Root) -> Result<(), RootError> {
        let shards = self.lists.quarantine_shards(&next.quarantine).await?;
        let known: HashSet<PackLocation> = self.lists.quarantine(next).await?;
        let new = self.places.iter().filter(|place| !known.contains(place));
        let entry = |place: &PackLocation| QuarantineEntry {
            pack: place.pack,
            frame: place.frame,
        };
        let joining: Vec<QuarantineEntry> = new.map(entry).collect();
        if joining.is_empty() {
            return Ok(());
        }
        let writer = self.ingest;
        let change = rewrite(writer, &next.quarantine, &shards, |_| false, joining).await?;
        Ok(next.change_quarantine(&change)?)
    }

    async fn seen(&mut self, root: &Root) -> Result<bool, RootError> {
        let known = self.lists.quarantine(root).await?;
        Ok(self.places.iter().all(|place| known.contains(place)))
    }
}
