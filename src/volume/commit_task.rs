//! When commits are made, and who waits for them.
//!
//! Owns: the requests for commits, the period between them, and the answers to their callers. Does
//! not own: the steps of one commit (`commit`).
//!
//! One task, the [`CommitTask`], makes all commits of a volume. Callers send a request through a
//! bounded queue and wait for the answer; requests that wait at the same moment share one commit. A
//! layer whose commit failed stays in memory, readable and complete. It is tried again before any
//! newer layer.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::volume::commit::Committer;
use crate::volume::error::VolumeError;
use crate::volume::requests::{CommitOutcome, QueuedCommit, SnapshotRequest};
use crate::volume::{Promise, Volume};

/// Maximum time between two commits of a volume that changes.
pub const PERIOD: Duration = Duration::from_secs(30);

/// Time after which a failed commit is repeated without a request.
const RETRY: Duration = Duration::from_secs(2);

impl Volume {
    /// Commits everything that was done before this call. When this returns, it is in the bucket.
    ///
    /// Cancel safety: dropped before its request is queued, it has done nothing; dropped later, it
    /// leaves the request, and the commit is made all the same.
    ///
    /// # Errors
    /// - [`VolumeError::Poisoned`] if the volume accepts nothing more.
    /// - [`VolumeError::Commit`] if the root was not replaced, or the volume is closing.
    /// - [`VolumeError::OutcomeUnknown`] if the commit may have been made.
    /// - [`VolumeError::ContentStore`], [`VolumeError::Tree`] or [`VolumeError::Malformed`] if the
    ///   tree could not be made. The changes stay in memory for the next commit.
    pub async fn commit(&self) -> Result<CommitOutcome, VolumeError> {
        self.request(None).await
    }

    /// Commits as [`Volume::commit`] does, and makes a snapshot of the commit.
    ///
    /// Cancel safety: as [`Volume::commit`].
    ///
    /// # Errors
    /// As [`Volume::commit`]; [`VolumeError::SnapshotName`] if only the snapshot was refused. Then
    /// the commit was made.
    pub async fn snapshot(&self, snapshot: SnapshotRequest) -> Result<CommitOutcome, VolumeError> {
        self.request(Some(snapshot)).await
    }

    async fn request(
        &self,
        snapshot: Option<SnapshotRequest>,
    ) -> Result<CommitOutcome, VolumeError> {
        if let Some(error) = self.failure() {
            return Err(error);
        }
        if self.promise == Promise::ThrownAway {
            return match snapshot {
                None => Ok(CommitOutcome::default()),
                Some(_) => Err(VolumeError::SnapshotName(
                    "this mount is thrown away at its end: mount -o clone=…,as=NAME keeps a clone"
                        .into(),
                )),
            };
        }
        self.queue(snapshot).await
    }

    /// Commits also what will be thrown away: the tree then refers to no pack that was condemned, so
    /// that these can be deleted.
    ///
    /// # Errors
    /// As [`Volume::commit`].
    pub async fn commit_for_the_base(&self) -> Result<CommitOutcome, VolumeError> {
        match self.failure() {
            Some(error) => Err(error),
            None => self.queue(None).await,
        }
    }

    async fn queue(&self, snapshot: Option<SnapshotRequest>) -> Result<CommitOutcome, VolumeError> {
        let (done, answer) = oneshot::channel();
        let stopped = || VolumeError::Commit("the volume is closing".into());
        self.requests
            .send(QueuedCommit { snapshot, done })
            .await
            .map_err(|_| stopped())?;
        answer.await.map_err(|_| stopped())?
    }

    /// Requests a commit without waiting for it.
    pub fn commit_soon(&self) {
        let (done, _) = oneshot::channel();
        // A full queue means that commits are under way already.
        let _ = self.requests.try_send(QueuedCommit {
            snapshot: None,
            done,
        });
    }

    /// Returns true if something is not in the bucket yet.
    pub fn is_dirty(&self) -> bool {
        let Ok(state) = self.view.state() else {
            return false;
        };
        let state = state.lock();
        state.committing.is_some() || !state.active.is_empty()
    }

    /// Returns true if a journal may exist that no commit covers. This includes a journal that was
    /// cut during a commit, even if that commit holds everything in it.
    pub fn has_uncovered(&self) -> bool {
        let Ok(state) = self.view.state() else {
            return false;
        };
        let state = state.lock();
        state.operation > state.covered
    }

    /// Returns true if a commit would change the bucket. Blobs of a file that was removed meanwhile
    /// are in no tree, but they refer to other packs until a root holds them.
    fn wants_commit(&self) -> bool {
        self.is_dirty() || self.has_uncovered() || self.ingest.uncommitted_blobs() > 0
    }

    /// Releases the packs that earlier references rely on, if everything that was stored is in the
    /// root, including blobs that no tree refers to. After that, no reference relies on anything
    /// but the root's own tree (rule 4).
    ///
    /// Cancel safety: dropped, it has changed nothing.
    pub async fn let_go(&self) {
        // As for a cut: no task is between making a reference and placing it.
        let _alone = self.cut_gate.write().await;
        let mark = self.ingest.mark();
        if !self.wants_commit() {
            self.ingest.let_go_before(mark);
        }
    }
}

