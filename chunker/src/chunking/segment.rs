//! Segments: lists of consecutive chunks of a file, stored as blobs.
//!
//! Owns the encoding (FORMAT.md, "Chunks and ids") and the rule that decides where segments end.

use super::{Parameters, Profile};
use crate::id::Id;

/// The maximum content of a segment, in bytes.
pub const SEGMENT_BYTES_MAX: u32 = 2 * 1024 * 1024;
/// The maximum number of chunks in a segment: the number of pages of 4 KiB, the smallest page, in
/// [`GRID_SPAN`].
pub const SEGMENT_CHUNKS_MAX: usize = 256;
/// Segments of page files end at the multiples of this file offset, in bytes.
pub const GRID_SPAN: u64 = 1024 * 1024;

/// Minimum number of chunks in a segment by content, unless the data ends.
const CHUNKS_MIN: usize = 4;
/// Maximum number of chunks in a segment by content.
const CHUNKS_MAX: usize = 32;
/// A segment by content ends after a chunk whose id has zeros under this mask in its last byte: one
/// in sixteen.
const END_MASK: u8 = 0x0f;

const HEAD_LEN: usize = 3;
const ENTRY_LEN: usize = 4 + Id::LEN;

/// A chunk as a segment lists it.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct SegmentChunk {
    /// Length of the chunk in bytes, at least 1.
    pub length: u32,
    /// Id of the chunk.
    pub id: Id,
}

/// A decoded segment.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Segment {
    /// The profile that the content was chunked with.
    pub profile: Profile,
    /// The chunks in the order of the content; at least one.
    pub chunks: Vec<SegmentChunk>,
}

/// Bytes that are not a segment.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("damaged segment: {0}")]
pub struct SegmentError(&'static str);

/// Returns the encoded list of `chunks`.
///
/// # Panics
/// If there are more than [`SEGMENT_CHUNKS_MAX`] chunks. [`SegmentEnds`] ends segments before that.
pub fn encode(profile: Profile, chunks: &[SegmentChunk]) -> Vec<u8> {
    assert!(
        chunks.len() <= SEGMENT_CHUNKS_MAX,
        "a segment of too many chunks"
    );
    let mut bytes = Vec::with_capacity(HEAD_LEN + chunks.len() * ENTRY_LEN);
    bytes.push(profile as u8);
    bytes.extend_from_slice(&(chunks.len() as u16).to_le_bytes());
    for chunk in chunks {
        bytes.extend_from_slice(&chunk.length.to_le_bytes());
        bytes.extend_from_slice(&chunk.id.0);
    }
    bytes
}

/// The inverse of [`encode`].
///
/// # Errors
/// [`SegmentError`] for bytes that no writer produces: truncated, of an unknown profile, with no
/// chunk or too many, with an empty or too long chunk, or with too much content.
pub fn decode(bytes: &[u8]) -> Result<Segment, SegmentError> {
    let (head, entries) = bytes
        .split_first_chunk::<HEAD_LEN>()
        .ok_or(SegmentError("truncated"))?;
    let profile = Profile::from_number(head[0]).ok_or(SegmentError("unknown profile"))?;
    let count = usize::from(u16::from_le_bytes([head[1], head[2]]));
    if count == 0 || count > SEGMENT_CHUNKS_MAX || entries.len() != count * ENTRY_LEN {
        return Err(SegmentError("the number of chunks is wrong"));
    }
    let mut total = 0;
    let mut chunks = Vec::with_capacity(count);
    for entry in entries.chunks_exact(ENTRY_LEN) {
        let length = u32::from_le_bytes([entry[0], entry[1], entry[2], entry[3]]);
        if length == 0 || length > Parameters::CHUNK_LEN_MAX {
            return Err(SegmentError("a chunk has a wrong length"));
        }
        total += length;
        let mut id = [0; Id::LEN];
        id.copy_from_slice(&entry[4..]);
        chunks.push(SegmentChunk { length, id: Id(id) });
    }
    if total > SEGMENT_BYTES_MAX {
        return Err(SegmentError("too much content"));
    }
    Ok(Segment { profile, chunks })
}

impl Segment {
    /// Returns the length of the content, in bytes.
    pub fn length(&self) -> u32 {
        self.chunks.iter().map(|chunk| chunk.length).sum()
    }

    /// Returns the chunks that hold the bytes `offset .. offset + length` of the content, each with
    /// its offset in the content in bytes.
    pub fn overlapping(
        &self,
        offset: u32,
        length: u32,
    ) -> impl Iterator<Item = (u32, &SegmentChunk)> {
        let end = offset.saturating_add(length);
        let mut next = 0;
        self.chunks
            .iter()
            .map(move |chunk| {
                let start = next;
                next += chunk.length;
                (start, chunk)
            })
            .skip_while(move |(start, chunk)| start + chunk.length <= offset)
            .take_while(move |(start, _)| *start < end)
    }
}

/// Decides where the segments of consecutive chunks end.
///
/// On the grid, segments end at the multiples of [`GRID_SPAN`] in the file. Otherwise a segment
/// with enough chunks ends after a chunk whose id matches a mask. It ends before the next chunk
/// could make it too long. A hole and the end of the data end a segment as well: the caller knows
/// those, and begins with a new `SegmentEnds`.
#[derive(Clone, Debug)]
pub struct SegmentEnds {
    profile: Profile,
    /// A segment with more bytes than this accepts no further chunk.
    bytes_full: u32,
    chunks: usize,
    bytes: u32,
}

impl SegmentEnds {
    /// Begins a segment.
    pub fn new(profile: Profile, parameters: &Parameters) -> Self {
        Self {
            profile,
            bytes_full: SEGMENT_BYTES_MAX - parameters.longest(profile),
            chunks: 0,
            bytes: 0,
        }
    }

    /// Adds the next chunk, which ends at file offset `end_offset` in bytes. Returns true if the
    /// segment ends with this chunk. The next chunk then begins another segment.
    pub fn push(&mut self, chunk: &SegmentChunk, end_offset: u64) -> bool {
        self.chunks += 1;
        self.bytes = self.bytes.saturating_add(chunk.length);
        let ends = match self.profile {
            Profile::Grid => end_offset.is_multiple_of(GRID_SPAN),
            Profile::Content | Profile::Raw => {
                let chosen = self.chunks >= CHUNKS_MIN && chunk.id.0[31] & END_MASK == 0;
                chosen || self.chunks >= CHUNKS_MAX
            }
        };
        let ends = ends || self.bytes > self.bytes_full || self.chunks >= SEGMENT_CHUNKS_MAX;
        if ends {
            (self.chunks, self.bytes) = (0, 0);
        }
        ends
    }
}
