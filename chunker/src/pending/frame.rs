//! Frames in flight: their blobs, and where the blobs can be read meanwhile.
//!
//! Owns the record of one frame from its first blob until its pack is committed. The pending index
//! knows which blob is in which frame.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;

use crate::catalog::Location;
use crate::crypto::{Class, ObjectOpener};
use crate::gate::Reservation;
use crate::id::{Id, Kind, Prefix};
use crate::pack::{FinishedPack, PackName};
use crate::spool::Spooled;

/// Frames are closed at this many bytes: larger frames compress no better (FORMAT.md, "Packs").
pub(crate) const FRAME_BYTES: usize = 128 << 10;

/// The largest blob, in bytes: the maximum content of a frame, less the frame's own tables.
pub(crate) const LARGEST_BLOB_BYTES: usize = (4 << 20) - 64;

/// The maximum number of blobs in a frame. Their number and their slots fit into 16 bits with a
/// wide margin.
pub(crate) const FRAME_BLOBS: usize = 4096;

/// The name of a blob before the index lists its pack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct BlobKey {
    pub(crate) kind: Kind,
    pub(crate) prefix: Prefix,
}

impl BlobKey {
    /// Returns the key of the blob with this id.
    pub(crate) fn of(kind: Kind, id: &Id) -> Self {
        Self {
            kind,
            prefix: id.prefix(),
        }
    }
}

/// The blobs of one frame before compression, in the memory that holds them.
#[derive(Debug, Default)]
pub(crate) struct RawFrame {
    blobs: Vec<(BlobKey, Bytes)>,
    bytes: usize,
}

impl RawFrame {
    /// Returns true if a blob of `bytes` bytes fits without making the frame larger than
    /// [`FRAME_BYTES`]. An empty frame accepts any blob.
    pub(crate) fn has_room(&self, bytes: usize) -> bool {
        self.blobs.is_empty()
            || (self.bytes + bytes <= FRAME_BYTES && self.blobs.len() < FRAME_BLOBS)
    }

    /// Adds a blob and returns its slot.
    pub(crate) fn push(&mut self, key: BlobKey, blob: Bytes) -> u16 {
        let slot = self.blobs.len();
        debug_assert!(slot < FRAME_BLOBS && blob.len() <= LARGEST_BLOB_BYTES);
        self.bytes += blob.len();
        self.blobs.push((key, blob));
        slot as u16
    }

    /// Returns the total length of all blobs, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the number of blobs.
    pub(crate) fn count(&self) -> usize {
        self.blobs.len()
    }

    /// Returns all blobs with their names, as a pack accepts them.
    pub(crate) fn blobs(&self) -> Vec<(Kind, Prefix, &[u8])> {
        let blobs = self.blobs.iter();
        blobs
            .map(|(key, blob)| (key.kind, key.prefix, &**blob))
            .collect()
    }

    /// Returns the blob in a slot.
    pub(crate) fn blob(&self, slot: u16) -> Option<Bytes> {
        let (_, blob) = self.blobs.get(usize::from(slot))?;
        Some(blob.clone())
    }
}

/// One frame of the session, in any state.
#[derive(Debug)]
pub(crate) struct Frame {
    /// Grows over all frames of the session. A cut of both classes at number x separates them: no
    /// frame below x refers to a blob in a frame from x on.
    pub(crate) number: u64,
    pub(crate) class: Class,
    pub(crate) state: Mutex<FrameState>,
}

impl Frame {
    /// Returns the pack of the frame, once it has one.
    pub(crate) fn pack(&self) -> Option<PackName> {
        match &*self.state.lock() {
            FrameState::Gathering | FrameState::Raw(_) => None,
            FrameState::Sealed(sealed) => Some(sealed.pack),
            FrameState::Stored(location, _) => Some(location.pack),
        }
    }
}

#[derive(Debug)]
pub(crate) enum FrameState {
    /// Accepts more blobs. Its pack writer holds the contents.
    Gathering,
    /// Waits for a worker, or is being processed by one.
    Raw(Arc<RawFrame>),
    /// Is in a pack that is not acknowledged yet.
    Sealed(SealedHere),
    /// Is in the bucket. The slot of the location is 0 and has no meaning.
    Stored(Location, Arc<FinishedPack>),
}

/// A sealed frame in memory or in the spool, and its opener.
#[derive(Debug, Clone)]
pub(crate) struct SealedHere {
    pub(crate) pack: PackName,
    pub(crate) frame: u16,
    pub(crate) body: Body,
    pub(crate) opener: Arc<ObjectOpener>,
}

/// The place of a sealed frame that is not read from the bucket.
#[derive(Debug, Clone)]
pub(crate) enum Body {
    /// In memory.
    Memory(Bytes),
    /// In these bytes of an object in the spool.
    Spool(Arc<Spooled>, Range<u64>),
}

/// A frame to be compressed and sealed by a worker.
#[derive(Debug)]
pub(crate) struct FullFrame {
    pub(crate) frame: Arc<Frame>,
    pub(crate) raw: Arc<RawFrame>,
    pub(crate) reservation: Reservation,
}
