//! Changing a tree by a sorted batch.
//!
//! Owns the one way in which trees come to be: an old root and sorted changes go in, the new root comes out, and it is the root that
//! building everything from nothing would give. Cost is proportional to the changes and the nodes they touch; memory is a few nodes per
//! level, however many changes there are. Does not own where nodes end ([`boundary`](super::boundary)) nor how they are stored.
//!
//! Each level works like this. Old nodes without changes are skipped. A node that a change falls into is *opened*: its entries and the changes run
//! together into a builder, which ends nodes where the rule says. When an old node has been used up just where a new node ended, old
//! and new run alike from there on, and skipping goes on; else the next old node is opened too. What changed among a level's
//! nodes (first keys gone, new, or with another id) is a sorted batch of changes for the level above. Above the old root there is no
//! old node to open, and the same procedure builds from nothing.

use std::collections::VecDeque;

use bkfs_chunker::id::Id;

use super::item::MAX_VALUE_BYTES;
use super::key::{Key, MAX_KEY_BYTES};
use super::node::{Child, MAX_LEVEL, NodeBuilder, write_child};
use super::path::Path;
use super::source::{NodeSink, NodeSource, TreeError};

/// Changes read ahead of their turn, at least, so that nodes they need can be announced.
const CHANGES_AHEAD: usize = 64;

/// Stores the empty tree, an empty leaf, and returns its root.
///
/// # Errors
/// What the sink says.
pub async fn empty<K: NodeSink>(sink: &K) -> Result<Id, K::Error> {
    sink.store(0, NodeBuilder::new(0).finish()).await
}

/// The root of the tree under `root` after `changes`: each sets the value of its key, or removes it (`None`; absent keys may be
/// removed). Keys must be strictly increasing.
///
/// Nodes are read from `source` and new ones given to `sink`, children before parents; nodes given are never read back.
///
/// # Errors
/// What source and sink say; [`TreeError::Unsorted`], [`TreeError::TooLarge`]; other kinds of [`TreeError`] if the old tree is not
/// well-formed. Nothing needs undoing: nodes stored so far are simply not referred to.
pub async fn apply<S, K, V, I>(source: &S, sink: &K, root: Id, changes: I) -> Result<Id, S::Error>
where
    S: NodeSource,
    K: NodeSink<Error = S::Error>,
    V: AsRef<[u8]> + Send,
    I: Iterator<Item = (Key, Option<V>)> + Send,
{
    let mut batch = Batch {
        source,
        sink,
        root,
        levels: Vec::new(),
    };
    let mut ahead: VecDeque<(Key, Option<V>)> = VecDeque::new();
    let mut changes = changes;
    let mut last: Option<Key> = None;
    loop {
        let known = ahead.len();
        if known < CHANGES_AHEAD {
            ahead.extend(changes.by_ref().take(CHANGES_AHEAD));
            batch.announce(ahead.iter().skip(known).map(|(key, _)| key));
        }
        let Some((key, value)) = ahead.pop_front() else {
            break;
        };
        let value = value.as_ref().map(V::as_ref);
        check(&key, value, last.as_ref())?;
        let interior = batch.interior_loads();
        batch.change(&key, value).await?;
        if batch.interior_loads() > interior {
            batch.announce(ahead.iter().map(|(key, _)| key));
        }
        last = Some(key);
    }
    batch.finish().await
}

/// Refuses what the tree does not take.
fn check(key: &Key, value: Option<&[u8]>, last: Option<&Key>) -> Result<(), TreeError> {
    let value_bytes = value.map_or(0, <[u8]>::len);
    if key.as_bytes().len() > MAX_KEY_BYTES || value_bytes > MAX_VALUE_BYTES {
        return Err(TreeError::TooLarge {
            key: key.clone(),
            value_bytes,
        });
    }
    if last.is_some_and(|last| last >= key) {
        return Err(TreeError::Unsorted { key: key.clone() });
    }
    Ok(())
}

/// A batch under way: one [`Level`] for each that a change has reached.
struct Batch<'a, S, K> {
    source: &'a S,
    sink: &'a K,
    root: Id,
    levels: Vec<Level>,
}

