//! Commits: how a volume's new tree gets into the root (docs/PROTOCOL.md, rules 1, 3 and 5).
//!
//! Owns the order of a commit's writes, and what is known of the volume's last commit. The order is
//! one of types. [`RootCommitter::begin`] stores the commit record and returns a [`RecordedCommit`].
//! That puts everything into the bucket (data packs, metadata packs, index object) and returns a
//! [`FinishedCommit`]. That writes the lists of a snapshot and replaces the root. The caller stores
//! the nodes of the tree before all of this.
//!
//! A conflict repeats these checks against the root that won: the volume's entry (fencing); that
//! foreign packs relied on are live (rule 3 ‡); that absorbed index objects are listed; snapshots.
//! If the answer is lost, the volume's entry decides whether the commit was made, at once or at the
//! next commit. If others have committed on top, their records are followed back.
//!
//! A snapshot-only committer leaves the volume as it is, and its session does not hold it. Its
//! records have number 0 and are outside of the volume's chain; the list of snapshots decides.

use super::adding::add_snapshot;
use super::commit_request::{CommitRequest, RootCommit};
use super::error::RootError;
use super::finish::PackFinisher;
use super::handle::{RootHandle, Transition};
use super::lists::Lists;
use super::record::{CommitRecord, RecordedSnapshot, Replayed};
use super::refusal::Refusal;
use super::relied::check_relied_on;
use super::shard::ListRef;
use super::snapshots::{NewSnapshot, SnapshotEntry};
use super::start::EarlyRead;
use super::state::{Root, SessionId, Volume};
use super::transition::CommitChange;
use super::uploads::Uploads;
use async_trait::async_trait;
use bkfs_chunker::id::Id;
use bkfs_chunker::ingest::FinishedPacks;
use std::sync::Arc;
use tokio::sync::{Mutex, MutexGuard};

/// The most commits of others that are followed back to determine a commit's outcome.
const RECORDS_FOLLOWED_MAX: u64 = 4096;

/// Returns whether the commit with this number and this record is the last one of the volume `entry`
/// in `root`, or one before it.
///
/// # Errors
/// [`RootError::OutcomeUnknown`] after 4,096 later commits; [`RootError::Damaged`] for a record that
/// cannot be decoded; those of [`Lists::condemned`] and [`Uploads::read_record`].
pub(super) async fn follows<U: Uploads>(
    root: &Root,
    lists: &Lists,
    uploads: &U,
    entry: &Volume,
    (number, commit): (u64, Id),
) -> Result<bool, RootError> {
    let (mut next, mut sequence) = (entry.commit, entry.sequence);
    for _ in 0..=RECORDS_FOLLOWED_MAX {
        let Some(id) = next.filter(|_| sequence > number) else {
            return Ok(sequence == number && next == Some(commit));
        };
        let condemned = lists.condemned(root).await?;
        let sources = lists.sources(root).await?;
        let bytes = uploads.read_record(&sources, &condemned, id).await?;
        let record = CommitRecord::decode(&bytes)
            .map_err(|reason| RootError::damaged(&format!("commit record {id}"), reason))?;
        next = record.parent;
        // The commits of a volume are numbered without a gap.
        sequence -= 1;
    }
    Err(RootError::OutcomeUnknown {
        reason: "too many commits were made since".to_owned(),
    })
}

/// Commits one volume for one session, one commit at a time.
pub struct RootCommitter<U: Uploads> {
    handle: RootHandle,
    lists: Lists,
    session: SessionId,
    volume: String,
    uploads: Arc<U>,
    /// Ended sessions whose operations are in every tree that is committed here (rule 7).
    replayed: Vec<Replayed>,
    /// Ended sessions whose spools hold nothing beyond what is committed here.
    claimed: Vec<SessionId>,
    is_snapshot_only: bool,
    state: Mutex<LastCommit<U::Mark>>,
}

/// State of the volume's last commit in this process.
struct LastCommit<M> {
    sequence: u64,
    last: Option<Id>,
    /// The commit in progress, or one whose outcome is unknown.
    pending: Option<Pending<M>>,
}

struct Pending<M> {
    record: Id,
    sequence: u64,
    parent: Option<Id>,
    packs: PackFinisher<M>,
    /// The snapshot in the replacement that was sent last.
    snapshot: Option<SnapshotEntry>,
    /// Whether that replacement moves an older snapshot of this name to the trash.
    has_replaced: bool,
    /// The list that the replacement names anew, with its entries.
    list: Option<(ListRef, Vec<SnapshotEntry>)>,
}

