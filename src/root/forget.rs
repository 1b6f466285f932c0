//! Forgetting snapshots, and restoring forgotten ones (docs/PROTOCOL.md, rule 9).
//!
//! Owns the two changes that move entries between the list of snapshots and the trash. A forgotten
//! snapshot can be restored until collection removes it from the trash. Retention decides which
//! snapshots are forgotten.

use super::error::RootError;
use super::handle::{Applied, RootHandle, Transition};
use super::lists::{ListWriter, Lists, put_entries};
use super::shard::{ListEntry, ListRef};
use super::snapshots::{
    SnapshotEntry, SnapshotList, TrashEntry, free_number, no_number, shards_to_merge, taken_numbers,
};
use super::state::{Root, SessionId};
use super::transition::ListChange;
use async_trait::async_trait;
use bkfs_chunker::id::Id;
use jiff::Timestamp;
use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

/// The parts that are needed to change the lists of snapshots.
#[derive(Clone, Copy)]
pub struct ListChanger<'a> {
    /// The handle of the root to change.
    pub handle: &'a RootHandle,
    /// Loads the lists of the root.
    pub lists: &'a Lists,
    /// Writes lists for `session`.
    pub writer: &'a dyn ListWriter,
    /// A session that is live in the root.
    pub session: SessionId,
}

impl ListChanger<'_> {
    /// Moves snapshots to the trash, and returns them. A name that is in the trash already, because
    /// an earlier attempt of this call was made and its answer was lost, counts as moved.
    ///
    /// Cancel safety: dropped, it leaves the root unchanged, or the change sent with an unknown
    /// outcome, and maybe lists that no root names.
    ///
    /// # Errors
    /// - [`RootError::NoSnapshot`] if one of `names` is not a snapshot of `volume`: then none is
    ///   moved.
    /// - [`RootError::Store`], [`RootError::Unopenable`] or [`RootError::Damaged`] if a list cannot
    ///   be read, and no newer root replaces it.
    /// - [`RootError::Refused`] if the session is not live in the root, or a list is full.
    /// - The other errors of [`RootHandle::update`].
    pub async fn forget(
        &self,
        volume: &str,
        names: &[String],
        clock: Timestamp,
    ) -> Result<Applied<Vec<SnapshotEntry>>, RootError> {
        self.handle
            .update(&mut Forget {
                changer: self,
                volume,
                names,
                planned: HashSet::new(),
                clock,
                attempted: Vec::new(),
            })
            .await
    }

    /// Moves these snapshots to the trash, and none that was made since under the name of one of
    /// them. One that is kept no more counts as moved. Returns those that were moved.
    ///
    /// Cancel safety: that of [`ListChanger::forget`].
    ///
    /// # Errors
    /// Those of [`ListChanger::forget`] but [`RootError::NoSnapshot`].
    pub async fn forget_planned(
        &self,
        volume: &str,
        snapshots: &[SnapshotEntry],
        clock: Timestamp,
    ) -> Result<Applied<Vec<SnapshotEntry>>, RootError> {
        self.handle
            .update(&mut Forget {
                changer: self,
                volume,
                names: &[],
                planned: snapshots.iter().map(|entry| entry.commit).collect(),
                clock,
                attempted: Vec::new(),
            })
            .await
    }

    /// Moves the newest forgotten snapshot of `volume` named `name` from the trash back to the list
    /// of snapshots. Returns its entry, whose number may be new.
    ///
    /// Cancel safety: dropped, it leaves the root unchanged, or the change sent with an unknown
    /// outcome, and maybe lists that no root names.
    ///
    /// # Errors
    /// - [`RootError::NoSnapshot`] if the trash has no such snapshot.
    /// - [`RootError::NameTaken`] if a kept snapshot has that name now.
    /// - The other errors of [`ListChanger::forget`].
    pub async fn restore_forgotten(
        &self,
        volume: &str,
        name: &str,
    ) -> Result<Applied<SnapshotEntry>, RootError> {
        self.handle
            .update(&mut Restore {
                changer: self,
                volume,
                name,
                attempted: None,
            })
            .await
    }
}

