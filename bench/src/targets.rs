//! The target figures, and whether they are reached.
//!
//! Owns: limits, aims, the measurements that they are compared with, and the names under which
//! suites report these.

pub(crate) mod cores;
mod live;
mod verdict;

pub use verdict::Verdict;
use verdict::verdict;

use crate::format::{line, shown};
use crate::report::Report;

/// Returns every target figure with the measured one.
pub fn verdicts(report: &Report) -> Vec<Verdict> {
    let mut verdicts = of_the_database(report);
    verdicts.extend(of_the_rest(report));
    verdicts.extend(of_small_files(report));
    verdicts.extend(of_names(report));
    verdicts.extend(of_puts(report));
    verdicts.extend(of_distance(report));
    verdicts.extend(cores::of_cores(report));
    verdicts.extend(live::of_live(report));
    verdicts.extend(live::of_first_rows(report));
    verdicts
}

fn of_the_database(report: &Report) -> Vec<Verdict> {
    let database = |one, other| report.ratio("mariadb", one, other);
    vec![
        verdict(
            "first full onto bkfs (local directory) ÷ mariabackup, pigz --fast -p2",
            0.5,
            0.33,
            database(("first full", "bkfs"), ("first full", "mariabackup, pigz")),
        ),
        verdict(
            "first full onto bkfs on MinIO ÷ mariabackup onto s3fs on the same MinIO",
            0.45,
            0.33,
            database(("first full, MinIO", "bkfs"), ("first full, MinIO", "s3fs")),
        ),
        verdict(
            "second full ÷ rustic's repeat on the finished directory",
            0.8,
            0.5,
            database(("second full", "bkfs"), ("second full", "rustic")),
        ),
        verdict(
            "bytes added by the second full ÷ the least any peer added",
            0.25,
            0.15,
            added(report),
        ),
        verdict(
            "repository after the first full ÷ rustic's",
            1.02,
            0.98,
            repository(report),
        ),
        verdict(
            "restore to a local directory ÷ rustic restore",
            0.8,
            0.6,
            database(("restore", "bkfs"), ("restore", "rustic")),
        ),
    ]
}

fn of_the_rest(report: &Report) -> Vec<Verdict> {
    vec![
        verdict(
            "dd of data already stored, no hint ÷ the same onto the null filesystem",
            5.0,
            3.0,
            report.ratio(
                "stream",
                ("noise, stored already", "bkfs"),
                ("noise, stored already", "null filesystem"),
            ),
        ),
        verdict(
            "incompressible stream through the mount ÷ dd, fsync to local disk",
            2.0,
            1.2,
            report.ratio("stream", ("noise", "bkfs"), ("noise", "dd, fsync")),
        ),
        verdict(
            "daemon's processor time, first full ÷ zstd -1 of the same bytes in blocks of 128 KiB",
            1.25,
            1.15,
            processor(report),
        ),
        verdict(
            "small files, tar -x to durable ÷ the same onto the null filesystem, the faster of two",
            1.8,
            1.3,
            above_null(report, "tar -x"),
        ),
        verdict(
            "sequential read in a snapshot with 20 ms of latency ÷ with none",
            1.3,
            1.1,
            report.ratio(
                "latency",
                ("read a snapshot, 20 ms", "bkfs"),
                ("read a snapshot, 0 ms", "bkfs"),
            ),
        ),
        verdict(
            "peak anonymous memory of the daemon, MiB",
            300.0,
            256.0,
            memory(report),
        ),
        verdict(
            "index: anonymous MiB per TiB of unique data in 16 KiB chunks",
            128.0,
            80.0,
            report.figures.get(INDEX_MEMORY).copied(),
        ),
    ]
}

fn of_small_files(report: &Report) -> Vec<Verdict> {
    let files = |one, other| report.ratio("files", one, other);
    vec![
        verdict(
            "restore of small files ÷ restic's restore of them",
            0.7,
            0.5,
            files(("restore", "bkfs"), ("restore", "restic")),
        ),
        verdict(
            "restore of small files ÷ tar -x of them from memory, fsync at the end",
            1.5,
            1.2,
            files(("restore", "bkfs"), ("tar -x", "local disk")),
        ),
        verdict(
            "first backup of small files: tar onto the mount ÷ restic backup",
            1.7,
            1.3,
            files(("tar -x", "bkfs"), ("tar -x", RESTIC_TREE)),
        ),
        verdict(
            "first backup of small files: bkfs put of the tree ÷ restic backup",
            0.6,
            0.4,
            files(("tar -x", PUT_TREE), ("tar -x", RESTIC_TREE)),
        ),
        verdict(
            "unchanged small files: rsync onto a fresh mount ÷ restic's second backup",
            1.0,
            0.5,
            files((AGAIN, RSYNC), (AGAIN, RESTIC_TREE)),
        ),
        verdict(
            "unchanged small files: bkfs put of the tree again ÷ restic's second backup",
            0.5,
            0.25,
            files((AGAIN, PUT_TREE), (AGAIN, RESTIC_TREE)),
        ),
    ]
}

