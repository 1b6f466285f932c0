//! One commit: the layers become a tree in the bucket, and the root names it.
//!
//! Owns: the steps of a commit in their order ([`Committer::commit`]), the cut, and what is done
//! after a failure. Does not own: when a commit is made (`commit_task`), the rules of the root
//! (`root::commit`), the tree's shape (`tree`), storing of bytes (`flush`, the chunker).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bkfs_chunker::id::Id;
use bkfs_chunker::ingest::{Ingest, Mark};
use bytes::Bytes;
use futures::stream::{self, StreamExt, TryStreamExt};
use tokio::time::Instant;

use crate::root::commit::RootCommitter;
use crate::root::commit_request::{CommitRequest, RootCommit};
use crate::root::error::RootError;
use crate::root::journal::JournalWriter;
use crate::root::snapshots::NewSnapshot;
use crate::root::state::HolderInfo;
use crate::tree::apply::apply;
use crate::tree::item::Timestamp;
use crate::tree::key;
use crate::tree::map::Tree;
use crate::volume::Volume;
use crate::volume::cut_items::{CutItems, without};
use crate::volume::error::VolumeError;
use crate::volume::flush::{FLUSHES_AT_ONCE, Reach};
use crate::volume::nodes::NewNodes;
use crate::volume::requests::{CommitOutcome, SnapshotRequest};
use crate::volume::rescue::Rescues;
use crate::volume::root_failure::RootFailure;
use crate::volume::usage::Leaving;

/// Maximum number of keys of dropped inodes that are held at once, about 6 MiB. More keys are
/// removed in several steps; each step stores the nodes at its boundary once more.
const GONE_AT_ONCE: usize = 1 << 16;

/// Number of files with dirty bytes that are listed while the state is locked once.
const LISTED_AT_ONCE: usize = 4096;

/// Time limit for finding out the outcome of a commit whose answer was lost. By then the store has
/// already been silent for its whole timeout.
const SETTLING: Duration = Duration::from_secs(3);

/// What makes the commits of one volume in one session.
pub struct Committer {
    volume: Arc<Volume>,
    root: RootCommitter<Ingest>,
    /// The holder of the session: snapshots carry its host and user.
    holder: HolderInfo,
    /// The journals of the session, which commits make superfluous; none if it makes snapshots only.
    journals: Option<Arc<JournalWriter>>,
    /// The facts of the cut whose commit is under way or will be tried again.
    cut: Option<Cut>,
    /// The generation of the root that holds the last commit.
    generation: u64,
}

/// The facts of a cut.
#[derive(Debug, Clone)]
struct Cut {
    mark: Mark,
    /// Bytes written to files that this commit contains.
    unsent: Leaving,
    /// The number of inodes at the cut.
    inodes: u64,
    next_inode: u64,
    covered: u64,
}

impl Committer {
    /// Returns the committer of `volume`, whose tree is in the newest known root, for the session
    /// that holds it and writes `journals`.
    pub fn new(
        volume: Arc<Volume>,
        root: RootCommitter<Ingest>,
        holder: HolderInfo,
        journals: Arc<JournalWriter>,
    ) -> Self {
        Committer {
            journals: Some(journals),
            ..Self::snapshot_only(volume, root, holder)
        }
    }

    /// Returns the committer of a volume that becomes a snapshot and nothing else. `root` is a
    /// snapshot-only committer.
    pub fn snapshot_only(
        volume: Arc<Volume>,
        root: RootCommitter<Ingest>,
        holder: HolderInfo,
    ) -> Self {
        let generation = root.known_generation();
        Committer {
            volume,
            root,
            holder,
            journals: None,
            cut: None,
            generation,
        }
    }

    /// Returns the volume.
    pub(super) fn volume(&self) -> &Arc<Volume> {
        &self.volume
    }

    /// Returns true if an earlier commit has failed after its cut.
    pub(super) fn has_cut(&self) -> bool {
        self.cut.is_some()
    }

    /// Returns the outcome of the last commit, without its snapshot.
    pub(super) fn last(&self) -> CommitOutcome {
        CommitOutcome {
            generation: self.generation,
            snapshot: None,
            has_replaced: false,
        }
    }

