//! A store layer that counts the requests to another store, for metrics and for tests that promise
//! a number of requests.

use std::array;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use bkfs_store::lock::Lock;
use bkfs_store::{
    ObjectInfo, Operation, Signs, Store, StoreError, StoreErrorKind, Version, body_bytes,
};
use bytes::Bytes;
use tokio::time::Instant;

/// The counters of one operation. [`Tally`] is their public copy.
#[derive(Debug, Default)]
struct Counter {
    requests: AtomicU64,
    failures: AtomicU64,
    bytes_read: AtomicU64,
    bytes_written: AtomicU64,
    time_us: AtomicU64,
}

/// The counters of all operations of a store.
#[derive(Debug)]
pub struct Counters {
    by_operation: [Counter; Operation::ALL.len()],
}

/// The totals of one operation, or of all.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Tally {
    /// Requests that have ended.
    pub requests: u64,
    /// Requests that failed. Expected answers (absent, exists already, conflict) are not failures.
    pub failures: u64,
    /// Bytes of objects that were read.
    pub bytes_read: u64,
    /// Bytes of objects that were written.
    pub bytes_written: u64,
    /// The sum of the requests' durations, in microseconds.
    pub time_us: u64,
}

impl Tally {
    fn plus(self, other: Tally) -> Tally {
        Tally {
            requests: self.requests + other.requests,
            failures: self.failures + other.failures,
            bytes_read: self.bytes_read + other.bytes_read,
            bytes_written: self.bytes_written + other.bytes_written,
            time_us: self.time_us + other.time_us,
        }
    }
}

impl Default for Counters {
    fn default() -> Self {
        Self {
            by_operation: array::from_fn(|_| Counter::default()),
        }
    }
}

impl Counters {
    /// Returns the totals of one operation.
    pub fn tally(&self, operation: Operation) -> Tally {
        let counter = &self.by_operation[operation as usize];
        Tally {
            requests: counter.requests.load(Ordering::Relaxed),
            failures: counter.failures.load(Ordering::Relaxed),
            bytes_read: counter.bytes_read.load(Ordering::Relaxed),
            bytes_written: counter.bytes_written.load(Ordering::Relaxed),
            time_us: counter.time_us.load(Ordering::Relaxed),
        }
    }

    /// Returns the totals of all operations together.
    pub fn total(&self) -> Tally {
        Operation::ALL
            .into_iter()
            .map(|operation| self.tally(operation))
            .fold(Tally::default(), Tally::plus)
    }
}

/// A store that counts the requests to another store.
#[derive(Debug)]
pub struct CountingStore {
    inner: Arc<dyn Store>,
    counters: Arc<Counters>,
}

impl CountingStore {
    /// Returns a store that counts the requests to `inner`.
    pub fn new(inner: Arc<dyn Store>) -> Self {
        Self {
            inner,
            counters: Arc::default(),
        }
    }

    /// Returns the counters. They stay valid when the store is dropped.
    pub fn counters(&self) -> Arc<Counters> {
        Arc::clone(&self.counters)
    }

    /// Waits for an answer and counts it. `read` returns the number of bytes that it brought.
    async fn count<T>(
        &self,
        operation: Operation,
        written: u64,
        answer: impl Future<Output = Result<T, StoreError>>,
        read: impl FnOnce(&T) -> u64,
    ) -> Result<T, StoreError> {
        let start = Instant::now();
        let answer = answer.await;
        let elapsed = start.elapsed();
        let counter = &self.counters.by_operation[operation as usize];
        let add = |to: &AtomicU64, what: u64| to.fetch_add(what, Ordering::Relaxed);
        add(&counter.requests, 1);
        add(
            &counter.time_us,
            u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX),
        );
        match &answer {
            Ok(value) => {
                add(&counter.bytes_read, read(value));
                add(&counter.bytes_written, written);
            }
            Err(error) if is_part_of_the_game(error.kind()) => {}
            Err(_) => {
                add(&counter.failures, 1);
            }
        }
        answer
    }
}

fn is_part_of_the_game(kind: StoreErrorKind) -> bool {
    matches!(
        kind,
        StoreErrorKind::NotFound | StoreErrorKind::AlreadyExists | StoreErrorKind::Conflict
    )
}

#[async_trait]
impl Store for CountingStore {
    async fn get(&self, key: &str) -> Result<(Bytes, Version), StoreError> {
        let answer = self.inner.get(key);
        self.count(Operation::Get, 0, answer, |(bytes, _)| bytes.len() as u64)
            .await
    }

    async fn get_if_changed(
        &self,
        key: &str,
        known: &Version,
    ) -> Result<Option<(Bytes, Version)>, StoreError> {
        let answer = self.inner.get_if_changed(key, known);
        let read = |changed: &Option<(Bytes, Version)>| {
            changed.as_ref().map_or(0, |(bytes, _)| bytes.len() as u64)
        };
        self.count(Operation::Get, 0, answer, read).await
    }

