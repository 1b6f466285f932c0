//! The choice of the ranges to fetch: pure.
//!
//! Owns the rule that frames which lie close together are fetched by one request.

use std::ops::Range;

/// The largest gap between frames that is fetched to save a request, in bytes.
pub(crate) const GAP_BYTES: u64 = 64 << 10;

/// The largest range of one request, in bytes, unless a single frame is larger.
pub(crate) const RANGE_BYTES: u64 = 8 << 20;

/// Groups frames of one pack into ranges to fetch.
///
/// `frames` gives the bytes that each frame occupies in the pack. Each frame lies entirely in the
/// range that lists it. Returns the ranges in ascending order, each with the positions in `frames`
/// that it serves. `largest` bounds a range that serves several frames, in bytes.
pub(crate) fn coalesce(frames: &[Range<u64>], largest: u64) -> Vec<(Range<u64>, Vec<usize>)> {
    let mut order: Vec<usize> = (0..frames.len()).collect();
    order.sort_by_key(|&position| (frames[position].start, frames[position].end));
    let mut ranges: Vec<(Range<u64>, Vec<usize>)> = Vec::new();
    for position in order {
        let frame = &frames[position];
        if let Some((range, served)) = ranges.last_mut() {
            let end = range.end.max(frame.end);
            let close = frame.start <= range.end.saturating_add(GAP_BYTES);
            if frame.end <= range.end || (close && end - range.start <= largest) {
                range.end = end;
                served.push(position);
                continue;
            }
        }
        ranges.push((frame.clone(), vec![position]));
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn neighbours_share_a_request_and_strangers_do_not() {
        let near = [0..100, 100 + GAP_BYTES..200 + GAP_BYTES];
        assert_eq!(coalesce(&near, RANGE_BYTES).len(), 1);
        let far = [0..100, 101 + GAP_BYTES..200 + GAP_BYTES];
        assert_eq!(coalesce(&far, RANGE_BYTES).len(), 2);
        let many: Vec<_> = (0..100u64)
            .map(|n| n * 100_000..(n + 1) * 100_000)
            .collect();
        assert_eq!(coalesce(&many, RANGE_BYTES).len(), 2);
        let huge = [0..2 * RANGE_BYTES, 3 * RANGE_BYTES..5 * RANGE_BYTES];
        let expected = vec![(huge[0].clone(), vec![0]), (huge[1].clone(), vec![1])];
        assert_eq!(coalesce(&huge, RANGE_BYTES), expected);
    }

    proptest! {
        #[test]
        fn every_frame_is_served_once_within_bounds(
            frames in prop::collection::vec((0u64..20_000_000, 1u64..300_000), 0..100),
        ) {
            let frames: Vec<_> = frames
                .into_iter()
                .map(|(start, length)| start..start + length)
                .collect();
            let mut served = vec![0; frames.len()];
            let mut end_before = None;
            for (range, positions) in coalesce(&frames, RANGE_BYTES) {
                prop_assert!(range.end - range.start <= RANGE_BYTES);
                prop_assert!(!positions.is_empty());
                prop_assert!(end_before.is_none_or(|before| range.start >= before));
                end_before = Some(range.start);
                for position in positions {
                    served[position] += 1;
                    prop_assert!(
                        range.start <= frames[position].start && frames[position].end <= range.end
                    );
                }
            }
            prop_assert!(served.into_iter().all(|count| count == 1));
        }
    }
}
