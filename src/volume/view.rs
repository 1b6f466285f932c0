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
use bkfs_chunker::error::ContentError;
use bkfs_chunker::extent::Piece;
use bkfs_chunker::id::Id;
use bytes::Bytes;
use futures::future::join_all;

use crate::extents::Placed;
use crate::tree::item::{Attributes, Item};
use crate::tree::key::{self, Key};
use crate::tree::map::Tree;
use crate::volume::error::VolumeError;
use crate::volume::nodes::{Nodes, decode_item};
use crate::volume::read_plan::ReadPlan;
use crate::volume::state::{Below, Changes, ExtentChanges, Found, Scope, Totals, VolumeState};
use crate::volume::state_lock::{Holds, StateLock};

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
    /// As [`View::extents`]; [`VolumeError::ContentStore`] or [`VolumeError::Swap`] if contents
    /// cannot be read.
    pub async fn read(
        &self,
        scope: Scope,
        inode: u64,
        range: Range<u64>,
    ) -> Result<Vec<Bytes>, VolumeError> {
        let (mut plan, stored) = self.stored(scope, inode, range).await?;
        let swapped = plan.read_back().await?;
        Ok(plan.assemble(stored, swapped))
    }

    /// Same, to store the bytes: a silent disk of the swap file counts as failed.
    ///
    /// # Errors
    /// As [`View::read`].
    pub(super) async fn read_to_store(
        &self,
        scope: Scope,
        inode: u64,
        range: Range<u64>,
    ) -> Result<Vec<Bytes>, VolumeError> {
        let (mut plan, stored) = self.stored(scope, inode, range).await?;
        let swapped = plan.read_back_in_time().await?;
        Ok(plan.assemble(stored, swapped))
    }

    /// Returns what makes up the bytes of a range, and those that the store has.
    async fn stored(
        &self,
        scope: Scope,
        inode: u64,
        range: Range<u64>,
    ) -> Result<(ReadPlan, Vec<Vec<Bytes>>), VolumeError> {
        let plan = self.plan(scope, inode, range).await?;
        let stored = self.content_store().read(&plan.pieces).await?;
        Ok((plan, stored))
    }

    /// Returns the bytes of several files, each with its range, as [`View::read`] does, with one
    /// result for each. What they have stored close together is fetched by one request.
    pub async fn read_each(
        &self,
        scope: Scope,
        files: &[(u64, Range<u64>)],
    ) -> Vec<Result<Vec<Bytes>, VolumeError>> {
        let plans = files.iter().map(|(inode, range)| {
            let range = range.clone();
            async move { self.plan(scope, *inode, range).await }
        });
        let plans = join_all(plans.collect::<Vec<_>>()).await;
        let pieces: Vec<Piece> = (plans.iter().flatten())
            .flat_map(|plan| plan.pieces.iter().copied())
            .collect();
        let mut stored = self.content_store().read_each(&pieces).await.into_iter();
        let mut files = Vec::with_capacity(plans.len());
        for plan in plans {
            // All of them are taken, also after an error: the next file's follow.
            let count = plan.as_ref().map_or(0, |plan| plan.pieces.len());
            let own: Vec<_> = stored.by_ref().take(count).collect();
            files.push(finish(plan, own).await);
        }
        files
    }

    /// Returns what the bytes of a file in `range` consist of.
    async fn plan(
        &self,
        scope: Scope,
        inode: u64,
        range: Range<u64>,
    ) -> Result<ReadPlan, VolumeError> {
        let (parts, below) = self.state.lock().contents(scope, inode, &range);
        let (mut extents, mut inline) = (Vec::new(), None);
        if let Some((changes, found)) = below {
            extents = self.all_extents_among(changes).await?;
            if extents.is_empty() {
                inline = self.inline(inode, found).await?;
            }
        }
        Ok(ReadPlan::new(range, parts, &extents, inline))
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
        let start = range.start;
        Ok(self.plan(Scope::Live, inode, range).await?.map(start))
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
        Ok(ReadPlan::new(range, Vec::new(), &extents, None).pieces)
    }
}

/// Returns the bytes of a file, of what it consists of and what it has stored.
async fn finish(
    plan: Result<ReadPlan, VolumeError>,
    stored: Vec<Result<Vec<Bytes>, ContentError>>,
) -> Result<Vec<Bytes>, VolumeError> {
    let mut plan = plan?;
    let stored = stored.into_iter().collect::<Result<Vec<_>, _>>()?;
    let swapped = plan.read_back().await?;
    Ok(plan.assemble(stored, swapped))
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
