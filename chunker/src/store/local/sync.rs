//! Flushing directories, so that a name is on disk before its write is acknowledged.

use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags, fstat, fsync, openat};
use rustix::io::Errno;

/// How many directories are remembered before those that nobody waits for are forgotten. Forgetting costs a flush, no more.
const REMEMBERED_MAX: usize = 4096;

/// Flushes directories below a root, one flush for all who wait for the same one.
#[derive(Debug, Default)]
pub(super) struct Syncer {
    directories: Mutex<HashMap<String, Arc<Queue>>>,
    /// Device and inode of the directories whose own name is known to be on disk.
    anchored: Mutex<HashSet<(u64, u64)>>,
}

#[derive(Debug, Default)]
struct Queue {
    /// Tickets handed out: each stands for a change that was made before it was drawn.
    asked: AtomicU64,
    flushed: Mutex<Flushed>,
}

#[derive(Debug, Default)]
struct Flushed {
    /// Every ticket up to here has been served.
    through: u64,
    /// The latest ticket whose flush failed, and how.
    failed: Option<(u64, Errno)>,
}

impl Syncer {
    /// Puts the names in `directory` (relative to `root`, empty for itself) on disk, and the names that lead to it.
    pub(super) fn sync(&self, root: impl AsFd, directory: &str) -> Result<(), Errno> {
        let queue = self.queue(directory);
        let ticket = queue.asked.fetch_add(1, Ordering::SeqCst) + 1;
        let mut flushed = queue.flushed.lock();
        if flushed.through < ticket {
            let through = queue.asked.load(Ordering::SeqCst);
            let result = self.flush_chain(root.as_fd(), directory);
            flushed.through = through;
            if let Err(error) = result {
                // Linux reports a failed flush once; all who waited for it must hear of it.
                flushed.failed = Some((through, error));
            }
        }
        match flushed.failed {
            Some((through, error)) if ticket <= through => Err(error),
            _ => Ok(()),
        }
    }

    fn queue(&self, directory: &str) -> Arc<Queue> {
        let mut directories = self.directories.lock();
        if directories.len() >= REMEMBERED_MAX {
            directories.retain(|_, queue| Arc::strong_count(queue) > 1);
        }
        Arc::clone(directories.entry(directory.to_owned()).or_default())
    }

    /// Flushes the directory, and its ancestors as far as their names are not known to be on disk. The inode number tells when a
    /// directory of the same name is another one.
    fn flush_chain(&self, root: impl AsFd, directory: &str) -> Result<(), Errno> {
        let mut directory = directory;
        let mut flushed = Vec::new();
        loop {
            let file = match open_directory(&root, directory) {
                // It went with its last object; what is left to flush is that it is gone.
                Err(Errno::NOENT) if !directory.is_empty() => {
                    directory = parent_of(directory);
                    continue;
                }
                other => other?,
            };
            fsync(&file)?;
            let status = fstat(&file)?;
            let identity = (status.st_dev, status.st_ino);
            if directory.is_empty() || self.anchored.lock().contains(&identity) {
                break;
            }
            flushed.push(identity);
            directory = parent_of(directory);
        }
        // Only now: another thread that finds one of them here relies on all that lead to it.
        let mut anchored = self.anchored.lock();
        if anchored.len() >= REMEMBERED_MAX {
            anchored.clear();
        }
        anchored.extend(flushed);
        Ok(())
    }
}

/// The directory of a key or directory, relative to the root; empty for the root.
pub(super) fn parent_of(key: &str) -> &str {
    key.rsplit_once('/').map_or("", |(parent, _)| parent)
}

/// Opens a directory below `root`; empty for the root itself.
pub(super) fn open_directory(root: impl AsFd, directory: &str) -> Result<OwnedFd, Errno> {
    let path = match directory {
        "" => ".",
        path => path,
    };
    openat(
        root,
        path,
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )
}
