//! What a restore does with files that exist already.
//!
//! Owns the decision whether an existing inode stays. Does not own how one is replaced (`place`).

use std::ffi::OsStr;
use std::os::fd::BorrowedFd;
use std::path::Path;

use rustix::fs::{AtFlags, Stat};

use crate::tree::item::{Attributes, Timestamp};
use crate::volume::mode;

/// Which existing files a restore replaces.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Overwrite {
    /// There must be none: the target is absent or empty.
    #[default]
    Refused,
    /// None: they stay as they are, and only what is absent is made.
    Never,
    /// Those of another size or time of last change. The contents of the others are taken as right,
    /// and are not read. They get the attributes of the snapshot.
    IfChanged,
    /// All.
    Always,
}

impl Overwrite {
    /// Returns true if the target may have inodes under names of the snapshot.
    pub fn meets_existing(self) -> bool {
        self != Overwrite::Refused
    }

    /// Returns true if an inode takes the place of one that has its name.
    pub fn replaces(self) -> bool {
        matches!(self, Overwrite::IfChanged | Overwrite::Always)
    }

    /// Returns true if an existing inode may stay.
    pub(super) fn may_keep(self) -> bool {
        matches!(self, Overwrite::Never | Overwrite::IfChanged)
    }

    /// Returns true if `found` stays, and is not replaced by an inode with these attributes. For
    /// inodes that are no directories.
    pub fn keeps(self, found: &Found, attributes: &Attributes) -> bool {
        match self {
            Overwrite::Never => true,
            Overwrite::IfChanged => found.is_like(attributes),
            Overwrite::Refused | Overwrite::Always => false,
        }
    }
}

/// An inode that exists in the target.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    mode: u32,
    size_bytes: u64,
    modified: Timestamp,
}

impl Found {
    /// Returns what has this name in an open directory; none if there is nothing, or it cannot be
    /// asked for.
    pub(super) fn at(directory: BorrowedFd<'_>, name: &OsStr) -> Option<Found> {
        let found = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW);
        found.ok().map(|stat| Found::from(&stat))
    }

    /// Returns what has this path; none if there is nothing, or it cannot be asked for.
    pub fn of(path: &Path) -> Option<Found> {
        rustix::fs::lstat(path).ok().map(|stat| Found::from(&stat))
    }

    /// Returns true if it is a file with the size and the time of last change that a file of the
    /// snapshot has. A restore sets that time only once the file is whole.
    fn is_like(&self, attributes: &Attributes) -> bool {
        mode::is_regular(self.mode)
            && mode::is_regular(attributes.mode)
            && self.size_bytes == attributes.size_bytes
            && self.modified == attributes.modified
    }
}

impl From<&Stat> for Found {
    fn from(stat: &Stat) -> Self {
        Found {
            mode: stat.st_mode,
            size_bytes: stat.st_size as u64,
            modified: Timestamp {
                seconds: stat.st_mtime,
                nanoseconds: stat.st_mtime_nsec as u32,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: u32 = libc::S_IFREG | 0o644;

    fn attributes(mode: u32, size_bytes: u64, seconds: i64) -> Attributes {
        Attributes {
            mode,
            size_bytes,
            modified: Timestamp {
                seconds,
                nanoseconds: 5,
            },
            ..Attributes::default()
        }
    }

    fn found(mode: u32, size_bytes: u64, seconds: i64) -> Found {
        let attributes = attributes(mode, size_bytes, seconds);
        Found {
            mode,
            size_bytes,
            modified: attributes.modified,
        }
    }

    #[test]
    fn only_a_file_of_the_same_size_and_time_is_unchanged() {
        let wanted = attributes(FILE, 10, 100);
        let keeps = |found: Found| Overwrite::IfChanged.keeps(&found, &wanted);
        assert!(keeps(found(FILE, 10, 100)));
        assert!(keeps(found(libc::S_IFREG | 0o600, 10, 100)));
        assert!(!keeps(found(FILE, 11, 100)));
        assert!(!keeps(found(FILE, 10, 101)));
        assert!(!keeps(found(libc::S_IFLNK | 0o777, 10, 100)));
        let mut later = found(FILE, 10, 100);
        later.modified.nanoseconds += 1;
        assert!(!keeps(later));
        let link = attributes(libc::S_IFLNK | 0o777, 10, 100);
        let other = found(libc::S_IFLNK | 0o777, 10, 100);
        assert!(
            !Overwrite::IfChanged.keeps(&other, &link),
            "links are made anew"
        );
    }

    #[test]
    fn what_exists_stays_always_or_never() {
        let wanted = attributes(FILE, 10, 100);
        assert!(Overwrite::Never.keeps(&found(FILE, 1, 1), &wanted));
        assert!(!Overwrite::Always.keeps(&found(FILE, 10, 100), &wanted));
    }
}
