//! Reads: from pieces of files and ids of blobs to verified bytes.
//!
//! Owns the choice of the copy of a blob, the handling of missing and damaged copies, the resolution
//! of extents through their segments, the assembly of the requested bytes, and reads that start
//! again with a newer index. Does not own how frames are fetched, verified and cached (`hydrate`).
//! Every returned blob was verified against its whole id, whatever its source.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use bkfs_store::urgency::Urgency;
use bytes::Bytes;
use futures::future::join_all;

use super::ContentStore;
use crate::catalog::RunSearch;
use crate::chunking::segment::{self, Segment};
use crate::error::ContentError;
use crate::extent::{Piece, Target};
use crate::gate::Reservation;
use crate::hydrate::{FrameAnswer, FrameKey, Reader, Source, UsedFrames};
use crate::id::{Id, Kind};
use crate::pending::Pending;

/// The most frames of which one read takes decoded chunks without another thread.
const FRAMES_AT_ONCE: usize = 2;

/// Maximum number of times that one read starts again with a newer index.
const RENEWALS_MAX: u32 = 3;

impl ContentStore {
    /// Returns a blob, verified against its id.
    ///
    /// Concurrent callers share one fetch, and the blob's frame is cached. For nodes, segments and
    /// commit records; [`ContentStore::read`] is better for chunks.
    ///
    /// # Errors
    /// - [`ContentError::Unknown`] or [`ContentError::Missing`]: a newer root may help.
    /// - [`ContentError::Damaged`] or [`ContentError::Unreadable`] if no copy verifies.
    /// - [`ContentError::Store`] or [`ContentError::Stalled`] if the store fails.
    /// - [`ContentError::Spool`] if only the spool holds the blob and cannot be read.
    /// - [`ContentError::Internal`] if a worker's job panics or a fetch ends without an answer.
    pub async fn read_blob(&self, kind: Kind, id: Id) -> Result<Bytes, ContentError> {
        let mut renewals = 0;
        loop {
            let wanted = [(kind, id)];
            let mut answers = self.shared.reader.blobs(&wanted, self.urgency).await;
            let answer = answers.pop();
            let answer = answer.unwrap_or(Err(ContentError::Unknown { kind, id }));
            match answer {
                Err(error) if self.renewed(&error, &mut renewals).await => {}
                answer => return answer,
            }
        }
    }

    pub(super) async fn renewed(&self, error: &ContentError, renewals: &mut u32) -> bool {
        let Some(renew) = self.renew.get() else {
            return false;
        };
        *renewals += 1;
        error.wants_newer_root() && *renewals <= RENEWALS_MAX && renew.renew(self).await
    }

    /// Reads pieces of a file, given in file order.
    ///
    /// Returns exactly `length` bytes for each piece, in consecutive parts.
    ///
    /// Frames that lie close together are fetched by one request, and all bytes are verified. If
    /// pieces fail, returns the first error; [`ContentStore::read_each`] returns the other pieces
    /// as well.
    ///
    /// # Errors
    /// As [`ContentStore::read_blob`], and [`ContentError::Invalid`] for a piece that extends past
    /// its target.
    pub async fn read(&self, pieces: &[Piece]) -> Result<Vec<Vec<Bytes>>, ContentError> {
        self.read_each(pieces).await.into_iter().collect()
    }

    /// As [`ContentStore::read`], but with one result for each piece: damage to one piece does not
    /// prevent the others from being read.
    ///
    /// # Errors
    /// For each piece those of [`ContentStore::read`].
    pub async fn read_each(&self, pieces: &[Piece]) -> Vec<Result<Vec<Bytes>, ContentError>> {
        let mut renewals = 0;
        loop {
            let answers = self.shared.reader.read_each(pieces, self.urgency).await;
            let mut failed = answers.iter().filter_map(|answer| answer.as_ref().err());
            let stale = failed.find(|error| error.wants_newer_root()).cloned();
            match stale {
                Some(error) if self.renewed(&error, &mut renewals).await => {}
                _ => return answers,
            }
        }
    }

