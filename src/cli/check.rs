//! `bkfs check URL [--read-data[=N%]] [--repair [--from URL | --give-up-forgotten]] [--work-dir
//! DIR]`

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use serde_json::{Value, json};

use crate::cli::access::{Access, Bare, Repository, open_bare, open_with};
use crate::cli::hooks::Hooks;
use crate::cli::options::Global;
use crate::cli::output::{Code, Failure, Output, bytes, complain};
use crate::cli::progress::{Position, Progress};
use crate::cli::runtime::block_on;
use crate::cli::source::Source;
use crate::cli::target::target;
use crate::cli::workspace::workspace;
use crate::environment::Environment;
use crate::maintain::check::check;
use crate::maintain::heal::counts::Healed;
use crate::maintain::heal::heal;
use crate::maintain::options::{CheckOptions, CheckProgress};
use crate::maintain::repair;
use crate::maintain::report::{Note, Problem, Report, Stray};
use crate::maintain::sample::Sample;
use crate::maintain::workspace::{Announce, Need, Workspace};
use crate::mounting::settings::Settings;
use crate::places;
use crate::root::error::RootError;
use crate::root::retry::RetryPolicy;

/// Problems shown to people; scripts see all.
const SHOWN_PROBLEMS: usize = 100;

/// Names shown with each.
const SHOWN_NAMES: usize = 10;

/// Check that a repository is complete and undamaged
///
/// Reads the bucket itself, never a cache, and writes nothing without --repair. Without --read-data
/// it checks every reference from the root to packs, all metadata, and the header and footer of
/// each data pack. It works while the repository is mounted. The exit code is 13 if anything is
/// damaged.
///
/// --repair --from restores damaged or missing data from another repository: one that bkfs copy
/// filled from this one, or the one that this is a copy of. Data from there is used only if it is
/// identical to what is missing here. Nothing is written to the other repository. Its password
/// comes from --from-password-file, --from-password-command, BKFS_FROM_PASSWORD_FILE,
/// BKFS_FROM_PASSWORD or the configuration.
///
/// A check keeps what it learns of up to about three million blobs in memory. Of a larger
/// repository it writes that to --work-dir, and says before it reads the packs how much space it
/// may need there. Its files have no names, so that nothing stays behind.
///
/// If bkfs gc refuses because it cannot read something that nothing can restore: forget the
/// snapshots that need it (bkfs forget), then run bkfs check --repair --give-up-forgotten. Without
/// that option the check gives up no forgotten snapshot, because missing data may come back later.
#[derive(Debug, clap::Args)]
pub struct Check {
    /// The repository, or a mount of one
    pub(super) url: String,
    #[command(flatten)]
    pub(super) hooks: Hooks,
    /// Also read, decrypt and verify every byte of file contents, or of about N percent of the data
    /// packs
    #[arg(long, value_name = "N%", num_args = 0..=1, require_equals = true, default_missing_value = "100%", value_parser = percent)]
    read_data: Option<f64>,
    /// Choose the same packs for --read-data=N% as the check that printed this number
    #[arg(long, value_name = "N", requires = "read_data")]
    seed: Option<u64>,
    /// Repair lost index objects, a lost root and lost lists of snapshots; put damage in
    /// quarantine, so that the next write of the same data stores it again
    #[arg(long)]
    repair: bool,
    /// Restore what is damaged or missing from this repository (or a mount of it), as far as it has
    /// it; with --read-data, damaged file contents too
    #[arg(long, value_name = "URL", requires = "repair")]
    from: Option<String>,
    /// Give up for good the forgotten snapshots that need unreadable data, if nothing kept needs
    /// that data and collections do; prints their names
    #[arg(long, requires = "repair", conflicts_with = "from")]
    give_up_forgotten: bool,
    /// Write working data to this directory if the repository is large; by default to the
    /// directory check in that of the cache
    #[arg(long, value_name = "DIR")]
    work_dir: Option<PathBuf>,
    #[command(flatten)]
    source: Source,
}

/// How often what was repaired is looked at and repaired again: a root first, then what it names.
const REPAIRS_MAX: u32 = 3;

fn percent(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text);
    match number.parse::<f64>() {
        Ok(percent) if percent > 0.0 && percent <= 100.0 => Ok(percent),
        _ => Err("expected a percentage above 0, at most 100%".to_owned()),
    }
}