    async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes, StoreError> {
        let answer = self.inner.get_range(key, range);
        self.count(Operation::GetRange, 0, answer, |bytes| bytes.len() as u64)
            .await
    }

    async fn get_tail(&self, key: &str, bytes: u64) -> Result<(Bytes, u64), StoreError> {
        let answer = self.inner.get_tail(key, bytes);
        self.count(Operation::GetTail, 0, answer, |(bytes, _)| {
            bytes.len() as u64
        })
        .await
    }

    async fn head(&self, key: &str) -> Result<ObjectInfo, StoreError> {
        let answer = self.inner.head(key);
        self.count(Operation::Head, 0, answer, |_| 0).await
    }

    async fn put_new(&self, key: &str, body: Vec<Bytes>) -> Result<Version, StoreError> {
        let written = body_bytes(&body);
        let answer = self.inner.put_new(key, body);
        self.count(Operation::PutNew, written, answer, |_| 0).await
    }

    async fn put(&self, key: &str, body: Vec<Bytes>) -> Result<Version, StoreError> {
        let written = body_bytes(&body);
        let answer = self.inner.put(key, body);
        self.count(Operation::Put, written, answer, |_| 0).await
    }

    async fn replace(
        &self,
        key: &str,
        body: Vec<Bytes>,
        expected: &Version,
    ) -> Result<Version, StoreError> {
        let written = body_bytes(&body);
        let answer = self.inner.replace(key, body, expected);
        self.count(Operation::Replace, written, answer, |_| 0).await
    }

    async fn delete(&self, key: &str) -> Result<(), StoreError> {
        let answer = self.inner.delete(key);
        self.count(Operation::Delete, 0, answer, |()| 0).await
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<ObjectInfo>, StoreError> {
        let answer = self.inner.list(prefix, after, limit);
        self.count(Operation::List, 0, answer, |_| 0).await
    }

    async fn put_locked(
        &self,
        key: &str,
        body: Vec<Bytes>,
        lock: &Lock,
    ) -> Result<Version, StoreError> {
        let written = body_bytes(&body);
        let answer = self.inner.put_locked(key, body, lock);
        self.count(Operation::PutNew, written, answer, |_| 0).await
    }

    async fn lock(&self, key: &str) -> Result<Option<Lock>, StoreError> {
        let answer = self.inner.lock(key);
        self.count(Operation::ReadLock, 0, answer, |_| 0).await
    }

    async fn extend_lock(&self, key: &str, lock: &Lock) -> Result<(), StoreError> {
        let answer = self.inner.extend_lock(key, lock);
        self.count(Operation::ExtendLock, 0, answer, |()| 0).await
    }

    fn describe(&self) -> String {
        self.inner.describe()
    }

    fn signs(&self) -> Signs {
        self.inner.signs()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bkfs_store::MemoryStore;

    #[tokio::test]
    async fn requests_bytes_and_failures_are_counted_by_operation() {
        let store = CountingStore::new(Arc::new(MemoryStore::new()));
        let body = || vec![Bytes::from_static(b"12345"), Bytes::from_static(b"678")];
        let version = store.put_new("a", body()).await.unwrap();
        store.put_new("a", body()).await.unwrap_err();
        store.get("a").await.unwrap();
        assert!(store.get_if_changed("a", &version).await.unwrap().is_none());
        store.get("absent").await.unwrap_err();
        store.get_range("a", 2..5).await.unwrap();
        store.get_range("a", 2..50).await.unwrap_err();
        store.get_tail("a", 2).await.unwrap();
        store.replace("a", body(), &version).await.unwrap();
        store.replace("a", body(), &version).await.unwrap_err();
        store.list("", None, 10).await.unwrap();
        store.delete("a").await.unwrap();
        let counters = store.counters();
        let seen = |operation| {
            let tally = counters.tally(operation);
            (
                tally.requests,
                tally.failures,
                tally.bytes_read,
                tally.bytes_written,
            )
        };
        assert_eq!(seen(Operation::PutNew), (2, 0, 0, 8));
        assert_eq!(seen(Operation::Get), (3, 0, 8, 0));
        assert_eq!(seen(Operation::GetRange), (2, 1, 3, 0));
        assert_eq!(seen(Operation::GetTail), (1, 0, 2, 0));
        assert_eq!(seen(Operation::Replace), (2, 0, 0, 8));
        assert_eq!(seen(Operation::Put), (0, 0, 0, 0));
        assert_eq!(seen(Operation::List), (1, 0, 0, 0));
        assert_eq!(seen(Operation::Delete), (1, 0, 0, 0));
        let total = counters.total();
        assert_eq!((total.requests, total.failures), (12, 1));
        assert_eq!((total.bytes_read, total.bytes_written), (13, 16));
    }
}
