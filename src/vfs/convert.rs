//! Between the tree's types and the kernel door's.

use std::time::Duration;

use bkfs_fuse::{Attributes as Shown, Entry, FileKind, Stat, Timestamp as ShownTime};

use crate::tree::item::{Attributes, Timestamp};
use crate::vfs::numbers::Number;
use crate::volume::error::VolumeError;

/// Preferred unit of I/O that stat(2) shows, in bytes: what the kernel sends at most in one request.
const BLOCK_BYTES: u32 = 1024 * 1024;

/// The unit of `st_blocks`, in bytes.
const SECTOR_BYTES: u64 = 512;

/// For how long the kernel may keep what it was told.
#[derive(Debug, Clone, Copy)]
pub struct Lifetimes {
    /// Names, and that there are none.
    pub names: Duration,
    /// Attributes.
    pub attributes: Duration,
}

impl Lifetimes {
    /// Only this mount changes the tree, and the kernel knows what it changed itself.
    pub const OWNED: Lifetimes = Lifetimes {
        names: Duration::from_secs(3600),
        attributes: Duration::from_secs(3600),
    };
    /// Another machine may change the tree.
    pub const FOLLOWING: Lifetimes = Lifetimes {
        names: Duration::from_secs(1),
        attributes: Duration::from_secs(1),
    };
    /// Nothing ever changes.
    pub const FROZEN: Lifetimes = Lifetimes {
        names: Duration::from_secs(7 * 86400),
        attributes: Duration::from_secs(7 * 86400),
    };
}

/// The kind of an inode.
pub fn kind(mode: u32) -> Result<FileKind, VolumeError> {
    FileKind::from_mode(mode).ok_or(VolumeError::Malformed { inode: 0 })
}

/// The time as the kernel door has it.
pub fn time(time: Timestamp) -> ShownTime {
    ShownTime {
        seconds: time.seconds,
        nanoseconds: time.nanoseconds,
    }
}

/// The time as the tree has it.
pub fn timestamp(time: ShownTime) -> Timestamp {
    Timestamp {
        seconds: time.seconds,
        nanoseconds: time.nanoseconds,
    }
}

/// What stat(2) shows. `dirty_bytes` are not stored yet and count as allocated.
pub fn attributes(
    number: Number,
    from: &Attributes,
    dirty_bytes: u64,
) -> Result<Shown, VolumeError> {
    let kind = kind(from.mode)?;
    let (size, allocated) = match kind {
        FileKind::Regular => {
            // A tree may claim any size.
            let whole = from.size_bytes.checked_next_multiple_of(SECTOR_BYTES);
            let allocated = from.allocated_bytes.saturating_add(dirty_bytes);
            (from.size_bytes, allocated.min(whole.unwrap_or(u64::MAX)))
        }
        // A directory's size in the tree is its number of names; tools expect bytes, any bytes.
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

/// An answer to a lookup.
pub fn entry(shown: Shown, lifetimes: Lifetimes) -> Entry {
    Entry {
        attributes: shown,
        generation: 0,
        entry_ttl: lifetimes.names,
        attribute_ttl: lifetimes.attributes,
    }
}

/// An answer to a getattr.
pub fn stat(shown: Shown, lifetimes: Lifetimes) -> Stat {
    Stat {
        attributes: shown,
        ttl: lifetimes.attributes,
    }
}
