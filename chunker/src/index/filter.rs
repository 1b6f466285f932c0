//! A filter over a table's prefixes: it answers for most absent blobs without a look-up in the
//! table.
//!
//! Owns the bytes of a filter: seed u64, segment length u32, segment length minus one u32, length
//! of all segments but two u32, fingerprints. All numbers are little-endian.
//!
//! The filter is a binary fuse filter with fingerprints of 8 bits. It takes about 9 bits for each
//! prefix. It is wrong about one in 256 absent prefixes (Graf and Lemire, "Binary Fuse Filters:
//! Fast and Smaller Than Xor Filters", 2022), and never about a present one.

use xorf::{BinaryFuse8, DmaSerializable, Filter as _};

use crate::fuse_descriptor::{self, DESCRIPTOR_LEN};
use crate::id::Prefix;

/// A filter in memory. `None` is no filter, which lets every prefix through.
#[derive(Clone, Debug)]
pub(super) struct Filter(Option<BinaryFuse8>);

impl Filter {
    /// Returns the bytes of the filter of these prefixes, which must be in ascending order. Empty
    /// if the filter cannot be built.
    pub(super) fn bytes_of(prefixes: impl Iterator<Item = Prefix>) -> Vec<u8> {
        let mut keys: Vec<u64> = prefixes.map(|prefix| prefix.head()).collect();
        // A blob may be in several packs, but a filter must have each key once.
        keys.dedup();
        let Ok(filter) = BinaryFuse8::try_from(keys) else {
            return Vec::new();
        };
        let mut bytes = vec![0; DESCRIPTOR_LEN];
        filter.dma_copy_descriptor_to(&mut bytes);
        bytes.extend_from_slice(filter.dma_fingerprints());
        bytes
    }

    /// Copies a filter into memory. Empty bytes are no filter. `None` if a query of these bytes
    /// could read out of bounds.
    pub(super) fn open(bytes: &[u8]) -> Option<Self> {
        if bytes.is_empty() {
            return Some(Self(None));
        }
        let (descriptor, fingerprints) = fuse_descriptor::split(bytes, 1)?;
        Some(Self(Some(BinaryFuse8 {
            descriptor,
            fingerprints: fingerprints.into(),
        })))
    }

    /// Returns true if the prefix may be in the table. False means that it is not.
    pub(super) fn lets_through(&self, prefix: &Prefix) -> bool {
        (self.0.as_ref()).is_none_or(|filter| filter.contains(&prefix.head()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefix(number: u64) -> Prefix {
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&blake3::hash(&number.to_le_bytes()).as_bytes()[..16]);
        Prefix(bytes)
    }

    fn filter(count: u64) -> Vec<u8> {
        let mut prefixes: Vec<Prefix> = (0..count).map(prefix).collect();
        prefixes.sort();
        Filter::bytes_of(prefixes.into_iter())
    }

    #[test]
    fn filters_of_any_size_let_through_what_is_there_and_little_else() {
        for count in (0..200).chain([1_000, 65_536, 300_000]) {
            let bytes = filter(count);
            let filter = Filter::open(&bytes).unwrap();
            assert!(!bytes.is_empty(), "{count} prefixes have no filter");
            for number in 0..count {
                assert!(filter.lets_through(&prefix(number)), "{number} of {count}");
            }
            let strangers =
                (count..count + 10_000).filter(|&number| filter.lets_through(&prefix(number)));
            // The expected rate is one in 256; the chance of twice that rate is negligible. A
            // filter of no prefixes may let everything through.
            assert!(strangers.count() < 80 || count == 0, "{count} prefixes");
        }
        let bits = filter(300_000).len() as f64 * 8.0 / 300_000.0;
        assert!(bits < 9.5, "{bits} bits for each prefix");
    }

    #[test]
    fn prefixes_that_begin_alike_share_a_key() {
        let alike: Vec<Prefix> = (0..10u8)
            .map(|last| Prefix([[7; 15].as_slice(), &[last]].concat().try_into().unwrap()))
            .collect();
        let bytes = Filter::bytes_of(alike.iter().copied());
        let filter = Filter::open(&bytes).unwrap();
        assert!(!bytes.is_empty() && alike.iter().all(|prefix| filter.lets_through(prefix)));
    }

    #[test]
    fn a_filter_that_leads_out_of_bounds_is_refused() {
        let whole = filter(1_000);
        assert!(Filter::open(&whole).is_some());
        for length in 1..whole.len() {
            assert!(Filter::open(&whole[..length]).is_none(), "{length} bytes");
        }
        for bit in 64..DESCRIPTOR_LEN * 8 {
            let mut changed = whole.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(Filter::open(&changed).is_none(), "bit {bit}");
        }
        assert!(Filter::open(&[0; DESCRIPTOR_LEN]).is_none());
    }
}
