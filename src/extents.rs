//! The extents of one file: which stored bytes lie where, and how that changes.
//!
//! Owns the arithmetic of splitting, trimming, joining and copying extents, and of finding data and holes. Pure: it takes what is there
//! now and answers with changes, so that it works on a tree, on changes in memory, or on both laid over each other.
//!
//! An extent is at most [`MAX_EXTENT_BYTES`] long. So whoever looks for the extents that overlap offset *x* begins at
//! *x* - `MAX_EXTENT_BYTES` + 1 ([`search_start`]).

/// Longest extent, in bytes.
pub const MAX_EXTENT_BYTES: u32 = 4 << 20;

/// Largest offset that a file can have, in bytes (a signed 64-bit offset).
pub const MAX_FILE_BYTES: u64 = i64::MAX as u64;

/// First offset at which an extent may begin that reaches to `offset` or touches it.
pub fn search_start(offset: u64) -> u64 {
    offset.saturating_sub(MAX_EXTENT_BYTES.into())
}
