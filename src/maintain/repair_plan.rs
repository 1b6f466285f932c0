//! What a repair will do, as a value.
//!
//! Owns the sentences and the objects of the plan, and nothing of how it is made (`repair`) or
//! carried out (`mend`).

use bkfs_chunker::catalog::IndexRef;
use bkfs_chunker::id::Id;
use bkfs_chunker::ingest::Ingest;

use super::collect::rebuilt::{Head, Rebuilt};
use super::workspace::shelf::ShelvedPack;
use crate::root::error::RootError;
use crate::root::sent::Sent;
use crate::root::shard::ListRef;
use crate::root::snapshots::{QuarantineEntry, SnapshotEntry, TrashEntry};
use crate::root::state::{Condemned, Root, SessionId};

/// What the repair session calls itself.
pub(super) const MOUNT_POINT: &str = "bkfs check --repair";

/// Bytes of lists that are read from disk for one round of index objects.
const INDEX_BYTES: u64 = 64 << 20;

/// What will be done.
#[derive(Debug, Default)]
pub struct RepairPlan {
    /// In sentences, in order.
    pub steps: Vec<String>,
    /// What is not done and could be, in sentences.
    pub remarks: Vec<String>,
    pub(super) root: Option<Root>,
    pub(super) packs: Vec<ShelvedPack>,
    pub(super) snapshots: Vec<SnapshotEntry>,
    pub(super) trash: Vec<TrashEntry>,
    /// Commits of forgotten snapshots that are given up.
    pub(super) abandoned: Vec<Id>,
    /// Lists that those stand in for, in a root that is there.
    pub(super) lost_lists: Vec<ListRef>,
    pub(super) quarantine: Vec<QuarantineEntry>,
    pub(super) writes_quarantine: bool,
    pub(super) loses_chain: bool,
    /// Groups of runs that leave the root.
    pub(super) lost_groups: Vec<u64>,
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

    /// Writes index objects that list the packs of the plan.
    ///
    /// # Errors
    /// [`RootError::Content`] if the store fails, and [`RootError::Local`] if a list on disk cannot
    /// be read.
    pub(super) async fn put_index(&self, ingest: &Ingest) -> Result<Vec<IndexRef>, RootError> {
        let (mut written, mut round, mut bytes) = (Vec::new(), Vec::new(), 0);
        for pack in &self.packs {
            let contents = pack.contents()?;
            if !pack.is_in_memory() {
                bytes += contents.encoded_bytes();
            }
            round.push(contents);
            if bytes >= INDEX_BYTES {
                written.extend(ingest.put_index(&round).await?);
                round.clear();
                bytes = 0;
            }
        }
        written.extend(ingest.put_index(&round).await?);
        Ok(written)
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