/// The task that makes all commits of one volume.
pub struct CommitTask {
    volume: Arc<Volume>,
    committer: Committer,
    requests: mpsc::Receiver<QueuedCommit>,
}

impl CommitTask {
    /// Returns the task that makes the commits of `committer` that `requests` ask for.
    pub fn new(committer: Committer, requests: mpsc::Receiver<QueuedCommit>) -> Self {
        CommitTask {
            volume: committer.volume().clone(),
            committer,
            requests,
        }
    }

    /// Serves requests until `stop` resolves or the queue is closed, and then commits the rest. The
    /// volume holds its end of the queue while it is used. Returns the result of the last commit.
    ///
    /// Cancel safety: dropped, it leaves every layer that is not committed in the volume, and the
    /// waiting callers get an error. A root replacement that was sent may still be made.
    ///
    /// # Errors
    /// As [`Volume::commit`].
    pub async fn run(
        mut self,
        stop: impl Future<Output = ()>,
    ) -> Result<CommitOutcome, VolumeError> {
        tokio::pin!(stop);
        let mut due: Option<Instant> = Some(Instant::now() + PERIOD);
        loop {
            // Nothing is due of a scratch volume before its end.
            due = due.filter(|_| !self.volume.promise().is_scratch());
            let sleep = tokio::time::sleep_until(due.unwrap_or_else(|| Instant::now() + PERIOD));
            tokio::select! {
                biased;
                request = self.requests.recv() => match request {
                    Some(request) => self.serve(request).await,
                    None => break,
                },
                () = &mut stop => break,
                () = sleep, if !self.volume.promise().is_scratch() => {
                    let result = self.commit(None).await;
                    self.tell_waiting(&result);
                    due = result.is_err().then(|| Instant::now() + RETRY);
                    continue;
                }
            }
            due = (self.volume.wants_commit() && self.volume.failure().is_none())
                .then(|| Instant::now() + PERIOD);
        }
        self.requests.close();
        let result = match self.volume.promise() {
            Promise::ThrownAway => Ok(self.committer.last()),
            _ => self.commit(None).await,
        };
        self.tell_waiting(&result);
        while let Some(request) = self.requests.recv().await {
            let _ = request.done.send(result.clone());
        }
        result
    }

    /// Serves a request and all others that wait by now. Each snapshot gets its own commit.
    async fn serve(&mut self, first: QueuedCommit) {
        let mut waiting = vec![first];
        while let Ok(request) = self.requests.try_recv() {
            waiting.push(request);
        }
        let (snapshots, plain): (Vec<_>, Vec<_>) = waiting
            .into_iter()
            .partition(|request| request.snapshot.is_some());
        let mut plain = plain;
        let mut snapshots = snapshots.into_iter();
        while let Some(request) = snapshots.next() {
            let result = self.commit(request.snapshot).await;
            if is_failure(&result) {
                plain.extend(snapshots);
                answer(plain, &result);
                self.tell_waiting(&result);
                let _ = request.done.send(result);
                return;
            }
            if result.is_ok() {
                answer(std::mem::take(&mut plain), &result);
            }
            let _ = request.done.send(result);
        }
        if !plain.is_empty() {
            let result = self.commit(None).await;
            self.tell_waiting(&result);
            answer(plain, &result);
        }
    }

    /// Answers the requests that arrived while a commit failed. They have waited for the same
    /// store, so they do not wait as long once more. Changes that asked for room among them ask
    /// again.
    fn tell_waiting(&mut self, result: &Result<CommitOutcome, VolumeError>) {
        if let (true, Err(error)) = (is_failure(result), result) {
            while let Ok(request) = self.requests.try_recv() {
                let _ = request.done.send(result.clone());
            }
            self.volume.commit_failed(error.clone());
        }
    }

    async fn commit(
        &mut self,
        snapshot: Option<SnapshotRequest>,
    ) -> Result<CommitOutcome, VolumeError> {
        if let Some(error) = self.volume.failure() {
            return Err(error);
        }
        let result = self.try_commit(snapshot).await;
        if !is_failure(&result) {
            // Tasks that still find no room ask again.
            self.volume.commit_asked.store(false, Ordering::Relaxed);
            self.volume.room.notify();
            self.volume.relieve();
        }
        result
    }

    async fn try_commit(
        &mut self,
        snapshot: Option<SnapshotRequest>,
    ) -> Result<CommitOutcome, VolumeError> {
        if self.committer.has_cut() {
            self.committer.commit(None).await?;
            self.volume.room.notify();
        }
        if snapshot.is_none() && !self.volume.wants_commit() {
            return Ok(self.committer.last());
        }
        self.committer.commit(snapshot).await
    }
}

/// Returns true if the commit itself failed, rather than only its snapshot.
fn is_failure(result: &Result<CommitOutcome, VolumeError>) -> bool {
    matches!(result, Err(error) if !matches!(error, VolumeError::SnapshotName(_)))
}

fn answer(requests: Vec<QueuedCommit>, result: &Result<CommitOutcome, VolumeError>) {
    for request in requests {
        let _ = request.done.send(result.clone());
    }
}
