//! Tests of the pure parts: the packs that a sample takes, keys, and what counts as damage.

use std::collections::HashSet;

use bkfs_chunker::pack::PackName;
use proptest::prelude::*;

use super::layout::{NamedObject, place_of};
use super::report::{FILES_MAX, PROBLEMS_MAX, Problem, ProblemKind, Report};
use super::sample::Sample;
use crate::root::state::SessionId;

fn pack(session: u64, sequence: u32, random: u32) -> PackName {
    PackName {
        session,
        sequence,
        random,
    }
}

#[test]
fn samples_take_about_as_many_as_asked_for_and_others_next_time() {
    let packs: Vec<PackName> = (0..20_000)
        .map(|n| pack(n / 50, n as u32 % 50, 7))
        .collect();
    let taken = |percent, seed| -> HashSet<PackName> {
        let sample = Sample::Percent { percent, seed };
        packs
            .iter()
            .copied()
            .filter(|pack| sample.takes(*pack))
            .collect()
    };
    let tenth = taken(10.0, 1);
    assert!((1_800..2_200).contains(&tenth.len()), "{}", tenth.len());
    assert_eq!(tenth, taken(10.0, 1));
    let both = tenth.intersection(&taken(10.0, 2)).count();
    assert!(both < 300, "{both} packs in two samples");
    assert!(tenth.is_subset(&taken(50.0, 1)), "more is more");
    assert_eq!(taken(100.0, 3).len(), packs.len());
}

#[test]
fn keys_are_what_they_are() {
    let session = SessionId(0x0123_4567_89ab_cdef);
    assert_eq!(place_of("root"), NamedObject::Root);
    assert_eq!(place_of("config"), NamedObject::Config);
    assert_eq!(place_of(&session.key()), NamedObject::Session(session));
    let key = "journal/00000000000000ff/0123456789abcdef/1a";
    let number = 0x1a;
    let volume = 0xff;
    assert_eq!(
        place_of(key),
        NamedObject::Journal {
            volume,
            session,
            number
        }
    );
    assert_eq!(place_of("probe/1-2-three"), NamedObject::Probe);
    for foreign in [
        "",
        "roots",
        "sessions/12",
        "sessions/0123456789ABCDEF",
        "journal/1/2/3",
        "data/x",
    ] {
        assert_eq!(place_of(foreign), NamedObject::Foreign, "{foreign}");
    }
}

/// What is decided by a report does not depend on how much of it can be listed.
#[test]
fn a_full_report_knows_what_it_does_not_list() {
    let mut report = Report::default();
    for _ in 0..PROBLEMS_MAX {
        report.add(Problem::new("data/a", ProblemKind::Damaged, "it is"));
    }
    assert!(!report.has(ProblemKind::Missing));
    let missing = Problem::new("data/b", ProblemKind::Missing, "it is");
    assert_eq!(report.add(missing), PROBLEMS_MAX);
    assert!(report.has(ProblemKind::Missing));
    for object in ["meta/d", "meta/c"] {
        let number = report.add(Problem::new(object, ProblemKind::Refused, object));
        assert_eq!(number, PROBLEMS_MAX);
    }
    let refused: Vec<_> = report.refused().collect();
    assert_eq!(refused, [("meta/c", "meta/c"), ("meta/d", "meta/d")]);
    assert_eq!(report.to_string().lines().last(), Some("10003 problems"));
}

#[test]
fn reports_are_bounded() {
    let mut report = Report::default();
    let problem = Problem::new("root", ProblemKind::Damaged, "it is");
    for _ in 0..PROBLEMS_MAX + 5 {
        report.add(problem.clone());
    }
    assert_eq!(
        (report.problems.len(), report.more_problems),
        (PROBLEMS_MAX, 5)
    );
    let mut problem = problem;
    for file in 0..FILES_MAX + 3 {
        problem.touch(format!("main/one:/{file}"));
    }
    problem.touch("main/one:/0".to_owned());
    assert_eq!((problem.files.len(), problem.more_files), (FILES_MAX, 3));
}

proptest! {
    #[test]
    fn arbitrary_keys_do_not_panic(key in ".*", tail in "[0-9a-f/]{0,60}") {
        place_of(&key);
        place_of(&format!("journal/{tail}"));
        place_of(&format!("sessions/{tail}"));
    }
}

mod rebuilt;
