//! The items in a key range of a tree of the other repository, under the keys that they have in
//! this one.
//!
//! Owns the order. The keys of names contain a keyed hash, so the names of a directory have another
//! order in the other repository. They are read completely, and those in the range are sorted. All
//! other items have the same order in both. Values are those of the other repository.

use std::ops::Range;

use bkfs_chunker::id::Id;
use bytes::Bytes;

use crate::tree::key::{ItemKind, Key, KeyParts, of_kind};
use crate::tree::map::{Cursor, Tree};
use crate::volume::error::VolumeError;
use crate::volume::names::Names;
use crate::volume::nodes::Nodes;

/// An item with its key.
type Entry = (Key, Bytes);

/// Walks over the items of a range. Memory is one node per level, and the names of one directory
/// that are in the range.
pub(super) struct Items<'a> {
    /// Reads nodes of the other repository.
    nodes: &'a Nodes,
    /// Makes the keys of this repository.
    names: Names,
    range: Range<Key>,
    cursor: Cursor,
    ahead: Option<Entry>,
    directory: std::vec::IntoIter<Entry>,
}

impl<'a> Items<'a> {
    /// Starts at the beginning of `range`, whose keys are of this repository, in `tree` of the
    /// other one. `names` makes the keys of this repository.
    pub(super) fn new(nodes: &'a Nodes, tree: Id, names: Names, range: Range<Key>) -> Self {
        let names_of = |key: &Key| match key.parse() {
            Ok(KeyParts::Name { directory, .. }) => Some(of_kind(directory, ItemKind::Name)),
            _ => None,
        };
        let start = names_of(&range.start).map_or(range.start.clone(), |all| all.start);
        let end = names_of(&range.end).map_or(range.end.clone(), |all| all.end);
        Self {
            nodes,
            names,
            range,
            cursor: Tree::new(tree).range(start..end),
            ahead: None,
            directory: Vec::new().into_iter(),
        }
    }

    /// Returns the next item, or none at the end.
    ///
    /// # Errors
    /// The [`VolumeError`] that kept the tree from being read.
    pub(super) async fn next(&mut self) -> Result<Option<Entry>, VolumeError> {
        loop {
            if let Some(entry) = self.directory.next() {
                return Ok(Some(entry));
            }
            let Some((key, value)) = self.step().await? else {
                return Ok(None);
            };
            if let Some(directory) = directory_of(&key) {
                self.gather(directory, (key, value)).await?;
            } else if self.range.contains(&key) {
                return Ok(Some((key, value)));
            }
        }
    }

    async fn step(&mut self) -> Result<Option<Entry>, VolumeError> {
        match self.ahead.take() {
            Some(entry) => Ok(Some(entry)),
            None => self.cursor.next(self.nodes).await,
        }
    }

    /// Reads all names of one directory, and keeps those in the range in the order of this
    /// repository.
    async fn gather(&mut self, directory: u64, first: Entry) -> Result<(), VolumeError> {
        let mut found = Vec::new();
        let mut next = Some(first);
        while let Some((key, value)) = next {
            match key.parse() {
                Ok(KeyParts::Name {
                    directory: of,
                    name,
                    ..
                }) if of == directory => {
                    let here = Key::name(directory, self.names.cookie(name), name);
                    if self.range.contains(&here) {
                        found.push((here, value));
                    }
                }
                _ => {
                    self.ahead = Some((key, value));
                    break;
                }
            }
            next = self.cursor.next(self.nodes).await?;
        }
        found.sort_unstable_by(|one, other| one.0.cmp(&other.0));
        self.directory = found.into_iter();
        Ok(())
    }
}

fn directory_of(key: &Key) -> Option<u64> {
    match key.parse() {
        Ok(KeyParts::Name { directory, .. }) => Some(directory),
        _ => None,
    }
}
