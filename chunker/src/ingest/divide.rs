//! Where extents end: pure.
//!
//! Owns the division of named chunks into segments and holes. Which chunks a run has, and where they are stored, is known elsewhere.

use bytes::Bytes;

use super::Profile;
use crate::cut::Parameters;
use crate::cut::segment::{SegmentChunk, SegmentEnds};
use crate::id::Id;
use crate::pack::PackName;

/// Up to so many bytes a hole extent may have.
const HOLE_BYTES: usize = 1 << 30;

/// A chunk of a run.
#[derive(Debug, Clone)]
pub(super) struct Named {
    /// Where it begins in the run.
    pub(super) start: usize,
    pub(super) bytes: Bytes,
    /// All zeros: a hole, which gets no id.
    pub(super) is_zero: bool,
    pub(super) id: Option<Id>,
    /// The pack of the index that has it.
    pub(super) known: Option<PackName>,
}

/// What decides where extents end.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plan {
    pub(super) profile: Profile,
    pub(super) file_offset: u64,
    /// The length of the run, if the data ends with it.
    pub(super) end_of_data: Option<usize>,
}

/// One extent to be: its chunks, or none for a hole.
#[derive(Debug)]
pub(super) struct Part<'a> {
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) chunks: Vec<&'a Named>,
    /// Ended by the end of the data, not by the content.
    pub(super) open: bool,
}

impl Named {
    /// Where it ends in the run.
    pub(super) fn end(&self) -> usize {
        self.start + self.bytes.len()
    }
}

impl Plan {
    /// Divides chunks into segments and holes. What remains incomplete is left out unless the data ends.
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

    /// Whether the end of the data may have cut this chunk short.
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
