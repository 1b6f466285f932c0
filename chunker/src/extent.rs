//! Names of stored content, and requests for parts of it.
//!
//! Owns the types that `ingest` returns and `hydrate` accepts. Does not know which file an extent
//! belongs to.

use crate::id::Id;

/// The blob that an extent refers to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Target {
    /// A single chunk: small runs and single pages need no segment.
    Chunk(Id),
    /// A segment: a list of chunks.
    Segment(Id),
}

impl Target {
    /// Returns the id of the chunk or segment.
    pub fn id(&self) -> Id {
        match self {
            Self::Chunk(id) | Self::Segment(id) => *id,
        }
    }
}

/// The bytes `offset .. offset + length` of a target's content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Piece {
    /// The target that holds the bytes.
    pub target: Target,
    /// Offset of the first byte within the target, in bytes.
    pub offset: u32,
    /// Length in bytes.
    pub length: u32,
}

/// One extent of a stored run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredExtent {
    /// Offset in the file in bytes: `file_offset` of the run plus the offset in the run.
    pub offset: u64,
    /// Length in bytes, never zero. The extent covers the whole content of its target.
    pub length: u32,
    /// The target that holds the bytes. `None` for a hole: the bytes are zero, and nothing is
    /// stored.
    pub target: Option<Target>,
    /// True if the extent ends because the data ends, and not at a boundary that the content or the
    /// grid sets. Data that is appended later should be chunked together with these bytes again.
    pub open: bool,
}

/// The result of storing a run.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StoredRun {
    /// The extents in file order, without gaps. They cover the first `consumed` bytes of the run.
    pub extents: Vec<StoredExtent>,
    /// Bytes of the run that were stored. The rest is an incomplete segment, and exists only
    /// without `end_of_data`. The caller passes it again, followed by more data.
    pub consumed: usize,
}
