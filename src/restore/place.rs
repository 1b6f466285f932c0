//! Making inodes in the target.

use std::ffi::{CString, OsStr, OsString};
use std::fmt;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Timespec, Timestamps, XattrFlags};
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

/// Gives what was made as `draft` its name, in the place of whatever has it: a link, a file, or an empty directory.
pub fn rename(directory: BorrowedFd<'_>, draft: &OsStr, name: &OsStr) -> rustix::io::Result<()> {
    let moved = match rustix::fs::renameat(directory, draft, directory, name) {
        Err(Errno::ISDIR) => rustix::fs::unlinkat(directory, name, AtFlags::REMOVEDIR)
            .and_then(|()| rustix::fs::renameat(directory, draft, directory, name)),
        other => other,
    };
    // Two names of one inode stay as they are when one is renamed to the other.
    if draft != name {
        discard(directory, draft);
    }
    moved
}

/// Takes a draft away that is not to be had.
pub fn discard(directory: BorrowedFd<'_>, draft: &OsStr) {
    if let Err(error) = rustix::fs::unlinkat(directory, draft, AtFlags::empty())
        && error != Errno::NOENT
    {
        tracing::warn!("{} stays behind: {error}", draft.display());
    }
}

/// Opens a directory below `root` by names, never through a link.
pub fn reopen(root: BorrowedFd<'_>, below: &Path) -> rustix::io::Result<OwnedFd> {
    let mut fd = rustix::fs::openat(root, ".", DIRECTORY, Mode::empty())?;
    for name in below.iter() {
        fd = rustix::fs::openat(&fd, name, DIRECTORY, Mode::empty())?;
    }
    Ok(fd)
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

/// What of an inode's attributes could not be set, each with the reason.
#[derive(Debug, Default)]
pub struct Unset {
    failed: Vec<String>,
    /// Extended attributes that only root can set, and that were left out.
    pub privileged: u64,
}

impl Unset {
    fn note(&mut self, what: impl fmt::Display, result: rustix::io::Result<()>) {
        if let Err(error) = result {
            self.failed.push(format!("{what}: {error}"));
        }
    }

    fn note_xattr(&mut self, name: &[u8], is_root: bool, result: rustix::io::Result<()>) {
        match result {
            // Without privileges only `user.` can be set; that much is expected.
            Err(Errno::PERM) if !is_root && !name.starts_with(b"user.") => self.privileged += 1,
            result => self.note(
                format_args!("extended attribute {}", name.escape_ascii()),
                result,
            ),
        }
    }

    /// What to tell, if anything failed.
    pub fn told(&self) -> Option<String> {
        (!self.failed.is_empty()).then(|| self.failed.join("; "))
    }
}

/// Gives an inode its owner, extended attributes, permissions and times, in the order in which none undoes or forbids another. What fails keeps nothing else from
/// being set.
pub fn finish(
    fd: BorrowedFd<'_>,
    attributes: &Attributes,
    xattrs: &[(Vec<u8>, bytes::Bytes)],
    is_root: bool,
) -> Unset {
    let mut unset = Unset::default();
    if is_root {
        let (uid, gid) = (owner(attributes.uid), group(attributes.gid));
        unset.note("owner", rustix::fs::fchown(fd, Some(uid), Some(gid)));
    }
    for (name, value) in xattrs {
        let set = || {
            let name = CString::new(name.as_slice()).map_err(|_| Errno::INVAL)?;
            rustix::fs::fsetxattr(fd, &name, value, XattrFlags::empty())
        };
        unset.note_xattr(name, is_root, set());
    }
    let mode = Mode::from_raw_mode(attributes.mode & 0o7777);
    unset.note("permissions", rustix::fs::fchmod(fd, mode));
    unset.note("times", rustix::fs::futimens(fd, &times(attributes)));
    unset
}

/// The same for what cannot be opened: links, fifos, sockets, devices.
pub fn finish_at(
    directory: BorrowedFd<'_>,
    name: &OsStr,
    attributes: &Attributes,
    xattrs: &[(Vec<u8>, bytes::Bytes)],
    is_root: bool,
) -> Unset {
    let mut unset = Unset::default();
    let flags = AtFlags::SYMLINK_NOFOLLOW;
    if is_root {
        let (uid, gid) = (Some(owner(attributes.uid)), Some(group(attributes.gid)));
        unset.note(
            "owner",
            rustix::fs::chownat(directory, name, uid, gid, flags),
        );
    }
    for (attribute, value) in xattrs {
        let set = set_xattr_at(directory, name, attribute, value);
        unset.note_xattr(attribute, is_root, set);
    }
    if !crate::volume::mode::is_symlink(attributes.mode) {
        unset.note("permissions", set_mode_at(directory, name, attributes));
    }
    let set = rustix::fs::utimensat(directory, name, &times(attributes), flags);
    unset.note("times", set);
    unset
}

/// Sets the permissions of what was made, and of nothing that has taken its name since, whatever a link there leads to.
fn set_mode_at(
    directory: BorrowedFd<'_>,
    name: &OsStr,
    attributes: &Attributes,
) -> rustix::io::Result<()> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = rustix::fs::openat(directory, name, flags, Mode::empty())?;
    let found = FileType::from_raw_mode(rustix::fs::fstat(&fd)?.st_mode);
    if found != FileType::from_raw_mode(attributes.mode) {
        return Err(Errno::STALE);
    }
    // Such a descriptor cannot be given to fchmod; its path leads to that inode and no other.
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    rustix::fs::chmod(path, Mode::from_raw_mode(attributes.mode & 0o7777))
}

