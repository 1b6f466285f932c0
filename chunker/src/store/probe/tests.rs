//! The probe against a right store, and against stores that are wrong in one way each.

use async_trait::async_trait;

use super::*;
use crate::store::{MemoryStore, ObjectInfo, Operation};

/// Ways to be wrong.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Wrong {
    No,
    IgnoresCreateOnly,
    InvertsCreateOnly,
    IgnoresVersions,
    CreatesOnReplace,
    RefusesReplace,
    ForgetsWrites,
    ListsLate,
    ChecksThenWrites,
    OneVersionForAll,
}

/// A store in memory that is wrong in one way.
#[derive(Debug)]
struct WrongStore {
    inner: MemoryStore,
    wrong: Wrong,
}

#[async_trait]
impl crate::store::Layer for WrongStore {
    fn below(&self) -> &dyn Store {
        &self.inner
    }

    async fn get(&self, key: &str) -> Result<(Bytes, Version), StoreError> {
        if self.wrong == Wrong::ForgetsWrites {
            let absent = StoreErrorKind::NotFound;
            return Err(StoreError::new(absent, Operation::Get, key, "later"));
        }
        let (bytes, version) = self.inner.get(key).await?;
        match self.wrong {
            Wrong::OneVersionForAll => Ok((bytes, Version::token("same".into()))),
            _ => Ok((bytes, version)),
        }
    }

    async fn put_new(&self, key: &str, body: Vec<Bytes>) -> Result<Version, StoreError> {
        let exists = self.inner.head(key).await.is_ok();
        match self.wrong {
            Wrong::IgnoresCreateOnly => self.inner.put(key, body).await,
            Wrong::InvertsCreateOnly if !exists => {
                let kind = StoreErrorKind::AlreadyExists;
                Err(StoreError::new(kind, Operation::PutNew, key, "inverted"))
            }
            Wrong::ChecksThenWrites if !exists => {
                tokio::task::yield_now().await;
                self.inner.put(key, body).await
            }
            Wrong::OneVersionForAll => {
                self.inner.put_new(key, body).await?;
                Ok(Version::token("same".into()))
            }
            _ => self.inner.put_new(key, body).await,
        }
    }

    async fn replace(
        &self,
        key: &str,
        body: Vec<Bytes>,
        expected: &Version,
    ) -> Result<Version, StoreError> {
        let exists = self.inner.head(key).await.is_ok();
        match self.wrong {
            Wrong::IgnoresVersions if exists => self.inner.put(key, body).await,
            Wrong::CreatesOnReplace if !exists => self.inner.put(key, body).await,
            Wrong::RefusesReplace => {
                let kind = StoreErrorKind::Conflict;
                Err(StoreError::new(kind, Operation::Replace, key, "never"))
            }
            Wrong::OneVersionForAll => {
                self.inner.put(key, body).await?;
                Ok(Version::token("same".into()))
            }
            _ => self.inner.replace(key, body, expected).await,
        }
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<ObjectInfo>, StoreError> {
        match self.wrong {
            Wrong::ListsLate => Ok(Vec::new()),
            _ => self.inner.list(prefix, after, limit).await,
        }
    }

    fn describe(&self) -> String {
        "s3://wrong".to_owned()
    }
}

#[tokio::test]
async fn a_right_store_is_fit_and_left_as_it_was() {
    let store = MemoryStore::new();
    for salt in ["a", "a", "b"] {
        probe_conditional_writes(&store, salt).await.unwrap();
        assert_eq!(store.object_count(), 0);
    }
}

#[tokio::test]
async fn several_probe_at_once() {
    let store = MemoryStore::new();
    let probes = (0..8).map(|number| {
        let store = store.clone();
        async move { probe_conditional_writes(&store, &format!("salt-{number}")).await }
    });
    for result in join_all(probes).await {
        result.unwrap();
    }
    assert_eq!(store.object_count(), 0);
}

#[tokio::test]
async fn each_wrong_store_is_unfit_and_told_why() {
    let cases = [
        (Wrong::IgnoresCreateOnly, "over an existing object succeeds"),
        (Wrong::InvertsCreateOnly, "of a new object is refused"),
        (Wrong::IgnoresVersions, "with an outdated version succeeds"),
        (Wrong::CreatesOnReplace, "that does not exist succeeds"),
        (Wrong::RefusesReplace, "with the right version is refused"),
        (Wrong::ForgetsWrites, "reads do not see earlier writes"),
        (Wrong::ListsLate, "lists do not see earlier writes"),
        (Wrong::ChecksThenWrites, "4 succeed: they are not one step"),
        (Wrong::OneVersionForAll, "have the same version"),
    ];
    for (wrong, words) in cases {
        let store = WrongStore {
            inner: MemoryStore::new(),
            wrong,
        };
        let error = probe_conditional_writes(&store, "salt").await.unwrap_err();
        let text = error.to_string();
        assert!(
            matches!(error, ProbeError::Unfit { .. }),
            "{wrong:?}: {text}"
        );
        assert!(
            text.starts_with("s3://wrong cannot hold a repository"),
            "{text}"
        );
        assert!(text.contains(words), "{wrong:?}: {text}");
        assert_eq!(store.inner.object_count(), 0, "{wrong:?}");
    }
    let store = WrongStore {
        inner: MemoryStore::new(),
        wrong: Wrong::No,
    };
    probe_conditional_writes(&store, "salt").await.unwrap();
}
