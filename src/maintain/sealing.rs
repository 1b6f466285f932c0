//! Brings the objects that a session of maintenance has stored into the root.
//!
//! Owns that packs and index objects are in the bucket before a root names them, made for the index
//! of the very root that is replaced. Tells the ingest whether a root took them. Does not own the
//! check that precedes a replacement (rule 3): each kind of maintenance has its own.

use async_trait::async_trait;
use bkfs_chunker::catalog::IndexRef;
use bkfs_chunker::ingest::{Ingest, Mark, Sealed};
use bkfs_chunker::pack::PackName;

use crate::root::error::RootError;
use crate::root::lists::{ListWriter, put_shard};
use crate::root::shard::{ListEntry, ListRef};
use crate::root::state::Root;
use crate::root::transition::IndexChange;

/// Writes lists under names of the ingest's session.
pub struct IngestLists<'a>(pub &'a Ingest);

#[async_trait]
impl ListWriter for IngestLists<'_> {
    async fn put_list(&self, payload: Vec<u8>) -> Result<PackName, RootError> {
        Ok(self.0.put_list(&payload).await?)
    }
}

/// Stores one list of these entries. Returns none if there are no entries.
///
/// Cancel safety: dropped, it may leave a list that no root names.
///
/// # Errors
/// [`RootError::Content`] if the list cannot be stored; [`RootError::Refused`] if it would have
/// more than `u32::MAX` entries.
pub async fn listed<T: ListEntry>(
    ingest: &Ingest,
    entries: Vec<T>,
) -> Result<Option<ListRef>, RootError> {
    match entries.is_empty() {
        true => Ok(None),
        false => Ok(Some(put_shard(&IngestLists(ingest), entries).await?)),
    }
}

/// The packs that were stored since a mark, sealed for the index of one root at a time.
pub struct Sealing<'a> {
    ingest: &'a Ingest,
    mark: Mark,
    sealed: Option<Sealed>,
    /// The index of the root that it was sealed for.
    index: Vec<IndexRef>,
}

impl<'a> Sealing<'a> {
    /// Starts at `mark`, with nothing sealed.
    pub fn since(mark: Mark, ingest: &'a Ingest) -> Self {
        Self {
            ingest,
            mark,
            sealed: None,
            index: Vec::new(),
        }
    }

    /// Returns the last seal, unless it is settled or there was none.
    pub fn sealed(&self) -> Option<&Sealed> {
        self.sealed.as_ref()
    }

    /// Stores everything since the mark in the bucket, and returns how that changes the index of
    /// `next`.
    ///
    /// It seals again only if an index object that the last seal absorbed is no longer in this
    /// root.
    ///
    /// Cancel safety: dropped, it leaves the packs to the next seal, and maybe an index object that
    /// no root names.
    ///
    /// # Errors
    /// [`RootError::Content`] if the packs or the index object cannot be stored: `Stalled` (call
    /// again) or `Failed` (the session is lost).
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

    /// Tells the ingest whether the root has taken the last seal.
    pub fn settle(&mut self, is_made: bool) {
        match (self.sealed.take(), is_made) {
            (Some(sealed), true) => self.ingest.committed(sealed),
            (Some(sealed), false) => self.ingest.conflicted(sealed),
            (None, _) => {}
        }
    }
}
