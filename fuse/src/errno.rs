//! The one table of error numbers.
//!
//! Owns: every errno that a filesystem can answer with, its number, and its text for logs.
//! Does not own: which situation gives which error. That table is next to the error types of the
//! filesystem and ends in a variant of [`Errno`], so a new error type does not compile until its
//! errno is decided.

use std::fmt;

macro_rules! errno_table {
    ($($(#[doc = $doc:literal])+ $name:ident $text:literal,)+) => {
        /// An error that a request can answer with. The variants have the names of errno(3).
        #[allow(clippy::upper_case_acronyms)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Errno {
            $($(#[doc = $doc])+ $name,)+
        }

        impl Errno {
            /// Every variant, once.
            pub const ALL: &'static [Errno] = &[$(Errno::$name,)+];

            /// Returns the positive number of the C library on this platform.
            pub const fn raw(self) -> i32 {
                match self {
                    $(Errno::$name => libc::$name,)+
                }
            }

            /// Returns the variant's name as in errno(3), such as `ENOENT`.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Errno::$name => stringify!($name),)+
                }
            }

            const fn text(self) -> &'static str {
                match self {
                    $(Errno::$name => $text,)+
                }
            }
        }
    };
}

errno_table! {
    /// The operation is forbidden for every caller, whatever the permissions: for instance removing
    /// a name that the mount itself shows.
    EPERM "operation not permitted",
    /// There is no such name or inode.
    ENOENT "no such file or directory",
    /// The bytes cannot be stored, or the stored bytes are damaged, missing, or cannot be reached.
    EIO "input/output error",
    /// SEEK_DATA or SEEK_HOLE found nothing at or after the offset, or a device has no driver.
    ENXIO "no such device or address",
    /// An argument list or an attribute list is too long.
    E2BIG "argument list too long",
    /// The handle is not open, or not open for this direction.
    EBADF "bad file descriptor",
    /// A bounded resource is exhausted for the moment; try again.
    EAGAIN "resource temporarily unavailable",
    /// A memory budget is exhausted.
    ENOMEM "cannot allocate memory",
    /// The permissions forbid the operation.
    EACCES "permission denied",
    /// In use, such as a mount point.
    EBUSY "device or resource busy",
    /// The name exists.
    EEXIST "file exists",
    /// The operation leads from one tree into another, such as a rename or link out of a snapshot.
    EXDEV "invalid cross-device link",
    /// A path component is not a directory.
    ENOTDIR "not a directory",
    /// The operation is not for directories.
    EISDIR "is a directory",
    /// An argument is invalid.
    EINVAL "invalid argument",
    /// Too many handles are open in this mount.
    ENFILE "too many open files in system",
    /// The file is no device that understands this ioctl(2).
    ENOTTY "inappropriate ioctl for device",
    /// A file would grow past the largest size of the format.
    EFBIG "file too large",
    /// The store, the spool or the range of inode numbers is full.
    ENOSPC "no space left on device",
    /// The volume, or the tree of a snapshot, is read-only.
    EROFS "read-only file system",
    /// Too many hard links to one inode.
    EMLINK "too many links",
    /// A value does not fit into the caller's buffer.
    ERANGE "numerical result out of range",
    /// A name is longer than 255 bytes, or the target of a symbolic link longer than 4095 bytes.
    ENAMETOOLONG "file name too long",
    /// The operation is not implemented; the kernel does not send it again.
    ENOSYS "function not implemented",
    /// The directory still has names.
    ENOTEMPTY "directory not empty",
    /// There are too many levels of symbolic links.
    ELOOP "too many levels of symbolic links",
    /// The extended attribute is absent.
    ENODATA "no data available",
    /// A number is too large for its type.
    EOVERFLOW "value too large for defined data type",
    /// This kind of attribute, mode or flag is not supported here.
    EOPNOTSUPP "operation not supported",
    /// The store did not answer in time.
    ETIMEDOUT "connection timed out",
    /// The inode is gone, or its snapshot was forgotten.
    ESTALE "stale file handle",
    /// A quota of the store is exhausted.
    EDQUOT "disk quota exceeded",
    /// The request was cancelled because the mount ends.
    ECANCELED "operation canceled",
}

impl Errno {
    /// Returns the variant of a number, or `None` if there is none.
    pub fn from_raw(number: i32) -> Option<Errno> {
        Errno::ALL
            .iter()
            .copied()
            .find(|errno| errno.raw() == number)
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} ({})", self.text(), self.name())
    }
}

impl std::error::Error for Errno {}

impl From<Errno> for std::io::Error {
    fn from(errno: Errno) -> Self {
        std::io::Error::from_raw_os_error(errno.raw())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn numbers_are_positive_and_distinct() {
        let numbers: HashSet<i32> = Errno::ALL.iter().map(|errno| errno.raw()).collect();
        assert_eq!(numbers.len(), Errno::ALL.len());
        assert!(numbers.iter().all(|&number| number > 0));
    }

    #[test]
    fn from_raw_inverts_raw() {
        for &errno in Errno::ALL {
            assert_eq!(Errno::from_raw(errno.raw()), Some(errno));
        }
        assert_eq!(Errno::from_raw(0), None);
        assert_eq!(Errno::from_raw(-1), None);
        assert_eq!(Errno::from_raw(libc::EUCLEAN), None);
    }

    #[test]
    fn tools_see_the_same_error_as_the_standard_library_names() {
        let error = std::io::Error::from(Errno::ENOENT);
        assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
        assert_eq!(
            Errno::ENOTEMPTY.to_string(),
            "directory not empty (ENOTEMPTY)"
        );
    }
}
