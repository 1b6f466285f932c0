//! Reading a volume, live or frozen: changed items over the tree, dirty bytes over extents.
//!
//! Owns: how the layers and the tree are read as one. Does not own: changes (`transaction`), storing (`flush`, `commit`), inode numbers shown to the kernel (`vfs`).
//!
//! A frozen view is the same with empty layers, so that snapshots are read by the same code as the live volume.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Range;
use std::sync::Arc;

use bkfs_chunker::depot::{Depot, Prefetch};
use bkfs_chunker::extent::Piece;
use bkfs_chunker::id::Id;
use bytes::Bytes;
use parking_lot::Mutex;

use crate::extents::Placed;
use crate::tree::item::{Attributes, Item};
use crate::tree::key::{self, Key};
use crate::tree::map::Tree;
use crate::volume::dirty::Part;
use crate::volume::error::VolumeError;
use crate::volume::nodes::{Nodes, decode_item};
use crate::volume::state::{Below, Changes, ExtentChanges, Found, Scope, State, Totals};

/// Zeroes to answer holes with.
static ZEROES: [u8; 256 * 1024] = [0; 256 * 1024];

/// Hidden extents of the tree that are passed over one by one on the way back to the last one that
/// is not.
const HIDDEN_MAX: usize = 8;

/// Items and bytes of one volume or snapshot. Cheap to clone.
#[derive(Clone)]
pub struct View {
    state: Arc<Mutex<State>>,
    nodes: Arc<Nodes>,
    writable: bool,
}

/// A page of items: what was found, and where the next page starts.
pub struct Page {
    /// Items in order of key.
    pub items: Vec<(Key, Item)>,
    /// Start of the rest; none if this was all.
    pub next: Option<Key>,
    /// What stands among them and is not what its key says.
    pub malformed: Vec<(Key, VolumeError)>,
}

impl Page {
    /// The page, if nothing in it is malformed.
    pub(super) fn whole(mut self) -> Result<Page, VolumeError> {
        match self.malformed.pop() {
            None => Ok(self),
            Some((_, error)) => Err(error),
        }
    }
}

/// What a range of a file consists of, in order.
enum Source {
    Bytes(Bytes),
    Zero(u64),
    Stored,
}

impl View {
    /// A tree that never changes.
    pub fn frozen(nodes: Arc<Nodes>, tree: Id, totals: Totals) -> View {
        View {
            state: Arc::new(Mutex::new(State::new(tree, totals))),
            nodes,
            writable: false,
        }
    }

    /// A volume that changes.
    pub fn live(nodes: Arc<Nodes>, tree: Id, totals: Totals) -> View {
        View {
            state: Arc::new(Mutex::new(State::new(tree, totals))),
            nodes,
            writable: true,
        }
    }

    /// The state, for changes.
    ///
    /// # Errors
    /// [`VolumeError::ReadOnly`] for frozen views.
    pub fn state(&self) -> Result<&Mutex<State>, VolumeError> {
        if self.writable {
            Ok(&self.state)
        } else {
            Err(VolumeError::ReadOnly)
        }
    }

    /// Where blobs come from.
    pub fn depot(&self) -> &Depot {
        self.nodes.depot()
    }

    /// The nodes of trees.
    pub fn nodes(&self) -> &Arc<Nodes> {
        &self.nodes
    }

    /// What it holds, as far as that is counted.
    pub fn totals(&self) -> Totals {
        self.state.lock().totals
    }

    /// The tree below the layers.
    pub fn base(&self) -> Id {
        self.state.lock().base
    }

    /// One item of a tree.
    pub async fn item_below(&self, base: Id, key: &Key) -> Result<Option<Item>, VolumeError> {
        let value = Tree::new(base).get(self.nodes.as_ref(), key).await?;
        value.map(|value| decode_item(key, &value)).transpose()
    }

    /// One item.
    pub async fn item(&self, scope: Scope, key: &Key) -> Result<Option<Item>, VolumeError> {
        let found = self.state.lock().find(scope, key);
        match found {
            Found::Item(item) => Ok(Some(item)),
            Found::Absent => Ok(None),
            Found::Below(base) => self.item_below(base, key).await,
        }
    }

    /// The attributes of an inode; [`VolumeError::Stale`] if there is none.
    pub async fn attributes(&self, scope: Scope, inode: u64) -> Result<Attributes, VolumeError> {
        match self.item(scope, &Key::attributes(inode)).await? {
            Some(Item::Attributes(attributes)) => Ok(attributes),
            Some(_) => Err(VolumeError::Malformed { inode }),
            None => Err(VolumeError::Stale),
        }
    }

    /// Items of one inode in `range`: about `limit` of them, at least one if there is any.
    ///
    /// # Errors
    /// What keeps the tree from being read; [`VolumeError::Tree`] for an item that is not what its
    /// key says.
    pub async fn items(
        &self,
        scope: Scope,
        range: Range<Key>,
        limit: usize,
    ) -> Result<Page, VolumeError> {
        self.any_items(scope, range, limit).await?.whole()
    }

    /// The same for readers that leave out what is malformed, and say so: the page has it apart
    /// from the items.
    ///
    /// # Errors
    /// What keeps the tree from being read.
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

    /// Changed items over the tree's, up to where both are known.
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

    /// All extents of a file that overlap `range`, in order.
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

    /// The same, where `changes` are those of some moment; none if the tree has more than `limit`.
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

    /// Where the last extent of the tree begins that begins in `offsets` and that `changes` do not
    /// hide; if they hide many, some offset before that.
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

    /// The bytes of a file in `range`, which must lie inside the file. Holes read as zeroes.
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
        let mut stored = self.depot().read(&pieces).await?.into_iter();
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

    /// The contents of a small file, where `found` is what the layers know of them.
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

    /// Which parts of `range` are data (true) and which holes, in order; `range` must lie inside the file.
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

    /// Whether the byte at `offset` is dirty, data (true) or a zero, and up to where that goes for
    /// those behind it.
    pub fn dirty_at(&self, inode: u64, offset: u64) -> (Option<bool>, u64) {
        self.state.lock().dirty_at(Scope::Live, inode, offset)
    }

    /// Fetches what reading `range` will need. A hint: what fails here fails again for whoever reads it.
    pub async fn fetch_ahead(&self, inode: u64, range: Range<u64>, prefetch: Prefetch) {
        if let Ok(extents) = self.extents(Scope::Live, inode, range.clone()).await {
            let (_, pieces) = plan(range, Vec::new(), &extents, None);
            prefetch.bring(&pieces).await;
        }
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

/// Puts a range together from dirty parts (sorted), extents (sorted) and the contents of a small file.
fn plan(
    range: Range<u64>,
    parts: Vec<(Range<u64>, Part)>,
    extents: &[Placed],
    inline: Option<Bytes>,
) -> (Vec<Source>, Vec<Piece>) {
    let mut plan = Plan {
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

struct Plan<'a> {
    sources: Vec<Source>,
    pieces: Vec<Piece>,
    extents: &'a [Placed],
    inline: Option<Bytes>,
}

impl Plan<'_> {
    /// A part without dirty bytes.
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
            // It lies within the one before it: no honest file has such an extent.
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
