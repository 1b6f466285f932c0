//! What a commit needs of the session that stores its contents.
//!
//! Owns: the traits, and which request of the root is which call of the ingest. Does not own: the
//! steps of a commit (`commit`), nor how objects are made and sent (the chunker).

use std::collections::HashSet;

use async_trait::async_trait;
use bkfs_chunker::catalog::{IndexRef, IndexSources};
use bkfs_chunker::id::{Id, Kind};
use bkfs_chunker::ingest::{FinishedPacks, Ingest, Mark};
use bkfs_chunker::pack::PackName;
use bytes::Bytes;

use crate::root::error::RootError;
use crate::root::lists::ListWriter;

/// Finishes the packs of a session: puts them into the bucket, and lists them in index objects.
#[async_trait]
pub trait FinishPacks: Send + Sync {
    /// A point in the session's stream of references: see [`Ingest::mark`].
    type Mark: Copy + Send + Sync;

    /// Uploads everything that was stored before this call, and lists it in index objects that
    /// follow `current`: those of the root that may be absorbed. Returns once all of it is in the
    /// bucket.
    ///
    /// Cancel safety: dropped, it leaves the packs to the next call, and maybe an index object that
    /// no root names.
    ///
    /// # Errors
    /// [`RootError::Content`] if the upload stalls (call again) or has failed for good.
    async fn finish_since(
        &self,
        mark: Self::Mark,
        current: &[IndexRef],
    ) -> Result<FinishedPacks, RootError>;

    /// Records that the root holds `finished`.
    fn committed(&self, finished: FinishedPacks);

    /// Records that the root does not hold `finished` and never will.
    fn conflicted(&self, finished: FinishedPacks);
}

/// The storage that a commit needs: it stores contents for the session of the commit.
#[async_trait]
pub trait Uploads: FinishPacks + ListWriter + 'static {
    /// Stores a commit record as a blob of kind commit, and returns its id.
    ///
    /// Cancel safety: dropped, it leaves nothing, or a record that no root names.
    ///
    /// # Errors
    /// [`RootError::Content`] if it cannot be stored.
    async fn store_record(&self, record: Vec<u8>) -> Result<Id, RootError>;

    /// Returns a commit record of any session, found by `sources` without the packs in `condemned`.
    /// Verifies only its id.
    ///
    /// Cancel safety: it only reads.
    ///
    /// # Errors
    /// [`RootError::Content`] or [`RootError::Store`] if it or the index cannot be read.
    async fn read_record(
        &self,
        sources: &IndexSources,
        condemned: &HashSet<PackName>,
        id: Id,
    ) -> Result<Bytes, RootError>;

    /// Returns those of `packs` that no index object of `sources` lists, or that are in `condemned`.
    ///
    /// Cancel safety: it only reads.
    ///
    /// # Errors
    /// [`RootError::Content`] if the index cannot be loaded.
    async fn not_live(
        &self,
        sources: &IndexSources,
        condemned: &HashSet<PackName>,
        packs: &[PackName],
    ) -> Result<Vec<PackName>, RootError>;
}

#[async_trait]
impl ListWriter for Ingest {
    async fn put_list(&self, payload: Vec<u8>) -> Result<PackName, RootError> {
        Ok(Ingest::put_list(self, &payload).await?)
    }
}

#[async_trait]
impl FinishPacks for Ingest {
    type Mark = Mark;

    async fn finish_since(
        &self,
        mark: Mark,
        current: &[IndexRef],
    ) -> Result<FinishedPacks, RootError> {
        Ok(Ingest::finish_since(self, mark, current).await?)
    }

    fn committed(&self, finished: FinishedPacks) {
        Ingest::committed(self, finished);
    }

    fn conflicted(&self, finished: FinishedPacks) {
        Ingest::conflicted(self, finished);
    }
}

#[async_trait]
impl Uploads for Ingest {
    async fn store_record(&self, record: Vec<u8>) -> Result<Id, RootError> {
        Ok(self.store_blob(Kind::Commit, Bytes::from(record)).await?)
    }

    async fn read_record(
        &self,
        sources: &IndexSources,
        condemned: &HashSet<PackName>,
        id: Id,
    ) -> Result<Bytes, RootError> {
        let content_store = self.content_store();
        content_store.load_index(sources, condemned).await?;
        Ok(content_store.read_blob(Kind::Commit, id).await?)
    }

    async fn not_live(
        &self,
        sources: &IndexSources,
        condemned: &HashSet<PackName>,
        packs: &[PackName],
    ) -> Result<Vec<PackName>, RootError> {
        let content_store = self.content_store();
        content_store.load_index(sources, condemned).await?;
        Ok(content_store.not_live(packs).await?)
    }
}
