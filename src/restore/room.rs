//! The room that a restore needs, and the room that there is.
//!
//! Owns the comparison before anything is written. Does not own what happens when a disk fills up
//! meanwhile: files that do not fit are problems of the restore.

use std::collections::HashSet;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::fault::Entered;
use crate::restore::error::RestoreError;
use crate::volume::error::VolumeError;
use crate::volume::mode;
use crate::volume::state::Scope;
use crate::volume::view::View;
use crate::walk::{self, join, names};

/// The unit in which filesystems allocate, in bytes.
const BLOCK_BYTES: u64 = 4096;

/// The unit of `st_blocks`, in bytes.
const SECTOR_BYTES: u64 = 512;

/// A filesystem's free bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Room {
    /// The directory that was asked for: the target, or the nearest one above it that exists.
    pub directory: PathBuf,
    /// Bytes that this user may still write there.
    pub free_bytes: u64,
}

impl Room {
    /// Returns the room in which `target` is or would be made. None if the filesystem does not say.
    pub fn at(target: &Path) -> Option<Room> {
        let target = std::path::absolute(target).ok()?;
        let directory = target.ancestors().find(|path| path.exists())?.to_owned();
        let stat = rustix::fs::statvfs(&directory).ok()?;
        let blocks = match rustix::process::geteuid().is_root() {
            true => stat.f_bfree,
            false => stat.f_bavail,
        };
        let free_bytes = blocks.saturating_mul(stat.f_frsize);
        Some(Room {
            directory,
            free_bytes,
        })
    }
}

/// Checks that what `inode` holds fits into `target`. `at_most_bytes` is a bound of that which is
/// known without a walk. What lies in the target already counts as free with `overwrite`, since it
/// is replaced.
///
/// # Errors
/// [`RestoreError::NoRoom`]. A tree that cannot be read is not judged: the restore itself says what
/// is wrong with it.
pub async fn check(
    view: &View,
    inode: u64,
    target: &Path,
    at_most_bytes: u64,
    overwrite: bool,
) -> Result<(), RestoreError> {
    let Some(room) = Room::at(target).filter(|room| room.free_bytes < at_most_bytes) else {
        return Ok(());
    };
    let Ok(needed_bytes) = needed(view, inode).await else {
        return Ok(());
    };
    let replaced = if overwrite { occupied(target) } else { 0 };
    let there_bytes = room.free_bytes.saturating_add(replaced);
    if needed_bytes <= there_bytes {
        return Ok(());
    }
    Err(RestoreError::NoRoom {
        path: room.directory,
        needed_bytes,
        free_bytes: there_bytes,
    })
}

/// Returns the bytes that the files below `inode` allocate. Holes need none, and an inode with
/// several names counts once.
async fn needed(view: &View, inode: u64) -> Result<u64, VolumeError> {
    let of_file = |size: u64, allocated: u64| {
        let size = size.div_ceil(BLOCK_BYTES).saturating_mul(BLOCK_BYTES);
        size.min(allocated)
    };
    let attributes = view.attributes(Scope::Live, inode).await?;
    if !mode::is_directory(attributes.mode) {
        return Ok(of_file(attributes.size_bytes, attributes.allocated_bytes));
    }
    let mut sum: u64 = 0;
    let mut linked = HashSet::new();
    let mut entered = Entered::from(inode);
    let mut open = vec![(inode, Vec::new())];
    while let Some((directory, path)) = open.pop() {
        for named in names(view, directory).await?.names {
            // What is faulty is not restored.
            let Ok(attributes) = walk::attributes(view, named.inode).await? else {
                continue;
            };
            if mode::is_directory(attributes.mode) {
                let path = join(&path, &named.name);
                if entered.enter(named.inode, path.len()).is_ok() {
                    open.push((named.inode, path));
                }
            } else if attributes.links < 2 || linked.insert(named.inode) {
                let bytes = of_file(attributes.size_bytes, attributes.allocated_bytes);
                sum = sum.saturating_add(bytes);
            }
        }
    }
    Ok(sum)
}

/// Returns the bytes that files below `path` allocate now, as far as they can be read.
fn occupied(path: &Path) -> u64 {
    let mut sum: u64 = 0;
    let mut open = vec![path.to_owned()];
    while let Some(path) = open.pop() {
        let Ok(found) = std::fs::symlink_metadata(&path) else {
            continue;
        };
        sum = sum.saturating_add(found.blocks().saturating_mul(SECTOR_BYTES));
        if found.is_dir()
            && let Ok(entries) = std::fs::read_dir(&path)
        {
            open.extend(entries.flatten().map(|entry| entry.path()));
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_room_is_that_of_the_nearest_directory() {
        let directory = tempfile::tempdir().unwrap();
        let room = Room::at(&directory.path().join("not/there/yet")).unwrap();
        assert_eq!(room.directory, directory.path());
        assert!(room.free_bytes > 0);
    }

    #[test]
    fn what_is_replaced_is_counted_with_its_directories() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("below")).unwrap();
        std::fs::write(directory.path().join("below/file"), vec![1; 100_000]).unwrap();
        std::os::unix::fs::symlink("/", directory.path().join("link")).unwrap();
        let bytes = occupied(directory.path());
        assert!((100_000..1_000_000).contains(&bytes), "{bytes}");
        assert_eq!(occupied(&directory.path().join("absent")), 0);
    }
}
