//! Chunking: where content is divided into chunks, and where chunks are divided into segments.
//!
//! Owns the profiles, the parameters that are fixed at init, the search for cut points, the ends
//! and the encoding of segments, and the detection of zeros and of file kinds. Computes no ids and
//! keeps no state between calls. The cut points depend only on the bytes since the last cut.
//!
//! A run may lie in several pieces of memory, and each chunk is contiguous. Pieces shorter than the
//! longest chunk are joined first. Of longer pieces only the chunks that cross the border of two
//! are copied. So each byte is processed only a few times, whatever the sizes of the pieces.

mod detect;
mod profile;
pub mod segment;
mod zero;

pub use detect::detect;
pub use profile::Profile;
pub use zero::is_zero;

use bytes::{Bytes, BytesMut};
use fastcdc::v2020::{Normalization, cut_gear, select_masks};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// The chunk lengths in bytes, fixed for a repository at init.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct Parameters {
    grid: u32,
    minimum: u32,
    average: u32,
    maximum: u32,
    raw: u32,
}

impl Default for Parameters {
    fn default() -> Self {
        Self {
            grid: 16 * 1024,
            minimum: 16 * 1024,
            average: 64 * 1024,
            maximum: 256 * 1024,
            raw: 1024 * 1024,
        }
    }
}

impl Parameters {
    /// The longest chunk that any parameters allow, in bytes.
    pub const CHUNK_LEN_MAX: u32 = 1024 * 1024;

    /// Returns five lengths in bytes: page; minimum, average and maximum by content; raw chunk.
    pub fn to_array(&self) -> [u32; 5] {
        [
            self.grid,
            self.minimum,
            self.average,
            self.maximum,
            self.raw,
        ]
    }

    /// The inverse of [`Parameters::to_array`]. `None` if a number is out of bounds: each must be a
    /// power of two from 1 KiB to 1 MiB, the page at least 4 KiB, and minimum < average < maximum.
    pub fn from_array(numbers: [u32; 5]) -> Option<Self> {
        let within = |number: &u32| {
            number.is_power_of_two() && (1024..=Self::CHUNK_LEN_MAX).contains(number)
        };
        let [grid, minimum, average, maximum, raw] = numbers;
        if !numbers.iter().all(within) || grid < 4096 || minimum >= average || average >= maximum {
            return None;
        }
        Some(Self {
            grid,
            minimum,
            average,
            maximum,
            raw,
        })
    }

    /// Returns the length of the longest chunk of a profile, in bytes.
    pub fn longest(&self, profile: Profile) -> u32 {
        match profile {
            Profile::Grid => self.grid,
            Profile::Content => self.maximum,
            Profile::Raw => self.raw,
        }
    }

    /// Returns the length of a page of the grid, in bytes.
    pub fn grid(&self) -> u32 {
        self.grid
    }
}

/// A chunk of a run.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Cut {
    /// The bytes of the run that the chunk covers.
    pub range: Range<usize>,
    /// True if all its bytes are zero. The chunk is then a hole and is not stored.
    pub is_zero: bool,
}

/// A chunk of a run, with its bytes.
#[derive(Clone, Debug)]
pub struct Chunk {
    /// The offset of the chunk in the run, in bytes.
    pub start: usize,
    /// The bytes of the chunk.
    pub bytes: Bytes,
    /// True if all its bytes are zero. The chunk is then a hole and is not stored.
    pub is_zero: bool,
}

/// Finds cut points. Cheap to clone. [`crate::crypto::Keyring::cutter`] makes it, because
/// content-defined cut points are keyed.
#[derive(Clone)]
pub struct Cutter {
    parameters: Parameters,
    /// The number that each byte value adds to the rolling hash, and twice that number.
    gears: Arc<[[u64; 256]; 2]>,
    /// A cut before the average length requires zeros under the first mask. A cut after it requires
    /// zeros under the second.
    masks: [u64; 2],
}