    /// Makes one commit. Its steps, in the order of rule 1 (docs/PROTOCOL.md):
    ///
    /// 1. The cut: everything done so far is part of this commit, nothing later is. A cut whose
    ///    commit failed is used again.
    /// 2. The tree: contents, then nodes go into packs of the session.
    /// 3. The record of the commit goes into a pack.
    /// 4. The packs go into the bucket: data packs, metadata packs, then an index object.
    /// 5. The lists of a snapshot go into the bucket, and the root is replaced.
    ///
    /// If the root refuses the commit, it is tried once more without its snapshot, unless it is to
    /// make nothing but that. This also helps a commit without a snapshot, because a list that the
    /// store gave damaged once may be whole at the second look.
    ///
    /// Cancel safety: dropped, it leaves the cut for the next call. A replacement of the root that
    /// was sent may still be made; the next call finds out first.
    ///
    /// # Errors
    /// As [`Volume::snapshot`].
    pub(super) async fn commit(
        &mut self,
        mut snapshot: Option<SnapshotRequest>,
    ) -> Result<CommitOutcome, VolumeError> {
        let started = Instant::now();
        let cut = self.cut().await?;
        let tree = self.store_tree().await?;
        // Drawn once, so that a commit that is tried again has the same record. The first one of a
        // volume has another number then.
        let time = self.volume.now();
        let mut rescues = Rescues::new(&self.volume.ingest).noting_in(&self.volume.has_rescued);
        let (mut is_last_try, mut refused) = (self.root.is_snapshot_only(), None);
        let made = loop {
            // What this commit shows depends on whether the one before it was made.
            let learned = self.learn().await;
            let request = self.request(&cut, tree, time, snapshot.clone())?;
            let steps = async {
                learned?;
                let recorded = self.root.begin(&request).await?;
                let finished = recorded.finish_packs().await?;
                finished.replace_root().await
            };
            let error = match steps.await {
                Ok(made) => break made,
                Err(error) => error,
            };
            if rescues.has_helped(&error).await {
                continue;
            }
            match self.settle(error).await {
                Ok(made) => break made,
                Err(RootFailure::Refused(why)) if !is_last_try => {
                    is_last_try = true;
                    refused = snapshot.take().map(|_| why);
                }
                Err(failure) => return Err(self.failed(failure)),
            }
        };
        if made.snapshot.is_some() {
            self.volume.show_commits();
        }
        self.committed(&cut, tree, made.generation)?;
        tracing::debug!(generation = made.generation, elapsed = ?started.elapsed(), "committed");
        match refused {
            Some(why) => Err(VolumeError::SnapshotName(why)),
            None => Ok(CommitOutcome {
                generation: made.generation,
                snapshot: made.snapshot.map(|entry| entry.name),
                has_replaced: made.has_replaced,
            }),
        }
    }

    /// Makes the cut, unless there is one.
    async fn cut(&mut self) -> Result<Cut, VolumeError> {
        if let Some(cut) = &self.cut {
            return Ok(cut.clone());
        }
        let _alone = self.volume.cut_gate.write().await;
        let mut state = self.volume.view.state()?.lock();
        // Drawn here, under the lock: every reference made before belongs to a layer that is cut
        // now.
        let mark = self.volume.ingest.mark();
        state.cut();
        let cut = Cut {
            mark,
            unsent: self.volume.usage.cut(),
            inodes: state.totals.inodes,
            next_inode: self.volume.inode_mark(),
            covered: state.operation,
        };
        Ok(self.cut.insert(cut).clone())
    }

    /// Stores the tree of the cut, and returns its root node.
    async fn store_tree(&self) -> Result<Id, VolumeError> {
        let built = self.volume.ingest.bound(self.build()).await;
        let built = built.unwrap_or_else(|error| Err(error.into()));
        built.inspect_err(|error| self.volume.note_failure(error))
    }

    /// Builds the tree of the layer of the cut over the base, and returns its root node.
    async fn build(&self) -> Result<Id, VolumeError> {
        self.store_contents().await?;
        let (base, dropped) = {
            let state = self.volume.view.state()?.lock();
            let Some(layer) = &state.committing else {
                return Ok(state.base);
            };
            (state.base, Arc::clone(&layer.dropped))
        };
        let nodes = self.volume.view.nodes();
        let sink = NewNodes {
            ingest: &self.volume.ingest,
            cache: nodes,
        };
        // In the order of the tree, so that each of its nodes is read once.
        let mut dropped: Vec<u64> = dropped.iter().copied().collect();
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
        let set = CutItems::new(self.volume.view.state()?);
        apply(nodes.as_ref(), &sink, tree, without(gone, set)).await
    }

