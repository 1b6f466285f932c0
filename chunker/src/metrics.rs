//! Counters of what a depot did, for `status` and metrics.
//!
//! Owns numbers only: plain atomics, read without a lock. They are for people; nothing is decided by them.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Live counters.
        #[derive(Debug, Default)]
        pub(crate) struct Counters { $(pub(crate) $name: Counter,)* }

        /// What the counters said at one moment. All grow from zero at the start of the process unless said otherwise.
        #[derive(Debug, Default, Clone, Copy, PartialEq, Eq, serde::Serialize)]
        pub struct Metrics { $($(#[$doc])* pub $name: u64,)* }

        impl Counters {
            pub(crate) fn snapshot(&self) -> Metrics {
                Metrics { $($name: self.$name.get(),)* }
            }
        }
    };
}

counters! {
    /// Bytes of file contents given to `store_run` and consumed by it.
    bytes_in,
    /// Bytes of these that were zero and became holes.
    bytes_zero,
    /// Bytes of blobs that were there already.
    bytes_deduplicated,
    /// Bytes of blobs that were new (before compression).
    bytes_new,
    /// Bytes of new frames after compression.
    bytes_compressed,
    /// Bytes of packs, index objects and lists that the store acknowledged.
    bytes_uploaded,
    /// Packs acknowledged.
    packs_uploaded,
    /// Writes sent to the store, repeated ones included.
    put_requests,
    /// Reads sent to the store, repeated ones included.
    get_requests,
    /// Bytes of answers to reads.
    bytes_fetched,
    /// Requests repeated after a transient error.
    retries,
    /// Frames found decoded in memory.
    memory_hits,
    /// Frames found in the cache on disk.
    disk_hits,
    /// Frames that had to be fetched.
    cache_misses,
    /// Frames or blobs that failed verification, wherever they came from.
    damaged,
    /// Bytes accepted and not yet acknowledged, now.
    pending_bytes,
    /// The most bytes that were ever pending at once.
    pending_peak_bytes,
    /// Bytes of packs that went into the spool.
    bytes_spooled,
    /// Bytes in the spool, now.
    spool_bytes,
    /// Objects in the spool, now.
    spool_files,
    /// Bytes in the spool that are not in the bucket yet, now.
    spool_waiting_bytes,
    /// How many uploads may run at once, now: fewer while the store asks for patience.
    uploads_at_once,
    /// Bytes in the cache on disk, now.
    disk_cache_bytes,
}

/// One number.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, amount: u64) {
        self.0.fetch_add(amount, Ordering::Relaxed);
    }

    pub(crate) fn one(&self) {
        self.add(1);
    }

    pub(crate) fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
