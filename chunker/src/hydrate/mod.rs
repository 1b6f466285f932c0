//! The read path: find, fetch, verify, decode, cache.
//!
//! Owns the choice of the copy of a blob that is read, and the handling of missing and damaged
//! copies. `fetch` fetches frames, and `read` assembles file contents from chunks. Every returned
//! blob was verified against its whole id, whatever its source.

mod fetch;
mod flights;
mod plan;
mod read;

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use parking_lot::RwLock;

use crate::cache::{DiskCache, MemoryCache};
use crate::catalog::{Candidate, Catalog};
use crate::cut::segment::Segment;
use crate::error::DepotError;
use crate::gate::ByteGate;
use crate::id::{Id, Kind};
use crate::link::Link;
use crate::pack::{Frame, PackName};
use crate::pending::{Pending, PendingBlobs, SealedHere};
use crate::seal::{Class, Keyring, ObjectOpener};
use crate::workers::Workers;
use flights::Flights;

/// The pack and number of a frame.
pub(crate) type FrameKey = (PackName, u16);

type FrameAnswer = Result<Arc<CachedFrame>, DepotError>;

/// Divisor of the memory cache: one part of this many holds segments.
const SEGMENT_SHARE: u64 = 8;

/// Bytes of pack openers that are cached: about four thousand openers.
const OPENER_BYTES: u64 = 4 << 20;

/// Approximate size of an opener, in bytes.
const ONE_OPENER_BYTES: u64 = 1 << 10;

/// Number of places that are remembered from which little was fetched: as many as the small files
/// of a large directory take.
///
/// A reader with random access to a long file hardly ever returns to one of so few places, and so
/// gets no extra data.
const PLACES: u64 = 64;

/// The state of the read path, shared by the fetch tasks.
#[derive(Debug)]
pub(crate) struct Reader {
    pub(crate) link: Arc<Link>,
    pub(crate) keyring: Keyring,
    pub(crate) workers: Workers,
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) disk: Option<Arc<DiskCache>>,
    pub(crate) saves_requests: bool,
    pub(crate) fetch_gate: ByteGate,
    frames: MemoryCache<FrameKey, Arc<CachedFrame>>,
    segments: MemoryCache<Id, Arc<Segment>>,
    openers: MemoryCache<PackName, Arc<ObjectOpener>>,
    flights: Flights<FrameKey, FrameAnswer>,
    /// Places from which little was fetched recently.
    places: MemoryCache<fetch::Place, ()>,
    /// The pending blobs of the sessions that write here.
    pending: RwLock<Vec<PendingBlobs>>,
    /// Bounds the bytes of files that prefetches have requested.
    pub(crate) prefetch_gate: ByteGate,
}

/// The parts that a reader is made of.
pub(crate) struct ReaderParts {
    pub(crate) link: Arc<Link>,
    pub(crate) keyring: Keyring,
    pub(crate) workers: Workers,
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) disk: Option<Arc<DiskCache>>,
    /// Whether fetched frames are cached on disk, and neighbours of small files are fetched with
    /// them.
    pub(crate) saves_requests: bool,
    pub(crate) fetch_bytes: u64,
    pub(crate) cache_bytes: u64,
}

/// A decoded frame with the ids of its blobs.
#[derive(Debug)]
pub(crate) struct CachedFrame {
    frame: Frame,
    class: Class,
    /// The id of each blob, and the kind that it was computed for.
    ids: Box<[OnceLock<(Kind, Id)>]>,
}

/// A copy of a blob. Readers try the copies of a blob one after another.
#[derive(Debug)]
enum Source {
    Sealed(SealedHere, u16),
    Bucket(Box<Candidate>),
}

/// The search for one blob.
struct Search {
    kind: Kind,
    id: Id,
    sources: VecDeque<Source>,
    error: Option<DepotError>,
    found: Option<Bytes>,
}

impl Reader {
    pub(crate) fn new(parts: ReaderParts) -> Self {
        let segment_bytes = parts.cache_bytes / SEGMENT_SHARE;
        Self {
            link: parts.link,
            keyring: parts.keyring,
            workers: parts.workers,
            catalog: parts.catalog,
            disk: parts.disk,
            saves_requests: parts.saves_requests,
            fetch_gate: ByteGate::new(parts.fetch_bytes),
            frames: MemoryCache::new(parts.cache_bytes - segment_bytes),
            segments: MemoryCache::new(segment_bytes),
            openers: MemoryCache::new(OPENER_BYTES),
            flights: Flights::new(),
            places: MemoryCache::new(PLACES),
            pending: RwLock::default(),
            prefetch_gate: ByteGate::new(parts.fetch_bytes),
        }
    }

    /// Makes the uncommitted blobs of a session readable.
    pub(crate) fn register(&self, blobs: PendingBlobs) {
        let mut pending = self.pending.write();
        pending.retain(PendingBlobs::exists);
        pending.push(blobs);
    }