/// Returns the pair that identifies a snapshot among all that were ever made. A number alone may be
/// reused, and so may a name.
fn identity(entry: &SnapshotEntry) -> (u16, Id) {
    (entry.number, entry.commit)
}

/// Returns the entry that leaves the trash, with a new number if a kept snapshot has taken its old
/// one (in a large root, one of its volume). That can happen when a snapshot was made while the
/// trash could not be read.
pub(super) fn numbered_anew(
    next: &Root,
    entry: SnapshotEntry,
    kept: &[Arc<Vec<SnapshotEntry>>],
    trash: &[Arc<Vec<TrashEntry>>],
) -> Result<SnapshotEntry, RootError> {
    let kept = kept.iter().flat_map(|shard| shard.iter());
    let mut taken = taken_numbers(next.form, &entry.volume, kept);
    if !taken.contains(&entry.number) {
        return Ok(entry);
    }
    let trash = trash.iter().flat_map(|shard| shard.iter());
    let trash = trash.map(|trashed| &trashed.snapshot);
    taken.extend(taken_numbers(next.form, &entry.volume, trash));
    let number = free_number(next.next_snapshot, |number| taken.contains(number));
    let number = number.ok_or_else(|| no_number(next.form))?;
    Ok(SnapshotEntry { number, ..entry })
}

/// Removes the entries for which `leaves` returns true from the shards of a list, and adds
/// `joining`. Writes only entries of changed shards, all into one new shard.
///
/// Cancel safety: dropped, it leaves nothing, or a list in the bucket that no root names.
///
/// # Errors
/// Those of [`put_shard`].
pub(crate) async fn rewrite<T: ListEntry>(
    writer: &dyn ListWriter,
    refs: &[ListRef],
    shards: &[Arc<Vec<T>>],
    leaves: impl Fn(&T) -> bool,
    joining: Vec<T>,
) -> Result<ListChange, RootError> {
    let (removed, entries) = rewritten(refs, shards, leaves, joining);
    let added = put_entries(writer, entries).await?;
    Ok(ListChange {
        removed,
        added: added.into_iter().collect(),
    })
}

/// Returns the shards that [`rewrite`] removes, and the entries of the one that it writes.
pub(super) fn rewritten<T: ListEntry>(
    refs: &[ListRef],
    shards: &[Arc<Vec<T>>],
    leaves: impl Fn(&T) -> bool,
    joining: Vec<T>,
) -> (Vec<ListRef>, Vec<T>) {
    let merged = if joining.is_empty() {
        Vec::new()
    } else {
        shards_to_merge(refs)
    };
    let (mut removed, mut entries) = (Vec::new(), joining);
    for (list, shard) in refs.iter().zip(shards) {
        if merged.contains(list) || shard.iter().any(&leaves) {
            removed.push(*list);
            entries.extend(shard.iter().filter(|entry| !leaves(entry)).cloned());
        }
    }
    (removed, entries)
}

struct Forget<'a> {
    changer: &'a ListChanger<'a>,
    volume: &'a str,
    names: &'a [String],
    /// The commits of snapshots that are moved, whatever their names.
    planned: HashSet<Id>,
    clock: Timestamp,
    /// The entries that earlier attempts would have moved.
    attempted: Vec<SnapshotEntry>,
}

