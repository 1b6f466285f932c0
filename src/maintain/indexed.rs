//! The packs of a repository, as index objects and the packs themselves list them.
//!
//! Owns which index object counts if two disagree. Where the lists are kept is decided in
//! [`super::workspace::shelf`].

use std::collections::BTreeMap;

use bkfs_chunker::catalog::IndexRef;
use bkfs_chunker::pack::PackName;
use bkfs_chunker::verify::PackContents;

use super::workspace::shelf::{Shelf, ShelvedPack};
use super::workspace::{WorkError, Workspace};

/// Contents of the index objects of a root.
#[derive(Debug, Default)]
pub struct Indexed {
    /// Packs that they list, by name.
    pub packs: BTreeMap<PackName, ShelvedPack>,
    /// Index objects that cannot be read.
    pub lost: Vec<IndexRef>,
    /// Takes the lists of what packs hold.
    pub shelf: Shelf,
}

impl Indexed {
    /// Returns the contents of no index object, within the memory of a workspace.
    pub fn new(workspace: &Workspace) -> Self {
        Self {
            shelf: Shelf::new(workspace),
            ..Self::default()
        }
    }

    /// Adds the packs of an index object. Those of the same name are replaced.
    ///
    /// # Errors
    /// [`WorkError::Unwritten`].
    pub fn replace(&mut self, packs: Vec<PackContents>) -> Result<(), WorkError> {
        let packs = self.shelf.put(packs)?.into_iter();
        self.packs.extend(packs.map(|pack| (pack.name(), pack)));
        Ok(())
    }

    /// Adds the packs of an index object that are not there yet. Returns the keys of those that are
    /// there and differ.
    ///
    /// # Errors
    /// Those of [`WorkError`].
    pub fn add(&mut self, mut packs: Vec<PackContents>) -> Result<Vec<String>, WorkError> {
        let mut differing = Vec::new();
        let mut error = None;
        packs.retain(|pack| match self.packs.get(&pack.name()) {
            None => true,
            Some(known) => {
                match known.contents() {
                    Ok(known) if known == *pack => {}
                    Ok(_) => differing.push(pack.key()),
                    Err(unread) => error = Some(unread),
                }
                false
            }
        });
        match error {
            Some(error) => Err(error),
            None => self.replace(packs).map(|()| differing),
        }
    }
}
