//! Frames: a few blobs that are compressed and sealed together.
//!
//! Owns the bytes of a frame on both ways: from blobs to the sealed frame, and back to blobs that
//! are verified against their ids. Does not own the place of a frame in its pack, nor the room
//! there (builder).

use super::{FRAME_BLOBS_MAX, FRAME_RAW_MAX, PackError, PackName};
use crate::codec::{CODED_HEAD_LEN, Decoder, Effort, Encoder};
use crate::crypto::{BOX_OVERHEAD, Class, Keyring, NONCE_LEN, ObjectOpener, ObjectSealer, TAG_LEN};
use crate::id::{Id, Kind, Prefix};
use bytes::Bytes;
use std::sync::OnceLock;

/// Returns the decoded length in bytes of a frame that holds blobs of these lengths. `None` if no
/// frame can hold them.
pub fn frame_raw_length(lengths: impl IntoIterator<Item = usize>) -> Option<u32> {
    let (mut count, mut total) = (0usize, 2usize);
    for length in lengths {
        count += 1;
        total = total.checked_add(length)?.checked_add(4)?;
    }
    let fits = count <= FRAME_BLOBS_MAX && total <= FRAME_RAW_MAX as usize;
    fits.then_some(total as u32)
}

/// Encodes and seals frames. Each worker has one and reuses its contexts and buffers for each call.
#[derive(Debug, Default)]
pub struct FrameEncoder {
    encoder: Encoder,
    raw: Vec<u8>,
}

impl FrameEncoder {
    /// Returns an encoder.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the inner encoder, for other data that this worker compresses.
    pub fn encoder(&mut self) -> &mut Encoder {
        &mut self.encoder
    }

    /// Encodes and seals frame `number` of an object from these blobs. The result has no spare
    /// capacity.
    ///
    /// # Errors
    /// [`PackError::Inconsistent`] if the blobs do not fit into a frame.
    pub fn seal(
        &mut self,
        sealer: &ObjectSealer,
        number: u32,
        blobs: &[&[u8]],
        effort: Effort,
    ) -> Result<Bytes, PackError> {
        let length = frame_raw_length(blobs.iter().map(|blob| blob.len()))
            .ok_or(PackError::Inconsistent("too much for one frame"))?;
        self.raw.clear();
        self.raw.reserve(length as usize);
        self.raw
            .extend_from_slice(&(blobs.len() as u16).to_le_bytes());
        for blob in blobs {
            self.raw
                .extend_from_slice(&(blob.len() as u32).to_le_bytes());
        }
        for blob in blobs {
            self.raw.extend_from_slice(blob);
        }
        let coded = self.encoder.code(&self.raw, effort);
        // A frame that waits for its upload has no spare capacity: packs take most of the memory of
        // a busy writer.
        let mut sealed = Vec::with_capacity(NONCE_LEN + coded.length() + TAG_LEN);
        sealed.extend_from_slice(&[0; NONCE_LEN]);
        coded.append_to(&mut sealed);
        sealer.seal_in_place(number, &mut sealed, 0);
        Ok(Bytes::from(sealed))
    }
}

/// Permission to make one frame of a pack.
#[derive(Debug)]
pub struct FrameTicket {
    pub(super) number: u32,
    pub(super) pack: PackName,
    pub(super) sealer: ObjectSealer,
    pub(super) reserved: Reserved,
}

/// The room that a ticket reserves.
#[derive(Copy, Clone, Debug)]
pub(super) struct Reserved {
    pub(super) blobs: usize,
    /// Decoded length, in bytes.
    pub(super) raw_length: u32,
}

impl Reserved {
    /// Returns the maximum stored length, in bytes.
    pub(super) fn stored_length(&self) -> u64 {
        u64::from(self.raw_length) + (CODED_HEAD_LEN + BOX_OVERHEAD) as u64
    }
}

/// What a pack records of a sealed frame: its place, its lengths, and the names of its blobs.
#[derive(Clone, Debug)]
pub struct FrameRecord {
    pub(super) number: u32,
    pub(super) pack: PackName,
    pub(super) reserved: Reserved,
    pub(super) stored_length: u32,
    pub(super) entries: Vec<(Kind, u32, Prefix)>,
}

