//! Caches of fetched data: decoded frames in memory, sealed frames on disk.
//!
//! Owns bounded storage and its eviction. Cached data is never trusted: a reader verifies a frame
//! from disk like one from the bucket. No failure of the cache is an error of a read.

mod disk;
mod memory;

pub(crate) use disk::{DiskCache, make_directory};
pub(crate) use memory::MemoryCache;
