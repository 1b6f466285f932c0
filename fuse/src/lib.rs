//! The kernel's door of bkfs.
//!
//! This crate knows the FUSE protocol and nothing of buckets, chunks or snapshots. A filesystem
//! implements [`Vfs`] in the plain types of this crate; it can be driven without a mount through
//! [`Reply::channel`] and [`DirectoryReply::channel`], which is how most of it is tested.
//! [`mount`] puts it into the tree of files and returns a [`Session`].
//!
//! | module | owns |
//! |---|---|
//! | [`vfs`], [`types`] | the filesystem as requests and answers |
//! | [`reply`] | answering once, from anywhere |
//! | [`errno`] | what a request can be refused with |
//! | [`options`] | the grammar of `-o` |
//! | [`session`] | mounting, serving, unmounting |
//! | [`mountinfo`] | which mounts there are |
//! | [`notifier`] | invalidating what the kernel caches |
//! | `adapter`, `convert`, `negotiate` | the library fuser; besides the session, nothing else imports it |
//! | `fusermount` | mounting without root |
//! | `utab` | that umount(8) finds its helper |

mod adapter;
mod convert;
pub mod errno;
mod fusermount;
pub mod mountinfo;
mod negotiate;
pub mod notifier;
pub mod options;
mod own;
pub mod reply;
pub mod session;
pub mod types;
mod utab;
pub mod vfs;

pub use errno::Errno;
pub use mountinfo::{FILE_SYSTEM_TYPE, MountInfo, Place, find_mount, places_of};
pub use notifier::Notifier;
pub use options::{Access, MountFlags, MountOptions, OptionError, OtherOption, Ownership};
pub use reply::{DirectoryReply, Reply};
pub use session::{
    MountConfig, MountError, Session, SessionError, become_io_flusher, mount, unmount,
};
pub use types::*;
pub use vfs::{CopyFileRange, Create, Fallocate, Mknod, Read, Rename, SetXattr, Vfs, Write};
