//! What was changed since the last journal: which items, which inodes, which ranges of files.
//!
//! Owns: the set of places, never what they hold. A journal describes what these places hold at the moment it is cut, so naming a place twice, or one that
//! did not change, is harmless. Pure.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;

use crate::tree::key::{self, Key};

/// Ranges of one file that are told apart; beyond that they count as one, from the first to the last.
const RANGES_MAX: usize = 4096;

/// Disjoint ranges of a file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    /// Adds a range; those that touch it become one with it.
    pub fn add(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let (mut start, mut end) = (range.start, range.end);
        while let Some((&from, &to)) = self.0.range(..=end).next_back() {
            if to < start {
                break;
            }
            (start, end) = (start.min(from), end.max(to));
            self.0.remove(&from);
        }
        self.0.insert(start, end);
        if self.0.len() > RANGES_MAX {
            let first = self.0.first_key_value().map_or(0, |(&start, _)| start);
            let last = self.0.last_key_value().map_or(0, |(_, &end)| end);
            self.0 = BTreeMap::from([(first, last)]);
        }
    }

    /// The ranges, in order.
    pub fn iter(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.0.iter().map(|(&start, &end)| start..end)
    }
}

/// Places that were changed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Delta {
    /// Items.
    pub items: BTreeSet<Key>,
    /// Inodes that were dropped whole.
    pub dropped: BTreeSet<u64>,
    /// Contents of files.
    pub contents: HashMap<u64, Ranges>,
}

impl Delta {
    /// True if nothing was changed.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty() && self.dropped.is_empty() && self.contents.is_empty()
    }

    /// An item was set or removed.
    pub fn item(&mut self, key: &Key) {
        if !self.items.contains(key) {
            self.items.insert(key.clone());
        }
    }

    /// Bytes of a file were written, zeroed or shared.
    pub fn content(&mut self, inode: u64, range: Range<u64>) {
        if !range.is_empty() {
            self.contents.entry(inode).or_default().add(range);
        }
    }

    /// An inode was dropped with all that belongs to it.
    pub fn drop_inode(&mut self, inode: u64) {
        let items: Vec<Key> = self.items.range(key::of_inode(inode)).cloned().collect();
        for key in items {
            self.items.remove(&key);
        }
        self.contents.remove(&inode);
        self.dropped.insert(inode);
    }

    /// Adds what was changed after this.
    pub fn absorb(&mut self, newer: Delta) {
        for inode in newer.dropped {
            self.drop_inode(inode);
        }
        self.items.extend(newer.items);
        for (inode, ranges) in newer.contents {
            let mine = self.contents.entry(inode).or_default();
            ranges.iter().for_each(|range| mine.add(range));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn ranges_are_the_union_of_what_was_added(added in proptest::collection::vec((0u64..300, 0u64..40), 0..40)) {
            let mut ranges = Ranges::default();
            let mut bytes = [false; 400];
            for (start, length) in added {
                ranges.add(start..start + length);
                bytes[start as usize..(start + length) as usize].fill(true);
            }
            let mut seen = [false; 400];
            let mut last = None;
            for range in ranges.iter() {
                prop_assert!(last.is_none_or(|last| last < range.start), "ranges that touch are one");
                seen[range.start as usize..range.end as usize].fill(true);
                last = Some(range.end);
            }
            prop_assert_eq!(&seen[..], &bytes[..]);
        }
    }

    #[test]
    fn many_ranges_become_one() {
        let mut ranges = Ranges::default();
        for n in 0..=RANGES_MAX as u64 {
            ranges.add(n * 10 + 5..n * 10 + 6);
        }
        let all: Vec<_> = ranges
            .iter()
            .map(|range| (range.start, range.end))
            .collect();
        assert_eq!(all, [(5, RANGES_MAX as u64 * 10 + 6)]);
    }

    #[test]
    fn what_belongs_to_a_dropped_inode_is_forgotten() {
        let mut older = Delta::default();
        older.item(&Key::attributes(7));
        older.item(&Key::attributes(8));
        older.content(7, 0..10);
        let mut newer = Delta::default();
        newer.drop_inode(7);
        newer.content(8, 5..6);
        older.absorb(newer);
        assert_eq!(older.items, BTreeSet::from([Key::attributes(8)]));
        assert_eq!(older.dropped, BTreeSet::from([7]));
        assert_eq!(older.contents.keys().copied().collect::<Vec<_>>(), [8]);
    }
}
