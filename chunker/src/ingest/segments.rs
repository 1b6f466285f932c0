//! Where extents end: pure.
//!
//! Owns the division of named chunks into segments and holes. Does not know how a run is chunked,
//! nor where its chunks are stored.

use bytes::Bytes;

use super::Profile;
use crate::chunking::Parameters;
use crate::chunking::segment::{SegmentChunk, SegmentEnds};
use crate::id::Id;
use crate::pack::PackName;

/// The maximum length of a hole extent, in bytes.
const HOLE_BYTES: usize = 1 << 30;

/// A chunk of a run.
#[derive(Debug, Clone)]
pub(super) struct Named {
    /// Offset of the chunk in the run, in bytes.
    pub(super) start: usize,
    pub(super) bytes: Bytes,
    /// True if all bytes are zero: a hole, which gets no id.
    pub(super) is_zero: bool,
    pub(super) id: Option<Id>,
    /// The pack in which the index look-up found the chunk.
    pub(super) known: Option<PackName>,
}

/// The parameters that decide where extents end.
#[derive(Debug, Clone, Copy)]
pub(super) struct SplitParameters {
    pub(super) profile: Profile,
    pub(super) file_offset: u64,
    /// The length of the run in bytes, if the data ends with it.
    pub(super) end_of_data: Option<usize>,
}

/// A future extent: its chunks, or no chunks for a hole.
#[derive(Debug)]
pub(super) struct Part<'a> {
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) chunks: Vec<&'a Named>,
    /// True if the end of the data ended it, and not the content.
    pub(super) open: bool,
}

impl Named {
    /// Returns the end of the chunk in the run, in bytes.
    pub(super) fn end(&self) -> usize {
        self.start + self.bytes.len()
    }
}

impl SplitParameters {
    /// Divides chunks into segments and holes. An incomplete last segment is left out unless the
    /// data ends.
    pub(super) fn divide<'a>(&self, parameters: &Parameters, named: &'a [Named]) -> Vec<Part<'a>> {
        let mut parts: Vec<Part<'a>> = Vec::new();
        let mut ends = SegmentEnds::new(self.profile, parameters);
        let mut gathered: Vec<&'a Named> = Vec::new();
        for chunk in named {
            let Some(id) = chunk.id else {
                parts.extend(Part::of(std::mem::take(&mut gathered), false));
                ends = SegmentEnds::new(self.profile, parameters);
                Part::extend_hole(&mut parts, chunk);
                continue;
            };
            gathered.push(chunk);
            let listed = SegmentChunk {
                length: chunk.bytes.len() as u32,
                id,
            };
            if ends.push(&listed, self.file_offset + chunk.end() as u64) {
                let open = self.is_cut_short(parameters, chunk);
                parts.extend(Part::of(std::mem::take(&mut gathered), open));
            }
        }
        if self.end_of_data.is_some() {
            parts.extend(Part::of(gathered, true));
        }
        parts
    }

    /// Returns true if the end of the data may have shortened this chunk.
    fn is_cut_short(&self, parameters: &Parameters, chunk: &Named) -> bool {
        let longest = parameters.longest(self.profile);
        let is_whole = match self.profile {
            Profile::Grid => {
                (self.file_offset + chunk.end() as u64).is_multiple_of(u64::from(longest))
            }
            Profile::Content | Profile::Raw => chunk.bytes.len() as u32 == longest,
        };
        self.end_of_data == Some(chunk.end()) && !is_whole
    }
}

impl<'a> Part<'a> {
    fn of(chunks: Vec<&'a Named>, open: bool) -> Option<Self> {
        let start = chunks.first()?.start;
        let end = chunks.last()?.end();
        Some(Self {
            start,
            end,
            chunks,
            open,
        })
    }

    fn extend_hole(parts: &mut Vec<Self>, chunk: &Named) {
        if let Some(last) = parts.last_mut()
            && last.chunks.is_empty()
            && chunk.end() - last.start <= HOLE_BYTES
        {
            last.end = chunk.end();
            return;
        }
        parts.push(Part {
            start: chunk.start,
            end: chunk.end(),
            chunks: Vec::new(),
            open: false,
        });
    }
}
