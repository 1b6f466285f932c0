//! Restoring a tree, a directory or a file into a local directory, without a mount.
//!
//! Owns: the walk, how each inode is made, the concurrent fetch of parts, and the report of
//! failures. Does not own: reading (`view`).
//!
//! Everything is made relative to open directories and never through a symbolic link. Neither a
//! hostile name in the bucket nor a link in the target can therefore lead outside of the target.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bkfs_chunker::direct::DirectBuffers;
use bkfs_chunker::entropy::SystemEntropy;
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::fault;
use crate::restore::drafts::Drafts;
use crate::tree::item::{Attributes, Item};
use crate::tree::key::Key;
use crate::volume::ROOT_INODE;
use crate::volume::error::VolumeError;
use crate::volume::mode;
use crate::volume::state::Scope;
use crate::volume::view::View;

mod drafts;
mod file;
mod output;
mod place;
mod walk;

/// Parts of files in flight at the same time; each holds at most [`file::PART_BYTES`].
const PARTS_AT_ONCE: usize = 12;

/// Options of a restore.
#[derive(Debug, Clone, Copy, Default)]
pub struct Options {
    /// Replace existing files, and keep files that are not in the snapshot.
    pub overwrite: bool,
    /// Read all written bytes back and compare them.
    pub verify: bool,
    /// Leave out all that is no file, link or directory, and all that gives privileges: set-id
    /// bits, and extended attributes other than `user.`.
    pub no_special: bool,
}

