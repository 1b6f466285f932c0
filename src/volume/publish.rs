//! The commits of a volume, as the root takes them (docs/PROTOCOL.md, rule 5).
//!
//! Owns: the trait [`Publish`], what it is given and what it returns. Does not own: when a commit
//! is made (`commit`), nor how the root is replaced (`root::commit`, behind the trait).

use async_trait::async_trait;
use bkfs_chunker::id::Id;
use bkfs_chunker::ingest::Mark;

use crate::volume::state::Totals;

/// A snapshot for a commit to make.
#[derive(Debug, Clone, Default)]
pub struct SnapshotRequest {
    /// The snapshot's name; none for a name derived from the time.
    pub name: Option<String>,
    /// The snapshot's tags.
    pub tags: Vec<String>,
}

/// The result of a commit.
#[derive(Debug, Clone, Default)]
pub struct CommitOutcome {
    /// The generation of the root that holds the commit.
    pub generation: u64,
    /// The name of the snapshot, if one was made.
    pub snapshot: Option<String>,
}

/// The reason why a commit failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum PublishError {
    /// The snapshot is refused, for example because of its name. The commit without it may succeed.
    #[error("{0}")]
    Refused(String),
    /// The commit can be tried again.
    #[error("{0}")]
    Again(String),
    /// The outcome is unknown: look before repeating the commit.
    #[error("{0}")]
    Unknown(String),
    /// This session can never commit again.
    #[error("{0}")]
    Lost(String),
}

/// The contents of a commit.
#[derive(Debug, Clone)]
pub struct Publication {
    /// The root node of the new tree.
    pub tree: Id,
    /// The ingest's mark, drawn at the cut.
    pub mark: Mark,
    /// The inodes and bytes of the tree.
    pub totals: Totals,
    /// The lowest inode number that was not given out.
    pub next_inode: u64,
    /// The last operation of this session that the tree holds. Journals up to there need not be
    /// replayed.
    pub covered: u64,
    /// The snapshot to make of the tree.
    pub snapshot: Option<SnapshotRequest>,
}

/// Makes a tree current: completes the uploads and replaces the root.
#[async_trait]
pub trait Publish: Send + Sync + 'static {
    /// Publishes a tree. When this returns, other machines see it.
    ///
    /// Cancel safety: dropped, it leaves a commit that was sent undecided; the next call finds out
    /// first whether it was made.
    ///
    /// # Errors
    /// See [`PublishError`].
    async fn publish(&self, publication: Publication) -> Result<CommitOutcome, PublishError>;
}
