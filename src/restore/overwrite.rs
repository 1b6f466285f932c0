//! What a restore does with files that exist already.
//!
//! Owns the decision whether an existing inode stays. Does not own how one is replaced (`place`).

use std::path::Path;

use rustix::fs::Stat;

use crate::restore::rights::Rights;
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
    /// Those of another size, time of last change or owner. The contents of the others are taken as
    /// right, and are not read. They get the attributes of the snapshot.
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

    /// Returns true if a directory that exists gets the attributes of the snapshot.
    pub(super) fn changes_directories(self) -> bool {
        self != Overwrite::Never
    }

    /// Returns true if an existing inode may stay.
    pub(super) fn may_keep(self) -> bool {
        matches!(self, Overwrite::Never | Overwrite::IfChanged)
    }

    /// Returns true if `found` stays, and is not replaced by an inode with these attributes. For
    /// inodes that are no directories.
    pub(super) fn keeps(self, found: &Found, attributes: &Attributes, rights: Rights) -> bool {
        match self {
            Overwrite::Never => true,
            Overwrite::IfChanged => found.is_like(attributes, rights),
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
    owner: (u32, u32),
    /// True if it belongs to the user that restores.
    is_own: bool,
    /// Number of its names.
    links: u32,
    /// Bytes that it allocates.
    allocated_bytes: u64,
}

/// The unit of `st_blocks`, in bytes.
const SECTOR_BYTES: u64 = 512;

impl Found {
    /// Returns what has this path; none if there is nothing, or it cannot be asked for.
    pub(super) fn of(path: &Path) -> Option<Found> {
        rustix::fs::lstat(path).ok().map(|stat| Found::from(&stat))
    }

    /// Returns the bytes that are free once it has lost this name.
    pub(super) fn freed_bytes(&self) -> u64 {
        match self.links {
            0 | 1 => self.allocated_bytes,
            _ => 0,
        }
    }

    /// Returns true if it is a file with the size and the time of last change that a file of the
    /// snapshot has, and as the restore would make it. A restore sets that time only once the file
    /// is whole.
    ///
    /// Where the directory belongs to another user, the name may be one that this user has given
    /// to a foreign file. Such a file has another owner, or one name more than the restore would
    /// give it. A file with set-id bits is made anew: they give privileges to its contents.
    fn is_like(&self, attributes: &Attributes, rights: Rights) -> bool {
        let is_owned = match rights.sets_owner() {
            true => self.owner == (attributes.uid, attributes.gid),
            false => self.is_own,
        };
        mode::is_regular(self.mode)
            && mode::is_regular(attributes.mode)
            && self.size_bytes == attributes.size_bytes
            && self.modified == attributes.modified
            && is_owned
            && self.links <= attributes.links
            && attributes.mode & (libc::S_ISUID | libc::S_ISGID) == 0
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
            owner: (stat.st_uid, stat.st_gid),
            is_own: stat.st_uid == rustix::process::geteuid().as_raw(),
            links: u32::try_from(stat.st_nlink).unwrap_or(u32::MAX),
            allocated_bytes: (stat.st_blocks as u64).saturating_mul(SECTOR_BYTES),
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
            links: 1,
            ..Attributes::default()
        }
    }

    fn found(mode: u32, size_bytes: u64, seconds: i64) -> Found {
        let attributes = attributes(mode, size_bytes, seconds);
        Found {
            mode,
            size_bytes,
            modified: attributes.modified,
            owner: (0, 0),
            is_own: true,
            links: 1,
            allocated_bytes: size_bytes,
        }
    }

    #[test]
    fn only_a_file_of_the_same_size_and_time_is_unchanged() {
        let wanted = attributes(FILE, 10, 100);
        let keeps = |found| Overwrite::IfChanged.keeps(&found, &wanted, Rights::default());
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
            !Overwrite::IfChanged.keeps(&other, &link, Rights::default()),
            "links are made anew"
        );
    }

    /// A hostile user has linked a foreign file to the name.
    #[test]
    fn only_a_file_that_the_restore_may_have_made_is_unchanged() {
        let mut wanted = attributes(FILE, 10, 100);
        let rights = |is_root, no_owner| Rights {
            is_root,
            no_owner,
            ..Rights::default()
        };
        let keeps = |found: &Found, wanted: &Attributes, rights| {
            Overwrite::IfChanged.keeps(found, wanted, rights)
        };
        let linked = Found {
            links: 2,
            ..found(FILE, 10, 100)
        };
        assert!(!keeps(&linked, &wanted, rights(true, false)));
        wanted.links = 2;
        assert!(keeps(&linked, &wanted, rights(true, false)));
        for bits in [libc::S_ISUID, libc::S_ISGID] {
            let mut privileged = wanted;
            privileged.mode |= bits;
            assert!(!keeps(&linked, &privileged, rights(true, false)));
        }
        let foreign = Found {
            owner: (5, 6),
            is_own: false,
            ..found(FILE, 10, 100)
        };
        for rights in [
            rights(true, false),
            rights(true, true),
            rights(false, false),
        ] {
            assert!(!keeps(&foreign, &wanted, rights), "{rights:?}");
        }
        (wanted.uid, wanted.gid) = (5, 6);
        assert!(keeps(&foreign, &wanted, rights(true, false)));
        assert!(!keeps(&foreign, &wanted, rights(true, true)));
        assert!(!keeps(&foreign, &wanted, rights(false, false)));
    }

    #[test]
    fn what_exists_stays_always_or_never() {
        let wanted = attributes(FILE, 10, 100);
        let rights = Rights::default();
        assert!(Overwrite::Never.keeps(&found(FILE, 1, 1), &wanted, rights));
        assert!(!Overwrite::Always.keeps(&found(FILE, 10, 100), &wanted, rights));
    }
}
