//! Prefetches of a long list of pieces: frames that will probably be asked for soon.
//!
//! Owns which frames of a list are fetched, each once, and the share of the cache that a list may
//! fill. Does not own how frames are fetched (`hydrate`), nor why a piece is in the list.
//!
//! A list is a hint. What it names wrongly costs bytes, up to that share, and nothing else.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use bkfs_store::urgency::Urgency;
use parking_lot::Mutex;

use super::ContentStore;
use crate::catalog::{Candidate, Location, RunSearch};
use crate::error::ContentError;
use crate::extent::Piece;
use crate::hydrate::{FrameKey, Source, coalesce};
use crate::id::Id;
use crate::pack::PackName;

/// Divisor of the cache: a list fills at most one part of this many of what pins leave.
const CACHE_SHARE: u64 = 2;

/// Divisor of the memory of all lists: the frames of one group take at most one part of this many.
const GROUP_SHARE: u64 = 4;

/// A number of fetches that is never reached.
const NEVER: usize = usize::MAX;

/// A list that is being prefetched.
#[derive(Debug)]
pub struct PrefetchList {
    content_store: ContentStore,
    limit: u64,
    taken: Mutex<Taken>,
}

/// What was taken from a list so far.
#[derive(Debug, Default)]
struct Taken {
    frames: HashSet<FrameKey>,
    /// What these frames take of the cache, in bytes.
    cost: u64,
    counts: PrefetchCounts,
    is_full: bool,
}

/// A copy to fetch, and the position of the piece that needs it.
type Wanted = (usize, Candidate);

/// Where a blob is read from.
#[derive(Debug)]
enum Place {
    /// From a cache, or from one that a fetch of this list fills.
    Cached,
    /// From this copy, which was not taken before.
    Bucket(Candidate),
    /// From nowhere, or the share of the cache is full.
    Nowhere,
}

/// How far a list is prefetched, in bytes of the stored lengths of frames.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PrefetchCounts {
    /// Frames that were in a cache.
    pub found_bytes: u64,
    /// Frames that were fetched.
    pub fetched_bytes: u64,
    /// Number of frames that could not be read. A later read of them meets the error again.
    pub failed_frames: u64,
}

impl ContentStore {
    /// Returns an empty list. Its frames fill at most half of the cache that pins leave: of the
    /// cache on disk, or of the one in memory if there is no other.
    pub fn prefetch_list(&self) -> PrefetchList {
        let (pinned, cache_bytes) = self.pinned_bytes();
        let room = match self.keeps_on_disk() {
            true => cache_bytes.saturating_sub(pinned),
            false => self.config().memory.cache_bytes,
        };
        PrefetchList {
            content_store: self.clone(),
            limit: room / CACHE_SHARE,
            taken: Mutex::default(),
        }
    }

    /// Returns a handle whose reads give way to reads for which a caller waits.
    pub fn ahead(&self) -> ContentStore {
        ContentStore {
            urgency: Urgency::Ahead,
            ..self.clone()
        }
    }

    /// Returns true if fetched frames are written to a cache on disk.
    fn keeps_on_disk(&self) -> bool {
        let reader = &self.shared.reader;
        reader.disk.is_some() && reader.saves_requests
    }
}

impl PrefetchList {
    /// Fetches the frames that `pieces` need and that are in no cache. Reads for which a caller
    /// waits come before. Returns false once the share of the cache is full: nothing more is
    /// fetched then.
    ///
    /// Cancel safety: dropped, it leaves the fetches that it began to end alone.
    ///
    /// # Errors
    /// [`ContentError::Store`] or [`ContentError::Stalled`] if the store fails. Pieces that are
    /// damaged or missing are passed over.
    pub async fn bring(&self, pieces: &[Piece]) -> Result<bool, ContentError> {
        self.bring_and_tell(pieces, &|_| ()).await
    }

    /// Same. Calls `begun` with the position of each piece from which on a read of it sends no
    /// request: its frames are in a cache, or their fetches have begun, and the read joins them.
    ///
    /// Cancel safety: as of [`Self::bring`].
    ///
    /// # Errors
    /// Those of [`Self::bring`].
    pub async fn bring_and_tell(
        &self,
        pieces: &[Piece],
        begun: &(dyn Fn(usize) + Sync),
    ) -> Result<bool, ContentError> {
        let reader = &self.content_store.shared.reader;
        let chunks = reader.chunks_in(pieces, Urgency::Ahead).await;
        let mut wanted = Vec::new();
        // The number of fetches that each piece waits for.
        let mut lacking = Vec::with_capacity(pieces.len());
        for (piece, chunks) in chunks.into_iter().enumerate() {
            let before = wanted.len();
            let is_had = self.take_all(piece, chunks, &mut wanted).await?;
            match (is_had, wanted.len() - before) {
                (false, _) => lacking.push(NEVER),
                (true, 0) => {
                    lacking.push(NEVER);
                    begun(piece);
                }
                (true, count) => lacking.push(count),
            }
        }
        let largest = reader.prefetch_memory.capacity() / GROUP_SHARE;
        for group in grouped(wanted, largest) {
            let memory = memory_of(&group, reader.largest_range());
            let _room = reader.prefetch_memory.reserve(memory).await;
            for (piece, _) in &group {
                lacking[*piece] -= 1;
                if lacking[*piece] == 0 {
                    begun(*piece);
                }
            }
            self.fetch(group).await?;
        }
        Ok(!self.taken.lock().is_full)
    }

