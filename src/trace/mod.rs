//! Traces: which ranges of files were read first, in which order.
//!
//! ```text
//!   format     the bytes of a trace
//!   recorder   from reads to a trace, in bounded memory
//!   plan       from the ranges of a trace to the batches of its replay
//!   coverage   which places a replay has asked for
//! ```
//! A trace names places by path and range. So one of yesterday serves a snapshot of tomorrow. It is
//! a hint: one that is stale, damaged or hostile costs bytes up to a share of the cache, and changes
//! no answer.

pub mod coverage;
pub mod format;
pub mod plan;
pub mod recorder;
