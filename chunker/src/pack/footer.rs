//! Footers: what a pack holds, in columns.
//!
//! Owns the decoded form. It is kept as the bytes that were read, since index objects and packs share it.

use super::{
    FRAME_RAW_MAX, PACK_BLOBS_MAX, PACK_BYTES_MAX, PACK_FRAMES_MAX, PackError, TRAILER_LEN,
    Trailer, frame_raw_length,
};
use crate::codec::{CODED_HEAD_LEN, Decoder, Effort, Encoder};
use crate::id::{Kind, Prefix};
use crate::seal::{BOX_OVERHEAD, FOOTER_BOX, HEADER_LEN, ObjectOpener, ObjectSealer};
use bytes::Bytes;
use std::ops::Range;

/// Lengths of the entries of each column: stored lengths and blob counts of frames, then kinds, lengths and prefixes
/// of blobs.
const FRAME_COLUMNS: [usize; 2] = [4, 2];
const BLOB_COLUMNS: [usize; 3] = [1, 4, Prefix::LEN];

/// A frame as the footer lists it.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct FrameEntry {
    /// Its number, which is that of its box.
    pub number: u16,
    /// Where it begins in the pack, in bytes.
    pub offset: u32,
    /// Its length in the pack, in bytes.
    pub stored_length: u32,
    /// Its decoded length, in bytes.
    pub raw_length: u32,
    /// How many blobs it holds.
    pub blob_count: u16,
}

impl FrameEntry {
    /// Where it lies in the pack.
    pub fn range(&self) -> Range<u64> {
        let start = u64::from(self.offset);
        start..start + u64::from(self.stored_length)
    }
}

/// A blob as the footer lists it.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct BlobEntry {
    /// The frame that holds it.
    pub frame: u16,
    /// Which of the frame's blobs it is.
    pub slot: u16,
    /// What it is.
    pub kind: Kind,
    /// Its length in bytes.
    pub length: u32,
    /// The first bytes of its id.
    pub prefix: Prefix,
}

/// A decoded footer that has been checked. Cheap to clone; shares the memory of what it was parsed from.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Footer {
    bytes: Bytes,
    frame_count: usize,
    blob_count: usize,
    /// Where the frames end in the pack.
    frames_end: u32,
}

const DAMAGED: PackError = PackError::Inconsistent("the footer contradicts itself");

impl Footer {
    /// Parses the decoded form. What it says of frames and blobs agrees with itself and is within the bounds of packs.
    pub fn parse(bytes: Bytes) -> Result<Self, PackError> {
        let counts = bytes.first_chunk::<8>().ok_or(DAMAGED)?;
        let frame_count = u32::from_le_bytes([counts[0], counts[1], counts[2], counts[3]]) as usize;
        let blob_count = u32::from_le_bytes([counts[4], counts[5], counts[6], counts[7]]) as usize;
        if frame_count > PACK_FRAMES_MAX || blob_count > PACK_BLOBS_MAX {
            return Err(PackError::Inconsistent(
                "the footer's numbers are out of bounds",
            ));
        }
        let mut footer = Self {
            bytes,
            frame_count,
            blob_count,
            frames_end: 0,
        };
        if footer.bytes.len() != footer.blob_column(2).end {
            return Err(DAMAGED);
        }
        let kinds = &footer.bytes[footer.blob_column(0)];
        if kinds.iter().any(|kind| Kind::try_from(*kind).is_err()) {
            return Err(PackError::Inconsistent("the footer names an unknown kind"));
        }
        footer.frames_end = footer.check_frames()?;
        Ok(footer)
    }

    /// Checks lengths and counts of frames; gives where they end.
    fn check_frames(&self) -> Result<u32, PackError> {
        let mut offset = HEADER_LEN as u64;
        let mut blob = 0;
        for frame in 0..self.frame_count {
            let stored = self.u32_at(self.frame_column(0), frame);
            offset += u64::from(stored);
            let next = blob + usize::from(self.count_at(frame));
            if next > self.blob_count {
                return Err(DAMAGED);
            }
            let lengths = (blob..next).map(|blob| self.u32_at(self.blob_column(1), blob) as usize);
            let raw = frame_raw_length(lengths).ok_or(DAMAGED)?;
            blob = next;
            // Compressed or not, a frame is never longer than it is raw, but for what wraps it.
            let wrapping = (BOX_OVERHEAD + CODED_HEAD_LEN) as u32;
            if stored < wrapping || stored - wrapping > raw || offset > PACK_BYTES_MAX {
                return Err(DAMAGED);
            }
        }
        if blob != self.blob_count {
            return Err(DAMAGED);
        }
        Ok(offset as u32)
    }

    /// Opens the footer of a pack of `pack_length` bytes. `sealed` is what lies before the trailer, as long as the
    /// trailer says.
    pub fn open(
        opener: &ObjectOpener,
        trailer: &Trailer,
        sealed: &[u8],
        pack_length: u64,
        decoder: &mut Decoder,
    ) -> Result<Self, PackError> {
        let mut room = Vec::new();
        let payload = opener.open_box(FOOTER_BOX, sealed, &mut room)?;
        let raw = decoder.decode(payload, super::FOOTER_RAW_MAX)?;
        let footer = Self::parse(Bytes::from(raw))?;
        let agrees = trailer.frame_count as usize == footer.frame_count
            && trailer.footer_length as usize == sealed.len()
            && footer.pack_length(trailer.footer_length) == pack_length;
        if !agrees {
            return Err(PackError::Inconsistent(
                "the footer and the length of the pack disagree",
            ));
        }
        Ok(footer)
    }