impl fmt::Debug for Cutter {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_tuple("Cutter")
            .field(&self.parameters)
            .finish()
    }
}

impl Cutter {
    /// Returns a cutter with these parameters and this gear table, which has one number for each
    /// byte value.
    pub fn new(parameters: Parameters, gear: &[u64; 256]) -> Self {
        let (strict, loose) = select_masks(parameters.average as usize, Normalization::Level1);
        Self {
            parameters,
            gears: Arc::new([*gear, gear.map(|number| number << 1)]),
            masks: [strict, loose],
        }
    }

    /// Returns the chunk lengths of this cutter.
    pub fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    /// Chunks `run`, which lies in these pieces of memory, and passes the chunks to `each`, in order
    /// and without gaps. They are the chunks that [`Cutter::cut`] finds in one piece.
    pub fn cut_pieces(
        &self,
        profile: Profile,
        run: Vec<Bytes>,
        file_offset: u64,
        end_of_data: bool,
        each: impl FnMut(Chunk),
    ) {
        let length = run.iter().map(Bytes::len).sum();
        let mut cutting = Cutting {
            cutter: self,
            profile,
            file_offset,
            end_of_data: end_of_data.then_some(length),
            start: 0,
            each,
        };
        // The rest of the previous pieces: the beginning of a chunk, shorter than the longest chunk.
        let mut rest = Bytes::new();
        for piece in gathered(run, self.parameters.longest(profile) as usize) {
            rest = cutting.piece(rest, piece);
        }
    }

    /// Chunks `run` and appends the chunks to `cuts`, in order and without gaps, from the beginning
    /// of the run.
    ///
    /// `run` begins at the end of a chunk or a hole, or at the beginning of the file. `file_offset`
    /// is its offset in the file in bytes; only the grid depends on it. `end_of_data` is true if
    /// the file or the data before a hole ends with the run. Otherwise the last bytes of the run,
    /// which may continue, are left out: they are shorter than the longest chunk.
    pub fn cut(
        &self,
        profile: Profile,
        run: &[u8],
        file_offset: u64,
        end_of_data: bool,
        cuts: &mut Vec<Cut>,
    ) {
        let mut start = 0;
        while start < run.len() {
            let rest = &run[start..];
            let offset = file_offset.wrapping_add(start as u64);
            let Some(length) = self.first(profile, rest, offset, end_of_data) else {
                break;
            };
            let range = start..start + length;
            cuts.push(Cut {
                is_zero: is_zero(&run[range.clone()]),
                range,
            });
            start += length;
        }
    }

    /// Returns the length in bytes of the first chunk of `rest`, which must not be empty. `None` if
    /// the chunk may continue after `rest`. At the `end_of_data` it cannot.
    pub fn first(
        &self,
        profile: Profile,
        rest: &[u8],
        file_offset: u64,
        end_of_data: bool,
    ) -> Option<usize> {
        let longest = self.parameters.longest(profile) as usize;
        // The length of the longest possible chunk here, and the length that `rest` holds of it.
        let (full, length) = match profile {
            Profile::Grid => {
                // The page length is a power of two.
                let within = (file_offset % longest as u64) as usize;
                (longest - within, (longest - within).min(rest.len()))
            }
            Profile::Content => (longest, self.next(rest)),
            Profile::Raw => (longest, longest.min(rest.len())),
        };
        (length < rest.len() || length == full || end_of_data).then_some(length)
    }

    /// Returns the length of the next content-defined chunk, at least 1. It is the length of `rest`
    /// if the search finds no cut there.
    fn next(&self, rest: &[u8]) -> usize {
        let Parameters {
            minimum,
            average,
            maximum,
            ..
        } = self.parameters;
        let [strict, loose] = self.masks;
        let [gear, gear_twice] = &*self.gears;
        let (_, length) = cut_gear(
            rest,
            minimum as usize,
            average as usize,
            maximum as usize,
            strict,
            loose,
            strict << 1,
            loose << 1,
            gear,
            gear_twice,
        );
        length
    }
}

