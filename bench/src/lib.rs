//! What the benchmarks share.

pub mod null_fs;
