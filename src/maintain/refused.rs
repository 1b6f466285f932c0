//! A store that refuses an object: whether it refuses others too.
//!
//! Stores answer 403 for an object in an archive class, and for every object once credentials have
//! expired. Owns telling one from the other: after a refusal the config is asked for, which every
//! command has read before, and then the object once more. Costs two requests for each refusal.

use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use bkfs_chunker::seal::Config;
use bkfs_chunker::store::{Layer, ObjectInfo, Store, StoreError, StoreErrorKind, Version};
use bytes::Bytes;

/// A store whose refusals are [of one object](StoreError::is_of_one_object) where it gives others.
#[derive(Debug)]
pub(super) struct Refusals(Arc<dyn Store>);

impl Refusals {
    pub(super) fn of(store: Arc<dyn Store>) -> Self {
        Self(store)
    }

    /// Returns `answer`, or what `again` gives if that was a refusal and the config is given.
    async fn judge<T>(
        &self,
        key: &str,
        answer: Result<T, StoreError>,
        again: impl Future<Output = Result<T, StoreError>> + Send,
    ) -> Result<T, StoreError> {
        let is_refusal = |error: &StoreError| error.kind() == StoreErrorKind::Denied;
        match answer {
            Err(error) if is_refusal(&error) && key != Config::KEY => {
                if self.0.get(Config::KEY).await.is_err() {
                    return Err(error);
                }
                again.await.map_err(|error| match is_refusal(&error) {
                    true => error.of_one_object(),
                    false => error,
                })
            }
            answer => answer,
        }
    }
}

#[async_trait]
impl Layer for Refusals {
    fn below(&self) -> &dyn Store {
        &*self.0
    }

    async fn get(&self, key: &str) -> Result<(Bytes, Version), StoreError> {
        let answer = self.0.get(key).await;
        self.judge(key, answer, self.0.get(key)).await
    }

    async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes, StoreError> {
        let answer = self.0.get_range(key, range.clone()).await;
        self.judge(key, answer, self.0.get_range(key, range)).await
    }

    async fn get_tail(&self, key: &str, bytes: u64) -> Result<(Bytes, u64), StoreError> {
        let answer = self.0.get_tail(key, bytes).await;
        self.judge(key, answer, self.0.get_tail(key, bytes)).await
    }

    async fn head(&self, key: &str) -> Result<ObjectInfo, StoreError> {
        let answer = self.0.head(key).await;
        self.judge(key, answer, self.0.head(key)).await
    }
}
