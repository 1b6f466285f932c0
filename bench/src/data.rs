//! The data that is backed up: the same bytes in every run, from fixed seeds.
//!
//! Owns: content that compresses like real content. Does not own: databases (a real server makes
//! those).

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::Path;

use crate::Outcome;

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

    /// Returns the next number as a fraction from 0 inclusive to 1 exclusive.
    fn share(&mut self) -> f64 {
        (self.draw() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// How well content compresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Texture {
    /// Incompressible.
    Noise,
    /// Compresses to somewhat less than half, like rows of digits in the pages of a database.
    Pages,
}

/// Length of a page, in bytes.
const PAGE: usize = 16 * 1024;

/// Appends `length` bytes to `bytes`; for [`Texture::Pages`] `length` is a multiple of a page.
pub fn fill(texture: Texture, length: usize, numbers: &mut Numbers, bytes: &mut Vec<u8>) {
    let end = bytes.len() + length;
    while bytes.len() < end {
        match texture {
            Texture::Noise => bytes.extend_from_slice(&numbers.draw().to_le_bytes()),
            Texture::Pages => page(numbers, bytes),
        }
    }
    bytes.truncate(end);
}

fn page(numbers: &mut Numbers, bytes: &mut Vec<u8>) {
    let start = bytes.len();
    bytes.extend_from_slice(&numbers.draw().to_le_bytes());
    bytes.resize(start + 120, 0);
    while bytes.len() < start + 15_000 {
        bytes.extend_from_slice(&[60, 120, 0, 0, 16, 0x80, 0, 9, 1, 0x82]);
        bytes.extend_from_slice(&(numbers.draw() as u32 >> 8).to_be_bytes());
        for _ in 0..15 {
            let mut number = numbers.draw();
            let mut digits = [b'-'; 12];
            for digit in &mut digits[..11] {
                *digit = b'0' + (number % 10) as u8;
                number /= 10;
            }
            bytes.extend_from_slice(&digits);
        }
    }
    bytes.resize(start + PAGE, 0);
}

/// Makes a file of `length` bytes, unless a file of that length exists.
///
/// # Errors
/// The I/O error of making or writing the file.
pub fn stream(path: &Path, texture: Texture, length: u64, seed: u64) -> Outcome<()> {
    if fs::metadata(path).is_ok_and(|there| there.len() == length) {
        return Ok(());
    }
    let mut file = File::create(path)?;
    let mut numbers = Numbers(seed);
    let mut buffer = Vec::new();
    let mut left = length;
    while left > 0 {
        buffer.clear();
        fill(texture, 1 << 20, &mut numbers, &mut buffer);
        buffer.truncate(left.min(1 << 20) as usize);
        file.write_all(&buffer)?;
        left -= buffer.len() as u64;
    }
    file.sync_all()?;
    Ok(())
}

/// Makes `count` files of 128 bytes to 128 KiB (median 4 KiB), in directories of 250 below `root`.
/// Returns the sum of their lengths, in bytes.
///
/// # Errors
/// The I/O error of making or writing a file or directory.
pub fn small_files(root: &Path, count: usize, seed: u64) -> Outcome<u64> {
    let mut numbers = Numbers(seed);
    let mut total = 0;
    let mut buffer = Vec::new();
    for number in 0..count {
        let directory = root.join(format!("part-{:04}", number / 250));
        if number % 250 == 0 {
            fs::create_dir_all(&directory)?;
        }
        let spread: f64 = (0..4).map(|_| numbers.share()).sum::<f64>() - 2.0;
        let length = (4096.0 * (spread * 2.5).exp2()) as usize;
        let texture = match number % 4 {
            0 => Texture::Noise,
            _ => Texture::Pages,
        };
        buffer.clear();
        fill(texture, length, &mut numbers, &mut buffer);
        let mut file = BufWriter::new(File::create(
            directory.join(format!("file-{number:06}.dat")),
        )?);
        file.write_all(&buffer)?;
        file.flush()?;
        total += length as u64;
    }
    Ok(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_makes_the_same_bytes() {
        let make = |texture, seed| {
            let mut bytes = Vec::new();
            fill(texture, 100_000, &mut Numbers(seed), &mut bytes);
            bytes
        };
        for texture in [Texture::Noise, Texture::Pages] {
            assert_eq!(make(texture, 1), make(texture, 1));
            assert_ne!(make(texture, 1), make(texture, 2));
            assert_eq!(make(texture, 1).len(), 100_000);
        }
        let shrunk = |texture| {
            let bytes = make(texture, 1);
            zstd::bulk::compress(&bytes, 1).map_or(0, |coded| coded.len() * 100 / bytes.len())
        };
        assert!(shrunk(Texture::Noise) >= 99);
        assert!(
            (35..60).contains(&shrunk(Texture::Pages)),
            "{}",
            shrunk(Texture::Pages)
        );
    }

    #[test]
    fn small_files_are_small_and_many() {
        let directory = tempfile::tempdir().unwrap();
        let total = small_files(directory.path(), 600, 1).unwrap();
        let parts: Vec<_> = fs::read_dir(directory.path()).unwrap().collect();
        assert_eq!(parts.len(), 3);
        assert!((600 * 3000..600 * 12_000).contains(&total), "{total}");
    }
}
