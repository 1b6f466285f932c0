//! Packs: the objects that hold frames of blobs.
//!
//! Owns the names of write-once objects and the layout of packs (FORMAT.md, "Packs"): frames, footer, trailer. Knows
//! nothing of what blobs mean, of where packs are kept, or of which blobs are worth storing.
//!
//! Every bound here limits what a damaged or hostile pack can make a reader allocate.

mod builder;
mod footer;
mod frame;
mod name;

pub use builder::{FinishedPack, FrameTicket, PackBuilder, SealedFrame};
pub use footer::{BlobEntry, Footer, FooterBuilder, FrameEntry};
pub use frame::{Frame, FrameDecoder, FrameEncoder, frame_raw_length};
pub use name::{BadName, PackName};

use crate::codec::CodecError;
use crate::seal::OpenError;

/// The longest decoded frame, in bytes.
pub const FRAME_RAW_MAX: u32 = 4 * 1024 * 1024;
/// The most blobs in a frame.
pub const FRAME_BLOBS_MAX: usize = u16::MAX as usize;
/// The most frames in a pack, so that 16 bits name each.
pub const PACK_FRAMES_MAX: usize = 1 << 16;
/// The most blobs in a pack: more than 100 MiB of small files' segments hold.
pub const PACK_BLOBS_MAX: usize = 1 << 19;
/// The largest pack, in bytes.
pub const PACK_BYTES_MAX: u64 = 256 * 1024 * 1024;
/// The longest decoded footer, in bytes: what the most frames and the most blobs take.
pub const FOOTER_RAW_MAX: u32 = (8 + PACK_FRAMES_MAX * 6 + PACK_BLOBS_MAX * 21) as u32;
/// Length of a pack's trailer, its last bytes.
pub const TRAILER_LEN: usize = 16;

/// How trailers end.
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

/// What the last bytes of a pack say, in the clear. Believed only once the footer has confirmed it.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct Trailer {
    /// Length of the footer as it is stored, in bytes; it ends where the trailer begins.
    pub footer_length: u32,
    /// Number of frames.
    pub frame_count: u32,
}

impl Trailer {
    /// The trailer as it is stored.
    pub fn encode(&self) -> [u8; TRAILER_LEN] {
        let mut bytes = [0; TRAILER_LEN];
        bytes[..4].copy_from_slice(&self.footer_length.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.frame_count.to_le_bytes());
        bytes[8..].copy_from_slice(TRAILER_MAGIC);
        bytes
    }

    /// Reads the trailer at the end of `tail`, the last bytes of a pack.
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

    /// How many of a pack's last bytes hold footer and trailer.
    pub fn tail_length(&self) -> u64 {
        u64::from(self.footer_length) + TRAILER_LEN as u64
    }
}

#[cfg(test)]
mod tests;
