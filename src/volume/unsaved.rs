//! Files with changes that no commit holds: they would be lost with the layers.
//!
//! Owns: the search for them and for their names. Does not own: whether they are lost (`mounting`).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use crate::tree::item::{Attributes, Item};
use crate::tree::key::{self, ItemKind, Key, KeyParts};
use crate::volume::error::VolumeError;
use crate::volume::state::Scope;
use crate::volume::view::View;
use crate::volume::{ROOT_INODE, Volume};

/// Maximum number of names that are read in the tree to find those of changed files. Files beyond
/// it are reported by inode number.
const NAMES_WALKED_MAX: usize = 200_000;

/// Time limit for the walk over directories, because they may be in a store that does not answer.
const WALK: Duration = Duration::from_secs(1);

/// Number of items of a directory that are fetched at once.
const PAGE: usize = 4096;

/// A file, directory or name with changes that are not in the bucket.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Unsaved {
    /// The path from the root of the mount, beginning with '/'; `inode N` if no name was found.
    /// Names that are not UTF-8 are shown in a lossy form.
    pub path: String,
    /// The bytes of the path, if they are not UTF-8.
    pub exact: Option<Vec<u8>>,
    /// The inode.
    pub inode: u64,
    /// Bytes of its contents that are only in memory. It is 0 if only the name or attributes
    /// changed, or if the bytes are stored and only wait for a commit.
    pub bytes: u64,
}

/// All inodes and names that the layers change.
#[derive(Debug, Default)]
pub struct Changed {
    /// Inodes, with the number of their dirty bytes.
    pub inodes: BTreeMap<u64, u64>,
    /// Names, by directory: the inode that each leads to, or `None` if the name was removed.
    pub names: BTreeMap<(u64, Vec<u8>), Option<u64>>,
}

impl View {
    /// Returns true if the layers change this inode.
    pub fn has_changed(&self, inode: u64) -> bool {
        let Ok(state) = self.state() else {
            return false;
        };
        let state = state.lock();
        state.layers(Scope::Live).any(|layer| {
            let mut items = layer.items.range(key::of_inode(inode));
            items.next().is_some()
                || layer.data.contains_key(&inode)
                || layer.dropped.contains(&inode)
        })
    }

    /// Returns the changes of the layers; empty for a frozen view.
    pub fn changed(&self) -> Changed {
        let Ok(state) = self.state() else {
            return Changed::default();
        };
        let state = state.lock();
        let mut changed = Changed::default();
        for layer in state.layers(Scope::Live) {
            for (key, item) in &layer.items {
                let Ok(inode) = key.inode() else { continue };
                changed.inodes.entry(inode).or_default();
                if let Ok(KeyParts::Name {
                    directory, name, ..
                }) = key.parse()
                {
                    let target = match item {
                        Some(Item::Name { inode, .. }) => Some(*inode),
                        _ => None,
                    };
                    // The newest layer comes first.
                    changed
                        .names
                        .entry((directory, name.to_vec()))
                        .or_insert(target);
                }
            }
            for (inode, ranges) in &layer.data {
                *changed.inodes.entry(*inode).or_default() += ranges.data_bytes();
            }
            for inode in layer.dropped.iter() {
                changed.inodes.entry(*inode).or_default();
            }
        }
        changed
    }
}

impl Volume {
    /// Returns the files and directories with changes that are not in the bucket, sorted by path,
    /// at most `limit`, and the number of those beyond it.
    ///
    /// A directory with changed names is left out if all of these names exist: the inodes that they
    /// lead to stand for it.
    pub async fn unsaved(&self, limit: usize) -> (Vec<Unsaved>, usize) {
        let changed = self.view.changed();
        let mut found = Found::default();
        for ((directory, name), target) in &changed.names {
            if let Some(inode) = target {
                found.parents.insert(*inode, (*directory, name.clone()));
            }
        }
        let walk = found.walk(&self.view, &changed);
        match tokio::time::timeout(WALK, walk).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::debug!("not all names of unsaved files were found: {error}")
            }
            Err(_) => tracing::debug!("not all names of unsaved files were found in time"),
        }
        let mut unsaved: Vec<Unsaved> = changed
            .inodes
            .iter()
            // A directory whose only change is new names is reported by the inodes that they lead
            // to.
            .filter(|(inode, bytes)| **bytes > 0 || !found.is_told_by_its_names(**inode, &changed))
            .map(|(inode, bytes)| {
                let path = found.path(*inode);
                Unsaved {
                    path: String::from_utf8_lossy(&path).into_owned(),
                    exact: std::str::from_utf8(&path).is_err().then_some(path),
                    inode: *inode,
                    bytes: *bytes,
                }
            })
            .collect();
        unsaved.sort();
        let beyond = unsaved.len().saturating_sub(limit);
        unsaved.truncate(limit);
        (unsaved, beyond)
    }
}

