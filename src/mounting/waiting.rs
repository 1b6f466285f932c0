//! What a mount has accepted and the bucket does not hold yet.
//!
//! Owns the sum and its parts, for `status` and metrics. Does not own the counts themselves
//! (`volume`, and the ingest and the spool of the chunker).

use bkfs_chunker::metrics::Metrics;
use serde_json::{Value, json};

use crate::volume::Dirty;

/// Bytes that were accepted and are not in the bucket yet, by where they are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Waiting {
    /// Bytes of files that were not cut into chunks yet: in memory, or in the swap file.
    pub dirty_bytes: u64,
    /// Bytes of packs that are being filled or sent, after deduplication.
    pub in_flight_bytes: u64,
    /// Bytes in the spool that the store has not acknowledged.
    pub spooled_bytes: u64,
}

impl Waiting {
    /// Returns what waits, by the counts of the volume and of the content store.
    pub fn of(dirty: Dirty, metrics: &Metrics) -> Waiting {
        Waiting {
            dirty_bytes: dirty.bytes,
            in_flight_bytes: metrics.pending_bytes,
            spooled_bytes: metrics.spool_waiting_bytes,
        }
    }

    /// Returns the sum in bytes.
    pub fn bytes(&self) -> u64 {
        self.dirty_bytes + self.in_flight_bytes + self.spooled_bytes
    }

    /// Returns the sum and its parts in the form of `.bkfs/status`.
    pub fn json(&self) -> Value {
        json!({
            "bytes": self.bytes(),
            "dirty_bytes": self.dirty_bytes,
            "in_flight_bytes": self.in_flight_bytes,
            "spooled_bytes": self.spooled_bytes,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dirty_sent_and_spooled_bytes_all_wait() {
        let metrics = Metrics {
            pending_bytes: 20,
            spool_bytes: 1000,
            spool_waiting_bytes: 300,
            ..Metrics::default()
        };
        let dirty = Dirty { bytes: 4, files: 1 };
        let waiting = Waiting::of(dirty, &metrics);
        assert_eq!(waiting.bytes(), 324);
        let told = waiting.json();
        assert_eq!(told["bytes"], 324);
        let parts = ["dirty_bytes", "in_flight_bytes", "spooled_bytes"].map(|part| &told[part]);
        assert_eq!(parts, [4, 20, 300]);
    }
}
