//! Reading a stream ahead, in large blocks, on a thread of its own.
//!
//! Owns: the blocks, their reuse, direct I/O with its fallback, and what the page cache has. Does
//! not own: what the bytes are used for.

use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::mpsc as threads;

use bytes::Bytes;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Advice, FileType, Mode, OFlags, SeekFrom};
use rustix::io::{Errno, ReadWriteFlags};
use tokio::sync::mpsc;

/// Bytes of a block, which is read whole before it is passed on. It holds at least four segments,
/// of at most 2 MiB each, so that little is left over from one block to the next.
pub const BLOCK_BYTES: usize = 8 << 20;

/// Bytes reserved before a block's data for the rest of the block before it: a segment (2 MiB at
/// most) and a chunk.
const HEADROOM_BYTES: usize = 4 << 20;

/// The largest alignment that direct I/O requires, in bytes.
const ALIGNMENT_BYTES: usize = 4096;

/// Blocks that wait between reader and user. One more is being filled, and one is in use.
const WAITING_BLOCKS: usize = 1;

/// Requested size of a pipe, in bytes: the largest that an unprivileged user gets
/// (/proc/sys/fs/pipe-max-size).
const PIPE_BYTES: usize = 1 << 20;

/// Facts of a stream that are known before it is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts {
    /// Its length in bytes, if it is known.
    pub total_bytes: Option<u64>,
    /// Attributes by fstat(2), if it is a regular file.
    pub file: Option<FileFacts>,
}

/// Attributes of a regular file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileFacts {
    /// Permission bits.
    pub permissions: u32,
    /// Owning user.
    pub uid: u32,
    /// Owning group.
    pub gid: u32,
    /// Time of modification: seconds and nanoseconds.
    pub modified: (i64, u32),
    /// Length in bytes.
    pub length: u64,
}

/// A stream that can be read once.
#[derive(Debug)]
pub struct Source {
    fd: OwnedFd,
    /// How the file is read past the page cache; `None` if `fd` reads through it.
    direct: Option<Direct>,
    /// Bytes to read at most; none for all up to the end.
    left: Option<u64>,
}

/// A file that is read past the page cache, except for what the page cache has already.
#[derive(Debug)]
struct Direct {
    /// The same file, through the page cache; `None` for a device, or if it cannot be opened again.
    cached: Option<OwnedFd>,
    /// The offset of the next byte in the file.
    offset: u64,
}

impl Direct {
    /// Reads what the page cache has from the offset on, without waiting for a disk. Returns the
    /// number of bytes, 0 if the first of them is not there.
    fn read_resident(&self, into: &mut [u8]) -> usize {
        let (first, rest) = into.split_at_mut(into.len().min(ALIGNMENT_BYTES));
        // The kernel begins to load the absent pages that it is asked for. So one page tells whether
        // the others are worth asking for.
        match self.read_nowait(first, self.offset) {
            count if count < first.len() => count,
            count => count + self.read_nowait(rest, self.offset + count as u64),
        }
    }

    fn read_nowait(&self, into: &mut [u8], offset: u64) -> usize {
        let Some(cached) = &self.cached else {
            return 0;
        };
        let mut parts = [IoSliceMut::new(into)];
        // After any error the direct read says what is wrong.
        rustix::io::preadv2(cached, &mut parts, offset, ReadWriteFlags::NOWAIT).unwrap_or(0)
    }
}

impl Source {
    /// Returns a stream that is already open: a pipe, a file, a device.
    pub fn of(fd: OwnedFd) -> Source {
        // A larger pipe means fewer switches of the processor between writer and reader. A small
        // pipe works as well.
        let _ = rustix::pipe::fcntl_setpipe_size(&fd, PIPE_BYTES);
        Source {
            fd,
            direct: None,
            left: None,
        }
    }