impl<S, K> Batch<'_, S, K>
where
    S: NodeSource,
    K: NodeSink<Error = S::Error>,
{
    /// Makes one change among the items.
    async fn change(&mut self, key: &Key, value: Option<&[u8]>) -> Result<(), S::Error> {
        if self.levels.is_empty() {
            self.add_level().await?;
        }
        let (source, sink) = (self.source, self.sink);
        self.levels[0]
            .change(source, sink, key.as_bytes(), value)
            .await?;
        self.carry(0).await
    }

    /// The walk over the old leaves.
    fn leaves(&self) -> Option<&Path> {
        self.levels.first()?.old.as_ref()
    }

    fn interior_loads(&self) -> u64 {
        self.leaves().map_or(0, Path::interior_loads)
    }

    fn announce<'k>(&self, keys: impl Iterator<Item = &'k Key> + Clone) {
        if let Some(path) = self.leaves() {
            path.announce(self.source, keys);
        }
    }

    async fn add_level(&mut self) -> Result<(), S::Error> {
        let level = self.levels.len() as u8;
        if level > MAX_LEVEL {
            return Err(TreeError::TooDeep.into());
        }
        let height = self.leaves().map_or(MAX_LEVEL, Path::root_level);
        let old = if level <= height {
            Some(Path::new(self.source, self.root, level).await?)
        } else {
            None
        };
        self.levels.push(Level::new(level, old));
        Ok(())
    }

    /// Hands what changed among the nodes of `from` to the level above, and so on upwards.
    async fn carry(&mut self, from: usize) -> Result<(), S::Error> {
        let (source, sink) = (self.source, self.sink);
        for below in from.. {
            let Some(level) = self.levels.get_mut(below) else {
                break;
            };
            if level.up.is_empty() {
                break;
            }
            let mut up = std::mem::take(&mut level.up);
            if self.levels.len() == below + 1 {
                self.add_level().await?;
            }
            for (key, value) in up.drain(..) {
                let value = value.as_deref();
                self.levels[below + 1]
                    .change(source, sink, key.as_bytes(), value)
                    .await?;
            }
            // Given back for its memory.
            self.levels[below].up = up;
        }
        Ok(())
    }

    /// Ends the levels from the leaves up, until one has a single node: the root.
    async fn finish(mut self) -> Result<Id, S::Error> {
        for at in 0.. {
            let Some(level) = self.levels.get_mut(at) else {
                // Nothing reached this level, so all above is as it was.
                break;
            };
            level.run_out(self.source, self.sink).await?;
            if let Some(child) = level.only_child() {
                return Ok(child);
            }
            if level.is_all_gone() {
                return empty(self.sink).await;
            }
            level.end_node(self.sink).await?;
            level.flush_removed();
            self.carry(at).await?;
        }
        Ok(self.root)
    }
}

/// The nodes of one level, old ones going in and new ones coming out.
struct Level {
    /// Walk over the old nodes of this level; `None` above the old root.
    old: Option<Path>,
    /// Next entry to copy, while an old node is open.
    open: Option<usize>,
    /// Whether the walk's current node has been opened (and perhaps used up).
    opened: bool,
    /// Whether any old node was skipped, and so is a node of the new tree.
    kept: bool,
    /// New nodes so far.
    made: u64,
    builder: NodeBuilder,
    /// First keys of opened nodes, of which the level above has not been told.
    removed: VecDeque<Key>,
    /// Changes for the level above, sorted.
    up: Vec<(Key, Option<Vec<u8>>)>,
}

impl Level {
    fn new(level: u8, old: Option<Path>) -> Level {
        Level {
            old,
            open: None,
            opened: false,
            kept: false,
            made: 0,
            builder: NodeBuilder::new(level),
            removed: VecDeque::new(),
            up: Vec::new(),
        }
    }

    /// Makes one change; `key` is above that of the change before.
    async fn change<S, K>(
        &mut self,
        source: &S,
        sink: &K,
        key: &[u8],
        value: Option<&[u8]>,
    ) -> Result<(), S::Error>
    where
        S: NodeSource,
        K: NodeSink<Error = S::Error>,
    {
        loop {
            if self.copy_below(sink, Some(key)).await? {
                break;
            }
            if self.builder.is_empty() {
                self.skip_to(source, key).await?;
                if self.opened || self.old.is_none() {
                    // The key lies behind all that the last opened node had, and begins a node.
                    break;
                }
                if self.is_no_change(key, value) {
                    return Ok(());
                }
            } else {
                let next = self.old.as_ref().and_then(|old| old.next_first_key());
                if next.is_none_or(|next| next.as_bytes() > key) {
                    break;
                }
                self.advance(source).await?;
            }
            self.open_node();
        }
        if let Some(value) = value
            && self.builder.push(&[], key, value)
        {
            self.end_node(sink).await?;
        }
        Ok(())
    }

