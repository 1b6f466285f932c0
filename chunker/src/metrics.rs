//! Counters of a content store's work, for `status` and metrics.
//!
//! Owns numbers only: plain atomics that are read without a lock. They inform people; the program
//! decides nothing by them.

use std::sync::atomic::{AtomicU64, Ordering};

/// The kind of a measure: a counter only grows while the process lives, a gauge goes both ways.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// It only grows.
    Counter,
    /// It is a value of this moment.
    Gauge,
}

/// One value, and what it means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Measure {
    /// The name of its field in [`Metrics`].
    pub name: &'static str,
    /// Whether it only grows.
    pub kind: Kind,
    /// What it is, in one or two sentences.
    pub help: &'static str,
    /// Its value.
    pub value: u64,
}

macro_rules! counters {
    ($($(#[doc = $doc:literal])* $kind:ident $name:ident,)*) => {
        /// The live counters.
        #[derive(Debug, Default)]
        pub(crate) struct Counters { $(pub(crate) $name: Counter,)* }

        /// The values of the counters at one moment. Those of kind [`Kind::Counter`] grow from zero
        /// at the start of the process.
        #[derive(Debug, Default, Clone, Copy, PartialEq, Eq, serde::Serialize)]
        pub struct Metrics { $($(#[doc = $doc])* pub $name: u64,)* }

        impl Counters {
            pub(crate) fn snapshot(&self) -> Metrics {
                Metrics { $($name: self.$name.get(),)* }
            }
        }

        impl Metrics {
            /// Returns all values with what they mean.
            pub fn measures(&self) -> Vec<Measure> {
                vec![$(Measure {
                    name: stringify!($name),
                    kind: Kind::$kind,
                    help: concat!($($doc),*).trim_ascii(),
                    value: self.$name,
                },)*]
            }
        }
    };
}

counters! {
    /// Bytes of file contents that were written and cut into chunks.
    Counter bytes_in,
    /// The part of these bytes that was zero and became holes.
    Counter bytes_zero,
    /// Bytes of blobs that existed already.
    Counter bytes_deduplicated,
    /// Bytes of blobs that were new, before compression.
    Counter bytes_new,
    /// Bytes of new frames after compression.
    Counter bytes_compressed,
    /// Bytes of packs, index objects and lists that the store acknowledged.
    Counter bytes_uploaded,
    /// Packs that the store acknowledged.
    Counter packs_uploaded,
    /// Writes sent to the store, with repeated ones.
    Counter put_requests,
    /// Reads sent to the store, with repeated ones.
    Counter get_requests,
    /// Bytes of answers to reads.
    Counter bytes_fetched,
    /// Requests that were repeated after a transient error or while the store was silent.
    Counter retries,
    /// Frames that were found decoded in memory.
    Counter memory_hits,
    /// Frames that were found in the cache on disk.
    Counter disk_hits,
    /// Blobs that were read from frames that lie decoded on disk.
    Counter decoded_hits,
    /// Frames that had to be fetched from the store.
    Counter cache_misses,
    /// Frames or blobs that failed verification, whatever their source.
    Counter damaged,
    /// Bytes that are accepted and not yet acknowledged now.
    Gauge pending_bytes,
    /// The most bytes that were ever pending at once.
    Gauge pending_peak_bytes,
    /// Bytes of packs that were written to the spool.
    Counter bytes_spooled,
    /// Bytes in the spool now.
    Gauge spool_bytes,
    /// Objects in the spool now.
    Gauge spool_files,
    /// Bytes in the spool now that are not in the bucket yet.
    Gauge spool_waiting_bytes,
    /// The number of uploads that may run concurrently now. It is lower while the store asks for
    /// fewer requests.
    Gauge uploads_at_once,
    /// Bytes in the cache on disk now. Pinned ones are not counted.
    Gauge disk_cache_bytes,
    /// Bytes of decoded frames on disk now.
    Gauge decoded_bytes,
    /// Bytes of pinned data on disk now. No eviction takes them.
    Gauge pinned_bytes,
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

    /// Raises it to a value.
    pub(crate) fn raise(&self, value: u64) {
        self.0.fetch_max(value, Ordering::Relaxed);
    }

    /// Replaces one of the parts that it is the sum of. Changes of one part must not overlap.
    pub(crate) fn change(&self, before: u64, after: u64) {
        match after.checked_sub(before) {
            Some(more) => self.0.fetch_add(more, Ordering::Relaxed),
            None => self.0.fetch_sub(before - after, Ordering::Relaxed),
        };
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_says_what_it_is() {
        let metrics = Metrics {
            spool_waiting_bytes: 7,
            ..Metrics::default()
        };
        let measures = metrics.measures();
        for measure in &measures {
            assert!(
                measure.help.ends_with('.') && !measure.help.contains('\n'),
                "{measure:?}"
            );
            // A value of now, or the most so far, goes both ways, or does not add up.
            let says = |word| measure.help.split([' ', '.']).any(|said| said == word);
            let is_now = says("now") || says("once");
            assert_eq!(measure.kind == Kind::Gauge, is_now, "{measure:?}");
        }
        let waiting = measures.iter().find(|measure| measure.value == 7);
        assert_eq!(
            waiting.map(|measure| measure.name),
            Some("spool_waiting_bytes")
        );
    }
}
