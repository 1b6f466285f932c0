//! Frames in flight: the bytes of their blobs, from the first blob until the pack is committed.
//!
//! Owns these bytes, raw and sealed, and where they can be read meanwhile. The pending index knows
//! which blob is in which frame, the pack writer which frame is in which pack. Both work with
//! numbers and lengths.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;

use crate::catalog::{Candidate, Location};
use crate::codec::Effort;
use crate::crypto::{Class, ObjectOpener};
use crate::gate::Reservation;
use crate::id::{Id, Kind, Prefix};
use crate::pack::{
    FinishedPack, FrameEncoder, FrameEntry, FrameRecord, FrameTicket, PackError, PackName,
};
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
    /// True if the pending index lists a blob of the frame whose bytes never came.
    is_lacking: bool,
}

impl RawFrame {
    /// Returns all blobs with their names, as a pack accepts them.
    fn blobs(&self) -> Vec<(Kind, Prefix, &[u8])> {
        let blobs = self.blobs.iter();
        blobs
            .map(|(key, blob)| (key.kind, key.prefix, &**blob))
            .collect()
    }

    /// Returns the blob in a slot.
    fn blob(&self, slot: u16) -> Option<Bytes> {
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
    /// Returns a frame that accepts blobs.
    pub(crate) fn new(number: u64, class: Class) -> Self {
        Self {
            number,
            class,
            state: Mutex::new(FrameState::Gathering(RawFrame::default())),
        }
    }

    /// Returns the pack of the frame, once it has one.
    pub(crate) fn pack(&self) -> Option<PackName> {
        match &*self.state.lock() {
            FrameState::Gathering(_) | FrameState::Raw(_) => None,
            FrameState::Sealed(sealed) => Some(sealed.pack),
            FrameState::Stored(location, _) => Some(location.pack),
        }
    }

    /// Closes the frame: it accepts no more blobs.
    pub(super) fn close(&self) {
        let mut state = self.state.lock();
        if let FrameState::Gathering(raw) = &mut *state {
            *state = FrameState::Raw(Arc::new(std::mem::take(raw)));
        }
    }

    /// Compresses and seals the blobs. From then on they are read from the sealed frame.
    ///
    /// # Errors
    /// [`PackError::Inconsistent`] if the ticket is for less, if the frame lacks a blob, or if it
    /// does not wait for a worker.
    pub(crate) fn seal(
        &self,
        FramePlace { ticket, opener }: FramePlace,
        encoder: &mut FrameEncoder,
        effort: Effort,
    ) -> Result<FrameRecord, PackError> {
        let raw = match &*self.state.lock() {
            FrameState::Raw(raw) => Arc::clone(raw),
            _ => return Err(PackError::Inconsistent("the frame is not to be sealed")),
        };
        if raw.is_lacking {
            return Err(PackError::Inconsistent("the frame lacks a blob"));
        }
        let (record, bytes) = ticket.seal(encoder, &raw.blobs(), effort)?;
        *self.state.lock() = FrameState::Sealed(SealedHere {
            pack: record.pack(),
            frame: record.number(),
            body: Body::Memory(bytes),
            opener,
        });
        Ok(record)
    }

    /// Returns the bytes of the frame that `pack` lists as `entry`. `None` if this frame is another
    /// one, or if its bytes are not in memory.
    pub(crate) fn sealed(&self, pack: PackName, entry: &FrameEntry) -> Option<Bytes> {
        match &*self.state.lock() {
            FrameState::Sealed(SealedHere {
                body: Body::Memory(bytes),
                pack: own,
                frame,
                ..
            }) if (*own, *frame) == (pack, entry.number)
                && bytes.len() as u64 == u64::from(entry.stored_length) =>
            {
                Some(bytes.clone())
            }
            _ => None,
        }
    }

    /// Returns the place where a reader finds the blob in a slot.
    pub(super) fn find(&self, slot: u16) -> Option<Pending> {
        match &*self.state.lock() {
            FrameState::Gathering(raw) => raw.blob(slot).map(Pending::Bytes),
            FrameState::Raw(raw) => raw.blob(slot).map(Pending::Bytes),
            FrameState::Sealed(sealed) => Some(Pending::Sealed(sealed.clone(), slot)),
            FrameState::Stored(location, pack) => Some(Pending::Stored(Box::new(Candidate {
                location: Location { slot, ..*location },
                header: pack.header,
                table: None,
            }))),
        }
    }
}

/// The place of a new blob in a frame that accepts blobs. The caller fills it before it releases
/// the pending index's lock: until then the frame lacks a blob that the pending index lists.
///
/// Dropped without its bytes, it leaves a frame that cannot be sealed, so that no pack lacks a blob
/// that others refer to.
#[must_use = "the blob is not in the frame yet"]
#[derive(Debug)]
pub(crate) struct NewBlob {
    pub(super) frame: Arc<Frame>,
    key: BlobKey,
    pub(super) slot: u16,
    is_filled: bool,
}

impl NewBlob {
    /// Returns the place of a blob in this slot of `frame`.
    pub(super) fn new(frame: Arc<Frame>, key: BlobKey, slot: u16) -> Self {
        Self {
            frame,
            key,
            slot,
            is_filled: false,
        }
    }

    /// Puts the bytes of the blob into the frame.
    pub(crate) fn fill(mut self, bytes: Bytes) {
        if let FrameState::Gathering(raw) = &mut *self.frame.state.lock()
            && raw.blobs.len() == usize::from(self.slot)
        {
            debug_assert!(bytes.len() <= LARGEST_BLOB_BYTES);
            raw.blobs.push((self.key, bytes));
            self.is_filled = true;
        }
    }
}

impl Drop for NewBlob {
    fn drop(&mut self) {
        if !self.is_filled
            && let FrameState::Gathering(raw) = &mut *self.frame.state.lock()
        {
            raw.is_lacking = true;
        }
    }
}

/// The place of a frame in its pack: the permission to make it, and the means to open it.
#[derive(Debug)]
pub(crate) struct FramePlace {
    pub(super) ticket: FrameTicket,
    pub(super) opener: Arc<ObjectOpener>,
}

/// Where a blob of this session can be read.
#[derive(Debug)]
pub(crate) enum Pending {
    /// In memory.
    Bytes(Bytes),
    /// In this slot of a sealed frame that is in memory or in the spool.
    Sealed(SealedHere, u16),
    /// In the bucket.
    Stored(Box<Candidate>),
}

#[derive(Debug)]
pub(crate) enum FrameState {
    /// Accepts more blobs.
    Gathering(RawFrame),
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

/// A closed frame, to be compressed and sealed by a worker.
#[derive(Debug)]
pub(crate) struct FullFrame {
    pub(crate) frame: Arc<Frame>,
    /// The number of its blobs.
    pub(crate) blobs: usize,
    /// The total length of its blobs, in bytes.
    pub(crate) bytes: usize,
    pub(crate) reservation: Reservation,
}
