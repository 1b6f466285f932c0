//! `bkfs restore URL NAME[:/path] TARGET`

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use serde_json::json;

use crate::cli::access::{Access, open_with, split_path};
use crate::cli::named::snapshot;
use crate::cli::options::Global;
use crate::cli::output::{Code, Failure, Output, bytes, complain, name_text};
use crate::cli::progress::Bar;
use crate::cli::runtime::block_on;
use crate::cli::target::target;
use crate::json_name::with_name;
use crate::restore::error::RestoreError;
use crate::restore::job::{Options, Problem, RestoreProgress};
use crate::restore::room::{self, Room};
use crate::restore::{resolve, restore};
use crate::root::snapshots::SnapshotEntry;
use crate::tree::item::Attributes;
use crate::volume::mode;
use crate::volume::state::Scope;

/// Restore a snapshot, a directory or a file without a mount
///
/// The contents of PATH appear directly in TARGET, which is created if absent. A file is restored
/// as the file TARGET. Only root can restore owners, and extended attributes other than user.*
/// (capabilities, labels). The command reports at the end what it left out.
///
/// Before it begins, bkfs checks that the filesystem of TARGET has room for what is restored.
///
/// With --overwrite bkfs writes each file next to the one that it replaces, and renames it when it
/// is complete.
#[derive(Debug, clap::Args)]
pub struct Restore {
    /// The repository, or a mount of one
    url: String,
    /// Snapshot and path: NAME, NAME:/path, latest, @TIME (@2026-11-23, '@2026-11-23 10:00',
    /// @yesterday, '@3 days ago', RFC 3339; UTC)
    #[arg(value_name = "NAME[:/PATH]")]
    what: OsString,
    /// The directory or file to restore to
    target: PathBuf,
    /// Restore into a directory that is not empty, and replace what is there
    #[arg(long)]
    overwrite: bool,
    /// Read everything back from the disk and compare it
    #[arg(long)]
    verify: bool,
    /// Leave out devices, fifos and sockets, and what gives privileges: set-user-ID and
    /// set-group-ID bits, and extended attributes other than user.*
    #[arg(long)]
    no_special: bool,
    /// Begin even if the filesystem seems to have too little room, for example because it
    /// compresses
    #[arg(long)]
    ignore_room: bool,
}

/// Restores the snapshot, directory or file, and prints how much that was.
///
/// # Errors
/// The [`Failure`] of the repository, the snapshot or the target. Exit code 13 if anything was
/// damaged, 3 if anything else could not be restored: what was restored stays.
pub fn run(command: Restore, global: &Global, output: &Output) -> Result<(), Failure> {
    block_on(async {
        let started = Instant::now();
        let (url, global) = target(&command.url, global)?;
        let mut access = Access::of_command(&url, &global)?;
        access.read_once();
        let repository = open_with(&access).await?;
        let (name, path) = split_path(&command.what)?;
        let (entry, view) = snapshot(&repository, &global, name).await?;
        let inode = resolve(&view, path).await.map_err(failure)?;
        let attributes = view.attributes(Scope::Live, inode).await?;
        let total = total(path, &attributes, &entry);
        if !command.ignore_room {
            // Each file may need one block more than its contents.
            let at_most = total
                .unwrap_or(entry.bytes)
                .saturating_add(entry.files.saturating_mul(4096));
            room::check(&view, inode, &command.target, at_most, command.overwrite)
                .await
                .map_err(failure)?;
        }
        let progress = Arc::new(RestoreProgress::default());
        let bar = Bar::start(output, total, progress.clone());
        let options = Options {
            overwrite: command.overwrite,
            verify: command.verify,
            no_special: command.no_special,
        };
        let problems = restore(view, inode, &command.target, options, progress.clone()).await;
        bar.finish().await;
        let problems = problems.map_err(failure)?;
        show(
            &command,
            &entry.name,
            (&progress, &problems),
            started,
            output,
        )?;
        conclude(&problems, &command.target)
    })
}

/// Returns the bytes to restore, if they are known beforehand.
fn total(path: &[u8], attributes: &Attributes, entry: &SnapshotEntry) -> Option<u64> {
    let is_all = path.iter().all(|byte| *byte == b'/');
    match (is_all, mode::is_regular(attributes.mode)) {
        (true, _) => Some(entry.bytes),
        (false, true) => Some(attributes.size_bytes),
        (false, false) => None,
    }
}

