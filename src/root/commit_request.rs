//! What a commit is given, and what it made.
//!
//! Owns: their fields. Does not own: the steps of a commit (`commit`).

use bkfs_chunker::id::Id;
use jiff::Timestamp;

use super::snapshots::{NewSnapshot, SnapshotEntry};

/// A commit to make. The nodes of its tree are already stored.
#[derive(Clone, Debug)]
pub struct CommitRequest<M> {
    /// The mark that was taken before the tree was built.
    pub mark: M,
    /// The root node of the tree; none for an empty volume.
    pub tree: Option<Id>,
    /// The root node of a tree that a copy or a put is building; stored only in a root with a
    /// chain.
    pub building: Option<Id>,
    /// The last operation of this session that the tree contains.
    pub covered: u64,
    /// The last journal of this session that the tree contains in full; none if it numbers none.
    pub covered_journal: Option<u64>,
    /// The lowest inode number that was never given out.
    pub next_inode: u64,
    /// The number of inodes in the tree.
    pub inodes: u64,
    /// Bytes of file contents in the tree.
    pub bytes: u64,
    /// The time on the host's clock.
    pub clock: Timestamp,
    /// The snapshot to make in the same replacement of the root.
    pub snapshot: Option<NewSnapshot>,
}

/// A commit that is in the root.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct RootCommit {
    /// The generation of the root that made it, or if that is unknown, of a later one.
    pub generation: u64,
    /// Its number among the volume's commits; 0 for a commit that only makes a snapshot.
    pub sequence: u64,
    /// The id of its commit record.
    pub record: Id,
    /// The snapshot that was made with it.
    pub snapshot: Option<SnapshotEntry>,
    /// Whether an older snapshot of that name has gone to the trash with it.
    pub has_replaced: bool,
}
