//! The extents of one file: which stored bytes lie where, and how that changes.
//!
//! Owns the arithmetic of splitting, trimming, joining and copying extents, and of finding data and holes. Pure: it takes what is there
//! now and answers with changes, so that it works on a tree, on changes in memory, or on both laid over each other. Does not own
//! reading or storing anything.
//!
//! An extent is at most [`MAX_EXTENT_BYTES`] long. So whoever looks for the extents that overlap or touch offset *x* begins at
//! [`search_start`]`(x)`. Whatever is there may be more than was asked for: extents far from the range in question change nothing.

use std::ops::Range;

use thiserror::Error;

use crate::tree::item::{Extent, Target};

/// Longest extent, in bytes.
pub const MAX_EXTENT_BYTES: u32 = 4 << 20;

/// Largest size of a file, in bytes: what a signed 64-bit offset can say.
pub const MAX_FILE_BYTES: u64 = i64::MAX as u64;

/// First offset at which an extent may begin that reaches to `offset` or ends right there.
pub fn search_start(offset: u64) -> u64 {
    offset.saturating_sub(MAX_EXTENT_BYTES.into())
}

/// What is wrong with extents that were given.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Error)]
pub enum ExtentError {
    /// Extents are not in order, or one reaches into the next.
    #[error("extents of a file overlap at offset {offset}")]
    Overlap {
        /// Where the later one begins.
        offset: u64,
    },
    /// An extent is empty, too long, or ends behind the end of the longest file.
    #[error("extent of {length} bytes at offset {offset} is out of bounds")]
    OutOfBounds {
        /// Where it begins.
        offset: u64,
        /// Its length in bytes.
        length: u32,
    },
    /// A new extent lies outside the range that it is to fill.
    #[error("extent at offset {offset} lies outside the range to be replaced")]
    OutOfRange {
        /// Where it begins.
        offset: u64,
    },
}

/// An extent and its place in the file.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Hash)]
pub struct Placed {
    /// First byte in the file.
    pub offset: u64,
    /// What lies there.
    pub extent: Extent,
}

/// A change to a file's extents: the one that begins at this offset becomes this, or goes.
pub type Change = (u64, Option<Extent>);

/// A part of a range of a file.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Piece {
    /// Stored bytes, cut to the range.
    Data(Placed),
    /// Zeroes that nothing is stored for.
    Hole(Range<u64>),
}

impl Placed {
    /// The offset right behind the last byte.
    pub fn end(&self) -> u64 {
        self.offset.saturating_add(self.extent.length.into())
    }

    /// The part that lies in `range`, or nothing. A part that lost its end is not open any more.
    pub fn within(&self, range: &Range<u64>) -> Option<Placed> {
        let start = self.offset.max(range.start);
        let end = self.end().min(range.end);
        if start >= end {
            return None;
        }
        // Both differences are at most the extent's own length, which fits.
        let skipped = (start - self.offset) as u32;
        Some(Placed {
            offset: start,
            extent: Extent {
                length: (end - start) as u32,
                target_offset: self.extent.target_offset.saturating_add(skipped),
                open: self.extent.open && end == self.end(),
                target: self.extent.target,
            },
        })
    }

    /// This and `next` as one extent, if they lie side by side in the file and in the same target.
    fn joined(&self, next: &Placed) -> Option<Placed> {
        let (one, two) = (&self.extent, &next.extent);
        let adjoin = self.end() == next.offset
            && one.target == two.target
            && one.target_offset.checked_add(one.length) == Some(two.target_offset);
        let length = one.length.checked_add(two.length)?;
        (adjoin && length <= MAX_EXTENT_BYTES).then_some(Placed {
            offset: self.offset,
            extent: Extent {
                length,
                open: two.open,
                ..*one
            },
        })
    }
}

