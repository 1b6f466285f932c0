//! Filters by level: a filter of level *j* has the prefixes with exactly *j* low zero bits.
//!
//! Owns the bytes of a filter: seed u64, segment length u32, segment length minus one u32, length of
//! all segments but two u32, then fingerprints of 16 bits. All numbers are little-endian.
//!
//! A reader with little memory reads only the filters from one level on: half of the prefixes are of
//! level 0, a quarter of level 1. A filter takes about 18 bits for each prefix, and is wrong about
//! one in 65,536 absent ones (Graf and Lemire, "Binary Fuse Filters", 2022).

use crate::fuse_descriptor::{self, DESCRIPTOR_LEN};
use crate::id::Prefix;
use xorf::{BinaryFuse16, DmaSerializable, Filter as _};

/// The last level. It has all prefixes with at least as many zero bits.
pub(super) const LEVEL_MAX: u8 = 16;

/// A filter of one level. None lets every prefix through.
#[derive(Clone, Debug)]
pub struct LevelFilter(Option<BinaryFuse16>);

impl LevelFilter {
    /// Returns the level of a prefix: the number of low zero bits of its last bytes, at most 16.
    pub fn level_of(prefix: &Prefix) -> u8 {
        let [.., a, b] = prefix.0;
        let zeroes = u16::from_be_bytes([a, b]).trailing_zeros() as u8;
        zeroes.min(LEVEL_MAX)
    }

    /// Returns the bytes of the filter of these prefixes. Empty if no filter can be built.
    pub fn encode(prefixes: impl Iterator<Item = Prefix>) -> Vec<u8> {
        let mut keys: Vec<u64> = prefixes.map(|prefix| prefix.head()).collect();
        keys.sort_unstable();
        keys.dedup();
        let Ok(filter) = BinaryFuse16::try_from(keys) else {
            return Vec::new();
        };
        let mut bytes = vec![0; DESCRIPTOR_LEN];
        filter.dma_copy_descriptor_to(&mut bytes);
        bytes.extend_from_slice(filter.dma_fingerprints());
        bytes
    }

    /// Copies a filter into memory. Empty bytes let every prefix through. None if a query of these
    /// bytes could read out of bounds.
    pub fn open(bytes: &[u8]) -> Option<Self> {
        if bytes.is_empty() {
            return Some(Self(None));
        }
        let (descriptor, fingerprints) = fuse_descriptor::split(bytes, 2)?;
        let (fingerprints, _) = fingerprints.as_chunks::<2>();
        let fingerprints = fingerprints.iter().map(|two| u16::from_le_bytes(*two));
        Some(Self(Some(BinaryFuse16 {
            descriptor,
            fingerprints: fingerprints.collect(),
        })))
    }

    /// Returns true if the prefix, of this filter's level, may be in the run. False means that it is
    /// not.
    pub fn lets_through(&self, prefix: &Prefix) -> bool {
        (self.0.as_ref()).is_none_or(|filter| filter.contains(&prefix.head()))
    }
}
