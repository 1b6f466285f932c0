//! The lower bound of the processor time: compression alone, on one thread.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use crate::Outcome;
use crate::measure::thread_s;

/// Bytes that are compressed at a time.
const BLOCK: usize = 128 * 1024;

/// Compresses every file below `root` by zstd -1, in blocks of 128 KiB. Returns the processor
/// seconds, without those for reading, and the sum of the compressed bytes.
///
/// # Errors
/// The I/O error of reading a file or directory, or an error of zstd.
pub fn zstd(root: &Path) -> Outcome<(f64, u64)> {
    let mut context = zstd::bulk::Compressor::new(1)?;
    let mut coded = vec![0; zstd::zstd_safe::compress_bound(BLOCK)];
    let mut sum = (0.0, 0);
    walk(root, &mut context, &mut coded, &mut sum)?;
    Ok(sum)
}

fn walk(
    path: &Path,
    context: &mut zstd::bulk::Compressor<'_>,
    coded: &mut [u8],
    sum: &mut (f64, u64),
) -> Outcome<()> {
    if path.is_dir() {
        for entry in fs::read_dir(path)? {
            walk(&entry?.path(), context, coded, sum)?;
        }
        return Ok(());
    }
    let mut file = File::open(path)?;
    let mut block = vec![0; 64 * BLOCK];
    loop {
        let mut length = 0;
        while length < block.len() {
            match file.read(&mut block[length..])? {
                0 => break,
                more => length += more,
            }
        }
        if length == 0 {
            return Ok(());
        }
        let began = thread_s();
        for part in block[..length].chunks(BLOCK) {
            sum.1 += context.compress_to_buffer(part, coded)? as u64;
        }
        sum.0 += thread_s() - began;
    }
}