/// A commit whose record is stored, in packs that are not finished.
///
/// Dropped, it has not changed the root: the record stays in the packs of the session. It holds the
/// volume's turn to commit, so drop it before the next call of the committer.
#[must_use = "a commit is made by `finish_packs` and `replace_root`"]
pub struct RecordedCommit<'a, U: Uploads> {
    committer: &'a RootCommitter<U>,
    request: &'a CommitRequest<U::Mark>,
    /// Held until the commit ends: a volume has one commit at a time.
    state: MutexGuard<'a, LastCommit<U::Mark>>,
    record: Id,
    sequence: u64,
}

/// A commit of which everything that it names is in the bucket.
///
/// Dropped, it has not changed the root: its packs stay pending for the next commit, and an index
/// object that no root names stays in the bucket. It holds the volume's turn as [`RecordedCommit`]
/// does.
#[must_use = "a commit is made by `replace_root`"]
pub struct FinishedCommit<'a, U: Uploads> {
    committer: &'a RootCommitter<U>,
    request: &'a CommitRequest<U::Mark>,
    state: MutexGuard<'a, LastCommit<U::Mark>>,
    pending: Pending<U::Mark>,
    /// The root as it was read meanwhile.
    early: EarlyRead,
}

impl<U: Uploads> RootCommitter<U> {
    /// Returns the committer of `volume` for `session`, which holds it in the newest known root.
    ///
    /// # Errors
    /// [`RootError::Refused`] with [`Refusal::Fenced`] if the session does not hold the volume.
    pub fn new(
        handle: RootHandle,
        lists: Lists,
        session: SessionId,
        volume: &str,
        uploads: Arc<U>,
    ) -> Result<Self, RootError> {
        let view = handle.current();
        let entry = view.root.require_holder(session, volume)?;
        let state = LastCommit {
            sequence: entry.sequence,
            last: entry.commit,
            pending: None,
        };
        Ok(Self {
            handle,
            lists,
            session,
            volume: volume.to_owned(),
            uploads,
            replayed: Vec::new(),
            claimed: Vec::new(),
            is_snapshot_only: false,
            state: Mutex::new(state),
        })
    }

    /// Returns a snapshot-only committer for a live session. Its trees follow the commit `parent`.
    pub fn snapshot_only(
        handle: RootHandle,
        lists: Lists,
        session: SessionId,
        volume: &str,
        uploads: Arc<U>,
        parent: Option<Id>,
    ) -> Self {
        Self {
            handle,
            lists,
            session,
            volume: volume.to_owned(),
            uploads,
            replayed: Vec::new(),
            claimed: Vec::new(),
            is_snapshot_only: true,
            state: Mutex::new(LastCommit {
                sequence: 0,
                last: parent,
                pending: None,
            }),
        }
    }

    /// Names ended sessions whose acknowledged operations are in the trees. They leave the root
    /// with the first commit (`ReplayCommitCas`); until then their packs count as own.
    pub fn replaying(self, replayed: Vec<Replayed>) -> Self {
        Self { replayed, ..self }
    }

    /// Names ended sessions whose spools hold nothing that the trees do not. Replayed ones leave no
    /// recovery base; the snapshot of a snapshot-only committer removes their recovery bases.
    pub fn claiming(self, claimed: Vec<SessionId>) -> Self {
        Self { claimed, ..self }
    }

    /// Returns the generation of the newest known root.
    pub fn known_generation(&self) -> u64 {
        self.handle.current().root.generation
    }

    /// Returns true if it makes snapshots only, and leaves the volume as it is.
    pub fn is_snapshot_only(&self) -> bool {
        self.is_snapshot_only
    }

    /// Commits a tree, with a snapshot if requested: all steps in their order.
    ///
    /// Cancel safety: dropped, it leaves the root as it was, or the commit pending with an unknown
    /// outcome, which the next call of this or of [`RootCommitter::settle_pending`] determines.
    ///
    /// # Errors
    /// Those of [`RootCommitter::begin`], [`RecordedCommit::finish_packs`] and
    /// [`FinishedCommit::replace_root`].
    pub async fn commit(&self, request: CommitRequest<U::Mark>) -> Result<RootCommit, RootError> {
        let recorded = self.begin(&request).await?;
        let finished = recorded.finish_packs().await?;
        finished.replace_root().await
    }

