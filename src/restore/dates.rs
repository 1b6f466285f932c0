//! The times of restored files, which they get once their contents are on the disk.
//!
//! Owns: which files wait for their times, and how they get them. Does not own: syncing, which comes
//! before (`mod`).
//!
//! A file with the size and the time of last change that the snapshot has is taken for whole by a
//! later restore. The kernel may write that time, the size and the name to the disk before the
//! contents. So a file has the time of its making until the filesystem is synced.

use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::fs::Stat;
use rustix::io::Errno;

use crate::restore::finishing::{HeldInode, set_times};
use crate::restore::place;
use crate::tree::item::Attributes;

/// Number of files that may wait. Each takes its name and some words in memory.
const FILES_MAX: usize = 16_384;

/// Bytes of files that may wait. If the restore is interrupted, they are restored again.
const BYTES_MAX: u64 = 8 << 30;

/// A whole file that has its name, and not yet its times.
pub struct Undated {
    /// The path of its directory below the target.
    pub below: Arc<Path>,
    /// Its name there.
    pub name: OsString,
    /// The whole path, for messages.
    pub path: PathBuf,
    /// Device and number of the inode.
    pub identity: (u64, u64),
    /// The times, among others.
    pub attributes: Attributes,
}

/// Returns device and number of an inode.
pub fn identity(stat: &Stat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}

/// The files of a restore that wait for their times.
#[derive(Default)]
pub struct Dates(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    files: Vec<Undated>,
    bytes: u64,
}

impl Dates {
    /// Lets a file wait.
    pub fn add(&self, file: Undated) {
        let mut waiting = self.0.lock();
        waiting.bytes = waiting.bytes.saturating_add(file.attributes.size_bytes);
        waiting.files.push(file);
    }

    /// Returns true if so much waits that it is time to sync.
    pub fn is_due(&self) -> bool {
        let waiting = self.0.lock();
        waiting.files.len() >= FILES_MAX || waiting.bytes >= BYTES_MAX
    }

    /// Returns the files that wait: none waits any more.
    pub fn take(&self) -> Vec<Undated> {
        std::mem::take(&mut *self.0.lock()).files
    }
}

/// Gives these files their times, which were synced since. Returns those that do not get them, with
/// the reason.
pub fn set(root: BorrowedFd<'_>, files: Vec<Undated>) -> Vec<(PathBuf, Errno)> {
    let mut failed = Vec::new();
    for group in files.chunk_by(|one, other| Arc::ptr_eq(&one.below, &other.below)) {
        let directory = place::reopen(root, &group[0].below);
        for file in group {
            let set = directory.as_ref().map_err(|error| *error);
            let set = set.and_then(|directory| set_one(directory.as_fd(), file));
            failed.extend(set.err().map(|error| (file.path.clone(), error)));
        }
    }
    failed
}

/// Gives one file its times, unless another inode has its name now.
fn set_one(directory: BorrowedFd<'_>, file: &Undated) -> rustix::io::Result<()> {
    let (held, found) = HeldInode::at(directory, &file.name)?;
    match identity(&found) == file.identity {
        true => set_times(&held, &file.attributes),
        false => Err(Errno::STALE),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    fn undated(directory: &Path, name: &str) -> Undated {
        let path = directory.join(name);
        let found = rustix::fs::stat(&path).unwrap();
        let mut attributes = Attributes::default();
        attributes.modified.seconds = 1_000_000_000;
        Undated {
            below: Path::new("").into(),
            name: name.into(),
            path,
            identity: identity(&found),
            attributes,
        }
    }

    #[test]
    fn a_file_that_was_replaced_since_keeps_its_time() {
        let home = tempfile::TempDir::new().unwrap();
        for name in ["same", "old", "new"] {
            std::fs::write(home.path().join(name), name).unwrap();
        }
        let files = ["same", "old"].map(|name| undated(home.path(), name));
        std::fs::rename(home.path().join("new"), home.path().join("old")).unwrap();
        let root = std::fs::File::open(home.path()).unwrap();
        let failed = set(root.as_fd(), files.into());
        assert_eq!(failed, [(home.path().join("old"), Errno::STALE)]);
        let seconds = |name: &str| home.path().join(name).metadata().unwrap().mtime();
        assert_eq!(seconds("same"), 1_000_000_000);
        assert_ne!(seconds("old"), 1_000_000_000);
    }

    #[test]
    fn so_many_files_or_bytes_may_wait() {
        let home = tempfile::TempDir::new().unwrap();
        std::fs::write(home.path().join("file"), "").unwrap();
        let dates = Dates::default();
        let mut large = undated(home.path(), "file");
        large.attributes.size_bytes = BYTES_MAX / 2;
        dates.add(large);
        assert!(!dates.is_due());
        let mut other = undated(home.path(), "file");
        other.attributes.size_bytes = BYTES_MAX / 2;
        dates.add(other);
        assert!(dates.is_due());
        assert_eq!(dates.take().len(), 2);
        for _ in 0..FILES_MAX {
            assert!(!dates.is_due());
            dates.add(undated(home.path(), "file"));
        }
        assert!(dates.is_due());
    }
}