impl Check {
    fn sample(&self, options: &CheckOptions) -> Sample {
        match self.read_data {
            None => Sample::Structure,
            Some(100.0) => Sample::All,
            Some(percent) => {
                let fresh = || {
                    let mut seed = [0; 4];
                    options.entropy.fill(&mut seed);
                    u64::from(u32::from_le_bytes(seed))
                };
                let seed = self.seed.unwrap_or_else(fresh);
                Sample::Percent { percent, seed }
            }
        }
    }
}

/// Checks a repository, repairs it if asked to, and prints what was found.
///
/// # Errors
/// The [`Failure`] of the store or the keys. Exit code 13 if anything is damaged, 2 if `--from` is
/// the same repository.
pub fn run(command: Check, global: &Global, output: &Output) -> Result<(), Failure> {
    block_on(async {
        let started = Instant::now();
        let from = match &command.from {
            Some(url) => Some(open_source(url, &command.source, global).await?),
            None => None,
        };
        let (url, global) = target(&command.url, global)?;
        let bare = open_bare(&Access::of_command(&url, &global)?).await?;
        let mut options = options(&bare);
        let of = |from: &Repository| from.handle.current().root.repository;
        if from.as_ref().map(of) == Some(bare.keyring.repository()) {
            return Err(Failure::usage(
                "the source and the target are the same repository",
            ));
        }
        options.gives_up = command.give_up_forgotten;
        options.data = command.sample(&options);
        options.workspace = telling(command.work_dir.as_ref(), output);
        if let Some(seed) = options.data.seed() {
            output.remark(format_args!(
                "the seed of the sample is {seed}; --seed {seed} repeats it"
            ));
        }
        let bar = follow(output, options.progress.clone());
        let report = match command.repair {
            true => mend(&bare, from.as_ref(), &options, output).await,
            false => check(bare.store, &bare.keyring, &options)
                .await
                .map(|report| (report, Healed::default())),
        };
        bar.finish().await;
        let (report, healed) = report.map_err(failure)?;
        show(&report, &healed, output, started)?;
        conclude(&report)
    })
}

/// The repository that damage is mended from. Two are open, and each takes half of the memory.
async fn open_source(url: &str, source: &Source, global: &Global) -> Result<Repository, Failure> {
    let settings = Settings {
        memory_bytes: Settings::default().memory_bytes / 2,
        ..Settings::default()
    };
    open_with(&source.access(url, global, &settings)?).await
}

fn failure(error: RootError) -> Failure {
    match error {
        error @ RootError::Rebuild { .. } => {
            Failure::from(error).hint("A collection deleted packs meanwhile. Run this again.")
        }
        error => error.into(),
    }
}

/// Says what will be done, does it, and checks again, until nothing can be done any more. The
/// report is that of the last check, with what was brought back altogether.
async fn mend(
    bare: &Bare,
    from: Option<&Repository>,
    options: &CheckOptions,
    output: &Output,
) -> Result<(Report, Healed), RootError> {
    let (store, keyring) = (&bare.store, &bare.keyring);
    let mut all = Healed::default();
    let mut is_changed = false;
    for _ in 0..REPAIRS_MAX {
        let (findings, plan) = repair::plan(store, keyring, options).await?;
        let is_planned = !plan.is_empty();
        let remarks = plan.remarks.clone();
        if is_planned {
            let problems = findings.report.problems.iter().take(SHOWN_PROBLEMS);
            problems.for_each(|problem| output.finding(problem));
            for step in &plan.steps {
                output.finding(format_args!("repair: {step}"));
            }
            let done = repair::execute(store, keyring, options, &findings, plan).await;
            done.map_err(|error| match is_changed {
                true => error.after_changes(),
                false => error,
            })?;
            is_changed = true;
        }
        let healed = match from {
            Some(from) => heal(store, keyring, options, &findings, from).await?,
            None => Healed::default(),
        };
        if !healed.is_nothing() {
            output.finding(format_args!("repair: {}", brought_back(&healed)));
            all.add(&healed);
            is_changed = true;
        } else if !is_planned {
            for remark in &remarks {
                output.remark(remark);
            }
            return Ok((findings.report, all));
        }
    }
    let report = check(store.clone(), keyring, options).await?;
    Ok((report, all))
}

