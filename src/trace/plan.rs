//! From the ranges of a trace to the batches of its replay.
//!
//! Owns how ranges are divided, which of them are fetched together, and the bound on the bytes of
//! files that one replay looks at. A place that was in an earlier range is left out. Pure.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::ops::Range;

use crate::trace::format::{PAGE_BYTES, Touch, Trace};
use crate::trace::recorder::PLACE_PAGES;

/// The most bytes of files in a batch. A batch is what is coalesced per pack.
pub const BATCH_BYTES: u64 = 8 << 20;

/// The most ranges that are looked at for a batch.
const BATCH_RANGES: usize = 1024;

/// The most groups of 64 places that are remembered, of 24 bytes: 256 GiB of files. What is not
/// remembered is fetched again.
const GROUPS_MAX: usize = 262_144;

/// The most bytes of files that a replay looks at. A trace of a hostile writer can name a sparse
/// file of any size a million times.
pub const REPLAY_BYTES_MAX: u64 = 1 << 40;

/// Ranges that follow each other, of [`BATCH_BYTES`] at most. It may be empty.
pub type Batch = Vec<Touch>;

/// Returns the batches of a trace, by rank, in whole places.
pub fn batches(trace: &Trace) -> impl Iterator<Item = Batch> {
    let mut parts = trace.touches.iter().flat_map(|touch| parts(*touch));
    let mut waiting = VecDeque::new();
    let mut planned = Planned::default();
    let mut left = REPLAY_BYTES_MAX / PAGE_BYTES;
    std::iter::from_fn(move || {
        let mut batch = Batch::new();
        let mut room = BATCH_BYTES / PAGE_BYTES;
        for _ in 0..BATCH_RANGES {
            let Some(range) = waiting.pop_front() else {
                match parts.next().filter(|part| part.pages <= left) {
                    Some(part) => {
                        // A place that was planned before counts as well, so that this ends.
                        left -= part.pages;
                        planned.add(part, &mut waiting);
                        continue;
                    }
                    None => {
                        left = 0;
                        return (!batch.is_empty()).then_some(batch);
                    }
                }
            };
            if range.pages > room {
                waiting.push_front(range);
                break;
            }
            room -= range.pages;
            batch.push(range);
        }
        Some(batch)
    })
}

/// Divides a range into ranges of whole places that fit into a batch.
fn parts(touch: Touch) -> impl Iterator<Item = Touch> {
    let most = BATCH_BYTES / PAGE_BYTES;
    let begin = touch.page / PLACE_PAGES * PLACE_PAGES;
    let end = (touch.page + touch.pages).next_multiple_of(PLACE_PAGES);
    (0..(end - begin).div_ceil(most)).map(move |number| {
        let page = begin + number * most;
        Touch {
            page,
            pages: most.min(end - page),
            ..touch
        }
    })
}

/// The places that were planned: for 64 places of a file a bit each.
#[derive(Default)]
struct Planned(HashMap<(u32, u64), u64>);

impl Planned {
    /// Adds the places of a range. Pushes the parts of it that are new.
    fn add(&mut self, range: Touch, new: &mut VecDeque<Touch>) {
        let places = range.page / PLACE_PAGES..(range.page + range.pages) / PLACE_PAGES;
        let mut run = places.start..places.start;
        let mut at = places.start;
        while at < places.end {
            let (group, first) = (at / 64, at % 64);
            let count = (64 - first).min(places.end - at);
            let wanted = (u64::MAX >> (64 - count)) << first;
            let known = self.note((range.file, group), wanted);
            for place in at..at + count {
                if known & (1 << (place % 64)) == 0 {
                    run.end = place + 1;
                } else {
                    push(&range, &run, new);
                    run = place + 1..place + 1;
                }
            }
            at += count;
        }
        push(&range, &run, new);
    }

    /// Adds places of a group. Returns those that it had before.
    fn note(&mut self, group: (u32, u64), places: u64) -> u64 {
        let has_room = self.0.len() < GROUPS_MAX;
        match self.0.entry(group) {
            Entry::Occupied(mut known) => {
                let before = *known.get();
                known.insert(before | places);
                before
            }
            Entry::Vacant(new) => {
                if has_room {
                    new.insert(places);
                }
                0
            }
        }
    }
}

/// Adds a run of places of the file of a range, unless it is empty.
fn push(range: &Touch, run: &Range<u64>, to: &mut VecDeque<Touch>) {
    if !run.is_empty() {
        to.push_back(Touch {
            page: run.start * PLACE_PAGES,
            pages: (run.end - run.start) * PLACE_PAGES,
            ..*range
        });
    }
}

/// Returns the most bytes of files that a replay of a trace looks at.
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

    #[test]
    fn a_range_that_is_repeated_is_planned_once() {
        let most = BATCH_BYTES / PAGE_BYTES;
        for range in [(0, most), (5, 1), (3, most)] {
            let repeated = trace(&vec![range; 100_000]);
            let mut planned = 0;
            let mut count = 0;
            for batch in batches(&repeated) {
                planned += batch.iter().map(|part| part.pages).sum::<u64>();
                count += 1;
            }
            assert!(
                planned <= range.1 + 2 * PLACE_PAGES,
                "{planned} of {range:?}"
            );
            assert!(count <= 100_000 * 2 / BATCH_RANGES + 2, "{count}");
        }
        // One that is repeated in other bounds, too.
        let shifted: Vec<_> = (0..10_000).map(|step| (step * PLACE_PAGES, most)).collect();
        let shifted = trace(&shifted);
        let planned = batches(&shifted).flatten().map(|part| part.pages);
        assert_eq!(planned.sum::<u64>(), 9_999 * PLACE_PAGES + most);
    }

    proptest! {
        #[test]
        fn all_places_come_by_rank_within_bounds(
            ranges in prop::collection::vec((0u64..1 << 14, 1u64..9000), 0..60),
        ) {
            let trace = trace(&ranges);
            let mut places = Vec::new();
            for batch in batches(&trace) {
                prop_assert!(batch.len() <= BATCH_RANGES);
                let bytes = batch.iter().map(|part| part.pages).sum::<u64>() * PAGE_BYTES;
                prop_assert!(bytes <= BATCH_BYTES);
                for part in batch {
                    prop_assert!(part.pages > 0 && part.pages % PLACE_PAGES == 0);
                    let first = part.page / PLACE_PAGES;
                    places.extend(first..first + part.pages / PLACE_PAGES);
                }
            }
            let all = ranges.iter().flat_map(|(page, pages)| {
                page / PLACE_PAGES..(page + pages).div_ceil(PLACE_PAGES)
            });
            let mut seen = std::collections::HashSet::new();
            let wanted: Vec<u64> = all.filter(|place| seen.insert(*place)).collect();
            prop_assert!(places == wanted);
        }
    }
}
