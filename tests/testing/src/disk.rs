//! A simulated disk in memory. A crash loses unsynced data, and tests can make operations fail.
//!
//! Owns the rules of what survives: see [`Disk`]. For tests and simulations only.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use bkfs_store::disk::{Disk, DiskEntry, DiskLock, EntryData};
use bkfs_store::entropy::{Entropy, number};
use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use tokio::sync::watch;

/// Operations of a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum DiskOperation {
    /// [`Disk::make_directory`].
    MakeDirectory,
    /// [`Disk::write_new`], its first half: the bytes.
    Write,
    /// [`Disk::write_new`], its second half: the flush.
    Flush,
    /// [`Disk::rename`].
    Rename,
    /// [`Disk::sync_directory`].
    SyncDirectory,
    /// [`Disk::read`].
    Read,
    /// [`Disk::remove`].
    Remove,
    /// [`Disk::list`].
    List,
    /// What [`Disk::list`] says of one entry.
    Stat,
    /// [`Disk::lock`].
    Lock,
}

/// A disk in memory. Clones share one disk.
#[derive(Debug, Clone, Default)]
pub struct SimulatedDisk(Arc<Mutex<SimulatedState>>);

/// Which operations wait.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Held {
    #[default]
    Nothing,
    Removals,
    WritesAndRemovals,
}

#[derive(Debug, Default)]
struct SimulatedState {
    directories: BTreeSet<PathBuf>,
    files: BTreeMap<PathBuf, SimulatedFile>,
    /// Removed names whose directory was not flushed since.
    removed: BTreeMap<PathBuf, SimulatedFile>,
    locks: BTreeSet<PathBuf>,
    /// Generation of the process; locks of an older one are void.
    life: u64,
    /// The files without names that were made.
    unnamed: Vec<File>,
    capacity_bytes: Option<u64>,
    failures: Vec<(DiskOperation, u64, io::ErrorKind)>,
    /// Directories that cannot be listed, and whose locks cannot be taken.
    closed: BTreeMap<PathBuf, io::ErrorKind>,
    /// Files and directories whose operations fail with an error number.
    refused: BTreeMap<(DiskOperation, PathBuf), i32>,
    /// Directories that vanish when one of them is to be locked.
    vanishing: BTreeSet<PathBuf>,
    struck: u64,
    /// True if flushes are acknowledged and not carried out.
    lies: bool,
    /// What waits.
    held: watch::Sender<Held>,
}

#[derive(Debug, Clone)]
struct SimulatedFile {
    bytes: Bytes,
    is_flushed: bool,
    is_named: bool,
}

#[derive(Debug)]
struct SimulatedLock {
    disk: SimulatedDisk,
    path: PathBuf,
    life: u64,
}

impl Drop for SimulatedLock {
    fn drop(&mut self) {
        let mut state = self.disk.0.lock();
        if state.life == self.life {
            state.locks.remove(&self.path);
        }
    }
}

impl SimulatedDisk {
    /// Returns an empty disk without a bound.
    pub fn new() -> Self {
        Self::default()
    }

