//! A capture that is read while operations go on, compared with one that is read at once.

use std::collections::{BTreeMap, BTreeSet};

use bkfs_chunker::id::Id;
use bytes::Bytes;
use proptest::prelude::*;

use super::*;

/// The inodes of the files; each is dropped at most once, and never comes back.
const FILES: u64 = 4;
/// The length of each file in bytes.
const LENGTH: u64 = 24;

#[derive(Debug, Clone)]
enum Operation {
    Item(u64, u8, bool),
    Write(u64, Range<u64>, u8),
    Zero(u64, Range<u64>),
    Share(u64, Range<u64>),
    Drop(u64),
    Cut,
    Commit,
}

fn range() -> impl Strategy<Value = Range<u64>> {
    (0..LENGTH, 1..8u64).prop_map(|(start, length)| start..(start + length).min(LENGTH))
}

fn operation() -> impl Strategy<Value = Operation> {
    let file = || 7..7 + FILES;
    prop_oneof![
        4 => (file(), 0..4u8, any::<bool>()).prop_map(|(f, name, set)| Operation::Item(f, name, set)),
        6 => (file(), range(), any::<u8>()).prop_map(|(f, range, byte)| Operation::Write(f, range, byte)),
        2 => (file(), range()).prop_map(|(f, range)| Operation::Zero(f, range)),
        2 => (file(), range()).prop_map(|(f, range)| Operation::Share(f, range)),
        1 => file().prop_map(Operation::Drop),
        1 => Just(Operation::Cut),
        1 => Just(Operation::Commit),
    ]
}

fn state() -> LiveState {
    LiveState::new(VolumeState::new(Id([0; 32]), Totals::default()))
}

/// A state, the inodes that were dropped, and a counter that makes every item and byte new.
struct World {
    state: LiveState,
    dropped: Vec<u64>,
    count: u64,
    /// Items that a commit moved into the tree.
    in_tree: BTreeSet<Key>,
}

impl World {
    fn new() -> Self {
        Self {
            state: state(),
            dropped: Vec::new(),
            count: 0,
            in_tree: BTreeSet::new(),
        }
    }

    fn run(&mut self, operation: &Operation) {
        self.count += 1;
        let inode = match operation {
            Operation::Item(inode, ..)
            | Operation::Write(inode, ..)
            | Operation::Zero(inode, _)
            | Operation::Share(inode, _)
            | Operation::Drop(inode) => *inode,
            Operation::Cut => {
                if self.state.committing.is_none() {
                    self.state.cut();
                }
                return;
            }
            Operation::Commit => {
                // Only a layer without dirty bytes is committed. Its extents are then in the tree,
                // which this test does not have, so it may hold none either.
                let layer = self.state.committing.as_ref();
                let is_stored = layer.is_some_and(|layer| {
                    let is_content =
                        |key: &Key| matches!(key.parse(), Ok(key::KeyParts::Extent { .. }));
                    layer.data.is_empty() && !layer.items.keys().any(is_content)
                });
                if is_stored && let Some(layer) = self.state.committed(Id([1; 32]), u64::MAX) {
                    let is_below = |key: &&Key| self.has_below(key);
                    let in_tree = layer.items.keys().filter(is_below).cloned();
                    self.in_tree.extend(in_tree.collect::<Vec<_>>());
                }
                return;
            }
        };
        if self.dropped.contains(&inode) {
            return;
        }
        let stamp = self.state.next_stamp();
        match operation.clone() {
            Operation::Item(_, name, is_set) => {
                let key = Key::xattr(inode, &[b'a' + name]);
                let value = Bytes::from(self.count.to_string());
                self.state
                    .change_item(key, is_set.then_some(Item::Xattr(value)));
            }
            Operation::Write(_, range, byte) => {
                let bytes = vec![byte; (range.end - range.start) as usize];
                let at = range.start;
                self.state
                    .change_data(inode, range, |ranges| ranges.write(at, &bytes, stamp));
            }
            Operation::Zero(_, range) => {
                let zeroes = range.clone();
                self.state
                    .change_data(inode, range, |ranges| ranges.zero(zeroes, stamp));
            }
            Operation::Share(_, range) => self.share(inode, range),
            Operation::Drop(_) => {
                self.dropped.push(inode);
                self.state.drop_inode(inode);
            }
            Operation::Cut | Operation::Commit => unreachable!("they have no inode"),
        }
    }

