//! Which places a replay has asked for.
//!
//! Owns a bit for each place. What a replay may ask for is bounded, and so is the table. Pure.

use std::collections::HashMap;

use crate::trace::recorder::places;

/// Places in one entry of the table.
const BLOCK_PLACES: u32 = 512;

/// Places that a replay has asked for.
#[derive(Debug, Default)]
pub struct Coverage(HashMap<(u64, u32), [u64; 8]>);

impl Coverage {
    /// Adds the places that lie in a range of an inode.
    pub fn add(&mut self, inode: u64, offset: u64, length: u64) {
        for place in places(offset, length).unwrap_or_default() {
            let bits = self.0.entry((inode, place / BLOCK_PLACES)).or_default();
            let at = place % BLOCK_PLACES;
            bits[(at / 64) as usize] |= 1 << (at % 64);
        }
    }

    /// Returns true if a place was added.
    pub fn has(&self, inode: u64, place: u32) -> bool {
        let at = place % BLOCK_PLACES;
        let bits = self.0.get(&(inode, place / BLOCK_PLACES));
        bits.is_some_and(|bits| bits[(at / 64) as usize] & (1 << (at % 64)) != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::recorder::PLACE_BYTES;

    #[test]
    fn what_was_added_is_there_and_nothing_else() {
        let mut coverage = Coverage::default();
        coverage.add(7, 511 * PLACE_BYTES, 2 * PLACE_BYTES);
        coverage.add(7, 70 * PLACE_BYTES + 1, 1);
        coverage.add(7, 0, 0);
        let found: Vec<u32> = (0..2000).filter(|place| coverage.has(7, *place)).collect();
        assert_eq!(found, [70, 511, 512]);
        assert!(!coverage.has(8, 70));
    }
}
