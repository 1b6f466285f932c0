//! The contents of a journal: changes of a volume, as bytes (FORMAT.md, "Journals").
//!
//! Owns: the encoding. Does not own: the source of the changes (`capture`), their replay
//! (`replay`). Pure. For any bytes, decoding does not panic, and allocates no more than a small
//! multiple of their length.

use bytes::Bytes;
use minicbor::{Decode, Encode};

use crate::extents::MAX_FILE_BYTES;
use crate::tree::item::{Extent, Item};
use crate::tree::key::{ItemKind, Key};
use crate::volume::state::Totals;

/// The contents of a range of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// Bytes.
    Data(Bytes),
    /// A number of zeroes.
    Zero(u64),
    /// Stored content, as an extent.
    Stored(Extent),
}

impl Content {
    /// Returns the length of the range, in bytes.
    pub fn length(&self) -> u64 {
        match self {
            Content::Data(bytes) => bytes.len() as u64,
            Content::Zero(length) => *length,
            Content::Stored(extent) => u64::from(extent.length),
        }
    }
}

/// A range of a file with its contents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// The file's inode.
    pub inode: u64,
    /// The offset of the range, in bytes.
    pub offset: u64,
    /// The contents of the range.
    pub content: Content,
}

/// Changes of an earlier state, in this order: inodes are dropped, then items are set, then
/// contents.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Operations {
    /// Inodes that are gone with all that belongs to them.
    pub dropped: Vec<u64>,
    /// Items as they are now; `None` for an item that is gone. Never extents or inline contents.
    pub items: Vec<(Key, Option<Item>)>,
    /// Contents as they are now.
    pub contents: Vec<Piece>,
    /// The lowest inode number that was not given out.
    pub next_inode: u64,
    /// The inodes and bytes of the volume.
    pub totals: Totals,
}

#[derive(Encode, Decode)]
#[cbor(map)]
struct Wire {
    #[n(0)]
    dropped: Vec<u64>,
    #[n(1)]
    items: Vec<WireItem>,
    #[n(2)]
    contents: Vec<WirePiece>,
    #[n(3)]
    next_inode: u64,
    #[n(4)]
    inodes: u64,
    #[n(5)]
    bytes: u64,
}

#[derive(Encode, Decode)]
#[cbor(array)]
struct WireItem {
    #[cbor(n(0), with = "minicbor::bytes")]
    key: Vec<u8>,
    #[cbor(n(1), with = "minicbor::bytes")]
    value: Option<Vec<u8>>,
}

#[derive(Encode, Decode)]
#[cbor(array)]
struct WirePiece {
    #[n(0)]
    inode: u64,
    #[n(1)]
    offset: u64,
    #[n(2)]
    kind: u8,
    #[n(3)]
    length: u64,
    #[cbor(n(4), with = "minicbor::bytes")]
    value: Vec<u8>,
}

const DATA: u8 = 1;
const ZERO: u8 = 2;
const STORED: u8 = 3;

impl Operations {
    /// Returns the encoded bytes.
    pub fn encode(&self) -> Vec<u8> {
        let item = |(key, item): &(Key, Option<Item>)| WireItem {
            key: key.as_bytes().to_vec(),
            value: item.as_ref().map(Item::encode),
        };
        let wire = Wire {
            dropped: self.dropped.clone(),
            items: self.items.iter().map(item).collect(),
            contents: self.contents.iter().map(WirePiece::of).collect(),
            next_inode: self.next_inode,
            inodes: self.totals.inodes,
            bytes: self.totals.bytes,
        };
        minicbor::to_vec(wire).expect("writing plain fields to memory cannot fail")
    }

    /// Decodes the bytes of [`Operations::encode`].
    ///
    /// # Errors
    /// A text that describes the fault in the bytes.
    pub fn decode(bytes: &[u8]) -> Result<Operations, String> {
        let wire: Wire = minicbor::decode(bytes).map_err(|error| error.to_string())?;
        let items = wire.items.into_iter().map(WireItem::read);
        let contents = wire.contents.into_iter().map(WirePiece::read);
        Ok(Operations {
            dropped: wire.dropped,
            items: items.collect::<Result<_, _>>()?,
            contents: contents.collect::<Result<_, _>>()?,
            next_inode: wire.next_inode,
            totals: Totals {
                inodes: wire.inodes,
                bytes: wire.bytes,
            },
        })
    }
}

