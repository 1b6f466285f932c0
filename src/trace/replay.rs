//! Fetches what a trace names, by rank.
//!
//! Owns the order of the batches and what is counted. Reads give way to those of programs, and come
//! before `bkfs hydrate`. What the tree does not have is passed over.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};

use bkfs_chunker::content_store::{PrefetchCounts, PrefetchList};
use bkfs_chunker::error::ContentError;
use futures::{StreamExt, TryStreamExt};
use parking_lot::Mutex;

use crate::trace::format::{PAGE_BYTES, Touch, Trace};
use crate::trace::place::{Found, resolve};
use crate::trace::plan::{Batch, batches, bytes_of};
use crate::trace::touches::Touches;
use crate::volume::error::VolumeError;
use crate::volume::view::View;

/// Batches that are looked up and fetched concurrently, at most.
const BATCHES_AT_ONCE: usize = 4;

/// Files that are looked up concurrently.
const FILES_AT_ONCE: usize = 16;

/// How far a replay is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReplayCounts {
    /// Bytes of files that the trace names, as far as the tree has them. They are counted anew as
    /// files prove to be shorter, or absent.
    pub total_bytes: u64,
    /// The part of these bytes that is done with.
    pub done_bytes: u64,
    /// Number of files that the tree does not have.
    pub absent_files: u64,
    /// Whether the share of the cache is full. Nothing more is fetched then.
    pub is_full: bool,
}

/// A replay of one trace.
pub struct Replay {
    view: View,
    trace: Trace,
    list: PrefetchList,
    files: Mutex<HashMap<u32, Option<Found>>>,
    counts: Mutex<ReplayCounts>,
}

impl Replay {
    /// Returns a replay of a trace on a tree, which has fetched nothing. `view` reads ahead, and
    /// `list` is an empty one.
    pub fn new(view: View, trace: Trace, list: PrefetchList) -> Replay {
        let counts = ReplayCounts {
            total_bytes: bytes_of(&trace),
            ..ReplayCounts::default()
        };
        Replay {
            view,
            trace,
            list,
            files: Mutex::default(),
            counts: Mutex::new(counts),
        }
    }

    /// Fetches what the trace names. `touches` learns of which places a read sends no request.
    ///
    /// # Errors
    /// The failure of the store. Damage is passed over: a read of it meets it again.
    pub async fn run(&self, touches: Option<&Touches>) -> Result<(), VolumeError> {
        futures::stream::iter(batches(&self.trace).map(Ok))
            .try_for_each_concurrent(BATCHES_AT_ONCE, |batch| self.bring(batch, touches))
            .await?;
        // A range may be cut off at the bound of all.
        let mut counts = self.counts.lock();
        counts.total_bytes = match counts.is_full {
            true => counts.total_bytes,
            false => counts.done_bytes,
        };
        Ok(())
    }

    /// Returns how far it is.
    pub fn counts(&self) -> (ReplayCounts, PrefetchCounts) {
        (*self.counts.lock(), self.list.counts())
    }

    async fn bring(&self, batch: Batch, touches: Option<&Touches>) -> Result<(), VolumeError> {
        // All may be in memory: without this the task would leave its thread to no other one.
        tokio::task::consume_budget().await;
        if self.counts.lock().is_full || batch.is_empty() {
            return Ok(());
        }
        self.look_up(&batch).await?;
        let (mut pieces, mut covers) = (Vec::new(), Covers::default());
        let (mut done, mut lacking) = (0, 0);
        for touch in &batch {
            tokio::task::consume_budget().await;
            let (offset, length) = self.clipped(touch);
            lacking += touch.pages * PAGE_BYTES - length;
            done += length;
            let Some(found) = self.found(touch.file).filter(|_| length > 0) else {
                continue;
            };
            let range = offset..offset + length;
            match self.view.stored_pieces(found.inode, range).await {
                Ok(stored) => {
                    covers.add((found.inode, offset, length), stored.len(), touches);
                    pieces.extend(stored);
                }
                Err(error) if is_of_the_store(&error) => return Err(error),
                Err(_) => {}
            }
        }
        {
            let mut counts = self.counts.lock();
            counts.total_bytes = counts.total_bytes.saturating_sub(lacking);
        }
        let begun = |piece| covers.begin(piece, touches);
        let has_room = self.list.bring_and_tell(&pieces, &begun).await?;
        let mut counts = self.counts.lock();
        counts.done_bytes += done;
        counts.is_full |= !has_room;
        Ok(())
    }

