//! Content names: ids, their prefixes, and the kinds of blobs.
//!
//! Owns the types only. [`crate::crypto::Keyring::id`] computes ids, because they are keyed by the
//! repository.

use std::fmt;

/// The id of a blob: BLAKE3 under the key that the id key of the repository yields for the kind of
/// the blob (FORMAT.md, "Chunks and ids").
#[derive(Copy, Clone, Eq, PartialEq, Ord, PartialOrd, Hash)]
pub struct Id(pub [u8; 32]);

/// The first 16 bytes of an [`Id`], by which footers and the index name blobs.
///
/// A reader that fetches a blob by its prefix verifies the whole id afterwards.
#[derive(Copy, Clone, Eq, PartialEq, Ord, PartialOrd, Hash)]
pub struct Prefix(pub [u8; 16]);

impl Id {
    /// Length of an id in bytes.
    pub const LEN: usize = 32;

    /// Returns the first 16 bytes of the id, by which the index names it.
    pub fn prefix(&self) -> Prefix {
        let mut prefix = [0; Prefix::LEN];
        prefix.copy_from_slice(&self.0[..Prefix::LEN]);
        Prefix(prefix)
    }

    /// Parses the 64 hexadecimal digits that `Display` writes. `None` for any other text.
    pub fn from_hex(text: &str) -> Option<Self> {
        let mut bytes = [0; Self::LEN];
        hex::decode_to_slice(text, &mut bytes).ok()?;
        Some(Self(bytes))
    }
}

impl Prefix {
    /// Length of a prefix in bytes.
    pub const LEN: usize = 16;

    /// Returns the first 8 bytes as a number that has the order of prefixes.
    pub fn head(&self) -> u64 {
        let (head, _) = self.0.split_first_chunk().expect("a prefix is longer");
        u64::from_be_bytes(*head)
    }
}

impl fmt::Display for Id {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_hex(formatter, &self.0)
    }
}

impl fmt::Debug for Id {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_hex(formatter, &self.0[..6])
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_hex(formatter, &self.0)
    }
}

impl fmt::Debug for Prefix {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_hex(formatter, &self.0[..6])
    }
}

/// Writes `bytes` as lower-case hexadecimal without allocating.
pub(crate) fn write_hex(formatter: &mut fmt::Formatter<'_>, bytes: &[u8]) -> fmt::Result {
    bytes
        .iter()
        .try_for_each(|byte| write!(formatter, "{byte:02x}"))
}

/// The kind of a blob. The kind is part of the id: equal bytes of two kinds have two ids.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash)]
#[repr(u8)]
pub enum Kind {
    /// A chunk of file data.
    Chunk = 1,
    /// A list of the chunks of one part of a file.
    Segment = 2,
    /// A node of a tree.
    Node = 3,
    /// A commit record.
    Commit = 4,
}

impl Kind {
    /// Every kind, in ascending order of its number.
    pub const ALL: [Kind; 4] = [Kind::Chunk, Kind::Segment, Kind::Node, Kind::Commit];
}

/// A byte that is not the number of any kind.
#[derive(Copy, Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("unknown kind of blob: {0}")]
pub struct UnknownKind(pub u8);

impl TryFrom<u8> for Kind {
    type Error = UnknownKind;

    fn try_from(byte: u8) -> Result<Self, UnknownKind> {
        match byte {
            1 => Ok(Kind::Chunk),
            2 => Ok(Kind::Segment),
            3 => Ok(Kind::Node),
            4 => Ok(Kind::Commit),
            _ => Err(UnknownKind(byte)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hex_is_read_back() {
        let id = Id(std::array::from_fn(|index| index as u8 * 7));
        assert_eq!(Id::from_hex(&id.to_string()), Some(id));
        assert_eq!(id.to_string().len(), 64);
        assert_eq!(format!("{id:?}"), id.to_string()[..12]);
        assert_eq!(id.prefix().to_string(), id.to_string()[..32]);
        assert_eq!(Id::from_hex("00"), None);
        assert_eq!(Id::from_hex(&"g".repeat(64)), None);
    }

    #[test]
    fn kinds_have_the_numbers_of_the_format() {
        for byte in 0..=255u8 {
            match Kind::try_from(byte) {
                Ok(kind) => assert_eq!(kind as u8, byte),
                Err(UnknownKind(unknown)) => {
                    assert_eq!(unknown, byte);
                    assert!(!(1..=4).contains(&byte));
                }
            }
        }
        for (index, kind) in Kind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, index + 1);
        }
    }
}
