//! Reads of a volume, live or frozen: changed items over the tree, dirty bytes over extents.
//!
//! Owns: the combination of layers and tree. Does not own: changes (`transaction`), storing
//! (`flush`, `commit`), inode numbers as the kernel sees them (`vfs`).
//!
//! A frozen view has empty layers, so snapshots are read by the same code as the live volume.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Range;
use std::sync::Arc;

use bkfs_chunker::content_store::{ContentStore, Prefetch};
use bkfs_chunker::extent::Piece;
use bkfs_chunker::id::Id;
use bytes::Bytes;

use crate::extents::Placed;
use crate::tree::item::{Attributes, Item};
use crate::tree::key::{self, Key};
use crate::tree::map::Tree;
use crate::volume::dirty::Part;
use crate::volume::error::VolumeError;
use crate::volume::nodes::{Nodes, decode_item};
use crate::volume::state::{Below, Changes, ExtentChanges, Found, Scope, Totals, VolumeState};
use crate::volume::state_lock::{Holds, StateLock};

/// Zeroes that stand for holes.
static ZEROES: [u8; 64 * 1024] = [0; 64 * 1024];

/// Maximum number of hidden extents of the tree that are skipped one by one on the way back to the
/// last extent that is not hidden.
const HIDDEN_MAX: usize = 8;

/// The items and bytes of one volume or snapshot. Cheap to clone.
#[derive(Clone)]
pub struct View {
    state: Arc<StateLock>,
    nodes: Arc<Nodes>,
    writable: bool,
}

/// A page of items, and the start of the next page.
pub struct Page {
    /// Items in order of their keys.
    pub items: Vec<(Key, Item)>,
    /// The start of the rest; none if this was everything.
    pub next: Option<Key>,
    /// Items of the page that are malformed for their keys.
    pub malformed: Vec<(Key, VolumeError)>,
}

impl Page {
    /// Returns the page.
    ///
    /// # Errors
    /// The error of an item if one is malformed.
    pub(super) fn whole(mut self) -> Result<Page, VolumeError> {
        match self.malformed.pop() {
            None => Ok(self),
            Some((_, error)) => Err(error),
        }
    }
}

/// A part of a range of a file.
enum Source {
    Bytes(Bytes),
    Zero(u64),
    Stored,
}

impl View {
    /// Returns a view of a tree that never changes.
    pub fn frozen(nodes: Arc<Nodes>, tree: Id, totals: Totals) -> View {
        View {
            state: Arc::new(StateLock::new(VolumeState::new(tree, totals))),
            nodes,
            writable: false,
        }
    }

    /// Returns a view of a volume that changes.
    pub fn live(nodes: Arc<Nodes>, tree: Id, totals: Totals) -> View {
        View {
            state: Arc::new(StateLock::new(VolumeState::new(tree, totals))),
            nodes,
            writable: true,
        }
    }

    /// Returns the state, for changes.
    ///
    /// # Errors
    /// [`VolumeError::ReadOnly`] for frozen views.
    pub fn state(&self) -> Result<&StateLock, VolumeError> {
        if self.writable {
            Ok(&self.state)
        } else {
            Err(VolumeError::ReadOnly)
        }
    }

    /// Returns the content store that blobs are read from.
    pub fn content_store(&self) -> &ContentStore {
        self.nodes.content_store()
    }

    /// Returns the reader of tree nodes.
    pub fn nodes(&self) -> &Arc<Nodes> {
        &self.nodes
    }

    /// Returns the inodes and bytes of the volume. Dirty bytes are not counted yet.
    pub fn totals(&self) -> Totals {
        self.state.lock().totals
    }

    /// Returns how long the lock of the state was held so far.
    pub fn holds(&self) -> Holds {
        self.state.holds()
    }

    /// Returns the root node of the tree below the layers.
    pub fn base(&self) -> Id {
        self.state.lock().base
    }

    /// Returns one item of a tree; none if it does not exist.
    ///
    /// # Errors
    /// [`VolumeError::ContentStore`] if a node cannot be read; [`VolumeError::Tree`] if a node or
    /// the item is malformed.
    pub async fn item_below(&self, base: Id, key: &Key) -> Result<Option<Item>, VolumeError> {
        let value = Tree::new(base).get(self.nodes.as_ref(), key).await?;
        value.map(|value| decode_item(key, &value)).transpose()
    }

    /// Returns one item; none if it does not exist.
    ///
    /// # Errors
    /// As [`View::item_below`].
    pub async fn item(&self, scope: Scope, key: &Key) -> Result<Option<Item>, VolumeError> {
        let found = self.state.lock().find(scope, key);
        match found {
            Found::Item(item) => Ok(Some(item)),
            Found::Absent => Ok(None),
            Found::Below(base) => self.item_below(base, key).await,
        }
    }

