//! `bkfs copy FROM TO`

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use serde_json::json;

use crate::cli::access::{Access, Repository, open_with};
use crate::cli::hooks::Hooks;
use crate::cli::options::Global;
use crate::cli::output::{Code, Failure, Output, bytes, name_text};
use crate::cli::progress::{Position, Progress};
use crate::cli::runtime::block_on;
use crate::cli::source::Source;
use crate::cli::target::target;
use crate::mounting::settings::Settings;
use crate::replicate::progress::CopyProgress;
use crate::replicate::{Outcome, Pace, ReplicateError, Replication};
use crate::root::error::RootError;
use crate::units::size;

/// Copy snapshots of a volume to another repository
///
/// Snapshots keep their names, times, hosts and tags. bkfs verifies their contents as it reads
/// them, and encrypts them under the keys of the target. It does not send again what the target
/// has, and an interrupted copy continues where it stopped. Until a snapshot is complete, the
/// target's volume shows what it did before. The target's volume belongs to the copy: it must be new,
/// or hold nothing that no snapshot of it has, unless --anew gives up what else it holds.
///
/// --password-file and --password-command are for the target (TO). The password of the source comes
/// from --from-password-file, --from-password-command, BKFS_FROM_PASSWORD_FILE, BKFS_FROM_PASSWORD
/// or the configuration.
#[derive(Debug, clap::Args)]
pub struct Copy {
    /// The repository to copy from, or a mount of one
    from: String,
    /// The repository to copy to, or a mount of one; create it with bkfs init
    pub(super) to: String,
    #[command(flatten)]
    pub(super) hooks: Hooks,
    /// Copy only this snapshot; may be repeated (default: all that are newer than those of TO)
    #[arg(long = "snapshot", value_name = "NAME")]
    snapshots: Vec<String>,
    /// Copy every volume; one that cannot be copied keeps no other from being copied
    #[arg(long, conflicts_with = "snapshots")]
    all: bool,
    /// Commit after at most this many bytes, so that an interrupted copy does not send them again
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = commit_size)]
    commit_every: u64,
    /// Take the target's volume over from its holder
    #[arg(long)]
    steal: bool,
    /// Continue without acknowledged changes of the target's volume whose journals are missing from
    /// its bucket; journals after the gap are moved to damaged/
    #[arg(long)]
    accept_loss: bool,
    /// Give up what the target's volume holds beyond its snapshots, and continue from the last
    /// copied snapshot
    #[arg(long)]
    anew: bool,
    /// Replace a snapshot of the target that the source has made anew under its name; the older one
    /// goes to the target's trash
    #[arg(long)]
    replace: bool,
    #[command(flatten)]
    source: Source,
}

fn commit_size(text: &str) -> Result<u64, String> {
    let bytes = size(text).filter(|bytes| *bytes >= COMMIT_BYTES_MIN);
    bytes.ok_or_else(|| "expected a size of at least 1M".to_owned())
}

/// The smallest value of `--commit-every`, in bytes.
const COMMIT_BYTES_MIN: u64 = 1 << 20;

/// Copies the snapshots, and prints each of them.
///
/// # Errors
/// The [`Failure`] of either repository, or of the first volume that cannot be copied. Exit code 11
/// if the target's volume is held, or has changes that the copy did not make; 2 if both
/// repositories are the same. Copied snapshots stay.
pub fn run(command: Copy, global: &Global, output: &Output) -> Result<(), Failure> {
    block_on(async {
        let started = Instant::now();
        // Two repositories are open, and each takes half of the memory.
        let settings = Settings {
            memory_bytes: Settings::default().memory_bytes / 2,
            ..Settings::default()
        };
        let from = open_with(&command.source.access(&command.from, global, &settings)?).await?;
        let (to, of_target) = target(&command.to, global)?;
        let to = Access::of_mount(&to, &of_target, &settings)?;
        let to = Arc::new(open_with(&to).await?);
        let (_, of_source) = target(&command.from, global)?;
        let volumes = volumes(&command, &of_source, &from).await?;
        let progress = Arc::new(CopyProgress::default());
        let bar = follow(output, progress.clone());
        let mut outcomes = Vec::new();
        let mut failed: Option<Failure> = None;
        for (number, volume) in volumes.iter().enumerate() {
            let replication = Replication {
                from: &from,
                to: &to,
                volume,
                names: &command.snapshots,
                steal: command.steal,
                accept_loss: command.accept_loss,
                anew: command.anew,
                replaces: command.replace,
                pace: Pace::every(command.commit_every),
                progress: &progress,
            };
            let mut done = |outcome: &Outcome| outcomes.push(outcome.clone());
            let Err(error) = replication.run(&mut done).await else {
                continue;
            };
            let may_go_on = error.is_of_volume();
            let failure = failure(error, command.replace);
            if command.all {
                let hint = failure.hint.iter().map(|hint| format!(" {hint}"));
                let (message, hint) = (&failure.message, hint.collect::<String>());
                output.warning(format_args!(
                    "volume {volume:?} is not copied: {message}{hint}"
                ));
            }
            if !may_go_on {
                let others = volumes.len() - number - 1;
                if others > 0 {
                    output.warning(format_args!("{others} other volumes were not tried"));
                }
                failed = Some(failure);
                break;
            }
            failed.get_or_insert(failure);
        }
        bar.finish().await;
        show(&outcomes, output)?;
        if let Some(failed) = failed {
            return Err(failed);
        }
        let uploaded = to.content_store.metrics().bytes_uploaded;
        summary(&outcomes, uploaded, started.elapsed().as_secs_f64(), output);
        Ok(())
    })
}

