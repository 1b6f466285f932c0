//! Errors of a restore as a whole. Failures of single inodes are no errors but
//! [`Problem`](super::job::Problem)s.

use std::path::PathBuf;

use crate::volume::error::VolumeError;

/// Why nothing could be restored.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The target cannot be used.
    #[error("{}: {reason}", path.display())]
    Target {
        /// Path of the target, or of a directory above it.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// The target has what may not be there.
    #[error("{}: {}", path.display(), if *is_directory { "is not empty" } else { "exists" })]
    Occupied {
        /// Path of the target.
        path: PathBuf,
        /// Whether it is a directory.
        is_directory: bool,
    },
    /// The snapshot has no such path.
    #[error("the snapshot has no {path}")]
    NoSuchPath {
        /// The path.
        path: String,
    },
    /// The snapshot cannot be read.
    #[error(transparent)]
    Volume(#[from] VolumeError),
}
