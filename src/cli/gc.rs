//! `bkfs gc URL [--dry-run] [--undelete-window 7d]`

use std::path::PathBuf;
use std::sync::atomic::Ordering;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::cli::access::open;
use crate::cli::gc_merge::{Bounds, merge};
use crate::cli::hooks::Hooks;
use crate::cli::options::{Global, lock_days};
use crate::cli::output::{Failure, Output, bytes};
use crate::cli::progress::{Position, Progress};
use crate::cli::runtime::block_on;
use crate::cli::signals::signals;
use crate::cli::target::target;
use crate::cli::workspace::workspace;
use crate::maintain::collect::locks::Waiting;
use crate::maintain::collect::plan::Effort;
use crate::maintain::collect::share::{Count, FLOOR_BYTES, LIMIT_PERCENT, Share};
use crate::maintain::collect::sightings::Vanished;
use crate::maintain::collect::sweep::Holding;
use crate::maintain::collect::{Collected, Options, Prospect, collect, may_delete, prospect};
use crate::places;
use crate::printable;
use crate::repository::Repository;
use crate::retain::Span;
use crate::root::error::RootError;
use crate::units::size;
use crate::volumes::reap::{Patience, reap};

/// Free what no snapshot needs, while mounts run
///
/// A collection condemns what nothing needs. It deletes condemned packs once every mount of the
/// repository has moved past them: a mount does so within a minute, and a dead one must be ended
/// (bkfs session list). So the next collection may delete a part of what this one condemns.
/// Forgotten snapshots can be brought back until the undelete window has passed. The command prints
/// its plan and the cost before it begins. You can stop it at any moment, and run several at once.
///
/// The command refuses with exit code 1 if it would free more than half of what the repository held
/// within the undelete window, and more than 64 MiB. What counts is data that was needed when this
/// machine collected last and is no longer needed, over all collections of the window. --yes-delete
/// confirms that. On the first collection of a machine, all that is to be freed counts. With
/// --undelete-window 0s nothing counts. Collect on one machine only: data that another one rewrote to
/// other packs counts as freed.
#[derive(Debug, clap::Args)]
pub struct Gc {
    /// The repository, or a mount of one
    pub(super) url: String,
    #[command(flatten)]
    pub(super) hooks: Hooks,
    /// Print the plan and its cost, and change nothing
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// After the collection, merge the index if it has grown by a million chunks or more, so that a
    /// machine without a cache need not download it. That writes about 1.3 GiB at most. If it is
    /// stopped or fails, nothing is lost, and the next --merge goes on
    #[arg(long)]
    merge: bool,
    /// How long forgotten snapshots can be brought back, from when this machine first saw them
    /// forgotten: 12h, 7d, 8w; 0s frees them at once, without a limit on the amount
    #[arg(long, value_name = "TIME", default_value = "7d")]
    undelete_window: Span,
    /// Delete even if that frees more than half of what the repository held within the undelete
    /// window
    #[arg(long)]
    yes_delete: bool,
    /// Rewrite a data pack when less than this share of it is needed
    #[arg(long, value_name = "N%", default_value = "90%", value_parser = percent)]
    repack_below: f64,
    /// Read at most this much of data packs to rewrite them, the emptiest first: a number of MiB,
    /// or a size such as 1.5G (default: no limit)
    #[arg(long, value_name = "SIZE", value_parser = budget)]
    repack_budget: Option<u64>,
    /// Keep what is needed locked for this many days from now, whatever --lock-days the repository
    /// has; unlike those, no writer can change this value
    #[arg(
        long,
        value_name = "DAYS",
        value_parser = lock_days
    )]
    lock_days: Option<u32>,
    /// Write working data, up to 1 GiB, to this directory if the repository is large; by default to
    /// the directory gc in that of the cache
    #[arg(long, value_name = "DIR")]
    work_dir: Option<PathBuf>,
}

fn percent(text: &str) -> Result<f64, String> {
    match text.strip_suffix('%').unwrap_or(text).parse::<f64>() {
        Ok(percent) if (0.0..=100.0).contains(&percent) => Ok(percent / 100.0),
        _ => Err("expected a percentage from 0% to 100%".to_owned()),
    }
}

/// Parses a budget in bytes. A number without a unit is in MiB.
fn budget(text: &str) -> Result<u64, String> {
    match text.parse::<u64>() {
        Ok(mib) => Ok(mib.saturating_mul(1 << 20)),
        Err(_) => size(text).ok_or_else(|| "expected a number of MiB, or a size as 1.5G".into()),
    }
}