fn follow(output: &Output, progress: Arc<CopyProgress>) -> Progress {
    Progress::follow(output, move || Position {
        bytes: progress.bytes.load(Ordering::Relaxed),
        total_bytes: None,
        message: format!("{} items", progress.items.load(Ordering::Relaxed)),
    })
}

async fn volumes(
    command: &Copy,
    global: &Global,
    from: &Repository,
) -> Result<Vec<String>, Failure> {
    if !command.all {
        return Ok(vec![global.volume.clone()]);
    }
    let list = from.snapshots().await?;
    let mut names: Vec<String> = list.iter().map(|entry| entry.volume.clone()).collect();
    names.sort();
    names.dedup();
    Ok(names)
}

fn show(outcomes: &[Outcome], output: &Output) -> Result<(), Failure> {
    for outcome in outcomes
        .iter()
        .filter(|outcome| outcome.is_new || outcome.is_left_out || output.is_json())
    {
        let entry = &outcome.snapshot;
        let row = json!({
            "name": entry.name,
            "volume": entry.volume,
            "time": entry.time.to_string(),
            "bytes": entry.bytes,
            "files": entry.files,
            "copied": outcome.is_new,
            "left_out": outcome.is_left_out,
            "generation": outcome.generation,
        });
        output.result(&row, || {
            let name = name_text(format!("{}:{}", entry.volume, entry.name).as_bytes());
            match outcome.is_left_out {
                true => format!("left out {name}: older than the newest snapshot of the target"),
                false => format!("copied {name} ({})", bytes(entry.bytes)),
            }
        })?;
    }
    Ok(())
}

fn summary(outcomes: &[Outcome], uploaded: u64, seconds: f64, output: &Output) {
    let copied = outcomes.iter().filter(|outcome| outcome.is_new).count();
    let left_out = (outcomes.iter())
        .filter(|outcome| outcome.is_left_out)
        .count();
    output.remark(format_args!(
        "copied {copied} snapshots, {} were already there, {left_out} were left out, {} sent in \
         {seconds:.1} s",
        outcomes.len() - copied - left_out,
        bytes(uploaded),
    ));
}

fn failure(error: ReplicateError, replaces: bool) -> Failure {
    let text = error.to_string();
    match error {
        ReplicateError::Root(error @ RootError::Rebuild { .. }) => {
            Failure::from(error).hint("A collection deleted packs meanwhile. Run this again.")
        }
        ReplicateError::Root(error) => {
            let mut failure = Failure::from(error);
            if failure.code == Code::Held {
                failure.hint = Some(
                    "Unmount it, or give --steal to take the target's volume over (unsent writes \
                     of its holder then fail)."
                        .into(),
                );
            }
            failure
        }
        ReplicateError::Volume(error) => error.into(),
        ReplicateError::Same => Failure::usage(text),
        ReplicateError::Diverged { .. } => Failure::new(text).code(Code::Held).hint(
            "A copy needs a volume of its own. To drop the changes, give --anew: the volume \
                 then starts again from the last snapshot that was copied, and its snapshots \
                 stay. To keep them, make a snapshot of them first (bkfs snapshot, in a mount of \
                 the target): then only later snapshots of the source are copied. Or copy to \
                 another repository.",
        ),
        ReplicateError::Unreplayed { .. } => Failure::new(text).code(Code::Held).hint(
            "Mount the target's volume once and unmount it, so that they are committed; then \
                 check them.",
        ),
        ReplicateError::Older { .. } => Failure::new(text).hint(
            "Make a new snapshot of the source, or forget the newer one in the target, if \
                 that is not needed.",
        ),
        ReplicateError::Taken { .. } if replaces => Failure::new(text).hint(
            "It is no copy of an older snapshot of the source. If it is not needed, forget it in \
             the target.",
        ),
        ReplicateError::Taken { .. } => Failure::new(text).hint(
            "If the source has made it anew (run --replace), give --replace: the older one then \
             goes to the target's trash. Otherwise forget it in the target.",
        ),
    }
}
