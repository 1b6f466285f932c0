//! Errors of tables.
//!
//! Owns the reasons for which a table gives no answer.

use std::io;

/// Why the bytes of a table give no answer. It is to be made anew.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum TableError {
    /// The bytes do not begin as a table does.
    #[error("not an index table")]
    NotATable,
    /// A table that another version of this program has made.
    #[error("an index table of another version")]
    OtherVersion,
    /// The bytes are more or fewer than the head says.
    #[error("an index table of a wrong length")]
    WrongLength,
    /// A block does not bear its checksum: it was changed, or is of another table or place.
    #[error("a damaged index table: the checksum of block {block} is wrong")]
    Checksum {
        /// The number of the block.
        block: u64,
    },
    /// The bytes cannot be read.
    #[error("an index table that cannot be read: {0}")]
    Unreadable(io::ErrorKind),
    /// The table contradicts itself.
    #[error("a damaged index table: {0}")]
    Inconsistent(&'static str),
}
