//! Look-ups in a tree: single keys, batches of keys, ranges.
//!
//! This module owns reading. A read holds one node per level in memory, however much it reads.
//! [`apply`](super::apply) owns changes.

use std::ops::Range;

use bkfs_chunker::id::Id;
use bytes::Bytes;

use super::key::Key;
use super::path::Path;
use super::source::NodeSource;

/// Most leaves that a cursor announces ahead of its position.
const MOST_AHEAD: usize = 32;

/// Fewest keys of a batch for which the nodes ahead are announced, as far as the batch goes.
const KEYS_AHEAD: usize = 64;

/// A tree, named by the id of its root. It is immutable: changes make another tree.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Hash)]
pub struct Tree {
    /// Id of the root node. It identifies the whole content of the tree.
    pub root: Id,
}

impl Tree {
    /// Returns the tree with root node `root`. Loads nothing yet.
    pub fn new(root: Id) -> Tree {
        Tree { root }
    }

    /// Returns the value under `key`, or `None` if the tree does not hold the key.
    ///
    /// # Errors
    /// The error of `source`, or [`TreeError::Misplaced`](super::TreeError::Misplaced) for a node
    /// that does not match its parent's entry.
    pub async fn get<S: NodeSource>(
        &self,
        source: &S,
        key: &Key,
    ) -> Result<Option<Bytes>, S::Error> {
        let mut path = Path::new(source, self.root, 0).await?;
        path.seek(source, key.as_bytes()).await?;
        Ok(find(&path, key))
    }

    /// Returns the values under `keys`, in the order of `keys`.
    ///
    /// Sorted keys are the fast case: each node is loaded once, and announced to the source before.
    ///
    /// # Errors
    /// As [`Tree::get`].
    pub async fn get_many<S: NodeSource>(
        &self,
        source: &S,
        keys: &[Key],
    ) -> Result<Vec<Option<Bytes>>, S::Error> {
        let mut values = Vec::with_capacity(keys.len());
        let mut path = Path::new(source, self.root, 0).await?;
        let (mut announced, mut interior) = (1, 0);
        for (index, key) in keys.iter().enumerate() {
            path.seek(source, key.as_bytes()).await?;
            values.push(find(&path, key));
            let from = if path.interior_loads() > interior {
                interior = path.interior_loads();
                index + 1
            } else {
                announced
            };
            if from < index + KEYS_AHEAD {
                announced = (index + 2 * KEYS_AHEAD).min(keys.len());
                path.announce(source, keys[from.min(announced)..announced].iter());
            }
        }
        Ok(values)
    }

    /// Returns a cursor over the entries whose keys lie in `range` (end exclusive).
    ///
    /// Loads nothing until [`Cursor::next`].
    pub fn range(&self, range: Range<Key>) -> Cursor {
        Cursor {
            root: self.root,
            range,
            path: None,
            index: 0,
            window: 0,
            announced: 0,
            done: false,
        }
    }

    /// Returns the first entry in `range` (end exclusive).
    ///
    /// # Errors
    /// As [`Tree::get`].
    pub async fn first_in<S: NodeSource>(
        &self,
        source: &S,
        range: Range<Key>,
    ) -> Result<Option<(Key, Bytes)>, S::Error> {
        self.range(range).next(source).await
    }

    /// Returns the last entry in `range` (end exclusive).
    ///
    /// # Errors
    /// As [`Tree::get`].
    pub async fn last_in<S: NodeSource>(
        &self,
        source: &S,
        range: Range<Key>,
    ) -> Result<Option<(Key, Bytes)>, S::Error> {
        let mut path = Path::new(source, self.root, 0).await?;
        path.seek_below(source, range.end.as_bytes()).await?;
        let Some(leaf) = path.node() else {
            return Ok(None);
        };
        let above = leaf.lower_bound(range.end.as_bytes());
        Ok(above
            .checked_sub(1)
            .filter(|index| leaf.compare(*index, range.start.as_bytes()).is_ge())
            .map(|index| (leaf.key(index), leaf.value_bytes(index))))
    }

    /// Returns the number of items in the tree.
    ///
    /// # Errors
    /// The error of `source`.
    pub async fn items<S: NodeSource>(&self, source: &S) -> Result<u64, S::Error> {
        Ok(source.load(self.root).await?.items())
    }
}

fn find(path: &Path, key: &Key) -> Option<Bytes> {
    let leaf = path.node()?;
    Some(leaf.value_bytes(leaf.find(key.as_bytes())?))
}

/// Walks over a range of a tree in the order of keys.
///
/// A cursor holds no borrow, so that it can be kept between requests. It announces the leaves ahead
/// of it, in a window that doubles while the walk goes on.
pub struct Cursor {
    root: Id,
    range: Range<Key>,
    path: Option<Path>,
    /// Index of the next entry in the current leaf.
    index: usize,
    /// Number of leaves to announce ahead. It starts at zero, so that short walks cause no needless
    /// loads.
    window: usize,
    /// The children of the current leaf's parent below this index have been announced.
    announced: usize,
    done: bool,
}

impl Cursor {
    /// Returns the next entry, or `None` at the end of the range.
    ///
    /// The call may be repeated after an error, or if the future was dropped.
    ///
    /// # Errors
    /// As [`Tree::get`].
    pub async fn next<S: NodeSource>(
        &mut self,
        source: &S,
    ) -> Result<Option<(Key, Bytes)>, S::Error> {
        loop {
            if self.done {
                return Ok(None);
            }
            let Some(path) = &mut self.path else {
                self.start(source).await?;
                continue;
            };
            if let Some(leaf) = path.node().filter(|leaf| self.index < leaf.len()) {
                if leaf.compare(self.index, self.range.end.as_bytes()).is_ge() {
                    self.done = true;
                    continue;
                }
                let entry = (leaf.key(self.index), leaf.value_bytes(self.index));
                self.index += 1;
                return Ok(Some(entry));
            }
            match path.next_begins_below(self.range.end.as_bytes()) {
                Some(true) => {
                    path.advance(source).await?;
                    self.index = 0;
                    self.announce(source);
                }
                _ => self.done = true,
            }
        }
    }

    async fn start<S: NodeSource>(&mut self, source: &S) -> Result<(), S::Error> {
        if self.range.start >= self.range.end {
            self.done = true;
            return Ok(());
        }
        let mut path = Path::new(source, self.root, 0).await?;
        path.seek(source, self.range.start.as_bytes()).await?;
        if let Some(leaf) = path.node() {
            self.index = leaf.lower_bound(self.range.start.as_bytes());
        }
        self.path = Some(path);
        Ok(())
    }

    /// Announces the leaves after the current one, up to the end of the range.
    fn announce<S: NodeSource>(&mut self, source: &S) {
        let Some((parent, index)) = self.path.as_ref().and_then(Path::parent) else {
            return;
        };
        self.window = (self.window * 2).clamp(1, MOST_AHEAD);
        if index == 0 || self.announced < index {
            self.announced = index + 1;
        }
        // Announces in batches of half a window, not one leaf at each step.
        if self.announced - index > self.window / 2 + 1 {
            return;
        }
        let end = parent.lower_bound(self.range.end.as_bytes());
        let until = (index + 1 + self.window).min(end);
        let ids: Vec<Id> = (self.announced..until)
            .filter_map(|child| Some(parent.child(child)?.id))
            .collect();
        if !ids.is_empty() {
            self.announced = until;
            source.prefetch(&ids);
        }
    }
}

#[cfg(test)]
mod tests;