fn brought_back(healed: &Healed) -> String {
    let mut text = format!(
        "restored {} damaged or missing blobs ({})",
        healed.blobs,
        bytes(healed.bytes)
    );
    if healed.records > 0 {
        text += &format!(", wrote {} commit records again", healed.records);
    }
    text
}

fn options(bare: &Bare) -> CheckOptions {
    let mut options = CheckOptions {
        memory: bare.memory.clone(),
        min_generation: bare.min_generation,
        accept_rollback: bare.accept_rollback,
        seen: places::state_dir().map(|directory| (directory, Environment::this().now())),
        policy: RetryPolicy::within(bare.timeout),
        ..CheckOptions::default()
    };
    options.verifier.timeout_ms = bare.timeout.as_millis() as u64;
    options
}

/// The working data of a check. It tells what space it may need.
fn telling(directory: Option<&PathBuf>, output: &Output) -> Workspace {
    let output = output.clone();
    let is_told = AtomicBool::new(false);
    let tell = move |need: &Need| {
        // A repair checks several times.
        if !is_told.swap(true, Ordering::Relaxed) {
            output.remark(space(need));
        }
    };
    Workspace {
        announce: Some(Announce::new(tell)),
        ..workspace("check", directory)
    }
}

fn space(need: &Need) -> String {
    let Need {
        place,
        bytes: needed,
        free_bytes,
    } = need;
    let needed = bytes(*needed);
    let text = format!("the check may need up to {needed} for working data in {place}");
    match free_bytes {
        Some(free) => format!("{text}, where {} are free", bytes(*free)),
        None => text,
    }
}

fn follow(output: &Output, progress: Arc<CheckProgress>) -> Progress {
    Progress::follow(output, move || Position {
        bytes: progress.done_bytes.load(Ordering::Relaxed),
        total_bytes: Some(progress.total_bytes.load(Ordering::Relaxed)).filter(|total| *total > 0),
        message: match progress.healed_blobs.load(Ordering::Relaxed) {
            0 => String::new(),
            blobs => format!("{blobs} blobs restored"),
        },
    })
}

fn show(
    report: &Report,
    healed: &Healed,
    output: &Output,
    started: Instant,
) -> Result<(), Failure> {
    let seconds = started.elapsed().as_secs_f64();
    if !output.is_json() {
        report
            .problems
            .iter()
            .take(SHOWN_PROBLEMS)
            .for_each(show_problem);
        let hidden = report.problems.len().saturating_sub(SHOWN_PROBLEMS) as u64;
        if hidden + report.more_problems > 0 {
            complain(format_args!(
                "bkfs: and {} further problems",
                hidden + report.more_problems
            ));
        }
    }
    output.result(&as_json(report, healed, seconds), || {
        summary(report, seconds)
    })
}

fn show_problem(problem: &Problem) {
    complain(format_args!("bkfs: {problem}"));
    let names = |what: &str, names: Vec<&String>, more: u64| {
        let more = more + names.len().saturating_sub(SHOWN_NAMES) as u64;
        for name in names.iter().take(SHOWN_NAMES) {
            complain(format_args!("      {what} {name}"));
        }
        if more > 0 {
            complain(format_args!("      and {more} more"));
        }
    };
    names("touches", problem.snapshots.iter().collect(), 0);
    names("lost:", problem.files.iter().collect(), problem.more_files);
}

fn summary(report: &Report, seconds: f64) -> String {
    let counts = &report.counts;
    let generation = match report.generation {
        Some(generation) => format!("generation {generation}"),
        None => "no readable root".to_owned(),
    };
    let verdict = match report.problems.len() as u64 + report.more_problems {
        0 => "no damage".to_owned(),
        1 => "1 problem".to_owned(),
        count => format!("{count} problems"),
    };
    let mut text = format!(
        "checked {generation}: {} snapshots, {} packs with {} blobs in {}, {} verified in \
         {seconds:.1} s: {verdict}",
        counts.snapshots,
        counts.packs,
        counts.blobs,
        bytes(counts.bytes),
        bytes(counts.verified_bytes),
    );
    let orphans = &report.orphans;
    if orphans.count() + orphans.in_progress > 0 {
        text += &format!(
            "\n{} objects that nothing needs (no damage), {} of them of running writers: {}",
            orphans.count(),
            orphans.in_progress,
            bytes(orphans.bytes)
        );
    }
    if !report.strays.is_empty() {
        text += &format!(
            "\n{} commits are in no root (no damage): a crash left them, or the store lost them \
             after it had acknowledged them; docs/check.md says how to bring them back",
            report.strays.len()
        );
        for stray in report.strays.iter().take(SHOWN_NAMES) {
            text += &format!("\n      {stray}");
        }
    }
    if !report.notes.is_empty() {
        text += &format!(
            "\n{} entries of trees that commands leave out (no damage):",
            report.notes.len() as u64 + report.more_notes
        );
        for note in report.notes.iter().take(SHOWN_NAMES) {
            text += &format!("\n      {note}");
        }
    }
    if counts.healed > 0 {
        text += &format!(
            "\n{} damaged places have been stored again since",
            counts.healed
        );
    }
    text
}

