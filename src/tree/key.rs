//! Keys of the tree: the inode of an item, its kind, and a suffix that tells items of one kind
//! apart.
//!
//! This module owns the byte form of keys (`inode u64 big-endian ‖ kind u8 ‖ suffix`), whose byte
//! order is the order of the tree, and the key ranges that readers ask for. It does not know the
//! contents of items.

use std::fmt;
use std::ops::Range;

use thiserror::Error;

/// Length of the longest key that the tree accepts, in bytes.
///
/// The longest key that a filesystem makes has 8 + 1 + 8 + 255 = 272 bytes.
pub const MAX_KEY_BYTES: usize = 512;

/// Length of the longest directory entry name and of the longest extended attribute name, in bytes.
///
/// The values are NAME_MAX and XATTR_NAME_MAX of Linux.
pub const MAX_NAME_BYTES: usize = 255;

/// Smallest readdir cookie of a name.
///
/// Lower cookies are reserved for `.`, `..` and the entries that a mount adds to those of the tree.
pub const FIRST_NAME_COOKIE: u64 = 16;

/// Largest readdir cookie of a name. The cookie after it still fits a signed 64-bit offset.
pub const LAST_NAME_COOKIE: u64 = (1 << 63) - 2;

/// The kind of an item. The numbers are part of the format.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash)]
#[repr(u8)]
pub enum ItemKind {
    /// The inode itself: mode, owner, times, sizes.
    Attributes = 1,
    /// A name in the directory whose inode number is in the key.
    Name = 2,
    /// The stored location of a run of the file's bytes.
    Extent = 3,
    /// One extended attribute.
    Xattr = 4,
    /// The whole content of a small file.
    Inline = 5,
    /// The target of a symbolic link.
    Symlink = 6,
    /// A mark on an inode that has no name left but was still open.
    Orphan = 7,
}

impl TryFrom<u8> for ItemKind {
    type Error = KeyError;

    fn try_from(number: u8) -> Result<Self, KeyError> {
        Ok(match number {
            1 => ItemKind::Attributes,
            2 => ItemKind::Name,
            3 => ItemKind::Extent,
            4 => ItemKind::Xattr,
            5 => ItemKind::Inline,
            6 => ItemKind::Symlink,
            7 => ItemKind::Orphan,
            _ => return Err(KeyError::UnknownKind { kind: number }),
        })
    }
}

/// The reason why bytes are not a key of a filesystem.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Error)]
pub enum KeyError {
    /// The key has fewer bytes than an inode number and a kind take (9).
    #[error("key of {length} bytes is too short")]
    TooShort {
        /// Length of the key, in bytes.
        length: usize,
    },
    /// The kind is not known to this version.
    #[error("key of unknown kind {kind}")]
    UnknownKind {
        /// The kind number in the key.
        kind: u8,
    },
    /// The suffix does not have the form of its kind.
    #[error("key of kind {kind:?} has a malformed suffix")]
    BadSuffix {
        /// The kind whose form the suffix does not have.
        kind: ItemKind,
    },
}

/// A key of the tree: bytes whose byte order is the order of the tree.
///
/// A key can hold any bytes, since nodes come from the bucket. [`Key::parse`] tells whether they
/// are a valid key.
#[derive(Clone, Eq, PartialEq, Ord, PartialOrd, Hash)]
pub struct Key(Box<[u8]>);

/// The decoded parts of a key.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum KeyParts<'a> {
    /// Attributes of `inode`.
    Attributes {
        /// The inode.
        inode: u64,
    },
    /// A name in a directory.
    Name {
        /// The directory's inode.
        directory: u64,
        /// Position for readdir; see [`name_cookie`].
        cookie: u64,
        /// The name itself, 1 to 255 bytes.
        name: &'a [u8],
    },
    /// A run of a file's bytes.
    Extent {
        /// The file's inode.
        inode: u64,
        /// Offset of the first byte in the file.
        offset: u64,
    },
    /// An extended attribute.
    Xattr {
        /// The inode.
        inode: u64,
        /// The full name with the namespace, 1 to 255 bytes.
        name: &'a [u8],
    },
    /// The content of a small file.
    Inline {
        /// The file's inode.
        inode: u64,
    },
    /// The target of a symbolic link.
    Symlink {
        /// The link's inode.
        inode: u64,
    },
    /// The mark of an unlinked inode (stored under inode 0).
    Orphan {
        /// The inode that has no name left.
        inode: u64,
    },
}

