//! Which places of a swap file are taken. Pure.
//!
//! The file grows by places of the greatest length. One is divided into halves for shorter bytes, and
//! both halves become one again when they are free: a buddy allocator (Knowlton, 1965).

use std::collections::BTreeSet;

/// The length of the shortest place, in bytes: a block of most filesystems.
const BLOCK_BYTES: u64 = 4096;

/// Number of sizes. Each is twice the one before.
const SIZES: usize = 5;

/// The length of the longest place, in bytes.
pub(super) const PLACE_BYTES_MAX: u64 = BLOCK_BYTES << (SIZES - 1);

/// A part of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    offset: u64,
    size: usize,
}

impl Place {
    pub(super) fn offset(self) -> u64 {
        self.offset
    }

    /// Returns its length in bytes.
    pub(super) fn length(self) -> u64 {
        BLOCK_BYTES << self.size
    }
}

/// Number of places that are joined each time that one is taken.
const JOINED_AT_ONCE: usize = 256;

/// Number of places that are joined before the file grows.
const JOINED_BEFORE_GROWTH: usize = 4096;

/// The free places of a file, and its end.
#[derive(Debug, Default)]
pub(super) struct Places {
    /// Offsets of free places, by size.
    free: [BTreeSet<u64>; SIZES],
    /// Places that are free and not joined yet. Joining them takes longer than a user of the file
    /// may be held up by giving back many.
    given_back: Vec<Place>,
    end: u64,
    used: u64,
}

impl Places {
    /// Takes a place for `length` bytes, or for a part of them. The file has at most `limit` bytes.
    /// `None` if nothing is free.
    pub(super) fn take(&mut self, length: u64, limit: u64) -> Option<Place> {
        let wanted = (0..SIZES).find(|size| length <= BLOCK_BYTES << size);
        let wanted = wanted.unwrap_or(SIZES - 1);
        self.join(JOINED_AT_ONCE);
        let mut place = self.whole(wanted);
        if place.is_none() {
            self.join(JOINED_BEFORE_GROWTH);
            place = self.whole(wanted).or_else(|| self.grow(wanted, limit));
        }
        if place.is_none() {
            self.join(usize::MAX);
            place = self.whole(wanted);
        }
        let place = place.or_else(|| (0..wanted).rev().find_map(|size| self.whole(size)))?;
        self.used += place.length();
        Some(place)
    }

    /// Makes a place free again.
    pub(super) fn give_back(&mut self, place: Place) {
        self.used -= place.length();
        self.given_back.push(place);
    }

    /// Returns the bytes of the places that are taken.
    pub(super) fn used(&self) -> u64 {
        self.used
    }

    /// Returns where the last place ends.
    pub(super) fn end(&self) -> u64 {
        self.end
    }

    /// Takes a free place of this size, or the first part of a longer one.
    fn whole(&mut self, size: usize) -> Option<Place> {
        let from = (size..SIZES).find(|from| !self.free[*from].is_empty())?;
        let offset = self.free[from].pop_first()?;
        Some(self.first_of(offset, from, size))
    }

    /// Takes the first part of a place that is longer by one or more sizes. The rest is free.
    fn first_of(&mut self, offset: u64, from: usize, size: usize) -> Place {
        for half in size..from {
            self.free[half].insert(offset + (BLOCK_BYTES << half));
        }
        Place { offset, size }
    }

    fn grow(&mut self, size: usize, limit: u64) -> Option<Place> {
        let offset = self.end;
        let end = offset + PLACE_BYTES_MAX;
        (end <= limit).then(|| self.end = end)?;
        Some(self.first_of(offset, SIZES - 1, size))
    }

    fn join(&mut self, count: usize) {
        let from = self.given_back.len().saturating_sub(count);
        for Place {
            mut offset,
            mut size,
        } in self.given_back.split_off(from)
        {
            while size < SIZES - 1 && self.free[size].remove(&(offset ^ (BLOCK_BYTES << size))) {
                offset &= !(BLOCK_BYTES << size);
                size += 1;
            }
            self.free[size].insert(offset);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIMIT: u64 = 1 << 20;

    #[test]
    fn a_place_is_as_long_as_it_must_be() {
        let mut places = Places::default();
        let sizes = [
            (1, 0),
            (4096, 0),
            (4097, 1),
            (16 << 10, 2),
            (64 << 10, 4),
            (1 << 20, 4),
        ];
        for (length, size) in sizes {
            assert_eq!(
                places.take(length, LIMIT).expect("there is room").size,
                size
            );
        }
    }

    /// Short bytes once filled the file, and no long ones found a place again.
    #[test]
    fn what_is_free_becomes_whole_again() {
        let mut places = Places::default();
        for order in [1, 77] {
            let blocks: Vec<_> = std::iter::from_fn(|| places.take(1, LIMIT)).collect();
            assert_eq!((blocks.len(), places.used()), (256, LIMIT));
            for number in 0..256 {
                places.give_back(blocks[number * order % 256]);
            }
            let whole: Vec<_> =
                std::iter::from_fn(|| places.take(PLACE_BYTES_MAX, LIMIT)).collect();
            assert!(whole.iter().all(|place| place.length() == PLACE_BYTES_MAX));
            assert_eq!((whole.len(), places.used()), (16, LIMIT));
            for place in whole {
                places.give_back(place);
            }
            assert_eq!(places.used(), 0);
        }
    }

    #[test]
    fn what_is_free_in_parts_is_taken_in_parts() {
        let mut places = Places::default();
        let blocks: Vec<_> = std::iter::from_fn(|| places.take(1, 64 << 10)).collect();
        for block in blocks.iter().step_by(2) {
            places.give_back(*block);
        }
        for _ in 0..8 {
            let part = places.take(64 << 10, 64 << 10).expect("a block is free");
            assert_eq!(part.length(), BLOCK_BYTES);
        }
        assert_eq!(places.take(64 << 10, 64 << 10), None);
    }

    proptest! {
        /// Whatever is taken and given back, places that are taken do not overlap, end within the
        /// limit, and nothing is lost.
        #[test]
        fn places_do_not_overlap(
            steps in prop::collection::vec(
                (1_u64..70 << 10, any::<bool>(), any::<prop::sample::Index>()),
                1..200,
            ),
        ) {
            let mut places = Places::default();
            let mut taken: Vec<Place> = Vec::new();
            for (length, gives, which) in steps {
                if gives && !taken.is_empty() {
                    places.give_back(taken.swap_remove(which.index(taken.len())));
                } else if let Some(place) = places.take(length, LIMIT) {
                    prop_assert!(place.offset + place.length() <= LIMIT);
                    taken.push(place);
                } else {
                    prop_assert_eq!(places.used(), LIMIT);
                }
                taken.sort_by_key(|place| place.offset);
                for pair in taken.windows(2) {
                    prop_assert!(pair[0].offset + pair[0].length() <= pair[1].offset);
                }
                let used: u64 = taken.iter().map(|place| place.length()).sum();
                prop_assert_eq!(places.used(), used);
            }
            for place in taken {
                places.give_back(place);
            }
            let whole = std::iter::from_fn(|| places.take(PLACE_BYTES_MAX, LIMIT)).count();
            prop_assert_eq!(whole as u64, LIMIT / PLACE_BYTES_MAX);
        }
    }
}
