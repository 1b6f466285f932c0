//! Swapping: dirty bytes of a volume that does not outlive its mount go to a file on local disk when
//! memory runs short.
//!
//! Owns: which bytes go there, and in which order. Does not own: the file (`bkfs_chunker::swap`),
//! what a volume remembers of it (`swapping`), when memory runs short (`room`), nor what happens if
//! the file is full (`writeback`).
//!
//! Bytes that are swapped out stay dirty. They are read back for readers and for commits, and cost
//! no hashing, no compression and no request.

use std::convert::Infallible;

use bkfs_chunker::swap::{self, SwappedPart};
use bytes::Bytes;

use crate::volume::Volume;
use crate::volume::dirty::{Part, Swappable};
use crate::volume::error::VolumeError;
use crate::volume::swapping::{
    FULL_PAUSE, LOOK_PAUSE, Position, ReadBack, SWAPPED_AT_ONCE, Swapping,
};

/// Number of pieces that are looked at while the state is locked once.
const LOOKED_AT_ONCE: usize = 256;

/// The number of the last writes that stay in memory if possible: they may be written again soon.
const RECENT_WRITES: u64 = 256;

/// Bytes that are to be swapped out.
struct Chosen {
    epoch: u64,
    pieces: Vec<(u64, Swappable)>,
    /// The place behind what was looked at; none if nothing is behind it.
    next: Option<Position>,
}

impl Volume {
    /// Swaps dirty bytes out until memory is not short any more, or nothing more can be swapped out:
    /// first those that were not written for a while, then any. One task at a time does this.
    ///
    /// Returns whether something was.
    ///
    /// Cancel safety: dropped, it leaves in memory what it has not swapped out.
    pub(super) async fn swap_out(&self) -> bool {
        let Some(swapping) = &self.swapping else {
            return false;
        };
        let (mut recent, mut is_any) = (RECENT_WRITES, false);
        loop {
            let swapped = self.swap_round(swapping, recent).await;
            let is_progress = swapped.is_some_and(|bytes| swapping.is_progress(bytes));
            is_any |= swapped.is_some_and(|bytes| bytes > 0);
            if recent == 0 && !is_progress {
                return is_any;
            }
            recent = 0;
        }
    }

    /// Looks at all dirty bytes once, from where the last look ended, and swaps out those that were
    /// not among the last `recent` writes, until memory is not short any more. Returns their number;
    /// none if the disk fails.
    async fn swap_round(&self, swapping: &Swapping, recent: u64) -> Option<u64> {
        let begun = swapping.reached();
        let (mut swapped, mut has_wrapped) = (0, false);
        while self.is_pressed() && swapping.is_worth_a_look(self.swappable_bytes()) {
            let from = swapping.reached();
            let chosen = self.choose(swapping, from, recent)?;
            let next = chosen.next;
            swapping.reach(next.unwrap_or_default());
            swapped += self.swap_pieces(swapping, chosen).await?;
            // Everything was looked at once, and what is before `begun` not twice.
            if has_wrapped && next.is_none_or(|next| next >= begun) {
                break;
            }
            has_wrapped |= next.is_none();
        }
        Some(swapped)
    }

    fn swappable_bytes(&self) -> u64 {
        let state = self.view.state();
        state.map_or(0, |state| state.lock().active.swappable_bytes())
    }

    /// Runs `storing`, and swaps out meanwhile what then finds room in the swap file.
    pub(super) async fn swapping_during<T>(&self, storing: impl Future<Output = T>) -> T {
        let Some(swapping) = &self.swapping else {
            return storing.await;
        };
        let swapping = async {
            loop {
                // A full disk may have room again, and nothing says so.
                let _ = tokio::time::timeout(FULL_PAUSE, swapping.until_wanted()).await;
                if !self.swap_out().await && self.is_pressed() {
                    // Each write asks for a look. What is being stored is not taken, so there may
                    // be nothing to find.
                    tokio::time::sleep(LOOK_PAUSE).await;
                }
            }
        };
        tokio::select! {
            stored = storing => stored,
            never = swapping => { let never: Infallible = never; match never {} }
        }
    }

