//! The contents of a journal, read while operations go on.
//!
//! Owns: which places of a capture were read, and what is read before it changes. Does not own:
//! what changed (`delta`), what a journal carries (`capture`). Pure.
//!
//! A capture begins in constant time: it takes the deltas of both layers. That is its moment. It
//! then reads the places that they name a few at a time, and the state is unlocked in between. An
//! operation that is about to change a place which was not read yet has it read first. So a capture
//! holds everything as of its moment, however long it takes. Storing bytes changes nothing that can
//! be read, so it needs no such care.

use std::collections::HashMap;
use std::ops::{Bound, Range};

use crate::tree::item::Item;
use crate::tree::key::{self, Key};
use crate::volume::delta::Delta;
use crate::volume::dirty::{DirtyRanges, Part};
use crate::volume::state::{ExtentChanges, Found, Scope, Totals, VolumeState};

/// A range of a file: its dirty parts, and the layers' part of the rest.
#[derive(Debug)]
pub struct CapturedRange {
    /// The inode of the file.
    pub inode: u64,
    /// The range, in bytes.
    pub range: Range<u64>,
    /// The dirty parts, in order.
    pub parts: Vec<(Range<u64>, Part)>,
    /// The extents and the inline contents of the rest; none if the parts cover the range.
    pub below: Option<(ExtentChanges, Found)>,
}

impl CapturedRange {
    fn of(state: &VolumeState, inode: u64, range: Range<u64>) -> Self {
        let (parts, below) = state.contents(Scope::Live, inode, &range);
        Self {
            inode,
            range,
            parts,
            below,
        }
    }

    /// Returns the number of parts that it holds in memory, and one for itself.
    pub fn part_count(&self) -> usize {
        let below = self.below.as_ref();
        let changes = below.map_or(0, |(below, _)| below.changes.items.len());
        self.parts.len() + changes + 1
    }
}

/// The facts of the moment at which a capture began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment {
    /// The first operation that no earlier journal carries.
    pub first: u64,
    /// The number of the operation that the captured changes are. The operations from `first` up to
    /// it failed, and are part of these changes.
    pub last: u64,
    /// The epoch of the layer that was active.
    pub epoch: u64,
    /// The inodes and bytes of the volume.
    pub totals: Totals,
}

/// A few places of a capture.
#[derive(Debug, Default)]
pub struct Batch {
    /// Changed items; none if the item does not exist.
    pub items: Vec<(Key, Option<Item>)>,
    /// Changed ranges of files.
    pub ranges: Vec<CapturedRange>,
    /// True if no more places follow.
    pub is_last: bool,
}

/// How far a capture has read its places: first the items of both deltas, then the contents.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Reached {
    /// Items of this delta up to this key were read; none: no items of it.
    Items(usize, Option<Key>),
    /// Contents of this delta up to this inode and the start of a range were read.
    Contents(usize, Option<(u64, u64)>),
    /// Everything was read.
    All,
}

/// The changes that a capture under way describes.
#[derive(Debug)]
pub struct Capturing {
    /// The deltas of the committing layer and of the active layer.
    deltas: [Delta; 2],
    reached: Reached,
    /// Items that were read because they were about to change.
    items: HashMap<Key, Option<Option<Item>>>,
    /// Ranges that were read because they were about to change, by delta, inode and start.
    ranges: HashMap<(usize, u64, u64), CapturedRange>,
}

impl Capturing {
    fn new(deltas: [Delta; 2]) -> Self {
        Self {
            deltas,
            reached: Reached::Items(0, None),
            items: HashMap::new(),
            ranges: HashMap::new(),
        }
    }

    /// Returns the changes as one delta.
    pub fn into_delta(self) -> Delta {
        let [mut delta, newer] = self.deltas;
        delta.absorb(newer);
        delta
    }

    /// Returns whether the capture describes places of this inode which `delta` names.
    fn describes(&self, delta: usize, inode: u64) -> bool {
        delta == 1 || !self.deltas[1].dropped.contains(&inode)
    }

    /// Returns the delta in whose turn an item is read; none if the capture does not describe it.
    fn turn_of(&self, key: &Key) -> Option<usize> {
        if self.deltas[1].items.contains(key) {
            return Some(1);
        }
        let is_described = self.deltas[0].items.contains(key)
            && key.inode().map_or(true, |inode| self.describes(0, inode));
        is_described.then_some(0)
    }

    /// Reads an item that is about to change, unless it was read.
    fn keep_item(&mut self, state: &VolumeState, key: &Key) {
        let Some(delta) = self.turn_of(key) else {
            return;
        };
        if self.reached < Reached::Items(delta, Some(key.clone())) && !self.items.contains_key(key)
        {
            self.items.insert(key.clone(), item_at(state, key));
        }
    }

    /// Reads the ranges of a file that overlap `changed` and are about to change, unless they were
    /// read.
    fn keep_contents(&mut self, state: &VolumeState, inode: u64, changed: &Range<u64>) {
        for delta in [0, 1] {
            let Some(ranges) = self.deltas[delta].contents_of(inode) else {
                continue;
            };
            if !self.describes(delta, inode) {
                continue;
            }
            for range in ranges.overlapping(changed) {
                let place = (inode, range.start);
                if self.reached < Reached::Contents(delta, Some(place)) {
                    let place = (delta, inode, range.start);
                    let kept = self.ranges.entry(place);
                    kept.or_insert_with(|| CapturedRange::of(state, inode, range));
                }
            }
        }
    }

    /// Reads everything of an inode that is about to be dropped, unless it was read.
    fn keep_inode(&mut self, state: &VolumeState, inode: u64) {
        let of_inode = || key::of_inode(inode);
        let items = self.deltas.iter();
        let items = items.flat_map(|delta| delta.items.range(of_inode()));
        for key in items.cloned().collect::<Vec<_>>() {
            self.keep_item(state, &key);
        }
        self.keep_contents(state, inode, &(0..u64::MAX));
    }

