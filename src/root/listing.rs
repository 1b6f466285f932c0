//! Lists of keys of a bucket, page by page, to their ends.
//!
//! Owns the one loop over pages of [`Store::list`], and the bounds: a hostile store could send new
//! keys on each page without end, and fill the memory.

use std::collections::BTreeMap;

use bkfs_store::{ObjectInfo, Operation, Store, StoreError, StoreErrorKind};

/// Keys asked for at a time.
pub const PAGE_KEYS: usize = 1000;

/// The most keys that a bucket may list, where all of them are kept: 10,000 requests. With packs of
/// 32 MiB that is a repository of 320 TB.
pub const KEYS_MAX: usize = 10_000_000;

/// The most memory that the keys of one list may take, in bytes. [`KEYS_MAX`] keys of the lengths
/// that bkfs gives them take less.
pub const MEMORY_MAX: usize = 1_500_000_000;

/// The memory that a key takes more than its bytes: its place in the map, its size, and what the
/// allocator adds.
const ENTRY_BYTES: usize = 80;

/// The most journals of one session that a bucket may list above those that a commit covers. A
/// writer commits long before it has sent so many. Covered journals stay where the store permits
/// no deletion, without limit.
pub const JOURNALS_MAX: usize = 1_000_000;

/// The list of the keys with one prefix, page by page.
#[derive(Debug)]
pub(super) struct Pages<'a> {
    prefix: &'a str,
    /// The key behind which the next page begins.
    after: Option<String>,
    is_over: bool,
}

impl<'a> Pages<'a> {
    /// Begins the list of the keys that begin with `prefix`.
    pub(super) fn new(prefix: &'a str) -> Self {
        Self {
            prefix,
            after: None,
            is_over: false,
        }
    }

    /// Whether no page follows.
    pub(super) fn is_over(&self) -> bool {
        self.is_over
    }

    /// Returns the next page of at most [`PAGE_KEYS`] keys; none behind the last page. After an
    /// error, or if the future is dropped, the next call returns the same page.
    ///
    /// # Errors
    /// Store errors.
    pub(super) async fn next(
        &mut self,
        store: &dyn Store,
    ) -> Result<Option<Vec<ObjectInfo>>, StoreError> {
        if self.is_over {
            return Ok(None);
        }
        let after = self.after.as_deref();
        let page = store.list(self.prefix, after, PAGE_KEYS).await?;
        self.is_over = page.len() < PAGE_KEYS;
        self.after = page.last().map(|info| info.key.clone());
        Ok(Some(page))
    }

    /// Passes over the keys up to `key`, and `key` itself.
    fn skip_to(&mut self, key: String) {
        self.after = self.after.take().max(Some(key));
    }
}

/// Bounds of a list of a bucket.
#[derive(Clone, Copy)]
struct Most {
    keys: usize,
    memory: usize,
}

/// Returns every key that begins with `prefix` with its size in bytes.
///
/// # Errors
/// `Invalid` beyond [`KEYS_MAX`] keys, or [`MEMORY_MAX`] bytes of memory for them. Store errors.
pub async fn all(store: &dyn Store, prefix: &str) -> Result<BTreeMap<String, u64>, StoreError> {
    let most = Most {
        keys: KEYS_MAX,
        memory: MEMORY_MAX,
    };
    at_most(store, prefix, most).await
}

async fn at_most(
    store: &dyn Store,
    prefix: &str,
    most: Most,
) -> Result<BTreeMap<String, u64>, StoreError> {
    let mut found = BTreeMap::new();
    let mut pages = Pages::new(prefix);
    let mut memory = 0;
    while let Some(page) = pages.next(store).await? {
        memory += page
            .iter()
            .map(|info| info.key.len() + ENTRY_BYTES)
            .sum::<usize>();
        found.extend(page.into_iter().map(|info| (info.key, info.size)));
        if found.len() > most.keys {
            return Err(endless(prefix, format!("{} objects", most.keys)));
        }
        if memory > most.memory {
            let bound = format!("{} bytes of memory for its keys", most.memory);
            return Err(endless(prefix, bound));
        }
    }
    Ok(found)
}

/// Returns the refusal of a list of more than a bucket can hold.
fn endless(prefix: &str, bound: String) -> StoreError {
    let what = format!(
        "the list goes on beyond {bound}, more than a repository has: look what lies there \
         with another program, and whether the store's lists end"
    );
    StoreError::new(StoreErrorKind::Invalid, Operation::List, prefix, what)
}

/// Returns the key of the journal with this number, of the session whose journals have this prefix.
pub(super) fn journal_key(prefix: &str, number: u64) -> String {
    format!("{prefix}{number:016x}")
}

/// Returns the number of a journal from its key; none if the key is not of a journal of this
/// session.
pub(super) fn journal_number(prefix: &str, key: &str) -> Option<u64> {
    let number = u64::from_str_radix(key.strip_prefix(prefix)?, 16).ok()?;
    (key == journal_key(prefix, number)).then_some(number)
}

/// The journals of one session, as a list of the bucket shows them.
#[derive(Debug, Default)]
pub(super) struct JournalListing {
    /// The keys of journals that no commit covers, with the lengths of their objects in bytes.
    pub(super) uncovered: BTreeMap<String, u64>,
    /// The keys of covered journals, one page at the most.
    pub(super) covered: Vec<String>,
}

