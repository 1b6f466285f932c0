//! The changes of a live volume in memory, above its last committed tree: two layers.
//!
//! Owns: the layers, and the rules by which one covers the other. Does not own: the tree below,
//! locks of inodes, I/O.
//!
//! ```text
//!   active    ← all operations write here; a cut makes it the committing layer and starts a new one
//!   committing ← a commit stores it, or relief; nothing changes it, except that stored bytes
//!               become extents
//!   base      ← the tree of the last commit
//! ```
//! A layer holds changed items (a tombstone is `None`), inodes that were dropped, and dirty bytes
//! of files. A read of a file looks at the dirty bytes of both layers first, and then at the items
//! of both over the base. The extents of a layer were cut to fit everything below it. So the bytes
//! of a file may be stored in the active layer only when the committing layer has no dirty bytes of it
//! left (`flush` ensures that).
//!
//! Each layer also keeps its *delta*: the places in it that no journal has described yet. Storing
//! bytes changes no delta, because it changes nothing that can be read.

use std::collections::{BTreeMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use bkfs_chunker::id::Id;

use crate::extents::{Placed, search_start};
use crate::tree::item::{Attributes, Extent, Item};
use crate::tree::key::{self, Key, KeyParts};
use crate::volume::delta::Delta;
use crate::volume::dirty::{Counts, DirtyRanges, Part};
use crate::volume::error::VolumeError;
use crate::volume::new_inodes::NewInodes;

/// Memory of an item of a layer in addition to its bytes: tree nodes and key headers, here and in
/// the delta (an estimate, for the memory budget).
const ITEM_OVERHEAD_BYTES: u64 = 320;

/// Memory of a dropped inode, here and in the delta, in bytes.
const DROPPED_BYTES: u64 = 64;

/// Returns the memory of one changed item, in bytes.
fn cost(key_bytes: usize, item: &Option<Item>) -> u64 {
    let value = match item {
        Some(Item::Xattr(bytes) | Item::Inline(bytes) | Item::Symlink(bytes)) => bytes.len(),
        _ => 0,
    };
    ITEM_OVERHEAD_BYTES + (key_bytes + value) as u64
}

/// One layer of changes.
#[derive(Debug, Default)]
pub struct Layer {
    /// The cut that the layer belongs to: the epoch of the active layer grows by one at each cut.
    pub epoch: u64,
    /// Changed items; `None` hides an item below.
    pub items: BTreeMap<Key, Option<Item>>,
    /// Inodes of which everything below is hidden. Shared, so that a commit takes the set of its
    /// layer in constant time; only the set of the active layer changes, which is not shared.
    pub dropped: Arc<HashSet<u64>>,
    /// Dirty bytes of files, in the order in which the files were made: a commit stores them so, and
    /// what was written together is read together.
    pub data: BTreeMap<u64, DirtyRanges>,
    /// The places in it that changed since the last journal.
    pub delta: Delta,
    item_cost: u64,
    dirty: Counts,
    /// The change of the allocated bytes, compared with everything below.
    allocated: i64,
}

impl Layer {
    fn new(epoch: u64) -> Self {
        Layer {
            epoch,
            ..Layer::default()
        }
    }

    /// Returns true if a commit of this layer would change nothing.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty() && self.dropped.is_empty() && self.data.is_empty()
    }

    /// Returns the memory of items, dropped inodes and the delta, in bytes.
    pub fn item_cost(&self) -> u64 {
        self.item_cost + self.dropped.len() as u64 * DROPPED_BYTES + self.delta.cost()
    }

    /// Returns the memory of the dirty bytes of files, in bytes.
    pub fn data_cost(&self) -> u64 {
        self.dirty.cost
    }

    /// Returns the number of dirty bytes of data (not zeroes) of all files.
    pub fn data_bytes(&self) -> u64 {
        self.dirty.data_bytes
    }

    /// Returns the number of dirty bytes that could be swapped out, of all files.
    pub fn swappable_bytes(&self) -> u64 {
        self.dirty.swappable_bytes
    }

    /// Sets or hides an item.
    pub fn set(&mut self, key: Key, item: Option<Item>) {
        let key_bytes = key.as_bytes().len();
        self.item_cost += cost(key_bytes, &item);
        if let Some(old) = self.items.insert(key, item) {
            self.item_cost -= cost(key_bytes, &old);
        }
    }

    /// Runs `change` on the dirty bytes of `inode`, and updates the counts.
    pub fn with_data<R>(&mut self, inode: u64, change: impl FnOnce(&mut DirtyRanges) -> R) -> R {
        let ranges = self.data.entry(inode).or_default();
        let before = ranges.counts();
        let result = change(ranges);
        self.dirty.replace(before, ranges.counts());
        if ranges.is_empty() {
            self.data.remove(&inode);
        }
        result
    }

    /// Drops an inode with all that belongs to it, here and below.
    pub fn drop_inode(&mut self, inode: u64) {
        self.delta.drop_inode(inode);
        let keys: Vec<Key> = self
            .items
            .range(key::of_inode(inode))
            .map(|(key, _)| key.clone())
            .collect();
        for key in keys {
            if let Some(item) = self.items.remove(&key) {
                self.item_cost -= cost(key.as_bytes().len(), &item);
            }
        }
        if let Some(ranges) = self.data.remove(&inode) {
            self.dirty.replace(ranges.counts(), Counts::default());
        }
        Arc::make_mut(&mut self.dropped).insert(inode);
    }
}

