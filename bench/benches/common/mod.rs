//! Data and keys for the benchmarks of single stages.
//!
//! Owns: content that compresses like real content, and is the same in every run.

#![allow(dead_code, reason = "each benchmark uses a part")]

use bkfs_chunker::crypto::{Keyring, RepositoryId, Secrets};

/// The repository id of all benchmarks.
const REPOSITORY: RepositoryId = RepositoryId([7; 16]);

/// Returns a keyring, sealed or not.
pub fn keyring(sealed: bool) -> Keyring {
    let secrets = Secrets::new([1; 32], [2; 32], [3; 32]);
    match sealed {
        true => Keyring::sealed(REPOSITORY, secrets),
        false => Keyring::unsealed(REPOSITORY, secrets),
    }
}

/// Pseudo-random numbers, the same in every run (splitmix64).
pub struct Numbers(pub u64);

impl Numbers {
    /// Returns the next number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut number = self.0;
        number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        number ^ (number >> 31)
    }
}

/// Returns bytes that cannot be compressed.
pub fn noise(length: usize) -> Vec<u8> {
    let mut numbers = Numbers(1);
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        bytes.extend_from_slice(&numbers.draw().to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// Returns pages of 16 KiB like those of a database: rows of digits in groups (as sysbench writes
/// them) after small binary heads. About 8 % of each page is free. zstd at level 1 shrinks them to
/// about 0.45.
pub fn pages(length: usize) -> Vec<u8> {
    let mut numbers = Numbers(2);
    let mut bytes = Vec::with_capacity(length + 16_384);
    let mut row = 0u32;
    while bytes.len() < length {
        let start = bytes.len();
        bytes.extend_from_slice(&numbers.draw().to_le_bytes()[..4]);
        bytes.extend_from_slice(&((start / 16_384) as u32).to_be_bytes());
        bytes.resize(start + 120, 0);
        while bytes.len() < start + 15_000 {
            row += 1;
            bytes.extend_from_slice(&[60, 120, 0, 0, 16]);
            bytes.extend_from_slice(&((row >> 3) as u16).to_be_bytes());
            bytes.extend_from_slice(&(0x8000_0000 | row).to_be_bytes());
            bytes.extend_from_slice(&[0, 0, 0, 0, 9, 1, 0x82, 0, 0, 1, 0x10]);
            bytes.extend_from_slice(&(0x8000_0000 | (numbers.draw() as u32 >> 8)).to_be_bytes());
            for _ in 0..15 {
                let digits = numbers.draw() % 100_000_000_000;
                bytes.extend_from_slice(format!("{digits:011}-").as_bytes());
            }
        }
        bytes.resize(start + 16_384, 0);
    }
    bytes.truncate(length);
    bytes
}
