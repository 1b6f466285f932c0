//! From frames to packs, for one class: which pack a frame joins, and when a pack is closed.
//!
//! Owns the frame that gathers blobs, the open packs, and the numbers of the frames that are not in
//! a pack or not acknowledged yet. A *cut* at frame number x separates the data accepted before it
//! from later data for good. No pack holds frames of both sides, and packs of the older side are
//! closed as soon as their last frame is placed. So a seal waits for the data that was stored
//! before it and for nothing else. Does no I/O, and is always used under the pending index's lock.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::frame::{BlobKey, FRAME_BLOBS, FRAME_BYTES, Frame, FramePlace, FullFrame, NewBlob};
use crate::crypto::{Class, ObjectOpener};
use crate::error::ContentError;
use crate::gate::Reservation;
use crate::pack::{FrameRecord, PackBuilder};

/// A pack that is not sent yet.
#[derive(Debug)]
pub(crate) struct OpenPack {
    pub(crate) builder: PackBuilder,
    pub(crate) class: Class,
    /// Frames by their number in the pack.
    pub(crate) frames: Vec<Arc<Frame>>,
    opener: Arc<ObjectOpener>,
    /// The part of the write budget that its frames hold until it is acknowledged.
    reservation: Option<Reservation>,
    /// Bytes of frames that have a ticket and are not sealed yet, before compression.
    raw_bytes: u64,
    /// Numbers of the frames that may join, `low` inclusive and `high` exclusive: from the cut
    /// before to the cut after.
    low: u64,
    high: u64,
}

/// The parts of a new pack.
#[derive(Debug)]
pub(crate) struct NewPack {
    pub(crate) builder: PackBuilder,
    pub(crate) opener: Arc<ObjectOpener>,
}

/// All frames and packs of one class that are in flight.
#[derive(Debug)]
pub(crate) struct PackWriter {
    class: Class,
    target_bytes: u64,
    gathering: Option<FullFrame>,
    open: Vec<OpenPack>,
    /// Cuts that some frame has not passed yet, ascending.
    cuts: BTreeSet<u64>,
    unplaced: BTreeSet<u64>,
    unacknowledged: BTreeSet<u64>,
    /// Those of the unacknowledged frames that are only in memory.
    unkept: BTreeSet<u64>,
}

impl PackWriter {
    pub(crate) fn new(class: Class, target_bytes: u64) -> Self {
        Self {
            class,
            target_bytes,
            gathering: None,
            open: Vec::new(),
            cuts: BTreeSet::new(),
            unplaced: BTreeSet::new(),
            unacknowledged: BTreeSet::new(),
            unkept: BTreeSet::new(),
        }
    }

    /// Gives a blob of `length` bytes a place in the frame that gathers blobs. Returns the place,
    /// and the previous frame if it was full. `number` draws the number of a new frame.
    pub(super) fn gather(
        &mut self,
        key: BlobKey,
        length: usize,
        reservation: Reservation,
        number: impl FnOnce() -> u64,
    ) -> (NewBlob, Option<FullFrame>) {
        let full = match &self.gathering {
            Some(open) if !open.has_room(length) => self.take_gathering(),
            _ => None,
        };
        let open = match &mut self.gathering {
            Some(open) => {
                open.reservation.merge(reservation);
                open
            }
            empty => {
                let frame = Arc::new(Frame::new(number(), self.class));
                self.unplaced.insert(frame.number);
                self.unacknowledged.insert(frame.number);
                self.unkept.insert(frame.number);
                empty.insert(FullFrame {
                    frame,
                    blobs: 0,
                    bytes: 0,
                    reservation,
                })
            }
        };
        debug_assert!(open.blobs < FRAME_BLOBS);
        let new = NewBlob::new(Arc::clone(&open.frame), key, open.blobs as u16);
        open.blobs += 1;
        open.bytes += length;
        (new, full)
    }

    /// Closes the frame that gathers blobs.
    pub(crate) fn take_gathering(&mut self) -> Option<FullFrame> {
        let full = self.gathering.take()?;
        full.frame.close();
        Some(full)
    }

    /// Gives a frame a place in a pack that accepts its number. `new_pack` begins a pack if there
    /// is none.
    ///
    /// # Errors
    /// Those of `new_pack`, and [`ContentError::Internal`] if the new pack has no room.
    pub(crate) fn ticket(
        &mut self,
        full: &FullFrame,
        new_pack: impl FnOnce() -> Result<NewPack, ContentError>,
    ) -> Result<FramePlace, ContentError> {
        let number = full.frame.number;
        let target = self.target_bytes;
        let room = |pack: &mut OpenPack| {
            let is_asked = pack.low <= number && number < pack.high;
            if !is_asked || pack.builder.length() + pack.raw_bytes >= target {
                return None;
            }
            pack.builder.ticket(full.blobs, full.bytes)
        };
        let found = self
            .open
            .iter_mut()
            .enumerate()
            .find_map(|(position, pack)| Some((position, room(pack)?)));
        let (position, ticket) = match found {
            Some(found) => found,
            None => {
                let mut pack = self.begin(new_pack()?, number);
                let ticket = pack
                    .builder
                    .ticket(full.blobs, full.bytes)
                    .ok_or(ContentError::Internal("an empty pack has no room"))?;
                self.open.push(pack);
                (self.open.len() - 1, ticket)
            }
        };
        let pack = &mut self.open[position];
        pack.frames.push(Arc::clone(&full.frame));
        pack.raw_bytes += full.bytes as u64;
        Ok(FramePlace {
            ticket,
            opener: Arc::clone(&pack.opener),
        })
    }

