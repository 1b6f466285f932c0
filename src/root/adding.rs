//! Adding a snapshot to the lists of a root (docs/PROTOCOL.md, rule 9).
//!
//! Owns: which lists are written for a new snapshot, and that an older one whose name it takes goes
//! to the trash in the same replacement of the root. So there is no root in which neither is kept.
//! Does not own: the entry (`snapshots`), nor the commit that it belongs to (`commit`).

use super::error::RootError;
use super::forget::rewrite;
use super::lists::{ListWriter, Lists, put_shard};
use super::snapshots::{NewSnapshot, SnapshotEntry, SnapshotList, TrashEntry, new_entry};
use super::state::{Root, Volume};
use super::transition::ListChange;

/// A snapshot in the lists of a root.
pub(super) struct Added {
    /// Its entry.
    pub(super) entry: SnapshotEntry,
    /// Whether an older one of its name went to the trash.
    pub(super) has_replaced: bool,
}

/// Writes the lists with a new snapshot of `state`, the state of `volume`, and names them in
/// `next`.
///
/// Cancel safety: dropped, it leaves lists in the bucket that no root names.
///
/// # Errors
/// - Those of [`new_entry`].
/// - [`RootError::Store`], [`RootError::Unopenable`] or [`RootError::Damaged`] if a list of
///   snapshots cannot be read.
/// - Those of [`put_shard`]; a refusal if a list is full.
pub(super) async fn add_snapshot(
    next: &mut Root,
    lists: &Lists,
    writer: &dyn ListWriter,
    (volume, state): (&str, &Volume),
    request: &NewSnapshot,
) -> Result<Added, RootError> {
    let shards = lists.snapshot_shards(&next.snapshots).await?;
    let kept = SnapshotList::new(shards.clone());
    // Numbers are reused late. So a part of the trash that cannot be read does not prevent a
    // snapshot; if an entry of it is restored later, it gets a new number where needed.
    let trash = lists.known_trash(&next.trash).await?;
    let entry = new_entry(next, &kept, &trash, (volume, state), request)?;
    let older = kept.named(volume, &entry.name).cloned();
    let leaves = |other: &SnapshotEntry| {
        let is_older =
            |older: &SnapshotEntry| other.volume == older.volume && other.name == older.name;
        older.as_ref().is_some_and(is_older)
    };
    let joining = vec![entry.clone()];
    let change = rewrite(writer, &next.snapshots, &shards, leaves, joining).await?;
    let has_replaced = older.is_some();
    if let Some(snapshot) = older {
        let forgotten = TrashEntry {
            snapshot,
            forgotten: request.clock,
        };
        let change = discard(next, lists, writer, forgotten).await?;
        next.change_trash(&change)?;
    }
    next.change_snapshots(&change)?;
    next.next_snapshot = entry.number.wrapping_add(1);
    Ok(Added {
        entry,
        has_replaced,
    })
}

/// Returns the change that adds an entry to the trash. A part of the trash that cannot be read
/// stays as it is.
async fn discard(
    next: &Root,
    lists: &Lists,
    writer: &dyn ListWriter,
    entry: TrashEntry,
) -> Result<ListChange, RootError> {
    match lists.trash_shards(&next.trash).await {
        Ok(shards) => rewrite(writer, &next.trash, &shards, |_| false, vec![entry]).await,
        Err(error) => {
            tracing::warn!("the trash is not merged: {error}");
            Ok(ListChange {
                removed: Vec::new(),
                added: vec![put_shard(writer, vec![entry]).await?],
            })
        }
    }
}
