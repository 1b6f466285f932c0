//! A store that repeats reads.
//!
//! Owns which requests are repeated, and whose policy holds. [`super::retry`] owns the policy and
//! the loop.

use super::handle::RootHandle;
use super::retry::{RetryPolicy, patiently};
use async_trait::async_trait;
use bkfs_store::entropy::Entropy;
use bkfs_store::{ObjectInfo, Operation, Store, StoreError, Version};
use bytes::Bytes;
use std::ops::Range;
use std::sync::Arc;

/// A store whose reads and lists are repeated while it does not answer. Writes pass unchanged: only
/// their senders know whether they may be repeated.
#[derive(Clone, Debug)]
pub(super) struct PatientReads {
    pub(super) store: Arc<dyn Store>,
    pub(super) policy: RetryPolicy,
    /// The handle whose policy applies while it bears refusals.
    pub(super) handle: Option<RootHandle>,
    pub(super) entropy: Arc<dyn Entropy>,
}

impl PatientReads {
    /// Returns the store of `handle`, under its policy.
    pub(super) fn of(handle: &RootHandle) -> Self {
        Self {
            store: handle.store().clone(),
            policy: handle.policy(),
            handle: Some(handle.clone()),
            entropy: handle.entropy().clone(),
        }
    }

    async fn ask<T, R>(
        &self,
        operation: Operation,
        key: &str,
        request: impl Fn() -> R + Send,
    ) -> Result<T, StoreError>
    where
        R: Future<Output = Result<T, StoreError>> + Send,
    {
        let handle = self.handle.as_ref().map(RootHandle::policy);
        let policy = handle.filter(|policy| policy.bears_refusals);
        let policy = policy.unwrap_or(self.policy);
        patiently(&policy, &*self.entropy, operation, key, request).await
    }
}

#[async_trait]
impl bkfs_store::Layer for PatientReads {
    fn below(&self) -> &dyn Store {
        &*self.store
    }

    async fn get(&self, key: &str) -> Result<(Bytes, Version), StoreError> {
        self.ask(Operation::Get, key, || self.store.get(key)).await
    }

    async fn get_if_changed(
        &self,
        key: &str,
        known: &Version,
    ) -> Result<Option<(Bytes, Version)>, StoreError> {
        let request = || self.store.get_if_changed(key, known);
        self.ask(Operation::Get, key, request).await
    }

    async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes, StoreError> {
        let request = || self.store.get_range(key, range.clone());
        self.ask(Operation::GetRange, key, request).await
    }

    async fn get_tail(&self, key: &str, bytes: u64) -> Result<(Bytes, u64), StoreError> {
        let request = || self.store.get_tail(key, bytes);
        self.ask(Operation::GetTail, key, request).await
    }

    async fn head(&self, key: &str) -> Result<ObjectInfo, StoreError> {
        let request = || self.store.head(key);
        self.ask(Operation::Head, key, request).await
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<ObjectInfo>, StoreError> {
        let request = || self.store.list(prefix, after, limit);
        self.ask(Operation::List, prefix, request).await
    }
}
