//! Read-ahead of one open file.
//!
//! Owns: the prediction of the bytes to fetch, from the offsets of earlier reads. Pure.

use std::ops::Range;

/// The first window, in bytes: two of the kernel's largest requests.
const FIRST_BYTES: u64 = 2 * 1024 * 1024;

/// The largest window, in bytes: at 1 GB/s and 90 ms to the store it uses the full bandwidth.
const LARGEST_BYTES: u64 = 96 * 1024 * 1024;

/// Bytes of a large window that may be read before it is filled up again: about the size of a
/// request to the store. With half of the window instead, only the other half would be in flight
/// while the reader continues.
const STEP_BYTES: u64 = 8 * 1024 * 1024;

/// Largest distance from the end of the last read at which a read still counts as sequential, in
/// bytes. The kernel's own read-ahead sends requests out of order.
const JITTER_BYTES: u64 = 1024 * 1024;

/// The state of the prediction.
#[derive(Debug, Default)]
pub struct ReadAhead {
    /// End of the last sequential read.
    expected: u64,
    window: u64,
    /// End of the range for which fetching was requested.
    fetched_to: u64,
    /// True after a read elsewhere, until another one follows it. Of random reads of a file some come near
    /// the last one by chance, and a window for each would cost more than the reads.
    is_unsure: bool,
}

impl ReadAhead {
    /// Notes a read of `range`, and returns the range to fetch in addition, if any. The returned
    /// range ends at most `most` bytes after `range`, and not after `size`. With a `most` below the
    /// first window, the first window counts.
    pub fn read(&mut self, range: &Range<u64>, size: u64, most: u64) -> Option<Range<u64>> {
        let sequential = range.start.abs_diff(self.expected) <= JITTER_BYTES;
        if !sequential {
            *self = ReadAhead {
                expected: range.end,
                window: 0,
                fetched_to: range.end,
                is_unsure: true,
            };
            return None;
        }
        self.expected = self.expected.max(range.end);
        if std::mem::take(&mut self.is_unsure) {
            return None;
        }
        let used = (self.expected + self.window).saturating_sub(self.fetched_to);
        if self.window > 0 && used < STEP_BYTES.min(self.window / 2) {
            return None;
        }
        self.window =
            (self.window * 2).clamp(FIRST_BYTES, LARGEST_BYTES.min(most).max(FIRST_BYTES));
        let from = self.fetched_to.max(self.expected);
        let to = (self.expected + self.window).min(size);
        self.fetched_to = to.max(from);
        (from < to).then_some(from..to)
    }

    /// Notes that the range of the last [`ReadAhead::read`] is not fetched, because other
    /// prefetches use the room. Later reads return it again, beginning with the first window.
    pub fn refused(&mut self, ahead: &Range<u64>) {
        self.fetched_to = self.fetched_to.min(ahead.start);
        self.window = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1024 * 1024;

    /// Reads a file from start to end in steps of 1 MiB; returns the bytes fetched ahead of each
    /// step.
    fn ahead_of_each(most: u64) -> Vec<u64> {
        let (mut ahead, size, mut fetched_to) = (ReadAhead::default(), 1024 * MIB, 0);
        let mut read = |at: u64| {
            let end = (at + 1) * MIB;
            if let Some(range) = ahead.read(&(at * MIB..end), size, most) {
                assert!(
                    range.start >= fetched_to.max(end),
                    "fetched twice: {range:?}"
                );
                fetched_to = range.end;
            }
            assert!(fetched_to > end || end == size, "caught up at {at}");
            fetched_to.max(end) - end
        };
        let lengths = (0..1024).map(&mut read).collect();
        assert_eq!(fetched_to, size);
        lengths
    }

    #[test]
    fn a_sequential_reader_gets_a_growing_window_that_stays_full() {
        let lengths = ahead_of_each(u64::MAX);
        assert_eq!(lengths[0], FIRST_BYTES);
        assert_eq!(lengths.iter().max(), Some(&LARGEST_BYTES));
        let grown = lengths.iter().position(|length| *length == LARGEST_BYTES);
        assert!(grown.is_some_and(|at| at < 32), "{grown:?}");
        // Up to the point from which a full window would pass the end of the file.
        let last = (1024 * MIB - LARGEST_BYTES) / MIB;
        let full = &lengths[grown.unwrap()..last as usize];
        assert!(
            full.iter()
                .all(|length| *length > LARGEST_BYTES - STEP_BYTES)
        );
    }

    #[test]
    fn a_window_is_no_larger_than_may_be_fetched_ahead() {
        let lengths = ahead_of_each(10 * MIB);
        assert_eq!(lengths.iter().max(), Some(&(10 * MIB)));
        let lengths = ahead_of_each(0);
        assert_eq!(lengths.iter().max(), Some(&FIRST_BYTES));
    }

    #[test]
    fn what_was_refused_is_asked_for_again() {
        let (mut ahead, size) = (ReadAhead::default(), 1024 * MIB);
        for at in 0..5 {
            let asked = ahead.read(&(at * MIB..(at + 1) * MIB), size, u64::MAX);
            let asked = asked.unwrap();
            assert_eq!(asked, (at + 1) * MIB..(at + 1) * MIB + FIRST_BYTES);
            ahead.refused(&asked);
        }
        let second = ahead.read(&(5 * MIB..6 * MIB), size, u64::MAX).unwrap();
        assert_eq!(second.start, 6 * MIB);
        let third = (6..64).find_map(|at| ahead.read(&(at * MIB..(at + 1) * MIB), size, u64::MAX));
        assert_eq!(third.unwrap().start, second.end, "it was not refused");
    }

    #[test]
    fn a_random_reader_gets_nothing() {
        let mut ahead = ReadAhead::default();
        for at in [900, 17, 400, 3, 700, 250, 600] {
            let range = at * MIB..at * MIB + 16384;
            assert_eq!(ahead.read(&range, 1024 * MIB, u64::MAX), None);
        }
    }

    #[test]
    fn a_read_elsewhere_needs_two_that_follow_it() {
        const PAGE: u64 = 16 * 1024;
        let mut ahead = ReadAhead::default();
        let mut read = |at: u64| ahead.read(&(at..at + PAGE), 1024 * MIB, u64::MAX);
        for at in [900 * MIB, 900 * MIB + 20 * PAGE, 17 * MIB, 17 * MIB + PAGE] {
            assert_eq!(read(at), None, "it may be near by chance");
        }
        let third = read(17 * MIB + 2 * PAGE).unwrap();
        assert_eq!(third, 17 * MIB + 3 * PAGE..19 * MIB + 3 * PAGE);
    }
}
