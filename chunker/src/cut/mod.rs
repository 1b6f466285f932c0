//! Cutting: where content is divided into chunks, and chunks into segments.
//!
//! Owns the profiles, the parameters fixed at init, the search for cut points, the ends of segments and their encoding,
//! the recognition of zeros and of kinds of files. Does not compute ids, and keeps nothing between calls: what it finds
//! depends on the bytes from the last cut on and on nothing else, so that a run may be handed over in any pieces that
//! begin where a chunk ended.

mod detect;
pub mod segment;
mod zero;

pub use detect::detect;
pub use zero::is_zero;

use fastcdc::v2020::{Normalization, cut_gear, select_masks};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// How a stretch of a file is cut. The number is part of the format.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash)]
#[repr(u8)]
pub enum Profile {
    /// On the grid of pages, counted from the beginning of the file: databases and images of disks, which are
    /// rewritten in place.
    Grid = 1,
    /// Where the content says (FastCDC): everything else.
    Content = 2,
    /// Into large pieces of one length: what is compressed or encrypted, and never holds the same stretch twice.
    Raw = 3,
}

impl Profile {
    /// Every profile, in the order of its number.
    pub const ALL: [Profile; 3] = [Profile::Grid, Profile::Content, Profile::Raw];

    /// The profile of this number, if there is one.
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number).checked_sub(1)?).copied()
    }
}

/// The lengths that content is cut into, in bytes: fixed for a repository at init.
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

    /// Page, then least, average and greatest length by content, then length of raw chunks.
    pub fn to_array(&self) -> [u32; 5] {
        [
            self.grid,
            self.minimum,
            self.average,
            self.maximum,
            self.raw,
        ]
    }

    /// The inverse of [`Parameters::to_array`]; `None` if a number is out of bounds: each is a power of two from 1 KiB
    /// to 1 MiB, a page at least 4 KiB, and least < average < greatest.
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

    /// The longest chunk of a profile, in bytes.
    pub fn longest(&self, profile: Profile) -> u32 {
        match profile {
            Profile::Grid => self.grid,
            Profile::Content => self.maximum,
            Profile::Raw => self.raw,
        }
    }

    /// The length of a page of the grid, in bytes.
    pub fn grid(&self) -> u32 {
        self.grid
    }
}

/// A chunk that was found in a run.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Cut {
    /// Where it lies in the run.
    pub range: Range<usize>,
    /// Whether all of it is zeros, so that it is a hole and needs no chunk.
    pub is_zero: bool,
}

/// Finds cut points. Cheap to clone; made by [`crate::seal::Keyring::cutter`], since cut points by content are keyed.
#[derive(Clone)]
pub struct Cutter {
    parameters: Parameters,
    /// What each byte adds to the rolling hash, and twice that.
    gears: Arc<[[u64; 256]; 2]>,
    /// A cut before the average length needs zeros under the first mask, one after it under the second.
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
    /// A cutter with these parameters and this table of numbers, one for each value of a byte.
    pub fn new(parameters: Parameters, gear: &[u64; 256]) -> Self {
        let (strict, loose) = select_masks(parameters.average as usize, Normalization::Level1);
        Self {
            parameters,
            gears: Arc::new([*gear, gear.map(|number| number << 1)]),
            masks: [strict, loose],
        }
    }

    /// The lengths that this cutter cuts into.
    pub fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    /// Cuts `run` and appends what was found to `cuts`, in order and without gaps, from the beginning of the run on.
    ///
    /// `run` begins where a chunk ended (or the file, or a hole), at `file_offset` of the file; only the grid looks at
    /// that. Unless it holds the `end_of_data` (of the file, or before a hole), the rest of the run that may go on is
    /// left out, shorter than one chunk at its longest.
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

    /// The length of the chunk that `rest`, which is not empty, begins with; `None` if it may go on behind it, which it cannot at the `end_of_data`.
    pub fn first(
        &self,
        profile: Profile,
        rest: &[u8],
        file_offset: u64,
        end_of_data: bool,
    ) -> Option<usize> {
        let longest = self.parameters.longest(profile) as usize;
        // How long the chunk would be at its longest, and how long it is in what is there.
        let (full, length) = match profile {
            Profile::Grid => {
                // The grid is a power of two.
                let within = (file_offset % longest as u64) as usize;
                (longest - within, (longest - within).min(rest.len()))
            }
            Profile::Content => (longest, self.next(rest)),
            Profile::Raw => (longest, longest.min(rest.len())),
        };
        (length < rest.len() || length == full || end_of_data).then_some(length)
    }

    /// The length of the next chunk by content, at least 1: all of `rest` if no cut is found in it.
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
