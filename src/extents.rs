//! The extents of one file: which stored bytes lie where in the file, and how writes change that.
//!
//! This module owns the arithmetic of splitting, trimming, joining and copying extents, and the
//! search for data and holes. It is pure: it takes the existing extents and returns changes. It
//! therefore works on a tree, on changes in memory, and on changes layered over a tree. It does not
//! read or store anything.
//!
//! An extent is at most [`MAX_EXTENT_BYTES`] long. The extents that overlap or touch offset *x*
//! therefore begin at [`search_start`]`(x)` or later. A caller may pass more extents than it needs:
//! extents far from the range in question change nothing.

use std::ops::Range;

use thiserror::Error;

use crate::tree::item::{Extent, MAX_EXTENT_BYTES, Target};

/// Size of the largest file, in bytes: the largest value of a signed 64-bit offset, which is the
/// kernel's limit of offsets (`MAX_LFS_FILESIZE`).
pub const MAX_FILE_BYTES: u64 = i64::MAX as u64;

/// Returns the first offset at which an extent may begin that reaches `offset` or ends right there.
pub fn search_start(offset: u64) -> u64 {
    offset.saturating_sub(MAX_EXTENT_BYTES.into())
}

/// An error in the extents that a caller passed.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Error)]
pub enum ExtentError {
    /// The extents are not in order, or one reaches into the next.
    #[error("extents of a file overlap at offset {offset}")]
    Overlap {
        /// Offset of the later extent, in bytes of the file.
        offset: u64,
    },
    /// An extent is empty, too long, or ends behind the end of the largest file, or its range in
    /// the target exceeds 32 bits.
    #[error("extent of {length} bytes at offset {offset} is out of bounds")]
    OutOfBounds {
        /// Offset of the extent, in bytes of the file.
        offset: u64,
        /// Length of the extent in bytes.
        length: u32,
    },
    /// A new extent lies outside the range that it is meant to fill.
    #[error("extent at offset {offset} lies outside the range to be replaced")]
    OutOfRange {
        /// Offset of the extent, in bytes of the file.
        offset: u64,
    },
}

/// An extent and its offset in the file.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Hash)]
pub struct Placed {
    /// Offset of the first byte in the file.
    pub offset: u64,
    /// The extent at this offset.
    pub extent: Extent,
}

/// A change to the extents of a file: the extent that begins at this offset becomes the given one,
/// or is removed (`None`).
pub type Change = (u64, Option<Extent>);

/// A part of a range of a file.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Piece {
    /// Stored bytes, trimmed to the range.
    Data(Placed),
    /// Zeroes, for which nothing is stored.
    Hole(Range<u64>),
}

impl Placed {
    /// Returns the offset right behind the last byte.
    pub fn end(&self) -> u64 {
        self.offset.saturating_add(self.extent.length.into())
    }

