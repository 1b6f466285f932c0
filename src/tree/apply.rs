//! Applies a sorted batch of changes to a tree.
//!
//! All trees are made here. The input is an old root and sorted changes; the output is the new
//! root, which equals the root of a tree that is built from nothing. The cost is proportional to
//! the changes and to the nodes that they touch. Memory is a few nodes per level, however many
//! changes there are. This module does not decide where nodes end ([`boundary`](super::boundary))
//! nor how they are stored.
//!
//! Each level works as follows:
//!
//! - Old nodes without changes are skipped.
//! - A node that contains the key of a change is *opened*: its entries and the changes are merged
//!   into a builder, which ends nodes where the rule says.
//! - If a new node ends exactly at the end of an old node, the nodes of the old and the new tree
//!   are equal from there on, and skipping resumes. If not, the next old node is opened as well.
//! - The differences among the nodes of a level (first keys that are gone, new, or have another id)
//!   are a sorted batch of changes for the level above.
//! - Above the old root there is no old node to open, and the same procedure builds from nothing.

use std::collections::VecDeque;

use bkfs_chunker::id::Id;

use super::item::MAX_VALUE_BYTES;
use super::key::{Key, MAX_KEY_BYTES};
use super::node::{Child, MAX_LEVEL, NodeBuilder, write_child};
use super::path::Path;
use super::source::{NodeSink, NodeSource, TreeError};

/// Fewest changes that are read ahead, so that the nodes which they need can be announced.
const CHANGES_AHEAD: usize = 64;

/// Stores the empty tree, which is an empty leaf, and returns its root.
///
/// # Errors
/// The error of `sink`.
pub async fn empty<K: NodeSink>(sink: &K) -> Result<Id, K::Error> {
    sink.store(0, NodeBuilder::new(0).finish()).await
}

/// Applies `changes` to the tree with root node `root` and returns the new root.
///
/// Each change sets the value of its key, or removes the key (`None`). A key to remove may be
/// absent. Keys must be strictly increasing.
///
/// Nodes are read from `source`, and new ones are stored in `sink`, children before parents. A node
/// that was stored is never read back.
///
/// # Errors
/// The errors of `source` and `sink`; [`TreeError::Unsorted`] if the keys are not strictly
/// increasing; [`TreeError::TooLarge`] for a key longer than [`MAX_KEY_BYTES`] or a value longer
/// than [`MAX_VALUE_BYTES`]; [`TreeError::TooDeep`] above [`MAX_LEVEL`]; [`TreeError::Misplaced`]
/// for an old node that does not match its parent's entry. After an error nothing needs to be
/// undone: no root refers to the nodes stored so far.
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

/// Rejects changes that the tree does not accept.
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

/// A batch in progress: one [`Level`] for each level that a change has reached.
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
    /// Applies one change to the items.
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

    /// Returns the walk over the old leaves.
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

    /// Passes the changes among the nodes of level `from` to the level above, and so on upwards.
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
            // Put back, so that its memory is used again.
            self.levels[below].up = up;
        }
        Ok(())
    }

    /// Finishes the levels from the leaves up, until one has a single node, which is the root.
    async fn finish(mut self) -> Result<Id, S::Error> {
        for at in 0.. {
            let Some(level) = self.levels.get_mut(at) else {
                // No change reached this level, so all levels from here up are as they were.
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

/// The nodes of one level: reads the old ones and makes the new ones.
struct Level {
    /// Walk over the old nodes of this level, or `None` above the old root.
    old: Option<Path>,
    /// Index of the next entry to copy, while an old node is open.
    open: Option<usize>,
    /// Whether the current node of the walk has been opened. All its entries may have been copied
    /// since.
    opened: bool,
    /// Whether any old node was skipped. A skipped node is a node of the new tree.
    kept: bool,
    /// Number of new nodes so far.
    made: u64,
    builder: NodeBuilder,
    /// First keys of opened nodes that have not been passed to the level above yet.
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

    /// Applies one change. `key` must be above the key of the change before.
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
                    // The key is above all keys of the last opened node, and begins a node.
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

    /// Copies the entries of the open node into the builder: those below `key`, or all.
    ///
    /// Passes over an entry whose key is `key`.
    ///
    /// Returns whether the node is still open. If it is, the next entry is above `key`.
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
        // If the change used up the node, the node stays open until the next call.
        self.open = (index < node.len() || found).then_some(index);
        Ok(self.open.is_some())
    }

    /// Moves to the old node that contains `key`, which may be the current one.
    ///
    /// Called only between nodes.
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

    /// Whether the current old node, which is not open, already holds the result of the change.
    fn is_no_change(&self, key: &[u8], value: Option<&[u8]>) -> bool {
        let Some(node) = self.old.as_ref().and_then(Path::node) else {
            return false;
        };
        value == node.find(key).map(|index| node.value(index))
    }

    /// Moves to the old node after the current one.
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

    /// Ends the node in the builder, if it has entries, and records it for the level above.
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
        // An opened node with the same first key is replaced, not removed.
        let _ = self.removed.pop_front_if(|key| *key == first_key);
        self.up.push((first_key, Some(value)));
        Ok(())
    }

    /// Records for the level above the opened nodes that no new node replaced.
    fn flush_removed(&mut self) {
        self.up
            .extend(self.removed.drain(..).map(|key| (key, None)));
    }

    /// Copies entries after the last change, until a new node ends where an old one does, or until
    /// the end of the level.
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

    /// Returns the single child of this level's only node.
    ///
    /// If there is one, it is the root, and this level is not needed.
    fn only_child(&self) -> Option<Id> {
        let alone = !self.kept && self.made == 0 && self.builder.len() == 1;
        self.builder.only_child().filter(|_| alone)
    }

    /// Whether this level has no node left. Only the level of the leaves can become empty.
    fn is_all_gone(&self) -> bool {
        !self.kept && self.made == 0 && self.builder.is_empty()
    }
}

#[cfg(test)]
mod tests;
