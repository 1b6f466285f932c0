//! Why a spool operation failed.

use std::io;
use std::path::Path;
use std::sync::Arc;

/// Reasons why a spool operation failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum SpoolError {
    /// The spool holds as many bytes as it may. Uploads and commits free room.
    #[error("the spool has reached its size of {limit_bytes} bytes")]
    Full {
        /// The bound, in bytes.
        limit_bytes: u64,
    },
    /// The disk failed. The object being written is not in the spool; earlier ones are.
    #[error("spool {path}: {source}")]
    Disk {
        /// The file or directory.
        path: String,
        /// The cause.
        source: Arc<io::Error>,
    },
    /// A file's bytes differ from those that were written.
    #[error("spool {path} is damaged")]
    Damaged {
        /// The file.
        path: String,
    },
    /// The spool has ended, and takes nothing more.
    #[error("spool {path} has ended with its session")]
    Ended {
        /// The directory.
        path: String,
    },
    /// Another process holds the directory, or it has files that are not of a new spool.
    #[error(
        "spool {path} is held by another process, or has files of an earlier session: try again"
    )]
    Held {
        /// The directory.
        path: String,
    },
    /// No object has this key.
    #[error("an object under {0:?} cannot be spooled")]
    BadKey(String),
}

impl SpoolError {
    pub(super) fn disk(path: &Path, source: io::Error) -> Self {
        Self::Disk {
            path: path.display().to_string(),
            source: Arc::new(source),
        }
    }

    /// Whether the disk refused because the machine lacks something: the right to write to the
    /// filesystem, open files, locks, memory or room. That says nothing of what a file holds.
    pub fn is_of_machine(&self) -> bool {
        let kinds = [
            io::ErrorKind::ReadOnlyFilesystem,
            io::ErrorKind::OutOfMemory,
            io::ErrorKind::StorageFull,
            io::ErrorKind::QuotaExceeded,
        ];
        let numbers = [libc::EMFILE, libc::ENFILE, libc::ENOLCK];
        let Self::Disk { source, .. } = self else {
            return false;
        };
        let number = source.raw_os_error();
        kinds.contains(&source.kind()) || number.is_some_and(|number| numbers.contains(&number))
    }

    /// Whether there is no such file or directory.
    pub(super) fn is_absence(&self) -> bool {
        matches!(self, Self::Disk { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }

    /// Whether the spool or its disk may have room later.
    pub fn is_full(&self) -> bool {
        matches!(self, Self::Full { .. }) || self.is_full_disk()
    }

    /// Whether the disk may have room later.
    pub(super) fn is_full_disk(&self) -> bool {
        let kinds = [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded];
        matches!(self, Self::Disk { source, .. } if kinds.contains(&source.kind()))
    }
}
