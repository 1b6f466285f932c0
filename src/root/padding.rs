//! Lengths of journals and heartbeats: only few are possible, so that the length of an object
//! reveals little of its contents.
//!
//! Owns the classes of lengths, and the field that fills an entry up to one. They are the classes
//! of Padmé (Nikitin and others, "Reducing Metadata Leakage from Encrypted Files and Communication
//! with PURBs", 2019). A length keeps as many leading bits as its exponent has bits. So it grows by
//! at most 12 %, and reveals O(log log) bits of the original length.

use bkfs_chunker::crypto::{BOX_OVERHEAD, HEADER_LEN};

/// The smallest length of such an object in the bucket, in bytes. It hides the difference between
/// journals with names and attributes of a few files, or a few hundred bytes of contents. Every
/// heartbeat is shorter.
pub const LENGTH_MIN: usize = 1024;

/// Bytes that sealing adds to an entry.
const SEAL: usize = HEADER_LEN + BOX_OVERHEAD;

/// The key of the field (7), and the head of a CBOR byte string with a length of four bytes.
const HEAD: [u8; 2] = [7, 0x5a];

/// The length of the field without any zeroes, in bytes.
const FIELD: usize = HEAD.len() + 4;

/// Returns the smallest length of a class that is at least `length`, in bytes.
pub fn class(length: usize) -> usize {
    let length = length.max(LENGTH_MIN);
    let exponent = length.ilog2();
    let kept = exponent.ilog2() + 1;
    let rest = (1 << (exponent - kept)) - 1;
    (length + rest) & !rest
}

/// Returns the entry with the field of zeroes that brings its sealed object to the length of a
/// class. The entry is a map of fewer than 23 fields.
pub(super) fn padded(mut entry: Vec<u8>) -> Vec<u8> {
    let length = entry.len() + SEAL;
    let wanted = match class(length) {
        wanted if wanted == length => return entry,
        wanted if wanted - length < FIELD => class(length + FIELD),
        wanted => wanted,
    };
    let zeroes = wanted - length - FIELD;
    entry[0] += 1;
    entry.reserve(FIELD + zeroes);
    entry.extend(HEAD);
    entry.extend((zeroes as u32).to_be_bytes());
    entry.resize(wanted - SEAL, 0);
    entry
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root::journal::JournalEntry;
    use bkfs_chunker::ingest::Delivered;
    use proptest::prelude::*;

    /// An entry as a program reads it that does not know the field.
    #[derive(Debug, PartialEq, minicbor::Decode)]
    #[cbor(map)]
    struct Before {
        #[n(0)]
        first: u64,
        #[n(1)]
        last: u64,
        #[cbor(n(5), with = "minicbor::bytes")]
        operations: Vec<u8>,
    }

    fn entry(length: usize) -> JournalEntry {
        JournalEntry::new(3..=4, Delivered::default(), vec![9; length])
    }

    #[test]
    fn classes_are_those_of_padme() {
        assert_eq!([0, 1, 1023, 1024].map(class), [1024; 4]);
        // A length of 2^n keeps as many leading bits as n has.
        assert_eq!([1025, 1088, 1089].map(class), [1088, 1088, 1152]);
        assert_eq!([4097, 1_000_001].map(class), [4352, 1_015_808]);
        assert_eq!([(256 << 20) - 1, 256 << 20].map(class), [256 << 20; 2]);
        let mut classes: Vec<usize> = (1024..1 << 20).map(class).collect();
        classes.dedup();
        assert!(classes.len() < 256, "{}", classes.len());
    }

    proptest! {
        #[test]
        fn a_class_is_no_shorter_and_hardly_longer(length in 0_usize..1 << 28) {
            let class = class(length);
            prop_assert!(class >= length);
            prop_assert!(class == LENGTH_MIN || class * 100 <= length * 112, "{class}");
            prop_assert_eq!(super::class(class), class);
        }

        #[test]
        fn the_length_of_an_object_is_a_class_whatever_it_holds(length in 0_usize..300_000) {
            let entry = entry(length);
            let plain = entry.encode();
            let padded = entry.encode_padded();
            let object = padded.len() + SEAL;
            prop_assert_eq!(class(object), object);
            prop_assert!(object <= class(plain.len() + SEAL + FIELD));
            prop_assert_eq!(JournalEntry::decode(&padded), Ok(entry));
        }
    }

    #[test]
    fn every_length_near_a_class_is_padded_to_one() {
        let head = entry(2000).encode().len() - 2000 + SEAL;
        for length in (1024_usize - 40..1024 + 140).chain(4352 - 20..4352 + 20) {
            let entry = entry(length.saturating_sub(head));
            let padded = entry.encode_padded();
            let object = padded.len() + SEAL;
            assert_eq!(class(object), object, "{length}");
            assert_eq!(JournalEntry::decode(&padded).as_ref(), Ok(&entry));
            assert_eq!(entry.encode_padded(), padded, "the same every time");
        }
    }

    #[test]
    fn readers_of_before_pass_over_the_field() {
        let before: Before = minicbor::decode(&entry(50).encode_padded()).expect("reads");
        let expected = Before {
            first: 3,
            last: 4,
            operations: vec![9; 50],
        };
        assert_eq!(before, expected);
    }
}
