//! Replay of the journals of an ended session (docs/PROTOCOL.md, rule 7).
//!
//! Owns: how operations become changes of the layers again. Does not own: which journals count
//! (`root::journal`), the commit that must follow before anything else is accepted.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Range;

use crate::extents::Placed;
use crate::tree::item::{Extent, Item};
use crate::tree::key::Key;
use crate::volume::Volume;
use crate::volume::dirty::DirtyRanges;
use crate::volume::error::VolumeError;
use crate::volume::flush::Reach;
use crate::volume::mode;
use crate::volume::operations::{Content, Operations, Piece};
use crate::volume::rescue;
use crate::volume::state::{Scope, signed_difference};

impl Volume {
    /// Applies the changes of journals in their order, to a volume that is not in use yet. All
    /// blobs that they refer to must be readable already
    /// ([`bkfs_chunker::ingest::Ingest::take_over`]). The changes are not journaled again: a commit
    /// must follow.
    ///
    /// Cancel safety: dropped, it leaves part of the changes in the active layer; such a volume
    /// must not be committed.
    ///
    /// # Errors
    /// [`VolumeError::ContentStore`], [`VolumeError::Tree`] or [`VolumeError::Malformed`] if
    /// acknowledged contents cannot be found or read; [`VolumeError::ReadOnly`] if the view is
    /// frozen. After an error, nothing of the volume may be committed.
    pub async fn replay(&self, journals: &[Operations]) -> Result<(), VolumeError> {
        let bytes = self.view.totals().bytes;
        let mut before = BTreeMap::new();
        for inode in journals.iter().flat_map(named) {
            if let Entry::Vacant(entry) = before.entry(inode) {
                entry.insert(self.allocated_bytes(inode).await?);
            }
        }
        for operations in journals {
            self.replay_items(operations)?;
            for piece in &operations.contents {
                self.replay_piece(piece).await?;
            }
        }
        let mut growth = 0_i64;
        for (inode, before) in before {
            self.count_allocated(inode).await?;
            let change = signed_difference(self.allocated_bytes(inode).await?, before);
            growth = growth.saturating_add(change);
        }
        // All changes are in the active layer. Those that were extents were counted one by one, so
        // this sets the total anew.
        self.view.state()?.lock().set_allocated(bytes, growth);
        Ok(())
    }

    /// Returns the allocated bytes of an inode; 0 if there is none.
    async fn allocated_bytes(&self, inode: u64) -> Result<u64, VolumeError> {
        let item = self.view.item(Scope::Live, &Key::attributes(inode)).await?;
        Ok(match item {
            Some(Item::Attributes(attributes)) => attributes.allocated_bytes,
            _ => 0,
        })
    }

    fn replay_items(&self, operations: &Operations) -> Result<(), VolumeError> {
        self.raise_inode_mark(operations.next_inode);
        let mut state = self.view.state()?.lock();
        state.totals.inodes = operations.totals.inodes;
        for inode in &operations.dropped {
            state.active.drop_inode(*inode);
        }
        for (key, item) in &operations.items {
            state.active.set(key.clone(), item.clone());
        }
        Ok(())
    }

    async fn replay_piece(&self, piece: &Piece) -> Result<(), VolumeError> {
        let Piece {
            inode,
            offset,
            content,
        } = piece;
        let range = *offset..*offset + content.length();
        match content {
            Content::Data(bytes) => {
                let mut state = self.view.state()?.lock();
                let stamp = state.next_stamp();
                let write =
                    |ranges: &mut DirtyRanges| ranges.write_shared(*offset, bytes.clone(), stamp);
                state.active.with_data(*inode, write);
                Ok(())
            }
            Content::Zero(_) => {
                let mut state = self.view.state()?.lock();
                let stamp = state.next_stamp();
                let zero = |ranges: &mut DirtyRanges| ranges.zero(range.clone(), stamp);
                state.active.with_data(*inode, zero);
                Ok(())
            }
            Content::Stored(extent) => self.replay_stored(*inode, range.clone(), *extent).await,
        }
    }

    /// Puts an extent in the range that the journal states, over earlier contents.
    async fn replay_stored(
        &self,
        inode: u64,
        range: Range<u64>,
        extent: Extent,
    ) -> Result<(), VolumeError> {
        rescue::ensure_target(&self.ingest, extent.target).await?;
        let epoch = self.view.state()?.lock().active.epoch;
        let inline = self.view.item(Scope::Live, &Key::inline(inode)).await?;
        if inline.is_some() {
            self.flush_file(inode, epoch, Reach::Extents).await?;
        }
        let placed = Placed {
            offset: range.start,
            extent,
        };
        self.replace_extents(inode, epoch, Scope::Live, range.clone(), &[placed])
            .await?;
        let mut state = self.view.state()?.lock();
        let forget = |ranges: &mut DirtyRanges| ranges.forget(range, u64::MAX);
        state.active.with_data(inode, forget);
        Ok(())
    }

    /// Counts the stored bytes of a file again. The journal states those at its time, and a commit
    /// may have stored more since.
    async fn count_allocated(&self, inode: u64) -> Result<(), VolumeError> {
        let key = Key::attributes(inode);
        let Some(Item::Attributes(mut attributes)) = self.view.item(Scope::Live, &key).await?
        else {
            return Ok(());
        };
        if !mode::is_regular(attributes.mode) {
            return Ok(());
        }
        let extents = self.view.extents(Scope::Live, inode, 0..u64::MAX).await?;
        let stored: u64 = extents
            .iter()
            .map(|placed| u64::from(placed.extent.length))
            .sum();
        let inline = match self.view.item(Scope::Live, &Key::inline(inode)).await? {
            Some(Item::Inline(bytes)) => bytes.len() as u64,
            _ => 0,
        };
        attributes.allocated_bytes = stored + inline;
        let mut state = self.view.state()?.lock();
        state.active.set(key, Some(Item::Attributes(attributes)));
        Ok(())
    }
}

/// Returns the inodes that operations change or drop.
fn named(operations: &Operations) -> impl Iterator<Item = u64> + '_ {
    let items = operations.items.iter();
    let contents = operations.contents.iter().map(|piece| piece.inode);
    let changed = items.filter_map(|(key, _)| key.inode().ok());
    let dropped = operations.dropped.iter().copied();
    dropped.chain(changed).chain(contents)
}
