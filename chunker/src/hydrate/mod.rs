//! Frames for the read path: fetch, verify, decode, cache.
//!
//! `reader` holds the state, and `fetch` fetches frames. Which copy of a blob is read, and what
//! files are assembled from, is decided above (`content_store`).

mod fetch;
mod plan;
mod reader;
mod single_flight;

pub(crate) use reader::{FrameAnswer, FrameKey, Reader, ReaderParts, Source};
