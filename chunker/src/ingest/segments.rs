//! Where extents end: pure.
//!
//! Owns the division of named chunks into segments and holes. Works with lengths and ids. Does not
//! know how a run is chunked, nor where its chunks are stored.

use std::ops::Range;

use super::Profile;
use crate::chunking::Parameters;
use crate::chunking::segment::{SegmentChunk, SegmentEnds};
use crate::id::Id;

/// The maximum length of a hole extent, in bytes.
const HOLE_BYTES: usize = 1 << 30;

/// What the division needs to know of a chunk of a run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Listed {
    /// Offset of the chunk in the run, in bytes.
    pub(super) start: usize,
    /// Length in bytes.
    pub(super) length: u32,
    /// `None` for a hole.
    pub(super) id: Option<Id>,
}

/// The parameters that decide where extents end.
#[derive(Debug, Clone, Copy)]
pub(super) struct SplitParameters {
    pub(super) profile: Profile,
    pub(super) file_offset: u64,
    /// The length of the run in bytes, if the data ends with it.
    pub(super) end_of_data: Option<usize>,
}

/// A future extent.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) start: usize,
    pub(super) end: usize,
    /// The positions of its chunks among those of the run. Empty for a hole.
    pub(super) chunks: Range<usize>,
    /// True if the end of the data ended it, and not the content.
    pub(super) open: bool,
}

impl Listed {
    /// Returns the end of the chunk in the run, in bytes.
    fn end(&self) -> usize {
        self.start + self.length as usize
    }
}

impl SplitParameters {
    /// Divides chunks into segments and holes. An incomplete last segment is left out unless the
    /// data ends.
    pub(super) fn divide(
        &self,
        parameters: &Parameters,
        chunks: impl Iterator<Item = Listed>,
    ) -> Vec<Part> {
        let mut parts: Vec<Part> = Vec::new();
        let mut ends = SegmentEnds::new(self.profile, parameters);
        let mut gathered: Option<Part> = None;
        for (position, chunk) in chunks.enumerate() {
            let Some(id) = chunk.id else {
                parts.extend(gathered.take());
                ends = SegmentEnds::new(self.profile, parameters);
                Part::extend_hole(&mut parts, &chunk, position);
                continue;
            };
            let part = gathered.get_or_insert_with(|| Part::at(&chunk, position));
            part.end = chunk.end();
            part.chunks.end = position + 1;
            let listed = SegmentChunk {
                length: chunk.length,
                id,
            };
            if ends.push(&listed, self.file_offset + chunk.end() as u64) {
                part.open = self.is_cut_short(parameters, &chunk);
                parts.extend(gathered.take());
            }
        }
        if self.end_of_data.is_some() {
            parts.extend(gathered.map(|part| Part { open: true, ..part }));
        }
        parts
    }

    /// Returns true if the end of the data may have shortened this chunk.
    fn is_cut_short(&self, parameters: &Parameters, chunk: &Listed) -> bool {
        let longest = parameters.longest(self.profile);
        let is_whole = match self.profile {
            Profile::Grid => {
                (self.file_offset + chunk.end() as u64).is_multiple_of(u64::from(longest))
            }
            Profile::Content | Profile::Raw => chunk.length == longest,
        };
        self.end_of_data == Some(chunk.end()) && !is_whole
    }
}

impl Part {
    /// Returns an empty part that begins with this chunk.
    fn at(chunk: &Listed, position: usize) -> Self {
        Self {
            start: chunk.start,
            end: chunk.start,
            chunks: position..position,
            open: false,
        }
    }

    fn extend_hole(parts: &mut Vec<Self>, chunk: &Listed, position: usize) {
        if let Some(last) = parts.last_mut()
            && last.chunks.is_empty()
            && chunk.end() - last.start <= HOLE_BYTES
        {
            last.end = chunk.end();
            return;
        }
        parts.push(Part {
            end: chunk.end(),
            ..Part::at(chunk, position)
        });
    }
}