/// Returns the readdir cookie of a name, from a keyed hash of the name's bytes.
///
/// The cookie has 63 bits and is clamped to [`FIRST_NAME_COOKIE`]`..=`[`LAST_NAME_COOKIE`]. Names
/// of one directory that share a cookie are adjacent and ordered by their bytes. A reader that
/// stops inside such a group resumes with `cookie` and sees the whole group again. A reader that
/// has delivered the whole group resumes with `cookie + 1`. No name is therefore ever skipped.
pub fn name_cookie(keyed_hash: u64) -> u64 {
    (keyed_hash & (u64::MAX >> 1)).clamp(FIRST_NAME_COOKIE, LAST_NAME_COOKIE)
}

impl Key {
    /// Makes a key of any bytes. The tree refuses to store a key longer than [`MAX_KEY_BYTES`].
    pub fn from_bytes(bytes: impl Into<Box<[u8]>>) -> Key {
        Key(bytes.into())
    }

    /// Returns the bytes that the tree compares and stores.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns the key of the attributes of `inode`.
    pub fn attributes(inode: u64) -> Key {
        Key::build(inode, ItemKind::Attributes, &[], &[])
    }

    /// Returns the key of `name` in `directory`. [`name_cookie`] makes the cookie.
    pub fn name(directory: u64, cookie: u64, name: &[u8]) -> Key {
        Key::build(directory, ItemKind::Name, &cookie.to_be_bytes(), name)
    }

    /// Returns the key of the extent of `inode` that begins at byte `offset` of the file.
    pub fn extent(inode: u64, offset: u64) -> Key {
        Key::build(inode, ItemKind::Extent, &offset.to_be_bytes(), &[])
    }

    /// Returns the key of the extended attribute `name` of `inode`.
    pub fn xattr(inode: u64, name: &[u8]) -> Key {
        Key::build(inode, ItemKind::Xattr, name, &[])
    }

    /// Returns the key of the inline content of the small file `inode`.
    pub fn inline(inode: u64) -> Key {
        Key::build(inode, ItemKind::Inline, &[], &[])
    }

    /// Returns the key of the target of the symbolic link `inode`.
    pub fn symlink(inode: u64) -> Key {
        Key::build(inode, ItemKind::Symlink, &[], &[])
    }

    /// Returns the key of the mark that `inode` lost its last name while it was open.
    pub fn orphan(inode: u64) -> Key {
        Key::build(0, ItemKind::Orphan, &inode.to_be_bytes(), &[])
    }

    fn build(inode: u64, kind: ItemKind, first: &[u8], second: &[u8]) -> Key {
        let mut bytes = Vec::with_capacity(9 + first.len() + second.len());
        bytes.extend_from_slice(&inode.to_be_bytes());
        bytes.push(kind as u8);
        bytes.extend_from_slice(first);
        bytes.extend_from_slice(second);
        Key(bytes.into_boxed_slice())
    }

    /// Returns the inode number in the key (0 for orphan marks).
    ///
    /// # Errors
    /// [`KeyError::TooShort`] if the key has fewer than 9 bytes.
    pub fn inode(&self) -> Result<u64, KeyError> {
        Ok(split(&self.0)?.0)
    }

    /// Returns the kind of the item.
    ///
    /// # Errors
    /// [`KeyError::TooShort`] if the key has fewer than 9 bytes, [`KeyError::UnknownKind`] if this
    /// version does not know the kind.
    pub fn kind(&self) -> Result<ItemKind, KeyError> {
        ItemKind::try_from(split(&self.0)?.1)
    }

