//! The size and the cost of a repository, from its root, its lists and its index. Data is never
//! read.
//!
//! This module owns the sums and the arithmetic of the bill. `config` owns the prices.

use std::sync::Arc;

use bkfs_chunker::crypto::{Class, Keyring};
use bkfs_chunker::id::Kind;
use bkfs_chunker::verify::{Verifier, VerifierConfig};
use bkfs_store::Store;
use bkfs_store::entropy::Entropy;
use futures::stream::{self, StreamExt, TryStreamExt};
use jiff::{SignedDuration, Timestamp};

use crate::config::Prices;
use crate::root::error::RootError;
use crate::root::snapshots::SnapshotEntry;
use crate::root::state::Root;

/// Index objects that are read at the same time.
///
/// Each may take 64 MiB decoded, but nearly all are small.
const INDEXES_AT_ONCE: usize = 4;

/// Length of a month of a bill.
const MONTH: SignedDuration = SignedDuration::from_hours(30 * 24);

/// Bytes of a gigabyte on the bills of stores.
const GIGABYTE: f64 = (1_u64 << 30) as f64;

/// PUT requests of a commit in addition to its packs: a list, an index object and the root.
const PUTS_PER_SNAPSHOT: u64 = 3;

/// The sums over a repository.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Packs with file contents.
    pub data_packs: u64,
    /// Packs with trees, segments and commit records.
    pub metadata_packs: u64,
    /// Bytes of data packs in the bucket.
    pub data_bytes: u64,
    /// Bytes of metadata packs in the bucket.
    pub metadata_bytes: u64,
    /// Index objects.
    pub index_objects: u64,
    /// Bytes of index objects, before compression.
    pub index_bytes: u64,
    /// List objects.
    pub lists: u64,
    /// Chunks of file contents.
    pub chunks: u64,
    /// Bytes of chunks before compression. These are the unique bytes of the file contents.
    pub unique_bytes: u64,
    /// Bytes of trees, segments and commit records before compression.
    pub raw_metadata_bytes: u64,
}

impl Stats {
    /// Returns the bytes of all packs in the bucket.
    pub fn stored_bytes(&self) -> u64 {
        self.data_bytes + self.metadata_bytes
    }

    /// Adds up the packs in the index of `root`. Reads index objects only.
    ///
    /// # Errors
    /// [`RootError::Content`] if an index object cannot be fetched or is damaged, or if no threads
    /// can be started.
    pub async fn of(
        root: &Root,
        store: Arc<dyn Store>,
        keyring: Keyring,
        entropy: Arc<dyn Entropy>,
    ) -> Result<Stats, RootError> {
        let config = VerifierConfig {
            downloads: INDEXES_AT_ONCE,
            ..VerifierConfig::default()
        };
        let verifier = Verifier::new(store, keyring, entropy, &config)?;
        let lists = [&root.snapshots, &root.trash, &root.quarantine];
        let mut stats = Stats {
            index_objects: root.index.len() as u64,
            index_bytes: (root.index.iter().map(|index| index.bytes)).fold(0, u64::saturating_add),
            lists: lists.iter().map(|shards| shards.len() as u64).sum::<u64>()
                + root.condemned.len() as u64,
            ..Stats::default()
        };
        let reads = root.index.iter().map(|index| verifier.index(*index));
        let mut packs = stream::iter(reads.collect::<Vec<_>>()).buffered(INDEXES_AT_ONCE);
        while let Some(packs) = packs.try_next().await? {
            for pack in packs {
                stats.count(pack.class(), pack.bytes());
                for blob in pack.blobs() {
                    match blob.kind {
                        Kind::Chunk => {
                            stats.chunks += 1;
                            stats.unique_bytes += u64::from(blob.length);
                        }
                        _ => stats.raw_metadata_bytes += u64::from(blob.length),
                    }
                }
            }
        }
        Ok(stats)
    }

    fn count(&mut self, class: Class, bytes: u64) {
        match class {
            Class::DataPack => {
                self.data_packs += 1;
                self.data_bytes += bytes;
            }
            _ => {
                self.metadata_packs += 1;
                self.metadata_bytes += bytes;
            }
        }
    }
}

/// The cost of one month, in the currency of the prices.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Bill {
    /// Cost of the stored bytes.
    pub storage: f64,
    /// Cost of the requests that store new snapshots.
    pub requests: f64,
}

impl Bill {
    /// Estimates the cost of a month.
    ///
    /// The estimate assumes that the bytes stored now stay for a month, and that as many bytes and
    /// snapshots are added as in the month before `now`.
    pub fn estimate(
        stats: &Stats,
        snapshots: &[&SnapshotEntry],
        now: Timestamp,
        prices: &Prices,
    ) -> Bill {
        let is_recent = |entry: &&&SnapshotEntry| now.duration_since(entry.time) <= MONTH;
        let recent: Vec<&&SnapshotEntry> = snapshots.iter().filter(is_recent).collect();
        let new = recent.iter().map(|entry| entry.new_bytes);
        let new_bytes = new.fold(0, u64::saturating_add);
        let packs = stats.data_packs + stats.metadata_packs;
        let pack_bytes = stats.stored_bytes().checked_div(packs).unwrap_or(0).max(1);
        let puts = (new_bytes.div_ceil(pack_bytes))
            .saturating_add(recent.len() as u64 * PUTS_PER_SNAPSHOT);
        Bill {
            storage: stats.stored_bytes() as f64 / GIGABYTE * prices.storage_gb_month,
            requests: puts as f64 / 1000.0 * prices.put_1000,
        }
    }

    /// Returns the sum of both costs.
    pub fn total(&self) -> f64 {
        self.storage + self.requests
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bill_adds_up() {
        let stats = Stats {
            data_packs: 64,
            data_bytes: 1 << 30,
            ..Stats::default()
        };
        let prices = Prices {
            currency: "USD".into(),
            storage_gb_month: 0.5,
            put_1000: 10.0,
        };
        let now: Timestamp = "2026-11-21T00:00:00Z".parse().unwrap();
        let entry = |time: &str, new_bytes| SnapshotEntry {
            time: time.parse().unwrap(),
            new_bytes,
            ..SnapshotEntry::plain("main", "a")
        };
        let (new, old) = (
            entry("2026-11-20T00:00:00Z", 97 * (16 << 20)),
            entry("2026-01-20T00:00:00Z", 1 << 40),
        );
        let bill = Bill::estimate(&stats, &[&new, &old], now, &prices);
        assert_eq!(bill.storage, 0.5);
        // 97 packs of 16 MiB, and three requests for the commit.
        assert_eq!(bill.requests, 1.0);
        assert_eq!(bill.total(), 1.5);
    }
}
