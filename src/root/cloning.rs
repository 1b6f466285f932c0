//! The replacement of the root that makes a clone (docs/PROTOCOL.md, rule 14).
//!
//! Owns its order: the commit record of the clone is in the bucket before the root names it, and
//! the snapshot and the name are looked up in the root that is replaced, at each attempt. Does not
//! own the conditions ([`super::volumes`]), nor which snapshot is cloned.
//!
//! The record has no parent. So a root that is rebuilt from records has the clone as a volume of
//! its own, and a clone needs no record of its source, which may be forgotten.

use super::commit::follows;
use super::error::RootError;
use super::finish::PackFinisher;
use super::handle::Transition;
use super::lists::Lists;
use super::record::CommitRecord;
use super::refusal::Refusal;
use super::relied::check_relied_on;
use super::session::OpenSession;
use super::snapshots::SnapshotEntry;
use super::state::{Root, SessionId};
use super::uploads::Uploads;
use super::volumes::CloneChange;
use async_trait::async_trait;
use bkfs_chunker::id::Id;
use jiff::Timestamp;

/// Index objects in the root up to which a clone adds one, and absorbs none.
const INDEXES_MAX: usize = 64;

/// A clone to make.
#[derive(Clone, Debug)]
pub struct CloneRequest {
    /// The snapshot.
    pub source: SnapshotEntry,
    /// The name of the new volume.
    pub name: String,
    /// The lowest inode number that the tree of the snapshot never used.
    pub next_inode: u64,
    /// The time on the host's clock.
    pub clock: Timestamp,
}

/// A clone that is in the root.
#[derive(Debug)]
pub struct MadeClone {
    /// The generation of the root that made it, or if that is unknown, of a later one.
    pub generation: u64,
    /// The session that holds it, if one was to.
    pub session: Option<OpenSession>,
}

/// Makes a clone in the name of `session`, which holds no volume. Unless `is_held`, the session
/// leaves the root in the same replacement. `uploads` stores for this session.
///
/// Cancel safety: dropped, it leaves a commit record that no root names, or the replacement sent
/// with an unknown outcome; and the session maybe in the root without a heartbeat.
///
/// # Errors
/// - [`RootError::NoSnapshot`] if the root that is replaced does not have the snapshot.
/// - [`RootError::Refused`] with [`Refusal::VolumeTaken`] or [`Refusal::BadName`] for the name, and
///   with [`Refusal::Fenced`] if the session was ended.
/// - [`RootError::OutcomeUnknown`] if the clone may be there.
/// - [`RootError::Content`] and the other errors of
///   [`RootHandle::update`](super::handle::RootHandle::update).
pub async fn make_clone<U: Uploads>(
    session: OpenSession,
    lists: &Lists,
    (uploads, mark): (&U, U::Mark),
    request: &CloneRequest,
    is_held: bool,
) -> Result<MadeClone, RootError> {
    let mut cas = CloneCas {
        session: session.id(),
        request,
        is_held,
        recorded: None,
        lists,
        uploads,
        packs: PackFinisher::since(mark),
    };
    let made = match is_held {
        true => {
            let held = session.hold_by(&request.name, &mut cas).await;
            held.map(|(session, applied)| (Some(session), applied))
        }
        false => session
            .end_by(&mut cas)
            .await
            .map(|applied| (None, applied)),
    };
    cas.packs.settle(uploads, made.is_ok());
    let (session, applied) = made?;
    Ok(MadeClone {
        generation: applied.generation,
        session,
    })
}

struct CloneCas<'a, U: Uploads> {
    session: SessionId,
    request: &'a CloneRequest,
    is_held: bool,
    /// The number and the record of the last attempt.
    recorded: Option<(u64, Id)>,
    lists: &'a Lists,
    uploads: &'a U,
    packs: PackFinisher<U::Mark>,
}

impl<U: Uploads> CloneCas<'_, U> {
    /// Returns the commit record of the clone.
    fn record(&self, sequence: u64) -> CommitRecord {
        let request = self.request;
        CommitRecord {
            volume: request.name.clone(),
            session: self.session,
            sequence,
            parent: None,
            tree: request.source.tree,
            time: request.clock,
            covered: 0,
            next_inode: request.next_inode,
            inodes: request.source.files,
            bytes: request.source.bytes,
            snapshot: None,
            replayed: None,
            removes: false,
            generation: Some(sequence),
        }
    }

    /// Returns the change that makes the clone with this first commit.
    fn change(&self, (sequence, commit): (u64, Id)) -> CloneChange {
        CloneChange {
            session: self.session,
            volume: self.request.name.clone(),
            commit,
            next_inode: self.request.next_inode,
            sequence,
            is_held: self.is_held,
        }
    }

    /// Stores the record for this attempt. Its number is the generation that the attempt makes: in
    /// the meantime another clone of this name may have been recorded, and not made.
    async fn store_record(&mut self, next: &Root) -> Result<CloneChange, RootError> {
        let number = next.generation;
        // What was finished for another attempt does not have this record.
        self.packs.restart(self.uploads);
        let record = self.record(number).encode();
        let recorded = (number, self.uploads.store_record(record).await?);
        self.recorded = Some(recorded);
        Ok(self.change(recorded))
    }
}

#[async_trait]
impl<U: Uploads> Transition for CloneCas<'_, U> {
    type Output = ();

    fn session(&self) -> Option<SessionId> {
        Some(self.session)
    }

    async fn apply(&mut self, next: &mut Root) -> Result<(), RootError> {
        let kept = self.lists.snapshots(next).await?;
        let source = &self.request.source;
        // Before anything is stored for a clone that this root refuses, with any commit.
        let any = self.change((next.generation, source.commit));
        next.clone().add_clone(&any, source, &kept)?;
        let change = self.store_record(next).await?;
        // To absorb other index objects would cost a round trip more.
        let absorbed = match next.index.len() > INDEXES_MAX {
            true => next.uncovered_index(),
            false => Vec::new(),
        };
        let index = self.packs.finish_for(self.uploads, &absorbed).await?;
        let finished = self.packs.finished().ok_or(Refusal::ListsChanged)?;
        let by = (self.session, &[][..]);
        check_relied_on(next, finished, by, self.lists, self.uploads).await?;
        next.raise_floor(self.session, finished.floor);
        next.add_clone(&change, source, &kept)?;
        Ok(next.change_index(&index)?)
    }

    async fn seen(&mut self, root: &Root) -> Result<bool, RootError> {
        let volume = &self.request.name;
        if let Some(session) = root.sessions.get(&self.session) {
            // It got the volume in this change, and a session that was to leave is still there.
            return Ok(session.volume.as_ref() == Some(volume));
        }
        // Either the change removed the session, or another session did and the change was refused.
        let is_made = match (root.volumes.get(volume), self.recorded) {
            (Some(entry), Some(commit)) => {
                follows(root, self.lists, self.uploads, entry, commit).await?
            }
            _ => false,
        };
        match is_made {
            true => Ok(true),
            false => Err(RootError::OutcomeUnknown {
                reason: "another program has ended the session of this command".to_owned(),
            }),
        }
    }
}
