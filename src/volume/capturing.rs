//! The contents of a journal, read while operations go on.
//!
//! Owns: the changes that users make to the layers, which places of a capture were read, and what is
//! read before it changes. Does not own: the layers (`state`), what changed (`delta`), what a
//! journal carries (`capture`). Pure.
//!
//! A capture begins in constant time: it takes the deltas of both layers. That is its moment. It
//! then reads the places that they name a few at a time, and the state is unlocked in between. An
//! operation that is about to change a place which was not read yet has it read first. So a capture
//! holds everything as of its moment, however long it takes. Storing bytes changes nothing that can
//! be read, so it needs no such care.

use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap};
use std::ops::{Bound, Deref, DerefMut, Range};

use crate::tree::item::Item;
use crate::tree::key::{self, Key, KeyParts};
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

    /// Returns the number of dirty bytes of data in it.
    pub fn data_bytes(&self) -> u64 {
        let parts = self.parts.iter();
        let data = parts.map(|(range, part)| match part {
            Part::Data(_) | Part::Swapped(_) => range.end - range.start,
            Part::Zero => 0,
        });
        data.sum()
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
    /// True if the capture has more parts than it may have, and is given up.
    pub is_too_much: bool,
}

/// How far a capture has read its places: first the items of both deltas, then the contents.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Reached {
    /// Items of this delta up to this key were read; none: no items of it.
    Items(usize, Option<Key>),
    /// Contents of this delta before this inode and byte offset were read.
    Contents(usize, (u64, u64)),
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
    /// Disjoint ranges that were read because they were about to change, by delta, inode and start.
    ranges: BTreeMap<(usize, u64, u64), CapturedRange>,
    /// The number of parts of these ranges, with those that were taken out since.
    kept_parts: usize,
    /// The number of parts beyond which the capture is given up.
    parts_max: usize,
}

impl Capturing {
    fn new(deltas: [Delta; 2], parts_max: usize) -> Self {
        Self {
            deltas,
            reached: Reached::Items(0, None),
            items: HashMap::new(),
            ranges: BTreeMap::new(),
            kept_parts: 0,
            parts_max,
        }
    }

