//! Commits: the layers become a tree in the bucket, and the root names it.
//!
//! Owns: when a commit is made, the cut, the order of its steps, and the answers to its callers.
//! Does not own: the root and its rules (`root`, behind [`Publish`]), the tree's shape (`tree`),
//! storing of bytes (`flush`, the chunker).
//!
//! One task, the [`CommitTask`], makes all commits of a volume. Callers send a request through a
//! bounded queue and wait for the answer; requests that wait at the same moment share one commit. A
//! layer whose commit failed stays in memory, readable and complete. It is tried again before any
//! newer layer.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bkfs_chunker::id::Id;
use bkfs_chunker::ingest::Mark;
use bytes::Bytes;
use futures::stream::{self, StreamExt, TryStreamExt};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::tree::apply::apply;
use crate::tree::key;
use crate::tree::map::Tree;
use crate::volume::Volume;
use crate::volume::error::VolumeError;
use crate::volume::flush::{FLUSHES_AT_ONCE, Reach};
use crate::volume::nodes::NewNodes;
use crate::volume::publish::{CommitOutcome, Publication, Publish, PublishError, SnapshotRequest};
use crate::volume::requests::QueuedCommit;
use crate::volume::sealed::{SealedItems, without};
use crate::volume::usage::Leaving;

/// Maximum time between two commits of a volume that changes.
pub const PERIOD: Duration = Duration::from_secs(30);

/// Time after which a failed commit is repeated without a request.
const RETRY: Duration = Duration::from_secs(2);

/// Maximum number of keys of dropped inodes that are held at once, about 6 MiB. More keys are
/// removed in several steps; each step stores the nodes at its boundary once more.
const GONE_AT_ONCE: usize = 1 << 16;

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
        state.sealing.is_some() || !state.active.is_empty()
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
    publish: Arc<dyn Publish>,
    requests: mpsc::Receiver<QueuedCommit>,
    /// The facts of the cut whose commit is under way or will be tried again.
    sealing: Option<Sealing>,
    last: CommitOutcome,
}

/// The facts of a cut.
#[derive(Debug, Clone)]
struct Sealing {
    mark: Mark,
    /// Bytes written to files that this commit contains.
    unsent: Leaving,
    /// The number of inodes at the cut.
    inodes: u64,
    next_inode: u64,
    covered: u64,
}

