//! What no honest filesystem holds, though its seals are right: any holder of the password can
//! write it.
//!
//! Owns: the words for it, and the judgement of one entry at a time. Does not own: what becomes of
//! it, which is each reader's: it is left out, and named.

use std::collections::HashSet;
use std::ops::Range;

use thiserror::Error;

use crate::extents::MAX_FILE_BYTES;
use crate::tree::item::{Attributes, Item};
use crate::tree::key::{Key, KeyParts};
use crate::volume::{FIRST_INODE, ROOT_INODE, mode};

/// Numbers that an inode with a name can have: a mount shows 48 bits of them, and keeps the lowest
/// for itself.
pub const INODES: Range<u64> = FIRST_INODE..1 << 48;

/// The longest path that a walk follows, in bytes: sixteen times what one call takes.
pub const PATH_BYTES_MAX: usize = 64 << 10;

/// The most that the extended attributes of one inode may hold together, in bytes, for a reader
/// that takes them all at once.
pub const XATTRS_BYTES_MAX: usize = 16 << 20;

/// What is wrong with an entry of a tree.
#[derive(Clone, Debug, Eq, PartialEq, Error)]
pub enum Fault {
    /// A name that is empty, too long, `.`, `..`, or has a slash or a zero byte.
    #[error("a name that no file can have")]
    Name,
    /// A name under another hash than its own: there may be two of it.
    #[error("the name is not where its directory keeps it")]
    Place,
    /// A number that no inode with a name has.
    #[error("inode {inode} is none that a file can have")]
    Inode {
        /// The number.
        inode: u64,
    },
    /// A name that leads to nothing.
    #[error("the name leads to inode {inode}, which is not there")]
    Dangling {
        /// The number.
        inode: u64,
    },
    /// A directory that was met before.
    #[error("inode {inode} is a directory with more than one name, or one that lies in itself")]
    Again {
        /// The directory.
        inode: u64,
    },
    /// A path that is too long to follow.
    #[error("the path is longer than {PATH_BYTES_MAX} bytes")]
    Deep,
    /// A file that is larger than any.
    #[error("inode {inode} has {size} bytes, more than any file can have")]
    Size {
        /// The file.
        inode: u64,
        /// What is said of it.
        size: u64,
    },
    /// Contents beyond the largest offset.
    #[error("inode {inode} has contents beyond what any file can have")]
    Extent {
        /// The file.
        inode: u64,
    },
    /// A mode without a type.
    #[error("inode {inode} is of no type that a file can have")]
    Type {
        /// The inode.
        inode: u64,
    },
    /// Extended attributes that are too many, or too large together.
    #[error("inode {inode} has more extended attributes than any file can have")]
    Xattrs {
        /// The inode.
        inode: u64,
    },
    /// A target of a link that is empty or has a zero byte.
    #[error("inode {inode} is a link with a target that no link can have")]
    Target {
        /// The link.
        inode: u64,
    },
    /// An entry that is not what its key says.
    #[error("{0}")]
    Malformed(String),
}

/// Whether a file can have this name, in any directory.
pub fn is_name(name: &[u8]) -> bool {
    !name.is_empty() && name != b"." && name != b".." && !name.contains(&b'/') && !name.contains(&0)
}

/// What is wrong with a name, where `cookie` is what its hash says.
pub fn of_name(name: &[u8], found: u64, cookie: u64, inode: u64) -> Option<Fault> {
    if !is_name(name) {
        Some(Fault::Name)
    } else if found != cookie {
        Some(Fault::Place)
    } else {
        of_inode(inode)
    }
}

/// What is wrong with the number that a name leads to.
pub fn of_inode(inode: u64) -> Option<Fault> {
    (!INODES.contains(&inode)).then_some(Fault::Inode { inode })
}

/// What is wrong with an inode.
pub fn of_attributes(inode: u64, attributes: &Attributes) -> Option<Fault> {
    let size = attributes.size_bytes;
    match attributes.mode & libc::S_IFMT {
        libc::S_IFREG if size > MAX_FILE_BYTES => Some(Fault::Size { inode, size }),
        libc::S_IFREG | libc::S_IFDIR | libc::S_IFLNK | libc::S_IFIFO | libc::S_IFSOCK => None,
        libc::S_IFCHR | libc::S_IFBLK => None,
        _ => Some(Fault::Type { inode }),
    }
}

/// What is wrong with an item, as far as it tells by itself; `cookie` gives the hash of a name.
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
        _ => None,
    }
}

/// What is wrong with the target of a link.
pub fn of_target(inode: u64, target: &[u8]) -> Option<Fault> {
    let is_bad = target.is_empty() || target.contains(&0);
    is_bad.then_some(Fault::Target { inode })
}

/// The directories that a walk has entered: it enters none twice, so it ends however they lie in
/// each other. Takes some 16 bytes for each.
#[derive(Debug, Default)]
pub struct Entered(HashSet<u64>);

impl Entered {
    /// A walk that begins in this directory.
    pub fn from(directory: u64) -> Entered {
        Entered(HashSet::from([directory]))
    }

    /// Notes that the walk enters a directory.
    ///
    /// # Errors
    /// [`Fault::Again`] if it was there before; [`Fault::Deep`] if its path is longer than a walk
    /// follows.
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

/// What is wrong with contents that are about to be read: nothing if they can be.
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
