//! Construction of a pack: which frames it has, and what lies around them.
//!
//! Owns the tickets of a pack, its room, its footer and its trailer. Works with the numbers and
//! lengths of frames. Their bytes stay with those who sealed them, who also send them.

use super::frame::{FrameRecord, FrameTicket, Reserved};
use super::{
    FOOTER_RAW_MAX, FRAME_BLOBS_MAX, FRAME_RAW_MAX, Footer, FooterBuilder, FrameEncoder,
    PACK_BLOBS_MAX, PACK_BYTES_MAX, PACK_FRAMES_MAX, PackError, PackName, frame_raw_length,
};
use crate::codec::Effort;
use crate::crypto::{Class, Features, HEADER_LEN, Keyring, ObjectSealer};
use crate::id::{Kind, Prefix};
use bytes::Bytes;

/// A pack under construction.
///
/// Several workers can make its frames concurrently. Each takes a [`FrameTicket`] and seals its
/// frame with it. The builder then places the record of the frame. Frames lie in the pack in the
/// order of their tickets, whichever is finished first.
#[derive(Debug)]
pub struct PackBuilder {
    name: PackName,
    class: Class,
    sealer: ObjectSealer,
    frames: Vec<Option<FrameRecord>>,
    /// Tickets whose frames are not placed yet.
    pending: usize,
    /// Placed blobs, and the most that the open tickets may add.
    blobs: usize,
    /// Length of the header and the placed frames, in bytes.
    bytes: u64,
    /// The most that the open tickets may add, in bytes.
    bytes_reserved: u64,
}

/// The record of a complete pack. Its bytes are the header, the frames in the order of their
/// numbers, and the end that [`PackBuilder::finish`] returns.
#[derive(Clone, Debug)]
pub struct FinishedPack {
    /// The name of the pack.
    pub name: PackName,
    /// Data or metadata pack.
    pub class: Class,
    /// The first bytes of the pack. The index keeps them, so that any frame can be opened without
    /// another read.
    pub header: [u8; HEADER_LEN],
    /// The frames and blobs of the pack.
    pub footer: Footer,
    /// The length of the pack in the bucket, in bytes.
    pub length: u64,
}

impl PackBuilder {
    /// Begins a pack. `class` is data or metadata pack, and `salt` must be fresh randomness.
    pub fn new(
        keyring: &Keyring,
        class: Class,
        name: PackName,
        features: Features,
        salt: [u8; 32],
    ) -> Self {
        Self {
            name,
            class,
            sealer: keyring.object_sealer(class, &name.key(class), features, salt),
            frames: Vec::new(),
            pending: 0,
            blobs: 0,
            bytes: HEADER_LEN as u64,
            bytes_reserved: 0,
        }
    }

    /// Returns the name of the pack.
    pub fn name(&self) -> PackName {
        self.name
    }

    /// Returns the first bytes of the pack, which are needed to open its frames.
    pub fn header(&self) -> &[u8; HEADER_LEN] {
        self.sealer.header()
    }

    /// Returns the length in bytes of header and placed frames: without the footer, and without
    /// frames that are not placed yet.
    pub fn length(&self) -> u64 {
        self.bytes
    }

    /// Returns true if no ticket was given yet.
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Returns the number of open tickets. [`PackBuilder::finish`] fails until all their frames are
    /// placed.
    pub fn pending(&self) -> usize {
        self.pending
    }

