//! `bkfs ls URL NAME[:/path]`

use std::ffi::OsString;

use serde::Serialize;

use crate::cli::access::{Repository, open, split_path};
use crate::cli::left_out::LeftOut;
use crate::cli::named::snapshot;
use crate::cli::options::Global;
use crate::cli::output::{Failure, Output, name_text};
use crate::cli::runtime::block_on;
use crate::cli::snapshots::columns;
use crate::cli::target::target;
use crate::fault::Entered;
use crate::json_name::JsonName;
use crate::restore::resolve;
use crate::tree::item::{Attributes, Item};
use crate::tree::key::Key;
use crate::volume::mode;
use crate::volume::state::Scope;
use crate::volume::view::View;
use crate::walk::{self, Named, names};

/// List files of a snapshot without a mount
#[derive(Debug, clap::Args)]
pub struct Ls {
    /// The repository, or a mount of one
    url: String,
    /// Snapshot and path: NAME, NAME:/path, latest, @TIME (@2026-11-23, '@2026-11-23 10:00',
    /// @yesterday, '@3 days ago', RFC 3339; UTC)
    #[arg(value_name = "NAME[:/PATH]")]
    what: OsString,
    /// List directories below as well
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Print only names
    #[arg(long)]
    names: bool,
}

/// A file in the form that scripts read.
#[derive(Debug, Serialize)]
struct Row {
    #[serde(flatten)]
    path: JsonName,
    kind: &'static str,
    mode: String,
    uid: u32,
    gid: u32,
    size: u64,
    modified: String,
    links: u32,
    inode: u64,
    #[serde(flatten)]
    target: Option<JsonName>,
}

/// Prints the files of a directory, or one file.
///
/// # Errors
/// The [`Failure`] of the repository, the snapshot or the path. Exit code 3 if names of a hostile
/// tree were left out.
pub fn run(command: Ls, global: &Global, output: &Output) -> Result<(), Failure> {
    block_on(async {
        let (url, global) = target(&command.url, global)?;
        let repository: Repository = open(&url, &global).await?;
        let (name, path) = split_path(&command.what)?;
        let (_, view) = snapshot(&repository, &global, name).await?;
        let inode = resolve(&view, path)
            .await
            .map_err(|error| Failure::new(error.to_string()))?;
        let mut rows = Vec::new();
        let mut left_out = LeftOut::default();
        let attributes = view.attributes(Scope::Live, inode).await?;
        if mode::is_directory(attributes.mode) {
            let emit = &mut |row| emit(row, &command, output, &mut rows);
            let wanted = (command.recursive, output);
            list(&view, inode, wanted, &mut left_out, emit).await?;
        } else {
            let row = row(&view, trimmed(path), inode, &attributes).await?;
            emit(row, &command, output, &mut rows)?;
        }
        if !output.is_json() && !rows.is_empty() {
            output.result(&(), || columns(&rows, &[1, 2, 3]))?;
        }
        left_out.conclude()
    })
}

/// Returns the path as `ls -R` shows it: without the slashes that it begins with.
fn trimmed(path: &[u8]) -> &[u8] {
    let start = path.iter().position(|byte| *byte != b'/');
    &path[start.unwrap_or(path.len())..]
}

/// Prints a row at once where columns need no common width, and keeps it in `rows` otherwise.
fn emit(
    row: Row,
    command: &Ls,
    output: &Output,
    rows: &mut Vec<[String; 6]>,
) -> Result<(), Failure> {
    if output.is_json() {
        return output.result(&row, String::new);
    }
    if command.names {
        return output.result(&(), || name_text(&row.path.name));
    }
    let path = name_text(&row.path.name);
    let name = match &row.target {
        Some(target) => format!("{path} -> {}", name_text(&target.name)),
        None => path,
    };
    rows.push([
        row.mode,
        row.uid.to_string(),
        row.gid.to_string(),
        row.size.to_string(),
        row.modified,
        name,
    ]);
    Ok(())
}

