//! The kernel's door of bkfs.
//!
//! This crate knows the FUSE protocol and nothing of buckets, chunks or snapshots. A filesystem
//! implements [`Vfs`] in the plain types of this crate; it can be driven without a mount through
//! [`Reply::channel`] and [`DirectoryReply::channel`], which is how most of it is tested.

pub mod errno;
pub mod reply;
pub mod types;
pub mod vfs;

pub use errno::Errno;
pub use reply::{DirectoryReply, Reply};
pub use types::*;
pub use vfs::{CopyFileRange, Create, Fallocate, Mknod, Read, Rename, SetXattr, Vfs, Write};
