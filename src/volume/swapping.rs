//! What a volume remembers of its swap file: how far its dirty bytes were looked at, whether the file
//! had room, and how much may be read back at once.
//!
//! Owns: these facts. Does not own: what is swapped out (`swap`), nor the file.

use std::collections::HashMap;
use std::ops::Range;
use std::time::Duration;

use bkfs_chunker::swap::SwapFile;
use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore, SemaphorePermit};
use tokio::time::Instant;

use crate::volume::room::Held;

/// Number of bytes that are swapped out at once, and those of a piece beyond that.
pub(super) const SWAPPED_AT_ONCE: u64 = 4 << 20;

/// Divisor of the limit of dirty bytes: one part of this many may be read back at once to be stored.
const READ_BACK_SHARE: u64 = 4;

/// Divisor of the limit of dirty bytes: a look for bytes to swap out is worth its time if it finds one
/// part of this many.
const LOOK_SHARE: u64 = 16;

/// The pause after a file or its disk was full, unless so many bytes become free before.
pub(super) const FULL_PAUSE: Duration = Duration::from_secs(1);
const FULL_BYTES: u64 = 1 << 20;

/// The pause after a look that found too little, while files are stored.
pub(super) const LOOK_PAUSE: Duration = Duration::from_millis(100);

/// The least number of bytes that may be read back at once: a run, as it is stored.
const READ_BACK_MIN: u64 = 8 << 20;

/// A place among the dirty bytes: an inode and an offset.
pub(super) type Position = (u64, u64);

/// The swap file of a volume, and how far it was filled.
#[derive(Debug)]
pub(super) struct Swapping {
    file: SwapFile,
    /// Told when there may be something to swap out, or room for it, while files are stored.
    wanted: Notify,
    /// When the file had no room last, and how many bytes of it were taken then.
    full: Mutex<Option<(Instant, u64)>>,
    /// The number of bytes that can be swapped out for which a look is worth its time.
    look_bytes: u64,
    /// The place behind what was looked at last. One task swaps out at a time.
    reached: Mutex<Position>,
    /// What is being stored of each file. Swapping it out would free no memory.
    storing: Mutex<HashMap<u64, Stored>>,
    /// KiB that may be read back to be stored.
    read_back: Semaphore,
    /// All of these.
    read_back_kib: u32,
}

/// Pieces of a file that are being stored: those of a layer that lie in a range, and were not
/// written after the moment of a stamp.
#[derive(Debug)]
struct Stored {
    epoch: u64,
    stamp: u64,
    range: Range<u64>,
}

/// Pieces that are being stored, until this is dropped.
pub(super) struct Storing<'a> {
    swapping: &'a Swapping,
    inode: u64,
}

impl Drop for Storing<'_> {
    fn drop(&mut self) {
        self.swapping.storing.lock().remove(&self.inode);
    }
}

/// Bytes that were read back count as memory until this is dropped.
pub(super) struct ReadBack<'a> {
    _permit: Option<SemaphorePermit<'a>>,
    _held: Option<Held<'a>>,
}

impl<'a> ReadBack<'a> {
    pub(super) fn new(permit: Option<SemaphorePermit<'a>>, held: Option<Held<'a>>) -> Self {
        Self {
            _permit: permit,
            _held: held,
        }
    }
}

impl Swapping {
    /// `data_bytes` is the limit of dirty bytes in memory.
    pub(super) fn new(file: SwapFile, data_bytes: u64) -> Self {
        let read_back_kib = (data_bytes / READ_BACK_SHARE).max(READ_BACK_MIN) >> 10;
        let read_back_kib = u32::try_from(read_back_kib).unwrap_or(1 << 20);
        Self {
            file,
            wanted: Notify::new(),
            full: Mutex::default(),
            look_bytes: SWAPPED_AT_ONCE.min(data_bytes / LOOK_SHARE),
            reached: Mutex::default(),
            storing: Mutex::default(),
            read_back: Semaphore::new(read_back_kib as usize),
            read_back_kib,
        }
    }

    /// Returns the file.
    pub(super) fn file(&self) -> &SwapFile {
        &self.file
    }

    /// Returns the place behind what was looked at last.
    pub(super) fn reached(&self) -> Position {
        *self.reached.lock()
    }

    pub(super) fn reach(&self, position: Position) {
        *self.reached.lock() = position;
    }