async fn list(
    view: &View,
    inode: u64,
    (recursive, output): (bool, &Output),
    left_out: &mut LeftOut,
    emit: &mut dyn FnMut(Row) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut entered = Entered::from(inode);
    let mut stack = vec![(inode, Vec::new())];
    while let Some((inode, prefix)) = stack.pop() {
        let listing = names(view, inode).await?;
        for faulty in listing.faulty {
            left_out.note(&[prefix.as_slice(), &faulty.name].concat(), &faulty.fault);
        }
        let mut inside = Vec::new();
        for Named { name, inode, .. } in listing.names {
            if output.is_closed() {
                return Ok(());
            }
            let path = [prefix.as_slice(), &name].concat();
            let attributes = match walk::attributes(view, inode).await? {
                Ok(attributes) => attributes,
                Err(fault) => {
                    left_out.note(&path, &fault);
                    continue;
                }
            };
            emit(row(view, &path, inode, &attributes).await?)?;
            if recursive && mode::is_directory(attributes.mode) {
                match entered.enter(inode, path.len()) {
                    Ok(()) => inside.push((inode, [path.as_slice(), b"/"].concat())),
                    Err(fault) => left_out.note(&path, &fault),
                }
            }
        }
        inside.reverse();
        stack.append(&mut inside);
    }
    Ok(())
}

async fn row(
    view: &View,
    path: &[u8],
    inode: u64,
    attributes: &Attributes,
) -> Result<Row, Failure> {
    let named = |key, name: &[u8]| JsonName {
        key,
        name: name.to_vec(),
    };
    let target = match mode::is_symlink(attributes.mode) {
        false => None,
        true => match view.item(Scope::Live, &Key::symlink(inode)).await? {
            Some(Item::Symlink(target)) => Some(named("target", &target)),
            _ => None,
        },
    };
    let (kind, letter) = match attributes.mode & libc::S_IFMT {
        libc::S_IFDIR => ("directory", 'd'),
        libc::S_IFLNK => ("symlink", 'l'),
        libc::S_IFIFO => ("fifo", 'p'),
        libc::S_IFSOCK => ("socket", 's'),
        libc::S_IFCHR => ("character device", 'c'),
        libc::S_IFBLK => ("block device", 'b'),
        _ => ("file", '-'),
    };
    let time = jiff::Timestamp::new(
        attributes.modified.seconds,
        attributes.modified.nanoseconds as i32,
    );
    let size = if letter == 'd' {
        0
    } else {
        attributes.size_bytes
    };
    Ok(Row {
        path: named("path", path),
        kind,
        mode: mode_text(letter, attributes.mode),
        uid: attributes.uid,
        gid: attributes.gid,
        size,
        modified: time.map_or_else(
            |_| attributes.modified.seconds.to_string(),
            |time| time.to_string(),
        ),
        links: attributes.links,
        inode,
        target,
    })
}

/// Returns the mode as ls(1) shows it.
fn mode_text(letter: char, mode: u32) -> String {
    let mut text = String::from(letter);
    for (shift, special, lower, upper) in [
        (6, libc::S_ISUID, 's', 'S'),
        (3, libc::S_ISGID, 's', 'S'),
        (0, libc::S_ISVTX, 't', 'T'),
    ] {
        let bits = mode >> shift;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (mode & special != 0, bits & 1 != 0) {
            (true, true) => lower,
            (true, false) => upper,
            (false, true) => 'x',
            (false, false) => '-',
        });
    }
    text
}

#[cfg(test)]
mod tests {
    use super::mode_text;

    #[test]
    fn modes_are_shown_as_ls_shows_them() {
        assert_eq!(mode_text('-', 0o644), "-rw-r--r--");
        assert_eq!(mode_text('d', 0o1777), "drwxrwxrwt");
        assert_eq!(mode_text('-', 0o6754), "-rwsr-sr--");
        assert_eq!(mode_text('-', 0o7000), "---S--S--T");
    }
}
