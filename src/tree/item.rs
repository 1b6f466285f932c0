//! Values of the tree: attributes, names, extents, extended attributes, inline contents and link
//! targets.
//!
//! This module owns the byte form of every item and the limits on their sizes. The kind of an item
//! is in its key, so the value does not repeat it. The module does not know keys or nodes. Decoding
//! takes untrusted bytes from the bucket: it never panics, and it accepts exactly the bytes that
//! encoding makes.

pub use bkfs_chunker::extent::Target;
use bkfs_chunker::id::Id;
use bytes::Bytes;
use thiserror::Error;

use super::key::ItemKind;
use super::varint::{self, Reader};

/// Length of the longest value that the tree accepts, in bytes.
///
/// The longest value today is an extended attribute of 64 KiB. The other half is reserved for later
/// kinds of items.
pub const MAX_VALUE_BYTES: usize = 128 * 1024;

/// Length of the longest extent, in bytes.
pub const MAX_EXTENT_BYTES: u32 = 4 << 20;

/// Length of the longest value of an extended attribute, in bytes (XATTR_SIZE_MAX of Linux).
pub const MAX_XATTR_BYTES: usize = 64 * 1024;

/// Length of the longest file content that the tree holds inline, in bytes.
///
/// The writer chooses its own limit at or below this one.
pub const MAX_INLINE_BYTES: usize = 64 * 1024;

/// Length of the longest target of a symbolic link, in bytes (PATH_MAX of Linux without the final
/// zero).
pub const MAX_SYMLINK_BYTES: usize = 4095;

/// Form number of [`Attributes`] that this version writes.
const ATTRIBUTES_FORM: u8 = 1;

const EXTENT_SEGMENT: u8 = 1;
const EXTENT_OPEN: u8 = 2;

/// The reason why bytes are not an item.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Error)]
pub enum ItemError {
    /// No encoding of an item makes these bytes.
    #[error("malformed item of kind {kind:?}")]
    Malformed {
        /// The kind in the item's key.
        kind: ItemKind,
    },
    /// The attributes have a form that this version does not know.
    #[error("attributes of unknown form {form}")]
    UnknownForm {
        /// The form number.
        form: u8,
    },
}

/// A point in time, by the wall clock of the machine that set it.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash)]
pub struct Timestamp {
    /// Seconds since 1970; may be negative.
    pub seconds: i64,
    /// Nanoseconds within that second, below 10^9.
    pub nanoseconds: u32,
}

/// The attributes of an inode.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq, Hash)]
pub struct Attributes {
    /// File type and permissions, as in `st_mode`.
    pub mode: u32,
    /// User id of the owner.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Number of names of the inode. Directories count as POSIX says.
    pub links: u32,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Bytes of the file that are not in holes.
    pub allocated_bytes: u64,
    /// Time of the last read.
    pub accessed: Timestamp,
    /// Time of the last change of the content.
    pub modified: Timestamp,
    /// Time of the last change of the inode.
    pub changed: Timestamp,
    /// Device number of a special file.
    pub device: u32,
    /// How the content is split into chunks: 0 is not known yet, 1 page grid, 2 by content, 3 raw.
    /// The numbers are those of the chunker's profiles.
    pub profile: u8,
    /// Flag bits for later versions. Unknown bits are kept.
    pub flags: u64,
}

/// The stored location of a run of a file's bytes. The offset in the file is in the key.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Hash)]
pub struct Extent {
    /// Length in bytes, from 1 to [`MAX_EXTENT_BYTES`].
    pub length: u32,
    /// The segment or the chunk that holds the bytes.
    pub target: Target,
    /// Offset of the first byte within the target's content, in bytes.
    pub target_offset: u32,
    /// Whether the last chunk ends here because the data ended, not because the chunker cut here.
    /// An append should cut that chunk again.
    pub open: bool,
}

/// One item of the tree.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Item {
    /// Stored under [`ItemKind::Attributes`].
    Attributes(Attributes),
    /// Stored under [`ItemKind::Name`].
    Name {
        /// The inode that the name refers to.
        inode: u64,
        /// File type as in `d_type`, which is `st_mode` shifted right by 12.
        file_type: u8,
    },
    /// Stored under [`ItemKind::Extent`].
    Extent(Extent),
    /// Stored under [`ItemKind::Xattr`]: any bytes, at most [`MAX_XATTR_BYTES`].
    Xattr(Bytes),
    /// Stored under [`ItemKind::Inline`]: any bytes, at most [`MAX_INLINE_BYTES`].
    Inline(Bytes),
    /// Stored under [`ItemKind::Symlink`]: 1 to [`MAX_SYMLINK_BYTES`] bytes.
    Symlink(Bytes),
    /// Stored under [`ItemKind::Orphan`]: an empty value.
    Orphan,
}

