//! Cases that every run covers, whatever the seed: each kind of harm to each class, and a check
//! writes nothing.

use std::sync::Arc;

use bkfs::maintain::check::{check, examine};
use bkfs::maintain::report::{PROBLEMS_MAX, ProblemKind};
use bkfs::maintain::sample::Sample;
use bkfs_chunker::crypto::SlotName;
use bkfs_store::Operation;
use bkfs_testing::counting::CountingStore;
use bytes::Bytes;

use crate::cases::{Case, Harm, run_case};
use crate::world::{Fixture, PASSWORD, bucket, class_of, wait};

#[test]
fn every_class_is_struck_in_every_way() {
    for password in [None, Some(PASSWORD)] {
        let fixture = Fixture::build(password);
        let mut seen = std::collections::BTreeSet::new();
        for key in &fixture.needed {
            if !seen.insert(class_of(key)) {
                continue;
            }
            let length = fixture.objects[key].len();
            let harms = [
                Harm::Flip(3, 0),
                Harm::Flip(9, 1),
                Harm::Flip(60, 2),
                Harm::Flip(length - 1, 3),
                Harm::Flip(length / 2, 4),
                Harm::Cut(0),
                Harm::Cut(length - 1),
                Harm::Grow(1),
                Harm::Remove,
            ];
            for harm in harms {
                let case = Case::new(key, harm);
                if let Err(why) = run_case(&fixture, &case) {
                    panic!("{case}: {why}");
                }
            }
        }
        let older = Case::new("root", Harm::Older);
        run_case(&fixture, &older).expect("an older root is found");
    }
}

#[test]
fn a_check_writes_nothing_and_counts_what_it_read() {
    let fixture = Fixture::build(Some(PASSWORD));
    let counting = CountingStore::new(bucket(&fixture.objects));
    let counters = counting.counters();
    let options = fixture.options();
    let report = wait(check(Arc::new(counting), &fixture.keyring, &options)).expect("checks");
    assert!(report.is_clean(), "{report}");
    let writes = Operation::ALL
        .into_iter()
        .filter(|operation| operation.is_write());
    for operation in writes {
        assert_eq!(counters.tally(operation).requests, 0, "{operation:?}");
    }
    assert_eq!(report.counts.verified_bytes, report.counts.bytes);
    assert_eq!(report.counts.packs_read, report.counts.packs);
    assert_eq!(report.counts.snapshots, 3);
    assert!(
        report.orphans.in_progress > 0,
        "what a session that lives has replaced"
    );
    assert_eq!(report.orphans.count(), 0, "{:?}", report.orphans);
}

#[test]
fn structure_alone_finds_lost_packs_but_not_every_flipped_bit() {
    let fixture = Fixture::build(None);
    let mut options = fixture.options();
    options.data = Sample::Structure;
    let key = fixture.needed.iter().find(|key| class_of(key) == "data");
    let key = key.expect("a data pack");
    for (harm, kind) in [
        (Harm::Remove, Some(ProblemKind::Missing)),
        (Harm::Cut(500), Some(ProblemKind::Damaged)),
        (Harm::Grow(1), Some(ProblemKind::Damaged)),
        (Harm::Flip(3, 1), Some(ProblemKind::Damaged)),
        (Harm::Flip(400, 1), None),
    ] {
        let case = Case::new(key, harm);
        let store = bucket(&case.apply(&fixture));
        let report = wait(check(store, &fixture.keyring, &options)).expect("checks");
        let found = report
            .problems
            .iter()
            .find(|problem| problem.object == *key);
        assert_eq!(found.map(|problem| problem.kind), kind, "{case}: {report}");
    }
}

#[test]
fn damage_names_the_files_that_need_it() {
    let fixture = Fixture::build(None);
    // Each data pack in turn has a flipped bit near its start.
    let key = fixture.needed.iter().filter(|key| class_of(key) == "data");
    let mut named = std::collections::BTreeSet::new();
    for key in key {
        let case = Case::new(key, Harm::Flip(300, 1));
        let store = bucket(&case.apply(&fixture));
        let report = wait(check(store, &fixture.keyring, &fixture.options())).expect("checks");
        let [problem] = report.problems.as_slice() else {
            panic!("{report}");
        };
        assert!(problem.lost_blobs > 0 && !problem.snapshots.is_empty());
        assert!(!problem.files.is_empty(), "{problem:?}");
        named.extend(problem.files.clone());
    }
    assert!(named.iter().any(|file| file.contains(":/")), "{named:?}");
}

/// A report lists a bounded number of problems. A repair from another repository goes by what is
/// lost.
#[test]
fn what_is_lost_behind_any_number_of_problems_is_known() {
    let mut fixture = Fixture::build(None);
    // Anyone who can write to the bucket can put these there. They are read before the packs.
    for number in 0..PROBLEMS_MAX as u64 {
        let junk = Bytes::from_static(b"junk");
        fixture.objects.insert(SlotName(number).key(), junk);
    }
    let mut packs = fixture.needed.iter().filter(|key| class_of(key) == "data");
    let pack = packs.next().expect("a pack").clone();
    let harmed = Case::new(&pack, Harm::Flip(300, 1)).apply(&fixture);
    let store = bucket(&harmed);
    let findings = wait(examine(store, &fixture.keyring, &fixture.options())).expect("examines");
    assert!(findings.report.more_problems > 0, "the report is not full");
    assert!(!findings.report.names(&pack), "it is listed");
    assert!(findings.damage.has_lost(), "nothing is lost");
}
