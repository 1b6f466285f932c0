//! Making inodes in the target.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::restore::error::RestoreError;
use crate::tree::item::Attributes;

/// Flags for opening directories: never through a link.
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

/// Opens the directory to restore into; makes it if it is absent.
///
/// # Errors
/// [`RestoreError::Target`] if it cannot be made or opened, or is not empty without `overwrite`.
pub fn target_directory(path: &Path, overwrite: bool) -> Result<OwnedFd, RestoreError> {
    std::fs::create_dir_all(path).map_err(|error| refused(path, error))?;
    let mut entries = std::fs::read_dir(path).map_err(|error| refused(path, error))?;
    if !overwrite && entries.next().is_some() {
        return Err(refused(
            path,
            "is not empty; give --overwrite to restore over what is there",
        ));
    }
    // The user named it, so a link to a directory is as good as the directory.
    let flags = DIRECTORY.difference(OFlags::NOFOLLOW);
    let directory = rustix::fs::open(path, flags, Mode::empty());
    let directory = directory.map_err(|error| refused(path, error))?;
    make_writable(directory.as_fd()).map_err(|error| refused(path, error))?;
    Ok(directory)
}

/// Returns the directory and the name for a single file; makes the directory if it is absent.
///
/// # Errors
/// [`RestoreError::Target`] if the path names no file, the directory cannot be made or opened, or
/// the file exists without `overwrite`.
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

/// Removes a temporary name that is not needed any more.
pub fn discard(directory: BorrowedFd<'_>, draft: &OsStr) {
    if let Err(error) = rustix::fs::unlinkat(directory, draft, AtFlags::empty())
        && error != Errno::NOENT
    {
        tracing::warn!("{} stays behind: {error}", draft.display());
    }
}

/// Opens a directory below `root`, name by name, never through a link.
///
/// # Errors
/// The errno of opening one of the directories.
pub fn reopen(root: BorrowedFd<'_>, below: &Path) -> rustix::io::Result<OwnedFd> {
    let mut fd = rustix::fs::openat(root, ".", DIRECTORY, Mode::empty())?;
    for name in below.iter() {
        fd = rustix::fs::openat(&fd, name, DIRECTORY, Mode::empty())?;
    }
    Ok(fd)
}

/// Makes a directory; with `overwrite` opens an existing one.
///
/// # Errors
/// The errno of making or opening it: EEXIST if it exists without `overwrite`, ENOTDIR if anything
/// else has the name.
pub fn directory(
    parent: BorrowedFd<'_>,
    name: &OsStr,
    overwrite: bool,
) -> rustix::io::Result<OwnedFd> {
    match rustix::fs::mkdirat(parent, name, Mode::RWXU) {
        Err(Errno::EXIST) if overwrite => {
            let flags = DIRECTORY.union(OFlags::PATH);
            let found = rustix::fs::openat(parent, name, flags, Mode::empty())?;
            make_writable(found.as_fd())?;
            return rustix::fs::openat(&found, ".", DIRECTORY, Mode::empty());
        }
        result => result?,
    }
    rustix::fs::openat(parent, name, DIRECTORY, Mode::empty())
}

/// Gives the owner of a directory the permission to change it while it is restored into; its own
/// permissions are set at the end. Directories of other users stay as they are, and root needs no
/// permission.
fn make_writable(directory: BorrowedFd<'_>) -> rustix::io::Result<()> {
    let found = rustix::fs::fstat(directory)?;
    let user = rustix::process::geteuid();
    let mode = Mode::from_raw_mode(found.st_mode & 0o7777);
    if user.is_root() || found.st_uid != user.as_raw() || mode.contains(Mode::RWXU) {
        return Ok(());
    }
    rustix::fs::chmod(proc_path(directory), mode | Mode::RWXU)
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