    /// Returns the first `length` bytes of an open file. What is appended meanwhile is not read.
    pub fn prefix(fd: OwnedFd, length: u64) -> Source {
        let source = Source {
            fd,
            direct: None,
            left: Some(length),
        };
        source.read_through_cache();
        source
    }

    /// Opens a file; past the page cache if its filesystem supports that.
    ///
    /// # Errors
    /// The I/O error of opening the file; EISDIR for a directory.
    pub fn open(path: &Path) -> io::Result<Source> {
        let open = |flags| {
            rustix::fs::open(
                path,
                OFlags::RDONLY | OFlags::CLOEXEC | flags,
                Mode::empty(),
            )
        };
        let (fd, is_direct) = match open(OFlags::DIRECT) {
            Ok(fd) => (fd, true),
            Err(Errno::INVAL | Errno::OPNOTSUPP) => (open(OFlags::empty())?, false),
            Err(error) => return Err(error.into()),
        };
        let stat = rustix::fs::fstat(&fd)?;
        let file_type = FileType::from_raw_mode(stat.st_mode);
        match file_type {
            FileType::Directory => return Err(Errno::ISDIR.into()),
            FileType::RegularFile | FileType::BlockDevice => {}
            _ => return Ok(Source::of(fd)),
        }
        if !is_direct {
            let source = Source {
                fd,
                direct: None,
                left: None,
            };
            source.read_through_cache();
            return Ok(source);
        }
        // Another file may have taken the name meanwhile.
        let is_same = |other: &OwnedFd| {
            rustix::fs::fstat(other)
                .is_ok_and(|other| (other.st_dev, other.st_ino) == (stat.st_dev, stat.st_ino))
        };
        // The page cache of a device does not have what the filesystem on it wrote since.
        let cached = match file_type {
            FileType::RegularFile => open(OFlags::empty()).ok().filter(is_same),
            _ => None,
        };
        Ok(Source {
            fd,
            direct: Some(Direct { cached, offset: 0 }),
            left: None,
        })
    }

    fn read_through_cache(&self) {
        // Only advice, so an error does not matter.
        let _ = rustix::fs::fadvise(&self.fd, 0, None, Advice::Sequential);
    }

    /// Returns what tells the facts of the stream, also while the stream is read.
    ///
    /// # Errors
    /// The I/O error of duplicating the descriptor.
    pub fn subject(&self) -> io::Result<Subject> {
        Ok(Subject(self.fd.try_clone()?))
    }

    /// Starts to read ahead. The thread ends with the stream, with an error, or when [`Blocks`] is
    /// dropped and the read in progress returns.
    ///
    /// # Errors
    /// The I/O error of starting the thread.
    pub fn blocks(mut self) -> io::Result<Blocks> {
        let (sender, receiver) = mpsc::channel(WAITING_BLOCKS);
        let (back, free) = threads::channel();
        std::thread::Builder::new()
            .name("bkfs-read".into())
            .spawn(move || {
                loop {
                    let buffer = free.try_recv().unwrap_or_else(|_| Buffer::new());
                    let block = self.fill(buffer, &back);
                    let is_last = !matches!(&block, Ok(block) if !block.is_last);
                    if sender.blocking_send(block).is_err() || is_last {
                        return;
                    }
                }
            })?;
        Ok(Blocks { receiver })
    }

