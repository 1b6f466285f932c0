//! Transitions of the root: every change that a session may make, as pure functions.
//!
//! Owns the conditions of docs/PROTOCOL.md, rules 2, 5, 7 and 9: which session may change what in
//! which root. Neither reads nor replaces roots ([`super::handle`]), and uploads nothing. Each
//! function works on a copy that already has its new generation. It either changes that copy, or
//! leaves it as it was and returns the reason.
//!
//! The comments name the steps of the protocol's model (tests/model).

use super::refusal::Refusal;
use super::shard::ListRef;
use super::state::{
    HOLDER_TEXT_BYTES_MAX, HolderInfo, MOUNT_POINT_BYTES_MAX, Root, Session, SessionId,
    SessionState, Volume, check_name, check_new_name,
};
use super::volumes::is_scratch;
use bkfs_chunker::catalog::IndexRef;
use bkfs_chunker::id::Id;

/// The first inode number that a volume gives out. Lower ones are reserved (1 is the root
/// directory).
pub const FIRST_FREE_INODE: u64 = 16;

/// Places beyond [`Root::sessions_max`] for sessions that take a volume from its holder: the holder
/// leaves the root after that, and in a full root it could not leave otherwise.
pub const TAKING_SESSIONS_MAX: usize = 4;

/// Places beyond those for sessions that remove dead entries from the root.
pub const CLEARING_SESSIONS_MAX: usize = 4;

/// The condition under which a session takes a volume.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum Claim {
    /// Only if the volume is free.
    Free,
    /// If the volume is free, or its holder is this session, which was judged dead.
    Dead(SessionId),
    /// As [`Claim::Dead`], by a session that continues this one. Refused if the volume was taken
    /// over and set free meanwhile.
    Succeed(SessionId),
    /// From any holder.
    Steal,
}

/// The changes that a commit makes in the root.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct CommitChange {
    /// The committing session.
    pub session: SessionId,
    /// Its volume.
    pub volume: String,
    /// The id of the record of the commit that this one follows; the volume must still name it.
    pub parent: Option<Id>,
    /// The number of this commit, as its record says: one more than that of the commit that it
    /// follows.
    pub sequence: u64,
    /// The id of the record of this commit.
    pub commit: Id,
    /// The root node of the new tree.
    pub tree: Option<Id>,
    /// The root node of a tree that a copy is building. A root without a chain does not store it.
    pub building: Option<Id>,
    /// The last operation of the session that the tree contains.
    pub covered: u64,
    /// The number of the session's last journal whose operations the tree contains, if the session
    /// numbers journals.
    pub covered_journal: Option<u64>,
    /// The session's new floor. The new root refers to each older object of the session, or that
    /// object is garbage.
    pub floor: u32,
    /// The lowest inode number that was never given out.
    pub next_inode: u64,
    /// The number of inodes in the tree.
    pub inodes: u64,
    /// Bytes of file contents in the tree.
    pub bytes: u64,
    /// Bytes that this commit added to the bucket.
    pub new_bytes: u64,
    /// The ended sessions of the volume whose operations the tree contains.
    pub replayed: Vec<SessionId>,
    /// Those of them whose spools are known to hold nothing else.
    pub claimed: Vec<SessionId>,
}

/// A replacement of shards of a list: the shards that a session read, and the ones that it wrote
/// instead.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ListChange {
    /// Shards that leave the root; all must still be in it.
    pub removed: Vec<ListRef>,
    /// Shards that are added to the root.
    pub added: Vec<ListRef>,
}

/// A replacement of index objects.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct IndexChange {
    /// Index objects whose contents the added ones hold, too; all must still be in the root.
    pub absorbed: Vec<IndexRef>,
    /// New index objects.
    pub added: Vec<IndexRef>,
}

impl IndexChange {
    /// Returns the difference between the list of index objects before an upload and the list that
    /// it returned.
    pub fn between(before: &[IndexRef], after: &[IndexRef]) -> Self {
        let missing = |from: &[IndexRef], in_: &[IndexRef]| {
            let gone = from.iter().filter(|index| !in_.contains(index));
            gone.copied().collect()
        };
        Self {
            absorbed: missing(before, after),
            added: missing(after, before),
        }
    }
}

