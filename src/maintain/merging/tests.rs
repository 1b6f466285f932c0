//! Which group is made next.

use bkfs_chunker::crypto::RepositoryId;

use super::policy::{Avoided, Step};
use super::*;
use crate::root::Volume;
use crate::root::form::SMALL_BYTES_MAX;

mod stepping;

const POLICY: MergePolicy = MergePolicy {
    least_blobs: 100,
    most_blobs: 400,
    run_records: 50,
    small_records: 200,
    fan: 4,
};

fn name(sequence: u32) -> PackName {
    PackName {
        session: 1,
        sequence,
        random: 0,
    }
}

/// A root with index objects of these numbers of blobs.
fn root(blobs: &[u64]) -> Root {
    let mut root = Root::new(RepositoryId([1; 16]), [2; 16]);
    let index = blobs.iter().enumerate().map(|(number, blobs)| IndexRef {
        name: name(number as u32),
        packs: 1,
        blobs: *blobs,
        bytes: *blobs,
    });
    root.index = index.collect();
    root
}

/// Carries out steps until none is left, as a merge does. Returns how many groups were begun.
fn work(root: &mut Root) -> usize {
    work_by(&POLICY, root)
}

fn work_by(policy: &MergePolicy, root: &mut Root) -> usize {
    let mut begun = 0;
    while let Some(step) = policy.next(root, &Avoided::default()) {
        let before = root.run_groups().len();
        root.leave_room();
        assert_eq!(
            root.run_groups().len(),
            before,
            "there is room for what is begun"
        );
        root.generation += 1;
        match step {
            Step::Begin(building, covers) => {
                begun += 1;
                root.begin_group(building, covers).expect("begun");
            }
            Step::Join(objects) => {
                let blobs = objects.iter().map(|index| index.blobs).sum();
                let joined = IndexRef {
                    name: name(20_000 + root.generation as u32),
                    packs: 1,
                    blobs,
                    bytes: blobs,
                };
                let change = IndexChange {
                    absorbed: objects,
                    added: vec![joined],
                };
                root.change_index(&change).expect("they are there");
                begun += 1;
                let building = Building {
                    slices: policy.slices(blobs),
                    from: Vec::new(),
                };
                let covers = vec![IndexName(joined.name)];
                root.begin_group(building, covers).expect("begun");
            }
            Step::Write(group, slice) => {
                let covered = root.covered_by(&group);
                let blobs: u64 = covered.iter().map(|index| index.blobs).sum();
                let slices = group.building.as_ref().expect("not complete").slices;
                let run = RunRef {
                    name: name(10_000 + root.generation as u32),
                    bytes: 1000,
                    class: slice.class,
                    first: *slice.prefixes.start(),
                    last: *slice.prefixes.end(),
                    records: blobs / u64::from(slices) / 2,
                };
                root.add_run(group.begun, run).expect("it is missing");
            }
        }
    }
    begun
}

#[test]
fn little_is_not_merged() {
    assert_eq!(POLICY.next(&root(&[]), &Avoided::default()), None);
    assert_eq!(POLICY.next(&root(&[40, 59]), &Avoided::default()), None);
    let Some(Step::Begin(building, covers)) = POLICY.next(&root(&[40, 60]), &Avoided::default())
    else {
        panic!("it is enough");
    };
    assert_eq!(covers, [IndexName(name(1)), IndexName(name(0))]);
    assert_eq!(
        building,
        Building {
            slices: 2,
            from: Vec::new()
        }
    );
}

#[test]
fn a_group_takes_as_much_as_memory_holds() {
    let mut one = root(&[1_000, 300, 200, 50]);
    let Some(Step::Begin(_, covers)) = POLICY.next(&one, &Avoided::default()) else {
        panic!("it is enough");
    };
    assert_eq!(covers, [IndexName(name(0))], "one may be larger");
    assert_eq!(work(&mut one), 3, "the rest in two");
    assert_eq!(one.uncovered_index().len(), 0);
}

