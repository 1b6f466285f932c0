//! Commits: how a volume's new tree gets into the root, and a snapshot with it (protocol.md, rules 1, 3 and 5).
//!
//! Owns the order of the writes of a commit, and what this process knows of its volume's last commit. Does not make trees, and stores no contents: that is
//! behind [`Uploads`], whose acknowledgement ([`Sealed`]) is the only way to a replacement of the root.
//!
//! The order is: the tree's nodes are stored by the caller; the commit record is stored; everything is sealed (data packs, metadata packs, index object);
//! lists for a snapshot are written; the root is replaced. A conflict makes the checks anew against the root that won: the volume's entry (fencing), that every
//! foreign pack relied on is still live (rule 3 ‡), that the index objects which were absorbed are still there, and the list of snapshots.
//!
//! If the answer is lost, the volume's entry decides, then or at the next commit. If another session has committed on top meanwhile, the records of its
//! commits are followed back by their parents to see whether ours is among them.
//!
//! A committer *beside* a volume makes nothing but snapshots: of trees that are not the volume's state, by a session that does not hold it. Their records have number 0 and
//! are no link of the volume's chain; the list of snapshots decides what became of them.

use super::error::RootError;
use super::handle::{RootHandle, Transition};
use super::lists::{ListWriter, Lists, put_shard};
use super::record::{CommitRecord, RecordedSnapshot, Replayed};
use super::snapshots::{SnapshotEntry, SnapshotRequest, new_entry, shards_to_merge};
use super::state::{Root, SessionId, Volume};
use super::transition::{CommitChange, IndexChange, ListChange, Refusal};
use async_trait::async_trait;
use bkfs_chunker::catalog::IndexRef;
use bkfs_chunker::id::Id;
use bkfs_chunker::ingest::Sealed;
use bkfs_chunker::pack::PackName;
use bytes::Bytes;
use jiff::Timestamp;
use std::collections::HashSet;
use std::sync::Arc;
use tokio::sync::Mutex;

/// How many commits of others are followed back to find out what became of one of ours.
const RECORDS_FOLLOWED_MAX: u64 = 4096;

/// What a commit needs of whatever stores contents for its session.
#[async_trait]
pub trait Uploads: ListWriter + 'static {
    /// A line drawn before the tree of a commit was made: see [`bkfs_chunker::ingest::Ingest::mark`].
    type Mark: Copy + Send + Sync;

    /// Stores a commit record as a blob of kind commit.
    async fn store_record(&self, record: Vec<u8>) -> Result<Id, RootError>;

    /// Reads a commit record that some session stored, as of `root`. Not verified beyond its id.
    async fn read_record(&self, root: &Root, id: Id) -> Result<Bytes, RootError>;

    /// Everything stored before is in the bucket when this returns, held by index objects that follow `current`, the root's list.
    async fn seal_since(&self, mark: Self::Mark, current: &[IndexRef])
    -> Result<Sealed, RootError>;

    /// Which of `packs` are held by no index object of `index`, or are condemned.
    async fn not_live(
        &self,
        index: &[IndexRef],
        condemned: &HashSet<PackName>,
        packs: &[PackName],
    ) -> Result<Vec<PackName>, RootError>;

    /// The root took it.
    fn committed(&self, sealed: Sealed);

    /// The root did not take it, and never will.
    fn conflicted(&self, sealed: Sealed);
}

/// What is to be committed: a tree whose nodes are stored.
#[derive(Clone, Debug)]
pub struct CommitRequest<M> {
    /// The line drawn before the tree was made.
    pub mark: M,
    /// The root node of the tree.
    pub tree: Option<Id>,
    /// That of a tree that is being built, for copies; only where the root has a chain.
    pub building: Option<Id>,
    /// The last operation of this session that the tree holds.
    pub covered: u64,
    /// The number of its last journal of which that is true; none if it counts none.
    pub covered_journal: Option<u64>,
    /// The lowest inode number not yet given out.
    pub next_inode: u64,
    /// Inodes in the tree.
    pub inodes: u64,
    /// Bytes of file contents in the tree.
    pub bytes: u64,
    /// The time on the host's clock.
    pub clock: Timestamp,
    /// A snapshot that is made in the same step.
    pub snapshot: Option<SnapshotRequest>,
}

