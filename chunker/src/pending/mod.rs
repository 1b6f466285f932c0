//! Data that a session has accepted and that no root names yet: its blobs, the frames and packs
//! that hold them, and the references of the session.
//!
//! Owns the pending index of a session and everything that is counted under its lock. Stands
//! beneath `ingest`, which changes it, and `hydrate`, which reads blobs there ([`PendingBlobs`]).
//! Does no I/O: it neither compresses and uploads the data (`ingest`), nor fetches it (`hydrate`).

mod frame;
mod pack_writer;
mod pending_index;
mod view;

#[cfg(test)]
pub(crate) use frame::Frame;
pub(crate) use frame::{Body, FramePlace, FullFrame, LARGEST_BLOB_BYTES, Pending, SealedHere};
pub(crate) use pack_writer::{NewPack, OpenPack, SentPack};
pub use pending_index::Mark;
pub(crate) use pending_index::{Matching, PendingIndex};
pub(crate) use view::PendingBlobs;

#[cfg(test)]
mod tests;
