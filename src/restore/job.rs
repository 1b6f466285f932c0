//! A restore in progress: its options, its counters, and the problems that it reports.
//!
//! Owns what all parts of a restore share. Does not own the order of the work (`walk`, `file`).

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bkfs_store::direct::DirectBuffers;
use bkfs_store::entropy::SystemEntropy;
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use crate::restore::dates::Dates;
use crate::restore::drafts::Drafts;
use crate::restore::filesystems::Filesystems;
use crate::restore::finishing::{HeldInode, Unset};
use crate::restore::overwrite::{Found, Overwrite};
use crate::restore::place;
use crate::restore::rights::Rights;
use crate::restore::source::Source;
use crate::tree::item::Attributes;
use crate::volume::error::VolumeError;
use crate::volume::mode;

/// Parts of files in flight at the same time; each holds at most [`PART_BYTES`](super::file::PART_BYTES).
const PARTS_AT_ONCE: usize = 12;

/// Length of a frame that holds small files, in bytes.
pub(super) const SMALL_FRAME_BYTES: u64 = 128 * 1024;

/// Frames that small files in flight may hold at the same time, if no two of them share one:
/// 128 MiB.
pub(super) const FRAMES_AT_ONCE: usize = 1024;

/// Options of a restore.
#[derive(Debug, Clone, Copy, Default)]
pub struct Options {
    /// Which existing files are replaced. Files that are not in the snapshot always stay.
    pub overwrite: Overwrite,
    /// Read all written bytes back and compare them.
    pub verify: bool,
    /// Leave out all that is no file, link or directory, and all that gives privileges: set-id
    /// bits, and extended attributes other than `user.`.
    pub no_special: bool,
    /// Leave owners and groups as the kernel gives them to new files.
    pub no_owner: bool,
    /// Most problems that are reported one by one; none for all. [`RestoreProgress::problems`]
    /// counts all of them.
    pub problems_max: Option<usize>,
}

impl Options {
    /// Returns what the restore may set on inodes.
    pub(super) fn rights(&self) -> Rights {
        Rights {
            is_root: rustix::process::geteuid().is_root(),
            no_special: self.no_special,
            no_owner: self.no_owner,
        }
    }
}

/// Counters of a restore, for a progress display.
#[derive(Debug, Default)]
pub struct RestoreProgress {
    /// Inodes made.
    pub inodes: AtomicU64,
    /// Bytes written, with holes counted.
    pub bytes: AtomicU64,
    /// Existing inodes that stay, as [`Options::overwrite`] says.
    pub kept: AtomicU64,
    /// Bytes of these.
    pub kept_bytes: AtomicU64,
    /// Bytes read back and found equal.
    pub verified_bytes: AtomicU64,
    /// Extended attributes left out because only root can set them, or because they give
    /// privileges.
    pub privileged_xattrs: AtomicU64,
    /// Inodes without their set-id bits: their owner or group differs from the snapshot's, or
    /// [`Options::no_special`] excludes the bits.
    pub set_ids: AtomicU64,
    /// Devices, fifos and sockets that [`Options::no_special`] excludes.
    pub special: AtomicU64,
    /// Problems.
    pub problems: AtomicU64,
}

impl RestoreProgress {
    /// Counts an existing inode that stays.
    pub(super) fn keep(&self, attributes: &Attributes) {
        self.kept.fetch_add(1, Ordering::Relaxed);
        if mode::is_regular(attributes.mode) {
            let bytes = attributes.size_bytes;
            self.kept_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
    }
}

/// An inode that could not be restored, or not completely.
#[derive(Debug, Clone)]
pub struct Problem {
    /// Its path in the target.
    pub path: PathBuf,
    /// The reason.
    pub reason: String,
    /// True if the bucket's copy is damaged.
    pub damaged: bool,
}

/// A restore in progress.
pub(super) struct Job {
    pub(super) source: Source,
    /// Directories that no pattern names and in which something is restored.
    pub(super) leading: HashSet<u64>,
    pub(super) options: Options,
    rights: Rights,
    pub(super) progress: Arc<RestoreProgress>,
    pub(super) permits: Arc<Semaphore>,
    /// Limits the small files in flight, by the frames that they hold.
    pub(super) small_permits: Arc<Semaphore>,
    pub(super) problems: Mutex<Vec<Problem>>,
    /// Inodes whose first name does not lead to them, because it could not be made.
    pub(super) unmade: Mutex<HashSet<u64>>,
    /// What it writes to.
    pub(super) filesystems: Filesystems,
    /// Files that wait for their times.
    pub(super) dates: Dates,
    /// Generator of temporary names.
    pub(super) drafts: Drafts,
    /// Buffers for writes past the page cache.
    pub(super) buffers: DirectBuffers,
    /// A sync has failed. The kernel reports a failed write to one sync only, so no file that was
    /// being written then gets its times from a later one.
    pub(super) has_sync_failed: AtomicBool,
    /// The restore was dropped before its end. What is not whole gets no name.
    pub(super) is_abandoned: AtomicBool,
}

/// Tells a job, unless it is at its end, that its restore was dropped.
pub(super) struct Abandoning(pub(super) Option<Arc<Job>>);

impl Drop for Abandoning {
    fn drop(&mut self) {
        if let Some(job) = &self.0 {
            job.is_abandoned.store(true, Ordering::SeqCst);
        }
    }
}

impl Job {
    /// Returns a restore that has not begun.
    pub(super) fn new(
        source: Source,
        leading: HashSet<u64>,
        options: Options,
        progress: Arc<RestoreProgress>,
    ) -> Arc<Self> {
        Arc::new(Job {
            source,
            leading,
            options,
            rights: options.rights(),
            progress,
            permits: Arc::new(Semaphore::new(PARTS_AT_ONCE)),
            small_permits: Arc::new(Semaphore::new(FRAMES_AT_ONCE)),
            problems: Mutex::new(Vec::new()),
            unmade: Mutex::default(),
            filesystems: Filesystems::default(),
            dates: Dates::default(),
            drafts: Drafts::new(&SystemEntropy),
            buffers: DirectBuffers::default(),
            has_sync_failed: AtomicBool::new(false),
            is_abandoned: AtomicBool::new(false),
        })
    }