impl Item {
    /// Returns the kind of the key under which the item is stored.
    pub fn kind(&self) -> ItemKind {
        match self {
            Item::Attributes(_) => ItemKind::Attributes,
            Item::Name { .. } => ItemKind::Name,
            Item::Extent(_) => ItemKind::Extent,
            Item::Xattr(_) => ItemKind::Xattr,
            Item::Inline(_) => ItemKind::Inline,
            Item::Symlink(_) => ItemKind::Symlink,
            Item::Orphan => ItemKind::Orphan,
        }
    }

    /// Encodes the item.
    ///
    /// The caller keeps the limits on lengths; an item that exceeds them would not decode.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            Item::Attributes(attributes) => attributes.encode(&mut out),
            Item::Name { inode, file_type } => {
                varint::write(&mut out, *inode);
                out.push(*file_type);
            }
            Item::Extent(extent) => extent.encode(&mut out),
            Item::Xattr(bytes) | Item::Inline(bytes) | Item::Symlink(bytes) => {
                out.extend_from_slice(bytes);
            }
            Item::Orphan => {}
        }
        out
    }

    /// Decodes an item of the kind that its key has. The item shares the memory of `bytes`.
    ///
    /// # Errors
    /// [`ItemError::UnknownForm`] for attributes of a form that this version does not know.
    /// [`ItemError::Malformed`] for all other bytes that [`Item::encode`] does not make of an item
    /// within its limits.
    pub fn decode(kind: ItemKind, bytes: &Bytes) -> Result<Item, ItemError> {
        let malformed = ItemError::Malformed { kind };
        let within = |most: usize| bytes.len() <= most;
        Ok(match kind {
            ItemKind::Attributes => Item::Attributes(Attributes::decode(bytes)?),
            ItemKind::Name => {
                let mut reader = Reader::new(bytes);
                let inode = reader.number().ok_or(malformed)?;
                let file_type = reader.byte().ok_or(malformed)?;
                if !reader.is_empty() || !is_file_type(file_type) {
                    return Err(malformed);
                }
                Item::Name { inode, file_type }
            }
            ItemKind::Extent => Item::Extent(Extent::decode(bytes).ok_or(malformed)?),
            ItemKind::Xattr if within(MAX_XATTR_BYTES) => Item::Xattr(bytes.clone()),
            ItemKind::Inline if within(MAX_INLINE_BYTES) => Item::Inline(bytes.clone()),
            ItemKind::Symlink if within(MAX_SYMLINK_BYTES) && !bytes.is_empty() => {
                Item::Symlink(bytes.clone())
            }
            ItemKind::Orphan if bytes.is_empty() => Item::Orphan,
            _ => return Err(malformed),
        })
    }
}

/// Whether `number` is a file type of a name: FIFO, character device, directory, block device,
/// file, symbolic link or socket.
fn is_file_type(number: u8) -> bool {
    matches!(number, 1 | 2 | 4 | 6 | 8 | 10 | 12)
}

impl Attributes {
    /// Returns the file type as names carry it (`d_type`).
    pub fn file_type(&self) -> u8 {
        (self.mode >> 12) as u8 & 0xf
    }

    fn encode(&self, out: &mut Vec<u8>) {
        out.push(ATTRIBUTES_FORM);
        for number in [self.mode, self.uid, self.gid, self.links] {
            varint::write(out, number.into());
        }
        varint::write(out, self.size_bytes);
        varint::write(out, self.allocated_bytes);
        for time in [self.modified, self.changed, self.accessed] {
            varint::write(out, varint::fold_sign(time.seconds));
            varint::write(out, time.nanoseconds.into());
        }
        varint::write(out, self.device.into());
        out.push(self.profile);
        varint::write(out, self.flags);
    }

    fn decode(bytes: &[u8]) -> Result<Attributes, ItemError> {
        match bytes.first() {
            Some(&ATTRIBUTES_FORM) => {}
            Some(&form) => return Err(ItemError::UnknownForm { form }),
            None => {
                return Err(ItemError::Malformed {
                    kind: ItemKind::Attributes,
                });
            }
        }
        Attributes::decode_fields(Reader::new(&bytes[1..])).ok_or(ItemError::Malformed {
            kind: ItemKind::Attributes,
        })
    }

