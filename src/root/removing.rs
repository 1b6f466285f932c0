//! The replacement of the root that removes a volume (docs/PROTOCOL.md, rule 14).
//!
//! Owns its order and its contents: the volume leaves the root, and its snapshots and a last one of
//! its tree go to the trash in the same replacement, so that nothing is lost before the undelete
//! window has passed. Does not own the conditions ([`super::volumes`]).
//!
//! The last snapshot has a commit record of its own, which says that the volume was removed. A root
//! that is rebuilt from records may have a later volume of the same name, and takes that one.

use super::adding::discard;
use super::error::RootError;
use super::finish::PackFinisher;
use super::forget::rewrite;
use super::handle::{Applied, Transition};
use super::lists::Lists;
use super::record::{CommitRecord, RecordedSnapshot};
use super::refusal::Refusal;
use super::relied::check_relied_on;
use super::session::OpenSession;
use super::snapshots::{NewSnapshot, SnapshotEntry, SnapshotList, TrashEntry, new_entry};
use super::state::{Root, SessionId, Volume};
use super::uploads::Uploads;
use super::volumes::Leaving;
use async_trait::async_trait;
use bkfs_chunker::id::Id;

/// What a removal has put into the trash.
#[derive(Clone, Debug, Default)]
pub struct Removed {
    /// The snapshots of the volume, oldest first.
    pub snapshots: Vec<SnapshotEntry>,
    /// The one that was made of its tree; none of a volume that was never committed.
    pub last: Option<SnapshotEntry>,
}

/// Removes a volume in the name of `session`, which leaves the root in the same replacement.
/// `uploads` stores for it. The last snapshot is made as `last` says. Without `may_forget`, a
/// volume with snapshots is refused.
///
/// Cancel safety: dropped, it leaves a commit record and lists that no root names, or the
/// replacement sent with an unknown outcome; and the session maybe in the root without a heartbeat.
///
/// # Errors
/// - [`RootError::Refused`] with [`Refusal::NoVolume`], [`Refusal::HasSnapshots`],
///   [`Refusal::Held`] or [`Refusal::Unfinished`]: the volume stays.
/// - [`RootError::OutcomeUnknown`] if it may be removed.
/// - [`RootError::Content`], errors of lists, and the other errors of
///   [`RootHandle::update`](super::handle::RootHandle::update).
pub async fn remove_volume<U: Uploads>(
    session: OpenSession,
    lists: &Lists,
    (uploads, mark): (&U, U::Mark),
    (volume, last, may_forget): (&str, &NewSnapshot, bool),
) -> Result<Applied<Removed>, RootError> {
    let mut cas = RemoveCas {
        session: session.id(),
        volume,
        last,
        may_forget,
        record: None,
        lists,
        uploads,
        packs: PackFinisher::since(mark),
    };
    let made = session.end_by(&mut cas).await;
    cas.packs.settle(uploads, made.is_ok());
    made
}

struct RemoveCas<'a, U: Uploads> {
    session: SessionId,
    volume: &'a str,
    last: &'a NewSnapshot,
    may_forget: bool,
    /// The commit that the record of the removal follows, and the record.
    record: Option<(Id, Id)>,
    lists: &'a Lists,
    uploads: &'a U,
    packs: PackFinisher<U::Mark>,
}

impl<U: Uploads> RemoveCas<'_, U> {
    /// Stores the record of the removal, which follows the last commit of the volume.
    async fn record(
        &mut self,
        entry: &Volume,
        (parent, generation): (Id, u64),
    ) -> Result<Id, RootError> {
        if let Some((of, record)) = self.record
            && of == parent
        {
            return Ok(record);
        }
        let record = CommitRecord {
            volume: self.volume.to_owned(),
            session: self.session,
            sequence: entry.sequence + 1,
            parent: Some(parent),
            tree: entry.tree,
            time: self.last.clock,
            covered: 0,
            next_inode: entry.next_inode,
            inodes: entry.inodes,
            bytes: entry.bytes,
            snapshot: Some(RecordedSnapshot {
                name: self.last.name.clone(),
                host: self.last.host.clone(),
                user: self.last.user.clone(),
                tags: self.last.tags.clone(),
            }),
            replayed: None,
            removes: true,
            generation: Some(generation),
        };
        // What was finished for another attempt does not have this record.
        self.packs.restart(self.uploads);
        let record = self.uploads.store_record(record.encode()).await?;
        self.record = Some((parent, record));
        Ok(record)
    }

    /// Returns the last snapshot of the volume, and names the packs of its record in `next`.
    async fn last(
        &mut self,
        next: &mut Root,
        (entry, parent): (&Volume, Id),
        kept: &SnapshotList,
    ) -> Result<SnapshotEntry, RootError> {
        let commit = self.record(entry, (parent, next.generation)).await?;
        let index = self
            .packs
            .finish_for(self.uploads, &next.uncovered_index())
            .await?;
        let finished = self.packs.finished().ok_or(Refusal::ListsChanged)?;
        let by = (self.session, &[][..]);
        check_relied_on(next, finished, by, self.lists, self.uploads).await?;
        next.change_index(&index)?;
        let trash = self.lists.known_trash(&next.trash).await?;
        let state = Volume {
            commit: Some(commit),
            ..entry.clone()
        };
        let last = new_entry(next, kept, &trash, (self.volume, &state), self.last)?;
        next.next_snapshot = last.number.wrapping_add(1);
        Ok(last)
    }
}

