//! Forgetting snapshots, and taking that back (protocol.md, rule 9).
//!
//! Owns the two changes that move entries between the list of snapshots and the trash. What is forgotten stays restorable until collection empties the
//! trash; which snapshots are forgotten is for retention to plan.

use super::error::RootError;
use super::handle::{Applied, RootHandle, Transition};
use super::lists::{ListWriter, Lists, put_shard};
use super::snapshots::{
    ListEntry, SnapshotEntry, SnapshotList, TrashEntry, free_number, shards_to_merge,
};
use super::state::{ListRef, Root, SessionId};
use super::transition::{ListChange, Refusal};
use async_trait::async_trait;
use bkfs_chunker::id::Id;
use jiff::Timestamp;
use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

/// What it takes to change the lists of snapshots.
#[derive(Clone, Copy)]
pub struct ListChanger<'a> {
    /// The root.
    pub handle: &'a RootHandle,
    /// Loads its lists.
    pub lists: &'a Lists,
    /// Writes lists in the name of `session`.
    pub writer: &'a dyn ListWriter,
    /// A session that is live in the root.
    pub session: SessionId,
}

impl ListChanger<'_> {
    /// Moves snapshots to the trash. Names that are in the trash already, by an attempt of this call whose answer was lost, count as moved.
    ///
    /// # Errors
    /// [`RootError::NoSnapshot`] if one of `names` is not a snapshot of `volume`: then none is moved.
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
                clock,
                attempted: Vec::new(),
            })
            .await
    }

    /// Takes the newest forgotten snapshot of `volume` named `name` out of the trash.
    ///
    /// # Errors
    /// [`RootError::NoSnapshot`] if there is none, [`RootError::NameTaken`] if there is a kept one of that name by now.
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

/// What tells a snapshot from every other that was ever made: its number may come back, and so may its name.
fn identity(entry: &SnapshotEntry) -> (u16, Id) {
    (entry.number, entry.commit)
}

/// The entry that comes out of the trash, under a number of its own: a snapshot that was made while
/// the trash could not be read may have taken its number.
fn numbered_anew(
    next: &Root,
    entry: SnapshotEntry,
    kept: &[Arc<Vec<SnapshotEntry>>],
    trash: &[Arc<Vec<TrashEntry>>],
) -> Result<SnapshotEntry, RootError> {
    let kept = kept.iter().flat_map(|shard| shard.iter());
    let mut taken: HashSet<u16> = kept.map(|kept| kept.number).collect();
    if !taken.contains(&entry.number) {
        return Ok(entry);
    }
    let trash = trash.iter().flat_map(|shard| shard.iter());
    taken.extend(trash.map(|trashed| trashed.snapshot.number));
    let number = free_number(next.next_snapshot, &taken);
    let number = number.ok_or(Refusal::Full { what: "snapshots" })?;
    Ok(SnapshotEntry { number, ..entry })
}

/// Takes the entries for which `leaves` says so out of the shards of a list, and adds `joining`. Only shards that change are written, all as one.
pub(crate) async fn rewrite<T: ListEntry>(
    writer: &dyn ListWriter,
    refs: &[ListRef],
    shards: &[Arc<Vec<T>>],
    leaves: impl Fn(&T) -> bool,
    joining: Vec<T>,
) -> Result<ListChange, RootError> {
    let merged = if joining.is_empty() {
        Vec::new()
    } else {
        shards_to_merge(refs)
    };
    let mut change = ListChange::default();
    let mut entries = joining;
    for (list, shard) in refs.iter().zip(shards) {
        if merged.contains(list) || shard.iter().any(&leaves) {
            change.removed.push(*list);
            entries.extend(shard.iter().filter(|entry| !leaves(entry)).cloned());
        }
    }
    if !entries.is_empty() {
        change.added.push(put_shard(writer, entries).await?);
    }
    Ok(change)
}

struct Forget<'a> {
    changer: &'a ListChanger<'a>,
    volume: &'a str,
    names: &'a [String],
    clock: Timestamp,
    /// What earlier attempts would have moved.
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
        let mut found = Vec::new();
        let mut moving = Vec::new();
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
        // Made again, it sees what is in the trash already, and changes nothing.
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
