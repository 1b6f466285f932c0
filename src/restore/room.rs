//! The room that a restore needs, and the room that there is.
//!
//! Owns the comparison before anything is written. Does not own what happens when a disk fills up
//! meanwhile: files that do not fit are problems of the restore.

use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};

use rustix::fs::StatVfs;

use crate::restore::overwrite::Found;

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
        Some(Self::of(directory, &stat))
    }

    /// Returns the room in an open directory, whose path is `directory`. None if the filesystem does
    /// not say.
    pub(super) fn in_open(directory: PathBuf, open: BorrowedFd<'_>) -> Option<Room> {
        let stat = rustix::fs::fstatvfs(open).ok()?;
        Some(Self::of(directory, &stat))
    }

    fn of(directory: PathBuf, stat: &StatVfs) -> Room {
        let blocks = match rustix::process::geteuid().is_root() {
            true => stat.f_bfree,
            false => stat.f_bavail,
        };
        let free_bytes = blocks.saturating_mul(stat.f_frsize);
        Room {
            directory,
            free_bytes,
        }
    }
}

/// The room that a restore takes.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Need {
    /// Bytes that are written.
    pub bytes: u64,
    /// Bytes of the files that are replaced, each once the new one is whole.
    pub freed_bytes: u64,
    /// Bytes of the largest new file that lies next to the one that it replaces.
    pub largest_bytes: u64,
}

impl Need {
    /// Returns the need of as many bytes, where nothing is replaced.
    pub fn of(bytes: u64) -> Need {
        Need {
            bytes,
            ..Need::default()
        }
    }

    /// Counts a new inode of so many bytes that takes the place of `found`.
    pub(super) fn add(&mut self, bytes: u64, found: Option<&Found>) {
        self.bytes = self.bytes.saturating_add(bytes);
        if let Some(found) = found {
            let freed = found.freed_bytes();
            self.freed_bytes = self.freed_bytes.saturating_add(freed);
            self.largest_bytes = self.largest_bytes.max(bytes);
        }
    }

    /// Returns the room that is lacking for it at `target`; none if it fits.
    pub fn lacking(&self, target: &Path) -> Option<Lacking> {
        self.lacking_in(Room::at(target)?)
    }

    pub(super) fn lacking_in(&self, room: Room) -> Option<Lacking> {
        let needed_bytes = match room.free_bytes < self.largest_bytes {
            true => self.largest_bytes,
            false => self.bytes.saturating_sub(self.freed_bytes),
        };
        (room.free_bytes < needed_bytes).then_some(Lacking { room, needed_bytes })
    }
}

/// A filesystem with too little room.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lacking {
    /// What there is.
    pub room: Room,
    /// Bytes that would have to be free.
    pub needed_bytes: u64,
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
    fn what_is_replaced_counts_once_the_new_one_is_whole() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        std::fs::write(&path, vec![1; 100_000]).unwrap();
        let mut need = Need::default();
        need.add(300_000, Found::of(&path).as_ref());
        need.add(50_000, None);
        let lacking = |need: &Need, free_bytes| {
            let directory = directory.path().to_owned();
            let room = Room {
                directory,
                free_bytes,
            };
            need.lacking_in(room).map(|lacking| lacking.needed_bytes)
        };
        assert_eq!(
            lacking(&need, 300_000),
            None,
            "50,000 more than the old one frees"
        );
        assert_eq!(
            lacking(&need, 299_999),
            Some(300_000),
            "both lie there for a while"
        );
        need.add(200_000, None);
        let needed = lacking(&need, 310_000).unwrap();
        assert!((440_000..=450_000).contains(&needed), "{needed}");
        assert_eq!(lacking(&need, 450_000), None);
    }

    #[test]
    fn a_file_with_another_name_frees_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        std::fs::write(&path, vec![1; 100_000]).unwrap();
        std::fs::hard_link(&path, directory.path().join("other")).unwrap();
        let mut need = Need::default();
        need.add(5, Found::of(&path).as_ref());
        assert_eq!(need.freed_bytes, 0);
    }
}
