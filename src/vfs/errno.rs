//! The one table from errors of a volume to errno values.

use bkfs_chunker::error::ContentError;
use bkfs_fuse::Errno;
use bkfs_store::StoreErrorKind;

use crate::volume::error::VolumeError;

/// Returns the errno that the kernel gets for an error. The match is exhaustive: a new error does
/// not compile until its errno is decided.
pub fn errno(error: &VolumeError) -> Errno {
    match error {
        VolumeError::NotFound => Errno::ENOENT,
        VolumeError::Stale => Errno::ESTALE,
        VolumeError::Exists => Errno::EEXIST,
        VolumeError::NotDirectory => Errno::ENOTDIR,
        VolumeError::IsDirectory => Errno::EISDIR,
        VolumeError::NotEmpty => Errno::ENOTEMPTY,
        VolumeError::ReadOnly => Errno::EROFS,
        VolumeError::NotPermitted => Errno::EPERM,
        VolumeError::Denied => Errno::EACCES,
        VolumeError::NameTooLong => Errno::ENAMETOOLONG,
        VolumeError::Invalid | VolumeError::SnapshotName(_) => Errno::EINVAL,
        VolumeError::TooLarge => Errno::EFBIG,
        VolumeError::TooManyLinks => Errno::EMLINK,
        VolumeError::NoAttribute => Errno::ENODATA,
        VolumeError::AttributeTooLarge => Errno::E2BIG,
        VolumeError::NoSuchPlace => Errno::ENXIO,
        VolumeError::NotSupported => Errno::EOPNOTSUPP,
        VolumeError::CrossesSnapshots => Errno::EXDEV,
        VolumeError::Malformed { .. }
        | VolumeError::NoSuchNumber { .. }
        | VolumeError::Tree(_)
        | VolumeError::Swap(_)
        | VolumeError::Lost { .. } => Errno::EIO,
        VolumeError::NoNumberLeft => Errno::ENOSPC,
        VolumeError::Commit(_) | VolumeError::OutcomeUnknown(_) | VolumeError::Poisoned(_) => {
            Errno::EIO
        }
        VolumeError::ContentStore(error) => content_errno(error),
    }
}

fn content_errno(error: &ContentError) -> Errno {
    match error.cause() {
        ContentError::Store(error) => store_errno(error.kind()),
        ContentError::Damaged { .. }
        | ContentError::Missing { .. }
        | ContentError::Unknown { .. }
        | ContentError::Index(_)
        | ContentError::Unreadable { .. }
        | ContentError::Stalled { .. }
        | ContentError::Failed(_)
        | ContentError::Invalid(_)
        | ContentError::CacheDirectory { .. }
        | ContentError::Spool(_)
        | ContentError::Internal(_) => Errno::EIO,
    }
}

fn store_errno(kind: StoreErrorKind) -> Errno {
    match kind {
        StoreErrorKind::NoSpace => Errno::ENOSPC,
        StoreErrorKind::NotFound
        | StoreErrorKind::AlreadyExists
        | StoreErrorKind::Conflict
        | StoreErrorKind::NotModified
        | StoreErrorKind::OutOfRange
        | StoreErrorKind::Denied
        | StoreErrorKind::NoBucket
        | StoreErrorKind::NoServer
        | StoreErrorKind::Unreachable
        | StoreErrorKind::Throttled
        | StoreErrorKind::OutcomeUnknown
        | StoreErrorKind::Invalid
        | StoreErrorKind::Other => Errno::EIO,
    }
}
