//! What the users of a mount read, and which errors they got.
//!
//! Owns: the pages that were read at least once, and the number of EIO answers. A drill judges a
//! backup by both.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

/// The unit in which reads are counted, in bytes.
const PAGE: u64 = 4096;

/// Pages in one entry of the table.
const PAGES: u64 = 512;

/// What was read of a mount.
#[derive(Debug, Default)]
pub struct Observed {
    /// Whether reads are counted, which costs a lock at each of them.
    has_pages: bool,
    /// For each file and run of [`PAGES`] pages, one bit for each page that was read.
    pages: Mutex<HashMap<(u64, u64), [u64; 8]>>,
    bytes: AtomicU64,
    errors: AtomicU64,
}

impl Observed {
    /// Returns an observer that counts reads as well as errors.
    pub fn of_reads() -> Self {
        Self {
            has_pages: true,
            ..Self::default()
        }
    }

    /// Notes that `length` bytes of a file were answered from `offset` on.
    pub fn note_read(&self, inode: u64, offset: u64, length: u64) {
        if length == 0 || !self.has_pages {
            return;
        }
        let last = (offset + length - 1) / PAGE;
        let mut pages = self.pages.lock();
        let mut new = 0;
        for page in offset / PAGE..=last {
            let bits = pages.entry((inode, page / PAGES)).or_default();
            let (word, bit) = ((page % PAGES / 64) as usize, 1 << (page % 64));
            if bits[word] & bit == 0 {
                bits[word] |= bit;
                let from = offset.max(page * PAGE);
                let to = (offset + length).min((page + 1) * PAGE);
                new += to - from;
            }
        }
        self.bytes.fetch_add(new, Ordering::Relaxed);
    }

    /// Notes an answer of EIO.
    pub fn note_error(&self) {
        self.errors.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns how many bytes of files were read, each page once.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Returns the number of EIO answers.
    pub fn errors(&self) -> u64 {
        self.errors.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_page_counts_once() {
        let observed = Observed::of_reads();
        observed.note_read(7, 0, 10);
        assert_eq!(observed.bytes(), 10);
        observed.note_read(7, 0, 4096);
        assert_eq!(observed.bytes(), 10, "the page was read before");
        observed.note_read(7, 4000, 9000);
        assert_eq!(observed.bytes(), 10 + 13_000 - 4096);
        observed.note_read(8, 1 << 40, 4096);
        assert_eq!(observed.bytes(), 10 + 13_000);
        observed.note_read(8, 1 << 41, 0);
        assert_eq!((observed.bytes(), observed.errors()), (13_010, 0));
    }
}
