//! Syncing the target of a restore, and what follows from it.
//!
//! Owns: that files get their times after a sync only. Does not own: when it is time for one
//! (`dates`, `walk`).

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use crate::restore::dates;
use crate::restore::job::Job;

/// Gives the files that wait for them their times, after a sync: none if that fails. No part of a
/// file may be in flight.
pub async fn date(job: &Job, directory: &OwnedFd, target: &Path) {
    let files = job.dates.take();
    if files.is_empty() || !sync(directory, target, job).await {
        return;
    }
    for (path, error) in dates::set(directory.as_fd(), files) {
        job.problem(&path, &format_args!("times: {error}"), false);
    }
}

/// Syncs the filesystem of the target: files that are only in the page cache do not count as
/// restored. Returns false if that fails, and reports it.
pub async fn sync(directory: &OwnedFd, target: &Path, job: &Job) -> bool {
    let synced = match directory.try_clone() {
        Ok(directory) => tokio::task::spawn_blocking(move || rustix::fs::syncfs(&directory)).await,
        Err(error) => {
            job.problem(target, &error, false);
            return false;
        }
    };
    let failed = |error: &dyn std::fmt::Display| job.problem(target, error, false);
    match synced {
        Ok(Ok(())) => return true,
        Ok(Err(error)) => failed(&error),
        Err(error) => failed(&error),
    }
    false
}
