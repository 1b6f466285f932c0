//! A bucket in memory, for tests and simulation. It is deterministic: versions are counted, and
//! nothing depends on randomness or time.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::{Bound, Range};
use std::sync::Arc;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use jiff::Timestamp;
use parking_lot::Mutex;

use crate::lock::Lock;
use crate::{
    ObjectInfo, Operation, Store, StoreError, StoreErrorKind, Version, WHOLE_OBJECT_BYTES_MAX,
    check_key, check_prefix,
};

/// A bucket in memory. Clones share the objects, as several mounts share a bucket.
#[derive(Clone, Debug, Default)]
pub struct MemoryStore {
    objects: Arc<Mutex<Objects>>,
}

#[derive(Debug, Default)]
struct Objects {
    by_key: BTreeMap<String, (Bytes, u64)>,
    locks: BTreeMap<String, Lock>,
    /// The time of its clock, which does not advance by itself.
    now: Timestamp,
    writes: u64,
}

impl Objects {
    fn next_version(&mut self) -> u64 {
        self.writes += 1;
        self.writes
    }
}

impl MemoryStore {
    /// Returns an empty bucket.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the number of objects.
    pub fn object_count(&self) -> usize {
        self.objects.lock().by_key.len()
    }

    /// Returns an independent copy of the bucket in its present state: the state that a crash would
    /// leave.
    pub fn fork(&self) -> Self {
        let objects = self.objects.lock();
        Self {
            objects: Arc::new(Mutex::new(Objects {
                by_key: objects.by_key.clone(),
                locks: objects.locks.clone(),
                now: objects.now,
                writes: objects.writes,
            })),
        }
    }

    /// Sets the clock by which locks end. It stands at 1970 until it is set. Unlike S3, this store
    /// refuses to delete a locked object, so that tests see who tries.
    pub fn set_clock(&self, now: Timestamp) {
        self.objects.lock().now = now;
    }

    fn find(&self, operation: Operation, key: &str) -> Result<(Bytes, u64), StoreError> {
        check_key(operation, key)?;
        self.objects
            .lock()
            .by_key
            .get(key)
            .cloned()
            .ok_or_else(|| absent(operation, key))
    }
}

fn absent(operation: Operation, key: &str) -> StoreError {
    StoreError::new(
        StoreErrorKind::NotFound,
        operation,
        key,
        "there is no such object",
    )
}

fn locked(operation: Operation, key: &str) -> StoreError {
    StoreError::new(StoreErrorKind::Denied, operation, key, "it is locked")
}

fn version(count: u64) -> Version {
    Version::token(count.to_string())
}

fn concatenate(body: Vec<Bytes>) -> Bytes {
    if let [only] = body.as_slice() {
        return only.clone();
    }
    let mut whole = BytesMut::with_capacity(body.iter().map(Bytes::len).sum());
    for part in body {
        whole.extend_from_slice(&part);
    }
    whole.freeze()
}

#[async_trait]
impl Store for MemoryStore {
    async fn get(&self, key: &str) -> Result<(Bytes, Version), StoreError> {
        let (bytes, count) = self.find(Operation::Get, key)?;
        if bytes.len() as u64 > WHOLE_OBJECT_BYTES_MAX {
            return Err(super::too_large(key, bytes.len() as u64));
        }
        Ok((bytes, version(count)))
    }

    async fn get_if_changed(
        &self,
        key: &str,
        known: &Version,
    ) -> Result<Option<(Bytes, Version)>, StoreError> {
        let (bytes, found) = self.get(key).await?;
        Ok((found != *known).then_some((bytes, found)))
    }

    async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes, StoreError> {
        let (bytes, _) = self.find(Operation::GetRange, key)?;
        crate::check_range(key, &range, bytes.len() as u64)?;
        // The range lies within a buffer in memory, so both ends fit into usize.
        Ok(bytes.slice(range.start as usize..range.end as usize))
    }

