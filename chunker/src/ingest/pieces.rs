//! Chunking of a run that lies in several pieces of memory: pure.
//!
//! Owns the joining of pieces into contiguous chunks. Pieces shorter than the longest chunk are
//! joined first. Of longer pieces only the chunks that cross the border of two are copied. So each
//! byte is processed only a few times, whatever the sizes of the pieces. Does not own where chunks
//! end.

use bytes::{Bytes, BytesMut};

use super::segments::{Named, SplitParameters};
use crate::chunking::Cutter;

/// Divides `run`, which begins at `plan.file_offset`, into chunks without names. The chunks are the
/// same as if the run lay in one piece.
pub(super) fn cut(cutter: &Cutter, plan: &SplitParameters, run: Vec<Bytes>) -> Vec<Named> {
    let mut cutting = Cutting {
        cutter,
        plan,
        start: 0,
        named: Vec::new(),
    };
    // The rest of the previous pieces: the beginning of a chunk, shorter than the longest chunk.
    let mut rest = Bytes::new();
    let longest = cutter.parameters().longest(plan.profile) as usize;
    for piece in gathered(run, longest) {
        rest = cutting.piece(rest, piece);
    }
    cutting.named
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

struct Cutting<'a> {
    cutter: &'a Cutter,
    plan: &'a SplitParameters,
    /// Offset of the next chunk in the run, in bytes.
    start: usize,
    named: Vec<Named>,
}

impl Cutting<'_> {
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
        let longest = self.cutter.parameters().longest(self.plan.profile) as usize;
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
        let is_end = self.plan.end_of_data == Some(self.start + bytes.len());
        let offset = self.plan.file_offset + self.start as u64;
        self.cutter.first(self.plan.profile, bytes, offset, is_end)
    }

    fn push(&mut self, bytes: Bytes) {
        let start = self.start;
        self.start += bytes.len();
        self.named.push(Named {
            start,
            is_zero: crate::chunking::is_zero(&bytes),
            bytes,
            id: None,
            known: None,
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
mod tests {
    use super::*;
    use crate::chunking::{Parameters, Profile};
    use proptest::prelude::*;

    fn cutter() -> Cutter {
        let gear = std::array::from_fn(|number| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&blake3::hash(&[number as u8]).as_bytes()[..8]);
            u64::from_le_bytes(bytes)
        });
        let small = Parameters::from_array([4096, 1024, 4096, 16_384, 8192]);
        Cutter::new(small.expect("within bounds"), &gear)
    }

    fn shape(named: &[Named]) -> Vec<(usize, Bytes, bool)> {
        let shape = |chunk: &Named| (chunk.start, chunk.bytes.clone(), chunk.is_zero);
        named.iter().map(shape).collect()
    }

    /// Each of 2,048 pieces of 512 bytes was once joined to all pieces before it in its chunk, and
    /// the result was chunked again: 64 MiB took 6 s of processor time.
    #[test]
    fn short_pieces_are_joined_once() {
        let whole = Bytes::from(
            (0..1 << 20)
                .map(|at| (at / 7 % 251) as u8)
                .collect::<Vec<_>>(),
        );
        let pieces = |size: usize| whole.chunks(size).map(|piece| whole.slice_ref(piece));
        let joined: Vec<_> = gathered(pieces(512).collect(), 16 << 10).collect();
        assert!(joined.iter().all(|piece| piece.len() == 16 << 10));
        assert_eq!(joined.concat(), whole);
        // Long pieces stay as they are, and short pieces between them are joined only to each
        // other.
        let mixed: Vec<Bytes> = [20_000, 5, 6, 30_000, 7]
            .map(|size| whole.slice(..size))
            .into();
        let lengths: Vec<_> = gathered(mixed, 16 << 10).map(|piece| piece.len()).collect();
        assert_eq!(lengths, [20_000, 11, 30_000, 7]);
    }

    proptest! {
        #[test]
        fn pieces_are_cut_as_the_whole_is(
            seed: u64, length in 0..120_000usize, alphabet in 1..=255u8, offset in 0..4u64,
            at_end: bool,
            mut borders in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
            profile in 0..3usize,
        ) {
            let mut bytes = vec![0; length];
            blake3::Hasher::new().update(&seed.to_le_bytes()).finalize_xof().fill(&mut bytes);
            bytes.iter_mut().for_each(|byte| *byte %= alphabet);
            let whole = Bytes::from(bytes);
            let plan = SplitParameters {
                profile: Profile::ALL[profile],
                file_offset: offset * 1000,
                end_of_data: at_end.then_some(length),
            };
            let mut ends: Vec<usize> = borders
                .drain(..)
                .map(|border| border.index(length + 1))
                .collect();
            ends.push(length);
            ends.sort_unstable();
            let mut start = 0;
            let pieces = ends
                .into_iter()
                .map(|end| whole.slice(std::mem::replace(&mut start, end)..end));
            let cutter = cutter();
            let in_pieces = cut(&cutter, &plan, pieces.collect());
            let in_one = cut(&cutter, &plan, vec![whole.clone()]);
            prop_assert_eq!(shape(&in_pieces), shape(&in_one));
            let mut cuts = Vec::new();
            cutter.cut(plan.profile, &whole, plan.file_offset, at_end, &mut cuts);
            let known: Vec<_> = cuts
                .into_iter()
                .map(|cut| (cut.range.start, whole.slice(cut.range), cut.is_zero))
                .collect();
            prop_assert_eq!(shape(&in_one), known);
        }
    }
}
