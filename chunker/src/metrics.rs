//! Counters of a content store's work, for `status` and metrics.
//!
//! Owns numbers only: plain atomics that are read without a lock. They inform people; the program
//! decides nothing by them.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// The live counters.
        #[derive(Debug, Default)]
        pub(crate) struct Counters { $(pub(crate) $name: Counter,)* }

        /// The values of the counters at one moment. All grow from zero at the start of the process
        /// unless stated otherwise.
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
    /// Bytes of file contents that were given to `store_run` and consumed by it.
    bytes_in,
    /// The part of these bytes that was zero and became holes.
    bytes_zero,
    /// Bytes of blobs that existed already.
    bytes_deduplicated,
    /// Bytes of blobs that were new, before compression.
    bytes_new,
    /// Bytes of new frames after compression.
    bytes_compressed,
    /// Bytes of packs, index objects and lists that the store acknowledged.
    bytes_uploaded,
    /// Packs that the store acknowledged.
    packs_uploaded,
    /// Writes sent to the store, with repeated ones.
    put_requests,
    /// Reads sent to the store, with repeated ones.
    get_requests,
    /// Bytes of answers to reads.
    bytes_fetched,
    /// Requests that were repeated after a transient error or while the store was silent.
    retries,
    /// Frames that were found decoded in memory.
    memory_hits,
    /// Frames that were found in the cache on disk.
    disk_hits,
    /// Frames that had to be fetched from the store.
    cache_misses,
    /// Frames or blobs that failed verification, whatever their source.
    damaged,
    /// Bytes that are accepted and not yet acknowledged now.
    pending_bytes,
    /// The most bytes that were ever pending at once.
    pending_peak_bytes,
    /// Bytes of packs that were written to the spool.
    bytes_spooled,
    /// Bytes in the spool now.
    spool_bytes,
    /// Objects in the spool now.
    spool_files,
    /// Bytes in the spool now that are not in the bucket yet.
    spool_waiting_bytes,
    /// The number of uploads that may run concurrently now. It is lower while the store asks for
    /// fewer requests.
    uploads_at_once,
    /// Bytes in the cache on disk now.
    disk_cache_bytes,
}

/// One counter.
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
