//! `bkfs restore URL NAME[:/path] TARGET`

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use clap::ValueEnum;
use serde_json::json;

use crate::cli::access::{Access, open_with, split_path};
use crate::cli::named::snapshot;
use crate::cli::options::Global;
use crate::cli::output::{Code, Failure, Output, bytes, complain, name_text};
use crate::cli::progress::Progress;
use crate::cli::runtime::block_on;
use crate::cli::target::target;
use crate::json_name::with_name;
use crate::restore::error::RestoreError;
use crate::restore::job::{Options, Problem, RestoreProgress};
use crate::restore::overwrite::Overwrite;
use crate::restore::room::{Lacking, Room};
use crate::restore::selection::Selection;
use crate::restore::source::{Source, Survey, known_bytes};
use crate::restore::target::Target;
use crate::restore::{lacking, rehearse, resolve, restore, sweep};
use crate::volume::error::VolumeError;
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
/// A file has a temporary name (.bkfs-restore-...) until it is whole. --overwrite=if-changed goes on
/// with an interrupted restore: what is right already is not read again.
///
/// --include and --exclude take patterns for names, or for whole paths in the snapshot (from /) if
/// they have a slash. * matches any characters but a slash, ** any characters, ? one character,
/// [a-z] one of these. A pattern that names a directory names all that is below it. What is
/// excluded is not restored, even if it is included too.
///
///   bkfs restore s3://bucket/prefix latest /mnt/new --include /var/lib/mysql/shop
///   bkfs restore s3://bucket/prefix latest:/home /home --overwrite=never --exclude '*.tmp'
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Restore {
    /// The repository, or a mount of one
    url: String,
    /// Snapshot and path: NAME, NAME:/path, latest, @TIME (@2026-11-23, '@2026-11-23 10:00',
    /// @yesterday, '@3 days ago', RFC 3339; UTC)
    #[arg(value_name = "NAME[:/PATH]")]
    what: OsString,
    /// The directory or file to restore to
    target: PathBuf,
    /// Restore only what this pattern names; may be repeated
    #[arg(long, value_name = "PATTERN")]
    include: Vec<OsString>,
    /// Leave out what this pattern names; may be repeated
    #[arg(long, value_name = "PATTERN")]
    exclude: Vec<OsString>,
    /// Restore into a directory that is not empty. Which of the files that are there are replaced:
    /// all of them (also without a value), those of another size or time, or none
    #[arg(
        long,
        value_enum,
        value_name = "WHICH",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "always"
    )]
    overwrite: Option<Which>,
    /// Say what would be restored, and change nothing
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Read back from the disk all that is written, and compare it
    #[arg(long)]
    verify: bool,
    /// Leave out devices, fifos and sockets, and what gives privileges: set-user-ID and
    /// set-group-ID bits, and extended attributes other than user.*
    #[arg(long)]
    no_special: bool,
    /// Do not restore owners and groups: files belong to the user that runs bkfs
    #[arg(long)]
    no_owner: bool,
    /// Begin even if the filesystem seems to have too little room, for example because it
    /// compresses
    #[arg(long)]
    ignore_room: bool,
}

/// Which existing files are replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Which {
    /// None
    Never,
    /// Those of another size or time of last change
    IfChanged,
    /// All
    Always,
}