    /// Returns the part that lies in `range`, or `None` if no byte does.
    ///
    /// A part that does not include the end of the extent is not open.
    pub fn within(&self, range: &Range<u64>) -> Option<Placed> {
        let start = self.offset.max(range.start);
        let end = self.end().min(range.end);
        if start >= end {
            return None;
        }
        // Both differences are at most the length of the extent, which fits 32 bits.
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

    /// Returns this extent and `next` as one extent, if they are adjacent in the file and in the
    /// same target.
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

/// Checks that extents are in order and do not overlap, and that none is empty or too long.
///
/// # Errors
/// [`ExtentError::Overlap`] if an extent begins before the end of the one before it,
/// [`ExtentError::OutOfBounds`] for an extent outside of the limits.
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

/// Joins neighbours that are one run of one target, up to the longest extent.
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

/// Returns the changes after which `range` of the file holds exactly `new`, and holes where `new`
/// has nothing.
///
/// `existing` has all extents that overlap `range`, in order. It should also have those that touch
/// `range`, since new and old extents are joined where they are one run of one target. If an extent
/// reaches out of the range, its part outside stays. The changes are sorted by offset, and each of
/// them changes something.
///
/// # Errors
/// [`ExtentError::Overlap`] or [`ExtentError::OutOfBounds`] if `existing` or `new` fails [`check`];
/// [`ExtentError::OutOfRange`] if `new` reaches out of `range`.
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

/// Returns the changes that turn `existing` into `wanted`. Both are sorted.
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

/// Returns the changes after which `range` is a hole.
///
/// # Errors
/// As [`replace`].
pub fn punch(existing: &[Placed], range: Range<u64>) -> Result<Vec<Change>, ExtentError> {
    replace(existing, range, &[])
}

/// Returns the changes after which nothing is stored at or behind offset `size`.
///
/// `existing` has all extents from [`search_start`]`(size)` on. Since these can be very many, it
/// may also have a part of them, in order: the caller can pass each run of extents in a call of its
/// own.
///
/// # Errors
/// As [`replace`].
pub fn truncate(existing: &[Placed], size: u64) -> Result<Vec<Change>, ExtentError> {
    punch(existing, size..u64::MAX)
}

/// Returns the extents of a copy of `source` at offset `destination`.
///
/// The copy refers to the same targets, and no byte is copied.
///
/// A hole of the source has no extent in the copy. The caller must therefore replace the old
/// extents of the whole copied range, as [`replace`] does.
///
/// # Errors
/// [`ExtentError::Overlap`] or [`ExtentError::OutOfBounds`] if `existing` fails [`check`];
/// [`ExtentError::OutOfBounds`], with the offset in the source, if the copy would end behind the
/// end of the largest file.
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

/// Returns the pieces of `range` of the file, in order and without gaps.
///
/// Extents of a damaged file can overlap. The later one then counts from the end of the one before
/// it.
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

/// Returns the first offset at or behind `position` that has data (SEEK_DATA), or `None` if there
/// is none.
///
/// `extents` begins at [`search_start`]`(position)` or before, and is read only as far as needed.
pub fn next_data(extents: impl IntoIterator<Item = Placed>, position: u64) -> Option<u64> {
    extents
        .into_iter()
        .find(|placed| placed.end() > position)
        .map(|placed| placed.offset.max(position))
}

/// Returns the first offset at or behind `position` that has no data (SEEK_HOLE).
///
/// `extents` begins at [`search_start`]`(position)` or before, and is read only as far as needed.
/// The caller bounds the result by the size of the file.
pub fn next_hole(extents: impl IntoIterator<Item = Placed>, position: u64) -> u64 {
    let mut search = HoleSearch::new(position);
    extents
        .into_iter()
        .find_map(|placed| search.feed(&placed))
        .unwrap_or(search.position())
}

/// A [`next_hole`] for extents that arrive one by one.
#[derive(Copy, Clone, Debug)]
pub struct HoleSearch {
    at: u64,
}

impl HoleSearch {
    /// Returns a search from `position` on.
    pub fn new(position: u64) -> Self {
        HoleSearch { at: position }
    }

    /// Takes the next extent. Returns the offset of the hole if it lies before that extent.
    pub fn feed(&mut self, placed: &Placed) -> Option<u64> {
        if placed.offset > self.at && placed.end() > self.at {
            return Some(self.at);
        }
        self.at = self.at.max(placed.end());
        None
    }

    /// Returns the offset of the hole if no more extents follow.
    pub fn position(&self) -> u64 {
        self.at
    }
}

/// Returns by how many bytes `changes` to `existing` change the allocated bytes of the file.
pub fn allocated_change(existing: &[Placed], changes: &[Change]) -> i64 {
    let length = |extent: &Extent| i64::from(extent.length);
    changes.iter().fold(0, |sum, (offset, extent)| {
        let before = existing
            .binary_search_by_key(offset, |placed| placed.offset)
            .map_or(0, |index| length(&existing[index].extent));
        sum + extent.as_ref().map_or(0, length) - before
    })
}

/// Returns every target that `extents` refer to, in order.
///
/// Adjacent extents with the same target yield it once.
pub fn targets(extents: &[Placed]) -> impl Iterator<Item = Target> + '_ {
    let mut last = None;
    extents.iter().filter_map(move |placed| {
        let target = placed.extent.target;
        (last.replace(target) != Some(target)).then_some(target)
    })
}

#[cfg(test)]
mod tests;
