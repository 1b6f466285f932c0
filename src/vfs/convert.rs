//! Conversions between the types of the tree and those of the fuse crate.

use std::time::Duration;

use bkfs_fuse::{Attributes as Shown, Entry, FileKind, Stat, Timestamp as ShownTime};

use crate::tree::item::{Attributes, Timestamp};
use crate::vfs::numbers::Number;
use crate::volume::error::VolumeError;

/// Preferred unit of I/O that stat(2) shows, in bytes: the most that the kernel sends in one
/// request.
const BLOCK_BYTES: u32 = 1024 * 1024;

/// The unit of `st_blocks`, in bytes.
const SECTOR_BYTES: u64 = 512;

/// How long the kernel may keep answers.
#[derive(Debug, Clone, Copy)]
pub struct Lifetimes {
    /// Lifetime of names and of absent names.
    pub names: Duration,
    /// Lifetime of attributes.
    pub attributes: Duration,
}

impl Lifetimes {
    /// 1 h: only this mount changes the tree, and the kernel knows the changes that went through
    /// it.
    pub const OWNED: Lifetimes = Lifetimes {
        names: Duration::from_secs(3600),
        attributes: Duration::from_secs(3600),
    };
    /// 1 s: another machine may change the tree.
    pub const FOLLOWING: Lifetimes = Lifetimes {
        names: Duration::from_secs(1),
        attributes: Duration::from_secs(1),
    };
    /// 7 days: the tree never changes.
    pub const FROZEN: Lifetimes = Lifetimes {
        names: Duration::from_secs(7 * 86400),
        attributes: Duration::from_secs(7 * 86400),
    };
}

/// Returns the kind of an inode by its mode.
///
/// # Errors
/// [`VolumeError::Malformed`], with inode 0, if the mode has no known type.
pub fn kind(mode: u32) -> Result<FileKind, VolumeError> {
    FileKind::from_mode(mode).ok_or(VolumeError::Malformed { inode: 0 })
}

/// Returns a time in the type of the fuse crate.
pub fn time(time: Timestamp) -> ShownTime {
    ShownTime {
        seconds: time.seconds,
        nanoseconds: time.nanoseconds,
    }
}

/// Returns a time in the type of the tree.
pub fn timestamp(time: ShownTime) -> Timestamp {
    Timestamp {
        seconds: time.seconds,
        nanoseconds: time.nanoseconds,
    }
}

/// Returns the attributes that stat(2) shows. `dirty_bytes` are not stored yet and count as
/// allocated.
///
/// # Errors
/// As [`kind`].
pub fn attributes(
    number: Number,
    from: &Attributes,
    dirty_bytes: u64,
) -> Result<Shown, VolumeError> {
    let kind = kind(from.mode)?;
    let (size, allocated) = match kind {
        FileKind::Regular => {
            // The size in a tree may be any number.
            let whole = from.size_bytes.checked_next_multiple_of(SECTOR_BYTES);
            let allocated = from.allocated_bytes.saturating_add(dirty_bytes);
            (from.size_bytes, allocated.min(whole.unwrap_or(u64::MAX)))
        }
        // The size of a directory in the tree is its number of names. Programs expect a size in
        // bytes, of any value.
        FileKind::Directory => (from.size_bytes.saturating_mul(32).max(4096), 0),
        _ => (from.size_bytes, 0),
    };
    Ok(Shown {
        ino: number.ino(),
        size,
        blocks: allocated.div_ceil(SECTOR_BYTES),
        atime: time(from.accessed),
        mtime: time(from.modified),
        ctime: time(from.changed),
        kind,
        permissions: (from.mode & 0o7777) as u16,
        nlink: from.links,
        uid: from.uid,
        gid: from.gid,
        rdev: from.device,
        blksize: BLOCK_BYTES,
    })
}

/// Returns the answer to a lookup.
pub fn entry(shown: Shown, lifetimes: Lifetimes) -> Entry {
    Entry {
        attributes: shown,
        generation: 0,
        entry_ttl: lifetimes.names,
        attribute_ttl: lifetimes.attributes,
    }
}

/// Returns the answer to a getattr.
pub fn stat(shown: Shown, lifetimes: Lifetimes) -> Stat {
    Stat {
        attributes: shown,
        ttl: lifetimes.attributes,
    }
}
