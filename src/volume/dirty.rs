//! The bytes of one file that were written and are not yet stored: a map of disjoint ranges, each
//! data or zeroes.
//!
//! Owns: the arithmetic of overlaps, and the buffers. Does not own: when the bytes are stored, and
//! where. Pure: no I/O, no clock.
//!
//! Small writes are collected in *open* pieces, which still grow and merge with an open neighbour.
//! A piece closes, that is, becomes an immutable shared buffer, as soon as a reader captures it. So
//! bytes that are being stored never change while they are hashed.
//!
//! A piece is charged with all memory that it keeps alive. If a later write leaves less than half
//! of a buffer, the rest is copied and the buffer is freed.
//!
//! The bytes of a closed piece may be in a swap file instead ([`DirtyRanges::swap_out`]). They are
//! as dirty as before.

use std::collections::BTreeMap;
use std::ops::Range;

use bkfs_chunker::swap::{Swapped, SwappedPart};
use bytes::Bytes;

pub use self::counts::Counts;
pub use self::swappable::{Looked, Swappable};

mod counts;
mod swappable;

/// Maximum length of an open piece, in bytes. Writes of at least half of it are closed from the
/// start.
const OPEN_BYTES: usize = 128 * 1024;

/// Number of copied bytes that count as one part when parts are counted.
const COPIED_PART_BYTES: usize = 16 * 1024;

/// Memory of a piece in addition to its bytes: its place in a map that is half full, and buffer
/// headers (for the memory budget).
const PIECE_OVERHEAD_BYTES: u64 = 200;

/// Memory of a piece whose bytes are in the swap file, in addition to [`PIECE_OVERHEAD_BYTES`].
const SWAPPED_OVERHEAD_BYTES: u64 = 128;

/// Length below which bytes are not swapped out, in bytes: it would free no memory.
const SWAPPED_BYTES_MIN: u64 = 4096;

/// Memory of a file with dirty bytes in addition to its pieces: the first node of the map, and its
/// place among the files.
const FILE_OVERHEAD_BYTES: u64 = 900;

#[derive(Debug, Clone)]
enum Content {
    Open(Vec<u8>),
    /// A part of a buffer that has `held` bytes.
    Closed {
        bytes: Bytes,
        held: usize,
    },
    Zero(u64),
    Swapped(SwappedPart),
}

impl Content {
    /// Returns content that is a whole buffer.
    fn whole(bytes: Bytes) -> Content {
        let held = bytes.len();
        Content::Closed { bytes, held }
    }

    fn len(&self) -> u64 {
        match self {
            Content::Open(buffer) => buffer.len() as u64,
            Content::Closed { bytes, .. } => bytes.len() as u64,
            Content::Zero(length) => *length,
            Content::Swapped(part) => part.len(),
        }
    }

    /// Returns the memory that the content holds, in bytes.
    fn cost(&self) -> u64 {
        let held = match self {
            Content::Open(buffer) => buffer.capacity(),
            Content::Closed { held, .. } => *held,
            Content::Zero(_) => 0,
            Content::Swapped(_) => SWAPPED_OVERHEAD_BYTES as usize,
        };
        held as u64 + PIECE_OVERHEAD_BYTES
    }

    /// Returns the effort to take a part of it: 1, and more if its bytes are copied for that.
    fn part_weight(&self) -> usize {
        match self {
            Content::Open(buffer) => 1 + buffer.len() / COPIED_PART_BYTES,
            Content::Closed { .. } | Content::Zero(_) | Content::Swapped(_) => 1,
        }
    }

    /// Closes it, and returns what it has.
    fn close(&mut self) -> Part {
        match self {
            Content::Open(buffer) => {
                let held = buffer.capacity();
                let bytes = Bytes::from(std::mem::take(buffer));
                *self = Content::Closed {
                    bytes: bytes.clone(),
                    held,
                };
                Part::Data(bytes)
            }
            Content::Closed { bytes, .. } => Part::Data(bytes.clone()),
            Content::Zero(_) => Part::Zero,
            Content::Swapped(part) => Part::Swapped(part.clone()),
        }
    }

