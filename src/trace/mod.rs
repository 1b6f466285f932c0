//! Traces: which ranges of files were read first, in which order.
//!
//! ```text
//!   format     the bytes of a trace
//!   recorder   from reads to a trace, in bounded memory
//!   plan       from the ranges of a trace to the batches of its replay
//!   coverage   which places a replay has asked for
//!   touches    the reads of one mount: the recorder, and how many of them a replay had fetched
//!   place      from the inodes of a recorder to paths, and from the paths of a trace to inodes
//!   replay     fetches what a trace names, by rank
//!   stored     the traces of a repository, as files of a volume
//! ```
//! A trace names places by path and range. So one of yesterday serves a snapshot of tomorrow. It is
//! a hint: one that is stale, damaged or hostile costs bytes up to a share of the cache, and changes
//! no answer. Does not own when traces are recorded and replayed (`mounting`).

pub mod coverage;
pub mod format;
pub mod place;
pub mod plan;
pub mod recorder;
pub mod replay;
pub mod stored;
pub mod touches;