    /// Returns the attributes of an inode.
    ///
    /// # Errors
    /// [`VolumeError::Stale`] if there is no such inode; [`VolumeError::Malformed`] if the item is
    /// not attributes. As [`View::item_below`].
    pub async fn attributes(&self, scope: Scope, inode: u64) -> Result<Attributes, VolumeError> {
        match self.item(scope, &Key::attributes(inode)).await? {
            Some(Item::Attributes(attributes)) => Ok(attributes),
            Some(_) => Err(VolumeError::Malformed { inode }),
            None => Err(VolumeError::Stale),
        }
    }

    /// Returns items of one inode in `range`: about `limit` of them, and at least one if there is
    /// any.
    ///
    /// # Errors
    /// [`VolumeError::ContentStore`] if a node cannot be read; [`VolumeError::Tree`] if a node, or
    /// an item on the page, is malformed.
    pub async fn items(
        &self,
        scope: Scope,
        range: Range<Key>,
        limit: usize,
    ) -> Result<Page, VolumeError> {
        self.any_items(scope, range, limit).await?.whole()
    }

    /// Returns items as [`View::items`] does, for readers that skip malformed items and report
    /// them: the page lists those separately.
    ///
    /// # Errors
    /// [`VolumeError::ContentStore`] if a node cannot be read; [`VolumeError::Tree`] if a node is
    /// malformed.
    pub async fn any_items(
        &self,
        scope: Scope,
        range: Range<Key>,
        limit: usize,
    ) -> Result<Page, VolumeError> {
        let mut from = range.start;
        loop {
            let part = from..range.end.clone();
            let changes = self.state.lock().changes(scope, &part, limit);
            let page = self.merge(changes, part, limit).await?;
            match page.next {
                Some(next) if page.items.is_empty() && page.malformed.is_empty() => from = next,
                _ => return Ok(page),
            }
        }
    }

    /// Merges changed items with those of the tree, up to the key where both are known.
    async fn merge(
        &self,
        changes: Changes,
        range: Range<Key>,
        limit: usize,
    ) -> Result<Page, VolumeError> {
        let mut end = changes.complete_to.clone();
        let mut merged = changes.items;
        let mut malformed = Vec::new();
        if let Some(base) = changes.base {
            let tree = Tree::new(base);
            let mut cursor = tree.range(range.start..end.clone());
            let mut taken = 0;
            while let Some((key, value)) = cursor.next(self.nodes.as_ref()).await? {
                if taken == limit {
                    merged.split_off(&key);
                    end = key;
                    break;
                }
                taken += 1;
                if let Entry::Vacant(vacant) = merged.entry(key) {
                    match decode_item(vacant.key(), &value) {
                        Ok(item) => drop(vacant.insert(Some(item))),
                        Err(error) => malformed.push((vacant.into_key(), error)),
                    }
                }
            }
        }
        let items = merged
            .into_iter()
            .filter_map(|(key, item)| item.map(|item| (key, item)))
            .collect();
        let next = (end < range.end).then_some(end);
        Ok(Page {
            items,
            next,
            malformed,
        })
    }

    /// Returns all extents of a file that overlap the byte range `range`, in order.
    ///
    /// # Errors
    /// As [`View::items`]; [`VolumeError::Malformed`] if an item is no extent.
    pub async fn extents(
        &self,
        scope: Scope,
        inode: u64,
        range: Range<u64>,
    ) -> Result<Vec<Placed>, VolumeError> {
        let changes = self.state.lock().extent_changes(scope, inode, &range);
        self.all_extents_among(changes).await
    }

    async fn all_extents_among(&self, changes: ExtentChanges) -> Result<Vec<Placed>, VolumeError> {
        let extents = self.extents_among(changes, usize::MAX).await?;
        Ok(extents.unwrap_or_default())
    }

    /// Returns the extents for `changes` as of some moment; `None` if the tree has more than
    /// `limit`.
    ///
    /// # Errors
    /// [`VolumeError::Tree`] if an extent is malformed; otherwise the failure to read a node.
    pub(super) async fn extents_among(
        &self,
        changes: ExtentChanges,
        limit: usize,
    ) -> Result<Option<Vec<Placed>>, VolumeError> {
        let ExtentChanges {
            inode,
            range,
            changes,
            below,
        } = changes;
        let from = match (below, changes.base) {
            (Below::From(offset), _) => offset,
            (Below::After(offset), Some(base)) => {
                let before = offset..range.start.saturating_add(1);
                let last = self.last_extent_below(base, inode, before, &changes.items);
                last.await?.unwrap_or(range.start)
            }
            (Below::After(_), None) => range.start,
        };
        let keys = key::extents_beginning(inode, from.min(range.end)..range.end);
        let page = self.merge(changes, keys, limit).await?.whole()?;
        let is_all = page.next.is_none();
        let extents = is_all.then(|| overlapping(inode, page.items, &range));
        extents.transpose()
    }

