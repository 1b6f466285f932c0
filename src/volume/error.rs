//! The errors of operations on a volume.
//!
//! Owns: the kinds, in terms of a filesystem. Does not own: errno numbers (`vfs::errno`), exit
//! codes (`cli`).

use bkfs_chunker::error::ContentError;

/// The error that the caller of a filesystem operation gets.
#[derive(Debug, Clone, thiserror::Error)]
pub enum VolumeError {
    /// The name does not exist.
    #[error("no such file or directory")]
    NotFound,
    /// The inode is gone: the caller still held its number, or a snapshot was removed.
    #[error("the file is gone")]
    Stale,
    /// The name exists.
    #[error("the name exists")]
    Exists,
    /// The operation needs a directory.
    #[error("not a directory")]
    NotDirectory,
    /// The operation needs an inode that is not a directory.
    #[error("is a directory")]
    IsDirectory,
    /// The directory contains names.
    #[error("the directory is not empty")]
    NotEmpty,
    /// The operation would write to a snapshot or to a read-only mount.
    #[error("read-only")]
    ReadOnly,
    /// The operation is forbidden on this kind of inode.
    #[error("operation not permitted")]
    NotPermitted,
    /// The caller is not the owner, and only the owner may see this.
    #[error("permission denied")]
    Denied,
    /// A name is longer than 255 bytes.
    #[error("name too long")]
    NameTooLong,
    /// An argument is out of range.
    #[error("invalid argument")]
    Invalid,
    /// The operation goes beyond the maximum size of a file.
    #[error("file too large")]
    TooLarge,
    /// The inode has the maximum number of names.
    #[error("too many links")]
    TooManyLinks,
    /// The extended attribute does not exist.
    #[error("no such attribute")]
    NoAttribute,
    /// The value of an attribute is too long, or the list of attributes is.
    #[error("the attribute is too large")]
    AttributeTooLarge,
    /// There is no data, or no hole, at or after the offset.
    #[error("no data or hole there")]
    NoSuchPlace,
    /// bkfs does not support this operation.
    #[error("operation not supported")]
    NotSupported,
    /// A link or rename between a snapshot and the live volume, or between two snapshots.
    #[error("crosses into another snapshot")]
    CrossesSnapshots,
    /// Another snapshot has this name, or the name is not allowed.
    #[error("snapshot name: {0}")]
    SnapshotName(String),
    /// An item of the tree is malformed: it is damaged, or a newer program wrote it.
    #[error("inode {inode} is malformed in the tree")]
    Malformed {
        /// The inode.
        inode: u64,
    },
    /// A name leads to a number that no inode has: damage, or a forged tree.
    #[error(
        "a name in directory {directory} refers to inode {inode}, a number that bkfs never \
         assigns: run bkfs check"
    )]
    NoSuchNumber {
        /// The directory that holds the name.
        directory: u64,
        /// The inode number that the name leads to.
        inode: u64,
    },
    /// Every inode number was given out.
    #[error("the volume has used all its inode numbers: copy it into a new volume")]
    NoNumberLeft,
    /// Bytes could not be read or stored.
    #[error(transparent)]
    ContentStore(std::sync::Arc<ContentError>),
    /// Dirty bytes could not be read back from the swap file.
    #[error("{0}; unmount the clone, and look at that disk")]
    Swap(#[from] bkfs_chunker::swap::SwapError),
    /// The volume was taken over, or the root could not be replaced.
    #[error("{0}")]
    Commit(String),
    /// It is unknown whether a commit or snapshot was made.
    #[error("it is not known whether the change was made: {0}; check before you repeat it")]
    OutcomeUnknown(String),
    /// The volume accepts nothing more, for the stated reason.
    #[error("the mount takes no more writes: {0}")]
    Poisoned(String),
    /// The inode lost writes after the handle was opened, and the loss was acknowledged.
    #[error(
        "inode {inode} has lost what was written to it: a file or directory that was open then \
         can only be read and closed; open it again"
    )]
    Lost {
        /// The inode.
        inode: u64,
    },
    /// The tree could not be read, or is malformed.
    #[error("tree: {0}")]
    Tree(String),
}

impl VolumeError {
    /// Returns true if the bucket's own copy of an object is damaged or missing.
    pub fn is_damage(&self) -> bool {
        match self {
            VolumeError::ContentStore(error) => match error.cause() {
                ContentError::Index(cause) => cause.is_lost(),
                cause => cause.is_lost(),
            },
            VolumeError::Malformed { .. }
            | VolumeError::NoSuchNumber { .. }
            | VolumeError::Tree(_) => true,
            _ => false,
        }
    }
}

impl From<ContentError> for VolumeError {
    fn from(error: ContentError) -> Self {
        VolumeError::ContentStore(std::sync::Arc::new(error))
    }
}

impl From<crate::tree::TreeError> for VolumeError {
    fn from(error: crate::tree::TreeError) -> Self {
        VolumeError::Tree(error.to_string())
    }
}
