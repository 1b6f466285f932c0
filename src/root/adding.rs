//! Adding a snapshot to the lists of a root (docs/PROTOCOL.md, rule 9).
//!
//! Owns: which lists are written for a new snapshot, and that an older one whose name it takes goes
//! to the trash in the same replacement of the root. So there is no root in which neither is kept.
//! Does not own: the entry (`snapshots`), nor the commit that it belongs to (`commit`).

use super::error::RootError;
use super::forget::{rewrite, rewritten};
use super::lists::{ListWriter, Lists, put_shard};
use super::shard::ListRef;
use super::snapshots::{NewSnapshot, SnapshotEntry, SnapshotList, TrashEntry, new_entry};
use super::state::{Root, Volume};
use super::transition::ListChange;

/// A snapshot in the lists of a root.
pub(super) struct Added {
    /// Its entry.
    pub(super) entry: SnapshotEntry,
    /// Whether an older one of its name went to the trash.
    pub(super) has_replaced: bool,
    /// The list that holds it, with all entries of that.
    pub(super) list: (ListRef, Vec<SnapshotEntry>),
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
/// - Those of [`put_shard`] and [`rewrite`]; a refusal if a list is full.
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
    // After a repair, several can have one name.
    let leaves = |other: &SnapshotEntry| other.volume == volume && other.name == entry.name;
    let older: Vec<SnapshotEntry> = kept.iter().filter(|kept| leaves(kept)).cloned().collect();
    let joining = vec![entry.clone()];
    let (removed, entries) = rewritten(&next.snapshots, &shards, leaves, joining);
    let added = put_shard(writer, entries.clone()).await?;
    let change = ListChange {
        removed,
        added: vec![added],
    };
    let has_replaced = !older.is_empty();
    if has_replaced {
        let forgotten = older.into_iter().map(|snapshot| TrashEntry {
            snapshot,
            forgotten: request.replaced_at.unwrap_or(request.clock),
        });
        let change = discard(next, lists, writer, forgotten.collect()).await?;
        next.change_trash(&change)?;
    }
    next.change_snapshots(&change)?;
    next.next_snapshot = entry.number.wrapping_add(1);
    Ok(Added {
        entry,
        has_replaced,
        list: (added, entries),
    })
}

/// Returns the change that adds entries to the trash. A part of the trash that cannot be read
/// stays as it is.
///
/// Cancel safety: dropped, it leaves a list in the bucket that no root names.
///
/// # Errors
/// Those of [`rewrite`].
pub(super) async fn discard(
    next: &Root,
    lists: &Lists,
    writer: &dyn ListWriter,
    entries: Vec<TrashEntry>,
) -> Result<ListChange, RootError> {
    let (mut refs, mut shards) = (Vec::new(), Vec::new());
    for list in &next.trash {
        match lists.trash_shards(&[*list]).await {
            Ok(shard) => {
                refs.push(*list);
                shards.extend(shard);
            }
            Err(error) => tracing::warn!("a part of the trash is not merged: {error}"),
        }
    }
    rewrite(writer, &refs, &shards, |_| false, entries).await
}
