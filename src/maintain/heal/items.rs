//! The items of a stretch of a tree of another repository, under the keys that they have here.
//!
//! Owns the order. Names lie under a keyed hash, so a directory's names lie in another order there: those of one directory are read whole, and what belongs to the stretch is sorted. All else
//! lies as it does here. Values are as they are there.

use std::ops::Range;

use bkfs_chunker::id::Id;
use bytes::Bytes;

use crate::tree::key::{ItemKind, Key, KeyParts, of_kind};
use crate::tree::map::{Cursor, Tree};
use crate::volume::error::VolumeError;
use crate::volume::names::Names;
use crate::volume::nodes::Nodes;

/// An item.
type Entry = (Key, Bytes);

/// Walks over such a stretch. Memory is one node per level, and the names of one directory as far as they belong to the stretch.
pub(super) struct Items<'a> {
    /// There.
    nodes: &'a Nodes,
    /// Here.
    names: Names,
    range: Range<Key>,
    cursor: Cursor,
    ahead: Option<Entry>,
    directory: std::vec::IntoIter<Entry>,
}

impl<'a> Items<'a> {
    /// Of what lies in `range` here, as `tree` has it there. `names` makes keys here.
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

    /// The next item.
    ///
    /// # Errors
    /// The tree cannot be read.
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

    /// All names of one directory that belong to the stretch, in the order that they have here.
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
