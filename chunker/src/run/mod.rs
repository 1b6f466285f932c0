//! Runs: sorted index records of one range of prefixes, in one object that is read by ranges
//! (FORMAT.md, "Runs").
//!
//! Owns the form of a run: its blocks of records, its pack records and names, its filters, and the
//! directory at its end. Pure: [`RunWriter`] appends to a buffer, and a reader is told which bytes
//! to fetch and opens them ([`Directory`]). Does not know which packs are live, and merges nothing.
//!
//! ```text
//!   header ‖ blocks ‖ pack records ‖ names ‖ filters ‖ fences ‖ directory ‖ trailer
//! ```
//! A reader that has only the key of a run fetches the end of the object, which holds the directory
//! and, of most runs, the fences. A look-up then costs one block.

mod block;
mod directory;
mod fence;
mod filter;
mod packs;
mod writer;

pub use block::{Block, Record};
pub use directory::{Contents, Directory, Section, TRAILER_LEN, Trailer};
pub use fence::Fences;
pub use filter::LevelFilter;
pub use packs::{Names, PackFrames, PackFramesList};
pub use writer::{RunError, RunWriter};

use crate::codec::CodecError;
use crate::crypto::OpenError;
use crate::id::Prefix;

/// The greatest length of a run, in bytes.
pub const RUN_BYTES_MAX: u64 = 512 << 20;

/// Decoded bytes after which a box of records, pack records or names ends.
const BOX_RAW_BYTES: usize = 64 << 10;

/// Length of a record in a block, in bytes.
const RECORD_LEN: usize = Prefix::LEN + 4 + 2 + 2 + 1;

/// Number of blocks that one box of fences describes.
const BLOCKS_PER_FENCE: usize = 1024;

/// The greatest decoded length of a box, in bytes. Pack records of the largest packs take most.
const BOX_RAW_MAX: u32 = 1 << 20;

/// The greatest decoded length of a block, in bytes: a block ends with the record that fills it.
const BLOCK_RAW_MAX: u32 = (4 + BOX_RAW_BYTES + RECORD_LEN) as u32;

/// The most blocks of a run. A run of [`RUN_BYTES_MAX`] has about 15,000.
const BLOCKS_MAX: u64 = 1 << 16;

/// The most packs that a run names: 128 TiB in packs of 16 MiB.
const PACKS_MAX: u32 = 1 << 23;

/// The greatest length of a filter, in bytes. That of a level with all prefixes of 1,024 blocks
/// takes 6 MiB.
const FILTER_BYTES_MAX: usize = 8 << 20;

/// The greatest decoded length of the directory, in bytes.
const DIRECTORY_RAW_MAX: u32 = 1 << 20;

/// Reasons why a part of a run cannot be read.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum RunDamage {
    /// The box does not open.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The box opens, but does not decode.
    #[error("damaged run: {0}")]
    Codec(#[from] CodecError),
    /// The box decodes, but contradicts itself or the rest of the run.
    #[error("damaged run: {0}")]
    Inconsistent(&'static str),
}

const SHORT: RunDamage = RunDamage::Inconsistent("truncated");

/// Removes the first `N` bytes from `rest` and returns them.
fn take<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N], RunDamage> {
    let (taken, left) = rest.split_first_chunk::<N>().ok_or(SHORT)?;
    *rest = left;
    Ok(*taken)
}

fn take_u32(rest: &mut &[u8]) -> Result<u32, RunDamage> {
    take(rest).map(u32::from_le_bytes)
}

fn take_u64(rest: &mut &[u8]) -> Result<u64, RunDamage> {
    take(rest).map(u64::from_le_bytes)
}

fn require_end(rest: &[u8]) -> Result<(), RunDamage> {
    match rest.is_empty() {
        true => Ok(()),
        false => Err(RunDamage::Inconsistent("bytes follow the end")),
    }
}

#[cfg(test)]
mod tests;