impl Restore {
    fn options(&self) -> Options {
        Options {
            overwrite: match self.overwrite {
                None => Overwrite::Refused,
                Some(Which::Never) => Overwrite::Never,
                Some(Which::IfChanged) => Overwrite::IfChanged,
                Some(Which::Always) => Overwrite::Always,
            },
            verify: self.verify,
            no_special: self.no_special,
            no_owner: self.no_owner,
            problems_max: None,
        }
    }
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
        let selection = Selection::new(&command.include, &command.exclude);
        if !selection.is_everything() && !mode::is_directory(attributes.mode) {
            return Err(Failure::usage(format!(
                "{} is no directory: --include and --exclude choose what is below one",
                name_text(path)
            )));
        }
        let source = Source::whole(view, inode, path).selected(selection);
        let progress = Arc::new(RestoreProgress::default());
        let (options, place) = (command.options(), Target::at(&command.target));
        if command.dry_run {
            return say_what(&command, &entry.name, &source, &place, output).await;
        }
        let survey = match source.selection.is_everything() {
            true => None,
            false => Some(source.survey(|_, _| {}).await?),
        };
        if survey.as_ref().is_some_and(Survey::is_empty) {
            return Err(nothing(&command));
        }
        let bytes = survey.as_ref().map(|survey| survey.bytes);
        let total = bytes.or(known_bytes(path, &attributes, &entry));
        if !mode::is_directory(attributes.mode) {
            sweep(&command.target);
        }
        if !command.ignore_room {
            let lacking = lacking(&source, (&entry, total), &place, options).await;
            if let Some(lacking) = lacking.map_err(failure)? {
                return Err(no_room(&lacking));
            }
        }
        let bar = Progress::start(output, total, progress.clone());
        let leading = survey.unwrap_or_default().leading;
        let problems = restore(source, leading, &place, options, progress.clone()).await;
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

/// Says that the patterns leave nothing to restore.
fn nothing(command: &Restore) -> Failure {
    let message = match command.include.is_empty() {
        true => "everything is excluded: nothing was restored",
        false => "no name matches --include, or all that do are excluded: nothing was restored",
    };
    Failure::new(message).hint(
        "A pattern with a slash is compared with whole paths in the snapshot, from / on. bkfs find \
         shows what a pattern matches.",
    )
}

/// Says what would be restored.
async fn say_what(
    command: &Restore,
    snapshot: &str,
    source: &Source,
    place: &Target,
    output: &Output,
) -> Result<(), Failure> {
    let progress = RestoreProgress::default();
    let rehearsed = rehearse(source, place, command.options(), &progress).await;
    let (survey, need) = rehearsed.map_err(failure)?;
    let problems = unread(&survey);
    say(command, snapshot, (&survey, &problems), &progress, output)?;
    let lacking = need.lacking(&command.target);
    match lacking.filter(|_| !command.ignore_room) {
        Some(lacking) => Err(no_room(&lacking)),
        None => conclude(&problems, &command.target),
    }
}

/// Prints what would be restored.
fn say(
    command: &Restore,
    snapshot: &str,
    (survey, problems): (&Survey, &[Problem]),
    progress: &RestoreProgress,
    output: &Output,
) -> Result<(), Failure> {
    if survey.is_empty() && !(command.include.is_empty() && command.exclude.is_empty()) {
        return Err(nothing(command));
    }
    let kept = progress.kept.load(Ordering::Relaxed);
    let kept_bytes = progress.kept_bytes.load(Ordering::Relaxed);
    let inodes = survey.inodes.saturating_sub(kept);
    let restored = survey.bytes.saturating_sub(kept_bytes);
    let answer = json!({
        "snapshot": snapshot,
        "dry_run": true,
        "inodes": inodes,
        "bytes": restored,
        "kept": kept,
        "kept_bytes": kept_bytes,
        "problems": listed(problems),
    });
    let target = command.target.as_os_str().as_encoded_bytes();
    let answer = with_name(answer, "target", target);
    output.result(&answer, || {
        format!(
            "would restore {inodes} inodes, {} to {}{}",
            bytes(restored),
            name_text(target),
            kept_text(kept, kept_bytes)
        )
    })
}

/// Returns what damage keeps from being restored, by its path in the snapshot.
fn unread(survey: &Survey) -> Vec<Problem> {
    let problem = |(path, error): &(Vec<u8>, VolumeError)| Problem {
        path: PathBuf::from(OsStr::from_bytes(if path.is_empty() { b"/" } else { path })),
        reason: error.to_string(),
        damaged: true,
    };
    survey.unread.iter().map(problem).collect()
}

/// Returns the list of problems in the answer to `--json`.
fn listed(problems: &[Problem]) -> Vec<serde_json::Value> {
    let entry = |problem: &Problem| {
        let path = problem.path.as_os_str().as_encoded_bytes();
        with_name(json!({ "reason": problem.reason }), "path", path)
    };
    problems.iter().map(entry).collect()
}

/// Returns how much stays that was there already, to append to a sentence.
fn kept_text(kept: u64, kept_bytes: u64) -> String {
    match kept {
        0 => String::new(),
        _ => format!(
            "; {kept} that are there already stay ({})",
            bytes(kept_bytes)
        ),
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
    let kept = progress.kept.load(Ordering::Relaxed);
    let kept_bytes = progress.kept_bytes.load(Ordering::Relaxed);
    let answer = json!({
        "snapshot": snapshot,
        "inodes": progress.inodes.load(Ordering::Relaxed),
        "bytes": restored,
        "kept": kept,
        "kept_bytes": kept_bytes,
        "verified_bytes": progress.verified_bytes.load(Ordering::Relaxed),
        "privileged_xattrs_left_out": left_out,
        "set_ids_left_out": set_ids,
        "special_left_out": special,
        "seconds": seconds,
        "problems": listed(problems),
    });
    let target = command.target.as_os_str().as_encoded_bytes();
    let answer = with_name(answer, "target", target);
    output.result(&answer, || {
        let verified = if command.verify { ", verified" } else { "" };
        let rate = bytes((restored as f64 / seconds.max(0.001)) as u64);
        format!(
            "restored {} inodes, {} to {} in {seconds:.1} s ({rate}/s){verified}{}",
            progress.inodes.load(Ordering::Relaxed),
            bytes(restored),
            name_text(target),
            kept_text(kept, kept_bytes)
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

/// The number of problems that are shown. The others are counted.
const PROBLEMS_SHOWN: usize = 10;

/// What the errors of a full disk say.
const NO_SPACE: &str = "No space left on device";

fn conclude(problems: &[Problem], target: &Path) -> Result<(), Failure> {
    if problems.is_empty() {
        return Ok(());
    }
    for problem in problems.iter().take(PROBLEMS_SHOWN) {
        complain(format_args!(
            "bkfs: not restored: {}: {}",
            name_text(problem.path.as_os_str().as_encoded_bytes()),
            problem.reason
        ));
    }
    let rest = problems.len().saturating_sub(PROBLEMS_SHOWN);
    if rest > 0 {
        complain(format_args!(
            "bkfs: not restored: {rest} more; --json names all of them"
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
             --overwrite=if-changed.",
                room.directory.display(),
                bytes(room.free_bytes)
            )),
        },
    )
}

fn failure(error: RestoreError) -> Failure {
    match error {
        RestoreError::Volume(error) => error.into(),
        RestoreError::Occupied { is_directory, .. } => {
            Failure::new(error.to_string()).hint(match is_directory {
                true => {
                    "--overwrite=if-changed goes on with an interrupted restore. --overwrite \
                     replaces all files that are there."
                }
                false => "--overwrite replaces it.",
            })
        }
        RestoreError::Target { .. } | RestoreError::NoSuchPath { .. } => {
            Failure::new(error.to_string())
        }
    }
}

fn no_room(lacking: &Lacking) -> Failure {
    let Lacking { room, needed_bytes } = lacking;
    let missing = bytes(needed_bytes.saturating_sub(room.free_bytes));
    Failure::new(format!(
        "{}: too little room: {missing} are missing ({} needed, {} free); nothing was restored",
        room.directory.display(),
        bytes(*needed_bytes),
        bytes(room.free_bytes),
    ))
    .hint(
        "Free some room, or restore to another directory. If the filesystem compresses, \
         --ignore-room begins all the same.",
    )
}
