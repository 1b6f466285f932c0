//! Caches of fetched data: decoded frames in memory, sealed frames on disk, and decoded ones there.
//!
//! Owns bounded storage and its eviction. Cached data is never trusted: a reader verifies a frame
//! from disk like one from the bucket. No failure of the cache is an error of a read.

mod decoded;
mod disk;
mod memory;

pub(crate) use decoded::{DecodedBlobs, DecodedFrames};
pub(crate) use disk::{DiskCache, is_out_of_room, make_directory};
pub(crate) use memory::MemoryCache;
