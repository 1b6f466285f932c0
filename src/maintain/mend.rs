//! The execution of a repair in a root that is there: one replacement with all that was planned.
//!
//! Owns that it merges with what others did since the check. What is to be done is planned in
//! [`super::repair`].

use std::collections::HashSet;
use std::sync::Arc;

use async_trait::async_trait;
use bkfs_chunker::crypto::Keyring;
use bkfs_chunker::id::Id;
use bkfs_chunker::ingest::Ingest;
use bkfs_store::Store;

use super::anew::Closed;
use super::check::Findings;
use super::rebuild::Taken;
use super::repair_plan::{MOUNT_POINT, RepairPlan};
use crate::root::error::RootError;
use crate::root::forget::rewrite;
use crate::root::handle::Transition;
use crate::root::holder::SystemProcesses;
use crate::root::lists::Lists;
use crate::root::lists::put_entries;
use crate::root::run_group::RunGroup;
use crate::root::session::OpenSession;
use crate::root::shard::ListRef;
use crate::root::snapshots::{QuarantineEntry, SnapshotEntry, TrashEntry};
use crate::root::state::{HolderInfo, Root, SessionId};
use crate::root::transition::{IndexChange, ListChange};

/// Changes a root that is there, as a session of maintenance. Snapshots that are listed from their
/// commit records bear a mark unless they are `closed`.
pub(super) async fn mend(
    store: &Arc<dyn Store>,
    keyring: &Keyring,
    findings: &Findings,
    plan: RepairPlan,
    closed: Closed,
) -> Result<(), RootError> {
    let Some(handle) = &findings.handle else {
        return Ok(());
    };
    let holder = HolderInfo::of_this_process(MOUNT_POINT);
    let session = OpenSession::open(handle, holder, None, &SystemProcesses).await?;
    let made = async {
        let ingest = Ingest::new(findings.content_store.clone(), session.id().0);
        let mut change = Mend {
            session: session.id(),
            index: IndexChange {
                absorbed: findings.indexed.lost.clone(),
                added: plan.put_index(&ingest).await?,
            },
            lost_lists: plan.lost_lists,
            known: (plan.snapshots, plan.trash),
            closed,
            abandoned: plan.abandoned.into_iter().collect(),
            snapshots: ListChange::default(),
            trash: ListChange::default(),
            quarantine: ListChange::default(),
            damaged: plan.writes_quarantine.then_some(plan.quarantine),
            lost_quarantine: &findings.listed.lost_quarantine,
            lists: Lists::new(store.clone(), keyring.clone()),
            ingest: &ingest,
            loses_chain: plan.loses_chain,
            lost_groups: plan.lost_groups,
        };
        handle.update(&mut change).await.map(|_| ())
    };
    let made = made.await;
    match session.end().await {
        Ok(()) => made,
        Err(left) => {
            tracing::warn!(error = %left, "the session of the repair stays in the root");
            made
        }
    }
}

/// One replacement of the root, with all that was mended.
struct Mend<'a> {
    session: SessionId,
    index: IndexChange,
    /// Lists of snapshots that cannot be read.
    lost_lists: Vec<ListRef>,
    /// What is known of the snapshots in them.
    known: (Vec<SnapshotEntry>, Vec<TrashEntry>),
    /// Those of them that need nothing but what is live.
    closed: Closed,
    /// Commits of forgotten snapshots that are given up.
    abandoned: HashSet<Id>,
    /// Of the attempt that was made last.
    snapshots: ListChange,
    trash: ListChange,
    quarantine: ListChange,
    /// What comes into quarantine, with which its lists are merged.
    damaged: Option<Vec<QuarantineEntry>>,
    /// Lists of the quarantine that cannot be read.
    lost_quarantine: &'a [ListRef],
    lists: Lists,
    ingest: &'a Ingest,
    loses_chain: bool,
    lost_groups: Vec<u64>,
}

