//! From reads to the order of first touches, in bounded memory.
//!
//! Owns which read is the first of a place, and how neighbouring places become one range. All tables
//! have their full size from the beginning: together they take less than 1 MiB. Once one is full,
//! later places are not recorded. Pure.

use std::collections::HashMap;
use std::ops::Range;

use crate::trace::format::PAGE_BYTES;

/// The unit in which places are recorded, in bytes: a page of MariaDB, two of PostgreSQL.
pub const PLACE_BYTES: u64 = 16 << 10;

/// Pages of a trace in a place.
pub(super) const PLACE_PAGES: u64 = PLACE_BYTES / PAGE_BYTES;

/// Places in one entry of the table of seen ones: 8 MiB.
const BLOCK_PLACES: u32 = 512;

/// The most ranges, of 12 bytes.
pub const RANGES_MAX: usize = 24_576;

/// The most files, of about 33 bytes in two tables.
pub const FILES_MAX: usize = 7_000;

/// The most blocks, of 73 bytes. The table has slots for an eighth more. Random reads of 28 GiB fit.
pub const BLOCKS_MAX: usize = 3_584;

/// The longest range that neighbouring reads grow to, in places: 8 MiB. A longer one would hide the
/// order of what is in it.
const RANGE_PLACES: u32 = 512;

/// Consecutive places of one file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Run {
    file: u32,
    start: u32,
    count: u32,
}

/// A range of a file that was recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recorded {
    /// The file.
    pub inode: u64,
    /// The first page of [`PAGE_BYTES`].
    pub page: u64,
    /// Number of pages.
    pub pages: u64,
}

/// The first touches of one tree.
#[derive(Debug)]
pub struct Recorder {
    runs: Vec<Run>,
    files: HashMap<u64, u32>,
    /// The inode of each file, and its last run.
    known: Vec<(u64, u32)>,
    seen: HashMap<(u32, u32), [u64; 8]>,
    is_full: bool,
}

impl Default for Recorder {
    fn default() -> Self {
        Recorder {
            runs: Vec::with_capacity(RANGES_MAX),
            files: HashMap::with_capacity(FILES_MAX),
            known: Vec::with_capacity(FILES_MAX),
            seen: HashMap::with_capacity(BLOCKS_MAX),
            is_full: false,
        }
    }
}

/// Returns the places that a range of bytes touches. `None` beyond 64 TiB, and for no bytes.
pub fn places(offset: u64, length: u64) -> Option<Range<u32>> {
    let last = offset.checked_add(length.checked_sub(1)?)? / PLACE_BYTES;
    let end = u32::try_from(last).ok()?.checked_add(1)?;
    Some((offset / PLACE_BYTES) as u32..end)
}

impl Recorder {
    /// Notes a read of `length` bytes of an inode. Calls `first` with each place that was not read
    /// before.
    pub fn note(&mut self, inode: u64, offset: u64, length: u64, mut first: impl FnMut(u32)) {
        let Some(places) = places(offset, length) else {
            return;
        };
        let Some(file) = self.file(inode) else {
            return;
        };
        for place in places {
            match self.is_first(file, place) {
                Some(true) => {
                    first(place);
                    self.add(file, place);
                }
                Some(false) => {}
                None => return,
            }
        }
    }

    /// Returns true once a table is full.
    pub fn is_full(&self) -> bool {
        self.is_full
    }

    /// Returns the number of ranges.
    pub fn ranges(&self) -> usize {
        self.runs.len()
    }

    /// Returns the ranges in the order in which they were first touched.
    pub fn recorded(&self) -> Vec<Recorded> {
        let recorded = self.runs.iter().filter_map(|run| {
            let (inode, _) = self.known.get(run.file as usize)?;
            Some(Recorded {
                inode: *inode,
                page: u64::from(run.start) * PLACE_PAGES,
                pages: u64::from(run.count) * PLACE_PAGES,
            })
        });
        recorded.collect()
    }

    fn file(&mut self, inode: u64) -> Option<u32> {
        if let Some(file) = self.files.get(&inode) {
            return Some(*file);
        }
        if self.known.len() >= FILES_MAX {
            self.is_full = true;
            return None;
        }
        let file = self.known.len() as u32;
        self.known.push((inode, u32::MAX));
        self.files.insert(inode, file);
        Some(file)
    }