    /// Returns the part of a range that its file has, as offset and length.
    fn clipped(&self, touch: &Touch) -> (u64, u64) {
        let size = self.found(touch.file).map_or(0, |found| found.size);
        let offset = touch.page.saturating_mul(PAGE_BYTES);
        let length = (touch.pages * PAGE_BYTES).min(size.saturating_sub(offset));
        (offset, length)
    }

    fn found(&self, file: u32) -> Option<Found> {
        self.files.lock().get(&file).copied().flatten()
    }

    /// Looks up the files of a batch that were not looked up before.
    async fn look_up(&self, batch: &Batch) -> Result<(), VolumeError> {
        let mut unknown: Vec<u32> = {
            let known = self.files.lock();
            let files = batch.iter().map(|touch| touch.file);
            let unknown: HashSet<u32> = files.filter(|file| !known.contains_key(file)).collect();
            unknown.into_iter().collect()
        };
        unknown.sort_unstable();
        let look_ups = unknown.into_iter().map(|file| async move {
            let path = self.trace.paths.get(file as usize);
            let path = path.map(Vec::as_slice).unwrap_or_default();
            match resolve(&self.view, path).await {
                Err(error) if is_of_the_store(&error) => Err(error),
                found => Ok((file, found.unwrap_or_default())),
            }
        });
        let look_ups = futures::stream::iter(look_ups.collect::<Vec<_>>());
        let found: Vec<_> = look_ups.buffered(FILES_AT_ONCE).try_collect().await?;
        let mut known = self.files.lock();
        for (file, found) in found {
            if known.insert(file, found).is_none() && found.is_none() {
                self.counts.lock().absent_files += 1;
            }
        }
        Ok(())
    }
}

/// Ranges of a batch, which are covered once all their pieces are being fetched or were found.
#[derive(Default)]
struct Covers {
    /// Inode, offset and length of each range, and the number of pieces that it waits for.
    ranges: Vec<((u64, u64, u64), AtomicUsize)>,
    /// The range of each piece.
    of: Vec<usize>,
}

impl Covers {
    /// Adds a range of this many pieces. One without any needs no request.
    fn add(&mut self, range: (u64, u64, u64), pieces: usize, touches: Option<&Touches>) {
        if pieces == 0 {
            cover(range, touches);
            return;
        }
        self.of
            .extend(std::iter::repeat_n(self.ranges.len(), pieces));
        self.ranges.push((range, AtomicUsize::new(pieces)));
    }

    /// Notes that a read of a piece sends no request from now on.
    fn begin(&self, piece: usize, touches: Option<&Touches>) {
        let range = self.of.get(piece).and_then(|range| self.ranges.get(*range));
        if let Some((range, waits)) = range
            && waits.fetch_sub(1, Ordering::Relaxed) == 1
        {
            cover(*range, touches);
        }
    }
}

fn cover((inode, offset, length): (u64, u64, u64), touches: Option<&Touches>) {
    if let Some(touches) = touches {
        touches.cover(inode, offset, length);
    }
}

/// Returns true if the store failed, so that further requests would fail as well.
fn is_of_the_store(error: &VolumeError) -> bool {
    let VolumeError::ContentStore(error) = error else {
        return false;
    };
    let cause = error.cause();
    matches!(cause, ContentError::Store(_) | ContentError::Stalled { .. })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::recorder::PLACE_BYTES;

    #[tokio::test]
    async fn a_range_is_covered_once_all_its_pieces_come() {
        let touches = Touches::default();
        let mut covers = Covers::default();
        covers.add((7, 0, PLACE_BYTES), 2, Some(&touches));
        covers.add((8, 0, PLACE_BYTES), 0, Some(&touches));
        covers.add((9, 0, PLACE_BYTES), 1, Some(&touches));
        covers.begin(0, Some(&touches));
        covers.begin(2, Some(&touches));
        for inode in [7, 8, 9] {
            touches.note(inode, 0, 1);
        }
        assert_eq!(
            touches.counts().hits,
            2,
            "one piece of the first does not come"
        );
        covers.begin(1, Some(&touches));
        touches.note(7, 0, 1);
        assert_eq!(touches.counts().hits, 2, "it was touched before");
        covers.begin(9, Some(&touches));
    }
}
