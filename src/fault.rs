//! Faults in a tree that no honest filesystem holds, although the seals of its objects are correct.
//! Any holder of the password can write such a tree.
//!
//! This module owns the kinds of faults and the check of a single entry. Each reader decides how to
//! handle a fault: it leaves the entry out and names it.

use std::collections::HashSet;
use std::ops::Range;

use thiserror::Error;

use crate::extents::MAX_FILE_BYTES;
use crate::tree::item::{Attributes, Item};
use crate::tree::key::{Key, KeyParts};
use crate::volume::{FIRST_INODE, ROOT_INODE, mode};

/// Inode numbers that an inode with a name can have.
///
/// A mount shows 48 bits of a number, and reserves the lowest numbers.
pub const INODES: Range<u64> = FIRST_INODE..1 << 48;

/// Length of the longest path that a walk follows, in bytes.
///
/// This is 16 times the limit of one system call.
pub const PATH_BYTES_MAX: usize = 64 << 10;

/// Most bytes that the extended attributes of one inode may have together, for a reader that holds
/// all of them at once.
pub const XATTRS_BYTES_MAX: usize = 16 << 20;

/// A fault of an entry of a tree.
#[derive(Clone, Debug, Eq, PartialEq, Error)]
pub enum Fault {
    /// The name is empty, too long, `.` or `..`, or has a slash or a zero byte.
    #[error("a name that no file can have")]
    Name,
    /// The name is stored under a hash other than its own. The directory may then hold it twice.
    #[error("the name is not at its place in the directory")]
    Place,
    /// The number is not one that an inode with a name can have.
    #[error("inode {inode} has a number that no file can have")]
    Inode {
        /// The inode number.
        inode: u64,
    },
    /// The name leads to an inode that does not exist.
    #[error("the name refers to inode {inode}, which does not exist")]
    Dangling {
        /// The inode number.
        inode: u64,
    },
    /// The walk has entered this directory before.
    #[error("inode {inode} is a directory with more than one name, or one that contains itself")]
    Again {
        /// The directory's inode number.
        inode: u64,
    },
    /// The path is too long to follow.
    #[error("the path is longer than {PATH_BYTES_MAX} bytes")]
    Deep,
    /// The file is larger than any file can be.
    #[error("inode {inode} has {size} bytes, more than the maximum size of a file")]
    Size {
        /// The file's inode number.
        inode: u64,
        /// The size in its attributes, in bytes.
        size: u64,
    },
    /// The content reaches beyond the largest offset.
    #[error("inode {inode} has contents beyond the maximum size of a file")]
    Extent {
        /// The file's inode number.
        inode: u64,
    },
    /// The mode has no known file type.
    #[error("inode {inode} has an unknown file type")]
    Type {
        /// The inode number.
        inode: u64,
    },
    /// The extended attributes are too many, or too large together, or have a name that no file
    /// can give them.
    #[error("inode {inode} has extended attributes that no file can have")]
    Xattrs {
        /// The inode number.
        inode: u64,
    },
    /// The target of a symbolic link is empty or has a zero byte.
    #[error("inode {inode} is a symbolic link with a target that no link can have")]
    Target {
        /// The link's inode number.
        inode: u64,
    },
    /// The entry does not have the form of its key's kind.
    #[error("{0}")]
    Malformed(String),
}

/// Whether a file can have this name, in any directory.
pub fn is_name(name: &[u8]) -> bool {
    !name.is_empty() && name != b"." && name != b".." && !name.contains(&b'/') && !name.contains(&0)
}

/// Returns the fault of a name, or `None`.
///
/// `found` is the cookie in its key, and `cookie` the one that its hash gives.
pub fn of_name(name: &[u8], found: u64, cookie: u64, inode: u64) -> Option<Fault> {
    if !is_name(name) {
        Some(Fault::Name)
    } else if found != cookie {
        Some(Fault::Place)
    } else {
        of_inode(inode)
    }
}

/// Returns the fault of an inode number that a name leads to, or `None`.
pub fn of_inode(inode: u64) -> Option<Fault> {
    (!INODES.contains(&inode)).then_some(Fault::Inode { inode })
}

/// Returns the fault of an inode, or `None`.
pub fn of_attributes(inode: u64, attributes: &Attributes) -> Option<Fault> {
    let size = attributes.size_bytes;
    match attributes.mode & libc::S_IFMT {
        libc::S_IFREG if size > MAX_FILE_BYTES => Some(Fault::Size { inode, size }),
        libc::S_IFREG | libc::S_IFDIR | libc::S_IFLNK | libc::S_IFIFO | libc::S_IFSOCK => None,
        libc::S_IFCHR | libc::S_IFBLK => None,
        _ => Some(Fault::Type { inode }),
    }
}

