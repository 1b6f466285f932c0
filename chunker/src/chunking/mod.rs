//! Chunking: where content is divided into chunks, and where chunks are divided into segments.
//!
//! Owns the profiles, the parameters that are fixed at init, the search for cut points, the ends
//! and the encoding of segments, and the detection of zeros and of file kinds. Computes no ids and
//! keeps no state between calls. The cut points depend only on the bytes since the last cut, so a
//! caller may pass a run in any pieces that begin at the end of a chunk.

mod detect;
mod profile;
pub mod segment;
mod zero;

pub use detect::detect;
pub use profile::Profile;
pub use zero::is_zero;

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

#[cfg(test)]
mod tests;
