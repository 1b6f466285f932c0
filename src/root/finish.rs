//! Packs that were stored since a mark, finished for the index of one root at a time.
//!
//! Owns that packs and index objects are in the bucket before a root names them, and that an index
//! object is made again if the root to be replaced no longer lists what it absorbed. Tells the
//! ingest whether a root took them. Does not own the check that precedes a replacement (rule 3):
//! each kind of replacement has its own.

use bkfs_chunker::catalog::IndexRef;
use bkfs_chunker::ingest::FinishedPacks;

use super::error::RootError;
use super::transition::IndexChange;
use super::uploads::FinishPacks;

/// The packs of a session that were stored since a mark.
#[derive(Debug)]
pub struct PackFinisher<M> {
    mark: M,
    /// Absent until it is made, while it is made again, and once its outcome was told.
    finished: Option<FinishedPacks>,
    /// The root's list of index objects that `finished` follows.
    index: Vec<IndexRef>,
}

impl<M: Copy + Send + Sync> PackFinisher<M> {
    /// Starts at `mark`, with nothing finished.
    pub fn since(mark: M) -> Self {
        Self {
            mark,
            finished: None,
            index: Vec::new(),
        }
    }

    /// Returns the packs that were finished last, unless their outcome was told or there are none.
    pub fn finished(&self) -> Option<&FinishedPacks> {
        self.finished.as_ref()
    }

    /// Puts everything stored since the mark into the bucket, and returns how that changes `index`,
    /// the list of index objects of the root to be replaced.
    ///
    /// Finishes again only if an index object that the last call absorbed is no longer in `index`:
    /// its successor may list other packs.
    ///
    /// Cancel safety: dropped, it leaves the packs to the next call, and maybe an index object that
    /// no root names.
    ///
    /// # Errors
    /// [`RootError::Content`] if the packs or the index object cannot be stored: `Stalled` (call
    /// again) or `Failed` (the session is lost).
    pub async fn finish_for(
        &mut self,
        uploads: &(impl FinishPacks<Mark = M> + ?Sized),
        index: &[IndexRef],
    ) -> Result<IndexChange, RootError> {
        if let Some(finished) = &self.finished {
            let change = IndexChange::between(&self.index, &finished.index);
            if change.absorbed.iter().all(|old| index.contains(old)) {
                return Ok(change);
            }
        }
        self.settle(uploads, false);
        let finished = uploads.finish_since(self.mark, index).await?;
        self.index = index.to_vec();
        let change = IndexChange::between(&self.index, &finished.index);
        self.finished = Some(finished);
        Ok(change)
    }

    /// Lets the next call of [`Self::finish_for`] finish again: more is stored since the last one.
    pub fn restart(&mut self, uploads: &(impl FinishPacks<Mark = M> + ?Sized)) {
        self.settle(uploads, false);
    }

    /// Tells the session whether the root has taken the packs that were finished last.
    pub fn settle(&mut self, uploads: &(impl FinishPacks<Mark = M> + ?Sized), is_made: bool) {
        match (self.finished.take(), is_made) {
            (Some(finished), true) => uploads.committed(finished),
            (Some(finished), false) => uploads.conflicted(finished),
            (None, _) => {}
        }
    }
}
