//! Brings the spool of a dead session into the bucket.
//!
//! Owns the order (docs/PROTOCOL.md, rule 1): data packs, then metadata packs, then objects that
//! name them. The caller knows the journals, so it decides which objects are brought. The session
//! that takes the volume over replays the journals from the bucket.

use std::sync::atomic::{AtomicU64, Ordering};

use futures::{StreamExt, TryStreamExt};

use super::{LeftObject, Leftover, SpoolError};
use crate::content_store::ContentStore;
use crate::error::ContentError;

/// Concurrent uploads; each object is in memory as a whole.
const SENT_AT_ONCE: usize = 4;

/// Progress of a replay. Other tasks may read it.
#[derive(Debug, Default)]
pub struct ReplayProgress {
    /// Bytes read from the spool and acknowledged by the bucket.
    pub bytes: AtomicU64,
    /// Number of these objects.
    pub objects: AtomicU64,
}

impl Leftover {
    /// Returns the objects worth replaying, in the order of arrival: everything up to the last
    /// object that names others. No object names the later ones.
    pub fn named(&self) -> &[LeftObject] {
        let last = self.objects().iter().rposition(|object| object.rank() == 2);
        &self.objects()[..last.map_or(0, |last| last + 1)]
    }

    /// Brings `objects` of this spool, which are in the order of arrival, into the bucket. They
    /// stay in the spool: see [`Leftover::discard`]. Dropped, it has brought some of them, and none
    /// before the objects that it names.
    ///
    /// # Errors
    /// `Spool` if the disk fails or one of them is damaged, `Store` or `Stalled` if the store
    /// fails. The same call may be made again.
    pub async fn replay(
        &self,
        content_store: &ContentStore,
        objects: &[&LeftObject],
        progress: &ReplayProgress,
    ) -> Result<(), ContentError> {
        for wanted in 0..3 {
            let objects = objects.iter().filter(|object| object.rank() == wanted);
            let sends = objects.map(|object| self.send(content_store, object, progress));
            // Journals are numbered, so they are sent one after the other.
            let at_once = if wanted == 2 { 1 } else { SENT_AT_ONCE };
            futures::stream::iter(sends.collect::<Vec<_>>())
                .buffered(at_once)
                .try_collect::<()>()
                .await?;
        }
        Ok(())
    }

    async fn send(
        &self,
        content_store: &ContentStore,
        object: &LeftObject,
        progress: &ReplayProgress,
    ) -> Result<(), ContentError> {
        let damaged = || SpoolError::Damaged {
            path: object.path().display().to_string(),
        };
        let bytes = self.read(object).await?.ok_or_else(damaged)?;
        let link = &content_store.shared().link;
        let body = [bytes];
        link.progress
            .watch(link.create(&object.key, &body))
            .await??;
        progress.bytes.fetch_add(object.length, Ordering::Relaxed);
        progress.objects.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}