    /// Reads until the buffer is full or the stream ends.
    fn fill(&mut self, mut buffer: Buffer, back: &threads::Sender<Buffer>) -> io::Result<Block> {
        let left = self.left.unwrap_or(u64::MAX);
        let most = left.min(BLOCK_BYTES as u64) as usize;
        let mut length = 0;
        while length < most {
            match self.read(&mut buffer.data()[length..most]) {
                Ok(0) => break,
                Ok(count) => {
                    length += count;
                    if !length.is_multiple_of(ALIGNMENT_BYTES) {
                        self.leave_direct()?;
                    }
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => wait_readable(&self.fd)?,
                Err(Errno::INVAL) if self.direct.is_some() => self.leave_direct()?,
                Err(error) => return Err(error.into()),
            }
        }
        self.left = self.left.map(|left| left - length as u64);
        Ok(Block {
            buffer: Some(buffer),
            length,
            is_last: length < BLOCK_BYTES || self.left == Some(0),
            back: back.clone(),
        })
    }

    /// Reads the next bytes once, as many as there are at once; 0 at the end.
    fn read(&mut self, into: &mut [u8]) -> Result<usize, Errno> {
        let Some(direct) = &mut self.direct else {
            return rustix::io::read(&self.fd, into);
        };
        let count = match direct.read_resident(into) {
            0 => rustix::io::pread(&self.fd, into, direct.offset)?,
            count => count,
        };
        direct.offset += count as u64;
        Ok(count)
    }

    /// Leaves direct I/O, if it is used. The end of a file is not aligned, and some filesystems
    /// require a larger alignment than they report.
    fn leave_direct(&mut self) -> io::Result<()> {
        if let Some(direct) = self.direct.take() {
            let flags = rustix::fs::fcntl_getfl(&self.fd)?;
            rustix::fs::fcntl_setfl(&self.fd, flags.difference(OFlags::DIRECT))?;
            rustix::fs::seek(&self.fd, SeekFrom::Start(direct.offset))?;
        }
        Ok(())
    }
}

/// What a stream is read from.
#[derive(Debug)]
pub struct Subject(OwnedFd);

impl Subject {
    /// Returns the facts of the stream.
    ///
    /// # Errors
    /// The I/O error of fstat(2).
    pub fn facts(&self) -> io::Result<Facts> {
        let stat = rustix::fs::fstat(&self.0)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Ok(Facts {
                total_bytes: None,
                file: None,
            });
        }
        let length = stat.st_size as u64;
        Ok(Facts {
            total_bytes: Some(length),
            file: Some(FileFacts {
                permissions: stat.st_mode & 0o7777,
                uid: stat.st_uid,
                gid: stat.st_gid,
                modified: (stat.st_mtime, stat.st_mtime_nsec as u32),
                length,
            }),
        })
    }
}

/// Waits until a non-blocking descriptor can be read.
fn wait_readable(fd: &OwnedFd) -> io::Result<()> {
    match poll(&mut [PollFd::new(&fd.as_fd(), PollFlags::IN)], None) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// The blocks of a stream, in order.
#[derive(Debug)]
pub struct Blocks {
    receiver: mpsc::Receiver<io::Result<Block>>,
}

impl Blocks {
    /// Returns the next block; [`Block::is_last`] is true for the last one.
    ///
    /// # Errors
    /// The I/O error of reading the stream, or that the reading thread has ended.
    pub async fn next(&mut self) -> io::Result<Block> {
        match self.receiver.recv().await {
            Some(block) => block,
            None => Err(io::Error::other("the reading thread has ended")),
        }
    }
}

/// Memory for one block. The data begins aligned after the headroom.
#[derive(Debug)]
struct Buffer {
    memory: Vec<u8>,
    start: usize,
}

impl Buffer {
    fn new() -> Buffer {
        let mut memory = vec![0; HEADROOM_BYTES + BLOCK_BYTES + ALIGNMENT_BYTES];
        advise_huge_pages(&mut memory);
        let behind_headroom = memory.as_ptr().addr() + HEADROOM_BYTES;
        let start =
            HEADROOM_BYTES + behind_headroom.next_multiple_of(ALIGNMENT_BYTES) - behind_headroom;
        Buffer { memory, start }
    }

    fn data(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + BLOCK_BYTES]
    }
}