    /// Returns the part `[from, to)`, in bytes from the start of this content.
    fn part(&mut self, from: u64, to: u64) -> Content {
        let part = match self.close().slice(from..to) {
            Part::Zero => return Content::Zero(to - from),
            Part::Swapped(part) => return Content::Swapped(part),
            Part::Data(part) => part,
        };
        match self {
            Content::Closed { held, .. } if part.len() >= *held / 2 => Content::Closed {
                bytes: part,
                held: *held,
            },
            _ => Content::whole(Bytes::copy_from_slice(&part)),
        }
    }

    /// Returns the first `length` bytes. An open piece stays open.
    fn shortened(mut self, length: u64) -> Content {
        match &mut self {
            Content::Open(buffer) => {
                buffer.truncate(length as usize);
                if buffer.len() < buffer.capacity() / 2 {
                    buffer.shrink_to_fit();
                }
                self
            }
            _ => self.part(0, length),
        }
    }
}

#[derive(Debug, Clone)]
struct Piece {
    content: Content,
    /// The count of the last write to it, on the volume's counter of writes.
    stamp: u64,
}

impl Piece {
    fn is_data(&self) -> bool {
        !matches!(self.content, Content::Zero(_))
    }

    /// Returns what it amounts to.
    fn counts(&self) -> Counts {
        let length = self.content.len();
        let is_in_memory = matches!(self.content, Content::Open(_) | Content::Closed { .. });
        Counts {
            cost: self.content.cost(),
            data_bytes: if self.is_data() { length } else { 0 },
            swappable_bytes: match is_in_memory && length >= SWAPPED_BYTES_MIN {
                true => length,
                false => 0,
            },
        }
    }
}

/// A part of a range, as far as it is dirty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// Written bytes.
    Data(Bytes),
    /// Zeroes: punched, truncated, or written as zeroes.
    Zero,
    /// Written bytes in the swap file.
    Swapped(SwappedPart),
}

impl Part {
    /// Returns the part `[range)` of it, in bytes from its start.
    fn slice(self, range: Range<u64>) -> Part {
        match self {
            Part::Data(bytes) => Part::Data(bytes.slice(range.start as usize..range.end as usize)),
            Part::Zero => Part::Zero,
            Part::Swapped(part) => Part::Swapped(part.slice(range)),
        }
    }
}

/// The dirty ranges of one file.
#[derive(Debug, Clone, Default)]
pub struct DirtyRanges {
    pieces: BTreeMap<u64, Piece>,
    /// Of the pieces.
    counts: Counts,
    is_private: bool,
}

impl DirtyRanges {
    /// Marks the dirty bytes as private until none are left: they must not be matched with stored
    /// content.
    pub fn set_private(&mut self) {
        self.is_private = true;
    }

    /// Returns true if [`DirtyRanges::set_private`] is in effect.
    pub fn is_private(&self) -> bool {
        self.is_private
    }

    /// Returns true if nothing is dirty.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Returns the memory held, in bytes, with overhead.
    pub fn cost(&self) -> u64 {
        match self.pieces.is_empty() {
            true => 0,
            false => self.counts.cost + FILE_OVERHEAD_BYTES,
        }
    }

    /// Returns the number of bytes of data (not zeroes).
    pub fn data_bytes(&self) -> u64 {
        self.counts.data_bytes
    }

    /// Returns the number of bytes that could be swapped out: of data in memory, without short
    /// pieces.
    pub fn swappable_bytes(&self) -> u64 {
        self.counts.swappable_bytes
    }

    /// Returns what they amount to.
    pub fn counts(&self) -> Counts {
        Counts {
            cost: self.cost(),
            ..self.counts
        }
    }

    /// Returns the number of pieces, a measure of fragmentation.
    pub fn pieces(&self) -> usize {
        self.pieces.len()
    }

