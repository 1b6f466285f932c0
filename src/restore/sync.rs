//! Syncing what a restore has written, and what follows from it.
//!
//! Owns: that files get their times after a sync only. Does not own: when it is time for one
//! (`dates`, `walk`), nor which filesystems there are (`filesystems`).

use std::fmt::Display;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use crate::restore::dates;
use crate::restore::job::Job;

/// Gives the files that wait for them their times, after a sync: none if that fails. No part of a
/// file may be in flight.
pub async fn date(job: &Arc<Job>, directory: &OwnedFd, target: &Path) {
    let files = job.dates.take();
    if files.is_empty() || !sync(job, target).await {
        return;
    }
    for (path, error) in dates::set(directory.as_fd(), files) {
        job.problem(&path, &format_args!("times: {error}"), false);
    }
}

/// Syncs the filesystems of the target: files that are only in the page cache do not count as
/// restored. Returns false if that fails, and reports it.
pub async fn sync(job: &Arc<Job>, target: &Path) -> bool {
    let failed = |error: &dyn Display| {
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
