//! What a session of maintenance has stored, on its way into the root.
//!
//! Owns that packs and index objects are in the bucket, for the index of the very root that is replaced, before they are named, and that the ingest learns what became of them. Does not own the
//! check that precedes a replacement (rule 3): each kind of maintenance has its own.

use async_trait::async_trait;
use bkfs_chunker::catalog::IndexRef;
use bkfs_chunker::ingest::{Ingest, Mark, Sealed};
use bkfs_chunker::pack::PackName;

use crate::root::error::RootError;
use crate::root::lists::{ListWriter, put_shard};
use crate::root::snapshots::ListEntry;
use crate::root::state::{ListRef, Root};
use crate::root::transition::IndexChange;

/// Writes lists in the name of the ingest's session.
pub struct IngestLists<'a>(pub &'a Ingest);

#[async_trait]
impl ListWriter for IngestLists<'_> {
    async fn put_list(&self, payload: Vec<u8>) -> Result<PackName, RootError> {
        Ok(self.0.put_list(&payload).await?)
    }
}

/// The one list that entries make, if there are any.
///
/// # Errors
/// The list cannot be brought into the bucket.
pub async fn listed<T: ListEntry>(
    ingest: &Ingest,
    entries: Vec<T>,
) -> Result<Option<ListRef>, RootError> {
    match entries.is_empty() {
        true => Ok(None),
        false => Ok(Some(put_shard(&IngestLists(ingest), entries).await?)),
    }
}

/// Everything that was stored since a mark, sealed for one index at a time.
pub struct Sealing<'a> {
    ingest: &'a Ingest,
    mark: Mark,
    sealed: Option<Sealed>,
    /// What it was sealed for.
    index: Vec<IndexRef>,
}

impl<'a> Sealing<'a> {
    /// Nothing is sealed yet.
    pub fn since(mark: Mark, ingest: &'a Ingest) -> Self {
        Self {
            ingest,
            mark,
            sealed: None,
            index: Vec::new(),
        }
    }

    /// What was sealed last; none before the first time.
    pub fn sealed(&self) -> Option<&Sealed> {
        self.sealed.as_ref()
    }

    /// Everything is in the bucket when this returns; what that changes in the index of `next`. Sealed again only if index objects that it took over are not in this root any more.
    ///
    /// # Errors
    /// What was stored cannot be brought into the bucket.
    pub async fn seal(&mut self, next: &Root) -> Result<IndexChange, RootError> {
        let listed = |name: &PackName| next.index.iter().any(|index| index.name == *name);
        let current = self
            .sealed
            .take_if(|sealed| sealed.absorbed.iter().all(listed));
        let sealed = match current {
            Some(sealed) => sealed,
            None => {
                self.settle(false);
                self.index.clone_from(&next.index);
                self.ingest.seal_since(self.mark, &next.index).await?
            }
        };
        let gone = |index: &&IndexRef| !sealed.index.contains(index);
        let new = |index: &&IndexRef| !self.index.contains(index);
        let change = IndexChange {
            absorbed: self.index.iter().filter(gone).copied().collect(),
            added: sealed.index.iter().filter(new).copied().collect(),
        };
        self.sealed = Some(sealed);
        Ok(change)
    }

    /// The root has taken what was sealed last, or will not.
    pub fn settle(&mut self, is_made: bool) {
        match (self.sealed.take(), is_made) {
            (Some(sealed), true) => self.ingest.committed(sealed),
            (Some(sealed), false) => self.ingest.conflicted(sealed),
            (None, _) => {}
        }
    }
}
