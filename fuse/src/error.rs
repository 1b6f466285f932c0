//! The reasons why mounting or unmounting fails.
//!
//! Owns: errors that say what to do. Does not own: how a session ends later (session), or the
//! errors that a request is answered with (errno).

use std::io;
use std::path::PathBuf;

use thiserror::Error;

/// Why mounting or unmounting failed.
#[derive(Debug, Error)]
pub enum MountError {
    /// /dev/fuse cannot be opened.
    #[error(
        "cannot open /dev/fuse: {0}; load the kernel module with `modprobe fuse`, or pass the \
         device into the container"
    )]
    NoDevice(#[source] io::Error),
    /// The kernel does not permit this process to mount.
    #[error(
        "not permitted to mount at {0}: use CAP_SYS_ADMIN, or fusermount3 and a mount point that \
         you own"
    )]
    NotPermitted(PathBuf),
    /// The mount point does not exist.
    #[error("mount point {0} does not exist")]
    Absent(PathBuf),
    /// The mount point is not a directory.
    #[error("mount point {0} is not a directory")]
    NotADirectory(PathBuf),
    /// A bkfs is already mounted there.
    #[error("{mount_point} is already a mount of {mounted}")]
    AlreadyMounted {
        /// The mount point.
        mount_point: PathBuf,
        /// Source of that mount.
        mounted: String,
    },
    /// The daemon of the filesystem mounted there is gone.
    #[error("{0} is a mount whose daemon is gone: unmount it first")]
    Disconnected(PathBuf),
    /// The mount is in use.
    #[error("{0} is busy: a process has a file or its working directory there")]
    Busy(PathBuf),
    /// Another mount lies over it or within it, and would be unmounted too.
    #[error(
        "{0} stays mounted: another filesystem is mounted over it or below it; unmount that first"
    )]
    Covered(PathBuf),
    /// It is not mounted, or no longer.
    #[error("{0} is not mounted")]
    NotMounted(PathBuf),
    /// The process is not root, and there is no helper.
    #[error("fusermount3 is not installed (package fuse3), and only root can mount without it")]
    NoHelper,
    /// The helper failed, with its own message.
    #[error("{0}")]
    Helper(String),
    /// The INIT exchange with the kernel failed, or the filesystem refused to start.
    #[error("cannot start the filesystem: {0}")]
    Start(#[source] io::Error),
    /// Any other error of the system.
    #[error("{doing}: {source}")]
    Io {
        /// The operation that failed.
        doing: &'static str,
        /// The error of the system.
        source: io::Error,
    },
}

impl MountError {
    pub(crate) fn io<E: Into<io::Error>>(doing: &'static str) -> impl FnOnce(E) -> Self {
        move |source| MountError::Io {
            doing,
            source: source.into(),
        }
    }
}
