//! A file of the target that is being written.
//!
//! Owns: which bytes bypass the page cache, and reading back what the disk has. Does not own: what
//! is written, and when the file is whole.

use std::ffi::OsStr;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use bkfs_store::direct::{BLOCK_BYTES, DIRECT_BYTES_MIN, DirectBuffers, write_all_at};
use bytes::Bytes;
use rustix::fs::{Advice, FallocateFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

/// A new file.
pub struct Output {
    cached: OwnedFd,
    /// The same file, opened for writes past the page cache.
    direct: Option<OwnedFd>,
}

impl Output {
    /// Makes an empty file. A `large` file is written past the page cache if its filesystem
    /// supports that. In the cache it would only evict the pages of other programs, and copying it
    /// into pages takes as much processor time as fetching it.
    ///
    /// It is locked, so that another restore into the same directory does not remove it as left
    /// behind. Where the filesystem has no locks, the other restore removes nothing.
    ///
    /// # Errors
    /// The errno of making or locking the file.
    pub fn make(parent: BorrowedFd<'_>, name: &OsStr, large: bool) -> Result<Self, Errno> {
        const FLAGS: OFlags = OFlags::NOFOLLOW.union(OFlags::CLOEXEC);
        let new = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | FLAGS;
        let cached = rustix::fs::openat(parent, name, new, Mode::RUSR | Mode::WUSR)?;
        match rustix::fs::flock(&cached, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) | Err(Errno::NOLCK | Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {}
            Err(error) => return Err(error),
        }
        // Without the last flag a fifo that was put there would hold the open for ever.
        let past_cache = OFlags::WRONLY | OFlags::DIRECT | FLAGS | OFlags::NONBLOCK;
        let direct = large
            .then(|| rustix::fs::openat(parent, name, past_cache, Mode::empty()).ok())
            .flatten()
            // The directory may belong to another user, who may have put another file under this
            // name.
            .filter(|direct| is_same(&cached, direct));
        Ok(Self { cached, direct })
    }

    /// Writes all of `body` at `offset`, in bytes. Only whole pages bypass the page cache: bytes
    /// that share a page with neighbours must not.
    ///
    /// # Errors
    /// The errno of the write. A direct write that fails with EINVAL is repeated through the cache.
    pub fn write(&self, offset: u64, body: &[Bytes], buffers: &DirectBuffers) -> Result<(), Errno> {
        let page = rustix::param::page_size().max(BLOCK_BYTES);
        let head = (offset.next_multiple_of(page as u64) - offset) as usize;
        let whole = length(body).saturating_sub(head) / page * page;
        let Some(file) = self.direct.as_ref().filter(|_| whole >= DIRECT_BYTES_MIN) else {
            return self.write_through_cache(offset, body);
        };
        let (before, pages) = split(body, head);
        let (pages, behind) = split(&pages, whole);
        let begin = offset + head as u64;
        self.write_through_cache(offset, &before)?;
        self.allocate(begin, whole as u64);
        match buffers.write_at(file, begin, &pages) {
            Ok(()) => {}
            // This filesystem, or its device, requires another alignment.
            Err(Errno::INVAL) => self.write_through_cache(begin, &pages)?,
            Err(errno) => return Err(errno),
        }
        self.write_through_cache(begin + whole as u64, &behind)
    }

    /// Allocates blocks before a direct write. Into a hole ext4 writes the ranges of one file one
    /// after another, whatever the number of threads. A failure is only logged: the write then
    /// allocates the blocks itself, or fails too.
    fn allocate(&self, offset: u64, length: u64) {
        let allocated =
            rustix::fs::fallocate(&self.cached, FallocateFlags::KEEP_SIZE, offset, length);
        if let Err(error) = allocated {
            tracing::debug!(%error, "allocated when it is written");
        }
    }

    fn write_through_cache(&self, offset: u64, body: &[Bytes]) -> Result<(), Errno> {
        let mut at = offset;
        for part in body {
            write_all_at(&self.cached, part, at)?;
            at += part.len() as u64;
        }
        if at - offset >= DIRECT_BYTES_MIN as u64 {
            self.write_back(offset, at - offset);
        }
        Ok(())
    }

    /// Starts the write-back of written bytes, while the next parts are fetched. Otherwise the
    /// kernel would wait until memory fills, or until the sync at the end. On `DontNeed` the kernel
    /// begins to write dirty pages, without waiting, and keeps them until they are written
    /// (fs/fadvise of Linux).
    fn write_back(&self, offset: u64, length: u64) {
        let span = NonZeroU64::new(length);
        if let Err(error) = rustix::fs::fadvise(&self.cached, offset, span, Advice::DontNeed) {
            tracing::debug!(%error, "written when the kernel likes");
        }
    }

    /// Reads back what the disk has at `offset`, and compares it with `body`.
    ///
    /// # Errors
    /// A message: the error of syncing or reading, or the place where bytes are missing or differ.
    pub fn verify(&self, offset: u64, body: &[Bytes]) -> Result<(), String> {
        let failed = |error: Errno| error.to_string();
        rustix::fs::fdatasync(&self.cached).map_err(failed)?;
        // After the sync the pages can be dropped, so that the disk is read and not the cache.
        let span = NonZeroU64::new(length(body) as u64);
        rustix::fs::fadvise(&self.cached, offset, span, Advice::DontNeed).map_err(failed)?;
        let mut at = offset;
        let mut read = Vec::new();
        for part in body {
            read.resize(part.len(), 0);
            let mut filled = 0;
            while filled < read.len() {
                let count =
                    rustix::io::pread(&self.cached, &mut read[filled..], at).map_err(failed)?;
                if count == 0 {
                    return Err(format!("reads back short at byte {at}"));
                }
                filled += count;
                at += count as u64;
            }
            if read != *part {
                return Err(format!("reads back different bytes before byte {at}"));
            }
        }
        Ok(())
    }
}

impl AsFd for Output {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.cached.as_fd()
    }
}

