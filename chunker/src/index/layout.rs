//! Where the parts of a table lie.
//!
//! Owns the head of a table, the length of each record, and the blocks of each part. All numbers
//! are little-endian. The parts follow each other in this order, and each begins with a block:
//!
//! - head, one block: magic 8, version u32, packs u32, entries u64, frames u64;
//! - fences, in levels: the head (u64) of the first prefix of each block of entries; then, level by
//!   level, the first fence of each block of the level before, until one block is left. A table
//!   with at most one block of entries has none;
//! - entries, sorted: prefix 16, pack u32, frame u16, slot u16;
//! - names of packs, sorted: name 16, number of the pack's first frame u64;
//! - packs, in the same order: length u64, class u8, header 128;
//! - frames, by pack: offset u32, stored length u32, raw length u32;
//! - filters, each four blocks with one checksum: length u32, bytes of the
//!   [`Filter`](super::filter::Filter) of 72 blocks of entries. Empty if it cannot be built.
//!
//! No record lies in two blocks. What is left of a block is zero.

use super::block::{BLOCK_LEN, PAYLOAD_LEN, VERSION};
use super::error::TableError;
use super::{HEADER_LEN, PackName, Prefix};
use std::ops::Range;

const MAGIC: &[u8; 8] = b"bkfstab\0";
pub(super) const HEAD_LEN: usize = 32;
pub(super) const FENCE_LEN: usize = 8;
pub(super) const ENTRY_LEN: usize = Prefix::LEN + 8;
pub(super) const NAME_LEN: usize = PackName::LEN + 8;
pub(super) const PACK_LEN: usize = 8 + 1 + HEADER_LEN;
pub(super) const FRAME_LEN: usize = 12;
/// Blocks of entries for which there is one filter. Their prefixes fill it nearly: 12,240 of at
/// most 12,377.
pub(super) const LEAVES_PER_FILTER: u64 = 72;
const FILTER_BLOCKS: u64 = 4;
/// Length of the blocks of a filter, in bytes.
pub(super) const FILTER_LEN: usize = FILTER_BLOCKS as usize * BLOCK_LEN;

/// How many of each a table has.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub(super) struct Counts {
    pub(super) entries: u64,
    pub(super) packs: u32,
    pub(super) frames: u64,
}

/// The numbers of the blocks of each part.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Layout {
    pub(super) counts: Counts,
    /// The fences by level: first those of the entries.
    pub(super) fences: Vec<Range<u64>>,
    pub(super) entries: Range<u64>,
    pub(super) names: Range<u64>,
    pub(super) packs: Range<u64>,
    pub(super) frames: Range<u64>,
    pub(super) filters: Range<u64>,
}

/// Returns how many records of this length a block holds.
pub(super) const fn per_block(record: usize) -> u64 {
    (PAYLOAD_LEN / record) as u64
}

impl Layout {
    pub(super) fn new(counts: Counts) -> Self {
        let mut end = 1;
        let mut part = |blocks: u64| {
            let start = end;
            end += blocks;
            start..end
        };
        let leaves = counts.entries.div_ceil(per_block(ENTRY_LEN));
        let mut fences = Vec::new();
        let mut below = leaves;
        while below > 1 {
            below = below.div_ceil(per_block(FENCE_LEN));
            fences.push(part(below));
        }
        Self {
            fences,
            entries: part(leaves),
            names: part(u64::from(counts.packs).div_ceil(per_block(NAME_LEN))),
            packs: part(u64::from(counts.packs).div_ceil(per_block(PACK_LEN))),
            frames: part(counts.frames.div_ceil(per_block(FRAME_LEN))),
            filters: part(leaves.div_ceil(LEAVES_PER_FILTER) * FILTER_BLOCKS),
            counts,
        }
    }

    /// Returns the head of a table, without what fills its block.
    pub(super) fn head(counts: &Counts) -> [u8; HEAD_LEN] {
        let mut head = [0; HEAD_LEN];
        head[..8].copy_from_slice(MAGIC);
        head[8..12].copy_from_slice(&VERSION.to_le_bytes());
        head[12..16].copy_from_slice(&counts.packs.to_le_bytes());
        head[16..24].copy_from_slice(&counts.entries.to_le_bytes());
        head[24..32].copy_from_slice(&counts.frames.to_le_bytes());
        head
    }

    /// Parses the head of a table.
    ///
    /// # Errors
    /// [`TableError::NotATable`] and [`TableError::OtherVersion`].
    pub(super) fn of_head(head: &[u8]) -> Result<Self, TableError> {
        if !head.starts_with(MAGIC) || head.len() < HEAD_LEN {
            return Err(TableError::NotATable);
        }
        if u32_at(head, 8) != VERSION {
            return Err(TableError::OtherVersion);
        }
        Ok(Self::new(Counts {
            packs: u32_at(head, 12),
            entries: u64_at(head, 16),
            frames: u64_at(head, 24),
        }))
    }

    /// Returns the length of the table in bytes. `None` if that is no number of 64 bits.
    pub(super) fn length(&self) -> Option<u64> {
        self.filters.end.checked_mul(BLOCK_LEN as u64)
    }

    /// Returns the numbers of the blocks that hold fences, of all levels.
    pub(super) fn all_fences(&self) -> Range<u64> {
        1..self.entries.start
    }

    /// Returns the number of filters.
    pub(super) fn filter_count(&self) -> u64 {
        (self.filters.end - self.filters.start) / FILTER_BLOCKS
    }

    /// Returns the number of the first block of a filter.
    pub(super) fn filter_block(&self, filter: u64) -> u64 {
        self.filters.start + filter * FILTER_BLOCKS
    }
}

/// Returns the number at `offset`. Zero if the bytes end before.
pub(super) fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    let number = bytes.get(offset..).and_then(|rest| rest.first_chunk());
    u32::from_le_bytes(number.copied().unwrap_or_default())
}

/// Returns the number at `offset`. Zero if the bytes end before.
pub(super) fn u64_at(bytes: &[u8], offset: usize) -> u64 {
    let number = bytes.get(offset..).and_then(|rest| rest.first_chunk());
    u64::from_le_bytes(number.copied().unwrap_or_default())
}
