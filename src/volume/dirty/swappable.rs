//! Bytes that may be swapped out, as they are found.

use std::ops::Range;

use bytes::Bytes;

/// Bytes that may be swapped out: where they are, and when they were written.
#[derive(Debug, Clone)]
pub struct Swappable {
    /// The offset of the first one.
    pub offset: u64,
    /// The stamp of their piece.
    pub stamp: u64,
    /// The bytes.
    pub bytes: Bytes,
}

impl Swappable {
    /// Returns the range of the bytes in the file.
    pub fn range(&self) -> Range<u64> {
        self.offset..self.offset + self.bytes.len() as u64
    }
}

/// The pieces that [`DirtyRanges::swappable`] looked at.
#[derive(Debug, Default)]
pub struct Looked {
    /// Number of pieces.
    pub pieces: usize,
    /// Number of bytes that may be swapped out.
    pub bytes: u64,
    /// The offset at which the next one begins; none if these were the last ones.
    pub next: Option<u64>,
    /// Those that may be swapped out.
    pub swappable: Vec<Swappable>,
}