/// The layers that a reader sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Everything, as users of the mount see it.
    Live,
    /// The layer of this epoch and everything below, whether that layer is active, committing or
    /// committed. So a cut does not change the reader's result.
    Until(u64),
}

/// The result of looking a key up in the layers.
#[derive(Debug, Clone)]
pub enum Found {
    /// The changed item.
    Item(Item),
    /// Hidden: the item does not exist.
    Absent,
    /// Nothing: the answer is in this tree.
    Below(Id),
}

/// The inodes and bytes of a volume, for statfs and snapshot lists.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Number of inodes of all kinds.
    pub inodes: u64,
    /// Allocated bytes of regular files: their contents without holes, before deduplication. Dirty
    /// bytes are not counted yet.
    pub bytes: u64,
}

/// The two layers and the base.
#[derive(Debug)]
pub struct VolumeState {
    /// The layer that takes all changes.
    pub active: Layer,
    /// The layer that is being committed.
    pub committing: Option<Layer>,
    /// The root node of the last committed tree.
    pub base: Id,
    /// The inodes that the base has nothing of, so that it is not read for them.
    pub new_inodes: NewInodes,
    /// The inodes and bytes of the volume now.
    pub totals: Totals,
    /// The counter of writes. Each dirty piece carries its value at the piece's last write.
    pub stamp: u64,
    /// The number of the last operation, counted from 1. The cut of a journal makes one operation
    /// of everything that was done before it (rule 6).
    pub operation: u64,
    /// The last operation that a journal entry with fixed bytes carries.
    pub settled: u64,
    /// The last operation that a commit covers.
    pub covered: u64,
    /// The reason why no more changes are accepted; none if they are. The contents of the layers at
    /// that moment are the lost data.
    pub refusal: Option<VolumeError>,
}

impl VolumeState {
    /// Returns a state without changes above `base`.
    pub fn new(base: Id, totals: Totals) -> Self {
        VolumeState {
            active: Layer::new(1),
            committing: None,
            base,
            new_inodes: NewInodes::default(),
            totals,
            stamp: 0,
            operation: 0,
            settled: 0,
            covered: 0,
            refusal: None,
        }
    }

    /// Checks that changes are accepted.
    ///
    /// # Errors
    /// The refusal, [`VolumeError::Poisoned`].
    pub fn accepts(&self) -> Result<(), VolumeError> {
        self.refusal.clone().map_or(Ok(()), Err)
    }

    /// Returns the layers in `scope`, newest first.
    pub fn layers(&self, scope: Scope) -> impl Iterator<Item = &Layer> {
        let newest = match scope {
            Scope::Live => u64::MAX,
            Scope::Until(epoch) => epoch,
        };
        std::iter::once(&self.active)
            .chain(self.committing.as_ref())
            .filter(move |layer| layer.epoch <= newest)
    }

    /// Returns the layer of this epoch, if it is not committed yet.
    pub fn layer_mut(&mut self, epoch: u64) -> Option<&mut Layer> {
        if self.active.epoch == epoch {
            return Some(&mut self.active);
        }
        self.committing
            .as_mut()
            .filter(|layer| layer.epoch == epoch)
    }