impl FrameRecord {
    /// Returns the pack that the frame belongs to.
    pub fn pack(&self) -> PackName {
        self.pack
    }

    /// Returns the number of the frame in that pack.
    pub fn number(&self) -> u16 {
        self.number as u16
    }

    /// Returns the length of the frame in the pack, in bytes.
    pub fn stored_length(&self) -> u32 {
        self.stored_length
    }
}

impl FrameTicket {
    /// Returns the number of the frame in its pack.
    pub fn number(&self) -> u16 {
        self.number as u16
    }

    /// Makes the frame from these blobs, each given as kind, prefix and bytes. Returns its record,
    /// and its bytes as they are stored in the pack.
    ///
    /// # Errors
    /// [`PackError::Inconsistent`] if the blobs exceed the room of the ticket.
    pub fn seal(
        &self,
        encoder: &mut FrameEncoder,
        blobs: &[(Kind, Prefix, &[u8])],
        effort: Effort,
    ) -> Result<(FrameRecord, Bytes), PackError> {
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
        let record = FrameRecord {
            number: self.number,
            pack: self.pack,
            reserved: self.reserved,
            stored_length: bytes.len() as u32,
            entries,
        };
        Ok((record, bytes))
    }
}

/// A decoded frame.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Frame {
    /// The contents of all blobs, in slot order.
    contents: Bytes,
    /// The end of each blob in the contents, in bytes.
    ends: Box<[u32]>,
}

impl Frame {
    /// Returns the number of blobs.
    pub fn blob_count(&self) -> usize {
        self.ends.len()
    }

    /// Returns the blob in `slot`, which shares the frame's memory. `None` if there is no such
    /// slot.
    pub fn blob(&self, slot: u16) -> Option<Bytes> {
        let slot = usize::from(slot);
        let end = *self.ends.get(slot)? as usize;
        let start = match slot {
            0 => 0,
            _ => self.ends[slot - 1] as usize,
        };
        Some(self.contents.slice(start..end))
    }

    /// Returns all blobs in slot order.
    pub fn blobs(&self) -> impl Iterator<Item = Bytes> + '_ {
        (0..self.ends.len()).filter_map(|slot| self.blob(slot as u16))
    }

    /// Returns the memory that the frame holds, in bytes.
    pub fn memory(&self) -> usize {
        self.contents.len() + self.ends.len() * 4
    }

    fn parse(raw: Bytes) -> Result<Self, PackError> {
        const DAMAGED: PackError = PackError::Inconsistent("the frame's lengths are wrong");
        let count = match raw.first_chunk::<2>() {
            Some(count) => usize::from(u16::from_le_bytes(*count)),
            None => return Err(DAMAGED),
        };
        let start = 2 + 4 * count;
        let lengths = raw.get(2..start).ok_or(DAMAGED)?;
        let mut end = 0u32;
        let mut ends = Vec::with_capacity(count);
        for length in lengths.chunks_exact(4) {
            let length = u32::from_le_bytes([length[0], length[1], length[2], length[3]]);
            end = end.checked_add(length).ok_or(DAMAGED)?;
            ends.push(end);
        }
        let contents = raw.slice(start..);
        if contents.len() != end as usize {
            return Err(DAMAGED);
        }
        Ok(Self {
            contents,
            ends: ends.into_boxed_slice(),
        })
    }
}

/// Opens sealed frames. Each worker has one and reuses its context and buffer for each call.
#[derive(Debug, Default)]
pub struct FrameDecoder {
    decoder: Decoder,
    room: Vec<u8>,
}

impl FrameDecoder {
    /// Returns a decoder.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the inner decoder, for other data that this worker decompresses.
    pub fn decoder(&mut self) -> &mut Decoder {
        &mut self.decoder
    }

