//! Segments: lists of consecutive chunks of a file, stored as blobs of their own.
//!
//! Owns the encoding (FORMAT.md, "Chunks and ids") and the rule where segments end.

use super::{Parameters, Profile};
use crate::id::Id;

/// No segment holds more content than this, in bytes.
pub const SEGMENT_BYTES_MAX: u32 = 2 * 1024 * 1024;
/// No segment lists more chunks than this: pages of 4 KiB, the smallest there are, in [`GRID_SPAN`].
pub const SEGMENT_CHUNKS_MAX: usize = 256;
/// Segments of page files end at the multiples of this in the file, in bytes.
pub const GRID_SPAN: u64 = 1024 * 1024;

/// Chunks that a segment by content has at least, unless the data ends.
const CHUNKS_MIN: usize = 4;
/// Chunks that a segment by content has at most.
const CHUNKS_MAX: usize = 32;
/// A segment by content ends after a chunk whose id has zeros here in its last byte: one in sixteen.
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
    /// How the content was cut.
    pub profile: Profile,
    /// The chunks in the order of the content; at least one.
    pub chunks: Vec<SegmentChunk>,
}

/// The bytes are no segment.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("damaged segment: {0}")]
pub struct SegmentError(&'static str);

/// Encodes the list of `chunks`.
///
/// # Panics
/// If there are more than [`SEGMENT_CHUNKS_MAX`]; [`SegmentEnds`] ends segments long before.
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

/// The inverse of [`encode`]. Refuses segments that no writer makes: empty, too long, or with empty chunks.
pub fn decode(bytes: &[u8]) -> Result<Segment, SegmentError> {
    let (head, entries) = bytes
        .split_first_chunk::<HEAD_LEN>()
        .ok_or(SegmentError("cut short"))?;
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
    /// Length of the content, in bytes.
    pub fn length(&self) -> u32 {
        self.chunks.iter().map(|chunk| chunk.length).sum()
    }

    /// The chunks that hold the bytes `offset .. offset + length` of the content, each with where it begins in the content.
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

/// Says where the segments of a stretch of chunks end.
///
/// On the grid they end at the multiples of [`GRID_SPAN`] in the file. Elsewhere a segment ends after a chunk whose id
/// says so, when it has enough chunks, and never so late that the next chunk might make it too long. A hole and the end
/// of the data end a segment too: the caller knows those, and starts afresh.
#[derive(Clone, Debug)]
pub struct SegmentEnds {
    profile: Profile,
    /// A segment with more bytes than this takes no further chunk.
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

    /// Takes the next chunk, which ends at `end_offset` of the file. True if the segment ends with it; then the next
    /// chunk begins another.
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
