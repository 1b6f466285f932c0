//! What a stored stretch of content is called, and how parts of it are asked for.
//!
//! Owns the words that `ingest` answers with and `hydrate` is asked in. Which file an extent belongs to is not known here.

use crate::id::Id;

/// What an extent points at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Target {
    /// One chunk alone: small runs and single pages need no segment.
    Chunk(Id),
    /// A segment: a list of chunks.
    Segment(Id),
}

impl Target {
    /// The id, of whichever kind.
    pub fn id(&self) -> Id {
        match self {
            Self::Chunk(id) | Self::Segment(id) => *id,
        }
    }
}

/// The bytes `offset .. offset + length` of a target's content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Piece {
    /// Of what.
    pub target: Target,
    /// First byte within the target.
    pub offset: u32,
    /// Bytes.
    pub length: u32,
}

/// One stretch of a stored run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredExtent {
    /// Offset in the file in bytes: `file_offset` of the run plus the place in it.
    pub offset: u64,
    /// Bytes, never zero. The whole target: its content is exactly so long.
    pub length: u32,
    /// Where the bytes are; `None` for a hole (the bytes are zero and nothing is stored).
    pub target: Option<Target>,
    /// True if the end of the data ended it, not the content or the grid: what is appended later should be cut together with these
    /// bytes again.
    pub open: bool,
}

/// What became of a run.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StoredRun {
    /// The extents in file order, without gaps, covering the first `consumed` bytes of the run.
    pub extents: Vec<StoredExtent>,
    /// Bytes taken. The rest (only without `end_of_data`) is an incomplete segment: give it again, with more behind it.
    pub consumed: usize,
}
