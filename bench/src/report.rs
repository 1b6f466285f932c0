//! The results: the runs of each system, other figures, and absent peers.
//!
//! Owns: what is noted and how it is found again. Does not own: how it is written (`output`) and
//! what it is compared with (`targets`).

use std::collections::BTreeMap;

use serde::Serialize;

use crate::measure::{Run, median};

/// All runs of one system at one step.
#[derive(Clone, Debug, Serialize)]
pub struct Record {
    /// Name of the suite.
    pub suite: &'static str,
    /// Name of the step.
    pub step: String,
    /// Name of the system.
    pub system: String,
    /// The runs.
    pub runs: Vec<Run>,
}

impl Record {
    /// Returns the median of one figure over the runs that have it.
    pub fn median(&self, figure: impl Fn(&Run) -> Option<f64>) -> Option<f64> {
        median(self.runs.iter().filter_map(figure).collect())
    }

    /// Returns the median of the seconds until the data was durable.
    pub fn wall_s(&self) -> Option<f64> {
        self.median(|run| Some(run.wall_s))
    }

    /// Returns true if every run was verified.
    pub fn is_verified(&self) -> bool {
        self.runs.iter().all(|run| run.verified)
    }
}

/// The results of one benchmark.
#[derive(Debug, Default, Serialize)]
pub struct Report {
    /// The machine, versions and the command line, as name and value.
    pub about: Vec<(String, String)>,
    /// All measurements, in order.
    pub records: Vec<Record>,
    /// Figures that are not runs, by name: seconds per GB of a stage, bytes of memory.
    pub figures: BTreeMap<String, f64>,
    /// Absent peers by name, with the reason.
    pub absent: BTreeMap<String, String>,
}

impl Report {
    /// Adds a run to its record.
    pub fn add(&mut self, record: Record, run: Run) {
        let same = |other: &&mut Record| {
            (other.suite, &other.step, &other.system)
                == (record.suite, &record.step, &record.system)
        };
        match self.records.iter_mut().find(same) {
            Some(known) => known.runs.push(run),
            None => self.records.push(Record {
                runs: vec![run],
                ..record
            }),
        }
    }

    /// Notes that a peer is absent.
    pub fn absent(&mut self, name: &str, reason: &str) {
        self.absent.insert(name.to_owned(), reason.to_owned());
    }

    /// Returns a record, if it exists and each of its runs was verified.
    pub fn find(&self, suite: &str, step: &str, system: &str) -> Option<&Record> {
        self.records.iter().find(|record| {
            record.suite == suite
                && record.step == step
                && record.system == system
                && record.is_verified()
        })
    }

    /// Returns the time of `one` divided by that of `other`, by medians.
    pub fn ratio(&self, suite: &str, one: (&str, &str), other: (&str, &str)) -> Option<f64> {
        let wall = |(step, system)| self.find(suite, step, system)?.wall_s();
        Some(wall(one)? / wall(other)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::markdown;

    fn record(system: &str) -> Record {
        Record {
            suite: "stream",
            step: "noise, first".to_owned(),
            system: system.to_owned(),
            runs: Vec::new(),
        }
    }

    fn run(wall_s: f64, verified: bool) -> Run {
        Run {
            wall_s,
            verified,
            ..Run::default()
        }
    }

    #[test]
    fn medians_are_compared_and_unverified_results_are_not_shown() {
        let mut report = Report::default();
        for (system, wall_s) in [("bkfs", 1.0), ("peer", 4.0), ("bkfs", 3.0), ("bkfs", 2.0)] {
            report.add(record(system), run(wall_s, true));
        }
        let at = |system| ("noise, first", system);
        assert_eq!(report.ratio("stream", at("bkfs"), at("peer")), Some(0.5));
        assert!(markdown(&report, "plots").contains("| noise, first | bkfs | 2.00 | 1.00–3.00 |"));
        report.add(record("peer"), run(5.0, false));
        assert_eq!(report.ratio("stream", at("bkfs"), at("peer")), None);
        assert!(markdown(&report, "plots").contains("peer | not verified"));
    }
}
