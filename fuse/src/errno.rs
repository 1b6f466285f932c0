//! The one table of error numbers.
//!
//! Owns: every errno bkfs can answer a tool with, its number and the sentence for logs.
//! Does not own: which error a situation calls for; that mapping lives beside the error types
//! of the filesystem and ends in a variant of [`Errno`], so that a new error does not compile
//! until someone has decided what users see.

use std::fmt;

macro_rules! errno_table {
    ($($(#[doc = $doc:literal])+ $name:ident $text:literal,)+) => {
        /// What a request can be refused with. The variants bear the names of errno(3).
        #[allow(clippy::upper_case_acronyms)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Errno {
            $($(#[doc = $doc])+ $name,)+
        }

        impl Errno {
            /// Every variant, once.
            pub const ALL: &'static [Errno] = &[$(Errno::$name,)+];

            /// The positive number of the C library on this platform.
            pub const fn raw(self) -> i32 {
                match self {
                    $(Errno::$name => libc::$name,)+
                }
            }

            /// The variant's name as in errno(3), such as `ENOENT`.
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
    /// The caller may not do this at all, whatever the permissions (for instance, change a snapshot's owner).
    EPERM "operation not permitted",
    /// No such name, or the inode is gone.
    ENOENT "no such file or directory",
    /// The bytes cannot be stored, or those read back are damaged, missing, or out of reach.
    EIO "input/output error",
    /// SEEK_DATA or SEEK_HOLE beyond the last byte, or a device without a driver.
    ENXIO "no such device or address",
    /// An argument list or an attribute list is too long.
    E2BIG "argument list too long",
    /// The handle is not open, or not open in that direction.
    EBADF "bad file descriptor",
    /// Try again: a resource that is bounded is used up for the moment.
    EAGAIN "resource temporarily unavailable",
    /// A memory budget is used up.
    ENOMEM "cannot allocate memory",
    /// The permissions forbid it.
    EACCES "permission denied",
    /// In use, such as a mount point or a snapshot that is being made.
    EBUSY "device or resource busy",
    /// The name is taken.
    EEXIST "file exists",
    /// From one tree into another, such as out of a snapshot by rename or link.
    EXDEV "invalid cross-device link",
    /// A path component is not a directory.
    ENOTDIR "not a directory",
    /// The operation is not for directories.
    EISDIR "is a directory",
    /// An argument makes no sense.
    EINVAL "invalid argument",
    /// Too many open handles in this mount.
    ENFILE "too many open files in system",
    /// Not a device that understands this ioctl(2).
    ENOTTY "inappropriate ioctl for device",
    /// A file would grow past the largest size the format can hold.
    EFBIG "file too large",
    /// The store, the spool or the inode range is full.
    ENOSPC "no space left on device",
    /// The volume, or the tree below a snapshot, is read-only.
    EROFS "read-only file system",
    /// Too many hard links to one inode.
    EMLINK "too many links",
    /// A value does not fit into the buffer the caller gave.
    ERANGE "numerical result out of range",
    /// A name is longer than 255 bytes, or a symbolic link's target longer than 4095.
    ENAMETOOLONG "file name too long",
    /// The kernel shall never ask for this operation again.
    ENOSYS "function not implemented",
    /// The directory still has names in it.
    ENOTEMPTY "directory not empty",
    /// Too many levels of symbolic links.
    ELOOP "too many levels of symbolic links",
    /// The extended attribute is not there.
    ENODATA "no data available",
    /// A number is too large for the type that carries it.
    EOVERFLOW "value too large for defined data type",
    /// This kind of attribute, mode or flag is not supported here.
    EOPNOTSUPP "operation not supported",
    /// The store did not answer within the mount's `timeout=`.
    ETIMEDOUT "connection timed out",
    /// The snapshot this inode belonged to has been forgotten and collected.
    ESTALE "stale file handle",
    /// A quota of the store is used up.
    EDQUOT "disk quota exceeded",
    /// The request was given up because the mount is going away.
    ECANCELED "operation canceled",
}

impl Errno {
    /// The variant of a number, `None` if bkfs never answers with it.
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
