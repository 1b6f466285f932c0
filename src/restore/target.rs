//! Where a restore goes.
//!
//! Owns how the directory of the target is opened or made, and what may be there already. Does not
//! own what is made in it (`place`).

use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, Dir, Mode, OFlags};
use rustix::io::Errno;

use crate::restore::error::RestoreError;
use crate::restore::overwrite::Overwrite;
use crate::restore::place::{DIRECTORY, Opened, make_writable};
use crate::restore::room::Room;

/// The directory or file that a restore makes.
#[derive(Debug, Clone)]
pub struct Target {
    /// The path, as messages name it.
    path: PathBuf,
    /// The directory that it must not leave, and the path below; none for a path that a user of
    /// this machine has chosen.
    root: Option<(Arc<OwnedFd>, PathBuf)>,
}

impl Target {
    /// Returns the target of a path. Links in it are followed: the user named them.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        Self { path, root: None }
    }

    /// Returns the target `below` an open directory that has the path `of`. No link in it is
    /// followed, whatever other processes put there meanwhile.
    ///
    /// # Errors
    /// [`RestoreError::Target`] if `below` is empty, or has other components than names.
    pub fn beneath(root: Arc<OwnedFd>, of: &Path, below: &Path) -> Result<Self, RestoreError> {
        let path = of.join(below);
        let is_name = |part: Component<'_>| matches!(part, Component::Normal(_));
        // Components leave "." out.
        let names = below.as_os_str().as_encoded_bytes().split(|b| *b == b'/');
        let has_dots = names.into_iter().any(|name| name == b".");
        if has_dots || below.file_name().is_none() || !below.components().all(is_name) {
            return Err(refused(&path, "is no path below that directory"));
        }
        let root = Some((root, below.to_owned()));
        Ok(Self { path, root })
    }

    /// Returns the path, as messages name it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns true if the target is beneath a root.
    pub(super) fn is_beneath(&self) -> bool {
        self.root.is_some()
    }

    /// Returns the room in which the target is or would be made. None if that is not known.
    pub(super) fn room(&self) -> Option<Room> {
        let Some((root, below)) = &self.root else {
            return Room::at(&self.path);
        };
        let flags = DIRECTORY.union(OFlags::PATH);
        let mut nearest = rustix::fs::openat(root, ".", flags, Mode::empty()).ok()?;
        for name in below.iter() {
            match rustix::fs::openat(&nearest, name, flags, Mode::empty()) {
                Ok(found) => nearest = found,
                Err(_) => break,
            }
        }
        Room::in_open(self.path.clone(), nearest.as_fd())
    }

    /// Opens the directory to restore into; makes it if it is absent. A new one is its owner's alone
    /// until it gets the permissions of the snapshot.
    ///
    /// # Errors
    /// [`RestoreError::Target`] if it cannot be made or opened; [`RestoreError::Occupied`] if it has
    /// entries and none may exist.
    pub(super) fn directory(&self, overwrite: Overwrite) -> Result<Opened, RestoreError> {
        let failed = |error: Errno| refused(&self.path, error);
        let (fd, is_there) = match &self.root {
            Some((root, below)) => {
                opened_beneath(root.as_fd(), below, Mode::RWXU).map_err(failed)?
            }
            None => {
                let is_there = self.path.exists();
                let above = self
                    .path
                    .parent()
                    .filter(|above| !above.as_os_str().is_empty());
                let made = std::fs::create_dir_all(above.unwrap_or(Path::new(".")));
                made.map_err(|error| refused(&self.path, error))?;
                match std::fs::DirBuilder::new().mode(0o700).create(&self.path) {
                    Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                        return Err(refused(&self.path, error));
                    }
                    _ => (open_named(&self.path)?, is_there),
                }
            }
        };
        if !overwrite.meets_existing() && !is_empty(fd.as_fd()).map_err(failed)? {
            return Err(occupied(&self.path, true));
        }
        let before = make_writable(fd.as_fd()).map_err(failed)?;
        let before = is_there.then_some(before);
        Ok(Opened { fd, before })
    }

    /// Returns the directory and the name for a single file; makes the directory if it is absent.
    ///
    /// # Errors
    /// [`RestoreError::Target`] if the path names no file, or the directory cannot be made or opened;
    /// [`RestoreError::Occupied`] if the file exists and may not.
    pub(super) fn file(
        &self,
        overwrite: Overwrite,
    ) -> Result<(Arc<OwnedFd>, OsString), RestoreError> {
        let name = self.path.file_name();
        let name = name.ok_or_else(|| refused(&self.path, "names no file"))?;
        let directory = match &self.root {
            Some((root, below)) => {
                let above = below.parent().unwrap_or(Path::new(""));
                let opened = opened_beneath(root.as_fd(), above, ABOVE);
                opened.map_err(|error| refused(&self.path, error))?.0
            }
            None => {
                let above = match self.path.parent() {
                    Some(parent) if !parent.as_os_str().is_empty() => parent,
                    _ => Path::new("."),
                };
                std::fs::create_dir_all(above).map_err(|error| refused(above, error))?;
                open_named(above)?
            }
        };
        let found = rustix::fs::statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW);
        match !overwrite.meets_existing() && found.is_ok() {
            true => Err(occupied(&self.path, false)),
            false => Ok((Arc::new(directory), name.to_owned())),
        }
    }

    /// Checks, and changes nothing, that the target has nothing that may not exist.
    ///
    /// # Errors
    /// [`RestoreError::Occupied`] if it has; [`RestoreError::Target`] if it cannot be read.
    pub(super) fn require_vacant(
        &self,
        is_directory: bool,
        overwrite: Overwrite,
    ) -> Result<(), RestoreError> {
        if overwrite.meets_existing() {
            return Ok(());
        }
        if !is_directory {
            return match self.path.symlink_metadata() {
                Ok(_) => Err(occupied(&self.path, false)),
                Err(_) => Ok(()),
            };
        }
        match std::fs::read_dir(&self.path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(refused(&self.path, error)),
            Ok(mut entries) => match entries.next() {
                None => Ok(()),
                Some(_) => Err(occupied(&self.path, true)),
            },
        }
    }
}