    /// Takes the frames of the chunks of a piece, and adds those that are to be fetched to `wanted`.
    /// Returns false if some chunk has no frame that can be read, or the share of the cache is full.
    async fn take_all(
        &self,
        piece: usize,
        chunks: Result<Vec<Id>, ContentError>,
        wanted: &mut Vec<Wanted>,
    ) -> Result<bool, ContentError> {
        let chunks = match chunks {
            Ok(chunks) => chunks,
            Err(error) if is_of_the_store(&error) => return Err(error),
            Err(_) => return Ok(false),
        };
        let mut is_had = true;
        for chunk in chunks {
            // All may be in memory: without this the caller would leave its thread to no other task.
            tokio::task::consume_budget().await;
            if self.taken.lock().is_full {
                return Ok(false);
            }
            match self.copies(&chunk).await {
                Ok(copies) => match self.take(copies) {
                    Place::Cached => {}
                    Place::Bucket(copy) => wanted.push((piece, copy)),
                    Place::Nowhere => is_had = false,
                },
                Err(error) if is_of_the_store(&error) => return Err(error),
                Err(_) => is_had = false,
            }
        }
        Ok(is_had)
    }

    /// Returns how far the list is prefetched.
    pub fn counts(&self) -> PrefetchCounts {
        self.taken.lock().counts
    }

    async fn copies(&self, id: &Id) -> Result<Vec<Candidate>, ContentError> {
        let catalog = &self.content_store.shared.catalog;
        let found = catalog.next_by_runs(id, &mut RunSearch::default()).await?;
        Ok(found.unwrap_or_default())
    }

    /// Chooses the copy to fetch, unless one is in a cache or was taken before.
    fn take(&self, copies: Vec<Candidate>) -> Place {
        let mut taken = self.taken.lock();
        let is_taken = |copy: &Candidate| taken.frames.contains(&copy.location.key());
        if copies.iter().any(is_taken) {
            return Place::Cached;
        }
        if let Some(copy) = copies.iter().find(|copy| self.is_cached(&copy.location)) {
            taken.frames.insert(copy.location.key());
            taken.counts.found_bytes += u64::from(copy.location.length);
            return Place::Cached;
        }
        let Some(copy) = copies.into_iter().next() else {
            return Place::Nowhere;
        };
        let cost = match self.content_store.keeps_on_disk() {
            true => u64::from(copy.location.length),
            false => u64::from(copy.location.raw_length),
        };
        if taken.cost + cost > self.limit {
            taken.is_full = true;
            return Place::Nowhere;
        }
        taken.cost += cost;
        taken.frames.insert(copy.location.key());
        Place::Bucket(copy)
    }

    fn is_cached(&self, location: &Location) -> bool {
        let reader = &self.content_store.shared.reader;
        let holds = |range| {
            let pins = reader.pins.as_ref();
            let pinned = pins.is_some_and(|pins| pins.frames().holds(location.pack, &range));
            let disk = reader.disk.as_ref();
            pinned || disk.is_some_and(|disk| disk.holds(location.pack, &range))
        };
        reader.has_in_memory(&location.key()) || holds(location.range())
    }

    async fn fetch(&self, group: Vec<Wanted>) -> Result<(), ContentError> {
        let reader = &self.content_store.shared.reader;
        let lengths: Vec<(FrameKey, u32)> = group
            .iter()
            .map(|(_, copy)| (copy.location.key(), copy.location.length))
            .collect();
        let sources = group.into_iter().map(|(_, copy)| Box::new(copy));
        let sources = sources.map(Source::Bucket);
        let answers = reader.frames(sources.collect(), Urgency::Ahead).await;
        let mut failure = None;
        let mut taken = self.taken.lock();
        for (key, length) in lengths {
            match answers.get(&key) {
                Some(Ok(_)) => taken.counts.fetched_bytes += u64::from(length),
                Some(Err(error)) if is_of_the_store(error) => failure = Some(error.clone()),
                _ => taken.counts.failed_frames += 1,
            }
        }
        failure.map_or(Ok(()), Err)
    }
}

/// Returns true if the store did not answer as needed, so that further requests would fail as well.
fn is_of_the_store(error: &ContentError) -> bool {
    matches!(error, ContentError::Store(_) | ContentError::Stalled { .. })
}

/// Returns the memory that the fetch of a group takes, in bytes: that of its requests, which bring
/// the gaps between frames along, and of the decoded frames.
fn memory_of(group: &[Wanted], largest_range: u64) -> u64 {
    let mut packs: HashMap<PackName, Vec<Range<u64>>> = HashMap::new();
    let mut memory = 0;
    for (_, copy) in group {
        let location = &copy.location;
        packs
            .entry(location.pack)
            .or_default()
            .push(location.range());
        memory += u64::from(location.raw_length);
    }
    let ranges = packs
        .values()
        .flat_map(|frames| coalesce(frames, largest_range));
    memory
        + ranges
            .map(|(range, _)| range.end - range.start)
            .sum::<u64>()
}

/// Divides copies into groups of at most `largest` bytes of memory, in order. A larger frame is a
/// group of its own.
fn grouped(copies: Vec<Wanted>, largest: u64) -> Vec<Vec<Wanted>> {
    let mut groups: Vec<Vec<Wanted>> = Vec::new();
    let mut room = 0;
    for wanted in copies {
        let memory = wanted.1.location.memory();
        match groups.last_mut() {
            Some(group) if memory <= room => {
                room -= memory;
                group.push(wanted);
            }
            _ => {
                room = largest.saturating_sub(memory);
                groups.push(vec![wanted]);
            }
        }
    }
    groups
}