impl Root {
    /// Registers a new session, which happens before its first upload (step `RegisterCas`, rule 2).
    ///
    /// # Errors
    /// [`Refusal::SessionTaken`] if the id is registered; [`Refusal::Full`] if
    /// [`Root::sessions_max`] sessions are.
    pub fn register(&mut self, id: SessionId, holder: HolderInfo) -> Result<(), Refusal> {
        self.register_within(id, holder, self.sessions_max())
    }

    /// Returns how many sessions may be in the root for a session that takes `volume`: more if it
    /// replaces others of that volume.
    pub fn places_to_take(&self, volume: &str) -> usize {
        let holder = self.volumes.get(volume).and_then(|volume| volume.holder);
        match holder.is_some() || !self.ending_sessions(volume).is_empty() {
            true => self.sessions_max() + TAKING_SESSIONS_MAX,
            false => self.sessions_max(),
        }
    }

    /// Same as [`Root::register`], if fewer than `places` sessions are registered.
    ///
    /// # Errors
    /// Those of [`Root::register`].
    pub fn register_within(
        &mut self,
        id: SessionId,
        holder: HolderInfo,
        places: usize,
    ) -> Result<(), Refusal> {
        if self.sessions.contains_key(&id) {
            return Err(Refusal::SessionTaken(id));
        }
        if self.sessions.len() >= places {
            return Err(Refusal::Full { what: "sessions" });
        }
        let session = Session {
            state: SessionState::Live,
            floor: 0,
            volume: None,
            registered_epoch: self.epoch,
            covered: 0,
            holder: holder.cut(),
            claimed_generation: 0,
            covered_journal: None,
            spool: None,
        };
        self.sessions.insert(id, session);
        Ok(())
    }

    /// Makes the volume's entry name `id`, a live session without a volume, and its former holder
    /// an ending session (step `TakeCas`, rule 7). Creates the volume if it is absent.
    ///
    /// # Errors
    /// - [`Refusal::Held`] if `claim` does not permit to take it from its holder.
    /// - [`Refusal::Fenced`] if the session is not live, or for [`Claim::Succeed`] if the volume is
    ///   free and the former session is not in the root.
    /// - [`Refusal::BadName`] if the name is invalid, for a new volume also if it has a control
    ///   character.
    /// - [`Refusal::Full`] if the session has another volume.
    /// - [`Refusal::NoVolume`] for a scratch clone that is not there: only a clone makes one.
    pub fn claim(&mut self, id: SessionId, volume: &str, claim: Claim) -> Result<(), Refusal> {
        self.require_live(id)?;
        if is_scratch(volume) && !self.volumes.contains_key(volume) {
            let name = volume.to_owned();
            return Err(Refusal::NoVolume { name });
        }
        let check = match self.volumes.contains_key(volume) {
            true => check_name,
            false => check_new_name,
        };
        check(volume).map_err(|source| Refusal::BadName {
            name: volume.to_owned(),
            source,
        })?;
        let holder = self.volumes.get(volume).and_then(|entry| entry.holder);
        if let (Claim::Succeed(former), None) = (claim, holder)
            && !self.sessions.contains_key(&former)
        {
            return Err(Refusal::Fenced { by: None });
        }
        if let Some(held_by) = holder.filter(|holder| *holder != id) {
            let over = [Claim::Steal, Claim::Dead(held_by), Claim::Succeed(held_by)];
            let over = over.contains(&claim);
            if !over {
                return Err(self.held(volume, held_by));
            }
        }
        if self.sessions.get(&id).is_some_and(|session| {
            session
                .volume
                .as_deref()
                .is_some_and(|other| other != volume)
        }) {
            return Err(Refusal::Full {
                what: "volumes of one session",
            });
        }
        if let Some(ended_session) = holder
            .filter(|holder| *holder != id)
            .and_then(|ended_session| self.sessions.get_mut(&ended_session))
        {
            ended_session.state = SessionState::Ending;
        }
        let entry = self
            .volumes
            .entry(volume.to_owned())
            .or_insert_with(|| Volume {
                next_inode: FIRST_FREE_INODE,
                ..Volume::default()
            });
        entry.holder = Some(id);
        if let Some(session) = self.sessions.get_mut(&id) {
            session.volume = Some(volume.to_owned());
            session.claimed_generation = self.generation;
        }
        Ok(())
    }