/// Prints what a collection would do, and then collects unless it is a dry run.
///
/// # Errors
/// The [`Failure`] of the repository; those of [`Collection::run`].
pub fn run(command: Gc, global: &Global, output: &Output) -> Result<(), Failure> {
    block_on(async {
        let (url, global) = target(&command.url, global)?;
        let repository = open(&url, &global).await?;
        let options = Options {
            undelete_window: command.undelete_window.0,
            lock_days: command.lock_days,
            state_dir: places::state_dir(),
            workspace: workspace("gc", command.work_dir.as_ref()),
            effort: Effort {
                threshold: command.repack_below,
                budget_bytes: command.repack_budget.unwrap_or(u64::MAX),
            },
        };
        let collection = Collection {
            repository: &repository,
            options,
            bounds: match command.merge {
                true => Bounds::default(),
                false => Bounds::nothing(),
            },
            dry_run: command.dry_run,
            yes_delete: command.yes_delete,
        };
        collection.run(output, signals()).await
    })
}

/// A collection of an open repository.
pub struct Collection<'a> {
    /// The repository.
    pub repository: &'a Repository,
    /// What is collected.
    pub options: Options,
    /// How much of the index is merged after that.
    pub bounds: Bounds,
    /// Change nothing.
    pub dry_run: bool,
    /// Delete however much would be gone.
    pub yes_delete: bool,
}

impl Collection<'_> {
    /// Prints what it would do, and does it unless it is a dry run. `told` returns why the merge is to
    /// end, if a signal asks for that. It is not asked before: a signal ends a collection at once.
    ///
    /// # Errors
    /// Exit code 1 if more would be gone than is deleted without `yes_delete`, or if the credentials
    /// may not delete: nothing is collected then. The [`Failure`] of the repository, and those of
    /// [`merge`].
    pub async fn run(
        &self,
        output: &Output,
        told: impl Future<Output = &'static str>,
    ) -> Result<(), Failure> {
        let repository = self.repository;
        if !self.dry_run {
            may_delete(&repository.handle)
                .await
                .map_err(cannot_delete)?;
            // What only a scratch clone of a dead mount needs is garbage.
            let reaped = reap(repository, "bkfs gc", Patience::Everywhere).await?;
            for volume in reaped {
                output.remark(format_args!(
                    "removed {volume}, the clone of a mount that is dead"
                ));
            }
        }
        let mut found = prospect(repository, &self.options, repository.now()).await?;
        found.count.is_accepted |= self.yes_delete;
        let view = repository.handle.current();
        let root = &view.root;
        let mut plan = prospect_json(&found, self.dry_run);
        self.bounds.add_due(root, &mut plan);
        output.result(&plan, || {
            let to_merge = self.bounds.due_text(root);
            let lines = [Some(prospect_text(&found)), to_merge];
            lines.into_iter().flatten().collect::<Vec<_>>().join("\n")
        })?;
        if self.dry_run {
            return Ok(());
        }
        if found.count.is_refused() {
            return Err(refused(&found, self.options.undelete_window));
        }
        if found.is_empty() {
            found.remember().await;
        } else {
            let bar = follow_locks(output, &found);
            let done = collect(repository, found).await;
            bar.finish().await;
            let done = done?;
            output.result(&done_json(&done), || done_text(&done))?;
        }
        merge(repository, &self.bounds, output, told).await
    }
}

/// Shows how far the extension of locks has come. It can take long even if nothing is freed.
fn follow_locks(output: &Output, found: &Prospect) -> Progress {
    let total = found.plan.live_bytes;
    let progress = found.locks.as_ref().map(|locks| locks.progress.clone());
    Progress::follow(output, move || {
        let done = progress.as_ref().map(|done| done.load(Ordering::Relaxed));
        Position {
            bytes: done.unwrap_or(0),
            total_bytes: done.filter(|done| *done > 0).map(|_| total),
            message: match done {
                Some(1..) => "locks extended".to_owned(),
                _ => String::new(),
            },
        }
    })
}

/// Returns the failure that says why nothing is deleted without confirmation, and what confirms it.
fn refused(found: &Prospect, undelete_window: SignedDuration) -> Failure {
    let share = &found.count.share;
    let hint = match share.is_first {
        true => {
            "This machine has not collected this repository before, so it cannot tell old garbage \
             from a loss. Check the list of bkfs snapshots; if all that you want to keep is \
             there, give --yes-delete once."
        }
        false => {
            "If you expect that (snapshots were forgotten, or files deleted), give --yes-delete \
             once. If not, see bkfs snapshots and bkfs forget --undo. Nothing was condemned or \
             deleted."
        }
    };
    let text = format!(
        "nothing was collected: {} would be freed within the undelete window of {:#}, more than \
         {LIMIT_PERCENT}%",
        share_text(share),
        undelete_window,
    );
    Failure::new(text).hint(hint)
}