impl Mend<'_> {
    /// Lists in `next` what is known of lost lists that still stand there, and is not listed:
    /// another repair may have been faster, and snapshots may have been made, forgotten or
    /// collected since.
    async fn merge_snapshots(&mut self, next: &Root) -> Result<(), RootError> {
        if self.lost_lists.is_empty() && self.abandoned.is_empty() {
            return Ok(());
        }
        let parted = |refs: &[ListRef]| -> (Vec<ListRef>, Vec<ListRef>) {
            let is_lost = |list: &ListRef| self.lost_lists.contains(list);
            refs.iter().partition(|list| is_lost(list))
        };
        let ((lost_kept, kept_refs), (lost_trash, trash_refs)) =
            (parted(&next.snapshots), parted(&next.trash));
        let kept = self.lists.snapshot_shards(&kept_refs).await?;
        let trash = self.lists.trash_shards(&trash_refs).await?;
        let mut taken = Taken::new(Some(next));
        taken.spare(&self.known.0);
        taken.spare(self.known.1.iter().map(|entry| &entry.snapshot));
        let listed = kept.iter().flat_map(|shard| shard.iter());
        listed.for_each(|entry| taken.take(entry));
        let forgotten = trash.iter().flat_map(|shard| shard.iter());
        forgotten.for_each(|entry| taken.take(&entry.snapshot));
        let (mut joins_kept, mut joins_trash) = (Vec::new(), Vec::new());
        // Where these lists have left, what they named is listed, or was collected since.
        let still_lost = !lost_kept.is_empty() || !lost_trash.is_empty();
        let known_kept = self.known.0.iter().filter(|_| still_lost);
        let known_trash = self.known.1.iter().filter(|_| still_lost);
        let is_witness = next.chain.is_some();
        // What they need may have been condemned, unlike that of all that a list names.
        let marked = |entry: &SnapshotEntry| SnapshotEntry {
            rebuilt: is_witness && !self.closed.has(&entry.commit, next.epoch),
            ..entry.clone()
        };
        for entry in known_kept {
            match taken.admit(marked(entry)) {
                Some((entry, false)) => joins_kept.push(entry),
                Some((snapshot, true)) => joins_trash.push(TrashEntry {
                    forgotten: snapshot.time,
                    snapshot,
                }),
                None => {}
            }
        }
        for entry in known_trash {
            let snapshot = taken.admit(marked(&entry.snapshot));
            let snapshot = snapshot.map(|(snapshot, _)| snapshot);
            joins_trash.extend(snapshot.map(|snapshot| TrashEntry {
                snapshot,
                forgotten: entry.forgotten,
            }));
        }
        let writer = self.ingest;
        self.snapshots = rewrite(writer, &kept_refs, &kept, |_| false, joins_kept).await?;
        let leaves = |entry: &TrashEntry| self.abandoned.contains(&entry.snapshot.commit);
        self.trash = rewrite(writer, &trash_refs, &trash, leaves, joins_trash).await?;
        self.snapshots.removed.extend(lost_kept);
        self.trash.removed.extend(lost_trash);
        Ok(())
    }

    /// One list for all of the quarantine of `next`, without the lists that are known to be lost
    /// and still cannot be read, and what was found. Scrubs and repairs of others may have put
    /// something there since the check began.
    async fn merge_quarantine(&self, next: &Root) -> Result<ListChange, RootError> {
        let Some(damaged) = &self.damaged else {
            return Ok(ListChange::default());
        };
        let mut entries = damaged.clone();
        for list in &next.quarantine {
            match self.lists.quarantine_shards(&[*list]).await {
                Ok(shards) => entries.extend(shards.iter().flat_map(|shard| shard.iter().cloned())),
                Err(error) if self.lost_quarantine.contains(list) && error.is_of_one_object() => {
                    tracing::warn!(%error, "a list of the quarantine is given up");
                }
                Err(error) => return Err(error),
            }
        }
        entries.sort_by_key(|entry| (entry.pack, entry.frame));
        entries.dedup();
        Ok(ListChange {
            removed: next.quarantine.clone(),
            added: put_entries(self.ingest, entries)
                .await?
                .into_iter()
                .collect(),
        })
    }
}

#[async_trait]
impl Transition for Mend<'_> {
    type Output = ();

    fn session(&self) -> Option<SessionId> {
        Some(self.session)
    }

    async fn apply(&mut self, next: &mut Root) -> Result<(), RootError> {
        next.change_index(&self.index)?;
        for begun in &self.lost_groups {
            next.drop_group(*begun);
        }
        self.merge_snapshots(next).await?;
        next.change_snapshots(&self.snapshots)?;
        next.change_trash(&self.trash)?;
        self.quarantine = self.merge_quarantine(next).await?;
        next.change_quarantine(&self.quarantine)?;
        if let Some(chain) = next.chain.as_mut().filter(|_| self.loses_chain) {
            chain.lose_older();
        }
        Ok(())
    }

    async fn seen(&mut self, root: &Root) -> Result<bool, RootError> {
        // All lists and index objects that were written here have names of their own.
        let lists = |refs: &[ListRef], change: &ListChange| {
            change.added.iter().all(|list| refs.contains(list))
                && !change.removed.iter().any(|list| refs.contains(list))
        };
        let older = root.chain.iter().flat_map(|chain| &chain.older);
        let is_lost = |group: &RunGroup| self.lost_groups.contains(&group.begun);
        let holds = |name| root.index.iter().any(|index| index.name == name);
        Ok(lists(&root.snapshots, &self.snapshots)
            && lists(&root.trash, &self.trash)
            && lists(&root.quarantine, &self.quarantine)
            && !root.run_groups().iter().any(is_lost)
            && (!self.loses_chain || older.count() == 0)
            && self.index.added.iter().all(|index| holds(index.name))
            && !self.index.absorbed.iter().any(|index| holds(index.name)))
    }
}
