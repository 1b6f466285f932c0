//! The index: which frame of which pack holds a blob.
//!
//! Owns the index objects of the bucket, each of which holds headers and footers of packs, and the
//! sorted tables for look-ups. Tables are built locally, are verified block by block as they are
//! read, and are not part of the format.
//!
//! Does not decide which packs are live, fetches nothing, and keeps no files.

mod block;
mod builder;
mod error;
mod filter;
mod kept;
mod layout;
mod object;
mod read_at;
mod table;

pub use block::{BLOCK_LEN, TableKey};
pub use builder::{PartialEntry, PartialPack, TableBuilder, table_of_parts};
pub use error::TableError;
pub use object::{INDEX_RAW_MAX, PackRecord, decode, encode, encoded_length};
pub use read_at::{OwnMemory, ReadAt};
pub use table::{FrameLocation, Location, PackEntry, PackNumber, Table};

use crate::codec::CodecError;
use crate::crypto::HEADER_LEN;
use crate::id::Prefix;
use crate::pack::{PackError, PackName};

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