fn share_text(share: &Share) -> String {
    format!(
        "{}% of what the repository held ({} of {}; {} of it since the last collection)",
        share.percent(),
        bytes(share.gone_bytes()),
        bytes(share.held_bytes()),
        bytes(share.bytes),
    )
}

fn share_json(count: &Count) -> Value {
    let share = &count.share;
    json!({
        "gone_bytes": share.gone_bytes(),
        "gone_since_last_bytes": share.bytes,
        "held_bytes": share.held_bytes(),
        "percent": share.percent(),
        "limit_percent": LIMIT_PERCENT,
        "floor_bytes": FLOOR_BYTES,
        "first_collection": share.is_first,
        "refused": count.is_refused(),
    })
}

fn cannot_delete(error: RootError) -> Failure {
    Failure::from(error)
        .context("nothing was collected: the credentials may not delete")
        .hint("Use credentials that may delete objects. Writers and --dry-run do not need them.")
}

fn holding_json(holding: &[Holding]) -> Value {
    let one = |holding: &Holding| {
        json!({
            "session": holding.session.to_string(),
            "host": holding.holder.host,
            "pid": holding.holder.pid,
            "where": holding.holder.mount_point,
            "base": holding.base,
            "spool_of_ended": holding.has_ended,
        })
    };
    holding.iter().map(one).collect()
}

fn vanished_json(kept: &[Vanished], lost: &[Vanished]) -> Value {
    let one = |gone: &Vanished, is_whole: bool| {
        json!({
            "volume": gone.volume,
            "name": gone.name,
            "since": gone.since.to_string(),
            "kept": is_whole,
        })
    };
    let kept = kept.iter().map(|gone| one(gone, true));
    kept.chain(lost.iter().map(|gone| one(gone, false)))
        .collect()
}

fn prospect_json(found: &Prospect, dry_run: bool) -> Value {
    let plan = &found.plan;
    json!({
        "dry_run": dry_run,
        "live_bytes": plan.live_bytes,
        "dead_packs": plan.dead.len(),
        "rewritten_packs": plan.rewritten.len(),
        "unlisted_packs": plan.unlisted.len(),
        "condemned_bytes": plan.condemned_bytes,
        "read_bytes": plan.read_bytes,
        "written_bytes": plan.rewritten_bytes,
        "expired_snapshots": found.expired,
        "dated_back_snapshots": found.dated_back,
        "vanished_snapshots": vanished_json(&found.vanished, &found.lost),
        "share": share_json(&found.count),
        "orphans": found.orphans.len(),
        "deletable_packs": found.free_packs,
        "held_packs": found.held_packs,
        "held_by": holding_json(&found.holding),
        "metadata_packs_read": found.packs_read(),
        "requests_made": found.requests_made,
        "requests": found.requests,
        "locks_due": found.locks.as_ref().is_some_and(|locks| locks.is_due),
        "lock_days": found.locks.as_ref().map(|locks| locks.rule.days),
        "waiting": found.locks.as_ref().map(|locks| waiting_json(&locks.waiting)),
    })
}