/// Returns the fault of an item, as far as the item alone shows it, or `None`.
///
/// `cookie` makes the cookie of a name.
pub fn of_item(key: &Key, item: &Item, cookie: impl Fn(&[u8]) -> u64) -> Option<Fault> {
    let parts = match key.parse() {
        Ok(parts) => parts,
        Err(error) => return Some(Fault::Malformed(format!("entry {key:?}: {error}"))),
    };
    let owner = match parts {
        KeyParts::Orphan { inode } => inode,
        KeyParts::Attributes { inode }
        | KeyParts::Extent { inode, .. }
        | KeyParts::Xattr { inode, .. }
        | KeyParts::Inline { inode }
        | KeyParts::Symlink { inode } => inode,
        KeyParts::Name { directory, .. } => directory,
    };
    if owner != ROOT_INODE
        && let Some(fault) = of_inode(owner)
    {
        return Some(fault);
    }
    match (parts, item) {
        (
            KeyParts::Name {
                cookie: found,
                name,
                ..
            },
            Item::Name { inode, .. },
        ) => of_name(name, found, cookie(name), *inode),
        (KeyParts::Attributes { inode }, Item::Attributes(attributes)) => {
            of_attributes(inode, attributes)
        }
        (KeyParts::Extent { inode, offset }, Item::Extent(extent)) => {
            let end = offset.checked_add(extent.length.into());
            let is_within = end.is_some_and(|end| end <= MAX_FILE_BYTES);
            (!is_within).then_some(Fault::Extent { inode })
        }
        (KeyParts::Symlink { inode }, Item::Symlink(target)) => of_target(inode, target),
        (KeyParts::Xattr { inode, name }, _)
            if name.starts_with(b"system.") || name.contains(&0) =>
        {
            Some(Fault::Xattrs { inode })
        }
        _ => None,
    }
}

/// Returns the fault of the target of a symbolic link, or `None`.
pub fn of_target(inode: u64, target: &[u8]) -> Option<Fault> {
    let is_bad = target.is_empty() || target.contains(&0);
    is_bad.then_some(Fault::Target { inode })
}

/// The directories that a walk has entered.
///
/// The walk enters none twice, so it ends however the directories contain each other. Takes about
/// 16 bytes for each directory.
#[derive(Debug, Default)]
pub struct Entered(HashSet<u64>);

impl Entered {
    /// Returns the record of a walk that begins in this directory.
    pub fn from(directory: u64) -> Entered {
        Entered(HashSet::from([directory]))
    }

    /// Records that the walk enters a directory whose path has `path_bytes` bytes.
    ///
    /// # Errors
    /// [`Fault::Again`] if the walk has entered the directory before; [`Fault::Deep`] if the path
    /// is longer than [`PATH_BYTES_MAX`].
    pub fn enter(&mut self, directory: u64, path_bytes: usize) -> Result<(), Fault> {
        if path_bytes > PATH_BYTES_MAX {
            return Err(Fault::Deep);
        }
        match self.0.insert(directory) {
            true => Ok(()),
            false => Err(Fault::Again { inode: directory }),
        }
    }
}

/// Returns the fault of a file whose content is about to be read, or `None` if it can be read or is
/// not a regular file.
pub fn of_contents(inode: u64, attributes: &Attributes) -> Option<Fault> {
    of_attributes(inode, attributes).filter(|_| mode::is_regular(attributes.mode))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_lead_elsewhere_are_none() {
        for name in [&b""[..], b".", b"..", b"a/b", b"/etc", b"a\0b"] {
            assert!(!is_name(name), "{name:?}");
        }
        for name in [&b"a"[..], b"...", b" ", b"\xff\n", b".bkfs"] {
            assert!(is_name(name), "{name:?}");
        }
    }

    #[test]
    fn a_name_is_judged_by_itself_its_place_and_what_it_leads_to() {
        assert_eq!(of_name(b"a", 7, 7, 64), None);
        assert_eq!(of_name(b"..", 7, 7, 64), Some(Fault::Name));
        assert_eq!(of_name(b"a", 8, 7, 64), Some(Fault::Place));
        for inode in [0, 1, 6, 63, 1 << 48, u64::MAX] {
            assert_eq!(of_name(b"a", 7, 7, inode), Some(Fault::Inode { inode }));
        }
    }

    #[test]
    fn no_directory_is_entered_twice_and_none_too_deep() {
        let mut entered = Entered::from(1);
        assert_eq!(entered.enter(1, 1), Err(Fault::Again { inode: 1 }));
        assert_eq!(entered.enter(70, 1), Ok(()));
        assert_eq!(entered.enter(70, 1), Err(Fault::Again { inode: 70 }));
        assert_eq!(entered.enter(71, PATH_BYTES_MAX), Ok(()));
        assert_eq!(entered.enter(72, PATH_BYTES_MAX + 1), Err(Fault::Deep));
    }

    #[test]
    fn sizes_types_and_extents_have_bounds() {
        let file = |mode, size_bytes| Attributes {
            mode,
            size_bytes,
            ..Attributes::default()
        };
        let regular = libc::S_IFREG | 0o644;
        assert_eq!(of_attributes(70, &file(regular, MAX_FILE_BYTES)), None);
        let large = file(regular, MAX_FILE_BYTES + 1);
        assert!(matches!(
            of_attributes(70, &large),
            Some(Fault::Size { .. })
        ));
        assert_eq!(of_attributes(70, &file(libc::S_IFSOCK, u64::MAX)), None);
        for mode in [0, 0o170_000, 0o644] {
            assert_eq!(
                of_attributes(70, &file(mode, 0)),
                Some(Fault::Type { inode: 70 })
            );
        }
        let extent = Item::Extent(crate::tree::item::Extent {
            length: 10,
            target: crate::tree::item::Target::Chunk(bkfs_chunker::id::Id([1; 32])),
            target_offset: 0,
            open: false,
        });
        let judge = |offset| of_item(&Key::extent(70, offset), &extent, |_| 0);
        assert_eq!(judge(MAX_FILE_BYTES - 10), None);
        assert_eq!(judge(MAX_FILE_BYTES - 9), Some(Fault::Extent { inode: 70 }));
        assert_eq!(judge(u64::MAX), Some(Fault::Extent { inode: 70 }));
    }
}
