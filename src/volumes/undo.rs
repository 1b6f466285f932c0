//! The way back after the removal of a volume.
//!
//! Owns which snapshots the last removal has forgotten, and the order in which they come back. Does
//! not own how one comes back (`maintain::forgetting`), nor the clone that becomes the volume.

use super::{Cloning, clone_snapshot, record_of};
use crate::maintain::forgetting::Changer;
use crate::repository::Repository;
use crate::root::error::RootError;
use crate::root::snapshots::{SnapshotEntry, SnapshotReference, TrashEntry};

/// A removal that was undone.
#[derive(Debug)]
pub struct Undone {
    /// How many snapshots came back in this call.
    pub restored: usize,
    /// The state of the volume when it was removed.
    pub last: SnapshotEntry,
}

/// Brings back the snapshots that the last removal of `volume` has forgotten, and clones the last
/// one, which has its last state. Returns `None` if neither the trash nor the list has such a state:
/// then nothing is changed.
///
/// The clocks of several hosts differ. So the last state is the snapshot of the newest root, not
/// the one that was forgotten last.
///
/// Cancel safety: dropped or interrupted, it has brought back some of the snapshots. The last state
/// comes back after all others. So the next call goes on.
///
/// # Errors
/// Those of [`Changer::bring_back`] and [`clone_snapshot`]; of a list or a commit record that
/// cannot be read.
pub async fn undo_removal(
    repository: &Repository,
    volume: &str,
    command: &str,
) -> Result<Option<Undone>, RootError> {
    repository.load_index_to_write().await?;
    let (view, kept) = (repository.lists.current_snapshots(&repository.handle)).await?;
    (view.root).require_free(volume, Some(volume), &kept)?;
    let shards = repository.lists.trash_shards(&view.root.trash).await?;
    let entries = shards.iter().flat_map(|shard| shard.iter());
    let trash: Vec<&TrashEntry> = entries
        .filter(|entry| entry.snapshot.volume == volume)
        .collect();
    let generation = |entry: &&SnapshotEntry| entry.generation;
    let of_trash = trash.iter().map(|entry| &entry.snapshot);
    let of_list = kept.iter().filter(|entry| entry.volume == volume);
    // One that was made of a spool never was the state of the volume.
    let states = of_trash.chain(of_list).filter(|entry| !entry.recovered);
    let Some(last) = states.max_by_key(generation) else {
        return Ok(None);
    };
    if !record_of(repository, last).await?.removes {
        return Ok(None);
    }
    let changer = Changer {
        repository,
        command,
    };
    let mut restored = 0;
    if let Some(removal) = trash.iter().find(|entry| entry.snapshot == *last) {
        let with_it = |entry: &&&TrashEntry| {
            entry.forgotten == removal.forgotten && entry.snapshot.commit != last.commit
        };
        for entry in trash.iter().filter(with_it) {
            changer.bring_back(volume, &entry.snapshot.name).await?;
            restored += 1;
        }
        changer.bring_back(volume, &last.name).await?;
        restored += 1;
    }
    let cloning = Cloning {
        source: volume,
        snapshot: &SnapshotReference::Name(last.name.clone()),
        name: volume,
        command,
        held_with: None,
    };
    let last = clone_snapshot(repository, &cloning).await?.source;
    Ok(Some(Undone { restored, last }))
}
