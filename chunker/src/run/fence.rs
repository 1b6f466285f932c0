//! Fences: where each block begins, by the first bytes of its first prefix.
//!
//! Owns the decoded form of a box of fences: `count u32`, the heads of the first prefixes as u64
//! each, the stored lengths of the blocks as u32 each.

use super::{BLOCK_RAW_MAX, RunDamage, require_end, take_u32};
use crate::codec::CODED_HEAD_LEN;
use crate::crypto::BOX_OVERHEAD;
use crate::id::Prefix;
use std::ops::Range;

/// The greatest stored length of a block, in bytes.
const BLOCK_BYTES_MAX: u64 = BLOCK_RAW_MAX as u64 + (CODED_HEAD_LEN + BOX_OVERHEAD) as u64;

/// Returns the places, sorted by the head of their first entry, where an entry with this head may
/// be: those that begin with it, and the one before them.
pub(super) fn places<T>(places: &[T], head_of: impl Fn(&T) -> u64, head: u64) -> Range<usize> {
    let before = places.partition_point(|place| head_of(place) < head);
    let until = places.partition_point(|place| head_of(place) <= head);
    before.saturating_sub(1)..until
}

/// The fences of up to 1,024 adjacent blocks.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Fences {
    heads: Vec<u64>,
    /// Offset of each block from the first one, and the end of the last one, in bytes.
    offsets: Vec<u64>,
}

impl Fences {
    /// Returns the decoded form of the fences of blocks with these first heads and stored lengths.
    pub(super) fn encode(blocks: &[(u64, u32)]) -> Vec<u8> {
        let mut raw = (blocks.len() as u32).to_le_bytes().to_vec();
        raw.extend(blocks.iter().flat_map(|(head, _)| head.to_le_bytes()));
        raw.extend(blocks.iter().flat_map(|(_, length)| length.to_le_bytes()));
        raw
    }

    /// Parses the decoded form.
    ///
    /// # Errors
    /// [`RunDamage::Inconsistent`].
    pub fn decode(raw: &[u8]) -> Result<Self, RunDamage> {
        let mut rest = raw;
        let count = take_u32(&mut rest)? as usize;
        let heads = count
            .checked_mul(8)
            .and_then(|at| rest.split_at_checked(at));
        let (heads, rest) = heads.ok_or(super::SHORT)?;
        let lengths = count
            .checked_mul(4)
            .and_then(|at| rest.split_at_checked(at));
        let (lengths, rest) = lengths.ok_or(super::SHORT)?;
        require_end(rest)?;
        let (heads, _) = heads.as_chunks::<8>();
        let heads: Vec<u64> = heads.iter().map(|head| u64::from_le_bytes(*head)).collect();
        if !heads.is_sorted() {
            return Err(RunDamage::Inconsistent("the fences are not in order"));
        }
        let mut end = 0;
        let mut offsets = vec![end];
        let (lengths, _) = lengths.as_chunks::<4>();
        for length in lengths {
            let length = u64::from(u32::from_le_bytes(*length));
            if length > BLOCK_BYTES_MAX {
                return Err(RunDamage::Inconsistent("a block is too long"));
            }
            end += length;
            offsets.push(end);
        }
        Ok(Self { heads, offsets })
    }

    /// Returns the number of blocks.
    pub fn count(&self) -> usize {
        self.heads.len()
    }

    /// Returns the first 8 bytes of the first block's first prefix. None if there is no block.
    pub(super) fn first(&self) -> Option<u64> {
        self.heads.first().copied()
    }

    /// Returns the first 8 bytes of the first prefix of a block. None if there is no such block.
    pub fn head(&self, block: usize) -> Option<u64> {
        self.heads.get(block).copied()
    }

    /// Returns the stored length of all blocks together, in bytes.
    pub fn bytes(&self) -> u64 {
        self.offsets[self.heads.len()]
    }

    /// Returns the blocks that may hold a prefix, by their number among these: one, or more if a
    /// block begins with the same 8 bytes.
    pub fn blocks_of(&self, prefix: &Prefix) -> Range<usize> {
        places(&self.heads, |first| *first, prefix.head())
    }

    /// Returns the bytes of a block, from the start of the first one. None if there is no such
    /// block.
    pub fn range(&self, block: usize) -> Option<Range<u64>> {
        Some(*self.offsets.get(block)?..*self.offsets.get(block + 1)?)
    }
}