/// A commit that is in the root.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Committed {
    /// The generation of the root that made it.
    pub generation: u64,
    /// Its number among the volume's commits.
    pub sequence: u64,
    /// Its record.
    pub record: Id,
    /// The snapshot that was made with it.
    pub snapshot: Option<SnapshotEntry>,
}

/// Commits one volume for one session, one commit at a time.
pub struct Committer<U: Uploads> {
    handle: RootHandle,
    lists: Lists,
    session: SessionId,
    volume: String,
    uploads: Arc<U>,
    /// Ended sessions whose operations every tree holds that is committed here (rule 7).
    replayed: Vec<Replayed>,
    /// Ended sessions whose spools hold nothing beyond what is committed here.
    claimed: Vec<SessionId>,
    is_beside: bool,
    state: Mutex<State<U::Mark>>,
}

/// What this process knows of its volume.
struct State<M> {
    sequence: u64,
    last: Option<Id>,
    /// The commit under way, or one whose outcome is unknown.
    pending: Option<Pending<M>>,
}

struct Pending<M> {
    record: Id,
    sequence: u64,
    parent: Option<Id>,
    mark: M,
    /// Only absent while it is made again.
    sealed: Option<Sealed>,
    /// The root's list that it was made for.
    sealed_for: Vec<IndexRef>,
    /// The snapshot in the replacement that was sent last.
    snapshot: Option<SnapshotEntry>,
}