    /// Replaces the volume's tree (step `CommitCas`, rule 5). Replayed sessions leave the root in
    /// the same replacement (step `ReplayCommitCas`, rule 7).
    ///
    /// # Errors
    /// - [`Refusal::Fenced`] if the session is not live, does not hold the volume, or the volume's
    ///   last commit is not the parent (a cloned machine has committed).
    /// - [`Refusal::Unreplayed`] if an ended session of the volume is not among the replayed ones.
    /// - [`Refusal::RecoveryBasesFull`] if the root has no room for a recovery base.
    pub fn commit(&mut self, change: &CommitChange) -> Result<(), Refusal> {
        self.require_holder(change.session, &change.volume)?;
        let entry = self
            .volumes
            .get(&change.volume)
            .ok_or(Refusal::Fenced { by: None })?;
        if entry.commit != change.parent {
            return Err(Refusal::Fenced { by: None });
        }
        let unreplayed: Vec<_> = self
            .ending_sessions(&change.volume)
            .into_iter()
            .filter(|id| !change.replayed.contains(id))
            .collect();
        if !unreplayed.is_empty() {
            return Err(Refusal::Unreplayed(unreplayed));
        }
        self.leave_recovery_bases(&change.replayed, &change.claimed, Some(change.commit))?;
        self.sessions.retain(|id, session| {
            session.state == SessionState::Live || !change.replayed.contains(id)
        });
        self.raise_floor(change.session, change.floor);
        let is_witnessed = self.chain.is_some();
        if let Some(session) = self.sessions.get_mut(&change.session) {
            session.covered = session.covered.max(change.covered);
            if is_witnessed {
                session.covered_journal = session.covered_journal.max(change.covered_journal);
            }
        }
        if let Some(entry) = self.volumes.get_mut(&change.volume) {
            entry.tree = change.tree;
            entry.building = change.building.filter(|_| is_witnessed);
            entry.sequence = change.sequence;
            entry.commit = Some(change.commit);
            entry.next_inode = entry.next_inode.max(change.next_inode);
            entry.inodes = change.inodes;
            entry.bytes = change.bytes;
            entry.unsnapshotted_bytes = entry.unsnapshotted_bytes.saturating_add(change.new_bytes);
        }
        Ok(())
    }

    /// Removes ended sessions whose journals hold nothing that no commit covers; the volume's tree
    /// stays as it is (step `ReplayCommitCas`, rule 7). The spools of the `claimed` sessions are
    /// known to hold nothing else.
    ///
    /// # Errors
    /// [`Refusal::Fenced`] if the session does not hold the volume; [`Refusal::RecoveryBasesFull`]
    /// if the root has no room for a recovery base.
    pub fn remove_replayed(
        &mut self,
        session: SessionId,
        volume: &str,
        replayed: &[SessionId],
        claimed: &[SessionId],
    ) -> Result<(), Refusal> {
        self.require_holder(session, volume)?;
        let leaves = |id: &SessionId, other: &Session| {
            other.state == SessionState::Ending
                && other.volume.as_deref() == Some(volume)
                && replayed.contains(id)
        };
        let leaving = self.sessions.iter().filter(|(id, other)| leaves(id, other));
        let leaving: Vec<SessionId> = leaving.map(|(id, _)| *id).collect();
        self.leave_recovery_bases(&leaving, claimed, None)?;
        self.sessions.retain(|id, other| !leaves(id, other));
        Ok(())
    }

