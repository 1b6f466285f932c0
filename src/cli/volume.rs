//! `bkfs volume list URL`, `bkfs volume create|clone|remove URL …`

use std::sync::Arc;

use serde_json::json;

use crate::cli::access::open;
use crate::cli::named::not_found;
use crate::cli::options::Global;
use crate::cli::output::{Failure, Output, bytes, name_text};
use crate::cli::runtime::block_on;
use crate::cli::snapshots::columns;
use crate::cli::target::target;
use crate::cli::volumes::refuse_scratch;
use crate::mounting::alone::{Alone, AloneParts};
use crate::mounting::settings::Settings;
use crate::repository::Repository;
use crate::root::error::RootError;
use crate::root::snapshots::SnapshotReference;
use crate::root::volumes::is_scratch;
use crate::volumes::undo::undo_removal;
use crate::volumes::{Cloned, Cloning, clone_snapshot, remove};

/// List, create, clone and remove volumes
#[derive(Debug, clap::Subcommand)]
pub enum VolumeCommand {
    /// List the volumes of a repository, with their holders and sizes
    List(List),
    /// Create an empty volume
    Create(Create),
    /// Make a volume whose tree is that of a snapshot; no file is read or copied for it
    Clone(Clone),
    /// Remove a volume; its snapshots and its last state go to the trash
    Remove(Remove),
    #[command(hide = true)]
    Rename(Rename),
}

/// `bkfs volume list URL`
#[derive(Debug, clap::Args)]
pub struct List {
    /// The repository, or a mount of one
    url: String,
}

/// `bkfs volume create URL NAME`
#[derive(Debug, clap::Args)]
pub struct Create {
    /// The repository, or a mount of one
    url: String,
    /// The name of the new volume
    name: String,
}

/// `bkfs volume clone URL SNAPSHOT NEW`
///
/// The clone is a volume like any other: mount it with -o volume=NEW. The snapshot that it was made
/// of may be forgotten. --volume names the volume of the snapshot.
#[derive(Debug, clap::Args)]
pub struct Clone {
    /// The repository, or a mount of one
    url: String,
    /// The snapshot: NAME, latest or @TIME
    snapshot: String,
    /// The name of the new volume
    #[arg(value_name = "NEW")]
    name: String,
}

/// `bkfs volume remove URL NAME`
///
/// It is refused while a session writes the volume, and while an ended one has acknowledged changes
/// that are not in the volume yet. bkfs gc frees what only the volume needed, once the undelete
/// window has passed.
#[derive(Debug, clap::Args)]
pub struct Remove {
    /// The repository, or a mount of one
    url: String,
    /// The volume
    name: String,
    /// Remove the volume even if it has snapshots
    #[arg(long)]
    yes_delete: bool,
    /// Bring the volume that was removed last under this name back, with its snapshots
    #[arg(long, conflicts_with = "yes_delete")]
    undo: bool,
}

