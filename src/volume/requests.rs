//! Requests that wait in the queues of a volume's two tasks.
//!
//! Owns: their contents and answers. Does not own: the queues ([`Volume`](crate::volume::Volume)),
//! nor the tasks that serve them (`commit_task`, `journal`).

use tokio::sync::oneshot;

use crate::volume::error::VolumeError;

/// A snapshot for a commit to make.
#[derive(Debug, Clone, Default)]
pub struct SnapshotRequest {
    /// The snapshot's name; none for a name derived from the time.
    pub name: Option<String>,
    /// The snapshot's tags.
    pub tags: Vec<String>,
    /// True if an older snapshot of this name goes to the trash with it.
    pub replaces: bool,
}

/// The result of a commit.
#[derive(Debug, Clone, Default)]
pub struct CommitOutcome {
    /// The generation of the root that holds the commit.
    pub generation: u64,
    /// The name of the snapshot, if one was made.
    pub snapshot: Option<String>,
    /// Whether an older snapshot of that name has gone to the trash.
    pub has_replaced: bool,
}

/// A request for a commit, in the queue of the [`CommitTask`](crate::volume::commit_task::CommitTask).
#[derive(Debug)]
pub struct QueuedCommit {
    /// The snapshot to make of the commit; none for a commit alone.
    pub(super) snapshot: Option<SnapshotRequest>,
    /// The channel for the answer.
    pub(super) done: oneshot::Sender<Result<CommitOutcome, VolumeError>>,
}

/// A caller of fsync that waits for a journal, in the queue of the
/// [`JournalTask`](crate::volume::journal::JournalTask).
#[derive(Debug)]
pub struct QueuedFsync(pub(super) oneshot::Sender<Result<(), VolumeError>>);
