//! The disks of hosts, as the machines of a run use them.
//!
//! The disk of a host outlives the processes on it. A process that dies leaves its files as they
//! are and its locks free. When a host loses its power, data that was not synced is lost or torn,
//! and removed files may be back. This can only be seen when no process lives there any more. While
//! a process runs, the disk may fail once, or be full.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use async_trait::async_trait;
use bkfs_store::disk::{Disk, DiskEntry, DiskLock};
use bkfs_testing::disk::{DiskOperation, SimulatedDisk};
use bkfs_testing::entropy::SeededEntropy;
use bytes::Bytes;
use parking_lot::Mutex;

use crate::bugs::Bug;
use crate::store::{Power, SimStore};

/// A host: its disk, and the processes that were started on it.
#[derive(Default)]
pub struct Host {
    disk: SimulatedDisk,
    powers: Vec<Arc<Power>>,
    /// For each process, whether the disk has had no fault while it lived.
    are_well: Vec<Rc<Cell<bool>>>,
}

/// The fault of a disk while a process runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Trouble {
    /// No fault.
    None,
    /// The nth operation of a kind fails.
    Fails(DiskOperation, u64),
    /// The disk holds at most so many bytes.
    Full(u64),
}

impl Trouble {
    /// The operations that can fail.
    pub const OPERATIONS: [DiskOperation; 7] = [
        DiskOperation::MakeDirectory,
        DiskOperation::Write,
        DiskOperation::Flush,
        DiskOperation::Rename,
        DiskOperation::SyncDirectory,
        DiskOperation::Read,
        DiskOperation::Remove,
    ];
}

impl Host {
    /// Whether at least one process has lived here, and none does any more.
    pub fn is_deserted(&self) -> bool {
        !self.powers.is_empty() && self.powers.iter().all(|power| power.is_dead())
    }

    /// Applies the loss of power that has happened meanwhile.
    pub fn lose_power(&self, seed: u64) {
        self.disk.crash(&SeededEntropy::new(seed));
    }

    /// Starts a process here, with this trouble and no other. All processes here have it. Returns the
    /// disk, and whether it is well as long as the process lives.
    pub fn start(
        &mut self,
        process: &SimStore,
        trouble: Trouble,
    ) -> (Arc<dyn Disk>, Rc<Cell<bool>>) {
        self.powers.push(process.power.clone());
        let is_well = Rc::new(Cell::new(true));
        self.are_well.push(is_well.clone());
        if trouble != Trouble::None {
            let lives = self.powers.iter().zip(&self.are_well);
            let lives = lives.filter(|(power, _)| !power.is_dead());
            lives.for_each(|(_, is_well)| is_well.set(false));
        }
        self.disk.heal();
        match trouble {
            Trouble::None => {}
            Trouble::Fails(operation, nth) => {
                self.disk.fail(operation, nth, io::ErrorKind::Other);
            }
            Trouble::Full(bytes) => self.disk.set_capacity(Some(bytes)),
        }
        if process.bug == Some(Bug::SpoolNotFlushed) {
            self.disk.lie();
        }
        let disk = HostDisk {
            disk: self.disk.clone(),
            process: process.clone(),
            ghosts: Mutex::default(),
        };
        (Arc::new(disk), is_well)
    }
}

/// The disk of a host, as one process uses it.
#[derive(Debug)]
struct HostDisk {
    disk: SimulatedDisk,
    process: SimStore,
    /// [`Bug::SpoolRemovedEarly`]: the files that the process believes to exist.
    ghosts: Mutex<BTreeMap<PathBuf, Bytes>>,
}

/// A lock that is released when its process dies.
#[derive(Debug)]
struct HostLock(Arc<Mutex<Option<DiskLock>>>);

impl Drop for HostLock {
    fn drop(&mut self) {
        self.0.lock().take();
    }
}

impl HostDisk {
    /// Counts a step. The process may die before an operation, or after it; then it never gets the
    /// result.
    async fn step(&self) {
        let power = &self.process.power;
        if !power.is_dead() {
            power.step();
        }
        if power.is_dead() {
            std::future::pending().await
        }
    }

