//! What all tasks of a put share.

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::task::JoinError;

use crate::put_tree::facts::{Facts, is_unchanged};
use crate::put_tree::read::Xattrs;
use crate::put_tree::report::Report;
use crate::restore::selection::Selection;
use crate::stream::StreamError;
use crate::tree::item::Timestamp;
use crate::volume::Volume;
use crate::volume::error::VolumeError;
use crate::volume::namespace::NewInode;
use crate::volume::stamp::Stamp;
use crate::volume::state::Scope;

/// Large files that are read at once. Each takes three blocks of memory.
const LARGE_AT_ONCE: usize = 2;

/// What a put takes, and how.
#[derive(Debug, Default)]
pub struct Options {
    /// The patterns that leave names out, as whole paths on this machine.
    pub selection: Selection,
    /// Stays on the filesystem of each directory that the user named.
    pub one_file_system: bool,
    /// Leaves out the contents of directories that a tag marks as caches.
    pub exclude_caches: bool,
    /// Reads all files, also those that have not changed.
    pub force: bool,
    /// Directories that are left out, by filesystem and inode, with the reason.
    pub own: HashMap<(u64, u64), &'static str>,
    /// Filesystems that are left out: mounts of bkfs.
    pub mounts: HashSet<u64>,
}

/// Why the contents of a directory are left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pass {
    /// They are part of bkfs itself, or no files, as the text says.
    Own(&'static str),
    /// They lie on another filesystem than the directory that the user named.
    OtherFilesystem,
}

impl Options {
    /// Returns why the contents of a directory are left out, if they are. `filesystem` is that of
    /// the directory that the user named. `is_made_up` tells whether the kernel makes up what is in
    /// the directory; it is asked on other filesystems only.
    pub fn pass(
        &self,
        facts: &Facts,
        filesystem: u64,
        is_made_up: impl FnOnce() -> bool,
    ) -> Option<Pass> {
        let is_other = facts.filesystem != filesystem;
        if let Some(why) = self.own.get(&(facts.filesystem, facts.inode)) {
            Some(Pass::Own(why))
        } else if is_other && self.mounts.contains(&facts.filesystem) {
            Some(Pass::Own("it is a mount of bkfs"))
        } else if is_other && self.one_file_system {
            Some(Pass::OtherFilesystem)
        } else if is_other && is_made_up() {
            Some(Pass::Own("the kernel makes up what is in it"))
        } else {
            None
        }
    }
}

/// A file with several names.
#[derive(Debug, Clone, Copy)]
pub struct Linked {
    /// What the source said of it.
    pub facts: Facts,
    /// Its inode in the volume; none while it is being stored, or if it could not be read.
    pub inode: Option<u64>,
}

/// A put in progress.
pub struct Job {
    /// The volume.
    pub volume: Arc<Volume>,
    /// What is taken.
    pub options: Arc<Options>,
    /// When the put began, by this machine's clock.
    pub started: Timestamp,
    /// The same, as the clock was then.
    began: Timestamp,
    /// What was done so far.
    pub report: Arc<Report>,
    /// The files with several names, by filesystem and inode.
    pub links: Mutex<HashMap<(u64, u64), Linked>>,
    /// Limits the large files that are read at once.
    pub large: Semaphore,
}

impl Job {
    /// Returns a put that begins now.
    pub fn new(volume: Arc<Volume>, options: Arc<Options>, report: Arc<Report>) -> Job {
        Job {
            started: volume.now(),
            began: volume.now(),
            volume,
            options,
            report,
            links: Mutex::default(),
            large: Semaphore::new(LARGE_AT_ONCE),
        }
    }

    /// Returns the number of files that are read at once.
    pub fn files_at_once() -> usize {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        (2 * cores).clamp(4, 64)
    }

    /// Returns true if the inode of the volume is what the source has now.
    ///
    /// # Errors
    /// Those of reading the volume.
    pub async fn is_unchanged(&self, inode: u64, facts: &Facts) -> Result<bool, VolumeError> {
        if self.options.force {
            return Ok(false);
        }
        let stored = self.volume.view.attributes(Scope::Live, inode).await?;
        Ok(is_unchanged(&stored, facts))
    }

    /// Notes the inode of a file that has several names.
    pub fn linked(&self, facts: &Facts, inode: u64) {
        if facts.links > 1 {
            let linked = Linked {
                facts: *facts,
                inode: Some(inode),
            };
            self.links.lock().insert(facts.key(), linked);
        }
    }

    /// Returns the inode of a file that has several names, if it has not changed since it was
    /// stored. Another file may have got its number.
    pub fn stored(&self, facts: &Facts) -> Option<u64> {
        let linked = self.links.lock().get(&facts.key()).copied()?;
        linked.inode.filter(|_| linked.facts.is_same(facts))
    }

    /// Returns what an inode gets of these facts. `is_whole` is false for a file that changed while
    /// it was read, or was not read with all its attributes: the next put reads it again.
    pub fn stamp(&self, facts: &Facts, xattrs: Option<Xattrs>, is_whole: bool) -> Stamp {
        let never = Timestamp {
            seconds: i64::MIN,
            nanoseconds: 0,
        };
        let now = self.volume.now();
        let started = match is_whole {
            false => never,
            // The clock was set back meanwhile, so it may have been wrong when the put began.
            true if now < self.began => now,
            true => self.started,
        };
        Stamp {
            mode: facts.mode,
            uid: facts.uid,
            gid: facts.gid,
            size_bytes: None,
            accessed: facts.accessed,
            modified: facts.modified,
            changed: facts.changed,
            flags: facts.flags(0, started),
            xattrs,
        }
    }
}

/// Returns a new inode with these facts.
pub fn new_inode(facts: &Facts, profile: u8) -> NewInode {
    NewInode {
        mode: facts.mode,
        uid: facts.uid,
        gid: facts.gid,
        device: facts.device,
        target: None,
        profile,
    }
}

/// Runs calls to the source's filesystem on a thread that may wait.
///
/// # Errors
/// The I/O error of the calls.
pub async fn waiting<T: Send + 'static>(
    calls: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    match tokio::task::spawn_blocking(calls).await {
        Ok(result) => result,
        Err(error) => Err(io::Error::other(error)),
    }
}

/// Returns the result of a task.
///
/// # Errors
/// That of the task; [`StreamError::Read`] if it panicked.
pub(super) fn result_of(
    ended: Result<Result<(), StreamError>, JoinError>,
) -> Result<(), StreamError> {
    ended.unwrap_or_else(|error| Err(StreamError::Read(io::Error::other(error))))
}
