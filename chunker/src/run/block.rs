//! Blocks: some thousand records, sorted.
//!
//! Owns the decoded form of a block: `count u32`, then the records by byte planes: the first bytes
//! of all prefixes, then their second bytes, and so on for prefix, pack, frame, slot and kind. The
//! first planes of sorted prefixes and the last planes of numbers are alike, so that they compress;
//! the rest of a prefix is random.

use super::{RECORD_LEN, RunDamage, require_end, take_u32};
use crate::id::{Kind, Prefix};

/// Where a pack holds a blob. Records are sorted by prefix, then by place.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Ord, PartialOrd)]
pub struct Record {
    /// The first bytes of the blob's id.
    pub prefix: Prefix,
    /// The number of the pack's name in this run.
    pub pack: u32,
    /// The number of the frame in the pack.
    pub frame: u16,
    /// The number of the blob in the frame.
    pub slot: u16,
    /// The kind of the blob.
    pub kind: Kind,
}

impl Record {
    fn to_bytes(self) -> [u8; RECORD_LEN] {
        let mut bytes = [0; RECORD_LEN];
        bytes[..16].copy_from_slice(&self.prefix.0);
        bytes[16..20].copy_from_slice(&self.pack.to_le_bytes());
        bytes[20..22].copy_from_slice(&self.frame.to_le_bytes());
        bytes[22..24].copy_from_slice(&self.slot.to_le_bytes());
        bytes[24] = self.kind as u8;
        bytes
    }

    /// Returns none if the kind is unknown.
    fn from_bytes(bytes: &[u8; RECORD_LEN]) -> Option<Self> {
        let (prefix, rest) = bytes.split_first_chunk()?;
        let (pack, rest) = rest.split_first_chunk()?;
        let (frame, rest) = rest.split_first_chunk()?;
        let (slot, rest) = rest.split_first_chunk()?;
        let [kind] = rest else { return None };
        Some(Self {
            prefix: Prefix(*prefix),
            pack: u32::from_le_bytes(*pack),
            frame: u16::from_le_bytes(*frame),
            slot: u16::from_le_bytes(*slot),
            kind: Kind::try_from(*kind).ok()?,
        })
    }
}

/// A decoded and checked block.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Block {
    records: Vec<Record>,
}

impl Block {
    /// Returns the decoded form of a block of these records, which must be in order.
    pub fn encode(records: &[Record]) -> Vec<u8> {
        let count = records.len();
        let mut raw = vec![0; 4 + count * RECORD_LEN];
        raw[..4].copy_from_slice(&(count as u32).to_le_bytes());
        for (row, record) in records.iter().enumerate() {
            for (plane, byte) in record.to_bytes().into_iter().enumerate() {
                raw[4 + plane * count + row] = byte;
            }
        }
        raw
    }

    /// Parses the decoded form.
    ///
    /// # Errors
    /// [`RunDamage::Inconsistent`].
    pub fn decode(raw: &[u8]) -> Result<Self, RunDamage> {
        let mut rest = raw;
        let count = take_u32(&mut rest)? as usize;
        let length = count.checked_mul(RECORD_LEN);
        let planes = length.and_then(|length| rest.split_at_checked(length));
        let (planes, rest) = planes.ok_or(super::SHORT)?;
        if count == 0 {
            return Err(RunDamage::Inconsistent("a block without records"));
        }
        require_end(rest)?;
        let mut records = Vec::with_capacity(count);
        for row in 0..count {
            let bytes = std::array::from_fn(|plane| planes[plane * count + row]);
            let record = Record::from_bytes(&bytes);
            records.push(record.ok_or(RunDamage::Inconsistent("an unknown kind of blob"))?);
        }
        match records.is_sorted_by(|one, other| one < other) {
            true => Ok(Self { records }),
            false => Err(RunDamage::Inconsistent("the records are not in order")),
        }
    }

    /// Returns all records, in order.
    pub fn records(&self) -> &[Record] {
        &self.records
    }

    /// Returns the records of a prefix, in order.
    pub fn find(&self, prefix: &Prefix) -> &[Record] {
        let start = self
            .records
            .partition_point(|record| record.prefix < *prefix);
        let rest = &self.records[start..];
        &rest[..rest.partition_point(|record| record.prefix == *prefix)]
    }
}
