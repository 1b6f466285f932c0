//! The state of the read path: what is fetched, what is cached, and where blobs are looked for.
//!
//! Owns the caches, the fetches under way, and the sessions whose pending blobs are read. Does not
//! own the choice of a copy, nor how it is fetched (`fetch`).

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, MutexGuard, RwLock};
use tokio::sync::Notify;

use super::hints::Hints;
use super::plan::RANGE_BYTES;
use super::single_flight::SingleFlight;
use crate::budget::MemoryBudget;
use crate::cache::{DecodedFrames, DiskCache, MemoryCache};
use crate::catalog::{Candidate, Catalog};
use crate::chunking::segment::Segment;
use crate::crypto::{Keyring, ObjectOpener};
use crate::error::ContentError;
use crate::gate::ByteGate;
use crate::id::Id;
use crate::pack::{NamedFrame, PackName};
use crate::pending::{PendingBlobs, SealedHere};
use crate::pins::Pins;
use crate::store_client::StoreClient;
use crate::workers::Workers;

/// The pack and number of a frame.
pub(crate) type FrameKey = (PackName, u16);

/// A fetched frame, or the reason why it was not fetched.
pub(crate) type FrameAnswer = Result<Arc<NamedFrame>, ContentError>;

/// Fetched frames and errors, by frame.
pub(crate) type Answers = HashMap<FrameKey, FrameAnswer>;

/// A region of a pack that holds frames: the pack, and the number of the region in it.
pub(super) type Region = (PackName, u64);

/// Divisor of the memory of fetches: one part of this many is for lists of prefetches.
const PREFETCH_SHARE: u64 = 2;

/// Divisor of the memory of fetches: one part of this many is for fetches alone that a caller waits
/// for.
const NOW_SHARE: u64 = 8;

/// Divisor of the memory of fetches: one part of this many is for what is pinned.
const HYDRATION_SHARE: u64 = 4;

/// Divisor of the memory cache: one part of this many holds segments.
const SEGMENT_SHARE: u64 = 8;

/// Divisor of the memory cache: one part of this many tells where chunks in memory are. This is two
/// places for each chunk of 16 KiB.
const HINT_SHARE: u64 = 256;

/// Divisor of the memory cache: of it, one part of this many at most tells where decoded frames lie on
/// disk.
const DECODED_SHARE: u64 = 8;

/// Divisor of the limit of the cache on disk: one part of this many may be decoded frames.
const DECODED_DISK_SHARE: u64 = 4;

/// Bytes of pack openers that are cached: about four thousand openers.
const OPENER_BYTES: u64 = 4 << 20;

/// Approximate size of an opener, in bytes.
const ONE_OPENER_BYTES: u64 = 1 << 10;

/// Number of regions that are remembered from which little was fetched: as many as the small files
/// of a large directory take.
///
/// A reader with random access to a long file hardly ever returns to one of so few regions, and so
/// gets no extra data.
const REGIONS: u64 = 64;

/// The state of the read path, shared by the fetch tasks.
#[derive(Debug)]
pub(crate) struct Reader {
    pub(crate) link: Arc<StoreClient>,
    pub(crate) keyring: Keyring,
    pub(crate) workers: Workers,
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) disk: Option<Arc<DiskCache>>,
    /// Frames that were decoded more than once, as long as the process lives.
    pub(crate) decoded: Option<Arc<DecodedFrames>>,
    /// Held while pins are heeded and the disk is divided, so that nothing older replaces what is
    /// newer.
    sharing: Mutex<()>,
    /// What stays on disk until its user gives it up.
    pub(crate) pins: Option<Arc<Pins>>,
    pub(crate) saves_requests: bool,
    /// Bounds the memory of stored bytes that are requested, until they are decoded.
    pub(crate) fetch_gate: Arc<ByteGate>,
    /// Bounds the memory of frames that are being decoded. A task that holds a part of it waits for
    /// the workers only, never for the store.
    pub(super) decode_gate: ByteGate,
    /// Bounds those of fetches for which no caller waits. It is a part of that of all.
    pub(super) decode_ahead_gate: ByteGate,
    pub(super) frames: MemoryCache<FrameKey, Arc<NamedFrame>>,
    /// The memory of `frames`, and of what is known of frames that lie decoded on disk.
    pub(super) frame_bytes: u64,
    pub(crate) segments: MemoryCache<Id, Arc<Segment>>,
    openers: MemoryCache<PackName, Arc<ObjectOpener>>,
    pub(super) single_flight: SingleFlight<FrameKey, FrameAnswer>,
    /// Regions from which little was fetched recently.
    pub(super) regions: MemoryCache<Region, ()>,
    /// The pending blobs of the sessions that write here.
    pub(crate) pending: RwLock<Vec<PendingBlobs>>,
    /// The memory of the sessions that write here, the oldest first. Fetches borrow of it.
    pub(super) writers: RwLock<Vec<Weak<ByteGate>>>,
    /// Bounds the bytes of files that prefetches have requested.
    pub(crate) prefetch_gate: ByteGate,
    /// Bounds the memory of all fetches for which no caller waits. It is a part of that of all.
    pub(super) ahead_gate: ByteGate,
    /// Told when the urgency of fetches may have risen.
    pub(super) raised: Notify,
    /// Bounds the memory of what lists of prefetches fetch. It is a part of that of all fetches.
    pub(crate) prefetch_memory: ByteGate,
    /// Where chunks of frames in memory are.
    pub(super) hints: Hints,
    /// Bounds the memory of what is fetched for pins. It is a part of that of all fetches.
    pub(super) hydration_gate: ByteGate,
}