    fn begin(&self, new: NewPack, number: u64) -> OpenPack {
        let before = self.cuts.range(..=number).next_back().copied();
        let after = self.cuts.range(number + 1..).next().copied();
        OpenPack {
            builder: new.builder,
            class: self.class,
            frames: Vec::new(),
            opener: new.opener,
            reservation: None,
            raw_bytes: 0,
            low: before.unwrap_or(0),
            high: after.unwrap_or(u64::MAX),
        }
    }

    /// Places a sealed frame in the pack of its ticket. Returns the packs that are complete now.
    ///
    /// # Errors
    /// [`ContentError::Internal`] if the ticket is not from this pack writer.
    pub(crate) fn deliver(
        &mut self,
        full: FullFrame,
        sealed: FrameRecord,
    ) -> Result<Vec<OpenPack>, ContentError> {
        const STRAY: ContentError = ContentError::Internal("a frame without a pack");
        let pack = self
            .open
            .iter_mut()
            .find(|pack| pack.builder.name() == sealed.pack())
            .ok_or(STRAY)?;
        pack.hold(full.reservation, u64::from(sealed.stored_length()));
        pack.raw_bytes -= full.bytes as u64;
        pack.builder.place(sealed).map_err(|_| STRAY)?;
        self.unplaced.remove(&full.frame.number);
        Ok(self.take_complete())
    }

    /// Separates frames below `number` from all later ones. Returns the packs that are complete
    /// because of it. The frame that gathers blobs must have been closed before.
    pub(crate) fn cut(&mut self, number: u64) -> Vec<OpenPack> {
        debug_assert!(self.gathering.is_none());
        self.cuts.insert(number);
        for pack in &mut self.open {
            pack.high = pack.high.min(number);
        }
        self.take_complete()
    }

    /// Marks frames as acknowledged.
    pub(super) fn acknowledge(&mut self, frames: &[Arc<Frame>]) {
        for frame in frames {
            self.unacknowledged.remove(&frame.number);
        }
        self.keep(frames);
    }

    /// Marks frames as being in the spool.
    pub(super) fn keep(&mut self, frames: &[Arc<Frame>]) {
        for frame in frames {
            self.unkept.remove(&frame.number);
        }
    }

    /// Returns true if every frame below `number` is in the bucket or in the spool.
    pub(crate) fn is_kept(&self, number: u64) -> bool {
        self.unkept.first().is_none_or(|&first| first >= number)
    }

    /// Returns true if every frame below `number` is acknowledged.
    pub(crate) fn is_acknowledged(&self, number: u64) -> bool {
        self.unacknowledged
            .first()
            .is_none_or(|&first| first >= number)
    }

    /// Returns the lowest sequence number among the open packs.
    pub(super) fn lowest_open(&self) -> Option<u32> {
        self.open
            .iter()
            .map(|pack| pack.builder.name().sequence)
            .min()
    }

    /// Returns true if frames will leave memory without further calls. Otherwise only a cut makes
    /// room.
    pub(crate) fn is_moving(&self) -> bool {
        let resting = usize::from(self.gathering.is_some())
            + self
                .open
                .iter()
                .map(|pack| pack.frames.len() - pack.builder.pending())
                .sum::<usize>();
        self.unkept.len() > resting
    }

    fn take_complete(&mut self) -> Vec<OpenPack> {
        let first = self.unplaced.first().copied().unwrap_or(u64::MAX);
        let target = self.target_bytes;
        let complete = |pack: &mut OpenPack| {
            let is_cut = pack.high != u64::MAX && pack.high <= first;
            (is_cut || pack.builder.length() >= target) && pack.builder.pending() == 0
        };
        let packs = self.open.extract_if(.., complete).collect();
        // A cut that every frame has passed and that bounds no pack has no effect any more.
        let passed = self.cuts.range(..=first).next_back().copied();
        if let Some(passed) = passed {
            self.cuts.retain(|&cut| cut >= passed);
        }
        packs
    }
}

impl FullFrame {
    /// Returns true if a blob of `length` bytes fits without making the frame larger than
    /// [`FRAME_BYTES`]. An empty frame accepts any blob.
    fn has_room(&self, length: usize) -> bool {
        self.blobs == 0 || (self.bytes + length <= FRAME_BYTES && self.blobs < FRAME_BLOBS)
    }
}

impl OpenPack {
    /// Keeps `bytes` of a reservation, and gives back the rest.
    fn hold(&mut self, mut reservation: Reservation, bytes: u64) {
        reservation.shrink_to(bytes);
        match &mut self.reservation {
            Some(held) => held.merge(reservation),
            none => *none = Some(reservation),
        }
    }

    /// Splits the pack into the part to be sent and the part that is kept until it is acknowledged.
    pub(crate) fn into_parts(self) -> (PackBuilder, SentPack) {
        let sent = SentPack {
            class: self.class,
            frames: self.frames,
            reservation: self.reservation,
        };
        (self.builder, sent)
    }
}

/// A pack that is being uploaded.
#[derive(Debug)]
pub(crate) struct SentPack {
    pub(crate) class: Class,
    pub(crate) frames: Vec<Arc<Frame>>,
    /// Given back when the pack is in the spool, or when this value is dropped after the
    /// acknowledgement.
    reservation: Option<Reservation>,
}

impl SentPack {
    /// Gives back the reservation of a pack whose bytes are no longer in memory.
    pub(crate) fn release(&mut self) {
        self.reservation = None;
    }

    /// Returns the lowest number of its frames.
    pub(crate) fn first_frame(&self) -> u64 {
        let numbers = self.frames.iter().map(|frame| frame.number);
        numbers.min().unwrap_or(u64::MAX)
    }

    /// Returns one more than the highest number of its frames.
    pub(crate) fn end(&self) -> u64 {
        let numbers = self.frames.iter().map(|frame| frame.number + 1);
        numbers.max().unwrap_or(0)
    }
}
