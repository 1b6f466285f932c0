//! The store as a repository uses it: every request is observed, and new objects are locked.
//!
//! Owns that no request passes without both, whichever module sends it. Does not own what is
//! concluded from the answers (`signs`), nor which objects are locked and for how long (`locking`).

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use bytes::Bytes;

use crate::lock::Lock;
use crate::locking::Locking;
use crate::signs::Signs;
use crate::{ObjectInfo, Operation, Store, StoreError, Version};

/// A store that records in [`Signs`] how the store below answers. A dropped future is recorded as a
/// request that no caller waits for any more.
///
/// It locks new objects from the moment when [`GuardedStore::begin`] gives it the rule, which is
/// known only when the repository has been opened.
#[derive(Debug)]
pub struct GuardedStore {
    inner: Arc<dyn Store>,
    signs: Signs,
    locking: OnceLock<Locking>,
}

impl GuardedStore {
    /// Returns a store that observes `inner`, and passes every request on unchanged until
    /// [`GuardedStore::begin`] is called.
    pub fn new(inner: Arc<dyn Store>, signs: Signs) -> Self {
        Self {
            inner,
            signs,
            locking: OnceLock::new(),
        }
    }

    /// Locks all new objects from now on. Only the first call has an effect.
    pub fn begin(&self, locking: Locking) {
        let _ = self.locking.set(locking);
    }

    async fn watch<T>(
        &self,
        operation: Operation,
        key: &str,
        answer: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let request = self.signs.begin(operation, key);
        let answer = answer.await;
        request.end(&answer);
        answer
    }
}

#[async_trait]
impl Store for GuardedStore {
    async fn get(&self, key: &str) -> Result<(Bytes, Version), StoreError> {
        self.watch(Operation::Get, key, self.inner.get(key)).await
    }

    async fn get_if_changed(
        &self,
        key: &str,
        known: &Version,
    ) -> Result<Option<(Bytes, Version)>, StoreError> {
        let answer = self.inner.get_if_changed(key, known);
        self.watch(Operation::Get, key, answer).await
    }

    async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes, StoreError> {
        let answer = self.inner.get_range(key, range);
        self.watch(Operation::GetRange, key, answer).await
    }

    async fn get_tail(&self, key: &str, bytes: u64) -> Result<(Bytes, u64), StoreError> {
        let answer = self.inner.get_tail(key, bytes);
        self.watch(Operation::GetTail, key, answer).await
    }

    async fn head(&self, key: &str) -> Result<ObjectInfo, StoreError> {
        self.watch(Operation::Head, key, self.inner.head(key)).await
    }

    async fn put_new(&self, key: &str, body: Vec<Bytes>) -> Result<Version, StoreError> {
        let lock = self.locking.get().and_then(|locking| locking.lock_of(key));
        let answer = match &lock {
            Some(lock) => self.inner.put_locked(key, body, lock),
            None => self.inner.put_new(key, body),
        };
        self.watch(Operation::PutNew, key, answer).await
    }

    async fn put(&self, key: &str, body: Vec<Bytes>) -> Result<Version, StoreError> {
        let answer = self.inner.put(key, body);
        self.watch(Operation::Put, key, answer).await
    }

    async fn replace(
        &self,
        key: &str,
        body: Vec<Bytes>,
        expected: &Version,
    ) -> Result<Version, StoreError> {
        let answer = self.inner.replace(key, body, expected);
        self.watch(Operation::Replace, key, answer).await
    }

    async fn delete(&self, key: &str) -> Result<(), StoreError> {
        let answer = self.inner.delete(key);
        self.watch(Operation::Delete, key, answer).await
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<ObjectInfo>, StoreError> {
        let answer = self.inner.list(prefix, after, limit);
        self.watch(Operation::List, prefix, answer).await
    }

    async fn put_locked(
        &self,
        key: &str,
        body: Vec<Bytes>,
        lock: &Lock,
    ) -> Result<Version, StoreError> {
        let answer = self.inner.put_locked(key, body, lock);
        self.watch(Operation::PutNew, key, answer).await
    }

    async fn lock(&self, key: &str) -> Result<Option<Lock>, StoreError> {
        let answer = self.inner.lock(key);
        self.watch(Operation::ReadLock, key, answer).await
    }

    async fn extend_lock(&self, key: &str, lock: &Lock) -> Result<(), StoreError> {
        let answer = self.inner.extend_lock(key, lock);
        self.watch(Operation::ExtendLock, key, answer).await
    }

    fn describe(&self) -> String {
        self.inner.describe()
    }

    fn signs(&self) -> Signs {
        self.signs.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryStore;
    use crate::lock::{LockMode, LockRule};
    use jiff::Timestamp;

    #[tokio::test]
    async fn what_is_created_is_locked_once_the_rule_is_known() {
        let memory = MemoryStore::new();
        let store = GuardedStore::new(Arc::new(memory.clone()), Signs::default());
        let body = || vec![Bytes::from_static(b"body")];
        store.put_new("data/before", body()).await.unwrap();
        let rule = LockRule {
            days: 2,
            mode: LockMode::Governance,
        };
        store.begin(Locking {
            rule,
            wanted: |key| key.starts_with("data/"),
            now: Box::new(|| Timestamp::from_second(1_000).unwrap()),
        });
        store.put_new("data/after", body()).await.unwrap();
        store.put_new("index/after", body()).await.unwrap();
        let expected = rule.lock_from(Timestamp::from_second(1_000).unwrap());
        assert_eq!(memory.lock("data/after").await.unwrap(), Some(expected));
        for free in ["data/before", "index/after"] {
            assert_eq!(store.lock(free).await.unwrap(), None, "{free}");
        }
        let longer = rule.lock_from(Timestamp::from_second(2_000).unwrap());
        store.extend_lock("data/after", &longer).await.unwrap();
        assert_eq!(store.lock("data/after").await.unwrap(), Some(longer));
    }
}
