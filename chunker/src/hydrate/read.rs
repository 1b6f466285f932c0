//! File contents from chunks.
//!
//! Owns the resolution of extents through their segments, and the assembly of the requested bytes.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;

use super::reader::Reader;
use crate::chunking::segment::{self, Segment};
use crate::error::ContentError;
use crate::extent::{Piece, Target};
use crate::id::{Id, Kind};

/// A part of one chunk.
#[derive(Debug, Clone, Copy)]
struct Part {
    id: Id,
    offset: u32,
    length: u32,
}

impl Reader {
    /// Reads pieces. Returns for each piece its exact bytes in consecutive parts, or the reason why
    /// it cannot be read.
    pub(crate) async fn read_each(
        self: &Arc<Self>,
        pieces: &[Piece],
    ) -> Vec<Result<Vec<Bytes>, ContentError>> {
        let resolved = self.resolve(pieces).await;
        let chunks = self.chunks(&resolved).await;
        let assembled = resolved.into_iter().map(|parts| assemble(&parts?, &chunks));
        assembled.collect()
    }

    /// Fetches the frames that pieces need into the caches: first all segments concurrently, then
    /// all chunks concurrently.
    ///
    /// So the latency of the store counts at most twice, and only once if the segments are cached.
    pub(crate) async fn warm(self: &Arc<Self>, pieces: &[Piece]) {
        let resolved = self.resolve(pieces).await;
        self.chunks(&resolved).await;
    }

    /// Returns for each piece the parts of chunks that it consists of.
    async fn resolve(self: &Arc<Self>, pieces: &[Piece]) -> Vec<Result<Vec<Part>, ContentError>> {
        let lists = pieces.iter().filter_map(|piece| match piece.target {
            Target::Segment(id) => Some(id),
            Target::Chunk(_) => None,
        });
        let segments = self.segments(lists).await;
        let resolve = |piece: &Piece| match piece.target {
            Target::Chunk(id) => Ok(vec![Part {
                id,
                offset: piece.offset,
                length: piece.length,
            }]),
            Target::Segment(id) => match segments.get(&id) {
                Some(Ok(segment)) => divide(segment, piece),
                Some(Err(error)) => Err(error.clone()),
                None => Err(ContentError::Internal("a segment was lost on the way")),
            },
        };
        pieces.iter().map(resolve).collect()
    }

    async fn segments(
        self: &Arc<Self>,
        ids: impl Iterator<Item = Id>,
    ) -> HashMap<Id, Result<Arc<Segment>, ContentError>> {
        let mut found = HashMap::new();
        let mut missing = Vec::new();
        for id in ids {
            if found.contains_key(&id) || missing.contains(&(Kind::Segment, id)) {
                continue;
            }
            match self.segments.get(&id) {
                Some(segment) => {
                    found.insert(id, Ok(segment));
                }
                None => missing.push((Kind::Segment, id)),
            }
        }
        let blobs = self.blobs(&missing).await;
        for ((_, id), blob) in missing.into_iter().zip(blobs) {
            let segment = blob.and_then(|bytes| {
                let decoded = segment::decode(&bytes);
                decoded.map_err(|error| ContentError::damaged(format!("segment {id}"), error))
            });
            let segment = segment.map(|segment| {
                let segment = Arc::new(segment);
                let bytes = size_of_val(segment.chunks.as_slice()) as u64 + 128;
                self.segments.put(id, bytes, Arc::clone(&segment));
                segment
            });
            found.insert(id, segment);
        }
        found
    }

    async fn chunks(
        self: &Arc<Self>,
        resolved: &[Result<Vec<Part>, ContentError>],
    ) -> HashMap<Id, Result<Bytes, ContentError>> {
        let mut wanted: Vec<(Kind, Id)> = Vec::new();
        let mut seen = std::collections::HashSet::new();
        for part in resolved.iter().flatten().flatten() {
            if seen.insert(part.id) {
                wanted.push((Kind::Chunk, part.id));
            }
        }
        let blobs = self.blobs(&wanted).await;
        let ids = wanted.into_iter().map(|(_, id)| id);
        ids.zip(blobs).collect()
    }
}

/// Returns the parts of chunks that make up a piece of a segment.
fn divide(segment: &Segment, piece: &Piece) -> Result<Vec<Part>, ContentError> {
    let end = piece.offset.checked_add(piece.length);
    let Some(end) = end.filter(|end| *end <= segment.length()) else {
        return Err(ContentError::Invalid("a piece that goes past its segment"));
    };
    let part = |(start, chunk): (u32, &segment::SegmentChunk)| {
        let from = piece.offset.max(start);
        let to = end.min(start + chunk.length);
        Part {
            id: chunk.id,
            offset: from - start,
            length: to - from,
        }
    };
    Ok(segment
        .overlapping(piece.offset, piece.length)
        .map(part)
        .collect())
}

/// Returns the bytes of the parts. They share the memory of their frames.
fn assemble(
    parts: &[Part],
    chunks: &HashMap<Id, Result<Bytes, ContentError>>,
) -> Result<Vec<Bytes>, ContentError> {
    let slice = |part: &Part| match chunks.get(&part.id) {
        Some(Ok(bytes)) => {
            let start = part.offset as usize;
            let end = start + part.length as usize;
            match bytes.len() >= end {
                true => Ok(bytes.slice(start..end)),
                false => Err(ContentError::Invalid("a piece that goes past its chunk")),
            }
        }
        Some(Err(error)) => Err(error.clone()),
        None => Err(ContentError::Internal("a chunk was lost on the way")),
    };
    parts.iter().map(slice).collect()
}
