//! What a read of a range of a file consists of: dirty bytes, holes, contents of a small file, and
//! pieces of stored contents.
//!
//! Owns: the order of these, and their assembly. Does not own: where they are looked up (`view`),
//! nor how pieces and the swap file are read (the chunker).

use std::ops::Range;

use bkfs_chunker::extent::Piece;
use bkfs_chunker::swap::{self, SwappedPart};
use bytes::Bytes;

use crate::extents::Placed;
use crate::volume::dirty::Part;
use crate::volume::error::VolumeError;

/// Zeroes that stand for holes.
static ZEROES: [u8; 64 * 1024] = [0; 64 * 1024];

/// A part of a range of a file.
enum Source {
    Bytes(Bytes),
    Zero(u64),
    Stored,
    /// Of so many bytes.
    Swapped(u64),
}

/// The parts of a range, in order.
#[derive(Default)]
pub(super) struct ReadPlan {
    sources: Vec<Source>,
    /// The stored contents that it needs, in order.
    pub(super) pieces: Vec<Piece>,
    /// What it needs of the swap file, in order.
    swapped: Vec<SwappedPart>,
}

impl ReadPlan {
    /// Returns the plan of a range from dirty parts (sorted), extents (sorted) and the contents of a
    /// small file.
    pub(super) fn new(
        range: Range<u64>,
        parts: Vec<(Range<u64>, Part)>,
        extents: &[Placed],
        inline: Option<Bytes>,
    ) -> ReadPlan {
        let mut planning = Planning {
            plan: ReadPlan::default(),
            extents,
            inline,
        };
        let mut at = range.start;
        for (part, content) in parts {
            planning.clean(at..part.start);
            at = part.end;
            let length = part.end - part.start;
            planning.plan.sources.push(match content {
                Part::Data(bytes) => Source::Bytes(bytes),
                Part::Zero => Source::Zero(length),
                Part::Swapped(swapped) => {
                    planning.plan.swapped.push(swapped);
                    Source::Swapped(length)
                }
            });
        }
        planning.clean(at..range.end);
        planning.plan
    }

    /// Reads what it needs of the swap file, in order.
    ///
    /// # Errors
    /// [`VolumeError::Swap`].
    pub(super) async fn read_back(&mut self) -> Result<Vec<Bytes>, VolumeError> {
        Ok(swap::read(std::mem::take(&mut self.swapped)).await?)
    }

    /// Same, to store the bytes: a silent disk counts as failed.
    ///
    /// # Errors
    /// [`VolumeError::Swap`].
    pub(super) async fn read_back_in_time(&mut self) -> Result<Vec<Bytes>, VolumeError> {
        Ok(swap::read_in_time(std::mem::take(&mut self.swapped)).await?)
    }

    /// Returns the bytes of the range. `stored` are those of each piece, and `swapped` those that
    /// the swap file has, in order.
    pub(super) fn assemble(
        self,
        stored: impl IntoIterator<Item = Vec<Bytes>>,
        swapped: Vec<Bytes>,
    ) -> Vec<Bytes> {
        let mut stored = stored.into_iter();
        let mut swapped = swapped.into_iter();
        let mut bytes = Vec::with_capacity(self.sources.len());
        for source in self.sources {
            match source {
                Source::Bytes(data) => bytes.push(data),
                Source::Zero(length) => bytes.extend(zeroes(length)),
                Source::Stored => bytes.extend(stored.next().into_iter().flatten()),
                Source::Swapped(_) => bytes.extend(swapped.next()),
            }
        }
        bytes
    }

    /// Returns which parts of the range, which begins at `start`, are data (true) and which are
    /// holes (false), in order.
    pub(super) fn map(self, start: u64) -> Vec<(Range<u64>, bool)> {
        let mut map: Vec<(Range<u64>, bool)> = Vec::new();
        let mut at = start;
        let mut pieces = self.pieces.into_iter();
        for source in self.sources {
            let (length, is_data) = match source {
                Source::Bytes(bytes) => (bytes.len() as u64, true),
                Source::Zero(length) => (length, false),
                Source::Swapped(length) => (length, true),
                Source::Stored => (
                    pieces.next().map_or(0, |piece| u64::from(piece.length)),
                    true,
                ),
            };
            match map.last_mut() {
                Some((last, data)) if *data == is_data => last.end += length,
                _ => map.push((at..at + length, is_data)),
            }
            at += length;
        }
        map
    }
}

fn zeroes(length: u64) -> impl Iterator<Item = Bytes> {
    let whole = length / ZEROES.len() as u64;
    let rest = (length % ZEROES.len() as u64) as usize;
    let parts = (0..whole)
        .map(|_| ZEROES.len())
        .chain((rest > 0).then_some(rest));
    parts.map(|part| Bytes::from_static(&ZEROES[..part]))
}

struct Planning<'a> {
    plan: ReadPlan,
    extents: &'a [Placed],
    inline: Option<Bytes>,
}

impl Planning<'_> {
    /// Adds a part without dirty bytes.
    fn clean(&mut self, range: Range<u64>) {
        let mut at = range.start;
        if let Some(bytes) = &self.inline {
            let to = range.end.min(bytes.len() as u64);
            if at < to {
                self.plan
                    .sources
                    .push(Source::Bytes(bytes.slice(at as usize..to as usize)));
                at = to;
            }
        }
        let first = self.extents.partition_point(|placed| placed.end() <= at);
        for placed in &self.extents[first..] {
            let Placed { offset, extent } = *placed;
            if at >= range.end || offset >= range.end {
                break;
            }
            // The extent lies inside the one before it. Only a forged file has such an extent.
            if placed.end() <= at {
                continue;
            }
            if at < offset {
                self.plan.sources.push(Source::Zero(offset - at));
                at = offset;
            }
            let to = range.end.min(placed.end());
            self.plan.pieces.push(Piece {
                target: extent.target,
                offset: extent.target_offset + (at - offset) as u32,
                length: (to - at) as u32,
            });
            self.plan.sources.push(Source::Stored);
            at = to;
        }
        if at < range.end {
            self.plan.sources.push(Source::Zero(range.end - at));
        }
    }
}
