//! The places that changed since the last journal: items, inodes, and ranges of files.
//!
//! Owns: the set of places and the memory that it takes, never their contents. A journal describes
//! the contents of these places at the moment of its cut. So it is harmless to name a place twice,
//! or a place that did not change. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Bound, Range};

use crate::tree::key::{self, Key};

/// Maximum number of separate ranges of one file. Beyond it, ranges that lie near each other are
/// joined.
const RANGES_MAX: usize = 1024;

/// The first distance that counts as near, in bytes. It doubles as long as there are too many
/// ranges.
const NEAR_BYTES: u64 = 4096;

/// Memory of one range, in bytes: its place in a map that is half full.
const RANGE_BYTES: u64 = 40;

/// Memory of a file's ranges in addition to them, in bytes: the first node of the map, and its
/// place among the files.
const FILE_BYTES: u64 = 320;

/// Disjoint byte ranges of a file. Joined ranges also contain the bytes between them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ranges {
    ends: BTreeMap<u64, u64>,
    /// Ranges with at most this many bytes between them are joined.
    near: u64,
}

impl Ranges {
    /// Adds a range, and joins it with ranges that touch it or lie near it.
    pub fn add(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        self.join(range);
        while self.ends.len() > RANGES_MAX {
            self.near = (self.near * 2).max(NEAR_BYTES);
            for (start, end) in std::mem::take(&mut self.ends) {
                self.join(start..end);
            }
        }
    }

    fn join(&mut self, range: Range<u64>) {
        let (mut start, mut end) = (range.start, range.end);
        let reach = |end: u64, near| end.saturating_add(near);
        while let Some((&from, &to)) = self.ends.range(..=reach(end, self.near)).next_back() {
            if reach(to, self.near) < start {
                break;
            }
            (start, end) = (start.min(from), end.max(to));
            self.ends.remove(&from);
        }
        self.ends.insert(start, end);
    }

    fn cost(&self) -> u64 {
        FILE_BYTES + self.ends.len() as u64 * RANGE_BYTES
    }

    /// Returns the ranges in order.
    pub fn iter(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.ends.iter().map(|(&start, &end)| start..end)
    }

    /// Returns the ranges that share a byte with `range`, the last first.
    pub fn overlapping(&self, range: &Range<u64>) -> impl Iterator<Item = Range<u64>> + '_ {
        let from = range.start;
        let begun = self.ends.range(..range.end).rev();
        begun
            .map(|(&start, &end)| start..end)
            .take_while(move |range| from < range.end)
    }

    /// Returns the first range at or after `offset`, without what lies before it.
    fn from(&self, offset: u64) -> Option<Range<u64>> {
        let before = self.ends.range(..=offset).next_back();
        if let Some((_, &end)) = before.filter(|(_, end)| offset < **end) {
            return Some(offset..end);
        }
        let (&start, &end) = self.ends.range(offset..).next()?;
        Some(start..end)
    }
}

/// The places that changed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Delta {
    /// Items that were set or removed.
    pub items: BTreeSet<Key>,
    /// Inodes that were dropped with all that belongs to them.
    pub dropped: BTreeSet<u64>,
    contents: BTreeMap<u64, Ranges>,
    /// Memory of the ranges of contents, in bytes.
    cost: u64,
}