    /// Begins a commit: determines the outcome of the commit before it, and stores the record.
    ///
    /// Cancel safety: dropped, it leaves a commit of unknown outcome pending, and maybe a record
    /// that no root names.
    ///
    /// # Errors
    /// - Those of [`RootCommitter::settle_pending`].
    /// - [`RootError::Refused`] with [`Refusal::Fenced`] if the newest root that is known shows
    ///   another holder, or another last commit.
    /// - [`RootError::Content`] if the record cannot be stored.
    pub async fn begin<'a>(
        &'a self,
        request: &'a CommitRequest<U::Mark>,
    ) -> Result<RecordedCommit<'a, U>, RootError> {
        let mut state = self.state.lock().await;
        self.settle(&mut state).await?;
        let view = self.handle.current();
        if !self.is_snapshot_only {
            let held = (view.root).require_parent(self.session, &self.volume, state.last);
            // A repair must not find a record of a former holder that passes those of the new one.
            held.map_err(|refusal| self.name_new_holder(refusal.into()))?;
        }
        let generation = view.root.generation + 1;
        let sequence = match (self.is_snapshot_only, state.last) {
            (true, _) => 0,
            (false, Some(_)) => state.sequence + 1,
            // Each commit takes a generation. So neither a former volume of this name has counted
            // as far, nor a former holder.
            (false, None) => view.root.generation,
        };
        let record = self.record(request, (sequence, generation), state.last);
        let record = self.uploads.store_record(record.encode()).await?;
        Ok(RecordedCommit {
            committer: self,
            request,
            state,
            record,
            sequence,
        })
    }

    /// Adds the holder to a refusal without one: a session that left the root names no volume.
    fn name_new_holder(&self, error: RootError) -> RootError {
        match error {
            RootError::Refused(Refusal::Fenced { by: None }) => {
                let view = self.handle.current();
                match view.root.require_holder(self.session, &self.volume) {
                    Err(refusal) => refusal.into(),
                    Ok(_) => Refusal::Fenced { by: None }.into(),
                }
            }
            error => error,
        }
    }

    /// Determines the outcome of a pending commit. Returns the commit if it was made; none if it
    /// was not made or none is pending. Cancel safety: dropped, it leaves the commit pending.
    ///
    /// # Errors
    /// Each leaves the outcome unknown; [`RootError::OutcomeUnknown`] after 4,096 later commits.
    pub async fn settle_pending(&self) -> Result<Option<RootCommit>, RootError> {
        self.settle(&mut *self.state.lock().await).await
    }

    async fn settle(
        &self,
        state: &mut LastCommit<U::Mark>,
    ) -> Result<Option<RootCommit>, RootError> {
        let Some(pending) = &state.pending else {
            return Ok(None);
        };
        let view = self.handle.settle().await?;
        let made = self.was_made(&view.root, pending).await?;
        let committed = made.then(|| RootCommit {
            // The first root that holds the commit is unknown, unless the snapshot names it.
            generation: pending
                .snapshot
                .as_ref()
                .map_or(view.root.generation, |snapshot| snapshot.generation),
            sequence: pending.sequence,
            record: pending.record,
            snapshot: pending.snapshot.clone(),
            has_replaced: pending.has_replaced,
        });
        self.close(state, made);
        Ok(committed)
    }

    /// Records the outcome of the pending commit.
    fn close(&self, state: &mut LastCommit<U::Mark>, made: bool) {
        let Some(mut pending) = state.pending.take() else {
            return;
        };
        if let Some((list, entries)) = pending.list.take().filter(|_| made) {
            self.lists.keep_snapshots(&list, entries);
        }
        if made && !self.is_snapshot_only {
            state.sequence = pending.sequence;
            state.last = Some(pending.record);
        }
        pending.packs.settle(&*self.uploads, made);
    }

    /// Returns whether a commit that can no longer be made is in `root` or before it (rule 5).
    async fn was_made(&self, root: &Root, pending: &Pending<U::Mark>) -> Result<bool, RootError> {
        if self.is_snapshot_only {
            let kept = self.lists.snapshots(root).await?;
            if kept.iter().any(|entry| entry.commit == pending.record) {
                return Ok(true);
            }
            // Another machine may have forgotten it since.
            let trash = self.lists.known_trash(&root.trash).await?;
            let mut forgotten = trash.iter().flat_map(|shard| shard.iter());
            return Ok(forgotten.any(|entry| entry.snapshot.commit == pending.record));
        }
        let Some(entry) = root.volumes.get(&self.volume) else {
            return Ok(false);
        };
        let commit = (pending.sequence, pending.record);
        follows(root, &self.lists, &*self.uploads, entry, commit).await
    }

    fn replayed_sessions(&self) -> impl Iterator<Item = SessionId> + '_ {
        self.replayed.iter().map(|replayed| replayed.session)
    }

    fn record(
        &self,
        request: &CommitRequest<U::Mark>,
        (sequence, generation): (u64, u64),
        parent: Option<Id>,
    ) -> CommitRecord {
        let snapshot = request.snapshot.as_ref().map(|snapshot| RecordedSnapshot {
            name: snapshot.name.clone(),
            host: snapshot.host.clone(),
            user: snapshot.user.clone(),
            tags: snapshot.tags.clone(),
        });
        // Only the commit that removes these sessions from the root carries out their operations.
        let root = &self.handle.current().root;
        let standing = |replayed: &&Replayed| root.sessions.contains_key(&replayed.session);
        let replayed: Vec<Replayed> = self.replayed.iter().filter(standing).copied().collect();
        CommitRecord {
            replayed: (!replayed.is_empty()).then_some(replayed),
            volume: self.volume.clone(),
            session: self.session,
            sequence,
            parent,
            tree: request.tree,
            time: request.clock,
            covered: request.covered,
            next_inode: request.next_inode,
            inodes: request.inodes,
            bytes: request.bytes,
            snapshot,
            removes: false,
            generation: Some(generation),
        }
    }
}