/// The parts that a reader is made of.
pub(crate) struct ReaderParts {
    pub(crate) link: Arc<StoreClient>,
    pub(crate) keyring: Keyring,
    pub(crate) workers: Workers,
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) disk: Option<Arc<DiskCache>>,
    /// Where decoded frames are kept, in the directory of `disk`.
    pub(crate) decoded_in: Option<PathBuf>,
    pub(crate) pins: Option<Arc<Pins>>,
    /// Whether fetched frames are cached on disk, and neighbours of small files are fetched with
    /// them.
    pub(crate) saves_requests: bool,
    /// Bounds the memory of what is requested.
    pub(crate) fetch_gate: Arc<ByteGate>,
    pub(crate) memory: MemoryBudget,
}

/// A copy of a blob. Readers try the copies of a blob one after another.
#[derive(Debug)]
pub(crate) enum Source {
    Sealed(SealedHere, u16),
    Bucket(Box<Candidate>),
}

impl Reader {
    pub(crate) fn new(parts: ReaderParts) -> Self {
        let cache_bytes = parts.memory.cache_bytes;
        let segment_bytes = cache_bytes / SEGMENT_SHARE;
        let hint_bytes = cache_bytes / HINT_SHARE;
        let frame_bytes = cache_bytes - segment_bytes - hint_bytes;
        let decoded_bytes = cache_bytes / DECODED_SHARE;
        let decoded_in = parts.decoded_in;
        Self {
            link: parts.link,
            keyring: parts.keyring,
            workers: parts.workers,
            catalog: parts.catalog,
            disk: parts.disk,
            decoded: decoded_in
                .and_then(|at| DecodedFrames::new(at, decoded_bytes))
                .map(Arc::new),
            sharing: Mutex::new(()),
            pins: parts.pins,
            saves_requests: parts.saves_requests,
            prefetch_gate: ByteGate::new(parts.memory.prefetch_bytes()),
            writers: RwLock::default(),
            prefetch_memory: ByteGate::new(parts.memory.fetch_bytes / PREFETCH_SHARE),
            hydration_gate: ByteGate::new(parts.memory.fetch_bytes / HYDRATION_SHARE),
            ahead_gate: {
                let all = parts.fetch_gate.capacity();
                ByteGate::new(all - all / NOW_SHARE)
            },
            raised: Notify::new(),
            fetch_gate: parts.fetch_gate,
            decode_gate: ByteGate::new(parts.memory.decoding_bytes()),
            decode_ahead_gate: {
                let all = parts.memory.decoding_bytes();
                ByteGate::new(all - all / NOW_SHARE)
            },
            frames: MemoryCache::new(frame_bytes),
            frame_bytes,
            segments: MemoryCache::new(segment_bytes),
            openers: MemoryCache::new(OPENER_BYTES),
            single_flight: SingleFlight::new(),
            regions: MemoryCache::new(REGIONS),
            pending: RwLock::default(),
            hints: Hints::new(hint_bytes),
        }
    }

    /// Makes the uncommitted blobs of a session readable, and its memory for writes one to borrow
    /// from.
    pub(crate) fn register(&self, blobs: PendingBlobs, memory: &Arc<ByteGate>) {
        let mut pending = self.pending.write();
        pending.retain(PendingBlobs::exists);
        pending.push(blobs);
        let mut writers = self.writers.write();
        writers.retain(|gate| gate.strong_count() > 0);
        writers.push(Arc::downgrade(memory));
    }