/// Sets an extended attribute of a symbolic link or special file through its path below /proc, as no call takes a directory and a name.
fn set_xattr_at(
    directory: BorrowedFd<'_>,
    name: &OsStr,
    attribute: &[u8],
    value: &[u8],
) -> rustix::io::Result<()> {
    let mut path = format!("/proc/self/fd/{}/", directory.as_raw_fd()).into_bytes();
    path.extend_from_slice(name.as_bytes());
    let (path, attribute) = (OsStr::from_bytes(&path), OsStr::from_bytes(attribute));
    rustix::fs::lsetxattr(path, attribute, value, XattrFlags::empty())
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
    use std::os::fd::AsFd;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn opened(path: &Path) -> OwnedFd {
        rustix::fs::open(path, DIRECTORY, Mode::empty()).unwrap()
    }

    /// Of a fifo that was made under the name a link has now: the link's target is somebody else's.
    #[test]
    fn permissions_never_go_through_a_link() {
        let home = tempfile::TempDir::new().unwrap();
        let victim = home.path().join("victim");
        std::fs::write(&victim, "x").unwrap();
        std::fs::set_permissions(&victim, PermissionsExt::from_mode(0o600)).unwrap();
        std::os::unix::fs::symlink(&victim, home.path().join("name")).unwrap();
        let attributes = Attributes {
            mode: 0o010666,
            ..Attributes::default()
        };
        let directory = opened(home.path());
        let unset = finish_at(
            directory.as_fd(),
            OsStr::new("name"),
            &attributes,
            &[],
            false,
        );
        assert!(unset.told().unwrap().contains("permissions"));
        let mode = victim.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn one_attribute_that_fails_is_named_and_keeps_no_other_from_being_set() {
        let home = tempfile::TempDir::new().unwrap();
        let path = home.path().join("file");
        let file = std::fs::File::create(&path).unwrap();
        let mut attributes = Attributes {
            mode: 0o100444,
            ..Attributes::default()
        };
        attributes.modified.seconds = 1_000_000_000;
        let xattrs = [
            (b"nowhere.first".to_vec(), "1".into()),
            (b"user.second".to_vec(), "2".into()),
        ];
        let told = finish(file.as_fd(), &attributes, &xattrs, false).told();
        let told = told.unwrap();
        assert!(told.contains("nowhere.first"), "{told}");
        assert!(!told.contains("times") && !told.contains("permissions"));
        let metadata = path.metadata().unwrap();
        assert_eq!(metadata.permissions().mode() & 0o777, 0o444);
        let modified = std::os::unix::fs::MetadataExt::mtime(&metadata);
        assert_eq!(modified, 1_000_000_000);
        if !told.contains("user.second") {
            let mut value = [0; 8];
            let length = rustix::fs::fgetxattr(&file, "user.second", &mut value[..]);
            assert_eq!(length, Ok(1));
        }
    }

    #[test]
    fn directories_are_not_reopened_through_links() {
        let home = tempfile::TempDir::new().unwrap();
        std::fs::create_dir_all(home.path().join("a/b")).unwrap();
        std::os::unix::fs::symlink("a", home.path().join("link")).unwrap();
        let root = opened(home.path());
        reopen(root.as_fd(), Path::new("a/b")).unwrap();
        reopen(root.as_fd(), Path::new("")).unwrap();
        reopen(root.as_fd(), Path::new("link/b")).unwrap_err();
    }

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