    /// Splits the key into its parts and checks its form. Does not panic, whatever the bytes are.
    ///
    /// # Errors
    /// [`KeyError::TooShort`] if the key has fewer than 9 bytes, [`KeyError::UnknownKind`] if this
    /// version does not know the kind, [`KeyError::BadSuffix`] if the suffix does not have the form
    /// of its kind.
    pub fn parse(&self) -> Result<KeyParts<'_>, KeyError> {
        let (inode, number, suffix) = split(&self.0)?;
        let kind = ItemKind::try_from(number)?;
        let bad = KeyError::BadSuffix { kind };
        let name_ok = |name: &[u8]| (1..=MAX_NAME_BYTES).contains(&name.len());
        Ok(match kind {
            ItemKind::Attributes if suffix.is_empty() => KeyParts::Attributes { inode },
            ItemKind::Inline if suffix.is_empty() => KeyParts::Inline { inode },
            ItemKind::Symlink if suffix.is_empty() => KeyParts::Symlink { inode },
            ItemKind::Name => {
                let (cookie, name) = suffix.split_first_chunk().ok_or(bad)?;
                let cookie = u64::from_be_bytes(*cookie);
                let cookie_ok = (FIRST_NAME_COOKIE..=LAST_NAME_COOKIE).contains(&cookie);
                if !cookie_ok || !name_ok(name) {
                    return Err(bad);
                }
                KeyParts::Name {
                    directory: inode,
                    cookie,
                    name,
                }
            }
            ItemKind::Extent => KeyParts::Extent {
                inode,
                offset: u64::from_be_bytes(suffix.try_into().map_err(|_| bad)?),
            },
            ItemKind::Xattr if name_ok(suffix) => KeyParts::Xattr {
                inode,
                name: suffix,
            },
            ItemKind::Orphan if inode == 0 => KeyParts::Orphan {
                inode: u64::from_be_bytes(suffix.try_into().map_err(|_| bad)?),
            },
            _ => return Err(bad),
        })
    }
}

/// Splits bytes into inode, kind and suffix.
fn split(bytes: &[u8]) -> Result<(u64, u8, &[u8]), KeyError> {
    let short = KeyError::TooShort {
        length: bytes.len(),
    };
    let (inode, rest) = bytes.split_first_chunk().ok_or(short)?;
    let (kind, suffix) = rest.split_first().ok_or(short)?;
    Ok((u64::from_be_bytes(*inode), *kind, suffix))
}

/// Returns the range of all possible keys.
pub fn everything() -> Range<Key> {
    Key(Box::default())..Key(vec![0xff; MAX_KEY_BYTES + 1].into_boxed_slice())
}

/// Returns the range of all items of `inode`, which must be below 2^64 - 1.
pub fn of_inode(inode: u64) -> Range<Key> {
    of_inodes(inode..inode.saturating_add(1))
}

/// Returns the range of all items of the inodes in `inodes`.
pub fn of_inodes(inodes: Range<u64>) -> Range<Key> {
    let bound = |inode: u64| Key(Box::from(inode.to_be_bytes()));
    bound(inodes.start)..bound(inodes.end)
}

/// Returns the range of all items of one kind of `inode`.
pub fn of_kind(inode: u64, kind: ItemKind) -> Range<Key> {
    let bound = |number: u8| {
        let mut bytes = [0; 9];
        bytes[..8].copy_from_slice(&inode.to_be_bytes());
        bytes[8] = number;
        Key(Box::from(bytes))
    };
    bound(kind as u8)..bound(kind as u8 + 1)
}

/// Returns the range of the names of `directory` whose cookie is at least `cookie`.
///
/// A cookie of 0 selects all names.
pub fn names_from(directory: u64, cookie: u64) -> Range<Key> {
    Key::name(directory, cookie, &[])..of_kind(directory, ItemKind::Name).end
}

/// Returns the range of the names of `directory` whose cookie is exactly `cookie`.
///
/// It holds one name, or several if their hashes collide.
pub fn names_at(directory: u64, cookie: u64) -> Range<Key> {
    Key::name(directory, cookie, &[])..Key::name(directory, cookie.saturating_add(1), &[])
}

/// Returns the range of the extents of `inode` that begin in `offsets`, in bytes of the file.
///
/// To find all extents that overlap offset *x*, start
/// [`MAX_EXTENT_BYTES`](super::item::MAX_EXTENT_BYTES) - 1 before *x*.
pub fn extents_beginning(inode: u64, offsets: Range<u64>) -> Range<Key> {
    Key::extent(inode, offsets.start)..Key::extent(inode, offsets.end)
}

/// Returns the range of all orphan marks.
pub fn orphans() -> Range<Key> {
    of_kind(0, ItemKind::Orphan)
}