impl Delta {
    /// Returns true if nothing changed.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty() && self.dropped.is_empty() && self.contents.is_empty()
    }

    /// Adds an item that was set or removed.
    pub fn item(&mut self, key: &Key) {
        if !self.items.contains(key) {
            self.items.insert(key.clone());
        }
    }

    /// Returns the inodes of files whose contents changed, in order.
    pub fn changed_files(&self) -> impl Iterator<Item = u64> + '_ {
        self.contents.keys().copied()
    }

    /// Returns the ranges of a file that changed.
    pub fn contents_of(&self, inode: u64) -> Option<&Ranges> {
        self.contents.get(&inode)
    }

    /// Returns the first changed range at or after this inode and offset, in the order of inodes and
    /// offsets, without what lies before the offset.
    pub fn contents_from(&self, (inode, offset): (u64, u64)) -> Option<(u64, Range<u64>)> {
        let ranges = self.contents.get(&inode);
        if let Some(range) = ranges.and_then(|ranges| ranges.from(offset)) {
            return Some((inode, range));
        }
        let files = (Bound::Excluded(inode), Bound::Unbounded);
        let (inode, ranges) = self.contents.range(files).next()?;
        Some((*inode, ranges.from(0)?))
    }

    /// Returns the memory of the ranges of contents, in bytes.
    pub fn cost(&self) -> u64 {
        self.cost
    }

    /// Adds a range of a file, in bytes, that was written, zeroed or shared.
    pub fn content(&mut self, inode: u64, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let mine = self.contents.entry(inode).or_default();
        if !mine.ends.is_empty() {
            self.cost -= mine.cost();
        }
        mine.add(range);
        self.cost += mine.cost();
    }

    /// Adds an inode that was dropped with all that belongs to it, and forgets its other places.
    pub fn drop_inode(&mut self, inode: u64) {
        let items: Vec<Key> = self.items.range(key::of_inode(inode)).cloned().collect();
        for key in items {
            self.items.remove(&key);
        }
        if let Some(ranges) = self.contents.remove(&inode) {
            self.cost -= ranges.cost();
        }
        self.dropped.insert(inode);
    }

    /// Adds the places of a later delta.
    pub fn absorb(&mut self, newer: Delta) {
        for inode in newer.dropped {
            self.drop_inode(inode);
        }
        self.items.extend(newer.items);
        for (inode, ranges) in newer.contents {
            ranges.iter().for_each(|range| self.content(inode, range));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn ranges_are_the_union_of_what_was_added(
            added in proptest::collection::vec((0u64..300, 0u64..40), 0..40)
        ) {
            let mut ranges = Ranges::default();
            let mut bytes = [false; 400];
            for (start, length) in added {
                ranges.add(start..start + length);
                bytes[start as usize..(start + length) as usize].fill(true);
            }
            let mut seen = [false; 400];
            let mut last = None;
            for range in ranges.iter() {
                prop_assert!(
                    last.is_none_or(|last| last < range.start),
                    "ranges that touch are one"
                );
                seen[range.start as usize..range.end as usize].fill(true);
                last = Some(range.end);
            }
            prop_assert_eq!(&seen[..], &bytes[..]);
        }
    }

    /// Every added byte is in some range, the number of ranges is bounded, and ranges that lie far
    /// apart stay apart.
    #[test]
    fn many_ranges_become_few_and_those_far_apart_stay_apart() {
        const FAR: u64 = 1 << 40;
        let mut ranges = Ranges::default();
        ranges.add(FAR..FAR + 1);
        let added = |n: u64| n.wrapping_mul(7919) % 65_536 * 8192;
        for n in 0..65_536 {
            ranges.add(added(n)..added(n) + 512);
        }
        assert!(ranges.ends.len() <= RANGES_MAX);
        for n in (0..65_536).step_by(61) {
            let (start, end) = (added(n), added(n) + 512);
            assert!(
                ranges
                    .iter()
                    .any(|range| range.start <= start && end <= range.end)
            );
        }
        let last = ranges.iter().last();
        assert_eq!(last, Some(FAR..FAR + 1));
    }

    #[test]
    fn what_is_held_is_charged_and_given_back() {
        let mut delta = Delta::default();
        for n in 0..100 {
            delta.content(n % 7, n * 10..n * 10 + 5);
        }
        let real: u64 = delta.contents.values().map(Ranges::cost).sum();
        assert_eq!(delta.cost(), real);
        let mut newer = Delta::default();
        newer.content(3, 0..1);
        newer.drop_inode(4);
        delta.absorb(newer);
        let real: u64 = delta.contents.values().map(Ranges::cost).sum();
        assert_eq!(delta.cost(), real);
        (0..7).for_each(|inode| delta.drop_inode(inode));
        assert_eq!(delta.cost(), 0);
    }

    #[test]
    fn every_range_and_every_file_is_charged() {
        let mut delta = Delta::default();
        delta.content(7, 0..10);
        assert_eq!(delta.cost(), FILE_BYTES + RANGE_BYTES);
        delta.content(7, 10..20);
        assert_eq!(delta.cost(), FILE_BYTES + RANGE_BYTES, "they touch");
        delta.content(7, 1 << 40..(1 << 40) + 1);
        delta.content(8, 0..1);
        assert_eq!(delta.cost(), 2 * FILE_BYTES + 3 * RANGE_BYTES);
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
        assert_eq!(older.changed_files().collect::<Vec<_>>(), [8]);
    }

    #[test]
    fn places_are_found_by_what_they_share_and_one_after_the_other() {
        let mut delta = Delta::default();
        for (inode, range) in [(7, 10..20), (9, 0..5), (7, 40..50), (7, 30..31)] {
            delta.content(inode, range);
        }
        let (mut all, mut from) = (Vec::new(), (0, 0));
        while let Some((inode, range)) = delta.contents_from(from) {
            from = (inode, range.end);
            all.push((inode, range));
        }
        assert_eq!(all, [(7, 10..20), (7, 30..31), (7, 40..50), (9, 0..5)]);
        assert_eq!(delta.contents_from((7, 15)), Some((7, 15..20)));
        assert_eq!(delta.contents_from((7, 20)), Some((7, 30..31)));
        assert_eq!(delta.contents_from((8, 3)), Some((9, 0..5)));
        assert_eq!(delta.contents_from((9, 5)), None);
        let found = |range| {
            let ranges = delta.contents_of(7).expect("it changed");
            ranges.overlapping(&range).collect::<Vec<_>>()
        };
        assert_eq!(found(19..41), [40..50, 30..31, 10..20]);
        assert!(found(20..30).is_empty());
        assert_eq!(found(30..31), vec![30..31]);
        assert!(found(0..10).is_empty() && found(50..60).is_empty());
        assert!(delta.contents_of(8).is_none());
    }
}