    fn decode_fields(mut reader: Reader<'_>) -> Option<Attributes> {
        let time = |reader: &mut Reader<'_>| {
            let seconds = varint::unfold_sign(reader.number()?);
            let nanoseconds = reader.number_u32()?;
            (nanoseconds < 1_000_000_000).then_some(Timestamp {
                seconds,
                nanoseconds,
            })
        };
        // Rust evaluates the fields in the order in which they stand here, which is the order of
        // encoding.
        let attributes = Attributes {
            mode: reader.number_u32()?,
            uid: reader.number_u32()?,
            gid: reader.number_u32()?,
            links: reader.number_u32()?,
            size_bytes: reader.number()?,
            allocated_bytes: reader.number()?,
            modified: time(&mut reader)?,
            changed: time(&mut reader)?,
            accessed: time(&mut reader)?,
            device: reader.number_u32()?,
            profile: reader.byte()?,
            flags: reader.number()?,
        };
        reader.is_empty().then_some(attributes)
    }
}

impl Extent {
    fn encode(&self, out: &mut Vec<u8>) {
        let segment = match self.target {
            Target::Segment(_) => EXTENT_SEGMENT,
            Target::Chunk(_) => 0,
        };
        out.push(segment | if self.open { EXTENT_OPEN } else { 0 });
        varint::write(out, self.length.into());
        varint::write(out, self.target_offset.into());
        out.extend_from_slice(&self.target.id().0);
    }

