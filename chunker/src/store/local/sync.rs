//! Flushing directories, so that a name is on disk before its write is acknowledged.
//!
//! Linux reports a flush that failed once, and a second flush of the same directory succeeds without anything having come to disk. So a directory whose flush
//! failed is failed for as long as this process lives, and what it shows is not believed.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags, fsync, openat, statx};
use rustix::io::Errno;

/// How many directories are remembered before those that nobody waits for are forgotten. Forgetting costs a flush, no more.
const REMEMBERED_MAX: usize = 4096;

/// Flushes directories below a root, one flush for all who wait for the same one.
#[derive(Debug, Default)]
pub(super) struct Syncer {
    directories: Mutex<HashMap<String, Arc<Queue>>>,
    /// Directories whose own name is known to be on disk, by that name.
    anchored: Mutex<HashMap<String, Identity>>,
    /// Directories whose names may not be on disk though readers see them.
    doubtful: Mutex<HashMap<String, Doubt>>,
    /// Errors for the next flushes, the last one first.
    #[cfg(test)]
    pub(super) faults: Mutex<Vec<Errno>>,
    /// Directories that were flushed, in order.
    #[cfg(test)]
    pub(super) log: Mutex<Vec<String>>,
}

/// What tells a directory from every other one that ever had its name. Another process may remove a
/// directory, and the next one may get its inode number: so the time of its birth counts too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Identity {
    device: (u32, u32),
    inode: u64,
    born: (i64, u32),
}

impl Identity {
    /// None where the filesystem does not tell when a directory was made: then nothing is known of
    /// its name.
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
    /// They could not be flushed, and the next flush tells.
    Open,
    /// A flush failed: no later one tells anything.
    Failed(Errno),
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
            let mut doubtful = self.doubtful.lock();
            match result {
                Ok(()) => {
                    doubtful.remove(directory);
                }
                Err(error) => {
                    doubtful.entry(directory.to_owned()).or_insert(Doubt::Open);
                    // All who waited for it must hear of it.
                    flushed.failed = Some((through, error));
                }
            }
        }
        match flushed.failed {
            Some((through, error)) if ticket <= through => Err(error),
            _ => Ok(()),
        }
    }

    /// Before what `directory` shows is believed: after a flush that did not succeed another one is tried.
    pub(super) fn settle(&self, root: impl AsFd, directory: &str) -> Result<(), Errno> {
        if self.doubtful.lock().contains_key(directory) {
            return self.sync(root, directory);
        }
        Ok(())
    }

    /// A directory is gone, and with it what is known of its name.
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

    /// Flushes the directory, and its ancestors as far as their names are not known to be on disk.
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
        // Only now: another thread that finds one of them here relies on all that lead to it.
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
            // Interrupted before anything was tried.
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
