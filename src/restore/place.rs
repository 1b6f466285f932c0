//! Making inodes in the target.

use std::ffi::{CString, OsStr, OsString};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Timespec, Timestamps};
use rustix::io::Errno;

use crate::restore::RestoreError;
use crate::tree::item::{Attributes, Timestamp};

/// How directories are opened: never through a link.
const DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

fn refused(path: &Path, reason: impl ToString) -> RestoreError {
    RestoreError::Target {
        path: path.to_owned(),
        reason: reason.to_string(),
    }
}

/// The directory to restore into, made if absent, empty unless `overwrite`.
pub fn target_directory(path: &Path, overwrite: bool) -> Result<OwnedFd, RestoreError> {
    std::fs::create_dir_all(path).map_err(|error| refused(path, error))?;
    let mut entries = std::fs::read_dir(path).map_err(|error| refused(path, error))?;
    if !overwrite && entries.next().is_some() {
        return Err(refused(
            path,
            "is not empty; give --overwrite to restore over what is there",
        ));
    }
    // The user named it: a link to a directory is as good as the directory.
    let flags = DIRECTORY.difference(OFlags::NOFOLLOW);
    rustix::fs::open(path, flags, Mode::empty()).map_err(|error| refused(path, error))
}

/// The directory and name for a single file.
pub fn target_file(path: &Path, overwrite: bool) -> Result<(Arc<OwnedFd>, OsString), RestoreError> {
    let name = path
        .file_name()
        .ok_or_else(|| refused(path, "names no file"))?
        .to_owned();
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    std::fs::create_dir_all(parent).map_err(|error| refused(parent, error))?;
    if !overwrite && path.symlink_metadata().is_ok() {
        return Err(refused(path, "exists; give --overwrite to replace it"));
    }
    let flags = DIRECTORY.difference(OFlags::NOFOLLOW);
    let directory =
        rustix::fs::open(parent, flags, Mode::empty()).map_err(|error| refused(parent, error))?;
    Ok((Arc::new(directory), name))
}

/// True if a name from the bucket may be made in a directory.
pub fn is_safe(name: &[u8]) -> bool {
    !name.is_empty() && name != b"." && name != b".." && !name.contains(&b'/') && !name.contains(&0)
}

/// Makes way for an inode that is no directory.
pub fn clear(directory: BorrowedFd<'_>, name: &OsStr) -> rustix::io::Result<()> {
    match rustix::fs::unlinkat(directory, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(Errno::ISDIR | Errno::PERM) => {
            rustix::fs::unlinkat(directory, name, AtFlags::REMOVEDIR)
        }
        Err(error) => Err(error),
    }
}

/// Makes a directory, or opens one that is there.
pub fn directory(
    parent: BorrowedFd<'_>,
    name: &OsStr,
    overwrite: bool,
) -> rustix::io::Result<OwnedFd> {
    match rustix::fs::mkdirat(parent, name, Mode::RWXU) {
        Err(Errno::EXIST) if overwrite => {}
        result => result?,
    }
    rustix::fs::openat(parent, name, DIRECTORY, Mode::empty())
}

/// Makes an empty regular file.
pub fn file(parent: BorrowedFd<'_>, name: &OsStr) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(parent, name, flags, Mode::RUSR | Mode::WUSR)
}

/// Makes a fifo, socket or device.
pub fn special(
    parent: BorrowedFd<'_>,
    name: &OsStr,
    attributes: &Attributes,
) -> rustix::io::Result<()> {
    let kind = FileType::from_raw_mode(attributes.mode);
    rustix::fs::mknodat(
        parent,
        name,
        kind,
        Mode::RUSR | Mode::WUSR,
        u64::from(attributes.device),
    )
}

/// Gives an inode its owner, extended attributes, permissions and times, in the order in which none undoes another.
pub fn finish(
    fd: BorrowedFd<'_>,
    attributes: &Attributes,
    xattrs: &[(Vec<u8>, bytes::Bytes)],
    is_root: bool,
) -> rustix::io::Result<()> {
    if is_root {
        rustix::fs::fchown(fd, Some(owner(attributes.uid)), Some(group(attributes.gid)))?;
    }
    rustix::fs::fchmod(fd, Mode::from_raw_mode(attributes.mode & 0o7777))?;
    for (name, value) in xattrs {
        let Ok(name) = CString::new(name.as_slice()) else {
            return Err(Errno::INVAL);
        };
        match rustix::fs::fsetxattr(fd, &name, value, rustix::fs::XattrFlags::empty()) {
            // Without privileges only `user.` can be set; that much is expected.
            Err(Errno::PERM) if !is_root && !name.as_bytes().starts_with(b"user.") => {}
            result => result?,
        }
    }
    rustix::fs::futimens(fd, &times(attributes))
}

/// The same for what cannot be opened: links, fifos, sockets, devices.
pub fn finish_at(
    directory: BorrowedFd<'_>,
    name: &OsStr,
    attributes: &Attributes,
    is_root: bool,
) -> rustix::io::Result<()> {
    if is_root {
        let (uid, gid) = (Some(owner(attributes.uid)), Some(group(attributes.gid)));
        rustix::fs::chownat(directory, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW)?;
    }
    if !crate::volume::mode::is_symlink(attributes.mode) {
        let mode = Mode::from_raw_mode(attributes.mode & 0o7777);
        rustix::fs::chmodat(directory, name, mode, AtFlags::empty())?;
    }
    rustix::fs::utimensat(
        directory,
        name,
        &times(attributes),
        AtFlags::SYMLINK_NOFOLLOW,
    )
}

/// Sets extended attributes of a symbolic link or special file through its path below /proc, as no call takes a directory and a name.
pub fn xattrs_at(
    directory: BorrowedFd<'_>,
    name: &OsStr,
    xattrs: &[(Vec<u8>, bytes::Bytes)],
    is_root: bool,
) -> rustix::io::Result<()> {
    if xattrs.is_empty() {
        return Ok(());
    }
    use std::os::fd::AsRawFd;
    let mut path = format!("/proc/self/fd/{}/", directory.as_raw_fd()).into_bytes();
    path.extend_from_slice(name.as_bytes());
    for (attribute, value) in xattrs {
        let attribute = OsStr::from_bytes(attribute);
        match rustix::fs::lsetxattr(
            OsStr::from_bytes(&path),
            attribute,
            value,
            rustix::fs::XattrFlags::empty(),
        ) {
            Err(Errno::PERM) if !is_root => {}
            result => result?,
        }
    }
    Ok(())
}

fn owner(uid: u32) -> rustix::fs::Uid {
    rustix::fs::Uid::from_raw(uid)
}

fn group(gid: u32) -> rustix::fs::Gid {
    rustix::fs::Gid::from_raw(gid)
}

fn times(attributes: &Attributes) -> Timestamps {
    let spec = |time: Timestamp| Timespec {
        tv_sec: time.seconds,
        tv_nsec: time.nanoseconds.into(),
    };
    Timestamps {
        last_access: spec(attributes.accessed),
        last_modification: spec(attributes.modified),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_lead_elsewhere_are_unsafe() {
        for name in [&b""[..], b".", b"..", b"a/b", b"/etc", b"a\0b"] {
            assert!(!is_safe(name), "{name:?}");
        }
        for name in [&b"a"[..], b"...", b" ", b"\xff\n", b".bkfs"] {
            assert!(is_safe(name), "{name:?}");
        }
    }
}