    /// Puts one new extent per byte in a range, as a share of extents does.
    fn share(&mut self, inode: u64, range: Range<u64>) {
        self.state.before_contents_change(inode, &range);
        for offset in range.clone() {
            let mut id = [0; 32];
            id[..8].copy_from_slice(&(self.count * 100 + offset).to_le_bytes());
            let extent = crate::tree::item::Extent {
                length: 1,
                target: crate::tree::item::Target::Chunk(Id(id)),
                target_offset: 0,
                open: false,
            };
            let active = &mut self.state.active;
            active.set(Key::extent(inode, offset), Some(Item::Extent(extent)));
        }
        let shared = range.clone();
        self.state
            .change_data(inode, range, |ranges| ranges.forget(shared, u64::MAX));
    }
}

/// What a capture says: items, and for each captured byte of a file what it is.
#[derive(Debug, Default, PartialEq, Eq)]
struct Said {
    items: BTreeMap<Key, Option<Item>>,
    bytes: BTreeMap<(u64, u64), String>,
}

impl Said {
    fn add(&mut self, batch: Batch) {
        self.items.extend(batch.items);
        for captured in batch.ranges {
            for at in captured.range.clone() {
                let said = byte_at(&captured, at);
                let before = self.bytes.insert((captured.inode, at), said.clone());
                assert!(
                    before.is_none_or(|before| before == said),
                    "two answers for one byte"
                );
            }
        }
    }
}

