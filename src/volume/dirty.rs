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

use std::collections::BTreeMap;
use std::ops::Range;

use bytes::Bytes;

/// Maximum length of an open piece, in bytes. Writes of at least half of it are closed from the
/// start.
const OPEN_BYTES: usize = 128 * 1024;

/// Number of copied bytes that count as one part when parts are counted.
const COPIED_PART_BYTES: usize = 16 * 1024;

/// Memory of a piece in addition to its bytes: its place in a map that is half full, and buffer
/// headers (for the memory budget).
const PIECE_OVERHEAD_BYTES: u64 = 200;

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
        }
    }

    /// Returns the memory that the content holds, in bytes.
    fn cost(&self) -> u64 {
        let held = match self {
            Content::Open(buffer) => buffer.capacity(),
            Content::Closed { held, .. } => *held,
            Content::Zero(_) => 0,
        };
        held as u64 + PIECE_OVERHEAD_BYTES
    }

    /// Returns the effort to take a part of it: 1, and more if its bytes are copied for that.
    fn part_weight(&self) -> usize {
        match self {
            Content::Open(buffer) => 1 + buffer.len() / COPIED_PART_BYTES,
            Content::Closed { .. } | Content::Zero(_) => 1,
        }
    }

    fn close(&mut self) -> Bytes {
        match self {
            Content::Open(buffer) => {
                let held = buffer.capacity();
                let bytes = Bytes::from(std::mem::take(buffer));
                *self = Content::Closed {
                    bytes: bytes.clone(),
                    held,
                };
                bytes
            }
            Content::Closed { bytes, .. } => bytes.clone(),
            Content::Zero(_) => Bytes::new(),
        }
    }

    /// Returns the part `[from, to)`, in bytes from the start of this content.
    fn part(&mut self, from: u64, to: u64) -> Content {
        if let Content::Zero(_) = self {
            return Content::Zero(to - from);
        }
        let part = self.close().slice(from as usize..to as usize);
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
}

/// A part of a range, as far as it is dirty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// Written bytes.
    Data(Bytes),
    /// Zeroes: punched, truncated, or written as zeroes.
    Zero,
}