    /// Removes the session from the root and sets its volume free. The caller must know that the
    /// session's last commit covers its journals.
    ///
    /// # Errors
    /// [`Refusal::Fenced`] if it is not live: the new holder that replays an ending session removes
    /// it.
    pub fn end(&mut self, id: SessionId) -> Result<(), Refusal> {
        self.require_live(id)?;
        if let Some(volume) = self.sessions.remove(&id).and_then(|session| session.volume)
            && let Some(entry) = self.volumes.get_mut(&volume)
        {
            entry.holder = None;
        }
        Ok(())
    }

    /// Removes a dead maintenance session, which has no volume and so no journal (step
    /// `EndSessionCas`). Does nothing if it is not in the root. Its process may still continue:
    /// then it finds itself unregistered, and its uploads are garbage.
    ///
    /// # Errors
    /// [`Refusal::Held`] if the dead session has a volume: it ends when that volume is taken.
    pub fn remove_dead(&mut self, dead: SessionId) -> Result<(), Refusal> {
        match self.sessions.get(&dead).map(|dead| dead.volume.clone()) {
            Some(Some(volume)) => Err(self.held(&volume, dead)),
            Some(None) => {
                self.sessions.remove(&dead);
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Checks that no session is in the root, live or ending. So no session writes without the new
    /// master key, once objects may be sealed under it.
    ///
    /// # Errors
    /// [`Refusal::Busy`], which names all sessions.
    pub fn require_no_session(&self) -> Result<(), Refusal> {
        if self.sessions.is_empty() {
            return Ok(());
        }
        let named = |(id, session): (&SessionId, &Session)| (*id, session.holder.clone());
        Err(Refusal::Busy {
            sessions: self.sessions.iter().map(named).collect(),
        })
    }

    /// Raises the floor of a session: this root refers to each object of the session below `floor`,
    /// or that object is garbage. Never lowers it.
    pub fn raise_floor(&mut self, session: SessionId, floor: u32) {
        if let Some(session) = self.sessions.get_mut(&session) {
            session.floor = session.floor.max(floor);
        }
    }

    /// Restarts the volume's count of bytes for its next snapshot, because this root adds one.
    ///
    /// # Errors
    /// [`Refusal::Fenced`] if the session does not hold the volume.
    pub fn count_anew(&mut self, session: SessionId, volume: &str) -> Result<(), Refusal> {
        self.require_holder(session, volume)?;
        if let Some(entry) = self.volumes.get_mut(volume) {
            entry.unsnapshotted_bytes = 0;
        }
        Ok(())
    }

    /// Replaces shards of the list of kept snapshots.
    ///
    /// # Errors
    /// [`Refusal::ListsChanged`] if a removed shard is not in the root. Then the caller must read
    /// the root again and make a new change.
    pub fn change_snapshots(&mut self, change: &ListChange) -> Result<(), Refusal> {
        replace_refs(&mut self.snapshots, &change.removed, &change.added)
    }

    /// Replaces shards of the trash.
    ///
    /// # Errors
    /// Those of [`Root::change_snapshots`].
    pub fn change_trash(&mut self, change: &ListChange) -> Result<(), Refusal> {
        replace_refs(&mut self.trash, &change.removed, &change.added)
    }

    /// Replaces shards of the quarantine.
    ///
    /// # Errors
    /// Those of [`Root::change_snapshots`].
    pub fn change_quarantine(&mut self, change: &ListChange) -> Result<(), Refusal> {
        replace_refs(&mut self.quarantine, &change.removed, &change.added)
    }

    /// Replaces index objects. A group of runs leaves the root with an index object that it covers.
    ///
    /// # Errors
    /// Those of [`Root::change_snapshots`], for index objects.
    pub fn change_index(&mut self, change: &IndexChange) -> Result<(), Refusal> {
        self.replace_index(change)?;
        self.drop_unfounded_groups();
        Ok(())
    }

    /// Replaces index objects, whatever that means for groups of runs.
    ///
    /// # Errors
    /// Those of [`Root::change_index`].
    pub(super) fn replace_index(&mut self, change: &IndexChange) -> Result<(), Refusal> {
        replace_refs(&mut self.index, &change.absorbed, &change.added)
    }

    /// Returns the session if it is live. Every replacement of the root requires that its own
    /// session is live in the root being replaced (rule 2 ‡).
    ///
    /// # Errors
    /// [`Refusal::Fenced`] if it is not live. For an ending session it names the holder of the
    /// session's volume now.
    pub fn require_live(&self, id: SessionId) -> Result<&Session, Refusal> {
        match self.sessions.get(&id) {
            Some(session) if session.state == SessionState::Live => Ok(session),
            Some(session) => Err(self.fenced(session.volume.as_deref())),
            None => Err(Refusal::Fenced { by: None }),
        }
    }

    /// Returns the volume's entry if the session is live and holds `volume`.
    ///
    /// # Errors
    /// [`Refusal::Fenced`] if not; it names the holder of the volume now.
    pub fn require_holder(&self, id: SessionId, volume: &str) -> Result<&Volume, Refusal> {
        let entry = self
            .volumes
            .get(volume)
            .filter(|entry| entry.holder == Some(id));
        match (entry, self.require_live(id)) {
            (Some(entry), Ok(_)) => Ok(entry),
            _ => Err(self.fenced(Some(volume))),
        }
    }

    /// Takes the tree that a copy is building out of a volume that the session holds, if it is
    /// `tree`. Returns the bytes that were added to the bucket for it.
    pub fn take_built(&mut self, id: SessionId, volume: &str, tree: Option<Id>) -> u64 {
        let held = self.volumes.get_mut(volume);
        let is_built = |held: &&mut Volume| {
            held.holder == Some(id) && held.building.is_some() && held.building == tree
        };
        let Some(held) = held.filter(is_built) else {
            return 0;
        };
        held.building = None;
        std::mem::take(&mut held.unsnapshotted_bytes)
    }

    /// Checks that the session is live, holds `volume`, and `parent` is the record of the volume's
    /// last commit.
    ///
    /// # Errors
    /// [`Refusal::Fenced`] if not. It names no holder if another machine with this session's
    /// identity has committed.
    pub fn require_parent(
        &self,
        id: SessionId,
        volume: &str,
        parent: Option<Id>,
    ) -> Result<(), Refusal> {
        if self.require_holder(id, volume)?.commit != parent {
            return Err(Refusal::Fenced { by: None });
        }
        Ok(())
    }

    fn fenced(&self, volume: Option<&str>) -> Refusal {
        let holder = volume
            .and_then(|volume| self.volumes.get(volume))
            .and_then(|entry| entry.holder);
        Refusal::Fenced {
            by: holder
                .and_then(|holder| self.sessions.get(&holder))
                .map(|session| Box::new(session.holder.clone())),
        }
    }

    pub(super) fn held(&self, volume: &str, session: SessionId) -> Refusal {
        let by = self
            .sessions
            .get(&session)
            .map(|session| session.holder.clone())
            .unwrap_or_default();
        Refusal::Held {
            volume: volume.to_owned(),
            session,
            by: Box::new(by),
        }
    }
}

/// Removes `removed` from `refs`, which must contain them all, and appends `added`.
fn replace_refs<T: PartialEq + Clone>(
    refs: &mut Vec<T>,
    removed: &[T],
    added: &[T],
) -> Result<(), Refusal> {
    if removed.iter().any(|gone| !refs.contains(gone)) {
        return Err(Refusal::ListsChanged);
    }
    refs.retain(|kept| !removed.contains(kept));
    refs.extend_from_slice(added);
    Ok(())
}

impl HolderInfo {
    /// Returns this with its texts cut to their limits, so that a long path cannot fill the root.
    pub(super) fn cut(mut self) -> Self {
        let texts = [
            &mut self.host,
            &mut self.machine_id,
            &mut self.boot_id,
            &mut self.user,
        ];
        for text in texts {
            text.truncate(text.floor_char_boundary(HOLDER_TEXT_BYTES_MAX));
        }
        let mount_point = &mut self.mount_point;
        mount_point.truncate(mount_point.floor_char_boundary(MOUNT_POINT_BYTES_MAX));
        self
    }
}
