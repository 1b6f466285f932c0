//! `bkfs snapshots URL|MOUNTPOINT`

use serde::Serialize;
use serde_json::{Value, json};

use crate::cli::access::open;
use crate::cli::named::elsewhere;
use crate::cli::options::Global;
use crate::cli::output::{Failure, Output, bytes, name_text};
use crate::cli::runtime::block_on;
use crate::cli::target::target;
use crate::printable;
use crate::root::snapshots::{Drill, SnapshotEntry};

/// List snapshots
#[derive(Debug, clap::Args)]
pub struct Snapshots {
    /// A repository, or a mount of one
    #[arg(value_name = "URL|MOUNTPOINT")]
    target: String,
    /// List the snapshots of every volume
    #[arg(long)]
    all: bool,
}

/// A snapshot in the form that scripts read.
#[derive(Debug, Serialize)]
struct Row<'a> {
    name: &'a str,
    volume: &'a str,
    time: String,
    host: &'a str,
    user: &'a str,
    tags: &'a [String],
    files: u64,
    bytes: u64,
    new_bytes: u64,
    generation: u64,
    recovered: bool,
    drill: Option<Value>,
}

impl<'a> From<&'a SnapshotEntry> for Row<'a> {
    fn from(entry: &'a SnapshotEntry) -> Self {
        Row {
            name: &entry.name,
            volume: &entry.volume,
            time: entry.time.to_string(),
            host: &entry.host,
            user: &entry.user,
            tags: &entry.tags,
            files: entry.files,
            bytes: entry.bytes,
            new_bytes: entry.new_bytes,
            generation: entry.generation,
            recovered: entry.recovered,
            drill: entry.drill.as_ref().map(as_json),
        }
    }
}

/// Returns a drill in the form that scripts read.
pub fn as_json(drill: &Drill) -> Value {
    json!({
        "time": drill.time.to_string(),
        "ok": drill.is_good,
        "command": drill.command,
        "seconds": drill.seconds,
        "read_percent": f64::from(drill.read_permille) / 10.0,
        "at_source": drill.is_of_source,
    })
}

/// Returns the last drill of a snapshot in a few words; nothing if there was none.
fn drilled(entry: &SnapshotEntry) -> String {
    let Some(drill) = &entry.drill else {
        return String::new();
    };
    let time = drill.time.strftime("%Y-%m-%dT%H:%M:%SZ");
    let place = if drill.is_of_source {
        ", at the source"
    } else {
        ""
    };
    format!("{time} {}{place}", drill.verdict())
}

/// Prints the snapshots of the volume, or of all volumes.
///
/// # Errors
/// The [`Failure`] of the repository.
pub fn run(command: Snapshots, global: &Global, output: &Output) -> Result<(), Failure> {
    block_on(async {
        let (url, global) = target(&command.target, global)?;
        let repository = open(&url, &global).await?;
        let list = repository.snapshots().await?;
        let entries: Vec<&SnapshotEntry> = match command.all {
            true => list.iter().collect(),
            false => list.of_volume(&global.volume),
        };
        if output.is_json() {
            return entries
                .iter()
                .try_for_each(|entry| output.result(&Row::from(*entry), String::new));
        }
        if entries.is_empty() {
            let others = elsewhere(&list, &global.volume, None);
            let of = match command.all {
                true => String::new(),
                false => format!(" of volume {}", name_text(global.volume.as_bytes())),
            };
            let others = others
                .map(|others| format!(". {others}"))
                .unwrap_or_default();
            output.remark(format_args!("no snapshots{of}{others}"));
            return Ok(());
        }
        output.result(&(), || table(&entries, command.all))
    })
}

fn table(entries: &[&SnapshotEntry], with_volume: bool) -> String {
    let head = ["NAME", "TIME", "HOST", "FILES", "SIZE", "NEW", "DRILLED"];
    let mut rows = vec![head.map(str::to_owned)];
    for entry in entries {
        let name = if with_volume {
            format!("{}:{}", entry.volume, entry.name)
        } else {
            entry.name.clone()
        };
        let time = entry.time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let tags: String = entry.tags.iter().map(|tag| format!(" #{tag}")).collect();
        let recovered = if entry.recovered { " (recovered)" } else { "" };
        rows.push([
            name + recovered + &tags,
            time,
            entry.host.clone(),
            entry.files.to_string(),
            bytes(entry.bytes),
            bytes(entry.new_bytes),
            drilled(entry),
        ]);
    }
    // Without any drill the column would only take room.
    if entries.iter().any(|entry| entry.drill.is_some()) {
        return columns(&rows, &[3, 4, 5]);
    }
    let without =
        |[name, time, host, files, size, new, _]: [String; 7]| [name, time, host, files, size, new];
    let rows: Vec<[String; 6]> = rows.into_iter().map(without).collect();
    columns(&rows, &[3, 4, 5])
}

/// Aligns columns, those in `right` to the right. Each row is one line, whatever its cells hold.
pub fn columns<const N: usize>(rows: &[[String; N]], right: &[usize]) -> String {
    let shown = |row: &[String; N]| {
        row.each_ref()
            .map(|cell| printable::line(cell).into_owned())
    };
    let rows: Vec<[String; N]> = rows.iter().map(shown).collect();
    let width = |column: usize| {
        rows.iter()
            .map(|row| row[column].chars().count())
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..N).map(width).collect();
    let line = |row: &[String; N]| {
        let cells = row.iter().enumerate().map(|(column, cell)| {
            let pad = " ".repeat(widths[column] - cell.chars().count());
            if right.contains(&column) {
                pad + cell
            } else {
                cell.clone() + &pad
            }
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}