/// The dirty ranges of one file.
#[derive(Debug, Clone, Default)]
pub struct DirtyRanges {
    pieces: BTreeMap<u64, Piece>,
    cost: u64,
    data_bytes: u64,
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
            false => self.cost + FILE_OVERHEAD_BYTES,
        }
    }

    /// Returns the number of bytes of data (not zeroes).
    pub fn data_bytes(&self) -> u64 {
        self.data_bytes
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

    /// Returns the buffers of a run of data, and closes them. `range` must lie inside one run of
    /// data.
    pub fn capture(&mut self, range: Range<u64>) -> Vec<Bytes> {
        let first = self.first_overlapping(range.start);
        let mut buffers = Vec::new();
        for (&start, piece) in self.pieces.range_mut(first..range.end) {
            let bytes = piece.content.close();
            let from = range.start.saturating_sub(start) as usize;
            let to = (range.end - start).min(bytes.len() as u64) as usize;
            if from < to {
                buffers.push(bytes.slice(from..to));
            }
        }
        buffers
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
        let Content::Open(buffer) = &mut piece.content else {
            return None;
        };
        if start + buffer.len() as u64 != offset || buffer.len() + data.len() > OPEN_BYTES {
            return None;
        }
        let before = buffer.capacity();
        buffer.extend_from_slice(data);
        self.cost += (buffer.capacity() - before) as u64;
        self.data_bytes += data.len() as u64;
        piece.stamp = stamp;
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
        self.account(&piece, false);
        Some(piece)
    }

    fn insert(&mut self, offset: u64, piece: Piece) {
        self.account(&piece, true);
        self.pieces.insert(offset, piece);
    }

    fn account(&mut self, piece: &Piece, added: bool) {
        let data = if piece.is_data() {
            piece.content.len()
        } else {
            0
        };
        if added {
            self.cost += piece.content.cost();
            self.data_bytes += data;
        } else {
            self.cost -= piece.content.cost();
            self.data_bytes -= data;
        }
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
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SPACE: usize = 400_000;

    #[derive(Debug, Clone)]
    enum Op {
        Write(usize, usize),
        Shared(usize, usize),
        Zero(usize, usize),
        Forget(usize, usize, u64),
        Capture,
    }

    fn op() -> impl Strategy<Value = Op> {
        let place = 0..SPACE;
        let length = prop_oneof![1usize..64, 1usize..5_000, 60_000usize..150_000];
        prop_oneof![
            (place.clone(), length.clone()).prop_map(|(a, b)| Op::Write(a, b)),
            (place.clone(), length.clone()).prop_map(|(a, b)| Op::Shared(a, b)),
            (place.clone(), length.clone()).prop_map(|(a, b)| Op::Zero(a, b)),
            (place, length, 0u64..60).prop_map(|(a, b, s)| Op::Forget(a, b, s)),
            Just(Op::Capture),
        ]
    }

    #[test]
    fn a_part_weighs_what_is_copied_for_it() {
        let mut content = Content::Open(vec![1; 4 * COPIED_PART_BYTES]);
        assert_eq!(content.part_weight(), 5);
        content.close();
        assert_eq!(content.part_weight(), 1);
        assert_eq!(Content::Zero(1 << 40).part_weight(), 1);
    }

    #[test]
    fn a_run_is_as_long_as_its_data() {
        let mut dirty = DirtyRanges::default();
        dirty.write(100, &[1; 50], 1);
        dirty.write(150, &[2; 50], 2);
        dirty.write(300, &[3; 50], 3);
        for at in [100, 149, 150, 199] {
            assert!(dirty.runs_for(at, 100), "around {at}");
            assert!(!dirty.runs_for(at, 101), "around {at}");
        }
        assert!(dirty.runs_for(320, 50) && !dirty.runs_for(320, 51));
    }

    /// Each byte of the model: its value and the stamp of its write; `None` if it is not dirty.
    type Model = Vec<Option<(u8, u64)>>;

    fn check(dirty: &DirtyRanges, model: &Model) {
        let mut seen: Vec<Option<u8>> = vec![None; model.len()];
        for (range, part) in dirty.overlaps(0..model.len() as u64) {
            for at in range.clone() {
                let value = match &part {
                    Part::Data(bytes) => bytes[(at - range.start) as usize],
                    Part::Zero => 0,
                };
                assert!(
                    seen[at as usize].replace(value).is_none(),
                    "pieces overlap at {at}"
                );
            }
        }
        let expected: Vec<Option<u8>> = model
            .iter()
            .map(|byte| byte.map(|(value, _)| value))
            .collect();
        assert!(seen == expected);
        let data: u64 = dirty
            .runs_from(0)
            .filter(|(_, data)| *data)
            .map(|(run, _)| run.end - run.start)
            .sum();
        assert_eq!(data, dirty.data_bytes());
        let pieces = dirty.pieces.values();
        let cost: u64 = pieces.map(|piece| piece.content.cost()).sum();
        let file = if dirty.is_empty() {
            0
        } else {
            FILE_OVERHEAD_BYTES
        };
        assert_eq!(cost + file, dirty.cost());
        for piece in dirty.pieces.values() {
            if let Content::Closed { bytes, held } = &piece.content {
                assert!(bytes.len() >= held / 2, "a remainder pins its buffer");
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn behaves_like_a_vector_of_bytes(ops in proptest::collection::vec(op(), 1..40)) {
            let mut dirty = DirtyRanges::default();
            let mut model: Model = vec![None; SPACE + 200_000];
            for (stamp, op) in ops.iter().enumerate() {
                let stamp = stamp as u64 + 1;
                match *op {
                    Op::Write(at, length) | Op::Shared(at, length) => {
                        let data: Vec<u8> = (0..length)
                            .map(|i| (i as u8).wrapping_mul(7) ^ stamp as u8)
                            .collect();
                        if matches!(op, Op::Write(..)) {
                            dirty.write(at as u64, &data, stamp);
                        } else {
                            dirty.write_shared(at as u64, Bytes::from(data.clone()), stamp);
                        }
                        for (i, value) in data.iter().enumerate() {
                            model[at + i] = Some((*value, stamp));
                        }
                    }
                    Op::Zero(at, length) => {
                        dirty.zero(at as u64..(at + length) as u64, stamp);
                        model[at..at + length].fill(Some((0, stamp)));
                    }
                    Op::Forget(at, length, limit) => {
                        // A piece carries the stamp of its latest write, so the result is exact
                        // only for a limit that no open piece straddles.
                        let limit = if limit >= stamp { u64::MAX } else { 0 };
                        dirty.forget(at as u64..(at + length) as u64, limit);
                        if limit > 0 {
                            model[at..at + length].fill(None);
                        }
                    }
                    Op::Capture => {
                        let runs: Vec<_> = dirty.runs_from(0).collect();
                        for (run, data) in runs {
                            if data {
                                let bytes: Vec<u8> = dirty.capture(run.clone()).concat();
                                let expected: Vec<u8> =
                                    model[run.start as usize..run.end as usize]
                                        .iter()
                                        .map(|b| b.unwrap().0)
                                        .collect();
                                prop_assert!(bytes == expected);
                            }
                        }
                    }
                }
                check(&dirty, &model);
            }
        }
    }

    #[test]
    fn a_captured_piece_does_not_change_under_its_reader() {
        let mut dirty = DirtyRanges::default();
        dirty.write(0, b"old contents", 1);
        let captured = dirty.capture(0..12).concat();
        dirty.write(0, b"new", 2);
        dirty.write(12, b" and more", 3);
        assert_eq!(captured, b"old contents");
        dirty.forget(0..12, 1);
        let rest: Vec<_> = dirty
            .overlaps(0..100)
            .into_iter()
            .map(|(range, _)| range)
            .collect();
        assert_eq!(
            rest,
            vec![0..3, 12..21],
            "what was written after the capture stays dirty"
        );
    }

    #[test]
    fn small_appends_share_a_buffer() {
        let mut dirty = DirtyRanges::default();
        for i in 0..1000u64 {
            dirty.write(i * 10, b"0123456789", i);
        }
        assert_eq!(dirty.pieces(), 1);
    }

    /// A buffer that shows when it is freed.
    struct Tracked {
        bytes: Vec<u8>,
        _alive: std::sync::Arc<()>,
    }

    impl AsRef<[u8]> for Tracked {
        fn as_ref(&self) -> &[u8] {
            &self.bytes
        }
    }

    /// A file was written and truncated to its first bytes repeatedly, and held all bytes that were
    /// ever written.
    #[test]
    fn regression_what_is_left_of_a_buffer_does_not_keep_the_whole() {
        let alive = std::sync::Arc::new(());
        let mut dirty = DirtyRanges::default();
        let buffer = |at: u64, dirty: &mut DirtyRanges| {
            let bytes = Bytes::from_owner(Tracked {
                bytes: vec![7; 1 << 20],
                _alive: alive.clone(),
            });
            dirty.write_shared(at, bytes, 1);
        };
        buffer(0, &mut dirty);
        dirty.zero(2048..1 << 20, 2);
        assert_eq!(std::sync::Arc::strong_count(&alive), 1, "cut off");
        assert!(dirty.cost() <= 2048 + 2 * PIECE_OVERHEAD_BYTES + FILE_OVERHEAD_BYTES);
        buffer(4 << 20, &mut dirty);
        dirty.forget((4 << 20)..(5 << 20) - 2048, 1);
        assert_eq!(
            std::sync::Arc::strong_count(&alive),
            1,
            "stored but for its end"
        );
        buffer(8 << 20, &mut dirty);
        dirty.zero((8 << 20)..(8 << 20) + 4096, 2);
        assert_eq!(
            std::sync::Arc::strong_count(&alive),
            2,
            "most of it is left"
        );
        assert!(dirty.cost() >= 1 << 20, "and all of it is charged");
        assert_eq!(dirty.data_bytes(), 2048 + 2048 + (1 << 20) - 4096);
    }

    #[test]
    fn small_writes_that_touch_become_few_pieces_in_whatever_order_they_come() {
        const COUNT: u64 = 16_384;
        let forward = |n: u64| n;
        let backward = |n: u64| COUNT - 1 - n;
        let scattered = |n: u64| n * 7919 % COUNT;
        for order in [forward, backward, scattered] {
            let mut dirty = DirtyRanges::default();
            for n in 0..COUNT {
                dirty.write(order(n) * 512, &[n as u8; 512], n);
            }
            assert_eq!(dirty.runs_from(0).count(), 1);
            assert!(dirty.pieces() <= 8 * 64, "{} pieces", dirty.pieces());
            assert!(dirty.cost() <= 2 * COUNT * 512);
        }
    }

    /// The charge for a piece covers a node of the map that is little more than half full: 6 of 11
    /// places.
    #[test]
    fn a_small_range_costs_what_it_is_charged() {
        let place = std::mem::size_of::<u64>() + std::mem::size_of::<Piece>();
        assert!((place * 11 + 16) as u64 / 6 + 64 <= PIECE_OVERHEAD_BYTES);
        let mut dirty = DirtyRanges::default();
        for n in 0..65_536u64 {
            dirty.write(n * 1024, &[1; 512], n);
        }
        assert!(dirty.cost() <= 65_536 * (512 + 200) + FILE_OVERHEAD_BYTES);
        assert!(dirty.cost() <= 64 << 20);
    }
}