    /// Writes `data` at the byte `offset`, over earlier contents. `stamp` grows from write to
    /// write.
    pub fn write(&mut self, offset: u64, data: &[u8], stamp: u64) {
        if data.is_empty() || self.write_in_place(offset, data, stamp) {
            return;
        }
        self.carve(offset..offset + data.len() as u64, u64::MAX);
        if data.len() >= OPEN_BYTES / 2 {
            let content = Content::whole(Bytes::copy_from_slice(data));
            return self.insert(offset, Piece { content, stamp });
        }
        let start = self.append(offset, data, stamp).unwrap_or_else(|| {
            let content = Content::Open(data.to_vec());
            self.insert(offset, Piece { content, stamp });
            offset
        });
        while self.absorb_next(start) {}
    }

    /// Writes a shared buffer at the byte `offset` without copying it.
    pub fn write_shared(&mut self, offset: u64, data: Bytes, stamp: u64) {
        if data.is_empty() {
            return;
        }
        self.carve(offset..offset + data.len() as u64, u64::MAX);
        let content = Content::whole(data);
        self.insert(offset, Piece { content, stamp });
    }

    /// Makes the bytes of `range` zero.
    pub fn zero(&mut self, range: Range<u64>, stamp: u64) {
        if range.is_empty() {
            return;
        }
        self.carve(range.clone(), u64::MAX);
        let content = Content::Zero(range.end - range.start);
        self.insert(range.start, Piece { content, stamp });
    }

    /// Forgets the pieces in `range` that were last written at or before `stamp`.
    pub fn forget(&mut self, range: Range<u64>, stamp: u64) {
        self.carve(range, stamp);
    }

    /// Returns the dirty parts of `range`, in order, without the gaps.
    pub fn overlaps(&self, range: Range<u64>) -> Vec<(Range<u64>, Part)> {
        let mut parts = Vec::new();
        for (start, piece) in self.overlapping(&range) {
            let from = start.max(range.start);
            let to = (start + piece.content.len()).min(range.end);
            let inner = (from - start) as usize..(to - start) as usize;
            let part = match &piece.content {
                Content::Open(buffer) => Part::Data(Bytes::copy_from_slice(&buffer[inner])),
                Content::Closed { bytes, .. } => Part::Data(bytes.slice(inner)),
                Content::Zero(_) => Part::Zero,
                Content::Swapped(part) => {
                    Part::Swapped(part.clone().slice(inner.start as u64..inner.end as u64))
                }
            };
            parts.push((from..to, part));
        }
        parts
    }

    /// Returns the end of the longest front of `range` in which [`DirtyRanges::overlaps`] finds at
    /// most `limit` parts, or one. A part of which many bytes are copied counts as several.
    pub fn end_of_parts(&self, range: &Range<u64>, limit: usize) -> u64 {
        let mut weight = 0;
        let beyond = self.overlapping(range).find(|(_, piece)| {
            let is_first = weight == 0;
            weight += piece.content.part_weight();
            !is_first && weight > limit
        });
        beyond.map_or(range.end, |(start, _)| start)
    }

    /// Returns whether the byte at `offset` is data (true), a zero (false) or not dirty (none), and
    /// the offset at which the next piece or gap begins.
    pub fn at(&self, offset: u64) -> (Option<bool>, u64) {
        match self.pieces.range(self.first_overlapping(offset)..).next() {
            Some((&start, piece)) if start <= offset => {
                (Some(piece.is_data()), start + piece.content.len())
            }
            Some((&next, _)) => (None, next),
            None => (None, u64::MAX),
        }
    }

    /// Returns the number of bytes of data (not zeroes) in `range`.
    pub fn data_bytes_in(&self, range: Range<u64>) -> u64 {
        let inside = |(start, piece): (u64, &Piece)| match piece.content {
            Content::Zero(_) => 0,
            _ => (start + piece.content.len()).min(range.end) - start.max(range.start),
        };
        self.overlapping(&range).map(inside).sum()
    }