#[async_trait]
impl Transition for Forget<'_> {
    type Output = Vec<SnapshotEntry>;

    fn session(&self) -> Option<SessionId> {
        Some(self.changer.session)
    }

    async fn apply(&mut self, next: &mut Root) -> Result<Self::Output, RootError> {
        let shards = self.changer.lists.snapshot_shards(&next.snapshots).await?;
        let trash = self.changer.lists.trash_shards(&next.trash).await?;
        let kept = SnapshotList::new(shards.clone());
        let (mut found, mut moving) = (Vec::new(), Vec::new());
        for name in self.names.iter().collect::<BTreeSet<_>>() {
            let trashed = |known: &&SnapshotEntry| {
                known.name == *name
                    && trash
                        .iter()
                        .flat_map(|shard| shard.iter())
                        .any(|entry| identity(&entry.snapshot) == identity(known))
            };
            match (
                self.attempted.iter().find(trashed),
                kept.named(self.volume, name),
            ) {
                (Some(moved), _) => found.push(moved.clone()),
                (None, Some(entry)) => {
                    found.push(entry.clone());
                    moving.push(entry.clone());
                }
                (None, None) => {
                    return Err(RootError::NoSnapshot {
                        name: name.clone(),
                        volume: self.volume.to_owned(),
                    });
                }
            }
        }
        // What is kept no more is in the trash already.
        let planned = kept.of_volume(self.volume).into_iter();
        let planned = planned.filter(|entry| self.planned.contains(&entry.commit));
        for entry in planned.cloned() {
            found.push(entry.clone());
            moving.push(entry);
        }
        let leaves = |entry: &SnapshotEntry| {
            moving
                .iter()
                .any(|moving| identity(moving) == identity(entry))
        };
        let change = rewrite(
            self.changer.writer,
            &next.snapshots,
            &shards,
            leaves,
            Vec::new(),
        )
        .await?;
        let joining = moving
            .iter()
            .map(|snapshot| TrashEntry {
                snapshot: snapshot.clone(),
                forgotten: self.clock,
            })
            .collect();
        let trash_change =
            rewrite(self.changer.writer, &next.trash, &trash, |_| false, joining).await?;
        next.change_snapshots(&change)?;
        next.change_trash(&trash_change)?;
        self.attempted.clone_from(&found);
        Ok(found)
    }

    async fn seen(&mut self, _: &Root) -> Result<bool, RootError> {
        // A repeated `apply` finds the entries in the trash already, and changes nothing.
        Ok(false)
    }
}

struct Restore<'a> {
    changer: &'a ListChanger<'a>,
    volume: &'a str,
    name: &'a str,
    attempted: Option<SnapshotEntry>,
}

#[async_trait]
impl Transition for Restore<'_> {
    type Output = SnapshotEntry;

    fn session(&self) -> Option<SessionId> {
        Some(self.changer.session)
    }

    async fn apply(&mut self, next: &mut Root) -> Result<SnapshotEntry, RootError> {
        let shards = self.changer.lists.snapshot_shards(&next.snapshots).await?;
        let trash = self.changer.lists.trash_shards(&next.trash).await?;
        if let Some(kept) = SnapshotList::new(shards.clone()).named(self.volume, self.name) {
            return match &self.attempted {
                Some(attempted) if identity(attempted) == identity(kept) => Ok(kept.clone()),
                _ => Err(RootError::NameTaken {
                    name: self.name.to_owned(),
                }),
            };
        }
        let named = trash.iter().flat_map(|shard| shard.iter()).filter(|entry| {
            entry.snapshot.volume == self.volume && entry.snapshot.name == self.name
        });
        let Some(entry) = named
            .max_by_key(|entry| entry.snapshot.generation)
            .map(|entry| entry.snapshot.clone())
        else {
            return Err(RootError::NoSnapshot {
                name: self.name.to_owned(),
                volume: self.volume.to_owned(),
            });
        };
        let leaves = |trashed: &TrashEntry| identity(&trashed.snapshot) == identity(&entry);
        let entry = numbered_anew(next, entry.clone(), &shards, &trash)?;
        let trash_change =
            rewrite(self.changer.writer, &next.trash, &trash, leaves, Vec::new()).await?;
        let change = rewrite(
            self.changer.writer,
            &next.snapshots,
            &shards,
            |_| false,
            vec![entry.clone()],
        )
        .await?;
        next.change_trash(&trash_change)?;
        next.change_snapshots(&change)?;
        self.attempted = Some(entry.clone());
        Ok(entry)
    }

    async fn seen(&mut self, _: &Root) -> Result<bool, RootError> {
        Ok(false)
    }
}
