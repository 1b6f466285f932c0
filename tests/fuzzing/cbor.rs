//! The items of CBOR in an input, as far as it is CBOR.
//!
//! This module owns the search for items, and the heads that a mutation writes. It decodes nothing.

use std::ops::Range;

/// An item: where it begins and ends, and where its head ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// All bytes of the item, those of the items in it included.
    pub whole: Range<usize>,
    /// The end of its head: type and number.
    pub head_end: usize,
    /// The major type, from 0 to 7.
    pub major: u8,
}

/// The most items that are found in one input.
const ITEMS_MAX: usize = 4096;

/// The deepest nesting that is followed.
const DEPTH_MAX: usize = 32;

/// Returns the items of the one item that begins at `start`, in the order of their ends; none if
/// the bytes there are not a whole item.
pub fn items(bytes: &[u8], start: usize) -> Vec<Item> {
    let mut found = Vec::new();
    match walk(bytes, start, DEPTH_MAX, &mut found) {
        Some(_) => found,
        None => Vec::new(),
    }
}

fn walk(bytes: &[u8], start: usize, depth: usize, found: &mut Vec<Item>) -> Option<usize> {
    let first = *bytes.get(start)?;
    let (major, info) = (first >> 5, first & 0x1f);
    let (number, head_end) = match info {
        0..=23 => (u64::from(info), start + 1),
        24..=27 => {
            let length = 1 << (info - 24);
            let field = bytes.get(start + 1..start + 1 + length)?;
            let number = field
                .iter()
                .fold(0, |number, byte| number << 8 | u64::from(*byte));
            (number, start + 1 + length)
        }
        _ => return None,
    };
    let inside = match major {
        4 => number,
        5 => number.checked_mul(2)?,
        6 => 1,
        _ => 0,
    };
    let mut end = match major {
        2 | 3 => head_end.checked_add(usize::try_from(number).ok()?)?,
        _ => head_end,
    };
    if end > bytes.len() || depth == 0 || found.len() >= ITEMS_MAX {
        return None;
    }
    for _ in 0..inside {
        end = walk(bytes, end, depth - 1, found)?;
    }
    found.push(Item {
        whole: start..end,
        head_end,
        major,
    });
    Some(end)
}

/// Returns the head of an item of this major type with this number, in its shortest form.
pub fn head(major: u8, number: u64) -> Vec<u8> {
    let bytes = number.to_be_bytes();
    let (info, length) = match number {
        0..=23 => return vec![major << 5 | number as u8],
        24..=0xff => (24, 1),
        0x100..=0xffff => (25, 2),
        0x1_0000..=0xffff_ffff => (26, 4),
        _ => (27, 8),
    };
    let mut head = vec![major << 5 | info];
    head.extend_from_slice(&bytes[8 - length..]);
    head
}

#[test]
fn items_are_found_with_what_is_in_them() {
    // {0: [1, h'0203'], 1: 500}
    let bytes = [0xa2, 0x00, 0x82, 0x01, 0x42, 2, 3, 0x01, 0x19, 0x01, 0xf4];
    let found = items(&bytes, 0);
    let ranges: Vec<_> = found.iter().map(|item| item.whole.clone()).collect();
    assert_eq!(ranges, [1..2, 3..4, 4..7, 2..7, 7..8, 8..11, 0..11]);
    assert_eq!((found[3].major, found[3].head_end), (4, 3));
    assert_eq!(items(&bytes[..10], 0), []);
    for number in [0, 23, 24, 255, 256, 65_536, u64::MAX] {
        let written = head(0, number);
        assert_eq!(items(&written, 0)[0].head_end, written.len());
    }
}
