//! Making inodes in the target.

use std::ffi::OsStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use crate::restore::overwrite::Overwrite;
use crate::tree::item::Attributes;

/// Flags for opening directories: never through a link.
pub(super) const DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// A directory that is restored into.
#[derive(Debug)]
pub struct Opened {
    /// The open directory.
    pub fd: OwnedFd,
    /// The permissions that it had if it is not new.
    pub before: Option<Mode>,
}

/// Renames `draft` to `name`, and replaces a link, a file, or an empty directory of that name.
///
/// # Errors
/// The errno of the rename, or of removing the directory.
pub fn rename(directory: BorrowedFd<'_>, draft: &OsStr, name: &OsStr) -> rustix::io::Result<()> {
    let moved = match rustix::fs::renameat(directory, draft, directory, name) {
        Err(Errno::ISDIR) => rustix::fs::unlinkat(directory, name, AtFlags::REMOVEDIR)
            .and_then(|()| rustix::fs::renameat(directory, draft, directory, name)),
        other => other,
    };
    // If both are names of one inode, rename(2) does nothing and leaves both.
    if draft != name {
        discard(directory, draft);
    }
    moved
}

/// Renames `draft` to `name`, which nothing must have. Where the filesystem cannot refuse to replace
/// what has the name, what gets the name at the same time is replaced.
///
/// # Errors
/// EEXIST if anything has the name; the errno of the rename.
pub fn rename_new(
    directory: BorrowedFd<'_>,
    draft: &OsStr,
    name: &OsStr,
) -> rustix::io::Result<()> {
    let flags = RenameFlags::NOREPLACE;
    match rustix::fs::renameat_with(directory, draft, directory, name, flags) {
        // This filesystem does not have the flag.
        Err(Errno::INVAL | Errno::NOSYS) => rename_if_absent(directory, draft, name),
        renamed => renamed,
    }
}

fn rename_if_absent(
    directory: BorrowedFd<'_>,
    draft: &OsStr,
    name: &OsStr,
) -> rustix::io::Result<()> {
    match rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => rustix::fs::renameat(directory, draft, directory, name),
        Err(error) => Err(error),
        Ok(_) => Err(Errno::EXIST),
    }
}

/// Removes a temporary name that is not needed any more.
pub fn discard(directory: BorrowedFd<'_>, draft: &OsStr) {
    if let Err(error) = rustix::fs::unlinkat(directory, draft, AtFlags::empty())
        && error != Errno::NOENT
    {
        tracing::warn!("{} stays behind: {error}", draft.display());
    }
}

/// Opens a directory below `root`, name by name, never through a link. The descriptor serves as a
/// place for names, and not to list them.
///
/// # Errors
/// The errno of opening one of the directories.
pub fn reopen(root: BorrowedFd<'_>, below: &Path) -> rustix::io::Result<OwnedFd> {
    // Not opened for reading, which its permissions may forbid.
    let flags = DIRECTORY.union(OFlags::PATH);
    let mut fd = rustix::fs::openat(root, ".", flags, Mode::empty())?;
    for name in below.iter() {
        fd = rustix::fs::openat(&fd, name, flags, Mode::empty())?;
    }
    Ok(fd)
}

/// Makes a directory, or opens an existing one if any may exist.
///
/// # Errors
/// The errno of making or opening it: EEXIST if it exists and may not, ENOTDIR if anything else has
/// the name.
pub fn directory(
    parent: BorrowedFd<'_>,
    name: &OsStr,
    overwrite: Overwrite,
) -> rustix::io::Result<Opened> {
    match rustix::fs::mkdirat(parent, name, Mode::RWXU) {
        Err(Errno::EXIST) if overwrite.meets_existing() => {
            let flags = DIRECTORY.union(OFlags::PATH);
            let found = rustix::fs::openat(parent, name, flags, Mode::empty())?;
            let before = Some(make_writable(found.as_fd())?);
            let fd = rustix::fs::openat(&found, ".", DIRECTORY, Mode::empty())?;
            return Ok(Opened { fd, before });
        }
        result => result?,
    }
    let fd = rustix::fs::openat(parent, name, DIRECTORY, Mode::empty())?;
    Ok(Opened { fd, before: None })
}

/// Gives the owner of a directory the permission to change it while it is restored into; its own
/// permissions are set at the end. Directories of other users stay as they are, and root needs no
/// permission. Returns the permissions that it had.
pub(super) fn make_writable(directory: BorrowedFd<'_>) -> rustix::io::Result<Mode> {
    let found = rustix::fs::fstat(directory)?;
    let user = rustix::process::geteuid();
    let mode = Mode::from_raw_mode(found.st_mode & 0o7777);
    if user.is_root() || found.st_uid != user.as_raw() || mode.contains(Mode::RWXU) {
        return Ok(mode);
    }
    rustix::fs::chmod(proc_path(directory), mode | Mode::RWXU)?;
    Ok(mode)
}

/// Gives a directory the permissions back that it had before it was restored into.
///
/// # Errors
/// The errno of fchmod(2).
pub fn give_back(directory: BorrowedFd<'_>, before: Mode) -> rustix::io::Result<()> {
    let found = rustix::fs::fstat(directory)?;
    match Mode::from_raw_mode(found.st_mode & 0o7777) == before {
        true => Ok(()),
        false => rustix::fs::fchmod(directory, before),
    }
}

/// Returns a path that leads to an open inode and to no other. It serves for calls that take no
/// descriptor, or none opened with `O_PATH`.
pub(super) fn proc_path(fd: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

/// Makes a fifo, socket or device.
///
/// # Errors
/// The errno of mknodat(2).
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

#[cfg(test)]
mod tests {
    use super::*;

    fn opened(path: &Path) -> OwnedFd {
        rustix::fs::open(path, DIRECTORY, Mode::empty()).unwrap()
    }

    #[test]
    fn a_name_that_anything_has_is_not_taken() {
        let home = tempfile::TempDir::new().unwrap();
        let directory = opened(home.path());
        std::os::unix::fs::symlink("nowhere", home.path().join("link")).unwrap();
        type Rename = fn(BorrowedFd<'_>, &OsStr, &OsStr) -> rustix::io::Result<()>;
        for (rename, new) in [
            (rename_new as Rename, "a"),
            (rename_if_absent as Rename, "b"),
        ] {
            std::fs::write(home.path().join("draft"), "x").unwrap();
            let rename = |name: &str| rename(directory.as_fd(), "draft".as_ref(), name.as_ref());
            assert_eq!(rename("link"), Err(Errno::EXIST));
            rename(new).unwrap();
            assert_eq!(std::fs::read(home.path().join(new)).unwrap(), b"x");
            assert!(!home.path().join("draft").exists());
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
}
