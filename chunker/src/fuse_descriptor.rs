//! The descriptor of a binary fuse filter, as local tables and runs store it before the
//! fingerprints: seed u64, segment length u32, segment length minus one u32, length of all segments
//! but two u32, little-endian.
//!
//! Owns the check that no query of a filter reads out of bounds. Pure.

use xorf::{BinaryFuse8, Descriptor, DmaSerializable};

/// Length of a descriptor in bytes.
pub(crate) const DESCRIPTOR_LEN: usize = BinaryFuse8::DESCRIPTOR_LEN;

/// Returns the descriptor of a filter, and the bytes of its fingerprints of `bytes_each`. None if a
/// query could read out of bounds.
pub(crate) fn split(bytes: &[u8], bytes_each: usize) -> Option<(Descriptor, &[u8])> {
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
    let is_whole = fingerprints.len().is_multiple_of(bytes_each);
    let is_within = is_whole && is_within(&descriptor, fingerprints.len() / bytes_each);
    is_within.then_some((descriptor, fingerprints))
}

/// Returns true if every query reads existing fingerprints: one at a position in the first
/// segments, and one in each of the two segments after that position's segment.
fn is_within(descriptor: &Descriptor, fingerprints: usize) -> bool {
    let segment = u64::from(descriptor.segment_length);
    let first = u64::from(descriptor.segment_count_length);
    segment.is_power_of_two()
        && first > 0
        && u64::from(descriptor.segment_length_mask) == segment - 1
        && first.is_multiple_of(segment)
        && first + 2 * segment == fingerprints as u64
        && u32::try_from(fingerprints).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes of a filter with these segments, and of its fingerprints.
    fn filter(segment: u32, all_but_two: u32, fingerprints: usize) -> Vec<u8> {
        let mut bytes = vec![0; 8];
        for length in [segment, segment.wrapping_sub(1), all_but_two] {
            bytes.extend_from_slice(&length.to_le_bytes());
        }
        bytes.resize(bytes.len() + fingerprints, 0);
        bytes
    }

    #[test]
    fn a_filter_has_a_segment_before_the_last_two() {
        assert!(split(&filter(4, 4, 12), 1).is_some());
        // The third position of a query would lie behind the end.
        assert!(split(&filter(4, 0, 8), 1).is_none());
        assert!(split(&filter(0, 0, 0), 1).is_none());
    }
}
