//! Footers: the columns that list the frames and blobs of a pack.
//!
//! Owns the decoded form. A footer keeps the bytes that it was parsed from, because index objects
//! and packs share them.

use super::{
    FRAME_RAW_MAX, PACK_BLOBS_MAX, PACK_BYTES_MAX, PACK_FRAMES_MAX, PackError, TRAILER_LEN,
    Trailer, frame_raw_length,
};
use crate::codec::{CODED_HEAD_LEN, Decoder, Effort, Encoder};
use crate::crypto::{BOX_OVERHEAD, FOOTER_BOX, HEADER_LEN, ObjectOpener, ObjectSealer};
use crate::id::{Kind, Prefix};
use bytes::Bytes;
use std::ops::Range;

/// Length in bytes of an entry of each column. Frames have stored lengths and blob counts; blobs
/// have kinds, lengths and prefixes.
const FRAME_COLUMNS: [usize; 2] = [4, 2];
const BLOB_COLUMNS: [usize; 3] = [1, 4, Prefix::LEN];

/// A frame as the footer lists it.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct FrameEntry {
    /// The number of the frame, which is the number of its box.
    pub number: u16,
    /// The offset of the frame in the pack, in bytes.
    pub offset: u32,
    /// The length of the frame in the pack, in bytes.
    pub stored_length: u32,
    /// The decoded length of the frame, in bytes.
    pub raw_length: u32,
    /// The number of blobs in the frame.
    pub blob_count: u16,
}

impl FrameEntry {
    /// Returns the bytes of the pack that the frame occupies.
    pub fn range(&self) -> Range<u64> {
        let start = u64::from(self.offset);
        start..start + u64::from(self.stored_length)
    }
}

/// A blob as the footer lists it.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct BlobEntry {
    /// The number of the frame that holds the blob.
    pub frame: u16,
    /// The number of the blob in the frame.
    pub slot: u16,
    /// The kind of the blob.
    pub kind: Kind,
    /// The length of the blob, in bytes.
    pub length: u32,
    /// The first bytes of the blob's id.
    pub prefix: Prefix,
}

/// A decoded and checked footer. Cheap to clone: it shares the memory of the bytes that it was
/// parsed from.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Footer {
    bytes: Bytes,
    frame_count: usize,
    blob_count: usize,
    /// The end of the last frame in the pack, in bytes.
    frames_end: u32,
}

const DAMAGED: PackError = PackError::Inconsistent("the footer contradicts itself");

impl Footer {
    /// Returns an equal footer whose bytes share no memory with others.
    pub(crate) fn apart(&self) -> Self {
        Self {
            bytes: Bytes::copy_from_slice(&self.bytes),
            ..*self
        }
    }

    /// Parses the decoded form. A parsed footer is consistent and within the bounds of packs.
    ///
    /// # Errors
    /// [`PackError::Inconsistent`] if the footer contradicts itself, states numbers that are out of
    /// bounds, or names an unknown kind.
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

    /// Checks the lengths and blob counts of the frames. Returns the end of the last frame in the
    /// pack, in bytes.
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
            // Compressed or not, a stored frame is never longer than its raw form plus its
            // wrapping.
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

    /// Opens the footer of a pack of `pack_length` bytes. `sealed` is the footer as it is stored:
    /// the bytes before the trailer, as many as the trailer states.
    ///
    /// # Errors
    /// - [`PackError::Open`] if the box does not open.
    /// - [`PackError::Codec`] if its payload does not decode.
    /// - [`PackError::Inconsistent`] as [`Footer::parse`], and if the footer disagrees with the
    ///   trailer or with `pack_length`.
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

    /// Returns the sealed footer followed by the trailer: the last bytes of a pack.
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

    /// Returns the decoded form.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Returns the number of frames in the pack.
    pub fn frame_count(&self) -> usize {
        self.frame_count
    }

    /// Returns the number of blobs in the pack.
    pub fn blob_count(&self) -> usize {
        self.blob_count
    }

    /// Returns the length in bytes of the whole pack, if its stored footer has `footer_length`
    /// bytes.
    pub fn pack_length(&self, footer_length: u32) -> u64 {
        u64::from(self.frames_end) + u64::from(footer_length) + TRAILER_LEN as u64
    }

    /// Returns the frames in order of their numbers.
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

    /// Returns the blobs in the order of frames and slots.
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

/// Collects the entries of a footer.
#[derive(Clone, Debug, Default)]
pub struct FooterBuilder {
    stored: Vec<u32>,
    counts: Vec<u16>,
    kinds: Vec<Kind>,
    lengths: Vec<u32>,
    prefixes: Vec<Prefix>,
}

impl FooterBuilder {
    /// Returns a builder without frames.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a frame that has `stored_length` bytes in the pack, with its blobs as kind, length in
    /// bytes and prefix.
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

    /// Returns the footer.
    ///
    /// # Errors
    /// [`PackError::Inconsistent`] if the added frames exceed the bounds of packs.
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
