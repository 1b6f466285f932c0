//! The target figures of databases that run on a clone.

use super::verdict::{Verdict, verdict};
use crate::report::Report;
use crate::suites::live::first::{self, DISK, Kind, SIZES, TRACED, UNTRACED};
use crate::suites::live::places::Place;
use crate::suites::live::{AFTER, DURABLE, DURING, READ_ALL, READ_EIGHTH, SUITE, VOLATILE};

/// Returns them if the suite ran.
pub(super) fn of_live(report: &Report) -> Vec<Verdict> {
    if !report.records.iter().any(|record| record.suite == SUITE) {
        return Vec::new();
    }
    let to_disk =
        |step, place: Place| report.ratio(SUITE, (step, place.name()), (step, Place::Disk.name()));
    let p99 = |step| {
        let record = report.find(SUITE, step, Place::Scratch.name())?;
        record.median(|run| run.p99_ms)
    };
    let during = p99(DURING).zip(p99(AFTER));
    vec![
        verdict(
            "oltp_read_write without durability: a scratch clone ÷ local disk",
            1.42,
            1.42,
            to_disk(VOLATILE, Place::Scratch),
        ),
        verdict(
            "oltp_read_write: a clone with fsync=local ÷ local disk",
            2.5,
            2.0,
            to_disk(DURABLE, Place::Local),
        ),
        verdict(
            "oltp_read_only, a pool of an eighth: a scratch clone ÷ local disk",
            2.0,
            1.33,
            to_disk(READ_EIGHTH, Place::Scratch),
        ),
        verdict(
            "oltp_read_only, a pool of all: a scratch clone ÷ local disk",
            1.05,
            1.05,
            to_disk(READ_ALL, Place::Scratch),
        ),
        verdict(
            "p99 of oltp_read_only during hydration ÷ after it",
            1.5,
            1.5,
            during.map(|(during, after)| during / after),
        ),
    ]
}

/// Returns the figures of first rows if the suite ran.
pub(super) fn of_first_rows(report: &Report) -> Vec<Verdict> {
    if !report
        .records
        .iter()
        .any(|record| record.suite == first::SUITE)
    {
        return Vec::new();
    }
    let mut verdicts = Vec::new();
    for (kind, [bound, share, size]) in Kind::ALL.into_iter().zip(NAMES) {
        let of = |size, system| {
            report
                .find(first::SUITE, &kind.step(size), system)?
                .wall_s()
        };
        let worst = |figure: &dyn Fn(f64, f64, f64) -> f64| {
            let figures = SIZES.map(|size| {
                Some(figure(
                    of(size, DISK)?,
                    of(size, UNTRACED)?,
                    of(size, TRACED)?,
                ))
            });
            figures
                .into_iter()
                .try_fold(f64::MIN, |most, one| Some(most.max(one?)))
        };
        let [smaller, larger] = SIZES.map(|size| of(size, UNTRACED));
        let ratio = smaller.zip(larger).map(|(one, other)| one / other);
        verdicts.extend([
            verdict(
                bound,
                2.0,
                2.0,
                worst(&|disk, _, traced| (traced - 1.0) / disk),
            ),
            verdict(
                share,
                0.333,
                0.333,
                worst(&|disk, untraced, traced| (traced - disk) / (untraced - disk)),
            ),
            verdict(size, 1.3, 1.3, ratio.map(|ratio| ratio.max(1.0 / ratio))),
        ]);
    }
    verdicts
}

/// The measures of MariaDB and of PostgreSQL, each the worse one of both sizes.
const NAMES: [[&str; 3]; 2] = [
    [
        "first row of MariaDB on a clone with a trace, less 1 s ÷ on the local disk",
        "first row of MariaDB: (with a trace − local disk) ÷ (without one − local disk)",
        "first row of MariaDB on a clone: one size ÷ eight times that, or the reverse",
    ],
    [
        "first row of PostgreSQL on a clone with a trace, less 1 s ÷ on the local disk",
        "first row of PostgreSQL: (with a trace − local disk) ÷ (without one − local disk)",
        "first row of PostgreSQL on a clone: one size ÷ eight times that, or the reverse",
    ],
];