    /// Marks a place. Returns whether it was not marked before; `None` if there is no room to mark
    /// it.
    fn is_first(&mut self, file: u32, place: u32) -> Option<bool> {
        let block = (file, place / BLOCK_PLACES);
        if !self.seen.contains_key(&block) && self.seen.len() >= BLOCKS_MAX
            || self.runs.len() >= RANGES_MAX
        {
            self.is_full = true;
            return None;
        }
        let bits = self.seen.entry(block).or_default();
        let at = place % BLOCK_PLACES;
        let (word, bit) = ((at / 64) as usize, 1u64 << (at % 64));
        let is_first = bits[word] & bit == 0;
        bits[word] |= bit;
        Some(is_first)
    }

    /// Adds a place behind the last range of its file, or as a new one.
    fn add(&mut self, file: u32, place: u32) {
        let index = self.runs.len() as u32;
        let Some((_, last)) = self.known.get_mut(file as usize) else {
            return;
        };
        if let Some(run) = self.runs.get_mut(*last as usize)
            && run.start + run.count == place
            && run.count < RANGE_PLACES
        {
            run.count += 1;
            return;
        }
        *last = index;
        self.runs.push(Run {
            file,
            start: place,
            count: 1,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorded(reads: &[(u64, u64, u64)]) -> Vec<(u64, u64, u64)> {
        let mut recorder = Recorder::default();
        for (inode, offset, length) in reads {
            recorder.note(*inode, *offset, *length, |_| {});
        }
        let ranges = recorder.recorded().into_iter();
        let ranges = ranges.map(|at| (at.inode, at.page / PLACE_PAGES, at.pages / PLACE_PAGES));
        ranges.collect()
    }

    const P: u64 = PLACE_BYTES;

    #[test]
    fn the_first_touches_count_in_their_order() {
        let reads = [
            (7, 9 * P, P),
            (7, 0, 10),
            (8, 100, P),
            // Again, and half of it again.
            (7, 9 * P, P),
            (7, 0, 2 * P),
            (7, 5 * P + 1, 1),
            (7, 0, 0),
        ];
        let expected = [(7, 9, 1), (7, 0, 2), (8, 0, 2), (7, 5, 1)];
        assert_eq!(recorded(&reads), expected);
    }

    #[test]
    fn readers_that_take_turns_make_two_ranges() {
        let reads: Vec<_> = (0..100)
            .flat_map(|at| [(7, at * P, P), (8, (at + 50) * P, P)])
            .collect();
        assert_eq!(recorded(&reads), [(7, 0, 100), (8, 50, 100)]);
    }

    #[test]
    fn a_long_read_keeps_its_order_in_ranges_of_8_mib() {
        let ranges = recorded(&[(7, 0, 20 << 20)]);
        assert_eq!(ranges, [(7, 0, 512), (7, 512, 512), (7, 1024, 256)]);
    }

    #[test]
    fn what_no_file_has_is_passed_over() {
        let far = [(7, u64::MAX - 5, 10), (7, 1 << 50, P), (7, u64::MAX, 1)];
        assert_eq!(recorded(&far), []);
    }

    /// Returns the bytes of the tables. A map has 8/7 as many slots as entries, rounded up to a
    /// power of two, and a byte for each.
    fn memory(recorder: &Recorder) -> usize {
        let slots = |capacity: usize| (capacity * 8 / 7).next_power_of_two();
        recorder.runs.capacity() * size_of::<Run>()
            + recorder.known.capacity() * size_of::<(u64, u32)>()
            + slots(recorder.files.capacity()) * (size_of::<(u64, u32)>() + 1)
            + slots(recorder.seen.capacity()) * (size_of::<((u32, u32), [u64; 8])>() + 1)
    }

    #[test]
    fn the_memory_is_bounded_whatever_is_read() {
        let begun = memory(&Recorder::default());
        assert!(begun <= 1 << 20, "{begun}");
        type Reads = fn(u64) -> (u64, u64);
        let reads: [Reads; 3] = [
            |at| (1, (at * 2) * P),
            |at| (at, 0),
            |at| (1, at * (9 << 20)),
        ];
        for read in reads {
            let mut recorder = Recorder::default();
            for at in 0..100_000 {
                let (inode, offset) = read(at);
                recorder.note(inode, offset, P, |_| {});
            }
            assert!(recorder.is_full() && recorder.ranges() >= 3_000);
            assert_eq!(memory(&recorder), begun, "a table has grown");
            let first = recorder.recorded()[0];
            assert_eq!(first.page, 0, "the first ones stay");
        }
    }
}