    /// Returns the layer of this epoch, if stored contents of `inode` may still be put into it.
    ///
    /// It returns none if the inode was dropped there. It also returns none if the layer is committing
    /// and has no dirty bytes of the file, because the tree that holds the file may be built
    /// already.
    pub fn storing_layer(&mut self, epoch: u64, inode: u64) -> Option<&mut Layer> {
        let is_active = self.active.epoch == epoch;
        self.layer_mut(epoch).filter(|layer| {
            !layer.dropped.contains(&inode) && (is_active || layer.data.contains_key(&inode))
        })
    }

    /// Returns the next stamp.
    pub fn next_stamp(&mut self) -> u64 {
        self.stamp += 1;
        self.stamp
    }

    /// Looks `key` up in the layers.
    pub fn find(&self, scope: Scope, key: &Key) -> Found {
        for layer in self.layers(scope) {
            if let Some(change) = layer.items.get(key) {
                return change.clone().map_or(Found::Absent, Found::Item);
            }
            if key
                .inode()
                .is_ok_and(|inode| layer.dropped.contains(&inode))
            {
                return Found::Absent;
            }
        }
        self.base_of(key).map_or(Found::Absent, Found::Below)
    }

    /// Returns the base, if it may have items of the inode of `key`.
    fn base_of(&self, key: &Key) -> Option<Id> {
        let is_new = key.inode().is_ok_and(|inode| self.new_inodes.has(inode));
        (!is_new).then_some(self.base)
    }

    /// Returns the changes of one inode's items in `range`, at most `limit` of each layer, and the
    /// key up to which they are complete.
    pub fn changes(&self, scope: Scope, range: &Range<Key>, limit: usize) -> Changes {
        let mut changes = Changes {
            items: BTreeMap::new(),
            complete_to: range.end.clone(),
            base: self.base_of(&range.start),
        };
        for layer in self.layers(scope) {
            for (taken, (key, item)) in layer.items.range(range.clone()).enumerate() {
                if taken == limit {
                    changes.complete_to = changes.complete_to.min(key.clone());
                    break;
                }
                changes
                    .items
                    .entry(key.clone())
                    .or_insert_with(|| item.clone());
            }
            if range
                .start
                .inode()
                .is_ok_and(|inode| layer.dropped.contains(&inode))
            {
                changes.base = None;
                break;
            }
        }
        changes.items.split_off(&changes.complete_to);
        changes
    }

    /// Returns the layers' part of the extents of `inode` that overlap `range`.
    pub fn extent_changes(&self, scope: Scope, inode: u64, range: &Range<u64>) -> ExtentChanges {
        let before = self.extent_before(scope, inode, range.start);
        let window = search_start(range.start);
        let from = before.map_or(window, |placed| placed.offset);
        let keys = key::extents_beginning(inode, from..range.end);
        let below = match before {
            Some(placed) if placed.end() > range.start => Below::From(placed.end()),
            _ => Below::After(from),
        };
        ExtentChanges {
            inode,
            range: range.clone(),
            changes: self.changes(scope, &keys, usize::MAX),
            below,
        }
    }

    /// Returns the last extent in the layers that begins at or before `offset` and near enough to
    /// reach it. No extent before it, in the layers or in the tree, reaches to `offset`, because
    /// extents do not overlap.
    fn extent_before(&self, scope: Scope, inode: u64, offset: u64) -> Option<Placed> {
        let keys = Key::extent(inode, search_start(offset))..=Key::extent(inode, offset);
        let mut last: Option<(&Key, Extent)> = None;
        let mut above: Vec<&Layer> = Vec::new();
        for layer in self.layers(scope) {
            let is_hidden = |key: &Key| above.iter().any(|layer| layer.items.contains_key(key));
            let extent = layer.items.range(keys.clone()).rev();
            let found = extent
                .take_while(|(key, _)| last.is_none_or(|(last, _)| *key > last))
                .filter(|(key, _)| !is_hidden(key))
                .find_map(|(key, item)| match item {
                    Some(Item::Extent(extent)) => Some((key, *extent)),
                    _ => None,
                });
            last = found.or(last);
            if layer.dropped.contains(&inode) {
                break;
            }
            above.push(layer);
        }
        let (key, extent) = last?;
        match key.parse() {
            Ok(KeyParts::Extent { offset, .. }) => Some(Placed { offset, extent }),
            _ => None,
        }
    }

