//! What a repair will do, as a value.
//!
//! Owns the sentences and the objects of the plan, and nothing of how it is made (`repair`) or
//! carried out (`mend`).

use bkfs_chunker::id::Id;
use bkfs_chunker::verify::PackContents;

use super::collect::rebuilt::{Head, Rebuilt};
use crate::root::sent::Sent;
use crate::root::shard::ListRef;
use crate::root::snapshots::{QuarantineEntry, SnapshotEntry, TrashEntry};
use crate::root::state::{Condemned, Root, SessionId};

/// What the repair session calls itself.
pub(super) const MOUNT_POINT: &str = "bkfs check --repair";

/// What will be done.
#[derive(Debug, Default)]
pub struct RepairPlan {
    /// In sentences, in order.
    pub steps: Vec<String>,
    /// What is not done and could be, in sentences.
    pub remarks: Vec<String>,
    pub(super) root: Option<Root>,
    pub(super) packs: Vec<PackContents>,
    pub(super) snapshots: Vec<SnapshotEntry>,
    pub(super) trash: Vec<TrashEntry>,
    /// Commits of forgotten snapshots that are given up.
    pub(super) abandoned: Vec<Id>,
    /// Lists that those stand in for, in a root that is there.
    pub(super) lost_lists: Vec<ListRef>,
    pub(super) quarantine: Vec<QuarantineEntry>,
    pub(super) writes_quarantine: bool,
    pub(super) loses_chain: bool,
    /// Keys of journals.
    pub(super) set_aside: Vec<String>,
    /// What sessions are taken to have sent from then on.
    pub(super) given_up: Vec<(SessionId, Sent)>,
    /// Lists of condemned packs that are put aside, once all the rest is in the root.
    pub(super) renewed: Vec<Condemned>,
    /// The root changes but for those.
    pub(super) mends: bool,
}

impl RepairPlan {
    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// What stands in for lost lists of snapshots.
    pub(super) fn rebuilt(&self) -> Rebuilt {
        let trash = self.trash.iter().map(|entry| &entry.snapshot);
        let entries = self.snapshots.iter().chain(trash);
        Rebuilt {
            heads: entries.map(Head::of).collect(),
            lost: self.lost_lists.clone(),
        }
    }
}