    /// Reserves room to prefetch `bytes` bytes of files. `None` while the prefetches that are under
    /// way leave too little room.
    pub fn prefetch(&self, bytes: u64) -> Option<Prefetch> {
        let reader = Arc::clone(&self.shared.reader);
        let room = reader.prefetch_gate.try_reserve(bytes)?;
        Some(Prefetch {
            reader,
            _room: room,
        })
    }

    /// Returns the maximum number of file bytes that may be prefetched concurrently.
    pub fn prefetch_bytes_max(&self) -> u64 {
        self.shared.reader.prefetch_gate.capacity()
    }
}

/// Room for one prefetch, given back when dropped.
#[derive(Debug)]
pub struct Prefetch {
    reader: Arc<Reader>,
    _room: Reservation,
}

impl Prefetch {
    /// Fetches the frames that `pieces` need into the caches.
    ///
    /// This is a hint: errors are dropped here, and a later read of the same data meets them again.
    pub async fn bring(self, pieces: &[Piece]) {
        self.reader.warm(pieces).await;
    }
}

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
    async fn read_each(
        self: &Arc<Self>,
        pieces: &[Piece],
        urgency: Urgency,
    ) -> Vec<Result<Vec<Bytes>, ContentError>> {
        let resolved = self.resolve(pieces, urgency).await;
        let chunks = self.chunks(&resolved, urgency).await;
        let assembled = resolved.into_iter().map(|parts| assemble(&parts?, &chunks));
        assembled.collect()
    }

    /// Fetches the frames that pieces need into the caches: first all segments concurrently, then
    /// all chunks concurrently.
    ///
    /// So the latency of the store counts at most twice, and only once if the segments are cached.
    async fn warm(self: &Arc<Self>, pieces: &[Piece]) {
        let resolved = self.resolve(pieces, Urgency::Ahead).await;
        self.chunks(&resolved, Urgency::Ahead).await;
    }

    /// Returns for each piece the chunks that it needs, or the reason why its segment cannot be read.
    pub(super) async fn chunks_in(
        self: &Arc<Self>,
        pieces: &[Piece],
        urgency: Urgency,
    ) -> Vec<Result<Vec<Id>, ContentError>> {
        let resolved = self.resolve(pieces, urgency).await.into_iter();
        let ids = |parts: Vec<Part>| parts.into_iter().map(|part| part.id).collect();
        resolved.map(|parts| parts.map(ids)).collect()
    }

    /// Returns for each piece the parts of chunks that it consists of.
    async fn resolve(
        self: &Arc<Self>,
        pieces: &[Piece],
        urgency: Urgency,
    ) -> Vec<Result<Vec<Part>, ContentError>> {
        let lists = pieces.iter().filter_map(|piece| match piece.target {
            Target::Segment(id) => Some(id),
            Target::Chunk(_) => None,
        });
        let segments = self.segments(lists, urgency).await;
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

    pub(super) async fn segments(
        self: &Arc<Self>,
        ids: impl Iterator<Item = Id>,
        urgency: Urgency,
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
        let blobs = self.blobs(&missing, urgency).await;
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
        urgency: Urgency,
    ) -> HashMap<Id, Result<Bytes, ContentError>> {
        let mut wanted: Vec<(Kind, Id)> = Vec::new();
        let mut seen = std::collections::HashSet::new();
        for part in resolved.iter().flatten().flatten() {
            if seen.insert(part.id) {
                wanted.push((Kind::Chunk, part.id));
            }
        }
        let blobs = self.blobs(&wanted, urgency).await;
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

/// The search for one blob.
struct Search {
    kind: Kind,
    id: Id,
    sources: VecDeque<Source>,
    error: Option<ContentError>,
    found: Option<Bytes>,
    by_runs: RunSearch,
    /// Whether the index was asked. It is not while a pin has the blob.
    is_located: bool,
}

impl Reader {
    /// Reads blobs. Returns one result for each.
    async fn blobs(
        self: &Arc<Self>,
        wanted: &[(Kind, Id)],
        urgency: Urgency,
    ) -> Vec<Result<Bytes, ContentError>> {
        let mut searches: Vec<Search> = Vec::with_capacity(wanted.len());
        let mut used = UsedFrames::default();
        for &(kind, id) in wanted {
            searches.push(self.search(kind, id, &mut used).await);
        }
        loop {
            let (asked, sources) = next_sources(&mut searches);
            if sources.is_empty() {
                if self.look_beyond_pins(&mut searches).await || self.ask_runs(&mut searches).await
                {
                    continue;
                }
                break;
            }
            let (asked, sources) = match urgency {
                Urgency::Now => self.take_decoded(&mut searches, asked, sources).await,
                // What is brought for later reads is to lie in memory.
                Urgency::Ahead | Urgency::Background => (asked, sources),
            };
            let keys: Vec<(FrameKey, u16)> = sources.iter().map(Source::place).collect();
            let answers = self.further_frames(used.answers(), sources, urgency).await;
            for (position, (key, slot)) in asked.into_iter().zip(keys) {
                let answer = answers.get(&key).cloned();
                self.consider(&mut searches[position], key, slot, answer);
            }
        }
        let answers = searches.into_iter().map(|search| {
            let Search {
                kind, id, error, ..
            } = search;
            let otherwise = error.unwrap_or(ContentError::Unknown { kind, id });
            search.found.ok_or(otherwise)
        });
        answers.collect()
    }

    /// Reads the chunks that lie decoded on disk. Returns what is left: the positions of blobs, and a
    /// copy of each.
    async fn take_decoded(
        self: &Arc<Self>,
        searches: &mut [Search],
        asked: Vec<usize>,
        sources: Vec<Source>,
    ) -> (Vec<usize>, Vec<Source>) {
        if self.decoded.is_none() {
            return (asked, sources);
        }
        let mut copies: Vec<(usize, Source)> = asked.into_iter().zip(sources).collect();
        copies.sort_by_key(|(_, source)| source.place());
        let mut frames = Vec::new();
        for copies in copies.chunk_by(|(_, one), (_, next)| one.place().0 == next.place().0) {
            let (key, _) = copies[0].1.place();
            let is_chunk =
                |(position, _): &(usize, Source)| searches[*position].kind == Kind::Chunk;
            let chunk = |(position, source): &(usize, Source)| {
                let (_, slot) = source.place();
                (searches[*position].id, slot)
            };
            if copies.iter().all(is_chunk)
                && let Some(chunks) = self.decoded_chunks(&key, copies.iter().map(chunk))
            {
                let positions = copies.iter().map(|(position, _)| *position);
                let positions: Vec<usize> = positions.collect();
                frames.push((positions, chunks));
            }
        }
        let at_once = frames.len() <= FRAMES_AT_ONCE;
        let reads = frames
            .into_iter()
            .map(async |(positions, chunks)| (positions, self.read_decoded(chunks, at_once).await));
        for (positions, read) in join_all(reads).await {
            for (position, bytes) in positions.into_iter().zip(read) {
                searches[position].found = bytes;
            }
        }
        copies.retain(|(position, _)| searches[*position].found.is_none());
        copies.into_iter().unzip()
    }

    /// Finds the copies of a blob.
    async fn search(&self, kind: Kind, id: Id, used: &mut UsedFrames) -> Search {
        let mut search = Search {
            kind,
            id,
            sources: VecDeque::new(),
            error: None,
            found: None,
            by_runs: RunSearch::default(),
            is_located: false,
        };
        self.search_pending(&mut search);
        if search.found.is_none() && kind == Kind::Chunk {
            search.found = self.chunk_in_memory(&id, used);
        }
        if search.found.is_some() {
            return search;
        }
        let pinned = self.catalog.locate_pinned(&id.prefix());
        if pinned.is_empty() {
            self.locate(&mut search).await;
            return search;
        }
        let pinned = pinned.into_iter().map(Box::new);
        search.sources.extend(pinned.map(Source::Bucket));
        search
    }

    /// Asks the index for the copies of a blob.
    async fn locate(&self, search: &mut Search) {
        search.is_located = true;
        let found = self.catalog.locate_first(&search.id, &mut search.by_runs);
        match Box::pin(found).await {
            Ok(found) => {
                let found = found.into_iter().map(Box::new);
                search.sources.extend(found.map(Source::Bucket));
            }
            // Unless a copy that is pending answers.
            Err(error) => search.note(error),
        }
    }

    /// Asks the index for the copies of the blobs whose pinned copies could not be read. Returns
    /// false if there are none.
    async fn look_beyond_pins(&self, searches: &mut [Search]) -> bool {
        let mut has_more = false;
        for search in searches {
            if search.found.is_none() && !search.is_located {
                self.locate(search).await;
                has_more |= !search.sources.is_empty();
            }
        }
        has_more
    }

    /// Finds further copies of the blobs that were not found, by runs. Returns false if there are
    /// none. Ends when the store fails, since each look-up would wait for it.
    async fn ask_runs(&self, searches: &mut [Search]) -> bool {
        let mut has_more = false;
        let mut failure: Option<ContentError> = None;
        for search in searches.iter_mut().filter(|search| search.found.is_none()) {
            // A blob that was not looked for is not unknown.
            if let Some(error) = &failure {
                search.note(error.clone());
                continue;
            }
            loop {
                let next = self.catalog.next_by_runs(&search.id, &mut search.by_runs);
                match Box::pin(next).await {
                    Ok(Some(found)) => {
                        let found = found.into_iter().map(Box::new);
                        search.sources.extend(found.map(Source::Bucket));
                        has_more = true;
                    }
                    Ok(None) => {}
                    Err(error) => {
                        search.note(error.clone());
                        match error {
                            ContentError::Store(_)
                            | ContentError::Stalled { .. }
                            | ContentError::Internal(_) => failure = Some(error),
                            _ => continue,
                        }
                    }
                }
                break;
            }
        }
        has_more
    }

    /// Finds the copies of a blob that no root names yet.
    fn search_pending(&self, search: &mut Search) {
        let pending = self.pending.read();
        for found in pending
            .iter()
            .filter_map(|blobs| blobs.find(search.kind, search.id.prefix()))
        {
            match found {
                Pending::Bytes(bytes) => {
                    search.found = Some(bytes);
                    return;
                }
                Pending::Sealed(sealed, slot) => {
                    search.sources.push_back(Source::Sealed(sealed, slot));
                }
                Pending::Stored(candidate) => {
                    search.sources.push_back(Source::Bucket(candidate));
                }
            }
        }
    }

    /// Takes a blob out of a fetched frame, or records why that failed.
    fn consider(&self, search: &mut Search, key: FrameKey, slot: u16, answer: Option<FrameAnswer>) {
        let error = match answer {
            Some(Ok(frame)) => match frame.blob(&self.keyring, search.kind, &search.id, slot) {
                Some(bytes) => {
                    search.found = Some(bytes);
                    return;
                }
                None => ContentError::damaged(
                    key.0.key(frame.class()),
                    format_args!("{:?} {} is not what its id says", search.kind, search.id),
                ),
            },
            Some(Err(error)) => error,
            None => ContentError::Internal("a fetch without an answer"),
        };
        match &error {
            ContentError::Damaged { .. } => {
                self.link.counters.damaged.one();
                self.catalog.note_damaged(key.0, key.1);
            }
            ContentError::Missing { .. } => self.catalog.forget_learned(&key.0),
            _ => {}
        }
        search.error.get_or_insert(error);
    }
}

impl Search {
    /// Records why no further copy is known. An error that leaves open whether there is one counts
    /// more than that of a copy.
    fn note(&mut self, error: ContentError) {
        let leaves_open = |error: &ContentError| error.leaves_open();
        if error.leaves_open() && !self.error.as_ref().is_some_and(leaves_open) {
            self.error = Some(error);
        } else {
            self.error.get_or_insert(error);
        }
    }
}

/// Takes the next copy of each blob that is not found yet. Returns the positions of these blobs,
/// and the copies.
fn next_sources(searches: &mut [Search]) -> (Vec<usize>, Vec<Source>) {
    let (mut asked, mut sources) = (Vec::new(), Vec::new());
    for (position, search) in searches.iter_mut().enumerate() {
        if search.found.is_some() {
            continue;
        }
        if let Some(source) = search.sources.pop_front() {
            asked.push(position);
            sources.push(source);
        }
    }
    (asked, sources)
}
