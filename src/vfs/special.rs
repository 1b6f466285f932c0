//! The names that a mount shows in addition to its tree: `.snapshots` and `.bkfs`.
//!
//! Owns: their attributes, listings and contents. Does not own: the snapshots (`History`), the
//! contents of the status (`Control`).

use std::sync::Arc;

use async_trait::async_trait;
use bkfs_fuse::{Attributes as Shown, FileKind, Ino};
use bytes::Bytes;

use crate::tree::item::Timestamp;
use crate::vfs::convert::time;
use crate::vfs::numbers::{CONTROL, CONTROL_DIRECTORY, METRICS, Number, SNAPSHOTS, STATUS};
use crate::volume::error::VolumeError;
use crate::volume::view::View;

/// A snapshot as a mount shows it.
#[derive(Clone)]
pub struct Shelf {
    /// Its number, which is part of the inode numbers below it.
    pub number: u16,
    /// Its name.
    pub name: String,
    /// Its tree.
    pub view: View,
}

/// The snapshots of a volume, as a mount needs them.
#[async_trait]
pub trait History: Send + Sync + 'static {
    /// Returns names and numbers of all snapshots, sorted by number.
    ///
    /// # Errors
    /// [`VolumeError::Commit`] if the list cannot be read.
    async fn list(&self) -> Result<Vec<(String, u16)>, VolumeError>;
    /// Returns a snapshot by name, `latest` or `@TIME`.
    ///
    /// # Errors
    /// [`VolumeError::NotFound`] if there is none; [`VolumeError::Commit`] if the list or the
    /// snapshot cannot be read.
    async fn find(&self, name: &str) -> Result<Shelf, VolumeError>;
    /// Returns a snapshot by its number.
    ///
    /// # Errors
    /// [`VolumeError::Stale`] if there is none; otherwise as [`History::find`].
    async fn numbered(&self, number: u16) -> Result<Shelf, VolumeError> {
        let listed = self.list().await?;
        let named = listed.into_iter().find(|(_, other)| *other == number);
        let (name, _) = named.ok_or(VolumeError::Stale)?;
        self.find(&name).await
    }
    /// Forgets a snapshot.
    ///
    /// # Errors
    /// [`VolumeError::ReadOnly`] in a read-only mount; [`VolumeError::NotFound`] if there is no
    /// snapshot of that name; [`VolumeError::Commit`] if the list cannot be read or changed.
    async fn forget(&self, name: &str) -> Result<(), VolumeError>;
}

/// The contents of `.bkfs`.
#[async_trait]
pub trait Control: Send + Sync + 'static {
    /// Returns `.bkfs/status`, as JSON.
    fn status(&self) -> String;
    /// Returns `.bkfs/metrics`, as Prometheus text.
    fn metrics(&self) -> String;
    /// Handles a request written to `.bkfs/control`, and returns its answer; both are JSON.
    async fn handle(&self, request: Bytes) -> String;
}

/// Owner of the mount's own files, and their time.
#[derive(Debug, Clone, Copy)]
pub struct Owner {
    /// The user who mounted.
    pub uid: u32,
    /// That user's group.
    pub gid: u32,
    /// Time of the mount.
    pub since: Timestamp,
}

/// Names in `.bkfs`, sorted.
pub const CONTROL_FILES: [(&str, Number); 3] = [
    ("control", CONTROL),
    ("metrics", METRICS),
    ("status", STATUS),
];

/// Returns the number of one of the mount's own names in its root. A mount of one snapshot has no
/// `.snapshots`.
pub fn in_root(name: &[u8], has_history: bool) -> Option<Number> {
    match name {
        b".snapshots" if has_history => Some(SNAPSHOTS),
        b".bkfs" => Some(CONTROL_DIRECTORY),
        _ => None,
    }
}

/// Returns the attributes of one of the mount's own files.
///
/// # Errors
/// [`VolumeError::Stale`] for any other number.
pub fn attributes(number: Number, owner: &Owner, read_only: bool) -> Result<Shown, VolumeError> {
    let (kind, permissions, nlink) = match number {
        SNAPSHOTS if read_only => (FileKind::Directory, 0o555, 2),
        SNAPSHOTS => (FileKind::Directory, 0o755, 2),
        CONTROL_DIRECTORY => (FileKind::Directory, 0o500, 2),
        STATUS | METRICS => (FileKind::Regular, 0o400, 1),
        CONTROL => (FileKind::Regular, 0o600, 1),
        _ => return Err(VolumeError::Stale),
    };
    let since = time(owner.since);
    Ok(Shown {
        ino: Ino(number.inode),
        size: if kind == FileKind::Directory { 4096 } else { 0 },
        blocks: 0,
        atime: since,
        mtime: since,
        ctime: since,
        kind,
        permissions,
        nlink,
        uid: owner.uid,
        gid: owner.gid,
        rdev: 0,
        blksize: 4096,
    })
}

/// Returns the text that an open of one of the mount's own files reads.
pub fn text(number: Number, control: &Arc<dyn Control>) -> Option<Bytes> {
    match number {
        STATUS => Some(Bytes::from(control.status())),
        METRICS => Some(Bytes::from(control.metrics())),
        _ => None,
    }
}
