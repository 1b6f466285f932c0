//! Building a pack in memory.

use super::{
    FOOTER_RAW_MAX, FRAME_BLOBS_MAX, FRAME_RAW_MAX, Footer, FooterBuilder, FrameEncoder,
    PACK_BLOBS_MAX, PACK_BYTES_MAX, PACK_FRAMES_MAX, PackError, PackName, frame_raw_length,
};
use crate::codec::{CODED_HEAD_LEN, Effort};
use crate::id::{Kind, Prefix};
use crate::seal::{BOX_OVERHEAD, Class, Features, HEADER_LEN, Keyring, ObjectSealer};
use bytes::Bytes;

/// A pack that is being filled.
///
/// Frames can be made by several workers at once: each takes a [`FrameTicket`], seals its frame with it, and the frame is
/// placed when it is done. Frames lie in the pack in the order of the tickets, whoever is done first.
#[derive(Debug)]
pub struct PackBuilder {
    name: PackName,
    class: Class,
    sealer: ObjectSealer,
    frames: Vec<Option<SealedFrame>>,
    /// Frames whose tickets are out.
    pending: usize,
    /// Blobs that are there or may come with the tickets that are out.
    blobs: usize,
    /// Length of what is there, in bytes.
    bytes: u64,
    /// The most that the tickets which are out may add, in bytes.
    bytes_reserved: u64,
}

/// The right to make one frame of a pack.
#[derive(Debug)]
pub struct FrameTicket {
    number: u32,
    pack: PackName,
    sealer: ObjectSealer,
    reserved: Reserved,
}

/// What a ticket has room for.
#[derive(Copy, Clone, Debug)]
struct Reserved {
    blobs: usize,
    /// Decoded length, in bytes.
    raw_length: u32,
}

impl Reserved {
    /// The longest stored form, in bytes.
    fn stored_length(&self) -> u64 {
        u64::from(self.raw_length) + (CODED_HEAD_LEN + BOX_OVERHEAD) as u64
    }
}

impl FrameTicket {
    /// The number of the frame in its pack.
    pub fn number(&self) -> u16 {
        self.number as u16
    }

    /// Makes the frame from these blobs. Errors if they are more than the ticket is for.
    pub fn seal(
        &self,
        encoder: &mut FrameEncoder,
        blobs: &[(Kind, Prefix, &[u8])],
        effort: Effort,
    ) -> Result<SealedFrame, PackError> {
        let raw_length = frame_raw_length(blobs.iter().map(|(_, _, bytes)| bytes.len()));
        if blobs.len() > self.reserved.blobs
            || raw_length.is_none_or(|length| length > self.reserved.raw_length)
        {
            return Err(PackError::Inconsistent("more than the ticket is for"));
        }
        let contents: Vec<&[u8]> = blobs.iter().map(|(_, _, bytes)| *bytes).collect();
        let bytes = encoder.seal(&self.sealer, self.number, &contents, effort)?;
        let entries = blobs
            .iter()
            .map(|(kind, prefix, bytes)| (*kind, bytes.len() as u32, *prefix))
            .collect();
        Ok(SealedFrame {
            number: self.number,
            pack: self.pack,
            reserved: self.reserved,
            bytes,
            entries,
        })
    }
}

/// A frame that is ready to be placed.
#[derive(Clone, Debug)]
pub struct SealedFrame {
    number: u32,
    pack: PackName,
    reserved: Reserved,
    bytes: Bytes,
    entries: Vec<(Kind, u32, Prefix)>,
}

impl SealedFrame {
    /// The pack that it belongs to.
    pub fn pack(&self) -> PackName {
        self.pack
    }

    /// Its number in that pack.
    pub fn number(&self) -> u16 {
        self.number as u16
    }

    /// Its bytes, as they lie in the pack.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Its length in the pack, in bytes.
    pub fn stored_length(&self) -> usize {
        self.bytes.len()
    }
}

