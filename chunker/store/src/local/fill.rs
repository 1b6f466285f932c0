//! Writing an object's bytes to a new file.
//!
//! Large objects bypass the page cache. Small objects use it, and so do large ones where the
//! filesystem has no direct writes.

use std::io::IoSlice;
use std::os::fd::OwnedFd;

use bytes::Bytes;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl, ftruncate};
use rustix::io::{Errno, writev};

use crate::body_bytes;
use crate::direct::{DIRECT_BYTES_MIN, DirectBuffers};

/// The most parts that one writev(2) takes (IOV_MAX).
const PARTS_PER_WRITE: usize = 1024;

/// Writes the body to a new, empty file. Afterwards the file's flags are as if it had been opened
/// without O_DIRECT.
pub(super) fn fill(file: &OwnedFd, body: &[Bytes], buffers: &DirectBuffers) -> Result<(), Errno> {
    let size = body_bytes(body);
    if size < DIRECT_BYTES_MIN as u64 || set_direct(file, true).is_err() {
        return fill_through_cache(file, body);
    }
    let written = buffers.write_at(file, 0, body);
    set_direct(file, false)?;
    match written {
        Ok(()) => ftruncate(file, size),
        // This filesystem, or its device, needs another alignment.
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

fn fill_through_cache(file: &OwnedFd, body: &[Bytes]) -> Result<(), Errno> {
    let mut parts: Vec<IoSlice<'_>> = body.iter().map(|part| IoSlice::new(part)).collect();
    let mut rest = parts.as_mut_slice();
    // Skips empty parts at the beginning: a write of them would return 0.
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

    /// Tests sizes around blocks and buffers, split at different offsets.
    #[test]
    fn a_file_holds_exactly_the_body() {
        let buffers = DirectBuffers::default();
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
        assert!(buffers.kept() <= 1, "buffers are used again");
    }
}