impl<U: Uploads> Committer<U> {
    /// Commits `volume` for `session`, which holds it.
    ///
    /// # Errors
    /// A refusal of kind `Fenced` if it does not hold it any more.
    pub fn new(
        handle: RootHandle,
        lists: Lists,
        session: SessionId,
        volume: &str,
        uploads: Arc<U>,
    ) -> Result<Self, RootError> {
        let view = handle.current();
        let entry = view.root.require_holder(session, volume)?;
        let state = State {
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
            is_beside: false,
            state: Mutex::new(state),
        })
    }

    /// Makes snapshots of `volume` beside its chain of commits, for a live session; what they are made of follows the commit `parent`.
    pub fn beside(
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
            is_beside: true,
            state: Mutex::new(State {
                sequence: 0,
                last: parent,
                pending: None,
            }),
        }
    }

    /// The same for trees that hold what these ended sessions acknowledged: they leave the root in the same step as the first commit (`ReplayCommitCas`), and until
    /// then their packs count as own.
    pub fn replaying(self, replayed: Vec<Replayed>) -> Self {
        Self { replayed, ..self }
    }

    /// The same for trees that hold all that the spools of these ended sessions do: replayed ones
    /// leave no ground; beside a volume, the ground that one has left goes in the step that makes
    /// the snapshot.
    pub fn claiming(self, claimed: Vec<SessionId>) -> Self {
        Self { claimed, ..self }
    }

    /// Commits a tree, and makes a snapshot of it if one is asked for.
    ///
    /// # Errors
    /// - `Fenced`: the volume is lost; nothing of this session will be committed any more.
    /// - [`RootError::Rebuild`]: store again what the named packs held, make the tree anew, and commit that.
    /// - [`RootError::OutcomeUnknown`]: it may be committed; the next call finds out first.
    /// - [`RootError::NameTaken`] and others: it was not committed; what was stored stays pending for the next commit.
    pub async fn commit(&self, request: CommitRequest<U::Mark>) -> Result<Committed, RootError> {
        let mut state = self.state.lock().await;
        self.settle(&mut state).await?;
        let sequence = match self.is_beside {
            true => 0,
            false => state.sequence + 1,
        };
        let record = self.record(&request, sequence, state.last);
        let record = self.uploads.store_record(record.encode()).await?;
        let sealed_for = self.handle.current().root.index.clone();
        let sealed = self.uploads.seal_since(request.mark, &sealed_for).await?;
        let parent = state.last;
        // From here on a dropped future leaves the commit pending, for the next call to settle.
        let pending = state.pending.insert(Pending {
            record,
            sequence,
            parent,
            mark: request.mark,
            sealed: Some(sealed),
            sealed_for,
            snapshot: None,
        });
        let made = self
            .handle
            .update(&mut CommitCas {
                committer: self,
                pending,
                request: &request,
            })
            .await;
        match made {
            Ok(applied) => {
                self.close(&mut state, true);
                Ok(Committed {
                    generation: applied.generation,
                    sequence,
                    record,
                    snapshot: applied.output,
                })
            }
            Err(error) => {
                if !matches!(error, RootError::OutcomeUnknown { .. }) {
                    self.close(&mut state, false);
                }
                Err(self.name_taker(error))
            }
        }
    }

    /// Says who holds the volume now, if a refusal does not: a session that has left the root altogether does not tell what its volume was.
    fn name_taker(&self, error: RootError) -> RootError {
        match error {
            RootError::Refused(Refusal::Fenced { by: None }) => {
                match self
                    .handle
                    .current()
                    .root
                    .require_holder(self.session, &self.volume)
                {
                    Err(refusal) => refusal.into(),
                    Ok(_) => Refusal::Fenced { by: None }.into(),
                }
            }
            error => error,
        }
    }

    /// Finds out what became of a commit whose outcome is unknown: what it did, if it was made. None if there is none to decide.
    ///
    /// # Errors
    /// If it still cannot be told.
    pub async fn settle_pending(&self) -> Result<Option<Committed>, RootError> {
        self.settle(&mut *self.state.lock().await).await
    }

    async fn settle(&self, state: &mut State<U::Mark>) -> Result<Option<Committed>, RootError> {
        let Some(pending) = &state.pending else {
            return Ok(None);
        };
        let view = self.handle.settle().await?;
        let made = self.was_made(&view.root, pending).await?;
        let committed = made.then(|| Committed {
            // The first root that held it is not known, unless its snapshot tells.
            generation: pending
                .snapshot
                .as_ref()
                .map_or(view.root.generation, |snapshot| snapshot.generation),
            sequence: pending.sequence,
            record: pending.record,
            snapshot: pending.snapshot.clone(),
        });
        self.close(state, made);
        Ok(committed)
    }

    /// The pending commit is decided.
    fn close(&self, state: &mut State<U::Mark>, made: bool) {
        let Some(pending) = state.pending.take() else {
            return;
        };
        if made && !self.is_beside {
            state.sequence = pending.sequence;
            state.last = Some(pending.record);
        }
        match pending.sealed {
            Some(sealed) if made => self.uploads.committed(sealed),
            Some(sealed) => self.uploads.conflicted(sealed),
            None => {}
        }
    }

    /// Whether a commit that can no longer be made was made before `root` came to be: rule 5, the volume's entry decides.
    async fn was_made(&self, root: &Root, pending: &Pending<U::Mark>) -> Result<bool, RootError> {
        if self.is_beside {
            let kept = self.lists.snapshots(root).await?;
            return Ok(kept.iter().any(|entry| entry.commit == pending.record));
        }
        let Some(entry) = root.volumes.get(&self.volume) else {
            return Ok(false);
        };
        let (mut last, mut sequence) = (entry.commit, entry.sequence);
        if sequence.saturating_sub(pending.sequence) > RECORDS_FOLLOWED_MAX {
            return Err(RootError::OutcomeUnknown {
                reason: "too many commits were made since".to_owned(),
            });
        }
        while sequence > pending.sequence {
            let Some(id) = last else { return Ok(false) };
            let bytes = self.uploads.read_record(root, id).await?;
            let record = CommitRecord::decode(&bytes)
                .map_err(|reason| RootError::damaged(&format!("commit record {id}"), reason))?;
            last = record.parent;
            sequence -= 1;
        }
        Ok(sequence == pending.sequence && last == Some(pending.record))
    }

    fn replayed_sessions(&self) -> impl Iterator<Item = SessionId> + '_ {
        self.replayed.iter().map(|replayed| replayed.session)
    }

    fn record(
        &self,
        request: &CommitRequest<U::Mark>,
        sequence: u64,
        parent: Option<Id>,
    ) -> CommitRecord {
        let snapshot = request.snapshot.as_ref().map(|snapshot| RecordedSnapshot {
            name: snapshot.name.clone(),
            host: snapshot.host.clone(),
            user: snapshot.user.clone(),
            tags: snapshot.tags.clone(),
        });
        // Only the commit that takes them out of the root carries them out.
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
        }
    }
}

