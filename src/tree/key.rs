//! Keys of the tree: who an item belongs to, what it is, and which of its kind.
//!
//! Owns the byte form of keys (`inode u64 big-endian ‖ kind u8 ‖ suffix`), whose plain byte order is the order of the tree, and the
//! ranges that readers ask for. Knows nothing of what the items hold.

use std::fmt;
use std::ops::Range;

use thiserror::Error;

/// Longest key the tree takes, in bytes. The longest one that a filesystem makes is 8 + 1 + 8 + 255.
pub const MAX_KEY_BYTES: usize = 512;

/// Longest name in a directory and of an extended attribute, in bytes (NAME_MAX and XATTR_NAME_MAX of Linux).
pub const MAX_NAME_BYTES: usize = 255;

/// Smallest readdir cookie of a name; those below are left to `.`, `..` and what a mount shows beside the tree.
pub const FIRST_NAME_COOKIE: u64 = 16;

/// Largest readdir cookie of a name: the cookie after it still fits a signed 64-bit offset.
pub const LAST_NAME_COOKIE: u64 = (1 << 63) - 2;

/// What an item is. The numbers are part of the format.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash)]
#[repr(u8)]
pub enum ItemKind {
    /// The inode itself: mode, owner, times, sizes.
    Attributes = 1,
    /// A name in the directory that the key's inode is.
    Name = 2,
    /// Where a run of the file's bytes is stored.
    Extent = 3,
    /// One extended attribute.
    Xattr = 4,
    /// The whole contents of a small file.
    Inline = 5,
    /// What a symbolic link says.
    Symlink = 6,
    /// Says that an inode has no name any more but was still open.
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

/// Why bytes are no key of a filesystem.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Error)]
pub enum KeyError {
    /// Fewer bytes than an inode number and a kind.
    #[error("key of {length} bytes is too short")]
    TooShort {
        /// Bytes there are.
        length: usize,
    },
    /// A kind that this version does not know.
    #[error("key of unknown kind {kind}")]
    UnknownKind {
        /// The number found.
        kind: u8,
    },
    /// The suffix does not have the form of its kind.
    #[error("key of kind {kind:?} has a malformed suffix")]
    BadSuffix {
        /// The kind in question.
        kind: ItemKind,
    },
}

/// A key of the tree: bytes that compare as the tree is ordered.
///
/// Any bytes can be held, since nodes come from the bucket; [`Key::parse`] says whether they mean anything.
#[derive(Clone, Eq, PartialEq, Ord, PartialOrd, Hash)]
pub struct Key(Box<[u8]>);

/// A key taken apart.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum KeyParts<'a> {
    /// Attributes of `inode`.
    Attributes {
        /// Whose.
        inode: u64,
    },
    /// A name in a directory.
    Name {
        /// The directory's inode.
        directory: u64,
        /// Position for readdir, see [`name_cookie`].
        cookie: u64,
        /// The name itself, 1 to 255 bytes.
        name: &'a [u8],
    },
    /// A run of a file's bytes.
    Extent {
        /// The file's inode.
        inode: u64,
        /// First byte in the file.
        offset: u64,
    },
    /// An extended attribute.
    Xattr {
        /// Whose.
        inode: u64,
        /// Its full name with the namespace, 1 to 255 bytes.
        name: &'a [u8],
    },
    /// Contents of a small file.
    Inline {
        /// Whose.
        inode: u64,
    },
    /// Target of a symbolic link.
    Symlink {
        /// Whose.
        inode: u64,
    },
    /// Mark of an unlinked inode (kept under inode 0).
    Orphan {
        /// The inode without a name.
        inode: u64,
    },
}

/// The readdir cookie of a name, from a keyed hash of the name's bytes.
///
/// The cookie is 63 bits, clamped to [`FIRST_NAME_COOKIE`]`..=`[`LAST_NAME_COOKIE`]. Names of one directory that share a cookie lie side by
/// side, ordered by their bytes. Rule for them: a reader that stops inside such a group resumes with `cookie` (it sees the group
/// again), one that has delivered the whole group resumes with `cookie + 1`; so nothing is ever skipped.
pub fn name_cookie(keyed_hash: u64) -> u64 {
    (keyed_hash & (u64::MAX >> 1)).clamp(FIRST_NAME_COOKIE, LAST_NAME_COOKIE)
}

impl Key {
    /// Any bytes as a key. The tree refuses to store more than [`MAX_KEY_BYTES`].
    pub fn from_bytes(bytes: impl Into<Box<[u8]>>) -> Key {
        Key(bytes.into())
    }

