//! A store on top of another store.
//!
//! Owns the passing of requests to the store below. An implementation defines only the requests
//! that it changes.

use std::fmt::Debug;
use std::ops::Range;

use async_trait::async_trait;
use bytes::Bytes;

use crate::lock::Lock;
use crate::{ObjectInfo, Signs, Store, StoreError, Version};

/// A [`Store`] that passes each request to the store below unless a method is overridden. Its
/// methods are those of [`Store`].
///
/// Write `impl bkfs_store::Layer for …` without importing the name, so that method calls
/// resolve to [`Store`].
#[async_trait]
pub trait Layer: Send + Sync + Debug + 'static {
    /// Returns the store below.
    fn below(&self) -> &dyn Store;

    /// Handles [`Store::get`].
    ///
    /// # Errors
    /// Those of [`Store::get`].
    async fn get(&self, key: &str) -> Result<(Bytes, Version), StoreError> {
        self.below().get(key).await
    }

    /// Handles [`Store::get_if_changed`].
    ///
    /// # Errors
    /// Those of [`Store::get_if_changed`].
    async fn get_if_changed(
        &self,
        key: &str,
        known: &Version,
    ) -> Result<Option<(Bytes, Version)>, StoreError> {
        self.below().get_if_changed(key, known).await
    }

    /// Handles [`Store::get_range`].
    ///
    /// # Errors
    /// Those of [`Store::get_range`].
    async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes, StoreError> {
        self.below().get_range(key, range).await
    }

    /// Handles [`Store::get_tail`].
    ///
    /// # Errors
    /// Those of [`Store::get_tail`].
    async fn get_tail(&self, key: &str, bytes: u64) -> Result<(Bytes, u64), StoreError> {
        self.below().get_tail(key, bytes).await
    }

    /// Handles [`Store::head`].
    ///
    /// # Errors
    /// Those of [`Store::head`].
    async fn head(&self, key: &str) -> Result<ObjectInfo, StoreError> {
        self.below().head(key).await
    }

    /// Handles [`Store::put_new`].
    ///
    /// # Errors
    /// Those of [`Store::put_new`].
    async fn put_new(&self, key: &str, body: Vec<Bytes>) -> Result<Version, StoreError> {
        self.below().put_new(key, body).await
    }

    /// Handles [`Store::put`].
    ///
    /// # Errors
    /// Those of [`Store::put`].
    async fn put(&self, key: &str, body: Vec<Bytes>) -> Result<Version, StoreError> {
        self.below().put(key, body).await
    }

    /// Handles [`Store::replace`].
    ///
    /// # Errors
    /// Those of [`Store::replace`].
    async fn replace(
        &self,
        key: &str,
        body: Vec<Bytes>,
        expected: &Version,
    ) -> Result<Version, StoreError> {
        self.below().replace(key, body, expected).await
    }

    /// Handles [`Store::delete`].
    ///
    /// # Errors
    /// Those of [`Store::delete`].
    async fn delete(&self, key: &str) -> Result<(), StoreError> {
        self.below().delete(key).await
    }

    /// Handles [`Store::list`].
    ///
    /// # Errors
    /// Those of [`Store::list`].
    async fn list(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<ObjectInfo>, StoreError> {
        self.below().list(prefix, after, limit).await
    }

    /// Handles [`Store::put_locked`].
    ///
    /// # Errors
    /// Those of [`Store::put_locked`].
    async fn put_locked(
        &self,
        key: &str,
        body: Vec<Bytes>,
        lock: &Lock,
    ) -> Result<Version, StoreError> {
        self.below().put_locked(key, body, lock).await
    }

    /// Handles [`Store::lock`].
    ///
    /// # Errors
    /// Those of [`Store::lock`].
    async fn lock(&self, key: &str) -> Result<Option<Lock>, StoreError> {
        self.below().lock(key).await
    }

    /// Handles [`Store::extend_lock`].
    ///
    /// # Errors
    /// Those of [`Store::extend_lock`].
    async fn extend_lock(&self, key: &str, lock: &Lock) -> Result<(), StoreError> {
        self.below().extend_lock(key, lock).await
    }

    /// Handles [`Store::describe`].
    fn describe(&self) -> String {
        self.below().describe()
    }

    /// Handles [`Store::signs`].
    fn signs(&self) -> Signs {
        self.below().signs()
    }
}

#[async_trait]
impl<T: Layer> Store for T {
    async fn get(&self, key: &str) -> Result<(Bytes, Version), StoreError> {
        Layer::get(self, key).await
    }

    async fn get_if_changed(
        &self,
        key: &str,
        known: &Version,
    ) -> Result<Option<(Bytes, Version)>, StoreError> {
        Layer::get_if_changed(self, key, known).await
    }

    async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes, StoreError> {
        Layer::get_range(self, key, range).await
    }

    async fn get_tail(&self, key: &str, bytes: u64) -> Result<(Bytes, u64), StoreError> {
        Layer::get_tail(self, key, bytes).await
    }

    async fn head(&self, key: &str) -> Result<ObjectInfo, StoreError> {
        Layer::head(self, key).await
    }

    async fn put_new(&self, key: &str, body: Vec<Bytes>) -> Result<Version, StoreError> {
        Layer::put_new(self, key, body).await
    }

    async fn put(&self, key: &str, body: Vec<Bytes>) -> Result<Version, StoreError> {
        Layer::put(self, key, body).await
    }

    async fn replace(
        &self,
        key: &str,
        body: Vec<Bytes>,
        expected: &Version,
    ) -> Result<Version, StoreError> {
        Layer::replace(self, key, body, expected).await
    }

    async fn delete(&self, key: &str) -> Result<(), StoreError> {
        Layer::delete(self, key).await
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<ObjectInfo>, StoreError> {
        Layer::list(self, prefix, after, limit).await
    }

    async fn put_locked(
        &self,
        key: &str,
        body: Vec<Bytes>,
        lock: &Lock,
    ) -> Result<Version, StoreError> {
        Layer::put_locked(self, key, body, lock).await
    }

    async fn lock(&self, key: &str) -> Result<Option<Lock>, StoreError> {
        Layer::lock(self, key).await
    }

    async fn extend_lock(&self, key: &str, lock: &Lock) -> Result<(), StoreError> {
        Layer::extend_lock(self, key, lock).await
    }

    fn describe(&self) -> String {
        Layer::describe(self)
    }

    fn signs(&self) -> Signs {
        Layer::signs(self)
    }
}