    /// From now on, writes that would make the files exceed this size fail after half of their
    /// bytes.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.0.lock().capacity_bytes = bytes;
    }

    /// From now on, the `nth` (from 1) operation of this kind fails.
    pub fn fail(&self, operation: DiskOperation, nth: u64, error: io::ErrorKind) {
        self.0.lock().failures.push((operation, nth, error));
    }

    /// From now on, listing this directory fails, and so does locking a file in it.
    pub fn close(&self, directory: &Path, error: io::ErrorKind) {
        let mut state = self.0.lock();
        state.closed.insert(directory.to_owned(), error);
    }

    /// From now on, this operation on this file or directory fails with this error number. Of
    /// operations, `List`, `Stat`, `Lock` and `Read` can be refused.
    pub fn refuse(&self, operation: DiskOperation, path: &Path, number: i32) {
        let mut state = self.0.lock();
        state.refused.insert((operation, path.to_owned()), number);
    }

    /// Another process removes this directory when a file in it is to be locked.
    pub fn vanish(&self, directory: &Path) {
        self.0.lock().vanishing.insert(directory.to_owned());
    }

    /// Cancels all planned failures, closed directories, and the bound of the size.
    pub fn heal(&self) {
        let mut state = self.0.lock();
        state.failures.clear();
        state.closed.clear();
        state.refused.clear();
        state.capacity_bytes = None;
    }

    /// From now on, flushes are acknowledged and not carried out, neither of bytes nor of names.
    pub fn lie(&self) {
        self.0.lock().lies = true;
    }

    /// From now on, writes of new files and removals of files wait, until
    /// [`SimulatedDisk::let_go`].
    pub fn hold(&self) {
        self.0.lock().held.send_replace(Held::WritesAndRemovals);
    }

    /// From now on, removals of files wait, until [`SimulatedDisk::let_go`].
    pub fn hold_removals(&self) {
        self.0.lock().held.send_replace(Held::Removals);
    }

    /// Lets what waits go on.
    pub fn let_go(&self) {
        self.0.lock().held.send_replace(Held::Nothing);
    }

    async fn while_held(&self, is_held: fn(&Held) -> bool) {
        let mut held = self.0.lock().held.subscribe();
        // The sender is in the state of this disk.
        let _ = held.wait_for(|held| !is_held(held)).await;
    }

    /// Returns how many operations failed as planned.
    pub fn struck(&self) -> u64 {
        self.0.lock().struck
    }

    /// Returns the files without names that were made.
    pub fn unnamed(&self) -> Vec<File> {
        let state = self.0.lock();
        let files = state.unnamed.iter().map(File::try_clone);
        files.collect::<io::Result<_>>().expect("descriptors")
    }

    /// Simulates the end of the process without a power loss. Files stay unchanged.
    pub fn kill(&self) {
        let mut state = self.0.lock();
        state.locks.clear();
        state.life += 1;
    }

    /// Simulates a power loss: `entropy` decides whether unsynced data is lost, torn, or kept.
    pub fn crash(&self, entropy: &dyn Entropy) {
        self.kill();
        let mut state = self.0.lock();
        let removed = std::mem::take(&mut state.removed);
        for (path, file) in removed {
            if number(entropy).is_multiple_of(2) {
                state.files.entry(path).or_insert(file);
            }
        }
        state.files.retain(|_, file| {
            if !file.is_named && number(entropy).is_multiple_of(2) {
                return false;
            }
            if !file.is_flushed {
                file.bytes = tear(&file.bytes, entropy);
            }
            file.is_flushed = true;
            file.is_named = true;
            true
        });
    }

    /// Flips a bit of a file.
    pub fn rot(&self, path: &Path, bit: usize) {
        if let Some(file) = self.0.lock().files.get_mut(path) {
            let mut bytes = BytesMut::from(&file.bytes[..]);
            let position = bit / 8 % bytes.len().max(1);
            if let Some(byte) = bytes.get_mut(position) {
                *byte ^= 1 << (bit % 8);
            }
            file.bytes = bytes.freeze();
        }
    }

    /// Shortens a file to half of its length.
    pub fn cut(&self, path: &Path) {
        if let Some(file) = self.0.lock().files.get_mut(path) {
            file.bytes.truncate(file.bytes.len() / 2);
        }
    }

    /// Returns another disk with the same files, as of a disk image.
    pub fn copy(&self) -> SimulatedDisk {
        let state = self.0.lock();
        SimulatedDisk(Arc::new(Mutex::new(SimulatedState {
            directories: state.directories.clone(),
            files: state.files.clone(),
            ..SimulatedState::default()
        })))
    }

    /// Gives a file another name.
    pub fn give_name(&self, from: &Path, to: &Path) {
        let mut state = self.0.lock();
        if let Some(file) = state.files.remove(from) {
            state.files.insert(to.to_owned(), file);
        }
    }

    /// Returns the paths of every file and directory.
    pub fn paths(&self) -> Vec<PathBuf> {
        let state = self.0.lock();
        let files = state.files.keys().cloned();
        files.chain(state.directories.iter().cloned()).collect()
    }

    fn meet(&self, operation: DiskOperation) -> io::Result<()> {
        let mut state = self.0.lock();
        let mut met = None;
        for (which, left, error) in &mut state.failures {
            if *which == operation && *left > 0 {
                *left -= 1;
                if *left == 0 {
                    met = Some(*error);
                }
            }
        }
        match met {
            None => Ok(()),
            Some(kind) => {
                state.struck += 1;
                Err(io::Error::new(kind, "a fault that was planned"))
            }
        }
    }
}

