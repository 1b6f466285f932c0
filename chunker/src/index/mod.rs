//! The index: which frame of which pack holds a blob.
//!
//! Owns the index objects of the bucket, each of which holds headers and footers of packs, and the
//! sorted tables for look-ups. Tables are built locally, can be memory-mapped, and are not part of
//! the format.
//!
//! Does not decide which packs are live, fetches nothing, and keeps no files.

mod filter;
mod object;
mod table;

pub use object::{INDEX_RAW_MAX, PackRecord, decode, encode, encoded_length};
pub use table::{FrameLocation, Location, PackEntry, PackNumber, Table, TableBuilder, TableError};

use crate::codec::CodecError;
use crate::pack::PackError;

/// Why an index object cannot be read or made.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum IndexError {
    /// The payload does not decode.
    #[error("damaged index: {0}")]
    Codec(#[from] CodecError),
    /// A footer in the index object is damaged.
    #[error("damaged index: {0}")]
    Footer(#[from] PackError),
    /// The index object contradicts itself.
    #[error("damaged index: {0}")]
    Inconsistent(&'static str),
    /// The packs do not fit into one index object.
    #[error("{length} bytes are too many for an index object (at most {INDEX_RAW_MAX})")]
    TooLarge {
        /// The decoded length, in bytes.
        length: u64,
    },
}

#[cfg(test)]
mod tests;
