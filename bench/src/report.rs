//! The results: as JSON, as tables in Markdown, and compared with the target figures.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use serde::Serialize;

use crate::Outcome;
use crate::measure::{Run, median};
use crate::plot;
use crate::targets::{self, Verdict};

/// A page holds the tables of the last run between these lines.
const BEGIN: &str = "<!-- tables: written by bkfs-bench -->";
const END: &str = "<!-- end of tables -->";

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

    /// Returns the target figures with the measured ones.
    pub fn verdicts(&self) -> Vec<Verdict> {
        targets::verdicts(self)
    }

    /// Returns the tables as Markdown. Plots are linked in `plots`, a path relative to the page.
    pub fn markdown(&self, plots: &str) -> String {
        let mut text = String::new();
        for (name, value) in &self.about {
            line(&mut text, format_args!("- {name}: {value}"));
        }
        line(&mut text, format_args!("\n### To reach\n"));
        text.push_str(&targets::table(&self.verdicts()));
        let mut suites: Vec<&str> = self.records.iter().map(|record| record.suite).collect();
        suites.dedup();
        for suite in suites {
            line(&mut text, format_args!("\n### {suite}\n"));
            line(
                &mut text,
                format_args!("![seconds by system]({plots}/{suite}.svg)\n"),
            );
            self.table(suite, &mut text);
        }
        if !self.figures.is_empty() {
            line(
                &mut text,
                format_args!("\n### Figures\n\n| what | figure |\n|---|---|"),
            );
            for (name, figure) in &self.figures {
                line(&mut text, format_args!("| {name} | {figure:.3} |"));
            }
        }
        line(&mut text, format_args!("\n### Absent\n"));
        for (name, reason) in &self.absent {
            let reason = reason.lines().next().unwrap_or_default();
            line(&mut text, format_args!("- {name}: {reason}"));
        }
        if self.absent.is_empty() {
            line(&mut text, format_args!("None."));
        }
        text
    }

    fn table(&self, suite: &str, text: &mut String) {
        line(
            text,
            format_args!(
                "| step | system | seconds | least–most | processor s | anonymous MiB | stored MiB | requests |\n|---|---|---|---|---|---|---|---|"
            ),
        );
        for record in self.records.iter().filter(|record| record.suite == suite) {
            if !record.is_verified() {
                let (step, system) = (&record.step, &record.system);
                line(
                    text,
                    format_args!("| {step} | {system} | not verified | | | | | |"),
                );
                continue;
            }
            let walls = record.runs.iter().map(|run| run.wall_s);
            let least = walls.clone().fold(f64::INFINITY, f64::min);
            let most = walls.fold(0.0, f64::max);
            let mib = |bytes: Option<u64>| bytes.map(|bytes| bytes as f64 / (1 << 20) as f64);
            line(
                text,
                format_args!(
                    "| {} | {} | {} | {least:.2}–{most:.2} | {} | {} | {} | {} |",
                    record.step,
                    record.system,
                    shown(record.wall_s(), 2),
                    shown(record.median(|run| run.cpu_s), 2),
                    shown(record.median(|run| mib(run.anon_bytes)), 0),
                    shown(record.median(|run| mib(run.stored_bytes)), 1),
                    shown(
                        record.median(|run| run.requests.map(|count| count as f64)),
                        0
                    ),
                ),
            );
        }
    }

    /// Writes `report.json`, `tables.md` and a plot of each suite into `directory`.
    ///
    /// # Errors
    /// The I/O error of making the directory or writing a file.
    pub fn write(&self, directory: &Path) -> Outcome<()> {
        fs::create_dir_all(directory)?;
        fs::write(
            directory.join("report.json"),
            serde_json::to_vec_pretty(self)?,
        )?;
        fs::write(directory.join("tables.md"), self.markdown("."))?;
        let mut suites: Vec<&str> = self.records.iter().map(|record| record.suite).collect();
        suites.dedup();
        for suite in suites {
            let records: Vec<&Record> = self
                .records
                .iter()
                .filter(|record| record.suite == suite && record.is_verified())
                .collect();
            fs::write(
                directory.join(format!("{suite}.svg")),
                plot::bars(suite, &records),
            )?;
        }
        Ok(())
    }

    /// Writes the tables into a page, between the two lines that mark their place.
    ///
    /// # Errors
    /// The I/O error of reading or writing the page, or a message if it has no such lines.
    pub fn write_into(&self, page: &Path, plots: &str) -> Outcome<()> {
        let text = fs::read_to_string(page)?;
        let place = text
            .find(BEGIN)
            .zip(text.find(END))
            .filter(|(begin, end)| begin < end);
        let Some((begin, end)) = place else {
            return Err(format!("{} has no place for tables", page.display()).into());
        };
        let tables = self.markdown(plots);
        let whole = format!("{}{BEGIN}\n\n{tables}\n{}", &text[..begin], &text[end..]);
        fs::write(page, whole)?;
        Ok(())
    }
}

/// Formats a figure for a table; the empty string for `None`.
pub fn shown(figure: Option<f64>, digits: usize) -> String {
    figure.map_or_else(String::new, |figure| format!("{figure:.digits$}"))
}

/// Appends a line. Writing to a string cannot fail.
pub fn line(text: &mut String, arguments: std::fmt::Arguments<'_>) {
    let _ = writeln!(text, "{arguments}");
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert!(
            report
                .markdown("plots")
                .contains("| noise, first | bkfs | 2.00 | 1.00–3.00 |")
        );
        report.add(record("peer"), run(5.0, false));
        assert_eq!(report.ratio("stream", at("bkfs"), at("peer")), None);
        assert!(report.markdown("plots").contains("peer | not verified"));
    }

    #[test]
    fn tables_take_their_place_in_a_page() {
        let directory = tempfile::tempdir().unwrap();
        let page = directory.path().join("page.md");
        fs::write(&page, format!("before\n{BEGIN}\nold\n{END}\nafter\n")).unwrap();
        let mut report = Report::default();
        report.absent("someone", "not installed");
        report.write_into(&page, "plots").unwrap();
        report.write_into(&page, "plots").unwrap();
        let text = fs::read_to_string(&page).unwrap();
        assert!(text.starts_with("before\n") && text.ends_with("after\n"));
        assert!(text.contains("- someone: not installed") && !text.contains("old"));
        fs::write(&page, "nothing").unwrap();
        assert!(report.write_into(&page, "plots").is_err());
    }
}
