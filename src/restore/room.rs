//! The room that a restore needs, and the room that there is.
//!
//! Owns the comparison before anything is written. Does not own what happens when a disk fills up
//! meanwhile: files that do not fit are problems of the restore.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

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

/// Returns the room that a restore of `needed_bytes` into `target` lacks; none if it fits. What lies
/// in the target counts as free if it is `replaced`.
pub fn lacking(target: &Path, needed_bytes: u64, replaced: bool) -> Option<Room> {
    let room = Room::at(target).filter(|room| room.free_bytes < needed_bytes)?;
    let replaced_bytes = if replaced { occupied(target) } else { 0 };
    let free_bytes = room.free_bytes.saturating_add(replaced_bytes);
    (free_bytes < needed_bytes).then_some(Room { free_bytes, ..room })
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
