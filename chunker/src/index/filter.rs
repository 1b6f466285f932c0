//! A filter of a table's prefixes: says of most blobs that are not there that they are not, without a look into the table.
//!
//! Owns the bytes of a filter: seed u64, length of a segment u32, that less one u32, length of all segments but two u32, fingerprints. All numbers are
//! little-endian.
//!
//! A binary fuse filter with fingerprints of 8 bits takes some 9 bits for each prefix and is wrong about one in 256 that are not there (Graf and Lemire,
//! "Binary Fuse Filters: Fast and Smaller Than Xor Filters", 2022). About one that is there it is never wrong.

use xorf::{BinaryFuse8, Descriptor, DmaSerializable, Filter as _};

use crate::id::Prefix;

/// What stands before the fingerprints.
const DESCRIPTOR_LEN: usize = BinaryFuse8::DESCRIPTOR_LEN;

/// A filter in memory, or none, which lets everything through.
#[derive(Clone, Debug)]
pub(super) struct Filter(Option<BinaryFuse8>);

impl Filter {
    /// The bytes of the filter of these prefixes, which are in order; none if it cannot be made.
    pub(super) fn bytes_of(prefixes: impl Iterator<Item = Prefix>) -> Vec<u8> {
        let mut keys: Vec<u64> = prefixes.map(|prefix| key(&prefix)).collect();
        // A blob may be in several packs, and a filter has each key once.
        keys.dedup();
        let Ok(filter) = BinaryFuse8::try_from(keys) else {
            return Vec::new();
        };
        let mut bytes = vec![0; DESCRIPTOR_LEN];
        filter.dma_copy_descriptor_to(&mut bytes);
        bytes.extend_from_slice(filter.dma_fingerprints());
        bytes
    }

    /// Copies a filter into memory. Nothing if the bytes are none that a question can be asked.
    pub(super) fn open(bytes: &[u8]) -> Option<Self> {
        if bytes.is_empty() {
            return Some(Self(None));
        }
        let (descriptor, fingerprints) = bytes.split_first_chunk::<DESCRIPTOR_LEN>()?;
        let (seed, lengths) = descriptor.split_first_chunk()?;
        let (lengths, _) = lengths.as_chunks();
        let [segment, mask, all_but_two] = *lengths else {
            return None;
        };
        let descriptor = Descriptor {
            seed: u64::from_le_bytes(*seed),
            segment_length: u32::from_le_bytes(segment),
            segment_length_mask: u32::from_le_bytes(mask),
            segment_count_length: u32::from_le_bytes(all_but_two),
        };
        is_within(&descriptor, fingerprints.len()).then(|| {
            Self(Some(BinaryFuse8 {
                descriptor,
                fingerprints: fingerprints.into(),
            }))
        })
    }

    /// Whether the prefix may be in the table. It is not if the answer is no.
    pub(super) fn lets_through(&self, prefix: &Prefix) -> bool {
        (self.0.as_ref()).is_none_or(|filter| filter.contains(&key(prefix)))
    }
}

/// Whether every question leads to fingerprints that are there: a position in the first segments, and one in each of the two that follow its own.
fn is_within(descriptor: &Descriptor, fingerprints: usize) -> bool {
    let segment = u64::from(descriptor.segment_length);
    let first = u64::from(descriptor.segment_count_length);
    segment.is_power_of_two()
        && u64::from(descriptor.segment_length_mask) == segment - 1
        && first.is_multiple_of(segment)
        && first + 2 * segment == fingerprints as u64
        && u32::try_from(fingerprints).is_ok()
}

/// The leading bytes: in the order of prefixes, so that equal ones are side by side.
fn key(prefix: &Prefix) -> u64 {
    let (head, _) = prefix.0.split_first_chunk().expect("a prefix is longer");
    u64::from_be_bytes(*head)
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
            // One in 256; the chance of twice as many is nil. Of nothing, everything is a stranger.
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