    /// Returns the dirty parts of `inode` in `range`, as disjoint parts in no particular order. The
    /// newest layer wins.
    pub fn dirty_parts(
        &self,
        scope: Scope,
        inode: u64,
        range: Range<u64>,
    ) -> Vec<(Range<u64>, Part)> {
        let mut parts: Vec<(Range<u64>, Part)> = Vec::new();
        let mut gaps = vec![range];
        for layer in self.layers(scope) {
            let Some(ranges) = layer.data.get(&inode) else {
                if layer.dropped.contains(&inode) {
                    break;
                }
                continue;
            };
            let mut left = Vec::new();
            for gap in gaps {
                let mut at = gap.start;
                for (covered, part) in ranges.overlaps(gap.clone()) {
                    if at < covered.start {
                        left.push(at..covered.start);
                    }
                    at = covered.end;
                    parts.push((covered, part));
                }
                if at < gap.end {
                    left.push(at..gap.end);
                }
            }
            gaps = left;
        }
        parts
    }

    /// Returns whether the byte at `offset` is dirty: data (true), a zero (false) or not dirty
    /// (none). Also returns the offset up to which the bytes after it are the same.
    pub fn dirty_at(&self, scope: Scope, inode: u64, offset: u64) -> (Option<bool>, u64) {
        let mut until = u64::MAX;
        for layer in self.layers(scope) {
            if let Some(ranges) = layer.data.get(&inode) {
                let (dirty, end) = ranges.at(offset);
                until = until.min(end);
                if dirty.is_some() {
                    return (dirty, until);
                }
            }
            if layer.dropped.contains(&inode) {
                break;
            }
        }
        (None, until)
    }

    /// Returns the contents of `range` of a file: the dirty parts in order, and, unless they cover
    /// the range, the layers' part of the rest.
    pub fn contents(
        &self,
        scope: Scope,
        inode: u64,
        range: &Range<u64>,
    ) -> (DirtyParts, Option<(ExtentChanges, Found)>) {
        let mut parts = self.dirty_parts(scope, inode, range.clone());
        parts.sort_unstable_by_key(|(part, _)| part.start);
        let covered: u64 = parts.iter().map(|(part, _)| part.end - part.start).sum();
        let rest = (covered != range.end - range.start).then(|| {
            let changes = self.extent_changes(scope, inode, range);
            (changes, self.find(scope, &Key::inline(inode)))
        });
        (parts, rest)
    }

    /// Returns the attributes of an inode, if a layer has them.
    pub fn attributes(&self, scope: Scope, inode: u64) -> Option<Attributes> {
        match self.find(scope, &Key::attributes(inode)) {
            Found::Item(Item::Attributes(attributes)) => Some(attributes),
            _ => None,
        }
    }

    /// Returns true if a change is in no journal and in no commit.
    pub fn is_unjournaled(&self) -> bool {
        self.layers(Scope::Live)
            .any(|layer| !layer.delta.is_empty())
    }

    /// Returns a delta whose journal failed to the layer that was active (`epoch`) when it was
    /// taken. If that layer is committed by now, so is everything that the delta names.
    pub fn return_delta(&mut self, epoch: u64, mut older: Delta) {
        if let Some(layer) = self.layer_mut(epoch) {
            older.absorb(std::mem::take(&mut layer.delta));
            layer.delta = older;
        }
    }

    /// Counts a change of the live volume, in inodes and allocated bytes.
    pub fn count(&mut self, inodes: i64, allocated: i64) {
        self.totals.inodes = self.totals.inodes.saturating_add_signed(inodes);
        self.totals.bytes = self.totals.bytes.saturating_add_signed(allocated);
        self.active.allocated = self.active.allocated.saturating_add(allocated);
    }

    /// Counts the live volume anew: `bytes` below the active layer, and their change by that layer.
    pub fn set_allocated(&mut self, bytes: u64, growth: i64) {
        self.totals.bytes = bytes.saturating_add_signed(growth);
        self.active.allocated = growth;
    }

    /// Returns the totals without the active layer, which a commit of the committing layer publishes
    /// once none of its bytes are dirty. `inodes` is the number at the cut.
    pub fn committing_totals(&self, inodes: u64) -> Totals {
        let bytes = self.totals.bytes;
        Totals {
            inodes,
            bytes: bytes.saturating_add_signed(self.active.allocated.saturating_neg()),
        }
    }

