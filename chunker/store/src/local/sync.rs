//! Flushing directories, so that a name is on disk before its write is acknowledged.
//!
//! Linux reports a failed flush once. A second flush of the same directory succeeds even if nothing
//! has reached the disk. Therefore every flush of a directory fails after the first failure until
//! this process ends, and what the directory shows is not trusted.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags, fsync, openat, statx};
use rustix::io::Errno;

/// The number of directories that are remembered. Above it, directories without waiting tasks are
/// forgotten. Forgetting only costs a flush.
const REMEMBERED_MAX: usize = 4096;

/// Flushes directories below a root. All tasks that wait for the same directory share one flush.
#[derive(Debug, Default)]
pub(super) struct Syncer {
    directories: Mutex<HashMap<String, Arc<Queue>>>,
    /// Directories whose own name is known to be on disk, by their name.
    anchored: Mutex<HashMap<String, Identity>>,
    /// Directories that show names which may not be on disk.
    doubtful: Mutex<HashMap<String, Doubt>>,
    /// Errors for the next flushes, the last one first.
    #[cfg(test)]
    pub(super) faults: Mutex<Vec<Errno>>,
    /// The flushed directories, in order.
    #[cfg(test)]
    pub(super) log: Mutex<Vec<String>>,
}

/// The identity of a directory among all directories that ever had its name. Another process may
/// remove a directory, and the next one may get the same inode number, so the time of birth is part
/// of the identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Identity {
    device: (u32, u32),
    inode: u64,
    born: (i64, u32),
}

impl Identity {
    /// Returns the identity, or `None` if the filesystem does not record the time of birth. Then
    /// nothing is known of the directory's name.
    fn of(directory: &OwnedFd) -> Result<Option<Self>, Errno> {
        let wanted = StatxFlags::INO | StatxFlags::BTIME;
        let found = match statx(directory, "", AtFlags::EMPTY_PATH, wanted) {
            Err(Errno::NOSYS) => return Ok(None),
            found => found?,
        };
        let is_told = StatxFlags::from_bits_retain(found.stx_mask).contains(wanted);
        Ok(is_told.then_some(Self {
            device: (found.stx_dev_major, found.stx_dev_minor),
            inode: found.stx_ino,
            born: (found.stx_btime.tv_sec, found.stx_btime.tv_nsec),
        }))
    }
}

/// Why the names in a directory may not be on disk.
#[derive(Debug, Clone, Copy)]
enum Doubt {
    /// They could not be flushed; the next flush shows whether they are on disk.
    Open,
    /// A flush failed: later flushes show nothing.
    Failed(Errno),
}

#[derive(Debug, Default)]
struct Queue {
    /// The number of tickets so far. Each ticket stands for a change that was made before it was
    /// drawn.
    asked: AtomicU64,
    flushed: Mutex<Flushed>,
}

#[derive(Debug, Default)]
struct Flushed {
    /// The last ticket that has been served, and with it all earlier ones.
    through: u64,
    /// The latest ticket whose flush failed, and its error.
    failed: Option<(u64, Errno)>,
}

impl Syncer {
    /// Flushes the names in `directory` (relative to `root`, empty for the root itself), and the
    /// names of the directories that lead to it.
    pub(super) fn sync(&self, root: impl AsFd, directory: &str) -> Result<(), Errno> {
        let queue = self.queue(directory);
        let ticket = queue.asked.fetch_add(1, Ordering::SeqCst) + 1;
        let mut flushed = queue.flushed.lock();
        if flushed.through < ticket {
            let through = queue.asked.load(Ordering::SeqCst);
            let result = self.flush_chain(root.as_fd(), directory);
            flushed.through = through;
            let mut doubtful = self.doubtful.lock();
            match result {
                Ok(()) => {
                    doubtful.remove(directory);
                }
                Err(error) => {
                    doubtful.entry(directory.to_owned()).or_insert(Doubt::Open);
                    // All tasks that waited for this flush get its error.
                    flushed.failed = Some((through, error));
                }
            }
        }
        match flushed.failed {
            Some((through, error)) if ticket <= through => Err(error),
            _ => Ok(()),
        }
    }

    /// Flushes `directory` again if an earlier flush of it did not succeed. Called before its names
    /// are trusted.
    pub(super) fn settle(&self, root: impl AsFd, directory: &str) -> Result<(), Errno> {
        if self.doubtful.lock().contains_key(directory) {
            return self.sync(root, directory);
        }
        Ok(())
    }

    /// Forgets the name of a directory that was removed.
    pub(super) fn forget(&self, directory: &str) {
        self.anchored.lock().remove(directory);
    }

    #[cfg(test)]
    pub(super) fn is_anchored(&self, directory: &str) -> bool {
        self.anchored.lock().contains_key(directory)
    }

    fn queue(&self, directory: &str) -> Arc<Queue> {
        let mut directories = self.directories.lock();
        if directories.len() >= REMEMBERED_MAX {
            directories.retain(|_, queue| Arc::strong_count(queue) > 1);
        }
        Arc::clone(directories.entry(directory.to_owned()).or_default())
    }

    /// Flushes the directory, and those of its ancestors whose names are not known to be on disk.
    fn flush_chain(&self, root: impl AsFd, directory: &str) -> Result<(), Errno> {
        let mut directory = directory;
        let mut flushed = Vec::new();
        loop {
            let file = match open_directory(&root, directory) {
                // The directory was removed with its last object. Only its removal is left to
                // flush.
                Err(Errno::NOENT) if !directory.is_empty() => {
                    directory = parent_of(directory);
                    continue;
                }
                other => other?,
            };
            self.flush(&file, directory)?;
            if directory.is_empty() {
                break;
            }
            let identity = Identity::of(&file)?;
            let known = self.anchored.lock().get(directory).copied();
            if identity.is_some() && identity == known {
                break;
            }
            flushed.extend(identity.map(|identity| (directory.to_owned(), identity)));
            directory = parent_of(directory);
        }
        // Only now: another thread that finds a directory here relies on all names that lead to it.
        let mut anchored = self.anchored.lock();
        if anchored.len() >= REMEMBERED_MAX {
            anchored.clear();
        }
        anchored.extend(flushed);
        Ok(())
    }

    fn flush(&self, file: &OwnedFd, directory: &str) -> Result<(), Errno> {
        if let Some(Doubt::Failed(error)) = self.doubtful.lock().get(directory) {
            return Err(*error);
        }
        #[cfg(test)]
        self.log.lock().push(directory.to_owned());
        let result = self.fsync(file);
        match result {
            // The call was interrupted before it tried anything.
            Ok(()) | Err(Errno::INTR) => {}
            Err(error) => {
                let mut doubtful = self.doubtful.lock();
                doubtful.insert(directory.to_owned(), Doubt::Failed(error));
            }
        }
        result
    }

    fn fsync(&self, file: &OwnedFd) -> Result<(), Errno> {
        #[cfg(test)]
        if let Some(error) = self.faults.lock().pop() {
            return Err(error);
        }
        fsync(file)
    }
}

/// Returns the directory of a key or directory, relative to the root; empty for the root.
pub(super) fn parent_of(key: &str) -> &str {
    key.rsplit_once('/').map_or("", |(parent, _)| parent)
}

/// Opens a directory below `root`, or the root itself if `directory` is empty.
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