    /// Returns maximal runs of adjacent data (true) and of adjacent zeroes (false) that begin at or
    /// after `from`, in order of offset. The iterator finds them one by one.
    pub fn runs_from(&self, from: u64) -> impl Iterator<Item = (Range<u64>, bool)> + '_ {
        let run_before = self.pieces.range(..from).next_back();
        let mut before =
            run_before.map(|(start, piece)| (start + piece.content.len(), piece.is_data()));
        let mut pieces = self.pieces.range(from..).peekable();
        std::iter::from_fn(move || {
            loop {
                let (&start, piece) = pieces.next()?;
                let is_data = piece.is_data();
                let mut end = start + piece.content.len();
                while let Some((next, piece)) = pieces.peek()
                    && **next == end
                    && piece.is_data() == is_data
                {
                    end += piece.content.len();
                    pieces.next();
                }
                // Skips the rest of a run that begins before `from`.
                if before.take() != Some((start, is_data)) {
                    return Some((start..end, is_data));
                }
            }
        })
    }

    /// Returns true if the run of data around `offset` has at least `length` bytes.
    pub fn runs_for(&self, offset: u64, length: u64) -> bool {
        let at = self.first_overlapping(offset);
        let (mut start, mut end) = (at, at);
        for (&next, piece) in self.pieces.range(at..) {
            if end - start >= length || next != end || !piece.is_data() {
                break;
            }
            end += piece.content.len();
        }
        for (&next, piece) in self.pieces.range(..at).rev() {
            if end - start >= length || next + piece.content.len() != start || !piece.is_data() {
                break;
            }
            start = next;
        }
        end - start >= length
    }

    /// Returns the parts of a run of data, and closes them. `range` must lie inside one run of
    /// data.
    pub fn capture(&mut self, range: Range<u64>) -> Vec<Part> {
        let first = self.first_overlapping(range.start);
        let mut parts = Vec::new();
        for (&start, piece) in self.pieces.range_mut(first..range.end) {
            let from = range.start.saturating_sub(start);
            let to = (range.end - start).min(piece.content.len());
            if from < to {
                parts.push(piece.content.close().slice(from..to));
            }
        }
        parts
    }

    /// Closes and returns the pieces that may be swapped out, among the first `limit` pieces from
    /// `from` on: those in memory that were last written at or before `stamp`, unless they are too
    /// short. It ends once it has found `bytes` bytes of them.
    pub fn swappable(&mut self, from: u64, stamp: u64, (limit, bytes): (usize, u64)) -> Looked {
        let mut looked = Looked::default();
        for (&offset, piece) in self.pieces.range_mut(from..) {
            if looked.pieces == limit || looked.bytes >= bytes {
                looked.next = Some(offset);
                break;
            }
            looked.pieces += 1;
            if piece.stamp > stamp || piece.counts().swappable_bytes == 0 {
                continue;
            }
            if let Part::Data(bytes) = piece.content.close() {
                let stamp = piece.stamp;
                looked.bytes += bytes.len() as u64;
                looked.swappable.push(Swappable {
                    offset,
                    stamp,
                    bytes,
                });
            }
        }
        looked
    }

    /// Replaces the bytes of a piece by what the swap file has of them, in order, unless the piece
    /// has changed since [`DirtyRanges::swappable`]. Returns whether it did.
    pub fn swap_out(&mut self, offset: u64, stamp: u64, swapped: Vec<Swapped>) -> bool {
        let swapped: Vec<_> = swapped.into_iter().map(SwappedPart::whole).collect();
        let length: u64 = swapped.iter().map(SwappedPart::len).sum();
        let is_same = self.pieces.get(&offset).is_some_and(|piece| {
            let is_in_memory = matches!(piece.content, Content::Closed { .. });
            is_in_memory && piece.stamp == stamp && piece.content.len() == length
        });
        if !is_same {
            return false;
        }
        self.remove(offset);
        let mut at = offset;
        for part in swapped {
            let start = at;
            at += part.len();
            let content = Content::Swapped(part);
            self.insert(start, Piece { content, stamp });
        }
        true
    }

    fn first_overlapping(&self, offset: u64) -> u64 {
        match self.pieces.range(..=offset).next_back() {
            Some((&start, piece)) if start + piece.content.len() > offset => start,
            _ => offset,
        }
    }

    fn overlapping<'a>(&'a self, range: &Range<u64>) -> impl Iterator<Item = (u64, &'a Piece)> {
        let first = self.first_overlapping(range.start);
        let end = range.end.max(first);
        self.pieces
            .range(first..end)
            .map(|(start, piece)| (*start, piece))
    }

    fn write_in_place(&mut self, offset: u64, data: &[u8], stamp: u64) -> bool {
        let Some((&start, piece)) = self.pieces.range_mut(..=offset).next_back() else {
            return false;
        };
        let Content::Open(buffer) = &mut piece.content else {
            return false;
        };
        let from = (offset - start) as usize;
        let Some(target) = buffer.get_mut(from..from + data.len()) else {
            return false;
        };
        target.copy_from_slice(data);
        piece.stamp = stamp;
        true
    }

    /// Appends to the open piece that ends at `offset`, if there is one with room. Returns the
    /// offset at which that piece begins.
    fn append(&mut self, offset: u64, data: &[u8], stamp: u64) -> Option<u64> {
        let (&start, piece) = self.pieces.range_mut(..offset).next_back()?;
        let before = piece.counts();
        let Content::Open(buffer) = &mut piece.content else {
            return None;
        };
        if start + buffer.len() as u64 != offset || buffer.len() + data.len() > OPEN_BYTES {
            return None;
        }
        buffer.extend_from_slice(data);
        piece.stamp = stamp;
        self.counts.replace(before, piece.counts());
        Some(start)
    }

    /// Merges the open piece at `start` with the open piece right after it. Returns true if it did.
    ///
    /// It does not merge if the second one is more than twice as long. So each byte is copied a few
    /// times, not once for each write before it.
    fn absorb_next(&mut self, start: u64) -> bool {
        let mut around = self.pieces.range(start..);
        let (Some((_, piece)), Some((&behind, next))) = (around.next(), around.next()) else {
            return false;
        };
        let (Content::Open(buffer), Content::Open(more)) = (&piece.content, &next.content) else {
            return false;
        };
        let is_near = start + buffer.len() as u64 == behind && more.len() <= 2 * buffer.len();
        if !is_near || buffer.len() + more.len() > OPEN_BYTES {
            return false;
        }
        let Some(next) = self.remove(behind) else {
            return false;
        };
        if let Content::Open(more) = &next.content {
            self.append(behind, more, next.stamp.max(self.pieces[&start].stamp));
        }
        true
    }

    fn remove(&mut self, start: u64) -> Option<Piece> {
        let piece = self.pieces.remove(&start)?;
        self.counts.replace(piece.counts(), Counts::default());
        Some(piece)
    }

    fn insert(&mut self, offset: u64, piece: Piece) {
        self.counts.replace(Counts::default(), piece.counts());
        self.pieces.insert(offset, piece);
    }

    /// Cuts `range` out of every piece whose stamp is at most `stamp`, and keeps the rest of the
    /// piece on either side.
    fn carve(&mut self, range: Range<u64>, stamp: u64) {
        let starts: Vec<u64> = self
            .overlapping(&range)
            .filter(|(_, piece)| piece.stamp <= stamp)
            .map(|(start, _)| start)
            .collect();
        for start in starts {
            let Some(Piece { mut content, stamp }) = self.remove(start) else {
                continue;
            };
            let length = content.len();
            let end = start + length;
            if end > range.end {
                let content = content.part(range.end - start, length);
                self.insert(range.end, Piece { content, stamp });
            }
            if start < range.start {
                let content = content.shortened(range.start - start);
                self.insert(start, Piece { content, stamp });
            }
        }
    }
}

#[cfg(test)]
mod tests;
