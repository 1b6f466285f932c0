//! Syncing what a restore has written, and what follows from it.
//!
//! Owns: that files get their times after a sync only. Does not own: when it is time for one
//! (`dates`, `walk`), nor which filesystems there are (`filesystems`).

use std::fmt::Display;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::io::Errno;

use crate::restore::dates::{self, Undated};
use crate::restore::job::Job;

/// Gives files below `directory` their times, after a sync: none if this one or one before it
/// fails. `path` is its path. The files are whole.
pub async fn date(job: &Arc<Job>, files: Vec<Undated>, directory: &OwnedFd, path: &Path) {
    if files.is_empty() || !sync(job, path).await {
        return;
    }
    if job.has_sync_failed.load(Ordering::SeqCst) {
        return;
    }
    let failed = |error: &dyn Display| job.problem(path, &format_args!("times: {error}"), false);
    let directory = match directory.try_clone() {
        Ok(directory) => directory,
        Err(error) => return failed(&error),
    };
    // The job is held until the disk has let the thread go.
    let held = job.clone();
    let set = tokio::task::spawn_blocking(move || {
        let _held = held;
        dates::set(directory.as_fd(), files)
    });
    let unset = match set.await {
        Ok(unset) => unset,
        Err(error) => return failed(&error),
    };
    for (below, error) in unset {
        let path = path.join(below);
        match error {
            Errno::STALE => job.problem(&path, &CHANGED, false),
            error => job.problem(&path, &format_args!("times: {error}"), false),
        }
    }
}

/// Why a file keeps its own time.
const CHANGED: &str = "another program has changed it since it was restored: it keeps its own time";

/// Syncs the filesystems of the target: files that are only in the page cache do not count as
/// restored. Returns false if that fails, and reports it.
pub async fn sync(job: &Arc<Job>, target: &Path) -> bool {
    let failed = |error: &dyn Display| {
        job.has_sync_failed.store(true, Ordering::SeqCst);
        job.problem(target, &format_args!("writing to the disk: {error}"), false);
        false
    };
    let of = job.clone();
    match tokio::task::spawn_blocking(move || of.filesystems.sync()).await {
        Ok(Ok(())) => true,
        Ok(Err(error)) => failed(&error),
        Err(error) => failed(&error),
    }
}
