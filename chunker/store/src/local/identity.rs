//! The identity of a file among all files that ever had its name.

use std::ffi::{c_char, c_int, c_uint};
use std::os::fd::{AsFd, AsRawFd};

use rustix::fs::{FsWord, fstat, fstatfs};
use rustix::io::Errno;

use crate::Version;

/// MAX_HANDLE_SZ of linux/exportfs.h, in bytes.
const HANDLE_BYTES_MAX: usize = 128;

/// Filesystems whose file handles hold an inode number and a generation that are stable and never
/// reused (statfs(2), linux/magic.h). FUSE is not among them: its handles change when the kernel
/// forgets the inode.
const STABLE_HANDLES: [FsWord; 8] = [
    0xEF53,      // ext2, ext3, ext4
    0x5846_5342, // xfs
    0x9123_683E, // btrfs
    0xF2F5_2010, // f2fs
    0x2FC1_2FC1, // zfs
    0xCA45_1A4E, // bcachefs
    0x0102_1994, // tmpfs
    0x6969,      // NFS
];

/// struct file_handle with room for the bytes that follow it.
#[repr(C)]
struct Handle {
    bytes: c_uint,
    kind: c_int,
    handle: [u8; HANDLE_BYTES_MAX],
}

/// How a filesystem's files are told apart.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Identity {
    /// By their file handles: exact, and without reading the files.
    Handle,
    /// By their content, size, inode number and modification time.
    Content,
}

impl Identity {
    /// Returns the method that the filesystem of this open directory allows. The directory itself
    /// is used for the test.
    pub(super) fn of_filesystem(directory: impl AsFd) -> Result<Self, Errno> {
        let stable = STABLE_HANDLES.contains(&fstatfs(&directory)?.f_type);
        Ok(match stable && handle_of(&directory).is_ok() {
            true => Identity::Handle,
            false => Identity::Content,
        })
    }

    /// Returns the version of an open file. `read` returns the hash of its content and is called
    /// only if that is needed.
    pub(super) fn version<E: From<Errno>>(
        self,
        file: impl AsFd,
        read: impl FnOnce() -> Result<blake3::Hash, E>,
    ) -> Result<Version, E> {
        let status = fstat(&file)?;
        let mut hasher = blake3::Hasher::new();
        hasher.update(&status.st_ino.to_le_bytes());
        hasher.update(&status.st_size.to_le_bytes());
        match self {
            Identity::Handle => {
                let handle = handle_of(&file)?;
                hasher.update(&handle.kind.to_le_bytes());
                // The kernel never reports more bytes than there is room for.
                let bytes = (handle.bytes as usize).min(HANDLE_BYTES_MAX);
                hasher.update(&handle.handle[..bytes]);
            }
            Identity::Content => {
                hasher.update(&status.st_mtime.to_le_bytes());
                hasher.update(&status.st_mtime_nsec.to_le_bytes());
                hasher.update(read()?.as_bytes());
            }
        }
        let token = hex::encode(&hasher.finalize().as_bytes()[..16]);
        Ok(Version::token(token))
    }
}

fn handle_of(file: impl AsFd) -> Result<Handle, Errno> {
    let mut handle = Handle {
        bytes: HANDLE_BYTES_MAX as c_uint,
        kind: 0,
        handle: [0; HANDLE_BYTES_MAX],
    };
    let mut mount: c_int = 0;
    let empty: *const c_char = c"".as_ptr();
    // SAFETY: `Handle` begins with the fields of struct file_handle, followed by the room that
    // `bytes` states. It, the mount id and the path are valid during the call, and the kernel keeps
    // no pointer to them. The descriptor is open while `file` is borrowed.
    let result = unsafe {
        libc::name_to_handle_at(
            file.as_fd().as_raw_fd(),
            empty,
            (&raw mut handle).cast(),
            &raw mut mount,
            libc::AT_EMPTY_PATH,
        )
    };
    match result {
        0 => Ok(handle),
        _ => Err(last_error()),
    }
}

fn last_error() -> Errno {
    std::io::Error::last_os_error()
        .raw_os_error()
        .map_or(Errno::IO, Errno::from_raw_os_error)
}
