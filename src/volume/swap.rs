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

use bkfs_chunker::swap::{self, SwapError, SwappedPart};
use bytes::Bytes;

use crate::volume::Volume;
use crate::volume::dirty::{Part, Swappable};
use crate::volume::error::VolumeError;
use crate::volume::swapping::{Position, ReadBack, SWAPPED_AT_ONCE, Swapping};

/// Number of pieces that are looked at while the state is locked once.
const LOOKED_AT_ONCE: usize = 256;

/// The number of the last writes that stay in memory if possible: they may be written again soon.
const RECENT_WRITES: u64 = 1024;

/// Bytes that are to be swapped out.
struct Chosen {
    epoch: u64,
    pieces: Vec<(u64, Swappable)>,
    /// The place behind what was looked at; none if nothing is behind it.
    next: Option<Position>,
}

fn tell(error: &SwapError) {
    match error.is_full_disk() {
        true => tracing::debug!("nothing is swapped out now: {error}"),
        false => tracing::warn!("nothing more is swapped out: {error}"),
    }
}

impl Volume {
    /// Swaps dirty bytes out until memory is not short any more, or nothing more can be swapped out:
    /// first those that were not written for a while, then any. One task at a time does this.
    ///
    /// Cancel safety: dropped, it leaves in memory what it has not swapped out.
    pub(super) async fn swap_out(&self) {
        let Some(swapping) = &self.swapping else {
            return;
        };
        if !swapping.is_worth_a_look(self.active_cost()) {
            return;
        }
        let mut recent = RECENT_WRITES;
        while self.is_pressed() {
            let cost = self.active_cost();
            match self.swap_round(swapping, recent).await {
                None => return,
                Some(0) if recent == 0 => {
                    swapping.nothing_left_of(cost);
                    return;
                }
                Some(_) => recent = 0,
            }
        }
    }

    /// Looks at all dirty bytes once, from where the last look ended, and swaps out those that were
    /// not among the last `recent` writes, until memory is not short any more. Returns the number of
    /// pieces; none if there is no room for more.
    async fn swap_round(&self, swapping: &Swapping, recent: u64) -> Option<usize> {
        let begun = swapping.reached();
        let (mut count, mut has_wrapped) = (0, false);
        while self.is_pressed() {
            if swapping.file().has_failed() {
                return None;
            }
            let from = swapping.reached();
            let chosen = self.choose(from, recent)?;
            let next = chosen.next;
            swapping.reach(next.unwrap_or_default());
            count += self.swap_pieces(swapping, chosen).await?;
            // Everything was looked at once, and what is before `begun` not twice.
            if has_wrapped && next.is_none_or(|next| next >= begun) {
                break;
            }
            has_wrapped |= next.is_none();
        }
        Some(count)
    }

    fn active_cost(&self) -> u64 {
        let state = self.view.state();
        state.map_or(0, |state| state.lock().active.data_cost())
    }

    /// Runs `storing`, and swaps out meanwhile what then finds room in the swap file.
    pub(super) async fn swapping_during<T>(&self, storing: impl Future<Output = T>) -> T {
        let Some(swapping) = &self.swapping else {
            return storing.await;
        };
        let swapping = async {
            loop {
                swapping.until_wanted().await;
                self.swap_out().await;
            }
        };
        tokio::select! {
            stored = storing => stored,
            never = swapping => { let never: Infallible = never; match never {} }
        }
    }

    /// Chooses bytes from a place on that were not among the last `recent` writes. `None` if the
    /// volume takes no changes.
    fn choose(&self, from: Position, recent: u64) -> Option<Chosen> {
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
            let pieces = looked.swappable.into_iter();
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

    /// Swaps chosen bytes out, and returns the number of pieces; none if the file has no room for
    /// one of them, or its disk fails.
    async fn swap_pieces(&self, swapping: &Swapping, chosen: Chosen) -> Option<usize> {
        let count = chosen.pieces.len();
        if count == 0 {
            // Others may use the thread.
            tokio::task::yield_now().await;
            return Some(0);
        }
        let buffers = chosen.pieces.iter().map(|(_, piece)| piece.bytes.clone());
        let put = match swapping.file().put(buffers.collect()).await {
            Ok(put) => put,
            Err(error) => {
                tell(&error);
                return None;
            }
        };
        let has_room = put.iter().all(|parts| !parts.is_empty());
        {
            let mut state = self.view.state().ok()?.lock();
            for ((inode, piece), parts) in chosen.pieces.iter().zip(put) {
                let layer = state.layer_mut(chosen.epoch);
                if let Some(layer) = layer.filter(|_| !parts.is_empty()) {
                    layer.with_data(*inode, |ranges| {
                        ranges.swap_out(piece.offset, piece.stamp, parts)
                    });
                }
            }
        }
        // Their buffers are freed here, while the state is not locked.
        drop(chosen);
        self.room.notify();
        has_room.then_some(count)
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
        let mut back = swap::read(swapped).await?.into_iter();
        let bytes = parts.into_iter().filter_map(|part| match part {
            Part::Data(bytes) => Some(bytes),
            Part::Zero => None,
            Part::Swapped(_) => back.next(),
        });
        Ok((read_back, bytes.collect()))
    }
}