impl SimulatedState {
    /// Returns the planned answer to an operation on this path.
    fn answer(&self, operation: DiskOperation, path: &Path) -> io::Result<()> {
        match self.refused.get(&(operation, path.to_owned())) {
            Some(number) => Err(io::Error::from_raw_os_error(*number)),
            None => Ok(()),
        }
    }

    /// Removes a directory that is to vanish, with all that is in it.
    fn let_vanish(&mut self, directory: &Path) {
        if self.vanishing.remove(directory) {
            self.directories.remove(directory);
            self.files.retain(|path, _| !path.starts_with(directory));
        }
    }
}

/// Returns the remains of unflushed bytes after a crash: a beginning, or all of them with a hole.
fn tear(bytes: &Bytes, entropy: &dyn Entropy) -> Bytes {
    let length = bytes.len().max(1);
    let place = number(entropy) as usize % length;
    match number(entropy) % 3 {
        0 => bytes.slice(..place.min(bytes.len())),
        1 => {
            let mut torn = BytesMut::from(&bytes[..]);
            let end = (place + 4096).min(torn.len());
            if let Some(hole) = torn.get_mut(place..end) {
                hole.fill(0);
            }
            torn.freeze()
        }
        _ => bytes.clone(),
    }
}

#[async_trait]
impl Disk for SimulatedDisk {
    /// A real file: nothing of it is to survive.
    async fn make_unnamed(&self, directory: &Path) -> io::Result<File> {
        let state = self.0.lock();
        if !state.directories.contains(directory) {
            return Err(io::ErrorKind::NotFound.into());
        }
        drop(state);
        let file = tempfile::tempfile()?;
        self.0.lock().unnamed.push(file.try_clone()?);
        Ok(file)
    }

    async fn make_directory(&self, path: &Path) -> io::Result<()> {
        self.meet(DiskOperation::MakeDirectory)?;
        let mut state = self.0.lock();
        let above = path.ancestors().map(Path::to_owned);
        state.directories.extend(above);
        Ok(())
    }

    async fn list(&self, directory: &Path) -> io::Result<Vec<DiskEntry>> {
        let state = self.0.lock();
        if !state.directories.contains(directory) {
            return Err(io::ErrorKind::NotFound.into());
        }
        if let Some(error) = state.closed.get(directory) {
            return Err(io::Error::new(*error, "a directory that was closed"));
        }
        state.answer(DiskOperation::List, directory)?;
        let name = |path: &PathBuf| {
            let is_here = path.parent() == Some(directory);
            let name = path.file_name().filter(|_| is_here)?;
            Some(name.to_string_lossy().into_owned())
        };
        let data = |path: &PathBuf, bytes, is_directory| {
            let answer = state.answer(DiskOperation::Stat, path);
            answer.map(|()| EntryData {
                bytes,
                is_directory,
            })
        };
        let directories = state.directories.iter().filter_map(|path| {
            Some(DiskEntry {
                name: name(path)?,
                data: data(path, 0, true),
            })
        });
        let files = state.files.iter().filter_map(|(path, file)| {
            Some(DiskEntry {
                name: name(path)?,
                data: data(path, file.bytes.len() as u64, false),
            })
        });
        Ok(directories.chain(files).collect())
    }

    async fn write_new(&self, path: &Path, parts: &[Bytes]) -> io::Result<()> {
        self.while_held(|held| *held == Held::WritesAndRemovals)
            .await;
        let failed = self.meet(DiskOperation::Write);
        let full = {
            let mut state = self.0.lock();
            let parent = path.parent().unwrap_or(Path::new("/"));
            if !state.directories.contains(parent) {
                return Err(io::ErrorKind::NotFound.into());
            }
            if state.files.contains_key(path) {
                return Err(io::ErrorKind::AlreadyExists.into());
            }
            let mut bytes = Bytes::from(parts.concat());
            let used: usize = state.files.values().map(|file| file.bytes.len()).sum();
            let room = state.capacity_bytes.unwrap_or(u64::MAX);
            let full = (used + bytes.len()) as u64 > room;
            if full || failed.is_err() {
                bytes.truncate(bytes.len() / 2);
            }
            let file = SimulatedFile {
                bytes,
                is_flushed: false,
                is_named: false,
            };
            state.files.insert(path.to_owned(), file);
            full
        };
        failed?;
        if full {
            return Err(io::ErrorKind::StorageFull.into());
        }
        // A crash may come here.
        tokio::task::yield_now().await;
        self.meet(DiskOperation::Flush)?;
        let mut state = self.0.lock();
        let lies = state.lies;
        if let Some(file) = state.files.get_mut(path) {
            file.is_flushed |= !lies;
        }
        Ok(())
    }

