//! A directory of one process, for data that nothing needs after it.
//!
//! Owns: its random name, its mode, and that nothing of it stays: the process removes it, or the next
//! one that makes such a directory does. A lock tells whether it is in use. Does not own: what lies
//! in it.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use bkfs_store::entropy::Entropy;
use rustix::fs::{FlockOperation, OFlags, flock};

/// Names that are tried. Another one is tried if a sweep removes the directory before it is locked.
const NAMES_MAX: usize = 16;

/// A directory that is removed with all that is in it when this is dropped.
#[derive(Debug)]
pub struct OwnDirectory {
    path: PathBuf,
    /// Tells other processes that it is in use.
    _lock: File,
}

impl OwnDirectory {
    /// Makes a directory in `above`, which is made as well. Removes those of the same user that
    /// killed processes have left there. All their names begin with `prefix`.
    ///
    /// # Errors
    /// The I/O error of making a directory.
    pub fn make(above: &Path, prefix: &str, entropy: &dyn Entropy) -> io::Result<OwnDirectory> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(above)?;
        sweep(above, prefix);
        for _ in 0..NAMES_MAX {
            let mut random = [0; 8];
            entropy.fill(&mut random);
            let path = above.join(format!("{prefix}{}", hex::encode(random)));
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                Err(error) => return Err(error),
            }
            if let Some(lock) = take(&path) {
                return Ok(OwnDirectory { path, _lock: lock });
            }
        }
        Err(io::ErrorKind::ResourceBusy.into())
    }

    /// Returns the path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for OwnDirectory {
    fn drop(&mut self) {
        // The next process removes what is left.
        let removed = fs::remove_dir_all(&self.path);
        removed.unwrap_or_else(|error| tracing::debug!(%error, "a directory is left"));
    }
}

fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW;
    OpenOptions::new()
        .read(true)
        .custom_flags(flags.bits() as i32)
        .open(path)
}

/// Locks a directory that was just made. `None` if another process is about to remove it. A
/// filesystem without locks has none that could be swept.
fn take(path: &Path) -> Option<File> {
    let lock = open(path).ok()?;
    match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Err(error) if error == rustix::io::Errno::WOULDBLOCK => return None,
        _ => {}
    }
    let (there, locked) = (fs::symlink_metadata(path).ok()?, lock.metadata().ok()?);
    (there.ino() == locked.ino() && there.dev() == locked.dev()).then_some(lock)
}

/// Removes directories of this user that killed processes have left.
fn sweep(above: &Path, prefix: &str) {
    let user = rustix::process::geteuid().as_raw();
    for entry in fs::read_dir(above).into_iter().flatten().flatten() {
        let path = entry.path();
        let is_named = entry.file_name().to_string_lossy().starts_with(prefix);
        let is_own = || {
            let found = fs::symlink_metadata(&path);
            found.is_ok_and(|found| found.is_dir() && found.uid() == user)
        };
        if !is_named || !is_own() {
            continue;
        }
        if let Ok(left) = open(&path)
            && flock(&left, FlockOperation::NonBlockingLockExclusive).is_ok()
        {
            let _ = fs::remove_dir_all(&path);
        }
    }
}

#[cfg(test)]
mod tests {
    use bkfs_store::entropy::SystemEntropy;

    use super::*;

    const PREFIX: &str = "bkfs-own-";

    #[test]
    fn what_a_killed_process_left_goes_and_the_rest_stays() {
        let above = tempfile::tempdir().unwrap();
        let path = |name: &str| above.path().join(name);
        let own = OwnDirectory::make(above.path(), PREFIX, &SystemEntropy).unwrap();
        fs::write(own.path().join("file"), "bytes").unwrap();
        let left = path("bkfs-own-left");
        fs::create_dir_all(left.join("below")).unwrap();
        fs::create_dir(path("other-12")).unwrap();
        fs::create_dir(path("target")).unwrap();
        std::os::unix::fs::symlink(path("target"), path("bkfs-own-link")).unwrap();
        let second = OwnDirectory::make(above.path(), PREFIX, &SystemEntropy).unwrap();
        assert!(own.path().join("file").exists(), "it is in use");
        assert!(!left.exists());
        assert!(path("other-12").exists() && path("target").exists());
        let paths = [own.path().to_owned(), second.path().to_owned()];
        drop((own, second));
        assert!(paths.iter().all(|path| !path.exists()));
    }
}
