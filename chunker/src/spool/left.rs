//! Objects that dead sessions left in their spools.
//!
//! Owns finding, reading, setting aside and removing them. Does not own what is done with them:
//! that depends on the root.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bkfs_store::disk::{Disk, DiskEntry, DiskLock};
use bytes::Bytes;

use crate::crypto::Class;

use super::{LOCK, SpoolError, file, read_object, remove_directory};

/// Suffix of a directory that is set aside; no session has such a name.
const SET_ASIDE: &str = ".damaged";

/// Suffix of a directory whose objects are in the bucket, and that is being removed. Its journals
/// may be gone in any order, so no mount reads it.
const DONE: &str = ".done";

/// Name of a file that says the same of a directory that cannot have the other name.
const DONE_MARK: &str = "done";

/// Start of the name of the file that records that only a part of a spool was replayed. A hyphen
/// and the last number of that part follow. An older version wrote none.
const INCOMPLETE: &str = "incomplete";

/// The spool of a session whose process is gone. No other process works on it while this is held.
#[derive(Debug)]
pub struct Leftover {
    disk: Arc<dyn Disk>,
    session: u64,
    directory: PathBuf,
    objects: Vec<LeftObject>,
    /// The highest number in a record of [`Leftover::mark_incomplete`].
    replayed_through: Option<u64>,
    _lock: DiskLock,
}

/// One object of a dead session.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct LeftObject {
    /// Its key in the bucket.
    pub key: String,
    /// Its length in bytes; 0 if its file is too short for any.
    pub length: u64,
    path: PathBuf,
    file_bytes: u64,
}

impl LeftObject {
    /// The file that holds it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the stage in which it is sent: 0 for a data pack, 1 for a metadata pack, 2 for a
    /// journal. No object may be in the bucket before the objects that it names.
    pub(super) fn rank(&self) -> u8 {
        let is_in = |class: Class| {
            let below = self.key.strip_prefix(class.directory());
            below.is_some_and(|rest| rest.starts_with('/'))
        };
        match () {
            () if is_in(Class::DataPack) => 0,
            () if is_in(Class::MetadataPack) => 1,
            () => 2,
        }
    }
}

/// What ended mounts left below the directory of spools.
#[derive(Debug, Default)]
pub struct Leftovers {
    /// The spools that no process holds, by session.
    pub spools: Vec<Leftover>,
    /// Spools that cannot be looked into: what is in them is unknown.
    pub unreadable: Vec<UnreadableSpool>,
}

/// A spool that cannot be locked or listed, or has a file that the disk does not let be looked at.
#[derive(Debug)]
pub struct UnreadableSpool {
    /// The session.
    pub session: u64,
    /// Its directory.
    pub directory: PathBuf,
    /// The answer of the disk, with the file or directory.
    pub source: SpoolError,
}

/// Returns all spools below `root` that no process holds. Without `root` there are none.
///
/// Another process of this machine may remove or rename a spool between the listing and the
/// opening. So what is not there when it is opened is looked for twice: it is gone if a second
/// listing does not show it, and unreadable if it is listed and not there again.
///
/// # Errors
/// `root` cannot be listed.
pub async fn leftovers(disk: &Arc<dyn Disk>, root: &Path) -> Result<Leftovers, SpoolError> {
    let mut found = Leftovers::default();
    sweep_done(&**disk, root).await;
    let mut listed = sessions(&**disk, root).await?;
    for is_last in [false, true] {
        let mut absent = Vec::new();
        for (session, entry) in listed {
            let directory = root.join(&entry.name);
            let opened = match entry.data {
                Ok(data) if !data.is_directory => {
                    let error = std::io::Error::from(std::io::ErrorKind::NotADirectory);
                    Err(SpoolError::disk(&directory, error))
                }
                Ok(_) => open(disk, session, &directory).await,
                Err(error) => Err(SpoolError::disk(&directory, error)),
            };
            match opened {
                Ok(leftover) => found.spools.extend(leftover),
                Err(error) if error.is_absence() && !is_last => absent.push(session),
                Err(source) => found.unreadable.push(UnreadableSpool {
                    session,
                    directory,
                    source,
                }),
            }
        }
        if absent.is_empty() {
            break;
        }
        listed = sessions(&**disk, root).await?;
        listed.retain(|(session, _)| absent.contains(session));
    }
    found.spools.sort_by_key(|leftover| leftover.session);
    found.unreadable.sort_by_key(|spool| spool.session);
    Ok(found)
}

/// Lists what has the name of a session.
async fn sessions(disk: &dyn Disk, root: &Path) -> Result<Vec<(u64, DiskEntry)>, SpoolError> {
    let listed = match disk.list(root).await {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        listed => listed.map_err(|error| SpoolError::disk(root, error))?,
    };
    let sessions = listed.into_iter();
    let sessions = sessions.filter_map(|entry| Some((parse_session(&entry.name)?, entry)));
    Ok(sessions.collect())
}

