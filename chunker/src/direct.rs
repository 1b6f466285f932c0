//! Writing past the page cache (O_DIRECT), through buffers that are kept.
//!
//! Owns the buffers, and the rules by which blocks are written. Which files are worth it is the caller's to know: a large file that nobody will read soon
//! neither pushes a database out of the cache then, nor has the kernel find fresh pages for it. Measured on ext4, 16 MiB objects, eight at once, flushed:
//! 1.9 GB/s against 1.0.

use std::os::fd::AsFd;

use bytes::Bytes;
use memmap2::MmapMut;
use parking_lot::Mutex;
use rustix::io::{Errno, pwrite};

/// The size of a buffer, in bytes. Less than this is not worth going past the page cache.
pub const DIRECT_BYTES_MIN: usize = 1 << 20;

/// What offsets, lengths and addresses of direct writes are multiples of, in bytes: no usual device has larger blocks.
pub const BLOCK_BYTES: usize = 4096;

/// How many buffers are kept. More writers at once make their own.
const KEPT_MAX: usize = 16;

/// Buffers for direct writes, aligned to pages.
#[derive(Debug, Default)]
pub struct DirectBuffers {
    kept: Mutex<Vec<MmapMut>>,
}

impl DirectBuffers {
    /// Writes `body` to a file that was opened with O_DIRECT, from `offset` on, which begins a block. The last block is filled up with zeros.
    ///
    /// # Errors
    /// The system's. `EINVAL` if this filesystem, or its device, wants other alignments; some of the body may have been written.
    pub fn write_at(&self, file: impl AsFd, offset: u64, body: &[Bytes]) -> Result<(), Errno> {
        let mut buffer = self.take()?;
        let written = write_blocks(file, offset, body, &mut buffer);
        self.give_back(buffer);
        written
    }

    fn take(&self) -> Result<MmapMut, Errno> {
        if let Some(buffer) = self.kept.lock().pop() {
            return Ok(buffer);
        }
        MmapMut::map_anon(DIRECT_BYTES_MIN).map_err(|_| Errno::NOMEM)
    }

    fn give_back(&self, buffer: MmapMut) {
        let mut kept = self.kept.lock();
        if kept.len() < KEPT_MAX {
            kept.push(buffer);
        }
    }

    /// How many buffers wait for the next write.
    #[cfg(test)]
    pub(crate) fn kept(&self) -> usize {
        self.kept.lock().len()
    }
}

fn write_blocks(
    file: impl AsFd,
    mut offset: u64,
    body: &[Bytes],
    buffer: &mut [u8],
) -> Result<(), Errno> {
    let mut filled = 0;
    for part in body {
        let mut part = part.as_ref();
        while !part.is_empty() {
            let room = part.len().min(buffer.len() - filled);
            buffer[filled..filled + room].copy_from_slice(&part[..room]);
            filled += room;
            part = &part[room..];
            if filled == buffer.len() {
                write_all_at(&file, buffer, offset)?;
                offset += filled as u64;
                filled = 0;
            }
        }
    }
    let whole = filled.next_multiple_of(BLOCK_BYTES);
    buffer[filled..whole].fill(0);
    write_all_at(&file, &buffer[..whole], offset)
}

/// Writes all of it at `offset`, however many calls that takes.
///
/// # Errors
/// The system's; `EIO` if it takes nothing more.
pub fn write_all_at(file: impl AsFd, bytes: &[u8], offset: u64) -> Result<(), Errno> {
    let mut written = 0;
    while written < bytes.len() {
        match pwrite(&file, &bytes[written..], offset + written as u64) {
            Ok(0) => return Err(Errno::IO),
            Ok(count) => written += count,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}