    fn decode(bytes: &[u8]) -> Option<Extent> {
        let mut reader = Reader::new(bytes);
        let bits = reader.byte()?;
        let length = reader.number_u32()?;
        let target_offset = reader.number_u32()?;
        let id = Id(reader.take(32)?.try_into().ok()?);
        let known = bits & !(EXTENT_SEGMENT | EXTENT_OPEN) == 0;
        let sane = (1..=MAX_EXTENT_BYTES).contains(&length)
            && target_offset.checked_add(length).is_some()
            && reader.is_empty();
        (known && sane).then_some(Extent {
            length,
            target: if bits & EXTENT_SEGMENT == 0 {
                Target::Chunk(id)
            } else {
                Target::Segment(id)
            },
            target_offset,
            open: bits & EXTENT_OPEN != 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn timestamp() -> impl Strategy<Value = Timestamp> {
        (any::<i64>(), 0u32..1_000_000_000).prop_map(|(seconds, nanoseconds)| Timestamp {
            seconds,
            nanoseconds,
        })
    }

    fn attributes() -> impl Strategy<Value = Item> {
        let numbers = (any::<[u32; 5]>(), any::<[u64; 3]>(), any::<u8>());
        (numbers, timestamp(), timestamp(), timestamp()).prop_map(
            |((small, large, profile), accessed, modified, changed)| {
                Item::Attributes(Attributes {
                    mode: small[0],
                    uid: small[1],
                    gid: small[2],
                    links: small[3],
                    size_bytes: large[0],
                    allocated_bytes: large[1],
                    accessed,
                    modified,
                    changed,
                    device: small[4],
                    profile,
                    flags: large[2],
                })
            },
        )
    }

    fn extent() -> impl Strategy<Value = Item> {
        let numbers = (1..=MAX_EXTENT_BYTES, 0u32..1 << 31);
        (numbers, any::<bool>(), any::<bool>(), any::<[u8; 32]>()).prop_map(
            |((length, target_offset), segment, open, id)| {
                Item::Extent(Extent {
                    length,
                    target: if segment {
                        Target::Segment(Id(id))
                    } else {
                        Target::Chunk(Id(id))
                    },
                    target_offset,
                    open,
                })
            },
        )
    }

    fn item() -> impl Strategy<Value = Item> {
        let bytes = || proptest::collection::vec(any::<u8>(), 1..300).prop_map(Bytes::from);
        let file_type = proptest::sample::select(vec![1u8, 2, 4, 6, 8, 10, 12]);
        prop_oneof![
            attributes(),
            extent(),
            (any::<u64>(), file_type)
                .prop_map(|(inode, file_type)| Item::Name { inode, file_type }),
            bytes().prop_map(Item::Xattr),
            bytes().prop_map(Item::Inline),
            bytes().prop_map(Item::Symlink),
            Just(Item::Orphan),
        ]
    }

    #[test]
    fn bytes_are_frozen() {
        let hex = |item: &Item| hex::encode(item.encode());
        let time = |seconds, nanoseconds| Timestamp {
            seconds,
            nanoseconds,
        };
        let attributes = Item::Attributes(Attributes {
            mode: 0o100_644,
            uid: 1000,
            gid: 100,
            links: 1,
            size_bytes: 1 << 40,
            allocated_bytes: 4096,
            accessed: time(1_700_000_002, 3),
            modified: time(1_700_000_000, 999_999_999),
            changed: time(-1, 2),
            device: 0,
            profile: 2,
            flags: 0,
        });
        assert_eq!(
            hex(&attributes),
            concat!(
                "01a48302e8076401808080808020802080c49fd50cff93ebdc030102",
                "84c49fd50c03000200"
            )
        );
        let name = Item::Name {
            inode: 300,
            file_type: 8,
        };
        assert_eq!(hex(&name), "ac0208");
        let extent = |target, open| {
            Item::Extent(Extent {
                length: 1 << 20,
                target,
                target_offset: 16_384,
                open,
            })
        };
        let id = Id([0xab; 32]);
        let digits = "ab".repeat(32);
        let segment = extent(Target::Segment(id), false);
        assert_eq!(hex(&segment), format!("01808040808001{digits}"));
        let chunk = extent(Target::Chunk(id), true);
        assert_eq!(hex(&chunk), format!("02808040808001{digits}"));
        assert_eq!(hex(&Item::Symlink(Bytes::from_static(b"../a"))), "2e2e2f61");
        assert_eq!(hex(&Item::Orphan), "");
    }

    #[test]
    fn limits_are_kept() {
        let zeroes = |length: usize| Bytes::from(vec![0; length]);
        assert!(Item::decode(ItemKind::Xattr, &zeroes(MAX_XATTR_BYTES)).is_ok());
        assert!(Item::decode(ItemKind::Xattr, &zeroes(MAX_XATTR_BYTES + 1)).is_err());
        assert!(Item::decode(ItemKind::Inline, &zeroes(MAX_INLINE_BYTES + 1)).is_err());
        assert!(Item::decode(ItemKind::Symlink, &zeroes(MAX_SYMLINK_BYTES)).is_ok());
        assert!(Item::decode(ItemKind::Symlink, &zeroes(MAX_SYMLINK_BYTES + 1)).is_err());
        assert!(Item::decode(ItemKind::Symlink, &zeroes(0)).is_err());
        let form = Item::decode(ItemKind::Attributes, &Bytes::from_static(&[9, 0]));
        assert_eq!(form, Err(ItemError::UnknownForm { form: 9 }));
    }

    #[test]
    fn an_extent_has_a_sane_length() {
        for length in [0, MAX_EXTENT_BYTES + 1] {
            let extent = Extent {
                length,
                target: Target::Chunk(Id([1; 32])),
                target_offset: 0,
                open: false,
            };
            let bytes = Bytes::from(Item::Extent(extent).encode());
            assert!(Item::decode(ItemKind::Extent, &bytes).is_err());
        }
    }

    proptest! {
        #[test]
        fn items_come_back(item in item()) {
            let bytes = Bytes::from(item.encode());
            prop_assert_eq!(Item::decode(item.kind(), &bytes), Ok(item));
        }

        #[test]
        fn arbitrary_bytes_decode_to_themselves_or_not_at_all(
            kind in 1u8..=7,
            bytes in proptest::collection::vec(any::<u8>(), 0..80),
        ) {
            let kind = ItemKind::try_from(kind).unwrap();
            let bytes = Bytes::from(bytes);
            if let Ok(item) = Item::decode(kind, &bytes) {
                prop_assert_eq!(item.encode(), &bytes[..]);
            }
        }

        #[test]
        fn damaged_items_never_panic(item in item(), place: prop::sample::Index, bit in 0u8..8) {
            let mut bytes = item.encode();
            if !bytes.is_empty() {
                let place = place.index(bytes.len());
                bytes[place] ^= 1 << bit;
            }
            let bytes = Bytes::from(bytes);
            if let Ok(other) = Item::decode(item.kind(), &bytes) {
                prop_assert_eq!(other.encode(), &bytes[..]);
            }
        }
    }
}
