//! Directories of this machine into a volume, without a mount.
//!
//! ```text
//!   facts     what stat(2) says, and whether a file is taken over unread      (pure)
//!   read      the calls to the source's filesystem
//!   survey    how much there is, for the progress
//!   report    counters, and the files that are named
//!   job       what the tasks share
//!   tree      the walk over source and volume together
//!   file      one regular file
//!   remove    what the source does not have any more
//! ```
//!
//! Owns: which files are stored, and under which names. Does not own: contents (`volume`, the
//! chunker), the session (`mounting::alone`), the snapshot (`cli`).
//!
//! The volume is changed in place, so what has not changed costs nothing. Meanwhile the root shows
//! the volume as it was (`volume::apart`).

mod batch;
pub mod facts;
mod file;
pub mod job;
mod read;
mod remove;
pub mod report;
pub mod survey;
mod tree;

pub use read::open_named;
pub use tree::{Origin, put};