    /// Reads blobs. Returns one result for each.
    pub(crate) async fn blobs(
        self: &Arc<Self>,
        wanted: &[(Kind, Id)],
    ) -> Vec<Result<Bytes, DepotError>> {
        let searches = wanted.iter().map(|&(kind, id)| self.search(kind, id));
        let mut searches: Vec<Search> = searches.collect();
        loop {
            let (asked, sources) = next_sources(&mut searches);
            if sources.is_empty() {
                break;
            }
            let keys: Vec<(FrameKey, u16)> = sources.iter().map(Source::place).collect();
            let answers = self.frames(sources).await;
            for (position, (key, slot)) in asked.into_iter().zip(keys) {
                let answer = answers.get(&key).cloned();
                self.consider(&mut searches[position], key, slot, answer);
            }
        }
        let answers = searches.into_iter().map(|search| {
            let Search {
                kind, id, error, ..
            } = search;
            let otherwise = error.unwrap_or(DepotError::Unknown { kind, id });
            search.found.ok_or(otherwise)
        });
        answers.collect()
    }

    /// Finds the copies of a blob.
    fn search(&self, kind: Kind, id: Id) -> Search {
        let mut search = Search {
            kind,
            id,
            sources: VecDeque::new(),
            error: None,
            found: None,
        };
        let pending = self.pending.read();
        for found in pending.iter().filter_map(|blobs| blobs.find(kind, id.prefix())) {
            match found {
                Pending::Bytes(bytes) => {
                    search.found = Some(bytes);
                    return search;
                }
                Pending::Sealed(sealed, slot) => {
                    search.sources.push_back(Source::Sealed(sealed, slot));
                }
                Pending::Stored(candidate) => {
                    search.sources.push_back(Source::Bucket(candidate));
                }
            }
        }
        let found = self.catalog.locate(&id).into_iter();
        search
            .sources
            .extend(found.map(|candidate| Source::Bucket(Box::new(candidate))));
        search
    }

    /// Takes a blob out of a fetched frame, or records why that failed.
    fn consider(&self, search: &mut Search, key: FrameKey, slot: u16, answer: Option<FrameAnswer>) {
        let error = match answer {
            Some(Ok(frame)) => match frame.blob(&self.keyring, search.kind, &search.id, slot) {
                Some(bytes) => {
                    search.found = Some(bytes);
                    return;
                }
                None => DepotError::damaged(
                    key.0.key(frame.class),
                    format_args!("{:?} {} is not what its id says", search.kind, search.id),
                ),
            },
            Some(Err(error)) => error,
            None => DepotError::Internal("a fetch without an answer"),
        };
        if matches!(error, DepotError::Damaged { .. }) {
            self.link.counters.damaged.one();
            self.catalog.note_damaged(key.0, key.1);
        }
        search.error.get_or_insert(error);
    }

    fn opener(&self, candidate: &Candidate) -> Result<Arc<ObjectOpener>, DepotError> {
        let name = candidate.location.pack;
        if let Some(opener) = self.openers.get(&name) {
            return Ok(opener);
        }
        let class = candidate.location.class;
        let key = name.key(class);
        let opener = self
            .keyring
            .object_opener(class, &key, &candidate.header)
            .map_err(|error| DepotError::unopened(&key, error))?;
        let opener = Arc::new(opener);
        self.openers
            .put(name, ONE_OPENER_BYTES, Arc::clone(&opener));
        Ok(opener)
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

impl Source {
    /// Returns the frame, and the slot of the blob in it.
    fn place(&self) -> (FrameKey, u16) {
        match self {
            Self::Sealed(sealed, slot) => ((sealed.pack, sealed.frame), *slot),
            Self::Bucket(candidate) => {
                let location = &candidate.location;
                ((location.pack, location.frame), location.slot)
            }
        }
    }
}

impl CachedFrame {
    /// Wraps a frame. All blobs of a data pack are chunks, so their ids are computed here, on a
    /// worker.
    fn new(keyring: &Keyring, class: Class, frame: Frame) -> Self {
        let name = |bytes: Bytes| match class {
            Class::DataPack => OnceLock::from((Kind::Chunk, keyring.id(Kind::Chunk, &bytes))),
            _ => OnceLock::new(),
        };
        let ids = frame.blobs().map(name).collect();
        Self { frame, class, ids }
    }

    /// Returns the blob in a slot if it has this kind and id. In metadata packs the reader states
    /// the kind; the id is computed at the first read, and covers the kind.
    fn blob(&self, keyring: &Keyring, kind: Kind, id: &Id, slot: u16) -> Option<Bytes> {
        let bytes = self.frame.blob(slot)?;
        let cell = self.ids.get(usize::from(slot))?;
        let named = cell.get_or_init(|| (kind, keyring.id(kind, &bytes)));
        let is_it = match named.0 == kind {
            true => named.1 == *id,
            // An earlier reader stated another kind, and may have been wrong.
            false => keyring.id(kind, &bytes) == *id,
        };
        is_it.then_some(bytes)
    }

    fn memory(&self) -> u64 {
        (self.frame.memory() + self.ids.len() * size_of::<OnceLock<(Kind, Id)>>()) as u64 + 64
    }
}

/// Fetched frames and errors, by frame.
type Answers = HashMap<FrameKey, FrameAnswer>;
