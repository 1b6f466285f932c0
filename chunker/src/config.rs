//! How a store of chunks uses the machine and the bucket.
//!
//! Owns the settings and their defaults. Does not own the limits of memory (budget) and of rates
//! (pace), nor how users state them.

use std::path::PathBuf;

use crate::budget::MemoryBudget;
use crate::chunking::Parameters;
use bkfs_store::rate_limit::Rates;

/// How hard new frames are compressed. Every program reads every choice: each frame records its
/// codec.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Compression {
    /// Parameters that follow from the content and from which is slower, the workers or the store
    /// ([`Balance`](crate::codec::Balance)). Data that a probe finds incompressible is stored
    /// uncompressed.
    #[default]
    Auto,
    /// zstd at this level. Data that a probe finds incompressible is stored uncompressed.
    Level(i32),
    /// No compression.
    None,
}

/// How a content store uses the machine and the store.
#[derive(Debug, Clone)]
pub struct ContentStoreConfig {
    /// Directory that keeps fetched frames and index tables across restarts. `None` keeps the index
    /// in memory and caches no frames on disk.
    pub cache_dir: Option<PathBuf>,
    /// Upper bound of the bytes of frames on disk.
    pub cache_bytes: u64,
    /// Whether to spend disk and processor time on fewer requests.
    ///
    /// If true, fetched frames are written to the disk cache, and small files are fetched together
    /// with their neighbours in the pack. Frames that the disk cache holds already are used in
    /// either case.
    pub saves_requests: bool,
    /// Memory limits of each part.
    pub memory: MemoryBudget,
    /// How new frames are compressed.
    pub compression: Compression,
    /// Chunking parameters, as the repository's config object states them.
    pub parameters: Parameters,
    /// Maximum number of packs that are uploaded concurrently.
    pub uploads: usize,
    /// Maximum number of ranges that are fetched concurrently.
    pub downloads: usize,
    /// Threads for chunking, hashing, compression and encryption. 0 does this work in the calling
    /// task, for simulations.
    pub workers: usize,
    /// Size in bytes at which a pack is closed.
    pub pack_bytes: u64,
    /// Time without any progress at the store after which waiting calls give up, in milliseconds.
    pub timeout_ms: u64,
    /// Rate limits for packs and index objects, in bytes per second.
    pub rates: Rates,
}

impl Default for ContentStoreConfig {
    fn default() -> Self {
        Self {
            cache_dir: None,
            cache_bytes: 10 << 30,
            saves_requests: true,
            memory: MemoryBudget::default(),
            compression: Compression::Auto,
            parameters: Parameters::default(),
            uploads: 8,
            downloads: 32,
            workers: std::thread::available_parallelism().map_or(2, usize::from),
            pack_bytes: 16 << 20,
            timeout_ms: 300_000,
            rates: Rates::default(),
        }
    }
}