/// Asks for huge pages. The kernel holds each page of a buffer that it reads into without the page
/// cache: with 4 KiB pages that is half of the reading thread's time.
fn advise_huge_pages(memory: &mut [u8]) {
    let skipped = memory.as_ptr().align_offset(ALIGNMENT_BYTES);
    let Some(pages) = memory.get_mut(skipped..) else {
        return;
    };
    let length = pages.len() - pages.len() % ALIGNMENT_BYTES;
    // SAFETY: the range is a part of a live slice that is borrowed exclusively. The advice changes
    // how the kernel backs it, not what it holds. It is only advice, so an error does not matter.
    let _ = unsafe {
        rustix::mm::madvise(
            pages.as_mut_ptr().cast(),
            length,
            rustix::mm::Advice::LinuxHugepage,
        )
    };
}

/// A block of the stream.
#[derive(Debug)]
pub struct Block {
    /// `None` only while the buffer is given back.
    buffer: Option<Buffer>,
    length: usize,
    is_last: bool,
    back: threads::Sender<Buffer>,
}

impl Block {
    /// Returns true if the stream ends with this block.
    pub fn is_last(&self) -> bool {
        self.is_last
    }

    /// Returns the number of bytes in it.
    pub fn length(&self) -> usize {
        self.length
    }

    /// Returns `left`, the rest of the block before, followed by this block, in one piece.
    pub fn after(mut self, left: &[u8]) -> Bytes {
        let Some(buffer) = &mut self.buffer else {
            return Bytes::copy_from_slice(left);
        };
        let (start, end) = (buffer.start, buffer.start + self.length);
        let Some(joined) = start.checked_sub(left.len()) else {
            return [left, &buffer.memory[start..end]].concat().into();
        };
        buffer.memory[joined..start].copy_from_slice(left);
        Bytes::from_owner(self).slice(joined..end)
    }
}

impl AsRef<[u8]> for Block {
    fn as_ref(&self) -> &[u8] {
        self.buffer.as_ref().map_or(&[], |buffer| &buffer.memory)
    }
}

