//! What a volume remembers of its swap file: how far its dirty bytes were looked at, whether another
//! look is worth its time, and how much may be read back at once.
//!
//! Owns: these facts. Does not own: what is swapped out (`swap`), nor the file.

use bkfs_chunker::swap::SwapFile;
use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore, SemaphorePermit};

use crate::volume::room::Held;

/// Number of bytes that are swapped out at once, and those of a piece beyond that.
pub(super) const SWAPPED_AT_ONCE: u64 = 4 << 20;

/// Divisor of the limit of dirty bytes: one part of this many may be read back at once to be stored.
const READ_BACK_SHARE: u64 = 4;

/// Divisor of the limit of dirty bytes: after a look that found nothing to swap out, one part of this
/// many must be written before the next one, at most.
const LOOK_SHARE: u64 = 8;

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
    /// The cost of the active layer when nothing of it was left that could be swapped out.
    left: Mutex<Option<u64>>,
    /// The growth of that cost after which another look is worth its time, in bytes.
    look_bytes: u64,
    /// The place behind what was looked at last. One task swaps out at a time.
    reached: Mutex<Position>,
    /// KiB that may be read back to be stored.
    read_back: Semaphore,
    /// All of these.
    read_back_kib: u32,
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
            left: Mutex::default(),
            look_bytes: SWAPPED_AT_ONCE.min(data_bytes / LOOK_SHARE),
            reached: Mutex::default(),
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

    /// Notes that nothing can be swapped out of an active layer that costs so much.
    pub(super) fn nothing_left_of(&self, cost: u64) {
        *self.left.lock() = Some(cost);
    }

    /// Asks for another look for bytes that can be swapped out, while files are stored.
    pub(super) fn wanted(&self) {
        self.wanted.notify_one();
    }

    /// Waits until another look was asked for. It may have been asked for before.
    pub(super) async fn until_wanted(&self) {
        self.wanted.notified().await;
    }

    /// Returns whether a look for bytes that can be swapped out is worth its time, if the active
    /// layer costs so much. Nothing may be left of them but what was written since the last look.
    pub(super) fn is_worth_a_look(&self, cost: u64) -> bool {
        let mut left = self.left.lock();
        *left = left.map(|left| left.min(cost));
        left.is_none_or(|left| cost - left >= self.look_bytes)
    }

    /// Waits until so many bytes may be read back.
    pub(super) async fn may_read_back(&self, bytes: u64) -> Option<SemaphorePermit<'_>> {
        let kib = u32::try_from(bytes.div_ceil(1 << 10)).unwrap_or(u32::MAX);
        let kib = kib.min(self.read_back_kib);
        // The semaphore is never closed.
        self.read_back.acquire_many(kib).await.ok()
    }
}
