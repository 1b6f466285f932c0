//! Frames on their way into packs: what they hold, and where it can be read meanwhile.
//!
//! Owns the record of one frame from the first blob gathered into it until its pack is committed. The ledger says which blob is in which frame.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;

use crate::catalog::Location;
use crate::gate::Reservation;
use crate::id::{Id, Kind, Prefix};
use crate::pack::{FinishedPack, PackName};
use crate::seal::{Class, ObjectOpener};
use crate::spool::Spooled;

/// Frames are closed when they hold this many bytes: more compress no better (FORMAT.md, "Packs").
pub(super) const FRAME_BYTES: usize = 128 << 10;

/// The largest blob: the most that a frame may hold, less its own tables.
pub(super) const LARGEST_BLOB_BYTES: usize = (4 << 20) - 64;

/// The most blobs in a frame, so that their number and their slots fit 16 bits, with room to spare.
pub(super) const FRAME_BLOBS: usize = 4096;

/// What a blob is known by before its pack is in the index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct BlobKey {
    pub(super) kind: Kind,
    pub(super) prefix: Prefix,
}

impl BlobKey {
    /// What the blob with this id is known by.
    pub(super) fn of(kind: Kind, id: &Id) -> Self {
        Self {
            kind,
            prefix: id.prefix(),
        }
    }
}

/// The blobs of one frame, before compression, in whatever memory they came in.
#[derive(Debug, Default)]
pub(super) struct RawFrame {
    blobs: Vec<(BlobKey, Bytes)>,
    bytes: usize,
}

impl RawFrame {
    /// Whether `bytes` more go in without making it larger than frames usually are.
    pub(super) fn has_room(&self, bytes: usize) -> bool {
        self.blobs.is_empty()
            || (self.bytes + bytes <= FRAME_BYTES && self.blobs.len() < FRAME_BLOBS)
    }

    /// Takes a blob and returns its slot.
    pub(super) fn push(&mut self, key: BlobKey, blob: Bytes) -> u16 {
        let slot = self.blobs.len();
        debug_assert!(slot < FRAME_BLOBS && blob.len() <= LARGEST_BLOB_BYTES);
        self.bytes += blob.len();
        self.blobs.push((key, blob));
        slot as u16
    }

    /// Bytes of all blobs together.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// How many blobs there are.
    pub(super) fn count(&self) -> usize {
        self.blobs.len()
    }

    /// All blobs with their names, as a pack takes them.
    pub(super) fn blobs(&self) -> Vec<(Kind, Prefix, &[u8])> {
        let blobs = self.blobs.iter();
        blobs
            .map(|(key, blob)| (key.kind, key.prefix, &**blob))
            .collect()
    }

    /// One blob.
    pub(super) fn blob(&self, slot: u16) -> Option<Bytes> {
        let (_, blob) = self.blobs.get(usize::from(slot))?;
        Some(blob.clone())
    }
}

/// One frame, wherever it is.
#[derive(Debug)]
pub(super) struct Frame {
    /// Grows over all frames of the session: a frame never refers to what lies in a later one.
    pub(super) number: u64,
    pub(super) class: Class,
    pub(super) state: Mutex<FrameState>,
}

impl Frame {
    /// The pack that it is in, once that is known.
    pub(super) fn pack(&self) -> Option<PackName> {
        match &*self.state.lock() {
            FrameState::Gathering | FrameState::Raw(_) => None,
            FrameState::Sealed(sealed) => Some(sealed.pack),
            FrameState::Stored(location, _) => Some(location.pack),
        }
    }
}

#[derive(Debug)]
pub(super) enum FrameState {
    /// Its contents are in the ledger still.
    Gathering,
    /// Waiting for a worker, or at one.
    Raw(Arc<RawFrame>),
    /// In a pack that is not acknowledged.
    Sealed(SealedHere),
    /// In the bucket. The slot of the location is 0 and means nothing.
    Stored(Location, Arc<FinishedPack>),
}

/// A sealed frame that is here, and what opens it.
#[derive(Debug, Clone)]
pub(crate) struct SealedHere {
    pub(crate) pack: PackName,
    pub(crate) frame: u16,
    pub(crate) body: Body,
    pub(crate) opener: Arc<ObjectOpener>,
}

/// Where a frame that is here lies.
#[derive(Debug, Clone)]
pub(crate) enum Body {
    /// In memory.
    Memory(Bytes),
    /// In these bytes of an object in the spool.
    Spool(Arc<Spooled>, Range<u64>),
}

/// What finds its way to a worker.
#[derive(Debug)]
pub(super) struct FullFrame {
    pub(super) frame: Arc<Frame>,
    pub(super) raw: Arc<RawFrame>,
    pub(super) reservation: Reservation,
}