/// Checks that extents are in order, do not overlap, and are neither empty nor too long.
///
/// # Errors
/// [`ExtentError::Overlap`], [`ExtentError::OutOfBounds`].
pub fn check(extents: &[Placed]) -> Result<(), ExtentError> {
    let mut end = 0;
    for placed in extents {
        let Placed { offset, extent } = *placed;
        let length = extent.length;
        let sane = (1..=MAX_EXTENT_BYTES).contains(&length)
            && extent.target_offset.checked_add(length).is_some()
            && offset <= MAX_FILE_BYTES - u64::from(length);
        if !sane {
            return Err(ExtentError::OutOfBounds { offset, length });
        }
        if offset < end {
            return Err(ExtentError::Overlap { offset });
        }
        end = placed.end();
    }
    Ok(())
}

/// Joins neighbours that are one run of one target, as far as the longest extent allows.
pub fn coalesce(extents: impl IntoIterator<Item = Placed>) -> Vec<Placed> {
    let mut joined: Vec<Placed> = Vec::new();
    for placed in extents {
        match joined.last_mut() {
            Some(last) => match last.joined(&placed) {
                Some(both) => *last = both,
                None => joined.push(placed),
            },
            None => joined.push(placed),
        }
    }
    joined
}

/// What has to change so that `range` of the file holds exactly `new`, and holes where that has nothing.
///
/// `existing` has all extents that overlap `range`, in order, and should have those that touch it, since new and old are joined where they are one
/// run of one target. Of extents that reach out of the range, what lies outside stays. The answer is sorted by offset and has only
/// real changes.
///
/// # Errors
/// [`ExtentError`] if either list is not in order or `new` reaches out of `range`.
pub fn replace(
    existing: &[Placed],
    range: Range<u64>,
    new: &[Placed],
) -> Result<Vec<Change>, ExtentError> {
    check(existing)?;
    check(new)?;
    let outside = new
        .iter()
        .find(|placed| placed.offset < range.start || placed.end() > range.end);
    if let Some(placed) = outside {
        return Err(ExtentError::OutOfRange {
            offset: placed.offset,
        });
    }
    if range.is_empty() {
        return Ok(Vec::new());
    }
    let first = existing.partition_point(|placed| placed.end() < range.start);
    let behind = existing.partition_point(|placed| placed.offset <= range.end);
    let touched = &existing[first..behind];
    let (before, after) = (0..range.start, range.end..u64::MAX);
    let left = touched.iter().filter_map(|placed| placed.within(&before));
    let right = touched.iter().filter_map(|placed| placed.within(&after));
    let wanted = coalesce(left.chain(new.iter().copied()).chain(right));
    Ok(changes_between(touched, &wanted))
}

/// The changes that make `wanted` of `existing`, both sorted.
fn changes_between(existing: &[Placed], wanted: &[Placed]) -> Vec<Change> {
    let mut changes = Vec::new();
    let (mut old, mut new) = (existing.iter().peekable(), wanted.iter().peekable());
    loop {
        match (old.peek(), new.peek()) {
            (Some(was), Some(is)) if was.offset == is.offset => {
                if was != is {
                    changes.push((is.offset, Some(is.extent)));
                }
                old.next();
                new.next();
            }
            (Some(was), is) if is.is_none_or(|is| was.offset < is.offset) => {
                changes.push((was.offset, None));
                old.next();
            }
            (_, Some(is)) => {
                changes.push((is.offset, Some(is.extent)));
                new.next();
            }
            (_, None) => return changes,
        }
    }
}

/// What has to change so that `range` is a hole.
///
/// # Errors
/// As for [`replace`].
pub fn punch(existing: &[Placed], range: Range<u64>) -> Result<Vec<Change>, ExtentError> {
    replace(existing, range, &[])
}

/// What has to change so that nothing is stored at or behind `size`. `existing` has all extents from [`search_start`]`(size)` on, or, since there may
/// be very many, a part of them in order: any run of extents can be handed over by itself.
///
/// # Errors
/// As for [`replace`].
pub fn truncate(existing: &[Placed], size: u64) -> Result<Vec<Change>, ExtentError> {
    punch(existing, size..u64::MAX)
}