    /// Opens frame `number` of an object. The returned frame shares no memory with `sealed`.
    ///
    /// # Errors
    /// - [`PackError::Open`] if the box does not open.
    /// - [`PackError::Codec`] if its payload does not decode.
    /// - [`PackError::Inconsistent`] if the lengths of the blobs do not add up to the frame.
    pub fn open(
        &mut self,
        opener: &ObjectOpener,
        number: u32,
        sealed: &[u8],
    ) -> Result<Frame, PackError> {
        let payload = opener.open_box(number, sealed, &mut self.room)?;
        if !Decoder::is_raw(payload) || !opener.is_sealed() {
            let raw = self.decoder.decode(payload, FRAME_RAW_MAX)?;
            return Frame::parse(Bytes::from(raw));
        }
        // The payload was decrypted and is uncompressed, so the buffer itself becomes the frame. If
        // the capacity of the buffer exceeds its length by more than 1/8, the frame is copied
        // instead.
        Decoder::raw_length(payload, FRAME_RAW_MAX)?;
        let raw = if self.room.capacity() > self.room.len() + self.room.len() / 8 {
            Bytes::copy_from_slice(&self.room[CODED_HEAD_LEN..])
        } else {
            Bytes::from(std::mem::take(&mut self.room)).slice(CODED_HEAD_LEN..)
        };
        Frame::parse(raw)
    }
}

/// A decoded frame with the ids of its blobs.
#[derive(Debug)]
pub struct NamedFrame {
    frame: Frame,
    class: Class,
    /// The id of each blob, and the kind that it was computed for.
    ids: Box<[OnceLock<(Kind, Id)>]>,
}

impl NamedFrame {
    /// Names the blobs of a frame of an object of this class. All blobs of a data pack are chunks,
    /// so their ids are computed here, on a worker.
    pub fn new(keyring: &Keyring, class: Class, frame: Frame) -> Self {
        let name = |bytes: Bytes| match class {
            Class::DataPack => OnceLock::from((Kind::Chunk, keyring.id(Kind::Chunk, &bytes))),
            _ => OnceLock::new(),
        };
        let ids = frame.blobs().map(name).collect();
        Self { frame, class, ids }
    }

    /// Returns the class of the object that has the frame.
    pub fn class(&self) -> Class {
        self.class
    }

    /// Returns the blob in a slot if it has this kind and id. In metadata packs the reader states
    /// the kind; the id is computed at the first read, and covers the kind.
    pub fn blob(&self, keyring: &Keyring, kind: Kind, id: &Id, slot: u16) -> Option<Bytes> {
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

    /// Returns the chunks of a frame of a data pack: the slot and the id of each.
    pub fn chunks(&self) -> impl Iterator<Item = (u16, Id)> {
        let named = (0..).zip(&self.ids);
        named.filter_map(|(slot, name)| match name.get() {
            Some((Kind::Chunk, id)) => Some((slot, *id)),
            _ => None,
        })
    }

    /// Returns the bytes of all blobs, and where each of them ends.
    pub(crate) fn contents(&self) -> (Bytes, &[u32]) {
        (self.frame.contents.clone(), &self.frame.ends)
    }

    /// Returns the memory that the frame takes, in bytes.
    pub fn memory(&self) -> u64 {
        (self.frame.memory() + self.ids.len() * size_of::<OnceLock<(Kind, Id)>>()) as u64 + 64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lengths_of_a_frame_add_up_to_all_of_it() {
        let frame = b"\x02\0\x03\0\0\0\x05\0\0\0onethree";
        let parse = |raw: &[u8]| Frame::parse(Bytes::copy_from_slice(raw));
        let blobs: Vec<Bytes> = parse(frame).expect("a frame").blobs().collect();
        assert_eq!(blobs, ["one", "three"]);
        for end in 0..frame.len() {
            assert!(parse(&frame[..end]).is_err(), "the first {end} bytes");
        }
        assert!(parse(b"\x02\0\x03\0\0\0\x05\0\0\0onethree+").is_err());
        assert!(parse(b"\x02\0\x03\0\0\0\xff\xff\xff\xffonethree").is_err());
    }
}
