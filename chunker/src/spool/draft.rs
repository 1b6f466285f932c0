//! A file of the spool on its way to the disk.
//!
//! Owns the order of a write's steps (contents, name, directory), and the removal of what they
//! leave. Does not own room, numbers, or which files the spool has.

use std::fmt::{Debug, Formatter};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bkfs_store::body_bytes;
use bkfs_store::disk::Disk;
use bytes::Bytes;
use futures::future::BoxFuture;

use super::error::SpoolError;
use super::file;

/// A file that is being written. The disk may still work on it when nothing waits for it any more:
/// see [`Draft::remove`].
pub(super) struct Draft {
    disk: Arc<dyn Disk>,
    unfinished: PathBuf,
    path: PathBuf,
    bytes: u64,
    /// The steps that are left. `None` once the disk has answered the last one.
    steps: Option<BoxFuture<'static, Result<(), SpoolError>>>,
}

impl Draft {
    /// Returns the file with this number in `directory`, which will get the name `path` once `parts`
    /// are flushed.
    pub(super) fn new(disk: &Arc<dyn Disk>, number: u64, path: &Path, parts: Vec<Bytes>) -> Self {
        let directory = path.parent().unwrap_or(Path::new("")).to_owned();
        let unfinished = directory.join(file::unfinished(number));
        let bytes = body_bytes(&parts);
        let steps = write(
            Arc::clone(disk),
            unfinished.clone(),
            path.to_owned(),
            directory,
            parts,
        );
        Self {
            disk: Arc::clone(disk),
            unfinished,
            path: path.to_owned(),
            bytes,
            steps: Some(Box::pin(steps)),
        }
    }

    /// Length of the file, in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Takes the steps that are left. When this returns, the file survives a power loss.
    ///
    /// Cancel safety: the next call continues where this one was dropped.
    ///
    /// # Errors
    /// `Disk`: what the disk answered. However much of the file may lie on the disk.
    pub(super) async fn write(&mut self) -> Result<(), SpoolError> {
        let Some(steps) = &mut self.steps else {
            return Ok(());
        };
        let written = steps.await;
        self.steps = None;
        written
    }

    /// Removes the file, under whichever name it has. Whether this works or not, no caller counts on
    /// the file.
    ///
    /// Cancel safety: repeating the call is safe.
    pub(super) async fn remove(&mut self) {
        let _ = self.disk.remove(&self.unfinished).await;
        let _ = self.disk.remove(&self.path).await;
    }
}

/// Dropped, it leaves a file of the name `unfinished`, or nothing, or the whole file, and the disk
/// may still work.
async fn write(
    disk: Arc<dyn Disk>,
    unfinished: PathBuf,
    path: PathBuf,
    directory: PathBuf,
    parts: Vec<Bytes>,
) -> Result<(), SpoolError> {
    let written = disk.write_new(&unfinished, &parts).await;
    written.map_err(|error| SpoolError::disk(&unfinished, error))?;
    drop(parts);
    let renamed = disk.rename(&unfinished, &path).await;
    renamed.map_err(|error| SpoolError::disk(&path, error))?;
    let named = disk.sync_directory(&directory).await;
    named.map_err(|error| SpoolError::disk(&directory, error))
}

impl Debug for Draft {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Draft")
            .field("path", &self.path)
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}
