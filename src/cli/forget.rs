//! `bkfs forget URL --keep-… [--dry-run]`, `bkfs forget URL NAME…`, `bkfs forget URL --undo NAME`

use serde_json::{Value, json};

use crate::cli::access::open;
use crate::cli::hooks::Hooks;
use crate::cli::options::Global;
use crate::cli::output::{Failure, Output};
use crate::cli::runtime::block_on;
use crate::cli::snapshots::columns;
use crate::cli::target::{profile_of, target_to_change};
use crate::maintain::forgetting::Changer;
use crate::retain::{Policy, Reason, Span, plan};
use crate::root::error::RootError;
use crate::root::snapshots::SnapshotEntry;

/// The verdict over one snapshot.
type Verdict<'a> = crate::retain::Verdict<'a, SnapshotEntry>;

/// Forget snapshots by policy, or undo that
///
/// A snapshot is kept if any rule keeps it. Snapshots of each host are counted apart, and the
/// newest of each host is always kept. Days, weeks, months and years are in UTC. A snapshot whose
/// time cannot be right (in the future, or the same as that of another one because a clock had
/// jumped) is kept and not counted. Forgotten snapshots lie in the trash: --undo brings them back
/// until bkfs gc empties it. Without a rule here, the table [repository.NAME.retention] of the
/// configuration has the rules (keep_last = 3, keep_within = "30d" and so on).
#[derive(Debug, clap::Args)]
pub struct Forget {
    /// The repository, or a mount of one
    pub(super) url: String,
    #[command(flatten)]
    pub(super) hooks: Hooks,
    /// Forget these snapshots, whatever the rules say
    #[arg(value_name = "NAME", conflicts_with = "undo")]
    names: Vec<String>,
    #[command(flatten)]
    keep: Keep,
    /// Print what would be kept and why, and change nothing
    #[arg(short = 'n', long, conflicts_with = "undo")]
    dry_run: bool,
    /// Bring a forgotten snapshot back
    #[arg(long, value_name = "NAME")]
    undo: Option<String>,
}

#[derive(Debug, clap::Args)]
#[group(multiple = true, conflicts_with_all = ["undo", "names"])]
struct Keep {
    /// Keep the last N
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    keep_last: u32,
    /// Keep the last one of each of the last N hours that have a snapshot
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    keep_hourly: u32,
    /// Keep the last one of each of the last N days that have a snapshot
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    keep_daily: u32,
    /// Keep the last one of each of the last N weeks that have a snapshot
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    keep_weekly: u32,
    /// Keep the last one of each of the last N months that have a snapshot
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    keep_monthly: u32,
    /// Keep the last one of each of the last N years that have a snapshot
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    keep_yearly: u32,
    /// Keep all that are at most this much older than the newest one: 12h, 30d, 8w, 6m, 2y
    #[arg(long, value_name = "TIME")]
    keep_within: Option<Span>,
    /// Keep all with this tag (may be repeated)
    #[arg(long, value_name = "TAG")]
    keep_tag: Vec<String>,
}

impl From<Keep> for Policy {
    fn from(keep: Keep) -> Self {
        Self {
            last: keep.keep_last,
            hourly: keep.keep_hourly,
            daily: keep.keep_daily,
            weekly: keep.keep_weekly,
            monthly: keep.keep_monthly,
            yearly: keep.keep_yearly,
            within: keep.keep_within,
            tags: keep.keep_tag,
        }
    }
}