    /// The bytes that are compared and stored.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Attributes of `inode`.
    pub fn attributes(inode: u64) -> Key {
        Key::build(inode, ItemKind::Attributes, &[], &[])
    }

    /// `name` in `directory`, with the cookie made by [`name_cookie`].
    pub fn name(directory: u64, cookie: u64, name: &[u8]) -> Key {
        Key::build(directory, ItemKind::Name, &cookie.to_be_bytes(), name)
    }

    /// The run of `inode`'s bytes that begins at `offset`.
    pub fn extent(inode: u64, offset: u64) -> Key {
        Key::build(inode, ItemKind::Extent, &offset.to_be_bytes(), &[])
    }

    /// Extended attribute `name` of `inode`.
    pub fn xattr(inode: u64, name: &[u8]) -> Key {
        Key::build(inode, ItemKind::Xattr, name, &[])
    }

    /// The contents of the small file `inode`.
    pub fn inline(inode: u64) -> Key {
        Key::build(inode, ItemKind::Inline, &[], &[])
    }

    /// The target of the symbolic link `inode`.
    pub fn symlink(inode: u64) -> Key {
        Key::build(inode, ItemKind::Symlink, &[], &[])
    }

    /// The mark that says that `inode` lost its last name while open.
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

    /// The inode that the item lies under (0 for orphan marks).
    ///
    /// # Errors
    /// [`KeyError::TooShort`].
    pub fn inode(&self) -> Result<u64, KeyError> {
        Ok(split(&self.0)?.0)
    }

    /// What the item is.
    ///
    /// # Errors
    /// [`KeyError::TooShort`], [`KeyError::UnknownKind`].
    pub fn kind(&self) -> Result<ItemKind, KeyError> {
        ItemKind::try_from(split(&self.0)?.1)
    }

    /// Takes the key apart and checks its form.
    ///
    /// # Errors
    /// Any [`KeyError`]; never panics, whatever the bytes.
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

/// Inode, kind and suffix of any bytes long enough to have them.
fn split(bytes: &[u8]) -> Result<(u64, u8, &[u8]), KeyError> {
    let short = KeyError::TooShort {
        length: bytes.len(),
    };
    let (inode, rest) = bytes.split_first_chunk().ok_or(short)?;
    let (kind, suffix) = rest.split_first().ok_or(short)?;
    Ok((u64::from_be_bytes(*inode), *kind, suffix))
}

/// Every key there can be.
pub fn everything() -> Range<Key> {
    Key(Box::default())..Key(vec![0xff; MAX_KEY_BYTES + 1].into_boxed_slice())
}

/// All items of `inode` (below 2^64 - 1).
pub fn of_inode(inode: u64) -> Range<Key> {
    of_inodes(inode..inode.saturating_add(1))
}

/// All items of the inodes in `inodes`.
pub fn of_inodes(inodes: Range<u64>) -> Range<Key> {
    let bound = |inode: u64| Key(Box::from(inode.to_be_bytes()));
    bound(inodes.start)..bound(inodes.end)
}

/// All items of one kind of `inode`.
pub fn of_kind(inode: u64, kind: ItemKind) -> Range<Key> {
    let bound = |number: u8| {
        let mut bytes = [0; 9];
        bytes[..8].copy_from_slice(&inode.to_be_bytes());
        bytes[8] = number;
        Key(Box::from(bytes))
    };
    bound(kind as u8)..bound(kind as u8 + 1)
}

/// The names of `directory` whose cookie is `cookie` or more; 0 is the beginning.
pub fn names_from(directory: u64, cookie: u64) -> Range<Key> {
    Key::name(directory, cookie, &[])..of_kind(directory, ItemKind::Name).end
}

/// The names of `directory` that carry exactly `cookie`: one, save for collisions.
pub fn names_at(directory: u64, cookie: u64) -> Range<Key> {
    Key::name(directory, cookie, &[])..Key::name(directory, cookie.saturating_add(1), &[])
}

/// The extents of `inode` that begin in `offsets`. To find all that overlap offset *x*, start
/// [`MAX_EXTENT_BYTES`](crate::extents::MAX_EXTENT_BYTES) - 1 before it.
pub fn extents_beginning(inode: u64, offsets: Range<u64>) -> Range<Key> {
    Key::extent(inode, offsets.start)..Key::extent(inode, offsets.end)
}

/// All marks of orphans.
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
        fn what_parses_is_what_was_built(bytes in proptest::collection::vec(any::<u8>(), 0..40), kind in 0u8..10) {
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
            prop_assert_eq!(first.cmp(&second), Key::extent(inode, first).cmp(&Key::extent(inode, second)));
        }
    }
}
