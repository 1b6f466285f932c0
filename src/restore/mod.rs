//! Restoring a tree, a directory or a file into a local directory, without a mount.
//!
//! Owns: the walk, what is made of each inode, how parts are fetched in parallel, and what is said of what failed. Does not own: reading (`view`).
//!
//! Everything is made relative to open directories and never through a symbolic link, so that neither a hostile name in the bucket nor a link that lies in the
//! target can lead outside of it.

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

/// Parts of files in flight at once; each holds at most [`file::PART_BYTES`].
const PARTS_AT_ONCE: usize = 12;

/// How a restore is done.
#[derive(Debug, Clone, Copy, Default)]
pub struct Options {
    /// Replace what is there, and keep what is not in the snapshot.
    pub overwrite: bool,
    /// Read everything back and compare.
    pub verify: bool,
    /// Leave out what is no file, link or directory, and what gives privileges: set-id bits, and
    /// extended attributes other than `user.`.
    pub no_special: bool,
}

/// How far it is. Read by whoever shows progress.
#[derive(Debug, Default)]
pub struct Progress {
    /// Inodes made.
    pub inodes: AtomicU64,
    /// Bytes written, holes counted.
    pub bytes: AtomicU64,
    /// Bytes read back and found equal.
    pub verified_bytes: AtomicU64,
    /// Extended attributes that only root can set, and that were left out.
    pub privileged_xattrs: AtomicU64,
    /// Inodes without their set-id bits: owner or group are not what they were, or the bits are not
    /// wanted.
    pub set_ids: AtomicU64,
    /// Devices, fifos and sockets that are not wanted.
    pub special: AtomicU64,
}

/// Something that could not be restored.
#[derive(Debug, Clone)]
pub struct Problem {
    /// What, as a path in the target.
    pub path: PathBuf,
    /// Why.
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
        /// Which.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// No such path in the snapshot.
    #[error("no {path} in the snapshot")]
    NoSuchPath {
        /// Which.
        path: String,
    },
    /// The snapshot cannot be read.
    #[error(transparent)]
    Volume(#[from] VolumeError),
}

/// A restore under way.
struct Job {
    view: View,
    options: Options,
    progress: Arc<Progress>,
    permits: Arc<Semaphore>,
    problems: Mutex<Vec<Problem>>,
    /// Only root may give files away and make devices.
    is_root: bool,
    /// Inodes whose first name does not lead to them.
    unmade: Mutex<HashSet<u64>>,
    /// Gives names to drafts.
    drafts: Drafts,
    /// Room for what goes past the page cache.
    buffers: DirectBuffers,
}

impl Job {
    /// The name under which something is made that will be called `name`: another one where something may have that name.
    fn draft(&self, name: &OsStr) -> OsString {
        if !self.options.overwrite {
            return name.to_owned();
        }
        self.drafts.next()
    }

    /// Whether an inode is a special file that is not wanted; then it is counted.
    fn leaves_out(&self, attributes: &Attributes) -> bool {
        let is_unwanted = self.options.no_special && mode::is_special(attributes.mode);
        let special = &self.progress.special;
        special.fetch_add(is_unwanted.into(), Ordering::Relaxed);
        is_unwanted
    }

    /// What may be given to what is made.
    fn rights(&self) -> place::Rights {
        place::Rights {
            is_root: self.is_root,
            no_special: self.options.no_special,
        }
    }

    /// Tells what could not be set; true if there was anything.
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

/// Finds an inode by its path from the root; empty components are skipped.
pub async fn resolve(view: &View, path: &[u8]) -> Result<u64, RestoreError> {
    let missing = || RestoreError::NoSuchPath {
        path: crate::printable::name(path),
    };
    let mut inode = ROOT_INODE;
    // Names that lead to no inode are none, as everywhere.
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

/// Restores what `inode` is (a directory's contents, or one file) as `target`.
///
/// Returns what could not be restored; everything else was, and is on disk (`syncfs`).
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

/// A restore that is only in the page cache is none.
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
