//! Import of content from another repository: the same chunks and segments under new names, sealed
//! again.
//!
//! Owns the translation of one target. Ids are keyed per repository, so a chunk must be read from
//! the other repository before it is known whether it is new here. Chunks keep the bounds that they
//! have there. A caller without a session, which only needs the name of a target in this
//! repository, uses [`translate`].

use std::sync::Arc;

use bytes::Bytes;

use super::run::{self, Manner, Named};
use super::session::Session;
use crate::chunking::Chunk;
use crate::chunking::segment::{self, SegmentChunk};
use crate::content_store::ContentStore;
use crate::crypto::Keyring;
use crate::error::ContentError;
use crate::extent::{Piece, Target};
use crate::id::{Id, Kind};
use crate::pending::Matching;

/// See [`Ingest::import`](super::Ingest::import).
pub(super) async fn import(
    session: &Arc<Session>,
    from: &ContentStore,
    target: Target,
) -> Result<Target, ContentError> {
    let id = match target {
        Target::Chunk(id) => {
            let bytes = from.read_blob(Kind::Chunk, id).await?;
            return run::store_blob(session, Kind::Chunk, bytes, Manner::COPIED)
                .await
                .map(Target::Chunk);
        }
        Target::Segment(id) => id,
    };
    let list = from.read_blob(Kind::Segment, id).await?;
    let segment = segment::decode(&list)
        .map_err(|error| ContentError::damaged(format!("segment {id}"), error))?;
    let whole = Piece {
        target,
        offset: 0,
        length: segment.length(),
    };
    // A segment that is read whole is returned in parts that are its chunks.
    let parts: Vec<Bytes> = from.read(&[whole]).await?.into_iter().flatten().collect();
    let lengths = segment.chunks.iter().map(|chunk| chunk.length as usize);
    if !lengths.eq(parts.iter().map(Bytes::len)) {
        return Err(ContentError::Internal("a segment was read short"));
    }
    let mut start = 0;
    let mut chunks = Vec::with_capacity(parts.len());
    for bytes in parts {
        let end = start + bytes.len();
        chunks.push(Named::new(Chunk {
            start,
            bytes,
            is_zero: false,
        }));
        start = end;
    }
    let named = run::name(session, chunks, Matching::Everything).await?;
    // The chunks lie in whole frames of the other repository and may be a small part of these, so
    // they are copied.
    run::store_part(session, segment.profile, &named, Manner::COPIED).await
}

/// The translation of a target of one repository into another.
#[derive(Clone, Debug, Default)]
pub struct Translated {
    /// The name of the target under the other keyring. `None` if a part of it cannot be read.
    pub target: Option<Target>,
    /// Every blob of the target that could be read. Chunks precede the segment that lists them.
    pub blobs: Vec<(Kind, Id, Bytes)>,
}

/// Reads and verifies a target of `from`, and names it under `keyring`. Stores nothing, and leaves
/// out blobs that cannot be read. Holds at most the content of one segment (2 MiB).
///
/// # Errors
/// [`ContentError::Store`] and [`ContentError::Stalled`]: nothing is known about the target then.
/// Damage is not an error.
pub async fn translate(
    keyring: &Keyring,
    from: &ContentStore,
    target: Target,
) -> Result<Translated, ContentError> {
    let mut translated = Translated::default();
    let list = match target {
        Target::Chunk(id) => {
            if let Some(bytes) = readable(from.read_blob(Kind::Chunk, id).await)? {
                let id = keyring.id(Kind::Chunk, &bytes);
                translated.target = Some(Target::Chunk(id));
                translated.blobs.push((Kind::Chunk, id, bytes));
            }
            return Ok(translated);
        }
        Target::Segment(id) => readable(from.read_blob(Kind::Segment, id).await)?,
    };
    let Some(Ok(segment)) = list.map(|list| segment::decode(&list)) else {
        return Ok(translated);
    };
    let pieces: Vec<Piece> = segment
        .chunks
        .iter()
        .map(|chunk| Piece {
            target: Target::Chunk(chunk.id),
            offset: 0,
            length: chunk.length,
        })
        .collect();
    let mut listed = Vec::with_capacity(pieces.len());
    for (chunk, answer) in segment.chunks.iter().zip(from.read_each(&pieces).await) {
        // A whole chunk lies in one frame, so it is returned in one part.
        let whole = answer.map(|parts| parts.into_iter().next().unwrap_or_default());
        let Some(bytes) = readable(whole)? else {
            continue;
        };
        let id = keyring.id(Kind::Chunk, &bytes);
        listed.push(SegmentChunk {
            length: chunk.length,
            id,
        });
        translated.blobs.push((Kind::Chunk, id, bytes));
    }
    if listed.len() < segment.chunks.len() {
        return Ok(translated);
    }
    if let [single] = listed.as_slice() {
        translated.target = Some(Target::Chunk(single.id));
        return Ok(translated);
    }
    let list = Bytes::from(segment::encode(segment.profile, &listed));
    let id = keyring.id(Kind::Segment, &list);
    translated.target = Some(Target::Segment(id));
    translated.blobs.push((Kind::Segment, id, list));
    Ok(translated)
}

/// Returns the bytes that were read. `None` if the bucket no longer holds them as they were
/// written.
fn readable(answer: Result<Bytes, ContentError>) -> Result<Option<Bytes>, ContentError> {
    match answer {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.leaves_open() => Err(error),
        Err(_) => Ok(None),
    }
}
