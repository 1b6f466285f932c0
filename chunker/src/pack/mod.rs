//! Packs: the objects that hold frames of blobs.
//!
//! Owns the names of write-once objects and the layout of packs (FORMAT.md, "Packs"): frames,
//! footer, trailer. Does not know what blobs mean, where packs are kept, or which blobs are worth
//! storing.
//!
//! Every bound here limits the memory that a damaged or hostile pack can make a reader allocate.

mod builder;
mod footer;
mod frame;
mod name;

pub use builder::{FinishedPack, PackBuilder};
pub use footer::{BlobEntry, Footer, FooterBuilder, FrameEntry};
pub use frame::{
    Frame, FrameDecoder, FrameEncoder, FrameRecord, FrameTicket, NamedFrame, frame_raw_length,
};
pub use name::{BadName, PackName};

use crate::codec::CodecError;
use crate::crypto::OpenError;

/// The maximum decoded length of a frame, in bytes.
pub const FRAME_RAW_MAX: u32 = 4 * 1024 * 1024;
/// The maximum number of blobs in a frame.
pub const FRAME_BLOBS_MAX: usize = u16::MAX as usize;
/// The maximum number of frames in a pack, so that 16 bits number each.
pub const PACK_FRAMES_MAX: usize = 1 << 16;
/// The maximum number of blobs in a pack: more than the number of segments of small files in 100
/// MiB.
pub const PACK_BLOBS_MAX: usize = 1 << 19;
/// The maximum length of a pack, in bytes.
pub const PACK_BYTES_MAX: u64 = 256 * 1024 * 1024;
/// The maximum decoded length of a footer, in bytes: that of the maximum number of frames and
/// blobs.
pub const FOOTER_RAW_MAX: u32 = (8 + PACK_FRAMES_MAX * 6 + PACK_BLOBS_MAX * 21) as u32;
/// Length of the trailer, the last bytes of a pack, in bytes.
pub const TRAILER_LEN: usize = 16;

/// The last bytes of each trailer.
const TRAILER_MAGIC: &[u8; 8] = b"bkfsfoot";

/// Why a part of a pack cannot be read.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum PackError {
    /// The part does not open.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The part opens, but does not decode.
    #[error("damaged: {0}")]
    Codec(#[from] CodecError),
    /// The part decodes, but contradicts itself or the rest of the pack.
    #[error("damaged: {0}")]
    Inconsistent(&'static str),
}

/// The last bytes of a pack, unencrypted. Readers trust them only after the footer has confirmed
/// them.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct Trailer {
    /// Stored length of the footer, in bytes. The footer ends where the trailer begins.
    pub footer_length: u32,
    /// Number of frames in the pack.
    pub frame_count: u32,
}

impl Trailer {
    /// Returns the trailer as it is stored.
    pub fn encode(&self) -> [u8; TRAILER_LEN] {
        let mut bytes = [0; TRAILER_LEN];
        bytes[..4].copy_from_slice(&self.footer_length.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.frame_count.to_le_bytes());
        bytes[8..].copy_from_slice(TRAILER_MAGIC);
        bytes
    }

    /// Parses the trailer at the end of `tail`, which holds the last bytes of a pack.
    ///
    /// # Errors
    /// [`PackError::Inconsistent`] if `tail` is too short, does not end with a trailer, or states
    /// numbers that are out of bounds.
    pub fn decode(tail: &[u8]) -> Result<Self, PackError> {
        let (_, bytes) = tail
            .split_last_chunk::<TRAILER_LEN>()
            .ok_or(PackError::Inconsistent("the pack is cut short"))?;
        if bytes[8..] != *TRAILER_MAGIC {
            return Err(PackError::Inconsistent("the pack has no trailer"));
        }
        let trailer = Self {
            footer_length: u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]),
            frame_count: u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]),
        };
        if trailer.footer_length > FOOTER_RAW_MAX + 1024
            || trailer.frame_count as usize > PACK_FRAMES_MAX
        {
            return Err(PackError::Inconsistent(
                "the trailer's numbers are out of bounds",
            ));
        }
        Ok(trailer)
    }

    /// Returns the length of footer and trailer together, in bytes.
    pub fn tail_length(&self) -> u64 {
        u64::from(self.footer_length) + TRAILER_LEN as u64
    }
}

#[cfg(test)]
mod tests;
