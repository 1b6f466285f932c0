//! Looking things up in a tree: single keys, batches of keys, ranges.
//!
//! Owns reading. Memory is one node per level, whatever is read. Changing is [`apply`](super::apply)'s.

use std::ops::Range;

use bkfs_chunker::id::Id;
use bytes::Bytes;

use super::key::Key;
use super::path::Path;
use super::source::NodeSource;

/// Most leaves a cursor announces ahead of itself.
const MOST_AHEAD: usize = 32;

/// Keys of a batch whose nodes are announced ahead, at least.
const KEYS_AHEAD: usize = 64;

/// A tree, by the id of its root. Immutable: changes make another one.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Hash)]
pub struct Tree {
    /// Id of the root node, which stands for all that is in the tree.
    pub root: Id,
}

impl Tree {
    /// The tree under `root`; nothing is loaded yet.
    pub fn new(root: Id) -> Tree {
        Tree { root }
    }

    /// The value under `key`.
    ///
    /// # Errors
    /// What the source says, or [`TreeError`](super::TreeError) for a tree that is not well-formed; so everywhere here.
    pub async fn get<S: NodeSource>(
        &self,
        source: &S,
        key: &Key,
    ) -> Result<Option<Bytes>, S::Error> {
        let mut path = Path::new(source, self.root, 0).await?;
        path.seek(source, key.as_bytes()).await?;
        Ok(find(&path, key))
    }

    /// The values under `keys`, in their order. Sorted keys are the quick case: each node is loaded once, and announced before.
    ///
    /// # Errors
    /// As for [`Tree::get`].
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

    /// A cursor over the entries whose keys lie in `range`; nothing is loaded before it is asked.
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

    /// The first entry in `range`.
    ///
    /// # Errors
    /// As for [`Tree::get`].
    pub async fn first_in<S: NodeSource>(
        &self,
        source: &S,
        range: Range<Key>,
    ) -> Result<Option<(Key, Bytes)>, S::Error> {
        self.range(range).next(source).await
    }

    /// The last entry in `range`.
    ///
    /// # Errors
    /// As for [`Tree::get`].
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

    /// How many items the tree holds.
    ///
    /// # Errors
    /// As for [`Tree::get`].
    pub async fn items<S: NodeSource>(&self, source: &S) -> Result<u64, S::Error> {
        Ok(source.load(self.root).await?.items())
    }
}

fn find(path: &Path, key: &Key) -> Option<Bytes> {
    let leaf = path.node()?;
    Some(leaf.value_bytes(leaf.find(key.as_bytes())?))
}

/// Walks over a range of a tree in order. It holds no borrow, so that it can be kept between requests; it announces nodes ahead of
/// itself in a window that doubles while the walk goes on.
pub struct Cursor {
    root: Id,
    range: Range<Key>,
    path: Option<Path>,
    /// Next entry in the current leaf.
    index: usize,
    /// Leaves to announce ahead; grows from nothing, so that short walks cost no needless loads.
    window: usize,
    /// Children of the current leaf's parent below this one have been announced.
    announced: usize,
    done: bool,
}

impl Cursor {
    /// The next entry, or `None` at the end of the range. After an error, or when the future was dropped, the call may be repeated.
    ///
    /// # Errors
    /// As for [`Tree::get`].
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

    /// Announces the leaves after the current one, as far as the range goes.
    fn announce<S: NodeSource>(&mut self, source: &S) {
        let Some((parent, index)) = self.path.as_ref().and_then(Path::parent) else {
            return;
        };
        self.window = (self.window * 2).clamp(1, MOST_AHEAD);
        if index == 0 || self.announced < index {
            self.announced = index + 1;
        }
        // Announce in batches of half a window, rather than one leaf at each step.
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
