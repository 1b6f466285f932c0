//! Memory cache of decoded values, bounded in bytes, with eviction of the least recently used.

use std::hash::Hash;

use lru::LruCache;
use parking_lot::Mutex;

/// A bounded map. Values must be cheap to clone (an `Arc`).
#[derive(Debug)]
pub(crate) struct MemoryCache<K: Hash + Eq, V> {
    limit: u64,
    state: Mutex<MemoryCacheState<K, V>>,
}

#[derive(Debug)]
struct MemoryCacheState<K: Hash + Eq, V> {
    entries: LruCache<K, (u64, V)>,
    used: u64,
}

impl<K: Hash + Eq, V: Clone> MemoryCache<K, V> {
    /// Returns a cache of at most `limit` bytes.
    pub(crate) fn new(limit: u64) -> Self {
        Self {
            limit,
            state: Mutex::new(MemoryCacheState {
                entries: LruCache::unbounded(),
                used: 0,
            }),
        }
    }

    pub(crate) fn get(&self, key: &K) -> Option<V> {
        let mut state = self.state.lock();
        state.entries.get(key).map(|(_, value)| value.clone())
    }

    /// Caches a value that takes `bytes` bytes. A value larger than a quarter of the cache is not
    /// cached.
    pub(crate) fn put(&self, key: K, bytes: u64, value: V) {
        if bytes > self.limit / 4 {
            return;
        }
        let mut state = self.state.lock();
        state.used += bytes;
        if let Some((_, (before, _))) = state.entries.push(key, (bytes, value)) {
            state.used -= before;
        }
        while state.used > self.limit {
            let Some((_, (bytes, _))) = state.entries.pop_lru() else {
                break;
            };
            state.used -= bytes;
        }
    }

    pub(crate) fn remove(&self, key: &K) {
        let mut state = self.state.lock();
        if let Some((bytes, _)) = state.entries.pop(key) {
            state.used -= bytes;
        }
    }

    #[cfg(test)]
    pub(crate) fn used(&self) -> u64 {
        self.state.lock().used
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_holds_and_the_least_used_goes_first() {
        let cache = MemoryCache::new(100);
        for key in 0..10 {
            cache.put(key, 10, key);
        }
        assert_eq!((cache.used(), cache.get(&0)), (100, Some(0)));
        cache.put(10, 20, 10);
        assert_eq!(cache.get(&0), Some(0), "was used");
        assert_eq!((cache.get(&1), cache.get(&2)), (None, None));
        cache.put(10, 5, 11);
        assert_eq!((cache.used(), cache.get(&10)), (85, Some(11)));
        cache.put(11, 26, 11);
        assert_eq!((cache.used(), cache.get(&11)), (85, None));
        cache.remove(&10);
        assert_eq!(cache.used(), 80);
    }
}