    /// Copies entries of the open node into the builder: those below `key`, or all. An entry under `key` itself is passed over. Returns
    /// whether the node is still open, which means that the next entry is above `key`.
    async fn copy_below<K: NodeSink>(
        &mut self,
        sink: &K,
        key: Option<&[u8]>,
    ) -> Result<bool, K::Error> {
        let (Some(mut index), Some(node)) = (self.open, self.old.as_ref().and_then(Path::node))
        else {
            return Ok(false);
        };
        let node = node.clone();
        let (until, found) = match key {
            Some(key) => {
                let until = node.lower_bound(key);
                let found = until < node.len() && node.compare(until, key).is_eq();
                (until, found)
            }
            None => (node.len(), false),
        };
        while index < until {
            let ends = self
                .builder
                .push(node.prefix(), node.suffix(index), node.value(index));
            index += 1;
            if ends {
                self.end_node(sink).await?;
            }
        }
        index += usize::from(found);
        // A node that was used up by the very change stays open until the next one asks.
        self.open = (index < node.len() || found).then_some(index);
        Ok(self.open.is_some())
    }

    /// Between nodes: goes on to the old node that `key` falls into, which may be the current one.
    async fn skip_to<S: NodeSource>(&mut self, source: &S, key: &[u8]) -> Result<(), S::Error> {
        self.flush_removed();
        let Some(old) = &mut self.old else {
            return Ok(());
        };
        let started = old.node().is_some();
        let next = old.next_first_key();
        let moved = old.seek(source, key).await?;
        if !started {
            self.kept = !old.is_first();
        } else if moved {
            let adjoins = old
                .node()
                .zip(next)
                .is_some_and(|(node, next)| node.compare(0, next.as_bytes()).is_eq());
            self.kept |= !self.opened || !adjoins;
        }
        if moved {
            self.opened = false;
        }
        Ok(())
    }

    /// Whether the current old node, not opened, already says what a change wants.
    fn is_no_change(&self, key: &[u8], value: Option<&[u8]>) -> bool {
        let Some(node) = self.old.as_ref().and_then(Path::node) else {
            return false;
        };
        value == node.find(key).map(|index| node.value(index))
    }

    /// Goes to the old node after the current one.
    async fn advance<S: NodeSource>(&mut self, source: &S) -> Result<bool, S::Error> {
        let Some(old) = &mut self.old else {
            return Ok(false);
        };
        let moved = old.advance(source).await?;
        if moved {
            self.opened = false;
        }
        Ok(moved)
    }

    /// Opens the current old node.
    fn open_node(&mut self) {
        let Some(old) = &self.old else {
            return;
        };
        if let Some((parent, index)) = old.parent() {
            self.removed.push_back(parent.key(index));
        }
        self.opened = true;
        self.open = Some(0);
    }

    /// Ends the node in the builder, if it has entries, and notes it for the level above.
    async fn end_node<K: NodeSink>(&mut self, sink: &K) -> Result<(), K::Error> {
        let Some(first_key) = self.builder.first_key() else {
            return Ok(());
        };
        let first_key = Key::from_bytes(first_key);
        let items = self.builder.items();
        let level = self.builder.level();
        let id = sink.store(level, self.builder.finish()).await?;
        let value = write_child(Child { id, items });
        self.made += 1;
        while let Some(key) = self.removed.pop_front_if(|key| *key < first_key) {
            self.up.push((key, None));
        }
        // An opened node with the same first key is replaced.
        let _ = self.removed.pop_front_if(|key| *key == first_key);
        self.up.push((first_key, Some(value)));
        Ok(())
    }

    /// Tells the level above of opened nodes that no new one took the place of.
    fn flush_removed(&mut self) {
        self.up
            .extend(self.removed.drain(..).map(|key| (key, None)));
    }

    /// After the last change: copies on until old and new run alike, or to the end.
    async fn run_out<S, K>(&mut self, source: &S, sink: &K) -> Result<(), S::Error>
    where
        S: NodeSource,
        K: NodeSink<Error = S::Error>,
    {
        loop {
            self.copy_below(sink, None).await?;
            if self.builder.is_empty() {
                let more = self.old.as_ref().and_then(|old| old.next_first_key());
                self.kept |= more.is_some() || (self.old.is_some() && !self.opened);
                return Ok(());
            }
            if !self.advance(source).await? {
                return Ok(());
            }
            self.open_node();
        }
    }

    /// The node below that is all there is, if there is only one: then that is the root, not this level.
    fn only_child(&self) -> Option<Id> {
        let alone = !self.kept && self.made == 0 && self.builder.len() == 1;
        self.builder.only_child().filter(|_| alone)
    }

    /// Whether this level has no node left; only the leaves ever come to that.
    fn is_all_gone(&self) -> bool {
        !self.kept && self.made == 0 && self.builder.is_empty()
    }
}

#[cfg(test)]
mod tests;
