//! Groups of runs in a root: how they are built, and what becomes of them with the index objects
//! that they cover.

use std::collections::BTreeMap;

use bkfs_chunker::catalog::{IndexRef, RunRef};
use bkfs_chunker::crypto::{Class, RepositoryId};
use bkfs_chunker::id::Prefix;
use bkfs_chunker::pack::PackName;

use crate::root::refusal::Refusal;
use crate::root::run_group::{Building, IndexName, RUN_CLASSES, RunGroup, Slice, prefixes_of};
use crate::root::run_groups::CoveredChange;
use crate::root::shard::ListRef;
use crate::root::state::Root;
use crate::root::transition::IndexChange;

fn name(sequence: u32) -> PackName {
    PackName {
        session: 5,
        sequence,
        random: 1,
    }
}

fn index(sequence: u32) -> IndexRef {
    IndexRef {
        name: name(sequence),
        packs: 1,
        blobs: 100,
        bytes: 1000,
    }
}

fn list(sequence: u32) -> ListRef {
    ListRef {
        name: name(sequence),
        count: 1,
        bytes: 20,
    }
}

fn covers(sequences: &[u32]) -> Vec<IndexName> {
    sequences
        .iter()
        .map(|sequence| IndexName(name(*sequence)))
        .collect()
}

/// A root with index objects 1 to 6.
fn root() -> Root {
    let mut root = Root::new(RepositoryId([1; 16]), [2; 16]);
    root.index = (1..=6).map(index).collect();
    root
}

fn building(slices: u16, from: &[u64]) -> Building {
    Building {
        slices,
        from: from.to_vec(),
    }
}

fn run(sequence: u32, slice: &Slice) -> RunRef {
    RunRef {
        name: name(1000 + sequence),
        bytes: 1000,
        class: slice.class,
        first: *slice.prefixes.start(),
        last: *slice.prefixes.end(),
        records: 50,
    }
}

/// Begins a group in the next generation, and returns what names it.
fn begin(root: &mut Root, slices: u16, from: &[u64], of: &[u32]) -> Result<u64, Refusal> {
    root.generation += 1;
    root.begin_group(building(slices, from), covers(of))?;
    Ok(root.generation)
}

/// Adds all runs that are missing.
fn complete(root: &mut Root, begun: u64) {
    let group = root.building_group().expect("it is being built").clone();
    for (number, slice) in group.missing().iter().enumerate() {
        let run = run(begun as u32 * 100 + number as u32, slice);
        root.add_run(begun, run).expect("it is missing");
    }
}

fn made(root: &mut Root, slices: u16, from: &[u64], of: &[u32]) -> u64 {
    let begun = begin(root, slices, from, of).expect("begun");
    complete(root, begun);
    begun
}

fn begun(root: &Root) -> Vec<u64> {
    root.run_groups().iter().map(|group| group.begun).collect()
}

fn group(root: &Root, begun: u64) -> RunGroup {
    let mut groups = root.run_groups().iter();
    groups
        .find(|group| group.begun == begun)
        .expect("it is there")
        .clone()
}

#[test]
fn slices_divide_all_prefixes_among_them() {
    for slices in [1, 2, 3, 7, 100, 512] {
        let mut next = 0_u128;
        for number in 0..slices {
            let prefixes = prefixes_of(number, slices);
            assert_eq!(u128::from_be_bytes(prefixes.start().0), next);
            assert!(prefixes.start() <= prefixes.end());
            next = u128::from_be_bytes(prefixes.end().0).wrapping_add(1);
        }
        assert_eq!(next, 0, "the last one ends with the last prefix");
    }
}