fn prospect_text(found: &Prospect) -> String {
    let plan = &found.plan;
    let mut lines = vec![format!(
        "{} in live packs; {} requests made for this plan",
        bytes(plan.live_bytes),
        found.requests_made
    )];
    if found.is_empty() {
        lines.push("nothing to free".to_owned());
    } else {
        lines.push(format!(
            "to condemn: {} packs ({}), of which {} of {} are rewritten; {} forgotten snapshots \
             expire",
            plan.candidates().len(),
            bytes(plan.condemned_bytes),
            bytes(plan.rewritten_bytes),
            bytes(plan.read_bytes),
            found.expired,
        ));
        lines.push(format!(
            "to delete: {} packs condemned before, {} other objects; about {} requests",
            found.free_packs,
            found.orphans.len(),
            found.requests
        ));
    }
    if found.dated_back > 0 {
        lines.push(format!(
            "{} forgotten snapshots are older than the undelete window by their own dates, and \
             stay: the window begins when this machine first saw them forgotten",
            found.dated_back
        ));
    }
    let share = &found.count.share;
    if share.bytes > 0 {
        lines.push(format!("needed no more: {}", share_text(share)));
    }
    if found.count.is_refused() {
        lines.push("more than bkfs deletes unasked: give --yes-delete to confirm it".to_owned());
    }
    lines.extend(found.vanished.iter().map(|gone| {
        let name = printable::name(format!("{}:{}", gone.volume, gone.name).as_bytes());
        format!(
            "VANISHED  {name}: in no list since {} or before, and bkfs forget has not forgotten \
             it: kept for the undelete window",
            gone.since
        )
    }));
    lines.extend(found.lost.iter().map(|gone| {
        let name = printable::name(format!("{}:{}", gone.volume, gone.name).as_bytes());
        format!(
            "VANISHED  {name}: in no list since {} or before, and parts of it are missing: \
             another collection deleted them, or they are damaged (see bkfs check)",
            gone.since
        )
    }));
    lines.extend(held_text(found.held_packs, &found.holding));
    if let Some(locks) = &found.locks {
        if locks.is_due {
            lines.push(format!(
                "to lock: {} that are kept, for {} days from now",
                bytes(plan.live_bytes.saturating_sub(plan.condemned_bytes)),
                locks.rule.days
            ));
        }
        lines.extend(waiting_text(&locks.waiting));
    }
    lines.join("\n")
}

fn held_text(packs: u64, holding: &[Holding]) -> Option<String> {
    if packs == 0 || holding.is_empty() {
        return None;
    }
    let mut text = format!("{packs} condemned packs are held back by");
    for one in holding {
        let (session, holder) = (one.session, &one.holder);
        text += &match one.has_ended {
            true => format!(
                "\n  the spool of host {}, which may hold what the ended session {session} \
                 acknowledged: mount on that host, or give it up with bkfs session end --give-up",
                holder.host
            ),
            false => format!("\n  session {session}: {holder}"),
        };
    }
    Some(text)
}

/// Returns the bytes that wait, and when the first and the last of them can be deleted.
fn ends(waiting: &Waiting) -> Option<(u64, Timestamp, Timestamp)> {
    let untils = || waiting.values().map(|(_, until)| *until);
    let total = waiting.values().map(|(bytes, _)| bytes).sum();
    Some((total, untils().min()?, untils().max()?))
}

fn waiting_json(waiting: &Waiting) -> Value {
    let ends = ends(waiting);
    json!({
        "packs": waiting.len(),
        "bytes": ends.map_or(0, |(bytes, ..)| bytes),
        "first": ends.map(|(_, first, _)| first.to_string()),
        "last": ends.map(|(.., last)| last.to_string()),
    })
}

fn waiting_text(waiting: &Waiting) -> Option<String> {
    let (total, first, last) = ends(waiting)?;
    Some(format!(
        "{} condemned packs ({}) wait for the end of their locks, from {first} to {last}",
        waiting.len(),
        bytes(total)
    ))
}

fn done_json(done: &Collected) -> Value {
    json!({
        "condemned_packs": done.condemned.packs,
        "condemned_bytes": done.condemned.bytes,
        "expired_snapshots": done.condemned.expired,
        "gave_way": done.condemned.gave_way,
        "deleted_packs": done.deleted_packs,
        "deleted_bytes": done.deleted_bytes,
        "deleted_orphans": done.deleted_orphans,
        "held_packs": done.held_packs,
        "held_by": holding_json(&done.holding),
        "waiting": waiting_json(&done.waiting),
        "locked_objects": done.extended.objects,
        "locked_until": done.extended.until.map(|until| until.to_string()),
        "missing_objects": done.extended.missing,
    })
}

fn done_text(done: &Collected) -> String {
    let condemned = &done.condemned;
    let mut text = format!(
        "condemned {} packs ({}); deleted {} packs and {} other objects",
        condemned.packs,
        bytes(condemned.bytes),
        done.deleted_packs,
        done.deleted_orphans
    );
    if condemned.gave_way {
        text += "\nanother collector condemned first: this one condemned nothing";
    }
    if let Some(until) = done.extended.until {
        text += &format!("\nlocked {} objects until {until}", done.extended.objects);
    }
    if done.extended.missing > 0 {
        let missing = done.extended.missing;
        text += &format!("\n{missing} needed objects are missing: bkfs check names them");
    }
    if let Some(waiting) = waiting_text(&done.waiting) {
        text = text + "\n" + &waiting;
    }
    if let Some(held) = held_text(done.held_packs, &done.holding) {
        text = text + "\n" + &held;
    }
    text
}