impl fmt::Debug for Key {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.parse() {
            Ok(KeyParts::Name {
                directory,
                cookie,
                name,
            }) => write!(out, "{directory}/Name/{cookie:x}/{}", name.escape_ascii()),
            Ok(KeyParts::Extent { inode, offset }) => write!(out, "{inode}/Extent/{offset}"),
            Ok(KeyParts::Xattr { inode, name }) => {
                write!(out, "{inode}/Xattr/{}", name.escape_ascii())
            }
            Ok(KeyParts::Orphan { inode }) => write!(out, "0/Orphan/{inode}"),
            Ok(KeyParts::Attributes { inode }) => write!(out, "{inode}/Attributes"),
            Ok(KeyParts::Inline { inode }) => write!(out, "{inode}/Inline"),
            Ok(KeyParts::Symlink { inode }) => write!(out, "{inode}/Symlink"),
            Err(_) => write!(out, "{}", hex::encode(&self.0)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rebuild(parts: KeyParts<'_>) -> Key {
        match parts {
            KeyParts::Attributes { inode } => Key::attributes(inode),
            KeyParts::Name {
                directory,
                cookie,
                name,
            } => Key::name(directory, cookie, name),
            KeyParts::Extent { inode, offset } => Key::extent(inode, offset),
            KeyParts::Xattr { inode, name } => Key::xattr(inode, name),
            KeyParts::Inline { inode } => Key::inline(inode),
            KeyParts::Symlink { inode } => Key::symlink(inode),
            KeyParts::Orphan { inode } => Key::orphan(inode),
        }
    }

    #[test]
    fn bytes_are_frozen() {
        let hex = |key: Key| hex::encode(key.as_bytes());
        assert_eq!(hex(Key::attributes(0x0102)), "000000000000010201");
        assert_eq!(
            hex(Key::name(2, 0x1122334455667788, b"etc")),
            "0000000000000002021122334455667788657463"
        );
        assert_eq!(
            hex(Key::extent(3, 1 << 20)),
            "0000000000000003030000000000100000"
        );
        assert_eq!(
            hex(Key::xattr(3, b"user.a")),
            "000000000000000304757365722e61"
        );
        assert_eq!(hex(Key::inline(3)), "000000000000000305");
        assert_eq!(hex(Key::symlink(3)), "000000000000000306");
        assert_eq!(hex(Key::orphan(9)), "0000000000000000070000000000000009");
    }

    #[test]
    fn cookies_stay_between_their_bounds() {
        assert_eq!(name_cookie(0), FIRST_NAME_COOKIE);
        assert_eq!(name_cookie(u64::MAX), LAST_NAME_COOKIE);
        assert_eq!(name_cookie(1 << 63 | 77), 77);
        assert!(i64::try_from(LAST_NAME_COOKIE + 1).is_ok());
    }

    #[test]
    fn ranges_hold_what_they_say() {
        let inside = [
            Key::attributes(5),
            Key::name(5, FIRST_NAME_COOKIE, b"a"),
            Key::name(5, LAST_NAME_COOKIE, &[0xff; 255]),
            Key::extent(5, u64::MAX),
            Key::xattr(5, &[0xff; 255]),
            Key::inline(5),
            Key::symlink(5),
        ];
        for key in &inside {
            assert!(of_inode(5).contains(key) && everything().contains(key));
            assert!(!of_inode(4).contains(key) && !of_inode(6).contains(key));
        }
        assert!(names_from(5, 0).contains(&inside[1]) && names_from(5, 0).contains(&inside[2]));
        assert!(!names_from(5, FIRST_NAME_COOKIE + 1).contains(&inside[1]));
        assert!(names_at(5, LAST_NAME_COOKIE).contains(&inside[2]));
        assert!(!names_at(5, LAST_NAME_COOKIE).contains(&inside[1]));
        assert!(extents_beginning(5, 10..20).contains(&Key::extent(5, 10)));
        assert!(!extents_beginning(5, 10..20).contains(&Key::extent(5, 20)));
        assert!(orphans().contains(&Key::orphan(u64::MAX)));
        assert!(of_kind(5, ItemKind::Xattr).contains(&inside[4]));
        assert!(!of_kind(5, ItemKind::Xattr).contains(&inside[5]));
    }

    proptest! {
        #[test]
        fn what_parses_is_what_was_built(
            bytes in proptest::collection::vec(any::<u8>(), 0..40),
            kind in 0u8..10,
        ) {
            let mut bytes = bytes;
            if let Some(place) = bytes.get_mut(8) {
                *place = kind;
            }
            let key = Key::from_bytes(bytes);
            if let Ok(parts) = key.parse() {
                prop_assert_eq!(&rebuild(parts), &key);
            }
            let shown = format!("{key:?}");
            prop_assert!(!shown.is_empty() || key.as_bytes().is_empty());
        }

        #[test]
        fn extents_are_ordered_by_offset(inode: u64, first: u64, second: u64) {
            prop_assert_eq!(
                first.cmp(&second),
                Key::extent(inode, first).cmp(&Key::extent(inode, second))
            );
        }
    }
}
