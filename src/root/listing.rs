//! Lists of keys of a bucket, to their ends.
//!
//! Owns the bound: a store could go on for ever, with new keys on each page, and what is kept of them
//! would fill the memory. Takes about 150 bytes for each key.

use std::collections::BTreeMap;

use bkfs_chunker::store::{Operation, Store, StoreError, StoreErrorKind};

/// Keys asked for at a time.
pub const PAGE_KEYS: usize = 1000;

/// The most keys that a bucket may list, where all of them are kept: about 1.5 GB of memory and
/// 10,000 requests. With packs of 32 MiB that is a repository of 320 TB.
pub const KEYS_MAX: usize = 10_000_000;

/// The most journals of one session that a bucket may list. A commit deletes those that it covers,
/// of which there is one for each fsync at the most.
pub const JOURNALS_MAX: usize = 1_000_000;

/// Returns every key that begins with `prefix` with its size in bytes.
///
/// # Errors
/// `Invalid` beyond [`KEYS_MAX`] keys. Store errors.
pub async fn all(store: &dyn Store, prefix: &str) -> Result<BTreeMap<String, u64>, StoreError> {
    at_most(store, prefix, KEYS_MAX).await
}

async fn at_most(
    store: &dyn Store,
    prefix: &str,
    most: usize,
) -> Result<BTreeMap<String, u64>, StoreError> {
    let mut found = BTreeMap::new();
    let mut after: Option<String> = None;
    loop {
        let page = store.list(prefix, after.as_deref(), PAGE_KEYS).await?;
        let is_last = page.len() < PAGE_KEYS;
        after = page.last().map(|info| info.key.clone());
        found.extend(page.into_iter().map(|info| (info.key, info.size)));
        check(prefix, found.len(), most)?;
        if is_last {
            return Ok(found);
        }
    }
}

/// Refuses a list of more keys than a bucket can hold.
///
/// # Errors
/// `Invalid`.
pub fn check(prefix: &str, keys: usize, most: usize) -> Result<(), StoreError> {
    if keys <= most {
        return Ok(());
    }
    let what = format!(
        "the list goes on beyond {most} objects, more than a repository has: look what lies there \
         with another program, and whether the store's lists end"
    );
    Err(StoreError::new(
        StoreErrorKind::Invalid,
        Operation::List,
        prefix,
        what,
    ))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use async_trait::async_trait;
    use bkfs_chunker::store::{Layer, MemoryStore, ObjectInfo};

    use super::*;

    /// A list without an end, with new keys on each page.
    #[derive(Debug, Default)]
    struct Endless {
        below: MemoryStore,
        listed: AtomicU64,
    }

    #[async_trait]
    impl Layer for Endless {
        fn below(&self) -> &dyn Store {
            &self.below
        }

        async fn list(
            &self,
            prefix: &str,
            _: Option<&str>,
            limit: usize,
        ) -> Result<Vec<ObjectInfo>, StoreError> {
            let first = self.listed.fetch_add(limit as u64, Ordering::Relaxed);
            let info = |number| ObjectInfo {
                key: format!("{prefix}{number:016x}"),
                size: 1,
            };
            Ok((first..first + limit as u64).map(info).collect())
        }
    }

    #[tokio::test]
    async fn a_list_without_an_end_is_refused() {
        let store = Endless::default();
        let refused = at_most(&store, "data/", 5_000).await.expect_err("no end");
        assert_eq!(refused.kind(), StoreErrorKind::Invalid);
        assert!(refused.to_string().contains("data/"), "{refused}");
        assert_eq!(store.listed.load(Ordering::Relaxed), 6_000);
    }

    #[tokio::test]
    async fn a_list_of_as_many_keys_as_are_allowed_is_whole() {
        let store = MemoryStore::new();
        for number in 0..2_500 {
            let key = format!("data/{number:04}");
            store.put(&key, vec!["x".into()]).await.expect("put");
        }
        let found = at_most(&store, "data/", 2_500).await.expect("it ends");
        assert_eq!(found.len(), 2_500);
        at_most(&store, "data/", 2_499).await.expect_err("too many");
    }
}
