//! What is kept in memory of runs: their blocks, fences and names, and which run names a pack.
//!
//! Owns the bounds. They hold for all runs together, however many there are.

use std::sync::Arc;

use crate::cache::MemoryCache;
use crate::pack::PackName;
use crate::run::{Block, Fences, Names, Record};

/// Bytes of memory for decoded blocks, as many for fences, for names, and for the packs that are known
/// to be named. The fences of a billion records take about 7 MiB; this is room for a million names, and
/// for 130,000 packs.
const CACHE_BYTES: u64 = 16 << 20;

/// Bytes of memory that a known pack takes, in a map and in a list.
const NAMED_PACK_BYTES: u64 = 128;

/// Bytes of memory that a record of a decoded block takes.
const RECORD_BYTES: u64 = size_of::<Record>() as u64;

/// Bytes of memory that a part takes without its entries.
const PART_BYTES: u64 = 128;

/// A hash of the header of a run, which has fresh randomness. Another run under the same name has
/// another one.
pub(super) type Identity = [u8; 32];

/// Parts of runs, by the identity of the run and their number.
pub(super) type Parts<T> = MemoryCache<(Identity, u32), Arc<T>>;

/// What is kept in memory of all runs.
#[derive(Debug)]
pub(in crate::catalog) struct RunCaches {
    pub(super) blocks: Parts<Block>,
    pub(super) fences: Parts<Fences>,
    pub(super) names: Parts<Names>,
    /// A run that names the pack.
    named: MemoryCache<PackName, PackName>,
}

impl RunCaches {
    /// Returns empty caches.
    pub(in crate::catalog) fn new() -> Self {
        Self::within(CACHE_BYTES)
    }

    /// Returns empty caches of so many bytes each.
    pub(super) fn within(bytes: u64) -> Self {
        Self {
            blocks: Parts::new(bytes),
            fences: Parts::new(bytes),
            names: Parts::new(bytes),
            named: MemoryCache::new(bytes),
        }
    }

    /// Records that a run names a pack.
    pub(in crate::catalog) fn note_named(&self, pack: PackName, run: PackName) {
        self.named.put(pack, NAMED_PACK_BYTES, run);
    }

    /// Returns a run that is known to name the pack.
    pub(in crate::catalog) fn run_that_names(&self, pack: &PackName) -> Option<PackName> {
        self.named.get(pack)
    }
}

/// The memory that a part takes, in bytes.
pub(super) trait InMemory {
    fn bytes_in_memory(&self) -> u64;
}

impl InMemory for Block {
    fn bytes_in_memory(&self) -> u64 {
        self.records().len() as u64 * RECORD_BYTES + PART_BYTES
    }
}

impl InMemory for Fences {
    fn bytes_in_memory(&self) -> u64 {
        self.count() as u64 * 16 + PART_BYTES
    }
}

impl InMemory for Names {
    fn bytes_in_memory(&self) -> u64 {
        size_of_val(self.names()) as u64 + PART_BYTES
    }
}
