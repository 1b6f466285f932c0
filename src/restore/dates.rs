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
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::fs::Stat;
use rustix::io::Errno;

use crate::restore::finishing::{HeldInode, set_times};
use crate::restore::place;
use crate::restore::source::allocated;
use crate::tree::item::Attributes;

/// Number of files that may wait. Each takes its name and some words in memory.
const FILES_MAX: usize = 4096;

/// Bytes of files that may wait. If the restore is interrupted, they are restored again.
const BYTES_MAX: u64 = 8 << 30;

/// The time that a file may wait for others.
const WAIT_MAX: Duration = Duration::from_secs(30);

/// A whole file that has its name, and not yet its times.
pub struct Undated {
    /// The path of its directory below the target.
    pub below: Arc<Path>,
    /// Its name there.
    pub name: OsString,
    /// What it was when it got its name.
    pub made: Made,
    /// The times, among others.
    pub attributes: Attributes,
}

/// What tells a file apart from one that was changed, or put in its place. The inode's number does
/// not: some filesystems number anew, and others give a number out again.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Made {
    device: u64,
    size_bytes: u64,
    modified: (i64, i64),
}

impl From<&Stat> for Made {
    fn from(stat: &Stat) -> Self {
        Made {
            device: stat.st_dev,
            size_bytes: stat.st_size as u64,
            modified: (stat.st_mtime, stat.st_mtime_nsec as i64),
        }
    }
}

/// The files of a restore that wait for their times.
#[derive(Default)]
pub struct Dates(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    files: Vec<Undated>,
    bytes: u64,
    /// When the first of them began to wait.
    since: Option<Instant>,
}

impl Dates {
    /// Lets a file wait.
    pub fn add(&self, file: Undated) {
        let mut waiting = self.0.lock();
        waiting.since.get_or_insert_with(Instant::now);
        waiting.bytes = waiting.bytes.saturating_add(allocated(&file.attributes));
        waiting.files.push(file);
    }

    /// Returns true if so much waits, or for so long, that it is time to sync.
    pub fn is_due(&self) -> bool {
        self.is_due_at(Instant::now())
    }

    fn is_due_at(&self, now: Instant) -> bool {
        let waiting = self.0.lock();
        let is_long = |since| now.saturating_duration_since(since) >= WAIT_MAX;
        waiting.files.len() >= FILES_MAX
            || waiting.bytes >= BYTES_MAX
            || waiting.since.is_some_and(is_long)
    }

    /// Returns the files that wait: none waits any more.
    pub fn take(&self) -> Vec<Undated> {
        std::mem::take(&mut *self.0.lock()).files
    }
}

/// Gives these files their times, which were synced since. Returns the paths below the target of
/// those that do not get them, with the reason: ESTALE if it was changed since. Blocks.
pub fn set(root: BorrowedFd<'_>, files: Vec<Undated>) -> Vec<(PathBuf, Errno)> {
    let mut failed = Vec::new();
    for group in files.chunk_by(|one, other| Arc::ptr_eq(&one.below, &other.below)) {
        let directory = place::reopen(root, &group[0].below);
        for file in group {
            let set = directory.as_ref().map_err(|error| *error);
            let set = set.and_then(|directory| set_one(directory.as_fd(), file));
            failed.extend(set.err().map(|error| (file.below.join(&file.name), error)));
        }
    }
    failed
}

/// Gives one file its times, unless it was changed since, or another one has its name now.
fn set_one(directory: BorrowedFd<'_>, file: &Undated) -> rustix::io::Result<()> {
    let (held, found) = HeldInode::at(directory, &file.name)?;
    match Made::from(&found) == file.made {
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
            made: Made::from(&found),
            attributes,
        }
    }

    #[test]
    fn a_file_that_was_replaced_since_keeps_its_time() {
        let home = tempfile::TempDir::new().unwrap();
        let write = |name: &str, text: &str| {
            std::fs::write(home.path().join(name), text).unwrap();
        };
        for name in ["same", "long", "old"] {
            write(name, "made");
        }
        let files = ["same", "long", "old"].map(|name| undated(home.path(), name));
        // The time of a change may be that of the last tick of the clock.
        std::thread::sleep(Duration::from_millis(20));
        write("new", "long as it was not");
        std::fs::rename(home.path().join("new"), home.path().join("long")).unwrap();
        write("old", "MADE");
        let root = std::fs::File::open(home.path()).unwrap();
        let failed = set(root.as_fd(), files.into());
        let stale = |name: &str| (PathBuf::from(name), Errno::STALE);
        assert_eq!(failed, [stale("long"), stale("old")]);
        let seconds = |name: &str| home.path().join(name).metadata().unwrap().mtime();
        assert_eq!(seconds("same"), 1_000_000_000);
        assert_ne!(seconds("long"), 1_000_000_000);
        assert_ne!(seconds("old"), 1_000_000_000);
    }

    #[test]
    fn so_many_files_or_bytes_may_wait() {
        let home = tempfile::TempDir::new().unwrap();
        std::fs::write(home.path().join("file"), "").unwrap();
        let dates = Dates::default();
        let now = Instant::now();
        let large = |allocated_bytes| {
            let mut file = undated(home.path(), "file");
            file.attributes.mode = libc::S_IFREG | 0o644;
            file.attributes.size_bytes = BYTES_MAX;
            file.attributes.allocated_bytes = allocated_bytes;
            file
        };
        dates.add(large(0));
        dates.add(large(BYTES_MAX / 2));
        assert!(!dates.is_due_at(now), "holes do not count");
        assert!(dates.is_due_at(now + WAIT_MAX + Duration::from_secs(60)));
        dates.add(large(BYTES_MAX / 2));
        assert!(dates.is_due_at(now));
        assert_eq!(dates.take().len(), 3);
        assert!(
            !dates.is_due_at(now + WAIT_MAX + Duration::from_secs(60)),
            "none waits"
        );
        for _ in 0..FILES_MAX {
            assert!(!dates.is_due());
            dates.add(undated(home.path(), "file"));
        }
        assert!(dates.is_due());
    }
}