    /// Changes attributes that describe how an inode is stored, which its users did not change: in
    /// the layer of `epoch` and in a newer one, if they have its attributes.
    pub fn adjust(&mut self, inode: u64, epoch: u64, change: impl Fn(&mut Attributes)) {
        let key = Key::attributes(inode);
        let adjust = |layer: &mut Layer| match layer.items.get_mut(&key) {
            Some(Some(Item::Attributes(attributes))) => {
                let before = attributes.allocated_bytes;
                change(attributes);
                Some(signed_difference(attributes.allocated_bytes, before))
            }
            _ => None,
        };
        let older = self
            .committing
            .as_mut()
            .filter(|layer| layer.epoch == epoch)
            .and_then(adjust);
        let newest = adjust(&mut self.active);
        let sealed = older.unwrap_or(0);
        // An inode that the active layer dropped is not live. Attributes that it did not change are
        // those of the layer below.
        let live = match self.active.dropped.contains(&inode) {
            true => newest.unwrap_or(0),
            false => newest.unwrap_or(sealed),
        };
        self.totals.bytes = self.totals.bytes.saturating_add_signed(live);
        let change = live.saturating_sub(sealed);
        self.active.allocated = self.active.allocated.saturating_add(change);
    }

    /// Makes the active layer the committing layer.
    ///
    /// # Panics
    /// If there is a committing layer already.
    pub fn cut(&mut self) {
        assert!(
            self.committing.is_none(),
            "a cut while the layer before is still being committed"
        );
        let next = Layer::new(self.active.epoch + 1);
        self.committing = Some(std::mem::replace(&mut self.active, next));
    }

    /// Makes `base` the base, which contains the committing layer, and removes that layer. Inodes
    /// from `next_inode` on were made after the cut of that layer.
    ///
    /// It returns the layer, because freeing a million items takes longer than the state may be
    /// locked: the caller unlocks the state first.
    #[must_use = "the layer is to be freed after the state is unlocked"]
    pub fn committed(&mut self, base: Id, next_inode: u64) -> Option<Layer> {
        self.base = base;
        self.new_inodes.begin_at(next_inode);
        self.committing.take()
    }

    /// Returns the memory of dirty bytes in both layers, in bytes.
    pub fn data_cost(&self) -> u64 {
        self.active.data_cost() + self.committing.as_ref().map_or(0, Layer::data_cost)
    }

    /// Returns the memory of items in both layers, in bytes.
    pub fn item_cost(&self) -> u64 {
        self.active.item_cost() + self.committing.as_ref().map_or(0, Layer::item_cost)
    }
}

/// Returns `new` less `old`.
pub(super) fn signed_difference(new: u64, old: u64) -> i64 {
    match new >= old {
        true => i64::try_from(new - old).unwrap_or(i64::MAX),
        false => -i64::try_from(old - new).unwrap_or(i64::MAX),
    }
}

/// The changed items of a range, over a base.
#[derive(Debug, Clone)]
pub struct Changes {
    /// The newest change of each key.
    pub items: BTreeMap<Key, Option<Item>>,
    /// Changes at or after this key were left out.
    pub complete_to: Key,
    /// The tree below; none if everything below is hidden.
    pub base: Option<Id>,
}

/// The dirty parts of a range of a file, each with its contents.
pub type DirtyParts = Vec<(Range<u64>, Part)>;

/// The layers' part of the extents that overlap a range of a file.
#[derive(Debug, Clone)]
pub struct ExtentChanges {
    /// The file.
    pub inode: u64,
    /// The range, in bytes.
    pub range: Range<u64>,
    /// The relevant changes.
    pub changes: Changes,
    /// The relevant extents of the tree.
    pub below: Below,
}

