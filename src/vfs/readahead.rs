//! What to fetch before it is asked for.
//!
//! Owns: the guess, from the offsets at which one open file is read. Pure.

use std::ops::Range;

/// The first window, in bytes: two of the kernel's largest requests.
const FIRST_BYTES: u64 = 2 * 1024 * 1024;

/// The largest window, in bytes. At 1 GB/s and 60 ms to the store it keeps the line full.
const LARGEST_BYTES: u64 = 64 * 1024 * 1024;

/// By how much a large window may have been read before it is filled up again, in bytes: about the size of a request to the store. Were it a half of the window,
/// only the other half would be on its way while the reader goes on.
const STEP_BYTES: u64 = 8 * 1024 * 1024;

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
    /// A read of `range` arrives; what should be fetched besides, if anything: at most up to `most` bytes behind it, and not past `size`.
    pub fn read(&mut self, range: &Range<u64>, size: u64, most: u64) -> Option<Range<u64>> {
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

    /// What [`ReadAhead::read`] said last is not fetched after all, since others have taken the room: later reads ask for it again, for little at first.
    pub fn refused(&mut self, ahead: &Range<u64>) {
        self.fetched_to = self.fetched_to.min(ahead.start);
        self.window = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1024 * 1024;

    /// Reads a file from end to end in steps of a MiB; what was fetched ahead of each.
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
        // Up to where the end of the file comes in sight.
        let full = &lengths[grown.unwrap()..1024 - 64];
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
}