    /// Returns true if more parts were kept than a journal may have. Then the capture reads no more
    /// and keeps no more; its deltas are whole.
    fn is_too_much(&self) -> bool {
        self.kept_parts > self.parts_max
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

    /// Reads what of `changed` the capture describes and is about to change, unless it was read.
    fn keep_contents(&mut self, state: &VolumeState, inode: u64, changed: &Range<u64>) {
        for delta in [0, 1] {
            let unread = self.read_to(delta, inode).max(changed.start)..changed.end;
            if unread.is_empty() {
                continue;
            }
            let ranges = self.deltas[delta].contents_of(inode);
            let Some(ranges) = ranges.filter(|_| self.describes(delta, inode)) else {
                continue;
            };
            let overlapping: Vec<_> = ranges.overlapping(&unread).collect();
            for range in overlapping {
                let range = range.start.max(unread.start)..range.end.min(unread.end);
                for gap in self.not_kept(delta, inode, range) {
                    let left = self.parts_max.saturating_sub(self.kept_parts);
                    let end = end_of_parts(state, inode, &gap, left);
                    if left == 0 || end < gap.end {
                        self.kept_parts = self.parts_max.saturating_add(1);
                        return;
                    }
                    let place = (delta, inode, gap.start);
                    let captured = CapturedRange::of(state, inode, gap);
                    self.kept_parts += captured.part_count();
                    self.ranges.insert(place, captured);
                }
            }
        }
    }

    /// Returns the offset before which the contents of a file in one delta were read.
    fn read_to(&self, delta: usize, inode: u64) -> u64 {
        match self.reached {
            Reached::Items(..) => 0,
            Reached::Contents(reached, (last, offset)) => {
                match (delta, inode).cmp(&(reached, last)) {
                    Ordering::Less => u64::MAX,
                    Ordering::Equal => offset,
                    Ordering::Greater => 0,
                }
            }
            Reached::All => u64::MAX,
        }
    }

    /// Returns the parts of `range` that were not kept, in order.
    fn not_kept(&self, delta: usize, inode: u64, range: Range<u64>) -> Vec<Range<u64>> {
        let before = self.ranges.range(..(delta, inode, range.start)).next_back();
        let before = before.filter(|((of, file, _), _)| (*of, *file) == (delta, inode));
        let mut at = before.map_or(range.start, |(_, kept)| range.start.max(kept.range.end));
        let mut gaps = Vec::new();
        let begun = (delta, inode, range.start)..(delta, inode, range.end);
        for kept in self.ranges.range(begun).map(|(_, kept)| &kept.range) {
            if at < kept.start {
                gaps.push(at..kept.start);
            }
            at = kept.end;
        }
        if at < range.end {
            gaps.push(at..range.end);
        }
        gaps
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
            if self.is_too_much() {
                batch.is_too_much = true;
                return batch;
            }
            let read = match self.reached.clone() {
                Reached::Items(delta, last) => {
                    self.read_items(state, (delta, last), left, &mut batch)
                }
                Reached::Contents(delta, from) => {
                    self.read_contents(state, (delta, from), left, &mut batch)
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
            None => Reached::Contents(0, (0, 0)),
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

    /// Reads the first contents of one delta from an inode and offset on, and returns the number of
    /// their parts: at most about `limit` of each layer, and those of one range beyond that.
    fn read_contents(
        &mut self,
        state: &VolumeState,
        (delta, from): (usize, (u64, u64)),
        limit: usize,
        batch: &mut Batch,
    ) -> usize {
        let Some((inode, range)) = self.deltas[delta].contents_from(from) else {
            self.reached = match delta {
                0 => Reached::Contents(1, (0, 0)),
                _ => Reached::All,
            };
            return 0;
        };
        if !self.describes(delta, inode) {
            self.reached = Reached::Contents(delta, (inode, u64::MAX));
            return 1;
        }
        let end = end_of_parts(state, inode, &range, limit);
        let (mut at, mut count) = (range.start, 0);
        while at < end && count < limit {
            // What was kept is not divided.
            let captured = self.ranges.remove(&(delta, inode, at)).unwrap_or_else(|| {
                let mut kept = self.ranges.range((delta, inode, at)..(delta, inode, end));
                let next = kept.next().map_or(end, |(place, _)| place.2);
                CapturedRange::of(state, inode, at..next)
            });
            at = captured.range.end;
            count += captured.part_count();
            batch.ranges.push(captured);
        }
        self.reached = Reached::Contents(delta, (inode, at));
        count
    }
}

/// Returns the end of the longest front of `range` that has about `limit` parts of each layer,
/// at least one: dirty parts ([`DirtyRanges::end_of_parts`]) and changed extents.
fn end_of_parts(state: &VolumeState, inode: u64, range: &Range<u64>, limit: usize) -> u64 {
    let limit = limit.max(1);
    let mut end = range.end;
    for layer in state.layers(Scope::Live) {
        if let Some(ranges) = layer.data.get(&inode) {
            end = ranges.end_of_parts(&(range.start..end), limit);
        }
        let extents = key::extents_beginning(inode, range.start..end);
        let next = layer.items.range(extents).nth(limit);
        if let Some(Ok(KeyParts::Extent { offset, .. })) = next.map(|(key, _)| key.parse()) {
            end = offset;
        }
        if layer.dropped.contains(&inode) {
            break;
        }
    }
    end
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

/// The state of a live volume, and the capture that reads what changed in it.
///
/// What users change goes through its methods. The state itself is changed only where that changes
/// nothing that can be read, or while no journals are written.
#[derive(Debug)]
pub struct LiveState {
    state: VolumeState,
    capturing: Option<Capturing>,
}

impl Deref for LiveState {
    type Target = VolumeState;

    fn deref(&self) -> &VolumeState {
        &self.state
    }
}

impl DerefMut for LiveState {
    fn deref_mut(&mut self) -> &mut VolumeState {
        &mut self.state
    }
}

impl LiveState {
    /// Returns `state`, without a capture under way.
    pub fn new(state: VolumeState) -> Self {
        Self {
            state,
            capturing: None,
        }
    }

    /// Begins the capture of everything that changed since the last journal. It becomes the next
    /// operation.
    ///
    /// It is given up when operations that go on make it keep more than `parts_max` parts.
    ///
    /// # Panics
    /// If a capture is under way.
    pub fn begin_capture(&mut self, parts_max: usize) -> Moment {
        assert!(self.capturing.is_none(), "two captures at the same time");
        let state = &mut self.state;
        let older = state.committing.as_mut().map(|layer| &mut layer.delta);
        let older = older.map(std::mem::take).unwrap_or_default();
        let newer = std::mem::take(&mut state.active.delta);
        state.operation += 1;
        self.capturing = Some(Capturing::new([older, newer], parts_max));
        Moment {
            first: state.settled + 1,
            last: state.operation,
            epoch: state.active.epoch,
            totals: state.totals,
        }
    }

    /// Reads the next places of the capture under way, about `limit` of them.
    pub fn capture_some(&mut self, limit: usize) -> Batch {
        match &mut self.capturing {
            Some(capturing) => capturing.read(&self.state, limit),
            None => Batch {
                is_last: true,
                ..Batch::default()
            },
        }
    }

    /// Ends the capture under way, and returns it.
    pub fn end_capture(&mut self) -> Option<Capturing> {
        self.capturing.take()
    }

    /// Sets or removes an item of the live volume.
    pub fn change_item(&mut self, key: Key, item: Option<Item>) {
        self.with_capturing(|capturing, state| capturing.keep_item(state, &key));
        self.state.active.delta.item(&key);
        self.state.active.set(key, item);
    }

    /// Announces that the contents of a byte range of a file are about to change otherwise than by
    /// [`LiveState::change_data`].
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
        self.state.active.delta.content(inode, range);
        self.state.active.with_data(inode, change)
    }

    /// Drops an inode of the live volume with all that belongs to it.
    pub fn drop_inode(&mut self, inode: u64) {
        self.with_capturing(|capturing, state| capturing.keep_inode(state, inode));
        self.state.active.drop_inode(inode);
    }

    fn with_capturing(&mut self, work: impl FnOnce(&mut Capturing, &VolumeState)) {
        if let Some(capturing) = &mut self.capturing {
            work(capturing, &self.state);
        }
    }
}

#[cfg(test)]
mod tests;
