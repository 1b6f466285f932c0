//! Frames on their way into packs: what they hold, and where it can be read meanwhile.
//!
//! Owns the record of one frame from the first blob gathered into it until its pack is committed. The ledger says which blob is in which frame.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;

use crate::catalog::Location;
use crate::gate::{BufferPool, Reservation};
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

/// The blobs of one frame, before compression.
#[derive(Debug)]
pub(super) struct RawFrame {
    pub(super) keys: Vec<BlobKey>,
    pub(super) lengths: Vec<u32>,
    /// The contents, one after the other.
    pub(super) contents: Vec<u8>,
    pool: BufferPool,
}

impl RawFrame {
    pub(super) fn new(pool: &BufferPool, room: usize) -> Self {
        Self {
            keys: Vec::new(),
            lengths: Vec::new(),
            contents: pool.take(room.max(FRAME_BYTES)),
            pool: pool.clone(),
        }
    }

    /// Whether `bytes` more go in without making it larger than frames usually are.
    pub(super) fn has_room(&self, bytes: usize) -> bool {
        self.lengths.is_empty()
            || (self.contents.len() + bytes <= FRAME_BYTES && self.lengths.len() < FRAME_BLOBS)
    }

    /// Copies a blob in and returns its slot.
    pub(super) fn push(&mut self, key: BlobKey, bytes: &[u8]) -> u16 {
        let slot = self.lengths.len();
        debug_assert!(slot < FRAME_BLOBS && bytes.len() <= LARGEST_BLOB_BYTES);
        self.keys.push(key);
        self.lengths.push(bytes.len() as u32);
        self.contents.extend_from_slice(bytes);
        slot as u16
    }

    /// All blobs with their names, as a pack takes them.
    pub(super) fn blobs(&self) -> Vec<(Kind, Prefix, &[u8])> {
        let mut rest = self.contents.as_slice();
        let blobs = self.keys.iter().zip(&self.lengths).map(|(key, &length)| {
            let (bytes, after) = rest.split_at(length as usize);
            rest = after;
            (key.kind, key.prefix, bytes)
        });
        blobs.collect()
    }

    /// A copy of one blob.
    pub(super) fn blob(&self, slot: u16) -> Option<Bytes> {
        let slot = usize::from(slot);
        let length = *self.lengths.get(slot)? as usize;
        let start: usize = self.lengths[..slot]
            .iter()
            .map(|&length| length as usize)
            .sum();
        let bytes = self.contents.get(start..start + length)?;
        Some(Bytes::copy_from_slice(bytes))
    }
}

impl Drop for RawFrame {
    fn drop(&mut self) {
        self.pool.put(std::mem::take(&mut self.contents));
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