/// `bkfs volume rename …`
#[derive(Debug, clap::Args)]
pub struct Rename {
    #[arg(hide = true, num_args = 0.., trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

/// Lists or changes volumes, and prints the result.
///
/// # Errors
/// The [`Failure`] of the repository. Exit code 1 if a volume or snapshot does not exist, a name is
/// taken, or a volume has snapshots and --yes-delete is not given; 11 if a session stands for the
/// volume.
pub fn run(command: VolumeCommand, global: &Global, output: &Output) -> Result<(), Failure> {
    block_on(async {
        match command {
            VolumeCommand::List(command) => list(&command, global, output).await,
            VolumeCommand::Create(command) => create(&command, global, output).await,
            VolumeCommand::Clone(command) => clone(&command, global, output).await,
            VolumeCommand::Remove(command) if command.undo => undo(&command, global, output).await,
            VolumeCommand::Remove(command) => leave(&command, global, output).await,
            VolumeCommand::Rename(_) => Err(Failure::new(
                "a volume cannot be renamed in this repository format: journals and commit \
                 records name their volume",
            )
            .hint(
                "Make a snapshot, clone it under the new name with bkfs volume clone, and remove \
                 the old volume.",
            )),
        }
    })
}

/// A volume in the list.
struct Row {
    name: String,
    is_live: bool,
    holder: Option<String>,
    snapshots: usize,
    inodes: u64,
    bytes: u64,
    unsnapshotted_bytes: u64,
}

async fn list(command: &List, global: &Global, output: &Output) -> Result<(), Failure> {
    let (url, global) = target(&command.url, global)?;
    let repository = open(&url, &global).await?;
    let rows = rows(&repository).await?;
    if output.is_json() {
        for row in &rows {
            let row = json!({
                "name": row.name,
                "live": row.is_live,
                "scratch": is_scratch(&row.name),
                "holder": row.holder,
                "snapshots": row.snapshots,
                "inodes": row.inodes,
                "bytes": row.bytes,
                "unsnapshotted_bytes": row.unsnapshotted_bytes,
            });
            output.result(&row, String::new)?;
        }
        return Ok(());
    }
    if rows.is_empty() {
        output.remark("no volumes");
        return Ok(());
    }
    let head = ["NAME", "SNAPSHOTS", "FILES", "SIZE", "NEW", "HOLDER"];
    let mut table = vec![head.map(str::to_owned)];
    table.extend(rows.iter().map(|row| {
        [
            name_text(row.name.as_bytes()),
            row.snapshots.to_string(),
            row.inodes.to_string(),
            bytes(row.bytes),
            bytes(row.unsnapshotted_bytes),
            match (&row.holder, row.is_live) {
                (Some(holder), _) => holder.clone(),
                (None, true) => "-".to_owned(),
                (None, false) => "(only its snapshots are left)".to_owned(),
            },
        ]
    }));
    output.result(&(), || columns(&table, &[1, 2, 3, 4]))
}

/// Returns the volumes with an entry in the root, and those of which only snapshots are left.
async fn rows(repository: &Repository) -> Result<Vec<Row>, RootError> {
    let (view, list) = (repository.lists.current_snapshots(&repository.handle)).await?;
    let root = &view.root;
    let count = |name: &str| list.iter().filter(|entry| entry.volume == name).count();
    let mut rows: Vec<Row> = root
        .volumes
        .iter()
        .map(|(name, entry)| {
            let session = entry.holder.and_then(|id| root.sessions.get(&id));
            Row {
                name: name.clone(),
                is_live: true,
                holder: session.map(|session| session.holder.to_string()),
                snapshots: count(name),
                inodes: entry.inodes,
                bytes: entry.bytes,
                unsnapshotted_bytes: entry.unsnapshotted_bytes,
            }
        })
        .collect();
    for entry in list.iter() {
        if !rows.iter().any(|row| row.name == entry.volume) {
            rows.push(Row {
                name: entry.volume.clone(),
                is_live: false,
                holder: None,
                snapshots: count(&entry.volume),
                inodes: 0,
                bytes: 0,
                unsnapshotted_bytes: 0,
            });
        }
    }
    rows.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(rows)
}

async fn create(command: &Create, global: &Global, output: &Output) -> Result<(), Failure> {
    refuse_scratch(&command.name)?;
    let (url, global) = target(&command.url, global)?;
    let repository = Arc::new(open(&url, &global).await?);
    let (view, list) = (repository.lists.current_snapshots(&repository.handle)).await?;
    let free = view.root.require_free(&command.name, None, &list);
    free.map_err(RootError::from)?;
    // A volume is there once its first commit is in the root.
    let alone = Alone::begin(AloneParts {
        repository,
        volume: command.name.clone(),
        command: "bkfs volume create".to_owned(),
        memory_bytes: Settings::default().memory_bytes,
        steal: false,
        accept_loss: false,
        session: None,
    })
    .await?;
    alone.finish().await?;
    let answer = json!({ "volume": command.name });
    output.result(&answer, || {
        format!("volume {} was created", name_text(command.name.as_bytes()))
    })
}

async fn clone(command: &Clone, global: &Global, output: &Output) -> Result<(), Failure> {
    refuse_scratch(&command.name)?;
    let (url, global) = target(&command.url, global)?;
    let repository = open(&url, &global).await?;
    let snapshot = SnapshotReference::parse(&command.snapshot, repository.now())?;
    let cloned = clone_of(&repository, (&global.volume, &snapshot), &command.name).await?;
    let answer = json!({
        "volume": command.name,
        "source": cloned.source.volume,
        "snapshot": cloned.source.name,
        "generation": cloned.made.generation,
    });
    output.result(&answer, || {
        format!(
            "volume {} is a clone of snapshot {} of volume {}",
            name_text(command.name.as_bytes()),
            cloned.source.name,
            cloned.source.volume
        )
    })
}

async fn clone_of(
    repository: &Repository,
    (source, snapshot): (&str, &SnapshotReference),
    name: &str,
) -> Result<Cloned, Failure> {
    let cloning = Cloning {
        source,
        snapshot,
        name,
        command: "bkfs volume clone",
        held_with: None,
    };
    match clone_snapshot(repository, &cloning).await {
        Ok(cloned) => Ok(cloned),
        Err(error @ RootError::NoSnapshot { .. }) => {
            let list = repository.snapshots().await.unwrap_or_default();
            Err(not_found(error, &list, source))
        }
        Err(error) => Err(error.into()),
    }
}

async fn leave(command: &Remove, global: &Global, output: &Output) -> Result<(), Failure> {
    let (url, global) = target(&command.url, global)?;
    let repository = open(&url, &global).await?;
    let name = &command.name;
    let removed = remove(&repository, name, command.yes_delete, "bkfs volume remove").await?;
    let removed = removed.output;
    let last = removed.last.as_ref().map(|entry| entry.name.as_str());
    let answer = json!({
        "volume": name,
        "snapshots": removed.snapshots.iter().map(|entry| &entry.name).collect::<Vec<_>>(),
        "last": last,
    });
    output.result(&answer, || {
        let count = removed.snapshots.len();
        let shown = name_text(name.as_bytes());
        match last {
            Some(last) => format!(
                "volume {shown} was removed; its {count} snapshots and its last state ({last}) are \
                 in the trash: bkfs volume remove --undo brings them back"
            ),
            None => format!("volume {shown} was removed; nothing was ever committed to it"),
        }
    })
}

/// Brings a removed volume back, with its snapshots.
async fn undo(command: &Remove, global: &Global, output: &Output) -> Result<(), Failure> {
    let name = &command.name;
    refuse_scratch(name)?;
    let (url, global) = target(&command.url, global)?;
    let repository = open(&url, &global).await?;
    let undone = undo_removal(&repository, name, "bkfs volume remove --undo").await?;
    let undone = undone.ok_or_else(|| {
        let shown = name_text(name.as_bytes());
        let why = format!("the trash does not have the last state of a removed volume {shown}");
        Failure::new(why).hint(
            "bkfs forget --undo NAME brings a single snapshot back, and bkfs volume clone makes a \
             volume of it.",
        )
    })?;
    let count = undone.restored;
    let answer = json!({
        "volume": name,
        "restored": count,
        "snapshot": undone.last.name,
    });
    output.result(&answer, || {
        format!(
            "volume {} is back as of {}, with {count} snapshots",
            name_text(name.as_bytes()),
            undone.last.name
        )
    })
}
