//! Content of another repository: the same chunks and segments, named and sealed anew.
//!
//! Owns the translation of one target. Ids are keyed per repository, so what is new here is known only once it was read there; chunks keep the bounds that they have there.

use std::sync::Arc;

use super::divide::Named;
use super::run;
use super::session::Session;
use crate::cut::segment;
use crate::depot::Depot;
use crate::error::DepotError;
use crate::extent::{Piece, Target};
use crate::id::Kind;

/// See [`Ingest::import`](super::Ingest::import).
pub(super) async fn import(
    session: &Arc<Session>,
    from: &Depot,
    target: Target,
) -> Result<Target, DepotError> {
    let id = match target {
        Target::Chunk(id) => {
            let bytes = from.read_blob(Kind::Chunk, id).await?;
            return run::store_blob(session, Kind::Chunk, bytes)
                .await
                .map(Target::Chunk);
        }
        Target::Segment(id) => id,
    };
    let list = from.read_blob(Kind::Segment, id).await?;
    let segment = segment::decode(&list)
        .map_err(|error| DepotError::damaged(format!("segment {id}"), error))?;
    let whole = Piece {
        target,
        offset: 0,
        length: segment.length(),
    };
    let mut read = from.read(&[whole]).await?;
    let contents = read
        .pop()
        .filter(|bytes| bytes.len() == segment.length() as usize)
        .ok_or(DepotError::Internal("a segment was read short"))?;
    let mut start = 0;
    let mut chunks = Vec::with_capacity(segment.chunks.len());
    for chunk in &segment.chunks {
        let end = start + chunk.length as usize;
        chunks.push(Named {
            start,
            bytes: contents.slice(start..end),
            is_zero: false,
            id: None,
            known: None,
        });
        start = end;
    }
    let named = run::name(session, chunks).await?;
    let named: Vec<&Named> = named.iter().collect();
    run::store_part(session, segment.profile, &named).await
}
