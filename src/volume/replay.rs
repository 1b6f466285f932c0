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
use crate::volume::room::Pressure;
use crate::volume::state::{Scope, signed_difference};

/// A replay of journals under way, in a volume that is not in use yet. The changes are not
/// journaled again: a commit must follow.
///
/// Dropped before [`Replay::finish`], it leaves part of the changes in the active layer; such a
/// volume must not be committed.
#[must_use = "a replay ends with `finish`"]
pub struct Replay<'a> {
    volume: &'a Volume,
    /// Allocated bytes of the volume at the beginning, and of each inode before its first change.
    bytes: u64,
    before: BTreeMap<u64, u64>,
}

impl Replay<'_> {
    /// Applies the changes of the next journal, and stores all contents if there are many in
    /// memory. All blobs that it refers to must be readable already
    /// ([`bkfs_chunker::ingest::Ingest::take_over`]).
    ///
    /// Cancel safety: dropped, it leaves part of the changes in the active layer.
    ///
    /// # Errors
    /// [`VolumeError::ContentStore`], [`VolumeError::Tree`] or [`VolumeError::Malformed`] if
    /// acknowledged contents cannot be found or read; [`VolumeError::ReadOnly`] if the view is
    /// frozen. After an error, nothing of the volume may be committed.
    pub async fn carry_out(&mut self, operations: &Operations) -> Result<(), VolumeError> {
        let volume = self.volume;
        for inode in named(operations) {
            // No journal before this one has changed an inode that is named here first.
            if let Entry::Vacant(entry) = self.before.entry(inode) {
                entry.insert(volume.allocated_bytes(inode).await?);
            }
        }
        volume.replay_items(operations)?;
        for piece in &operations.contents {
            volume.bring_attributes(piece.inode).await?;
            volume.replay_piece(piece).await?;
        }
        let pressure = volume.room.data_pressure(&volume.view.state()?.lock());
        match pressure {
            Pressure::None => Ok(()),
            Pressure::Some | Pressure::Full => volume.flush_replayed().await,
        }
    }

    /// Counts what the journals have changed.
    ///
    /// # Errors
    /// Those of [`Replay::carry_out`].
    pub async fn finish(self) -> Result<(), VolumeError> {
        let volume = self.volume;
        let mut growth = 0_i64;
        for (inode, before) in self.before {
            volume.count_allocated(inode).await?;
            let change = signed_difference(volume.allocated_bytes(inode).await?, before);
            growth = growth.saturating_add(change);
        }
        // All changes are in the active layer. Those that were extents were counted one by one, so
        // this sets the total anew.
        let mut state = volume.view.state()?.lock();
        state.set_allocated(self.bytes, growth);
        Ok(())
    }
}

impl Volume {
    /// Returns a replay of journals.
    pub fn replay(&self) -> Replay<'_> {
        Replay {
            volume: self,
            bytes: self.view.totals().bytes,
            before: BTreeMap::new(),
        }
    }

    /// Stores all contents that journals have brought so far.
    async fn flush_replayed(&self) -> Result<(), VolumeError> {
        let (epoch, files) = {
            let state = self.view.state()?.lock();
            let files: Vec<u64> = state.active.data.keys().copied().collect();
            (state.active.epoch, files)
        };
        for inode in files {
            self.flush_file(inode, epoch, Reach::All).await?;
        }
        Ok(())
    }

    /// Puts the attributes of a file into the active layer, if only the tree has them. Contents can
    /// be stored only if a layer has the attributes, and a journal leaves out those that a commit
    /// had stored before it.
    async fn bring_attributes(&self, inode: u64) -> Result<(), VolumeError> {
        let state = self.view.state()?;
        if state.lock().attributes(Scope::Live, inode).is_some() {
            return Ok(());
        }
        let key = Key::attributes(inode);
        if let Some(item) = self.view.item(Scope::Live, &key).await? {
            state.lock().active.set(key, Some(item));
        }
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