fn of_names(report: &Report) -> Vec<Verdict> {
    let row = |measure, (limit, aim), step| verdict(measure, limit, aim, above_null(report, step));
    let (reads, changes) = ((1.3, 1.1), (1.5, 1.2));
    vec![
        row("stat of a warm tree ÷ the null filesystem", reads, STAT),
        row(
            "readdir of a warm tree ÷ the null filesystem",
            reads,
            READDIR,
        ),
        row("open of a warm tree ÷ the null filesystem", reads, OPEN),
        row(
            "rename of empty files ÷ the null filesystem",
            changes,
            RENAME,
        ),
        row(
            "rm -rf of empty files ÷ the null filesystem",
            changes,
            REMOVE,
        ),
        verdict(
            "two writers of small files: share of the time under the lock of the state",
            0.15,
            0.15,
            report.figures.get(LOCK_SHARE).copied(),
        ),
        verdict(
            "two writers of small files: p99.9 of the holds of that lock, ms",
            1.0,
            1.0,
            report.figures.get(LOCK_P999).copied(),
        ),
    ]
}

fn of_puts(report: &Report) -> Vec<Verdict> {
    let put = |step, system| report.ratio("stream", (step, system), (step, "bkfs"));
    vec![
        verdict(
            "bkfs put of incompressible content ÷ dd of it onto the mount",
            1.0,
            0.8,
            put("noise", "bkfs put"),
        ),
        verdict(
            "bkfs put of pages ÷ dd of them onto the mount",
            0.85,
            0.8,
            put("pages", "bkfs put"),
        ),
        verdict(
            "bkfs put of incompressible content through a pipe ÷ dd of it onto the mount",
            1.0,
            0.8,
            put("noise", PIPED),
        ),
        verdict(
            "bkfs put of pages through a pipe ÷ dd of them onto the mount",
            0.85,
            0.8,
            put("pages", PIPED),
        ),
    ]
}

fn of_distance(report: &Report) -> Vec<Verdict> {
    let latency = |one, other| report.ratio("latency", one, other);
    vec![
        verdict(
            "restore of a long file and small ones with 100 ms of latency ÷ with none",
            1.3,
            1.1,
            latency(
                ("restore both, 100 ms", "bkfs"),
                ("restore both, 0 ms", "bkfs"),
            ),
        ),
        verdict(
            "cold ls -lR of small files with 20 ms of latency ÷ from a local bucket",
            1.2,
            1.1,
            latency(("ls -lR, cold, 20 ms", "bkfs"), (LISTING_NEAR, "bkfs")),
        ),
        verdict(
            "random read of 16 KiB from a snapshot, cold, 20 ms away, depth 1: round trips",
            1.3,
            1.3,
            report
                .figures
                .get(AT_DEPTH_1)
                .map(|rate| 1.0 / rate / ROUND_TRIP_S),
        ),
        verdict(
            "such reads at depth 32: 20 × the rate at depth 1, or that of MinIO alone ÷ the rate",
            1.0,
            1.0,
            depth(report),
        ),
        verdict(
            "snapshot of an idle mount with a million files, 20 ms away: round trips",
            6.0,
            4.0,
            (report.find("latency", IDLE, "bkfs"))
                .and_then(|record| Some(record.wall_s()? / ROUND_TRIP_S)),
        ),
    ]
}

/// Seconds of a round trip to the store in steps "20 ms".
const ROUND_TRIP_S: f64 = 0.02;

/// Returns the rate of reads that depth 32 must reach, divided by the one that it reaches.
fn depth(report: &Report) -> Option<f64> {
    let rate = |name| report.figures.get(name).copied();
    let least = (20.0 * rate(AT_DEPTH_1)?).min(rate(READS_ALONE)?);
    Some(least / rate(AT_DEPTH_32)?)
}