/// Returns the run in pieces of at least `least` bytes. The exceptions are a shorter piece before a
/// piece of at least `least` bytes, and the last piece.
fn gathered(run: Vec<Bytes>, least: usize) -> impl Iterator<Item = Bytes> {
    let mut pieces = run.into_iter().peekable();
    std::iter::from_fn(move || {
        let first = pieces.next()?;
        let is_short = |piece: &Bytes| piece.len() < least;
        if !is_short(&first) || !pieces.peek().is_some_and(is_short) {
            return Some(first);
        }
        let mut bytes = first.len();
        let mut short = vec![first];
        while bytes < least
            && let Some(piece) = pieces.next_if(is_short)
        {
            bytes += piece.len();
            short.push(piece);
        }
        let mut joined = BytesMut::with_capacity(bytes);
        for piece in &short {
            joined.extend_from_slice(piece);
        }
        Some(joined.freeze())
    })
}

/// A run that is being chunked.
struct Cutting<'a, F> {
    cutter: &'a Cutter,
    profile: Profile,
    file_offset: u64,
    /// The length of the run in bytes, if the data ends with it.
    end_of_data: Option<usize>,
    /// Offset of the next chunk in the run, in bytes.
    start: usize,
    each: F,
}

impl<F: FnMut(Chunk)> Cutting<'_, F> {
    /// Chunks `rest` followed by `piece`. Returns the bytes that may continue in the next piece.
    fn piece(&mut self, mut rest: Bytes, piece: Bytes) -> Bytes {
        let mut used = 0;
        while !rest.is_empty() {
            let Some((joined, length)) = self.bridge(&rest, &piece[used..]) else {
                return join(&rest, &piece[used..]);
            };
            used += length.saturating_sub(rest.len());
            // The chunk may end before the border. The loop then continues with the remaining rest.
            rest = rest.slice(length.min(rest.len())..);
            self.push(joined.slice(..length));
        }
        let mut piece = piece.slice(used..);
        while !piece.is_empty() {
            let Some(length) = self.next(&piece) else {
                break;
            };
            self.push(piece.slice(..length));
            piece = piece.slice(length..);
        }
        piece
    }

    /// Returns the length of the chunk that begins with `rest` and continues in `piece`, and a
    /// buffer that begins with this chunk. `None` if the chunk may continue after `piece`.
    fn bridge(&self, rest: &[u8], piece: &[u8]) -> Option<(Bytes, usize)> {
        let longest = self.cutter.parameters.longest(self.profile) as usize;
        let most = longest
            .saturating_sub(rest.len())
            .clamp(1, piece.len().max(1));
        // Most chunks are far shorter than the longest.
        for take in [most.min(longest / 4), most] {
            let joined = join(rest, &piece[..take.min(piece.len())]);
            if let Some(length) = self.next(&joined) {
                return Some((joined, length));
            }
        }
        None
    }

    /// Returns the length of the chunk that `bytes` begins with. `None` if it may continue after
    /// them.
    fn next(&self, bytes: &[u8]) -> Option<usize> {
        let is_end = self.end_of_data == Some(self.start + bytes.len());
        let offset = self.file_offset + self.start as u64;
        self.cutter.first(self.profile, bytes, offset, is_end)
    }

    fn push(&mut self, bytes: Bytes) {
        let start = self.start;
        self.start += bytes.len();
        (self.each)(Chunk {
            start,
            is_zero: is_zero(&bytes),
            bytes,
        });
    }
}

fn join(one: &[u8], two: &[u8]) -> Bytes {
    let mut joined = BytesMut::with_capacity(one.len() + two.len());
    joined.extend_from_slice(one);
    joined.extend_from_slice(two);
    joined.freeze()
}

#[cfg(test)]
mod tests;
