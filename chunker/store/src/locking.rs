//! A store layer that locks new objects in the bucket, by the lock rule of the repository.
//!
//! Owns the guarantee that every [`Store::put_new`] of an object that the rule covers creates it
//! locked, whichever module calls it. Does not own which objects the rule covers, how long locks
//! last, and their extension.

use std::fmt;
use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use bytes::Bytes;
use jiff::Timestamp;

use crate::lock::{Lock, LockRule};
use crate::{Store, StoreError, Version};

/// Which objects are locked, for how long, and by which clock.
pub struct Locking {
    /// The mode of the locks, and their length in days. With 0 days nothing is locked.
    pub rule: LockRule,
    /// Returns whether the object under this key is to be locked.
    pub wanted: fn(&str) -> bool,
    /// Returns the time of day.
    pub now: Box<dyn Fn() -> Timestamp + Send + Sync>,
}

impl fmt::Debug for Locking {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.rule.fmt(formatter)
    }
}

/// A store that locks new objects from the moment when [`LockingStore::begin`] gives it the rule.
/// The rule is known only when the repository has been opened.
#[derive(Debug)]
pub struct LockingStore {
    inner: Arc<dyn Store>,
    locking: OnceLock<Locking>,
}

impl LockingStore {
    /// Returns a store that passes every request on unchanged until [`LockingStore::begin`] is
    /// called.
    pub fn new(inner: Arc<dyn Store>) -> Self {
        Self {
            inner,
            locking: OnceLock::new(),
        }
    }

    /// Locks all new objects from now on. Only the first call has an effect.
    pub fn begin(&self, locking: Locking) {
        let _ = self.locking.set(locking);
    }

    fn lock_of(&self, key: &str) -> Option<Lock> {
        let locking = self.locking.get()?;
        let wanted = locking.rule.days > 0 && (locking.wanted)(key);
        wanted.then(|| locking.rule.lock_from((locking.now)()))
    }
}

#[async_trait]
impl crate::Layer for LockingStore {
    fn below(&self) -> &dyn Store {
        &*self.inner
    }

    async fn put_new(&self, key: &str, body: Vec<Bytes>) -> Result<Version, StoreError> {
        match self.lock_of(key) {
            Some(lock) => self.inner.put_locked(key, body, &lock).await,
            None => self.inner.put_new(key, body).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryStore;
    use crate::lock::LockMode;

    #[tokio::test]
    async fn what_is_created_is_locked_once_the_rule_is_known() {
        let memory = MemoryStore::new();
        let store = LockingStore::new(Arc::new(memory.clone()));
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