/// Removes what [`Leftover::discard`] of an earlier mount has left.
async fn sweep_done(disk: &dyn Disk, root: &Path) {
    // What cannot be listed is reported by the caller, which lists it as well.
    let mut done = disk.list(root).await.unwrap_or_default();
    done.retain(|entry| {
        let session = entry.name.strip_suffix(DONE);
        session.and_then(parse_session).is_some()
    });
    // The old name must not come back without the files that are removed now.
    if done.is_empty() {
        return;
    }
    if let Err(error) = disk.sync_directory(root).await {
        tracing::warn!("finished spools in {} stay: {error}", root.display());
        return;
    }
    for entry in done {
        remove_done(disk, &root.join(&entry.name)).await;
    }
}

/// Whether a spool makes files of such a name, other than its lock.
fn is_of_spool(name: &str) -> bool {
    file::is_unfinished(name) || name.starts_with(INCOMPLETE) || file::parse(name).is_some()
}

/// Removes a directory of which nothing is needed. What stays is removed by the next mount, which
/// knows it by its name or by the mark in it. Returns true if it is gone, also after a power loss.
async fn remove_done(disk: &dyn Disk, directory: &Path) -> bool {
    let listed = match disk.list(directory).await {
        Ok(listed) => listed,
        Err(error) => {
            tracing::warn!("{} stays: {error}", directory.display());
            return false;
        }
    };
    let mut is_clear = true;
    for entry in listed.iter().filter(|entry| is_of_spool(&entry.name)) {
        is_clear &= remove_file(disk, &directory.join(&entry.name)).await;
    }
    if is_marked(&listed) {
        // The mark goes once the other files cannot come back, even after a power loss.
        if !is_clear || disk.sync_directory(directory).await.is_err() {
            return false;
        }
        remove_file(disk, &directory.join(DONE_MARK)).await;
    }
    let is_gone = remove_directory(disk, directory).await;
    if !is_gone {
        tracing::warn!("{} may stay; nothing in it is needed", directory.display());
    }
    is_gone
}

/// Whether the mark of a finished spool is among these files.
fn is_marked(listed: &[DiskEntry]) -> bool {
    listed.iter().any(|entry| entry.name == DONE_MARK)
}

/// Removes a file. Returns true if it is gone.
async fn remove_file(disk: &dyn Disk, path: &Path) -> bool {
    match disk.remove(path).await {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!("{} stays: {error}", path.display());
            false
        }
        _ => true,
    }
}

fn parse_session(name: &str) -> Option<u64> {
    let session = u64::from_str_radix(name, 16).ok()?;
    (format!("{session:016x}") == name).then_some(session)
}

async fn open(
    disk: &Arc<dyn Disk>,
    session: u64,
    directory: &Path,
) -> Result<Option<Leftover>, SpoolError> {
    let lock = directory.join(LOCK);
    let locked = disk.lock(&lock).await;
    let Some(lock) = locked.map_err(|error| SpoolError::disk(&lock, error))? else {
        return Ok(None);
    };
    let listed = disk.list(directory).await;
    let listed = listed.map_err(|error| SpoolError::disk(directory, error))?;
    if is_marked(&listed) {
        remove_done(&**disk, directory).await;
        return Ok(None);
    }
    let mut numbered = Vec::new();
    let mut replayed_through = None;
    for entry in listed {
        let path = directory.join(&entry.name);
        if file::is_unfinished(&entry.name) {
            continue;
        }
        if let Some(last) = entry.name.strip_prefix(INCOMPLETE) {
            let last = last.strip_prefix('-').and_then(|last| last.parse().ok());
            replayed_through = replayed_through.max(last);
            continue;
        }
        let Some((number, key)) = file::parse(&entry.name) else {
            continue;
        };
        let file_bytes = match entry.data {
            Ok(data) => data.bytes,
            // Too short for an object, so it counts as damaged.
            Err(error) if is_rot(&error) => 0,
            Err(error) => return Err(SpoolError::disk(&path, error)),
        };
        let object = LeftObject {
            key,
            length: file_bytes.saturating_sub(file::TRAILER_BYTES as u64),
            path,
            file_bytes,
        };
        numbered.push((number, object));
    }
    numbered.sort_by_key(|(number, _)| *number);
    Ok(Some(Leftover {
        disk: Arc::clone(disk),
        session,
        directory: directory.to_owned(),
        objects: numbered.into_iter().map(|(_, object)| object).collect(),
        replayed_through,
        _lock: lock,
    }))
}

/// Returns whether a disk or a filesystem that verifies what it reads answers this for rot.
pub(super) fn is_rot(error: &io::Error) -> bool {
    let rot = [libc::EIO, libc::EBADMSG, libc::EUCLEAN];
    error
        .raw_os_error()
        .is_some_and(|number| rot.contains(&number))
}

impl Leftover {
    /// The session.
    pub fn session(&self) -> u64 {
        self.session
    }

    /// Path of its directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns its objects, in the order of arrival. All of them were flushed: one that is not
    /// whole was damaged since (see [`Leftover::read`]).
    pub fn objects(&self) -> &[LeftObject] {
        &self.objects
    }