impl Volume {
    /// Returns the inodes of `changed` that `successor` does not hold as this failed volume does.
    /// An inode that is not open counts as lost without a check, because it has no handle to break.
    ///
    /// Each change sets an inode's time of change, so a comparison of attributes is enough. A
    /// change that no journal has described is lost in any case.
    pub async fn lost_to(&self, successor: &View, changed: &Changed) -> BTreeSet<u64> {
        let undescribed = self.view.undescribed();
        let mut lost = BTreeSet::new();
        for &inode in changed.inodes.keys() {
            let is_kept = self.usage().is_open(inode)
                && !undescribed.contains(&inode)
                && self.view.is_like(successor, inode).await.unwrap_or(false);
            if !is_kept {
                lost.insert(inode);
            }
        }
        lost
    }
}

impl View {
    /// Returns the inodes with changes that no journal has described.
    fn undescribed(&self) -> BTreeSet<u64> {
        let mut inodes = BTreeSet::new();
        let Ok(state) = self.state() else {
            return inodes;
        };
        for layer in state.lock().layers(Scope::Live) {
            let delta = &layer.delta;
            inodes.extend(delta.items.iter().filter_map(|key| key.inode().ok()));
            inodes.extend(&delta.dropped);
            inodes.extend(delta.changed_files());
        }
        inodes
    }

    /// Returns true if the inode has the same attributes in another view, apart from the allocated
    /// bytes.
    async fn is_like(&self, other: &View, inode: u64) -> Result<bool, VolumeError> {
        let key = Key::attributes(inode);
        let here = self.item(Scope::Live, &key).await?;
        let there = other.item(Scope::Live, &key).await?;
        Ok(match (here, there) {
            (Some(Item::Attributes(here)), Some(Item::Attributes(there))) => {
                let allocated_bytes = here.allocated_bytes;
                here == Attributes {
                    allocated_bytes,
                    ..there
                }
            }
            _ => false,
        })
    }
}

/// The directory and name of each inode, as far as found.
#[derive(Default)]
struct Found {
    parents: HashMap<u64, (u64, Vec<u8>)>,
}

impl Found {
    /// Walks the directories to find the names that the layers do not contain.
    async fn walk(&mut self, view: &View, changed: &Changed) -> Result<(), VolumeError> {
        let mut missing: BTreeSet<u64> = changed.inodes.keys().copied().collect();
        missing.extend(changed.names.keys().map(|(directory, _)| *directory));
        missing.extend(self.parents.values().map(|(directory, _)| *directory));
        missing.retain(|inode| *inode != ROOT_INODE && !self.parents.contains_key(inode));
        let mut directories = vec![ROOT_INODE];
        let mut walked = 0;
        while let (Some(directory), false) = (directories.pop(), missing.is_empty()) {
            let mut range = key::of_kind(directory, ItemKind::Name);
            loop {
                let page = view.items(Scope::Live, range.clone(), PAGE).await?;
                walked += page.items.len();
                for (key, item) in &page.items {
                    let (Item::Name { inode, file_type }, Ok(KeyParts::Name { name, .. })) =
                        (item, key.parse())
                    else {
                        continue;
                    };
                    self.parents
                        .entry(*inode)
                        .or_insert_with(|| (directory, name.to_vec()));
                    missing.remove(inode);
                    if u32::from(*file_type) << 12 == libc::S_IFDIR {
                        directories.push(*inode);
                    }
                }
                match page.next {
                    Some(next) if walked < NAMES_WALKED_MAX => range.start = next,
                    _ => break,
                }
            }
            if walked >= NAMES_WALKED_MAX {
                break;
            }
        }
        Ok(())
    }

    fn is_told_by_its_names(&self, inode: u64, changed: &Changed) -> bool {
        let names = changed
            .names
            .range((inode, Vec::new())..(inode + 1, Vec::new()));
        let mut leading = names.peekable();
        leading.peek().is_some() && leading.all(|(_, target)| target.is_some())
    }

    fn path(&self, inode: u64) -> Vec<u8> {
        let mut names: Vec<&[u8]> = Vec::new();
        let mut at = inode;
        let mut seen = BTreeSet::new();
        while at != ROOT_INODE {
            match self.parents.get(&at) {
                Some((parent, name)) if seen.insert(at) => {
                    names.push(name);
                    at = *parent;
                }
                _ => return format!("inode {inode}").into_bytes(),
            }
        }
        names.reverse();
        [b"/", names.join(&b"/"[..]).as_slice()].concat()
    }
}
