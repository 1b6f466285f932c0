//! Memory cache of decoded values, bounded in bytes, with eviction of the least recently used.
//!
//! The first use of a value does not count as recent. What is read in sequence is used once, and
//! else would drive out what was fetched ahead and comes next.

use std::hash::Hash;

use lru::LruCache;
use parking_lot::Mutex;

/// A bounded map. Values must be cheap to clone (an `Arc`).
#[derive(Debug)]
pub(crate) struct MemoryCache<K: Hash + Eq, V> {
    state: Mutex<MemoryCacheState<K, V>>,
}

#[derive(Debug)]
struct MemoryCacheState<K: Hash + Eq, V> {
    entries: LruCache<K, Entry<V>>,
    used: u64,
    limit: u64,
}

#[derive(Debug)]
struct Entry<V> {
    bytes: u64,
    value: V,
    is_used: bool,
}

impl<K: Hash + Eq, V: Clone> MemoryCache<K, V> {
    /// Returns a cache of at most `limit` bytes.
    pub(crate) fn new(limit: u64) -> Self {
        Self {
            state: Mutex::new(MemoryCacheState {
                entries: LruCache::unbounded(),
                used: 0,
                limit,
            }),
        }
    }

    pub(crate) fn get(&self, key: &K) -> Option<V> {
        let mut state = self.state.lock();
        let entry = state.entries.peek_mut(key)?;
        let value = entry.value.clone();
        if std::mem::replace(&mut entry.is_used, true) {
            state.entries.promote(key);
        }
        Some(value)
    }

    /// Returns true if a value is cached. It does not count as used.
    pub(crate) fn has(&self, key: &K) -> bool {
        self.state.lock().entries.contains(key)
    }

    /// Caches a value that takes `bytes` bytes. A value larger than a quarter of the cache is not
    /// cached.
    pub(crate) fn put(&self, key: K, bytes: u64, value: V) {
        let mut state = self.state.lock();
        if bytes > state.limit / 4 {
            return;
        }
        state.used += bytes;
        let entry = Entry {
            bytes,
            value,
            is_used: false,
        };
        if let Some((_, before)) = state.entries.push(key, entry) {
            state.used -= before.bytes;
        }
        state.evict();
    }

    /// Sets the limit, in bytes.
    pub(crate) fn limit_to(&self, bytes: u64) {
        let mut state = self.state.lock();
        state.limit = bytes;
        state.evict();
    }

    pub(crate) fn remove(&self, key: &K) {
        let mut state = self.state.lock();
        if let Some(entry) = state.entries.pop(key) {
            state.used -= entry.bytes;
        }
    }

    #[cfg(test)]
    pub(crate) fn limit(&self) -> u64 {
        self.state.lock().limit
    }

    #[cfg(test)]
    pub(crate) fn used(&self) -> u64 {
        self.state.lock().used
    }
}

impl<K: Hash + Eq, V> MemoryCacheState<K, V> {
    /// Evicts values until the rest is within the limit.
    fn evict(&mut self) {
        while self.used > self.limit {
            let Some((_, entry)) = self.entries.pop_lru() else {
                break;
            };
            self.used -= entry.bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A reader of a long file, 80 bytes behind what is fetched ahead.
    #[test]
    fn what_is_used_once_stays_in_its_order() {
        let cache = MemoryCache::new(100);
        for fetched in 0..50 {
            cache.put(fetched, 10, fetched);
            if let Some(read) = i32::checked_sub(fetched, 8).filter(|read| *read >= 0) {
                assert_eq!(cache.get(&read), Some(read), "it was fetched in vain");
            }
        }
    }

    #[test]
    fn the_bound_holds_and_the_least_used_goes_first() {
        let cache = MemoryCache::new(100);
        for key in 0..10 {
            cache.put(key, 10, key);
        }
        assert_eq!((cache.used(), cache.get(&1)), (100, Some(1)));
        assert_eq!((cache.get(&0), cache.get(&0)), (Some(0), Some(0)));
        cache.put(10, 20, 10);
        assert_eq!(cache.get(&0), Some(0), "was used twice");
        assert_eq!((cache.get(&1), cache.get(&2)), (None, None));
        cache.put(10, 5, 11);
        assert_eq!((cache.used(), cache.get(&10)), (85, Some(11)));
        cache.put(11, 26, 11);
        assert_eq!((cache.used(), cache.get(&11)), (85, None));
        cache.remove(&10);
        assert_eq!(cache.used(), 80);
    }
}