    /// Returns the bytes of all objects.
    pub fn bytes(&self) -> u64 {
        self.objects.iter().map(|object| object.length).sum()
    }

    /// Reads an object; `None` if it is damaged.
    ///
    /// # Errors
    /// `Disk` if the disk does not let the file be read, and not because it is rotten.
    pub async fn read(&self, object: &LeftObject) -> Result<Option<Bytes>, SpoolError> {
        let bytes = object.file_bytes;
        if bytes < file::TRAILER_BYTES as u64 || object.length > file::OBJECT_BYTES_MAX {
            return Ok(None);
        }
        match read_object(&*self.disk, &object.path, bytes).await {
            Ok(bytes) => Ok(Some(bytes)),
            Err(SpoolError::Damaged { .. }) => Ok(None),
            Err(SpoolError::Disk { source, path }) if is_rot(&source) => {
                tracing::warn!("{path} cannot be read, and counts as damaged: {source}");
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Returns the highest number with which an earlier process has called
    /// [`Leftover::mark_incomplete`].
    pub fn replayed_through(&self) -> Option<u64> {
        self.replayed_through
    }

    /// Records on the disk that a snapshot is about to be made of only a part of the spool, of what
    /// its journals number up to `last`. When this returns, the record survives a power loss.
    ///
    /// Cancel safety: dropped, it leaves the record or nothing; repeating the call is safe.
    ///
    /// # Errors
    /// `Disk` if the disk fails; the record may be there then.
    pub async fn mark_incomplete(&self, last: u64) -> Result<(), SpoolError> {
        self.write_record(&format!("{INCOMPLETE}-{last}")).await
    }

    /// Removes the directory. Every object in it must be in the bucket, and named there. Returns
    /// true if no mount finds it any more, also after a power loss.
    ///
    /// Its first step is a new name, which no mount reads: a part of the journals looks like a
    /// spool that has lost some. Dropped, it leaves the directory under one of the two names to the
    /// next mount.
    pub async fn discard(self) -> bool {
        let done = match self.rename(DONE).await {
            Ok(done) => done,
            // On a layered filesystem some directories have their name for good, and on a full disk
            // there may be no room for another one.
            Err(error) => {
                tracing::info!("the spool is removed under its name: {error}");
                return self.remove_in_place().await;
            }
        };
        if let Err(error) = self.sync_root(&done).await {
            tracing::warn!("{} stays: {error}", done.display());
            return false;
        }
        remove_done(&*self.disk, &done).await;
        true
    }

    /// Removes the directory under its name, with a mark in it meanwhile.
    async fn remove_in_place(&self) -> bool {
        // All journals stay until the mark is durable. Without the other objects they say the same,
        // since those are in the bucket; removed first, these give room for the mark.
        for object in self.objects.iter().filter(|object| object.rank() < 2) {
            if !remove_file(&*self.disk, &object.path).await {
                return false;
            }
        }
        if let Err(error) = self.write_record(DONE_MARK).await {
            tracing::warn!("{} stays: {error}", self.directory.display());
            return false;
        }
        remove_done(&*self.disk, &self.directory).await
    }

    /// Writes an empty file whose name says something of the spool. When this returns, it survives a
    /// power loss.
    async fn write_record(&self, name: &str) -> Result<(), SpoolError> {
        let path = self.directory.join(name);
        match self.disk.write_new(&path, &[]).await {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            written => written.map_err(|error| SpoolError::disk(&path, error))?,
        }
        let synced = self.disk.sync_directory(&self.directory).await;
        synced.map_err(|error| SpoolError::disk(&self.directory, error))
    }

    /// Renames the directory so that no mount finds it, and returns the new path. The objects stay
    /// for people.
    ///
    /// # Errors
    /// `Disk` if the disk fails: the directory still has its old name, or has the new one but may
    /// lose it after a power loss.
    pub async fn set_aside(self) -> Result<PathBuf, SpoolError> {
        let aside = self.rename(SET_ASIDE).await?;
        self.sync_root(&aside).await?;
        Ok(aside)
    }

    /// Adds a suffix to the name of the directory, and returns the new path. A power loss may take
    /// that back until [`Leftover::sync_root`].
    async fn rename(&self, suffix: &str) -> Result<PathBuf, SpoolError> {
        let mut name = self.directory.clone().into_os_string();
        name.push(suffix);
        let renamed = PathBuf::from(name);
        match self.disk.rename(&self.directory, &renamed).await {
            Ok(()) => Ok(renamed),
            Err(error) => Err(SpoolError::disk(&self.directory, error)),
        }
    }

    /// Makes the name of the directory durable.
    async fn sync_root(&self, directory: &Path) -> Result<(), SpoolError> {
        let Some(root) = directory.parent() else {
            return Ok(());
        };
        let synced = self.disk.sync_directory(root).await;
        synced.map_err(|error| SpoolError::disk(root, error))
    }
}