/// The extents that make a copy of `source` at `destination` without copying a byte. Holes of the source are no extents of the copy: so what
/// lay there has to be replaced, as [`replace`] with the copied range does.
///
/// # Errors
/// [`ExtentError`] if `existing` is not in order or the copy would end behind the longest file.
pub fn clone_range(
    existing: &[Placed],
    source: Range<u64>,
    destination: u64,
) -> Result<Vec<Placed>, ExtentError> {
    check(existing)?;
    let moved = |placed: Placed| {
        let length = placed.extent.length;
        let offset = destination.checked_add(placed.offset - source.start);
        offset
            .filter(|offset| *offset <= MAX_FILE_BYTES - u64::from(length))
            .map(|offset| Placed { offset, ..placed })
            .ok_or(ExtentError::OutOfBounds {
                offset: placed.offset,
                length,
            })
    };
    existing
        .iter()
        .filter_map(|placed| placed.within(&source))
        .map(moved)
        .collect()
}

/// What `range` of the file consists of, in order and without gaps. Extents that overlap (in a damaged file) count from where the one before
/// ends.
pub fn pieces(existing: &[Placed], range: Range<u64>) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let mut at = range.start;
    for placed in existing {
        let Some(part) = placed.within(&(at..range.end)) else {
            continue;
        };
        if part.offset > at {
            pieces.push(Piece::Hole(at..part.offset));
        }
        at = part.end();
        pieces.push(Piece::Data(part));
    }
    if at < range.end {
        pieces.push(Piece::Hole(at..range.end));
    }
    pieces
}

/// The first offset at or behind `position` that has data: SEEK_DATA. `extents` begins at [`search_start`]`(position)` or before, and is read only as
/// far as needed.
pub fn next_data(extents: impl IntoIterator<Item = Placed>, position: u64) -> Option<u64> {
    extents
        .into_iter()
        .find(|placed| placed.end() > position)
        .map(|placed| placed.offset.max(position))
}

/// The first offset at or behind `position` that has none: SEEK_HOLE. `extents` begins at [`search_start`]`(position)` or before, and is read only as
/// far as needed. The caller bounds the answer by the file's size.
pub fn next_hole(extents: impl IntoIterator<Item = Placed>, position: u64) -> u64 {
    let mut search = HoleSearch::new(position);
    extents
        .into_iter()
        .find_map(|placed| search.feed(&placed))
        .unwrap_or(search.position())
}

/// [`next_hole`] for extents that come one by one.
#[derive(Copy, Clone, Debug)]
pub struct HoleSearch {
    at: u64,
}

impl HoleSearch {
    /// Searches from `position` on.
    pub fn new(position: u64) -> Self {
        HoleSearch { at: position }
    }

    /// Takes the next extent; returns the hole's offset if it lies before that.
    pub fn feed(&mut self, placed: &Placed) -> Option<u64> {
        if placed.offset > self.at && placed.end() > self.at {
            return Some(self.at);
        }
        self.at = self.at.max(placed.end());
        None
    }

    /// Where the hole is if no extents follow.
    pub fn position(&self) -> u64 {
        self.at
    }
}

/// By how many bytes `changes` to `existing` alter what is allocated.
pub fn allocated_change(existing: &[Placed], changes: &[Change]) -> i64 {
    let length = |extent: &Extent| i64::from(extent.length);
    changes.iter().fold(0, |sum, (offset, extent)| {
        let before = existing
            .binary_search_by_key(offset, |placed| placed.offset)
            .map_or(0, |index| length(&existing[index].extent));
        sum + extent.as_ref().map_or(0, length) - before
    })
}

/// Every target that `extents` refer to, in order, neighbours named once.
pub fn targets(extents: &[Placed]) -> impl Iterator<Item = Target> + '_ {
    let mut last = None;
    extents.iter().filter_map(move |placed| {
        let target = placed.extent.target;
        (last.replace(target) != Some(target)).then_some(target)
    })
}

#[cfg(test)]
mod tests;