/// A pack that is ready to be uploaded.
#[derive(Clone, Debug)]
pub struct FinishedPack {
    /// Its name.
    pub name: PackName,
    /// Data or metadata.
    pub class: Class,
    /// Its first bytes, which the index keeps so that any frame can be opened without reading them again.
    pub header: [u8; HEADER_LEN],
    /// What it holds.
    pub footer: Footer,
    /// Its length in the bucket, in bytes.
    pub length: u64,
    /// The whole object, in order.
    pub parts: Vec<Bytes>,
}

impl PackBuilder {
    /// Begins a pack. `salt` is fresh randomness; `class` is data or metadata.
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

    /// The name of the pack.
    pub fn name(&self) -> PackName {
        self.name
    }

    /// Its first bytes, which open its frames.
    pub fn header(&self) -> &[u8; HEADER_LEN] {
        self.sealer.header()
    }

    /// How many bytes of the pack are there, without the footer and without frames whose tickets are out.
    pub fn length(&self) -> u64 {
        self.bytes
    }

    /// Whether nothing has been placed and no ticket is out.
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// How many tickets are out: [`PackBuilder::finish`] fails until all have come back.
    pub fn pending(&self) -> usize {
        self.pending
    }

    /// The right to make the next frame, of so many blobs with so many bytes together; `None` if the pack might not have
    /// room for it, or no frame can hold it. Callers finish packs long before they are full, when they have the length
    /// that uploads well.
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

    /// Takes back a ticket whose frame is not made. Its number stays an empty frame.
    ///
    /// Errors if the ticket is of another pack.
    pub fn release(
        &mut self,
        ticket: &FrameTicket,
        encoder: &mut FrameEncoder,
    ) -> Result<(), PackError> {
        let frame = ticket.seal(encoder, &[], Effort::None)?;
        self.place(frame)
    }

    /// Puts a frame where it belongs. Errors if it is of another pack, or has been placed before.
    pub fn place(&mut self, frame: SealedFrame) -> Result<(), PackError> {
        let slot = self
            .frames
            .get_mut(frame.number as usize)
            .filter(|slot| slot.is_none() && frame.pack == self.name)
            .ok_or(PackError::Inconsistent("a frame that does not belong here"))?;
        self.pending -= 1;
        self.blobs -= frame.reserved.blobs - frame.entries.len();
        self.bytes_reserved -= frame.reserved.stored_length();
        self.bytes += frame.bytes.len() as u64;
        *slot = Some(frame);
        Ok(())
    }

    /// Makes a frame and places it; gives its number. `None` if the pack has no room.
    pub fn push(
        &mut self,
        encoder: &mut FrameEncoder,
        blobs: &[(Kind, Prefix, &[u8])],
        effort: Effort,
    ) -> Result<Option<u16>, PackError> {
        let bytes = blobs.iter().map(|(_, _, bytes)| bytes.len());
        if frame_raw_length(bytes.clone()).is_none() {
            return Err(PackError::Inconsistent("too much for one frame"));
        }
        let Some(ticket) = self.ticket(blobs.len(), bytes.sum()) else {
            return Ok(None);
        };
        let frame = ticket.seal(encoder, blobs, effort)?;
        self.place(frame)?;
        Ok(Some(ticket.number()))
    }

    /// Ends the pack. Errors if a ticket is still out.
    pub fn finish(
        self,
        encoder: &mut FrameEncoder,
        effort: Effort,
    ) -> Result<FinishedPack, PackError> {
        let header = *self.sealer.header();
        let mut footer = FooterBuilder::new();
        let mut parts = Vec::with_capacity(self.frames.len() + 2);
        parts.push(Bytes::copy_from_slice(&header));
        for frame in self.frames {
            let frame = frame.ok_or(PackError::Inconsistent("a frame has not been placed"))?;
            footer.push(frame.bytes.len() as u32, frame.entries);
            parts.push(frame.bytes);
        }
        let footer = footer.finish()?;
        let end = footer.seal(&self.sealer, encoder.encoder(), effort);
        parts.push(Bytes::from(end));
        Ok(FinishedPack {
            name: self.name,
            class: self.class,
            header,
            footer,
            length: parts.iter().map(|part| part.len() as u64).sum(),
            parts,
        })
    }
}