/// Forgets snapshots, or brings one back, and prints the verdicts.
///
/// # Errors
/// Exit code 2 if neither a rule nor the profile says what to keep. The [`Failure`] of the
/// repository, also if a named snapshot does not exist: no snapshot is forgotten then.
pub fn run(command: Forget, global: &Global, output: &Output) -> Result<(), Failure> {
    let mut policy = Policy::from(command.keep);
    let by_policy = command.undo.is_none() && command.names.is_empty();
    if by_policy && policy.is_empty() {
        let rules = profile_of(&command.url)?.and_then(|profile| profile.retention);
        policy = rules.unwrap_or_default().into();
    }
    if by_policy && policy.is_empty() {
        return Err(Failure::usage(
            "no rule says what to keep: give at least one of --keep-last, --keep-hourly, \
             --keep-daily, --keep-weekly, --keep-monthly, --keep-yearly, --keep-within, \
             --keep-tag",
        )
        .hint("A profile may have rules: [repository.NAME.retention] in bkfs.toml."));
    }
    block_on(async {
        let (url, global) = target_to_change(&command.url, global)?;
        let repository = open(&url, &global).await?;
        let volume = &global.volume;
        let changer = Changer {
            repository: &repository,
            command: "bkfs forget",
        };
        if let Some(name) = &command.undo {
            let entry = changer.bring_back(volume, name).await?;
            let answer = json!({ "volume": volume, "restored": entry.name });
            return output.result(&answer, || format!("{} is back", entry.name));
        }
        let list = repository.snapshots().await?;
        let entries = list.of_volume(volume);
        let verdicts = match by_policy {
            true => plan(entries.iter().copied(), &policy, repository.now()),
            false => named(&entries, &command.names, volume)?,
        };
        let going = verdicts.iter().filter(|verdict| !verdict.stays());
        let going: Vec<SnapshotEntry> = going.map(|verdict| verdict.snapshot.clone()).collect();
        if !command.dry_run && !going.is_empty() {
            changer.forget_planned(volume, &going).await?;
        }
        let answer = as_json(volume, &verdicts, command.dry_run);
        output.result(&answer, || table(&verdicts, command.dry_run))
    })
}

/// Returns the verdicts over snapshots that are named: they go. Other snapshots get no verdict.
fn named<'a>(
    entries: &[&'a SnapshotEntry],
    names: &[String],
    volume: &str,
) -> Result<Vec<Verdict<'a>>, RootError> {
    let verdict = |name: &String| {
        let found = entries.iter().find(|entry| entry.name == *name);
        let snapshot = *found.ok_or_else(|| RootError::NoSnapshot {
            name: name.clone(),
            volume: volume.to_owned(),
        })?;
        let reasons = Vec::new();
        Ok(Verdict { snapshot, reasons })
    };
    names.iter().map(verdict).collect()
}

fn reasons(verdict: &Verdict<'_>) -> Vec<String> {
    verdict.reasons.iter().map(Reason::to_string).collect()
}

fn as_json(volume: &str, verdicts: &[Verdict<'_>], dry_run: bool) -> Value {
    let row = |verdict: &Verdict<'_>| {
        let entry = verdict.snapshot;
        json!({
            "name": entry.name,
            "time": entry.time.to_string(),
            "host": entry.host,
            "keep": verdict.stays(),
            "reasons": reasons(verdict),
        })
    };
    let kept = verdicts.iter().filter(|verdict| verdict.stays()).count();
    json!({
        "volume": volume,
        "dry_run": dry_run,
        "kept": kept,
        "forgotten": verdicts.len() - kept,
        "snapshots": verdicts.iter().map(row).collect::<Vec<_>>(),
    })
}

fn table(verdicts: &[Verdict<'_>], dry_run: bool) -> String {
    let mut rows = vec![["NAME", "TIME", "HOST", "", "WHY"].map(str::to_owned)];
    for verdict in verdicts {
        let entry = verdict.snapshot;
        let fate = if verdict.stays() { "keep" } else { "forget" };
        rows.push([
            entry.name.clone(),
            entry.time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
            entry.host.clone(),
            fate.to_owned(),
            reasons(verdict).join(", "),
        ]);
    }
    let going = verdicts.iter().filter(|verdict| !verdict.stays()).count();
    let doing = if dry_run { "would forget" } else { "forgot" };
    let table = columns(&rows, &[]);
    format!("{table}\n{doing} {going} of {}", verdicts.len())
}
