//! What sessions that did not end well have left in their spools.
//!
//! Owns finding it, reading it, and removing it. Does not own what is done with it: that depends on the root.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;

use super::disk::{Disk, DiskLock};
use super::{LOCK, SpoolError, file, read_object, remove_directory};

/// The spool of a session whose process is gone. Nobody else works on it while this is held.
#[derive(Debug)]
pub struct Leftover {
    disk: Arc<dyn Disk>,
    session: u64,
    directory: PathBuf,
    objects: Vec<LeftObject>,
    torn: Vec<PathBuf>,
    _lock: DiskLock,
}

/// One object of a dead session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeftObject {
    /// Its key in the bucket.
    pub key: String,
    /// Its length in bytes.
    pub length: u64,
    path: PathBuf,
}

/// All spools below `root` that nobody holds, by session. Directories that cannot be read are passed over, with a warning. None if there is no such directory.
///
/// # Errors
/// `root` cannot be read.
pub async fn leftovers(disk: &Arc<dyn Disk>, root: &Path) -> Result<Vec<Leftover>, SpoolError> {
    let listed = match disk.list(root).await {
        Ok(listed) => listed,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(SpoolError::disk(root, error)),
    };
    let mut found = Vec::new();
    for entry in listed.into_iter().filter(|entry| entry.is_directory) {
        let Some(session) = parse_session(&entry.name) else {
            continue;
        };
        let directory = root.join(&entry.name);
        match open(disk, session, &directory).await {
            Ok(leftover) => found.extend(leftover),
            Err(error) => tracing::warn!("{} is passed over: {error}", directory.display()),
        }
    }
    found.sort_by_key(|leftover| leftover.session);
    Ok(found)
}

fn parse_session(name: &str) -> Option<u64> {
    let session = u64::from_str_radix(name, 16).ok()?;
    (format!("{session:016x}") == name).then_some(session)
}

async fn open(
    disk: &Arc<dyn Disk>,
    session: u64,
    directory: &Path,
) -> io::Result<Option<Leftover>> {
    let Some(lock) = disk.lock(&directory.join(LOCK)).await? else {
        return Ok(None);
    };
    let mut numbered = Vec::new();
    let mut torn = Vec::new();
    for entry in disk.list(directory).await? {
        let Some((number, key)) = file::parse(&entry.name) else {
            continue;
        };
        let path = directory.join(&entry.name);
        match entry.bytes.checked_sub(file::TRAILER_BYTES as u64) {
            Some(length) if length <= file::OBJECT_BYTES_MAX => {
                numbered.push((number, LeftObject { key, length, path }));
            }
            _ => torn.push(path),
        }
    }
    numbered.sort_by_key(|(number, _)| *number);
    Ok(Some(Leftover {
        disk: Arc::clone(disk),
        session,
        directory: directory.to_owned(),
        objects: numbered.into_iter().map(|(_, object)| object).collect(),
        torn,
        _lock: lock,
    }))
}

impl Leftover {
    /// Whose it was.
    pub fn session(&self) -> u64 {
        self.session
    }

    /// Where it is.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// What it holds, in the order in which it came. A crash may have come while one was written: see [`Leftover::read`].
    pub fn objects(&self) -> &[LeftObject] {
        &self.objects
    }

    /// The bytes of all objects.
    pub fn bytes(&self) -> u64 {
        self.objects.iter().map(|object| object.length).sum()
    }

    /// Reads an object; `None` if it was never written to its end (or has rotted, which cannot be told apart). Nobody was told that such a one was kept.
    ///
    /// # Errors
    /// The disk fails.
    pub async fn read(&self, object: &LeftObject) -> Result<Option<Bytes>, SpoolError> {
        let bytes = object.length + file::TRAILER_BYTES as u64;
        match read_object(&*self.disk, &object.path, bytes).await {
            Ok(bytes) => Ok(Some(bytes)),
            Err(SpoolError::Damaged { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Removes all of it: everything that it held is in the bucket, and named there.
    pub async fn discard(self) {
        let objects = self.objects.iter().map(|object| &object.path);
        for path in objects.chain(&self.torn) {
            if let Err(error) = self.disk.remove(path).await {
                tracing::warn!("{} stays in the spool: {error}", path.display());
            }
        }
        remove_directory(&*self.disk, &self.directory).await;
    }
}