    /// Returns the name under which an inode other than a file is made that will be called `name`.
    /// It is a temporary one if an existing inode may have that name.
    pub(super) fn draft(&self, name: &OsStr) -> OsString {
        match self.options.overwrite.meets_existing() {
            true => self.drafts.next(),
            false => name.to_owned(),
        }
    }

    /// Returns the inode that has `name` in the target if it may stay.
    pub(super) fn kept(
        &self,
        directory: BorrowedFd<'_>,
        name: &OsStr,
        attributes: &Attributes,
    ) -> Option<HeldInode> {
        let overwrite = self.options.overwrite;
        if !overwrite.may_keep() {
            return None;
        }
        let (held, stat) = HeldInode::at(directory, name).ok()?;
        let keeps = overwrite.keeps(&Found::from(&stat), attributes, self.rights());
        keeps.then_some(held)
    }

    /// Gives an inode its own name instead of `draft`. Replaces what has the name, if the options
    /// say so.
    ///
    /// # Errors
    /// EEXIST if anything has the name and must stay; the errno of the rename.
    pub(super) fn put_in_place(
        &self,
        directory: BorrowedFd<'_>,
        draft: &OsStr,
        name: &OsStr,
    ) -> rustix::io::Result<()> {
        if draft == name {
            return Ok(());
        }
        match self.options.overwrite.replaces() {
            true => place::rename(directory, draft, name),
            false => place::rename_new(directory, draft, name)
                .inspect_err(|_| place::discard(directory, draft)),
        }
    }

    /// Returns true if an inode is a special file that the options exclude, and counts it then.
    pub(super) fn leaves_out(&self, attributes: &Attributes) -> bool {
        let is_unwanted = self.options.no_special && mode::is_special(attributes.mode);
        let special = &self.progress.special;
        special.fetch_add(is_unwanted.into(), Ordering::Relaxed);
        is_unwanted
    }

    /// Returns what the restore may set on the inodes that it makes.
    pub(super) fn rights(&self) -> Rights {
        self.rights
    }

    /// Reports what could not be set; returns true if there was anything.
    pub(super) fn unset(&self, path: &Path, unset: &Unset) -> bool {
        let left_out = &self.progress.privileged_xattrs;
        left_out.fetch_add(unset.privileged, Ordering::Relaxed);
        let set_ids = &self.progress.set_ids;
        set_ids.fetch_add(unset.set_ids.into(), Ordering::Relaxed);
        let told = unset.told();
        if let Some(told) = &told {
            self.problem(path, told, false);
        }
        told.is_some()
    }

    pub(super) fn problem(&self, path: &Path, error: &dyn std::fmt::Display, damaged: bool) {
        let problem = Problem {
            path: path.to_owned(),
            reason: error.to_string(),
            damaged,
        };
        let count = self.progress.problems.fetch_add(1, Ordering::Relaxed);
        if self
            .options
            .problems_max
            .is_some_and(|most| count >= most as u64)
        {
            return;
        }
        tracing::error!("{}: {}", problem.path.display(), problem.reason);
        self.problems.lock().push(problem);
    }

    pub(super) fn volume_problem(&self, path: &Path, error: &VolumeError) {
        self.problem(path, error, error.is_damage());
    }

    pub(super) fn made(&self) {
        self.progress.inodes.fetch_add(1, Ordering::Relaxed);
    }
}