    /// Returns the start of the last extent of the tree that begins in `offsets` and that `changes`
    /// do not hide. If they hide [`HIDDEN_MAX`] extents in a row, returns the start of `offsets`.
    async fn last_extent_below(
        &self,
        base: Id,
        inode: u64,
        offsets: Range<u64>,
        changes: &BTreeMap<Key, Option<Item>>,
    ) -> Result<Option<u64>, VolumeError> {
        let (tree, nodes) = (Tree::new(base), self.nodes.as_ref());
        let mut keys = key::extents_beginning(inode, offsets.clone());
        for _ in 0..HIDDEN_MAX {
            let Some((key, _)) = tree.last_in(nodes, keys.clone()).await? else {
                return Ok(None);
            };
            match key.parse() {
                Ok(key::KeyParts::Extent { .. }) if changes.contains_key(&key) => keys.end = key,
                Ok(key::KeyParts::Extent { offset, .. }) => return Ok(Some(offset)),
                _ => return Err(VolumeError::Malformed { inode }),
            }
        }
        Ok(Some(offsets.start))
    }

    /// Returns the bytes of a file in `range`, which must lie inside the file. Holes read as
    /// zeroes.
    ///
    /// # Errors
    /// As [`View::extents`]; [`VolumeError::ContentStore`] if contents cannot be read.
    pub async fn read(
        &self,
        scope: Scope,
        inode: u64,
        range: Range<u64>,
    ) -> Result<Vec<Bytes>, VolumeError> {
        let (parts, below) = self.state.lock().contents(scope, inode, &range);
        let Some((changes, inline)) = below else {
            return Ok(parts
                .into_iter()
                .flat_map(|(part, content)| dirty_bytes(part, content))
                .collect());
        };
        let extents = self.all_extents_among(changes).await?;
        let inline = if extents.is_empty() {
            self.inline(inode, inline).await?
        } else {
            None
        };
        let (sources, pieces) = plan(range, parts, &extents, inline);
        let mut stored = self.content_store().read(&pieces).await?.into_iter();
        let mut bytes = Vec::with_capacity(sources.len());
        for source in sources {
            match source {
                Source::Bytes(data) => bytes.push(data),
                Source::Zero(length) => bytes.extend(zeroes(length)),
                Source::Stored => bytes.extend(stored.next().into_iter().flatten()),
            }
        }
        Ok(bytes)
    }

    /// Returns the contents of a small file; `None` if the tree does not hold them. `found` is the
    /// result of looking them up in the layers.
    ///
    /// # Errors
    /// The failure to read a node.
    pub(super) async fn inline(
        &self,
        inode: u64,
        found: Found,
    ) -> Result<Option<Bytes>, VolumeError> {
        let item = match found {
            Found::Item(item) => Some(item),
            Found::Absent => None,
            Found::Below(base) => self.item_below(base, &Key::inline(inode)).await?,
        };
        match item {
            Some(Item::Inline(bytes)) => Ok(Some(bytes)),
            _ => Ok(None),
        }
    }

    /// Returns which parts of `range` are data (true) and which are holes (false), in order.
    /// `range` must lie inside the file.
    ///
    /// # Errors
    /// As [`View::extents`].
    pub async fn map_of(
        &self,
        inode: u64,
        range: Range<u64>,
    ) -> Result<Vec<(Range<u64>, bool)>, VolumeError> {
        let (parts, below) = self.state.lock().contents(Scope::Live, inode, &range);
        let (mut extents, mut inline) = (Vec::new(), None);
        if let Some((changes, found)) = below {
            extents = self.all_extents_among(changes).await?;
            if extents.is_empty() {
                inline = self.inline(inode, found).await?;
            }
        }
        let mut map: Vec<(Range<u64>, bool)> = Vec::new();
        let mut at = range.start;
        let (sources, pieces) = plan(range, parts, &extents, inline);
        let mut pieces = pieces.into_iter();
        for source in sources {
            let (length, is_data) = match source {
                Source::Bytes(bytes) => (bytes.len() as u64, true),
                Source::Zero(length) => (length, false),
                Source::Stored => (
                    pieces.next().map_or(0, |piece| u64::from(piece.length)),
                    true,
                ),
            };
            match map.last_mut() {
                Some((last, data)) if *data == is_data => last.end += length,
                _ => map.push((at..at + length, is_data)),
            }
            at += length;
        }
        Ok(map)
    }

