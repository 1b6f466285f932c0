//! Why an operation on a volume fails.
//!
//! Owns: the kinds, in the filesystem's terms. Does not own: errno numbers (`vfs::errno`) or exit codes (`cli`).

use bkfs_chunker::error::DepotError;

/// What the caller of a filesystem operation learns.
#[derive(Debug, Clone, thiserror::Error)]
pub enum VolumeError {
    /// No such name.
    #[error("no such file or directory")]
    NotFound,
    /// The inode is gone: somebody held its number, or a snapshot was forgotten.
    #[error("the file is gone")]
    Stale,
    /// The name is taken.
    #[error("the name exists")]
    Exists,
    /// A directory is needed.
    #[error("not a directory")]
    NotDirectory,
    /// Anything but a directory is needed.
    #[error("is a directory")]
    IsDirectory,
    /// The directory has names.
    #[error("the directory is not empty")]
    NotEmpty,
    /// Snapshots and read-only mounts are not written.
    #[error("read-only")]
    ReadOnly,
    /// The operation is forbidden on this kind of inode.
    #[error("operation not permitted")]
    NotPermitted,
    /// The caller is not the owner of what only the owner may see.
    #[error("permission denied")]
    Denied,
    /// A name of more than 255 bytes.
    #[error("name too long")]
    NameTooLong,
    /// An argument is out of range.
    #[error("invalid argument")]
    Invalid,
    /// Beyond the largest file.
    #[error("file too large")]
    TooLarge,
    /// An inode has as many names as it can have.
    #[error("too many links")]
    TooManyLinks,
    /// No such extended attribute.
    #[error("no such attribute")]
    NoAttribute,
    /// An attribute's value is too long.
    #[error("the attribute is too large")]
    AttributeTooLarge,
    /// Nothing of the kind at or after the offset.
    #[error("no data or hole there")]
    NoSuchPlace,
    /// bkfs does not do this.
    #[error("operation not supported")]
    NotSupported,
    /// A link or rename between a snapshot and the live volume, or two snapshots.
    #[error("crosses into another snapshot")]
    CrossesSnapshots,
    /// Another snapshot of this name exists, or the name is not allowed.
    #[error("snapshot name: {0}")]
    SnapshotName(String),
    /// An item of the tree does not have its form: damage, or a newer program.
    #[error("inode {inode} is malformed in the tree")]
    Malformed {
        /// Which inode.
        inode: u64,
    },
    /// A name leads to a number that no inode has: damage, or a forged tree.
    #[error(
        "a name in directory {directory} leads to inode {inode}, a number that is never given out: \
         look at the repository with bkfs check"
    )]
    NoSuchNumber {
        /// Where the name is.
        directory: u64,
        /// Where it leads.
        inode: u64,
    },
    /// Every inode number has been given out.
    #[error("the volume has given out all its inode numbers: copy it into a new one")]
    NoNumberLeft,
    /// Bytes could not be read or stored.
    #[error(transparent)]
    Depot(std::sync::Arc<DepotError>),
    /// The volume was taken over, or the root could not be replaced.
    #[error("{0}")]
    Commit(String),
    /// A commit or snapshot may have been made or not.
    #[error("it is not known whether it was made: {0}; look before repeating it")]
    OutcomeUnknown(String),
    /// Nothing more is accepted; the text says why.
    #[error("the mount takes no more writes: {0}")]
    Poisoned(String),
    /// The inode lost something after the handle was opened, and the loss was acknowledged.
    #[error(
        "inode {inode} has lost what was written to it: a file or directory that was open then can \
         only be read and closed, open it again"
    )]
    Lost {
        /// Which inode.
        inode: u64,
    },
    /// The tree below could not be walked.
    #[error("tree: {0}")]
    Tree(String),
}

impl VolumeError {
    /// True if the bucket's own copy of something is damaged or gone.
    pub fn is_damage(&self) -> bool {
        match self {
            VolumeError::Depot(error) => matches!(
                error.cause(),
                DepotError::Damaged { .. }
                    | DepotError::Missing { .. }
                    | DepotError::Unknown { .. }
            ),
            VolumeError::Malformed { .. }
            | VolumeError::NoSuchNumber { .. }
            | VolumeError::Tree(_) => true,
            _ => false,
        }
    }
}

impl From<DepotError> for VolumeError {
    fn from(error: DepotError) -> Self {
        VolumeError::Depot(std::sync::Arc::new(error))
    }
}

impl From<crate::tree::TreeError> for VolumeError {
    fn from(error: crate::tree::TreeError) -> Self {
        VolumeError::Tree(error.to_string())
    }
}