    /// Returns a ticket for the next frame, with room for `blobs` blobs of `blob_bytes` bytes in
    /// total.
    ///
    /// `None` if the pack might lack room for it, or if no frame can hold it. Callers finish packs
    /// long before they are full, at the length that uploads well.
    pub fn ticket(&mut self, blobs: usize, blob_bytes: usize) -> Option<FrameTicket> {
        let raw_length = blob_bytes.checked_add(2 + 4 * blobs)?;
        if blobs > FRAME_BLOBS_MAX || raw_length > FRAME_RAW_MAX as usize {
            return None;
        }
        let reserved = Reserved {
            blobs,
            raw_length: raw_length as u32,
        };
        let bytes = self.bytes + self.bytes_reserved + reserved.stored_length();
        if self.frames.len() >= PACK_FRAMES_MAX
            || self.blobs + blobs > PACK_BLOBS_MAX
            || bytes + u64::from(FOOTER_RAW_MAX) + 1024 > PACK_BYTES_MAX
        {
            return None;
        }
        let number = self.frames.len() as u32;
        self.frames.push(None);
        self.pending += 1;
        self.blobs += blobs;
        self.bytes_reserved += reserved.stored_length();
        Some(FrameTicket {
            number,
            pack: self.name,
            sealer: self.sealer.clone(),
            reserved,
        })
    }

    /// Places an empty frame for a ticket whose frame is not made, and returns its bytes. The number
    /// of the frame stays in use.
    ///
    /// # Errors
    /// [`PackError::Inconsistent`] if the ticket belongs to another pack.
    pub fn release(
        &mut self,
        ticket: &FrameTicket,
        encoder: &mut FrameEncoder,
    ) -> Result<Bytes, PackError> {
        let (record, bytes) = ticket.seal(encoder, &[], Effort::None)?;
        self.place(record)?;
        Ok(bytes)
    }

    /// Places a frame at the position of its ticket.
    ///
    /// # Errors
    /// [`PackError::Inconsistent`] if the frame belongs to another pack or was placed before.
    pub fn place(&mut self, frame: FrameRecord) -> Result<(), PackError> {
        let slot = self
            .frames
            .get_mut(frame.number as usize)
            .filter(|slot| slot.is_none() && frame.pack == self.name)
            .ok_or(PackError::Inconsistent("a frame that does not belong here"))?;
        self.pending -= 1;
        self.blobs -= frame.reserved.blobs - frame.entries.len();
        self.bytes_reserved -= frame.reserved.stored_length();
        self.bytes += u64::from(frame.stored_length);
        *slot = Some(frame);
        Ok(())
    }

    /// Makes a frame and places it. Returns its bytes. `None` if the pack has no room for it.
    ///
    /// # Errors
    /// [`PackError::Inconsistent`] if the blobs do not fit into a frame.
    pub fn push(
        &mut self,
        encoder: &mut FrameEncoder,
        blobs: &[(Kind, Prefix, &[u8])],
        effort: Effort,
    ) -> Result<Option<Bytes>, PackError> {
        let bytes = blobs.iter().map(|(_, _, bytes)| bytes.len());
        if frame_raw_length(bytes.clone()).is_none() {
            return Err(PackError::Inconsistent("too much for one frame"));
        }
        let Some(ticket) = self.ticket(blobs.len(), bytes.sum()) else {
            return Ok(None);
        };
        let (record, bytes) = ticket.seal(encoder, blobs, effort)?;
        self.place(record)?;
        Ok(Some(bytes))
    }

    /// Completes the pack. Returns its record and its end: footer and trailer.
    ///
    /// # Errors
    /// [`PackError::Inconsistent`] if a frame is not placed yet, or if the frames exceed the bounds
    /// of packs.
    pub fn finish(
        self,
        encoder: &mut FrameEncoder,
        effort: Effort,
    ) -> Result<(FinishedPack, Bytes), PackError> {
        let mut footer = FooterBuilder::new();
        for frame in self.frames {
            let frame = frame.ok_or(PackError::Inconsistent("a frame has not been placed"))?;
            footer.push(frame.stored_length, frame.entries);
        }
        let footer = footer.finish()?;
        let end = Bytes::from(footer.seal(&self.sealer, encoder.encoder(), effort));
        let pack = FinishedPack {
            name: self.name,
            class: self.class,
            header: *self.sealer.header(),
            footer,
            length: self.bytes + end.len() as u64,
        };
        Ok((pack, end))
    }
}
