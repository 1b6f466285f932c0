//! Plots: horizontal bars of medians with minimum and maximum, as SVG.

use crate::format::line;
use crate::report::Record;

const WIDTH: f64 = 900.0;
const LEFT: f64 = 330.0;
const ROW: f64 = 20.0;

/// Returns a plot with one bar for each record, grouped by step. The bars of bkfs have another
/// colour.
pub fn bars(title: &str, records: &[&Record]) -> String {
    let longest = records
        .iter()
        .flat_map(|record| record.runs.iter().map(|run| run.wall_s))
        .fold(1e-9, f64::max);
    let scale = (WIDTH - LEFT - 80.0) / longest;
    let height = 50.0 + ROW * (records.len() as f64 + steps(records) as f64);
    let mut text = String::new();
    line(
        &mut text,
        format_args!(
            r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12">"#
        ),
    );
    line(
        &mut text,
        format_args!(r#"<rect width="100%" height="100%" fill="white"/>"#),
    );
    let title = escape(title);
    line(
        &mut text,
        format_args!(
            r#"<text x="10" y="24" font-size="16">{title}: seconds to durable, median, least and most</text>"#
        ),
    );
    let mut y = 40.0;
    let mut step = "";
    for record in records {
        if record.step != step {
            step = &record.step;
            y += ROW;
            let name = escape(step);
            line(
                &mut text,
                format_args!(
                    r#"<text x="10" y="{}" font-weight="bold">{name}</text>"#,
                    y - 5.0
                ),
            );
        }
        bar(&mut text, record, y, scale);
        y += ROW;
    }
    line(&mut text, format_args!("</svg>"));
    text
}

fn steps(records: &[&Record]) -> usize {
    let mut names: Vec<&str> = records.iter().map(|record| record.step.as_str()).collect();
    names.dedup();
    names.len()
}

fn bar(text: &mut String, record: &Record, y: f64, scale: f64) {
    let Some(median) = record.wall_s() else {
        return;
    };
    let walls = record.runs.iter().map(|run| run.wall_s);
    let least = walls.clone().fold(f64::INFINITY, f64::min) * scale + LEFT;
    let most = walls.fold(0.0, f64::max) * scale + LEFT;
    let colour = match record.system.starts_with("bkfs") {
        true => "#d95f02",
        false => "#7f8fa6",
    };
    let (width, middle) = (median * scale, y + ROW / 2.0);
    line(
        text,
        format_args!(
            r#"<text x="{}" y="{}" text-anchor="end">{}</text>"#,
            LEFT - 8.0,
            middle + 4.0,
            escape(&record.system)
        ),
    );
    line(
        text,
        format_args!(
            r#"<rect x="{LEFT}" y="{}" width="{width:.1}" height="14" fill="{colour}"/>"#,
            y + 3.0
        ),
    );
    line(
        text,
        format_args!(r#"<path d="M{least:.1} {middle}H{most:.1}" stroke="black"/>"#),
    );
    line(
        text,
        format_args!(
            r#"<text x="{:.1}" y="{}">{median:.2}</text>"#,
            most + 6.0,
            middle + 4.0
        ),
    );
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Run;

    #[test]
    fn there_is_a_bar_for_each_system() {
        let record = |system: &str, wall_s| Record {
            suite: "files",
            step: "a < b".to_owned(),
            system: system.to_owned(),
            runs: vec![Run {
                wall_s,
                ..Run::default()
            }],
        };
        let (one, other) = (record("bkfs", 1.0), record("restic", 2.0));
        let text = bars("files", &[&one, &other]);
        assert_eq!(text.matches("height=\"14\"").count(), 2);
        assert!(text.contains("a &lt; b") && text.ends_with("</svg>\n"));
        assert_eq!(text.matches("a &lt; b").count(), 1);
    }
}
