//! Proof that what a commit will name is in the bucket.

use std::collections::HashSet;

use crate::catalog::{IndexRef, Staged};
use crate::pack::PackName;

/// A line drawn by [`Ingest::mark`](super::Ingest::mark).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    pub(super) floor: u32,
    pub(super) tick: u64,
}

/// Acknowledged: every pack of a seal, and the index object that holds them. Only [`Ingest::seal`](super::Ingest::seal) makes one. Give it back
/// to [`Ingest::committed`](super::Ingest::committed) or [`Ingest::conflicted`](super::Ingest::conflicted).
#[derive(Debug)]
#[must_use = "tell the ingest whether the root took it"]
pub struct Sealed {
    /// The list for the new root: that of the call, without what was absorbed, with the new index objects.
    pub index: Vec<IndexRef>,
    /// Index objects of the call's list that are not in the new one, since the new ones hold all of theirs.
    pub absorbed: Vec<PackName>,
    /// Packs that this commit makes live.
    pub packs: Vec<PackName>,
    /// Packs not the session's own (by its published floor) that its content refers to: all must be live in the root being replaced.
    pub relied_on: HashSet<PackName>,
    /// The floor to publish: packs of lower sequence hold nothing that only uncommitted references name.
    pub floor: u32,
    /// Bytes of the new packs in the bucket.
    pub new_bytes: u64,
    pub(super) mark: Mark,
    pub(super) staged: Vec<Staged>,
}

#[cfg(any(test, feature = "testing"))]
impl Sealed {
    /// A token that proves nothing, for tests of those who take one.
    pub fn unproven(index: Vec<IndexRef>) -> Self {
        Self {
            index,
            absorbed: Vec::new(),
            packs: Vec::new(),
            relied_on: HashSet::new(),
            floor: 0,
            new_bytes: 0,
            mark: Mark { floor: 0, tick: 0 },
            staged: Vec::new(),
        }
    }
}