    /// Reads the next places, about `limit` of them.
    fn read(&mut self, state: &VolumeState, limit: usize) -> Batch {
        let mut batch = Batch::default();
        let mut left = limit;
        while left > 0 {
            let read = match self.reached.clone() {
                Reached::Items(delta, last) => {
                    self.read_items(state, (delta, last), left, &mut batch)
                }
                Reached::Contents(delta, last) => {
                    self.read_contents(state, (delta, last), &mut batch)
                }
                Reached::All => {
                    batch.is_last = true;
                    return batch;
                }
            };
            left = left.saturating_sub(read);
        }
        batch
    }

    /// Reads items of one delta behind `last`, and returns how many.
    fn read_items(
        &mut self,
        state: &VolumeState,
        (delta, last): (usize, Option<Key>),
        limit: usize,
        batch: &mut Batch,
    ) -> usize {
        let behind = last.map_or(Bound::Unbounded, Bound::Excluded);
        let keys = self.deltas[delta].items.range((behind, Bound::Unbounded));
        let keys: Vec<Key> = keys.take(limit).cloned().collect();
        self.reached = match keys.last() {
            Some(last) => Reached::Items(delta, Some(last.clone())),
            None if delta == 0 => Reached::Items(1, None),
            None => Reached::Contents(0, None),
        };
        let count = keys.len();
        for key in keys {
            if self.turn_of(&key) != Some(delta) {
                continue;
            }
            let kept = self.items.remove(&key);
            if let Some(item) = kept.unwrap_or_else(|| item_at(state, &key)) {
                batch.items.push((key, item));
            }
        }
        count
    }

    /// Reads the range of one delta behind `last`, and returns the number of its parts.
    fn read_contents(
        &mut self,
        state: &VolumeState,
        (delta, last): (usize, Option<(u64, u64)>),
        batch: &mut Batch,
    ) -> usize {
        let Some((inode, range)) = self.deltas[delta].contents_after(last) else {
            self.reached = match delta {
                0 => Reached::Contents(1, None),
                _ => Reached::All,
            };
            return 0;
        };
        let start = range.start;
        self.reached = Reached::Contents(delta, Some((inode, start)));
        if !self.describes(delta, inode) {
            return 1;
        }
        let kept = self.ranges.remove(&(delta, inode, start));
        let captured = kept.unwrap_or_else(|| CapturedRange::of(state, inode, range));
        let count = captured.part_count();
        batch.ranges.push(captured);
        count
    }
}

/// Returns an item as it is now. The outer option is none if a commit removed the layer that held
/// it, so that it is in the tree.
fn item_at(state: &VolumeState, key: &Key) -> Option<Option<Item>> {
    match state.find(Scope::Live, key) {
        Found::Item(item) => Some(Some(item)),
        Found::Absent => Some(None),
        Found::Below(_) => None,
    }
}

impl VolumeState {
    /// Begins the capture of everything that changed since the last journal. It becomes the next
    /// operation.
    ///
    /// # Panics
    /// If a capture is under way.
    pub fn begin_capture(&mut self) -> Moment {
        assert!(self.capturing.is_none(), "two captures at the same time");
        let older = self.committing.as_mut().map(|layer| &mut layer.delta);
        let older = older.map(std::mem::take).unwrap_or_default();
        let newer = std::mem::take(&mut self.active.delta);
        self.operation += 1;
        self.capturing = Some(Box::new(Capturing::new([older, newer])));
        Moment {
            first: self.settled + 1,
            last: self.operation,
            epoch: self.active.epoch,
            totals: self.totals,
        }
    }

    /// Reads the next places of the capture under way, about `limit` of them.
    pub fn capture_some(&mut self, limit: usize) -> Batch {
        let mut batch = Batch {
            is_last: true,
            ..Batch::default()
        };
        self.with_capturing(|capturing, state| batch = capturing.read(state, limit));
        batch
    }

    /// Ends the capture under way, and returns it.
    pub fn end_capture(&mut self) -> Option<Box<Capturing>> {
        self.capturing.take()
    }

    /// Sets or removes an item of the live volume.
    pub fn change_item(&mut self, key: Key, item: Option<Item>) {
        self.with_capturing(|capturing, state| capturing.keep_item(state, &key));
        self.active.delta.item(&key);
        self.active.set(key, item);
    }

    /// Announces that the contents of a byte range of a file are about to change otherwise than by
    /// [`VolumeState::change_data`].
    pub fn before_contents_change(&mut self, inode: u64, range: &Range<u64>) {
        self.with_capturing(|capturing, state| capturing.keep_contents(state, inode, range));
    }

    /// Runs `change` on the dirty bytes of a file of the live volume. It changes contents in the
    /// byte range `range` only.
    pub fn change_data<R>(
        &mut self,
        inode: u64,
        range: Range<u64>,
        change: impl FnOnce(&mut DirtyRanges) -> R,
    ) -> R {
        self.before_contents_change(inode, &range);
        self.active.delta.content(inode, range);
        self.active.with_data(inode, change)
    }

    /// Drops an inode of the live volume with all that belongs to it.
    pub fn drop_inode(&mut self, inode: u64) {
        self.with_capturing(|capturing, state| capturing.keep_inode(state, inode));
        self.active.drop_inode(inode);
    }

    fn with_capturing(&mut self, work: impl FnOnce(&mut Capturing, &VolumeState)) {
        if let Some(mut capturing) = self.capturing.take() {
            work(&mut capturing, self);
            self.capturing = Some(capturing);
        }
    }
}

#[cfg(test)]
mod tests;