impl<'a, U: Uploads> RecordedCommit<'a, U> {
    /// Puts everything that the tree and the record need into the bucket: data packs, then metadata
    /// packs, then an index object that lists them.
    ///
    /// Cancel safety: dropped, it leaves the packs to the next commit, and maybe an index object
    /// that no root names.
    ///
    /// # Errors
    /// [`RootError::Content`]: nothing is committed, and the contents stay pending.
    pub async fn finish_packs(self) -> Result<FinishedCommit<'a, U>, RootError> {
        let mut packs = PackFinisher::since(self.request.mark);
        let current = self.committer.handle.current();
        let uploads = &*self.committer.uploads;
        let uncovered = current.root.uncovered_index();
        let finish = packs.finish_for(uploads, &uncovered);
        let (finished, early) = self.committer.handle.read_during(finish).await;
        finished?;
        let pending = Pending {
            record: self.record,
            sequence: self.sequence,
            parent: self.state.last,
            packs,
            snapshot: None,
            has_replaced: false,
            list: None,
        };
        Ok(FinishedCommit {
            committer: self.committer,
            request: self.request,
            state: self.state,
            pending,
            early,
        })
    }
}

impl<U: Uploads> FinishedCommit<'_, U> {
    /// Replaces the root by one that names the commit, and writes the lists of its snapshot before.
    ///
    /// Cancel safety: dropped, it leaves the commit pending with an unknown outcome, which the next
    /// [`RootCommitter::begin`] or [`RootCommitter::settle_pending`] determines.
    ///
    /// # Errors
    /// - [`RootError::Refused`] with [`Refusal::Fenced`]: the session has lost the volume for good.
    /// - [`RootError::Rebuild`]: store the contents of these packs again, and commit a new tree.
    /// - [`RootError::OutcomeUnknown`]: the tree may be committed; the next call determines it.
    /// - [`RootError::NotAtomic`]: the store acknowledged the commit, and does not show it.
    /// - [`RootError::NameTaken`], [`RootError::Content`], [`RootError::Store`] and others: the
    ///   tree is not committed. The stored contents stay pending for the next commit.
    pub async fn replace_root(mut self) -> Result<RootCommit, RootError> {
        let (committer, request) = (self.committer, self.request);
        // Dropped after this point, the future leaves the commit pending for the next call.
        let pending = self.state.pending.insert(self.pending);
        let (sequence, record) = (pending.sequence, pending.record);
        let mut replacement = CommitCas {
            committer,
            pending,
            request,
        };
        let early = self.early;
        match committer.handle.update_early(early, &mut replacement).await {
            Ok(applied) => {
                let snapshot = replacement.pending.snapshot.take();
                let has_replaced = replacement.pending.has_replaced;
                committer.close(&mut self.state, true);
                Ok(RootCommit {
                    generation: applied.generation,
                    sequence,
                    record,
                    snapshot,
                    has_replaced,
                })
            }
            Err(error) => {
                if !matches!(error, RootError::OutcomeUnknown { .. }) {
                    committer.close(&mut self.state, false);
                }
                Err(committer.name_new_holder(error))
            }
        }
    }
}