/// Counters of a restore, for a progress display.
#[derive(Debug, Default)]
pub struct Progress {
    /// Inodes made.
    pub inodes: AtomicU64,
    /// Bytes written, with holes counted.
    pub bytes: AtomicU64,
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

/// Why nothing could be restored.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The target cannot be used.
    #[error("{}: {reason}", path.display())]
    Target {
        /// Path of the target, or of a directory above it.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// The snapshot has no such path.
    #[error("no {path} in the snapshot")]
    NoSuchPath {
        /// The path.
        path: String,
    },
    /// The snapshot cannot be read.
    #[error(transparent)]
    Volume(#[from] VolumeError),
}

/// A restore in progress.
struct Job {
    view: View,
    options: Options,
    progress: Arc<Progress>,
    permits: Arc<Semaphore>,
    problems: Mutex<Vec<Problem>>,
    /// True if the process is root: only root may change owners and make devices.
    is_root: bool,
    /// Inodes whose first name does not lead to them, because it could not be made.
    unmade: Mutex<HashSet<u64>>,
    /// Generator of temporary names.
    drafts: Drafts,
    /// Buffers for writes past the page cache.
    buffers: DirectBuffers,
}

impl Job {
    /// Returns the name under which an inode is made that will be called `name`. It is a temporary
    /// one if another file may have that name.
    fn draft(&self, name: &OsStr) -> OsString {
        if !self.options.overwrite {
            return name.to_owned();
        }
        self.drafts.next()
    }

    /// Returns true if an inode is a special file that the options exclude, and counts it then.
    fn leaves_out(&self, attributes: &Attributes) -> bool {
        let is_unwanted = self.options.no_special && mode::is_special(attributes.mode);
        let special = &self.progress.special;
        special.fetch_add(is_unwanted.into(), Ordering::Relaxed);
        is_unwanted
    }

    /// Returns what the restore may set on the inodes that it makes.
    fn rights(&self) -> place::Rights {
        place::Rights {
            is_root: self.is_root,
            no_special: self.options.no_special,
        }
    }

    /// Reports what could not be set; returns true if there was anything.
    fn unset(&self, path: &Path, unset: &place::Unset) -> bool {
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

    fn problem(&self, path: &Path, error: &dyn std::fmt::Display, damaged: bool) {
        let problem = Problem {
            path: path.to_owned(),
            reason: error.to_string(),
            damaged,
        };
        tracing::error!("{}: {}", problem.path.display(), problem.reason);
        self.problems.lock().push(problem);
    }

    fn volume_problem(&self, path: &Path, error: &VolumeError) {
        self.problem(path, error, error.is_damage());
    }

    fn made(&self) {
        self.progress.inodes.fetch_add(1, Ordering::Relaxed);
    }
}

/// Finds an inode by its path from the root. Empty components are skipped.
///
/// # Errors
/// [`RestoreError::NoSuchPath`] if a component does not exist; [`RestoreError::Volume`] if the
/// snapshot cannot be read.
pub async fn resolve(view: &View, path: &[u8]) -> Result<u64, RestoreError> {
    let missing = || RestoreError::NoSuchPath {
        path: crate::printable::name(path),
    };
    let mut inode = ROOT_INODE;
    // A name that leads to an invalid inode number counts as absent, as everywhere.
    for name in path
        .split(|byte| *byte == b'/')
        .filter(|name| !name.is_empty())
    {
        let cookie = view.nodes().names().cookie(name);
        match view
            .item(Scope::Live, &Key::name(inode, cookie, name))
            .await?
        {
            Some(Item::Name { inode: found, .. }) if fault::of_inode(found).is_none() => {
                inode = found;
            }
            _ => return Err(missing()),
        }
    }
    Ok(inode)
}

/// Restores `inode` as `target`: the contents of a directory, or one file.
///
/// Returns the problems: inodes that could not be restored, or not completely. All others are
/// restored and on disk (`syncfs`).
///
/// # Errors
/// [`RestoreError::Target`] if the target cannot be used; [`RestoreError::Volume`] if the
/// attributes of `inode` cannot be read.
pub async fn restore(
    view: View,
    inode: u64,
    target: &Path,
    options: Options,
    progress: Arc<Progress>,
) -> Result<Vec<Problem>, RestoreError> {
    let attributes = view.attributes(Scope::Live, inode).await?;
    let job = Arc::new(Job {
        view,
        options,
        progress,
        permits: Arc::new(Semaphore::new(PARTS_AT_ONCE)),
        problems: Mutex::new(Vec::new()),
        is_root: rustix::process::geteuid().is_root(),
        unmade: Mutex::default(),
        drafts: Drafts::new(&SystemEntropy),
        buffers: DirectBuffers::default(),
    });
    let mut parts = JoinSet::new();
    let directory: OwnedFd = if mode::is_directory(attributes.mode) {
        let directory = place::target_directory(target, options.overwrite)?;
        walk::directory(&job, inode, attributes, &directory, target, &mut parts).await?;
        directory
    } else if job.leaves_out(&attributes) {
        return Ok(Vec::new());
    } else if let Some(fault) = fault::of_attributes(inode, &attributes) {
        job.problem(target, &fault, false);
        return Ok(std::mem::take(&mut *job.problems.lock()));
    } else {
        let (directory, name) = place::target_file(target, options.overwrite)?;
        let place = walk::Place {
            directory: &directory,
            name: &name,
            path: target,
        };
        walk::single(&job, (inode, &attributes), place, &mut parts).await;
        Arc::try_unwrap(directory)
            .or_else(|shared| shared.try_clone())
            .map_err(|error| RestoreError::Target {
                path: target.to_owned(),
                reason: error.to_string(),
            })?
    };
    while let Some(done) = parts.join_next().await {
        if let Err(error) = done {
            job.problem(target, &error, false);
        }
    }
    sync(&directory, target, &job).await;
    Ok(std::mem::take(&mut *job.problems.lock()))
}

/// Syncs the filesystem of the target: files that are only in the page cache do not count as
/// restored.
async fn sync(directory: &OwnedFd, target: &Path, job: &Job) {
    let synced = match directory.try_clone() {
        Ok(directory) => tokio::task::spawn_blocking(move || rustix::fs::syncfs(&directory)).await,
        Err(error) => return job.problem(target, &error, false),
    };
    match synced {
        Ok(Ok(())) => {}
        Ok(Err(error)) => job.problem(target, &error, false),
        Err(error) => job.problem(target, &error, false),
    }
}
