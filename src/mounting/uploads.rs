//! The root's [`Uploads`] over the chunker's ingest: records, lists and index objects on their way
//! to the bucket.
//!
//! Owns: which request of the root is which call of the ingest. Does not own: the steps of a commit
//! (`root::commit`), nor how objects are made and sent (the chunker).

use std::collections::HashSet;
use std::sync::Arc;

use async_trait::async_trait;
use bkfs_chunker::catalog::IndexRef;
use bkfs_chunker::id::{Id, Kind};
use bkfs_chunker::ingest::{Ingest, Mark, Sealed};
use bkfs_chunker::pack::PackName;
use bytes::Bytes;

use crate::root::commit::Uploads;
use crate::root::error::RootError;
use crate::root::lists::{ListWriter, Lists};
use crate::root::state::Root;

/// The ingest, as the root sees it.
pub struct IngestUploads {
    /// The ingest of the session, which stores into the bucket.
    pub ingest: Arc<Ingest>,
    /// The lists of the repository.
    pub lists: Lists,
}

#[async_trait]
impl ListWriter for IngestUploads {
    async fn put_list(&self, payload: Vec<u8>) -> Result<PackName, RootError> {
        self.ingest
            .put_list(&payload)
            .await
            .map_err(RootError::from)
    }
}

#[async_trait]
impl Uploads for IngestUploads {
    type Mark = Mark;

    async fn store_record(&self, record: Vec<u8>) -> Result<Id, RootError> {
        self.ingest
            .store_blob(Kind::Commit, Bytes::from(record))
            .await
            .map_err(RootError::from)
    }

    async fn read_record(&self, root: &Root, id: Id) -> Result<Bytes, RootError> {
        let condemned = self.lists.condemned(root).await?;
        self.ingest
            .content_store()
            .load_index(&root.index, &condemned)
            .await?;
        self.ingest
            .content_store()
            .read_blob(Kind::Commit, id)
            .await
            .map_err(RootError::from)
    }

    async fn seal_since(&self, mark: Mark, current: &[IndexRef]) -> Result<Sealed, RootError> {
        self.ingest
            .seal_since(mark, current)
            .await
            .map_err(RootError::from)
    }

    async fn not_live(
        &self,
        index: &[IndexRef],
        condemned: &HashSet<PackName>,
        packs: &[PackName],
    ) -> Result<Vec<PackName>, RootError> {
        self.ingest
            .content_store()
            .load_index(index, condemned)
            .await?;
        Ok(packs
            .iter()
            .filter(|pack| !self.ingest.content_store().is_live(pack))
            .copied()
            .collect())
    }

    fn committed(&self, sealed: Sealed) {
        self.ingest.committed(sealed);
    }

    fn conflicted(&self, sealed: Sealed) {
        self.ingest.conflicted(sealed);
    }
}
