//! Proof that the bucket holds everything that a commit will name.

use std::collections::HashSet;

use crate::catalog::{IndexRef, Staged};
use crate::pack::PackName;
use crate::pending::Mark;

/// Proof that every finished pack, and the index objects that list them, are acknowledged.
///
/// Only [`Ingest::finish`](super::Ingest::finish) and [`Ingest::finish_since`](super::Ingest::finish_since)
/// make one. Pass it to [`Ingest::committed`](super::Ingest::committed) or
/// [`Ingest::conflicted`](super::Ingest::conflicted) afterwards.
#[derive(Debug)]
#[must_use = "tell the ingest whether the root took it"]
pub struct FinishedPacks {
    /// The list for the new root: the list of the call, without the absorbed index objects, and
    /// with the new ones.
    pub index: Vec<IndexRef>,
    /// Index objects of the call's list that are not in the new list, because the new index objects
    /// list all their packs.
    pub absorbed: Vec<PackName>,
    /// Packs that this commit makes live.
    pub packs: Vec<PackName>,
    /// Packs that the content refers to and that are not the session's own by its published floor.
    /// All must be live in the root that is replaced.
    pub relied_on: HashSet<PackName>,
    /// The floor to publish. Packs with a lower sequence number hold no blob that only uncommitted
    /// references name.
    pub floor: u32,
    /// Bytes of the new packs in the bucket.
    pub new_bytes: u64,
    pub(super) mark: Mark,
    pub(super) staged: Vec<Staged>,
}