#[test]
fn a_group_answers_once_all_of_its_slices_are_there() {
    let mut root = root();
    let first = begin(&mut root, 3, &[], &[1, 2]).expect("begun");
    let missing = group(&root, first).missing();
    assert_eq!(missing.len(), 3 * RUN_CLASSES.len());
    for (number, slice) in missing.iter().enumerate() {
        assert_eq!(root.complete_groups().count(), 0);
        assert_eq!(group(&root, first).missing(), missing[number..]);
        let one = run(number as u32, slice);
        root.add_run(first, one).expect("added");
        // A second merge comes too late with its run.
        let other = run(500 + number as u32, slice);
        let late = root.add_run(first, other);
        assert_eq!(late.is_ok(), number + 1 < missing.len());
        assert!(!root.run_names().any(|name| name == other.name));
    }
    assert_eq!(root.complete_groups().count(), 1);
    let covered = root.covered_by(&group(&root, first));
    assert_eq!(covered, [index(1), index(2)]);
    assert_eq!(root.uncovered_index(), [3, 4, 5, 6].map(index));
    let payload = root.encode().expect("encoded");
    assert_eq!(Root::decode(&payload).expect("decoded"), root);
}

#[test]
fn a_group_begins_of_what_is_there_and_free() {
    let mut root = root();
    let first = made(&mut root, 1, &[], &[1, 2]);
    for of in [&[2, 3][..], &[9], &[]] {
        let refused = begin(&mut root, 1, &[], of).expect_err("not of these");
        assert_eq!(refused, Refusal::ListsChanged, "{of:?}");
    }
    let second = made(&mut root, 1, &[], &[3]);
    for (from, of) in [(&[first, 77][..], &[1, 2][..]), (&[first, second], &[1, 2])] {
        let refused = begin(&mut root, 1, from, of).expect_err("not of these");
        assert_eq!(refused, Refusal::ListsChanged, "{from:?} {of:?}");
    }
    let third = begin(&mut root, 2, &[first, second], &[1, 2, 3]).expect("begun");
    assert!(begin(&mut root, 1, &[], &[4]).is_err(), "one at a time");
    assert_eq!(begun(&root), [first, second, third]);
    complete(&mut root, third);
    assert_eq!(
        begun(&root),
        [third],
        "it stands for those that it was merged from"
    );
    assert!(group(&root, third).is_complete());
}

#[test]
fn a_group_leaves_with_an_index_object_that_it_covers() {
    let gone = |of: &[u32]| IndexChange {
        absorbed: of.iter().copied().map(index).collect(),
        added: vec![index(20)],
    };
    let mut root = root();
    let first = made(&mut root, 1, &[], &[1, 2]);
    let second = made(&mut root, 1, &[], &[3]);
    let third = begin(&mut root, 1, &[first, second], &[1, 2, 3]).expect("begun");
    let mut other = root.clone();
    other.change_index(&gone(&[5])).expect("changed");
    assert_eq!(begun(&other), [first, second, third]);
    root.change_index(&gone(&[2])).expect("changed");
    assert_eq!(begun(&root), [second], "nor is anything built of it");
    let fourth = begin(&mut root, 1, &[], &[4, 5]).expect("begun");
    root.change_index(&IndexChange {
        absorbed: vec![index(5)],
        added: Vec::new(),
    })
    .expect("changed");
    assert_eq!(begun(&root), [second]);
    let late = Slice {
        class: Class::DataPack,
        prefixes: prefixes_of(0, 1),
    };
    let refused = root.add_run(fourth, run(1, &late)).expect_err("it is gone");
    assert_eq!(refused, Refusal::ListsChanged);
}

