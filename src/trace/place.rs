//! From the inodes of a recorder to paths, and from the paths of a trace to inodes.
//!
//! Owns both ways through a tree. A path is followed name by name from the root of the tree. No
//! symbolic link is followed, and only regular files are found.

use std::collections::{HashMap, HashSet};

use futures::{StreamExt, TryStreamExt};

use crate::trace::format::{PATH_BYTES_MAX, RANGES_MAX, Touch, Trace, names_of};
use crate::trace::recorder::Recorded;
use crate::tree::item::Item;
use crate::tree::key::{self, ItemKind, Key};
use crate::volume::error::VolumeError;
use crate::volume::state::Scope;
use crate::volume::view::View;
use crate::volume::{ROOT_INODE, mode};
use crate::walk::{self, join};

/// Names that are read from the tree at a time.
const PAGE_NAMES: usize = 1024;

/// The most names that are looked at for the paths of a trace.
const NAMES_MAX: u64 = 10_000_000;

/// Inodes that are looked up concurrently.
const LOOK_UPS_AT_ONCE: usize = 16;

/// A regular file of a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    /// Its inode.
    pub inode: u64,
    /// Its length, in bytes.
    pub size: u64,
}

/// Returns the regular file at a path; `None` if the tree has none there.
///
/// # Errors
/// [`VolumeError::ContentStore`] or [`VolumeError::Tree`] if a node of the tree cannot be read.
pub async fn resolve(view: &View, path: &[u8]) -> Result<Option<Found>, VolumeError> {
    let Some(names) = names_of(path) else {
        return Ok(None);
    };
    let mut inode = ROOT_INODE;
    for name in names {
        let cookie = view.nodes().names().cookie(name);
        let key = Key::name(inode, cookie, name);
        match view.item(Scope::Live, &key).await? {
            Some(Item::Name { inode: found, .. }) => inode = found,
            _ => return Ok(None),
        }
    }
    match view.attributes(Scope::Live, inode).await {
        Ok(found) if mode::is_regular(found.mode) => Ok(Some(Found {
            inode,
            size: found.size_bytes,
        })),
        Ok(_) | Err(VolumeError::Stale) => Ok(None),
        Err(error) => Err(error),
    }
}

/// What was recorded, by paths.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Traced {
    /// The trace.
    pub trace: Trace,
    /// False if there were more names in the tree than are looked at, and files are left out.
    pub is_whole: bool,
}

/// Returns the trace of what was recorded, with the names that files have in a tree. Files that the
/// tree does not have are left out. Of several names of a file, one is taken.
///
/// # Errors
/// Those of reading attributes and directories of the tree.
pub async fn trace_of(view: &View, recorded: &[Recorded]) -> Result<Traced, VolumeError> {
    let wanted: HashSet<u64> = recorded.iter().map(|range| range.inode).collect();
    let wanted = files(view, wanted).await?;
    let (paths, is_whole) = paths(view, wanted).await?;
    let mut trace = Trace::default();
    let mut files = HashMap::new();
    for range in recorded.iter().take(RANGES_MAX) {
        let Some(path) = paths.get(&range.inode) else {
            continue;
        };
        let file = *files.entry(range.inode).or_insert_with(|| {
            trace.paths.push(path.clone());
            (trace.paths.len() - 1) as u32
        });
        trace.touches.push(Touch {
            file,
            page: range.page,
            pages: range.pages,
        });
    }
    Ok(Traced { trace, is_whole })
}

/// Returns those of the inodes that are regular files with a name. A search for others would look
/// through the whole tree.
async fn files(view: &View, inodes: HashSet<u64>) -> Result<HashSet<u64>, VolumeError> {
    let look_ups = inodes.into_iter().map(|inode| async move {
        match view.attributes(Scope::Live, inode).await {
            Ok(found) => {
                let is_named = mode::is_regular(found.mode) && found.links > 0;
                Ok(is_named.then_some(inode))
            }
            Err(VolumeError::Stale) => Ok(None),
            Err(error) => Err(error),
        }
    });
    let look_ups = futures::stream::iter(look_ups.collect::<Vec<_>>());
    let found: Vec<Option<u64>> = look_ups.buffered(LOOK_UPS_AT_ONCE).try_collect().await?;
    Ok(found.into_iter().flatten().collect())
}

/// Returns the paths of inodes, and whether no directory was left out. Looks through the directories
/// of the tree until all are found.
async fn paths(
    view: &View,
    mut wanted: HashSet<u64>,
) -> Result<(HashMap<u64, Vec<u8>>, bool), VolumeError> {
    let mut found = HashMap::new();
    let mut directories = vec![(ROOT_INODE, Vec::new())];
    let mut seen = HashSet::from([ROOT_INODE]);
    let mut looked_at = 0;
    while let (Some((directory, path)), false) = (directories.pop(), wanted.is_empty()) {
        let mut range = key::of_kind(directory, ItemKind::Name);
        loop {
            let page = walk::page(view, directory, range.clone(), PAGE_NAMES).await?;
            looked_at += page.names.len() as u64;
            for named in page.names {
                let below = match path.is_empty() {
                    true => named.name.clone(),
                    false => join(&path, &named.name),
                };
                if below.len() > PATH_BYTES_MAX {
                    continue;
                }
                if named.is_directory() {
                    if seen.insert(named.inode) {
                        directories.push((named.inode, below));
                    }
                } else if wanted.remove(&named.inode) {
                    found.insert(named.inode, below);
                }
            }
            match page.next {
                Some(next) if looked_at < NAMES_MAX => range.start = next,
                _ => break,
            }
        }
        if looked_at >= NAMES_MAX {
            return Ok((found, wanted.is_empty()));
        }
    }
    Ok((found, true))
}
