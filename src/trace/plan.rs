//! From the ranges of a trace to the batches of its replay.
//!
//! Owns how ranges are divided, which of them are fetched together, and the bound on the bytes of
//! files that one replay looks at. Pure.

use crate::trace::format::{PAGE_BYTES, Touch, Trace};

/// The most bytes of files in a batch. A batch is what is coalesced per pack.
pub const BATCH_BYTES: u64 = 8 << 20;

/// The most ranges in a batch.
const BATCH_RANGES: usize = 1024;

/// The most bytes of files that a replay looks at. A trace of a hostile writer can name a sparse
/// file of any size a million times.
pub const REPLAY_BYTES_MAX: u64 = 1 << 40;

/// Ranges that follow each other, of [`BATCH_BYTES`] at most.
pub type Batch = Vec<Touch>;

/// Returns the batches of a trace, by rank.
pub fn batches(trace: &Trace) -> impl Iterator<Item = Batch> {
    let mut parts = trace.touches.iter().flat_map(|touch| parts(*touch));
    let mut waiting: Option<Touch> = None;
    let mut left = REPLAY_BYTES_MAX / PAGE_BYTES;
    std::iter::from_fn(move || {
        let mut batch = Batch::new();
        let mut room = (BATCH_BYTES / PAGE_BYTES).min(left);
        while batch.len() < BATCH_RANGES {
            match waiting.take().or_else(|| parts.next()) {
                Some(part) if part.pages <= room => {
                    room -= part.pages;
                    left -= part.pages;
                    batch.push(part);
                }
                other => {
                    waiting = other;
                    break;
                }
            }
        }
        (!batch.is_empty()).then_some(batch)
    })
}

/// Divides a range into ranges that fit into a batch.
fn parts(touch: Touch) -> impl Iterator<Item = Touch> {
    let most = BATCH_BYTES / PAGE_BYTES;
    (0..touch.pages.div_ceil(most)).map(move |number| {
        let begin = number * most;
        Touch {
            page: touch.page + begin,
            pages: most.min(touch.pages - begin),
            ..touch
        }
    })
}

/// Returns the bytes of files that a replay of a trace looks at.
pub fn bytes_of(trace: &Trace) -> u64 {
    trace.total_bytes().min(REPLAY_BYTES_MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn trace(ranges: &[(u64, u64)]) -> Trace {
        let touches = ranges.iter().map(|(page, pages)| Touch {
            file: 0,
            page: *page,
            pages: *pages,
        });
        Trace {
            touches: touches.collect(),
            paths: vec![b"a".to_vec()],
        }
    }

    #[test]
    fn a_replay_of_any_trace_ends() {
        let endless = trace(&[(0, 1 << 50), (0, 1 << 50)]);
        let bytes = |batch: Batch| batch.iter().map(|part| part.pages).sum::<u64>() * PAGE_BYTES;
        // More than the bound has, so that a replay without a bound fails here as well.
        let total: u64 = batches(&endless).take(140_000).map(bytes).sum();
        assert_eq!(total, REPLAY_BYTES_MAX);
        assert_eq!(bytes_of(&endless), REPLAY_BYTES_MAX);
        assert_eq!(batches(&trace(&[])).count(), 0);
    }

    proptest! {
        #[test]
        fn all_ranges_come_by_rank_within_bounds(
            ranges in prop::collection::vec((0u64..1 << 30, 1u64..9000), 0..60),
        ) {
            let trace = trace(&ranges);
            let mut pages = Vec::new();
            for batch in batches(&trace) {
                prop_assert!(!batch.is_empty() && batch.len() <= BATCH_RANGES);
                let bytes = batch.iter().map(|part| part.pages).sum::<u64>() * PAGE_BYTES;
                prop_assert!(bytes <= BATCH_BYTES);
                let all = batch.iter().flat_map(|part| part.page..part.page + part.pages);
                pages.extend(all);
            }
            let wanted = ranges.iter().flat_map(|(page, pages)| *page..page + pages);
            prop_assert!(pages == wanted.collect::<Vec<_>>());
        }
    }
}
