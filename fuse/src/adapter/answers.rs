//! The filesystem's answers to the kernel: one function per kind of reply.
//!
//! Owns: wrapping each of fuser's one-shot replies into a [`Reply`], and the buffers of listings.
//! Does not own: the encodings (convert).

use std::cell::RefCell;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use bytes::Bytes;
use tracing::error;

use crate::convert::{self, XattrAnswer};
use crate::errno::Errno;
use crate::options::Ownership;
use crate::reply::{DirectorySink, Reply};
use crate::types::{
    Attributes, Created, DirectoryEntry, Entry, Lookup, Opened, ReadData, Stat, Statistics,
    Timestamp,
};

/// The most bytes that one answer to copy_file_range can report: the largest multiple of 4 KiB in
/// 32 bits.
pub(super) const COPY_BYTES_MAX: u64 = 0xffff_f000;

/// Bytes that a thread keeps allocated for joining the pieces of a read. Memory beyond that is
/// freed.
const GATHER_BYTES_KEPT: usize = 1 << 20;

thread_local! {
    /// Reused: touching fresh memory costs more than copying into warm memory.
    static GATHER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

pub(super) fn empty(operation: &'static str, reply: fuser::ReplyEmpty) -> Reply<()> {
    Reply::new(operation, move |answer: Result<(), Errno>| match answer {
        Ok(()) => reply.ok(),
        Err(errno) => reply.error(convert::errno(errno)),
    })
}

pub(super) fn done(reply: fuser::ReplyIoctl) -> Reply<()> {
    Reply::new("ioctl", move |answer: Result<(), Errno>| match answer {
        Ok(()) => reply.ioctl(0, &[]),
        Err(errno) => reply.error(convert::errno(errno)),
    })
}

pub(super) fn entry(
    operation: &'static str,
    reply: fuser::ReplyEntry,
    ownership: Ownership,
) -> Reply<Entry> {
    Reply::new(
        operation,
        move |answer: Result<Entry, Errno>| match answer {
            Ok(entry) => send_entry(reply, &entry, ownership),
            Err(errno) => reply.error(convert::errno(errno)),
        },
    )
}

pub(super) fn lookup(reply: fuser::ReplyEntry, ownership: Ownership) -> Reply<Lookup> {
    Reply::new(
        "lookup",
        move |answer: Result<Lookup, Errno>| match answer {
            Ok(Lookup::Found(entry)) => send_entry(reply, &entry, ownership),
            Ok(Lookup::Absent { ttl }) if ttl.is_zero() => reply.error(fuser::Errno::ENOENT),
            Ok(Lookup::Absent { ttl }) => {
                // Inode 0 in an answer says that the name is absent for the time `ttl`.
                let nothing = convert::attributes(&no_attributes(), Ownership::default());
                reply.entry_with_ttls(&Duration::ZERO, &ttl, &nothing, fuser::Generation(0));
            }
            Err(errno) => reply.error(convert::errno(errno)),
        },
    )
}

fn send_entry(reply: fuser::ReplyEntry, entry: &Entry, ownership: Ownership) {
    reply.entry_with_ttls(
        &entry.attribute_ttl,
        &entry.entry_ttl,
        &convert::attributes(&entry.attributes, ownership),
        fuser::Generation(entry.generation),
    );
}

pub(super) fn stat(
    operation: &'static str,
    reply: fuser::ReplyAttr,
    ownership: Ownership,
) -> Reply<Stat> {
    Reply::new(operation, move |answer: Result<Stat, Errno>| match answer {
        Ok(stat) => reply.attr(&stat.ttl, &convert::attributes(&stat.attributes, ownership)),
        Err(errno) => reply.error(convert::errno(errno)),
    })
}

pub(super) fn bytes(operation: &'static str, reply: fuser::ReplyData) -> Reply<Bytes> {
    Reply::new(
        operation,
        move |answer: Result<Bytes, Errno>| match answer {
            Ok(bytes) => reply.data(&bytes),
            Err(errno) => reply.error(convert::errno(errno)),
        },
    )
}

/// Returns a reply to a read. The library writes one slice to the kernel, so several pieces are
/// joined first.
pub(super) fn data(reply: fuser::ReplyData, size: usize) -> Reply<ReadData> {
    Reply::new(
        "read",
        move |answer: Result<ReadData, Errno>| match answer {
            Ok(ReadData(pieces)) => match pieces.as_slice() {
                [] => reply.data(&[]),
                [piece] => reply.data(&piece[..piece.len().min(size)]),
                pieces => GATHER.with_borrow_mut(|buffer| {
                    convert::gather(pieces, size, buffer);
                    reply.data(buffer);
                    buffer.shrink_to(GATHER_BYTES_KEPT);
                }),
            },
            Err(errno) => reply.error(convert::errno(errno)),
        },
    )
}

pub(super) fn written(reply: fuser::ReplyWrite) -> Reply<u32> {
    Reply::new("write", move |answer: Result<u32, Errno>| match answer {
        Ok(written) => reply.written(written),
        Err(errno) => reply.error(convert::errno(errno)),
    })
}

pub(super) fn copied(reply: fuser::ReplyWrite) -> Reply<u64> {
    Reply::new(
        "copy_file_range",
        move |answer: Result<u64, Errno>| match answer {
            Ok(copied) => reply.written(u32::try_from(copied).unwrap_or(u32::MAX)),
            Err(errno) => reply.error(convert::errno(errno)),
        },
    )
}

pub(super) fn offset(reply: fuser::ReplyLseek) -> Reply<u64> {
    Reply::new("lseek", move |answer: Result<u64, Errno>| {
        match answer.and_then(|offset| i64::try_from(offset).map_err(|_| Errno::EOVERFLOW)) {
            Ok(offset) => reply.offset(offset),
            Err(errno) => reply.error(convert::errno(errno)),
        }
    })
}

pub(super) fn opened(operation: &'static str, reply: fuser::ReplyOpen) -> Reply<Opened> {
    Reply::new(
        operation,
        move |answer: Result<Opened, Errno>| match answer {
            Ok(opened) => {
                let (handle, flags) = convert::opened(&opened);
                reply.opened(handle, flags);
            }
            Err(errno) => reply.error(convert::errno(errno)),
        },
    )
}

pub(super) fn created(reply: fuser::ReplyCreate, ownership: Ownership) -> Reply<Created> {
    Reply::new(
        "create",
        move |answer: Result<Created, Errno>| match answer {
            Ok(Created { entry, opened }) => {
                let (handle, flags) = convert::opened(&opened);
                reply.created(
                    &convert::shorter_ttl(&entry),
                    &convert::attributes(&entry.attributes, ownership),
                    fuser::Generation(entry.generation),
                    handle,
                    flags,
                );
            }
            Err(errno) => reply.error(convert::errno(errno)),
        },
    )
}

pub(super) fn statistics(reply: fuser::ReplyStatfs) -> Reply<Statistics> {
    Reply::new(
        "statfs",
        move |answer: Result<Statistics, Errno>| match answer {
            Ok(statistics) => reply.statfs(
                statistics.blocks,
                statistics.blocks_free,
                statistics.blocks_available,
                statistics.files,
                statistics.files_free,
                statistics.block_size,
                statistics.name_max,
                statistics.block_size,
            ),
            Err(errno) => reply.error(convert::errno(errno)),
        },
    )
}

pub(super) fn xattr(
    operation: &'static str,
    reply: fuser::ReplyXattr,
    buffer_size: u32,
) -> Reply<Bytes> {
    Reply::new(
        operation,
        move |answer: Result<Bytes, Errno>| match answer {
            Ok(value) => match convert::xattr_answer(value.len(), buffer_size) {
                XattrAnswer::Size(size) => reply.size(size),
                XattrAnswer::Data => reply.data(&value),
                XattrAnswer::Refuse(errno) => reply.error(convert::errno(errno)),
            },
            Err(errno) => reply.error(convert::errno(errno)),
        },
    )
}

/// Returns true if a listing can carry an entry. The kernel rejects a whole listing because of one
/// bad name, and reads the cookie as a signed offset.
fn is_listable(entry: &DirectoryEntry<'_>) -> bool {
    let good = !entry.name.is_empty()
        && !entry.name.contains(&b'/')
        && !entry.name.contains(&0)
        && entry.cookie != 0
        && i64::try_from(entry.cookie).is_ok();
    if !good {
        error!(ino = entry.ino.0, "an entry that no listing can carry");
    }
    good
}

/// The buffer of a plain listing.
pub(super) struct PlainListing {
    reply: fuser::ReplyDirectory,
    broken: bool,
}

impl PlainListing {
    pub(super) fn new(reply: fuser::ReplyDirectory) -> Self {
        Self {
            reply,
            broken: false,
        }
    }
}

impl DirectorySink for PlainListing {
    fn push(&mut self, entry: &DirectoryEntry<'_>) -> bool {
        self.broken |= !is_listable(entry);
        let is_full = self.broken
            || self.reply.add(
                fuser::INodeNo(entry.ino.0),
                entry.cookie,
                convert::file_type(entry.kind),
                OsStr::from_bytes(entry.name),
            );
        !is_full
    }

    fn finish(self: Box<Self>, result: Result<(), Errno>) {
        match result {
            Ok(()) if self.broken => self.reply.error(fuser::Errno::EIO),
            Ok(()) => self.reply.ok(),
            Err(errno) => self.reply.error(convert::errno(errno)),
        }
    }
}

/// The buffer of a listing with attributes.
pub(super) struct PlusListing {
    reply: fuser::ReplyDirectoryPlus,
    ownership: Ownership,
    broken: bool,
}

impl PlusListing {
    pub(super) fn new(reply: fuser::ReplyDirectoryPlus, ownership: Ownership) -> Self {
        Self {
            reply,
            ownership,
            broken: false,
        }
    }

    /// Returns the entry to send. The kernel ignores the attributes of `.` and `..`.
    fn complete(entry: &DirectoryEntry<'_>) -> Option<Entry> {
        let is_dots = matches!(entry.name, b"." | b"..");
        let made_up = || Entry {
            attributes: Attributes {
                ino: entry.ino,
                kind: entry.kind,
                ..no_attributes()
            },
            generation: 0,
            entry_ttl: Duration::ZERO,
            attribute_ttl: Duration::ZERO,
        };
        entry.plus.or_else(|| is_dots.then(made_up))
    }
}

impl DirectorySink for PlusListing {
    fn push(&mut self, entry: &DirectoryEntry<'_>) -> bool {
        let complete = Self::complete(entry);
        if complete.is_none() {
            error!(
                ino = entry.ino.0,
                "an entry without the attributes asked for"
            );
        }
        self.broken |= complete.is_none() || !is_listable(entry);
        match complete {
            Some(complete) if !self.broken => !self.reply.add(
                fuser::INodeNo(entry.ino.0),
                entry.cookie,
                OsStr::from_bytes(entry.name),
                &convert::shorter_ttl(&complete),
                &convert::attributes(&complete.attributes, self.ownership),
                fuser::Generation(complete.generation),
            ),
            _ => false,
        }
    }

    fn finish(self: Box<Self>, result: Result<(), Errno>) {
        match result {
            Ok(()) if self.broken => self.reply.error(fuser::Errno::EIO),
            Ok(()) => self.reply.ok(),
            Err(errno) => self.reply.error(convert::errno(errno)),
        }
    }
}

/// Returns the attributes of no inode.
fn no_attributes() -> Attributes {
    Attributes {
        ino: crate::types::Ino(0),
        size: 0,
        blocks: 0,
        atime: Timestamp::default(),
        mtime: Timestamp::default(),
        ctime: Timestamp::default(),
        kind: crate::types::FileKind::Regular,
        permissions: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 0,
    }
}
