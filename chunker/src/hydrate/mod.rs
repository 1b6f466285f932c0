//! Frames for the read path: fetch, verify, decode, cache.
//!
//! `reader` holds the state, `fetch` fetches frames for callers, and `pinning` those of pins. Which
//! copy of a blob is read, and what files are assembled from, is decided above (`content_store`).

mod fetch;
mod hints;
mod in_memory;
mod on_disk;
mod pinning;
mod plan;
mod reader;
mod room;
mod single_flight;

pub(crate) use in_memory::UsedFrames;
pub(crate) use pinning::PIN_RANGE_BYTES;
pub(crate) use plan::coalesce;
pub(crate) use reader::{FrameAnswer, FrameKey, Reader, ReaderParts, Source};