    /// Stores every dirty byte of the layer of the cut.
    async fn store_contents(&self) -> Result<(), VolumeError> {
        loop {
            let (epoch, files) = {
                let state = self.volume.view.state()?.lock();
                let Some(layer) = &state.committing else {
                    return Ok(());
                };
                let files = layer.data.keys().take(LISTED_AT_ONCE);
                (layer.epoch, files.copied().collect::<Vec<u64>>())
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

    /// Returns what the root is given.
    ///
    /// # Errors
    /// [`VolumeError::Commit`] if the session may only make snapshots, and this is none.
    fn request(
        &self,
        cut: &Cut,
        tree: Id,
        time: Timestamp,
        snapshot: Option<SnapshotRequest>,
    ) -> Result<CommitRequest<Mark>, VolumeError> {
        let is_snapshot_only = self.root.is_snapshot_only();
        if is_snapshot_only && snapshot.is_none() {
            return Err(self.failed(RootFailure::Lost("only as a snapshot".to_owned())));
        }
        let totals = self
            .volume
            .view
            .state()?
            .lock()
            .committing_totals(cut.inodes);
        let clock = jiff::Timestamp::new(time.seconds, time.nanoseconds as i32)
            .unwrap_or(jiff::Timestamp::UNIX_EPOCH);
        let journals = self.journals.as_ref();
        // A snapshot completes what earlier commits have built apart.
        let apart = self.volume.shown().filter(|_| snapshot.is_none());
        let totals = apart.map_or(totals, |shown| shown.totals);
        Ok(CommitRequest {
            mark: cut.mark,
            tree: Some(apart.map_or(tree, |shown| shown.tree)),
            building: apart.map(|_| tree),
            covered: journals.map_or(0, |_| cut.covered),
            covered_journal: journals.map(|journals| journals.number_covered(cut.covered)),
            next_inode: cut.next_inode,
            inodes: totals.inodes,
            bytes: totals.bytes,
            clock,
            snapshot: snapshot.map(|request| NewSnapshot {
                name: request.name,
                host: self.holder.host.clone(),
                user: self.holder.user.clone(),
                tags: request.tags,
                clock,
                recovered: is_snapshot_only,
                replaces: request.replaces,
                replaced_at: None,
                drill: None,
                origin: None,
            }),
        })
    }

    /// Finds out about a commit of unknown outcome. If it made a snapshot, that has completed what
    /// was built apart.
    async fn learn(&self) -> Result<(), RootError> {
        let made = self.root.settle_pending().await?;
        if made.is_some_and(|made| made.snapshot.is_some()) {
            self.volume.show_commits();
        }
        Ok(())
    }

    /// Looks once more for a commit whose answer was lost, so that its callers learn the known
    /// outcome.
    async fn settle(&self, error: RootError) -> Result<RootCommit, RootFailure> {
        let RootError::OutcomeUnknown { reason } = error else {
            return Err(error.into());
        };
        match tokio::time::timeout(SETTLING, self.root.settle_pending()).await {
            Ok(Ok(Some(committed))) => Ok(committed),
            Ok(Ok(None)) => Err(RootFailure::Again(reason)),
            Ok(Err(_)) | Err(_) => Err(RootFailure::Unknown(reason)),
        }
    }

    /// Records that the root names the tree of the cut.
    fn committed(&mut self, cut: &Cut, tree: Id, generation: u64) -> Result<(), VolumeError> {
        self.volume.has_rescued.store(false, Ordering::SeqCst);
        if let Some(journals) = self.journals.clone() {
            let covered = cut.covered;
            tokio::spawn(async move { journals.covered(covered).await });
        }
        let layer = {
            let mut state = self.volume.view.state()?.lock();
            state.covered = state.covered.max(cut.covered);
            state.committed(tree, cut.next_inode)
        };
        self.cut = None;
        self.generation = generation;
        self.volume.usage.landed(&cut.unsent);
        *self.volume.last_commit.lock() = Some(self.volume.now());
        drop(layer);
        Ok(())
    }

    /// Tells the volume what became of a commit that was not made.
    fn failed(&self, failure: RootFailure) -> VolumeError {
        let error = match failure {
            RootFailure::Lost(why) => {
                let error = VolumeError::Commit(why);
                self.volume.poison(error.clone());
                return error;
            }
            RootFailure::Unknown(why) => VolumeError::OutcomeUnknown(why),
            RootFailure::Again(why) | RootFailure::Refused(why) => VolumeError::Commit(why),
        };
        self.volume.note_failure(&error);
        error
    }
}