    /// Returns whether the byte at `offset` is dirty: data (true), a zero (false) or not dirty
    /// (none). Also returns the offset up to which the bytes after it are the same.
    pub fn dirty_at(&self, inode: u64, offset: u64) -> (Option<bool>, u64) {
        self.state.lock().dirty_at(Scope::Live, inode, offset)
    }

    /// Fetches the contents that a read of `range` will need. This is a hint: errors are ignored
    /// here, and occur again in the read.
    pub async fn fetch_ahead(&self, inode: u64, range: Range<u64>, prefetch: Prefetch) {
        if let Ok(pieces) = self.stored_pieces(inode, range).await {
            prefetch.bring(&pieces).await;
        }
    }

    /// Returns the stored contents that a file has in `range`, apart from those of small files that
    /// the tree holds.
    ///
    /// # Errors
    /// As [`View::extents`].
    pub async fn stored_pieces(
        &self,
        inode: u64,
        range: Range<u64>,
    ) -> Result<Vec<Piece>, VolumeError> {
        let extents = self.extents(Scope::Live, inode, range.clone()).await?;
        let (_, pieces) = plan(range, Vec::new(), &extents, None);
        Ok(pieces)
    }
}

fn overlapping(
    inode: u64,
    items: Vec<(Key, Item)>,
    range: &Range<u64>,
) -> Result<Vec<Placed>, VolumeError> {
    let mut extents = Vec::with_capacity(items.len());
    for (key, item) in items {
        let (Ok(key::KeyParts::Extent { offset, .. }), Item::Extent(extent)) = (key.parse(), item)
        else {
            return Err(VolumeError::Malformed { inode });
        };
        let placed = Placed { offset, extent };
        if offset < range.end && placed.end() > range.start {
            extents.push(placed);
        }
    }
    Ok(extents)
}

fn zeroes(length: u64) -> impl Iterator<Item = Bytes> {
    let whole = length / ZEROES.len() as u64;
    let rest = (length % ZEROES.len() as u64) as usize;
    let parts = (0..whole)
        .map(|_| ZEROES.len())
        .chain((rest > 0).then_some(rest));
    parts.map(|part| Bytes::from_static(&ZEROES[..part]))
}

fn dirty_bytes(range: Range<u64>, part: Part) -> Vec<Bytes> {
    match part {
        Part::Data(bytes) => vec![bytes],
        Part::Zero => zeroes(range.end - range.start).collect(),
    }
}

/// Assembles a range from dirty parts (sorted), extents (sorted) and the contents of a small file.
fn plan(
    range: Range<u64>,
    parts: Vec<(Range<u64>, Part)>,
    extents: &[Placed],
    inline: Option<Bytes>,
) -> (Vec<Source>, Vec<Piece>) {
    let mut plan = ReadPlan {
        sources: Vec::new(),
        pieces: Vec::new(),
        extents,
        inline,
    };
    let mut at = range.start;
    for (part, content) in parts {
        plan.clean(at..part.start);
        at = part.end;
        match content {
            Part::Data(bytes) => plan.sources.push(Source::Bytes(bytes)),
            Part::Zero => plan.sources.push(Source::Zero(part.end - part.start)),
        }
    }
    plan.clean(at..range.end);
    (plan.sources, plan.pieces)
}

struct ReadPlan<'a> {
    sources: Vec<Source>,
    pieces: Vec<Piece>,
    extents: &'a [Placed],
    inline: Option<Bytes>,
}

impl ReadPlan<'_> {
    /// Adds a part without dirty bytes.
    fn clean(&mut self, range: Range<u64>) {
        let mut at = range.start;
        if let Some(bytes) = &self.inline {
            let to = range.end.min(bytes.len() as u64);
            if at < to {
                self.sources
                    .push(Source::Bytes(bytes.slice(at as usize..to as usize)));
                at = to;
            }
        }
        let first = self.extents.partition_point(|placed| placed.end() <= at);
        for placed in &self.extents[first..] {
            let Placed { offset, extent } = *placed;
            if at >= range.end || offset >= range.end {
                break;
            }
            // The extent lies inside the one before it. Only a forged file has such an extent.
            if placed.end() <= at {
                continue;
            }
            if at < offset {
                self.sources.push(Source::Zero(offset - at));
                at = offset;
            }
            let to = range.end.min(placed.end());
            self.pieces.push(Piece {
                target: extent.target,
                offset: extent.target_offset + (at - offset) as u32,
                length: (to - at) as u32,
            });
            self.sources.push(Source::Stored);
            at = to;
        }
        if at < range.end {
            self.sources.push(Source::Zero(range.end - at));
        }
    }
}