    /// The footer as it is stored, which ends a pack together with the trailer.
    pub fn seal(&self, sealer: &ObjectSealer, encoder: &mut Encoder, effort: Effort) -> Vec<u8> {
        let mut payload = Vec::new();
        encoder.encode(&self.bytes, effort, &mut payload);
        let mut sealed = Vec::with_capacity(payload.len() + BOX_OVERHEAD + TRAILER_LEN);
        sealer.seal_box(FOOTER_BOX, &payload, &mut sealed);
        let trailer = Trailer {
            footer_length: sealed.len() as u32,
            frame_count: self.frame_count as u32,
        };
        sealed.extend_from_slice(&trailer.encode());
        sealed
    }

    /// The decoded form.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// How many frames the pack holds.
    pub fn frame_count(&self) -> usize {
        self.frame_count
    }

    /// How many blobs the pack holds.
    pub fn blob_count(&self) -> usize {
        self.blob_count
    }

    /// The length of the whole pack, if its stored footer has `footer_length` bytes.
    pub fn pack_length(&self, footer_length: u32) -> u64 {
        u64::from(self.frames_end) + u64::from(footer_length) + TRAILER_LEN as u64
    }

    /// The frames, in order.
    pub fn frames(&self) -> impl Iterator<Item = FrameEntry> + '_ {
        let (mut offset, mut blob) = (HEADER_LEN as u32, 0);
        (0..self.frame_count).map(move |number| {
            let blob_count = self.count_at(number);
            let next = blob + usize::from(blob_count);
            let lengths = (blob..next).map(|blob| self.u32_at(self.blob_column(1), blob) as usize);
            let frame = FrameEntry {
                number: number as u16,
                offset,
                stored_length: self.u32_at(self.frame_column(0), number),
                raw_length: frame_raw_length(lengths).unwrap_or(FRAME_RAW_MAX),
                blob_count,
            };
            offset += frame.stored_length;
            blob = next;
            frame
        })
    }

    /// The blobs, in the order of frames and slots.
    pub fn blobs(&self) -> impl Iterator<Item = BlobEntry> + '_ {
        let places = (0..self.frame_count)
            .flat_map(|frame| (0..self.count_at(frame)).map(move |slot| (frame as u16, slot)));
        let prefixes = self.bytes[self.blob_column(2)].chunks_exact(Prefix::LEN);
        let kinds = self.bytes[self.blob_column(0)].iter();
        places
            .zip(kinds.zip(prefixes))
            .enumerate()
            .map(|(blob, ((frame, slot), (kind, bytes)))| {
                let mut prefix = [0; Prefix::LEN];
                prefix.copy_from_slice(bytes);
                BlobEntry {
                    frame,
                    slot,
                    kind: Kind::try_from(*kind).expect("kinds were checked by parse"),
                    length: self.u32_at(self.blob_column(1), blob),
                    prefix: Prefix(prefix),
                }
            })
    }

    fn frame_column(&self, column: usize) -> Range<usize> {
        let before: usize = FRAME_COLUMNS[..column].iter().sum();
        let start = 8 + before * self.frame_count;
        start..start + FRAME_COLUMNS[column] * self.frame_count
    }

    fn blob_column(&self, column: usize) -> Range<usize> {
        let before: usize = BLOB_COLUMNS[..column].iter().sum();
        let start = self.frame_column(1).end + before * self.blob_count;
        start..start + BLOB_COLUMNS[column] * self.blob_count
    }

    fn u32_at(&self, column: Range<usize>, index: usize) -> u32 {
        let start = column.start + index * 4;
        let bytes = &self.bytes[start..start + 4];
        u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
    }

    fn count_at(&self, frame: usize) -> u16 {
        let start = self.frame_column(1).start + frame * 2;
        u16::from_le_bytes([self.bytes[start], self.bytes[start + 1]])
    }
}

/// Collects what a footer says.
#[derive(Clone, Debug, Default)]
pub struct FooterBuilder {
    stored: Vec<u32>,
    counts: Vec<u16>,
    kinds: Vec<Kind>,
    lengths: Vec<u32>,
    prefixes: Vec<Prefix>,
}

impl FooterBuilder {
    /// A footer of nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a frame of this length in the pack, with its blobs.
    pub fn push(
        &mut self,
        stored_length: u32,
        blobs: impl IntoIterator<Item = (Kind, u32, Prefix)>,
    ) {
        let before = self.kinds.len();
        for (kind, length, prefix) in blobs {
            self.kinds.push(kind);
            self.lengths.push(length);
            self.prefixes.push(prefix);
        }
        self.stored.push(stored_length);
        self.counts.push((self.kinds.len() - before) as u16);
    }

    /// The footer. Errors if what was added is beyond the bounds of packs.
    pub fn finish(&self) -> Result<Footer, PackError> {
        let frames = self.stored.len() * FRAME_COLUMNS.iter().sum::<usize>();
        let blobs = self.kinds.len() * BLOB_COLUMNS.iter().sum::<usize>();
        let mut bytes = Vec::with_capacity(8 + frames + blobs);
        bytes.extend_from_slice(&(self.stored.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&(self.kinds.len() as u32).to_le_bytes());
        bytes.extend(self.stored.iter().flat_map(|stored| stored.to_le_bytes()));
        bytes.extend(self.counts.iter().flat_map(|count| count.to_le_bytes()));
        bytes.extend(self.kinds.iter().map(|kind| *kind as u8));
        bytes.extend(self.lengths.iter().flat_map(|length| length.to_le_bytes()));
        bytes.extend(self.prefixes.iter().flat_map(|prefix| prefix.0));
        Footer::parse(Bytes::from(bytes))
    }
}