    /// Records the result of an operation in the trace. A failure counts as a fault.
    fn done<T>(&self, what: &str, path: &Path, result: io::Result<T>) -> io::Result<T> {
        let shared = &self.process.shared;
        let machine = self.process.power.machine;
        let shown = match &result {
            Ok(_) => "done".to_owned(),
            Err(error) => format!("{:?}", error.kind()),
        };
        let path = path.display();
        shared
            .trace
            .note(format_args!("m{machine} disk {what} {path} {shown}"));
        match result.as_ref().map_err(io::Error::kind) {
            Err(io::ErrorKind::StorageFull) => shared.faults.count("disk full"),
            Err(io::ErrorKind::Other) => shared.faults.count("disk failed"),
            _ => {}
        }
        result
    }

    /// [`Bug::SpoolRemovedEarly`]: removes a journal as soon as it was written. Its process does
    /// not know this.
    async fn forget(&self, path: &Path) -> io::Result<()> {
        let is_journal = path.to_string_lossy().contains(".journal+");
        if self.process.bug != Some(Bug::SpoolRemovedEarly) || !is_journal {
            return Ok(());
        }
        let listed = self.disk.list(path.parent().unwrap_or(path)).await?;
        let is_it = |entry: &DiskEntry| path.ends_with(&entry.name);
        let length = match listed.into_iter().find(is_it) {
            Some(entry) => entry.data?.bytes,
            None => 0,
        };
        let bytes = self.disk.read(path, 0, length as usize).await?;
        self.ghosts.lock().insert(path.to_owned(), bytes);
        self.disk.remove(path).await
    }
}

#[async_trait]
impl Disk for HostDisk {
    /// Threads of a real disk would take turns that no seed repeats.
    async fn make_unnamed(&self, _directory: &Path) -> io::Result<File> {
        Err(io::ErrorKind::Unsupported.into())
    }

    async fn make_directory(&self, path: &Path) -> io::Result<()> {
        self.step().await;
        let made = self.disk.make_directory(path).await;
        self.done("mkdir", path, made)
    }

    async fn list(&self, directory: &Path) -> io::Result<Vec<DiskEntry>> {
        self.step().await;
        self.disk.list(directory).await
    }

    async fn write_new(&self, path: &Path, parts: &[Bytes]) -> io::Result<()> {
        self.step().await;
        let written = self.disk.write_new(path, parts).await;
        self.done("write", path, written)?;
        self.step().await;
        Ok(())
    }

    async fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.step().await;
        let renamed = self.disk.rename(from, to).await;
        self.done("rename", to, renamed)?;
        self.forget(to).await?;
        self.step().await;
        Ok(())
    }

    async fn sync_directory(&self, path: &Path) -> io::Result<()> {
        self.step().await;
        let synced = self.disk.sync_directory(path).await;
        self.done("sync", path, synced)?;
        self.step().await;
        Ok(())
    }

    async fn read(&self, path: &Path, offset: u64, length: usize) -> io::Result<Bytes> {
        self.step().await;
        if let Some(ghost) = self.ghosts.lock().get(path) {
            return Ok(ghost.slice(offset as usize..offset as usize + length));
        }
        let read = self.disk.read(path, offset, length).await;
        self.done("read", path, read)
    }

    async fn remove(&self, path: &Path) -> io::Result<()> {
        self.step().await;
        if self.ghosts.lock().remove(path).is_some() {
            return Ok(());
        }
        let removed = self.disk.remove(path).await;
        self.done("remove", path, removed)
    }

    async fn remove_directory(&self, path: &Path) -> io::Result<()> {
        self.step().await;
        let removed = self.disk.remove_directory(path).await;
        self.done("rmdir", path, removed)
    }

    async fn lock(&self, path: &Path) -> io::Result<Option<DiskLock>> {
        self.step().await;
        let locked = self.disk.lock(path).await;
        let Some(lock) = self.done("lock", path, locked)? else {
            return Ok(None);
        };
        let held = Arc::new(Mutex::new(Some(lock)));
        self.process.power.held(held.clone());
        Ok(Some(Box::new(HostLock(held))))
    }
}
