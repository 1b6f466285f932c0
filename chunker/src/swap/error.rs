//! The errors of a swap file.

use std::io;
use std::sync::Arc;

/// Why bytes could not be written to a swap file, or read from it.
#[derive(Debug, Clone, thiserror::Error)]
pub enum SwapError {
    /// The disk failed.
    #[error("the disk of the swap file has failed ({0}): changed data of this clone may be lost")]
    Disk(Arc<io::Error>),
    /// The disk returned other bytes than those that were written.
    #[error("the disk of the swap file has lost changed data of this clone")]
    Damaged,
}

impl SwapError {
    pub(super) fn disk(error: io::Error) -> Self {
        Self::Disk(Arc::new(error))
    }

    /// Returns what has happened, and not what is lost by it: a write that fails loses nothing.
    pub(super) fn cause(&self) -> String {
        match self {
            Self::Disk(error) => format!("the disk: {error}"),
            Self::Damaged => "the disk returns other bytes than it got".to_owned(),
        }
    }

    /// Returns whether the disk has no room.
    pub fn is_full_disk(&self) -> bool {
        let Self::Disk(error) = self else {
            return false;
        };
        matches!(
            error.kind(),
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
        )
    }
}