impl CommitTask {
    /// Returns a committer for `volume`, whose tree is in the root of `generation`.
    pub fn new(
        volume: Arc<Volume>,
        publish: Arc<dyn Publish>,
        requests: mpsc::Receiver<QueuedCommit>,
        generation: u64,
    ) -> Self {
        let last = CommitOutcome {
            generation,
            snapshot: None,
        };
        CommitTask {
            volume,
            publish,
            requests,
            sealing: None,
            last,
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
            let sleep = tokio::time::sleep_until(due.unwrap_or_else(|| Instant::now() + PERIOD));
            tokio::select! {
                biased;
                request = self.requests.recv() => match request {
                    Some(request) => self.serve(request).await,
                    None => break,
                },
                () = &mut stop => break,
                () = sleep => {
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
        let result = self.commit(None).await;
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
    /// store, so they do not wait as long once more.
    fn tell_waiting(&mut self, result: &Result<CommitOutcome, VolumeError>) {
        if is_failure(result) {
            while let Ok(request) = self.requests.try_recv() {
                let _ = request.done.send(result.clone());
            }
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
        if result.is_ok() {
            self.volume.room.notify();
            self.volume.relieve();
        }
        result
    }

    async fn try_commit(
        &mut self,
        snapshot: Option<SnapshotRequest>,
    ) -> Result<CommitOutcome, VolumeError> {
        if self.sealing.is_some() {
            self.seal(None).await?;
        }
        if snapshot.is_none() && !self.volume.wants_commit() {
            return Ok(self.last.clone());
        }
        self.cut().await?;
        self.seal(snapshot).await
    }

    /// Makes the cut: everything done so far is part of this commit, nothing later is.
    async fn cut(&mut self) -> Result<(), VolumeError> {
        let _alone = self.volume.cut_gate.write().await;
        let mut state = self.volume.view.state()?.lock();
        // Drawn here, under the lock: every reference made before belongs to a layer that is cut
        // now.
        let mark = self.volume.ingest.mark();
        state.cut();
        self.volume.commit_asked.store(false, Ordering::Relaxed);
        self.sealing = Some(Sealing {
            mark,
            unsent: self.volume.usage.cut(),
            inodes: state.totals.inodes,
            next_inode: self.volume.inode_mark(),
            covered: state.operation,
        });
        Ok(())
    }

    async fn seal(
        &mut self,
        snapshot: Option<SnapshotRequest>,
    ) -> Result<CommitOutcome, VolumeError> {
        let Some(sealing) = self.sealing.clone() else {
            return Ok(self.last.clone());
        };
        let started = Instant::now();
        let built = self.volume.ingest.bound(self.build()).await;
        let tree = match built.unwrap_or_else(|error| Err(error.into())) {
            Ok(tree) => tree,
            Err(error) => return Err(self.failed(error)),
        };
        let state = self.volume.view.state()?;
        let totals = state.lock().sealed_totals(sealing.inodes);
        let publication = |snapshot| Publication {
            tree,
            mark: sealing.mark,
            totals,
            next_inode: sealing.next_inode,
            covered: sealing.covered,
            snapshot,
        };
        let (result, refusal) = match self.publish.publish(publication(snapshot)).await {
            Err(PublishError::Refused(why)) => {
                (self.publish.publish(publication(None)).await, Some(why))
            }
            result => (result, None),
        };
        match result {
            Ok(committed) => {
                {
                    let mut state = self.volume.view.state()?.lock();
                    state.committed(tree);
                    state.covered = state.covered.max(sealing.covered);
                }
                self.sealing = None;
                self.volume.usage.landed(&sealing.unsent);
                *self.volume.last_commit.lock() = Some(self.volume.now());
                tracing::debug!(
                    generation = committed.generation,
                    elapsed = ?started.elapsed(),
                    "committed"
                );
                self.last = CommitOutcome {
                    generation: committed.generation,
                    snapshot: None,
                };
                match refusal {
                    Some(why) => Err(VolumeError::SnapshotName(why)),
                    None => Ok(committed),
                }
            }
            Err(PublishError::Lost(why)) => {
                let error = VolumeError::Commit(why);
                self.volume.poison(error.clone());
                Err(error)
            }
            Err(PublishError::Unknown(why)) => Err(self.failed(VolumeError::OutcomeUnknown(why))),
            Err(PublishError::Again(why) | PublishError::Refused(why)) => {
                Err(self.failed(VolumeError::Commit(why)))
            }
        }
    }

    fn failed(&self, error: VolumeError) -> VolumeError {
        self.volume.storing_failed(error.clone());
        error
    }

    /// Builds the tree of the sealing layer over the base, and returns its root node.
    async fn build(&self) -> Result<Id, VolumeError> {
        self.flush_all().await?;
        let (base, mut dropped) = {
            let state = self.volume.view.state()?.lock();
            let Some(layer) = &state.sealing else {
                return Ok(state.base);
            };
            let dropped: Vec<u64> = layer.dropped.iter().copied().collect();
            (state.base, dropped)
        };
        let nodes = self.volume.view.nodes();
        let sink = NewNodes {
            ingest: &self.volume.ingest,
            cache: nodes,
        };
        // In the order of the tree, so that each of its nodes is read once.
        dropped.sort_unstable();
        let (mut tree, mut gone) = (base, Vec::new());
        for inode in dropped {
            let mut cursor = Tree::new(base).range(key::of_inode(inode));
            while let Some((key, _)) = cursor.next(nodes.as_ref()).await? {
                gone.push(key);
                if gone.len() >= GONE_AT_ONCE {
                    let removed = gone.drain(..).map(|key| (key, None::<Bytes>));
                    tree = apply(nodes.as_ref(), &sink, tree, removed).await?;
                }
            }
        }
        let set = SealedItems::new(self.volume.view.state()?);
        apply(nodes.as_ref(), &sink, tree, without(gone, set)).await
    }

    /// Stores every dirty byte of the sealing layer.
    async fn flush_all(&self) -> Result<(), VolumeError> {
        loop {
            let (epoch, files) = {
                let state = self.volume.view.state()?.lock();
                let Some(layer) = &state.sealing else {
                    return Ok(());
                };
                (
                    layer.epoch,
                    layer.data.keys().copied().collect::<Vec<u64>>(),
                )
            };
            if files.is_empty() {
                return Ok(());
            }
            let flushes = files
                .into_iter()
                .map(|inode| self.volume.flush_file(inode, epoch, Reach::All));
            stream::iter(flushes)
                .buffer_unordered(FLUSHES_AT_ONCE)
                .try_collect::<()>()
                .await?;
        }
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
