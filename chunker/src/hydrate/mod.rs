//! The way out of the bucket: find, fetch, verify, decode, keep.
//!
//! Owns which copy of a blob is read and what is done when it is missing or damaged. `fetch` brings frames in, `read` makes files' bytes of chunks. Everything that is
//! handed out was verified against the whole id of its blob, wherever it came from.

mod fetch;
mod flights;
mod plan;
mod read;

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, OnceLock, Weak};

use bytes::Bytes;
use parking_lot::RwLock;

use crate::cache::{DiskCache, MemoryCache};
use crate::catalog::{Candidate, Catalog};
use crate::cut::segment::Segment;
use crate::error::DepotError;
use crate::gate::ByteGate;
use crate::id::{Id, Kind};
use crate::ingest::{Pending, SealedHere, Session};
use crate::link::Link;
use crate::pack::{Frame, PackName};
use crate::seal::{Class, Keyring, ObjectOpener};
use crate::workers::Workers;
use flights::Flights;

/// A frame, wherever it is.
pub(crate) type FrameKey = (PackName, u16);

type FrameAnswer = Result<Arc<CachedFrame>, DepotError>;

/// The part of the memory cache that lists of chunks may take.
const SEGMENT_SHARE: u64 = 8;

/// Openers of packs kept, in bytes: about four thousand.
const OPENER_BYTES: u64 = 4 << 20;

/// About what an opener takes.
const ONE_OPENER_BYTES: u64 = 1 << 10;

/// Places from which little was fetched that are remembered: as many as a large directory's small files take. Whoever reads here and there in something
/// long comes back to one of so few hardly ever, and is not given more than was asked for.
const PLACES: u64 = 64;

/// What reading needs; shared by the tasks that fetch.
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
    /// From where little was fetched lately.
    places: MemoryCache<fetch::Place, ()>,
    sessions: RwLock<Vec<Weak<Session>>>,
    /// Bytes of files that prefetches have asked for.
    pub(crate) prefetch_gate: ByteGate,
}

/// What a reader is made of.
pub(crate) struct ReaderParts {
    pub(crate) link: Arc<Link>,
    pub(crate) keyring: Keyring,
    pub(crate) workers: Workers,
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) disk: Option<Arc<DiskCache>>,
    /// Whether to put there what was fetched, and to fetch what lies around small files.
    pub(crate) saves_requests: bool,
    pub(crate) fetch_bytes: u64,
    pub(crate) cache_bytes: u64,
}

/// A decoded frame, and what is known of its blobs.
#[derive(Debug)]
pub(crate) struct CachedFrame {
    frame: Frame,
    class: Class,
    /// The id of each blob, and as which kind it was computed.
    ids: Box<[OnceLock<(Kind, Id)>]>,
}

/// Where a blob may be read, one after the other.
#[derive(Debug)]
enum Source {
    Sealed(SealedHere, u16),
    Bucket(Box<Candidate>),
}

/// One blob that is looked for.
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
            sessions: RwLock::default(),
            prefetch_gate: ByteGate::new(parts.fetch_bytes),
        }
    }

    /// From now on also finds what this session has not committed.
    pub(crate) fn register(&self, session: &Arc<Session>) {
        let mut sessions = self.sessions.write();
        sessions.retain(|session| session.strong_count() > 0);
        sessions.push(Arc::downgrade(session));
    }

    /// Reads blobs: one answer for each.
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

    /// Looks where a blob may be.
    fn search(&self, kind: Kind, id: Id) -> Search {
        let mut search = Search {
            kind,
            id,
            sources: VecDeque::new(),
            error: None,
            found: None,
        };
        let sessions = self.sessions.read();
        for session in sessions.iter().filter_map(Weak::upgrade) {
            match session.find(kind, id.prefix()) {
                None => {}
                Some(Pending::Bytes(bytes)) => {
                    search.found = Some(bytes);
                    return search;
                }
                Some(Pending::Sealed(sealed, slot)) => {
                    search.sources.push_back(Source::Sealed(sealed, slot));
                }
                Some(Pending::Stored(candidate)) => {
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

    /// Takes a blob out of the frame that it should be in, or notes why not.
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

/// The next source of every blob that is not found yet, with the positions that ask.
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
    /// The frame, and the slot in it.
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
    /// Prepares a frame. In data packs everything is a chunk, so the ids are computed here, by a worker.
    fn new(keyring: &Keyring, class: Class, frame: Frame) -> Self {
        let name = |bytes: Bytes| match class {
            Class::DataPack => OnceLock::from((Kind::Chunk, keyring.id(Kind::Chunk, &bytes))),
            _ => OnceLock::new(),
        };
        let ids = frame.blobs().map(name).collect();
        Self { frame, class, ids }
    }

    /// The blob in a slot, if it is this one. In metadata packs the kind is known by who asks: the id covers it.
    fn blob(&self, keyring: &Keyring, kind: Kind, id: &Id, slot: u16) -> Option<Bytes> {
        let bytes = self.frame.blob(slot)?;
        let cell = self.ids.get(usize::from(slot))?;
        let named = cell.get_or_init(|| (kind, keyring.id(kind, &bytes)));
        (*named == (kind, *id)).then_some(bytes)
    }

    fn memory(&self) -> u64 {
        (self.frame.memory() + self.ids.len() * size_of::<OnceLock<(Kind, Id)>>()) as u64 + 64
    }
}

/// Answers by frame.
type Answers = HashMap<FrameKey, FrameAnswer>;
