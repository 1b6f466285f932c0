//! Blocks of a table, each with a checksum of its own.
//!
//! Owns the length of a block and its checksum: the last 16 bytes of a block, BLAKE3 over the block
//! with zeros in their place, under a key that belongs to the repository, the index object, the
//! version of tables and the number of the block. So bytes of another table or of another place in
//! the same table do not verify, and neither do changed ones.

use super::PackName;
use crate::crypto::Keyring;
use std::fmt;

/// Version of the form of tables.
pub(super) const VERSION: u32 = 3;
/// Length of a block, in bytes: that of a page of most processors, so that a block is read from one
/// page.
pub const BLOCK_LEN: usize = 4096;
const CHECKSUM_LEN: usize = 16;
/// Length of what a block holds, in bytes.
pub(super) const PAYLOAD_LEN: usize = BLOCK_LEN - CHECKSUM_LEN;

/// The key of the checksums of one table.
#[derive(Clone, Eq, PartialEq)]
pub struct TableKey([u8; 32]);

impl TableKey {
    /// Returns the key for the table of an index object under the keys of a repository.
    pub fn new(keyring: &Keyring, name: PackName) -> Self {
        Self(*keyring.table_key(VERSION, &name.to_bytes()))
    }

    /// Writes the checksum of a block, or of several adjacent ones that are verified together, into
    /// its last bytes. `number` is that of the first block.
    pub(super) fn seal(&self, number: u64, block: &mut [u8]) {
        let checksum = self.checksum(number, block);
        if let Some(place) = block.last_chunk_mut() {
            *place = checksum;
        }
    }

    /// Returns true if a block bears its checksum, which is overwritten.
    pub(super) fn verify(&self, number: u64, block: &mut [u8]) -> bool {
        let stated = block.last_chunk().copied();
        stated == Some(self.checksum(number, block))
    }

    /// Returns the checksum of a block, whose last bytes become zeros.
    ///
    /// They are hashed with the others, because BLAKE3 processes 1,024 bytes at a time, and a whole
    /// multiple of them in parallel.
    fn checksum(&self, number: u64, block: &mut [u8]) -> [u8; CHECKSUM_LEN] {
        if let Some(place) = block.last_chunk_mut::<CHECKSUM_LEN>() {
            *place = [0; CHECKSUM_LEN];
        }
        // The number is part of the key, so that the block is hashed in one piece.
        let mut key = self.0;
        for (byte, number) in key.iter_mut().zip(number.to_le_bytes()) {
            *byte ^= number;
        }
        let mut checksum = [0; CHECKSUM_LEN];
        checksum.copy_from_slice(&blake3::keyed_hash(&key, block).as_bytes()[..CHECKSUM_LEN]);
        checksum
    }
}

impl From<[u8; 32]> for TableKey {
    fn from(key: [u8; 32]) -> Self {
        Self(key)
    }
}

impl fmt::Debug for TableKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("TableKey").finish_non_exhaustive()
    }
}
