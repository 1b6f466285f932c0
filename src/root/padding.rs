//! Lengths of journals: few are possible, so that the length of an object tells little of what was
//! written.
//!
//! Owns the classes of lengths, and the field that fills an entry up to one. They are those of Padmé
//! (Nikitin and others, "Reducing Metadata Leakage from Encrypted Files and Communication with
//! PURBs", 2019): a length keeps as many leading bits as its exponent has, so it grows by 12 % at
//! most and tells O(log log) bits of what it was.

use bkfs_chunker::seal::{BOX_OVERHEAD, HEADER_LEN};

/// The least length of a journal in the bucket, in bytes. Names and attributes of a few files, and a
/// few hundred bytes of contents, look the same.
pub const LENGTH_MIN: usize = 1024;

/// What seals an entry, in bytes.
const SEAL: usize = HEADER_LEN + BOX_OVERHEAD;

/// The key of the field, and the head of a string of bytes whose length takes four more.
const HEAD: [u8; 2] = [7, 0x5a];

/// The field without any zeroes, in bytes.
const FIELD: usize = HEAD.len() + 4;

/// The least length of a class that is no shorter than this, in bytes.
pub fn class(length: usize) -> usize {
    let length = length.max(LENGTH_MIN);
    let exponent = length.ilog2();
    let kept = exponent.ilog2() + 1;
    let rest = (1 << (exponent - kept)) - 1;
    (length + rest) & !rest
}

/// The entry, which is a map of less than 23 fields, with the field of zeroes that brings its sealed
/// object to the length of a class.
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

    /// An entry as a program read it that knew nothing of the field.
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
        // A length of 2^n takes n's length of leading bits.
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
