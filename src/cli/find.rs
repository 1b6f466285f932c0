//! `bkfs find URL PATTERN`

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use clap::ValueEnum;
use jiff::Timestamp;
use serde_json::json;

use crate::cli::access::open;
use crate::cli::left_out::LeftOut;
use crate::cli::named::{elsewhere, resolve};
use crate::cli::options::Global;
use crate::cli::output::{Failure, Output, name_text};
use crate::cli::runtime::block_on;
use crate::cli::target::target;
use crate::environment::Environment;
use crate::fault::{Entered, Fault};
use crate::glob::Glob;
use crate::json_name::with_name;
use crate::mounting::control::time_text;
use crate::root::snapshots::{SnapshotEntry, SnapshotList, SnapshotReference};
use crate::tree::item::Attributes;
use crate::units::size;
use crate::volume::view::View;
use crate::volume::{ROOT_INODE, mode};
use crate::walk::{self, Named, join, names};
use crate::when::{self, When};

/// Find files in snapshots by name
///
/// PATTERN is compared with names, or with whole paths (from /) if it has a slash. * matches any
/// characters but a slash, ** any characters, ? one character, [a-z] one of these. Prints
/// NAME:/path, as bkfs restore and bkfs dump take it.
///
///   bkfs find s3://bucket/prefix '*.ibd' --snapshot latest --size +1G
///   bkfs find s3://bucket/prefix '/etc/**' --newer yesterday
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Find {
    /// The repository, or a mount of one
    url: String,
    /// The pattern for names or paths
    pattern: OsString,
    /// Search only this snapshot; may be repeated (default: all of the volume)
    #[arg(long = "snapshot", value_name = "NAME")]
    snapshots: Vec<String>,
    /// Ignore the difference between upper and lower case
    #[arg(short = 'i', long = "iname")]
    ignore_case: bool,
    /// Find only files of this kind
    #[arg(long = "type", value_name = "KIND")]
    kind: Option<Kind>,
    /// Find files of at least (+10M), at most (-1.5G) or exactly this many bytes
    #[arg(long, value_name = "[+-]SIZE", allow_hyphen_values = true, value_parser = sizes)]
    size: Option<Sizes>,
    /// Find files whose contents changed after this time: 2026-11-23 or yesterday (from 00:00 UTC
    /// on), '2026-11-23 10:00', 2026-11-23T10:00:00Z, 3d or '3 days ago'
    #[arg(long, value_name = "TIME")]
    newer: Option<String>,
    /// Find files whose contents changed before this time
    #[arg(long, value_name = "TIME")]
    older: Option<String>,
    /// Print names unescaped, each ended by a zero byte
    #[arg(short = '0', long)]
    null: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// Regular files
    #[value(name = "f")]
    File,
    /// Directories
    #[value(name = "d")]
    Directory,
    /// Symbolic links
    #[value(name = "l")]
    Link,
    /// Fifos
    #[value(name = "p")]
    Fifo,
    /// Sockets
    #[value(name = "s")]
    Socket,
    /// Block devices
    #[value(name = "b")]
    Block,
    /// Character devices
    #[value(name = "c")]
    Character,
}

impl Kind {
    fn file_type(self) -> u8 {
        mode::kind(match self {
            Kind::File => libc::S_IFREG,
            Kind::Directory => libc::S_IFDIR,
            Kind::Link => libc::S_IFLNK,
            Kind::Fifo => libc::S_IFIFO,
            Kind::Socket => libc::S_IFSOCK,
            Kind::Block => libc::S_IFBLK,
            Kind::Character => libc::S_IFCHR,
        })
    }
}

/// The sizes that are wanted, in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Sizes(std::ops::RangeInclusive<u64>);

fn sizes(text: &str) -> Result<Sizes, String> {
    let number = size(text.trim_start_matches(['+', '-']));
    let number = number.ok_or_else(|| "expected a size such as 4096, +10M or -1.5G".to_owned())?;
    Ok(Sizes(match text.as_bytes().first() {
        Some(b'+') => number..=u64::MAX,
        Some(b'-') => 0..=number,
        _ => number..=number,
    }))
}

/// Returns the beginning of the time that an option gives.
fn moment(text: &Option<String>, now: Timestamp) -> Result<Option<Timestamp>, Failure> {
    let Some(text) = text else { return Ok(None) };
    let wrong = || Failure::usage(format!("{text:?} is not a time: write {}", when::FORMS));
    let when = When::parse(text, now).ok_or_else(wrong)?;
    Ok(Some(when.first))
}

/// A search of one snapshot.
struct Search<'a> {
    command: &'a Find,
    newer: Option<Timestamp>,
    older: Option<Timestamp>,
    glob: Glob,
    has_path: bool,
    output: &'a Output,
    found: u64,
    left_out: LeftOut,
}

/// Prints the files that were found.
///
/// # Errors
/// The [`Failure`] of the repository or a snapshot. Exit code 3 if names of a hostile tree were
/// left out.
pub fn run(command: Find, global: &Global, output: &Output) -> Result<(), Failure> {
    let now = Environment::this().now();
    let (newer, older) = (moment(&command.newer, now)?, moment(&command.older, now)?);
    block_on(async {
        let (url, global) = target(&command.url, global)?;
        let repository = open(&url, &global).await?;
        let pattern = command.pattern.as_bytes();
        let mut search = Search {
            command: &command,
            newer,
            older,
            glob: Glob::new(pattern, command.ignore_case),
            has_path: pattern.contains(&b'/'),
            output,
            found: 0,
            left_out: LeftOut::default(),
        };
        let list = repository.snapshots().await?;
        let chosen = chosen(&command, &global, &list, now)?;
        for entry in &chosen {
            let view = repository.view(entry).await?;
            search.look_into(&view, entry).await?;
        }
        if search.found == 0 {
            output.remark(nothing(&list, &global.volume, chosen.is_empty()));
        }
        search.left_out.conclude()
    })
}