impl Drop for Block {
    /// Gives the buffer back to the reader: memory that was touched once is cheaper than fresh
    /// memory.
    fn drop(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            // The reader may have ended.
            let _ = self.back.send(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    async fn all_of(mut blocks: Blocks) -> (Vec<u8>, usize) {
        let (mut bytes, mut count) = (Vec::new(), 0);
        loop {
            let block = blocks.next().await.unwrap();
            count += 1;
            let is_last = block.is_last();
            bytes.extend_from_slice(&block.after(&[]));
            if is_last {
                return (bytes, count);
            }
        }
    }

    fn numbered(length: usize) -> Vec<u8> {
        (0..length).map(|at| (at / 7 + at / 4099) as u8).collect()
    }

    #[tokio::test]
    async fn files_of_any_length_are_read_whole() {
        for length in [0, 1, 4096, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 4097] {
            let mut file = tempfile::NamedTempFile::new().unwrap();
            let bytes = numbered(length);
            file.write_all(&bytes).unwrap();
            let source = Source::open(file.path()).unwrap();
            let facts = source.subject().unwrap().facts().unwrap();
            assert_eq!(facts.total_bytes, Some(length as u64));
            let (read, count) = all_of(source.blocks().unwrap()).await;
            assert!(read == bytes, "{length} bytes");
            assert_eq!(count, length / BLOCK_BYTES + 1);
        }
    }

    /// The end of the first read is not aligned, so direct I/O cannot go on there.
    #[test]
    fn a_file_that_has_grown_is_read_on() {
        let mut file = tempfile::NamedTempFile::new_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let bytes = numbered(9_000);
        file.write_all(&bytes[..100]).unwrap();
        let mut source = Source::open(file.path()).unwrap();
        let (back, _free) = threads::channel();
        let first = source.fill(Buffer::new(), &back).unwrap().after(&[]);
        file.write_all(&bytes[100..]).unwrap();
        let second = source.fill(Buffer::new(), &back).unwrap().after(&[]);
        assert!(first == bytes[..100] && second == bytes[100..]);
    }

    /// Bytes that this thread had fetched from disks.
    fn fetched_bytes() -> u64 {
        let text = std::fs::read_to_string("/proc/thread-self/io").unwrap();
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("read_bytes: "));
        line.unwrap().parse().unwrap()
    }

    /// The file lies in the source tree, since the directory of temporary files may have no disk.
    #[test]
    fn what_the_page_cache_has_is_read_from_there() {
        let mut file = tempfile::NamedTempFile::new_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let bytes = numbered(2 * BLOCK_BYTES);
        file.write_all(&bytes).unwrap();
        file.as_file().sync_all().unwrap();
        // The second block leaves the page cache but for a page at its begin and one further on.
        let fd = file.as_fd();
        let forget = |offset: usize, length: usize| {
            let length = std::num::NonZeroU64::new(length as u64);
            rustix::fs::fadvise(fd, offset as u64, length, Advice::DontNeed).unwrap();
        };
        forget(BLOCK_BYTES + ALIGNMENT_BYTES, BLOCK_BYTES / 2);
        forget(
            BLOCK_BYTES + BLOCK_BYTES / 2 + 2 * ALIGNMENT_BYTES,
            BLOCK_BYTES / 2,
        );
        let mut source = Source::open(file.path()).unwrap();
        let (back, free) = threads::channel();
        let before = fetched_bytes();
        let first = source.fill(Buffer::new(), &back).unwrap().after(&[]);
        let of_first = fetched_bytes() - before;
        let second = source.fill(Buffer::new(), &back).unwrap().after(&[]);
        drop(free);
        assert!(first == bytes[..BLOCK_BYTES] && second == bytes[BLOCK_BYTES..]);
        assert_eq!(of_first, 0);
    }

    #[tokio::test]
    async fn what_is_behind_a_prefix_is_not_read() {
        let mut file = tempfile::tempfile().unwrap();
        let bytes = numbered(2 * BLOCK_BYTES + 9);
        file.write_all(&bytes).unwrap();
        for length in [0, 1, BLOCK_BYTES, BLOCK_BYTES + 7, 2 * BLOCK_BYTES + 99] {
            rustix::fs::seek(&file, rustix::fs::SeekFrom::Start(0)).unwrap();
            let source = Source::prefix(file.try_clone().unwrap().into(), length as u64);
            let (read, _) = all_of(source.blocks().unwrap()).await;
            assert!(read == bytes[..length.min(bytes.len())], "{length} bytes");
        }
    }

    #[tokio::test]
    async fn a_pipe_of_small_writes_becomes_full_blocks() {
        let (read, write) = rustix::pipe::pipe().unwrap();
        let bytes = numbered(2 * BLOCK_BYTES + 5);
        let written = bytes.clone();
        let writer = std::thread::spawn(move || {
            let mut pipe = std::fs::File::from(write);
            written
                .chunks(60_001)
                .for_each(|part| pipe.write_all(part).unwrap());
        });
        let source = Source::of(read);
        assert_eq!(source.subject().unwrap().facts().unwrap().total_bytes, None);
        let (read, count) = all_of(source.blocks().unwrap()).await;
        writer.join().unwrap();
        assert!(read == bytes);
        assert_eq!(count, 3);
    }

    #[tokio::test]
    async fn what_was_left_over_lies_before_the_block() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(b"behind").unwrap();
        for left in [numbered(10), numbered(HEADROOM_BYTES + 2 * ALIGNMENT_BYTES)] {
            let mut blocks = Source::open(file.path()).unwrap().blocks().unwrap();
            let joined = blocks.next().await.unwrap().after(&left);
            assert!(joined == [&left[..], b"behind"].concat());
        }
    }

    #[test]
    fn a_directory_is_no_stream() {
        let directory = tempfile::tempdir().unwrap();
        let error = Source::open(directory.path()).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EISDIR));
    }
}
