//! Extents, compared with a vector of bytes. Each byte is labelled with the target and the offset
//! in the target that it comes from.

use std::collections::BTreeMap;

use bkfs_chunker::id::Id;
use proptest::prelude::*;

use super::*;

/// Length of the longest file of the model, in bytes.
const SPAN: u64 = 96;

/// The content of one byte of the model: a byte of a target, or a hole.
type Label = Option<(Target, u32)>;

/// A file as extents, and the same file as labelled bytes.
#[derive(Default)]
struct File {
    extents: BTreeMap<u64, Extent>,
    bytes: Vec<Label>,
    allocated: i64,
}

impl File {
    fn new() -> File {
        File {
            bytes: vec![None; 2 * SPAN as usize],
            ..File::default()
        }
    }

    fn all(&self) -> Vec<Placed> {
        let placed = |(offset, extent): (&u64, &Extent)| Placed {
            offset: *offset,
            extent: *extent,
        };
        self.extents.iter().map(placed).collect()
    }

    /// Returns the extents that the volume would look up for `range`: all that overlap or touch it.
    fn near(&self, range: &Range<u64>) -> Vec<Placed> {
        let near = |placed: &Placed| placed.end() >= range.start && placed.offset <= range.end;
        self.all().into_iter().filter(near).collect()
    }

    fn take(&mut self, existing: &[Placed], changes: &[Change]) {
        assert!(changes.is_sorted_by(|one, two| one.0 < two.0));
        self.allocated += allocated_change(existing, changes);
        for (offset, extent) in changes {
            let before = match extent {
                Some(extent) => self.extents.insert(*offset, *extent),
                None => Some(
                    self.extents
                        .remove(offset)
                        .expect("only what is there goes"),
                ),
            };
            assert_ne!(before, *extent, "a change changes something");
        }
    }

    fn check(&self) {
        let all = self.all();
        check(&all).unwrap();
        let mut bytes = vec![None; self.bytes.len()];
        for placed in &all {
            for index in 0..placed.extent.length {
                let label = (placed.extent.target, placed.extent.target_offset + index);
                bytes[placed.offset as usize + index as usize] = Some(label);
            }
        }
        assert_eq!(bytes, self.bytes);
        let full = self.bytes.iter().filter(|label| label.is_some()).count();
        assert_eq!(self.allocated, full as i64);
    }
}

fn target(number: u8) -> Target {
    match number % 2 {
        0 => Target::Segment(Id([number; 32])),
        _ => Target::Chunk(Id([number; 32])),
    }
}

fn placed(offset: u64, length: u32, number: u8, target_offset: u32) -> Placed {
    Placed {
        offset,
        extent: Extent {
            length,
            target: target(number),
            target_offset,
            open: false,
        },
    }
}

#[derive(Clone, Debug)]
enum Operation {
    /// Offset and pieces. A piece has a length and the target and offset that it comes from (a hole
    /// if `None`).
    Write(u64, Vec<(u32, Option<(u8, u32)>)>),
    Punch(u64, u64),
    Truncate(u64),
    Clone(u64, u64, u64),
}

fn operation() -> impl Strategy<Value = Operation> {
    // Few targets, and offsets on a coarse grid, so that neighbours are often one run.
    let piece = (
        1u32..12,
        proptest::option::weighted(0.8, (0u8..3, 0u32..40)),
    );
    let pieces = proptest::collection::vec(piece, 1..4);
    prop_oneof![
        4 => (0..SPAN, pieces).prop_map(|(offset, pieces)| Operation::Write(offset, pieces)),
        2 => (0..SPAN, 0..30u64).prop_map(|(offset, length)| Operation::Punch(offset, length)),
        1 => (0..SPAN).prop_map(Operation::Truncate),
        3 => (0..SPAN, 0..40u64, 0..SPAN)
            .prop_map(|(from, length, to)| Operation::Clone(from, length, to)),
    ]
}

fn run(file: &mut File, operation: &Operation) {
    match operation {
        Operation::Write(offset, pieces) => {
            let mut at = *offset;
            let mut new = Vec::new();
            for (length, what) in pieces {
                for index in 0..*length {
                    let label = what.map(|(number, from)| (target(number), from + index));
                    file.bytes[at as usize + index as usize] = label;
                }
                if let Some((number, from)) = what {
                    new.push(placed(at, *length, *number, *from));
                }
                at += u64::from(*length);
            }
            let existing = file.near(&(*offset..at));
            file.take(&existing, &replace(&existing, *offset..at, &new).unwrap());
        }
        Operation::Punch(offset, length) => {
            let range = *offset..offset + length;
            file.bytes[range.start as usize..range.end as usize].fill(None);
            let existing = file.near(&range);
            file.take(&existing, &punch(&existing, range).unwrap());
        }
        Operation::Truncate(size) => {
            file.bytes[*size as usize..].fill(None);
            let existing = file.all();
            file.take(&existing, &truncate(&existing, *size).unwrap());
        }
        Operation::Clone(from, length, to) => {
            let source = file.bytes[*from as usize..(from + length) as usize].to_vec();
            file.bytes[*to as usize..(to + length) as usize].clone_from_slice(&source);
            let copy = clone_range(&file.all(), *from..from + length, *to).unwrap();
            let existing = file.near(&(*to..to + length));
            file.take(
                &existing,
                &replace(&existing, *to..to + length, &copy).unwrap(),
            );
        }
    }
}

