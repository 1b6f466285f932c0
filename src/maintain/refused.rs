//! A store that refuses an object: whether it refuses others too.
//!
//! Stores answer 403 for an object in an archive class, and for every object once credentials have
//! expired. A store or a proxy may answer malformed for one object, or for all. Owns telling one
//! from the other: after a refusal the config is asked for, which every command has read before,
//! then the object once more, and after a second refusal the config again, since credentials may
//! expire in between. Costs three requests for each refusal.

use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use bkfs_chunker::crypto::Config;
use bkfs_store::{Layer, ObjectInfo, Store, StoreError, StoreErrorKind, Version};
use bytes::Bytes;

/// A store whose refusals are [of one object](StoreError::is_of_one_object) where it gives others.
#[derive(Debug)]
pub(super) struct Refusals(Arc<dyn Store>);

impl Refusals {
    pub(super) fn of(store: Arc<dyn Store>) -> Self {
        Self(store)
    }

    /// Returns `answer`, or what `again` gives if that was a refusal and the config is given. A
    /// second refusal is of one object if the config is given after it.
    async fn judge<T>(
        &self,
        key: &str,
        answer: Result<T, StoreError>,
        again: impl Future<Output = Result<T, StoreError>> + Send,
    ) -> Result<T, StoreError> {
        let is_refusal = |error: &StoreError| {
            matches!(
                error.kind(),
                StoreErrorKind::Denied | StoreErrorKind::Invalid
            )
        };
        match answer {
            Err(error) if is_refusal(&error) && key != Config::KEY => {
                if self.0.get(Config::KEY).await.is_err() {
                    return Err(error);
                }
                match again.await {
                    Err(error) if is_refusal(&error) => match self.0.get(Config::KEY).await {
                        Ok(_) => Err(error.of_one_object()),
                        Err(_) => Err(error),
                    },
                    answer => answer,
                }
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use bkfs_store::{MemoryStore, Operation};

    use super::*;

    /// Refuses everything but the config, and that too after it was given a number of times.
    #[derive(Debug)]
    struct Expiring {
        below: MemoryStore,
        configs: AtomicU64,
        kind: StoreErrorKind,
    }

    #[async_trait]
    impl Layer for Expiring {
        fn below(&self) -> &dyn Store {
            &self.below
        }

        async fn get(&self, key: &str) -> Result<(Bytes, Version), StoreError> {
            let is_left = |left: u64| left.checked_sub(1);
            let order = Ordering::Relaxed;
            if key == Config::KEY && self.configs.fetch_update(order, order, is_left).is_ok() {
                return self.below.get(key).await;
            }
            Err(StoreError::new(self.kind, Operation::Get, key, "refused"))
        }
    }

    #[tokio::test]
    async fn a_refusal_is_of_one_object_if_the_config_is_given_after_it() {
        let kinds = [StoreErrorKind::Denied, StoreErrorKind::Invalid];
        let cases = [(0, false), (1, false), (2, true)];
        let cases = kinds
            .iter()
            .flat_map(|kind| cases.map(|case| (*kind, case)));
        for (kind, (configs, expected)) in cases {
            let below = MemoryStore::new();
            let config = vec!["config".into()];
            below.put(Config::KEY, config).await.expect("put");
            let configs_left = AtomicU64::new(configs);
            let expiring = Expiring {
                below,
                configs: configs_left,
                kind,
            };
            let store: Arc<dyn Store> = Arc::new(Refusals::of(Arc::new(expiring)));
            let error = store.get("data/object").await.expect_err("it is refused");
            assert_eq!(error.kind(), kind);
            assert_eq!(error.is_of_one_object(), expected, "{configs} configs");
        }
    }
}
