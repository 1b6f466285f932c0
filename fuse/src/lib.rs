//! Kernel side of bkfs: the FUSE protocol.
//!
//! This crate knows the FUSE protocol and nothing of buckets, chunks or snapshots. A filesystem
//! implements [`Vfs`] in the plain types of this crate. [`mount`] mounts it at a path and returns a
//! [`Session`]. Most tests drive a filesystem without a mount, through [`Reply::channel`] and
//! [`DirectoryReply::channel`].
//!
//! | module | owns |
//! |---|---|
//! | [`vfs`], [`types`] | the filesystem as requests and answers |
//! | [`reply`] | answering a request once, from any thread |
//! | [`errno`] | the errors that a request can answer with |
//! | [`options`] | the grammar of `-o` |
//! | [`session`] | mounting, serving, unmounting |
//! | [`error`] | the reasons why mounting or unmounting fails |
//! | [`mountinfo`] | reading the table of mounts |
//! | [`notifier`] | invalidating what the kernel caches |
//! | `command` | requests through an open file, on read-only mounts too |
//! | `adapter`, `convert`, `negotiate` | the library fuser (also in `session` and `notifier`) |
//! | `fusermount` | mounting without root |
//! | `own` | finding and unmounting the mount that this process made |
//! | `utab` | the entry in libmount's table by which umount(8) finds its helper |

mod adapter;
mod command;
mod convert;
pub mod errno;
pub mod error;
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

pub use command::{COMMAND_BYTES_MAX, send_command};
pub use errno::Errno;
pub use error::MountError;
pub use mountinfo::{FILE_SYSTEM_TYPE, MountEntry, MountInfo, find_mount, mounts, places_of};
pub use notifier::Notifier;
pub use options::{Access, MountFlags, MountOptions, OptionError, OtherOption, Ownership};
pub use reply::{DirectoryReply, Reply};
pub use session::{MountConfig, Session, SessionError, become_io_flusher, mount, unmount};
pub use types::*;
pub use vfs::{CopyFileRange, Create, Fallocate, Mknod, Read, Rename, SetXattr, Vfs, Write};