#[test]
fn groups_cover_what_is_written_in_the_place_of_index_objects() {
    let mut root = root();
    let first = made(&mut root, 1, &[], &[1, 2]);
    let second = made(&mut root, 1, &[], &[3]);
    let third = begin(&mut root, 1, &[first, second], &[1, 2, 3]).expect("begun");
    let change = |groups: &[u64], absorbed: u32, added: u32| CoveredChange {
        groups: groups.to_vec(),
        index: IndexChange {
            absorbed: vec![index(absorbed)],
            added: vec![index(added)],
        },
    };
    let dropped = BTreeMap::from([(first, list(30)), (third, list(31))]);
    let not_covering = [change(&[second, third], 2, 20)];
    let refused = root.clone().forget_covered(&not_covering, &dropped);
    assert_eq!(refused, Err(Refusal::ListsChanged));
    let changes = [change(&[first, third], 2, 20)];
    root.forget_covered(&changes, &dropped).expect("changed");
    assert_eq!(begun(&root), [first, second, third]);
    assert_eq!(root.covered_by(&group(&root, first)), [index(1), index(20)]);
    let dropped = [first, second, third].map(|begun| group(&root, begun).dropped);
    assert_eq!(dropped, [Some(list(30)), None, Some(list(31))]);
    complete(&mut root, third);
    assert_eq!(root.covered_by(&group(&root, third)), [1, 3, 20].map(index));
    // One group that does not know of the new index object is no group any more.
    let changes = [change(&[], 3, 21)];
    root.forget_covered(&changes, &BTreeMap::new())
        .expect("changed");
    assert_eq!(begun(&root), [0; 0]);
}

#[test]
fn what_contradicts_the_root_is_no_group() {
    let mut sound = root();
    let first = made(&mut sound, 2, &[], &[1, 2]);
    let second = begin(&mut sound, 2, &[first], &[1, 2]).expect("begun");
    let decoded = |change: &dyn Fn(&mut Vec<RunGroup>)| {
        let mut root = sound.clone();
        let mut groups = root.run_groups.take().expect("some");
        change(&mut groups);
        root.run_groups = Some(groups);
        let payload = root.encode().expect("encoded");
        begun(&Root::decode(&payload).expect("groups spoil no root"))
    };
    assert_eq!(decoded(&|_| {}), [first, second]);
    assert_eq!(decoded(&|groups| groups[1].covers = covers(&[1])), [first]);
    assert_eq!(
        decoded(&|groups| groups[1].building = Some(building(0, &[first]))),
        [first]
    );
    assert_eq!(
        decoded(&|groups| groups[1].building = Some(building(1, &[9]))),
        [first]
    );
    let none: [u64; 0] = [];
    assert_eq!(decoded(&|groups| groups[0].covers = covers(&[1, 9])), none);
    assert_eq!(decoded(&|groups| groups[0].covers.clear()), none);
    assert_eq!(decoded(&|groups| groups[0].runs.truncate(1)), none);
    assert_eq!(
        decoded(&|groups| groups[0].runs[0].last = Prefix([0; 16])),
        none
    );
    assert_eq!(
        decoded(&|groups| groups[0].runs[1].first = Prefix([0; 16])),
        none
    );
    let twice = decoded(&|groups| {
        let again = RunGroup {
            begun: 99,
            ..groups[0].clone()
        };
        groups[1] = again;
    });
    assert_eq!(twice, [first]);
}

#[test]
fn a_root_without_room_has_no_groups() {
    let mut root = root();
    made(&mut root, 1, &[], &[1, 2]);
    root.leave_room();
    assert_eq!(root.run_groups().len(), 1, "there is room");
    let small = made(&mut root, 1, &[], &[3]);
    let large = made(&mut root, 64, &[], &[4, 5]);
    let built = begin(&mut root, 512, &[], &[6]).expect("begun");
    let group = root.building_group().expect("begun").clone();
    for (number, slice) in group.missing().iter().skip(1).enumerate() {
        let run = run(20_000 + number as u32, slice);
        root.add_run(built, run).expect("it is missing");
    }
    assert!(root.encode().is_err(), "1,023 runs");
    root.leave_room();
    let first = root.run_groups()[0].begun;
    assert_eq!(
        begun(&root),
        [first, small, large],
        "what is not complete leaves first"
    );
    assert!(root.encode().is_ok());
    // Now the complete ones are too many.
    let largest = made(&mut root, 470, &[], &[6]);
    assert!(root.encode().is_err());
    root.leave_room();
    assert_eq!(begun(&root), [largest], "those of few records leave first");
    assert!(root.encode().is_ok());
}
