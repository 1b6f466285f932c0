//! `bkfs diff URL A B`

use std::ffi::OsString;

use serde_json::{Value, json};

use crate::cli::access::{open, split_path};
use crate::cli::left_out::LeftOut;
use crate::cli::named::snapshot;
use crate::cli::options::Global;
use crate::cli::output::{Failure, Output, name_text};
use crate::cli::runtime::block_on;
use crate::cli::target::target;
use crate::compare::{Change, Comparison, Difference};
use crate::json_name::with_name;
use crate::mounting::control::time_text;
use crate::restore::resolve;
use crate::tree::item::Attributes;
use crate::volume::mode;

/// Show what differs between two snapshots
///
/// Prints one line for each path: + added, - removed, M changed contents, U changed mode, owner,
/// time or extended attribute, T changed type. bkfs compares ids and reads no contents. The time
/// depends on the size of the difference; if contents of files changed, also on the number of
/// names, because bkfs then lists the directories.
#[derive(Debug, clap::Args)]
pub struct Diff {
    /// The repository, or a mount of one
    url: String,
    /// The first snapshot, and a path in it
    #[arg(value_name = "A[:/PATH]")]
    left: OsString,
    /// The second snapshot, and a path in it
    #[arg(value_name = "B[:/PATH]")]
    right: OsString,
    /// Print names unescaped, each line ended by a zero byte
    #[arg(short = '0', long)]
    null: bool,
}

/// Prints the differences.
///
/// # Errors
/// The [`Failure`] of the repository, a snapshot or a path that cannot be read. Exit code 3 if
/// names of a hostile tree were left out.
pub fn run(command: Diff, global: &Global, output: &Output) -> Result<(), Failure> {
    block_on(async {
        let (url, global) = target(&command.url, global)?;
        let repository = open(&url, &global).await?;
        let (left_name, left_path) = split_path(&command.left)?;
        let (right_name, right_path) = split_path(&command.right)?;
        let (_, left) = snapshot(&repository, &global, left_name).await?;
        let (_, right) = snapshot(&repository, &global, right_name).await?;
        let failed = |error: crate::restore::error::RestoreError| Failure::new(error.to_string());
        let inodes = (
            resolve(&left, left_path).await.map_err(failed)?,
            resolve(&right, right_path).await.map_err(failed)?,
        );
        let mut counts = [0_u64; 5];
        let mut left_out = LeftOut::default();
        let mut comparison = Comparison::new((&left, &right), inodes, right_path).await?;
        while let Some(found) = comparison.next().await? {
            if output.is_closed() {
                return Ok(());
            }
            for difference in &found {
                counts[difference.change as usize] += 1;
                show(difference, &command, output)?;
            }
            for (path, fault) in comparison.take_left_out() {
                left_out.note(&path, &fault);
            }
        }
        let [added, removed, modified, metadata, other] = counts;
        output.remark(format_args!(
            "{added} added, {removed} removed, {modified} with changed contents, {metadata} with \
             changed attributes, {other} with a changed type"
        ));
        left_out.conclude()
    })
}

fn show(difference: &Difference, command: &Diff, output: &Output) -> Result<(), Failure> {
    let letter = match difference.change {
        Change::Added => '+',
        Change::Removed => '-',
        Change::Modified => 'M',
        Change::Metadata => 'U',
        Change::Type => 'T',
    };
    let is_directory = [&difference.left, &difference.right]
        .into_iter()
        .flatten()
        .all(|attributes| mode::is_directory(attributes.mode));
    let mut path = difference.path.clone();
    if is_directory && path != b"/" {
        path.push(b'/');
    }
    if command.null && !output.is_json() {
        let line = [letter.to_string().as_bytes(), b" ", &path, b"\0"].concat();
        return output.raw(&line);
    }
    let shown = name_text(&path);
    let answer = json!({
        "change": match difference.change {
            Change::Added => "added",
            Change::Removed => "removed",
            Change::Modified => "modified",
            Change::Metadata => "metadata",
            Change::Type => "type",
        },
        "left": difference.left.as_ref().map(facts),
        "right": difference.right.as_ref().map(facts),
    });
    let answer = with_name(answer, "path", &path);
    output.result(&answer, || format!("{letter} {shown}"))
}

fn facts(attributes: &Attributes) -> Value {
    json!({
        "mode": format!("{:o}", attributes.mode),
        "uid": attributes.uid,
        "gid": attributes.gid,
        "size": if mode::is_directory(attributes.mode) { 0 } else { attributes.size_bytes },
        "modified": time_text(attributes.modified),
    })
}
