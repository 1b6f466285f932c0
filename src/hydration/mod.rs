//! Trees that are brought into the local cache, and stay there.
//!
//! ```text
//!   place     what a user names: a path of a volume or of a snapshot, and the form of pins
//!   collect   from a place to a plan: the blobs that all reads below it need
//!   proof     reads everything below a place without the store
//! ```
//! Does not own the pins (the chunker), nor when they are made (`mounting::hydrating`).

pub mod collect;
pub mod place;
pub mod proof;
