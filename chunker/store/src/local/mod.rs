//! A directory that is used as a bucket, with the guarantees of a remote one.
//!
//! Owns objects as files named by their keys, compare-and-swap under flock(2), and the threads that
//! wait for the disk. An object is written to a temporary file, flushed, and moved into place in
//! one step. The directories that lead to it are flushed before the write is acknowledged. Does not
//! own the order of writes.
//!
//! # Contents of the directory
//!
//! - `KEY`: an object. It is never changed in place, so a reader that has it open reads one state
//!   of it.
//! - `.bkfs/tmp/RANDOM`: a write in progress, locked with flock(2). A file without a lock is left
//!   over from a crash, and the next open of the store removes it. If that removes a writer's file
//!   (on a network filesystem without locks), the writer writes it again.
//! - `.bkfs/locks/NN`: 64 lock files. `put`, `replace` and `delete` hold the lock of their key,
//!   from the comparison until the name is flushed. The files stay. Only the lock on a file has a
//!   meaning, and it ends with its process.
//!
//! Names that begin with a dot are not objects and are skipped. Files are created with access for
//! their owner only, since a bucket without a password holds the users' files in the clear.
//!
//! # Requirements
//!
//! The filesystem provides fsync(2) of files and directories, an atomic rename(2), and an flock(2)
//! that excludes on all machines which share the directory (NFS does this unless it is mounted with
//! `local_lock`). Between the rename of an object and the flush of its directory, readers may see
//! an object that a power loss removes. Its write has not been acknowledged at that time.

mod directory;
mod fill;
mod identity;
mod lock;
mod publish;
mod sync;
mod walk;

#[cfg(test)]
mod tests;

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::{Mutex, Semaphore};

use crate::{
    ObjectInfo, Operation, Store, StoreError, StoreErrorKind, StoreOptions, Version, check_key,
    check_prefix,
};
use directory::Directory;
use lock::{LOCKS, lock_number};

/// A directory that is used as a bucket.
#[derive(Debug)]
pub struct LocalStore {
    directory: Arc<Directory>,
    threads: Arc<Semaphore>,
    /// One mutex for each lock file. Tasks of this process queue here, so that only one of them
    /// polls for the file.
    turns: Arc<[Mutex<()>]>,
    shown: String,
}

impl LocalStore {
    /// Opens the directory at `path`. With [`StoreOptions::create_directory`] an absent directory
    /// is created.
    ///
    /// # Errors
    /// [`StoreErrorKind::NoBucket`] if there is no such directory, [`StoreErrorKind::Denied`]
    /// without permission, [`StoreErrorKind::NoSpace`] if it cannot be created for lack of space,
    /// and [`StoreErrorKind::Other`] for other system errors.
    pub async fn open(path: &Path, options: &StoreOptions) -> Result<Self, StoreError> {
        let create = options.create_directory;
        let owned = path.to_owned();
        let directory = run_blocking(Operation::Open, String::new(), move || {
            Directory::open(&owned, create)
        })
        .await?;
        Ok(Self {
            directory: Arc::new(directory),
            threads: Arc::new(Semaphore::new(options.local_threads.max(1))),
            turns: (0..LOCKS).map(|_| Mutex::new(())).collect(),
            shown: path.display().to_string(),
        })
    }

    /// Returns whether two states of an object never have the same version here. That holds where
    /// the filesystem gives each file its own identity (ext4, xfs, btrfs, tmpfs, NFS, …). Elsewhere
    /// versions hash the content, and writing the same bytes again may yield the same version.
    pub fn has_exact_versions(&self) -> bool {
        self.directory.has_exact_versions()
    }

    /// Runs `work` on one of the store's threads.
    async fn run<T, F>(&self, operation: Operation, key: &str, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(&Directory, &str) -> Result<T, StoreError> + Send + 'static,
    {
        let permit = Arc::clone(&self.threads)
            .acquire_owned()
            .await
            .expect("the semaphore is never closed");
        let directory = Arc::clone(&self.directory);
        let key = key.to_owned();
        run_blocking(operation, key.clone(), move || {
            let _permit = permit;
            work(&directory, &key)
        })
        .await
    }
}

async fn run_blocking<T, F>(operation: Operation, key: String, work: F) -> Result<T, StoreError>
where
    T: Send + 'static,
    F: FnOnce() -> Result<T, StoreError> + Send + 'static,
{
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        Err(_) => {
            let kind = match operation.is_write() {
                true => StoreErrorKind::OutcomeUnknown,
                false => StoreErrorKind::Other,
            };
            Err(StoreError::new(
                kind,
                operation,
                key,
                "the program is ending",
            ))
        }
    }
}

#[async_trait]
impl Store for LocalStore {
    async fn get(&self, key: &str) -> Result<(Bytes, Version), StoreError> {
        check_key(Operation::Get, key)?;
        self.run(Operation::Get, key, |directory, key| directory.get(key))
            .await
    }

    async fn get_if_changed(
        &self,
        key: &str,
        known: &Version,
    ) -> Result<Option<(Bytes, Version)>, StoreError> {
        check_key(Operation::Get, key)?;
        let known = known.clone();
        self.run(Operation::Get, key, move |directory, key| {
            directory.get_if_changed(key, &known)
        })
        .await
    }

    async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes, StoreError> {
        check_key(Operation::GetRange, key)?;
        self.run(Operation::GetRange, key, move |directory, key| {
            directory.get_range(key, range)
        })
        .await
    }

    async fn get_tail(&self, key: &str, bytes: u64) -> Result<(Bytes, u64), StoreError> {
        check_key(Operation::GetTail, key)?;
        self.run(Operation::GetTail, key, move |directory, key| {
            directory.get_tail(key, bytes)
        })
        .await
    }

    async fn head(&self, key: &str) -> Result<ObjectInfo, StoreError> {
        check_key(Operation::Head, key)?;
        self.run(Operation::Head, key, |directory, key| directory.head(key))
            .await
    }

    async fn put_new(&self, key: &str, body: Vec<Bytes>) -> Result<Version, StoreError> {
        check_key(Operation::PutNew, key)?;
        self.run(Operation::PutNew, key, move |directory, key| {
            directory.put_new(key, &body)
        })
        .await
    }

    async fn put(&self, key: &str, body: Vec<Bytes>) -> Result<Version, StoreError> {
        check_key(Operation::Put, key)?;
        let _turn = self.turns[lock_number(key)].lock().await;
        self.run(Operation::Put, key, move |directory, key| {
            directory.put(key, &body)
        })
        .await
    }

    async fn replace(
        &self,
        key: &str,
        body: Vec<Bytes>,
        expected: &Version,
    ) -> Result<Version, StoreError> {
        check_key(Operation::Replace, key)?;
        let expected = expected.clone();
        let _turn = self.turns[lock_number(key)].lock().await;
        self.run(Operation::Replace, key, move |directory, key| {
            directory.replace(key, &body, &expected)
        })
        .await
    }

    async fn delete(&self, key: &str) -> Result<(), StoreError> {
        check_key(Operation::Delete, key)?;
        let _turn = self.turns[lock_number(key)].lock().await;
        self.run(Operation::Delete, key, |directory, key| {
            directory.delete(key)
        })
        .await
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<ObjectInfo>, StoreError> {
        check_prefix(prefix)?;
        let after = after.map(str::to_owned);
        self.run(Operation::List, prefix, move |directory, prefix| {
            directory.list(prefix, after.as_deref(), limit)
        })
        .await
    }

    fn describe(&self) -> String {
        self.shown.clone()
    }
}