/// Name of a figure: processor seconds of zstd -1, single-threaded, over the files of the first
/// full backup.
pub const FLOOR: &str = "mariadb: zstd -1 in blocks of 128 KiB, processor s";

/// Name of a figure: anonymous memory of the index, in MiB per TiB of content.
pub const INDEX_MEMORY: &str = "index: anonymous MiB per TiB";

/// Name of a figure: random reads from a snapshot, one after the other, 20 ms away.
pub const AT_DEPTH_1: &str = "latency: random reads of 16 KiB at depth 1, 20 ms, reads/s";

/// Name of a figure: the same with 32 at once, after the first 100.
pub const AT_DEPTH_32: &str = "latency: random reads of 16 KiB at depth 32, 20 ms, reads/s";

/// Name of a figure: 32 ranged requests at once to the same store, without a filesystem.
pub const READS_ALONE: &str = "latency: ranged requests of 16 KiB to MinIO alone, 32 at once, \
                               20 ms, requests/s";

/// Name of a figure: the part of the time for which the lock of a volume's state was held.
pub const LOCK_SHARE: &str = "files: two writers, share of the time under the lock of the state";

/// Name of a figure: a limit for 99.9 % of the holds of that lock. It is the upper limit of a class
/// of the histogram.
pub const LOCK_P999: &str = "files: two writers, p99.9 of the holds of that lock, ms";

/// Name of a figure: the longest hold of that lock.
pub const LOCK_LONGEST: &str = "files: two writers, longest hold of that lock, ms";

/// Name of a system: the null filesystem, served like bkfs, with the default number and niceness of
/// threads.
pub const NULL: &str = "null filesystem";

/// Name of a system: the null filesystem with one thread per core.
pub const NULL_BY_CORE: &str = "null filesystem, a thread per core";

/// Name of a step: second backups of small files, with cold caches.
pub const AGAIN: &str = "backup again, nothing changed";

/// Name of a step: each file of a tree that the daemon has in memory is asked for its attributes.
pub const STAT: &str = "stat, warm tree";

/// Name of a step: each directory of such a tree is listed.
pub const READDIR: &str = "readdir, warm tree";

/// Name of a step: each file of such a tree is opened.
pub const OPEN: &str = "open, warm tree";

/// Name of a step: each of many empty files gets another name.
pub const RENAME: &str = "rename, empty files";

/// Name of a step: many empty files are removed.
pub const REMOVE: &str = "rm -rf, empty files";

/// Name of a step: a snapshot of an idle mount with very many files, 20 ms away.
pub const IDLE: &str = "snapshot of an idle mount, 20 ms";

/// Name of a step: a cold listing from a bucket in a local directory.
pub const LISTING_NEAR: &str = "ls -lR, cold, local bucket";

/// Name of a system: rsync onto a fresh mount, up to a snapshot.
pub const RSYNC: &str = "bkfs (rsync onto a fresh mount)";

/// Name of a system: `bkfs put` of a stream that comes through a pipe.
pub const PIPED: &str = "bkfs put, from a pipe";

/// Name of a system: `bkfs put` of a tree of small files, without a mount.
pub const PUT_TREE: &str = "bkfs put (of the tree)";

/// Name of a system: `restic backup` of a tree of small files.
pub const RESTIC_TREE: &str = "restic (backup of the tree)";

fn stored(report: &Report, step: &str, system: &str) -> Option<f64> {
    let record = report.find("mariadb", step, system)?;
    record.median(|run| run.stored_bytes.map(|bytes| bytes as f64))
}

fn added(report: &Report) -> Option<f64> {
    let of = |system| {
        Some(stored(report, "second full", system)? - stored(report, "first full", system)?)
    };
    let least = ["restic", "rustic", "borg"]
        .into_iter()
        .filter_map(of)
        .fold(f64::INFINITY, f64::min);
    Some(of("bkfs")? / Some(least).filter(|least| least.is_finite())?)
}

fn repository(report: &Report) -> Option<f64> {
    Some(stored(report, "first full", "bkfs")? / stored(report, "first full", "rustic")?)
}

fn processor(report: &Report) -> Option<f64> {
    let record = report.find("mariadb", "first full", "bkfs")?;
    Some(record.median(|run| run.cpu_s)? / report.figures.get(FLOOR)?)
}

