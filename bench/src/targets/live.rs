//! The target figures of databases that run on a clone.

use super::verdict::{Verdict, verdict};
use crate::report::Report;
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