impl JournalListing {
    /// Lists the journals of the session whose journals have this prefix. Journals with numbers
    /// below `first` are covered: the list begins with one page of them, and goes on behind the
    /// last one. Keys that are of no journal are passed over.
    ///
    /// # Errors
    /// `Invalid` beyond [`JOURNALS_MAX`] uncovered journals, or [`KEYS_MAX`] other keys. Store
    /// errors.
    pub(super) async fn read(
        store: &dyn Store,
        prefix: &str,
        first: u64,
    ) -> Result<Self, StoreError> {
        Self::read_at_most(store, prefix, first, JOURNALS_MAX).await
    }

    async fn read_at_most(
        store: &dyn Store,
        prefix: &str,
        first: u64,
        most: usize,
    ) -> Result<Self, StoreError> {
        let mut found = Self::default();
        let mut pages = Pages::new(prefix);
        let mut passed = 0;
        while let Some(page) = pages.next(store).await? {
            for info in page {
                match journal_number(prefix, &info.key) {
                    Some(number) if number >= first => {
                        found.uncovered.insert(info.key, info.size);
                    }
                    Some(_) if found.covered.len() < PAGE_KEYS => found.covered.push(info.key),
                    Some(_) => {}
                    None => passed += 1,
                }
            }
            if found.uncovered.len() > most {
                let bound = format!("{most} journals that no commit covers");
                return Err(endless(prefix, bound));
            }
            if passed > KEYS_MAX {
                let bound = format!("{KEYS_MAX} objects that are no journals");
                return Err(endless(prefix, bound));
            }
            if let Some(covered) = first.checked_sub(1) {
                pages.skip_to(journal_key(prefix, covered));
            }
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use async_trait::async_trait;
    use bkfs_store::{Layer, MemoryStore};

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

    fn keys(keys: usize) -> Most {
        Most {
            keys,
            memory: MEMORY_MAX,
        }
    }

    #[tokio::test]
    async fn a_list_without_an_end_is_refused() {
        let store = Endless::default();
        let refused = at_most(&store, "data/", keys(5_000))
            .await
            .expect_err("no end");
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
        let found = at_most(&store, "data/", keys(2_500))
            .await
            .expect("it ends");
        assert_eq!(found.len(), 2_500);
        at_most(&store, "data/", keys(2_499))
            .await
            .expect_err("too many");
    }

    #[tokio::test]
    async fn a_list_of_keys_that_fill_the_memory_is_refused() {
        let store = Endless::default();
        let prefix = "x".repeat(1_000);
        let most = Most {
            keys: 5_000,
            memory: 2_500_000,
        };
        let refused = at_most(&store, &prefix, most).await.expect_err("too long");
        assert_eq!(refused.kind(), StoreErrorKind::Invalid);
        assert!(refused.to_string().contains("memory"), "{refused}");
        assert_eq!(store.listed.load(Ordering::Relaxed), 3_000);
    }

    const PREFIX: &str = "journal/00000000000000ff/0123456789abcdef/";

    /// Counts the pages that are listed.
    #[derive(Debug, Default)]
    struct Counted {
        below: MemoryStore,
        pages: AtomicU64,
    }

    #[async_trait]
    impl Layer for Counted {
        fn below(&self) -> &dyn Store {
            &self.below
        }

        async fn list(
            &self,
            prefix: &str,
            after: Option<&str>,
            limit: usize,
        ) -> Result<Vec<ObjectInfo>, StoreError> {
            self.pages.fetch_add(1, Ordering::Relaxed);
            self.below.list(prefix, after, limit).await
        }
    }

    async fn put(store: &MemoryStore, key: &str) {
        store.put(key, vec!["x".into()]).await.expect("put");
    }

    #[tokio::test]
    async fn covered_journals_and_other_keys_do_not_count() {
        let store = Counted::default();
        for number in 1..=5_003 {
            put(&store.below, &journal_key(PREFIX, number)).await;
        }
        for number in 0..50 {
            let key = format!("{PREFIX}{:016x}-other", 5_000 + number);
            put(&store.below, &key).await;
        }
        let journals = |most| JournalListing::read_at_most(&store, PREFIX, 5_001, most);
        let found = journals(3).await.expect("it ends");
        let open = (5_001..=5_003).map(|number| journal_key(PREFIX, number));
        assert!(found.uncovered.keys().cloned().eq(open));
        assert_eq!(found.covered.len(), PAGE_KEYS);
        let pages = store.pages.load(Ordering::Relaxed);
        assert_eq!(pages, 2, "covered journals are listed");
        let refused = journals(2).await.expect_err("too many");
        assert_eq!(refused.kind(), StoreErrorKind::Invalid);
    }

    #[tokio::test]
    async fn no_journal_is_passed_over_where_none_is_covered() {
        let store = MemoryStore::new();
        for number in 1..=2_500 {
            put(&store, &journal_key(PREFIX, number)).await;
        }
        let found = JournalListing::read_at_most(&store, PREFIX, 1, 2_500).await;
        let found = found.expect("it ends");
        assert_eq!(found.uncovered.len(), 2_500);
        assert_eq!(found.covered.len(), 0);
    }
}
