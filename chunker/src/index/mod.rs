//! The index: which frame of which pack holds a blob.
//!
//! Owns the index objects of the bucket (headers and footers of packs, kept together) and the sorted tables that look-ups
//! are made in. Tables are made locally, can be memory-mapped, and are no part of the format.
//!
//! Does not decide what is live, fetch anything, or keep files.

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
    /// It does not decode.
    #[error("damaged index: {0}")]
    Codec(#[from] CodecError),
    /// A footer in it is damaged.
    #[error("damaged index: {0}")]
    Footer(#[from] PackError),
    /// It contradicts itself.
    #[error("damaged index: {0}")]
    Inconsistent(&'static str),
    /// The packs are too many for one index object.
    #[error("{length} bytes are too many for an index object (at most {INDEX_RAW_MAX})")]
    TooLarge {
        /// The decoded length, in bytes.
        length: u64,
    },
}

#[cfg(test)]
mod tests;