fn occupied(path: &Path, is_directory: bool) -> RestoreError {
    RestoreError::Occupied {
        path: path.to_owned(),
        is_directory,
    }
}

fn refused(path: &Path, reason: impl ToString) -> RestoreError {
    RestoreError::Target {
        path: path.to_owned(),
        reason: reason.to_string(),
    }
}

/// Opens a directory that the user named.
fn open_named(path: &Path) -> Result<OwnedFd, RestoreError> {
    // The user named it, so a link to a directory is as good as the directory.
    let flags = DIRECTORY.difference(OFlags::NOFOLLOW);
    rustix::fs::open(path, flags, Mode::empty()).map_err(|error| refused(path, error))
}

/// Permissions of the directories above a target, before those that the umask takes away.
const ABOVE: Mode = Mode::from_raw_mode(0o777);

/// Opens a directory below `root`, name by name, never through a link; makes it with the permissions
/// `mode`, and those above it, if they are absent. Returns true if it was there.
///
/// Each step looks up one name, which is neither `.` nor `..`, and follows no link. That is what
/// openat2(2) with `RESOLVE_BENEATH` does. systemd refuses openat2 to units with
/// `RestrictSUIDSGID=`, because its filter cannot see the mode of a new file there.
fn opened_beneath(
    root: BorrowedFd<'_>,
    below: &Path,
    mode: Mode,
) -> rustix::io::Result<(OwnedFd, bool)> {
    let mut directory = rustix::fs::openat(root, ".", DIRECTORY, Mode::empty())?;
    let mut is_there = true;
    let mut names = below.iter().peekable();
    while let Some(name) = names.next() {
        let mode = if names.peek().is_some() { ABOVE } else { mode };
        is_there = match rustix::fs::mkdirat(&directory, name, mode) {
            Ok(()) => false,
            Err(Errno::EXIST) => true,
            Err(error) => return Err(error),
        };
        directory = rustix::fs::openat(&directory, name, DIRECTORY, Mode::empty())?;
    }
    Ok((directory, is_there))
}

fn is_empty(directory: BorrowedFd<'_>) -> rustix::io::Result<bool> {
    for entry in Dir::read_from(directory)? {
        let name = entry?.file_name().to_bytes().to_owned();
        if name != b"." && name != b".." {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, symlink};

    use super::*;

    fn root(path: &Path) -> Arc<OwnedFd> {
        Arc::new(rustix::fs::open(path, DIRECTORY, Mode::empty()).unwrap())
    }

    #[test]
    fn a_target_beneath_a_root_does_not_leave_it() {
        let home = tempfile::TempDir::new().unwrap();
        let inside = home.path().join("root");
        std::fs::create_dir(&inside).unwrap();
        std::fs::create_dir(home.path().join("outside")).unwrap();
        symlink("../outside", inside.join("link")).unwrap();
        let root = root(&inside);
        for below in [
            "",
            ".",
            "..",
            "/",
            "/etc",
            "a/..",
            "a/../b",
            "../outside",
            "./a",
            "a/./b",
        ] {
            let target = Target::beneath(root.clone(), &inside, Path::new(below));
            assert!(target.is_err(), "{below}");
        }
        for below in ["link", "link/a", "link/a/b"] {
            let target = Target::beneath(root.clone(), &inside, Path::new(below)).unwrap();
            assert!(target.directory(Overwrite::Always).is_err(), "{below}");
        }
        let target = Target::beneath(root.clone(), &inside, Path::new("link/a")).unwrap();
        target.file(Overwrite::Always).unwrap_err();
        let left = std::fs::read_dir(home.path().join("outside")).unwrap();
        assert_eq!(left.count(), 0);
        let target = Target::beneath(root, &inside, Path::new("new/below")).unwrap();
        target.directory(Overwrite::Refused).unwrap();
        assert!(inside.join("new/below").is_dir());
    }

    #[test]
    fn what_is_there_is_met_only_if_it_may_be() {
        let home = tempfile::TempDir::new().unwrap();
        std::fs::write(home.path().join("file"), "x").unwrap();
        let named = Target::at(home.path());
        let beneath = |below| Target::beneath(root(home.path()), home.path(), Path::new(below));
        named.directory(Overwrite::Refused).unwrap_err();
        named.require_vacant(true, Overwrite::Refused).unwrap_err();
        assert!(named.directory(Overwrite::Never).unwrap().before.is_some());
        for target in [
            Target::at(home.path().join("file")),
            beneath("file").unwrap(),
        ] {
            target.file(Overwrite::Refused).unwrap_err();
            target
                .require_vacant(false, Overwrite::Refused)
                .unwrap_err();
            assert_eq!(target.file(Overwrite::Always).unwrap().1, "file");
        }
        for target in [Target::at(home.path().join("a/b")), beneath("c/d").unwrap()] {
            target.require_vacant(true, Overwrite::Refused).unwrap();
            let before = || target.directory(Overwrite::Refused).unwrap().before;
            assert!(before().is_none());
            let mode = std::fs::metadata(target.path()).unwrap().mode();
            assert_eq!(mode & 0o7777, 0o700);
            assert!(before().is_some());
        }
    }
}