impl WireItem {
    fn read(self) -> Result<(Key, Option<Item>), String> {
        let key = Key::from_bytes(self.key);
        key.parse().map_err(|error| error.to_string())?;
        let kind = key.kind().map_err(|error| error.to_string())?;
        if matches!(kind, ItemKind::Extent | ItemKind::Inline) {
            return Err(format!("{key:?} is no item of a journal"));
        }
        let decode = |value| Item::decode(kind, &Bytes::from(value));
        let item = self.value.map(decode).transpose();
        Ok((key, item.map_err(|error| error.to_string())?))
    }
}

impl WirePiece {
    fn of(piece: &Piece) -> WirePiece {
        let (kind, value) = match &piece.content {
            Content::Data(bytes) => (DATA, bytes.to_vec()),
            Content::Zero(_) => (ZERO, Vec::new()),
            Content::Stored(extent) => (STORED, Item::Extent(*extent).encode()),
        };
        WirePiece {
            inode: piece.inode,
            offset: piece.offset,
            kind,
            length: piece.content.length(),
            value,
        }
    }

    fn read(self) -> Result<Piece, String> {
        let content = match self.kind {
            DATA => Content::Data(Bytes::from(self.value)),
            ZERO => Content::Zero(self.length),
            STORED => match Item::decode(ItemKind::Extent, &Bytes::from(self.value)) {
                Ok(Item::Extent(extent)) => Content::Stored(extent),
                Ok(_) => return Err("not an extent".to_owned()),
                Err(error) => return Err(error.to_string()),
            },
            kind => return Err(format!("contents of an unknown kind {kind}")),
        };
        let end = self.offset.checked_add(self.length);
        if content.length() != self.length || end.is_none_or(|end| end > MAX_FILE_BYTES) {
            return Err("contents of another length, or beyond the largest file".to_owned());
        }
        Ok(Piece {
            inode: self.inode,
            offset: self.offset,
            content,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::item::Attributes;
    use bkfs_chunker::extent::Target;
    use bkfs_chunker::id::Id;
    use proptest::prelude::*;

    pub(crate) fn example() -> Operations {
        let stored = Extent {
            length: 1 << 20,
            target: Target::Segment(Id([7; 32])),
            target_offset: 0,
            open: true,
        };
        let piece = |offset, content| Piece {
            inode: 70,
            offset,
            content,
        };
        Operations {
            dropped: vec![66],
            items: vec![
                (
                    Key::attributes(70),
                    Some(Item::Attributes(Attributes::default())),
                ),
                (Key::name(1, 99, b"gone"), None),
            ],
            contents: vec![
                piece(0, Content::Data(Bytes::from_static(b"bytes"))),
                piece(5, Content::Zero(1 << 30)),
                piece(1 << 31, Content::Stored(stored)),
            ],
            next_inode: 71,
            totals: Totals {
                inodes: 3,
                bytes: 9,
            },
        }
    }

    #[test]
    fn what_is_written_is_read_back() {
        let operations = example();
        assert_eq!(Operations::decode(&operations.encode()), Ok(operations));
    }

    #[test]
    fn what_no_volume_writes_is_refused() {
        let refused = |change: fn(&mut Operations)| {
            let mut operations = example();
            change(&mut operations);
            assert!(Operations::decode(&operations.encode()).is_err());
        };
        refused(|operations| operations.items[0].0 = Key::from_bytes(vec![1, 2]));
        refused(|operations| operations.items[1].0 = Key::extent(70, 0));
        refused(|operations| operations.items[1].0 = Key::inline(70));
        refused(|operations| operations.contents[1].content = Content::Zero(u64::MAX));
        refused(|operations| operations.contents[0].offset = MAX_FILE_BYTES);
    }

    proptest! {
        #[test]
        fn damaged_bytes_never_panic(at in 0usize..200, value in any::<u8>(), cut in 0usize..300) {
            let mut bytes = example().encode();
            if let Some(byte) = bytes.get_mut(at) {
                *byte = value;
            }
            bytes.truncate(cut);
            let _ = Operations::decode(&bytes);
        }
    }
}