struct CommitCas<'a, U: Uploads> {
    committer: &'a RootCommitter<U>,
    pending: &'a mut Pending<U::Mark>,
    request: &'a CommitRequest<U::Mark>,
}

#[async_trait]
impl<U: Uploads> Transition for CommitCas<'_, U> {
    type Output = ();

    fn session(&self) -> Option<SessionId> {
        Some(self.committer.session)
    }

    async fn apply(&mut self, next: &mut Root) -> Result<Self::Output, RootError> {
        let (session, volume) = (self.committer.session, &self.committer.volume);
        if self.committer.is_snapshot_only {
            return self.apply_listed(next).await;
        }
        next.require_parent(session, volume, self.pending.parent)?;
        let uploads = &*self.committer.uploads;
        let absorbable = next.uncovered_index();
        let index = (self.pending.packs.finish_for(uploads, &absorbable)).await?;
        self.require_relied_on(next).await?;
        let finished = self.finished()?;
        let change = CommitChange {
            session,
            volume: volume.clone(),
            parent: self.pending.parent,
            sequence: self.pending.sequence,
            commit: self.pending.record,
            tree: self.request.tree,
            building: self.request.building,
            covered: self.request.covered,
            covered_journal: self.request.covered_journal,
            floor: finished.floor,
            next_inode: self.request.next_inode,
            inodes: self.request.inodes,
            bytes: self.request.bytes,
            new_bytes: finished.new_bytes,
            replayed: self.committer.replayed_sessions().collect(),
            claimed: self.committer.claimed.clone(),
        };
        next.commit(&change)?;
        next.change_index(&index)?;
        if let Some(request) = &self.request.snapshot {
            let entry = next.require_holder(session, volume)?.clone();
            self.add_snapshot(next, &entry, request).await?;
            next.count_anew(session, volume)?;
        }
        Ok(())
    }

    async fn seen(&mut self, root: &Root) -> Result<bool, RootError> {
        self.committer.was_made(root, self.pending).await
    }
}

impl<U: Uploads> CommitCas<'_, U> {
    /// Adds the snapshot and its packs to the root; the volume's entry stays as it is.
    async fn apply_listed(&mut self, next: &mut Root) -> Result<(), RootError> {
        next.require_live(self.committer.session)?;
        let uploads = &*self.committer.uploads;
        let absorbable = next.uncovered_index();
        let index = (self.pending.packs.finish_for(uploads, &absorbable)).await?;
        self.require_relied_on(next).await?;
        let finished = self.finished()?;
        // The snapshot keeps what the session has built for it.
        let (session, volume) = (self.committer.session, &self.committer.volume);
        let built = next.take_built(session, volume, self.request.tree);
        let state = Volume {
            tree: self.request.tree,
            commit: Some(self.pending.record),
            inodes: self.request.inodes,
            bytes: self.request.bytes,
            unsnapshotted_bytes: finished.new_bytes.saturating_add(built),
            ..Volume::default()
        };
        next.raise_floor(session, finished.floor);
        next.change_index(&index)?;
        if let Some(request) = &self.request.snapshot {
            self.add_snapshot(next, &state, request).await?;
            next.drop_recovery_bases(&self.committer.claimed);
        }
        Ok(())
    }

    async fn add_snapshot(
        &mut self,
        next: &mut Root,
        state: &Volume,
        request: &NewSnapshot,
    ) -> Result<(), RootError> {
        let RootCommitter {
            lists,
            volume,
            uploads,
            ..
        } = self.committer;
        let added = add_snapshot(next, lists, &**uploads, (volume, state), request).await?;
        self.pending.list = Some(added.list);
        self.pending.snapshot = Some(added.entry);
        self.pending.has_replaced = added.has_replaced;
        Ok(())
    }

    /// Checks rule 3 ‡ for the packs that are finished.
    async fn require_relied_on(&self, next: &Root) -> Result<(), RootError> {
        let RootCommitter {
            lists,
            session,
            uploads,
            replayed,
            ..
        } = self.committer;
        let by = (*session, replayed.as_slice());
        check_relied_on(next, self.finished()?, by, lists, &**uploads).await
    }

    fn finished(&self) -> Result<&FinishedPacks, RootError> {
        let finished = self.pending.packs.finished();
        Ok(finished.ok_or(Refusal::ListsChanged)?)
    }
}