/// Returns the ratio of a step of the suite `files` to that of the null filesystem, in the faster
/// one of its two configurations.
fn above_null(report: &Report, step: &str) -> Option<f64> {
    let above = |null| report.ratio("files", (step, "bkfs"), (step, null));
    Some(above(NULL)?.max(above(NULL_BY_CORE)?))
}

fn memory(report: &Report) -> Option<f64> {
    let ours = report.records.iter();
    let ours = ours.filter(|record| record.system.starts_with("bkfs") && record.suite != "index");
    ours.flat_map(|record| record.runs.iter().filter_map(|run| run.anon_bytes))
        .max()
        .map(|bytes| bytes as f64 / (1 << 20) as f64)
}

/// Returns the results as a table in Markdown.
pub fn table(verdicts: &[Verdict]) -> String {
    let mut text = String::from("| measure | limit | aim | measured | |\n|---|---|---|---|---|\n");
    for verdict in verdicts {
        let Verdict {
            measure,
            limit,
            aim,
            measured,
        } = verdict;
        let word = verdict.word();
        let measured = shown(*measured, 2);
        line(
            &mut text,
            format_args!("| {measure} | {limit} | {aim} | {measured} | {word} |"),
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Run;
    use crate::report::Record;

    fn add(report: &mut Report, step: &str, system: &str, measured: (f64, u64)) {
        add_to("mariadb", report, step, system, measured);
    }

    fn add_to(
        suite: &'static str,
        report: &mut Report,
        step: &str,
        system: &str,
        (wall_s, stored): (f64, u64),
    ) {
        let record = Record {
            suite,
            step: step.to_owned(),
            system: system.to_owned(),
            runs: Vec::new(),
        };
        let run = Run {
            wall_s,
            cpu_s: Some(wall_s),
            stored_bytes: Some(stored),
            anon_bytes: Some(64 << 20),
            verified: true,
            ..Run::default()
        };
        report.add(record, run);
    }

    #[test]
    fn each_figure_is_read_from_where_it_lies() {
        let mut report = Report::default();
        for verdict in verdicts(&report) {
            assert_eq!(verdict.word(), "not measured");
            assert!(verdict.aim <= verdict.limit);
        }
        add(&mut report, "first full", "bkfs", (1.0, 100));
        add(&mut report, "second full", "bkfs", (1.0, 120));
        for (system, after) in [("rustic", 300), ("restic", 180)] {
            add(&mut report, "first full", system, (2.0, 100));
            add(&mut report, "second full", system, (2.0, after));
        }
        report.figures.insert(FLOOR.to_owned(), 0.5);
        let measured: Vec<_> = verdicts(&report)
            .iter()
            .map(|verdict| verdict.measured)
            .collect();
        assert_eq!(measured[2..5], [Some(0.5), Some(0.25), Some(1.0)]);
        assert_eq!((measured[8], measured[11]), (Some(2.0), Some(64.0)));
        let words: Vec<_> = verdicts(&report).iter().map(Verdict::word).collect();
        assert_eq!(words[2..5], ["pass, aim reached", "pass", "pass"]);
        assert_eq!(words[8], "miss");
    }

    /// Returns the figure of the one row whose measure begins like this.
    fn figure(report: &Report, measure: &str) -> Option<f64> {
        let all = verdicts(report);
        let mut rows = all.iter().filter(|row| row.measure.starts_with(measure));
        let row = rows.next().expect("there is such a row");
        assert!(rows.next().is_none(), "one row only: {measure}");
        row.measured
    }

    #[test]
    fn backups_and_restores_of_small_files_are_compared_with_their_peers() {
        let mut report = Report::default();
        for (step, system, wall_s) in [
            ("tar -x", "bkfs", 6.0),
            ("tar -x", "local disk", 2.0),
            ("tar -x", PUT_TREE, 1.0),
            ("tar -x", RESTIC_TREE, 4.0),
            ("restore", "bkfs", 3.0),
            ("restore", "restic", 12.0),
            (AGAIN, RSYNC, 3.0),
            (AGAIN, PUT_TREE, 1.0),
            (AGAIN, RESTIC_TREE, 4.0),
        ] {
            add_to("files", &mut report, step, system, (wall_s, 0));
        }
        for (measure, expected) in [
            ("restore of small files ÷ restic", 0.25),
            ("restore of small files ÷ tar", 1.5),
            ("first backup of small files: tar", 1.5),
            ("first backup of small files: bkfs put", 0.25),
            ("unchanged small files: rsync", 0.75),
            ("unchanged small files: bkfs put", 0.25),
        ] {
            assert_eq!(figure(&report, measure), Some(expected), "{measure}");
        }
    }

    #[test]
    fn puts_and_distance_are_compared_with_the_same_work_of_bkfs() {
        let mut report = Report::default();
        for (suite, step, system, wall_s) in [
            ("stream", "noise", "bkfs", 4.0),
            ("stream", "noise", "bkfs put", 3.0),
            ("stream", "pages", "bkfs", 8.0),
            ("stream", "pages", "bkfs put", 4.0),
            ("stream", "noise", PIPED, 5.0),
            ("stream", "pages", PIPED, 2.0),
            ("latency", "restore both, 0 ms", "bkfs", 10.0),
            ("latency", "restore both, 100 ms", "bkfs", 15.0),
            ("latency", "ls -lR, cold, 0 ms", "bkfs", 3.0),
            ("latency", "ls -lR, cold, 20 ms", "bkfs", 5.0),
            ("latency", LISTING_NEAR, "bkfs", 4.0),
            ("latency", IDLE, "bkfs", 0.05),
        ] {
            add_to(suite, &mut report, step, system, (wall_s, 0));
        }
        for (measure, expected) in [
            ("bkfs put of incompressible content ÷", 0.75),
            ("bkfs put of pages ÷", 0.5),
            ("bkfs put of incompressible content through a pipe", 1.25),
            ("bkfs put of pages through a pipe", 0.25),
            ("restore of a long file and small ones", 1.5),
            ("cold ls -lR of small files", 1.25),
            ("snapshot of an idle mount", 2.5),
        ] {
            assert_eq!(figure(&report, measure), Some(expected), "{measure}");
        }
    }

    #[test]
    fn requests_for_names_are_compared_with_the_null_filesystem() {
        let mut report = Report::default();
        for (number, step) in [STAT, READDIR, OPEN, RENAME, REMOVE].iter().enumerate() {
            let measured = [
                ("bkfs", 2.0 + number as f64),
                (NULL, 2.0),
                (NULL_BY_CORE, 4.0),
            ];
            for (system, wall_s) in measured {
                add_to("files", &mut report, step, system, (wall_s, 0));
            }
        }
        for (name, figure) in [(LOCK_SHARE, 0.25), (LOCK_P999, 0.5)] {
            report.figures.insert(name.to_owned(), figure);
        }
        for (measure, expected) in [
            ("stat of a warm tree", 1.0),
            ("readdir of a warm tree", 1.5),
            ("open of a warm tree", 2.0),
            ("rename of empty files", 2.5),
            ("rm -rf of empty files", 3.0),
            ("two writers of small files: share", 0.25),
            ("two writers of small files: p99.9", 0.5),
        ] {
            assert_eq!(figure(&report, measure), Some(expected), "{measure}");
        }
    }

    #[test]
    fn depth_32_is_compared_with_the_lesser_of_both_rates() {
        let measured = |at_1: f64, at_32: f64, alone: f64| {
            let mut report = Report::default();
            for (name, rate) in [
                (AT_DEPTH_1, at_1),
                (AT_DEPTH_32, at_32),
                (READS_ALONE, alone),
            ] {
                report.figures.insert(name.to_owned(), rate);
            }
            let of = |measure| figure(&report, measure);
            (of("random read of 16 KiB"), of("such reads at depth 32"))
        };
        assert_eq!(measured(40.0, 1600.0, 2000.0), (Some(1.25), Some(0.5)));
        assert_eq!(measured(40.0, 400.0, 600.0), (Some(1.25), Some(1.5)));
    }

    #[test]
    fn small_files_are_compared_with_the_faster_of_both() {
        let measured = |bkfs, null, by_core| {
            let mut report = Report::default();
            for (system, wall_s) in [("bkfs", bkfs), (NULL, null), (NULL_BY_CORE, by_core)] {
                add_to("files", &mut report, "tar -x", system, (wall_s, 0));
            }
            above_null(&report, "tar -x")
        };
        assert_eq!(measured(6.0, 4.0, 3.0), Some(2.0));
        assert_eq!(measured(6.0, 3.0, 4.0), Some(2.0));
    }
}