/// Step `CommitCas`.
struct CommitCas<'a, U: Uploads> {
    committer: &'a Committer<U>,
    pending: &'a mut Pending<U::Mark>,
    request: &'a CommitRequest<U::Mark>,
}

#[async_trait]
impl<U: Uploads> Transition for CommitCas<'_, U> {
    type Output = Option<SnapshotEntry>;

    fn session(&self) -> Option<SessionId> {
        Some(self.committer.session)
    }

    async fn apply(&mut self, next: &mut Root) -> Result<Self::Output, RootError> {
        let (session, volume) = (self.committer.session, &self.committer.volume);
        if self.committer.is_beside {
            return self.apply_beside(next).await;
        }
        next.require_parent(session, volume, self.pending.parent)?;
        let index = self.current_index(next).await?;
        self.check_relied_on(next).await?;
        let sealed = self.pending.sealed.as_ref().ok_or(Refusal::ListsChanged)?;
        let change = CommitChange {
            session,
            volume: volume.clone(),
            parent: self.pending.parent,
            commit: self.pending.record,
            tree: self.request.tree,
            building: self.request.building,
            covered: self.request.covered,
            covered_journal: self.request.covered_journal,
            floor: sealed.floor,
            next_inode: self.request.next_inode,
            inodes: self.request.inodes,
            bytes: self.request.bytes,
            new_bytes: sealed.new_bytes,
            replayed: self.committer.replayed_sessions().collect(),
            claimed: self.committer.claimed.clone(),
        };
        next.commit(&change)?;
        next.change_index(&index)?;
        self.pending.snapshot = match &self.request.snapshot {
            Some(request) => {
                let entry = next.require_holder(session, volume)?.clone();
                let made = self.add_snapshot(next, &entry, request).await?;
                next.count_anew(session, volume)?;
                Some(made)
            }
            None => None,
        };
        Ok(self.pending.snapshot.clone())
    }

    async fn seen(&mut self, root: &Root) -> Result<bool, RootError> {
        self.committer.was_made(root, self.pending).await
    }
}