    /// Chooses bytes from a place on that were not among the last `recent` writes and are not being
    /// stored. `None` if the volume takes no changes.
    fn choose(&self, swapping: &Swapping, from: Position, recent: u64) -> Option<Chosen> {
        let mut state = self.view.state().ok()?.lock();
        let stamp = state.stamp.saturating_sub(recent);
        let layer = &mut state.active;
        let mut chosen = Chosen {
            epoch: layer.epoch,
            pieces: Vec::new(),
            next: None,
        };
        let (mut left, mut bytes) = (LOOKED_AT_ONCE, SWAPPED_AT_ONCE);
        for (&inode, ranges) in layer.data.range_mut(from.0..) {
            if left == 0 || bytes == 0 {
                chosen.next = Some((inode, 0));
                break;
            }
            let offset = match inode == from.0 {
                true => from.1,
                false => 0,
            };
            let looked = ranges.swappable(offset, stamp, (left, bytes));
            let pieces = looked.swappable.into_iter().filter(|piece| {
                !swapping.is_being_stored(inode, (layer.epoch, piece.stamp), &piece.range())
            });
            chosen.pieces.extend(pieces.map(|piece| (inode, piece)));
            if let Some(offset) = looked.next {
                chosen.next = Some((inode, offset));
                break;
            }
            // A file without such pieces is looked at as well.
            left = left.saturating_sub(looked.pieces.max(1));
            bytes = bytes.saturating_sub(looked.bytes);
        }
        Some(chosen)
    }

    /// Swaps chosen bytes out, as far as the file has room, and returns their number; none if the
    /// disk fails.
    async fn swap_pieces(&self, swapping: &Swapping, chosen: Chosen) -> Option<u64> {
        if chosen.pieces.is_empty() {
            // Others may use the thread.
            tokio::task::yield_now().await;
            return Some(0);
        }
        let buffers = chosen.pieces.iter().map(|(_, piece)| piece.bytes.clone());
        let put = swapping.file().put(buffers.collect()).await.ok()?;
        if put.iter().any(Vec::is_empty) {
            swapping.note_full();
        }
        let mut swapped = 0;
        {
            let mut state = self.view.state().ok()?.lock();
            for ((inode, piece), parts) in chosen.pieces.iter().zip(put) {
                let at = (chosen.epoch, piece.stamp);
                if parts.is_empty() || swapping.is_being_stored(*inode, at, &piece.range()) {
                    continue;
                }
                let Some(layer) = state.layer_mut(chosen.epoch) else {
                    continue;
                };
                let is_out = layer.with_data(*inode, |ranges| {
                    ranges.swap_out(piece.offset, piece.stamp, parts)
                });
                if is_out {
                    swapped += piece.bytes.len() as u64;
                }
            }
        }
        // Their buffers are freed here, while the state is not locked.
        drop(chosen);
        self.room.notify();
        Some(swapped)
    }

    /// Waits until so many bytes may be read back to be stored. They count as memory until the result
    /// is dropped.
    pub(super) async fn may_read_back(&self, bytes: u64) -> ReadBack<'_> {
        let permit = match &self.swapping {
            Some(swapping) if bytes > 0 => swapping.may_read_back(bytes).await,
            _ => None,
        };
        let held = (bytes > 0).then(|| self.room.hold(bytes));
        ReadBack::new(permit, held)
    }

    /// Returns the bytes of parts of a run of data, to store them.
    ///
    /// # Errors
    /// [`VolumeError::Swap`].
    pub(super) async fn in_memory(
        &self,
        parts: Vec<Part>,
    ) -> Result<(ReadBack<'_>, Vec<Bytes>), VolumeError> {
        let swapped: Vec<SwappedPart> = (parts.iter())
            .filter_map(|part| match part {
                Part::Swapped(part) => Some(part.clone()),
                Part::Data(_) | Part::Zero => None,
            })
            .collect();
        let bytes = swapped.iter().map(SwappedPart::len).sum();
        let read_back = self.may_read_back(bytes).await;
        let mut back = swap::read_in_time(swapped).await?.into_iter();
        let bytes = parts.into_iter().filter_map(|part| match part {
            Part::Data(bytes) => Some(bytes),
            Part::Zero => None,
            Part::Swapped(_) => back.next(),
        });
        Ok((read_back, bytes.collect()))
    }
}
