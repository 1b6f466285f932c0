//! What to fetch before it is asked for.
//!
//! Owns: the guess, from the offsets at which one open file is read. Pure.

use std::ops::Range;

/// The first window, in bytes: two of the kernel's largest requests.
const FIRST_BYTES: u64 = 2 * 1024 * 1024;

/// The largest window, in bytes. At 1 GB/s and 60 ms to the store it keeps the line full.
const LARGEST_BYTES: u64 = 64 * 1024 * 1024;

/// A read this far behind or before the last one still counts as sequential, in bytes: the kernel's own read-ahead sends requests out of order.
const JITTER_BYTES: u64 = 1024 * 1024;

/// The state of the guess.
#[derive(Debug, Default)]
pub struct ReadAhead {
    /// Where the last sequential read ended.
    expected: u64,
    window: u64,
    /// Up to where fetching was asked for.
    fetched_to: u64,
}

impl ReadAhead {
    /// A read of `range` arrives; what should be fetched besides, if anything.
    pub fn read(&mut self, range: &Range<u64>, size: u64) -> Option<Range<u64>> {
        let sequential = range.start.abs_diff(self.expected) <= JITTER_BYTES;
        if !sequential {
            *self = ReadAhead {
                expected: range.end,
                window: 0,
                fetched_to: range.end,
            };
            return None;
        }
        self.expected = self.expected.max(range.end);
        if self.fetched_to >= self.expected + self.window / 2 && self.window > 0 {
            return None;
        }
        self.window = (self.window * 2).clamp(FIRST_BYTES, LARGEST_BYTES);
        let from = self.fetched_to.max(self.expected);
        let to = (self.expected + self.window).min(size);
        self.fetched_to = to.max(from);
        (from < to).then_some(from..to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1024 * 1024;

    #[test]
    fn a_sequential_reader_gets_a_growing_window_and_nothing_twice() {
        let mut ahead = ReadAhead::default();
        let size = 1024 * MIB;
        let mut fetched_to = 0;
        let mut largest = 0;
        for at in 0..1024 {
            if let Some(range) = ahead.read(&(at * MIB..(at + 1) * MIB), size) {
                assert!(
                    range.start >= fetched_to,
                    "fetched twice: {range:?} after {fetched_to}"
                );
                largest = largest.max(range.end - (at + 1) * MIB);
                fetched_to = range.end;
            }
            assert!(
                fetched_to >= ((at + 2) * MIB).min(size),
                "the reader caught up at {at}"
            );
        }
        assert_eq!(largest, LARGEST_BYTES);
        assert_eq!(fetched_to, size);
    }

    #[test]
    fn a_random_reader_gets_nothing() {
        let mut ahead = ReadAhead::default();
        for at in [900, 17, 400, 3, 700, 250, 600] {
            assert_eq!(ahead.read(&(at * MIB..at * MIB + 16384), 1024 * MIB), None);
        }
    }
}
