//! The lock of a volume's state while two programs unpack small files at the same time.
//!
//! Owns: reading the lock's histogram from the metrics of a mount. Every operation of a mount takes
//! this lock, so its holds bound what more cores can give.

use std::fs;
use std::path::Path;

use crate::context::Context;
use crate::disk::{remove, text};
use crate::measure::{median, shell, verified};
use crate::program::Mounted;
use crate::targets::{LOCK_LONGEST, LOCK_P999, LOCK_SHARE};
use crate::verify::same_trees;
use crate::{Failure, Outcome};

/// The step of both programs together.
const STEP: &str = "tar -x, two at the same time";

/// What the metrics say about the holds of the lock.
#[derive(Clone, Debug, Default, PartialEq)]
struct Holds {
    /// The upper limit of each class in seconds, and the number of holds up to it.
    classes: Vec<(f64, f64)>,
    /// The sum of all holds, in seconds.
    sum_s: f64,
    /// The longest hold, in seconds.
    longest_s: f64,
}

impl Holds {
    fn of(mounted: &Mounted) -> Outcome<Self> {
        Self::parse(&fs::read_to_string(mounted.path().join(".bkfs/metrics"))?)
    }

    fn parse(metrics: &str) -> Outcome<Self> {
        let mut holds = Self::default();
        // Labels may hold blanks; values do not.
        let lines = metrics.lines().filter_map(|line| line.rsplit_once(' '));
        for (series, value) in lines {
            let (name, labels) = series.split_once('{').unwrap_or((series, ""));
            match name {
                "bkfs_state_lock_hold_seconds_bucket" => {
                    let limit = labels.rsplit_once("le=\"").ok_or("a class has no limit")?.1;
                    let limit = limit.trim_end_matches("\"}").replace("+Inf", "inf");
                    holds.classes.push((limit.parse()?, value.parse()?));
                }
                "bkfs_state_lock_hold_seconds_sum" => holds.sum_s = value.parse()?,
                "bkfs_state_lock_longest_hold_seconds" => holds.longest_s = value.parse()?,
                _ => {}
            }
        }
        match holds.classes.is_empty() {
            true => Err("the metrics have no holds of the lock".into()),
            false => Ok(holds),
        }
    }

    /// Returns the upper limit of the class that holds the hold of this rank, in seconds. For a
    /// hold of the last class, which has no limit, this is the longest one.
    fn quantile_s(&self, part: f64) -> f64 {
        let all = self.classes.last().map_or(0.0, |(_, count)| *count);
        let reached = self.classes.iter().find(|(_, count)| *count >= part * all);
        reached.map_or(self.longest_s, |(limit, _)| limit.min(self.longest_s))
    }
}

/// Unpacks the archive twice at the same time, and notes how long the lock was held.
pub(super) fn run(
    context: &mut Context,
    suite: &'static str,
    archive: &Path,
    source: &Path,
) -> Outcome<()> {
    let mut figures = [
        (LOCK_SHARE, Vec::new()),
        (LOCK_P999, Vec::new()),
        (LOCK_LONGEST, Vec::new()),
    ];
    for _ in 0..context.repeat {
        let (wall_s, holds) = unpacked(context, suite, archive, source)?;
        let values = [
            holds.sum_s / wall_s,
            holds.quantile_s(0.999) * 1e3,
            holds.longest_s * 1e3,
        ];
        for ((_, seen), value) in figures.iter_mut().zip(values) {
            seen.push(value);
        }
    }
    for (name, seen) in figures {
        let figures = &mut context.report.figures;
        figures.extend(median(seen).map(|figure| (name.to_owned(), figure)));
    }
    Ok(())
}

/// Unpacks the archive into two directories of a mount, and compares both in a restore. Returns the
/// seconds until both writers had ended, and the holds of the lock up to then.
fn unpacked(
    context: &mut Context,
    suite: &'static str,
    archive: &Path,
    source: &Path,
) -> Outcome<(f64, Holds)> {
    let bucket = context.fresh("bucket")?;
    let url = text(&bucket).to_owned();
    // The log of this part, without which only some holds are measured.
    let log = "warn,bkfs::volume::state_lock=debug".to_owned();
    let program = context.program.with(&[("BKFS_LOG", log)]);
    program.init(&url)?;
    let mounted = program.mount(&url, &context.fresh("mount")?)?;
    let target = |name: &str| mounted.path().join(name);
    for name in ["one", "two"] {
        fs::create_dir(target(name))?;
    }
    let tar = |name: &str| format!("tar -xf {} -C {}", text(archive), text(&target(name)));
    let line = format!("{} & {}; wait $!", tar("one"), tar("two"));
    let mut seen = Err(Failure::from("nothing was unpacked"));
    let run = mounted.measure(|| {
        let written = shell(&line)?;
        seen = Holds::of(&mounted).map(|holds| (written.wall_s, holds));
        mounted.snapshot("both")
    })?;
    mounted.unmount()?;
    let restored = context.work.join("restored");
    program.restore(&url, "both", &restored)?;
    for name in ["one", "two"] {
        same_trees(source, &restored.join(name), true)?;
    }
    remove(&restored)?;
    remove(&bucket)?;
    context.note(suite, STEP, "bkfs", verified(run));
    seen
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holds_are_read_from_the_metrics() {
        let line = |name: &str, le: &str, value: &str| {
            let series =
                format!("bkfs_state_lock_{name}{{repository=\"/a b\",volume=\"main\"{le}}}");
            format!("{series} {value}\n")
        };
        let classes = [
            ("0.00001", "900"),
            ("0.001", "998"),
            ("0.25", "999"),
            ("+Inf", "1000"),
        ];
        let mut metrics = "# TYPE bkfs_state_lock_hold_seconds histogram\n".to_owned();
        metrics += &line("hold_seconds_sum", "", "0.75");
        metrics += &line("hold_seconds_count", "", "1000");
        for (limit, count) in classes {
            metrics += &line("hold_seconds_bucket", &format!(",le=\"{limit}\""), count);
        }
        metrics += &line("longest_hold_seconds", "", "0.5");
        let holds = Holds::parse(&metrics).unwrap();
        assert_eq!(holds.classes.len(), 4);
        assert_eq!((holds.sum_s, holds.longest_s), (0.75, 0.5));
        let quantiles = [0.5, 0.99, 0.999, 1.0].map(|part| holds.quantile_s(part));
        assert_eq!(quantiles, [0.000_01, 0.001, 0.25, 0.5]);
        assert!(Holds::parse("bkfs_other 7\n").is_err());
    }
}