    async fn get_tail(&self, key: &str, bytes: u64) -> Result<(Bytes, u64), StoreError> {
        let (whole, _) = self.find(Operation::GetTail, key)?;
        let size = whole.len() as u64;
        Ok((whole.slice(size.saturating_sub(bytes) as usize..), size))
    }

    async fn head(&self, key: &str) -> Result<ObjectInfo, StoreError> {
        let (bytes, _) = self.find(Operation::Head, key)?;
        Ok(ObjectInfo {
            key: key.to_owned(),
            size: bytes.len() as u64,
        })
    }

    async fn put_new(&self, key: &str, body: Vec<Bytes>) -> Result<Version, StoreError> {
        check_key(Operation::PutNew, key)?;
        let mut objects = self.objects.lock();
        let count = objects.next_version();
        match objects.by_key.entry(key.to_owned()) {
            Entry::Occupied(_) => Err(StoreError::new(
                StoreErrorKind::AlreadyExists,
                Operation::PutNew,
                key,
                "there is an object of that name",
            )),
            Entry::Vacant(vacant) => {
                vacant.insert((concatenate(body), count));
                Ok(version(count))
            }
        }
    }

    async fn put(&self, key: &str, body: Vec<Bytes>) -> Result<Version, StoreError> {
        check_key(Operation::Put, key)?;
        let mut objects = self.objects.lock();
        let count = objects.next_version();
        objects
            .by_key
            .insert(key.to_owned(), (concatenate(body), count));
        Ok(version(count))
    }

    async fn replace(
        &self,
        key: &str,
        body: Vec<Bytes>,
        expected: &Version,
    ) -> Result<Version, StoreError> {
        check_key(Operation::Replace, key)?;
        let mut objects = self.objects.lock();
        let count = objects.next_version();
        match objects.by_key.get_mut(key) {
            Some(found) if version(found.1) == *expected => {
                *found = (concatenate(body), count);
                Ok(version(count))
            }
            found => Err(StoreError::new(
                StoreErrorKind::Conflict,
                Operation::Replace,
                key,
                match found {
                    Some(_) => "it has been replaced meanwhile",
                    None => "it is no longer there",
                },
            )),
        }
    }

    async fn delete(&self, key: &str) -> Result<(), StoreError> {
        check_key(Operation::Delete, key)?;
        let mut objects = self.objects.lock();
        if objects
            .locks
            .get(key)
            .is_some_and(|lock| lock.until > objects.now)
        {
            return Err(locked(Operation::Delete, key));
        }
        objects.by_key.remove(key);
        objects.locks.remove(key);
        Ok(())
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<ObjectInfo>, StoreError> {
        check_prefix(prefix)?;
        let start = match after {
            Some(after) if after >= prefix => Bound::Excluded(after),
            _ => Bound::Included(prefix),
        };
        let objects = self.objects.lock();
        Ok(objects
            .by_key
            .range::<str, _>((start, Bound::Unbounded))
            .take_while(|(key, _)| key.starts_with(prefix))
            .take(limit)
            .map(|(key, (bytes, _))| ObjectInfo {
                key: key.clone(),
                size: bytes.len() as u64,
            })
            .collect())
    }

    async fn put_locked(
        &self,
        key: &str,
        body: Vec<Bytes>,
        lock: &Lock,
    ) -> Result<Version, StoreError> {
        let version = self.put_new(key, body).await?;
        self.objects.lock().locks.insert(key.to_owned(), *lock);
        Ok(version)
    }

    async fn lock(&self, key: &str) -> Result<Option<Lock>, StoreError> {
        self.find(Operation::ReadLock, key)?;
        Ok(self.objects.lock().locks.get(key).copied())
    }

    async fn extend_lock(&self, key: &str, lock: &Lock) -> Result<(), StoreError> {
        self.find(Operation::ExtendLock, key)?;
        let mut objects = self.objects.lock();
        let found = objects.locks.get(key);
        if found.is_some_and(|found| found.until > lock.until) {
            return Err(locked(Operation::ExtendLock, key));
        }
        objects.locks.insert(key.to_owned(), *lock);
        Ok(())
    }

    fn describe(&self) -> String {
        "memory".to_owned()
    }
}