/// Prints what was restored, and what was left out.
fn show(
    command: &Restore,
    snapshot: &str,
    (progress, problems): (&RestoreProgress, &[Problem]),
    started: Instant,
    output: &Output,
) -> Result<(), Failure> {
    let restored = progress.bytes.load(Ordering::Relaxed);
    let left_out = progress.privileged_xattrs.load(Ordering::Relaxed);
    let set_ids = progress.set_ids.load(Ordering::Relaxed);
    let special = progress.special.load(Ordering::Relaxed);
    warn(command, (left_out, set_ids, special), output);
    let seconds = started.elapsed().as_secs_f64();
    let answer = json!({
        "snapshot": snapshot,
        "inodes": progress.inodes.load(Ordering::Relaxed),
        "bytes": restored,
        "verified_bytes": progress.verified_bytes.load(Ordering::Relaxed),
        "privileged_xattrs_left_out": left_out,
        "set_ids_left_out": set_ids,
        "special_left_out": special,
        "seconds": seconds,
        "problems": problems
            .iter()
            .map(|problem| {
                let path = problem.path.as_os_str().as_encoded_bytes();
                with_name(json!({ "reason": problem.reason }), "path", path)
            })
            .collect::<Vec<_>>(),
    });
    let target = command.target.as_os_str().as_encoded_bytes();
    let answer = with_name(answer, "target", target);
    output.result(&answer, || {
        let verified = if command.verify { ", verified" } else { "" };
        let rate = bytes((restored as f64 / seconds.max(0.001)) as u64);
        format!(
            "restored {} inodes, {} to {} in {seconds:.1} s ({rate}/s){verified}",
            progress.inodes.load(Ordering::Relaxed),
            bytes(restored),
            name_text(target)
        )
    })
}

/// Reports how much was left out that gives privileges.
fn warn(command: &Restore, (xattrs, set_ids, special): (u64, u64, u64), output: &Output) {
    let why = |usual| match command.no_special {
        true => "--no-special was given",
        false => usual,
    };
    if xattrs > 0 {
        let why = why("only root can set them, and only where the owner and group are restored");
        output.finding(format_args!("left out {xattrs} extended attributes: {why}"));
    }
    if set_ids > 0 {
        let why = why("their owner and group were not restored");
        output.finding(format_args!(
            "left out the set-id bits of {set_ids} inodes: {why}"
        ));
    }
    if special > 0 {
        output.finding(format_args!(
            "left out {special} devices, fifos and sockets: --no-special was given"
        ));
    }
}

/// What the errors of a full disk say.
const NO_SPACE: &str = "No space left on device";

fn conclude(problems: &[Problem], target: &Path) -> Result<(), Failure> {
    if problems.is_empty() {
        return Ok(());
    }
    for problem in problems {
        complain(format_args!(
            "bkfs: not restored: {}: {}",
            name_text(problem.path.as_os_str().as_encoded_bytes()),
            problem.reason
        ));
    }
    let code = if problems.iter().any(|problem| problem.damaged) {
        Code::Damaged
    } else {
        Code::Partly
    };
    let failure =
        Failure::new(format!("{} inodes could not be restored", problems.len())).code(code);
    let is_full = |problem: &Problem| problem.reason.contains(NO_SPACE);
    Err(
        match Room::at(target).filter(|_| problems.iter().any(is_full)) {
            None => failure,
            Some(room) => failure.hint(format!(
                "The filesystem of {} is full ({} free). Free some room, and restore again with \
             --overwrite.",
                room.directory.display(),
                bytes(room.free_bytes)
            )),
        },
    )
}

fn failure(error: RestoreError) -> Failure {
    match error {
        RestoreError::Volume(error) => error.into(),
        RestoreError::NoRoom {
            needed_bytes,
            free_bytes,
            ..
        } => {
            let missing = bytes(needed_bytes.saturating_sub(free_bytes));
            let message = format!(
                "{error}: {missing} are missing ({} needed, {} free); nothing was restored",
                bytes(needed_bytes),
                bytes(free_bytes),
            );
            Failure::new(message).hint(
                "Free some room, or restore to another directory. If the filesystem compresses, \
                 --ignore-room begins all the same.",
            )
        }
        error => Failure::new(error.to_string()),
    }
}