    async fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        // A crash may come here.
        tokio::task::yield_now().await;
        self.meet(DiskOperation::Rename)?;
        let mut state = self.0.lock();
        if state.files.contains_key(to) || state.directories.contains(to) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        if let Some(file) = state.files.remove(from) {
            let file = SimulatedFile {
                is_named: false,
                ..file
            };
            state.files.insert(to.to_owned(), file);
            return Ok(());
        }
        if !state.directories.remove(from) {
            return Err(io::ErrorKind::NotFound.into());
        }
        state.directories.insert(to.to_owned());
        let is_below = |path: &PathBuf| path.parent() == Some(from);
        let moved: Vec<PathBuf> = state
            .files
            .keys()
            .filter(|path| is_below(path))
            .cloned()
            .collect();
        for path in moved {
            let name = path.file_name().map(|name| to.join(name));
            if let (Some(file), Some(name)) = (state.files.remove(&path), name) {
                state.files.insert(name, file);
            }
        }
        Ok(())
    }

    async fn sync_directory(&self, path: &Path) -> io::Result<()> {
        tokio::task::yield_now().await;
        self.meet(DiskOperation::SyncDirectory)?;
        let mut state = self.0.lock();
        if state.lies {
            return Ok(());
        }
        for (file, data) in &mut state.files {
            if file.parent() == Some(path) {
                data.is_named = true;
            }
        }
        state.removed.retain(|file, _| file.parent() != Some(path));
        Ok(())
    }

    async fn read(&self, path: &Path, offset: u64, length: usize) -> io::Result<Bytes> {
        self.meet(DiskOperation::Read)?;
        let state = self.0.lock();
        state.answer(DiskOperation::Read, path)?;
        let file = state.files.get(path).ok_or(io::ErrorKind::NotFound)?;
        let start = offset as usize;
        let end = start.saturating_add(length);
        if end > file.bytes.len() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(file.bytes.slice(start..end))
    }

    async fn remove(&self, path: &Path) -> io::Result<()> {
        self.while_held(|held| *held != Held::Nothing).await;
        self.meet(DiskOperation::Remove)?;
        let mut state = self.0.lock();
        let file = state.files.remove(path).ok_or(io::ErrorKind::NotFound)?;
        if file.is_named {
            state.removed.insert(path.to_owned(), file);
        }
        Ok(())
    }

    async fn remove_directory(&self, path: &Path) -> io::Result<()> {
        let mut state = self.0.lock();
        if state.files.keys().any(|file| file.parent() == Some(path)) {
            return Err(io::ErrorKind::DirectoryNotEmpty.into());
        }
        state.removed.retain(|file, _| file.parent() != Some(path));
        state.directories.remove(path);
        Ok(())
    }

    async fn lock(&self, path: &Path) -> io::Result<Option<DiskLock>> {
        let mut state = self.0.lock();
        let parent = path.parent().unwrap_or(Path::new("/"));
        state.let_vanish(parent);
        state.answer(DiskOperation::Lock, path)?;
        if !state.directories.contains(parent) {
            return Err(io::ErrorKind::NotFound.into());
        }
        if let Some(error) = state.closed.get(parent) {
            return Err(io::Error::new(*error, "a directory that was closed"));
        }
        if !state.locks.insert(path.to_owned()) {
            return Ok(None);
        }
        let file = SimulatedFile {
            bytes: Bytes::new(),
            is_flushed: false,
            is_named: false,
        };
        state.files.entry(path.to_owned()).or_insert(file);
        Ok(Some(Box::new(SimulatedLock {
            disk: self.clone(),
            path: path.to_owned(),
            life: state.life,
        })))
    }
}