impl<U: Uploads> CommitCas<'_, U> {
    /// The root takes the snapshot, and the packs that it needs; the volume stays as it is.
    async fn apply_beside(&mut self, next: &mut Root) -> Result<Option<SnapshotEntry>, RootError> {
        next.require_live(self.committer.session)?;
        let index = self.current_index(next).await?;
        self.check_relied_on(next).await?;
        let sealed = self.pending.sealed.as_ref().ok_or(Refusal::ListsChanged)?;
        let state = Volume {
            tree: self.request.tree,
            commit: Some(self.pending.record),
            inodes: self.request.inodes,
            bytes: self.request.bytes,
            unsnapshotted_bytes: sealed.new_bytes,
            ..Volume::default()
        };
        next.raise_floor(self.committer.session, sealed.floor);
        next.change_index(&index)?;
        if let Some(request) = &self.request.snapshot {
            self.pending.snapshot = Some(self.add_snapshot(next, &state, request).await?);
            next.drop_grounds(&self.committer.claimed);
        }
        Ok(self.pending.snapshot.clone())
    }

    /// What the commit changes in the root's list of index objects. If one that was absorbed has left the list, its successor may hold packs that ours
    /// does not: then ours is made again.
    async fn current_index(&mut self, next: &Root) -> Result<IndexChange, RootError> {
        for _ in 0..2 {
            if let Some(sealed) = &self.pending.sealed {
                let change = IndexChange::between(&self.pending.sealed_for, &sealed.index);
                if change
                    .absorbed
                    .iter()
                    .all(|absorbed| next.index.contains(absorbed))
                {
                    return Ok(change);
                }
            }
            if let Some(sealed) = self.pending.sealed.take() {
                self.committer.uploads.conflicted(sealed);
            }
            let sealed = self
                .committer
                .uploads
                .seal_since(self.pending.mark, &next.index)
                .await?;
            self.pending.sealed_for = next.index.clone();
            self.pending.sealed = Some(sealed);
        }
        Err(Refusal::ListsChanged.into())
    }

    /// Rule 3 ‡: every pack that the commit refers to is live in the root being replaced, or the session's own by the floor *in that root*.
    async fn check_relied_on(&self, next: &Root) -> Result<(), RootError> {
        let Some(sealed) = &self.pending.sealed else {
            return Ok(());
        };
        let floor = next.require_live(self.committer.session)?.floor;
        let replayed = &self.committer.replayed;
        let own = |pack: &PackName| {
            let of = SessionId(pack.session);
            if of == self.committer.session {
                return pack.sequence >= floor;
            }
            // A taker counts its victims' packs as its own, in the step that makes them live.
            let victim = next.sessions.get(&of);
            replayed.iter().any(|replayed| replayed.session == of)
                && sealed.packs.contains(pack)
                && victim.is_some_and(|victim| pack.sequence >= victim.floor)
        };
        // A pack made live must be own too, by the same floor: one that the floor has passed may have been condemned.
        let foreign: Vec<_> = sealed
            .relied_on
            .iter()
            .chain(&sealed.packs)
            .filter(|pack| !own(pack))
            .copied()
            .collect();
        if foreign.is_empty() {
            return Ok(());
        }
        let condemned = self.committer.lists.condemned(next).await?;
        let packs = self
            .committer
            .uploads
            .not_live(&next.index, &condemned, &foreign)
            .await?;
        if packs.is_empty() {
            Ok(())
        } else {
            Err(RootError::Rebuild { packs })
        }
    }

    /// Writes the shard with a new snapshot of `state`, and puts it into `next`.
    async fn add_snapshot(
        &self,
        next: &mut Root,
        state: &Volume,
        request: &SnapshotRequest,
    ) -> Result<SnapshotEntry, RootError> {
        let Committer {
            lists,
            volume,
            uploads,
            ..
        } = self.committer;
        let kept = lists.snapshots(next).await?;
        // Numbers come back late: what cannot be read of the trash keeps no snapshot from being
        // made, and is renumbered if it comes back all the same.
        let trash = lists.known_trash(&next.trash).await?;
        let entry = new_entry(next, &kept, &trash, (volume, state), request)?;
        let removed = shards_to_merge(&next.snapshots);
        let merged = lists.snapshot_shards(&removed).await?;
        let mut entries: Vec<_> = merged
            .iter()
            .flat_map(|shard| shard.iter().cloned())
            .collect();
        entries.push(entry.clone());
        let added = put_shard(&**uploads, entries).await?;
        next.change_snapshots(&ListChange {
            removed,
            added: vec![added],
        })?;
        next.next_snapshot = entry.number.wrapping_add(1);
        Ok(entry)
    }
}
