//! What tests and benchmarks put in the place of a store, a disk and a random generator.
//!
//! Owns the cases that every store must pass ([`contract`]), a store that fails by a plan
//! ([`fault`]), a store that counts requests ([`counting`]), a disk that forgets what was not
//! flushed ([`disk`]), and repeatable randomness ([`entropy`]). It knows `bkfs-store` and none of
//! the crates above it, so that the unit tests of those crates can use it. No product code imports
//! this crate.

pub mod contract;
pub mod counting;
pub mod disk;
pub mod entropy;
pub mod fault;
