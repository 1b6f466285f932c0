//! What was fetched already: decoded frames in memory, sealed frames on disk.
//!
//! Owns bounded storage and its eviction. Never trusts what it kept: whoever loads a frame from disk verifies it like one from the bucket, and
//! no failure of the cache is an error of a read.

mod disk;
mod memory;

pub(crate) use disk::{DiskCache, make_directory};
pub(crate) use memory::MemoryCache;