    /// Makes the tables of pins and the room that they take known, after pins have changed.
    pub(crate) fn heed_pins(&self) {
        let alone = self.sharing.lock();
        if let Some(pins) = &self.pins {
            let tables = pins
                .list()
                .iter()
                .map(|pin| Arc::clone(pin.table()))
                .collect();
            self.catalog.set_pinned(tables);
            let counters = &self.link.counters;
            counters.pinned_bytes.set(pins.frames().used());
        }
        self.share(&alone);
    }

    /// Divides the limit of the cache on disk: pins come first, then sealed frames. Decoded ones have
    /// what these leave. The memory of what is known of them is taken off the frames in memory.
    pub(crate) fn share_disk(&self) {
        self.share(&self.sharing.lock());
    }

    fn share(&self, _alone: &MutexGuard<'_, ()>) {
        let Some(disk) = &self.disk else {
            return;
        };
        let counters = &self.link.counters;
        disk.reserve(self.reserved_bytes());
        counters.disk_cache_bytes.set(disk.used());
        if let Some(decoded) = &self.decoded {
            decoded.limit_to(self.left_on_disk(disk));
            counters.decoded_bytes.set(decoded.disk_bytes());
            let frame_bytes = self.frame_bytes.saturating_sub(decoded.memory());
            self.frames.limit_to(frame_bytes);
        }
    }

    /// Returns the most bytes of a new file of decoded frames: a quarter of the limit of the cache on
    /// disk, and half of what is left of it. Sealed frames may take the other half.
    pub(super) fn decoded_limit(&self, disk: &DiskCache) -> u64 {
        // What is pinned at present takes more and more of it.
        if self.pins.as_ref().is_some_and(|pins| pins.is_bringing()) {
            return 0;
        }
        let left = self.left_on_disk(disk) / 2;
        left.min(disk.limit() / DECODED_DISK_SHARE)
    }

    /// Returns the memory that frames may take, and that of what is known of decoded ones.
    #[cfg(test)]
    pub(crate) fn frame_memory(&self) -> (u64, u64) {
        let decoded = self.decoded.as_ref();
        (self.frames.limit(), decoded.map_or(0, |it| it.memory()))
    }

    /// Forgets what lies decoded on a full disk. Returns false if that is nothing. It waits for the
    /// disk.
    pub(super) fn give_way(&self) -> bool {
        (self.decoded.as_ref()).is_some_and(|decoded| decoded.give_way())
    }

    fn left_on_disk(&self, disk: &DiskCache) -> u64 {
        let taken = self.reserved_bytes() + disk.used();
        disk.limit().saturating_sub(taken)
    }

    fn reserved_bytes(&self) -> u64 {
        (self.pins.as_ref()).map_or(0, |pins| pins.reserved_bytes())
    }

    /// Returns the largest range of one request, in bytes, unless a single frame is larger.
    pub(crate) fn largest_range(&self) -> u64 {
        RANGE_BYTES.min(self.fetch_gate.capacity() / 4)
    }

    /// Returns true if the frame is in memory.
    pub(crate) fn has_in_memory(&self, key: &FrameKey) -> bool {
        self.frames.has(key)
    }

    /// Returns the opener of the pack that holds this copy.
    pub(super) fn opener(&self, candidate: &Candidate) -> Result<Arc<ObjectOpener>, ContentError> {
        let name = candidate.location.pack;
        if let Some(opener) = self.openers.get(&name) {
            return Ok(opener);
        }
        let class = candidate.location.class;
        let key = name.key(class);
        let opener = self
            .keyring
            .object_opener(class, &key, &candidate.header)
            .map_err(|error| ContentError::unopened(&key, error))?;
        let opener = Arc::new(opener);
        self.openers
            .put(name, ONE_OPENER_BYTES, Arc::clone(&opener));
        Ok(opener)
    }
}

impl Source {
    /// Returns the frame, and the slot of the blob in it.
    pub(crate) fn place(&self) -> (FrameKey, u16) {
        match self {
            Self::Sealed(sealed, slot) => ((sealed.pack, sealed.frame), *slot),
            Self::Bucket(candidate) => {
                let location = &candidate.location;
                ((location.pack, location.frame), location.slot)
            }
        }
    }
}