    /// Notes that the pieces of a layer in a range of a file are being stored that were last written
    /// at this stamp or before, until the result is dropped. A file is stored by one task at a time.
    pub(super) fn storing(
        &self,
        inode: u64,
        (epoch, stamp): (u64, u64),
        range: Range<u64>,
    ) -> Storing<'_> {
        let stored = Stored {
            epoch,
            stamp,
            range,
        };
        self.storing.lock().insert(inode, stored);
        Storing {
            swapping: self,
            inode,
        }
    }

    /// Returns whether a part of a piece of a layer is being stored, which was last written at this
    /// stamp.
    pub(super) fn is_being_stored(
        &self,
        inode: u64,
        (epoch, stamp): (u64, u64),
        piece: &Range<u64>,
    ) -> bool {
        self.storing.lock().get(&inode).is_some_and(|stored| {
            stored.epoch == epoch
                && stamp <= stored.stamp
                && stored.range.start < piece.end
                && piece.start < stored.range.end
        })
    }

    /// Notes that the file has no room, or its disk has none.
    pub(super) fn note_full(&self) {
        *self.full.lock() = Some((Instant::now(), self.file.used_bytes()));
    }

    /// Asks for another look for bytes that can be swapped out, while files are stored.
    pub(super) fn wanted(&self) {
        self.wanted.notify_one();
    }

    /// Waits until another look was asked for. It may have been asked for before.
    pub(super) async fn until_wanted(&self) {
        self.wanted.notified().await;
    }

    /// Returns whether a look is worth its time, if so many bytes could be swapped out.
    pub(super) fn is_worth_a_look(&self, swappable_bytes: u64) -> bool {
        if swappable_bytes < self.look_bytes || self.file.has_failed() {
            return false;
        }
        self.full.lock().is_none_or(|(when, used)| {
            when.elapsed() >= FULL_PAUSE || self.file.used_bytes() + FULL_BYTES <= used
        })
    }

    /// Returns whether another look is worth its time after one that has swapped so many bytes out.
    pub(super) fn is_progress(&self, swapped_bytes: u64) -> bool {
        swapped_bytes >= self.look_bytes
    }

    /// Waits until so many bytes may be read back.
    pub(super) async fn may_read_back(&self, bytes: u64) -> Option<SemaphorePermit<'_>> {
        let kib = u32::try_from(bytes.div_ceil(1 << 10)).unwrap_or(u32::MAX);
        let kib = kib.min(self.read_back_kib);
        // The semaphore is never closed.
        self.read_back.acquire_many(kib).await.ok()
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn swapping(limit_bytes: u64) -> Swapping {
        let file = SwapFile::new(tempfile::tempfile().unwrap(), limit_bytes).unwrap();
        Swapping::new(file, 64 << 20)
    }

    #[tokio::test(start_paused = true)]
    async fn a_look_must_find_something_and_room() {
        let swapping = swapping(4 << 20);
        assert!(swapping.is_worth_a_look(4 << 20) && !swapping.is_worth_a_look((4 << 20) - 1));
        let pages = vec![Bytes::from(vec![1; 1 << 20]); 4];
        let mut put = swapping.file().put(pages).await.expect("the disk works");
        swapping.note_full();
        assert!(!swapping.is_worth_a_look(16 << 20));
        put.pop();
        assert!(swapping.is_worth_a_look(16 << 20), "a part of it is free");
        swapping.note_full();
        assert!(!swapping.is_worth_a_look(16 << 20));
        tokio::time::advance(FULL_PAUSE).await;
        assert!(swapping.is_worth_a_look(16 << 20), "its disk may have room");
    }

    #[test]
    fn what_is_being_stored_is_known() {
        let swapping = swapping(4 << 20);
        let storing = swapping.storing(7, (3, 50), 100..200);
        let is_stored = |inode, at, piece| swapping.is_being_stored(inode, at, &piece);
        assert!(is_stored(7, (3, 50), 199..300) && is_stored(7, (3, 1), 0..101));
        assert!(!is_stored(7, (3, 50), 200..300) && !is_stored(7, (3, 50), 0..100));
        assert!(!is_stored(8, (3, 50), 100..200), "another file");
        assert!(!is_stored(7, (4, 50), 100..200), "a later layer");
        assert!(!is_stored(7, (3, 51), 100..200), "written since");
        drop(storing);
        assert!(!is_stored(7, (3, 50), 100..200));
    }

    /// More than all of it must not wait for ever.
    #[tokio::test(start_paused = true)]
    async fn what_is_read_back_is_bounded() {
        let swapping = swapping(4 << 20);
        let half = swapping.may_read_back(9 << 20).await.expect("open");
        let more = swapping.may_read_back(8 << 20);
        let waited = tokio::time::timeout(Duration::from_secs(1), more).await;
        assert!(waited.is_err());
        drop(half);
        let all = swapping.may_read_back(1 << 40).await;
        assert!(all.is_some() && swapping.read_back.available_permits() == 0);
    }
}
