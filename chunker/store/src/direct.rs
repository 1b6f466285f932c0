//! Writes that bypass the page cache (O_DIRECT), through reusable buffers.
//!
//! Owns the buffers, and the rules by which blocks are written. The caller decides which files are
//! worth it. A large file that is not read again soon then neither displaces a database from the
//! page cache, nor makes the kernel search for free pages. Measured on ext4 with eight concurrent
//! flushed writes of 16 MiB: 1.9 GB/s direct, 1.0 GB/s through the page cache.

use std::os::fd::AsFd;

use bytes::Bytes;
use memmap2::MmapMut;
use parking_lot::Mutex;
use rustix::io::{Errno, pwrite};

/// The size of a buffer, in bytes. A shorter write is not worth bypassing the page cache.
pub const DIRECT_BYTES_MIN: usize = 1 << 20;

/// The alignment of offsets, lengths and addresses of direct writes, in bytes. No common device has
/// larger blocks.
pub const BLOCK_BYTES: usize = 4096;

/// The most buffers that are kept. Further concurrent writers allocate their own.
const KEPT_MAX: usize = 16;

/// Buffers for direct writes, aligned to pages.
#[derive(Debug, Default)]
pub struct DirectBuffers {
    kept: Mutex<Vec<MmapMut>>,
}

impl DirectBuffers {
    /// Writes `body` to a file that was opened with O_DIRECT, starting at `offset`, in bytes, which
    /// must be a multiple of [`BLOCK_BYTES`]. The last block is padded with zeros.
    ///
    /// # Errors
    /// The error of the system call. `EINVAL` if this filesystem or its device needs another
    /// alignment; a part of the body may then have been written. `ENOMEM` if no buffer can be
    /// allocated.
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

    /// Returns how many buffers are ready for the next write.
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

/// Writes all of `bytes` at `offset`, with as many system calls as needed.
///
/// # Errors
/// The error of the system call; `EIO` if the file takes no more bytes.
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
