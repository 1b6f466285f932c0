//! Filling a new file with an object's bytes.
//!
//! Large objects go past the page cache (O_DIRECT), through buffers that are kept: a backup then neither pushes a database out of the cache nor
//! has the kernel find fresh pages for what nobody will read soon. Measured on ext4, 16 MiB objects, eight at once, flushed: 1.9 GB/s against 1.0.
//! Where the filesystem cannot do that, and for small objects, the page cache is used.

use std::io::IoSlice;
use std::os::fd::OwnedFd;

use bytes::Bytes;
use memmap2::MmapMut;
use parking_lot::Mutex;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl, ftruncate};
use rustix::io::{Errno, pwrite, writev};

use crate::store::body_bytes;

/// From this size on objects go past the page cache, in bytes. Also the size of a buffer.
const DIRECT_BYTES_MIN: usize = 1 << 20;

/// What offsets, lengths and addresses of direct writes are multiples of, in bytes: no usual device has larger blocks.
const BLOCK_BYTES: usize = 4096;

/// How many buffers are kept. More writers at once make their own.
const KEPT_MAX: usize = 16;

/// writev(2) takes no more parts than this at once (IOV_MAX).
const PARTS_PER_WRITE: usize = 1024;

/// Buffers for direct writes, aligned to pages.
#[derive(Debug, Default)]
pub(super) struct Buffers {
    kept: Mutex<Vec<MmapMut>>,
}

impl Buffers {
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
}

/// Writes the body to a new, empty file. The file is left as if it had been opened without O_DIRECT.
pub(super) fn fill(file: &OwnedFd, body: &[Bytes], buffers: &Buffers) -> Result<(), Errno> {
    let size = body_bytes(body);
    if size < DIRECT_BYTES_MIN as u64 || set_direct(file, true).is_err() {
        return fill_through_cache(file, body);
    }
    let mut buffer = buffers.take()?;
    let written = fill_directly(file, body, &mut buffer);
    buffers.give_back(buffer);
    set_direct(file, false)?;
    match written {
        Ok(()) => ftruncate(file, size),
        // This filesystem, or its device, wants other alignments.
        Err(Errno::INVAL) => {
            ftruncate(file, 0)?;
            fill_through_cache(file, body)
        }
        Err(errno) => Err(errno),
    }
}

fn set_direct(file: &OwnedFd, direct: bool) -> Result<(), Errno> {
    let mut flags = fcntl_getfl(file)?;
    flags.set(OFlags::DIRECT, direct);
    fcntl_setfl(file, flags)
}

/// Writes whole blocks; the last one is filled up with zeros.
fn fill_directly(file: &OwnedFd, body: &[Bytes], buffer: &mut [u8]) -> Result<(), Errno> {
    let mut offset = 0;
    let mut filled = 0;
    for part in body {
        let mut part = part.as_ref();
        while !part.is_empty() {
            let room = part.len().min(buffer.len() - filled);
            buffer[filled..filled + room].copy_from_slice(&part[..room]);
            filled += room;
            part = &part[room..];
            if filled == buffer.len() {
                write_all_at(file, buffer, offset)?;
                offset += filled as u64;
                filled = 0;
            }
        }
    }
    let whole = filled.next_multiple_of(BLOCK_BYTES);
    buffer[filled..whole].fill(0);
    write_all_at(file, &buffer[..whole], offset)
}

fn write_all_at(file: &OwnedFd, bytes: &[u8], offset: u64) -> Result<(), Errno> {
    let mut written = 0;
    while written < bytes.len() {
        match pwrite(file, &bytes[written..], offset + written as u64) {
            Ok(0) => return Err(Errno::IO),
            Ok(count) => written += count,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

fn fill_through_cache(file: &OwnedFd, body: &[Bytes]) -> Result<(), Errno> {
    let mut parts: Vec<IoSlice<'_>> = body.iter().map(|part| IoSlice::new(part)).collect();
    let mut rest = parts.as_mut_slice();
    // Passes over empty parts at the beginning, which would make a write of nothing.
    IoSlice::advance_slices(&mut rest, 0);
    while !rest.is_empty() {
        let count = rest.len().min(PARTS_PER_WRITE);
        match writev(file, &rest[..count]) {
            Ok(0) => return Err(Errno::IO),
            Ok(written) => IoSlice::advance_slices(&mut rest, written),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read;

    use super::*;

    /// Sizes around blocks and buffers, in parts that meet them everywhere.
    #[test]
    fn a_file_holds_exactly_the_body() {
        let buffers = Buffers::default();
        let home = tempfile::TempDir::new().unwrap();
        let sizes = [
            0,
            1,
            4096,
            (1 << 20) - 1,
            1 << 20,
            (1 << 20) + 1,
            (2 << 20) + 4096,
            3_333_333,
        ];
        for (number, size) in sizes.into_iter().enumerate() {
            for step in [7919, 1 << 19, 5 << 20] {
                let whole: Vec<u8> = (0..size).map(|at: usize| (at / 3 % 251) as u8).collect();
                let mut body: Vec<Bytes> = whole.chunks(step).map(Bytes::copy_from_slice).collect();
                body.insert(0, Bytes::new());
                let path = home.path().join(format!("{number}-{step}"));
                let file = OwnedFd::from(File::create_new(&path).unwrap());
                fill(&file, &body, &buffers).unwrap();
                assert!(!fcntl_getfl(&file).unwrap().contains(OFlags::DIRECT));
                let mut read = Vec::new();
                File::open(&path).unwrap().read_to_end(&mut read).unwrap();
                assert!(read == whole, "{size} bytes in parts of {step}");
            }
        }
        assert!(buffers.kept.lock().len() <= 1, "buffers are used again");
    }
}
