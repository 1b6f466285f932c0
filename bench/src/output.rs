//! Writes the results: as JSON, as tables in Markdown, and as plots.

use std::fs;
use std::path::Path;

use crate::format::{line, shown};
use crate::report::{Record, Report};
use crate::{Outcome, plot, targets};

/// A page holds the tables of the last run between these lines.
const BEGIN: &str = "<!-- tables: written by bkfs-bench -->";
const END: &str = "<!-- end of tables -->";

/// Returns the tables as Markdown. Plots are linked in `plots`, a path relative to the page.
pub fn markdown(report: &Report, plots: &str) -> String {
    let mut text = String::new();
    for (name, value) in &report.about {
        line(&mut text, format_args!("- {name}: {value}"));
    }
    line(&mut text, format_args!("\n### To reach\n"));
    text.push_str(&targets::table(&targets::verdicts(report)));
    let mut suites: Vec<&str> = report.records.iter().map(|record| record.suite).collect();
    suites.dedup();
    for suite in suites {
        line(&mut text, format_args!("\n### {suite}\n"));
        line(
            &mut text,
            format_args!("![seconds by system]({plots}/{suite}.svg)\n"),
        );
        table(report, suite, &mut text);
    }
    if !report.figures.is_empty() {
        line(
            &mut text,
            format_args!("\n### Figures\n\n| what | figure |\n|---|---|"),
        );
        for (name, figure) in &report.figures {
            line(&mut text, format_args!("| {name} | {figure:.3} |"));
        }
    }
    line(&mut text, format_args!("\n### Absent\n"));
    for (name, reason) in &report.absent {
        let reason = reason.lines().next().unwrap_or_default();
        line(&mut text, format_args!("- {name}: {reason}"));
    }
    if report.absent.is_empty() {
        line(&mut text, format_args!("None."));
    }
    text
}

fn table(report: &Report, suite: &str, text: &mut String) {
    line(
        text,
        format_args!(
            "| step | system | seconds | least–most | processor s | anonymous MiB | stored MiB \
             | requests |\n|---|---|---|---|---|---|---|---|"
        ),
    );
    for record in report.records.iter().filter(|record| record.suite == suite) {
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
pub fn write(report: &Report, directory: &Path) -> Outcome<()> {
    fs::create_dir_all(directory)?;
    fs::write(
        directory.join("report.json"),
        serde_json::to_vec_pretty(report)?,
    )?;
    fs::write(directory.join("tables.md"), markdown(report, "."))?;
    let mut suites: Vec<&str> = report.records.iter().map(|record| record.suite).collect();
    suites.dedup();
    for suite in suites {
        let records: Vec<&Record> = report
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
pub fn write_into(report: &Report, page: &Path, plots: &str) -> Outcome<()> {
    let text = fs::read_to_string(page)?;
    let place = text
        .find(BEGIN)
        .zip(text.find(END))
        .filter(|(begin, end)| begin < end);
    let Some((begin, end)) = place else {
        return Err(format!("{} has no place for tables", page.display()).into());
    };
    let tables = markdown(report, plots);
    let whole = format!("{}{BEGIN}\n\n{tables}\n{}", &text[..begin], &text[end..]);
    fs::write(page, whole)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_take_their_place_in_a_page() {
        let directory = tempfile::tempdir().unwrap();
        let page = directory.path().join("page.md");
        fs::write(&page, format!("before\n{BEGIN}\nold\n{END}\nafter\n")).unwrap();
        let mut report = Report::default();
        report.absent("someone", "not installed");
        write_into(&report, &page, "plots").unwrap();
        write_into(&report, &page, "plots").unwrap();
        let text = fs::read_to_string(&page).unwrap();
        assert!(text.starts_with("before\n") && text.ends_with("after\n"));
        assert!(text.contains("- someone: not installed") && !text.contains("\nold\n"));
        fs::write(&page, "nothing").unwrap();
        assert!(write_into(&report, &page, "plots").is_err());
    }
}