fn as_json(report: &Report, healed: &Healed, seconds: f64) -> Value {
    let counts = &report.counts;
    let orphans = &report.orphans;
    let problem = |problem: &Problem| {
        json!({
            "object": problem.object,
            "kind": problem.kind.name(),
            "what": problem.what,
            "lost_blobs": problem.lost_blobs,
            "snapshots": problem.snapshots,
            "files": problem.files,
            "more_files": problem.more_files,
        })
    };
    let stray = |stray: &Stray| {
        json!({
            "volume": stray.volume,
            "commit": stray.sequence,
            "time": stray.time.to_string(),
            "session": stray.session,
        })
    };
    let note = |note: &Note| json!({ "tree": note.tree, "what": note.what });
    json!({
        "clean": report.is_clean(),
        "generation": report.generation,
        "snapshots": counts.snapshots,
        "trash": counts.trash,
        "volumes": counts.volumes,
        "index_objects": counts.indexes,
        "packs": counts.packs,
        "packs_read": counts.packs_read,
        "blobs": counts.blobs,
        "references": counts.references,
        "bytes": counts.bytes,
        "verified_bytes": counts.verified_bytes,
        "healed": counts.healed,
        "brought_back": {
            "blobs": healed.blobs,
            "bytes": healed.bytes,
            "commit_records": healed.records,
        },
        "unknown_commits": report.strays.iter().map(stray).collect::<Vec<_>>(),
        "silent_sessions": counts.silent_sessions,
        "seed": report.seed,
        "seconds": seconds,
        "orphans": {
            "packs": orphans.packs,
            "index_objects": orphans.indexes,
            "lists": orphans.lists,
            "sessions": orphans.sessions,
            "journals": orphans.journals,
            "probes": orphans.probes,
            "foreign": orphans.foreign,
            "in_progress": orphans.in_progress,
            "bytes": orphans.bytes,
        },
        "problems": report.problems.iter().map(problem).collect::<Vec<_>>(),
        "more_problems": report.more_problems,
        "notes": report.notes.iter().map(note).collect::<Vec<_>>(),
        "more_notes": report.more_notes,
    })
}

fn conclude(report: &Report) -> Result<(), Failure> {
    if report.is_clean() {
        return Ok(());
    }
    let count = report.problems.len() as u64 + report.more_problems;
    let worst = &report.problems[0];
    let is_needed = report
        .problems
        .iter()
        .any(|problem| !problem.snapshots.is_empty());
    Err(Failure::new(format!(
        "the repository is damaged ({count} found; the first: {worst})"
    ))
    .code(Code::Damaged))
    .map_err(|failure| match report.touches_nothing() {
        true => failure.hint(
            "No known snapshot or volume needs what is damaged: bkfs gc frees it after a bkfs \
             check --repair. If bkfs gc refuses, forgotten snapshots need it: bkfs check --repair \
             --give-up-forgotten gives them up.",
        ),
        false if is_needed => failure.hint(
            "If you cannot bring back what is damaged: forget the snapshots that need it (bkfs \
             forget), then run bkfs check --repair --give-up-forgotten, so that bkfs gc can go \
             on.",
        ),
        false => failure,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_space_that_is_needed_is_said_with_what_is_free() {
        let mut need = Need {
            place: "/var/cache/bkfs/check".to_owned(),
            bytes: 12 << 30,
            free_bytes: Some(1 << 30),
        };
        let said = "the check may need up to 12.0 GiB for working data in /var/cache/bkfs/check";
        assert_eq!(space(&need), format!("{said}, where 1.00 GiB are free"));
        need.free_bytes = None;
        assert_eq!(space(&need), said);
    }
}