fn byte_at(captured: &CapturedRange, at: u64) -> String {
    for (range, part) in &captured.parts {
        if range.contains(&at) {
            return match part {
                Part::Data(bytes) => bytes[(at - range.start) as usize].to_string(),
                Part::Zero => "zero".to_owned(),
                Part::Swapped(_) => unreachable!("nothing is swapped out"),
            };
        }
    }
    let (below, _) = captured.below.as_ref().expect("the parts do not cover it");
    match below.changes.items.get(&Key::extent(captured.inode, at)) {
        Some(Some(Item::Extent(extent))) => format!("{:?}", extent.target),
        _ => "below".to_owned(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Whatever runs between the steps of a capture, it holds what a capture that is read at once
    /// holds.
    #[test]
    fn a_capture_is_as_of_its_moment(
        before in proptest::collection::vec(operation(), 0..30),
        meanwhile in proptest::collection::vec((operation(), 0..3usize), 0..30),
        limit in 1..4usize,
    ) {
        let (mut one, mut other) = (World::new(), World::new());
        for operation in &before {
            one.run(operation);
            other.run(operation);
        }
        other.in_tree.clear();
        let moments = (one.state.begin_capture(usize::MAX), other.state.begin_capture(usize::MAX));
        prop_assert_eq!(moments.0, moments.1);
        let (mut at_once, mut in_steps) = (Said::default(), Said::default());
        let whole = one.state.capture_some(usize::MAX);
        prop_assert!(whole.is_last);
        at_once.add(whole);
        let mut is_last = false;
        for (operation, steps) in &meanwhile {
            for _ in 0..*steps {
                let batch = other.state.capture_some(limit);
                is_last = batch.is_last;
                in_steps.add(batch);
            }
            other.run(operation);
        }
        while !is_last {
            let batch = other.state.capture_some(limit);
            is_last = batch.is_last;
            in_steps.add(batch);
        }
        // A commit meanwhile moves items into the tree; a capture leaves those out, because the
        // tree has them.
        at_once.items.retain(|key, _| {
            in_steps.items.contains_key(key) || !other.in_tree.contains(key)
        });
        prop_assert_eq!(at_once, in_steps);
        let deltas = [one, other].map(|mut world| {
            world.state.end_capture().expect("it is under way").into_delta()
        });
        prop_assert_eq!(&deltas[0], &deltas[1]);
    }
}

impl World {
    /// Whether the tree decides about an item.
    fn has_below(&self, key: &Key) -> bool {
        matches!(self.state.find(Scope::Live, key), Found::Below(_))
    }
}

#[test]
#[should_panic(expected = "two captures")]
fn one_capture_at_a_time() {
    let mut state = state();
    state.begin_capture(usize::MAX);
    state.begin_capture(usize::MAX);
}

fn take_delta(state: &mut LiveState) -> Delta {
    state.begin_capture(usize::MAX);
    state.end_capture().expect("it is under way").into_delta()
}

#[test]
fn a_delta_comes_back_below_what_was_changed_since() {
    let mut state = state();
    state.active.delta.content(7, 0..10);
    let epoch = state.active.epoch;
    let taken = take_delta(&mut state);
    state.active.drop_inode(7);
    state.cut();
    state.active.delta.content(8, 0..10);
    state.return_delta(epoch, taken);
    let delta = take_delta(&mut state);
    assert_eq!(delta.changed_files().collect::<Vec<_>>(), [8]);
    assert_eq!(delta.dropped.iter().copied().collect::<Vec<_>>(), [7]);
}

#[test]
fn a_delta_that_was_committed_meanwhile_does_not_come_back() {
    let mut state = state();
    state.active.delta.content(7, 0..10);
    let epoch = state.active.epoch;
    let taken = take_delta(&mut state);
    state.cut();
    drop(state.committed(Id([1; 32]), u64::MAX));
    state.return_delta(epoch, taken);
    assert!(!state.is_unjournaled());
}

#[test]
fn a_capture_that_keeps_too_much_is_given_up_and_stays_whole() {
    let mut state = state();
    for offset in 0..8 {
        let stamp = state.next_stamp();
        let range = offset * 2..offset * 2 + 1;
        state.change_data(7, range, |ranges| ranges.write(offset * 2, b"x", stamp));
    }
    let before = state.active.delta.clone();
    state.begin_capture(5);
    let stamp = state.next_stamp();
    state.change_data(7, 0..16, |ranges| ranges.zero(0..16, stamp));
    assert!(state.capture_some(100).is_too_much);
    let capturing = state.end_capture().expect("it is under way");
    assert!(capturing.ranges.len() < 8, "it kept no more than it had to");
    assert_eq!(capturing.into_delta(), before);
}

/// Writes 4096 pieces of ten bytes, 64 KiB apart. The delta joins them to one range.
fn write_apart(state: &mut LiveState, inode: u64) {
    for n in 0..4096 {
        let at = n << 16;
        let stamp = state.next_stamp();
        state.change_data(inode, at..at + 10, |ranges| {
            ranges.write(at, b"0123456789", stamp);
        });
    }
}

/// Reads a capture to its end. Returns the number of steps, and of bytes of data.
fn read_in_steps(state: &mut LiveState, limit: usize) -> (usize, u64) {
    let (mut steps, mut bytes) = (0, 0);
    loop {
        let batch = state.capture_some(limit);
        let parts: usize = batch.ranges.iter().map(CapturedRange::part_count).sum();
        assert!(parts <= 2 * limit + 1, "{parts} parts in one step");
        bytes += (batch.ranges.iter())
            .map(CapturedRange::data_bytes)
            .sum::<u64>();
        steps += 1;
        if batch.is_last {
            return (steps, bytes);
        }
    }
}

/// One step reads a part of a range that has many parts, and all of a range that has few, in any
/// order of the two.
#[test]
fn a_step_reads_a_bounded_number_of_parts() {
    for (many, few) in [(7, 8), (8, 7)] {
        let mut state = state();
        write_apart(&mut state, many);
        state.change_data(few, 0..1 << 50, |_| ());
        state.begin_capture(usize::MAX);
        let (steps, bytes) = read_in_steps(&mut state, 64);
        assert!(steps < 100, "{steps} steps");
        assert_eq!(bytes, 40_960);
    }
}

/// One operation that changes much keeps no more than the capture may have.
#[test]
fn one_operation_keeps_a_bounded_number_of_parts() {
    let mut state = state();
    write_apart(&mut state, 7);
    state.begin_capture(1000);
    let end = 4096 << 16;
    let stamp = state.next_stamp();
    state.change_data(7, 0..end, |ranges| ranges.zero(0..end, stamp));
    assert!(state.capture_some(100).is_too_much);
    let capturing = state.end_capture().expect("it is under way");
    let kept = capturing.ranges.values().map(CapturedRange::part_count);
    assert!(kept.sum::<usize>() <= 1001);
}

/// Extents of a layer that were removed count, also those before a step.
#[test]
fn a_step_reads_a_bounded_number_of_removed_extents() {
    let mut state = state();
    for n in 0..16_384 {
        let key = Key::extent(7, n << 10);
        state.active.set(key, None);
    }
    let end = 16_384 << 10;
    state.change_data(7, 0..end, |_| ());
    state.begin_capture(usize::MAX);
    // Every second byte range was changed since, so that the rest has many gaps.
    for n in 0..2048 {
        let at = n << 13;
        let stamp = state.next_stamp();
        state.change_data(7, at..at + 1, |ranges| ranges.write(at, b"x", stamp));
    }
    loop {
        let batch = state.capture_some(64);
        let parts: usize = batch.ranges.iter().map(CapturedRange::part_count).sum();
        // A range of 4 MiB before the first gap is read as well.
        assert!(parts <= 2 * (4096 + 64), "{parts} parts");
        if batch.is_last {
            break;
        }
    }
}

/// Bytes that are copied count: a step of a few large parts ends early.
#[test]
fn a_step_copies_a_bounded_number_of_bytes() {
    let mut state = state();
    let piece = vec![7; 60 << 10];
    for n in 0..1024 {
        let at = n << 16;
        let stamp = state.next_stamp();
        let range = at..at + piece.len() as u64;
        state.change_data(7, range, |ranges| ranges.write(at, &piece, stamp));
    }
    state.begin_capture(usize::MAX);
    loop {
        let batch = state.capture_some(64);
        let bytes = batch.ranges.iter().map(CapturedRange::data_bytes);
        let bytes = bytes.sum::<u64>();
        assert!(bytes <= 2 << 20, "{bytes} bytes in one step");
        if batch.is_last {
            break;
        }
    }
}

/// What was kept since the beginning is handed over a part at a time too.
#[test]
fn a_step_hands_over_a_bounded_number_of_kept_ranges() {
    let mut state = state();
    write_apart(&mut state, 7);
    state.begin_capture(usize::MAX);
    for n in 0..4096 {
        let at = n << 16;
        let stamp = state.next_stamp();
        state.change_data(7, at..at + 1, |ranges| ranges.write(at, b"x", stamp));
    }
    let end = 4096 << 16;
    let stamp = state.next_stamp();
    state.change_data(7, 0..end, |ranges| ranges.zero(0..end, stamp));
    let mut ranges = 0;
    loop {
        let batch = state.capture_some(64);
        assert!(batch.ranges.len() <= 2 * 64 + 1, "{}", batch.ranges.len());
        ranges += batch.ranges.len();
        if batch.is_last {
            break;
        }
    }
    assert!(ranges >= 4096, "{ranges}");
}

/// What a commit moved into the tree is not described, whatever happens to it afterwards.
#[test]
fn regression_an_item_of_a_commit_that_ended_is_left_out() {
    let mut world = World::new();
    world.run(&Operation::Item(10, 0, false));
    world.run(&Operation::Cut);
    world.state.begin_capture(usize::MAX);
    world.run(&Operation::Commit);
    world.run(&Operation::Drop(10));
    let batch = world.state.capture_some(usize::MAX);
    assert!(batch.is_last && batch.items.is_empty(), "{batch:?}");
}

/// What was read already is changed in the middle of a range of which the rest is not read.
#[test]
fn regression_what_was_read_may_change_below_the_rest_of_its_range() {
    let mut state = state();
    let stamp = state.next_stamp();
    state.change_data(7, 0..4096 << 16, |ranges| {
        for n in 0..4096 {
            ranges.write(n << 16, b"0123456789", stamp);
        }
    });
    state.begin_capture(usize::MAX);
    let mut read = 0;
    while read == 0 {
        let batch = state.capture_some(64);
        assert!(!batch.is_last);
        read = batch.ranges.iter().map(CapturedRange::data_bytes).sum();
    }
    // A kept part of the rest, and then what was read.
    state.change_data(7, 3000 << 16..(3000 << 16) + 10, |_| ());
    state.change_data(7, 1..2, |_| ());
    let (_, bytes) = read_in_steps(&mut state, 64);
    assert_eq!(read + bytes, 40_960, "nothing is read again");
}