/// Returns what is said if no file was found: volumes that were not searched may hold it.
fn nothing(list: &SnapshotList, volume: &str, is_empty: bool) -> String {
    let found = match is_empty {
        true => format!("no snapshots of volume {}", name_text(volume.as_bytes())),
        false => "no file matches".to_owned(),
    };
    match elsewhere(list, volume, None) {
        Some(others) => format!("{found}. {others}"),
        None => found,
    }
}

fn chosen(
    command: &Find,
    global: &Global,
    list: &SnapshotList,
    now: Timestamp,
) -> Result<Vec<SnapshotEntry>, Failure> {
    if command.snapshots.is_empty() {
        return Ok(list
            .of_volume(&global.volume)
            .into_iter()
            .cloned()
            .collect());
    }
    let mut entries = Vec::new();
    for name in &command.snapshots {
        let reference = SnapshotReference::parse(name, now)?;
        entries.push(resolve(list, &global.volume, &reference)?.clone());
    }
    Ok(entries)
}

impl Search<'_> {
    async fn look_into(&mut self, view: &View, entry: &SnapshotEntry) -> Result<(), Failure> {
        let mut open = vec![(ROOT_INODE, Vec::new())];
        let mut entered = Entered::from(ROOT_INODE);
        while let Some((directory, path)) = open.pop() {
            let mut inside = Vec::new();
            let listing = names(view, directory).await?;
            for faulty in listing.faulty {
                self.leave_out(entry, &join(&path, &faulty.name), &faulty.fault);
            }
            for named in listing.names {
                if self.output.is_closed() {
                    return Ok(());
                }
                let path = join(&path, &named.name);
                self.look_at(view, entry, &named, &path).await?;
                if !named.is_directory() {
                    continue;
                }
                match entered.enter(named.inode, path.len()) {
                    Ok(()) => inside.push((named.inode, path)),
                    Err(fault) => self.leave_out(entry, &path, &fault),
                }
            }
            inside.reverse();
            open.append(&mut inside);
        }
        Ok(())
    }

    fn leave_out(&mut self, entry: &SnapshotEntry, path: &[u8], fault: &Fault) {
        let path = [entry.name.as_bytes(), b":", path].concat();
        self.left_out.note(&path, fault);
    }

    async fn look_at(
        &mut self,
        view: &View,
        entry: &SnapshotEntry,
        named: &Named,
        path: &[u8],
    ) -> Result<(), Failure> {
        let text = if self.has_path { path } else { &named.name };
        let kind = self.command.kind;
        if !self.glob.matches(text) || kind.is_some_and(|kind| kind.file_type() != named.file_type)
        {
            return Ok(());
        }
        let attributes = match walk::attributes(view, named.inode).await? {
            Ok(attributes) => attributes,
            Err(fault) => {
                self.leave_out(entry, path, &fault);
                return Ok(());
            }
        };
        if !self.fits(&attributes) {
            return Ok(());
        }
        self.found += 1;
        let snapshot = &entry.name;
        if self.command.null && !self.output.is_json() {
            return self
                .output
                .raw(&[snapshot.as_bytes(), b":", path, b"\0"].concat());
        }
        let shown = name_text(path);
        let row = json!({
            "snapshot": snapshot,
            "volume": entry.volume,
            "mode": format!("{:o}", attributes.mode),
            "size": size_of(&attributes),
            "modified": time_text(attributes.modified),
            "inode": named.inode,
        });
        self.output.result(&with_name(row, "path", path), || {
            format!("{}:{shown}", name_text(snapshot.as_bytes()))
        })
    }

    fn fits(&self, attributes: &Attributes) -> bool {
        let command = self.command;
        let modified = (
            attributes.modified.seconds,
            i64::from(attributes.modified.nanoseconds),
        );
        let time = |time: &Timestamp| {
            // The nanoseconds of a time before 1970 count backwards.
            let nanoseconds = time.as_nanosecond();
            let second = i128::from(1_000_000_000);
            (
                nanoseconds.div_euclid(second) as i64,
                nanoseconds.rem_euclid(second) as i64,
            )
        };
        let fits_size = |sizes: &Sizes| {
            !mode::is_directory(attributes.mode) && sizes.0.contains(&attributes.size_bytes)
        };
        command.size.as_ref().is_none_or(fits_size)
            && (self.newer.as_ref()).is_none_or(|newer| modified > time(newer))
            && (self.older.as_ref()).is_none_or(|older| modified < time(older))
    }
}

fn size_of(attributes: &Attributes) -> u64 {
    match mode::is_directory(attributes.mode) {
        true => 0,
        false => attributes.size_bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_ranges() {
        assert_eq!(sizes("+1M").unwrap().0, (1 << 20)..=u64::MAX);
        assert_eq!(sizes("-2k").unwrap().0, 0..=2048);
        assert_eq!(sizes("7").unwrap().0, 7..=7);
        assert_eq!(sizes("+1.5G").unwrap().0, (3 << 29)..=u64::MAX);
        assert_eq!(sizes("-1TB").unwrap().0, 0..=1_000_000_000_000);
        assert!(sizes("+many").is_err() && sizes("").is_err());
    }
}