#[test]
fn small_index_objects_are_joined_or_left() {
    let Some(Step::Join(objects)) = POLICY.next(&root(&[60, 30, 20, 5, 5]), &Avoided::default())
    else {
        panic!("there are many of them");
    };
    assert_eq!(objects.len(), 3, "commits absorb the smallest");
    let mut all = root(&[60, 30, 20, 5, 5]);
    assert_eq!(work(&mut all), 1);
    assert_eq!(all.uncovered_index().len(), 2);
    assert_eq!(all.index.len(), 3);
}

#[test]
fn few_groups_are_left_however_many_were_made() {
    let mut root = root(&[]);
    let mut most = 0;
    for number in 0..120 {
        root.index.push(IndexRef {
            name: name(number),
            packs: 1,
            blobs: 150,
            bytes: 150,
        });
        work(&mut root);
        most = most.max(root.run_groups().len());
        assert_eq!(root.uncovered_index(), []);
        let covered = root.run_groups().iter().map(|group| group.covers.len());
        assert_eq!(covered.sum::<usize>(), root.index.len());
    }
    assert!(most <= 12, "{most} groups");
    let slices: Vec<usize> = root
        .run_groups()
        .iter()
        .map(|group| group.runs.len())
        .collect();
    assert!(
        slices.iter().any(|runs| *runs > 100),
        "large ones have many runs: {slices:?}"
    );
}

#[test]
fn a_root_has_room_for_what_is_merged_and_a_merge_ends() {
    let policy = MergePolicy::default();
    let mut root = root(&[]);
    let mut covered = 0;
    for number in 0..1_000 {
        // 32 MiB, the most that an index object takes.
        root.index.push(IndexRef {
            name: name(number),
            packs: 600,
            blobs: 1_400_000,
            bytes: 32 << 20,
        });
        if root.encode().is_err() {
            panic!("{number} index objects do not fit, and groups have not left");
        }
        work_by(&policy, &mut root);
        let free = SMALL_BYTES_MAX - root.encode().expect("it fits").len();
        let runs = root.run_groups().iter().flat_map(|group| &group.runs);
        let records: u64 = runs.map(|run| run.records).sum();
        covered = covered.max(records);
        if free < 8 << 10 {
            break;
        }
    }
    assert!(covered > 600_000_000, "{covered} records");
    let largest = policy.slices(1_000_000_000);
    assert_eq!(largest, 64, "runs of 16 million records");
}

#[test]
fn nothing_is_merged_in_a_root_without_room() {
    let mut root = root(&[60, 70, 80]);
    assert!(POLICY.next(&root, &Avoided::default()).is_some());
    // Not even for what sessions do meanwhile.
    for number in 0.. {
        if root.room().expect("it fits") < 16 << 10 {
            break;
        }
        root.volumes
            .insert(format!("{number:0250}"), Volume::default());
    }
    assert!(POLICY.next(&root, &Avoided::default()).is_none());
}

#[test]
fn an_index_object_that_cannot_be_read_is_left_out() {
    let root = root(&[60, 70, 80]);
    let avoided = Avoided {
        index: HashSet::from([name(2)]),
        ..Avoided::default()
    };
    let Some(Step::Begin(_, covers)) = POLICY.next(&root, &avoided) else {
        panic!("there are two others");
    };
    assert_eq!(covers, [IndexName(name(1)), IndexName(name(0))]);
}

#[test]
fn a_group_that_is_avoided_stays_and_the_others_become_one() {
    let mut root = root(&[]);
    for number in 0..5 {
        root.index.push(IndexRef {
            name: name(number),
            packs: 1,
            blobs: 150,
            bytes: 150,
        });
        let few = MergePolicy {
            fan: usize::MAX,
            ..POLICY
        };
        work_by(&few, &mut root);
    }
    let alone = root.run_groups()[2].begun;
    let avoided = Avoided {
        groups: HashSet::from([alone]),
        ..Avoided::default()
    };
    let Some(Step::Begin(building, _)) = POLICY.next(&root, &avoided) else {
        panic!("there are four others");
    };
    assert_eq!(building.from.len(), 4);
    assert!(!building.from.contains(&alone), "{building:?}");
}
