//! Requests that wait in the queues of a volume's two tasks.
//!
//! Owns: their contents. Does not own: the queues ([`Volume`](crate::volume::Volume)), nor the
//! tasks that serve them (`commit`, `journal`).

use tokio::sync::oneshot;

use crate::volume::error::VolumeError;
use crate::volume::publish::{CommitOutcome, SnapshotRequest};

/// A request for a commit, in the queue of the [`Committer`](crate::volume::commit::CommitTask).
#[derive(Debug)]
pub struct QueuedCommit {
    /// The snapshot to make of the commit; none for a commit alone.
    pub(super) snapshot: Option<SnapshotRequest>,
    /// The channel for the answer.
    pub(super) done: oneshot::Sender<Result<CommitOutcome, VolumeError>>,
}

/// A caller of fsync that waits for a journal, in the queue of the
/// [`Journaler`](crate::volume::journal::JournalTask).
#[derive(Debug)]
pub struct QueuedFsync(pub(super) oneshot::Sender<Result<(), VolumeError>>);