/// The place where the tree's extents are looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Below {
    /// Only extents that begin at or after this offset.
    From(u64),
    /// Those in the range and, of the extents that begin between this offset and the range, the
    /// last one that no change hides.
    After(u64),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> VolumeState {
        VolumeState::new(Id([0; 32]), Totals::default())
    }

    #[test]
    fn nothing_is_stored_into_a_sealed_layer_without_dirty_bytes_of_the_file() {
        let mut state = state();
        state
            .active
            .with_data(7, |ranges| ranges.write(0, b"dirty", 1));
        assert!(state.storing_layer(1, 7).is_some());
        assert!(state.storing_layer(1, 8).is_some());
        state.cut();
        assert!(state.storing_layer(1, 7).is_some(), "it is being stored");
        assert!(
            state.storing_layer(1, 8).is_none(),
            "its tree may be built already"
        );
        assert!(state.storing_layer(2, 8).is_some());
        state.active.drop_inode(8);
        assert!(
            state.storing_layer(2, 8).is_none(),
            "no layer has it any more"
        );
    }

    #[test]
    fn the_tree_is_not_asked_for_inodes_that_were_made_after_it() {
        let mut state = state();
        let is_below = |state: &VolumeState, inode| {
            let range = key::extents_beginning(inode, 0..u64::MAX);
            let has_base = state.changes(Scope::Live, &range, 1).base.is_some();
            let found = state.find(Scope::Live, &Key::inline(inode));
            assert_eq!(matches!(found, Found::Below(_)), has_base, "{inode}");
            has_base
        };
        state.new_inodes.begin_at(8);
        state.new_inodes.made(9);
        let seen = [7, 8, 9, 10].map(|inode| is_below(&state, inode));
        assert_eq!(seen, [true, false, false, true]);
        state.cut();
        state.new_inodes.made(10);
        drop(state.committed(Id([1; 32]), 10));
        let seen = [8, 9, 10, 11].map(|inode| is_below(&state, inode));
        assert_eq!(seen, [true, true, false, true]);
    }

    #[test]
    fn items_and_dropped_inodes_are_charged() {
        let mut layer = Layer::default();
        assert_eq!(layer.item_cost(), 0);
        layer.set(Key::extent(7, 0), extent(512));
        let item = layer.item_cost();
        assert!(item > ITEM_OVERHEAD_BYTES);
        layer.set(Key::extent(7, 0), extent(600));
        assert_eq!(layer.item_cost(), item, "the older one is given back");
        layer.set(Key::extent(7, 512), None);
        assert!(layer.item_cost() >= item + ITEM_OVERHEAD_BYTES);
        layer.drop_inode(7);
        layer.drop_inode(8);
        assert!(layer.item_cost() >= 2 * DROPPED_BYTES);
    }

    #[test]
    fn what_lies_above_a_layer_is_not_seen_from_it() {
        let mut state = state();
        state
            .active
            .with_data(7, |ranges| ranges.write(0, b"older", 1));
        state.cut();
        state.active.drop_inode(7);
        let seen = |scope| state.dirty_parts(scope, 7, 0..5).len();
        assert_eq!((seen(Scope::Until(1)), seen(Scope::Live)), (1, 0));
    }

    fn extent(length: u32) -> Option<Item> {
        Some(Item::Extent(Extent {
            length,
            target: crate::tree::item::Target::Chunk(Id([1; 32])),
            target_offset: 0,
            open: false,
        }))
    }

    /// For a file written in small pieces, each lookup went through all extents from 4 MiB before
    /// its position.
    #[test]
    fn regression_an_extent_is_found_at_once_however_many_there_are() {
        let mut state = state();
        for n in 0..16_384u64 {
            if n == 8192 {
                state.cut();
            }
            state.active.set(Key::extent(7, n * 1024), extent(512));
        }
        for n in 0..16_384u64 {
            for at in [n * 1024, n * 1024 + 511, n * 1024 + 600] {
                let found = state.extent_changes(Scope::Live, 7, &(at..at + 100));
                assert!(found.changes.items.len() <= 1, "at {at}");
                let covers = matches!(found.below, Below::From(_));
                assert_eq!(covers, at < n * 1024 + 512);
            }
        }
    }

    #[test]
    fn the_last_extent_before_a_place_is_the_newest_that_is_not_hidden() {
        let mut state = state();
        let start = |state: &VolumeState, at| {
            let before = state.extent_before(Scope::Live, 7, at);
            before.map(|placed| placed.offset)
        };
        state.active.set(Key::extent(7, 1000), extent(100));
        state.active.set(Key::extent(7, 2000), extent(100));
        state.active.set(Key::extent(7, 3000), extent(100));
        state.cut();
        assert_eq!(start(&state, 2500), Some(2000));
        assert_eq!(start(&state, 999), None);
        state.active.set(Key::extent(7, 2000), None);
        assert_eq!(start(&state, 2500), Some(1000));
        assert_eq!(start(&state, 3000), Some(3000));
        state.active.set(Key::extent(7, 1500), extent(100));
        assert_eq!(start(&state, 2500), Some(1500));
        state.active.drop_inode(7);
        assert_eq!(start(&state, 2500), None);
    }
}