#[async_trait]
impl<U: Uploads> Transition for RemoveCas<'_, U> {
    type Output = Removed;

    fn session(&self) -> Option<SessionId> {
        Some(self.session)
    }

    async fn apply(&mut self, next: &mut Root) -> Result<Removed, RootError> {
        let entry = next.require_unheld(self.volume)?.clone();
        let shards = self.lists.snapshot_shards(&next.snapshots).await?;
        let kept = SnapshotList::new(shards.clone());
        let of_volume = kept.of_volume(self.volume);
        let snapshots: Vec<SnapshotEntry> = of_volume.into_iter().cloned().collect();
        if !snapshots.is_empty() && !self.may_forget {
            return Err(Refusal::HasSnapshots {
                volume: self.volume.to_owned(),
                count: snapshots.len(),
            }
            .into());
        }
        let last = match entry.commit {
            Some(parent) => Some(self.last(next, (&entry, parent), &kept).await?),
            None => None,
        };
        let leaves = |other: &SnapshotEntry| other.volume == self.volume;
        let change = rewrite(self.uploads, &next.snapshots, &shards, leaves, Vec::new()).await?;
        let going = snapshots.iter().chain(&last).cloned();
        let forgotten = self.last.clock;
        let going: Vec<TrashEntry> = going
            .map(|snapshot| TrashEntry {
                snapshot,
                forgotten,
            })
            .collect();
        if !going.is_empty() {
            let trash = discard(next, self.lists, self.uploads, going).await?;
            next.change_trash(&trash)?;
        }
        next.change_snapshots(&change)?;
        next.take_out(self.volume, Leaving::Unheld)?;
        next.end(self.session)?;
        Ok(Removed { snapshots, last })
    }

    async fn seen(&mut self, root: &Root) -> Result<bool, RootError> {
        if root.sessions.contains_key(&self.session) {
            return Ok(false);
        }
        // The change removed the session, or another session did and the change was refused.
        let trash = self.lists.known_trash(&root.trash).await?;
        let mut trash = trash.iter().flat_map(|shard| shard.iter());
        let record = self.record.map(|(_, record)| record);
        if trash.any(|entry| Some(entry.snapshot.commit) == record) {
            return Ok(true);
        }
        Err(RootError::OutcomeUnknown {
            reason: "another program has ended the session of this command".to_owned(),
        })
    }
}

impl OpenSession {
    /// Removes the scratch clone that this session holds, and the session with it.
    ///
    /// Cancel safety: that of [`drop_scratch`].
    ///
    /// # Errors
    /// Those of [`drop_scratch`].
    pub async fn drop_held_scratch(self) -> Result<(), RootError> {
        let (id, volume) = (self.id(), self.volume().unwrap_or_default().to_owned());
        drop_scratch(self, &volume, Some(id)).await
    }
}

/// Removes a scratch clone with the sessions that stand for it, by `session`, which leaves the root
/// in the same replacement. `of` is the holder, which ended or was judged dead; it may be
/// `session`. Without one, no session may hold the clone.
///
/// Cancel safety: dropped, it leaves the change unsent, or sent with an unknown outcome.
///
/// # Errors
/// [`RootError::Refused`] with [`Refusal::Held`] if another session holds the clone; the other
/// errors of [`RootHandle::update`](super::handle::RootHandle::update).
pub async fn drop_scratch(
    session: OpenSession,
    volume: &str,
    of: Option<SessionId>,
) -> Result<(), RootError> {
    let mut change = DropScratch {
        session: session.id(),
        volume,
        of: of.unwrap_or(session.id()),
    };
    session.end_by(&mut change).await?;
    Ok(())
}

struct DropScratch<'a> {
    session: SessionId,
    volume: &'a str,
    of: SessionId,
}

#[async_trait]
impl Transition for DropScratch<'_> {
    type Output = ();

    fn session(&self) -> Option<SessionId> {
        Some(self.session)
    }

    async fn apply(&mut self, next: &mut Root) -> Result<(), RootError> {
        if next.volumes.contains_key(self.volume) {
            next.take_out(self.volume, Leaving::With(self.of))?;
        }
        // The holder has left with its clone.
        match next.sessions.contains_key(&self.session) {
            true => Ok(next.end(self.session)?),
            false => Ok(()),
        }
    }

    async fn seen(&mut self, root: &Root) -> Result<bool, RootError> {
        Ok(!root.sessions.contains_key(&self.session))
    }
}
