//! A store layer that records which requests wait for an answer and how they were answered.

use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;

use crate::lock::Lock;
use crate::signs::Signs;
use crate::{ObjectInfo, Operation, Store, StoreError, Version};

/// A store that records in [`Signs`] how the store below answers. A dropped future is recorded as a
/// request that no caller waits for any more.
#[derive(Debug)]
pub struct WatchedStore {
    inner: Arc<dyn Store>,
    signs: Signs,
}

impl WatchedStore {
    /// Returns a store that watches `inner`.
    pub fn new(inner: Arc<dyn Store>, signs: Signs) -> Self {
        Self { inner, signs }
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
impl crate::Layer for WatchedStore {
    fn below(&self) -> &dyn Store {
        &*self.inner
    }

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
        let answer = self.inner.put_new(key, body);
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
}