#[test]
fn parts_of_an_extent_keep_their_place_in_the_target() {
    let mut whole = placed(100, 50, 1, 7);
    whole.extent.open = true;
    let left = whole.within(&(0..120)).unwrap();
    let right = whole.within(&(120..u64::MAX)).unwrap();
    assert_eq!(left, placed(100, 20, 1, 7));
    assert_eq!((right.offset, right.extent.target_offset), (120, 27));
    assert!(right.extent.open && !left.extent.open);
    assert_eq!(whole.within(&(150..200)), None);
    assert_eq!(coalesce([left, right]), [whole]);
}

#[test]
fn joining_stops_at_the_longest_extent() {
    let half = MAX_EXTENT_BYTES / 2 + 1;
    let one = placed(0, half, 1, 0);
    let two = placed(half.into(), half, 1, half);
    assert_eq!(coalesce([one, two]).len(), 2);
    let short = placed(half.into(), half - 2, 1, half);
    assert_eq!(coalesce([one, short]), [placed(0, MAX_EXTENT_BYTES, 1, 0)]);
}

#[test]
fn neighbours_that_touch_are_joined() {
    let existing = [placed(0, 10, 1, 0), placed(20, 10, 1, 20)];
    let changes = replace(&existing, 10..20, &[placed(10, 10, 1, 10)]).unwrap();
    assert_eq!(changes, [(0, Some(placed(0, 30, 1, 0).extent)), (20, None)]);
    let other = replace(&existing, 10..20, &[placed(10, 10, 2, 10)]).unwrap();
    assert_eq!(other, [(10, Some(placed(10, 10, 2, 10).extent))]);
}

#[test]
fn a_hole_in_the_middle_splits() {
    let existing = [placed(0, 30, 1, 5)];
    let changes = punch(&existing, 10..20).unwrap();
    let expected = [
        (0, Some(placed(0, 10, 1, 5).extent)),
        (20, Some(placed(20, 10, 1, 25).extent)),
    ];
    assert_eq!(changes, expected);
}

#[test]
fn nonsense_is_refused() {
    let overlap = [placed(0, 10, 1, 0), placed(9, 10, 1, 0)];
    assert_eq!(
        punch(&overlap, 0..1),
        Err(ExtentError::Overlap { offset: 9 })
    );
    let late = [placed(MAX_FILE_BYTES - 3, 4, 1, 0)];
    assert!(matches!(
        punch(&late, 0..1),
        Err(ExtentError::OutOfBounds { .. })
    ));
    let wraps = [placed(0, 10, 1, u32::MAX)];
    assert!(matches!(
        punch(&wraps, 0..1),
        Err(ExtentError::OutOfBounds { .. })
    ));
    let outside = replace(&[], 5..10, &[placed(4, 2, 1, 0)]);
    assert_eq!(outside, Err(ExtentError::OutOfRange { offset: 4 }));
    let far = clone_range(&[placed(0, 10, 1, 0)], 0..10, MAX_FILE_BYTES - 9);
    assert!(matches!(far, Err(ExtentError::OutOfBounds { .. })));
}

#[test]
fn targets_are_named_once_per_run() {
    let extents = [placed(0, 1, 1, 0), placed(1, 1, 1, 5), placed(2, 1, 2, 0)];
    let named: Vec<Target> = targets(&extents).collect();
    assert_eq!(named, [target(1), target(2)]);
}

proptest! {
    #[test]
    fn extents_agree_with_bytes(operations in proptest::collection::vec(operation(), 1..40)) {
        let mut file = File::new();
        for operation in &operations {
            run(&mut file, operation);
            file.check();
        }
    }

    #[test]
    fn data_and_holes_agree_with_bytes(
        operations in proptest::collection::vec(operation(), 1..12),
        from in 0..SPAN,
        length in 0..SPAN,
    ) {
        let mut file = File::new();
        for operation in &operations {
            run(&mut file, operation);
        }
        let range = from..from + length;
        let mut seen = Vec::new();
        for piece in pieces(&file.near(&range), range.clone()) {
            match piece {
                Piece::Hole(hole) => {
                    prop_assert!(!hole.is_empty() && hole.start == from + seen.len() as u64);
                    seen.extend(hole.map(|_| None));
                }
                Piece::Data(data) => {
                    prop_assert_eq!(data.offset, from + seen.len() as u64);
                    let label =
                        |index| Some((data.extent.target, data.extent.target_offset + index));
                    seen.extend((0..data.extent.length).map(label));
                }
            }
        }
        prop_assert_eq!(&seen[..], &file.bytes[range.start as usize..range.end as usize]);
        let is_data = |at: u64| file.bytes.get(at as usize).is_some_and(Option::is_some);
        let end = file.bytes.len() as u64;
        prop_assert_eq!(next_data(file.all(), from), (from..end).find(|at| is_data(*at)));
        prop_assert_eq!(Some(next_hole(file.all(), from)), (from..=end).find(|at| !is_data(*at)));
    }

    #[test]
    fn any_extents_at_all_never_panic(
        numbers in proptest::collection::vec((any::<u64>(), any::<u32>(), any::<u32>()), 0..6),
        range: Range<u64>,
        to: u64,
    ) {
        let extents: Vec<Placed> = numbers
            .into_iter()
            .map(|(offset, length, target_offset)| placed(offset, length, 1, target_offset))
            .collect();
        let _ = replace(&extents, range.clone(), &extents);
        let _ = clone_range(&extents, range.clone(), to);
        let _ = pieces(&extents, range.clone());
        let _ = next_data(extents.clone(), to);
        let _ = next_hole(extents.clone(), to);
        let _ = coalesce(extents);
    }
}