fn is_same(one: &OwnedFd, other: &OwnedFd) -> bool {
    let identity = |file| {
        rustix::fs::fstat(file)
            .ok()
            .map(|stat| (stat.st_dev, stat.st_ino))
    };
    identity(one).is_some() && identity(one) == identity(other)
}

fn length(body: &[Bytes]) -> usize {
    body.iter().map(Bytes::len).sum()
}

/// Returns the first `count` bytes, and the rest.
fn split(body: &[Bytes], count: usize) -> (Vec<Bytes>, Vec<Bytes>) {
    let (mut first, mut rest) = (Vec::new(), Vec::new());
    let mut left = count;
    for part in body {
        let here = part.len().min(left);
        left -= here;
        first.push(part.slice(..here));
        rest.push(part.slice(here..));
    }
    (first, rest)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Lengths around blocks and buffers, at offsets around blocks, in parts of various lengths;
    /// with and without `large`.
    #[test]
    fn a_file_holds_what_was_written_whichever_way_it_went() {
        let home = tempfile::TempDir::new().unwrap();
        let directory = fs::File::open(home.path()).unwrap();
        let buffers = DirectBuffers::default();
        let mib = DIRECT_BYTES_MIN;
        let mut number = 0;
        // The memory filesystem of older kernels cannot do direct I/O.
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::DIRECT;
        let is_possible =
            rustix::fs::openat(&directory, "probe", flags, Mode::RUSR | Mode::WUSR).is_ok();
        for large in [true, false] {
            for offset in [0, 1, BLOCK_BYTES, 3 * BLOCK_BYTES + 7] {
                for size in [
                    0,
                    1,
                    BLOCK_BYTES,
                    mib - 1,
                    mib,
                    mib + 1,
                    3 * mib + BLOCK_BYTES + 5,
                ] {
                    for step in [7919, 1 << 19] {
                        number += 1;
                        let name = number.to_string();
                        let whole: Vec<u8> = (0..size).map(|at| (at / 3 % 251) as u8).collect();
                        let body: Vec<_> = whole.chunks(step).map(Bytes::copy_from_slice).collect();
                        let file = Output::make(directory.as_fd(), name.as_ref(), large).unwrap();
                        assert_eq!(file.direct.is_some(), large && is_possible);
                        file.write(offset as u64, &body, &buffers).unwrap();
                        file.verify(offset as u64, &body).unwrap();
                        let read = fs::read(home.path().join(&name)).unwrap();
                        let expected = if size == 0 { 0 } else { offset + size };
                        assert_eq!(read.len(), expected, "{offset} {size} {step}");
                        assert!(read[expected - size..] == whole, "{offset} {size} {step}");
                    }
                }
            }
        }
    }

    #[test]
    fn one_file_is_no_other() {
        let home = tempfile::TempDir::new().unwrap();
        let open = |name| OwnedFd::from(fs::File::create(home.path().join(name)).unwrap());
        assert!(is_same(&open("one"), &open("one")));
        assert!(!is_same(&open("one"), &open("other")));
    }

    #[test]
    fn what_is_different_on_the_disk_is_told() {
        let home = tempfile::TempDir::new().unwrap();
        let directory = fs::File::open(home.path()).unwrap();
        let body = [Bytes::from(vec![1; 2 * DIRECT_BYTES_MIN])];
        let file = Output::make(directory.as_fd(), "file".as_ref(), true).unwrap();
        file.write(0, &body, &DirectBuffers::default()).unwrap();
        let one = [0];
        write_all_at(&file, &one, 5000).unwrap();
        assert!(
            file.verify(0, &body)
                .unwrap_err()
                .contains("different bytes")
        );
        assert!(file.verify(5001, &body).unwrap_err().contains("short"));
    }
}
